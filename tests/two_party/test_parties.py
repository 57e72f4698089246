"""Two real processes with SPU between them: results, bytes, what crosses the wire, and every way it can fail."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from clear_text import STEP, occurrences, unprotected

from aero.two_party.runtime import parties, party
from aero.two_party.runtime.parties import CLIENT, SERVER, Party, Relay, Settings, TwoPartyError, run_parties, run_party
from aero.two_party.runtime.profile import check_pair

N = 64
RNG = np.random.default_rng(20241013)
DECOY = RNG.uniform(1, 2, size=16).astype(np.float32)  # sent in the clear on purpose
IN_THE_CLEAR = DECOY.tobytes() + np.floor(DECOY / STEP).astype("<i8").tobytes()
X, Y, W = (RNG.normal(size=(N, N)).astype(np.float32) for _ in range(3))


def relu(x):
    return jnp.maximum(x, 0)


def product(x, w):
    return x @ w


def sum_and_count(x, y):
    return x + y, jnp.sum(x > 0, axis=1)


def refusal(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return "accepted"


def everything(party, own):
    """The long task of this file; returns {name: profile or array or text} of this party."""
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
        out[f"product {i}"] = party.run(product, ["x", "w"], ["xw"])
    out["product shared"] = party.run(product, ["x", "w_shared"], ["xw_shared"])
    out["two outputs"] = party.run(sum_and_count, ["x", "y"], ["sum", "count"], donate=["y"])
    # Another name for an output of the same shape is the same compiled program.
    party.run(relu, ["sum"], ["relu of sum"])
    for name in ("relu", "xw", "xw_shared", "sum", "count", "relu of sum"):
        out[name] = party.reveal(name, to=CLIENT)
    out["sum at the server"] = party.reveal("sum", to=SERVER)
    out["compiled"] = len(party._code)
    out["donated"] = refusal(lambda: party.run(relu, ["y"], ["z"]))
    party.drop("sum")
    out["dropped"] = refusal(lambda: party.reveal("sum", to=CLIENT))
    out["outputs"] = refusal(lambda: party.run(sum_and_count, ["x", "x"], ["only one"]))
    out["owner"] = refusal(lambda: party.put("a", None, (1,), owner=CLIENT, from_rank=SERVER))
    out["nobody"] = refusal(lambda: party.put("a", None, (1,), from_rank=party.rank))
    one = np.ones(2, np.float32)
    out["shape"] = refusal(lambda: party.put("a", one, (3,), from_rank=party.rank))
    out["dtype"] = refusal(lambda: party.put("a", one.astype(np.float64), (2,), from_rank=party.rank))
    out["nan"] = refusal(lambda: party.put("a", one * np.nan, (2,), from_rank=party.rank))
    out["large"] = refusal(lambda: party.put("a", one * 1e14, (2,), from_rank=party.rank))
    out["control"] = party.control({"delay_s": 0.0})
    out["rank"], out["pid"] = party.rank, os.getpid()
    if client:
        party._link.send(SERVER, IN_THE_CLEAR)
    else:
        assert party._link.recv(CLIENT) == IN_THE_CLEAR
    print("chatter of a party")
    return out


@pytest.fixture(scope="module")
def run():
    relay = Relay(record=True)
    asked = []

    def answer(message):
        asked.append((message, os.getpid()))
        return "done"

    client, server = run_parties(
        everything, {"x": X}, {"y": Y, "w": W}, Settings(receive_timeout_s=300), relay=relay, on_control=answer
    )
    return client, server, relay, asked


def test_results_are_those_of_numpy_within_the_fixed_point(run):
    client, server, _, _ = run
    assert np.abs(client["relu"] - np.maximum(X, 0)).max() <= 4 * STEP
    # Each factor is off by up to one step, the sum's truncation by two more.
    bound = STEP * (np.abs(X).sum(1, keepdims=True) + np.abs(W).sum(0, keepdims=True)) + 2 * STEP
    for name in ("xw", "xw_shared"):
        assert (np.abs(client[name] - X.astype(np.float64) @ W) <= bound).all()
    assert np.abs(client["relu of sum"] - np.maximum(X + Y, 0)).max() <= 4 * STEP
    assert client["count"].dtype == np.int32 and (client["count"] == (X > 0).sum(1)).all()
    assert server["sum at the server"].dtype == np.float32
    assert np.abs(server["sum at the server"] - (X + Y)).max() <= 2 * STEP


def test_only_the_named_party_learns_a_result(run):
    client, server, _, _ = run
    assert all(server[name] is None for name in ("relu", "xw", "sum", "count"))
    assert client["sum at the server"] is None


def test_what_one_sends_the_other_receives_in_every_run(run):
    client, server, _, _ = run
    for name in (f"{kind} {i}" for kind in ("relu", "product") for i in range(3)):
        check_pair(client[name], server[name])
    assert client["product 1"].bytes_sent > 0 and client["product 1"].messages_sent > 0


def test_the_first_run_pays_set_up_and_the_later_ones_repeat(run):
    client, _, _, _ = run
    both = {name: client[name].bytes_sent + client[name].bytes_received for name in client if name[-1] in "012"}
    # Keys and first oblivious transfers: 1.4 MB and 19 MB more.
    assert both["relu 0"] > both["relu 1"] + 1e6 and both["product 0"] > both["product 1"] + 15e6
    assert both["relu 1"] == both["relu 2"]
    assert client["relu 1"].messages_sent == client["relu 2"].messages_sent
    # Ciphertexts are compressed, which varies by some bytes.
    assert both["product 1"] == pytest.approx(both["product 2"], rel=2e-3)
    assert 100_000 < both["product 1"] < 1_000_000


def test_weights_that_the_server_owns_are_not_sent_and_cost_less(run):
    client, _, relay, _ = run
    assert client["product shared"].bytes_sent > 1.3 * client["product 1"].bytes_sent
    to_client = relay.recorded[1]
    assert b'"name": "w_shared"' in to_client and b'"name": "w"' not in to_client


def test_no_plaintext_on_the_wire(run):
    _, _, relay, _ = run
    to_server, to_client = relay.recorded
    assert len(to_server) > 11e6 and len(to_client) > 10e6
    # The search does find what is sent in the clear, in either encoding.
    assert occurrences(unprotected(DECOY), to_server) >= 8 + 8
    assert b'"name": "x"' in to_server
    patterns = unprotected(X, Y, W, np.maximum(X, 0), X @ W, X + Y)
    assert len(patterns) > 30_000
    assert occurrences(patterns, to_server) == 0 and occurrences(patterns, to_client) == 0


def test_compiled_once_for_each_function_and_shapes(run):
    assert run[0]["compiled"] == run[1]["compiled"] == 3


def test_each_is_a_process_of_its_own_and_gone_afterwards(run):
    client, server, _, _ = run
    assert (client["rank"], server["rank"]) == (CLIENT, SERVER)
    assert len({client["pid"], server["pid"], os.getpid()}) == 3
    assert not multiprocessing.active_children()
    assert not any(Path(f"/proc/{side['pid']}").exists() for side in (client, server))


def test_control_reaches_the_parent_from_the_client_only(run):
    client, server, _, asked = run
    assert asked == [({"delay_s": 0.0}, os.getpid())]
    assert client["control"] == "done" and server["control"] is None


@pytest.mark.parametrize(
    "what, message",
    [
        ("donated", "y: no such variable"),
        ("dropped", "sum: no such variable"),
        ("outputs", "gives 2 arrays, but 1 outputs are named"),
        ("owner", "only that one may own it"),
        ("nobody", "give the array at the party of rank"),
        ("shape", "both parties agreed on float32"),
        ("dtype", "a is float64"),
        ("nan", "not finite"),
        ("large", "1e\\+14; the fixed point holds less than 2\\^44"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_sent(run, what, message):
    for side in run[:2]:
        assert re.search(message, side[what]), side[what]


# Faults. `how` says what the server does wrong; pids are left in a folder.


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
            print("terminate called without an active exception", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGBUS)
        elif how == "silent":
            time.sleep(60)
        elif how == "wrong input":
            raise ValueError("checkpoint broken.safetensors cannot be read; train it again")
        elif how == "defect":
            return 1 / 0
    party.put("other" if (how, party.rank) == ("out of step", SERVER) else "again", x, (2, 2), from_rank=CLIENT)
    party.barrier()
    return how


def runs(pid):
    """Whether the process still runs; one that has ended and waits for its exit status to be read does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(folder, names=("client", "server"), within_s=3.0):
    """Whether the party processes have ended, after at most `within_s` seconds."""
    pids = [int(Path(folder, name).read_text()) for name in names]
    deadline = time.monotonic() + within_s
    while alive := [pid for pid in pids if runs(pid)]:
        if time.monotonic() > deadline:
            return f"alive: {alive}"
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(
    "how, error, message, receive_s, within_s",
    [
        ("killed", TwoPartyError, r"^the server process ended by signal 9 \(SIGKILL\) while running", 30, 2),
        ("crashed in the link", TwoPartyError, r"^server: the client is gone or sent nothing for 30 s, .*1008", 30, 4),
        ("silent", TwoPartyError, r"^client: .*the server is gone or sent nothing for 6 s; .*receive_timeout_s", 6, 9),
        (
            "wrong input",
            TwoPartyError,
            r"^server: checkpoint broken.safetensors cannot be read; train it again$",
            30,
            2,
        ),
        ("defect", RuntimeError, r"(?s)the server's task failed:.*ZeroDivisionError", 30, 2),
        (
            "out of step",
            TwoPartyError,
            r"^server: waiting for the share of other, .*do both parties run the same",
            30,
            2,
        ),
    ],
)
def test_a_fault_of_one_party_ends_both_with_its_cause(tmp_path, capfd, how, error, message, receive_s, within_s):
    settings = Settings(connect_timeout_s=receive_s, receive_timeout_s=receive_s)
    with pytest.raises(error, match=message) as caught:
        run_parties(faulty, (str(tmp_path), how), (str(tmp_path), how), settings)
    late = time.time() - float((tmp_path / "at").read_text())
    assert late < within_s
    assert gone(tmp_path, within_s=0.0) is True
    if error is TwoPartyError:
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def says_and_ends(party, how):
    if how == "wrong input":
        raise ValueError("checkpoint broken.safetensors cannot be read; train it again")
    if party.rank == CLIENT and how == "asked":
        threading.Thread(target=party.control, args=("the last token",), daemon=True).start()
        time.sleep(0.5)  # sent, and nobody waits for the answer
    return party.name


