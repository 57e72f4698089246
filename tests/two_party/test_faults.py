"""Faults of a running session: each ends both processes within a stated time, with one line and without a result."""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from garbling import Middle

from aero.two_party.program import nonlinear
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, NAMES, SERVER, Settings, TwoPartyError
from aero.two_party.serving.session import run_through
from aero.two_party.serving.tls import Credentials, make_certificates
from aero.two_party.serving.tunnel import DATA, Listener, dial

LONG = 100_000  # runs: more than any test waits for


def relu(x):
    return jnp.maximum(x, 0)


def narrow_relu(x):
    return nonlinear.relu(x, narrow=True)


def many_runs(party, own):
    """Comparisons, in one runtime after the other, until something happens; the client tells of each before it, of an
    even one before that of the large ring. own: (folder for the process's id, log limit)."""
    folder, log_bytes = own
    Path(folder, party.name).write_text(str(os.getpid()))
    if log_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (log_bytes, log_bytes))
    party.put("x", np.ones((8, 8), np.float32) if party.rank == CLIENT else None, (8, 8), from_rank=CLIENT)
    for index in range(LONG):
        party.control(index)
        party.run(narrow_relu if index % 2 else relu, ["x"], ["y"])
        party.reveal("y", to=CLIENT)
    return "a stale result"


def on_both_sides(side):
    """Run `side(rank)` for the server and the client at once, each in a thread."""
    threads = [threading.Thread(target=side, args=(rank,)) for rank in (SERVER, CLIENT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


def gone(folder):
    """Whether both party processes have ended."""
    return not any(Path(f"/proc/{(folder / name).read_text()}").exists() for name in NAMES)


@pytest.mark.parametrize("rank", [CLIENT, SERVER])
def test_a_party_killed_at_a_random_moment(tmp_path, rank):
    """Both have ended within 3 s: at any moment from the first import on."""
    killed = []

    def kill():
        while len(children := multiprocessing.active_children()) < 2:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 8))
        (child,) = [child for child in children if child.name == f"aero-{NAMES[rank]}"]
        os.kill(child.pid, signal.SIGKILL)
        killed.append((time.monotonic(), [child.pid for child in children]))

    killer = threading.Thread(target=kill)
    killer.start()
    own = (str(tmp_path), None)
    with pytest.raises(TwoPartyError, match=rf"^the {NAMES[rank]} process ended by signal 9 \(SIGKILL\)") as caught:
        run_parties(many_runs, own, own, Settings(), on_control=lambda index: None)
    ended = time.monotonic()
    killer.join()
    (at, pids), *_ = killed
    assert ended - at < 3 and "\n" not in str(caught.value)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("rank", [CLIENT, SERVER])
def test_a_full_disk_under_a_partys_log(tmp_path, rank):
    """SPU goes on without a word when its log cannot be written, so the figures would be missing or old: within 8 s."""
    last = []
    limits = [(str(tmp_path), 20_000 if party == rank else None) for party in (CLIENT, SERVER)]
    with pytest.raises(
        TwoPartyError, match=f"^{NAMES[rank]}: the log cannot be written, .*File too large.*make room in"
    ) as caught:
        run_parties(many_runs, *limits, Settings(), on_control=lambda index: last.append(time.monotonic()))
    assert time.monotonic() - last[-1] < 8 and "\n" not in str(caught.value)
    assert gone(tmp_path)


ON_A_DISK = """
import time
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import Settings, TwoPartyError
from test_faults import many_runs
if __name__ == "__main__":
    own, last = (FOLDER, None), []
    try:
        run_parties(many_runs, own, own, Settings(), on_control=lambda index: last.append(time.monotonic()))
    except TwoPartyError as error:
        print(f"{time.monotonic() - last[-1]:.1f} s, {len(last)} runs: {error}")
"""


