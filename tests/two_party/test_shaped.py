"""Shaped links against known transfers: bytes / rate and the round trip, within a few per cent, in both ways."""

from __future__ import annotations

import multiprocessing
import socket

import numpy as np
import pytest

from aero.two_party.cost.network import Network
from aero.two_party.runtime import shaped_link as shaped
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings, TwoPartyError
from aero.two_party.runtime.shaped_link import PAYLOAD_SHARE, Namespaces, kernel_lacks, probe, run_shaped

RATE_ONLY = Network(100, 0)


def best_probe(network: Network | None, way: str, size: int):
    """The fastest of up to three: other work on this machine can hold a transfer up, nothing can speed it up."""
    found = [probe(network, way, size) for _ in range(3)]
    return max(found, key=lambda one: one.bytes_per_second), min(one.rtt_s for one in found)


def kernel(network: Network):
    """A mark that skips where this kernel, or this user, cannot make such a link, and says why."""
    lacks = kernel_lacks(network)
    return pytest.mark.skipif(bool(lacks), reason=lacks)


@pytest.mark.parametrize(
    ("network", "size"), [(Network(100, 80), 12_500_000), (Network(1000, 1), 100_000_000), (Network(1000, 80), 10**8)]
)
def test_relay_takes_as_long_as_the_arithmetic_says(network, size):
    found, rtt = best_probe(network, "relay", size)
    assert found.bytes_per_second == pytest.approx(network.bytes_per_second, rel=0.05)
    # A busy machine wakes the relay a fraction of a millisecond late, never early.
    assert network.rtt_ms / 1e3 <= rtt <= network.rtt_ms / 1e3 * 1.05 + 5e-4


def test_relay_alone_is_much_faster_than_what_it_shapes():
    found, rtt = best_probe(None, "relay", 200_000_000)
    assert found.bytes_per_second > 1.5 * Network(1000, 1).bytes_per_second
    assert rtt < 5e-4


@kernel(RATE_ONLY)
@pytest.mark.parametrize("network", [RATE_ONLY, Network(1000, 0)])
def test_kernel_holds_the_rate_of_frames(network):
    found, rtt = best_probe(network, "kernel", int(network.bytes_per_second))
    assert found.bytes_per_second == pytest.approx(network.bytes_per_second * PAYLOAD_SHARE, rel=0.05)
    assert rtt < 1e-3


@kernel(Network(100, 80))
def test_kernel_delays_both_ways():
    found = probe(Network(100, 80), "kernel", 25_000_000)
    assert found.rtt_s == pytest.approx(0.080, rel=0.05)
    # Slow start costs some round trips more than the rate alone.
    assert found.bytes_per_second == pytest.approx(12.5e6 * PAYLOAD_SHARE, rel=0.25)


def double(x):
    return x * 2.0


def secret_task(party: Party, given: float) -> float:
    """The client's number doubled, so that shares, protocol and answer all cross the link."""
    own = np.full((2, 3), given, np.float32) if party.rank == CLIENT else None
    party.put("x", own, (2, 3), from_rank=CLIENT)
    party.run(double, ["x"], ["y"])
    y = party.reveal("y", to=CLIENT)
    return float("nan") if y is None else float(y[0, 0])


def failing_task(party: Party, given: float) -> None:
    if party.rank == SERVER:
        raise ValueError("the server's own trouble")
    party.barrier()


@pytest.mark.parametrize("way", [pytest.param("kernel", marks=kernel(RATE_ONLY)), "relay"])
def test_a_private_computation_over_either_link(way):
    client, server = run_shaped(secret_task, 1.5, 0.0, Settings(), RATE_ONLY, way)
    assert client == pytest.approx(3.0, abs=1e-3) and np.isnan(server)


@kernel(RATE_ONLY)
def test_a_failing_party_is_told_and_nothing_is_left():
    before = {name for _, name in socket.if_nameindex()}
    quick = Settings(connect_timeout_s=5, receive_timeout_s=5)
    with pytest.raises(TwoPartyError, match="the server's own trouble|the server is gone"):
        run_shaped(failing_task, 0.0, 0.0, quick, RATE_ONLY, "kernel")
    assert {name for _, name in socket.if_nameindex()} == before
    assert not multiprocessing.active_children()
    with Namespaces(RATE_ONLY):
        pass


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(shaped.shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    assert "no `tc` here" in kernel_lacks(RATE_ONLY)
    monkeypatch.setattr(shaped.shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(shaped, "_own_namespace", lambda: shaped._command("false because"))
    assert "`false because` failed" in kernel_lacks(RATE_ONLY)


def test_shapers_are_the_network():
    assert shaped._shapers("aero0", None) == []
    delay, rate = shaped._shapers("aero0", Network(100, 80))
    assert "root handle 1: netem delay 40ms" in delay
    assert "parent 1:1 handle 10: tbf rate 100000000bit burst 25000" in rate
    assert len(shaped._shapers("aero0", RATE_ONLY)) == 1
