"""What `aero cost` says: the cost of one architecture, two side by side, and perplexity against communication."""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.architecture import Architecture, parse
from aero.errors import UserError, cut
from aero.families import CHANGEABLE, FAMILIES
from aero.two_party.cost.network import Network

if TYPE_CHECKING:  # `aero --help` reads this module for its arguments alone
    from aero.config import Parameters
    from aero.two_party.cost.cost_model import PassCost
    from aero.two_party.cost.counts import Sizes

GB = 1e9


def add_arguments(cost: argparse.ArgumentParser) -> None:
    """The arguments of `aero cost`."""
    cost.add_argument(
        "architecture",
        nargs="?",
        help="in the papers' notation, for example SM+ScFuFFNi_3; all of it is in docs/reading_the_report.md",
    )
    cost.add_argument("--model", default="gpt2", help=f"model family: {', '.join(FAMILIES)} (default gpt2)")
    cost.add_argument("--context", type=int, default=128, help="tokens of the prompt, T (default 128)")
    cost.add_argument(
        "--network", help="wan (default), lan or another name of two_party.networks, or MBIT,RTT_MS: 300,20"
    )
    cost.add_argument(
        "--program",
        default="tuned",
        help="tuned (default), as_written, or one saving more or less: tuned-lattice_products, as_written+one_qkv",
    )
    for name, what in CHANGEABLE.items():
        cost.add_argument(f"--{name}", type=int, help=f"{what}, if not as published for the family")
    cost.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two architectures side by side")
    cost.add_argument("--pareto", action="store_true", help="perplexity against communication of all trained runs")
    cost.add_argument("--scale", help="scale of the trainings for --pareto (default: params.yaml's)")
    cost.add_argument("--out", type=Path, help="figure of --pareto, .svg or .png (default pareto.svg)")
    cost.add_argument("--extrapolate", action="store_true", help="answer beyond what was measured too, and say so")
    cost.add_argument("--json", action="store_true", help="everything, as JSON")


def answer(chosen: argparse.Namespace, parameters: Parameters, root: Path) -> str:
    """The text of `aero cost`, from the results below `root`. UserError for wrong input and what was not measured."""
    asked = [chosen.architecture is not None, chosen.compare is not None, chosen.pareto]
    if sum(asked) != 1:
        raise UserError("give one architecture, or --compare A B, or --pareto; `aero cost --help` says what there is")
    if not chosen.pareto and (chosen.out or chosen.scale):
        raise UserError(f"{'--out' if chosen.out else '--scale'} belongs to --pareto")
    chosen.program = _program(chosen.program)
    if chosen.pareto:
        # The runs were trained at the family's own sizes, and bytes do not depend on a network.
        other = [name for name in (*CHANGEABLE, "network") if getattr(chosen, name) is not None]
        if other:
            raise UserError(f"--{other[0]} does not go with --pareto, which shows trained runs and their bytes")
        out = _figure_path(chosen.out)
        if chosen.scale:
            parameters = parameters.at_scale(chosen.scale)
        from aero.cli.pareto import pareto

        return pareto(chosen, parameters, root, out)
    from aero.two_party.cost.cost_model import (
        composition_error,
        composition_messages_error,
        composition_seconds_error,
        estimate,
        measured_operations,
    )

    name = "wan" if chosen.network is None else chosen.network
    network = _network(parameters, name)
    sizes = _sizes(chosen)
    operations = measured_operations(parameters.two_party.variant(), root)
    costs = [
        estimate(_parsed(text), sizes, chosen.program, operations, chosen.extrapolate)
        for text in (chosen.compare or [chosen.architecture])
    ]
    passes = _complete_passes(root)
    passes = [entry for entry in passes if entry.get("program") == chosen.program] or passes
    errors = (composition_error, composition_seconds_error, composition_messages_error)
    composed = Composed(*(error(passes) for error in errors), _longest(passes), _latency_error(root))
    if chosen.json:
        values = [as_json(cost, network, composed) for cost in costs]
        return json.dumps(values if chosen.compare else values[0], indent=1, ensure_ascii=False, allow_nan=False)
    if chosen.compare:
        return "\n".join(compared(costs, network, name, composed))
    return "\n".join(described(costs[0], network, name, composed))


def _figure_path(out: Path | None) -> Path:
    """Before what draws it is imported, which takes seconds."""
    out = out or Path("pareto.svg")
    if out.suffix not in (".svg", ".png"):
        raise UserError(f"--out {out}: the figure must end in .svg or .png")
    if not out.parent.is_dir():
        raise UserError(f"--out {out} cannot be written: there is no folder {out.parent}")
    return out


