"""One party of `benchmarks.forensics`, for any SPU wheel from 0.9.0b2 on; needs only NumPy, JAX and SPU.

    PYTHON benchmarks/forensics_party.py RANK CLIENT_ADDRESS SERVER_ADDRESS REQUEST

REQUEST (JSON) has runtime and compiler options under SPU's own names, and the operations. PYTHON may have another
version of SPU than this project. One JSON line an operation goes to standard output: bytes that this party sent in
each run, seconds.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import spu
from spu import libspu
from spu.utils import frontend

CLIENT, SERVER = 0, 1
LOG_WAIT_S = 5.0
SENT = re.compile(r"Link details: total send bytes (\d+)")


def _causal(x: Any) -> Any:
    rows, columns = x.shape[-2:]
    seen = np.arange(columns)[None, :] <= np.arange(columns - rows, columns)[:, None]
    return x + np.where(seen, 0.0, -1e4).astype(np.float32)


def softmax_jax(x: Any) -> Any:
    """`jax.nn.softmax` after an additive mask, as Flax's GPT-2 has it."""
    return jax.nn.softmax(_causal(x), -1)


def softmax_clip(x: Any) -> Any:
    """The softmax of SPU's and BumbleBee's examples: exponentials of what is below -14 are set to 0."""
    x = _causal(x)
    x = x - jnp.max(x, -1, keepdims=True)
    exponential = jnp.exp(x) * (x > -14)
    return exponential / jnp.sum(exponential, -1, keepdims=True)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean(centred * centred, -1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + 1e-5) * weight + bias


# Function, and of each argument who holds it: "secret" (both, in shares) or "server" (in the clear).
KINDS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "relu": (lambda x: jnp.maximum(x, 0), ("secret",)),
    "gelu_tanh": (lambda x: jax.nn.gelu(x, approximate=True), ("secret",)),
    "gelu_erf": (lambda x: jax.nn.gelu(x, approximate=False), ("secret",)),
    "softmax_jax": (softmax_jax, ("secret",)),
    "softmax_clip": (softmax_clip, ("secret",)),
    "multiply": (lambda x, y: x * y, ("secret", "secret")),
    "layer_norm_shared": (layer_norm, ("secret", "secret", "secret")),
    "layer_norm_owned": (layer_norm, ("secret", "server", "server")),
    "product_shared": (lambda x, w: x @ w, ("secret", "secret")),
    "product_owned": (lambda x, w: x @ w, ("secret", "server")),
    "scores": (lambda q, k: jnp.einsum("hqd,hkd->hqk", q, k), ("secret", "secret")),
    "mix": (lambda p, v: jnp.einsum("hqk,hkd->hqd", p, v), ("secret", "secret")),
    "one_hot": (lambda ids: jax.nn.one_hot(ids, 50257), ("secret",)),
    "lookup_shared": (lambda ids, table: jnp.take(table, ids, axis=0), ("secret", "secret")),
}


def _fill(message: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, dict):
            _fill(getattr(message, name), value)
        else:
            setattr(message, name, value)


