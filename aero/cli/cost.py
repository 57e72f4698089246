"""`aero cost`: the cost of a private forward pass of one architecture, of two side by side, or of all trained runs.

Without --program, a row that AERO prints is answered as published, reproduced, with stock SPU and optimised.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.architecture import parse
from aero.errors import UserError, cut
from aero.families import CHANGEABLE, FAMILIES

if TYPE_CHECKING:  # `aero --help` reads this module for its arguments only
    from aero.config import Parameters
    from aero.schema import Network
    from aero.two_party.cost.composition import PassCost
    from aero.two_party.cost.counts import Sizes

    Checks = Mapping[str, float | None]

GB = 1e9


def add_arguments(cost: argparse.ArgumentParser) -> None:
    add = cost.add_argument
    add("architecture", nargs="*", metavar="ARCHITECTURE", help="one, in the papers' notation, such as SM+ScFuFFNi_3")
    families = f"model family: {', '.join(FAMILIES)} (default gpt2)"
    folder = "or, without ARCHITECTURE, a Hugging Face model's folder or config.json"
    add("--model", default="gpt2", help=f"{families}; {folder}")
    add("--context", type=int, default=128, help="tokens in the prompt, T (default 128)")
    networks = "wan (default), lan or another of two_party.networks in params.yaml"
    add("--network", help=f"{networks}, or MBIT,RTT_MS: 300,20")
    programs = "tuned (optimised), as_written (stock SPU), or one of them with optimizations"
    changed = "as_written+one_qkv adds one, tuned-lattice_products leaves one out (names: docs/two_party.md)"
    add("--program", help=f"{programs}: {changed} (default: tuned; for rows of AERO's tables both)")
    for name, what in CHANGEABLE.items():
        add(f"--{name}", type=int, help=f"{what}; overrides the family's published value")
    add("--compare", nargs=2, metavar=("A", "B"), help="compare two architectures")
    add("--pareto", action="store_true", help="plot perplexity against communication, all trained runs")
    add("--scale", help="scale of the trainings for --pareto (default: desk if it has any, else params.yaml's)")
    add("--out", type=Path, help="file for the figure of --pareto, .svg or .png (default pareto.svg)")
    add("--extrapolate", action="store_true", help="extrapolate beyond the measured sizes and mark the answer")
    add("--json", action="store_true", help="print everything as JSON")


def answer(chosen: argparse.Namespace, parameters: Parameters, root: Path) -> str:
    """The text of `aero cost`, from the results below `root`. ValueError for wrong input and what was not measured."""
    elsewhere = chosen.model not in FAMILIES and Path(chosen.model).exists()
    if len(chosen.architecture) > 1:
        raise UserError(f"one architecture at a time; for two: aero cost --compare {' '.join(chosen.architecture[:2])}")
    if [bool(chosen.architecture), bool(chosen.compare), chosen.pareto, elsewhere].count(True) != 1:
        raise UserError(
            "give one architecture, or --compare A B, or --pareto, or --model FOLDER; see `aero cost --help`"
        )
    if not chosen.pareto and (chosen.out or chosen.scale):
        raise UserError(f"{'--out' if chosen.out else '--scale'} belongs to --pareto")
    program = _program(chosen.program or "tuned")
    if chosen.pareto:
        return _pareto(chosen, program, root)
    from aero.two_party.cost.composition import estimate
    from aero.two_party.cost.cost_model import measured_operations
    from aero.two_party.cost.counts import published_sizes

    name = chosen.network or "wan"
    network = _network(parameters, name)
    changes = {key: value for key in CHANGEABLE if (value := getattr(chosen, key)) is not None}
    texts = chosen.compare or chosen.architecture
    if elsewhere:
        texts, sizes = _hugging_face(chosen.model, chosen.context, changes)
    else:
        sizes = published_sizes(chosen.model, chosen.context, **changes)
    operations = measured_operations(root)

    def costed(text: str, program: str) -> PassCost:
        return estimate(parse(text), sizes, program, operations, chosen.extrapolate)

    costs = [costed(text, program) for text in texts]
    checks = _checks(root, program)
    beside = _printed(texts[0], sizes, root) if chosen.architecture and chosen.program is None else {}
    stock = costed(texts[0], "as_written") if beside else None
    if chosen.json:
        values = [as_json(cost, network, checks) for cost in costs]
        if stock:
            ours = {"stock": as_json(stock, network, _checks(root, stock.program)), "optimised": dict(values[0])}
            values[0]["side_by_side"] = beside | ours
        return json.dumps(values if chosen.compare else values[0], indent=1, ensure_ascii=False, allow_nan=False)
    if chosen.compare:
        head = f"{_sizes_text(sizes)}, program {program}: one private forward pass"
        table = _side_by_side([(cost.architecture, _column(cost, network, name)) for cost in costs], ratio=True)
        said = [line for cost in costs for line in (f"{cost.architecture}:", *_accuracy(cost, network, checks))]
        return "\n".join([head, *table, *said])
    if stock:
        return "\n".join(_beside_published(beside, stock, costs[0], network, name, checks))
    return "\n".join(_described(costs[0], network, name, checks))


def _hugging_face(path: str, context: int, changes: Mapping[str, int]) -> tuple[list[str], Sizes]:
    """Architecture and sizes of a folder or config.json."""
    from aero.hf.convert import describe
    from aero.two_party.cost.counts import sizes_of

    if changes:
        raise UserError(f"--{min(changes)} changes a model family; {path} has its own sizes")
    architecture, config = describe(path)
    name = Path(path).resolve()
    return [str(architecture)], sizes_of((name.parent if name.is_file() else name).name, config, context)


def _printed(text: str, sizes: Sizes, root: Path) -> dict[str, dict[str, Any] | None]:
    """The row that AERO prints with this architecture and these sizes: `published`, its bytes and latency or None, and
    `reproduced`, by the one configuration of SPU that fits all rows, None without it below `root`. {} without a row.
    """
    from aero.published import load
    from aero.records import read_csv
    from aero.two_party.cost.counts import published_sizes

    wanted = {"architecture": text, "context": sizes.context, "model": sizes.family}.items()
    rows = [
        (table.number, row)
        for table in load("aero").tables.values()
        for row in table.rows
        if "communication" in table.columns and wanted <= table.setting(row).items()
    ]
    printed = [(number, row) for number, row in rows if row.cells["communication"].value is not None]
    if not printed or sizes != published_sizes(sizes.family, sizes.context):
        return {}
    number, row = printed[0]
    minutes = row.cells["latency"].value
    published = {"where": f"AERO, Table {number}", "bytes": row.cells["communication"].value * GB}
    published["latency_s"] = None if minutes is None else 60 * minutes
    where = "the configuration of SPU that fits all published bytes, docs/communication_fit.md"
    reproduced = None
    for line in read_csv(root / "results/two_party/forensics_fits.csv"):
        if (line["table"], line["row"], line["rank"]) == (number, row.name, "1"):
            reproduced = {"where": where, "bytes": float(line["fitted_gb"]) * GB}
    return {"published": published, "reproduced": reproduced}


def _pareto(chosen: argparse.Namespace, program: str, root: Path) -> str:
    """Perplexity of the trained runs against communication, as text and as a figure."""
    # The runs were trained at the family's own sizes, and bytes do not depend on a network.
    other = [name for name in (*CHANGEABLE, "network") if getattr(chosen, name) is not None]
    if other:
        raise UserError(f"--{other[0]} cannot be combined with --pareto, which shows trained runs and their bytes")
    out = chosen.out or Path("pareto.svg")
    if out.suffix not in (".svg", ".png"):
        raise UserError(f"--out {out}: the figure must end in .svg or .png")
    if not out.parent.is_dir():
        raise UserError(f"--out {out} cannot be written: there is no folder {out.parent}")
    from aero.records import finite, write_together
    from aero.report.papers.private_inference import draw_pareto, points
    from aero.report.results import load
    from aero.report.statistics import evidence, gate

    results = load(root, chosen.scale) if chosen.scale else evidence(load(root))
    found, without = points(results, chosen.model, chosen.context, program, chosen.extrapolate)
    if found.empty:
        reasons = "; ".join(sorted(set(without.values()))) or "no run is of this family and context"
        raise UserError(f"nothing to draw for {chosen.model}, T={chosen.context}, scale {results.scale}: {reasons}")
    title = f"{chosen.model}, T={chosen.context}, program {program}"
    drawn = io.BytesIO()
    figure = draw_pareto(found, title, f"evaluation perplexity, scale {results.scale}")
    figure.savefig(drawn, format=out.suffix[1:], dpi=160, facecolor="white", bbox_inches="tight")
    write_together({out: drawn.getvalue()})
    if chosen.json:
        values = {"model": chosen.model, "context": chosen.context, "program": program, "scale": results.scale}
        listed = [point | {"bytes_error": finite(point["bytes_error"])} for point in found.to_dict("records")]
        return json.dumps(values | {"figure": str(out), "points": listed, "left_out": without}, indent=1)
    lines = [f"{title}: perplexity at scale {results.scale}, bytes at sizes that only scales gpu and paper have; {out}"]
    width = found["run"].str.len().max()
    for point in found.itertuples():
        seeds = f"{len(point.seeds)} seed{'s' if len(point.seeds) > 1 else ''}"
        front = "front" if point.front else ""
        line = f"{point.run:{width}}  {point.bytes / GB:8.3f} GB  {point.perplexity:8.3f}  {seeds:7}  {front}"
        lines.append(line.rstrip())
    for reason in dict.fromkeys(without.values()):
        lines.append(f"left out, {reason}: {', '.join(name for name, why in without.items() if why == reason)}")
    if fault := gate(results, "sm-ln-g"):
        lines.append(f"these perplexities are no evidence: {fault}")
    return "\n".join(lines)


def _program(text: str) -> str:
    """The shortest name of the program, which is that of its counts."""
    from aero.two_party.program.optimizations import AS_PUBLISHED, NEEDS, parse_program, program_name

    optimizations, rebased = parse_program(text)
    if text == AS_PUBLISHED:
        raise UserError(
            f"{AS_PUBLISHED} has costs of the printed rows only (results/two_party/fitted*_rows.csv); use as_written"
        )
    for name, other in NEEDS.items():
        if f"+{name}" in text and name not in optimizations:
            raise UserError(f"{text}: {name} has no effect without {other}; add {other}")
    return program_name(optimizations, rebased)


def _network(parameters: Parameters, text: str) -> Network:
    """A network by its name in params.yaml or as "100,80": Mbit/s and ms."""
    from aero.schema import Network

    known = parameters.two_party.networks
    if text in known:
        return known[text]
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?),([0-9]{1,20}(?:\.[0-9]{1,20})?)", text)
    rate, delay = map(float, match.groups()) if match else (0.0, 0.0)
    if not 1e-6 <= rate <= 1e9 or delay > 1e9:
        what = "network out of range" if match else "unknown network"
        raise UserError(
            f"{what}: {cut(text)!r}; give {', '.join(known)} or Mbit/s (above 0) and ms, such as 100,80, up to 1e9 each"
        )
    return Network(bandwidth_mbit=rate, rtt_ms=delay)


def _checks(root: Path, program: str) -> dict[str, float | None]:
    """Largest relative differences seen between estimates and measurements below `root`, by their key in --json; None
    where nothing was measured.

    composition_*: composed from operations, against complete passes (of `program`, or of all programs where there are
    none) of at most `composition_tokens` tokens. latency_model_error: the network model, against passes of small models
    over links of limited rate and delay.
    """
    from aero.records import read_csv
    from aero.two_party.cost.composition import composition_error

    passes: list[Mapping[str, Any]] = []
    for name in ("end_to_end.json", "full_passes.json"):  # of models trained here, fresh or committed; at full size
        paths = [root / folder / "two_party" / name for folder in ("runs", "results")]
        if path := next(filter(Path.is_file, paths), None):
            passes += json.loads(path.read_text(encoding="utf-8"))
    passes = [entry for entry in passes if entry.get("program") == program] or passes
    shaped = read_csv(root / "results/two_party/shaped.csv")
    errors = [abs(float(line["error"])) for line in shaped if line.get("error")]
    return {
        "composition_error": composition_error(passes, "bytes"),
        "composition_seconds_error": composition_error(passes, "seconds"),
        "composition_messages_error": composition_error(passes, "messages"),
        "composition_tokens": max((entry["tokens"] for entry in passes if "tokens" in entry), default=None),
        "latency_model_error": max(filter(math.isfinite, errors), default=None),
    }


def _described(cost: PassCost, network: Network, name: str, checks: Checks) -> list[str]:
    """The cost of one architecture in words."""
    parts = ", ".join(f"{part} {amount / GB:.3f}" for part, amount in cost.by_part.items())
    slowest = sorted(cost.seconds_by_kind.items(), key=lambda pair: -pair[1])
    seconds = ", ".join(f"{kind} {amount:.0f}" for kind, amount in slowest if amount >= 0.5)
    rounds = "not measured" if math.isnan(cost.rounds) else f"{cost.rounds:.0f}"
    return [
        f"{cost.architecture}, {_sizes_text(cost.sizes)}, program {cost.program}: one private forward pass",
        f"  bytes      {cost.bytes / GB:.3f} GB in both directions ({cost.bytes_client / GB:.3f} by the client)",
        f"             {parts}",
        f"  messages   {cost.messages:.0f}, rounds {rounds}",
        f"  computing  {_duration(cost.seconds)} on loopback, s: {seconds}",
        f"  latency    {_duration(cost.latency(network))} on {_link(network, name)}",
        *_accuracy(cost, network, checks),
    ]


def _accuracy(cost: PassCost, network: Network, checks: Checks) -> Iterator[str]:
    """Lines about what was measured, and how far the answer may be off."""
    between, beyond = len(cost.interpolated), len(cost.extrapolated)
    known = f"{cost.operations - between - beyond} of {cost.operations} kinds of operation measured at these sizes"
    if between:
        known += f", {between} estimated from neighbouring sizes"
    if cost.timed_by_law:
        known += f"; the time of {len(cost.timed_by_law)} estimated from other sizes"
    yield f"  measured   {known}"
    bounds = {
        "bytes": cost.bytes_error,
        "rounds": cost.rounds_error,
        "computing": cost.seconds_error,
        "latency": cost.latency_error(network),
    }
    if any(bounds.values()):
        said = ", ".join(f"{what} {_percent(error)}" for what, error in bounds.items())
        yield f"  error      of the estimates: {said}"
        if math.isinf(cost.seconds_error) and not cost.extrapolated:
            yield "             (unknown: seconds or rounds of some operations were not measured)"
    seen = {
        "bytes": checks["composition_error"],
        "seconds": checks["composition_seconds_error"],
        "messages": checks["composition_messages_error"],
    }
    off = ", ".join(f"{100 * value:.1f} % in {what}" for what, value in seen.items() if value is not None)
    if off:
        tokens = f" (up to {checks['composition_tokens']} tokens)" if checks["composition_tokens"] is not None else ""
        yield f"  checked    complete passes{tokens} differ from composed ones by at most {off}"
    once = cost.seconds_timed_once / cost.seconds if cost.seconds else 0.0
    if once >= 0.005:
        yield f"             {100 * once:.0f} % of the computing time rests on a single run"
    if (latency := checks["latency_model_error"]) is not None:
        yield f"             complete passes of small models over slow links: within {100 * latency:.1f} % of the model"
    if cost.extrapolated:
        yield f"  EXTRAPOLATED beyond what was measured, error unknown: {', '.join(cost.extrapolated)}"


def _beside_published(
    beside: Mapping[str, Any], stock: PassCost, cost: PassCost, network: Network, name: str, checks: Checks
) -> list[str]:
    """A printed row with its reproduction and the costs of stock SPU and of the optimised program."""
    from aero.two_party.program.optimizations import linear_ffn

    columns = [
        (title, {"bytes, GB": row["bytes"] / GB, f"latency on {name}, s": row.get("latency_s")})
        for title, row in beside.items()
        if row
    ]
    columns += [("stock SPU", _column(stock, network, name)), ("optimised", _column(cost, network, name))]
    lines = [
        f"{cost.architecture}, {_sizes_text(cost.sizes)}: one private forward pass",
        *_side_by_side(columns),
        "optimised:",
        *_accuracy(cost, network, checks),
        f"published: {beside['published']['where']}, on its authors' network; here: {_link(network, name)}",
    ]
    if beside["reproduced"]:
        lines.append(f"reproduced: {beside['reproduced']['where']}")
    if linear_ffn(parse(cost.architecture)):
        lines.append("fusing or pruning a linear FFN saves no bytes when optimised: it is folded into its neighbours")
    return lines


def _column(cost: PassCost, network: Network, name: str) -> dict[str, float]:
    """What a table shows of a cost."""
    return {
        "bytes, GB": cost.bytes / GB,
        **{f"  {part}": amount / GB for part, amount in cost.by_part.items()},
        "messages": cost.messages,
        "rounds": cost.rounds,
        "computing, s": cost.seconds,
        f"latency on {name}, s": cost.latency(network),
    }


def _side_by_side(columns: Sequence[tuple[str, Mapping[str, float | None]]], ratio: bool = False) -> list[str]:
    """A table of titled columns, the last one complete; ratio: one more column, the first over the second."""
    lines = [["", *(title for title, _ in columns), *(["ratio"] if ratio else [])]]
    for label in columns[-1][1]:
        digits = 3 if label.startswith(("bytes", "  ")) else 0
        values = [column.get(label) for _, column in columns]
        cells = ["" if value is None else f"{value:.{digits}f}" for value in values]
        if ratio:
            cells.append(f"{values[0] / values[1]:.2f}" if values[1] else "–")
        lines.append([label, *cells])
    width, *widths = (max(map(len, column)) for column in zip(*lines, strict=True))
    return ["  ".join([label.ljust(width), *map(str.rjust, cells, widths)]).rstrip() for label, *cells in lines]


def as_json(cost: PassCost, network: Network, checks: Checks) -> dict[str, Any]:
    """Everything about a cost; null where unknown, ten digits where a number is not whole."""
    of_sizes = ("context", "layers", "heads", "width", "ffn_width", "vocabulary")
    of_cost = ("program", "bytes", "bytes_client", "bytes_server", "messages", "rounds", "seconds")
    of_cost += ("bytes_error", "rounds_error", "seconds_error", "seconds_by_kind", "seconds_timed_once")
    of_cost += ("operations", "timed_by_law", "interpolated", "extrapolated")
    found = {"architecture": cost.architecture, "model": cost.sizes.family}
    found |= {key: getattr(cost.sizes, key) for key in of_sizes}
    found |= {key: getattr(cost, key) for key in of_cost} | {"bytes_by_part": cost.by_part, "network": vars(network)}
    found |= {"latency_s": cost.latency(network), "latency_error": cost.latency_error(network)}
    return _rounded(found | checks)


def _rounded(value: Any) -> Any:
    from aero.records import finite

    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if not isinstance(value, float) or value.is_integer():
        return value
    return finite(float(f"{value:.10g}"))


def _link(network: Network, name: str) -> str:
    return f"{name} ({network.bandwidth_mbit:g} Mbit/s, {network.rtt_ms:g} ms)"


def _sizes_text(sizes: Sizes) -> str:
    named = f"L={sizes.layers}, H={sizes.heads}, d={sizes.width}, V={sizes.vocabulary}"
    return f"{sizes.family} ({named}), T={sizes.context}"


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    return f"±{100 * value:.1f} %" if value else "0"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown (not measured)"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds:.0f} s ({seconds / 60:.1f} min)"
