"""`aero cost`: the cost of a private forward pass of one architecture, of two side by side, or of all trained runs.

Without --program, a row that AERO prints is answered as published, reproduced, with stock SPU and optimised.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.architecture import Architecture, parse
from aero.errors import UserError, cut
from aero.families import CHANGEABLE, FAMILIES
from aero.two_party.cost.network import Network

if TYPE_CHECKING:  # `aero --help` reads this module for its arguments only
    from aero.config import Parameters
    from aero.two_party.cost.composition import PassCost
    from aero.two_party.cost.counts import Sizes

GB = 1e9


def add_arguments(cost: argparse.ArgumentParser) -> None:
    cost.add_argument(
        "architecture", nargs="*", metavar="ARCHITECTURE", help="one, in the papers' notation: SM+ScFuFFNi_3"
    )
    cost.add_argument(
        "--model",
        default="gpt2",
        help=f"model family: {', '.join(FAMILIES)} (default gpt2); or, without ARCHITECTURE, "
        "a Hugging Face model's folder or config.json",
    )
    cost.add_argument("--context", type=int, default=128, help="tokens in the prompt, T (default 128)")
    cost.add_argument(
        "--network", help="wan (default), lan or a name under two_party.networks in params.yaml, or MBIT,RTT_MS: 300,20"
    )
    cost.add_argument(
        "--program",
        help="tuned (default, optimised), as_written (stock SPU), or one of them with optimizations: "
        "as_written+one_qkv adds one, tuned-lattice_products leaves one out (names: docs/two_party.md)",
    )
    for name, what in CHANGEABLE.items():
        cost.add_argument(f"--{name}", type=int, help=f"{what}; overrides the family's published value")
    cost.add_argument("--compare", nargs=2, metavar=("A", "B"), help="compare two architectures")
    cost.add_argument("--pareto", action="store_true", help="plot perplexity against communication, all trained runs")
    cost.add_argument("--scale", help="scale of the trainings for --pareto (default: params.yaml's)")
    cost.add_argument("--out", type=Path, help="file for the figure of --pareto, .svg or .png (default pareto.svg)")
    cost.add_argument(
        "--extrapolate", action="store_true", help="extrapolate beyond the measured sizes and mark the answer"
    )
    cost.add_argument("--json", action="store_true", help="print everything as JSON")


def answer(chosen: argparse.Namespace, parameters: Parameters, root: Path) -> str:
    """The text of `aero cost`, from the results below `root`. UserError for wrong input and what was not measured."""
    elsewhere = chosen.model not in FAMILIES and Path(chosen.model).exists()
    if len(chosen.architecture) > 1:
        raise UserError(f"one architecture at a time; for two: aero cost --compare {' '.join(chosen.architecture[:2])}")
    chosen.architecture = next(iter(chosen.architecture), None)
    asked = [chosen.architecture is not None, chosen.compare is not None, chosen.pareto, elsewhere]
    if sum(asked) != 1:
        raise UserError(
            "give one architecture, or --compare A B, or --pareto, or --model FOLDER; see `aero cost --help`"
        )
    if not chosen.pareto and (chosen.out or chosen.scale):
        raise UserError(f"{'--out' if chosen.out else '--scale'} belongs to --pareto")
    default = chosen.program is None and not elsewhere
    chosen.program = _program(chosen.program or "tuned")
    if chosen.pareto:
        return _pareto(chosen, parameters, root)
    from aero.two_party.cost.composition import estimate
    from aero.two_party.cost.cost_model import measured_operations
    from aero.two_party.cost.counts import published_sizes
    from aero.two_party.program.optimizations import linear_ffn

    name = "wan" if chosen.network is None else chosen.network
    network = _network(parameters, name)
    changes = {key: getattr(chosen, key) for key in CHANGEABLE if getattr(chosen, key) is not None}
    if elsewhere:
        chosen.architecture, sizes = _hugging_face(chosen.model, chosen.context, changes)
    else:
        sizes = published_sizes(chosen.model, chosen.context, **changes)
    operations = measured_operations(parameters.two_party.variant(), root)

    def costed(text: str, program: str = chosen.program) -> PassCost:
        return estimate(_parsed(text), sizes, program, operations, chosen.extrapolate)

    costs = [costed(text) for text in (chosen.compare or [chosen.architecture])]
    checks = _checks(root, chosen.program)
    printed = Printed.of(chosen.architecture, sizes) if default and not chosen.compare else None
    stock = costed(chosen.architecture, "as_written") if printed else None
    fitted = printed and Printed.reproduced(root, printed.place)
    if chosen.json:
        values = [as_json(cost, network, checks) for cost in costs]
        if printed:
            values[0]["side_by_side"] = {
                "published": {"where": printed.where, "bytes": printed.gigabytes * GB, "latency_s": printed.seconds},
                "reproduced": fitted and {"where": fitted.where, "bytes": fitted.gigabytes * GB},
                "stock": as_json(stock, network, _checks(root, stock.program)),
                "optimised": dict(values[0]),
            }
        return json.dumps(values if chosen.compare else values[0], indent=1, ensure_ascii=False, allow_nan=False)
    if chosen.compare:
        head = f"{_sizes_text(sizes)}, program {chosen.program}: one private forward pass"
        table = side_by_side([(cost.architecture, cost) for cost in costs], network, name, ratio=True)
        said = [f"{cost.architecture}:\n" + "\n".join(_accuracy(cost, network, checks)) for cost in costs]
        return "\n".join([head, *table, *said])
    (cost,) = costs
    if not printed:
        return "\n".join(described(cost, network, name, checks))
    head = f"{cost.architecture}, {_sizes_text(sizes)}: one private forward pass"
    shown = [("published", printed), ("reproduced", fitted), ("stock SPU", stock), ("optimised", cost)]
    table = side_by_side([(title, one) for title, one in shown if one], network, name)
    said = ["optimised:", *_accuracy(cost, network, checks)]
    said.append(f"published: {printed.where}, on its authors' network; here: {_link(network, name)}")
    if fitted:
        said.append(f"reproduced: {fitted.where}")
    if linear_ffn(_parsed(chosen.architecture)):
        said.append("fusing or pruning a linear FFN saves no bytes when optimised: it is folded into its neighbours")
    return "\n".join([head, *table, *said])


def _hugging_face(path: str, context: int, changes: Mapping[str, int]) -> tuple[str, Sizes]:
    """Architecture and sizes of a folder or config.json."""
    from aero.hf.convert import describe
    from aero.two_party.cost.counts import sizes_of

    if changes:
        raise UserError(f"--{min(changes)} changes a model family; {path} has its own sizes")
    architecture, config = describe(path)
    name = Path(path).resolve()
    return str(architecture), sizes_of((name.parent if name.is_file() else name).name, config, context)


@dataclass(frozen=True)
class Printed:
    """A cost of a row that AERO prints: GB, seconds or None, where it is from, and the row's table and name."""

    gigabytes: float
    seconds: float | None
    where: str
    place: tuple[str, str]

    @classmethod
    def of(cls, text: str, sizes: Sizes) -> Printed | None:
        """Of the row with this architecture and these sizes; None if there is none."""
        from aero.published import load
        from aero.two_party.cost.counts import published_sizes

        if sizes != published_sizes(sizes.family, sizes.context):
            return None
        for table in load("aero").tables.values():
            for row in table.rows if "communication" in table.columns else ():
                setting, amount = table.setting(row), row.cells["communication"].value
                same = setting["architecture"] == text and setting["context"] == sizes.context
                if same and setting["model"] == sizes.family and amount is not None:
                    minutes = row.cells["latency"].value
                    seconds = None if minutes is None else 60 * minutes
                    return cls(amount, seconds, f"AERO, Table {table.number}", (table.number, row.name))
        return None

    @classmethod
    def reproduced(cls, root: Path, place: tuple[str, str]) -> Printed | None:
        """The same row in the one configuration of SPU that fits all published bytes; None without it below `root`."""
        from aero.records import read_csv

        for line in read_csv(root / "results/two_party/forensics_fits.csv"):
            if (line["table"], line["row"], line["rank"]) == (*place, "1"):
                where = "the configuration of SPU that fits all published bytes, docs/communication_fit.md"
                return cls(float(line["fitted_gb"]), None, where, place)
        return None


