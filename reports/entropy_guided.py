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
# # Entropy-Guided Attention for Private LLMs, re-analysed
#
# From the files in `results/` and `runs/`, nothing is trained or measured. Open it as a notebook with
# `jupytext --to ipynb reports/entropy_guided.py`, or run it with `jupytext --to ipynb --execute`.
#
# The paper says: without LayerNorm and without activations, the heads of early layers stay at high entropy (overload)
# and those of deep layers lose theirs (collapse); a learnable temperature and a penalty on entropies away from a
# learned threshold keep them between, and perplexity falls.

# %%
from aero.report import entropy_page, notebook
from aero.report.results import load

PAPER = "entropy_guided"
LADDER = ("sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm")
REGULARISED = {"sm-scfuffn": "ereg-smt-scfuffn", "sm-scfuffni-6": "ereg-smt-scfuffni-6"}
PARTS = ("sm-scfuffn", "smt-scfuffn", "ereg-sm-scfuffn", "ereg-smt-scfuffn")
results = load()
runs = dict.fromkeys([*LADDER, *REGULARISED, *REGULARISED.values(), *PARTS])
print(f"scale {results.scale}; scales with results: {', '.join(results.scales)}")

# %% [markdown]
# ## What was trained

# %%
notebook.trained(results, runs).round(3)

# %% [markdown]
# ## Entropy by layer
#
# Mean over heads and seeds, in nats; the first layer is 1. A row that starts high and ends near nothing overloads and
# collapses.

# %%
heads = notebook.heads(results, runs)
heads.pivot_table(index="run", columns="layer", values="entropy", sort=False).round(2)

# %% [markdown]
# ## Overload and collapse by the paper's rule
#
# A head is overloaded in the highest quarter of the largest entropy observed in its model and collapsed in the lowest.
# The share of heads, by run; the spread is over seeds.

# %%
share = heads.assign(
    overloaded=heads["of observed maximum"] >= 3 / 4,
    collapsed=~(heads["of observed maximum"] >= 1 / 4),
)
by_seed = share.groupby(["run", "seed"], sort=False)[["overloaded", "collapsed"]].mean()
by_seed.groupby("run", sort=False).agg(["mean", "min", "max"]).round(3)

# %% [markdown]
# ## What temperature and penalty change
#
# Each regularised run less its plain counterpart, paired by seed.

# %%
runs_of = by_seed.index.get_level_values("run")
plain = by_seed[runs_of.isin(REGULARISED)].rename(index=REGULARISED, level="run")
change = (by_seed[runs_of.isin(REGULARISED.values())] - plain).dropna()
change.groupby("run").agg(["mean", "count"]).round(3)

# %%
notebook.trained(results, PARTS, baseline="sm-scfuffn").round(3)

# %% [markdown]
# ## The paper's figures
#
# Some of them are AERO's too, whose number their title has.

# %%
entropy_page.all_figures(results, PAPER)

# %% [markdown]
# ## Its claims

# %%
notebook.claims_of(results, PAPER)
