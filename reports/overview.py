# %% [markdown]
# # AERO, reproduced
#
# Five papers ask which nonlinearities a language model needs to be run privately at an affordable price, and what the
# entropy of its attention has to do with it. This report re-runs them: communication is measured between two processes
# at the papers' own dimensions, models are trained at a size that the machine can afford, and every claim has a
# verdict.
#
# A small model can show that an effect exists; it cannot show that the effect is missing in a large one. *Contradicted*
# is therefore kept for costs, counts, theory and arithmetic, and for training at the papers' own size.

# %%
from aero.report.results import load

results = load()
