"""Faults of a running session between hosts: both processes end within a stated time, with one line, no result."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from middle import Middle

from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, NAMES, SERVER, Settings, TwoPartyError
from aero.two_party.serving.listener import Listener
from aero.two_party.serving.session import run_through
from aero.two_party.serving.tls import make_certificates, tls_context
from aero.two_party.serving.tunnel import DATA, dial

ENDLESS = 100_000  # runs: more than any test waits for


def relu(x):
    return jnp.maximum(x, 0)


def many_runs(party, own):
    """Runs until something happens; the client reports each before it. own: (folder for process ids, log limit)."""
    folder, log_bytes = own
    Path(folder, party.name).write_text(str(os.getpid()))
    if log_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log_bytes, log_bytes))
    party.put("x", np.ones((8, 8), np.float32) if party.rank == CLIENT else None, (8, 8), from_rank=CLIENT)
    for index in range(ENDLESS):
        party.control(index)
        party.run(relu, ["x"], ["y"])
        party.reveal("y", to=CLIENT)
    return "a stale result"


def gone(folder):
    """Whether both party processes have ended."""
    return not any(Path(f"/proc/{(folder / name).read_text()}").exists() for name in NAMES)


@pytest.mark.slow
def test_a_full_disk_under_a_partys_log(tmp_path):
    """SPU goes on when its log cannot be written, so the costs would be missing or old: noticed within 8 s."""
    last = []
    limits = [(str(tmp_path), 20_000 if party == SERVER else None) for party in (CLIENT, SERVER)]
    with pytest.raises(TwoPartyError, match="^server: the log .* is the disk full") as caught:
        run_parties(many_runs, *limits, Settings(), on_control=lambda index: last.append(time.monotonic()))
    assert time.monotonic() - last[-1] < 8 and "\n" not in str(caught.value)
    assert gone(tmp_path)


def between_hosts(folder, contexts, dialled, settings, spoil=None, act=None):
    """A session through a tunnel; returns {rank: (line, when)}. spoil(tunnel) is done to the server's tunnel."""
    listener, ended = Listener("127.0.0.1:0", contexts[SERVER]), {}
    address = dialled(listener.address)

    def side(rank):
        if rank == SERVER:
            tunnel = listener.arrival().tunnel
            if spoil is not None:
                spoil(tunnel)
        else:
            tunnel = dial(address, contexts[CLIENT])
            tunnel.send({"hello": "you"})
        try:
            own = (str(folder), None)
            ended[rank] = run_through(tunnel, rank, many_runs, own, settings, act if rank == CLIENT else None)
        except TwoPartyError as error:
            tunnel.give_up()
            ended[rank] = (str(error), time.monotonic())

    threads = [threading.Thread(target=side, args=(rank,)) for rank in (SERVER, CLIENT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    listener.close()
    return ended


@pytest.mark.parametrize(
    ("fault", "said", "receive_s", "within_s"),
    [
        ("garble", "changed on the way", 60, 4),
        pytest.param("hold", "is gone or sent nothing for 6 s", 6, 6 + 10, marks=pytest.mark.slow),
    ],
)
def test_a_link_that_garbles_or_stalls(tmp_path, fault, said, receive_s, within_s):
    """With someone in the middle of the connection, who acts while the parties compute."""
    make_certificates(tmp_path, ["127.0.0.1"])
    files = [(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem") for name in NAMES]
    contexts = [tls_context(*files[rank], server=rank == SERVER) for rank in (CLIENT, SERVER)]
    middles, acted = [], []

    def dialled(address):
        middles.append(Middle(address))
        return middles[0].address

    def act(index):
        if index == 5:
            acted.append(time.monotonic())
            getattr(middles[0], fault)()

    settings = Settings(connect_timeout_s=6, receive_timeout_s=receive_s)
    ended = between_hosts(tmp_path, contexts, dialled, settings, act=act)
    middles[0].close()
    assert re.search(said, "; ".join(line for line, _ in ended.values()))
    for line, at in ended.values():
        assert at - acted[0] < within_s and "\n" not in line
        assert re.search(f"{said}|gave up on this question|is gone", line)
    assert gone(tmp_path)


def test_a_side_whose_frames_are_valid_and_whose_protocol_is_not(tmp_path):
    """Every checksum is right, as only a hostile peer can make it; SPU gets ciphertexts with a flipped bit."""
    acted = []

    def spoil(tunnel):
        write = tunnel._write

        async def spoilt(kind, channel, content):
            if acted and kind == DATA and content:
                middle = len(content) // 2
                content = content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :]
            await write(kind, channel, content)

        tunnel._write = spoilt

    def act(index):
        if index == 5:
            acted.append(time.monotonic())

    settings = Settings(connect_timeout_s=6, receive_timeout_s=6)
    ended = between_hosts(tmp_path, (None, None), lambda address: address, settings, spoil, act)
    assert acted and set(ended) == {CLIENT, SERVER}
    for line, at in ended.values():
        assert at - acted[0] < 6 + 10 and "\n" not in line
        assert re.search(r"is gone|process ended by|gave up on this question", line)
    assert gone(tmp_path)


def test_a_client_that_says_it_is_done_at_once_and_leaves(tmp_path):
    """The server's party waits for the client's: ended within 4 s, not after --timeout."""
    listener, left = Listener("127.0.0.1:0", None), []

    def leave():
        client = dial(listener.address, None)
        client.send({"hello": "you"})
        client.carry("127.0.0.1:1")
        client.send({"done": True})
        time.sleep(4)
        client.close()
        left.append(time.monotonic())

    client = threading.Thread(target=leave)
    client.start()
    server = listener.arrival().tunnel
    with pytest.raises(TwoPartyError, match="^the client at .* is gone: it closed the connection$"):
        run_through(server, SERVER, many_runs, (str(tmp_path), None), Settings(connect_timeout_s=60))
    ended = time.monotonic()
    client.join()
    server.give_up(), listener.close()
    assert ended - left[0] < 4
    assert not [child for child in multiprocessing.active_children() if child.name == "aero-server"]
