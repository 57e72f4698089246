"""Latency arithmetic, by hand."""

from __future__ import annotations

import pytest

from aero.two_party.cost.network import Network, implied_bandwidth_mbit, lower_bound_seconds, wire_bytes


def test_latency_of_the_papers_network_by_hand():
    wan = Network(bandwidth_mbit=100, rtt_ms=80)
    # 30 MB + 20 MB at 12.5 MB/s are 4 s, 100 round trips 8 s, and 3 s of computing.
    assert wan.latency_seconds(3.0, 30e6, 20e6, 100) == pytest.approx(15.0)


def test_multiplication_of_shares_sends_both_ways_at_once_and_by_weights_alternates():
    assert wire_bytes("softmax_cover(blocks=8)", 30.0, 20.0) == wire_bytes("gelu_plain", 20.0, 30.0) == 30.0
    assert wire_bytes("linear", 30.0, 20.0) == wire_bytes("relu", 30.0, 20.0) == 50.0


def test_the_published_bytes_contradict_the_published_latency():
    """AERO Table 4, SM+LN+G: 25.32 GB at 100 Mbit/s, printed as 8.21 min."""
    assert lower_bound_seconds(25.32e9, 100, "one_way") / 60 == pytest.approx(33.76)
    assert lower_bound_seconds(25.32e9, 100) / 60 == pytest.approx(16.88)
    assert implied_bandwidth_mbit(25.32e9, 8.21 * 60) == pytest.approx(205.6, abs=0.1)
    assert implied_bandwidth_mbit(145.24e9, 30.74 * 60) == pytest.approx(315, abs=0.1)


def test_bad_input():
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        lower_bound_seconds(1, 0)
    with pytest.raises(ValueError, match="one_way or both_overlapping"):
        lower_bound_seconds(1, 1, "sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds must be positive"):
        implied_bandwidth_mbit(1, 0)
