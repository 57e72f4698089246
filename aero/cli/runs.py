"""The command `aero runs`: every training of the papers, with its table rows, status and cost."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aero.architecture import parse
from aero.config import MEASURED, Parameters, load
from aero.errors import UserError, known
from aero.training import catalogue
from aero.training.catalogue import Found

WIDTH = 120


def list_runs(chosen: argparse.Namespace) -> str:
    """The output of `aero runs`."""
    parameters = load().at_scale(chosen.scale)
    names, place = list(parameters.runs), ""
    if chosen.table is not None:
        paper, _, table = chosen.table.rpartition("/")
        place = f"{paper or 'aero'}/{'table' if table.isdigit() else ''}{table}"  # "4" and "aero/4" are "aero/table4"
        names = _runs_of(parameters, place)
    if chosen.runs:
        wanted = {run for name in chosen.runs for run in _named(parameters, name)}
        if not (names := [name for name in names if name in wanted]):
            raise UserError(f"{place} has none of {', '.join(chosen.runs)}")
    scales = [chosen.scale] if chosen.scale is not None else list(parameters.scales)
    found = catalogue.results(problems=(problems := []))
    for problem in problems:
        print(problem, file=sys.stderr)
    entries = [_entry(parameters, name, scales, found) for name in names]
    if chosen.json:
        return json.dumps(entries, indent=1, ensure_ascii=False)
    text = _long_lines(parameters, entries, scales, place) if chosen.all else _short_lines(parameters, entries)
    text += ["", _summary(parameters, entries)]
    if chosen.all:
        devices = "; ".join(f"{scale} {_device(parameters.at_scale(scale), found)}" for scale in scales)
        text.append(f"Time of one training: {devices}.")
    return "\n".join(text)


def _named(parameters: Parameters, name: str) -> list[str]:
    """The run called `name`, or the runs of the architecture `name`; UserError if there is none."""
    with contextlib.suppress(ValueError):
        architecture = str(parse(name))
        if found := [run for run in parameters.runs if str(parse(parameters.runs[run].architecture)) == architecture]:
            return found
    parameters.run(name)
    return [name]


def _runs_of(parameters: Parameters, place: str) -> list[str]:
    """Runs of a table or figure, in the order of params.yaml. UserError with the nearest known place if it has none."""
    places = {
        name: {"/".join(row.split("/")[:2]) for row in (*run.rows, *run.figures)}
        for name, run in parameters.runs.items()
    }
    known("table or figure", place, sorted(set().union(*places.values())))
    return [name for name in parameters.runs if place in places[name]]


def _entry(parameters: Parameters, name: str, scales: Sequence[str], found: Found) -> dict[str, Any]:
    """Everything about one run, JSON-ready."""
    resolved, of_run = parameters.resolve(name), found.get((parameters.scale, name), ())
    run = resolved.parameters
    seeds = [seed for run_, seed in parameters.trainings() if run_ == name]
    # As `dvc repro` and `dvc exp run` name them.
    stages = ("train" if parameters.is_default(name, seed) else "catalogue/dvc.yaml:train" for seed in seeds)
    costs = {}
    for scale in scales:
        scaled = parameters.at_scale(scale)
        own = scaled.active.device
        devices = {own} if own == MEASURED else set(parameters.devices)
        estimates = {device: catalogue.cost(scaled, name, found, device) for device in sorted(devices)}
        costs[scale] = {
            "tokens": estimates[own].tokens,
            "training_flops": estimates[own].flops,
            "device": estimates[own].device,
            "hours": {device: estimate.hours for device, estimate in estimates.items()},
        }
    return {
        "run": name,
        "architecture": str(resolved.architecture),
        "model": run.model,
        "context": resolved.context,
        "corpus": resolved.corpus_name or resolved.corpus.name,
        "rows": list(run.rows),
        "figures": list(run.figures),
        "reason": run.reason,
        "scale": parameters.scale,
        "status": catalogue.status(resolved, of_run),
        "seeds": [result.seed for result in of_run],
        "diverged_seeds": [result.seed for result in of_run if result.diverged],
        "planned_seeds": seeds,
        "stages": list(dict.fromkeys(stages)),
        "cost": costs,
    }


def _short_lines(parameters: Parameters, entries: Sequence[dict[str, Any]]) -> list[str]:
    """One line a run of at most WIDTH characters: architecture, state, tables."""
    lines = [["run", "architecture", f"at scale {parameters.scale}", "for"]]
    for entry in entries:
        places = entry["rows"] or entry["figures"]
        tables = dict.fromkeys("/".join(place.split("/")[:2]).replace("/table", "/") for place in places)
        state = f"{entry['status']}, {_seeds(entry)}" if entry["seeds"] else entry["status"]
        lines.append([entry["run"], entry["architecture"], state, ", ".join(tables) or entry["reason"]])
    return [line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in _aligned(lines)]


def _long_lines(
    parameters: Parameters, entries: Sequence[dict[str, Any]], scales: Sequence[str], place: str
) -> list[str]:
    """One line a run: status at the active scale, cost of one training at each of `scales`."""
    costs = [name for scale in scales for name in (f"{scale}: tokens", "FLOPs", "time")]
    lines = [["run", "architecture", "model", "T", parameters.scale, "seeds", *costs, "stands for"]]
    for entry in entries:
        line = [entry["run"], entry["architecture"], entry["model"], str(entry["context"]), entry["status"]]
        line.append(_seeds(entry))
        for scale in scales:
            cost = entry["cost"][scale]
            line += [_number(cost["tokens"]), _number(cost["training_flops"]), _duration(_hours(entry, scale))]
        rows = entry["rows"] or entry["figures"]
        asked = [place] if place in entry["figures"] and place not in rows else []
        lines.append([*line, "; ".join([*rows, *asked]) or str(entry["reason"])])
    return _aligned(lines)


def _seeds(entry: dict[str, Any]) -> str:
    diverged = f", {len(entry['diverged_seeds'])} diverged" if entry["diverged_seeds"] else ""
    return f"{len(entry['seeds'])}/{len(entry['planned_seeds'])}{diverged}"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    *widths, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
    return ["  ".join([*map(str.ljust, line, widths), line[-1]]) for line in lines]


def _summary(parameters: Parameters, entries: Sequence[dict[str, Any]]) -> str:
    states = Counter(entry["status"] for entry in entries)
    planned = sum(len(entry["planned_seeds"]) for entry in entries)
    finished = sum(len(set(entry["planned_seeds"]) & set(entry["seeds"])) for entry in entries)
    hours = [_hours(entry, parameters.scale) for entry in entries]
    total = None if None in hours else sum(h * len(e["planned_seeds"]) for h, e in zip(hours, entries, strict=True))
    by_state = ", ".join(f"{states[state]} {state}" for state in catalogue.Status.__args__ if states[state])
    return (
        f"{len(entries)} runs ({by_state}), {planned} planned trainings; {finished} are done at scale "
        f"{parameters.scale}; all together: {_duration(total)}."
    )


def _hours(entry: dict[str, Any], scale: str) -> float | None:
    cost = entry["cost"].get(scale)
    return None if cost is None else cost["hours"][cost["device"]]


def _device(parameters: Parameters, found: Found) -> str:
    """How the time of a training at the active scale is estimated."""
    device = parameters.active.device
    if device == MEASURED:
        machines = Counter(r.machine for (scale, _), rs in found.items() if scale == parameters.scale for r in rs)
        if machines:
            return f"from the fastest result of each run ({machines.most_common(1)[0][0]})"
        return "unknown: no result of this scale"
    chosen = parameters.device(device)
    return f"on one {device}, assumed at {chosen.peak_tflops:g} TFLOP/s x {chosen.utilisation:g}"


def _duration(hours: float | None) -> str:
    if hours is None:
        return "?"
    if hours < 1 / 3600:
        return "<1 s"
    if hours < 1 / 60:
        return f"{3600 * hours:.0f} s"
    return f"{60 * hours:.1f} min" if hours < 1 else f"{hours:.1f} h"


def _number(value: float) -> str:
    for unit, name in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:g}"
