"""`aero serve` on a disk that fills up: the question ends in one line on both sides, and with room again goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from made_models import random_model

from aero import checkpoint
from aero.data.tokenizer import build

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.fixture
def disk():
    """A folder to mount on, not below tmp_path: a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="aero-full-") as folder:
        yield Path(folder)


@pytest.mark.slow
def test_a_question_whose_log_cannot_be_written_has_no_answer_and_costs(tmp_path, disk):
    runs = tmp_path / "runs"
    mount = f"mount -t tmpfs -o size=1m tmpfs '{disk}'"
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
        command = [sys.executable, "-m", "aero.cli", "ask", "--server", address, "--tokens", "1", "--json", "def"]

        def ask() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)

        # Python takes another folder for a temporary one that is full from the start: it fills up in between.
        first = ask()
        assert first.returncode == 0 and "1 new after 3 tokens" in server.stdout.readline(), first.stderr
        filled = Path(f"/proc/{server.pid}/root{disk}/filled")
        with pytest.raises(OSError, match="No space left"), filled.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        refused = ask()
        assert (refused.returncode, refused.stdout.strip()) == (1, "")
        assert refused.stderr.startswith("error: the server at ") and refused.stderr.count("\n") == 1
        told = server.stdout.readline()
        assert "failed: server: the log cannot be written" in told and f"make room in {disk}" in told
        filled.unlink()
        last = ask()
        assert last.returncode == 0, last.stderr
        assert json.loads(last.stdout)["ids"] == json.loads(first.stdout)["ids"]
        assert "1 new after 3 tokens" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=20)[0] == "stopped; 2 answered, 1 failed\n"
    finally:
        server.kill()
        server.wait()
