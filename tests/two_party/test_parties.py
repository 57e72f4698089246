"""Two real processes with SPU between them: results, bytes, what crosses the link, and how failures are reported."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from clear_text import STEP, found_in_memory, occurrences, unprotected
from middle import RecordingRelay, wait_until

from aero.two_party.runtime import engine, parties, processes
from aero.two_party.runtime.addresses import free_address
from aero.two_party.runtime.parties import CLIENT, SERVER, Settings, TwoPartyError, run_parties, run_party
from aero.two_party.runtime.processes import end_with_parent
from aero.two_party.runtime.profile import check_pair

N = 64
RNG = np.random.default_rng(20241013)
DECOY = RNG.uniform(1, 2, size=16).astype(np.float32)  # sent in the clear on purpose
IN_THE_CLEAR = DECOY.tobytes() + np.floor(DECOY / STEP).astype("<i8").tobytes()
X, Y, W = (RNG.normal(size=(N, N)).astype(np.float32) for _ in range(3))


def relu(x):
    return jnp.maximum(x, 0)


def matmul(x, w):
    return x @ w


def sum_and_count(x, y):
    return x + y, jnp.sum(x > 0, axis=1)


def refusal(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return "accepted"


def session(party, own):
    """The one long task that most tests share; returns {name: profile or array or text} of this party."""
    client = party.rank == CLIENT
    x, y, w = (own["x"], None, None) if client else (None, own["y"], own["w"])
    out = {}
    party.put("x", x, (N, N), from_rank=CLIENT)
    party.put("y", y, (N, N), from_rank=SERVER)
    party.put("w", w, (N, N), owner=SERVER, from_rank=SERVER)
    party.put("w_shared", w, (N, N), from_rank=SERVER)
    for i in range(3):
        out[f"relu {i}"] = party.run(relu, ["x"], ["relu"])
    for i in range(3):
        out[f"matmul {i}"] = party.run(matmul, ["x", "w"], ["xw"])
    out["matmul shared"] = party.run(matmul, ["x", "w_shared"], ["xw_shared"])
    party.run(sum_and_count, ["x", "y"], ["sum", "count"], donate=["y"])
    party.run(relu, ["sum"], ["relu of sum"])  # the same compiled program under another name
    for name in ("relu", "xw", "xw_shared", "sum", "count", "relu of sum"):
        out[name] = party.reveal(name, to=CLIENT)
    out["sum at the server"] = party.reveal("sum", to=SERVER)
    out["compiled"] = len(party._engine.compiled)
    out["donated"] = "y" not in party._held
    out["outputs"] = refusal(lambda: party.run(sum_and_count, ["x", "x"], ["only one"]))
    out["owner"] = refusal(lambda: party.put("a", None, (1,), owner=CLIENT, from_rank=SERVER))
    one = np.ones(2, np.float32)
    out["shape"] = refusal(lambda: party.put("a", one, (3,), from_rank=party.rank))
    out["nan"] = refusal(lambda: party.put("a", one * np.nan, (2,), from_rank=party.rank))
    out["large"] = refusal(lambda: party.put("a", one * 1e14, (2,), from_rank=party.rank))
    out["control"] = party.control({"delay_s": 0.0})
    out["pid"] = os.getpid()
    if client:
        party._channel.link.send(SERVER, IN_THE_CLEAR)
    else:
        assert party._channel.link.recv(CLIENT) == IN_THE_CLEAR
    return out


@pytest.fixture(scope="module")
def run():
    relay, asked = RecordingRelay(), []

    def answer(message):
        asked.append((message, os.getpid()))
        return "done"

    settings = Settings(receive_timeout_s=300)
    client, server = run_parties(session, {"x": X}, {"y": Y, "w": W}, settings, relay=relay, on_control=answer)
    return client, server, relay, asked


def test_results_equal_numpy_within_the_fixed_point_and_only_the_named_party_learns_them(run):
    client, server, _, _ = run
    assert np.abs(client["relu"] - np.maximum(X, 0)).max() <= 4 * STEP
    # Each factor is off by up to one step, the sum's truncation by two more.
    bound = STEP * (np.abs(X).sum(1, keepdims=True) + np.abs(W).sum(0, keepdims=True)) + 2 * STEP
    for name in ("xw", "xw_shared"):
        assert (np.abs(client[name] - X.astype(np.float64) @ W) <= bound).all()
    assert np.abs(client["relu of sum"] - np.maximum(X + Y, 0)).max() <= 4 * STEP
    assert client["count"].dtype == np.int32 and (client["count"] == (X > 0).sum(1)).all()
    assert np.abs(server["sum at the server"] - (X + Y)).max() <= 2 * STEP
    assert all(server[name] is None for name in ("relu", "xw", "sum", "count"))
    assert client["sum at the server"] is None


def test_each_party_receives_what_the_other_sends_in_every_run(run):
    client, server, _, _ = run
    for name in (f"{kind} {i}" for kind in ("relu", "matmul") for i in range(3)):
        check_pair(client[name], server[name])
    assert client["matmul 1"].bytes_sent > 0 and client["matmul 1"].messages_sent > 0


def test_the_first_run_pays_set_up_and_later_runs_repeat(run):
    both = {name: profile.bytes for name, profile in run[0].items() if name[-1] in "012"}
    # Keys and first oblivious transfers: 1.4 MB and 19 MB more.
    assert both["relu 0"] > both["relu 1"] + 1e6 and both["matmul 0"] > both["matmul 1"] + 15e6
    assert both["relu 1"] == both["relu 2"]
    # Ciphertexts are compressed, which varies by some bytes.
    assert both["matmul 1"] == pytest.approx(both["matmul 2"], rel=2e-3)
    assert 100_000 < both["matmul 1"] < 1_000_000
    assert run[0]["compiled"] == run[1]["compiled"] == 3


def test_weights_that_the_server_owns_are_not_sent_and_cost_less(run):
    client, _, relay, _ = run
    assert client["matmul shared"].bytes_sent > 1.3 * client["matmul 1"].bytes_sent
    to_client = relay.recorded[1]
    assert b'"name": "w_shared"' in to_client and b'"name": "w"' not in to_client


def test_no_plaintext_on_the_link(run):
    to_server, to_client = run[2].recorded
    assert len(to_server) > 11e6 and len(to_client) > 10e6
    # The search does find what is sent in the clear, in either encoding.
    assert occurrences(unprotected(DECOY), to_server) >= 8 + 8
    patterns = unprotected(X, Y, W, np.maximum(X, 0), X @ W, X + Y)
    assert len(patterns) > 30_000
    assert occurrences(patterns, to_server) == 0 and occurrences(patterns, to_client) == 0


def test_each_party_is_a_process_that_ends(run):
    client, server, _, asked = run
    assert client["donated"] and server["donated"]
    assert len({client["pid"], server["pid"], os.getpid()}) == 3
    assert not multiprocessing.active_children()
    assert not any(Path(f"/proc/{side['pid']}").exists() for side in (client, server))
    assert asked == [({"delay_s": 0.0}, os.getpid())]
    assert client["control"] == "done" and server["control"] is None


@pytest.mark.parametrize(
    "what, message",
    [
        ("outputs", "gives 2 arrays, but 1 outputs are named"),
        ("owner", "only that one may own it"),
        ("shape", "both parties agreed on float32"),
        ("nan", "not finite"),
        ("large", "1e\\+14; the fixed point holds less than 2\\^44"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_sent(run, what, message):
    for side in run[:2]:
        assert re.search(message, side[what]), side[what]


def test_sessions_share_no_randomness(run):
    """Parties are forked from one process: their shares, keys and ciphertexts must still all differ."""
    relay = RecordingRelay()
    run_parties(relu_of_product, None, None, Settings(), relay=relay)
    one_up, one_down = relay.recorded
    other_up, other_down = run[2].recorded
    assert min(map(len, (one_up, one_down, other_up, other_down))) > 1e6
    assert common(one_up, one_up) == 1
    for a, b in ((one_up, other_up), (one_down, other_down), (one_up, one_down)):
        assert common(a, b) < 0.01


def relu_of_product(party, own):
    x = np.ones((8, 8), np.float32)
    for name in ("x", "w"):
        party.put(name, x if party.rank == CLIENT else None, (8, 8), from_rank=CLIENT)
    party.run(matmul, ["x", "w"], ["y"])
    party.run(relu, ["y"], ["z"])


def sampled(stream, offset=0):
    """The 8-byte words of the stream that end in the same 5 bits, whatever is before them."""
    words = np.frombuffer(stream, "<u8", count=(len(stream) - offset) // 8, offset=offset)
    return np.unique(words[words & 31 == 5])


def common(one, other):
    """The fraction of the sampled words of `one` that are in `other` at any offset."""
    words = sampled(one)
    assert len(words) > 10_000
    return np.isin(words, np.concatenate([sampled(other, offset) for offset in range(8)])).mean()


# Faults. `how` is what the server does wrong; process ids are left in a folder.


def faulty(party, own):
    folder, how = own
    Path(folder, party.name).write_text(str(os.getpid()))
    x = np.ones((2, 2), np.float32) if party.rank == CLIENT else None
    party.put("x", x, (2, 2), from_rank=CLIENT)
    if party.rank == SERVER:
        Path(folder, "at").write_text(str(time.time()))
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "crashed in the link":
            print("[error] [interconnection_link.cc:56] cntl ErrorCode '1008'", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGBUS)
        elif how == "silent":
            time.sleep(60)
        elif how == "wrong input":
            raise ValueError("broken.safetensors cannot be read; train it again")
        elif how == "defect":
            return 1 / 0
    party.put("other" if (how, party.rank) == ("out of step", SERVER) else "again", x, (2, 2), from_rank=CLIENT)
    party.barrier()
    return how


def ended_by_spu_at_the_end(party, own):
    party.close = lambda: (time.sleep(0.5), os._exit(9))  # when the other one has passed its barrier too
    return own


def runs(pid):
    """Whether the process still runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(folder, within_s=0.0):
    """Whether both party processes have ended, after at most `within_s` seconds."""
    return wait_until(lambda: not any(runs(Path(folder, name).read_text()) for name in ("client", "server")), within_s)


