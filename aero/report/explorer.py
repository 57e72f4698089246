"""The report's explorer: rows side by side on a network of the reader's choice, and the claims, sorted and filtered.

Python embeds the data and a table that stands without JavaScript, in print and in the PDF; `assets/explorer.js` makes
the rest of it in the reader's browser and loads nothing. Every cost says how it is known: composed of
operations measured at these very shapes, estimated by the laws of `aero.two_party.cost.cost_model` with their error,
extrapolated beyond what was measured, which is shown on request only, or missing with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from aero.architecture import parse
from aero.config import TwoPartyParameters
from aero.errors import UserError
from aero.families import FAMILIES
from aero.published import load
from aero.report.claims import Judged
from aero.report.cost_page import full_passes
from aero.report.costs import GB, compared_runs, fitted_cost, slower_day, wire_bytes_of
from aero.report.costs import PROGRAMS as COMPOSED_PROGRAMS
from aero.report.decisions import PUBLISHED_ONLY, VERDICTS
from aero.report.marks import INTERVAL, Html, cost_caption, gap, grid, number, row_label, scale_text
from aero.report.results import Results
from aero.report.statistics import estimate, relative
from aero.report.tables import training_origin
from aero.two_party.cost.cost_model import FILES, Operations, composition_error, measured_operations
from aero.two_party.cost.cost_model import estimate as estimate_cost
from aero.two_party.cost.counts import Sizes, are_kept, published_sizes
from aero.two_party.cost.network import Network
from aero.two_party.program.optimizations import AS_PUBLISHED

PROGRAMS = (AS_PUBLISHED, *COMPOSED_PROGRAMS)
COMPOSED, ESTIMATED = "composed", "estimated"
EXTRAPOLATED, MISSING = "extrapolated", "missing"
BASELINE = "SM+LN+G"
START = (BASELINE, "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)")
"""What stands side by side before the reader chooses."""
NOT_FITTED = (
    "only rows that AERO's Tables 4 to 7 and Figure 15 print are measured as published (python -m"
    " benchmarks.as_published)"
)
FAMILY_NAMES = {"gpt2": "GPT-2", "gpt2-18l": "GPT-2", "pythia-70m": "Pythia-70M", "languini-gpt2": "GPT-2 on Languini"}


@dataclass(frozen=True)
class PassCost:
    """What one private forward pass costs, and how that is known (`how`).

    bytes: both directions, set-up included; wire_bytes: those that cost time on a link. seconds: computing. The errors
    are relative bounds, 0 for measured ones, None where nothing tells. why: what is missing. None: not known.
    """

    how: str
    bytes: float | None = None
    wire_bytes: float | None = None
    messages: float | None = None
    rounds: float | None = None
    seconds: float | None = None
    bytes_error: float | None = None
    rounds_error: float | None = None
    seconds_error: float | None = None
    source: str = ""
    why: str = ""


@dataclass(frozen=True)
class Row:
    """A run: its architecture, the setting its cost and its baseline belong to, costs by program, perplexity.

    perplexity: increase over the setting's SM+LN+G in per cent, with interval and seeds, or why there is none.
    published: what the paper prints for it: GB, minutes, place.
    """

    run: str
    label: str
    setting: str
    perplexity: Mapping[str, Any]
    costs: Mapping[str, PassCost]
    published: Mapping[str, Any] = field(default_factory=dict)


def section(results: Results, judged: Sequence[Judged]) -> Html:
    """The explorer, as it stands without JavaScript, and the data it works on."""
    found = rows(results)
    return Html(
        '<div class="explorer" id="explorer"><h2>Try it: rows side by side</h2>'
        "<p>What would another network, another protocol variant or another row cost? In the web page everything in "
        "the table below can be chosen; nothing is loaded for it from anywhere.</p>"
        f'<div class="explorer-static">{_static_table(results, found)}</div></div>'
        f'<script id="explorer-data" type="application/json">{embedded(data(results, judged, found))}</script>'
    )


def data(results: Results, judged: Sequence[Judged], found: Sequence[Row] | None = None) -> dict[str, Any]:
    """What `explorer.js` works on."""
    found = rows(results) if found is None else found
    networks = results.parameters.get("two_party", {}).get("networks", {})
    composed = composition_error(_passes(results))
    return {
        "baseline": BASELINE,
        "claims": [_claim(one) for one in judged],
        "composition_error": composed,
        "networks": {name: {key: float(value) for key, value in one.items()} for name, one in networks.items()},
        "origin": training_origin(results.scale),
        "programs": list(PROGRAMS),
        "rows": [asdict(row) for row in found],
        "scale": scale_text(results),
        "settings": settings(results),
        "slower_days": {key: slower_day(results, *_sizes(key)) for key in settings(results)},
        "start": list(START),
        "verdicts": list(VERDICTS),
    }


def embedded(values: Mapping[str, Any]) -> str:
    """JSON that may stand in a page's script element and that no later step takes for a tag or a formula."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&$":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def settings(results: Results) -> dict[str, str]:
    """Key and name of every combination of model, context and budget that runs have, in the order of params.yaml."""
    found = {}
    for run in compared_runs(results).values():
        key = _setting(results, run)
        family, context, budget = key.split("/")
        sizes = FAMILIES[family].sizes
        times = "" if float(budget) == 1 else f", {float(budget):g} times the tokens"
        found[key] = f"{FAMILY_NAMES.get(family, family)}, {sizes['layers']} layers, T={context}{times}"
    return found


