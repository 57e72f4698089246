"""How the figures of `benchmarks.long_server` are judged: what grows is seen. The run itself takes hours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from benchmarks import long_server
from benchmarks.long_server import COLUMNS, WARM, counted, growth, idle, judged, tree


def samples(count, **changes):
    """Rows of an idle server that holds what it held, but for `changes`: {column: value by question}."""
    steady = {"seconds": 2.0, "memory_bytes": 3e8, "descriptors": 12, "sockets": 4, "threads": 2, "processes": 3}
    rows = []
    for question in range(1, count + 1):
        values = {"question": question, "files": 0} | steady
        rows.append([(values | {k: f(question) for k, f in changes.items()})[name] for name in COLUMNS])
    return rows


def failed(rows, right=None):
    cases = judged(rows, len(rows) if right is None else right)
    return [case["name"] for case in cases if case["passed"] != case["count"]]


def test_a_steady_server_passes():
    assert failed(samples(1000)) == [] and failed(samples(3)) == []
    # What the first questions load, and what is given back, is no growth.
    assert failed(samples(1000, memory_bytes=lambda q: 3e8 - 1e8 / q, threads=lambda q: 3 - (q > 500))) == []


@pytest.mark.parametrize("name", ["descriptors", "sockets", "threads", "processes", "files"])
def test_one_more_of_anything_is_seen(name):
    assert failed(samples(100, **{name: lambda q: 12 + (q > 90)})) == [f"{name} of the idle server"]


def test_growth_of_memory_is_seen():
    """By 10 kB a question, of a server as large as the real one (770 MiB), where that is 1.1 % in a thousand, and of a
    smaller one, where it is 3.3 %; of 1,000 - WARM questions a tenth is 99."""
    assert failed(samples(1000, memory_bytes=lambda q: 8e8 + 1e4 * q)) == ["memory of the server and its fork server"]
    rows = samples(1000, memory_bytes=lambda q: 3e8 + 1e4 * q)
    assert failed(rows) == ["memory of the server and its fork server"]
    values = [row[COLUMNS.index("memory_bytes")] for row in rows]
    first, last = 3e8 + 1e4 * (WARM + 50), 3e8 + 1e4 * (1000 - 49)
    assert growth(values) == pytest.approx(last / first - 1)


def test_a_wrong_answer_is_seen():
    assert failed(samples(100), right=99) == ["questions answered as PyTorch answers"]


def test_a_count_that_saw_nothing_passes_for_nothing():
    rows = samples(100, processes=lambda q: 3 * (q != 50), descriptors=lambda q: 12 * (q != 50))
    cases = {case["name"]: case for case in judged(rows, 100)}
    found = cases["descriptors of the idle server"]
    assert (found["count"], found["passed"], found["seen"]) == (99, 99, "12 to 12")
    assert cases["questions answered as PyTorch answers"]["count"] == 100


def test_threads_that_end_while_they_are_counted_take_no_process_with_them():
    """A thread's folder can be gone between listing and reading: the process was not seen at all, twice in 1,000."""
    ended = threading.Event()

    def threads():
        while not ended.is_set():
            for made in [threading.Thread(target=time.sleep, args=(1e-4,)) for _ in range(8)]:
                made.start()

    churn = threading.Thread(target=threads)
    churn.start()
    try:
        assert all(os.getpid() in tree(os.getpid()) for _ in range(300))
    finally:
        ended.set()
        churn.join()


HOLDS = """
import socket, subprocess, sys, threading
print(flush=True)
input()
go = threading.Event()
threading.Thread(target=go.wait).start()
with (
    socket.socket(),
    open(sys.argv[1]),
    subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1) as child,
):
    child.stdout.readline()
    print(child.pid, flush=True)
    input()
    child.communicate(b"\\n")
go.set()
"""


def test_what_a_process_holds_is_counted(tmp_path):
    """Of a process of its own: in this one threads and descriptors of earlier tests can end between two counts."""
    (tmp_path / "left").write_text("")
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "left")]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        process.stdout.readline()
        before = counted(process.pid, tmp_path)
        assert before["files"] == 1 and before["memory_bytes"] > 5e6
        print(file=process.stdin, flush=True)
        child = int(process.stdout.readline())
        more = counted(process.pid, tmp_path)
        assert child in tree(process.pid)
        process.communicate("\n")
    assert process.returncode == 0
    grown = {name: more[name] - before[name] for name in ("descriptors", "sockets", "threads", "processes")}
    # Its own: a socket, a file, two pipes and a thread; the child's: three descriptors and a thread.
    assert grown == {"descriptors": 7, "sockets": 1, "threads": 2, "processes": 1}


WITH_MORE = """
import sys, threading, time
def more():
    held = [open("/dev/null") for _ in range(5)]
    time.sleep(float(sys.argv[1]))
threading.Thread(target=more, daemon=True).start()
time.sleep(0.2)
print(flush=True)
input()
"""


@pytest.mark.parametrize("stays_s, limit_s, left", [(1.5, 60, (0, 0)), (60, 1, (5, 1))])
def test_what_ends_soon_is_waited_for_and_what_stays_is_counted(monkeypatch, tmp_path, stays_s, limit_s, left):
    """A question's thread that lives for a moment more, with five descriptors, and one that never ends."""
    monkeypatch.setattr(long_server, "IDLE_S", limit_s)
    command = [sys.executable, "-c", WITH_MORE, str(stays_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        now = counted(process.pid, tmp_path)
        before = now | {"descriptors": now["descriptors"] - 5, "threads": now["threads"] - 1}
        began = time.monotonic()
        found = idle(process.pid, tmp_path, before)
        assert time.monotonic() - began < min(stays_s, limit_s) + 5
        assert (found["descriptors"] - before["descriptors"], found["threads"] - before["threads"]) == left
        # The first question has nothing before it: what is there counts, at once.
        assert idle(process.pid, tmp_path, None)["processes"] == 1
        process.stdin.close()
