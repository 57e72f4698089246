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
# # Regularizing the Entropy Landscape of Self-Attention, re-analysed
#
# From the files in `results/` and `runs/`, nothing is trained or measured. Open it as a notebook with
# `jupytext --to ipynb reports/entropy_landscape.py`, or run it with `jupytext --to ipynb --execute`.
#
# The paper maps the mean entropy $E^{(l,h)}$ over layers and heads and calls
# $\sqrt{(\partial E/\partial l)^2 + (\partial E/\partial h)^2}$ its steepness. Heads have no order, so half of that
# derivative depends on their numbering: below, the steepness as numbered stands beside its mean over random orders.

# %%
import numpy as np
import pandas as pd

from aero import landscape
from aero.report import entropy_page, landscape_tables, notebook
from aero.report.results import load

PAPER = "entropy_landscape"
BASELINES = {"sm-ln-g": ("ereg-smt-ln-g-gamma-00", "ereg-smt-ln-g-gamma-10", "ereg-smt-ln-g")}
BASELINES |= {"sm-ln-r": ("ereg-smt-ln-r-gamma-00", "ereg-smt-ln-r-gamma-10", "ereg-smt-ln-r")}
OTHERS = ("sm-g", "sm-r", "sm", "sm-scfuffn", "ereg-smt-scfuffn")
results = load()
runs = dict.fromkeys([*(run for base, changed in BASELINES.items() for run in (base, *changed)), *OTHERS])
maps = {run: np.array(first.entropy.mean) for run in runs if (first := results.first(run)) and first.entropy}
print(
    f"scale {results.scale}; with entropies: {', '.join(maps)}; without: {', '.join(set(runs) - set(maps)) or 'none'}"
)

# %% [markdown]
# ## Steepness, and what of it is the numbering of heads
#
# Means over the map, in nats; the first default seed of every run.

# %%
pd.DataFrame(
    {
        run: {
            "steepness": landscape.steepness(grid).mean(),
            "over random orders": landscape.steepness_over_orders(grid).mean(),
            "across layers alone": np.abs(np.gradient(grid, axis=0)).mean(),
            "lowest head": np.nanmin(grid),
            "highest head": np.nanmax(grid),
        }
        for run, grid in maps.items()
    }
).T.round(3)

# %% [markdown]
# ## How unequal the heads of a layer are
#
# Gini coefficient by layer, the first layer being 1.

# %%
pd.DataFrame({run: landscape.gini_by_layer(grid) for run, grid in maps.items()}).rename(
    lambda layer: layer + 1
).T.round(3)

# %% [markdown]
# ## How far the heads have moved
#
# Wasserstein distance $W_1$ from the baseline with LayerNorm and GELU, in nats: of all heads from all heads, and the
# mean of the layers' own distances, which is never smaller. The paper does not say which its table has.

# %%
base = maps.get("sm-ln-g")
distances = {
    run: {
        "all heads": landscape.wasserstein_1(grid, base),
        "mean of the layers": landscape.wasserstein_1_by_layer(grid, base).mean(),
    }
    for run, grid in maps.items()
    if base is not None and grid.shape == base.shape
}
pd.DataFrame(distances).T.round(3)

# %% [markdown]
# ## Table 1 and the figures

# %%
landscape_tables.table_1(results)

# %%
entropy_page.all_figures(results, PAPER)

# %% [markdown]
# ## Its claims

# %%
notebook.claims_of(results, PAPER)
