# %% [markdown]
# # Entropy-Guided Attention
#
# *Entropy-Guided Attention for Private LLMs* (arXiv 2501.03489) explains AERO's models by entropy. Without LayerNorm
# and activations, heads of early layers stay at high entropy (overload) and those of deep layers lose theirs
# (collapse). A learned temperature and a penalty on entropies away from a learned threshold keep them in between, and
# perplexity falls.
#
# The text used here lost Tables 2 and 4 to 7; their rows stand in AERO's Tables 2 and 4 to 8. Figures 5, 6 and 7 are
# AERO's 10, 18 and 19, and its Figures 1 and 3 are diagrams.

# %%
from aero.report import claims, show
from aero.report.papers import entropy_guided
from aero.report.results import load

results = load()
METRICS, ENTROPY, CURVES = ([f"results/{results.scale}/{name}.jsonl"] for name in ("metrics", "entropy", "curves"))

# %% [markdown]
# ## Entropy with fewer nonlinearities

# %%
show.figure(
    entropy_guided.figure_2(results),
    "Entropy of every head, fewer nonlinearities",
    "First seed. Yellow is overload, dark blue collapse.",
    sources=ENTROPY,
    published="entropy_guided/figure2",
)

# %%
show.figure(
    entropy_guided.figure_4(results),
    "Entropy of each layer over training",
    "First seed: (a) baseline, (b) Softmax-only, (c) to (e) stabilised, (f) regularised.",
    sources=CURVES,
    published="entropy_guided/figure4",
)

# %% [markdown]
# ## What temperature and penalty change

# %%
show.table(
    entropy_guided.table_3(results),
    "Perplexity with and without entropy regularisation",
    "Change: over the table's baseline, mean over seeds paired with the baseline's; brackets: 95 % t-interval.",
    sources=METRICS,
    published="entropy_guided/table3",
)

# %%
show.table(
    entropy_guided.parts(results),
    "Temperature and penalty, apart and together",
    "Perplexity of SM+ScFuFFN with each part. Change: mean over seeds, paired; brackets: 95 % t-interval.",
    sources=METRICS,
)

# %%
show.table(
    entropy_guided.change_of_heads(results),
    "Change in overloaded and collapsed heads",
    "Regularised minus plain model, in percentage points of all heads, paired by seed; brackets: 95 % t-interval.",
    sources=ENTROPY,
)

# %% [markdown]
# ## Claims

# %%
show.table(
    claims.table(claims.judge(results, "entropy_guided")).drop(columns="evidence"),
    "Claims of the paper",
    "Measured: mean over seeds; brackets: 95 % t-interval. The evidence of each is in reports/claims.csv.",
    sources=["reports/claims.csv"],
)
