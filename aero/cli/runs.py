"""The command `aero runs`: every training of the papers, with its table rows, state and cost."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aero import published
from aero.config import MEASURED, Parameters, load
from aero.errors import UserError
from aero.published import Table
from aero.training import catalogue
from aero.training.catalogue import Found

ELSEWHERE = {"variance_sensitivity": "docs/variance_sensitivity.md", "parallel_context": "docs/parallel_context.md"}
"""Papers whose own models are no runs of params.yaml, and the page about them."""


def list_runs(chosen: argparse.Namespace) -> str:
    """The text of `aero runs`."""
    parameters = load()
    if chosen.scale is not None:
        parameters = parameters.at_scale(chosen.scale)
    names, place, remark = list(parameters.runs), "", ""
    if chosen.table is not None:
        place = _place(chosen.table)
        names, remark = _of_place(parameters, place)
    for name in chosen.runs:
        parameters.run(name)  # an unknown one is refused with its nearest
    if chosen.runs and not (names := [name for name in names if name in chosen.runs]):
        raise UserError(f"{place} has none of {', '.join(chosen.runs)}")
    scales = [chosen.scale] if chosen.scale is not None else list(parameters.scales)
    found = catalogue.results(problems=(left_out := []))
    for problem in left_out:
        print(problem, file=sys.stderr)
    entries = [_entry(parameters, name, scales, found) for name in names]
    if chosen.json:
        if remark:
            print(remark, file=sys.stderr)
        return json.dumps(entries, indent=1, ensure_ascii=False)
    stated = _detailed if chosen.scale is not None else _overview
    return "\n".join(filter(None, [stated(parameters, entries, found, place), remark]))


def _place(text: str) -> str:
    """The table or figure called `text`: "4" and "aero/4" are "aero/table4"."""
    paper, _, place = text.rpartition("/")
    return f"{paper or 'aero'}/{'table' if place.isdigit() else ''}{place}"


def _of_place(parameters: Parameters, wanted: str) -> tuple[list[str], str]:
    """Runs of a table or figure in the order of params.yaml, and a line about them if its rows are lost; UserError with
    the known ones if none is of it.
    """
    places = {
        name: {"/".join(place.split("/")[:2]) for place in (*run.rows, *run.figures)}
        for name, run in parameters.runs.items()
    }
    if names := [name for name in parameters.runs if wanted in places[name]]:
        return names, ""
    if table := _lost_tables().get(wanted):
        of_sibling = [name for name in parameters.runs if table.same_models in places[name]]
        return of_sibling, f"{wanted} itself names no run: {table.note}, whose runs these are."
    known = sorted({place for of_run in places.values() for place in of_run} | set(_lost_tables()), key=_natural)
    paper = wanted.partition("/")[0]
    if paper in ELSEWHERE:
        there = ", ".join(place for place in known if place.startswith(f"{paper}/")) or "none"
        raise UserError(f"no run is of {wanted}; what this paper trains apart is in {ELSEWHERE[paper]}; known: {there}")
    near = difflib.get_close_matches(wanted.lower().replace(" ", ""), known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"no run is of {wanted}; {hint}known: {', '.join(known)}")


def _lost_tables() -> dict[str, Table]:
    """Tables whose rows are not in the sources, but which are about the models of another: "entropy_guided/table2"."""
    return {
        f"{short}/table{number}": table
        for short in published.known_papers()
        for number, table in published.load(short).tables.items()
        if table.same_models
    }


def _natural(place: str) -> tuple[str, str, int]:
    match = re.fullmatch(r"(.*?)/([a-z]+)(\d+)", place)
    return (match[1], match[2], int(match[3])) if match else (place, "", 0)


def _entry(parameters: Parameters, name: str, scales: Sequence[str], found: Found) -> dict[str, Any]:
    resolved, of_run = parameters.resolve(name), found.get((parameters.scale, name), ())
    run = resolved.parameters
    costs = {}
    for scale in scales:
        there = parameters.at_scale(scale)
        devices = {there.active.device} if there.active.device == MEASURED else set(parameters.devices)
        estimates = {device: catalogue.cost(there, name, found, device) for device in sorted(devices)}
        own = estimates[there.active.device]
        costs[scale] = {
            "tokens": own.tokens,
            "training_flops": own.flops,
            "device": own.device,
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
        "planned_seeds": [seed for run_, seed in parameters.trainings() if run_ == name],
        "stages": [_stage(parameters, name, seed) for run_, seed in parameters.trainings() if run_ == name],
        "cost": costs,
    }


def _stage(parameters: Parameters, name: str, seed: int) -> str:
    """The stage that makes a training, as `dvc repro` and `dvc exp run` take it."""
    if seed not in parameters.seeds:
        return f"catalogue/dvc.yaml:train_again@{name}-{seed}"
    return f"{'' if name in parameters.active_runs else 'catalogue/dvc.yaml:'}train@{name}-{seed}"


def _overview(parameters: Parameters, entries: Sequence[dict[str, Any]], found: Found, place: str) -> str:
    """Every run in a line: state at the active scale, cost at every scale."""
    scales = list(parameters.scales)
    costs = [name for scale in scales for name in (f"{scale}: tokens", "FLOPs", "time")]
    head = ["run", "architecture", "model", "T", parameters.scale, "seeds", *costs, "stands for"]
    lines = [
        [
            *_who(entry),
            entry["status"],
            _seeds(entry),
            *(text for scale in scales for text in (*_sizes(entry, scale), _duration(_hours(entry, scale)))),
            _stands_for(entry, place),
        ]
        for entry in entries
    ]
    devices = "; ".join(f"{scale} {_device(parameters.at_scale(scale), found)}" for scale in scales)
    return "\n".join([*_aligned(head, lines), "", *_summary(parameters, entries), f"Time of one training: {devices}."])


def _detailed(parameters: Parameters, entries: Sequence[dict[str, Any]], found: Found, place: str) -> str:
    """Every run in a line: state and cost at the active scale, on every device."""
    scale = parameters.scale
    devices = list(entries[0]["cost"][scale]["hours"])
    head = ["run", "architecture", "model", "T", "status", "seeds", "tokens", "FLOPs", *devices, "stands for"]
    lines = [
        [
            *_who(entry),
            entry["status"],
            _seeds(entry),
            *_sizes(entry, scale),
            *(_duration(hours) for hours in entry["cost"][scale]["hours"].values()),
            _stands_for(entry, place),
        ]
        for entry in entries
    ]
    return "\n".join(
        [
            *_aligned(head, lines),
            "",
            *_summary(parameters, entries),
            f"Time of one training: {_device(parameters, found)}.",
        ]
    )


def _summary(parameters: Parameters, entries: Sequence[dict[str, Any]]) -> list[str]:
    scale = parameters.scale
    states = {state: sum(entry["status"] == state for entry in entries) for state in catalogue.Status.__args__}
    hours = [_hours(entry, scale) for entry in entries]
    planned = [len(entry["planned_seeds"]) for entry in entries]
    there = sum(len(set(entry["planned_seeds"]) & set(entry["seeds"])) for entry in entries)
    total = None if None in hours else sum(h * n for h, n in zip(hours, planned, strict=True))
    return [
        f"{_counted(len(entries), 'run')}, {_counted(sum(planned), 'training')} with their seeds; "
        + f"at scale {scale} {there} of them are there, of the runs "
        + ", ".join(f"{number} {state}" for state, number in states.items() if number)
        + f"; all trainings one after the other: {_duration(total)}.",
    ]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _who(entry: dict[str, Any]) -> list[str]:
    return [entry["run"], entry["architecture"], entry["model"], str(entry["context"])]


def _stands_for(entry: dict[str, Any], place: str) -> str:
    """The rows of a run, and the figure that was asked for; its figures if it has no rows; else why it exists."""
    places = entry["rows"] or entry["figures"]
    asked = [place] if place in entry["figures"] and place not in places else []
    return "; ".join([*places, *asked]) or str(entry["reason"])


def _seeds(entry: dict[str, Any]) -> str:
    diverged = len(entry["diverged_seeds"])
    text = f"{len(entry['seeds'])}/{len(entry['planned_seeds'])}"
    return f"{text}, {diverged} diverged" if diverged else text


def _sizes(entry: dict[str, Any], scale: str) -> list[str]:
    cost = entry["cost"][scale]
    return [_number(cost["tokens"]), _number(cost["training_flops"])]


def _hours(entry: dict[str, Any], scale: str) -> float | None:
    cost = entry["cost"][scale]
    return cost["hours"][cost["device"]]


def _device(parameters: Parameters, found: Found) -> str:
    device = parameters.active.device
    if device == MEASURED:
        if own := _machines(found, parameters.scale):
            return f"from the processor time of each run's fastest result ({own})"
        return "unknown (?): no result of this scale is there, and those of others do not carry over"
    chosen = parameters.device(device)
    assumed = f"{chosen.peak_tflops:g} TFLOP/s x {chosen.utilisation:g}"
    # The FLOPs are the papers', who count neither; a step of the laptop scale takes 1.4 to 3 times as long with both.
    return f"on one {device} (an assumption, not measured: {assumed}, without the entropies and regulariser of EReg)"


def _machines(found: Found, scale: str) -> str:
    """The machine most results of `scale` come from."""
    names = Counter(result.machine for (where, _), of_run in found.items() if where == scale for result in of_run)
    return names.most_common(1)[0][0] if names else ""


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


def _aligned(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[i]) for line in (head, *lines)) for i in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]])
        for line in (head, *lines)
    ]
