"""The report's last section: damaged input, faults, a long-running server, and how equal equal runs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

from matplotlib.figure import Figure

from aero.report.costs import GIB, MIB
from aero.report.drawing import AS_WRITTEN, INK, WIDTH, say_missing, style
from aero.report.marks import Html, gap, grid, number
from aero.report.page import shown
from aero.report.results import Results
from aero.report.unreadable import entries, guarded, measurement

FOLDER = "results/robustness"
SERVER_PANELS = (("memory_bytes", "resident memory, MiB", MIB), ("seconds", "seconds a question", 1))
EQUAL = "How equal equal trainings are"
EARLIER, CUDA = "faults_30b037b", "determinism_cuda"
DETERMINISM = "python -m benchmarks.determinism"
ON_CUDA = f"{DETERMINISM} --device cuda"
TRANSCRIPTS = "python -m benchmarks.transcript_sizes"
ADVISORIES = "python -m benchmarks.advisories --database DIR"
Found = Mapping[str, Any]
Draw = Callable[[Found, str, str], str]
"""From what a file holds, its name and a title to HTML."""
COUNTS = ("descriptors", "sockets", "threads", "processes", "files")


def section(results: Results) -> Html:
    """Tables of all that was measured, and the server's figure; a visible gap for what was not."""
    whole = "Faults while every stage runs, private passes and this report as well"
    parts = [
        _drawn(results, "fuzz", "Damaged and hostile input", "make fuzz", _damaged_input),
        _drawn(results, "faults", "Faults while the pipeline runs", "make faults", _cases),
        _earlier_faults(results),
        _drawn(results, "faults_report", whole, "make faults", _cases),
        _drawn(results, "server", "One server, many questions", "make faults", _server),
        _drawn(results, "transcripts", "What the sizes of transcripts tell", TRANSCRIPTS, _cases),
        _drawn(results, "determinism", EQUAL, DETERMINISM, partial(_determinism, results)),
    ]
    if (results.root / file_of(CUDA)).exists():
        parts.append(_drawn(results, CUDA, f"{EQUAL} on a GPU", ON_CUDA, partial(_determinism, results)))
    parts.append(_drawn(results, "advisories", "Known vulnerabilities of the packages", ADVISORIES, _cases))
    return Html("".join(part.text for part in parts))


