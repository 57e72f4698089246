"""Many private questions to one `aero serve`, one after the other: does it keep its memory, sockets and threads?

    python -m benchmarks.long_server --questions 1000

A server and its clients on this machine, over mutually authenticated TLS, with a model as small as the programs take
it; every question is a whole session of two party processes with keys, oblivious transfers and a forward pass, and its
answer is compared with PyTorch's. After each question, when the server is idle, its process tree is counted: memory,
descriptors, sockets, threads, processes, files in its temporary folder. Then some clients ask at once. Figures go to
results/robustness/server.json every ten questions, so that a killed run has left those until then.
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
from contextlib import contextmanager
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
WARM = 10
"""Questions after which the server has loaded what it ever needs."""
GROWTH = 0.02
"""Growth of memory, of the median of the first tenth of the questions to that of the last, that counts as none."""
GROWTH_LATE = 2 * 2**20
"""The same in bytes from the middle to the last tenth, where what is loaded once is loaded: 4 kB a question."""
AT_ONCE = 6
IDLE_S = 5.0


def tree(pid: int) -> list[int]:
    """The process and everything below it that still runs."""
    found, waiting = [], [pid]
    while waiting:
        one = waiting.pop()
        try:
            state = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[0]
            threads = list(Path(f"/proc/{one}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.append(one)
        for thread in threads:
            try:
                waiting += map(int, (thread / "children").read_text().split())
            except (FileNotFoundError, ProcessLookupError):
                continue  # a thread that ends takes none of the others with it
    return found


def counted(pid: int, folder: Path) -> dict[str, int]:
    """What the server's process tree holds: memory (resident), descriptors, sockets, threads, processes; and files in
    its temporary folder. Between questions the tree is the server, its fork server and a tracker of resources."""
    pids = tree(pid)
    links = [link for one in pids for link in descriptors(one)]
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "memory_bytes": page * sum(int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in pids),
        "descriptors": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "threads": sum(len(list(Path(f"/proc/{one}/task").iterdir())) for one in pids),
        "processes": len(pids),
        "files": len(list(folder.iterdir())),
    }


def descriptors(pid: int) -> list[str]:
    """What the open descriptors of a process are."""
    links = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    return links


def idle(pid: int, folder: Path, before: dict[str, int] | None) -> dict[str, int]:
    """What the server holds when the question's processes, threads and descriptors have ended, as few as `before`;
    whatever is still there after IDLE_S is counted."""
    until = time.monotonic() + IDLE_S
    while True:
        try:
            found = counted(pid, folder)
        except (FileNotFoundError, ProcessLookupError):
            continue  # a party process ended while it was counted
        ended = before is None or all(found[name] <= before[name] for name in ("processes", "threads", "descriptors"))
        if ended or time.monotonic() > until:
            return found
        time.sleep(0.05)


class Serving:
    """A running `aero serve` and the lines it says."""

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
                raise TwoPartyError(f"the server said nothing for {within_s:g} s; its last lines: {self.lines[-3:]}")
            return self.lines[index]


def made(architecture: str, sizes: ModelConfig, path: Path) -> GPT:
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
def served(folder: Path) -> Iterator[tuple[Serving, GPT, Callable[[float], Client], Path]]:
    """A server of a random model; the model; how a client connects, waiting so long; the server's temporary folder."""
    path = folder / "runs" / "made" / "seed_1" / "checkpoint.safetensors"
    model = made(ARCHITECTURE, MODEL, path)
    build({bytes([byte]): byte for byte in range(256)}, 256).save(folder / "runs" / "tokens" / "tokenizer.json")
    certificates, temporary = folder / "certificates", folder / "temporary"
    make_certificates(certificates, ["127.0.0.1"])
    temporary.mkdir()
    serving = Serving(path, certificates, temporary)
    context = Credentials(*(certificates / name for name in ("client.pem", "client.key", "ca.pem"))).context(
        server=False
    )
    try:
        yield serving, model, lambda wait_s: Client(dial(serving.address, context, wait_s), wait_s), temporary
    finally:
        if serving.process.poll() is None:
            serving.process.send_signal(signal.SIGINT)
        try:
            serving.process.wait(20)
        except subprocess.TimeoutExpired:
            serving.process.kill()
            raise


def ask(connect: Callable[[float], Client], token: int, wait_s: float = 60) -> int:
    """The answer to a prompt of one token."""
    answered = connect(wait_s).ask([token], 1, Sampling(VOCABULARY), Settings(), lambda *_: None)
    return answered.ids[0]


def expected(model: GPT, token: int) -> int:
    with torch.no_grad():
        return int(model(torch.tensor([[token]]))[0, -1].argmax())


def clear_answers(model: GPT) -> list[int]:
    """Tokens after which the first choice is ahead of the second by more than fixed point can get wrong."""
    with torch.no_grad():
        best = model(torch.arange(256)[:, None])[:, -1].topk(2).values
    return torch.nonzero(best[:, 0] - best[:, 1] > 0.02).flatten().tolist()


