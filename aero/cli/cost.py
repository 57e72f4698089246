"""`aero cost`: the cost of a private forward pass of one architecture, of two side by side, or of all trained runs."""

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

if TYPE_CHECKING:  # `aero --help` reads this module for its arguments only
    from aero.config import Parameters
    from aero.two_party.cost.composition import PassCost
    from aero.two_party.cost.counts import Sizes

GB = 1e9


def add_arguments(cost: argparse.ArgumentParser) -> None:
    """The arguments of `aero cost`."""
    cost.add_argument("architecture", nargs="?", help="in the papers' notation, for example SM+ScFuFFNi_3")
    cost.add_argument("--model", default="gpt2", help=f"model family: {', '.join(FAMILIES)} (default gpt2)")
    cost.add_argument("--context", type=int, default=128, help="tokens of the prompt, T (default 128)")
    cost.add_argument(
        "--network", help="wan (default), lan or a name under two_party.networks in params.yaml, or MBIT,RTT_MS: 300,20"
    )
    cost.add_argument(
        "--program",
        default="tuned",
        help="tuned (default, optimised), as_written (stock SPU), or with one optimization added or removed: "
        "tuned-lattice_products, as_written+one_qkv",
    )
    for name, what in CHANGEABLE.items():
        cost.add_argument(f"--{name}", type=int, help=f"{what}, overrides the family's published value")
    cost.add_argument("--compare", nargs=2, metavar=("A", "B"), help="two architectures side by side")
    cost.add_argument("--pareto", action="store_true", help="perplexity against communication of all trained runs")
    cost.add_argument("--scale", help="scale of the trainings for --pareto (default: params.yaml's)")
    cost.add_argument("--out", type=Path, help="figure of --pareto, .svg or .png (default pareto.svg)")
    cost.add_argument(
        "--extrapolate", action="store_true", help="extrapolate beyond the measured sizes and mark the answer"
    )
    cost.add_argument("--json", action="store_true", help="everything, as JSON")


def answer(chosen: argparse.Namespace, parameters: Parameters, root: Path) -> str:
    """The text of `aero cost`, from the results below `root`. UserError for wrong input and what was not measured."""
    asked = [chosen.architecture is not None, chosen.compare is not None, chosen.pareto]
    if sum(asked) != 1:
        raise UserError("give one architecture, or --compare A B, or --pareto; see `aero cost --help`")
    if not chosen.pareto and (chosen.out or chosen.scale):
        raise UserError(f"{'--out' if chosen.out else '--scale'} belongs to --pareto")
    chosen.program = _program(chosen.program)
    if chosen.pareto:
        return _pareto(chosen, parameters, root)
    from aero.two_party.cost.composition import estimate
    from aero.two_party.cost.cost_model import measured_operations
    from aero.two_party.cost.counts import published_sizes

    name = "wan" if chosen.network is None else chosen.network
    network = _network(parameters, name)
    changes = {key: getattr(chosen, key) for key in CHANGEABLE if getattr(chosen, key) is not None}
    sizes = published_sizes(chosen.model, chosen.context, **changes)
    operations = measured_operations(parameters.two_party.variant(), root)
    costs = [
        estimate(_parsed(text), sizes, chosen.program, operations, chosen.extrapolate)
        for text in (chosen.compare or [chosen.architecture])
    ]
    checks = Checks.of(root, chosen.program)
    if chosen.json:
        values = [as_json(cost, network, checks) for cost in costs]
        return json.dumps(values if chosen.compare else values[0], indent=1, ensure_ascii=False, allow_nan=False)
    if chosen.compare:
        return "\n".join(compared(costs, network, name, checks))
    return "\n".join(described(costs[0], network, name, checks))


def _pareto(chosen: argparse.Namespace, parameters: Parameters, root: Path) -> str:
    # The runs were trained at the family's own sizes, and bytes do not depend on a network.
    other = [name for name in (*CHANGEABLE, "network") if getattr(chosen, name) is not None]
    if other:
        raise UserError(f"--{other[0]} does not go with --pareto, which shows trained runs and their bytes")
    out = chosen.out or Path("pareto.svg")
    if out.suffix not in (".svg", ".png"):
        raise UserError(f"--out {out}: the figure must end in .svg or .png")
    if not out.parent.is_dir():
        raise UserError(f"--out {out} cannot be written: there is no folder {out.parent}")
    if chosen.scale:
        parameters = parameters.at_scale(chosen.scale)
    from aero.cli.pareto import pareto

    return pareto(chosen, parameters, root, out)


