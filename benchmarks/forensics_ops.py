"""Bytes of single operations in versions and settings of SPU, for `benchmarks.forensics`."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from aero.errors import UserError
from aero.records import now, provenance, read_csv
from aero.two_party.runtime.addresses import free_address
from benchmarks.timing import write_lines

OPS = Path("results/two_party/forensics_ops.csv")
PARTY = Path(__file__).with_name("forensics_party.py")
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
"""By SPU's own names of options; the others keep their defaults."""
WARM_UP = (
    ("relu", ((8, 8),)),
    ("layer_norm_shared", ((8, 8), (8,), (8,))),
    ("layer_norm_owned", ((8, 8), (8,), (8,))),
    ("scores", ((1, 8, 8), (1, 8, 8))),
    ("product_owned", ((8, 8), (8, 8))),
)
# (operation, shapes, runs). Multiples of 8,192 entries, so that costs are proportional to entries.
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
# At or near the papers' size; 256 and 512 columns show what does not grow with the square of the context.
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
        return self.bytes_client + self.bytes_server

    @cached_property
    def entries(self) -> int:
        """Entries of the first argument."""
        return math.prod(int(size) for size in self.shape.split(",")[0].split("x"))


def read(path: Path = OPS) -> list[Measured]:
    """The measured operations; none if there is no file."""
    numbers = {"bytes_client": float, "bytes_server": float, "runs": int, "seconds": float}
    return [Measured(**line | {name: kind(line[name]) for name, kind in numbers.items()}) for line in read_csv(path)]


def measure(python: str, settings: str, done: list[Measured]) -> None:
    """Measure what `done` lacks of one setting with the SPU of `python`; appends to `done` and writes OPS."""
    version = subprocess.run([python, "-c", "import spu; print(spu.__version__)"], capture_output=True, text=True)
    if version.returncode:
        raise UserError(f"{python} cannot import spu: {version.stderr.strip().splitlines()[-1]}; install it there")
    spu = version.stdout.split()[-1]
    known = {(one.op, one.shape) for one in done if (one.spu, one.settings) == (spu, settings)}
    every = SMALL + (LARGE if settings == "default" else ())
    wanted = [one for one in every if (one[0], _text(one[1])) not in known]
    if not wanted:
        return
    operations = [*((*one, 1 if known else 2) for one in WARM_UP), *wanted]
    request = {"field": "FM64", "runtime": {}, "operations": operations} | SETTINGS[settings]
    request["compiler"] = {"enable_optimize_denominator_with_broadcast": True} | request.get("compiler", {})
    addresses = (client := free_address()), free_address(client)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    commands = ([python, str(PARTY), rank, *addresses, json.dumps(request)] for rank in "01")
    parties = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True, env=environment) for one in commands]
    source = json.dumps(provenance(measured=now()), sort_keys=True, separators=(",", ":"))
    setup = 0.0
    try:
        for number, (kind, shapes, runs) in enumerate(operations):
            lines = [party.stdout.readline() for party in parties]
            if not all(lines):
                raise UserError(f"a party of {spu} {settings} ended at {kind}; see its message above")
            client, server = (json.loads(line) for line in lines)
            sent = sum(client["sent"]) / runs, sum(server["sent"]) / runs
            if number < len(WARM_UP):
                setup += sum(one["sent"][0] - one["sent"][-1] for one in (client, server))
                continue
            if number == len(WARM_UP) and not known:
                done.append(Measured(spu, settings, "setup", "1", setup / 2, setup / 2, 1, 0.0, source))
            done.append(Measured(spu, settings, kind, _text(shapes), *sent, runs, client["seconds"], source))
            write_lines(OPS, [field.name for field in fields(Measured)], map(asdict, done))
            print(f"{spu} {settings}: {kind} {done[-1].shape} {done[-1].bytes / 1e6:.2f} MB", flush=True)
    finally:
        for party in parties:
            if not all(lines):
                party.kill()
            party.wait()


def _text(shapes: Iterable[Sequence[int]]) -> str:
    return ",".join("x".join(map(str, shape)) for shape in shapes)
