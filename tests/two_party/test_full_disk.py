"""`aero serve` on a disk that is full: both sides end the question in one line, and the server takes the next."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from made_models import random_model

from aero import checkpoint
from aero.data.tokenizer import build

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def test_a_question_whose_log_cannot_be_written_has_no_answer_and_costs(tmp_path):
    disk, runs = tmp_path / "disk", tmp_path / "runs"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=4k tmpfs '{disk}'"
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "sh", "-c", mount]).returncode:
        pytest.skip("needs the right to mount a disk")
    build({bytes([byte]): byte for byte in range(256)}, 256).save(runs / "tokens" / "tokenizer.json")
    path = runs / "made" / "seed_1" / "checkpoint.safetensors"
    checkpoint.save(path, random_model("EReg(SM(t)+ScFuFFN)", layers=1, vocabulary=257, context=12))
    serve = f"{mount} && exec '{sys.executable}' -m aero.cli serve --listen 127.0.0.1:0 --checkpoint '{path}'"
    server = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", serve],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | {"TMPDIR": str(disk)},
    )
    try:
        address = re.search(r"at (127\.0\.0\.1:\d+),", server.stdout.readline())[1]
        ask = [sys.executable, "-m", "aero.cli", "ask", "--server", address, "--tokens", "1", "--json", "def"]
        for _ in range(2):
            asked = subprocess.run(ask, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
            assert (asked.returncode, asked.stdout.strip()) == (1, "")
            assert asked.stderr.startswith("error: the server at ") and asked.stderr.count("\n") == 1
            told = server.stdout.readline()
            assert "failed: server: the log cannot be written" in told and f"make room in {disk}" in told
        assert server.poll() is None
        stopped = time.monotonic()
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=20)[0] == "stopped; 0 answered, 2 failed\n"
        assert time.monotonic() - stopped < 20
    finally:
        server.kill()
        server.wait()
