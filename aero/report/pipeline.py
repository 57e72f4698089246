"""The pipeline picture, drawn from `dvc.yaml` itself: what a stage reads that another stage writes."""

from __future__ import annotations

import fnmatch
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from aero.errors import yaml_file
from aero.report.drawing import INK, MUTED, PAPER, WIDTH, say_missing, style

_KINDS = {
    "tokenize": "#56b4e9",
    "train": "#0072b2",
    "entropy": "#e69f00",
    "end_to_end": "#009e73",
    "two_party": "#009e73",
    "report": "#cc79a7",
}


@dataclass(frozen=True)
class Stage:
    """A stage of dvc.yaml; `copies` is how many times a matrix or foreach runs it, 1 for a plain stage.

    `module` is what it runs ("stages.train"), "" if that is no module of this project.
    """

    name: str
    copies: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    module: str = ""


def stages(root: Path) -> tuple[Stage, ...]:
    """The stages of `root`/dvc.yaml in file order, a matrix or foreach as one; empty if there is no such file.

    Stages that run the same module are one, under the name of the first. A variable part of a path (`${item}`) is `*`
    here. ValueError if the file has no mapping of stages.
    """
    path = root / "dvc.yaml"
    if not path.is_file():
        return ()
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict) or not isinstance(values.get("stages"), dict):
        raise ValueError(f"{path.name} has no mapping called stages")
    parameters = yaml_file(root / "params.yaml") if (root / "params.yaml").is_file() else {}
    found: dict[str, Stage] = {}
    for name, body in values["stages"].items():
        stage = _stage(name, body, parameters)
        first = found.get(stage.module or name)
        found[stage.module or name] = stage if first is None else _together(first, stage)
    return tuple(found.values())


def _together(first: Stage, second: Stage) -> Stage:
    reads, writes = (
        tuple(dict.fromkeys(a + b)) for a, b in ((first.reads, second.reads), (first.writes, second.writes))
    )
    return Stage(first.name, first.copies + second.copies, reads, writes, first.module)


def _stage(name: str, body: dict[str, Any], parameters: dict[str, Any]) -> Stage:
    copies = 1
    inner = body
    if "foreach" in body:
        copies = _length(body["foreach"], parameters)
        inner = body.get("do", {})
    elif "matrix" in body:
        for axis in body["matrix"].values():
            copies *= _length(axis, parameters)
    return Stage(
        name,
        copies,
        _paths(inner.get("deps", [])),
        _paths([*inner.get("outs", []), *inner.get("metrics", []), *inner.get("plots", [])]),
        found[1] if (found := re.search(r"-m\s+(stages\.\w+)", str(inner.get("cmd", "")))) else "",
    )


def _length(axis: Any, parameters: dict[str, Any]) -> int:
    if isinstance(axis, str) and (found := re.fullmatch(r"\$\{(.+)\}", axis.strip())):
        value: Any = parameters
        for key in found.group(1).split("."):
            value = value.get(key, {}) if isinstance(value, dict) else {}
        return max(1, len(value)) if isinstance(value, list | dict) else 1
    return max(1, len(axis)) if isinstance(axis, list | dict) else 1


def _paths(entries: list[Any]) -> tuple[str, ...]:
    names = [next(iter(entry)) if isinstance(entry, dict) else str(entry) for entry in entries]
    return tuple(re.sub(r"\$\{[^}]*\}", "*", name) for name in names)


def edges(pipeline: tuple[Stage, ...]) -> list[tuple[str, str]]:
    """(writer, reader) for every pair where the reader depends on what the writer puts out, or a file inside of it."""
    found = []
    for reader in pipeline:
        for writer in pipeline:
            if writer is not reader and any(_meets(out, dep) for out in writer.writes for dep in reader.reads):
                found.append((writer.name, reader.name))
    return found


def _meets(out: str, dep: str) -> bool:
    inside = dep.startswith(out.rstrip("/") + "/") or out.startswith(dep.rstrip("/") + "/")
    return out == dep or inside or fnmatch.fnmatchcase(dep, out) or fnmatch.fnmatchcase(out, dep)


def columns(pipeline: tuple[Stage, ...], arrows: list[tuple[str, str]]) -> dict[str, int]:
    """The column of every stage, counted from the left: one less than the leftmost stage that reads from it.

    As far right as it can stand, so that few arrows pass a column without stopping there.
    """
    back = {stage.name: 0 for stage in pipeline}
    for _ in pipeline:
        for writer, reader in arrows:
            back[writer] = min(len(pipeline), max(back[writer], back[reader] + 1))
    last = max(back.values(), default=0)
    return {name: last - column for name, column in back.items()}