def _parsed(text: str) -> Architecture:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _program(text: str) -> str:
    """The shortest name of the program, which is that of its counts."""
    from aero.two_party.program.optimizations import AS_PUBLISHED, parse_program, program_name

    try:
        optimizations, rebased = parse_program(text)
    except ValueError as error:
        raise UserError(str(error)) from None
    if text == AS_PUBLISHED:
        raise UserError(
            f"{AS_PUBLISHED} has costs of the printed rows only (results/two_party/fitted*_rows.csv); take as_written"
        )
    if "+absorbed_ffn" in text and "absorbed_ffn" not in optimizations:
        raise UserError(f"{text}: absorbed_ffn does nothing without folded_ffn; add that as well")
    if "+fewer_squarings" in text and "fewer_squarings" not in optimizations:
        raise UserError(f"{text}: fewer_squarings does nothing beside split_exponential; leave that out")
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


@dataclass(frozen=True)
class Checks:
    """Largest relative differences seen between estimates and measurements; None where nothing was measured.

    bytes, seconds, messages: composed from operations, against complete passes of at most `tokens` tokens. latency: the
    network model, against passes of small models over links of limited rate and delay.
    """

    bytes: float | None
    seconds: float | None
    messages: float | None
    tokens: int | None
    latency: float | None = None

    @classmethod
    def of(cls, root: Path, program: str) -> Checks:
        """From the passes of `program` below `root`, or of all programs where there are none."""
        from aero.two_party.cost.composition import composition_error

        passes = _complete_passes(root)
        passes = [entry for entry in passes if entry.get("program") == program] or passes
        lengths = [entry.get("tokens") for entry in passes]
        tokens = max((length for length in lengths if isinstance(length, int)), default=None)
        errors = (composition_error(passes, quantity) for quantity in ("bytes", "seconds", "messages"))
        return cls(*errors, tokens, _latency_error(root))


def _latency_error(root: Path) -> float | None:
    try:
        with (root / "results/two_party/shaped.csv").open(encoding="utf-8", newline="") as file:
            errors = [abs(float(line["error"])) for line in csv.DictReader(file) if line["error"]]
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


def described(cost: PassCost, network: Network, name: str, checks: Checks) -> list[str]:
    """The cost of one architecture in words."""
    parts = ", ".join(f"{part} {amount / GB:.3f}" for part, amount in cost.by_part.items())
    slowest = sorted(cost.seconds_by_kind.items(), key=lambda pair: -pair[1])
    seconds = ", ".join(f"{kind} {amount:.0f}" for kind, amount in slowest if amount >= 0.5)
    rounds = "not measured" if math.isnan(cost.rounds) else f"{cost.rounds:.0f}"
    link = f"{name} ({network.bandwidth_mbit:g} Mbit/s, {network.rtt_ms:g} ms)"
    return [
        f"{cost.architecture}, {_sizes_text(cost.sizes)}, program {cost.program}: one private forward pass",
        f"  bytes      {cost.bytes / GB:.3f} GB in both directions ({cost.bytes_client / GB:.3f} by the client)",
        f"             {parts}",
        f"  messages   {cost.messages:.0f}, rounds {rounds}",
        f"  computing  {_duration(cost.seconds)} on loopback, s: {seconds}",
        f"  latency    {_duration(cost.latency(network))} on {link}",
        *_accuracy(cost, network, checks),
    ]


