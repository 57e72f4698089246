"""Where a table, figure or claim comes from: the result files that were read for it, the code, the command.

The report's source works on results that note what is read of them (`traced`). Whoever makes a table, figure or claim
takes the notes since the last one (`take`), so that the files named under it are those that were really read.
"""

from __future__ import annotations

import csv
import dataclasses
import fnmatch
import html
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aero import records
from aero.published import known_papers
from aero.report.results import DEFAULT_SEED, Cost, Results, Run

UP = "../"
"""From the folder of the report, `reports/`, to the project's root."""

_noted: set[str] = set()
_root: list[Path] = []
_FILE = re.compile(r"(?:results|runs)/[\w./()+=-]+\.(?:jsonl?|csv)")
_FOLDERS = ("results", "runs")


class _NotedPath(type(Path())):
    """A path that notes what is opened below the project's root."""

    __slots__ = ()

    def __fspath__(self) -> str:
        text = str(self)
        _note(text)
        return text


class _NotedRun(Run):
    """A training that notes which of its files was used."""

    def __getattribute__(self, name: str) -> Any:
        if name in _RUN_FILES:
            own = Path(object.__getattribute__(self, "path"))
            _note(str(_root[-1] / own.with_name(_RUN_FILES[name] if own.suffix == ".json" else _COMMITTED[name])))
        return object.__getattribute__(self, name)


_COMMITTED = {"entropy": "entropy.jsonl", "log": "curves.jsonl"} | dict.fromkeys(
    ("perplexity", "loss", "diverged_at"), "metrics.jsonl"
)
_RUN_FILES = {"entropy": "entropy.json", "log": "log.csv"} | dict.fromkeys(
    ("perplexity", "loss", "diverged_at"), "metrics.json"
)


class _NotedCost(Cost):
    """A cost that notes the file it stands in."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("bytes", "latency_wan", "latency_lan", "seconds", "rounds", "messages"):
            _note(str(_root[-1] / object.__getattribute__(self, "path")))
        return object.__getattribute__(self, name)


class _NotedResults(Results):
    """Results whose tables of operations and complete passes note that they were used."""

    def __getattribute__(self, name: str) -> Any:
        for file in _TABLES.get(name, ()):
            for folder in _FOLDERS:
                _note(str(_root[-1] / folder / "two_party" / file))
        return object.__getattribute__(self, name)

    def operations_of(self, cost: Cost) -> tuple[dict[str, str], ...]:
        _note(str(_root[-1] / cost.operations_path))
        return super().operations_of(cost)


_TABLES = {"operations": ("ops.csv", "all_ops.csv"), "end_to_end": ("end_to_end.json",)}


def _note(path: str) -> None:
    if _root:
        _noted.add(path)


def traced(results: Results) -> Results:
    """The same results, noting from now on which of their files are used."""
    _root[:] = [results.root]
    _noted.clear()
    values = {field.name: getattr(results, field.name) for field in dataclasses.fields(Results)}
    values["root"] = _NotedPath(results.root)
    values["runs"] = {key: tuple(_as(_NotedRun, run) for run in runs) for key, runs in results.runs.items()}
    values["costs"] = tuple(_as(_NotedCost, cost) for cost in results.costs)
    found = _NotedResults(**values)
    _noted.clear()
    return found


def _as(kind: type, value: Any) -> Any:
    return kind(**{field.name: getattr(value, field.name) for field in dataclasses.fields(value)})


def take() -> tuple[str, ...]:
    """The result files used since the last call, relative to the project's root; none where nothing is traced."""
    found = set()
    for text in _noted:
        path = Path(text)
        if path.is_file() and path.is_relative_to(_root[-1]):
            relative = path.relative_to(_root[-1])
            if relative.parts[0] in _FOLDERS:
                found.add(relative.as_posix())
    _noted.clear()
    return tuple(sorted(found))


# Commands ----------------------------------------------------------------------------------------------------------

