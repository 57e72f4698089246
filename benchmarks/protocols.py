"""Stock SPU under its other protocols: bytes and rounds of the rows of AERO Tables 4 and 6 with SEMI2K and ABY3.

    python -m benchmarks.protocols

Every operation of the stock program ("as_written") runs at the papers' size between two (SEMI2K) or three (ABY3)
processes over TCP, and a row is the sum of its operations. One whole pass of a smaller model checks the sum. Bytes are
those that all parties send while computing. Not counted: sharing the inputs and the weights once before, and SEMI2K's
correlated randomness, which here comes from a trusted first party. SPU's maintainers call that insecure, for debugging
only. In both protocols every message answers the one before, so rounds, in round trips, are half the messages of the
party that sends most; the slope of seconds against a delay gives the same (softmax, SEMI2K: 39.7 and 39.5).
Writes results/two_party/protocols.csv and protocols_ops.csv; a quarter of an hour.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from aero import records
from aero.architecture import parse
from aero.config import load
from aero.errors import UserError, run_main
from aero.model import GPT, ModelConfig
from aero.published import table as printed_table
from aero.report.costs import PARTS, STOCK
from aero.two_party.cost.measure import arguments
from aero.two_party.program.end_to_end import PublicModel
from aero.two_party.program.forward import operations
from aero.two_party.program.inputs import prompt_array
from aero.two_party.program.operations import Operation
from aero.two_party.program.weights import weight_arrays
from aero.two_party.runtime.addresses import free_address
from aero.two_party.runtime.settings import FRACTION_BITS
from benchmarks.timing import write_lines

FOLDER = Path("results/two_party")
PROTOCOLS = {
    "SEMI2K": (2, "online bytes of both parties; correlated randomness from a trusted first party not counted"),
    "ABY3": (3, "bytes of all three parties; weights shared before"),
}
"""SPU's protocols beside Cheetah: their parties, and what is counted."""
NONLINEAR = PARTS["GELU or ReLU"] + PARTS["softmax"] + PARTS["LayerNorm"]
CHECK = "SM+LN+G"


def party(rank: int, addresses: Sequence[str], protocol: str, pipe: Any) -> None:
    """One party, in a process of its own: compute what the parent sends."""
    log, path = tempfile.mkstemp(prefix="aero-protocols-")
    os.unlink(path)
    os.dup2(log, 1)
    os.dup2(log, 2)
    from spu import libspu

    from aero.two_party.runtime.engine import Engine

    description = libspu.link.Desc()
    for number, address in enumerate(addresses):
        description.add_party(f"party {number}", address)
    description.recv_timeout_ms = description.http_timeout_ms = 600_000
    channel = SimpleNamespace(step=lambda doing: nullcontext())
    link, kind = libspu.link.create_brpc(description, rank), getattr(libspu.ProtocolKind, protocol)
    engine = Engine(channel, link, log, protocol=kind, experimental_enable_colocated_optimization=False)
    while True:
        make, shares = pipe.recv()
        names, function = [f"x{index}" for index in range(len(shares))], make()
        for name, share in zip(names, shares, strict=True):
            engine.runtime.set_var(name, share)
        described = tuple(engine.describe(name) for name in names)
        profile = engine.run(function, described, names, ["y"])
        pipe.send((profile.bytes_sent, profile.messages_sent, engine.runtime.get_var("y")))
        for name in names:
            engine.runtime.del_var(name)


class Session:
    """The processes of one protocol."""

    def __init__(self, protocol: str) -> None:
        import spu
        from spu import libspu

        (count, _), addresses, context = PROTOCOLS[protocol], set(), multiprocessing.get_context("spawn")
        while len(addresses) < count:
            addresses.add(free_address())
        self._parties = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=party, args=(rank, sorted(addresses), protocol, theirs), daemon=True)
            process.start()
            theirs.close()
            self._parties.append((ours, process))
        kind = getattr(libspu.ProtocolKind, protocol)
        config = libspu.RuntimeConfig(protocol=kind, field=libspu.FieldType.FM64, fxp_fraction_bits=FRACTION_BITS)
        self._io, self._secret = spu.Io(count, config), libspu.Visibility.VIS_SECRET

    def run(self, make: Callable[[], Any], values: Sequence[Any]) -> tuple[int, float, np.ndarray]:
        """Bytes that all parties send for `make()(*values)`, rounds, and its result."""
        shares = [self._io.make_shares(np.asarray(value), self._secret) for value in values]
        for rank, (pipe, _) in enumerate(self._parties):
            pipe.send((make, [each[rank] for each in shares]))
        try:
            sent, messages, result = zip(*(pipe.recv() for pipe, _ in self._parties), strict=True)
        except EOFError:
            raise UserError("a party ended; run again, with more memory if it ran out") from None
        return sum(sent), max(messages) / 2, self._io.reconstruct(list(result))

    def close(self) -> None:
        for _, process in self._parties:
            process.kill()


