# %% [markdown]
# # Entropy-Guided Attention
#
# *Entropy-Guided Attention for Private LLMs* (arXiv 2501.03489) explains AERO's models by entropy. Without LayerNorm
# and activations, heads of early layers stay at high entropy (overload), and entropy in deep layers falls to zero
# (collapse). A learned temperature and a penalty on entropies far from a learned threshold should keep entropies in
# between and lower perplexity.
#
# **What holds here.** EReg(SM(t)+...) has the learned temperature and the penalty. At scale desk (chapter AERO,
# [differences in perplexity](#differences-in-perplexity-predicted-and-measured)) both together raise the perplexity of
# models with LayerNorm, against the papers. Without LayerNorm they help SM+R and SM+G, and their effect on SM+ScFuFFN
# is smaller than the noise: its temperature raises perplexity, and the penalty lowers it by about as much (two seeds;
# other trainings with the temperature alone failed). The verdicts rest on scale desk. Table 3 is of scale laptop,
# which decides nothing.
#
# Most of this paper's tables and figures are also in the AERO paper, and shown in its chapter:
#
# | this paper | shown as | subject |
# |---|---|---|
# | Table 1 | [AERO Table 1](#aero-table1) | architectures |
# | Table 2 | [AERO Table 4](#aero-table4) | GPT-2, T = 128 |
# | Table 4 | [AERO Table 9](#aero-table9) | where to normalise weights |
# | Table 5 | [AERO Table 3](#aero-table3) | stabilised Softmax-only models |
# | Table 6 | [AERO Table 5](#aero-table5) | GPT-2, T = 256 |
# | Table 7 | [AERO Table 6](#aero-table6) | GPT-2, 18 layers |
# | Figure 5 | [AERO Figure 10](#aero-figure10) | thresholds |
# | Figure 6 | [AERO Figure 18](#aero-figure18) | heads per quarter by margin |
# | Figure 7 | [AERO Figure 19](#aero-figure19) | entropy over training by margin |
#
# Figures 1 and 3 are diagrams.

# %%
from aero.report import claims, show
from aero.report.papers import aero_entropy
from aero.report.results import load
from aero.report.statistics import evidence

results = load()
desk = evidence(results)
METRICS = [f"results/{results.scale}/metrics.jsonl"]
DESK = {name: [f"results/{desk.scale}/{name}.jsonl"] for name in ("metrics", "entropy", "curves")}

# %% [markdown]
# ## Entropy with fewer nonlinearities

# %%
show.figure(
    aero_entropy.guided_figure_2(desk),
    "Entropy of every head, fewer nonlinearities",
    "First seed. Yellow is overload, dark blue collapse. Here SM does not collapse.",
    sources=DESK["entropy"],
    published="entropy_guided/figure2",
)

# %%
show.figure(
    aero_entropy.guided_figure_4(desk),
    "Entropy of each layer over training",
    "First seed: baseline, Softmax-only, three stabilised models, regularised.",
    sources=DESK["curves"],
    published="entropy_guided/figure4",
)

# %% [markdown]
# ## What temperature and penalty change

# %%
show.table(
    aero_entropy.guided_table_3(results),
    "Perplexity with and without entropy regularisation",
    "Change: from SM+LN+G with as many tokens, mean over paired seeds; brackets: 95 % t-interval.",
    sources=METRICS,
    published="entropy_guided/table3",
)

# %%
show.table(
    aero_entropy.parts(desk),
    "Temperature and penalty, apart and together",
    f"Perplexity of SM+ScFuFFN with each part, at scale {desk.scale}. Change: mean over seeds, paired; brackets: 95 % "
    "t-interval. Temperatures start at 0.01 unless the row says otherwise. Some turn negative, which reverses the "
    "order of attention; with log t learned, none can. QK-clip: arXiv 2507.20534. The penalty without temperature was "
    "not trained at this scale.",
    sources=DESK["metrics"],
)

# %% [markdown]
# ## A pretrained model
#
# The papers train from scratch. `EntropyRegularizer` also works on a pretrained model (`docs/regularize.md`).

# %%
show.table(
    aero_entropy.finetuned(results),
    "A short fine-tuning of SmolLM2-135M with the penalty",
    "Held-out docstrings, one seed; λ = 0: without penalty and temperatures. Entropy: mean of the heads, as a share of "
    "the bound.",
    sources=["results/bench/finetune.csv"],
    command="python -m benchmarks.finetune",
)

# %% [markdown]
# ## Contradicted claims

# %%
show.table(
    claims.contradicted(results, "entropy_guided"),
    "Contradicted claims of the paper",
    "By arithmetic, counts or theory. All claims: appendix.",
    sources=["reports/claims.csv"],
)
