"""The appendix: the explorer, and tables of `results/bench` (`make bench`) and `results/robustness`.

The explorer lists rows of all tables with bytes, latency and perplexity, and all claims, for the reader to search, sort
and filter by DataTables, which the page contains.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pandas as pd

from aero.report import show
from aero.report.costs import GB, MIB, PROGRAMS, compared_runs
from aero.report.papers.private_tables import PROGRAM_NAMES, text
from aero.report.results import Results
from aero.report.statistics import change, control, evidence

# The explorer ---------------------------------------------------------------------------------------------------------

PERPLEXITY = "perplexity over SM+LN+G, %"
AMOUNTS = ("GB", "WAN minutes", "LAN minutes", "computing minutes", "rounds", PERPLEXITY)


def explorer_rows(results: Results) -> pd.DataFrame:
    """Every run with softmax attention and a composed cost, a line a program; perplexity as `evidence` has it."""
    lines, seen, trained = [], set(), evidence(results)
    for name, run in compared_runs(results).items():
        architecture, model, context = run.architecture, run.model, results.parameters.resolve(name).context
        setting = (architecture, model, context, run.budget)
        if run.regularizer or setting in seen:
            continue
        seen.add(setting)
        baseline = control(results, name)
        found = change(trained, name, baseline).estimate if baseline else None
        model_name = f"{model}, T={context}" + (f", {run.budget:g}x tokens" if run.budget != 1 else "")
        for program in PROGRAMS:
            if cost := results.cost(architecture, program, context, model):
                minutes = (one and one / 60 for one in (cost.latency_wan, cost.latency_lan, cost.seconds))
                amounts = (cost.bytes / GB, *minutes, cost.rounds, found and found.mean)
                lines.append((architecture, model_name, PROGRAM_NAMES[program], *amounts))
    return pd.DataFrame(lines, columns=["configuration", "model", "program", *AMOUNTS])


def explorer(results: Results, claims: pd.DataFrame) -> show.HTML:
    """HTML of the table of rows and the table of claims, a frame as of `claims.judge`."""
    columns = ["paper", "where", "claim", "published", "measured", "verdict"]
    rows, found = show.plain_table(explorer_rows(results)), show.plain_table(claims[columns])
    return show.HTML(f'<div class="screen-only" id="explorer-tables">\n{rows}<h3>Find a claim</h3>{found}</div>')


def explorer_assets() -> tuple[str, str]:
    """The explorer's style sheet and script, a module: DataTables, as packed by itables, and assets/explorer.js."""
    packed = resources.files("itables") / "html"
    library = (packed / "dt_bundle.js").read_text(encoding="utf-8")
    exported = {name: local for local, name in re.findall(r"([\w$]+) as (\w+)", library[library.rindex("export{") :])}
    names = f"{exported['default']}, {exported['set_or_remove_dark_class']}"
    library = library.replace("<!--", r"\x3c!--")  # which would change where HTML sees the script end
    own = (Path(__file__).parent / "assets/explorer.js").read_text(encoding="utf-8")
    script = f"{library}\n(function (DataTable, followTheme) {{\n{own}}})({names});\n"
    return (packed / "dt_bundle.css").read_text(encoding="utf-8"), script


# Benchmarks and robustness --------------------------------------------------------------------------------------------

# A ratio is ours over the other's, medians of interleaved repeats with their range. A missing file: an empty frame.


def _range(value: Mapping[str, float]) -> str:
    return f"{value['median']:.2f}x ({value['low']:.2f} to {value['high']:.2f})"


def training_step(results: Results) -> pd.DataFrame:
    """A training step of SM+LN+G, 12 layers, against Hugging Face transformers."""
    return pd.DataFrame(
        {
            "width": step["width"],
            "context": step["context"],
            "vocabulary": step["vocabulary"],
            "tokens/s": text(step["tokens_per_second"]["aero"]["median"]),
            "tokens/s, transformers": text(step["tokens_per_second"]["transformers"]["median"]),
            "ratio": _range(step["ratio"]),
        }
        for step in results.json("bench/training_step.json").get("steps", ())
    )


def regularized_step(results: Results) -> pd.DataFrame:
    """A training step with the entropy regulariser against the authors' loop over layers and heads."""
    return pd.DataFrame(
        {
            "width": step["width"],
            "context": step["context"],
            "speed, ours / authors'": _range(step["ratio"]),
            "peak MiB, ours": text(step["peak_bytes"]["aero"] / MIB),
            "peak MiB, authors'": text(step["peak_bytes"]["authors"] / MIB),
            "cost of the regulariser, %": text(100 * step["overhead"]["median"], 2),
        }
        for step in results.json("bench/regularized_step.json").get("steps", ())
    )


def entropy_memory(results: Results) -> pd.DataFrame:
    """Peak memory in MiB of attention with its entropy and gradients, by how the attention matrix is held."""
    ways = {"matrix": "whole matrix", "kept": "causal half kept", "blocks": "recomputed in blocks"}
    by_context: dict[int, dict[str, str]] = defaultdict(dict)
    for line in results.json("bench/entropy_memory.json").get("memory", ()):
        by_context[line["context"]][f"MiB, {ways.get(line['way'], line['way'])}"] = text(line["peak_bytes"] / MIB)
    return pd.DataFrame({"context": context, **found} for context, found in sorted(by_context.items())).fillna("–")


def determinism(results: Results) -> pd.DataFrame:
    """The same training again under another condition: whether all values are equal, and the largest difference."""
    columns = ["scale", "compared", "identical", "loss", "perplexity", "entropy"]
    lines = pd.DataFrame(results.json("robustness/determinism.json").get("comparisons", ()), columns=columns)
    return pd.DataFrame(
        {
            "scale": scale,
            "compared": compared,
            "bit for bit": f"{of.identical.sum()} of {len(of)}",
            **{
                f"largest difference, {what}": f"{of[what].max():.1e}".replace("0.0e+00", "0")
                for what in ("loss", "perplexity", "entropy")
            },
        }
        for (scale, compared), of in lines.groupby(["scale", "compared"], sort=False)
    )