def arrangement(
    place: dict[str, int], arrows: list[tuple[str, str]]
) -> tuple[dict[str, float], dict[tuple[str, str], list[str]]]:
    """A height for every stage, and the waypoints of every arrow that passes columns, with the fewest crossings.

    An arrow from column 1 to column 3 gets a place of its own in column 2, so that it passes between the boxes. All
    orders are tried, up to a number that no real pipeline reaches. Waypoints have heights too, under their own names.
    """
    slots: dict[int, list[str]] = {}
    for name, column in place.items():
        slots.setdefault(column, []).append(name)
    ways: dict[tuple[str, str], list[str]] = {}
    for writer, reader in arrows:
        ways[writer, reader] = [f"{writer}>{reader}@{c}" for c in range(place[writer] + 1, place[reader])]
        for column, waypoint in enumerate(ways[writer, reader], start=place[writer] + 1):
            slots.setdefault(column, []).append(waypoint)
    segments = [pair for (writer, reader), way in ways.items() for pair in itertools.pairwise([writer, *way, reader])]

    def heights(orders: tuple[tuple[str, ...], ...]) -> dict[str, float]:
        return {name: len(order) / 2 - 0.5 - index for order in orders for index, name in enumerate(order)}

    def ugliness(orders: tuple[tuple[str, ...], ...]) -> tuple[int, float]:
        at = heights(orders)
        column = {name: index for index, order in enumerate(orders) for name in order}
        crossings = sum(
            column[a] == column[c] and (at[a] - at[c]) * (at[b] - at[d]) < 0
            for (a, b), (c, d) in itertools.combinations(segments, 2)
        )
        return crossings, sum(abs(at[a] - at[b]) for a, b in segments)

    stacks = [slots[column] for column in sorted(slots)]
    choices = itertools.islice(itertools.product(*(itertools.permutations(stack) for stack in stacks)), 20_000)
    return heights(min(choices, key=ugliness)), ways


def figure_pipeline(root: Path) -> Figure:
    """The DAG from left to right: one box a stage with the number of its copies, one arrow for what is handed on."""
    pipeline = stages(root)
    with style():
        figure = Figure(figsize=(WIDTH, 1.9))
        axes = figure.subplots()
        figure.subplots_adjust(left=0, right=1, top=1, bottom=0)
        if not pipeline:
            say_missing(axes, "no dvc.yaml here")
            return figure
        arrows = edges(pipeline)
        # An arrow over a longer way is implied by the shorter ones.
        shown = [
            (w, r) for w, r in arrows if not any((w, s.name) in arrows and (s.name, r) in arrows for s in pipeline)
        ]
        place = columns(pipeline, arrows)
        height_of, ways = arrangement(place, shown)
        step = 8 / (max(place.values()) + 1)
        width, height = 0.78 * step, 0.56
        x_of = {name: (column + 0.5) * step for name, column in place.items()}
        for writer, reader in shown:
            points = [(x_of[writer] + width / 2, height_of[writer])]
            for column, waypoint in enumerate(ways[writer, reader], start=place[writer] + 1):
                middle = (column + 0.5) * step
                points += [(middle - width / 2, height_of[waypoint]), (middle + width / 2, height_of[waypoint])]
            end = (x_of[reader] - width / 2, height_of[reader])
            axes.plot(*zip(*points, strict=True), color=MUTED, linewidth=1)
            arrow = FancyArrowPatch(
                points[-1], end, arrowstyle="-|>", mutation_scale=9, color=MUTED, linewidth=1, shrinkA=0, shrinkB=1
            )
            axes.add_patch(arrow)
        for stage in pipeline:
            x, y = x_of[stage.name], height_of[stage.name]
            colour = next((c for kind, c in _KINDS.items() if stage.name.startswith(kind)), MUTED)
            box = FancyBboxPatch(
                (x - width / 2, y - height / 2),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.08",
                facecolor=PAPER,
                edgecolor=colour,
                linewidth=1.6,
            )
            axes.add_patch(box)
            copies = f"\n× {stage.copies}" if stage.copies > 1 else ""
            axes.text(x, y, stage.name + copies, ha="center", va="center", color=INK, fontsize=8)
        axes.set_xlim(0, 8)
        axes.set_ylim(min(height_of.values()) - 0.45, max(height_of.values()) + 0.45)
        axes.axis("off")
    return figure