def _parsed(text: str) -> Architecture:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _program(text: str) -> str:
    """The name that counts are kept by, before anything is traced for it, which takes a minute."""
    from aero.two_party.program.optimizations import AS_PUBLISHED, parse_program, program_name

    try:
        found = program_name(*parse_program(text))
    except ValueError as error:
        raise UserError(str(error)) from None
    if text == AS_PUBLISHED:
        raise UserError(
            f"{AS_PUBLISHED} has costs of the printed rows alone (results/two_party/fitted*_rows.csv); take as_written"
        )
    if "+absorbed_ffn" in text and "absorbed_ffn" not in parse_program(text)[0]:
        raise UserError(f"{text}: absorbed_ffn does nothing without folded_ffn; add that as well")
    if "+fewer_squarings" in text and "fewer_squarings" not in parse_program(text)[0]:
        raise UserError(f"{text}: fewer_squarings does nothing beside split_exponential; leave that out")
    return found


def _sizes(chosen: argparse.Namespace) -> Sizes:
    from aero.two_party.cost.counts import published_sizes

    changes = {name: getattr(chosen, name) for name in CHANGEABLE if getattr(chosen, name) is not None}
    return published_sizes(chosen.model, chosen.context, **changes)


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


@dataclass(frozen=True)
class Composed:
    """By how much compositions have been off complete passes at most, relative; None where no pass tells."""

    bytes: float | None
    seconds: float | None
    messages: float | None
    """A pass and its operations make the protocol's correlations anew at different times."""
    tokens: int | None
    """Of the longest of those passes."""
    latency: float | None = None
    """By how much the latency model has been off passes of small models over shaped links."""


def _longest(passes: Iterable[Mapping[str, Any]]) -> int | None:
    lengths = (entry.get("tokens") for entry in passes)
    return max((length for length in lengths if isinstance(length, int)), default=None)


def _latency_error(root: Path) -> float | None:
    try:
        with (root / "results/two_party/shaped.csv").open(encoding="utf-8", newline="") as file:
            errors = [abs(float(line["error"])) for line in csv.DictReader(file) if line["error"]]
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        return None
    return max(filter(math.isfinite, errors), default=None)


