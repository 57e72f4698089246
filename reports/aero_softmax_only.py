# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# The report's source. `python -m stages.report` executes it and renders reports/report.html and reports/report.pdf.
# No number is typed here: every one comes from a result file or from the papers' numbers in aero/published.

# %%
from IPython.display import Markdown

from aero.published import load as published
from aero.report import (
    claims,
    entropy_page,
    evidence,
    failure_modes,
    figures,
    landscape_tables,
    marks,
    overview,
    page,
    parallel_context_page,
    scales,
    sensitivity,
    sensitivity_models,
    sensitivity_page,
    sensitivity_theory,
)
from aero.report.differences import differences_table
from aero.report.figure_index import FIGURES
from aero.report.printed_tables import printed_table
from aero.report.results import load_for_report

results = evidence.traced(load_for_report())
judged = claims.judge(results)
paper = published("aero")
table_2_runs = [row.run for row in paper.tables["2"].rows]
table_4_runs = [row.run for row in paper.tables["4"].rows]
all_runs = list(dict.fromkeys(table_2_runs + table_4_runs))

# %%
Markdown(f"""# AERO, reproduced

Five papers say which nonlinearities a language model needs to be run privately at a bearable price, and what the
entropy of its attention has to do with it. This is an audit: {len(judged)} claims, theirs but for a few variations of
our own that are counted apart, each with its place and a test, decided on small models trained here, on private
inference between two processes at the papers' own dimensions, and on what the papers print themselves. By the dates of
the commits.""")

# %%
claims.counts(judged)

# %%
overview.table_questions(judged)

# %%
print(claims.MEANINGS)

# %%
page.shown(
    overview.figure_verdicts(judged),
    "figure-verdicts",
    "Verdicts by paper",
    "Every claim once. A small model can show that an effect is there; that it is missing in a large one it can never "
    "show, hence the third class.",
    "aero.report.overview.figure_verdicts",
    files=["reports/claims.csv"],
)

# %%
page.figure_of(
    results,
    overview.figure_savings,
    "What dropping nonlinearities saves",
    "Communication of one private forward pass, SM+LN+G over the row, both measured as published (the best fit of the "
    "printed bytes), as the papers write the networks down, and tuned. SM: softmax, LN: LayerNorm, R: ReLU; Sc, Fu, i: "
    "feed-forward networks scaled, fused, some of them pruned. A triangle on its base is what is left of the saving as "
    f"written when the baseline's GELU is the cheap one that private inference knows. {marks.cost_caption(results)} As "
    "published: results/two_party/fitted_rows.csv.",
    papers=["aero"],
)

# %%
page.figure_of(
    results,
    overview.figure_perplexity,
    "What it costs in perplexity",
    "Perplexities of different corpora do not compare, their ratios to one baseline do: published at the papers' size, "
    f"measured at {marks.scale_text(results)}.",
    papers=["aero"],
)

# %% [markdown]
# ## How to read this
#
# Every number belongs to one of three classes, marked wherever it stands. Under every table and figure, *Data, code,
# command* opens to the files its numbers come from, the code that made it and the command that makes it again; a
# number leads to its file. In the tables of claims the last column has the test and the files. Links lead into the
# repository that this page lies in.

# %%
page.legend()

# %% [markdown]
# Models are trained here at a scale that fits the machine at hand, so perplexities are not comparable in size with the
# published ones: another corpus, another tokenizer, a smaller model, fewer tokens. What can be compared is direction
# and relative difference, and only where an interval over seeds allows it; one seed gives no interval and therefore no
# verdict. Costs are different: bytes do not depend on the machine, and every operation was run between two real
# processes at the papers' own dimensions. *Contradicted* is kept for costs, counts, theory and arithmetic, and for
# training at the papers' own scale. A verdict is computed on the largest scale at which all sides of the
# comparison have two seeds in common.

# %%
page.contents()

# %% [markdown]
# ## AERO
#
# *AERO: Softmax-only LLMs for efficient private inference* removes LayerNorm and the activations of the feed-forward
# networks step by step, fuses and prunes what has become linear, and adds a penalty on attention entropy. Its claim is
# a price: so much less communication for so much more perplexity.

# %%
page.headline(results)

# %% [markdown]
# ### Fewer nonlinearities: Table 2
#
# SM is the softmax, LN the LayerNorm of each block, G and R a GELU or ReLU in the feed-forward network. A row without G
# or R has a linear feed-forward network.

