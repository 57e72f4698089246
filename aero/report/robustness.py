"""The report's last section: damaged input, faults, a long-running server, and how equal equal runs are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.figure import Figure

from aero.report.costs import GIB, MIB
from aero.report.drawing import AS_PUBLISHED, INK, WIDTH, say_missing, style
from aero.report.marks import Html, gap, grid, number
from aero.report.page import shown
from aero.report.results import Results

FOLDER = "results/robustness"
SERVER_PANELS = (("memory_bytes", "resident memory, MiB", MIB), ("seconds", "seconds a question", 1))
COUNTS = ("descriptors", "sockets", "threads", "processes", "files")


def section(results: Results) -> Html:
    """Tables of all that was measured, and the server's figure; a visible gap for what was not."""
    parts = [_damaged_input(results), _cases(results, "faults", "Faults while the pipeline runs", "make faults")]
    title = "Faults while every stage runs, private passes and this report as well"
    parts.append(_cases(results, "faults_report", title, "make faults"))
    parts += [_cases(results, "server", "One server, many questions", "make faults"), _server(results)]
    command = "python -m benchmarks.transcript_sizes"
    parts.append(_cases(results, "transcripts", "What the sizes of transcripts tell", command))
    parts.append(_determinism(results))
    command = "python -m benchmarks.advisories --database DIR"
    parts.append(_cases(results, "advisories", "Known vulnerabilities of the packages", command))
    return Html("".join(part.text for part in parts))


def _damaged_input(results: Results) -> Html:
    found = _read(results, "fuzz")
    title = "Damaged and hostile input"
    if found is None:
        return _missing(title, "make fuzz")
    rows = [
        [
            escape(target["target"]),
            escape(target["engine"]),
            _of(f"{target['cases']:,}", "fuzz") + _of_planned(target),
            _of(f"{target['refused']:,}", "fuzz"),
            _of(f"{target['accepted']:,}", "fuzz"),
            _of(f"{len(target['failures'])}", "fuzz"),
            _of(f"{target['slowest_s']:.2f}", "fuzz"),
        ]
        for target in found["targets"]
    ]
    rows.append(
        ["all", "", *(_of(f"{found[key]:,}", "fuzz") for key in ("cases", "refused", "accepted", "failures")), ""]
    )
    words = (
        f"<b>{title}.</b> Every case is a damaged file or message. Refused: one line that names its cause. Accepted: "
        "input after all, with what holds of all input checked. A failure would be anything else: a crash, a hang of "
        f"more than {found['case_limit_s']:g} s, more than {found['memory_limit_bytes'] / GIB:g} GiB of memory, an "
        f"error without its cause. Seed {found['seed']}. hypothesis makes cases from the format, atheris changes bytes "
        f"and follows which lines of the source they reach.{_so_far(found)} {_where(found, 'fuzz')}"
    )
    heads = ["reader", "engine", "cases", "refused", "accepted", "failures", "slowest, s"]
    return Html(grid(heads, rows, words, "robustness-fuzz", (0.24, 0.15, 0.13, 0.13, 0.13, 0.11, 0.11)))


def _cases(results: Results, name: str, title: str, command: str) -> Html:
    """A file of cases: each with its name, how often it was tried, how often it went right, what was seen."""
    found = _read(results, name)
    if found is None:
        return _missing(title, command)
    rows = [
        [
            escape(case["name"]),
            _of(f"{case['passed']:,} of {case['count']:,}", name),
            f'<span class="where">{escape(str(case["seen"]))}</span>',
        ]
        for case in found["cases"]
    ]
    failures = found.get("failures") or []
    told = f" What went wrong: {escape('; '.join(map(str, failures))[:600])}." if failures else ""
    words = f"<b>{title}.</b>{told}{_so_far(found)} {_where(found, name)}"
    return Html(grid(["case", "right", "seen"], rows, words, f"robustness-{name}", (0.34, 0.16, 0.5)))


def _of_planned(target: Mapping[str, Any]) -> str:
    """Where time or a failure ended a target early: how many cases it was to have."""
    planned = target.get("of", target["cases"])
    return f" {_of(f'of {planned:,}', 'fuzz')}" if target["cases"] < planned else ""


def _so_far(found: Mapping[str, Any]) -> str:
    """How much of what was to be tried has been, if not all: a run that was stopped leaves a file, too."""
    if found.get("asked", 0) >= found.get("of", 0):
        return ""
    return f" {found['asked']:,} of {found['of']:,} so far."


