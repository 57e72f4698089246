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

# %% [markdown]
# # Appendix

# %%
import pandas as pd

from aero.report import appendix, claims, show
from aero.report.papers import aero_entropy
from aero.report.papers import private_tables as tables
from aero.report.results import load
from aero.report.statistics import evidence

results = load()
desk = evidence(results)
ENTROPY = [f"results/{desk.scale}/entropy.jsonl"]
BENCH, ROBUSTNESS = "results/bench", "results/robustness"

# %% [markdown]
# ## Explorer
#
# Search, sort and filter the claims, and rows by bytes, latency and perplexity (HTML page only). Perplexities are of
# scale desk; costs are of the size that a row names.

# %%
appendix.explorer(results, claims.judge(results))

# %% [markdown]
# ## Artifact
#
# The commands need Linux, Python 3.11, 2 cores, 8 GB of memory, 6 GB of disk and a package index, but no GPU. Many runs
# of scale desk trained on a GPU; on two cores they take days. Times are for 2 cores. The `Dockerfile` runs the same
# commands. Checkpoints are not in the repository. `python -m stages.train RUN --seed SEED --scale SCALE` makes the same
# file on the same processor; for trainings on a CPU, `results/SCALE/metrics.jsonl` has its SHA-256.

# %%
numbers, first, passes = claims.headline(results), tables.headline(results), tables.complete_passes(results)
found = [
    ("The printed GB follow from one configuration of SPU", "python -m benchmarks.forensics search", "15 s",
     f"{numbers['rows']} rows within {numbers['residual']:.2f} %", "exact"),
    ("AERO saves about 4x in bytes", "aero cost --compare SM+LN+G SM+ScFuFFNi_6 --program as_written", "1 s",
     f"{numbers['saving_stock']:.2f}x (printed {numbers['saving']:.2f}x)", "exact"),
    ("Part of it is the baseline's GELU", "make report", "1 min",
     f"{numbers['saving_gelu']:.2f}x of {numbers['saving_stock']:.2f}x", "exact"),
    ("The printed minutes are too short", "make report", "1 min",
     f"{numbers['impossible']} of {numbers['rows']} rows impossible", "exact"),
    ("The optimised program's bytes", "aero cost 'SM+ScFuFFN'", "1 s", f"{first.iloc[2]['GB, optimised']} GB", "exact"),
    ("Bytes of single operations", "python -m stages.two_party_ops --anew", "10 min",
     "results/two_party/ops.csv", "0.1 %"),
    ("A row is the sum of its operations", "python -m benchmarks.full_passes", "10 s",
     f"sum / pass {passes['GB, sum / pass'].min()} to {passes['GB, sum / pass'].max()}", "3 %"),
    ("Private logits agree with PyTorch's", "python -m stages.end_to_end", "10 min",
     f"difference at most {tables.trained_passes(results)['largest logit error'].max()} on its prompts", "0.05"),
    ("Theorem 5.1's printed derivative is wrong", "python -m stages.sensitivity_theory", "1 min",
     f"{numbers['wrong_slopes']} of {numbers['slopes']} cases", "4.5 standard errors"),
    ("Softmax is sensitive to the learning rate", "dvc repro -s sensitivity", "3 min", "results/sensitivity", "1 %"),
    ("Trainings and entropies, scale laptop", "make repro", "under 20 min",
     "results/laptop", "exact on the same processor"),
    ("Trainings, scale desk", "make repro SCALE=desk", "days", "results/desk", "intervals over seeds"),
    ("Verdicts on all claims", "make report", "1 min", "reports/claims.csv unchanged", "exact"),
    ("The whole pipeline", "make repro SCALE=smoke", "3 to 5 min", "reports/report.html", ""),
    ("Equations, parity, protocols", "make test", "about 8 min", "all tests pass", ""),
]  # fmt: skip
show.table(
    pd.DataFrame(found, columns=["claim", "command", "time", "expected", "tolerance"]),
    "What to run",
    "Bytes agree on every machine, within the tolerance; seconds and last digits of losses do not.",
)

