# %% [markdown]
# # Parallel Context Encoding
#
# A long context can be encoded in $P$ segments that do not see each other. *Attention Entropy is a Key Factor: An
# Analysis of Parallel Context Encoding* (arXiv 2412.16545) finds that the query's attention entropy then rises and
# performance falls. It proposes two remedies: a shared attention sink before every segment, and selective
# attention to few segments.
#
# **Setting.** The paper measures Llama-3.1-8B and similar models on benchmarks that are not included here. This report
# measures SmolLM2-135M-Instruct, a small model of the same architecture, on two texts and three kinds of generated
# questions: categories of words, people and their towns, pairs of UUIDs (the last two are retrieval). An *episode* is
# one question or, of the texts, one scored continuation. Directions can be compared with the paper, sizes cannot.
#
# **What holds here.** As $P$ grows, performance falls and the query's attention entropy rises, in texts of 8,000 tokens
# too. Logits are smaller than in full attention, and so are keys of the segments' first tokens; this is the paper's
# explanation. Both remedies lower the entropy. Selective attention recovers answers in both retrieval tasks, more of
# them with a sink, and lowers the perplexity of both texts. With one segment kept, it answers more questions about
# people than full attention does. In classification the gains are within the intervals. On the texts, taking the keys
# from full attention beats both remedies together; for people it does worse. Questions share contexts, so intervals are
# too narrow.

# %%
from aero.report import claims, show
from aero.report.papers import parallel_context, parallel_figures
from aero.report.results import load

MEASURE = "make parallel"
results = load()
model = parallel_context.measured(results)
RESULTS = [model.path] if model else []

# %% [markdown]
# ## Full attention against segments

# %%
show.table(
    parallel_figures.table_main(results),
    "Full attention against P segments",
    "Published / measured, without a remedy. Perplexity for the two texts, % right for the others. Brackets: 95 % "
    "interval over episodes. Published: Llama-3.1-8B, 8,192 tokens, on the paper's own tasks: language modelling (one "
    "value for both texts), in-context learning (word classes), retrieved passages (people and towns), synthetic "
    "recall (UUID pairs). A dash: more segments than the context has words, people or pairs, or not measured.",
    sources=RESULTS,
    command=MEASURE,
    published="parallel_context/Summary, main results",
)

# %%
show.figure(
    parallel_figures.figure_performance(results),
    "Performance against P",
    "Perplexity for the two texts, % right for the others. Bars: 95 % interval over episodes. Dotted: chance.",
    sources=RESULTS,
    command=MEASURE,
)

# %%
show.figure(
    parallel_figures.figure_entropy(results),
    "Attention entropy against P",
    "Mean entropy of the query's attention over layers and heads; bars as above.",
    sources=RESULTS,
    command=MEASURE,
)

# %% [markdown]
# ## Entropy and performance
#
# The paper reports a correlation of about 0.95 (its absolute value) between entropy and performance. It traces the
# entropy to smaller logits and smaller keys, above all of the first tokens of the segments. A correlation is not a
# cause: with a remedy, entropy can be below that of full attention while the loss is higher.

# %%
show.figure(
    parallel_figures.figure_correlation(results),
    "Entropy against loss",
    "One point per P and remedy; r: without a remedy, with Fisher's interval over P.",
    sources=RESULTS,
    command=MEASURE,
)

# %%
show.figure(
    parallel_figures.figure_layers(results),
    "Layers of the pretrained model",
    "Lines: means over the tasks; bands: their range. Panels of keys and values: their norms at the largest P, "
    "relative to those of the same tokens in full attention. A low entropy may be a sink: where entropy is low, the "
    "first tokens take most of the attention. GPT-2 (SM+LN+G): as trained here at scale desk, T = 128; its layers are "
    "stretched to the same axis.",
    sources=[*RESULTS, "results/desk/entropy.jsonl"],
    command=MEASURE,
)

# %% [markdown]
# ## The remedies
#
# The paper keeps a fixed number $K$ of segments and leaves its choice open. Rows with a percentage choose $K$ for every
# question and layer: the fewest segments whose attention scores together have that share.

# %%
show.table(
    parallel_figures.table_methods(model),
    "The remedies at the largest P",
    "Perplexity or % right. Selective attention keeps K = 2 segments unless a row or cell names another K; in cells, K "
    "is a mean over questions and layers. The last rows replace the keys, or the values, of all segments by those of "
    "full attention.",
    sources=RESULTS,
    command=MEASURE,
)

# %%
show.table(
    parallel_figures.table_ablation(results),
    "Selective attention by K and aggregation",
    "Published at P = 64 / measured at the largest P of each task, without a shared sink. K segments are kept, by "
    "scores that are each token's, layer's and head's own or summed over tokens (T), heads (H) and layers (L). The "
    "aggregation varies at K = 2 (published: by its equal cells 5; UUID pairs: 2), K at aggregation HT.",
    sources=RESULTS,
    command=MEASURE,
    published="parallel_context/Summary, ablation study",
)

# %%
show.table(
    parallel_figures.table_lengths(results),
    "Longer contexts",
    "Perplexity or % right with full attention and at P = 64 (UUID pairs: 16); brackets: 95 % interval. r: of entropy "
    "and loss over P, without a remedy. A row of a longer context has two contexts, at P = 1, 4, 16 and (not UUID "
    "pairs) 64. Measuring took at "
    f"most {parallel_context.peak_memory(results) / 1e9:.1f} GB of memory.",
    sources=["results/parallel_context"],
    command=MEASURE,
)

# %% [markdown]
# ## Cost
#
# The paper counts query-key pairs: $1/P$ of full attention's. Projections and feed-forward networks cost the same for
# every $P$, so time falls less. The appendix, under claims of this paper, has what was measured at the largest $P$;
# `results/parallel_context/cost.json` has time and memory at every $P$.

# %% [markdown]
# ## Other models
#
# `docs/parallel_context.md` has the command that measures another Llama, Mistral or Qwen2. No other result is
# committed; yours will appear here.

# %%
for name, other in parallel_context.models(results).items():
    if name != parallel_context.MODEL:
        display(  # noqa: F821
            show.table(
                parallel_figures.table_methods(other),
                f"The remedies, {name}",
                "Perplexity or % right at the largest P; brackets: 95 % interval over episodes.",
                sources=[other.path],
            )
        )

# %% [markdown]
# ## Contradicted claims

# %%
show.table(
    claims.contradicted(results, "parallel_context"),
    "Contradicted claims of the paper",
    "By arithmetic, counts or theory. All claims: appendix.",
    sources=["reports/claims.csv"],
)