def _server(results: Results) -> Html:
    found = _read(results, "server")
    if found is None or not found.get("samples"):
        return Html("")
    columns = _columns(found)
    counts = "; ".join(
        f"{name} {min(values):g} to {max(values):g}" for name, values in columns.items() if name in COUNTS
    )
    empty = len(found["samples"]) - len(columns["question"])
    without = f" ({empty} counts saw no process and are left out)" if empty else ""
    caption = (
        f"One server process over {len(found['samples']):,} questions, measured after each when it is idle{without}; "
        f"dotted: after the first. Over all of them: {counts}. {_where(found, 'server')}"
    )
    source = f"{__name__}.{figure_server.__name__}"
    return shown(figure_server(results), "figure-server", "Memory and time of a long-running server", caption, source)


def figure_server(results: Results) -> Figure:
    """Memory of the idle server and time of each question, over the questions."""
    found = _read(results, "server")
    with style():
        figure = Figure(figsize=(WIDTH, 2.3))
        panels = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.08, right=0.98, top=0.88, bottom=0.2, wspace=0.22)
        if found is None or not found.get("samples"):
            for panel in panels:
                say_missing(panel, "not measured yet")
            return figure
        columns = _columns(found)
        for panel, (name, title, unit) in zip(panels, SERVER_PANELS, strict=True):
            values = [value / unit for value in columns[name]]
            panel.plot(columns["question"], values, color=AS_PUBLISHED, linestyle="", marker=".", markersize=2)
            panel.set_ylim(0, 1.25 * max(values))
            panel.set_title(title)
            panel.set_xlabel("question")
            if name == "memory_bytes":
                panel.axhline(values[0], color=INK, linewidth=0.6, linestyle=":")
            panel.grid()
    return figure


def _columns(found: Mapping[str, Any]) -> dict[str, list[float]]:
    """The samples by column, without those whose count saw no process and so no memory (benchmarks/long_server.py)."""
    rows = [row for row in found["samples"] if row[found["columns"].index("memory_bytes")]]
    return {name: [row[place] for row in rows] for place, name in enumerate(found["columns"])}


def _determinism(results: Results) -> Html:
    found = _read(results, "determinism")
    title = "How equal equal trainings are"
    if found is None:
        return _missing(title, "python -m benchmarks.determinism")
    rows = [
        [
            escape(line["scale"]),
            f"<code>{escape(line['run'])}</code>",
            escape(line["compared"]),
            "bit for bit" if line["identical"] else "no",
            _difference(line["loss"]),
            _difference(line["perplexity"]),
            _difference(line["entropy"]),
        ]
        for line in found["comparisons"]
    ]
    words = (
        f"<b>{title}.</b> The same commit, seed and corpus, each training in a process of its own, against the first: "
        "the largest relative difference of a logged training loss, the relative difference of the evaluation "
        "perplexity, and the largest difference of a head's mean entropy in nats. Older vector instructions, forced on "
        f"one machine, stand for another machine; a kept result may be of another indeed. CUDA was not measured. At "
        f"scale smoke a training has 12 steps.{_so_far(found)} {_where(found, 'determinism')}"
    )
    heads = ["scale", "run", "compared with", "equal", "loss", "perplexity", "entropy"]
    return Html(grid(heads, rows, words, "robustness-determinism", (0.09, 0.21, 0.28, 0.12, 0.1, 0.1, 0.1)))


def _difference(value: float | None) -> str:
    return gap("–") if value is None else _of("0" if value == 0 else f"{value:.1e}", "determinism")


def _of(text: str, name: str) -> str:
    """A number of one of the files here."""
    return number(text, "smaller_scale", f"{FOLDER}/{name}.json")


def _missing(title: str, command: str) -> Html:
    words = f"<b>{title}.</b> <code>{escape(command)}</code> measures it."
    return Html(grid(["", ""], [[escape(title), gap()]], words, "", (0.5, 0.5)))


def _where(found: Mapping[str, Any], name: str) -> str:
    where = found.get("provenance", {})
    commits = [target["commit"] for target in found.get("targets", ()) if "commit" in target]
    names = dict.fromkeys(str(commit)[:10] for commit in commits or [where.get("commit", "unknown")])
    parts: Sequence[str] = [str(where.get("machine", "")), f"commit {', '.join(names)}"]
    return f"{escape(', '.join(filter(None, parts)))}; <code>{FOLDER}/{name}.json</code>."


def _read(results: Results, name: str) -> dict[str, Any] | None:
    """None for a file that is not there or cannot be read: the section then says that nothing was measured."""
    try:
        found = json.loads((results.root / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