def rows(results: Results) -> list[Row]:
    """Every run of softmax attention in the common recipe, in the order of params.yaml."""
    operations = _operations(results)
    known: dict[tuple[str, str, str], PassCost] = {}
    found = []
    for name, run in compared_runs(results).items():
        key = _setting(results, run)
        family, context = _sizes(key)
        costs = {}
        for program in PROGRAMS:
            about = (run["architecture"], f"{family}/{context}", program)
            if about not in known:
                known[about] = _cost(results, run["architecture"], family, context, program, operations)
            costs[program] = known[about]
        found.append(Row(name, _label(run), key, _perplexity(results, name, key), costs, _published(run)))
    return found


def _setting(results: Results, run: Mapping[str, Any]) -> str:
    """Family, context and budget, which must agree for two perplexities to be compared."""
    family = run.get("model", "gpt2")
    context = run.get("context") or (results.parameters.get("families") or {}).get(family, {}).get("context", 128)
    return f"{family}/{context}/{float(run.get('budget', 1)):g}"


def _sizes(setting: str) -> tuple[str, int]:
    """Family and context of a setting."""
    family, context, _ = setting.split("/")
    return family, int(context)


def _label(run: Mapping[str, Any]) -> str:
    changed = ", ".join(f"{key.rstrip('_')} {value}" for key, value in (run.get("regularizer") or {}).items())
    return run["architecture"] + (f", {changed}" if changed else "")