@pytest.mark.parametrize(
    "how, error, message, receive_s, within_s",
    [
        ("killed", TwoPartyError, r"^the server process ended by signal 9 \(SIGKILL\) while running", 30, 2),
        ("crashed in the link", TwoPartyError, r"^server: the client is gone or sent nothing for 30 s; .*1008", 30, 4),
        ("silent", TwoPartyError, r"^client: .*the server is gone or sent nothing for 8 s; .*receive_timeout_s", 8, 12),
        ("wrong input", TwoPartyError, r"^server: broken.safetensors cannot be read; train it again$", 30, 2),
        ("defect", RuntimeError, r"(?s)the server's task failed:.*ZeroDivisionError", 30, 2),
        ("out of step", TwoPartyError, r"^server: waiting for the share of other, .*do both parties run", 30, 2),
    ],
)
def test_a_fault_of_one_party_ends_both_with_its_cause(tmp_path, capfd, how, error, message, receive_s, within_s):
    settings = Settings(connect_timeout_s=receive_s, receive_timeout_s=receive_s)
    with pytest.raises(error, match=message) as caught:
        run_parties(faulty, (str(tmp_path), how), (str(tmp_path), how), settings)
    assert time.time() - float((tmp_path / "at").read_text()) < within_s
    assert gone(tmp_path)
    assert error is RuntimeError or "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_the_whole_run_has_a_time_limit(tmp_path):
    start = time.monotonic()
    with pytest.raises(TwoPartyError, match="not done after 5 s; raise total_timeout_s"):
        run_parties(faulty, (str(tmp_path), "silent"), (str(tmp_path), "silent"), Settings(total_timeout_s=5))
    assert 5 <= time.monotonic() - start < 8