COMMANDS = (
    ("*/two_party/ops.csv", "dvc repro -s two_party_ops"),
    ("*/two_party/rows.csv", "dvc repro -s two_party_rows"),
    ("*/two_party/end_to_end.json", "dvc repro -s two_party_rows"),
    ("*/two_party/asked_ops.csv", "python -m stages.two_party_all ARCHITECTURE --context T --no-seconds"),
    ("*/two_party/all_*.csv", "python -m stages.two_party_all"),
    ("*/two_party/forensics_*.csv", "python -m benchmarks.forensics"),
    ("*/two_party/fitted_figure15_*.csv", "python -m benchmarks.as_published --figure15"),
    ("*/two_party/fitted_*.csv", "python -m benchmarks.as_published"),
    ("*/two_party/lattice_*.csv", "python -m benchmarks.lattice_products"),
    ("*/two_party/savings*.csv", "python -m benchmarks.savings"),
    ("*/two_party/product_faults.csv", "python -m benchmarks.product_faults"),
    ("*/two_party/shaped*.csv", "python -m benchmarks.shaped_network"),
    ("*/two_party/full_links*", "python -m benchmarks.full_links"),
    ("*/two_party/resources.csv", "python -m benchmarks.resources"),
    ("*/two_party/full_passes*", "python -m benchmarks.full_passes"),
    ("*/sensitivity/theory*", "dvc repro -s sensitivity_theory"),
    ("*/sensitivity/search.csv", "python -m stages.sensitivity_search"),
    ("*/sensitivity/nearest.csv", "python -m stages.sensitivity_nearest"),
    ("*/sensitivity/*", "dvc repro -s sensitivity"),
    ("*/parallel_context/*cost.json", "python -m stages.parallel_context_cost"),
    ("*/parallel_context*", "make parallel"),
    ("*/bench/entropy_memory.json", "python -m benchmarks.entropy_memory"),
    ("*/bench/sensitivity.json", "python -m benchmarks.sensitivity"),
    ("*/bench/*", "make bench"),
    ("*/robustness/fuzz.json", "make fuzz"),
    ("*/robustness/determinism.json", "python -m benchmarks.determinism"),
    ("*/robustness/determinism_cuda.json", "python -m benchmarks.determinism --device cuda"),
    ("*/robustness/advisories.json", "python -m benchmarks.advisories --database DIR"),
    ("*/robustness/*", "make faults"),
    ("*/scale_search/*", "python -m benchmarks.scale_search"),
)
"""What makes a result file again, by pattern; trainings have a rule of their own (`commands`)."""

_RUN = re.compile(r"(?:results/([^/]+)/|runs/)([^/]+)/(?:seed_(\d+)/)?(metrics\.json|log\.csv|entropy\.json)$")


@dataclass(frozen=True)
class Training:
    """The training a result file belongs to; scale and seed are "" where the path does not name them."""

    scale: str
    run: str
    seed: str
    file: str


def training_of(path: str) -> Training | None:
    """What a training's result file is of; None for another file."""
    found = _RUN.match(path)
    return Training(*(part or "" for part in found.groups())) if found else None


def commands(files: Iterable[str], root: Path) -> tuple[str, ...]:
    """Shell commands that make the files again."""
    found: list[str] = []
    trainings: dict[str, tuple[dict[str, None], set[str]]] = {}
    for path in files:
        if (training := training_of(path)) is not None:
            runs, seeds = trainings.setdefault(training.scale, ({}, set()))
            runs[training.run] = None
            seeds.add(_seed(path, training, root))
            continue
        for pattern, command in COMMANDS:
            if fnmatch.fnmatchcase(path, pattern):
                found.append(command)
                break
    for scale, (runs, seeds) in trainings.items():
        which = f" --scale {scale}" if scale else ""
        found.append(f"python -m stages.train_many {' '.join(runs)} --seeds {' '.join(sorted(seeds))}{which} --keep")
    return tuple(dict.fromkeys(found))


def _seed(path: str, training: Training, root: Path) -> str:
    """Seed of a training's file: its folder's, or, for a first seed, that of the metrics beside it."""
    return training.seed or str(DEFAULT_SEED)


# Provenance --------------------------------------------------------------------------------------------------------


def commits(files: Iterable[str], root: Path) -> tuple[str, ...]:
    """The commits, shortened, at which the files were measured, as far as they say so."""
    return tuple(sorted({found for path in files for found in _commits(root / path)}))


@cache
def _commits(path: Path) -> frozenset[str]:
    """Commits of one file: its own provenance, else that of the metrics or summary beside it."""
    texts: set[str] = set()
    if path.suffix == ".json":
        values = _json(path)
        for entry in values if isinstance(values, list) else [values]:
            if isinstance(entry, dict):
                made = entry.get("provenance")
                texts.add(str(made.get("commit") or "") if isinstance(made, dict) else "")
    elif path.suffix == ".csv" and path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                texts.add(_commit_of_line(line.get("provenance") or line.get("commit") or ""))
    texts.discard("")
    if not texts:
        for beside in ("metrics.json", "sweep.json", "theory.json"):
            if path.name != beside and (path.parent / beside).is_file():
                return _commits(path.parent / beside)
    return frozenset(_short(text) for text in texts)


def _commit_of_line(text: str) -> str:
    try:
        return str(json.loads(text).get("commit") or "")
    except (ValueError, AttributeError):
        return text


def _short(text: str) -> str:
    revision, plus, _ = text.partition("+")
    return revision[:10] + ("+changes" if plus else "")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