def _pareto(chosen: argparse.Namespace, parameters: Parameters, root: Path) -> str:
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
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    from aero.records import write_together
    from aero.report import show
    from aero.report.papers.private_inference import draw_pareto, points
    from aero.report.results import load
    from aero.report.statistics import gate

    results = load(root, chosen.scale)
    found, without = points(
        results, parameters, chosen.model, chosen.context, chosen.program, extrapolate=chosen.extrapolate
    )
    if not found:
        reasons = "; ".join(sorted(set(without.values()))) or "no run is of this family and context"
        raise UserError(f"nothing to draw for {chosen.model}, T={chosen.context}, scale {results.scale}: {reasons}")
    title = f"{chosen.model}, T={chosen.context}, program {chosen.program}"
    figure = draw_pareto(found, title, results.scale)
    if out.suffix == ".svg":
        content: str | bytes = show.svg(figure, f"Perplexity against communication: {title}")
    else:
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=160, facecolor="white", bbox_inches="tight")
        content = image.getvalue()
    write_together({out: content})
    if chosen.json:
        values = {"model": chosen.model, "context": chosen.context, "program": chosen.program, "scale": results.scale}
        listed = [vars(point) | {"bytes_error": _finite(point.bytes_error)} for point in found]
        return json.dumps(values | {"figure": str(out), "points": listed, "left_out": without}, indent=1)
    lines = [f"{title}: perplexity at scale {results.scale}, bytes at the published sizes; {out}"]
    width = max(len(point.run) for point in found)
    for point in found:
        seeds = f"{len(point.seeds)} seed{'s' if len(point.seeds) > 1 else ''}"
        mark = "front" if point.front else ""
        lines.append(
            f"{point.run:{width}}  {point.bytes / GB:8.3f} GB  {point.perplexity:8.3f}  {seeds:7}  {mark}".rstrip()
        )
    for reason in dict.fromkeys(without.values()):
        lines.append(f"left out, {reason}: {', '.join(name for name, why in without.items() if why == reason)}")
    if fault := gate(results, "sm-ln-g"):
        lines.append(f"these perplexities are no evidence: {fault}")
    return "\n".join(lines)


