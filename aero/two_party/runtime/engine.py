"""One SPU runtime of a party: compiles JAX functions, runs them, and reads from SPU's log what each run cost."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from aero.two_party.runtime.channel import Channel, numpy_type
from aero.two_party.runtime.profile import Profile, parse
from aero.two_party.runtime.settings import FIELD, FRACTION_BITS

LOG_TIMEOUT_S = 5.0


class Described(NamedTuple):
    """Shape and type of a value, and whether both parties have it in the clear."""

    shape: tuple[int, ...]
    dtype: np.dtype
    public: bool = False


class Engine:
    """An SPU runtime with one ring and one fixed-point format.

    runtime: SPU's own, which holds this party's shares of variables by name.
    """

    def __init__(
        self,
        channel: Channel,
        link: Any,
        log: int,
        field: str = FIELD,
        fraction_bits: int = FRACTION_BITS,
        **options: int,
    ) -> None:
        """link: of SPU; one for each engine. log: descriptor of the file that this process's output goes to, readable.

        options: further settings of SPU's runtime, by SPU's names.
        """
        import spu
        from spu import libspu

        self._channel, self._log = channel, log
        config = libspu.RuntimeConfig(
            protocol=libspu.ProtocolKind.CHEETAH,
            field=getattr(libspu.FieldType, field),
            fxp_fraction_bits=fraction_bits,
        )
        config.enable_pphlo_profile = config.enable_hal_profile = True
        # Operations in parallel would be counted into each other's bytes.
        config.experimental_enable_inter_op_par = config.experimental_enable_intra_op_par = False
        # SPU splits oblivious transfers by this number, so set-up bytes and message counts depend on it.
        config.max_concurrency = 1
        # What one party holds in the clear, as the server's weights, is used as such, never secret-shared.
        config.experimental_enable_colocated_optimization = True
        for name, value in options.items():
            setattr(config, name, value)
        with channel.step("setting up the protocol"):
            self.runtime = spu.Runtime(link, config)
        self.io = spu.Io(link.world_size, config)
        self.compiled: dict[tuple, Any] = {}

    def describe(self, name: str) -> Described:
        meta = self.runtime.get_var_meta(name)
        return Described(tuple(meta.shape.dims), numpy_type(meta))

    def run(
        self, function: Callable[..., Any], arguments: tuple[Described, ...], inputs: Sequence[str], outputs: list[str]
    ) -> Profile:
        """Compute `outputs` = function(*inputs) in one run; arguments: what each input is.

        ValueError for a wrong number of outputs.
        """
        from spu import libspu

        made = self._compile(function, arguments)
        if (count := len(made.output_names)) != len(outputs):
            raise ValueError(f"{made.name} gives {count} arrays, but {len(outputs)} outputs are named")
        executable = libspu.Executable(name=made.name, input_names=list(inputs), output_names=outputs, code=made.code)
        start = os.fstat(self._log).st_size
        with self._channel.step(f"running {made.name}"):
            self.runtime.run(executable)
        return read_profile(self._log, start)

    def _compile(self, function: Callable[..., Any], arguments: tuple[Described, ...]) -> Any:
        """SPU's executable, compiled once for each function and shapes."""
        import jax
        from spu import libspu
        from spu.utils import frontend

        if (function, arguments) not in self.compiled:
            options = libspu.CompilerOptions()
            options.enable_optimize_denominator_with_broadcast = True  # one reciprocal a row, not one an entry
            self.compiled[function, arguments], _ = frontend.compile(
                frontend.Kind.JAX,
                function,
                [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arguments],
                {},
                [f"input{i}" for i in range(len(arguments))],
                [libspu.Visibility.VIS_PUBLIC if one.public else libspu.Visibility.VIS_SECRET for one in arguments],
                lambda flat: [f"output{i}" for i in range(len(flat))],
                copts=options,
            )
        return self.compiled[function, arguments]


def read_profile(log: int, start: int) -> Profile:
    """The profile of one run from the log beyond byte `start`; waits LOG_TIMEOUT_S for its last line.

    ValueError if it does not come: SPU goes on without a message when the log cannot be written.
    """
    deadline = time.monotonic() + LOG_TIMEOUT_S
    while True:
        text = os.pread(log, os.fstat(log).st_size - start, start).decode(errors="replace")
        if "Link details" in text and text.endswith("\n") or time.monotonic() > deadline:
            return parse(text)
        time.sleep(0.01)
