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
# # Variance Sensitivity Induces Attention Entropy Collapse, re-analysed
#
# From the files in `results/` and `runs/`, nothing is trained or measured. Open it as a notebook with
# `jupytext --to ipynb reports/variance_sensitivity.py`, or run it with `jupytext --to ipynb --execute`.
#
# A small Transformer of attention alone learns in-context regression at learning rates over six orders of magnitude;
# $\mathbb{E}_{\eta}[\min(\ell(\mathcal{A}(\eta)), \ell_0) - \ell^*]$ says how much the final loss depends on the rate.
# How a training that diverges is counted, and which rates are averaged, moves that number.

# %%
import numpy as np
import pandas as pd

from aero.report import notebook, sensitivity, sensitivity_theory
from aero.report.results import load
from aero.sensitivity.theory import softmax_moments

PAPER = "variance_sensitivity"
results = load()
folder = sensitivity.folder(results)
losses = pd.read_csv(results.root / folder / "losses.csv") if folder else pd.DataFrame()
print(f"losses: {folder or 'none'}; {len(losses)} trainings")

# %% [markdown]
# ## The metric, recomputed from the losses of single trainings
#
# Clipped at the loss at initialisation; what diverged counts as that loss. The mean over seeds stands beside what the
# report says, which must be the same.


# %%
def metric(trainings, at_most=np.inf):
    """Sensitivity by core, mean over seeds, of the learning rates up to `at_most`."""
    chosen = trainings[trainings["rate"] <= at_most]
    final = chosen["final_loss"].where(chosen["diverged_at_step"].isna(), np.inf).fillna(np.inf)
    clipped = np.minimum(final, chosen["initial_loss"])
    by_seed = clipped.groupby([chosen["core"], chosen["seed"]], sort=False)
    return (by_seed.mean() - by_seed.min()).groupby("core", sort=False).mean()


measured = sensitivity.sweep(results)
table = pd.DataFrame({"recomputed": metric(losses)}) if len(losses) else pd.DataFrame()
if measured:
    table["report"] = [np.mean(list(measured.sensitivities(core).values())) for core in table.index]
table.round(4)

# %% [markdown]
# ## How much of it is the choice of rates
#
# The same with the largest rates left out, one column for the largest rate that is kept.

# %%
rates = sorted(losses["rate"].unique())[-5:] if len(losses) else []
pd.DataFrame({f"up to {rate:g}": metric(losses, rate) for rate in rates}).round(3)

# %% [markdown]
# ## Where trainings fail
#
# The share of seeds at each rate whose final loss is above half of that of predicting 0, the same bound for every core,
# or not finite.

# %%
if len(losses) and measured:
    failed = ~(losses["final_loss"] < losses["zero_loss"] / 2) | losses["diverged_at_step"].notna()
    shown = failed.groupby([losses["core"], losses["rate"]], sort=False).mean().unstack()
else:
    shown = pd.DataFrame()
shown.round(1)

# %%
sensitivity.table_1(results)

# %% [markdown]
# ## Theorem 5.1 against Monte Carlo
#
# The derivative of the entropy by $\sigma^2$: drawn, by quadrature, and as the theorem prints it.

# %%
places = [results.root / f / "theory_softmax.csv" for f in ("runs/sensitivity", "results/sensitivity")]
drawn = next((pd.read_csv(path) for path in places if path.is_file()), None)
columns = ["positions", "sigma", "slope", "slope_error", "slope_quadrature", "theorem_slope_quadrature"]
compared = drawn[drawn["positions"] > 1][columns] if drawn is not None else pd.DataFrame()
if len(compared):
    compared = compared.assign(
        now=[softmax_moments(line.sigma, line.positions).derivative for line in compared.itertuples()],
        off_in_errors=(compared["slope"] - compared["slope_quadrature"]) / compared["slope_error"],
    )
compared.round(4)

# %%
sensitivity_theory.table_derivative(results)

# %% [markdown]
# ## Its claims

# %%
notebook.claims_of(results, PAPER)
