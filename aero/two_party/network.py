"""From bytes, rounds and computing time to latency, and back from published latency to the bandwidth it implies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Directions = Literal["one_way", "both_overlapping"]


@dataclass(frozen=True)
class Network:
    """A link between the two parties: bandwidth in Mbit/s for each direction, round-trip time in milliseconds."""

    bandwidth_mbit: float
    rtt_ms: float

    @property
    def bytes_per_second(self) -> float:
        return self.bandwidth_mbit * 1e6 / 8

    def transfer_seconds(self, bytes_client: float, bytes_server: float) -> float:
        """Time on the wire: the two directions are separate (full duplex) but rarely used at once, so they add up.

        SPU's Cheetah protocols alternate: a party that waits for a message sends nothing meanwhile.
        """
        return (bytes_client + bytes_server) * 8 / (self.bandwidth_mbit * 1e6)

    def latency_seconds(self, compute: float, bytes_client: float, bytes_server: float, rounds: float) -> float:
        """compute + bytes / bandwidth + rounds x RTT, in seconds; computing and transfer are not overlapped."""
        return compute + self.transfer_seconds(bytes_client, bytes_server) + rounds * self.rtt_ms / 1e3


def lower_bound_seconds(
    total_bytes: float, bandwidth_mbit: float, directions: Directions = "both_overlapping"
) -> float:
    """Least time that `total_bytes`, both directions together, need on a link of `bandwidth_mbit` each way.

    "both_overlapping": half of the bytes each way at once, the most favourable reading of a published figure.
    "one_way": all bytes one after the other. Neither counts any computing or any round trip.
    """
    if bandwidth_mbit <= 0:
        raise ValueError(f"bandwidth must be positive, got {bandwidth_mbit} Mbit/s")
    if directions not in ("one_way", "both_overlapping"):
        raise ValueError(f"directions must be one_way or both_overlapping, got {directions!r}")
    seconds = total_bytes * 8 / (bandwidth_mbit * 1e6)
    return seconds / 2 if directions == "both_overlapping" else seconds


def implied_bandwidth_mbit(total_bytes: float, seconds: float) -> float:
    """Least bandwidth each way, in Mbit/s, that a published latency of `seconds` allows for `total_bytes`."""
    if seconds <= 0:
        raise ValueError(f"seconds must be positive, got {seconds}")
    return total_bytes * 8 / seconds / 1e6 / 2
