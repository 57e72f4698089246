"""The relay against plain sockets: what passes is unchanged, late by the delay and no faster than the rate."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from middle import Echo, RecordingRelay

from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, SERVER


@pytest.fixture
def echoes():
    both = (Echo(), Echo())
    yield both
    for echo in both:
        echo.socket.close()


@pytest.fixture
def relay():
    made = Relay()
    yield made
    made.close()


def dial(door):
    host, port = door.split(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def round_trip(door, data):
    """Seconds until all of `data` has come back, and what came back."""
    with dial(door) as connection:
        start = time.monotonic()
        threading.Thread(target=connection.sendall, args=(data,), daemon=True).start()
        got = bytearray()
        while len(got) < len(data):
            piece = connection.recv(1 << 16)
            assert piece, "the relay closed the connection"
            got += piece
        return time.monotonic() - start, bytes(got)


def test_bytes_pass_unchanged_and_are_recorded_by_direction(echoes):
    relay = RecordingRelay()
    doors = relay.open([echo.address for echo in echoes])
    data = os.urandom(3_000_000)
    assert round_trip(doors[SERVER], data)[1] == data
    assert round_trip(doors[CLIENT], data[:1000])[1] == data[:1000]
    relay.close()
    assert relay.recorded == (data + data[:1000], data + data[:1000])


def test_delay_is_one_way_and_can_be_set_while_running(echoes, relay):
    relay.delay_s = 0.1
    doors = relay.open([echo.address for echo in echoes])
    assert 0.2 <= round_trip(doors[SERVER], b"x")[0] < 0.5
    relay.delay_s = 0.0
    assert round_trip(doors[SERVER], b"x")[0] < 0.15
    relay.delay_s = 0.2
    assert 0.4 <= round_trip(doors[CLIENT], b"x")[0] < 0.7


def test_rate_holds_for_all_connections_of_a_direction_together(echoes, relay):
    """2 x 1 MB at 2 MB/s take 1 s to leave and the echo's last piece little more; alone, 1 MB takes half of that."""
    relay.bandwidth_bytes = 2e6
    door = relay.open([echo.address for echo in echoes])[SERVER]
    assert 0.5 <= round_trip(door, bytes(1_000_000))[0] < 1.0
    with ThreadPoolExecutor() as both:
        taken = both.map(round_trip, [door] * 2, [bytes(1_000_000)] * 2)
    assert 1.0 <= max(seconds for seconds, _ in taken) < 1.8


def test_the_end_of_a_connection_and_an_absent_target_are_passed_on(echoes, relay):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        doors = relay.open([f"127.0.0.1:{unused.getsockname()[1]}", echoes[1].address])
        with dial(doors[SERVER]) as connection:
            connection.sendall(b"last words")
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b"last words"
            assert connection.recv(100) == b""
        with dial(doors[CLIENT]) as connection:
            assert connection.recv(100) == b""


def test_closing_frees_the_ports(echoes):
    relay = Relay()
    doors = relay.open([echo.address for echo in echoes])
    relay.close()
    with pytest.raises(OSError):
        dial(doors[SERVER])
