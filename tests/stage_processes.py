"""Stages as processes that are forked from one that has imported PyTorch: they start in milliseconds, not in seconds.

Each has its own folder, environment, output and exit status, like `python -m stages.NAME`. Not for what is read when
Python or PyTorch starts (PYTHONHASHSEED, OMP_NUM_THREADS): that takes a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMPORTED = ("train", "tokenize_corpus", "train_many")


def serve() -> None:
    """Start a stage for every line of standard input."""
    for name in IMPORTED:
        importlib.import_module(f"stages.{name}")
    importlib.import_module("torch._dynamo")  # otherwise imported by the first optimiser, in seconds
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:  # waits for the stage and writes its exit status
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pid = os.fork()
            if pid == 0:
                _run(**request)
            _write(request["place"], "pid", pid)
            _write(request["place"], "status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)


def _write(place: str, name: str, value: int) -> None:
    Path(place, f"{name}.tmp").write_text(str(value))
    os.replace(Path(place, f"{name}.tmp"), Path(place, name))


def _run(place: str, folder: str, environment: dict[str, str], module: str, arguments: list[str]) -> None:
    status: object = 0
    try:
        for number, name in ((0, os.devnull), (1, "out"), (2, "err")):
            os.dup2(os.open(Path(place, name), os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [module, *arguments]
        sys.modules.pop(module, None)  # it runs as __main__
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


@cache
def _server() -> subprocess.Popen[str]:
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests/training")))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, text=True)


class StageProcess:
    """A running stage, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, folder: Path, module: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.args = [module, *arguments]
        self._place = tempfile.TemporaryDirectory()
        request = {"place": self._place.name, "folder": str(folder), "environment": environment}
        server = _server()
        assert server.stdin is not None
        server.stdin.write(json.dumps(request | {"module": module, "arguments": arguments}) + "\n")
        server.stdin.flush()
        while (pid := self._read("pid")) is None:
            assert server.poll() is None, "the process that stages are forked from has ended"
            time.sleep(0.002)
        self.pid = pid

    def _read(self, name: str) -> int | None:
        path = Path(self._place.name, name)
        return int(path.read_text()) if path.exists() else None

    @property
    def returncode(self) -> int | None:
        return self._read("status")

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 180) -> int:
        end = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.005)
        return status

    def communicate(self, timeout: float = 180) -> tuple[str, str]:
        self.wait(timeout)
        return Path(self._place.name, "out").read_text(), Path(self._place.name, "err").read_text()


if __name__ == "__main__":
    serve()