def test_a_disk_that_is_full(tmp_path):
    """A disk of 200 kB of its own, in a mount namespace: nothing is left on it either."""
    disk, script = tmp_path / "disk", tmp_path / "on_a_disk.py"
    disk.mkdir()
    script.write_text(ON_A_DISK.replace("FOLDER", repr(str(tmp_path))))
    mount = f"mount -t tmpfs -o size=200k tmpfs {shlex.quote(str(disk))}"
    inside = ["unshare", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*inside, mount], capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    then = f"{shlex.join([sys.executable, str(script)])}; find {shlex.quote(str(disk))} -type f"
    paths = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
    done = subprocess.run(
        [*inside, f"{mount} && {{ {then}; }}"],
        env=os.environ | {"TMPDIR": str(disk), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = re.fullmatch(
        r"([0-9.]+) s, \d+ runs: (client|server): the log cannot be written, "
        r".*No space left on device.*make room in .*\n",
        done.stdout,
    )
    assert told and float(told[1]) < 8, done.stdout + done.stderr
    assert gone(tmp_path)


IN_EITHER_RUNTIME = pytest.mark.parametrize("when", [7, 8])
"""Before a comparison in 32 bits, or before one in 64. The first of either sets its runtime up."""


@IN_EITHER_RUNTIME
@pytest.mark.parametrize(
    ("fault", "said", "receive_s", "within_s"),
    [("garble", "changed on the way", 60, 4), ("hold", "is gone or sent nothing for 10 s", 10, 10 + 10)],
)
def test_a_link_between_hosts_that_garbles_or_stalls(tmp_path, fault, said, receive_s, within_s, when):
    """Through one connection with someone in its middle, who acts while the parties compute."""
    make_certificates(tmp_path, ["127.0.0.1"])
    contexts = [
        Credentials(tmp_path / f"{name}.pem", tmp_path / f"{name}.key", tmp_path / "ca.pem").context(
            server=rank == SERVER
        )
        for rank, name in enumerate(NAMES)
    ]
    listener = Listener("127.0.0.1:0", contexts[SERVER])
    middle = Middle(listener.address)
    settings = Settings(connect_timeout_s=10, receive_timeout_s=receive_s)
    acted, ended = [], {}

    def act(index):
        if index == when:
            acted.append(time.monotonic())
            getattr(middle, fault)()

    def side(rank):
        tunnel = listener.establish(*listener.wait()) if rank == SERVER else dial(middle.address, contexts[CLIENT])
        try:
            own = (str(tmp_path), None)
            ended[rank] = run_through(tunnel, rank, many_runs, own, settings, act if rank == CLIENT else None)
        except TwoPartyError as error:
            tunnel.give_up()
            ended[rank] = (str(error), time.monotonic())

    on_both_sides(side)
    middle.close(), listener.close()
    lines = [ended[rank][0] for rank in (CLIENT, SERVER)]
    assert re.search(said, "; ".join(lines))
    for line, at in ended.values():
        assert at - acted[0] < within_s and "\n" not in line
        assert re.search(f"{said}|gave up on this question|is gone", line)
    assert gone(tmp_path)


def garbage(content):
    """One bit of every frame is another."""
    middle = len(content) // 2
    return [content[:middle] + bytes([content[middle] ^ 0x10]) + content[middle + 1 :]]


def too_much(content):
    """Behind every frame comes another of zeros."""
    return [content, bytes(1000)]


@IN_EITHER_RUNTIME
@pytest.mark.parametrize("rank", [CLIENT, SERVER])
@pytest.mark.parametrize("instead", [garbage, too_much])
def test_a_side_whose_frames_are_whole_and_whose_protocol_is_not(tmp_path, rank, instead, when):
    """Every checksum is right, as no link but only a peer can have it; what SPU is given makes no sense to it."""
    listener = Listener("127.0.0.1:0", None)
    settings = Settings(connect_timeout_s=10, receive_timeout_s=10)
    acted, ended = [], {}

    def spoiling(tunnel):
        write = tunnel._write

        async def spoilt(kind, channel, content):
            for part in instead(content) if acted and kind == DATA and content else [content]:
                await write(kind, channel, part)

        tunnel._write = spoilt

    def act(index):
        if index == when:
            acted.append(time.monotonic())

    def side(own_rank):
        tunnel = listener.establish(*listener.wait()) if own_rank == SERVER else dial(listener.address, None)
        if own_rank == rank:
            spoiling(tunnel)
        try:
            own = (str(tmp_path), None)
            ended[own_rank] = run_through(tunnel, own_rank, many_runs, own, settings, act if not own_rank else None)
        except TwoPartyError as error:
            tunnel.give_up()
            ended[own_rank] = (str(error), time.monotonic())

    on_both_sides(side)
    listener.close()
    assert acted and set(ended) == {CLIENT, SERVER}
    for line, at in ended.values():
        assert at - acted[0] < 10 + 10 and "\n" not in line, line
    # The side that notices says what it noticed (SPU stops, or waits in vain), the other that it was left.
    lines = [line for line, _ in ended.values()]
    # Or, where the end of its connection comes before that word, that it closed it.
    told = ("gave up on this question; its own output says why", "is gone: it closed the connection")
    left = [line for line in lines if line.endswith(told)]
    noticed = [line for line in lines if re.search(r"is gone or sent nothing for 10 s|process ended by", line)]
    assert len(left) <= 1 and len(left) + len(noticed) == 2, lines
    assert gone(tmp_path)


@pytest.mark.parametrize("after_s", [0.0, 8.0])
def test_a_client_that_says_it_is_done_at_once_and_leaves(tmp_path, after_s):
    """The server's party has just been started, or waits for the client's: within 4 s of the end, not --timeout."""
    listener, left = Listener("127.0.0.1:0", None), []

    def leave():
        client = dial(listener.address, None)
        client.carry("127.0.0.1:1")
        client.send({"done": True})
        time.sleep(after_s)
        client.close()
        left.append(time.monotonic())

    client = threading.Thread(target=leave)
    client.start()
    server = listener.establish(*listener.wait())
    with pytest.raises(TwoPartyError, match="^the client at .* is gone: it closed the connection$"):
        run_through(server, SERVER, many_runs, (str(tmp_path), None), Settings(connect_timeout_s=60))
    ended = time.monotonic()
    client.join()
    server.give_up(), listener.close()
    assert ended - left[0] < 4
    assert not [child for child in multiprocessing.active_children() if child.name == "aero-server"]
