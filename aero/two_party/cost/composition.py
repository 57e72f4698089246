"""The cost of a whole private forward pass, composed from operations: measured rows, and estimates at any size."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aero.architecture import Architecture
from aero.schema import Network
from aero.two_party.cost.cost_model import QUANTITIES, Operations, relative
from aero.two_party.cost.counts import Sizes, counts
from aero.two_party.cost.ledger import DetailedRow, Measurement, as_json, find, session_setup
from aero.two_party.cost.network import wire_bytes
from aero.two_party.cost.packing import EMBEDDINGS, VOCABULARY_PROJECTIONS
from aero.two_party.program.optimizations import parse_program

if TYPE_CHECKING:
    from aero.model import ModelConfig

BLOCKS = "blocks"
PARTS = dict.fromkeys(EMBEDDINGS, "embedding") | dict.fromkeys(VOCABULARY_PROJECTIONS, "vocabulary projection")
"""The part of a model that a kind of operation belongs to; all others are in BLOCKS."""


@dataclass(frozen=True)
class PassCost:
    """Cost of one private forward pass, set-up included, and bounds of its errors.

    wire_bytes: bytes that take time on a link (`network.wire_bytes`). *_error: relative bounds of what is interpolated;
    infinite where something is extrapolated or measured too rarely; the error of composing adds to them. by_part: bytes
    of embedding, blocks, vocabulary projection and set-up. timed_by_law: operations measured without seconds.
    seconds_timed_once: seconds of operations that were timed in a single run. interpolated, extrapolated: operations
    not measured at this size.
    """

    architecture: str
    sizes: Sizes
    program: str
    bytes_client: float
    bytes_server: float
    wire_bytes: float
    messages: float
    rounds: float
    seconds: float
    bytes_error: float
    wire_error: float
    rounds_error: float
    seconds_error: float
    by_part: Mapping[str, float]
    seconds_by_kind: Mapping[str, float]
    operations: int
    timed_by_law: tuple[str, ...]
    seconds_timed_once: float
    interpolated: tuple[str, ...]
    extrapolated: tuple[str, ...]

    @property
    def bytes(self) -> float:
        """Bytes in both directions."""
        return self.bytes_client + self.bytes_server

    def latency(self, network: Network) -> float:
        """Seconds on `network`; NaN if rounds were not measured."""
        return network.latency_seconds(self.seconds, self.wire_bytes, self.rounds)

    def latency_error(self, network: Network) -> float:
        """Relative bound of the latency's error: computing, transfer and rounds may all err to the same side."""
        parts = (
            (self.seconds, self.seconds_error),
            (network.latency_seconds(0.0, self.wire_bytes, 0.0), self.wire_error),
            (network.latency_seconds(0.0, 0.0, self.rounds), self.rounds_error),
        )
        return relative(sum(_absolute(seconds, error) for seconds, error in parts), self.latency(network))


def _absolute(value: float, error: float) -> float:
    """The absolute error; 0 for a value of 0 whatever its relative error."""
    return abs(value) * error if value and error else 0.0


@dataclass
class _Sum:
    """Quantities of counted operations, of both parties and by kind. wire: their `wire_bytes`."""

    total: Counter[str] = field(default_factory=Counter)
    bytes_by_kind: Counter[str] = field(default_factory=Counter)
    seconds_by_kind: Counter[str] = field(default_factory=Counter)

    def add(self, count: int, op: str, values: Mapping[str, float]) -> None:
        sent, kind = (values["bytes_sent_client"], values["bytes_sent_server"]), op.partition("(")[0]
        for name in QUANTITIES:
            self.total[name] += count * values[name]
        self.total["wire"] += count * wire_bytes(op, *sent)
        self.bytes_by_kind[kind] += count * sum(sent)
        self.seconds_by_kind[kind] += count * values["seconds"]

    def sent(self, setup: float = 0.0) -> tuple[float, float]:
        """Bytes of client and server. Keys and first oblivious transfers go both ways in about equal parts."""
        return self.total["bytes_sent_client"] + setup / 2, self.total["bytes_sent_server"] + setup / 2