def answers_and_ends(party, own):
    if party.rank == CLIENT:
        threading.Thread(target=party.control, args=("the last token",), daemon=True).start()
        time.sleep(0.5)  # sent, and nobody waits for the answer
    return party.name


def test_a_result_counts_however_soon_after_it_the_party_ends(monkeypatch):
    heard, wait = [], parties.wait

    def late(watched, timeout=None):
        found = wait(watched, timeout)
        for process in multiprocessing.active_children():
            process.join(60)
        return found

    monkeypatch.setattr(parties, "wait", late)
    assert run_parties(answers_and_ends, 0, 0, Settings(), on_control=heard.append) == ("client", "server")
    assert heard == ["the last token"]


def addresses():
    return (client := free_address()), free_address(client)


def test_a_peer_that_never_appears(tmp_path):
    both, settings = addresses(), Settings(connect_timeout_s=1.5, receive_timeout_s=3)
    with pytest.raises(TwoPartyError, match=rf"the server at {both[1]} did not appear within 1.5 s; start it"):
        run_party(CLIENT, faulty, (str(tmp_path), ""), both, settings)
    assert not multiprocessing.active_children()


def test_a_party_without_a_common_parent_notices_that_its_peer_died(tmp_path):
    settings = Settings(connect_timeout_s=8, receive_timeout_s=8)
    errors, both = {}, addresses()

    def side(rank):
        try:
            run_party(rank, faulty, (str(tmp_path), "killed"), both, settings)
        except TwoPartyError as error:
            errors[rank] = (str(error), time.time() - float((tmp_path / "at").read_text()))

    threads = [threading.Thread(target=side, args=(rank,)) for rank in (CLIENT, SERVER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert "SIGKILL" in errors[SERVER][0] and errors[SERVER][1] < 2
    assert "the server is gone" in errors[CLIENT][0] and errors[CLIENT][1] < 8 + 4


PARENT = """
import itertools, multiprocessing, os, sys, time
from aero.two_party.runtime import processes

def party(path):
    processes.end_with_parent()
    open(path, "w").write(str(os.getpid()))
    sum(itertools.repeat(0))  # no other thread of this process gets its turn again

if __name__ == "__main__":
    processes.PRELOADED = ()
    context = multiprocessing.get_context("forkserver")
    for path in sys.argv[1:]:
        processes.start(context.Process(target=party, args=(path,)), "party")
    time.sleep(60)
"""


def test_no_orphans_when_the_parent_is_killed(tmp_path):
    """Also of parties that compute in C."""
    (tmp_path / "parent.py").write_text(PARENT)
    files = [tmp_path / name for name in ("client", "server")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with subprocess.Popen([sys.executable, tmp_path / "parent.py", *files], env=environment) as parent:
        assert wait_until(lambda: parent.poll() or all(file.exists() and file.read_text() for file in files), 60)
        assert not gone(tmp_path)
        parent.kill()
    assert gone(tmp_path, within_s=3.0)


# The fork server.


def inspect(connection):
    """In a process started as a party's: what it has before it is given anything."""
    end_with_parent()
    server = os.getppid()
    threads = len(os.listdir(f"/proc/{server}/task"))
    connection.send((server, threads, sys.argv, {*processes.PRELOADED} - sys.modules.keys()))
    if connection.poll(60):
        connection.recv()


def start_one():
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=inspect, args=(theirs,))
    processes.start(process, "client")
    theirs.close()
    return process, ours


def test_a_party_starts_with_code_and_no_data(monkeypatch):
    """The prompt is an argument of this process, as with `aero ask`."""
    prompt = os.urandom(16).hex()
    monkeypatch.setattr(sys, "argv", ["aero", "ask", prompt])
    process, connection = start_one()
    server, threads, arguments, missing = connection.recv()
    assert threads == 1  # with more, a fork could wait for ever for a lock that another thread held
    assert not missing and arguments == ["aero"]
    places = {"asking": os.getpid(), "fork server": server, "party": process.pid}
    found = {name: found_in_memory(pid, {"prompt": prompt.encode()})[0] for name, pid in places.items()}
    assert found == {"asking": {"prompt"}, "fork server": set(), "party": set()}
    connection.send("end")
    process.join(10)
    assert process.exitcode == 0


def test_a_renewed_fork_server_is_another_process_and_its_parties_have_ended():
    process, connection = start_one()
    server = connection.recv()[0]
    processes.renew()
    process.join(10)
    assert process.exitcode is not None and not runs(server)
    process, connection = start_one()
    assert connection.recv()[0] != server
    connection.send("end")
    process.join(10)
    assert process.exitcode == 0


def test_a_party_that_cannot_be_started_is_one_line(monkeypatch):
    def refused(*_):
        raise OSError("Too many open files")

    monkeypatch.setattr(multiprocessing.forkserver, "connect_to_new_process", refused)
    with pytest.raises(TwoPartyError, match="the client process could not be started .Too many open files.; run again"):
        run_parties(faulty, None, None, Settings())
    assert not multiprocessing.active_children()


def test_a_log_that_never_ends_is_an_error_after_a_while(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "LOG_TIMEOUT_S", 0.3)
    (tmp_path / "log").write_bytes(b"[profile] half a li")
    log = os.open(tmp_path / "log", os.O_RDONLY)
    with pytest.raises(ValueError, match="one complete SPU profile"):
        engine.read_profile(log, 0)
    os.close(log)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"receive_timeout_s": 0}, "receive_timeout_s 0"),
        ({"connect_timeout_s": 121}, "raise receive_timeout_s too"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)


def test_a_party_that_ends_while_it_closes_the_link_has_its_result():
    """SPU ends a process whose last message, that it closes, finds the other party gone."""
    assert run_parties(ended_by_spu_at_the_end, "x", "y", Settings()) == ("x", "y")