# What the page shows -----------------------------------------------------------------------------------------------

_PAPER_WORDS = (
    ("Entropy-Guided", "entropy_guided"),
    ("Entropy Landscape", "entropy_landscape"),
    ("AERO", "aero"),
    ("variance_sensitivity", "variance_sensitivity"),
    ("Variance Sensitivity", "variance_sensitivity"),
    ("Theorem", "variance_sensitivity"),
    ("Proposition", "variance_sensitivity"),
    ("Appendix E.", "variance_sensitivity"),
    ("Summary", "parallel_context"),
)


def papers_in(fragment: str) -> tuple[str, ...]:
    """The papers whose printed numbers are in a piece of HTML, by the places that these name."""
    titles = re.findall(r'class="num published" title="([^"]*)"', fragment)
    found = {next((short for word, short in _PAPER_WORDS if word in title), "") for title in titles}
    return tuple(short for short in known_papers() if short in found)


_SOURCE_FILE = re.compile(r"\baero/[\w/]+\.(?:py|yaml)")
_DOTTED = re.compile(r"\baero(?:\.\w+)+")


def file_of(origin: str, source: str) -> str:
    """The file that a number leads to: the first result file its source names, else the printed numbers of the paper,
    else the code that counted it; "" where the source names none that is there.
    """
    project = Path(__file__).parents[2]
    for path in _FILE.findall(source):
        if not _root or (_root[-1] / path).is_file():
            return path
    if named := _SOURCE_FILE.search(source):
        return named.group() if (project / named.group()).is_file() else ""
    if origin == "published":
        short = next((short for word, short in _PAPER_WORDS if word in source), "")
        return f"aero/published/{short}.yaml" if short else ""
    if dotted := _DOTTED.search(source):
        parts = dotted.group().split(".")
        found = ("/".join(parts[:end]) + ".py" for end in range(len(parts), 1, -1))
        return next((path for path in found if (project / path).is_file()), "")
    return ""


def files_in(fragment: str) -> tuple[str, ...]:
    """The result files that the numbers in a piece of HTML name as their source."""
    titles = re.findall(r'title="([^"]*)"', fragment)
    return tuple(sorted({path for title in titles for path in _FILE.findall(html.unescape(title))}))


def caller(depth: int = 2) -> tuple[str, int]:
    """Dotted name and line of the function that called the caller of this one."""
    frame = sys._getframe(depth)
    return f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}", frame.f_code.co_firstlineno


def details(fragment: str, code: str, line: int = 0, files: Sequence[str] = (), papers: Sequence[str] = ()) -> str:
    """The line under a table or figure that opens to its files, code, commits and command.

    fragment: what is shown; its numbers' own sources are added to `papers`, to `files` and to the files noted since the
    last call. "" where nothing is traced, that is, outside the report.
    """
    if not _root:
        return ""
    root = _root[-1]
    named = [path for path in files_in(fragment) if (root / path).is_file()]
    files = tuple(sorted({*take(), *named, *files}))
    rows = []
    if papers := papers or papers_in(fragment):
        rows.append(("published", ", ".join(link(f"aero/published/{short}.yaml") for short in papers)))
    rows.append(
        ("measured", file_links(files, root) if files else "no result file: counted, computed, or not measured yet")
    )
    if found := commits(files, root):
        rows.append(("measured at", f"commit {', '.join(found)}"))
    rows.append(("code", f"{code_link(code, line)}, at commit {_short(records.commit())}"))
    again = (*commands(files, root), "make report")
    rows.append(("again", "<br>".join(f"<code>{html.escape(command)}</code>" for command in again)))
    body = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return f'<details class="source"><summary>Data, code, command</summary><dl>{body}</dl></details>'


def link(path: str, text: str = "") -> str:
    """A link to a file of the project, relative to the report."""
    return f'<a href="{UP}{html.escape(path)}">{html.escape(text or path)}</a>'


def code_link(dotted: str, line: int = 0) -> str:
    """A link to the file of a function given by its dotted name."""
    module, _, name = dotted.rpartition(".")
    path = module.replace(".", "/") + ".py"
    where = f", line {line}" if line else ""
    return f"{link(path)}, <code>{html.escape(name)}</code>{where}"


def file_links(files: Sequence[str], root: Path) -> str:
    """Links to result files, those of one run's trainings together: "sm-g metrics.json 1337, 1338; …"."""
    groups: dict[str, list[str]] = {}
    for path in files:
        training = training_of(path)
        if training is None:
            groups[link(path)] = []
        else:
            name = f"{html.escape(training.run)} {training.file}"
            groups.setdefault(name, []).append(link(path, _seed(path, training, root)))
    return "; ".join(f"{name} {', '.join(seeds)}".strip() for name, seeds in groups.items())
