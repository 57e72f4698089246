"""The process that parties are forked from: what is in it, that its children share no randomness, and how it ends."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from clear_text import found_in_memory
from test_parties import runs

from aero.pipeline import ROOT
from aero.two_party.runtime import addresses, parties
from aero.two_party.runtime.parties import Relay, Settings, TwoPartyError, run_parties
from aero.two_party.runtime.settings import CLIENT
from aero.two_party.serving.session import Client
from aero.two_party.serving.tunnel import Listener, dial
from benchmarks.long_server import descriptors


def look_around(connection):
    """In a process started as a party's: what stands in it before it is given anything."""
    parties._die_with_parent()
    server = os.getppid()
    connection.send(
        {
            "server": server,
            "threads": len(os.listdir(f"/proc/{server}/task")),
            "command": Path(f"/proc/{server}/cmdline").read_bytes(),
            "arguments": sys.argv,
            "modules": {name for name in (*parties.PRELOADED, "spu") if name in sys.modules},
        }
    )
    if connection.poll(60):
        connection.recv()


def start_one():
    context = multiprocessing.get_context(parties._start_method())
    ours, theirs = context.Pipe()
    process = context.Process(target=look_around, args=(theirs,))
    parties._begin(process, "client")
    theirs.close()
    return process, ours


def test_a_party_starts_with_code_and_nothing_else(monkeypatch):
    """The prompt is an argument of this process and in its memory, as with `aero ask`."""
    prompt = os.urandom(16).hex()
    monkeypatch.setattr(sys, "argv", ["aero", "ask", prompt])
    process, connection = start_one()
    seen = connection.recv()
    # With more than one thread a fork could wait for ever for a lock that another thread held.
    assert seen["threads"] == 1
    assert seen["modules"] == set(parties.PRELOADED)
    assert seen["arguments"] == ["aero"] and prompt.encode() not in seen["command"]
    places = {"asking": os.getpid(), "fork server": seen["server"], "party": process.pid}
    found = {name: found_in_memory(pid, {"prompt": prompt.encode()}) for name, pid in places.items()}
    assert {name: secrets for name, (secrets, _) in found.items()} == {
        "asking": {"prompt"},
        "fork server": set(),
        "party": set(),
    }
    assert all(size > 5e7 for _, size in found.values())
    connection.send("end")
    process.join(10)
    assert process.exitcode == 0


def test_renewed_after_a_failure_and_started_again_when_it_was_killed():
    servers = []
    for end in (parties.renew, lambda: os.kill(servers[-1], signal.SIGKILL), lambda: None):
        process, connection = start_one()
        servers.append(connection.recv()["server"])
        end()
        if len(servers) < 3:
            # Its children end with it, by the system's hand.
            process.join(10)
            assert process.exitcode == 255
        else:
            connection.send("end")
            process.join(10)
        assert process.exitcode is not None
    assert len(set(servers)) == 3
    assert not any(map(runs, servers[:2]))


def test_a_fork_server_that_hangs_is_renewed(monkeypatch):
    """Whoever waits for it holds the lock; it is killed before that is asked for."""
    process, connection = start_one()
    server = connection.recv()["server"]
    os.kill(server, signal.SIGSTOP)
    monkeypatch.setattr(parties, "START_TIMEOUT_S", 1.0)
    with pytest.raises(TwoPartyError, match="the client process was not up after 1 s"):
        start_one()
    monkeypatch.undo()
    began = time.monotonic()
    parties.renew()
    assert time.monotonic() - began < 20 and not runs(server)
    process.join(10)
    process, connection = start_one()
    assert connection.recv()["server"] != server
    connection.send("end")
    process.join(10)
    assert process.exitcode == 0


class Hung:
    """A fork server that has stopped, and the processes that were to come from it; it goes on at the end."""

    def __init__(self, patch):
        parties.renew()  # its standard error is then this test's
        process, connection = start_one()
        self.server = connection.recv()["server"]
        connection.send("end")
        process.join(10)
        process.close()
        self.processes, begin = [], parties._begin
        patch.setattr(parties, "_begin", lambda process, *more: (self.processes.append(process), begin(process, *more)))
        os.kill(self.server, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.server, signal.SIGCONT)

    def children(self):
        return Path(f"/proc/{self.server}/task/{self.server}/children").read_text().split()


def held():
    """How many descriptors of each kind are open here (their numbers change when one is closed and another opened),
    and the parties' files."""
    gc.collect()  # what earlier tests of this process left to the collector is not closed in the midst of this one
    kinds = Counter(link.split(":")[0] for link in descriptors(os.getpid()))
    return kinds, {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("aero-party-")}


def test_a_process_that_starts_after_it_was_given_up_ends_by_itself_and_leaves_nothing(monkeypatch, capfd):
    hung, before = Hung(monkeypatch), held()
    monkeypatch.setattr(parties, "START_TIMEOUT_S", 1.0)
    with pytest.raises(TwoPartyError, match="^the client process was not up after 1 s; is this machine overloaded"):
        run_parties(same_session, None, None, Settings())
    (late,) = hung.processes
    assert late.pid is None and not hung.children()
    hung.go_on()
    deadline = time.monotonic() + 10
    while late.pid is None and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = late.pid
    late.join(10)
    assert late.exitcode == 1 and not runs(pid) and not hung.children()
    late.close()
    assert held() == before and not multiprocessing.active_children()
    assert capfd.readouterr() == ("", "")