class Party:
    """SPU's interface changed after 0.9.3: options and executables were protocol buffers before."""

    def __init__(self, rank: int, addresses: tuple[str, str], request: dict[str, Any], log: int) -> None:
        self.rank, self.other, self._log = rank, 1 - rank, log
        self._recent = hasattr(libspu, "RuntimeConfig")
        self._api = libspu if self._recent else spu.spu_pb2
        self._secret = self._constant("Visibility", "VIS_SECRET")
        cheetah = request["runtime"].get("cheetah_2pc_config", {})
        if "ot_kind" in cheetah:
            cheetah["ot_kind"] = self._constant("CheetahOtKind", cheetah["ot_kind"])
        config = self._api.RuntimeConfig()
        config.protocol = self._constant("ProtocolKind", "CHEETAH")
        config.field = self._constant("FieldType", request["field"])
        config.enable_pphlo_profile = config.enable_hal_profile = True
        config.max_concurrency = 1
        config.experimental_enable_colocated_optimization = True
        _fill(config, request["runtime"])
        self._options = self._api.CompilerOptions()
        _fill(self._options, request["compiler"])
        description = libspu.link.Desc()
        for name, address in zip(("client", "server"), addresses, strict=True):
            description.add_party(name, address)
        description.recv_timeout_ms = description.http_timeout_ms = 600_000
        description.connect_retry_times, description.connect_retry_interval_ms = 120, 500
        self.link = libspu.link.create_brpc(description, rank)
        self._runtime, self._io = spu.Runtime(self.link, config), spu.Io(2, config)

    def _constant(self, kind: str, name: str) -> Any:
        values = getattr(self._api, kind)
        return getattr(values, name) if self._recent else values.Value(name)

    def put(self, name: str, value: np.ndarray, owner: str) -> None:
        """`value` at its source (the server for what it owns, else the client); the other party is sent its share."""
        if owner == "server":
            known = value if self.rank == SERVER else np.zeros_like(value)
            share = self._io.make_shares(known, self._secret, SERVER)[self.rank]
        elif self.rank == CLIENT:
            shares = self._io.make_shares(value, self._secret, -1)
            share, given = shares[CLIENT], shares[SERVER]
            chunks = list(given.share_chunks)
            for part in (given.meta, str(len(chunks)).encode(), *chunks):
                self.link.send(self.other, part)
        else:
            share = libspu.Share()
            share.meta = self.link.recv(self.other)
            share.share_chunks = [self.link.recv(self.other) for _ in range(int(self.link.recv(self.other)))]
        self._runtime.set_var(name, share)

    def compile(self, function: Callable[..., Any], names: list[str], values: list[np.ndarray]) -> Any:
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        given = frontend.Kind.JAX, function, shapes, {}, names, [self._secret] * len(values), lambda flat: ["y"]
        made, _ = frontend.compile(*given, copts=self._options)
        if self._recent:
            return libspu.Executable(name="f", input_names=names, output_names=["y"], code=made.code)
        made.name = "f"
        return made

    def run(self, executable: Any) -> int:
        """Bytes that this party sent."""
        start = os.fstat(self._log).st_size
        self._runtime.run(executable)
        deadline = time.monotonic() + LOG_WAIT_S
        while True:
            text = os.pread(self._log, os.fstat(self._log).st_size - start, start).decode(errors="replace")
            if (found := SENT.search(text)) and text.endswith("\n"):
                return int(found[1])
            if time.monotonic() > deadline:
                raise RuntimeError("SPU logged no 'Link details: total send bytes' line; another version of SPU?")
            time.sleep(0.02)


def main() -> None:
    rank, addresses, request = int(sys.argv[1]), (sys.argv[2], sys.argv[3]), json.loads(sys.argv[4])
    answers = os.dup(1)
    with tempfile.TemporaryFile() as log:
        # SPU's own words go to the file; a traceback of Python still goes to standard error.
        sys.stderr = os.fdopen(os.dup(2), "w")
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        party = Party(rank, addresses, request, log.fileno())
        generator = np.random.default_rng(0)
        for kind, shapes, runs in request["operations"]:
            function, owners = KINDS[kind]
            values = [(0.5 * generator.standard_normal(shape)).astype(np.float32) for shape in shapes]
            if kind in ("one_hot", "lookup_shared"):
                values[0] = generator.integers(0, 1000, shapes[0]).astype(np.int32)
            names = [f"a{index}" for index in range(len(values))]
            for name, value, owner in zip(names, values, owners, strict=True):
                party.put(name, value, owner)
            executable = party.compile(function, names, values)
            began = time.monotonic()
            sent = [party.run(executable) for _ in range(runs)]
            answer = {"sent": sent, "seconds": round((time.monotonic() - began) / runs, 2)}
            os.write(answers, (json.dumps(answer) + "\n").encode())
        party.link.barrier()
        party.link.stop_link()


if __name__ == "__main__":
    main()
