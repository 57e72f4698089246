"""The cost of a whole private forward pass, composed from operations measured alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from aero.architecture import Architecture
from aero.model import ModelConfig
from aero.two_party.cost.ledger import DetailedRow, Measurement, Row, as_json, find, session_setup
from aero.two_party.cost.network import Network, wire_bytes
from aero.two_party.cost.packing import EMBEDDINGS, VOCABULARY_PROJECTIONS
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import SHARED
from aero.two_party.program.optimizations import parse_program

Measured = Mapping[tuple[str, str], Measurement]


PARTS = dict.fromkeys(EMBEDDINGS, "embedding") | dict.fromkeys(VOCABULARY_PROJECTIONS, "head")


def compose(
    architecture: Architecture,
    config: ModelConfig,
    model: str,
    program: str,
    context: int,
    measured: Measured,
    networks: Mapping[str, Network],
    provenance: str = "",
) -> Row:
    """The row of `architecture`: sum over operations of count x steady-state cost, plus one set-up.

    networks: must hold "wan" and "lan". ValueError if an operation was not measured.
    """
    counts = operations(architecture, config, program, context)
    client = server = messages = rounds = seconds = wire = 0.0
    setup = session_setup(find(measured, operation) for operation in counts)
    by_part = {"embedding": 0.0, "head": 0.0}
    for operation, count in counts.items():
        one = find(measured, operation)
        client += count * one.bytes_sent_client
        server += count * one.bytes_sent_server
        wire += count * wire_bytes(one.op, one.bytes_sent_client, one.bytes_sent_server)
        messages += count * one.messages
        rounds += count * one.rounds
        seconds += count * one.seconds
        if operation.kind in PARTS:
            by_part[PARTS[operation.kind]] += count * one.bytes
    # Keys and first oblivious transfers go both ways in about equal parts.
    client, server = client + setup / 2, server + setup / 2
    ln_f = 0.0
    if config.ln_f:
        optimizations, _ = parse_program(program)
        rows = 1 if "last_row" in optimizations else context
        kinds = ("normalise", "normalise_tiles") if "folded_norms" in optimizations else ("layer_norm",)
        norms = [o for o in counts if o.kind.removesuffix(SHARED) in kinds and o.shapes[0][0] == rows]
        ln_f = find(measured, norms[0]).bytes
    latency = {name: networks[name].latency_seconds(seconds, wire + setup, 0.0, rounds) for name in ("wan", "lan")}
    return Row(
        architecture=str(architecture),
        model=model,
        context=context,
        program=program,
        bytes=client + server,
        messages=messages,
        rounds=rounds,
        seconds=seconds,
        latency_wan_s=latency["wan"],
        latency_lan_s=latency["lan"],
        method="composed",
        max_logit_error=None,  # of passes, and a row is a sum: docs/two_party.md says where errors are
        bytes_client=client,
        bytes_server=server,
        embedding_bytes=by_part["embedding"],
        head_bytes=by_part["head"],
        ln_f_bytes=ln_f,
        setup_bytes=setup,
        provenance=provenance or as_json(operations=sum(counts.values())),
    )


def compose_detailed(
    architecture: Architecture,
    config: ModelConfig,
    model: str,
    program: str,
    context: int,
    measured: Measured,
    networks: Mapping[str, Network],
    places: tuple[str, ...] = (),
) -> DetailedRow:
    """`compose` with bytes and seconds by kind of operation, and where the row is printed.

    The provenance is that of the oldest and the newest of its measurements. Raises as `compose`.
    """
    row = compose(architecture, config, model, program, context, measured, networks)
    by_bytes: Counter[str] = Counter()
    by_seconds: Counter[str] = Counter()
    sources = {}
    for operation, count in operations(architecture, config, program, context).items():
        one = find(measured, operation)
        by_bytes[operation.kind] += count * one.bytes
        by_seconds[operation.kind] += count * one.seconds
        source = json.loads(one.provenance)
        sources[source.get("measured", "")] = source
    oldest, newest = sources[min(sources)], sources[max(sources)]
    source = newest | {"measured_first": oldest.get("measured"), "commit_first": oldest.get("commit")}
    source.pop("computation", None)
    values = asdict(row) | {
        "provenance": as_json(**source),
        "backbone_bytes": sum(amount for kind, amount in by_bytes.items() if kind not in PARTS),
        "backbone_seconds": sum(amount for kind, amount in by_seconds.items() if kind not in PARTS),
        "bytes_by_kind": as_json(**by_bytes),
        "seconds_by_kind": as_json(**{kind: round(amount, 4) for kind, amount in by_seconds.items()}),
        "places": "; ".join(places),
    }
    return DetailedRow(**values)
