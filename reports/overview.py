# %% [markdown]
# # AERO, reproduced
#
# Nonlinear operations make private inference of language models expensive. Five papers study attention entropy; two
# of them, AERO first, also ask which of these operations a model needs. This report re-runs their experiments.
# Communication is measured between two processes at the papers' own sizes, models are trained at smaller sizes, and
# every claim has a verdict.
#
# Models are named by their parts: SM is the softmax, LN LayerNorm, G or R a GELU or ReLU; Sc, Fu, i_6: linear
# feed-forward networks are scaled, fused, six of them pruned; EReg: entropy penalty; SM(t): learned temperature.

# %%
import pandas as pd

from aero.report import claims, show, verdicts
from aero.report.papers import aero, private_tables
from aero.report.results import load

results = load()
judged = claims.judge(results)
numbers = claims.headline(results)

# %%
show.prose(
    "1. **Bytes: explained.** The papers do not state how they configured SPU, their framework for two-party "
    "computation. One configuration gives all {rows} printed values within {residual:.2f} %: version 0.9.2b0, tanh "
    "GELU, secret-shared weights. In it, AERO's cheapest model (`SM+ScFuFFNi_6`) sends {saving_fitted:.2f}x fewer "
    "bytes than the baseline `SM+LN+G`; in stock SPU 0.9.5, {saving_stock:.2f}x; printed: {saving:.2f}x.\n"
    "2. **Part of the saving is the baseline's GELU.** Of the {saving_stock:.2f}x, a factor of {saving_gelu:.2f} is "
    "the baseline's costly GELU; with a known cheaper one, {saving_architecture:.2f}x remains. Our program also cuts "
    "the cost of softmax and matmuls, which AERO keeps; in it AERO saves {saving_optimised:.2f}x. This program fuses "
    "linear feed-forward networks itself, so `SM+ScFFN` saves {saving_unfused:.2f}x too, and pruning adds nothing.\n"
    "3. **Minutes: too short as printed.** The baseline's {gb:.2f} GB need {needed_minutes:.1f} minutes at 100 Mbit/s "
    "even with both directions always busy; printed: {minutes:.2f}. Transfer alone rules out {impossible} of {rows} "
    "rows; transfer and the rounds of stock SPU, 80 ms each, rule out {impossible_with_rounds}.\n"
    "4. **Training: partly reproduced, in small models** (width {width}, {tokens:.1f}M tokens read per training, "
    "{seeds}). Against `SM+LN+G`, perplexity changes by {no_layer_norm} in `SM+R`, {softmax_alone} in `SM` (paper: "
    "diverged) and {softmax_only} in `SM+ScFuFFN`. Entropy penalty and temperature change `SM+LN+G` by "
    "{regularised_layer_norm}, `SM+ScFuFFN` by {regularised} and `SM+R` by {regularised_relu} (paper: n/a). "
    "{warning}At width 768 `SM+G`, `SM+R` and `SM+ScFuFFN` diverged (one seed).\n"
    "5. **Theory: entropy falls, the printed derivative is wrong.** Softmax entropy falls as the variance of the "
    "logits grows, as Theorem 5.1 of Variance Sensitivity says. The derivative it prints is wrong in {wrong_slopes} of "
    "{slopes} cases. A head's mean entropy cannot reach log T = {log_t:.2f} under a causal mask: its bound at T=128 is "
    "{causal:.2f}.",
    warning="No verdict rests on them: the baseline does not beat n-gram models there. " if numbers["gate"] else "",
    **numbers,
)

# %%
show.table(
    private_tables.headline(results),
    "One private forward pass of GPT-2, T = 128",
    "GB in both directions, and how many times fewer than SM+LN+G. Reproduced: SPU 0.9.2b0, logits at every position. "
    "Optimised: this project's program under SPU 0.9.5, logits of the last token.",
    sources=["results/two_party/rows.csv", "results/two_party/forensics_fits.csv"],
)

# %%
show.figure(
    aero.perplexity_changes(results.at(numbers["scale"])),
    "What it costs in perplexity",
    "Perplexities on two corpora do not compare; ratios to each one's baseline do. Published at the papers' size, "
    f"measured at scale {numbers['scale']} (small models, described in the next chapter). SM diverged in the paper.",
    sources=[f"results/{numbers['scale']}/metrics.jsonl"],
)

# %% [markdown]
# ## What is new here, beside findings 1 to 3
#
# - A private program that sends about a fifth of the published bytes. It folds feed-forward networks into attention,
#   computes softmax on the causal half, and multiplies by weights outside SPU.
# - Private answers from two processes over TLS (`aero serve`, `aero ask`), of models trained here and of Hugging Face's
#   GPT-2, GPT-NeoX and Llama. With cached keys and values
#   [a next token](#a-next-token-with-cached-keys-and-values) sends about a fifth of an optimised pass's bytes or less.
# - The savings under two further protocols, SEMI2K and ABY3, and our costs beside other systems'.
# - Entropy and its regulariser for most causal Hugging Face models (`aero entropy`, `EntropyRegularizer`).

# %%
show.table(
    private_tables.new_measurements(results),
    "Beyond the papers",
    "Measured here, at GPT-2's size. Stock SPU: version 0.9.5. WAN: modelled at 100 Mbit/s and 80 ms.",
    sources=["results/two_party"],
)

# %% [markdown]
# ## Verdicts
#
# A small model can show that an effect exists. It cannot show that the effect is missing in a large one. *Contradicted*
# is therefore reserved for costs, counts, theory and arithmetic; at worst, a claim about training is *opposite here*.
# *Reproduced*: direction and size hold. *Direction reproduced*: the direction holds, and the size does not or is not
# claimed; or only some trainings fail as claimed. *Undecided*: within noise, or the claim holds in part and is nowhere
# reversed. *At ceiling*: both sides are nearly 0 or nearly 1. *Not testable here*: not measured, failed, too few seeds,
# or the baseline fails the gate. The gate asks two things of the baseline: that it beats n-gram models of the same
# tokens, and that at least half of its heads have entropies between 1/4 and 3/4 of the largest that a causal mask
# allows. Every verdict on perplexity or entropy rests on a 95 % interval; for shares of trainings or seeds it is
# Wilson's.
#
# The papers' costs are judged under stock SPU. If only the configuration of finding 1 gives the printed cost, the
# verdict is *direction reproduced*. All claims are in the appendix, with a search box on the HTML page.

# %%
paper = judged.paper.map(show.PAPERS).where(judged.group != claims.OWN, "our own")
show.table(
    pd.crosstab(judged.verdict, paper).reindex(list(verdicts.VERDICTS), fill_value=0).rename_axis(columns=None),
    "Claims by verdict and paper",
    "Every claim once. Our own: questions that no paper asks, judged by the same rules.",
    sources=["reports/claims.csv"],
)

# %% [markdown]
# ```{=typst}
# *Chapters*
# #outline(title: none, depth: 1)
# ```