def _parsed(text: str) -> Architecture:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _program(text: str) -> str:
    """The shortest name of the program, which is that of its counts."""
    from aero.two_party.program.optimizations import AS_PUBLISHED, NEEDS, parse_program, program_name

    try:
        optimizations, rebased = parse_program(text)
    except ValueError as error:
        raise UserError(str(error)) from None
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
    known = parameters.two_party.networks
    if text in known:
        return Network(known[text].bandwidth_mbit, known[text].rtt_ms)
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]{1,20})?),([0-9]{1,20}(?:\.[0-9]{1,20})?)", text)
    rate, delay = map(float, match.groups()) if match else (0.0, 0.0)
    if not 1e-6 <= rate <= 1e9 or delay > 1e9:
        what = "network out of range" if match else "unknown network"
        raise UserError(
            f"{what}: {cut(text)!r}; give {', '.join(known)} or Mbit/s (above 0) and ms, such as 100,80, up to 1e9 each"
        )
    return Network(rate, delay)


def _checks(root: Path, program: str) -> dict[str, float | None]:
    """Largest relative differences seen between estimates and measurements below `root`, by their key in --json; None
    where nothing was measured.

    composition_*: composed from operations, against complete passes (of `program`, or of all programs where there are
    none) of at most `composition_tokens` tokens. latency_model_error: the network model, against passes of small models
    over links of limited rate and delay.
    """
    from aero.two_party.cost.composition import composition_error

    passes = _complete_passes(root)
    passes = [entry for entry in passes if entry.get("program") == program] or passes
    lengths = [entry.get("tokens") for entry in passes]
    return {
        "composition_error": composition_error(passes, "bytes"),
        "composition_seconds_error": composition_error(passes, "seconds"),
        "composition_messages_error": composition_error(passes, "messages"),
        "composition_tokens": max((length for length in lengths if isinstance(length, int)), default=None),
        "latency_model_error": _latency_error(root),
    }


def _latency_error(root: Path) -> float | None:
    from aero.records import read_csv

    try:
        lines = read_csv(root / "results/two_party/shaped.csv")
        errors = [abs(float(line["error"])) for line in lines if line["error"]]
    except (OSError, ValueError, KeyError):
        return None
    return max(filter(math.isfinite, errors), default=None)


