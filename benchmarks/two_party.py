"""Private inference: where `tuned` saves against `as_written`, how costs grow, what limits, what larger models cost.

    python -m benchmarks.two_party [--measure]       # after benchmarks.resources, where its file is missing

--measure runs two real parties on operations of growing context T and width d, a few minutes, and keeps them in
results/bench/two_party_growth.csv; without it the kept ones are read. The rest is arithmetic on them and on
results/two_party/ops.csv, written to results/bench/two_party.json:

rows       bytes and seconds of each part of a forward pass, by architecture and program
resources  what a forward pass spends on ciphertexts, on oblivious transfers and on the link, on every network: SPU's
           kernels of results/two_party/resources.csv (`benchmarks.resources`)
growth     exponents of T, d and L, fitted to what was measured, beside the order that is expected
models     GPT-2 small, and projected from it by the orders in `SCALING` the sizes of two larger models, in its layout
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero.architecture import parse
from aero.config import Parameters, load
from aero.errors import UserError
from aero.published import load as published
from aero.two_party.cost import ledger
from aero.two_party.cost.cost_model import FILES, Operations, measured_operations
from aero.two_party.cost.counts import counts, published_sizes
from aero.two_party.cost.ledger import Measurement
from aero.two_party.cost.network import Network, wire_bytes
from benchmarks import resources, timing

GROWTH = timing.FOLDER / "two_party_growth.csv"
PROGRAMS = ("as_written", "tuned")
DEPTHS = (6, 12, 18)

PARTS = {
    "embedding_slice": "embedding",
    "embedding_lookup": "embedding",
    "linear": "linear layers",
    "lattice_linear": "linear layers",
    "scores": "attention products",
    "mix": "attention products",
    "softmax_plain": "softmax",
    "exponentials": "softmax",
    "inverse_sums": "softmax",
    "scale_rows": "softmax",
    "scale_row_tiles": "softmax",
    "layer_norm": "LayerNorm",
    "normalise": "LayerNorm",
    "normalise_tiles": "LayerNorm",
    "gelu_plain": "activation",
    "gelu_segments": "activation",
    "relu": "activation",
    "vocabulary_slice": "vocabulary projection",
}
"""Which part of a model an operation is of; all others are "scaling"."""


def part_of(op: str) -> str:
    return PARTS.get(op.partition("(")[0], "scaling")


@dataclass(frozen=True)
class Size:
    """A decoder in GPT-2's layout; `stands_for` says whose sizes they are.

    The name is that of the model they are from, which may have another layout and other parameters.
    """

    name: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    stands_for: str

    @property
    def parameters(self) -> int:
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width


GPT2 = Size("125M", 12, 12, 768, 50257, "GPT-2 small")
MODELS = (
    GPT2,
    Size("1B", 16, 8, 2048, 50304, "Pythia-1B's depth, width, heads and vocabulary"),
    Size("8B", 32, 32, 4096, 128256, "Llama-3.1-8B's depth, width, heads and vocabulary"),
)


def per_layer(size: Size) -> float:
    return size.layers / GPT2.layers


def wide(size: Size) -> float:
    return size.width / GPT2.width


def many_heads(size: Size) -> float:
    return size.heads / GPT2.heads


def words(size: Size) -> float:
    return size.vocabulary / GPT2.vocabulary


SCALING = {
    "embedding": ("V", "V d", lambda s: words(s), lambda s: words(s) * wide(s)),
    "linear layers": ("L d", "L d^2", lambda s: per_layer(s) * wide(s), lambda s: per_layer(s) * wide(s) ** 2),
    "attention products": ("L d", "L d", lambda s: per_layer(s) * wide(s), lambda s: per_layer(s) * wide(s)),
    "softmax": ("L H", "L H", lambda s: per_layer(s) * many_heads(s), lambda s: per_layer(s) * many_heads(s)),
    "LayerNorm": ("L d", "L d", lambda s: per_layer(s) * wide(s), lambda s: per_layer(s) * wide(s)),
    "activation": ("L d", "L d", lambda s: per_layer(s) * wide(s), lambda s: per_layer(s) * wide(s)),
    "scaling": ("L d", "L d", lambda s: per_layer(s) * wide(s), lambda s: per_layer(s) * wide(s)),
    "vocabulary projection": ("V", "V d", lambda s: words(s), lambda s: words(s) * wide(s)),
}
"""By part, at a fixed context: what its bytes and its seconds are taken to be in proportion to, as text and as factor
over GPT-2 small."""


def parts_of(operations: Operations, row: str, context: int, program: str, **sizes: int) -> dict[str, dict[str, float]]:
    """By part: bytes both ways, bytes that cost time on a link, rounds and seconds of one forward pass."""
    needed, _ = counts(parse(row), published_sizes("gpt2", context, **sizes), program)
    found: dict[str, dict[str, float]] = {}
    for (op, shape), many in needed.items():
        one = operations.cost(op, shape).values
        part = found.setdefault(part_of(op), dict.fromkeys(("bytes", "wire_bytes", "rounds", "seconds"), 0.0))
        part["bytes"] += many * (one["bytes_sent_client"] + one["bytes_sent_server"])
        part["wire_bytes"] += many * wire_bytes(op, one["bytes_sent_client"], one["bytes_sent_server"])
        part["rounds"] += many * one["rounds"]
        part["seconds"] += many * one["seconds"]
    return found


def rows(operations: Operations, context: int = 128) -> list[dict[str, Any]]:
    return [
        {
            "architecture": row.name,
            "program": program,
            "context": context,
            "parts": parts_of(operations, row.name, context, program),
        }
        for row in published("aero").tables["4"].rows
        for program in PROGRAMS
    ]


def spent(operations: Operations, networks: Mapping[str, Network], path: Path) -> list[dict[str, Any]]:
    """What passes of Table 4's rows spend on which resource, as far as `path` has their operations."""
    measured = [one for one in resources.read(path) if one.variant == operations.variant]
    made = (
        resources.composed(measured, operations, row.name, published_sizes("gpt2", 128), program, networks)
        for row in published("aero").tables["4"].rows
        for program in PROGRAMS
    )
    return [line for line in made if line is not None]


