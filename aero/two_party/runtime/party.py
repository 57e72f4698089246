"""One party of a private run, in a process of its own: its variables, its runs, and steps on its shares.

What goes over the link beside SPU's own messages: a share of each input that no party owns, the messages of steps on
shares (`aero.two_party.lattice`), and the share of each output, in the one direction that `reveal` names. A share of
a secret is uniformly random to whoever lacks the other one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from aero.two_party.lattice.ring import ring_elements, share_of
from aero.two_party.runtime.channel import Channel, StepMessages
from aero.two_party.runtime.engine import Described, Engine
from aero.two_party.runtime.profile import Profile, together
from aero.two_party.runtime.settings import CLIENT, FIELD, FRACTION_BITS, NAMES, NARROW_FIELD, RING_BITS, Settings

if TYPE_CHECKING:
    from aero.two_party.lattice.share_steps import StepContext
    from aero.two_party.program.plan import Plan, ShareStep


class Party:
    """A connected party. Both parties must call `put`, `run`, `reveal` and `barrier` in the same order.

    Raises TwoPartyError when the other party is gone or silent for `receive_timeout_s`, or out of step with this one.
    """

    def __init__(
        self, rank: int, addresses: Sequence[str], settings: Settings, log: int, ask: Callable[[Any], Any]
    ) -> None:
        """Connect; `addresses` (client's, server's) as this party dials them, its own being where it listens.

        log: descriptor of the file that this process's standard output goes to, open for reading.
        ask: how `control` reaches the process that started this one.
        """
        self.rank = rank
        self._log, self._ask = log, ask
        self._channel = Channel(rank, addresses, settings)
        self._engine = Engine(self._channel, self._channel.link, log)
        self._held: dict[str, Described] = {}
        self._plans: dict[tuple, Plan | None] = {}
        # Inputs that one party has in the clear, as it put them (None at the other), and what steps prepared from them.
        self._clear: dict[str, np.ndarray | None] = {}
        self._prepared: dict[tuple[str, str], Any] = {}
        self._session_state: dict[str, Any] = {}  # what steps keep for later steps of this session
        self._step_engines: dict[str, Engine] = {}  # for steps in another ring or with other settings of SPU

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

        owner=None: secret, and the other party is sent its share. owner=from_rank: `from_rank` keeps it in the clear
        and nothing is sent.
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
            self._clear[name] = array
        if array is None and owner is None:
            share = self._channel.receive_share(name, shape, dtype)
        else:
            # The share of what the other party owns is zeros, whatever the values.
            values = np.zeros(shape, dtype) if array is None else array
            shares = self._engine.io.make_shares(values, libspu.Visibility.VIS_SECRET, -1 if owner is None else owner)
            if owner is None:
                self._channel.send_share(name, shape, dtype, shares[self._channel.other])
            share = shares[self.rank]
        self._engine.runtime.set_var(name, share)
        self._held[name] = Described(shape, dtype)

    def put_public(self, name: str, array: np.ndarray) -> None:
        """Make `name` an input that both parties know: both give the same array, and nothing is sent.

        ValueError as for `put`.
        """
        from spu import libspu

        array = self._checked(name, array, array.shape, array.dtype)
        self._forget(name)
        shares = self._engine.io.make_shares(array, libspu.Visibility.VIS_PUBLIC)
        self._engine.runtime.set_var(name, shares[self.rank])
        self._held[name] = Described(array.shape, array.dtype, public=True)

    def run(
        self,
        function: Callable[..., Any],
        inputs: Sequence[str],
        outputs: Sequence[str],
        donate: Sequence[str] = (),
        before_part: Callable[[Sequence[str], int], Any] = lambda inputs, size: None,
    ) -> Profile:
        """Compute `outputs` = function(*inputs) privately, function being JAX; drop the inputs named in `donate`.

        Compiled from shapes alone, once for each function and shapes: pass the same function object
        again, not a new lambda. The first runs of a pair pay for set-up (keys, oblivious transfers), and now and then
        a run pays for a new stock of those. A function with steps on shares (`aero.two_party.lattice.share_steps`)
        takes several runs of SPU; `before_part` is called before each of its parts, with the names of the part's inputs
        and the bytes so far. ValueError for a wrong number of outputs.
        """
        plan = self._plan(function, inputs, outputs)
        if plan is None:
            profile = self._run_on_spu(function, inputs, outputs)
        else:
            from aero.two_party.program.plan import Segment

            profiles: list[Profile] = []
            for part, unneeded in plan:
                before_part(part.inputs, sum(profile.bytes for profile in profiles))
                if isinstance(part, Segment):
                    profiles.append(self._run_on_spu(part.function, part.inputs, part.outputs))
                else:
                    profiles.append(self._run_step(part))
                for name in unneeded:
                    self.drop(name)
            profile = together(profiles)
        for name in donate:
            if name not in outputs:
                self.drop(name)
        return profile

    def prepare(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> float:
        """Compute what `run` of the same needs of the server's own inputs alone; returns seconds until both are ready.

        It is kept until that input is put again or dropped. Without this call the first `run` computes it.
        """
        from aero.two_party.program.plan import ShareStep

        plan, known, start = self._plan(function, inputs, outputs), len(self._prepared), time.monotonic()
        for part, _ in plan or ():
            if isinstance(part, ShareStep):
                self._prepare(part)
        if len(self._prepared) > known:
            self.barrier()
        return time.monotonic() - start

    def reveal(self, name: str, to: int) -> np.ndarray | None:
        """The values of `name` at the party of rank `to`, None at the other, which sends its share and gets nothing."""
        shape, dtype, _ = self._held[name]
        own = self._engine.runtime.get_var(name)
        if self.rank != to:
            self._channel.send_share(name, shape, dtype, own)
            return None
        other = self._channel.receive_share(name, shape, dtype, own)
        return self._engine.io.reconstruct([own, other] if self.rank == CLIENT else [other, own])

    def drop(self, name: str) -> None:
        """Free the variable."""
        del self._held[name]
        self._forget(name)
        self._engine.runtime.del_var(name)

    def barrier(self) -> None:
        """Wait until both parties are here."""
        with self._channel.step("waiting at a barrier"):
            self._channel.link.barrier()

    def control(self, message: Any) -> Any:
        """The client asks the process that started it (to slow the relay, say) and gets its answer; the server None."""
        return self._ask(message) if self.rank == CLIENT else None

    def close(self) -> None:
        """Close the link, behind a last barrier. SPU may end this process if the other party closes it first."""
        with self._channel.step("closing the link"):
            self._channel.link.stop_link()

    def _checked(self, name: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {array.shape}; both parties agreed on {dtype} {shape}")
        if array.size and dtype.kind == "f":
            if not np.isfinite(array).all():
                raise ValueError(f"{name} has values that are not finite; fixed point cannot hold them")
            integer_bits = RING_BITS - 2 - FRACTION_BITS
            largest = float(np.abs(array).max())
            if largest >= 2.0**integer_bits:
                raise ValueError(f"{name} has a value of {largest:g}; the fixed point holds less than 2^{integer_bits}")
        return np.ascontiguousarray(array)

    def _forget(self, name: str) -> None:
        """Drop the clear values put as `name`, and what was prepared from them."""
        self._clear.pop(name, None)
        for key in [key for key in self._prepared if key[1] == name]:
            del self._prepared[key]

    def _run_on_spu(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> Profile:
        profile = self._engine.run(function, tuple(self._held[name] for name in inputs), inputs, list(outputs))
        for output in outputs:
            self._held[output] = self._engine.describe(output)
        return profile

    def _plan(self, function: Callable[..., Any], inputs: Sequence[str], outputs: Sequence[str]) -> Plan | None:
        """The parts of a function with steps on shares; None for a function without."""
        import jax

        from aero.two_party.program.plan import plan

        key = (function, tuple(inputs), tuple(outputs), tuple(self._held[name] for name in inputs))
        if key not in self._plans:
            held = [self._held[name] for name in inputs]
            arguments = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in held]
            public = {name for name, one in zip(inputs, held, strict=True) if one.public}
            self._plans[key] = plan(function, arguments, inputs, outputs, public)
        return self._plans[key]

    def _prepare(self, part: ShareStep) -> Any:
        """What the step prepares from its last input; None for a step that prepares nothing."""
        from aero.two_party.lattice.share_steps import STEPS

        step, name = STEPS[part.step], part.inputs[-1]
        if step.prepare is None:
            return None
        key = part.step, name
        if key not in self._prepared:
            context = self._step_context(StepMessages(self._channel, part.step), [])
            self._prepared[key] = step.prepare(context, self._clear[name])
        return self._prepared[key]

    def _run_step(self, part: ShareStep) -> Profile:
        """Run a step on this party's shares; its profile counts the step's own messages and its runs of SPU."""
        from aero.two_party.lattice.share_steps import STEPS

        step, messages = STEPS[part.step], StepMessages(self._channel, part.step)
        runs: list[tuple[Profile, float]] = []
        context = self._step_context(messages, runs)
        prepared, start = self._prepare(part), time.monotonic()
        shapes = [self._held[name].shape for name in part.inputs]
        last = () if step.prepare is None else (prepared, shapes)
        if step.in_the_clear:
            results = step.of_shares(context, *(self._clear[name] for name in part.inputs[:-1]), *last)
        else:
            secrets = part.inputs if step.prepare is None else part.inputs[:-1]
            shares = (ring_elements(self._engine.runtime.get_var(name), "AShr") for name in secrets)
            shares = (share.reshape(self._held[name].shape) for name, share in zip(secrets, shares, strict=True))
            results = step.of_shares(context, *shares, *last)
        for output, values, (shape, dtype), owner in zip(part.outputs, results, part.types, step.owners, strict=True):
            self._engine.runtime.set_var(output, share_of(values, shape, dtype, owner, FIELD))
            self._held[output] = Described(shape, dtype)
        # Compiling and reading the log are no part of the cost, as in any run of SPU.
        overhead = sum(max(0.0, seconds - profile.seconds) for profile, seconds in runs)
        profile = together([messages.profile(), *(profile for profile, _ in runs)])
        return replace(profile, seconds=time.monotonic() - start - overhead)

    def _step_context(self, messages: StepMessages, runs: list[tuple[Profile, float]]) -> StepContext:
        """What a step may use of this party. Its runs of SPU are added to `runs`: profile and seconds in all."""
        from aero.two_party.lattice.share_steps import StepContext, by_exponential

        def run(share: np.ndarray, dtype: Any, function: Callable[..., Any], engine: Engine, ring: str) -> Any:
            """This party's share of function(x), from its share (n,) of x in the ring."""
            described = Described(share.shape, np.dtype(dtype))
            engine.runtime.set_var("x", share_of(share, described.shape, described.dtype, None, ring))
            start = time.monotonic()
            profile = engine.run(function, (described,), ["x"], ["y"])
            runs.append((profile, time.monotonic() - start))
            result = engine.runtime.get_var("y")
            for name in ("x", "y"):
                engine.runtime.del_var(name)
            return result

        def narrow_sign(share: np.ndarray) -> np.ndarray:
            engine = self._step_engine("narrow comparisons", field=NARROW_FIELD, fraction_bits=0)
            return ring_elements(run(share, np.int32, _below_zero, engine, NARROW_FIELD), "BShr") & np.uint64(1)

        def squared(share: np.ndarray) -> np.ndarray:
            engine = self._step_engine("squares", fxp_exp_iters=1)
            return ring_elements(run(share, np.float32, by_exponential, engine, FIELD), "AShr")

        return StepContext(
            self.rank,
            send=messages.send,
            receive=messages.receive,
            kept=self._session_state,
            narrow_sign=narrow_sign,
            squared=squared,
        )

    def _step_engine(self, purpose: str, **options: Any) -> Engine:
        """A further SPU runtime, over a link of its own through the same connection."""
        if purpose not in self._step_engines:
            with self._channel.step(f"setting up the protocol of {purpose}"):
                link = self._channel.link.spawn()
            self._step_engines[purpose] = Engine(self._channel, link, self._log, **options)
        return self._step_engines[purpose]


def _below_zero(x: Any) -> Any:
    return x < 0