def _complete_passes(root: Path) -> list[Mapping[str, Any]]:
    """Passes of models trained here, fresh ones if there are any, and passes at the papers' own size."""
    passes: list[Mapping[str, Any]] = []
    for name in ("end_to_end.json", "full_passes.json"):
        for folder in ("runs", "results"):
            path = root / folder / "two_party" / name
            if path.is_file():
                passes += json.loads(path.read_text(encoding="utf-8"))
                break
    return passes


def described(cost: PassCost, network: Network, name: str, checks: Mapping[str, float | None]) -> list[str]:
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


def _accuracy(cost: PassCost, network: Network, checks: Mapping[str, float | None]) -> Iterable[str]:
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
        yield f"  checked    complete passes{tokens} differed from such sums by at most {off}"
    once = cost.seconds_timed_once / cost.seconds if cost.seconds else 0.0
    if once >= 0.005:
        yield f"             {100 * once:.0f} % of the computing time rests on a single run"
    if (latency := checks["latency_model_error"]) is not None:
        yield f"             passes of small models over slow links took the time within {100 * latency:.1f} %"
    if cost.extrapolated:
        yield f"  EXTRAPOLATED beyond what was measured, error unknown: {', '.join(cost.extrapolated)}"


def side_by_side(
    columns: Sequence[tuple[str, PassCost | Printed]], network: Network, name: str, ratio: bool = False
) -> list[str]:
    """A table with one column for each cost; ratio: a last column, the first over the second."""
    costs = [cost for _, cost in columns]
    parts = next(list(cost.by_part) for cost in costs if not isinstance(cost, Printed))

    def line(
        label: str, digits: int, of: Callable[[PassCost], float], printed: Callable[[Printed], float | None]
    ) -> Any:
        values = [printed(cost) if isinstance(cost, Printed) else of(cost) for cost in costs]
        cells = ["" if value is None else f"{value:.{digits}f}" for value in values]
        return [label, *cells, *([f"{values[0] / values[1]:.2f}" if values[1] else "–"] if ratio else [])]

    lines = [
        ["", *(title for title, _ in columns), *(["ratio"] if ratio else [])],
        line("bytes, GB", 3, lambda cost: cost.bytes / GB, lambda row: row.gigabytes),
        *(line(f"  {part}", 3, lambda cost, part=part: cost.by_part[part] / GB, lambda row: None) for part in parts),
        line("messages", 0, lambda cost: cost.messages, lambda row: None),
        line("rounds", 0, lambda cost: cost.rounds, lambda row: None),
        line("computing, s", 0, lambda cost: cost.seconds, lambda row: None),
        line(f"latency on {name}, s", 0, lambda cost: cost.latency(network), lambda row: row.seconds),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(text.rjust(width) if place else text.ljust(width) for place, (text, width) in pairs).rstrip()
        for pairs in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
    ]


def as_json(cost: PassCost, network: Network, checks: Mapping[str, float | None]) -> dict[str, Any]:
    """Everything about a cost; null where unknown, ten digits where a number is not whole."""
    sizes = cost.sizes
    found: dict[str, Any] = {"architecture": cost.architecture, "model": sizes.family}
    found |= {key: getattr(sizes, key) for key in ("context", "layers", "heads", "width", "ffn_width", "vocabulary")}
    found |= {key: getattr(cost, key) for key in ("program", "bytes", "bytes_client", "bytes_server")}
    found["bytes_by_part"] = dict(cost.by_part)
    found |= {key: getattr(cost, key) for key in ("messages", "rounds", "seconds")}
    found["seconds_by_kind"] = dict(cost.seconds_by_kind)
    found["network"] = vars(network)
    found["latency_s"] = cost.latency(network)
    found |= {key: getattr(cost, key) for key in ("bytes_error", "rounds_error", "seconds_error")}
    found["latency_error"] = cost.latency_error(network)
    found |= checks
    others = ("seconds_timed_once", "operations", "timed_by_law", "interpolated", "extrapolated")
    found |= {key: getattr(cost, key) for key in others}
    return _rounded(found)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if not isinstance(value, float) or value.is_integer():
        return value
    return _finite(float(f"{value:.10g}"))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
