"""The protocol and time-outs of a private two-party run, and the error that tells of its faults."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from aero.errors import UserError

CLIENT, SERVER = 0, 1
NAMES = ("client", "server")
FIELD, RING_BITS, FRACTION_BITS = "FM64", 64, 18
"""SPU's name of the ring, integers modulo 2^64, and the fixed point's binary digits after the point."""
NARROW_FIELD, NARROW_BITS = "FM32", 32
"""The ring of `narrow_comparisons`."""
VARIANT = "cheetah-FM64-18-exact"
"""Protocol, ring, fraction bits and exact products, as result files name them. The alternative to exact products, a
last bit that may be wrong, saves a quarter of their bytes, but in SPU 0.9.5 it makes about one batch of 8,192 in 10,000
wrong altogether."""


class TwoPartyError(UserError):
    """A private run could not be set up or carried through; one line naming the cause and the remedy."""


@dataclass(frozen=True)
class Settings:
    """Time-outs of one run.

    connect_timeout_s: from "this party is ready" until both are connected, at most receive_timeout_s.
    receive_timeout_s: the longest wait for one message of the peer, its computation included.
    total_timeout_s: the whole run, None for no limit.
    """

    connect_timeout_s: float = 30
    receive_timeout_s: float = 120
    total_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 0 < value < 1e6:
                raise ValueError(f"{name} {value} must be a number of seconds above 0")
        if self.connect_timeout_s > self.receive_timeout_s:
            raise ValueError(
                f"connect_timeout_s {self.connect_timeout_s:g} exceeds receive_timeout_s {self.receive_timeout_s:g}; "
                "SPU waits for the first message no longer than for any other, raise receive_timeout_s too"
            )