# %%
page.table_2(results)

# %%
page.figure_of(
    results,
    figures.figure_3b,
    "AERO Figure 3b, evaluation loss",
    "Lines are means, bands the range over seeds; a cross marks where a run became not finite. "
    f"{marks.training_caption(results, table_2_runs)}",
)

# %%
claims.table(judged, "aero")

# %% [markdown]
# ### Where attention looks: entropy
#
# The entropy of a head is the mean over its queries, in nats,
#
# $$E^{(l,h)} = -\frac{1}{T}\sum_{i=1}^{T}\sum_{j=1}^{T} a_{ij}^{(l,h)} \log a_{ij}^{(l,h)} .$$
#
# The papers call a head *overloaded* when it stands in the highest quarter of the largest entropy observed in its
# model, and *collapsed* in the lowest. Under a causal mask row $i$ has at most $\log i$, so the mean cannot exceed
# $\ln(T!)/T$, well below the $\log T$ that the papers take as the maximum: which maximum is meant decides how many
# heads count as overloaded, so all three are shown.

# %%
entropy_page.heads_by_rule(results)

# %%
entropy_page.sampling_summary(results)

# %% [markdown]
# ### How the models fail
#
# Without normalisation and activation the papers report three failures: the Softmax-only model diverges, pruning the
# seventh feed-forward network collapses the last layers, and a GELU without LayerNorm overloads the early ones.

# %%
failure_modes.section(results)

# %%
print()

# %%
entropy_page.figures(results, "aero")

# %% [markdown]
# ### Normalised and scaled feed-forward networks: Tables 3 and 9
#
# Three ways to let the Softmax-only model train: weights divided by their norms (WNorm), by their largest singular
# value (SNorm), or a feed-forward output scaled by learned numbers.

# %%
printed_table(results, "3")

# %%
differences_table(results, "3")

# %%
printed_table(results, "9")

# %%
differences_table(results, "9")

# %%
print()

# %% [markdown]
# ### Against the simplified blocks: Table 4
#
# Sc is a learnable scaling of the feed-forward output, Fu a fused feed-forward matrix, i_x the number of deepest
# feed-forward networks replaced by the identity, SM(t) a softmax with learnable temperature, EReg training with the
# entropy regulariser. SOTA rows are the papers' name for the blocks of He & Hofmann.

# %%
printed_table(results, "4")

# %%
differences_table(results, "4")

# %%
scales.side_by_side(results)

# %%
print()

# %% [markdown]
# ### Longer contexts, more layers, other data: Tables 5 to 7

# %%
printed_table(results, "5")

# %%
differences_table(results, "5")

# %%
printed_table(results, "6")

# %%
differences_table(results, "6")

# %%
printed_table(results, "7")

# %%
differences_table(results, "7")

# %%
print()

# %% [markdown]
# ### Another family: Table 8

# %%
printed_table(results, "8")

# %%
print()

# %% [markdown]
# ### What private inference costs
#
# Two processes compute one forward pass on secret shares: the server holds the weights, the client the prompt, and only
# the client learns the logits. A row is composed from its operations, each measured in such a run. *As written* is
# the plain program, without any saving, under the version of SPU in `requirements.lock`; what the papers ran seems to
# be another configuration of an earlier one (below, *Where the published bytes come from*, and `docs/forensics.md`);
# *as published* is that configuration as a program, under today's version, and stands beside what is printed.
# *Tuned* is the same model with projections merged, linear parts folded into their neighbours, the causal half skipped,
# exponentials and GELU approximated (the error in the logits is in the table of complete passes), tokens looked up by
# encrypted queries instead of a product, and products of several rows with the server's matrices computed outside SPU,
# by the same protocol but this project's own code (`tuned-lattice_products` has SPU's products). The look-up rests on
# the hardness of lattice problems, as SPU's own products do. The latency on a network is modelled, not timed:
#
# $$t = t_\text{compute} + \frac{\text{bytes that cost time}}{\text{bandwidth}} + \text{rounds} \times \text{RTT}.$$
#
# Bytes that cross in both directions at once cost the time of the larger direction alone, so those that cost time are
# fewer than the bytes of the tables, which count both directions.

