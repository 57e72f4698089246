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
# # Attention Entropy is a Key Factor for Parallel Context Encoding, re-analysed
#
# From the files in `results/` and `runs/`, nothing is trained or measured. Open it as a notebook with
# `jupytext --to ipynb reports/parallel_context.py`, or run it with `jupytext --to ipynb --execute`.
#
# The context is encoded in $P$ segments that do not see each other. The paper says that the query's attention entropy
# then rises and performance falls with it, and that a shared sink and selective attention mend both.

# %%
import pandas as pd

from aero.report import notebook, parallel_context, parallel_context_page
from aero.report.results import load

PAPER = "parallel_context"
results = load()
models = parallel_context.own_models(results)
rows = pd.DataFrame([{"seed": model.seed, **row} for model in models for row in model.values["rows"]])
print(f"{', '.join(model.path for model in models) or 'no result'}; {len(rows)} measurements")

# %% [markdown]
# ## Performance and entropy against P, without a remedy
#
# Scores are perplexities for language modelling (lower is better) and per cent right for the other tasks.

# %%
naive = rows[rows["sink"].isna() & rows["top_k"].isna()] if len(rows) else rows
if len(naive):
    shown = naive.pivot_table(index=["task", "metric"], columns="segments", values=["score", "entropy"], sort=False)
else:
    shown = naive
shown.round(2)

# %% [markdown]
# ## Does entropy tell what is lost?
#
# Rank correlation over $P$ of entropy and what is lost, by task, over seeds: does more entropy go with a worse score?


# %%
def rank_correlation(part):
    """Spearman's, NaN where nothing is lost at any P."""
    ranks = part.rank()
    return ranks["entropy"].corr(ranks["lost"]) if part["lost"].nunique() > 1 else float("nan")


if len(naive):
    lost = naive["score"].where(naive["task"] == "lm", -naive["score"])
    by_seed = naive.assign(lost=lost).groupby(["task", "seed"], sort=False)[["entropy", "lost"]].apply(rank_correlation)
    shown = by_seed.groupby("task", sort=False).agg(["mean", "min", "max", "count"])
else:
    shown = pd.DataFrame()
shown.round(3)

# %% [markdown]
# ## What the remedies change
#
# At the largest $P$ of each task, every combination that was measured: the change against no remedy at the same $P$.

# %%
if len(rows):
    widest = rows[rows["segments"] == rows.groupby("task")["segments"].transform("max")]
    shown = widest[["task", "segments", "sink", "top_k", "aggregation", "score", "entropy", "seed"]].merge(
        naive[["task", "segments", "seed", "score", "entropy"]],
        on=["task", "segments", "seed"],
        suffixes=("", " without"),
    )
    for quantity in ("score", "entropy"):
        shown[f"{quantity} change"] = shown[quantity] - shown.pop(f"{quantity} without")
else:
    shown = rows
shown.round(2)

# %% [markdown]
# ## The report's tables and figures

# %%
parallel_context_page.section(results)

# %% [markdown]
# ## Its claims

# %%
notebook.claims_of(results, PAPER)