def file_of(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def _drawn(results: Results, name: str, title: str, command: str, draw: Draw) -> Html:
    """What `draw` makes of a file, a gap with its title where there is none, one line where it is no measurement."""

    def show() -> Html:
        found = measurement(results.root, file_of(name))
        return _missing(title, command) if found is None else Html(draw(found, name, title))

    return guarded(file_of(name), command, show)


def _damaged_input(found: Found, name: str, title: str) -> str:
    rows = [
        [
            escape(target["target"]),
            escape(target["engine"]),
            _of(f"{target['cases']:,}", "fuzz") + _of_planned(target),
            _of(f"{target['refused']:,}", "fuzz"),
            _of(f"{target['accepted']:,}", "fuzz"),
            _of(f"{len(entries(target, 'failures', 0))}", "fuzz"),
            _of(f"{target['slowest_s']:.2f}", "fuzz"),
        ]
        for target in entries(found, "targets")
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
    return grid(heads, rows, words, "robustness-fuzz", (0.24, 0.15, 0.13, 0.13, 0.13, 0.11, 0.11))


def _cases(found: Found, name: str, title: str) -> str:
    """A file of cases: each with its name, how often it was tried, how often it went right, what was seen."""
    rows = [
        [
            escape(case["name"]),
            _of(f"{case['passed']:,} of {case['count']:,}", name),
            f'<span class="where">{escape(str(case["seen"]))}</span>',
        ]
        for case in entries(found, "cases")
    ]
    failures = found.get("failures") or []
    told = f" What went wrong: {escape('; '.join(map(str, failures))[:600])}." if failures else ""
    words = f"<b>{title}.</b>{told}{_so_far(found)} {_where(found, name)}"
    return grid(["case", "right", "seen"], rows, words, f"robustness-{name}", (0.34, 0.16, 0.5))


def _earlier_faults(results: Results) -> Html:
    """The run before the one in the table, in a line; it struck more often before any stage."""

    def show() -> Html:
        found = measurement(results.root, file_of(EARLIER))
        if found is None:
            return Html("")
        right, tried = (sum(case[key] for case in entries(found, "cases")) for key in ("passed", "count"))
        failures = len(entries(found, "failures", 0))
        return Html(
            f"<p>An earlier run of these faults: {_of(f'{right:,} of {tried:,}', EARLIER)} right, "
            f"{_of(f'{failures}', EARLIER)} failures; {_where(found, EARLIER)}</p>"
        )

    return guarded(file_of(EARLIER), f"git checkout {file_of(EARLIER)}", show)


def _of_planned(target: Found) -> str:
    """Where time or a failure ended a target early: how many cases it was to have."""
    planned = target.get("of", target["cases"])
    return f" {_of(f'of {planned:,}', 'fuzz')}" if target["cases"] < planned else ""


def _so_far(found: Found) -> str:
    """How much of what was to be tried has been, if not all: a run that was stopped leaves a file, too."""
    if found.get("asked", 0) >= found.get("of", 0):
        return ""
    return f" {found['asked']:,} of {found['of']:,} so far."


def _server(found: Found, name: str, title: str) -> str:
    """The table of cases, and the figure where questions were followed one by one."""
    table = _cases(found, name, title)
    if not found.get("samples"):
        return table
    columns = _columns(found)
    counts = "; ".join(f"{key} {min(values):g} to {max(values):g}" for key, values in columns.items() if key in COUNTS)
    empty = len(found["samples"]) - len(columns["question"])
    without = f" ({empty} counts saw no process and are left out)" if empty else ""
    caption = (
        f"One server process over {len(found['samples']):,} questions, measured after each when it is idle{without}; "
        f"dotted: after the first. Over all of them: {counts}. {_where(found, name)}"
    )
    source = f"{__name__}.{figure_server.__name__}"
    return (
        table
        + shown(
            _memory_and_time(found), "figure-server", "Memory and time of a long-running server", caption, source
        ).text
    )


def figure_server(results: Results) -> Figure:
    """Memory of the idle server and time of each question, over the questions."""
    return _memory_and_time(measurement(results.root, file_of("server")))


def _memory_and_time(found: Found | None) -> Figure:
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
            panel.plot(columns["question"], values, color=AS_WRITTEN, linestyle="", marker=".", markersize=2)
            panel.set_ylim(0, 1.25 * max(values))
            panel.set_title(title)
            panel.set_xlabel("question")
            if name == "memory_bytes":
                panel.axhline(values[0], color=INK, linewidth=0.6, linestyle=":")
            panel.grid()
    return figure


def _columns(found: Found) -> dict[str, list[float]]:
    """The samples by column, without those whose count saw no process and so no memory (benchmarks/long_server.py)."""
    rows = [row for row in found["samples"] if row[found["columns"].index("memory_bytes")]]
    return {name: [row[place] for row in rows] for place, name in enumerate(found["columns"])}


def _determinism(results: Results, found: Found, name: str, title: str) -> str:
    lines = entries(found, "comparisons")
    rows = [
        [
            escape(line["scale"]),
            f"<code>{escape(line['run'])}</code>",
            escape(line["compared"]),
            "bit for bit" if line["identical"] else "no",
            *(_difference(line[what], name) for what in ("loss", "perplexity", "entropy")),
        ]
        for line in lines
    ]
    smoke = " At scale smoke a training has 12 steps." if any(line["scale"] == "smoke" for line in lines) else ""
    words = (
        f"<b>{title}.</b> The same commit, seed and corpus, each training in a process of its own, against the first"
        f"{_first(found, name)}: the largest relative difference of a logged training loss, the relative difference of "
        "the evaluation perplexity, and the largest difference of a head's mean entropy in nats. "
        f"{_compared(results, lines, name)}{smoke}{_so_far(found)} {_where(found, name)}"
    )
    heads = ["scale", "run", "compared with", "equal", "loss", "perplexity", "entropy"]
    return grid(heads, rows, words, f"robustness-{name.replace('_', '-')}", (0.09, 0.21, 0.28, 0.12, 0.1, 0.1, 0.1))


def _first(found: Found, name: str) -> str:
    """Where the trainings of a GPU ran, as their file says."""
    return f", which is on one {escape(found['provenance']['device'])}" if name == CUDA else ""


def _compared(results: Results, lines: Sequence[Found], name: str) -> str:
    """What the names of the comparisons mean that the file has, in sentences."""
    names = [line["compared"] for line in lines]
    told = []
    if any("instructions" in what for what in names):
        told.append("Older vector instructions, forced on one machine, stand for another machine.")
    if any(what.startswith("the kept result") for what in names):
        told.append("A kept result may be of another machine indeed.")
    if "TF32 products" in names:
        told.append("TF32 is that of the training's products; evaluations take it in every training on a GPU.")
    if name != CUDA and not (results.root / file_of(CUDA)).exists():
        told.append(f"CUDA was not measured (<code>{ON_CUDA}</code>).")
    return " ".join(told)


def _difference(value: float | None, name: str) -> str:
    return gap("–") if value is None else _of("0" if value == 0 else f"{value:.1e}", name)


def _of(text: str, name: str) -> str:
    """A number of one of the files here."""
    return number(text, "smaller_scale", file_of(name))


def _missing(title: str, command: str) -> Html:
    words = f"<b>{title}.</b> <code>{escape(command)}</code> measures it."
    return Html(grid(["", ""], [[escape(title), gap()]], words, "", (0.5, 0.5)))


def _where(found: Found, name: str) -> str:
    where = found.get("provenance", {})
    parts = found.get("targets") or found.get("comparisons") or ()
    commits = [part["commit"] for part in parts if "commit" in part]
    names = dict.fromkeys(str(commit)[:10] for commit in commits or [where.get("commit", "unknown")])
    told: Sequence[str] = [str(where.get("machine", "")), f"commit {', '.join(names)}"]
    return f"{escape(', '.join(filter(None, told)))}; <code>{file_of(name)}</code>."