def estimate(
    architecture: Architecture, sizes: Sizes, program: str, operations: Operations, extrapolate: bool = False
) -> PassCost:
    """The cost of `architecture` at `sizes`, one set-up included.

    UserError if an operation lies outside the measured sizes (unless `extrapolate`), or if the program cannot compute
    the architecture.
    """
    needed = counts(architecture, sizes, program)
    whole, off, setup, timed_once = _Sum(), _Sum(), operations.setup_bytes(needed), 0.0
    listed: dict[str, list[str]] = {"interpolated": [], "extrapolated": [], "timed by law": [], "measured": []}
    for (op, shape), count in needed.items():
        one = operations.cost(op, shape, extrapolate)
        whole.add(count, op, one.values)
        off.add(count, op, {name: _absolute(one.values[name], one.errors[name]) for name in QUANTITIES})
        listed[one.how].append(f"{op} {shape}")
        if one.how == "measured" and operations.measured[op, shape].runs == 1:
            timed_once += count * one.values["seconds"]
    by_part = {"embedding": 0.0, BLOCKS: 0.0, "vocabulary projection": 0.0, "set-up": setup}
    for kind, amount in whole.bytes_by_kind.items():
        by_part[PARTS.get(kind, BLOCKS)] += amount
    (client, server), total, error, wire = whole.sent(setup), whole.total, off.total, whole.total["wire"] + setup
    return PassCost(
        architecture=str(architecture),
        sizes=sizes,
        program=program,
        bytes_client=client,
        bytes_server=server,
        wire_bytes=wire,
        messages=total["messages"],
        rounds=total["rounds"],
        seconds=total["seconds"],
        bytes_error=relative(sum(off.sent()), client + server),
        wire_error=relative(error["wire"], wire),
        rounds_error=relative(error["rounds"], total["rounds"]),
        seconds_error=relative(error["seconds"], total["seconds"]),
        by_part=by_part,
        seconds_by_kind=dict(whole.seconds_by_kind),
        operations=len(needed),
        timed_by_law=tuple(listed["timed by law"]),
        seconds_timed_once=timed_once,
        interpolated=tuple(listed["interpolated"]),
        extrapolated=tuple(listed["extrapolated"]),
    )


def compose(
    architecture: Architecture,
    config: ModelConfig,
    model: str,
    program: str,
    context: int,
    measured: Mapping[tuple[str, str], Measurement],
    networks: Mapping[str, Network],
    places: Sequence[str] = (),
) -> DetailedRow:
    """The row of `architecture`: sum over operations of count x measured cost, plus one set-up.

    networks: must hold "wan" and "lan". places: where the paper prints the row. The provenance is that of the newest
    measurement, with the date and commit of the oldest. ValueError if an operation was not measured.
    """
    from aero.two_party.program.forward import operations

    needed = operations(architecture, config, program, context)
    rows = {operation: find(measured, operation) for operation in needed}
    whole, setup, sources = _Sum(), session_setup(rows.values()), {}
    for operation, count in needed.items():
        whole.add(count, rows[operation].op, vars(rows[operation]))
        source = json.loads(rows[operation].provenance)
        sources[source.get("measured", "")] = source
    ln_f = 0.0
    if config.ln_f:
        optimizations, _ = parse_program(program)
        positions = 1 if "last_row" in optimizations else context
        kind = "normalise" if "folded_norms" in optimizations else "_norm"
        ln_f = next(rows[o].bytes for o in needed if kind in o.kind and o.shapes[0][0] == positions)
    oldest, newest = sources[min(sources)], sources[max(sources)]
    source = newest | {"measured_first": oldest.get("measured"), "commit_first": oldest.get("commit")}
    source.pop("computation", None)
    (client, server), total = whole.sent(setup), whole.total
    of_link = total["seconds"], total["wire"] + setup, total["rounds"]
    by_bytes, by_seconds = whole.bytes_by_kind, whole.seconds_by_kind
    return DetailedRow(
        architecture=str(architecture),
        model=model,
        context=context,
        program=program,
        bytes=client + server,
        messages=total["messages"],
        rounds=total["rounds"],
        seconds=total["seconds"],
        latency_wan_s=networks["wan"].latency_seconds(*of_link),
        latency_lan_s=networks["lan"].latency_seconds(*of_link),
        method="composed",
        max_logit_error=None,
        bytes_client=client,
        bytes_server=server,
        embedding_bytes=float(sum(by_bytes[kind] for kind in EMBEDDINGS)),
        head_bytes=float(sum(by_bytes[kind] for kind in VOCABULARY_PROJECTIONS)),
        ln_f_bytes=ln_f,
        setup_bytes=setup,
        provenance=as_json(**source),
        backbone_bytes=sum(amount for kind, amount in by_bytes.items() if kind not in PARTS),
        backbone_seconds=sum(amount for kind, amount in by_seconds.items() if kind not in PARTS),
        bytes_by_kind=as_json(**by_bytes),
        seconds_by_kind=as_json(**{kind: round(amount, 4) for kind, amount in by_seconds.items()}),
        places="; ".join(places),
    )


def composition_error(passes: Iterable[Mapping[str, Any]], quantity: str = "bytes") -> float | None:
    """Largest relative difference of a quantity ("bytes", "seconds" or "messages") between complete passes and the sum
    of their operations; None without a pass. passes: the entries of end_to_end.json and full_passes.json."""
    keys = (f"composed_over_measured_{quantity}", "composed_over_measured" if quantity == "bytes" else "")
    ratios = [entry[key] for entry in passes for key in keys if key in entry]
    return max(
        (abs(ratio - 1) for ratio in ratios if isinstance(ratio, float | int) and math.isfinite(ratio)), default=None
    )