@pytest.mark.parametrize("how", ["done", "asked", "wrong input"])
def test_what_a_party_said_counts_however_soon_after_it_ended(monkeypatch, how):
    """As where a party sends its result and ends between two looks of the one who started it: whether there is a
    message, and whether the process is there."""
    heard, look = [], parties.wait

    def late(watched, timeout=None):
        found = look(watched, timeout)
        for process in multiprocessing.active_children():
            process.join(60)
        return found

    monkeypatch.setattr(parties, "wait", late)
    if how == "wrong input":
        with pytest.raises(TwoPartyError, match="^(client|server): checkpoint broken.safetensors cannot be read; "):
            run_parties(says_and_ends, how, how, Settings())
        return
    assert run_parties(says_and_ends, how, how, Settings(), on_control=heard.append) == ("client", "server")
    assert heard == (["the last token"] if how == "asked" else [])


def test_the_whole_run_has_a_time_limit(tmp_path):
    settings = Settings(total_timeout_s=6)
    start = time.monotonic()
    with pytest.raises(TwoPartyError, match="not done after 6 s; raise total_timeout_s"):
        run_parties(faulty, (str(tmp_path), "silent"), (str(tmp_path), "silent"), settings)
    assert 6 <= time.monotonic() - start < 9


def free_addresses():
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{each.getsockname()[1]}" for each in (one, two))


