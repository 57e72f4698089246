# %% [markdown]
# # The Entropy Landscape
#
# *Regularizing the Entropy Landscape of Self-Attention* puts the same penalty on models that keep LayerNorm and
# activations. It maps the mean entropy $E^{(l,h)}$ over layers and heads and calls $|\nabla E| = \sqrt{(\partial
# E/\partial l)^2 + (\partial E/\partial h)^2}$ its steepness. The Gini coefficient $\sum_{ij} |x_i - x_j| / (2 n^2 \bar
# x)$ measures how unequal the heads of a layer are. The Wasserstein distance $W_1$ measures how far their entropies
# moved from the baseline's.
#
# **What holds here.** At scale desk (chapter AERO, [differences in
# perplexity](#differences-in-perplexity-predicted-and-measured)) penalty and temperature raise the perplexity of
# SM+LN+G and SM+LN+R, against the paper. As it says, the highest entropies fall and the heads move away from the
# baseline's. The landscape of deep layers gets flatter, not steeper.
#
# Heads have no order, so steepness across heads depends on their numbering; for the claim on deep layers,
# `reports/claims.csv` also gives it for random orders of heads. Rows bear the paper's names. The measured models are of
# scale laptop (first figure: desk), with at most the paper's context and far fewer tokens. Entropies grow with the
# context: compare differences, not absolute values.

# %%
from aero.report import claims, show
from aero.report.papers import entropy_landscape
from aero.report.results import load
from aero.report.statistics import evidence

results = load()
desk = evidence(results)
METRICS, ENTROPY, CURVES = ([f"results/{results.scale}/{name}.jsonl"] for name in ("metrics", "entropy", "curves"))

# %%
show.table(
    entropy_landscape.table_1(results),
    "Perplexity, range of entropies and distance from the baseline",
    "Range: lowest and highest head. W₁: of all heads, in nats, paired by seed. Intervals: "
    "reports/tables/entropy_landscape_table1.csv.",
    sources=METRICS + ENTROPY,
    published="entropy_landscape/table1",
)

# %%
show.figure(
    entropy_landscape.figure_1(desk),
    "Entropy over layers and heads",
    "First seed, scale desk; vertical axis: mean entropy in nats. EReg: margin 0.20.",
    sources=[f"results/{desk.scale}/entropy.jsonl"],
    published="entropy_landscape/figure1",
)

# %%
show.figure(
    entropy_landscape.figure_2(results),
    "Steepness of the landscape",
    "First seed, GELU with LayerNorm; from the mean of a head's token entropies (the paper's caption) and from their "
    "median (its text).",
    sources=ENTROPY,
    published="entropy_landscape/figure2",
)

# %%
show.figure(
    entropy_landscape.figure_3(results),
    "Heads of each layer by margin",
    "18 layers, first seed: mean over a layer's heads, Gini coefficient, Wasserstein-1 distance from the baseline's "
    "heads.",
    sources=ENTROPY,
    published="entropy_landscape/figure3",
)

# %% [markdown]
# ## Contradicted claims

# %%
show.table(
    claims.contradicted(results, "entropy_landscape"),
    "Contradicted claims of the paper",
    "By arithmetic, counts or theory. All claims: appendix.",
    sources=["reports/claims.csv"],
)