def measure(protocol: str, wanted: Sequence[Operation]) -> dict[Operation, tuple[int, float]]:
    """Bytes and rounds of every operation."""
    session, found = Session(protocol), {}
    for one in wanted:
        size, rounds, result = session.run(one.function, values := arguments(one))
        error = float(np.abs(result - np.asarray(one.function()(*values))).max())
        cost = f"{size / 1e6:.1f} MB, {rounds:g} rounds"
        print(f"{protocol} {one.name} {one.shape}: {cost}, error {error:.2g}", flush=True)
        found[one] = size, rounds
    session.close()
    return found


def whole_pass(protocol: str, config: ModelConfig, context: int) -> tuple[int, float]:
    """Bytes of one pass of CHECK with random weights, and its largest logit error against PyTorch."""
    torch.manual_seed(0)
    model = GPT(parse(CHECK), config).eval()
    ids = np.random.default_rng(0).integers(0, config.vocabulary, context)
    with torch.no_grad():
        plain = model(torch.from_numpy(ids)[None])[0, -1].numpy()
    weights, session = weight_arrays(model, STOCK), Session(protocol)
    make = partial(PublicModel(CHECK, asdict(config), STOCK).function, sorted(weights))
    prompt = prompt_array(ids, config.vocabulary, STOCK)
    size, _, logits = session.run(make, [*(weights[name] for name in sorted(weights)), prompt])
    session.close()
    return size, float(np.abs(logits - plain).max())


def main(given: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.protocols", description=__doc__.splitlines()[0])
    parser.parse_args(given)
    config, context = load().at_scale("laptop").two_party_model()
    small, source = replace(config, layers=1, vocabulary=1024), records.commit()
    needed = {}
    for number in ("4", "6"):
        table = printed_table(f"aero/table{number}")
        sizes = replace(config, layers=table.dimensions["layers"])
        needed |= {(number, row.name): operations(parse(row.name), sizes, STOCK, context) for row in table.rows}
    checked = operations(parse(CHECK), small, STOCK, context)
    rows, ops = [], []
    for protocol, (parties, counted) in PROTOCOLS.items():
        measured = measure(protocol, sorted(set(checked).union(*needed.values())))
        for one, (size, rounds) in measured.items():
            ops.append({"protocol": protocol, "op": one.name, "shape": one.shape, "bytes": size, "rounds": rounds})
        size, error = whole_pass(protocol, small, context)
        composed = sum(count * measured[one][0] for one, count in checked.items())
        print(f"{protocol}: a whole pass sends {size:,} bytes, its operations {composed:,}; logit error {error:.3g}")
        for (number, name), counts in needed.items():
            by_kind = [(one.kind, count * measured[one][0]) for one, count in counts.items()]
            row = {"table": number, "run": name, "program": STOCK, "protocol": protocol, "parties": parties}
            row |= {"bytes": sum(amount for _, amount in by_kind)}
            row |= {"nonlinear_bytes": sum(amount for kind, amount in by_kind if kind.startswith(NONLINEAR))}
            row |= {"rounds": sum(count * measured[one][1] for one, count in counts.items())}
            row |= {"pass_over_sum": round(size / composed, 4), "counted": counted, "commit": source}
            rows.append(row)
        write_lines(FOLDER / "protocols.csv", list(rows[0]), rows)
        write_lines(FOLDER / "protocols_ops.csv", list(ops[0]), ops)


if __name__ == "__main__":
    run_main(main)
