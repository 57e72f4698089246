"""One party of a private run, inside its own process: its shares, its link to the other party, its SPU runtime.

What goes over the link besides the protocol's own messages: a secret share of each input that is not held in the
clear by one party, the client's encrypted queries where a program has them (`aero.two_party.lattice.lookup`), keys,
queries and
answers of products outside SPU (`aero.two_party.lattice.matmul`), and the share of each output, in the one direction
that `reveal` names. A share of a secret is uniformly random to whoever lacks the other one. Nothing received is ever
unpickled.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from aero.errors import UserError
from aero.two_party.lattice.ring import bits_of, content_of, ring_elements, share_of
from aero.two_party.runtime.profile import Profile, parse, together
from aero.two_party.runtime.settings import (
    CLIENT,
    FIELD_BITS,
    NAMES,
    NARROW_FIELD,
    SERVER,
    Settings,
    TwoPartyError,
    split_address,
)

if TYPE_CHECKING:
    from aero.two_party.lattice.share_steps import Plan, ShareStep

LOG_WAIT_S = 5.0
RETRY_INTERVAL_S = 0.2


class Party:
    """A connected party. `put`, `run`, `reveal` and `barrier` are steps of both: each must take them in one order.

    Raises TwoPartyError when the other party is gone or silent for `receive_timeout_s`, or out of step with this one.
    """

    def __init__(
        self, rank: int, addresses: Sequence[str], settings: Settings, log: int, ask: Callable[[Any], Any] | None = None
    ) -> None:
        """Connect; `addresses` (client's, server's) as this party dials them, its own one being where it listens.

        log: descriptor of the file that this process's standard output goes to, open for reading.
        ask: how `control` reaches the process that started this one.
        """
        import spu
        from spu import libspu

        self.rank, self.settings = rank, settings
        self._log, self._ask = log, ask
        self._held: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._code: dict[tuple, tuple[str, bytes]] = {}
        self._plans: dict[tuple, Plan | None] = {}
        # Inputs that one party has in the clear, as it put them (None at the other), and what steps have made of them.
        self._in_the_clear: dict[str, np.ndarray | None] = {}
        self._prepared: dict[tuple[str, str], Any] = {}
        self._kept: dict[str, Any] = {}  # by steps on shares, for later ones of this session
        self._others: dict[str, Any] = {}  # the runtimes of `_apart`, by what they are for
        self._other = SERVER if rank == CLIENT else CLIENT
        description = libspu.link.Desc()
        for name, address in zip(NAMES, addresses, strict=True):
            split_address(address)
            description.add_party(name, address)
        description.recv_timeout_ms = int(settings.receive_timeout_s * 1000)
        description.http_timeout_ms = int(settings.receive_timeout_s * 1000)
        # SPU would send three times again, each for the whole time: a stalled link would be told after five time-outs.
        description.retry_opts.max_retry = 0
        description.connect_retry_interval_ms = int(RETRY_INTERVAL_S * 1000)
        description.connect_retry_times = math.ceil(settings.connect_timeout_s / RETRY_INTERVAL_S) + 1
        try:
            self._link = libspu.link.create_brpc(description, rank)
        except Exception as error:
            raise TwoPartyError(
                f"no connection to the {NAMES[self._other]} at {addresses[self._other]}; start it with the same "
                f"settings, or raise connect_timeout_s (SPU: {_said(error)})"
            ) from error
        config = _configuration(settings, settings.field, settings.fraction_bits)
        with self._step("setting up the protocol"):
            self._runtime = spu.Runtime(self._link, config)
        self._io = spu.Io(2, config)

    @property
    def name(self) -> str:
        """ "client" or "server"."""
        return NAMES[self.rank]

    def put(
        self,
        name: str,
        array: np.ndarray | None,
        shape: Sequence[int],
        dtype: Any = np.float32,
        *,
        owner: int | None = None,
        from_rank: int,
    ) -> None:
        """Make `name` an input: `array` is given at `from_rank` and None at the other party.

        owner=None: secret, and the other party is sent its share. owner=from_rank: `from_rank` goes on holding it in
        the clear and not one byte is sent (with `Settings.colocated` off it is secret like any other).
        ValueError if the array is not of that shape and dtype, is not finite, or does not fit the fixed point.
        """
        from spu import libspu

        shape, dtype = tuple(int(n) for n in shape), np.dtype(dtype)
        if owner not in (None, from_rank):
            raise ValueError(
                f"{name}: owner {owner} is not the party {from_rank} that has it; only that one may own it"
            )
        if (array is not None) != (self.rank == from_rank):
            raise ValueError(f"{name}: give the array at the party of rank {from_rank} and None at the other")
        if array is not None:
            array = self._checked(name, array, shape, dtype)
        self._forget(name)
        if owner is not None:
            self._in_the_clear[name] = array
        rank = owner if owner is not None and self.settings.colocated else -1
        if array is None and rank < 0:
            share = self._receive(name, shape, dtype)
        else:
            # The share of what the other owns is zeros, whatever the values: it can be made here.
            values = np.zeros(shape, dtype) if array is None else array
            shares = self._io.make_shares(values, libspu.Visibility.VIS_SECRET, rank)
            if rank < 0:
                self._send(name, shape, dtype, shares[self._other])
            share = shares[self.rank]
        with self._step(f"storing {name}"):
            self._runtime.set_var(name, share)
        self._held[name] = (shape, dtype)

    def run(
        self,
        function: Callable[..., Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        donate: Sequence[str] = (),
    ) -> Profile:
        """Compute `outputs` = function(*inputs) privately, function being JAX; drop the inputs named in `donate`.

        Compiled from shapes alone, once for each function, shapes and number of outputs: pass the same function object
        again, not a new lambda. The first runs of a pair pay set-up (keys, oblivious transfers), and now and then
        a
        run pays for a new stock of those. A function with steps on shares (`aero.two_party.lattice.share_steps`)
        takes several runs
        of SPU. ValueError for an unknown input or a wrong number of outputs.
        """
        missing = [name for name in (*inputs, *donate) if name not in self._held]
        if missing:
            raise ValueError(f"{', '.join(missing)}: no such variable at the {self.name}; put it first")
        plan = self._planned(function, inputs, outputs)
        if plan is None:
            profile = self._run_whole(function, inputs, outputs)
        else:
            from aero.two_party.lattice.share_steps import Segment

            profiles = []
            for part, unneeded in zip(plan.parts, plan.drop, strict=True):
                if isinstance(part, Segment):
                    profiles.append(self._run_whole(part.function, part.inputs, part.outputs))
                else:
                    profiles.append(self._on_shares(part))
                for old in unneeded:
                    self.drop(old)
            profile = together(profiles)
        for old in donate:
            if old not in outputs:
                self.drop(old)
        return profile

    def _run_whole(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> Profile:
        """Compute `outputs` = function(*inputs) by one run of SPU."""
        held = tuple(self._held[name] for name in inputs)
        profile = self._execute(self._runtime, function, held, inputs, outputs)
        for output in outputs:
            self._held[output] = self._described(output)
        return profile

    def _execute(
        self, runtime: Any, function: Callable[..., Any], held: tuple, inputs: Sequence[str], outputs: Sequence[str]
    ) -> Profile:
        """Compute by one run of `runtime`. held: shape and type of every input."""
        from spu import libspu

        name, code = self._compiled(function, held, len(outputs))
        executable = libspu.Executable(name=name, input_names=list(inputs), output_names=list(outputs), code=code)
        start = os.fstat(self._log).st_size
        with self._step(f"running {name}"):
            runtime.run(executable)
        return self._profile(start)

    def _planned(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> Plan | None:
        """The parts of a function with steps on shares, None for one without."""
        import jax

        from aero.two_party.lattice.share_steps import plan

        key = (function, tuple(inputs), tuple(outputs), tuple(self._held[name] for name in inputs))
        if key not in self._plans:
            arguments = [jax.ShapeDtypeStruct(*self._held[name]) for name in inputs]
            self._plans[key] = plan(function, arguments, inputs, outputs)
        return self._plans[key]

    def prepare(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> float:
        """Make what `run` of the same needs of the server's own inputs alone; returns the seconds until both have it.

        It is kept until that input is put anew or dropped. Without this call the first `run` makes it.
        """
        from aero.two_party.lattice.share_steps import ShareStep

        plan, known, began = self._planned(function, inputs, outputs), len(self._prepared), time.monotonic()
        for part in plan.parts if plan is not None else ():
            if isinstance(part, ShareStep):
                self._prepare(part)
        if len(self._prepared) > known:
            self.barrier()
        return time.monotonic() - began

    def _prepare(self, part: ShareStep) -> Any:
        """What the step makes of its last input, None for a step that makes nothing."""
        from aero.two_party.lattice.share_steps import STEPS, Hand

        step, name = STEPS[part.step], part.inputs[-1]
        make = step.prepare
        if make is None:
            return None
        for each in part.inputs if step.in_the_clear else (name,):
            if each not in self._in_the_clear:
                raise ValueError(f"{each}: no party has it in the clear, as the step {part.step} needs it")
        key = part.step, name
        if key not in self._prepared:
            hand = Hand(self.rank, self.settings.fraction_bits, self.settings.field)
            self._prepared[key] = make(hand, self._in_the_clear[name])
        return self._prepared[key]

    def _apart(
        self, share: np.ndarray, dtype: Any, function: Callable[..., Any], what: str, field: str, **changes: int
    ) -> tuple[Any, Profile, float]:
        """This party's share of function(x), from its shares (n,) of x as `dtype` in the ring `field`; what that cost,
        and the seconds until it was there.

        By another runtime, over a link of its own through the same connection, with its own oblivious transfers: a
        runtime has one ring and one configuration. what: its name, for errors. changes: of its configuration.
        """
        import spu

        held = share.shape, np.dtype(dtype)
        if what not in self._others:
            with self._step(f"setting up the protocol of {what}"):
                config = _configuration(self.settings, field, changes.pop("fxp_fraction_bits"))
                for name, value in changes.items():
                    setattr(config, name, value)
                self._others[what] = spu.Runtime(self._link.spawn(), config)
        runtime = self._others[what]
        runtime.set_var("x", share_of(share, *held, None, field))
        began = time.monotonic()
        profile = self._execute(runtime, function, (held,), ["x"], ["y"])
        seconds = time.monotonic() - began
        result = runtime.get_var("y")
        for name in ("x", "y"):
            runtime.del_var(name)
        return result, profile, seconds

    def _on_shares(self, part: ShareStep) -> Profile:
        """Take a step on this party's shares; its profile tells of messages that are not SPU's."""
        from aero.two_party.lattice.share_steps import SQUARINGS, STEPS, Hand, by_squarings

        step, messages = STEPS[part.step], _Messages(self, part.step)
        inside: list[Profile] = []
        apart = 0.0  # seconds of compiling and of reading the log, which no run of SPU has in its own seconds

        def elsewhere(share: np.ndarray, *how: Any, **changes: int) -> Any:
            nonlocal apart
            result, profile, seconds = self._apart(share, *how, **changes)
            inside.append(profile)
            apart += max(0.0, seconds - profile.seconds)
            return result

        def narrow_sign(share: np.ndarray) -> np.ndarray:
            how = np.int32, _below_zero, "narrow comparisons", NARROW_FIELD
            return bits_of(elsewhere(share, *how, fxp_fraction_bits=0), share.size)

        def squared(share: np.ndarray) -> np.ndarray:
            how = np.float32, by_squarings, "exponentials by fewer squarings", self.settings.field
            bits = self.settings.fraction_bits
            found = elsewhere(share, *how, fxp_fraction_bits=bits, fxp_exp_iters=SQUARINGS)
            return ring_elements(found, FIELD_BITS[self.settings.field])

        hand = Hand(
            self.rank,
            self.settings.fraction_bits,
            self.settings.field,
            send=messages.send,
            receive=messages.receive,
            kept=self._kept,
            narrow_sign=narrow_sign,
            squared=squared,
        )
        prepared, began = self._prepare(part), time.monotonic()
        shapes = [self._held[name][0] for name in part.inputs]
        if step.in_the_clear:
            clear = [self._in_the_clear[name] for name in part.inputs[:-1]]
            results = step.of_shares(hand, *clear, prepared, shapes)
        else:
            bits = FIELD_BITS[self.settings.field]
            if bits > 64:
                raise TwoPartyError(
                    f"the step {part.step} computes on shares of 64 bits at most, not on {self.settings.field}; "
                    "use FM64, or a program without split_exponential, narrow_comparisons, fewer_squarings, "
                    "lattice_lookup and lattice_products"
                )
            secrets = part.inputs if step.prepare is None else part.inputs[:-1]
            shares = [ring_elements(self._runtime.get_var(name), bits) for name in secrets]
            results = step.of_shares(hand, *shares, *(() if step.prepare is None else (prepared, shapes)))
        for output, values, shape, (dtype, owner) in zip(
            part.outputs, results, step.shapes(*shapes), step.results, strict=True
        ):
            owner = owner if self.settings.colocated else None
            with self._step(f"storing {output}"):
                self._runtime.set_var(output, share_of(values, shape, dtype, owner, self.settings.field))
            self._held[output] = (shape, np.dtype(dtype))
        seconds = time.monotonic() - began - apart
        return replace(together([messages.profile(seconds), *inside]), seconds=seconds)

    def reveal(self, name: str, to: int) -> np.ndarray | None:
        """The values of `name` at the party of rank `to`, None at the other, which sends its share and gets nothing."""
        if name not in self._held:
            raise ValueError(f"{name}: no such variable at the {self.name}")
        shape, dtype = self._held[name]
        with self._step(f"revealing {name}"):
            own = self._runtime.get_var(name)
        if self.rank != to:
            self._send(name, shape, dtype, own)
            return None
        other = self._receive(name, shape, dtype, own)
        return self._io.reconstruct([own, other] if self.rank == CLIENT else [other, own])

    def drop(self, name: str) -> None:
        """Free the variable; ValueError if there is none."""
        if self._held.pop(name, None) is None:
            raise ValueError(f"{name}: no such variable at the {self.name}")
        self._forget(name)
        self._runtime.del_var(name)

    def _forget(self, name: str) -> None:
        """Keep no longer what was put as `name`, nor what was made of it."""
        self._in_the_clear.pop(name, None)
        for key in [key for key in self._prepared if key[1] == name]:
            del self._prepared[key]

    def barrier(self) -> None:
        """Wait until both parties are here."""
        with self._step("waiting at a barrier"):
            self._link.barrier()

    def control(self, message: Any) -> Any:
        """The client asks the process that started it (to slow the relay, say) and gets its answer; the server None."""
        if self.rank != CLIENT:
            return None
        if self._ask is None:
            raise TwoPartyError("nothing takes this party's control messages; give run_parties an on_control")
        return self._ask(message)

    def close(self) -> None:
        """Meet the other party at a last barrier and shut the link, so that neither sees the other vanish."""
        self.barrier()
        with self._step("closing the link"):
            self._link.stop_link()

    def _checked(self, name: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {array.shape}; both parties agreed on {dtype} {shape}")
        if array.size and dtype.kind == "f":
            if not np.isfinite(array).all():
                raise ValueError(f"{name} has values that are not finite; fixed point cannot hold them")
            integer_bits = FIELD_BITS[self.settings.field] - 2 - self.settings.fraction_bits
            largest = float(np.abs(array).max())
            if largest >= 2.0**integer_bits:
                raise ValueError(f"{name} has a value of {largest:g}; the fixed point holds less than 2^{integer_bits}")
        return np.ascontiguousarray(array)

    def _compiled(self, function: Callable[..., Any], held: tuple, count: int) -> tuple[str, bytes]:
        import jax
        from spu import libspu
        from spu.utils import frontend

        key = (function, held, count)
        if key not in self._code:
            options = libspu.CompilerOptions()
            options.enable_optimize_denominator_with_broadcast = self.settings.broadcast_denominator
            made: list[int] = []

            def names(flat: list) -> list[str]:
                made.append(len(flat))
                return [f"output{i}" for i in range(len(flat))]

            executable, _ = frontend.compile(
                frontend.Kind.JAX,
                function,
                [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in held],
                {},
                [f"input{i}" for i in range(len(held))],
                [libspu.Visibility.VIS_SECRET] * len(held),
                names,
                copts=options,
            )
            if made != [count]:
                raise ValueError(f"{executable.name} gives {made[0]} arrays, but {count} outputs are named")
            self._code[key] = (executable.name, executable.code)
        return self._code[key]

    def _profile(self, start: int) -> Profile:
        """This run's profile from the log beyond byte `start`; the last line may be some moments late."""
        deadline, tried = time.monotonic() + LOG_WAIT_S, False
        while True:
            text = os.pread(self._log, os.fstat(self._log).st_size - start, start).decode(errors="replace")
            if ("Link details" in text and text.endswith("\n")) or time.monotonic() > deadline:
                return parse(text)
            if not tried and time.monotonic() > deadline - LOG_WAIT_S / 2:
                self._check_log()
                tried = True
            time.sleep(0.01)

    def _check_log(self) -> None:
        """UserError if what SPU logs cannot be written; SPU itself goes on without a word."""
        try:
            os.write(1, b"\n")
        except OSError as error:
            raise UserError(
                f"the log cannot be written, so the figures in it are lost ({error.strerror}); make room in "
                f"{tempfile.gettempdir()} or set TMPDIR to another folder"
            ) from error

    def _described(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        meta = self._runtime.get_var_meta(name)
        return tuple(meta.shape.dims), _numpy_type(meta)

    def _send(self, name: str, shape: tuple[int, ...], dtype: np.dtype, share: Any) -> None:
        """Header (JSON: name, shape, dtype, number of chunks), the share's meta, its chunks: one message each."""
        chunks = list(share.share_chunks)
        header = {"name": name, "shape": shape, "dtype": dtype.str, "chunks": len(chunks)}
        with self._step(f"sending the share of {name}"):
            for part in (json.dumps(header).encode(), share.meta, *chunks):
                self._link.send(self._other, part)

    def _receive(self, name: str, shape: tuple[int, ...], dtype: np.dtype, own: Any = None) -> Any:
        """The other party's share: of an input, secret and additive, or of the value of which `own` is ours.

        SPU takes shares as they are, so all that can be wrong with one is looked for here.
        """
        from spu import libspu

        expected = {"name": name, "shape": list(shape), "dtype": dtype.str}
        with self._step(f"waiting for the share of {name}"):
            head = self._link.recv(self._other)
            try:
                header = json.loads(head)
                chunks = header.pop("chunks")
            except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
                raise TwoPartyError(_out_of_step(name, f"{len(head)} bytes that are no share")) from None
            if header != expected or not (type(chunks) is int and 0 <= chunks <= 4096):
                raise TwoPartyError(_out_of_step(name, f"{str(header)[:120]}, not {expected}"))
            share = libspu.Share()
            share.meta = self._link.recv(self._other)
            share.share_chunks = [self._link.recv(self._other) for _ in range(chunks)]
            try:
                size = len(content_of(share))
                meta = libspu.ValueMeta()
                whole = meta.ParseFromString(share.meta)
                dims, kind = tuple(meta.shape.dims), (meta.visibility, meta.storage_type)
                found = _numpy_type(meta)
            except ValueError as error:
                raise TwoPartyError(_out_of_step(name, f"a share that cannot be read ({error})")) from None
        if own is not None:
            if share.meta != own.meta or size != len(content_of(own)):
                raise TwoPartyError(
                    f"revealing {name}: the parties hold different kinds of it; are both of one version?"
                )
            return share
        secret = (libspu.Visibility.VIS_SECRET, f"cheetah.AShr<{self.settings.field}>")
        length = math.prod(shape) * FIELD_BITS[self.settings.field] // 8
        if not whole or kind != secret or (dims, found, size) != (shape, dtype, length):
            got = f"a share {kind[1]!r} of {found} {dims} in {size} bytes"
            wanted = f"{secret[1]!r} of {dtype} {shape} in {length}"
            raise TwoPartyError(_out_of_step(name, f"{got}, not {wanted}"))
        return share

    @contextmanager
    def _step(self, doing: str) -> Iterator[None]:
        """Tell SPU's errors as ours: what was being done, what SPU said, what to do about it."""
        try:
            yield
        except (TwoPartyError, KeyboardInterrupt):
            raise
        except Exception as error:
            said = _said(error)
            if re.search(r"(?i)time-?out|timed out|channel|rpc|connection|link", said):
                limit = f"{self.settings.receive_timeout_s:g} s"
                raise TwoPartyError(
                    f"{doing}: the {NAMES[self._other]} is gone or sent nothing for {limit}; see why it stopped, or "
                    f"raise receive_timeout_s if it only computes for so long (SPU: {said})"
                ) from error
            raise


class _Messages:
    """Messages of a step, counted as SPU counts its own."""

    def __init__(self, party: Party, step: str) -> None:
        self._party, self._name = party, step
        self._sent: list[int] = []
        self._received: list[int] = []

    def send(self, message: bytes) -> None:
        self._sent.append(len(message))
        with self._party._step(f"sending a message of {self._name}"):
            self._party._link.send(self._party._other, message)

    def receive(self, size: int) -> bytes:
        """The next message; TwoPartyError unless it has `size` bytes."""
        with self._party._step(f"waiting for a message of {self._name}"):
            message = self._party._link.recv(self._party._other)
        if len(message) != size:
            raise TwoPartyError(
                f"{self._name}: the other party sent {len(message)} bytes, not {size}; do both run the same program?"
            )
        self._received.append(size)
        return message

    def profile(self, seconds: float) -> Profile:
        return Profile(sum(self._sent), sum(self._received), len(self._sent), len(self._received), seconds, ())


def _configuration(settings: Settings, field: str, fraction_bits: int) -> Any:
    from spu import libspu

    config = libspu.RuntimeConfig(
        protocol=libspu.ProtocolKind.CHEETAH,
        field=getattr(libspu.FieldType, field),
        fxp_fraction_bits=fraction_bits,
    )
    config.enable_pphlo_profile = config.enable_hal_profile = True
    # Operations in parallel would be counted into each other's bytes.
    config.experimental_enable_inter_op_par = config.experimental_enable_intra_op_par = False
    config.max_concurrency = settings.threads
    config.experimental_enable_colocated_optimization = settings.colocated
    config.cheetah_2pc_config.enable_mul_lsb_error = settings.mul_lsb_error
    return config


def _below_zero(x: Any) -> Any:
    return x < 0


def _numpy_type(meta: Any) -> np.dtype:
    from spu import libspu

    names = {
        "I1": "bool",
        "I8": "int8",
        "U8": "uint8",
        "I16": "int16",
        "U16": "uint16",
        "I32": "int32",
        "U32": "uint32",
    }
    names |= {"I64": "int64", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64"}
    for short, long in names.items():
        if meta.data_type == getattr(libspu.DataType, f"DT_{short}"):
            return np.dtype(long)
    raise ValueError(f"SPU made a value of type {meta.data_type}, which has no NumPy type")


def _said(error: Exception) -> str:
    """SPU's own words without its stack trace and source file, at most 200 characters."""
    words = " ".join(str(error).split()).split(" stacktrace:")[0]
    return re.sub(r"(what: )?\[[^\]]*\] *", "", words)[:200]


def _out_of_step(name: str, got: str) -> str:
    return f"waiting for the share of {name}, the other party sent {got}; do both parties run the same program?"