def test_the_loss_of_the_peer_is_noticed_while_a_process_starts(monkeypatch):
    """Not only afterwards: a first start waits for imports, and for up to START_TIMEOUT_S."""
    hung, lost = Hung(monkeypatch), SimpleNamespace(failure=None)  # nothing waits for its descriptor so early
    threading.Timer(0.5, lambda: setattr(lost, "failure", "the client at here:1 is gone: it closed")).start()
    settings, began = Settings(addresses=(addresses.free_address(), addresses.free_address())), time.monotonic()
    with pytest.raises(TwoPartyError, match="^the client at here:1 is gone: it closed$"):
        parties.run_party(CLIENT, same_session, None, settings, alarm=lost)
    assert 0.5 <= time.monotonic() - began < 3
    hung.go_on()


def test_a_start_that_does_not_end_keeps_the_next_one_for_no_longer_than_its_time(monkeypatch):
    """It holds the lock: the next start, and a client that has connected, say so and let go of their peer."""
    monkeypatch.setattr(parties, "START_TIMEOUT_S", 0.5)
    listener = Listener("127.0.0.1:0", None)
    tunnel = dial(listener.address, None)
    server = listener.establish(*listener.wait())
    with parties._STARTING:
        for start in (parties.ready, lambda: Client(tunnel, 5)):
            began = time.monotonic()
            with pytest.raises(TwoPartyError, match="no process could be started in 0.5 s, because an earlier start"):
                start()
            assert time.monotonic() - began < 3
    assert server.receive(3) == {"failed": True}
    server.close(), listener.close()


def test_a_thread_in_another_network_starts_its_parties_afresh():
    found = []

    def elsewhere():
        import ctypes

        if ctypes.CDLL(None).unshare(0x40000000) == 0:
            found.append(parties._start_method())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert parties._start_method() == "forkserver"
    if not found:
        pytest.skip("no network namespace can be made here")
    assert found == ["spawn"]


STARTER = """
import sys, time
sys.path[:0] = sys.argv[1:3]
import test_fork_server
if __name__ == "__main__":
    process, connection = test_fork_server.start_one()
    print(process.pid, connection.recv()["server"], flush=True)
    time.sleep(60)
"""


def test_nothing_is_left_when_the_starter_is_killed(tmp_path):
    script, here = tmp_path / "starter.py", Path(__file__).resolve()
    script.write_text(STARTER)
    command = [sys.executable, str(script), str(here.parent), str(here.parents[2])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        pids = starter.stdout.readline().split()
        assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
        starter.kill()
    killed = time.monotonic()
    party, server = pids
    while runs(party) and time.monotonic() < killed + 1:
        time.sleep(0.02)
    assert not runs(party)
    while runs(server) and time.monotonic() < killed + 10:  # it takes its leave of PyTorch first
        time.sleep(0.02)
    assert not runs(server)


def test_the_fork_server_ends_with_a_starter_that_ends_in_order():
    code = "from aero.two_party import parties; parties.ready(); print(parties.forkserver._forkserver._forkserver_pid)"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0 and not runs(int(finished.stdout)), finished.stderr


def relu_and_product(x, w):
    return jnp.maximum(x @ w, 0)


def same_session(party, own):
    x = np.ones((8, 8), np.float32)
    for name in ("x", "w"):
        party.put(name, x if party.rank == CLIENT else None, (8, 8), from_rank=CLIENT)
    party.run(relu_and_product, ["x", "w"], ["y"])
    return os.getppid()


def common(one, other):
    """The fraction of the 8-byte words of `one`, zeros left out, that stand in `other` at any offset."""
    words = np.unique(np.frombuffer(one, "<u8", count=len(one) // 8))
    found = np.zeros(len(words), bool)
    for offset in range(8):
        found |= np.isin(words, np.frombuffer(other, "<u8", count=(len(other) - offset) // 8, offset=offset))
    return found[words != 0].mean()


def test_parties_of_one_fork_server_share_no_randomness():
    """Two sessions on the same inputs: shares, keys and ciphertexts of each direction differ, between the sessions and
    between client and server of one."""
    streams, servers = [], set()
    for _ in range(2):
        relay = Relay(record=True)
        servers |= set(run_parties(same_session, None, None, Settings(), relay=relay))
        streams.append(relay.recorded)
    assert len(servers) == 1
    (one_up, one_down), (other_up, other_down) = streams
    assert min(map(len, (*streams[0], *streams[1]))) > 1e6
    assert common(one_up, one_up) == 1  # the search finds what is there
    for a, b in ((one_up, other_up), (one_down, other_down), (one_up, one_down)):
        assert common(a, b) < 0.01


def test_a_party_that_cannot_be_started_is_one_line(monkeypatch):
    def refused(*_):
        raise OSError("Too many open files")

    monkeypatch.setattr(parties.forkserver._forkserver, "connect_to_new_process", refused)
    monkeypatch.setattr(parties.forkserver, "connect_to_new_process", refused)
    with pytest.raises(TwoPartyError, match="the client process could not be started .Too many open files.; run again"):
        run_parties(same_session, None, None, Settings())
    assert not multiprocessing.active_children()


def test_a_folder_whose_name_is_too_long_for_a_socket_is_told(tmp_path):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    code = (
        "from aero.errors import run_main\nfrom aero.two_party import parties\nrun_main(lambda _: parties.ready(), [])"
    )
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert run.returncode == 1 and run.stderr.count("\n") == 1
    assert str(folder) in run.stderr and "set TMPDIR to a folder with a shorter one" in run.stderr