def _published(run: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes and latency that AERO prints for the run's row."""
    for row in run.get("rows", ()):
        paper, table, name = row.split("/")[:3]
        if paper != "aero":
            continue
        printed = load(paper).tables[table.removeprefix("table")]
        if {"communication", "latency"} <= set(printed.columns):
            return {
                "gigabytes": printed.value(name, "communication"),
                "minutes": printed.value(name, "latency"),
                "place": f"AERO Table {printed.number}",
            }
    return {}


def _operations(results: Results) -> Operations | None:
    """Measured operations with the protocol's settings of params.yaml; None if there are none."""
    try:
        settings_ = TwoPartyParameters(**results.parameters["two_party"])
        return measured_operations(settings_.variant(), results.root)
    except (KeyError, ValueError):
        return None


def _passes(results: Results) -> list[Mapping[str, Any]]:
    passes = results.end_to_end
    found = [entry for entry in passes if isinstance(entry, dict)] if isinstance(passes, list) else []
    return [*found, *full_passes(results)]


def _cost(
    results: Results, architecture: str, family: str, context: int, program: str, operations: Operations | None
) -> PassCost:
    """The row's own cost where it was composed; else what its measured operations say."""
    if program == AS_PUBLISHED:
        cost = fitted_cost(results, architecture, family, context)
        if cost is None:
            return PassCost(MISSING, why=NOT_FITTED)
    else:
        cost = results.cost(architecture, program, context, family)
    if cost is not None:
        return PassCost(
            how=COMPOSED,
            bytes=cost.bytes,
            wire_bytes=wire_bytes_of(results, cost),
            messages=cost.messages,
            rounds=cost.rounds,
            seconds=cost.seconds,
            bytes_error=0.0,
            rounds_error=0.0,
            seconds_error=0.0,
            source=cost.path,
        )
    if operations is None:
        return PassCost(MISSING, why="no operation was measured")
    sizes = published_sizes(family, context)
    parsed = parse(architecture)
    if not are_kept(parsed, sizes, program):
        return PassCost(MISSING, why=f"the operations of this row in program {program} are not counted")
    try:
        return _estimated(results, estimate_cost(parsed, sizes, program, operations))
    except UserError as error:
        why = str(error)
    return _extrapolated(results, parsed, sizes, program, operations, why)


def _estimated(results: Results, found: Any, why: str = "") -> PassCost:
    how = EXTRAPOLATED if found.extrapolated else ESTIMATED if found.interpolated else COMPOSED
    files = ", ".join(name for name in FILES if (results.root / name).is_file())
    return PassCost(
        how=how,
        bytes=_finite(found.bytes),
        wire_bytes=_finite(found.wire_bytes),
        messages=_finite(found.messages),
        rounds=_finite(found.rounds),
        seconds=_finite(found.seconds),
        bytes_error=_finite(found.bytes_error),
        rounds_error=_finite(found.rounds_error),
        seconds_error=_finite(found.seconds_error),
        source=files,
        why=why,
    )


def _extrapolated(
    results: Results, architecture: Any, sizes: Sizes, program: str, operations: Operations, why: str
) -> PassCost:
    try:
        found = _estimated(results, estimate_cost(architecture, sizes, program, operations, extrapolate=True), why)
    except UserError:
        return PassCost(MISSING, why=why)
    return found if found.bytes is not None else PassCost(MISSING, why=why)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _perplexity(results: Results, name: str, key: str) -> dict[str, Any]:
    """Increase over the setting's baseline in per cent, or why there is none."""
    runs = compared_runs(results)
    base = next(
        (
            other
            for other, run in runs.items()
            if run["architecture"] == BASELINE and _setting(results, run) == key and not run.get("regularizer")
        ),
        None,
    )
    seeds = results.seeds(name)
    about: dict[str, Any] = {"increase": None, "low": None, "high": None, "seeds": len(seeds), "why": "", "source": ""}
    about["source"] = ", ".join(run.path for run in seeds)
    if not seeds:
        return about | {"why": f"not run at scale {results.scale}"}
    values = results.perplexity(name)
    if not values:
        return about | {"why": "training diverged (NaN)"}
    if base is None or not results.perplexity(base):
        return about | {"why": f"no {BASELINE} to compare with"}
    if _trained_on(results, name) != _trained_on(results, base):
        return about | {"why": f"not trained like its {BASELINE}: other data, sizes or tokens"}
    found = estimate(relative(values, results.perplexity(base)))
    if found is None:
        return about | {"why": f"no seed in common with {BASELINE}"}
    failed, found = len(seeds) - len(values), found.possible()
    return about | {
        "increase": found.mean,
        "low": found.low,
        "high": found.high,
        "seeds": len(found.seeds),
        "why": f"{failed} of {len(seeds)} seeds diverged" if failed else "",
    }


def _trained_on(results: Results, name: str) -> tuple[Any, ...]:
    """What must agree for two perplexities to be compared: data, sizes and sequences seen."""
    run = results.first(name)
    metrics = run.metrics if run else {}
    model, train = metrics.get("model") or {}, metrics.get("train") or {}
    sizes = tuple(model.get(key) for key in ("vocabulary", "context", "layers", "heads", "width"))
    seen = tuple(train.get(key) for key in ("steps", "batch_size", "accumulation"))
    return (metrics.get("corpus"), run.provenance.get("corpus_sha256") if run else None, *sizes, *seen)


def _claim(one: Judged) -> dict[str, str]:
    decision = one.decision
    at_dimensions = decision.scale in ("paper_dimensions", "paper")
    origin = "published" if decision.scale == PUBLISHED_ONLY else "smaller_scale"
    return {
        "id": one.claim.id,
        "paper": one.paper,
        "claim": one.claim.claim,
        "where": one.claim.where,
        "published": one.claim.published,
        "printed": f"aero/published/{one.claim.file}",
        "file": next(iter(one.files), one.code_file),
        "measured": decision.measured,
        "origin": "paper_dimensions" if at_dimensions else origin,
        "verdict": decision.verdict,
        "rule": decision.rule,
        "evidence": decision.evidence,
    }


def _static_table(results: Results, found: Sequence[Row]) -> str:
    """The rows of the first setting in both programs on the WAN, for print and for browsers without JavaScript."""
    names = settings(results)
    if not names:
        return f"<p>Runs to compare: {gap()}.</p>"
    first = next(iter(names))
    networks = results.parameters.get("two_party", {}).get("networks", {})
    wan = Network(networks["wan"]["bandwidth_mbit"], networks["wan"]["rtt_ms"]) if "wan" in networks else None
    lines = []
    for row in found:
        costs = [row.costs[program] for program in COMPOSED_PROGRAMS]
        if row.setting != first or not (row.perplexity["source"] or _known(costs)):
            continue
        line = [row_label(row.label), _perplexity_cell(results, row)]
        for program in COMPOSED_PROGRAMS:
            line += _cost_cells(row.costs[program], wan)
        lines.append(line)
    heads = ["configuration", "PPL over SM+LN+G, %"]
    for program in COMPOSED_PROGRAMS:
        heads += [f"{program.replace('_', ' ')}, GB", "messages", "WAN, min"]
    caption = (
        f"<b>Rows side by side</b>: {escape(names[first])}. Perplexity: {escape(scale_text(results))}; brackets: "
        f"{INTERVAL}. {cost_caption(results)}"
    )
    return grid(heads, lines, caption, "explorer-rows", (0.27, 0.19, *(0.09,) * 6), "dense")


def _known(costs: Any) -> bool:
    return any(cost.how not in (MISSING, EXTRAPOLATED) for cost in costs)


def _perplexity_cell(results: Results, row: Row) -> str:
    about = row.perplexity
    if about["increase"] is None:
        return gap(about["why"])
    if row.label == BASELINE:
        return number("baseline", training_origin(results.scale), about["source"])
    text = f"{about['increase']:+.1f}"
    if about["low"] is not None:
        text += f" [{about['low']:+.1f}, {about['high']:+.1f}]"
    return number(text, training_origin(results.scale), about["source"])


def _cost_cells(cost: PassCost, wan: Network | None) -> list[str]:
    if cost.how in (MISSING, EXTRAPOLATED) or cost.bytes is None:
        return [gap("–")] * 3
    source = f"{cost.source}, {cost.how}"
    cells = [number(f"{cost.bytes / GB:.3f}", "paper_dimensions", source)]
    cells.append(gap("–") if cost.messages is None else number(f"{cost.messages:.0f}", "paper_dimensions", source))
    minutes = None if wan is None else latency_minutes(cost, wan)
    cells.append(gap("–") if minutes is None else number(f"{minutes:.2f}", "paper_dimensions", source))
    return cells


def latency_minutes(cost: PassCost, network: Network) -> float | None:
    """Minutes of a pass on `network`; None where bytes, rounds or computing time are not known."""
    if None in (cost.wire_bytes, cost.rounds, cost.seconds):
        return None
    return network.latency_seconds(cost.seconds, cost.wire_bytes, 0.0, cost.rounds) / 60