def test_a_peer_that_never_appears(tmp_path):
    addresses = free_addresses()
    settings = Settings(connect_timeout_s=1.5, receive_timeout_s=3, addresses=addresses)
    start = time.monotonic()
    with pytest.raises(TwoPartyError, match=rf"the server at {addresses[1]} did not appear within 1.5 s; start it"):
        run_party(CLIENT, faulty, (str(tmp_path), ""), settings)
    assert time.monotonic() - start < 30
    assert not multiprocessing.active_children()


def test_a_party_without_a_common_parent_notices_that_its_peer_died(tmp_path):
    settings = Settings(connect_timeout_s=8, receive_timeout_s=8, addresses=free_addresses())
    errors = {}

    def side(rank):
        try:
            run_party(rank, faulty, (str(tmp_path), "killed"), settings)
        except TwoPartyError as error:
            errors[rank] = (str(error), time.time() - float((tmp_path / "at").read_text()))

    threads = [threading.Thread(target=side, args=(rank,)) for rank in (CLIENT, SERVER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert "SIGKILL" in errors[SERVER][0] and errors[SERVER][1] < 2
    assert "the server is gone" in errors[CLIENT][0] and errors[CLIENT][1] < 8 + 4


def test_a_port_in_use_is_told_before_anything_starts(monkeypatch):
    monkeypatch.setattr(parties, "_begin", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for rank, name in ((CLIENT, "client"), (SERVER, "server")):
            addresses = ["127.0.0.1:0", "127.0.0.1:0"]
            addresses[rank] = f"127.0.0.1:{port}"
            with pytest.raises(
                TwoPartyError, match=f"^port {port} of the {name}'s address .* is in use; choose another"
            ):
                run_parties(faulty, None, None, Settings(addresses=tuple(addresses)))
    with pytest.raises(TwoPartyError, match="cannot listen at 192.0.2.1:9000"):
        run_parties(faulty, None, None, Settings(addresses=("192.0.2.1:9000", "127.0.0.1:0")))


PARENT = """
import sys
sys.path[:0] = sys.argv[1:3]
import test_parties
from aero.two_party.runtime.parties import Settings, run_parties
if __name__ == "__main__":
    run_parties(test_parties.faulty, (sys.argv[3], "silent"), (sys.argv[3], "silent"), Settings())
"""


def test_no_orphans_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    here = Path(__file__).resolve()
    arguments = [sys.executable, str(script), str(here.parent), str(here.parents[2]), str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 60
        while not (tmp_path / "at").exists() and time.monotonic() < deadline:
            assert parent.poll() is None
            time.sleep(0.1)
        assert gone(tmp_path, within_s=0.0) is not True
        parent.kill()
    assert gone(tmp_path) is True


def nothing(party, own):
    return party.name


@pytest.mark.parametrize("more", [0, 2, 2 + parties.DESCRIPTORS])
def test_where_descriptors_run_out_the_reason_is_told_and_none_is_lost(more):
    """However far it comes: no port, neither party, or the client but not the server."""

    def held():
        return sorted(os.listdir("/proc/self/fd"))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    run_parties(nothing, None, None, Settings())  # with what is opened once
    before, files = held(), set(os.listdir(tempfile.gettempdir()))
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
        with pytest.raises(
            TwoPartyError, match=r"(no free port found|process could not be started).*Too many open files"
        ):
            run_parties(nothing, None, None, Settings())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert held() == before and not multiprocessing.active_children()
    assert not {name for name in set(os.listdir(tempfile.gettempdir())) - files if name.startswith("aero-party-")}
    assert run_parties(nothing, None, None, Settings()) == ("client", "server")


def test_a_process_that_never_gets_its_task_is_not_waited_for(monkeypatch):
    """As on a machine so busy that it never comes so far."""
    parties.ready()
    monkeypatch.setattr(parties, "_give", lambda connection, message: None)
    monkeypatch.setattr(parties, "START_TIMEOUT_S", 3.0)
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="^the client and server process was not up after 3 s; is this machine"):
        run_parties(nothing, None, None, Settings())
    assert time.monotonic() - began < 3 + 5
    assert not multiprocessing.active_children()


def test_a_profile_that_never_ends_is_an_error_after_a_while(monkeypatch, tmp_path):
    monkeypatch.setattr(party, "LOG_WAIT_S", 0.3)
    log = tmp_path / "log"
    log.write_bytes(b"[profile] half a li")
    one = Party.__new__(Party)
    one._log = os.open(log, os.O_RDONLY)
    began = time.monotonic()
    with pytest.raises(ValueError, match="no complete SPU profile"):
        one._profile(0)
    os.close(one._log)
    assert 0.3 <= time.monotonic() - began < 3


def test_a_task_that_cannot_be_imported_is_refused():
    with pytest.raises(ValueError, match="cannot be given to another process"):
        run_parties(lambda party, own: None, None, None, Settings())
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"field": "FM48"}, "FM32, FM64, FM128"),
        ({"fraction_bits": 0}, "choose 1 to 28"),
        ({"fraction_bits": 29}, "choose 1 to 28"),
        ({"receive_timeout_s": 0}, "receive_timeout_s 0"),
        ({"connect_timeout_s": 121}, "raise receive_timeout_s too"),
        ({"addresses": ("localhost", "127.0.0.1:1")}, "is not host:port"),
        ({"addresses": ("127.0.0.1:99999", "127.0.0.1:1")}, "is not host:port"),
        ({"addresses": ("127.0.0.1:\u00b2", "127.0.0.1:1")}, "is not host:port"),
        ({"addresses": ("127.0.0.1:\u0668\u0660", "127.0.0.1:1")}, "is not host:port"),
        ({"addresses": ("127.0.0.1:" + "0" * 5000 + "1", "127.0.0.1:1")}, "is not host:port"),
        ({"addresses": ("127.0.0.1:5", "127.0.0.1:5")}, "each its own port"),
        ({"threads": 0}, "at least 1"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Settings(**change)
