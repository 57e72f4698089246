"""Many private questions to one `aero serve`, one after the other: do its memory, sockets and threads stay constant?

    python -m benchmarks.server_soak --questions 1000

A server and its clients on this machine, over TLS, with a tiny model. Every question is a whole session of two party
processes; its answer is compared with PyTorch's. After each question the processes of the idle server are counted.
Writes results/robustness/server.json every ten questions.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from aero import checkpoint, records
from aero.architecture import parse
from aero.data.tokenizer import build
from aero.errors import run_main
from aero.model import GPT, ModelConfig
from aero.two_party.runtime.settings import Settings, TwoPartyError
from aero.two_party.serving.answer import Sampling
from aero.two_party.serving.session import Client
from aero.two_party.serving.tls import make_certificates, tls_context
from aero.two_party.serving.tunnel import dial
from benchmarks.timing import resident_bytes

FILE = Path("results/robustness/server.json")
VOCABULARY = 257
MODEL = ModelConfig(vocabulary=VOCABULARY, context=2, layers=1, heads=1, width=8, ffn_width=16)
ARCHITECTURE = "SM+ScFuFFN"
COLUMNS = ("question", "seconds", "memory_bytes", "descriptors", "sockets", "threads", "processes", "files")
WARM_UP = 10
"""Questions after which the server has loaded all that it needs."""
MAX_GROWTH = 0.05
"""Of memory, from the first tenth of the questions to the last."""
MAY_END_LATER, IDLE_S = ("processes", "threads", "descriptors"), 5.0


def session(leader: int) -> Iterator[int]:
    """Processes that still run in the session of `leader`."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            state, _, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == leader and state != "Z":
                yield int(folder.name)


def counted(leader: int, folder: Path) -> dict[str, int]:
    """What a session holds: memory, descriptors, sockets, threads, processes, files in its temporary folder."""
    total = dict.fromkeys(COLUMNS[2:], 0) | {"files": len(list(folder.iterdir()))}
    for one in session(leader):
        with suppress(FileNotFoundError, ProcessLookupError):
            total["memory_bytes"] += resident_bytes(one)
            total["threads"] += len(list(Path(f"/proc/{one}/task").iterdir()))
            total["processes"] += 1
            for descriptor in Path(f"/proc/{one}/fd").iterdir():
                with suppress(FileNotFoundError):
                    total["sockets"] += os.readlink(descriptor).startswith("socket:")
                    total["descriptors"] += 1
    return total


def idle(pid: int, folder: Path, before: dict[str, int]) -> dict[str, int]:
    """`counted` once there is no more than `before`, after IDLE_S at the latest."""
    until, found = time.monotonic() + IDLE_S, counted(pid, folder)
    while time.monotonic() < until and any(found[name] > before[name] for name in MAY_END_LATER):
        time.sleep(0.05)
        found = counted(pid, folder)
    return found


class Serving:
    """A running `aero serve`, in a session of its own; its output goes to the file `log`."""

    def __init__(self, path: Path, certificates: Path, temporary: Path, log: Path) -> None:
        self._log = log
        security = {"certificate": "server.pem", "key": "server.key", "ca": "ca.pem"}
        command = [sys.executable, "-m", "aero.cli", "serve", "--listen=127.0.0.1:0", f"--checkpoint={path}"]
        command += [f"--{name}={certificates}/{file}" for name, file in security.items()]
        environment = os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        with log.open("w") as output:
            self.process = subprocess.Popen(command, stdout=output, env=environment, start_new_session=True)
        self.address = re.search(r"at (127\.0\.0\.1:\d+),", self.line(0))[1]

    def line(self, index: int, within_s: float = 120) -> str:
        """The line of this index that the server prints; waits for it."""
        until = time.monotonic() + within_s
        while len(lines := self._log.read_text().split("\n")[:-1]) <= index:
            if time.monotonic() > until:
                raise TwoPartyError(f"the server printed nothing for {within_s:g} s; its last: {lines[-3:]}")
            time.sleep(0.02)
        return lines[index]


