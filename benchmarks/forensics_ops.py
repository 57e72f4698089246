"""Bytes of single operations in versions and settings of SPU, for the search of `benchmarks.forensics`."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from aero import records
from aero.errors import UserError
from aero.records import csv_text, write_text

OPS = Path("results/two_party/forensics_ops.csv")
PARTY = Path(__file__).with_name("forensics_party.py")
PORTS = range(20000, 32000)

# Names of SPU's own options; whatever is not named keeps its default.
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "lsb_error": {"runtime": {"cheetah_2pc_config": {"enable_mul_lsb_error": True}}},
    "exp_iters_5": {"runtime": {"fxp_exp_iters": 5}},
    "pade_exp": {"runtime": {"fxp_exp_mode": 1}},
    "division_per_entry": {"compiler": {"enable_optimize_denominator_with_broadcast": False}},
    "softspoken_ot": {"runtime": {"cheetah_2pc_config": {"ot_kind": "YACL_Softspoken"}}},
    "fraction_15": {"runtime": {"fxp_fraction_bits": 15}},
    "fm128": {"field": "FM128"},
}
WARM_UP = (
    ("relu", ((8, 8),)),
    ("layer_norm_shared", ((8, 8), (8,), (8,))),
    ("layer_norm_owned", ((8, 8), (8,), (8,))),
    ("scores", ((1, 8, 8), (1, 8, 8))),
    ("product_owned", ((8, 8), (8, 8))),
)
# Multiples of 8,192 entries, so that what an operation costs is proportional to its entries.
SMALL = (
    ("relu", ((64, 768),), 2),
    ("multiply", ((64, 768), (64, 768)), 2),
    ("layer_norm_shared", ((64, 768), (768,), (768,)), 2),
    ("layer_norm_owned", ((64, 768), (768,), (768,)), 1),
    ("softmax_jax", ((12, 32, 128),), 2),
    ("softmax_clip", ((12, 32, 128),), 2),
    ("gelu_tanh", ((16, 1024),), 1),
    ("gelu_erf", ((16, 1024),), 1),
)
# At the papers' size or nearer to it; 256 and 512 columns show what does not grow with the square of the context.
LARGE = (
    ("softmax_clip", ((12, 128, 128),), 2),
    ("softmax_clip", ((12, 32, 256),), 1),
    ("softmax_clip", ((12, 16, 512),), 1),
    ("gelu_tanh", ((64, 768),), 1),
    ("layer_norm_shared", ((128, 768), (768,), (768,)), 1),
    ("relu", ((128, 3072),), 1),
    ("product_shared", ((128, 768), (768, 768)), 1),
    ("product_owned", ((128, 768), (768, 768)), 1),
    ("scores", ((12, 128, 64), (12, 128, 64)), 1),
    ("mix", ((12, 128, 128), (12, 128, 64)), 1),
    ("one_hot", ((16,),), 2),
    ("lookup_shared", ((2,), (1024, 768)), 1),
    ("lookup_shared", ((1,), (50257, 768)), 1),
)


@dataclass(frozen=True)
class Measured:
    """Bytes that client and server sent in one run of an operation (mean of the runs), seconds of one run."""

    spu: str
    settings: str
    op: str
    shape: str
    bytes_client: float
    bytes_server: float
    runs: int
    seconds: float
    provenance: str

    @property
    def bytes(self) -> float:
        """Bytes in both directions."""
        return self.bytes_client + self.bytes_server

    @property
    def entries(self) -> int:
        """Entries of the first argument."""
        return math.prod(int(size) for size in self.shape.split(",")[0].split("x"))


def measure(python: str, settings: str, done: list[Measured]) -> None:
    """Measure what `done` lacks of one setting with the SPU of `python`; appends to `done`, writes after each."""
    version = subprocess.run(
        [python, "-c", "import spu; print(spu.__version__)"], capture_output=True, text=True, check=False
    )
    if version.returncode:
        raise UserError(f"{python} cannot import spu: {version.stderr.strip().splitlines()[-1]}; install it there")
    spu = version.stdout.split()[-1]
    wanted = SMALL + (LARGE if settings == "default" else ())
    known = {(one.op, one.shape) for one in done if (one.spu, one.settings) == (spu, settings)}
    wanted = tuple(entry for entry in wanted if (entry[0], _text(entry[1])) not in known)
    if not wanted:
        return
    warm_up = [(kind, shapes, 2) for kind, shapes in WARM_UP]
    operations = [
        {"kind": kind, "shapes": shapes, "runs": runs}
        for kind, shapes, runs in [*(warm_up if not known else [(*entry, 1) for entry in WARM_UP]), *wanted]
    ]
    request = {"field": "FM64", "runtime": {}, "operations": operations} | SETTINGS[settings]
    request["compiler"] = {"enable_optimize_denominator_with_broadcast": True} | request.get("compiler", {})
    ports = random.SystemRandom().sample(PORTS, 2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    parties = [
        subprocess.Popen(
            [python, str(PARTY), str(rank), *addresses, json.dumps(request)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in (0, 1)
    ]
    source = json.dumps(records.provenance(measured=records.now()), sort_keys=True, separators=(",", ":"))
    setup = 0.0
    try:
        for number, operation in enumerate(operations):
            lines = [party.stdout.readline() for party in parties]
            if not all(lines):
                raise UserError(f"a party of {spu} {settings} ended at {operation['kind']}; see its message above")
            client, server = (json.loads(line) for line in lines)
            sent = [sum(pair) for pair in zip(client["sent"], server["sent"], strict=True)]
            if number < len(WARM_UP):
                setup += sent[0] - sent[-1]
                continue
            if number == len(WARM_UP) and not known:
                done.append(Measured(spu, settings, "setup", "1", setup / 2, setup / 2, 1, 0.0, source))
            done.append(
                Measured(
                    spu,
                    settings,
                    operation["kind"],
                    _text(operation["shapes"]),
                    sum(client["sent"]) / len(sent),
                    sum(server["sent"]) / len(sent),
                    len(sent),
                    client["seconds"],
                    source,
                )
            )
            write(OPS, done, Measured)
            print(f"{spu} {settings}: {done[-1].op} {done[-1].shape} {done[-1].bytes / 1e6:.2f} MB", flush=True)
    finally:
        for party in parties:
            if party.poll() is None and not all(lines):
                party.kill()
            party.wait()


def _text(shapes: Iterable[Sequence[int]]) -> str:
    return ",".join("x".join(map(str, shape)) for shape in shapes)


def write(path: Path, rows: Iterable[Any], kind: type[Any]) -> None:
    """Write dataclass rows as CSV, atomically."""
    write_text(path, csv_text([field.name for field in fields(kind)], map(asdict, rows)))


def read(path: Path = OPS) -> list[Measured]:
    """The measured operations kept so far; none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Measured(
                **row
                | {name: float(row[name]) for name in ("bytes_client", "bytes_server", "seconds")}
                | {"runs": int(row["runs"])}
            )
            for row in csv.DictReader(file)
        ]
