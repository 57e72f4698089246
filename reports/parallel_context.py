# %% [markdown]
# # Parallel Context Encoding

# %%
from aero.report import claims, show
from aero.report.results import load

results = load()

# %% [markdown]
# ## Claims

# %%
show.table(
    claims.table(claims.judge(results, "parallel_context")).drop(columns="evidence"),
    "Claims of the paper",
    "Measured: mean over seeds; brackets: 95 % t-interval. The evidence of each is in reports/claims.csv.",
    sources=["reports/claims.csv"],
)
