"""What a private two-party run is set to, and the error that tells of its faults."""

from __future__ import annotations

from dataclasses import dataclass

from aero.errors import UserError

CLIENT, SERVER = 0, 1
NAMES = ("client", "server")
FIELD_BITS = {"FM32": 32, "FM64": 64, "FM128": 128}
NARROW_FIELD = "FM32"
"""The ring of `narrow_comparisons`."""


class TwoPartyError(UserError):
    """A private run could not be set up or carried through; one line naming the cause and the remedy."""


@dataclass(frozen=True)
class Settings:
    """Protocol (SPU's Cheetah), fixed point and time-outs of one run. Both parties must use equal settings.

    field: the ring, FM32, FM64 or FM128 (integers modulo 2^64 for FM64); fraction_bits: binary digits after the point.
    mul_lsb_error: let a product's last fixed-point bit be wrong, which saves a quarter of the bytes of products. Leave
        it off: in SPU 0.9.5 it also makes about one batch of 8,192 products in 10,000 wrong altogether, and with it the
        logits of one forward pass in a hundred even of a small model.
    broadcast_denominator: divide by a broadcast denominator with one reciprocal per row, not one per entry.
    colocated: a tensor that one party holds in the clear (the server's weights) is used as such, never secret-shared.
    threads: what SPU may use in each party. It splits oblivious transfers by this number, so set-up bytes and message
    counts depend on it (not on the machine's cores): leave it where figures are compared.
    connect_timeout_s: from "this party is ready" until both are connected, at most receive_timeout_s.
    receive_timeout_s: the longest wait for one message of the peer, its computation included.
    total_timeout_s: the whole run, None for no limit.
    """

    field: str = "FM64"
    fraction_bits: int = 18
    mul_lsb_error: bool = False
    broadcast_denominator: bool = True
    colocated: bool = True
    connect_timeout_s: float = 30
    receive_timeout_s: float = 120
    total_timeout_s: float | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.field not in FIELD_BITS:
            raise ValueError(f"field {self.field!r} is unknown; choose one of {', '.join(FIELD_BITS)}")
        # A product has twice the fraction bits before it is truncated, and needs a sign and some integer bits.
        most = FIELD_BITS[self.field] // 2 - 4
        if not 1 <= self.fraction_bits <= most:
            raise ValueError(f"fraction_bits {self.fraction_bits} is impossible in {self.field}; choose 1 to {most}")
        for name in ("connect_timeout_s", "receive_timeout_s", "total_timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise ValueError(f"{name} {value} must be a number of seconds above 0")
        if self.connect_timeout_s > self.receive_timeout_s:
            raise ValueError(
                f"connect_timeout_s {self.connect_timeout_s:g} exceeds receive_timeout_s {self.receive_timeout_s:g}; "
                "SPU waits for the first message no longer than for any other, raise receive_timeout_s too"
            )
        if self.threads < 1:
            raise ValueError(f"threads {self.threads} must be at least 1")
