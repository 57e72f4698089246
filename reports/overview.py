# %% [markdown]
# # AERO, reproduced
#
# Five papers ask which nonlinearities a language model needs to be run privately at an affordable price, and what the
# entropy of its attention has to do with it. This report re-runs them: communication is measured between two processes
# at the papers' own dimensions, models are trained at a size that the machine can afford, and every claim has a
# verdict.

# %%
from aero.report import claims, show
from aero.report.papers import aero, private_tables
from aero.report.results import load

results = load()

# %%
show.table(
    private_tables.headline(results),
    "One private forward pass of GPT-2, T = 128",
    "GB in both directions, and how many times fewer than SM+LN+G. SM: softmax, LN: LayerNorm, G, R: GELU, ReLU; Sc, "
    "Fu, i: feed-forward networks scaled, fused, some of them pruned.",
    sources=["results/two_party/rows.csv", "results/two_party/fitted_rows.csv"],
)

# %%
show.figure(
    aero.perplexity_changes(results),
    "What it costs in perplexity",
    "Perplexities of different corpora do not compare; their ratios to one baseline do. Published at the papers' size, "
    "measured in small models.",
    sources=[f"results/{results.scale}/metrics.jsonl"],
)

# %% [markdown]
# ## Verdicts
#
# A small model can show that an effect exists. It cannot show that the effect is missing in a large one: what it does
# not show is *undecided* or *opposite here*. *Contradicted* is kept for costs, counts, theory and arithmetic. A verdict
# needs two seeds that all sides of the comparison have, and a baseline that has learnt more than n-grams do.

# %%
counts = claims.counts(claims.judge(results))
show.table(
    counts.rename_axis(index="rests on", columns=None),
    "Claims by verdict",
    "Every claim once; the chapters list them.",
    sources=["reports/claims.csv"],
)
