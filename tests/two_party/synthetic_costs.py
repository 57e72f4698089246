"""Synthetic measurements of operations with a known linear cost, as files of a project."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from aero.architecture import parse
from aero.two_party.cost import ledger, packing
from aero.two_party.cost.counts import counts, published_sizes

VARIANT = "cheetah-FM64-18-exact"
ARCHITECTURES = ("SM+LN+G", "SM+LN+R", "SM+R", "SM+ScFuFFN", "SM+ScFuFFNi_6", "SM(t)+ScFuFFN", "SOTA(SM+ScFFN)")
PROGRAMS = ("as_written", "tuned")


def made(op: str, shape: str, **changes: object) -> ledger.Measurement:
    """An operation whose bytes, messages and seconds are linear in its features."""
    features = packing.features(packing.sized(op, shape))
    client, server = (
        1000 * sum((place + 2) * value for place, value in enumerate(features[f"bytes_sent_{who}"]))
        for who in ("client", "server")
    )
    values = {
        "op": op,
        "shape": shape,
        "model": "gpt2",
        "context": 128,
        "variant": VARIANT,
        "bytes_sent_client": client,
        "bytes_sent_server": server / 2,
        "messages": 2 * sum(features["messages"]),
        "rounds": 3 * sum(features["rounds"]),
        "setup_bytes": 21e6,
        "seconds": 1e-6 * sum(features["seconds"]),
        "runs": 1,
        "provenance": "{}",
    }
    return ledger.Measurement(**(values | changes))


def operations(contexts: Iterable[int], architectures: Iterable[str] = ARCHITECTURES) -> list[ledger.Measurement]:
    """Every operation of the architectures at GPT-2's sizes and these contexts."""
    found: dict[tuple[str, str], ledger.Measurement] = {}
    for context in contexts:
        for text in architectures:
            for program in PROGRAMS:
                for op, shape in counts(parse(text), published_sizes("gpt2", context), program):
                    found[op, shape] = made(op, shape)
    return list(found.values())


def write(root: Path, contexts: Iterable[int]) -> None:
    """results/two_party/all_ops.csv below `root`."""
    ledger.write(root / "results/two_party/all_ops.csv", operations(contexts), ledger.Measurement)