# %%
page.figure_of(
    results,
    figures.figure_1,
    "AERO Figure 1, communication and latency along AERO's steps",
    f"{marks.cost_caption(results)}",
    papers=["aero"],
)

# %% [markdown]
# How much of a saving is the architecture's, and how much is that of a baseline whose GELU nobody had optimised?

# %%
print()

# %% [markdown]
# ### Where the paper disagrees with itself
#
# These need no measurement: two printed things are set against each other.

# %%
page.figure_of(
    results,
    figures.figure_contradiction,
    "Published latency against the published bytes",
    "The published bytes at the published bandwidth. A latency left of its bar is impossible on that network, even "
    "if both directions are counted and always busy.",
    papers=["aero"],
)

# %%
print()

# %% [markdown]
# ## Entropy-Guided Attention
#
# *Entropy-Guided Attention for Private LLMs* tells the same story from the side of entropy. Its figures that are AERO's
# too stand above, under AERO's numbers; most of its tables are lost from the text used here and stand in AERO's.

# %%
printed_table(results, "3", "entropy_guided")

# %%
differences_table(results, "3", "entropy_guided")

# %%
claims.table(judged, "entropy_guided")

# %%
entropy_page.figures(results, "entropy_guided")

# %%
entropy_page.figures(results, "")

# %% [markdown]
# ## The Entropy Landscape
#
# *Regularizing the Entropy Landscape of Self-Attention* puts the same penalty on models that keep LayerNorm and
# activations. One number a head, its mean entropy $E^{(l,h)}$, over layers and heads. The paper calls
# $|\nabla E| = \sqrt{(\partial E/\partial l)^2 + (\partial E/\partial h)^2}$ its steepness; the Gini coefficient
# $\sum_{ij} |x_i - x_j| / (2 n^2 \bar x)$ says how much the heads of a layer differ, and the Wasserstein distance $W_1$
# how far their entropies have moved from the baseline's. Heads have no order, so the part of the steepness across heads
# depends on their numbering; claims about it are given over random orders of the heads as well.

# %%
landscape_tables.table_1(results)

# %%
differences_table(results, "1", "entropy_landscape")

# %%
claims.table(judged, "entropy_landscape")

# %%
print()

# %%
entropy_page.figures(results, "entropy_landscape")

# %% [markdown]
# ## Variance Sensitivity
#
# *Variance Sensitivity Induces Attention Entropy Collapse in Transformers* trains a small Transformer of attention
# alone on in-context linear regression, at learning rates over six orders of magnitude, and measures how much the final
# loss depends on the rate:
#
# $$\mathbb{E}_{\eta}\left[\min(\ell(\mathcal{A}(\eta)), \ell_0) - \ell^*\right] .$$
#
# The model is small enough to be trained here, but much of the experiment is not printed. So the table is measured in
# the setting that came nearest to it among the first few of the reasonable ones that were searched, in an order drawn
# at random (`docs/decisions.md`), and beside it stands what all settings give that have been run.

# %%
sensitivity.table_1(results)

# %%
sensitivity_page.figures(results)

# %%
sensitivity_page.search_tables(results)

# %%
claims.table(judged, "variance_sensitivity")

# %% [markdown]
# ### Why softmax collapses: theory and language models
#
# The same paper explains the collapse by the variance of the attention logits. With logits $z \sim N(0, \sigma^2 I_N)$,
# $p = \text{softmax}(z)$ and $H$ the entropy of $p$, Theorem 5.1 gives
#
# $$H = \log N - \frac{N-1}{2N}\sigma^2 + O(\sigma^4), \qquad \frac{\partial H}{\partial \sigma^2} =
# -\mathbb{E}\Big[\sum_i z_i^2 p_i\Big],$$
#
# while its proof ends with $-\mathbb{E}[\text{Var}_p(z)]/(2\sigma^2)$. Both cannot be right. The formulas of the
# paper's theory were derived anew, but for its bound of the gradient (`docs/variance_sensitivity.md`), and are set
# here against entropies that were drawn without them.

# %%
page.figure_of(
    results,
    sensitivity_theory.sensitivity_expansion,
    "Theorem 5.1 against Monte Carlo",
    sensitivity_theory.caption_expansion(results),
)

# %%
sensitivity_theory.table_derivative(results)

# %%
sensitivity_theory.table_relu(results)

