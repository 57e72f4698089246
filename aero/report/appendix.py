"""The appendix: the explorer, and tables and figures of `results/bench` (`make bench`) and `results/robustness`.

The explorer lists rows of all tables with bytes, latency and perplexity, and all claims, sorted and filtered. It is one
fragment of HTML that loads nothing: `assets/explorer.js` makes the tables.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

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
                shown = (None if value is None else float(f"{value:.3g}") for value in amounts)
                lines.append((architecture, model_name, PROGRAM_NAMES[program], *shown))
    return pd.DataFrame(lines, columns=["configuration", "model", "program", *AMOUNTS])


def explorer_script() -> str:
    """The explorer's script; the page allows this one by its hash."""
    return (Path(__file__).parent / "assets" / "explorer.js").read_text(encoding="utf-8")


def explorer(results: Results, claims: pd.DataFrame) -> show.HTML:
    """HTML of the table of rows and the table of claims, a frame as of `claims.judge`."""
    columns = ["paper", "where", "claim", "published", "measured", "verdict"]
    shown = {"row": explorer_rows(results), "claim": claims[columns]}
    data = {f"{name}s": json.loads(frame.to_json(orient="records")) for name, frame in shown.items()}
    data |= {f"{name}_columns": list(frame.columns) for name, frame in shown.items()}
    embedded = json.dumps(data).replace("<", "\\u003c").replace("&", "\\u0026")
    return show.HTML(
        '<div class="screen-only" id="explorer-tables"></div>\n'
        f'<script type="application/json" id="explorer-data">{embedded}</script>\n<script>{explorer_script()}</script>'
    )


# Benchmarks and robustness --------------------------------------------------------------------------------------------

# A ratio is ours over the other's, medians of interleaved repeats with their range. A missing file: an empty frame.

CAMPAIGNS = {
    "fuzz": "damaged input",
    "faults": "faults during the pipeline",
    "faults_report": "faults during every stage and the report",
    "server": "one server, many questions",
    "transcripts": "transcripts of two prompts compared",
    "advisories": "packages against known vulnerabilities",
}


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


def tokenizing(results: Results) -> pd.DataFrame:
    """Source files to token files on one core."""
    return pd.DataFrame(
        {
            "vocabulary": one["vocabulary"],
            "corpus, MB": text(size["bytes"] / 1e6),
            "MB a core second": text(size["mb_per_cpu_second"]["median"]),
            "peak memory, MiB": text(size["peak_bytes"] / MIB),
        }
        for one in results.json("bench/tokenizing.json").get("vocabularies", ())
        for size in one["sizes"]
    )


def pipeline(results: Results) -> pd.DataFrame:
    """Seconds of the pipeline's own commands with nothing to do, and what a second job gains."""
    found = results.json("bench/pipeline.json")
    named = {
        "dvc repro, nothing to do, s": "idle_repro_seconds",
        "dvc status, s": "idle_status_seconds",
        "aero --help, s": "help_seconds",
        "speed-up of two jobs": "two_jobs_over_one",
    }
    return pd.DataFrame(
        {"what": what, "median": text(found[key]["median"]), "least": text(found[key]["low"]),
         "most": text(found[key]["high"])}
        for what, key in named.items()
        if key in found
    )  # fmt: skip


def growth_with_depth(results: Results) -> Figure:
    """GB and seconds of complete small private passes by number of layers, measured and composed."""
    lines = results.json("bench/two_party_growth_layers.json").get("lines", ())
    if not lines:
        return show.not_measured()
    figure, panels = show.subplots(1, 2, height=2.8)
    colours = {"as_written": show.AS_WRITTEN, "tuned": show.TUNED}
    for axes, key, unit, label in ((panels[0], "bytes", 1e6, "MB"), (panels[1], "seconds", 1, "seconds")):
        for line in lines:
            points, program = pd.DataFrame(line["points"]), line["program"]
            dash = "-" if line["architecture"] == "SM+LN+G" else "--"
            axes.plot(points["size"], points[key] / unit, dash, marker="o", markersize=5,
                      color=colours.get(program, show.MUTED),
                      label=f"{line['architecture']}, {PROGRAM_NAMES.get(program, program)}")  # fmt: skip
            axes.plot(points["size"], points[f"composed_{key}"] / unit, "x", color=show.INK, markersize=5)
        axes.set_xticks(points["size"])
        axes.set(xlabel="layers", ylabel=label, ylim=(0, None))
        axes.grid()
    panels[1].plot([], [], "x", color=show.INK, markersize=5, label="sum of operations")
    figure.legend(*panels[1].get_legend_handles_labels(), ncols=3, loc="outside upper center", frameon=False)
    return figure


def checkpoints(results: Results) -> pd.DataFrame:
    """SHA-256 of the checkpoints that were written, a line a training."""
    found = sorted((run.scale, run.name, run.seed, run.provenance) for runs in results.runs.values() for run in runs)
    return pd.DataFrame(
        [(*key, source["checkpoint_sha256"]) for *key, source in found if "checkpoint_sha256" in source],
        columns=["scale", "run", "seed", "SHA-256 of checkpoint.safetensors"],
    )


def campaigns(results: Results) -> pd.DataFrame:
    """Checks made and passed by every campaign, and the commit that they were made at."""
    lines = []
    for name, what in CAMPAIGNS.items():
        found = results.json(f"robustness/{name}.json")
        if not found:
            continue
        if name == "fuzz":
            checks, failed = found["cases"], found["failures"]
        else:
            checks = sum(case["count"] for case in found["cases"])
            failed = checks - sum(case["passed"] for case in found["cases"])
        commit = (found.get("provenance") or {}).get("commit", "")[:10]
        lines.append({"campaign": what, "checks": f"{checks:,}", "failed": f"{failed:,}", "commit": commit})
    return pd.DataFrame(lines)


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


def server(results: Results) -> Figure:
    """Resident memory of a server and seconds a question over a long session."""
    found = results.json("robustness/server.json")
    if not found:
        return show.not_measured()
    figure, panels = show.subplots(1, 2, height=1.9)
    samples = pd.DataFrame(found["samples"], columns=found["columns"])
    samples = samples[samples["memory_bytes"] > 0]
    panels[0].plot(samples["question"], samples["memory_bytes"] / MIB, color=show.AS_WRITTEN)
    panels[1].plot(samples["question"], samples["seconds"], color=show.AS_WRITTEN, linewidth=0.6)
    for axes, label in zip(panels, ("resident memory, MiB", "seconds per question"), strict=True):
        axes.set(xlabel="question", ylabel=label, ylim=(0, None))
        axes.grid()
    return figure
