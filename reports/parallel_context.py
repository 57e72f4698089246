# %% [markdown]
# # Parallel Context Encoding
#
# A long context can be encoded in $P$ segments that do not see each other. The paper says that the query's attention
# entropy then rises and performance falls with it. A shared attention sink before every segment and selective attention
# to few segments are to help.
#
# **What holds here.** In language modelling perplexity rises with $P$ and with entropy. Selective attention lowers the
# entropy in every task, and answers more questions about retrieved passages than full attention. The shared sink does
# not lower the entropy in every task.
#
# **Setting not recovered.** The paper measures pretrained models such as Llama-3.1-8B on benchmarks that are not
# included. The model here is a small rotary decoder, trained on offline forms of the four tasks. It solves key-value
# retrieval at every $P$, so that task cannot show a loss.

# %%
from aero.report import claims, show
from aero.report.papers import parallel_context, parallel_figures
from aero.report.results import load

MEASURE = "make parallel"
results = load()
models = parallel_context.own_models(results)
RESULTS = [model.path for model in models]

# %% [markdown]
# ## Full attention against segments

# %%
show.table(
    parallel_context.table_main(results),
    "Full attention against P segments",
    "Published / measured, without a remedy. Brackets: 95 % t-interval over seeds, clipped to 0 and 100 %; ep.: all "
    "seeds agree, so Wilson's interval over episodes. Published: Llama-3.1-8B with 8,192 tokens of context.",
    sources=RESULTS,
    command=MEASURE,
    published="parallel_context/Summary, main results",
)

# %%
show.figure(
    parallel_figures.figure_performance(results),
    "Performance against P",
    "Lines: means over seeds; bands: their range. Dashed: full attention.",
    sources=RESULTS,
    command=MEASURE,
)

# %%
show.figure(
    parallel_figures.figure_entropy(results),
    "Attention entropy against P",
    "Mean entropy of the query's attention; lines, bands and dashes as above.",
    sources=RESULTS,
    command=MEASURE,
)

# %% [markdown]
# ## Entropy and performance
#
# The paper reports a correlation of about 0.95 between entropy and performance. Only language modelling has it here.

# %%
show.figure(
    parallel_figures.figure_correlation(results),
    "Entropy against what is lost",
    "One point a P and remedy; r: without a remedy.",
    sources=RESULTS,
    command=MEASURE,
)

# %%
show.figure(
    parallel_figures.figure_norms(results),
    "Norms of keys and values by layer",
    "Language modelling, means over heads and episodes. Dashed: the same tokens in full attention. The first segment, "
    "which sees the same at every P, is left out where the norms are compared.",
    sources=RESULTS,
    command=MEASURE,
)

# %% [markdown]
# ## The remedies

# %%
show.table(
    parallel_context.table_methods(models),
    "The remedies",
    "Performance by P and remedy; brackets as above. The figure above has the entropies.",
    sources=RESULTS,
    command=MEASURE,
)

# %%
show.table(
    parallel_context.table_ablation(results),
    "Selective attention by K and aggregation",
    "Published at P = 64 / measured at the largest P of each task, so sizes do not compare; without a shared sink. "
    "K and the aggregation vary one at a time from the default.",
    sources=RESULTS,
    command=MEASURE,
    published="parallel_context/Summary, ablation study",
)

# %% [markdown]
# ## Cost
#
# The paper counts query-key pairs: $1/P$ of full attention's. Projections and feed-forward networks cost the same for
# every $P$, so time falls less. Emulating segments by a mask saves nothing.

# %%
show.table(
    parallel_context.table_cost(results),
    "Time and memory of encoding the context",
    "A random decoder on one thread, each setting in its own process, the fastest of several passes. Memory: the peak "
    "beyond that of the loaded model. Question: 16 query tokens that read the encoded context.",
    sources=[found.path for found in [parallel_context.costs(results)] if found],
    command=MEASURE,
)

# %% [markdown]
# ## Other models
#
# `docs/parallel_context.md` has the command that measures a Llama, Mistral or Qwen2 on the real benchmarks. The tables
# below list such measurements, if there are any.

# %%
for other in parallel_context.other_models(results):
    display(  # noqa: F821
        show.table(
            parallel_context.table_methods([other]),
            f"The remedies, {other.values['model']}",
            "Performance on the benchmark files; brackets: 95 % interval over examples.",
            sources=[other.path],
        )
    )

# %% [markdown]
# ## Contradicted claims

# %%
judged = claims.judge(results, "parallel_context")
show.table(
    claims.table(judged[judged.verdict == "contradicted"])[["claim", "published", "measured"]],
    "Contradicted claims of the paper",
    "By arithmetic, counts or theory. All claims: appendix.",
    sources=["reports/claims.csv"],
)