# %%
page.figure_of(
    results,
    sensitivity_theory.sensitivity_figure_3,
    "Variance Sensitivity Figure 3, attention weights and entropy at a controlled variance",
    sensitivity_theory.caption_3(results),
)

# %%
sensitivity_theory.table_bounds(results)

# %%
page.figure_of(
    results,
    sensitivity_theory.sensitivity_figure_10,
    "Variance Sensitivity Figure 10, entropy and norm of a row",
    sensitivity_theory.caption_10(results),
)

# %%
print()

# %% [markdown]
# The paper then trains LLaMA-1B and GPT-2 Large with three of its attention cores. Here the GPT-2 block stands in for
# both, on the code corpus and at two learning rates: the printed one, which is gentle for a model this narrow, and one
# in proportion to width. What is not trained at a larger scale is said under What is missing.

# %%
sensitivity_models.figure_of(
    results,
    sensitivity_models.sensitivity_figure_1_top,
    "Variance Sensitivity Figure 1 (top), training with three attention cores",
    sensitivity_models.CAPTION_1,
)

# %%
sensitivity_models.figure_of(
    results,
    sensitivity_models.sensitivity_figure_7,
    "Variance Sensitivity Figure 7, softmax and ReLU kernel, first layer",
    sensitivity_models.CAPTION_7,
)

# %%
sensitivity_models.figure_of(
    results,
    sensitivity_models.sensitivity_figure_4,
    "Variance Sensitivity Figure 4, variance of the logits and normalised entropy",
    sensitivity_models.CAPTION_4,
)

# %%
sensitivity_models.table_models(results)

# %%
print()

# %% [markdown]
# ## Parallel Context Encoding
#
# The context is encoded in P segments that do not see each other and share their positions; the query continues behind
# the longest one and sees them all. The paper finds that this disperses the query's attention and that the entropy
# $H(p) = -\sum_i p_i \log p_i$ tells how much is lost. Its two remedies train nothing: a *shared sink*, a prefix that
# every segment sees, and *selective attention*, which keeps the K segments with the highest scores. P=1 is full
# attention.

# %%
parallel_context_page.section(results)

# %%
claims.table(judged, "parallel_context")

# %% [markdown]
# ## Every claim

# %%
claims.table(judged)

# %% [markdown]
# ## How fast it is
#
# `make bench` measures this project beside what its user would pick instead, in one run on one machine. What is kept
# here is of several such runs: every caption says of which commit. Seconds are the machine's; only ratios are claims,
# medians of interleaved repeats with their range, but for the seconds of two parties, which are kept measurements of
# other days. Projections are set in italics.

# %% [markdown]
# ## How it was made

# %%
page.runs_table(results, all_runs)

# %%
page.other_scales(results, all_runs)

# %% [markdown]
# ### Training speed on a GPU

# %% [markdown]
# ### What is missing

# %%
page.gaps(results, all_runs, [*(run for drawn in FIGURES for run in drawn.runs), *sensitivity_models.RUNS])

# %% [markdown]
# ### Which figure is which

# %%
entropy_page.index(results)

# %% [markdown]
# ### Entropy without its matrix
#
# The entropy of a row needs no row of a T x T matrix to be kept: with $z_{ij}$ the logits and $p_{ij}$ the weights,
# $E_i = \log\sum_j e^{z_{ij}} - \sum_j p_{ij} z_{ij}$, and the last sum is a product of the query with an average of
# the keys.

# %% [markdown]
# ### The papers
#
# AERO: Softmax-only LLMs for efficient private inference, arXiv 2410.13060. The perplexities of its Table 2 are quoted
# from the authors' earlier repository, relu-revival-normfree. The SOTA blocks are from He & Hofmann, Simplifying
# Transformer Blocks, ICLR 2024. Entropy-Guided Attention for Private LLMs, arXiv 2501.03489. Regularizing the Entropy
# Landscape of Self-Attention. Variance Sensitivity Induces Attention Entropy Collapse in Transformers: Hong and Lee.
# Attention Entropy is a Key Factor: An Analysis of Parallel Context Encoding, arXiv 2412.16545.
# All are in CITATION.cff.

# %% [markdown]
# ## Robustness
#
# A trusted artifact loses no result, reports no wrong number and leaks nothing: what was tried against that, and what
# came of it. The commands below start each trial again; `SECURITY.md` says what is protected from whom.