def growth(values: Sequence[float]) -> float:
    """Median of the last tenth over that of the first tenth, less 1, after the warm-up."""
    steady = values[WARM:] if len(values) > 2 * WARM else values
    tenth = max(1, len(steady) // 10)
    return median(steady[-tenth:]) / median(steady[:tenth]) - 1


def growth_late(values: Sequence[float]) -> float:
    """Median of the last tenth less that of the tenth in the middle, after the warm-up: what goes on growing."""
    steady = values[WARM:] if len(values) > 2 * WARM else values
    tenth = max(1, len(steady) // 10)
    middle = (len(steady) - tenth) // 2
    return median(steady[-tenth:]) - median(steady[middle : middle + tenth])


def judged(samples: Sequence[Sequence[float]], right: int) -> list[dict[str, Any]]:
    """The cases as the report shows them: name, count, passed, seen. A count that saw no process is none."""
    rows = [row for row in samples if row[COLUMNS.index("processes")]]
    columns = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    seconds, memory = columns["seconds"], columns["memory_bytes"]
    grown, late = growth(memory), growth_late(memory)

    def case(name: str, count: int, passed: int, seen: str) -> dict[str, Any]:
        return {"name": name, "count": count, "passed": passed, "seen": seen}

    cases = [
        case(
            "questions answered as PyTorch answers", len(samples), right, f"median {median(seconds):.1f} s a question"
        ),
        case(
            "memory of the server and its fork server",
            len(rows),
            len(rows) if grown <= GROWTH and late <= GROWTH_LATE else 0,
            f"{memory[min(WARM, len(rows) - 1)] / 2**20:.1f} MiB after question {min(WARM + 1, len(rows))}, "
            f"{memory[-1] / 2**20:.1f} MiB at the end; {100 * grown:+.2f} % from first to last tenth, "
            f"{late / 2**20:+.1f} MiB from the middle to the last",
        ),
    ]
    for name in COLUMNS[3:]:
        values = columns[name][WARM:] or columns[name]
        same = sum(value <= values[0] for value in values) + (len(rows) - len(values))
        cases.append(case(f"{name} of the idle server", len(rows), same, f"{min(values)} to {max(values)}"))
    return cases


def at_once(serving: Serving, model: GPT, connect: Callable[[float], Client]) -> list[dict[str, Any]]:
    """AT_ONCE clients that ask together, and one more that would wait for half a second only."""
    answers: dict[int, int | str] = {}
    tokens = clear_answers(model)

    def client(index: int) -> None:
        try:
            answers[index] = ask(connect, tokens[index], 600)
        except TwoPartyError as error:
            answers[index] = str(error)

    threads = [threading.Thread(target=client, args=(index,)) for index in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    try:
        refused = f"answered {ask(connect, tokens[0], 0.5)}"
    except TwoPartyError as error:
        refused = str(error)
    for thread in threads:
        thread.join()
    right = sum(answers[index] == expected(model, tokens[index]) for index in range(AT_ONCE))
    wrong = "; ".join(str(answer) for answer in answers.values() if isinstance(answer, str))
    return [
        {
            "name": "clients at once, answered one after the other",
            "count": AT_ONCE,
            "passed": right,
            "seen": wrong or "all answered",
        },
        {
            "name": "a client that does not wait for its turn is told why",
            "count": 1,
            "passed": int("may be busy with another question" in refused),
            "seen": refused,
        },
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_server", description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    origin, clock = records.provenance(started=records.now()), time.monotonic()
    samples: list[list[float]] = []
    right, failures = 0, []
    cases: list[dict[str, Any]] = []

    def write() -> None:
        result = {
            "cases": judged(samples, right) + cases,
            "asked": len(samples),
            "of": chosen.questions,
            "failures": failures,
            "model": {"architecture": ARCHITECTURE, "layers": 1, "width": MODEL.width, "vocabulary": VOCABULARY},
            "columns": COLUMNS,
            "samples": samples,
            "provenance": origin | {"seconds": round(time.monotonic() - clock, 1)},
        }
        write_text(chosen.out, json.dumps(result) + "\n")

    with (
        tempfile.TemporaryDirectory(prefix="aero-server-") as name,
        served(Path(name)) as (
            serving,
            model,
            connect,
            temporary,
        ),
    ):
        generator, before = np.random.default_rng(1), counted(serving.process.pid, temporary)
        tokens = clear_answers(model)
        for question in range(1, chosen.questions + 1):
            token, began = int(generator.choice(tokens)), time.monotonic()
            try:
                right += ask(connect, token) == expected(model, token)
            except TwoPartyError as error:
                failures.append(f"question {question}: {error}; the server: {serving.line(question)}")
            seconds = time.monotonic() - began
            serving.line(question)
            before = idle(serving.process.pid, temporary, before)
            samples.append([question, round(seconds, 2), *before.values()])
            if question % 10 == 0:
                write()
                print(f"{question} questions, {median(row[1] for row in samples):.1f} s each: {before}", flush=True)
        cases = at_once(serving, model, connect)
        write()
    for case in (cases := judged(samples, right) + cases):
        print(f"{case['passed']} of {case['count']}  {case['name']}: {case['seen']}")
    return int(any(case["passed"] != case["count"] for case in cases))


if __name__ == "__main__":
    run_main(main)
