"""Latency arithmetic, by hand."""

from __future__ import annotations

import pytest

from aero.two_party.cost.network import Network, wire_bytes


def test_latency_of_the_papers_network_by_hand():
    wan = Network(bandwidth_mbit=100, rtt_ms=80)
    # 50 MB at 12.5 MB/s are 4 s, 100 round trips 8 s, and 3 s of computing.
    assert wan.latency_seconds(3.0, 50e6, 100) == pytest.approx(15.0)


def test_multiplication_of_shares_sends_both_ways_at_once_and_by_weights_alternates():
    assert wire_bytes("softmax_cover(blocks=8)", 30.0, 20.0) == wire_bytes("gelu_plain", 20.0, 30.0) == 30.0
    assert wire_bytes("linear", 30.0, 20.0) == wire_bytes("relu", 30.0, 20.0) == 50.0