@contextmanager
def served(folder: Path) -> Iterator[tuple[Serving, GPT, Callable[[], Client], Path]]:
    """A server of a random model; the model; a function that connects a client; the server's temporary folder."""
    path = folder / "runs" / "made" / "seed_1" / "checkpoint.safetensors"
    torch.manual_seed(1)
    model = GPT(parse(ARCHITECTURE), MODEL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.25 * torch.randn_like(parameter))
    checkpoint.save(path, model)
    build({bytes([byte]): byte for byte in range(256)}, 256).save(folder / "runs" / "tokens" / "tokenizer.json")
    certificates, temporary = folder / "certificates", folder / "temporary"
    make_certificates(certificates, ["127.0.0.1"])
    temporary.mkdir()
    serving = Serving(path, certificates, temporary, folder / "server.log")
    files = (certificates / name for name in ("client.pem", "client.key", "ca.pem"))
    context = tls_context(*files, server=False)
    try:
        yield serving, model, lambda: Client(dial(serving.address, context, 120), 120), temporary
    finally:
        serving.process.send_signal(signal.SIGINT)
        try:
            serving.process.wait(60)
        except subprocess.TimeoutExpired:
            serving.process.kill()
            raise


def ask(client: Client, token: int) -> int:
    """The answer to a prompt of one token."""
    return client.ask([token], 1, Sampling(VOCABULARY), Settings(), lambda *_: None).ids[0]


@torch.no_grad()
def expected(model: GPT, token: int) -> int:
    return int(model(torch.tensor([[token]]))[0, -1].argmax())


@torch.no_grad()
def clear_answers(model: GPT) -> list[int]:
    """Tokens after which the first choice is ahead of the second by more than the fixed point's error."""
    best = model(torch.arange(256)[:, None])[:, -1].topk(2).values
    return torch.nonzero(best[:, 0] - best[:, 1] > 0.02).flatten().tolist()


def growth(values: Sequence[float]) -> float:
    """Median of the last tenth over that of the first tenth, less 1, after the warm-up."""
    steady = values[WARM_UP:] if len(values) > 2 * WARM_UP else values
    tenth = max(1, len(steady) // 10)
    return median(steady[-tenth:]) / median(steady[:tenth]) - 1


def judge(samples: Sequence[Sequence[float]], right: int) -> list[dict[str, Any]]:
    """Cases for the report: name, count, passed, seen."""
    columns = dict(zip(COLUMNS, zip(*samples, strict=True), strict=True))
    memory, seconds = columns["memory_bytes"], median(columns["seconds"])
    grown, count = growth(memory), len(samples)
    seen = f"{memory[0] / 2**20:.1f} to {memory[-1] / 2**20:.1f} MiB, {100 * grown:+.2f} % from first to last tenth"
    cases = [
        ("questions answered as PyTorch answers", right, f"median {seconds:.1f} s a question"),
        ("memory of the server and its fork server", count if grown <= MAX_GROWTH else 0, seen),
    ]
    for name in COLUMNS[3:]:
        values = columns[name][WARM_UP:] or columns[name]
        same = sum(value <= values[0] for value in values) + (count - len(values))
        cases.append((f"{name} of the idle server", same, f"{min(values)} to {max(values)}"))
    return [{"name": name, "count": count, "passed": passed, "seen": seen} for name, passed, seen in cases]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.server_soak", description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    origin, clock = records.provenance(started=records.now()), time.monotonic()
    samples: list[list[float]] = []
    right, failures = 0, []
    with tempfile.TemporaryDirectory(prefix="aero-server-") as name, served(Path(name)) as started:
        serving, model, connect, temporary = started
        generator, before = np.random.default_rng(1), counted(serving.process.pid, temporary)
        tokens = clear_answers(model)
        for question in range(1, chosen.questions + 1):
            token, start = int(generator.choice(tokens)), time.monotonic()
            try:
                right += ask(connect(), token) == expected(model, token)
            except TwoPartyError as error:
                failures.append(f"question {question}: {error}; the server: {serving.line(question)}")
            seconds = time.monotonic() - start
            serving.line(question)
            before = idle(serving.process.pid, temporary, before)
            samples.append([question, round(seconds, 2), *before.values()])
            if question % 10 == 0 or question == chosen.questions:
                result = {"cases": judge(samples, right), "asked": question, "of": chosen.questions}
                result |= {"failures": failures, "columns": COLUMNS, "samples": samples}
                result["model"] = {"architecture": ARCHITECTURE, "layers": 1, "width": MODEL.width}
                result["provenance"] = origin | {"seconds": round(time.monotonic() - clock, 1)}
                records.write_text(chosen.out, json.dumps(result) + "\n")
    for case in (cases := judge(samples, right)):
        print(f"{case['passed']} of {case['count']}  {case['name']}: {case['seen']}")
    return int(any(case["passed"] != case["count"] for case in cases))


if __name__ == "__main__":
    run_main(main)