# %% [markdown]
# Ten questions that this report answers, and where:
#
# 1. What does `SM+ScFuFFN` cost in GB: published, reproduced, optimised?
#    [First table](#one-private-forward-pass-of-gpt-2-t-128)
# 2. Which configuration gives the published bytes, and what if one choice changes?
#    [The four best fits](#the-four-best-fits-and-one-choice-changes-of-the-best)
# 3. How much of the saving is the baseline's GELU?
#    [Saving in communication](#aero-table-4-saving-in-communication)
# 4. Are the published minutes possible on the published network?
#    [Minutes on the published network](#aero-table-4-minutes-on-the-published-network)
# 5. How far are private logits from PyTorch's? [Complete passes](#complete-passes-of-models-trained-here)
# 6. What does dropping LayerNorm and GELU cost in perplexity? [Perplexity](#what-it-costs-in-perplexity)
# 7. Does the entropy regulariser help with LayerNorm, and without?
#    [Differences in perplexity](#differences-in-perplexity-predicted-and-measured)
# 8. Does softmax attention collapse as Theorem 5.1 says? [Theorem 5.1](#theorem-5-1-against-draws),
#    [attention while training](#variance-sensitivity-figure11)
# 9. What does entropy have to do with encoding a context in parallel segments?
#    [Entropy against loss](#entropy-against-loss)
# 10. How long does a private pass take, where does the time go, and how long does a next private token take?
#     [Minutes](#modelled-minutes-of-a-forward-pass), [computing](#where-the-computing-goes),
#     [next token](#a-next-token-with-cached-keys-and-values)

# %% [markdown]
# ## All claims
#
# On the HTML page they are in the explorer above. Runs are compared on common seeds. Evidence, scales and tests are in
# `reports/claims.csv`.

# %%
BRACKETS = dict.fromkeys(show.PAPERS, "Brackets: 95 % interval over seeds.")
BRACKETS["parallel_context"] = (
    "Brackets: 95 % interval over episodes. Losses: nats for the texts (bible, docs), % wrong for other tasks; "
    "negative differences are better."
)
judged = claims.judge(results)
for short, title in show.PAPERS.items():
    one = judged[(judged.paper == short) & (judged.group != claims.OWN)]
    columns = ["claim", "published", "measured", "verdict"]
    display(show.table(one[columns], f"Claims of {title}", BRACKETS[short], print_only=True))  # noqa: F821
own = judged[judged.group == claims.OWN][["claim", "measured", "verdict"]]
show.table(own, "Our own questions", "Asked by no paper; judged by the same rules.", print_only=True)

# %% [markdown]
# ## A further figure of attention entropy

# %%
show.figure(
    aero_entropy.temperatures(desk),
    "Learned temperatures",
    "The logits are divided by t, one per head and query position, which starts at 0.01. Pink: below 0, which reverses "
    "the order of attention. First seed; all seeds are in reports/tables/learned_temperatures.csv.",
    sources=ENTROPY,
)

# %% [markdown]
# ## Speed

# %%
show.table(
    appendix.training_step(results),
    "A training step against transformers",
    "SM+LN+G, 12 layers, 1,024 tokens per batch, 2 threads, the same weights and optimiser. Medians of 7 interleaved "
    "repeats with their range.",
    sources=[f"{BENCH}/training_step.json"],
    command="python -m benchmarks.training_step",
)

# %%
show.table(
    appendix.regularized_step(results),
    "A regularised step against the authors' loop",
    "The authors' way is transformers' GPT-2 with `output_attentions=True` and the penalty in a loop over layers and "
    "heads.",
    sources=[f"{BENCH}/regularized_step.json"],
    command="python -m benchmarks.regularized_step",
)

# %%
show.table(
    appendix.entropy_memory(results),
    "Memory of attention with its entropy",
    "Four heads of width 64, forward and backward.",
    sources=[f"{BENCH}/entropy_memory.json"],
    command="python -m benchmarks.entropy_memory",
)

# %% [markdown]
# `results/bench` also has the speed of tokenizing, of a pipeline with nothing to redo, and of private passes by depth.
# `results/robustness` has checks with damaged input and with faults in every stage, and checks of transcripts, packages
# and a server over 1,000 questions; each file names its commit.

# %% [markdown]
# ## Reproducibility

# %%
show.table(
    appendix.determinism(results),
    "The same training again",
    "Repeated trainings are equal on the same kind of processor with the same number of threads. Differences of logged "
    "losses and of perplexity: relative; of entropy: nats.",
    sources=[f"{ROBUSTNESS}/determinism.json"],
)
