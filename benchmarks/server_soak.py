"""Many private questions to one `aero serve`, one after the other: do its memory, sockets and threads stay constant?

    python -m benchmarks.server_soak --questions 1000

A server and its clients on this machine, over TLS, with a tiny model. Every question is a whole session of two party
processes; its answer is compared with PyTorch's. After each question the idle server's process tree is counted.
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
import threading
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
from aero.records import write_text
from aero.two_party.runtime.settings import Settings, TwoPartyError
from aero.two_party.serving.answer import Sampling
from aero.two_party.serving.session import Client
from aero.two_party.serving.tls import Credentials, make_certificates
from aero.two_party.serving.tunnel import dial

FILE = Path("results/robustness/server.json")
VOCABULARY = 257
MODEL = ModelConfig(vocabulary=VOCABULARY, context=2, layers=1, heads=1, width=8, ffn_width=16)
ARCHITECTURE = "SM+ScFuFFN"
COLUMNS = ("question", "seconds", "memory_bytes", "descriptors", "sockets", "threads", "processes", "files")
WARM_UP = 10
"""Questions after which the server has loaded all that it needs."""
MAX_GROWTH = 0.05
"""Of memory, from the first tenth of the questions to the last."""
IDLE_S = 5.0


def tree(pid: int) -> list[int]:
    """The process and everything below it that still runs."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(one)
            for thread in list(Path(f"/proc/{one}/task").iterdir()):
                with suppress(FileNotFoundError, ProcessLookupError):
                    waiting += map(int, (thread / "children").read_text().split())
    return found


def counted(pid: int, folder: Path) -> dict[str, int]:
    """What the process tree holds: memory, descriptors, sockets, threads, processes, files in its temporary folder."""
    total = dict.fromkeys(COLUMNS[2:], 0) | {"files": len(list(folder.iterdir()))}
    for one in tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            total["memory_bytes"] += os.sysconf("SC_PAGE_SIZE") * int(Path(f"/proc/{one}/statm").read_text().split()[1])
            total["threads"] += len(list(Path(f"/proc/{one}/task").iterdir()))
            total["processes"] += 1
            for descriptor in Path(f"/proc/{one}/fd").iterdir():
                with suppress(FileNotFoundError):
                    total["sockets"] += os.readlink(descriptor).startswith("socket:")
                    total["descriptors"] += 1
    return total


def idle(pid: int, folder: Path, before: dict[str, int] | None) -> dict[str, int]:
    """`counted` once there is no more than `before`, after IDLE_S at the latest."""
    until = time.monotonic() + IDLE_S
    while True:
        found = counted(pid, folder)
        ended = before is None or all(found[name] <= before[name] for name in ("processes", "threads", "descriptors"))
        if ended or time.monotonic() > until:
            return found
        time.sleep(0.05)


class Serving:
    """A running `aero serve` and the lines it has printed."""

    def __init__(self, path: Path, certificates: Path, temporary: Path) -> None:
        security = [f"--certificate={certificates}/server.pem", f"--key={certificates}/server.key"]
        command = ["serve", "--listen=127.0.0.1:0", f"--checkpoint={path}", *security, f"--ca={certificates}/ca.pem"]
        environment = os.environ | {"TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aero.cli", *command], stdout=subprocess.PIPE, text=True, env=environment
        )
        self.lines: list[str] = []
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.address = re.search(r"at (127\.0\.0\.1:\d+),", self.line(0))[1]

    def _read(self) -> None:
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()

    def line(self, index: int, within_s: float = 120) -> str:
        with self._more:
            if not self._more.wait_for(lambda: len(self.lines) > index, within_s):
                raise TwoPartyError(f"the server printed nothing for {within_s:g} s; its last: {self.lines[-3:]}")
            return self.lines[index]


def random_model(architecture: str, sizes: ModelConfig, path: Path) -> GPT:
    """A random model, saved at `path`."""
    torch.manual_seed(1)
    model = GPT(parse(architecture), sizes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.25 * torch.randn_like(parameter))
    checkpoint.save(path, model)
    return model


@contextmanager
def served(folder: Path) -> Iterator[tuple[Serving, GPT, Callable[[], Client], Path]]:
    """A server of a random model; the model; a function that connects a client; the server's temporary folder."""
    path = folder / "runs" / "made" / "seed_1" / "checkpoint.safetensors"
    model = random_model(ARCHITECTURE, MODEL, path)
    build({bytes([byte]): byte for byte in range(256)}, 256).save(folder / "runs" / "tokens" / "tokenizer.json")
    certificates, temporary = folder / "certificates", folder / "temporary"
    make_certificates(certificates, ["127.0.0.1"])
    temporary.mkdir()
    serving = Serving(path, certificates, temporary)
    files = (certificates / name for name in ("client.pem", "client.key", "ca.pem"))
    context = Credentials(*files).context(server=False)
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


def expected(model: GPT, token: int) -> int:
    with torch.no_grad():
        return int(model(torch.tensor([[token]]))[0, -1].argmax())


def clear_answers(model: GPT) -> list[int]:
    """Tokens after which the first choice is ahead of the second by more than the fixed point's error."""
    with torch.no_grad():
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
                write_text(chosen.out, json.dumps(result) + "\n")
    cases = judge(samples, right)
    for case in cases:
        print(f"{case['passed']} of {case['count']}  {case['name']}: {case['seen']}")
    return int(any(case["passed"] != case["count"] for case in cases))


if __name__ == "__main__":
    run_main(main)