def _complete_passes(root: Path) -> list[Mapping[str, Any]]:
    """Those of models trained here, fresh ones if there are any, and those at the papers' own size."""
    passes: list[Mapping[str, Any]] = []
    for name in ("end_to_end.json", "full_passes.json"):
        for folder in ("runs", "results"):
            try:
                found = json.loads((root / folder / "two_party" / name).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                continue
            passes += [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
            break
    return passes


def described(cost: PassCost, network: Network, name: str, composed: Composed) -> list[str]:
    """The cost of one architecture in words."""
    parts = ", ".join(f"{part} {amount / GB:.3f}" for part, amount in cost.by_part.items())
    slowest = sorted(cost.seconds_by_kind.items(), key=lambda pair: -pair[1])
    seconds = ", ".join(f"{kind} {amount:.0f}" for kind, amount in slowest if amount >= 0.5)
    return [
        f"{cost.architecture}, {_sizes_text(cost.sizes)}, program {cost.program}: one private forward pass",
        f"  bytes      {cost.bytes / GB:.3f} GB in both directions ({cost.bytes_client / GB:.3f} by the client)",
        f"             {parts}",
        f"  messages   {cost.messages:.0f}, rounds {_rounds(cost.rounds)}",
        f"  computing  {_duration(cost.seconds)} on loopback, s: {seconds}",
        f"  latency    {_duration(cost.latency(network))} on {name} ({network.bandwidth_mbit:g} Mbit/s, "
        f"{network.rtt_ms:g} ms)",
        *_errors(cost, network, composed),
    ]


def _errors(cost: PassCost, network: Network, composed: Composed) -> list[str]:
    count = len(cost.interpolated) + len(cost.extrapolated)
    known = f"{cost.operations - count} of {cost.operations} operations measured at these shapes"
    if cost.timed_by_law:
        known += f", {len(cost.timed_by_law)} of them without seconds, which are interpolated"
    if cost.interpolated:
        known += f", {len(cost.interpolated)} interpolated"
    if not cost.counts_kept:
        known += "; counted by tracing, which is slow, as no counts are kept for these sizes and this program"
    bounds = {
        "bytes": cost.bytes_error,
        "rounds": cost.rounds_error,
        "seconds": cost.seconds_error,
        "latency": cost.latency_error(network),
    }
    by_law = ", ".join(f"{what} {_percent(error)}" for what, error in bounds.items()) + " by interpolation"
    if not any(bounds.values()):
        by_law = "nothing interpolated"
    off = [
        f"{what} by up to {100 * value:.1f} %"
        for what, value in (
            ("bytes", composed.bytes),
            ("seconds", composed.seconds),
            ("messages", composed.messages),
        )
        if value is not None
    ]
    lines = [f"  error      {by_law}"]
    if off:
        tokens = f" (of at most {composed.tokens} tokens)" if composed.tokens is not None else ""
        lines.append(f"  composed   differed from complete passes{tokens} in {', '.join(off)}")
    once = cost.seconds_timed_once / cost.seconds if cost.seconds else 0.0
    if once >= 0.005:
        lines.append(f"  timed      once: {100 * once:.0f} % of the seconds, which no complete pass was held against")
    held = "latency was held against no pass"
    if composed.latency is not None:
        held = f"latency was within {100 * composed.latency:.1f} % of passes of small models over shaped links"
    rounds = "rounds of large operations are taken from smaller ones, which have fewer"
    lines += [f"  model      {held}; {rounds}", f"  from       {known}"]
    if cost.extrapolated:
        lines.append(f"  EXTRAPOLATED beyond what was measured, no bound: {', '.join(cost.extrapolated)}")
    return lines


def compared(costs: Sequence[PassCost], network: Network, name: str, composed: Composed) -> list[str]:
    """Two architectures side by side, and the first over the second."""
    first, second = costs
    lines: list[tuple[str, float, float, str]] = [
        ("bytes, GB", first.bytes / GB, second.bytes / GB, ".3f"),
        *((f"  {part}", first.by_part[part] / GB, second.by_part[part] / GB, ".3f") for part in first.by_part),
        ("messages", first.messages, second.messages, ".0f"),
        ("rounds", first.rounds, second.rounds, ".0f"),
        ("computing, s", first.seconds, second.seconds, ".0f"),
        (f"latency on {name}, s", first.latency(network), second.latency(network), ".0f"),
    ]
    width = max(len(cost.architecture) for cost in costs)
    width = max(width, 9)
    left = max(len(line[0]) for line in lines)
    table = [f"{'':{left}}  {first.architecture:>{width}}  {second.architecture:>{width}}  ratio"]
    for label, one, other, digits in lines:
        ratio = f"{one / other:.2f}" if other else "–"
        table.append(f"{label:{left}}  {one:>{width}{digits}}  {other:>{width}{digits}}  {ratio:>5}")
    head = f"{_sizes_text(first.sizes)}, program {first.program}: one private forward pass"
    said = [f"{cost.architecture}:\n" + "\n".join(_errors(cost, network, composed)) for cost in costs]
    return [head, *table, *said]


def as_json(cost: PassCost, network: Network, composed: Composed) -> dict[str, Any]:
    """Everything about a cost; null where nothing tells."""
    sizes = cost.sizes
    return {
        "architecture": cost.architecture,
        "model": sizes.family,
        **{key: getattr(sizes, key) for key in ("context", "layers", "heads", "width", "ffn_width", "vocabulary")},
        "program": cost.program,
        "bytes": cost.bytes,
        "bytes_client": cost.bytes_client,
        "bytes_server": cost.bytes_server,
        "bytes_by_part": dict(cost.by_part),
        "messages": cost.messages,
        "rounds": _finite(cost.rounds),
        "seconds": cost.seconds,
        "seconds_by_kind": dict(cost.seconds_by_kind),
        "network": {"bandwidth_mbit": network.bandwidth_mbit, "rtt_ms": network.rtt_ms},
        "latency_s": _finite(cost.latency(network)),
        "bytes_error": _finite(cost.bytes_error),
        "rounds_error": _finite(cost.rounds_error),
        "seconds_error": _finite(cost.seconds_error),
        "latency_error": _finite(cost.latency_error(network)),
        "composition_error": composed.bytes,
        "composition_seconds_error": composed.seconds,
        "composition_messages_error": composed.messages,
        "composition_tokens": composed.tokens,
        "latency_model_error": composed.latency,
        "seconds_timed_once": cost.seconds_timed_once,
        "operations": cost.operations,
        "timed_by_law": list(cost.timed_by_law),
        "interpolated": list(cost.interpolated),
        "extrapolated": list(cost.extrapolated),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _sizes_text(sizes: Sizes) -> str:
    return (
        f"{sizes.family} (L={sizes.layers}, H={sizes.heads}, d={sizes.width}, V={sizes.vocabulary}), T={sizes.context}"
    )


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    return f"±{100 * value:.1f} %" if value else "0"


def _rounds(value: float) -> str:
    return "not measured" if math.isnan(value) else f"{value:.0f}"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown (rounds were not measured)"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds:.0f} s ({seconds / 60:.1f} min)"