def _accuracy(cost: PassCost, network: Network, checks: Checks) -> Iterable[str]:
    """Lines about errors and what was measured."""
    bounds = {
        "bytes": cost.bytes_error,
        "rounds": cost.rounds_error,
        "seconds": cost.seconds_error,
        "latency": cost.latency_error(network),
    }
    errors = ", ".join(f"{what} {_percent(error)}" for what, error in bounds.items()) + " by interpolation"
    yield f"  error      {errors if any(bounds.values()) else 'nothing interpolated'}"
    seen = {"bytes": checks.bytes, "seconds": checks.seconds, "messages": checks.messages}
    seen = {what: value for what, value in seen.items() if value is not None}
    if seen:
        tokens = f" of at most {checks.tokens} tokens" if checks.tokens is not None else ""
        off = ", ".join(f"{what} by up to {100 * value:.1f} %" for what, value in seen.items())
        yield f"  composed   differed from complete passes{tokens} in {off}"
    once = cost.seconds_timed_once / cost.seconds if cost.seconds else 0.0
    if once >= 0.005:
        yield f"  timed      once: {100 * once:.0f} % of the seconds"
    if checks.latency is not None:
        yield f"  model      latency within {100 * checks.latency:.1f} % of passes of small models over limited links"
    count = len(cost.interpolated) + len(cost.extrapolated)
    known = f"{cost.operations - count} of {cost.operations} operations measured at these shapes"
    if cost.timed_by_law:
        known += f", {len(cost.timed_by_law)} of them with interpolated seconds"
    if cost.interpolated:
        known += f", {len(cost.interpolated)} interpolated"
    if not cost.by_rule:
        known += "; counted by tracing, as these sizes or this program have no rule in counts.json"
    yield f"  from       {known}"
    if cost.extrapolated:
        yield f"  EXTRAPOLATED beyond what was measured, no bound: {', '.join(cost.extrapolated)}"


def compared(costs: Sequence[PassCost], network: Network, name: str, checks: Checks) -> list[str]:
    """Two architectures side by side, and the ratio of the first to the second."""
    first, second = costs
    lines: list[tuple[str, float, float, str]] = [
        ("bytes, GB", first.bytes / GB, second.bytes / GB, ".3f"),
        *((f"  {part}", first.by_part[part] / GB, second.by_part[part] / GB, ".3f") for part in first.by_part),
        ("messages", first.messages, second.messages, ".0f"),
        ("rounds", first.rounds, second.rounds, ".0f"),
        ("computing, s", first.seconds, second.seconds, ".0f"),
        (f"latency on {name}, s", first.latency(network), second.latency(network), ".0f"),
    ]
    width = max(9, *(len(cost.architecture) for cost in costs))
    left = max(len(line[0]) for line in lines)
    table = [f"{'':{left}}  {first.architecture:>{width}}  {second.architecture:>{width}}  ratio"]
    for label, one, other, digits in lines:
        ratio = f"{one / other:.2f}" if other else "–"
        table.append(f"{label:{left}}  {one:>{width}{digits}}  {other:>{width}{digits}}  {ratio:>5}")
    head = f"{_sizes_text(first.sizes)}, program {first.program}: one private forward pass"
    said = [f"{cost.architecture}:\n" + "\n".join(_accuracy(cost, network, checks)) for cost in costs]
    return [head, *table, *said]


def as_json(cost: PassCost, network: Network, checks: Checks) -> dict[str, Any]:
    """Everything about a cost; null where unknown."""
    sizes = cost.sizes
    found: dict[str, Any] = {"architecture": cost.architecture, "model": sizes.family}
    found |= {key: getattr(sizes, key) for key in ("context", "layers", "heads", "width", "ffn_width", "vocabulary")}
    found |= {key: getattr(cost, key) for key in ("program", "bytes", "bytes_client", "bytes_server")}
    found["bytes_by_part"] = dict(cost.by_part)
    found |= {key: getattr(cost, key) for key in ("messages", "rounds", "seconds")}
    found["seconds_by_kind"] = dict(cost.seconds_by_kind)
    found["network"] = {"bandwidth_mbit": network.bandwidth_mbit, "rtt_ms": network.rtt_ms}
    found["latency_s"] = cost.latency(network)
    found |= {key: getattr(cost, key) for key in ("bytes_error", "rounds_error", "seconds_error")}
    found["latency_error"] = cost.latency_error(network)
    found["composition_error"] = checks.bytes
    found["composition_seconds_error"] = checks.seconds
    found["composition_messages_error"] = checks.messages
    found["composition_tokens"] = checks.tokens
    found["latency_model_error"] = checks.latency
    found |= {key: getattr(cost, key) for key in ("seconds_timed_once", "operations")}
    found |= {key: list(getattr(cost, key)) for key in ("timed_by_law", "interpolated", "extrapolated")}
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in found.items()
    }


def _sizes_text(sizes: Sizes) -> str:
    named = f"L={sizes.layers}, H={sizes.heads}, d={sizes.width}, V={sizes.vocabulary}"
    return f"{sizes.family} ({named}), T={sizes.context}"


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    return f"±{100 * value:.1f} %" if value else "0"


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "unknown (rounds were not measured)"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds:.0f} s ({seconds / 60:.1f} min)"