CONTEXTS, WIDTHS = (128, 256, 512), (256, 512, 768, 1024)


def growing() -> list[tuple[str, int, Any, tuple[float, float]]]:
    """(axis, size, operation, expected exponents of bytes and seconds) of every operation that is measured.

    T: one head of width 64, and rows of GPT-2's width. d: 128 positions, and d / 64 heads.
    """
    from aero.two_party.program.operations import Operation

    found = []
    for t in CONTEXTS:
        quadratic, linear = (2.0, 2.0), (1.0, 1.0)
        found += [
            ("T", t, Operation("softmax_plain", ((1, t, t),)), quadratic),
            ("T", t, Operation("exponentials", ((1, t, t),), (("blocks", 16), ("split", 1))), quadratic),
            ("T", t, Operation("scores", ((1, t, 64), (1, t, 64))), quadratic),
            # Of a product the smaller factor and the result are sent: here both have 64 columns.
            ("T", t, Operation("mix", ((1, t, t), (1, t, 64))), (1.0, 2.0)),
            ("T", t, Operation("linear", ((t, 768), (768, 768))), linear),
            ("T", t, Operation("lattice_linear", ((t, 768), (768, 768))), linear),
            ("T", t, Operation("layer_norm", ((t, 768), (768,), (768,))), linear),
            ("T", t, Operation("normalise_tiles", ((t, 768),)), linear),
            ("T", t, Operation("gelu_segments", ((t, 768),)), linear),
            ("T", t, Operation("relu", ((t, 768),)), linear),
        ]
    for d in WIDTHS:
        found += [
            ("d", d, Operation("softmax_plain", ((d // 64, 128, 128),)), (1.0, 1.0)),
            ("d", d, Operation("scores", ((d // 64, 128, 64), (d // 64, 128, 64))), (1.0, 1.0)),
            ("d", d, Operation("linear", ((128, d), (d, d))), (1.0, 2.0)),
            ("d", d, Operation("lattice_linear", ((128, d), (d, d))), (1.0, 2.0)),
            ("d", d, Operation("layer_norm", ((128, d), (d,), (d,))), (1.0, 1.0)),
            ("d", d, Operation("gelu_segments", ((128, d),)), (1.0, 1.0)),
            ("d", d, Operation("relu", ((128, d),)), (1.0, 1.0)),
        ]
    return found


def measure(parameters: Parameters, path: Path) -> None:
    """Run two parties on every operation of `growing`; replaces `path` at once."""
    from aero.two_party.cost.measure import measure as run
    from aero.two_party.runtime.settings import Settings

    wanted = [operation for _, _, operation, _ in growing()]
    settings = Settings(**parameters.two_party.settings())

    def say(one: Measurement) -> None:
        print(f"{one.op} {one.shape}: {one.bytes / 1e6:.1f} MB, {one.seconds:.1f} s", flush=True)

    found = run(wanted, "gpt2", 128, parameters.two_party.variant(), settings, on_measured=say, rounds_runs=0)
    ledger.write(path, sorted(found, key=lambda row: row.key), Measurement)


def growth(measured: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Points and exponents of every kind of operation along T and d; nothing for what was not measured."""
    by_operation = ledger.by_operation(measured)
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for axis, size, operation, (bytes_, seconds) in growing():
        one = by_operation.get((operation.name, operation.shape))
        if one is None:
            continue
        line = lines.setdefault(
            (axis, operation.kind),
            {"axis": axis, "kind": operation.kind, "expected_bytes": bytes_, "expected_seconds": seconds, "points": []},
        )
        line["points"].append({"size": size, "bytes": one.bytes, "seconds": one.seconds, "runs": one.runs})
    for line in lines.values():
        sizes = [point["size"] for point in line["points"]]
        if len(sizes) > 1:
            for name in ("bytes", "seconds"):
                line[f"{name}_exponent"] = round(timing.exponent(sizes, [point[name] for point in line["points"]]), 3)
    return list(lines.values())


def by_depth(operations: Operations) -> list[dict[str, Any]]:
    """Bytes and seconds of a pass by the number of layers, set-up left out, composed from the same operations."""
    lines = []
    for program in PROGRAMS:
        points = []
        for layers in DEPTHS:
            parts = parts_of(operations, "SM+LN+G", 128, program, layers=layers).values()
            points.append({"size": layers} | {name: sum(part[name] for part in parts) for name in ("bytes", "seconds")})
        line: dict[str, Any] = {"program": program, "points": points}
        for name in ("bytes", "seconds"):
            line[f"{name}_exponent"] = round(timing.exponent(DEPTHS, [point[name] for point in points]), 3)
        lines.append(line)
    return lines


def models(lines: Sequence[Mapping[str, Any]], network: Network) -> list[dict[str, Any]]:
    """Projections: every part of a measured pass of GPT-2 small times its factor. Rounds are in proportion to L."""
    found = []
    for line in lines:
        for size in MODELS:
            factors = {part: [scale(size) for scale in SCALING[part][2:]] for part in line["parts"]}
            parts = line["parts"].items()
            bytes_ = sum(part["bytes"] * factors[name][0] for name, part in parts)
            seconds = sum(part["seconds"] * factors[name][1] for name, part in parts)
            crossing = sum(part["wire_bytes"] * factors[name][0] for name, part in parts)
            rounds = sum(part["rounds"] for _, part in parts) * per_layer(size)
            found.append(
                {
                    "model": size.name,
                    "stands_for": size.stands_for,
                    "parameters": size.parameters,
                    "layers": size.layers,
                    "heads": size.heads,
                    "width": size.width,
                    "vocabulary": size.vocabulary,
                    "architecture": line["architecture"],
                    "program": line["program"],
                    "context": line["context"],
                    "bytes": bytes_,
                    "seconds": seconds,
                    "wan_seconds": network.latency_seconds(seconds, crossing, 0.0, rounds),
                }
            )
    return found


def rounded(value: Any) -> Any:
    """All numbers within `value` to six digits."""
    if isinstance(value, Mapping):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_party", description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run the operations of the growth anew")
    parser.add_argument("--folder", type=Path, default=timing.FOLDER)
    chosen = parser.parse_args(arguments)
    parameters = load()
    path = chosen.folder / GROWTH.name
    if chosen.measure:
        measure(parameters, path)
    elif not path.exists():
        path = GROWTH
    measured = ledger.read(path, Measurement) if path.exists() else []
    if any(one.variant != parameters.two_party.variant() for one in measured):
        raise UserError(f"{path} was measured with other protocol settings than params.yaml has; run it with --measure")
    operations = measured_operations(parameters.two_party.variant())
    networks = {name: Network(net.bandwidth_mbit, net.rtt_ms) for name, net in parameters.two_party.networks.items()}
    lines = rows(operations)
    by_resource = spent(operations, networks, resources.PATH)
    sources = [Path(name) for name in FILES if Path(name).is_file()] + ([path] if measured else [])
    sources += [resources.PATH] if resources.PATH.is_file() else []
    values = {
        "rows": lines,
        "resources": by_resource,
        "growth": growth(measured),
        "depth": by_depth(operations),
        "models": models(lines, networks["wan"]),
        "scaling": {part: {"bytes": text[0], "seconds": text[1]} for part, text in SCALING.items()},
        "networks": {name: {"bandwidth_mbit": n.bandwidth_mbit, "rtt_ms": n.rtt_ms} for name, n in networks.items()},
        "sources": {str(source): hashlib.sha256(source.read_bytes()).hexdigest() for source in sources},
    }
    timing.save("two_party", rounded(values), chosen.folder)
    for line in by_resource:
        told = ", ".join(f"{work} {seconds['mean']:.0f} s" for work, seconds in line["seconds"].items())
        print(f"{line['architecture']}, {line['program']}: {told}")


if __name__ == "__main__":
    main()
