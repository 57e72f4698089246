"""Inject faults into the pipeline and into a server: are results whole, and does the next attempt succeed?

    python -m benchmarks.faults [pipeline] [server] --moments 40

pipeline: in a copy of this project at the smoke scale, `dvc repro` tokenizes, trains, measures entropies and sweeps
learning rates. A random fault strikes at a random moment; then every result file must be whole, and `dvc repro` must
end with the results of an undisturbed run. server: a client or a party process is killed in the middle of a question,
or a client sends random bytes; the next question must be answered as PyTorch answers.
Writes results/robustness/faults.json after every fault.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from aero.errors import UserError, run_main
from aero.records import ROOT, now
from benchmarks import pipeline, server_soak, timing

FILE = Path("results/robustness/faults.json")
RUN = "sm-scfuffn"
TARGETS = ("train", "sensitivity")
TIMES = {"provenance", "measured", "tokens_per_second", "seconds"}
"""Differ between two runs of the same code on the same data."""


class Project:
    """A copy of the pipeline with one run at the smoke scale, without git."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("aero", "stages", ".dvc"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "cache", "tmp"))
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copy(ROOT / name, folder / name)
        text = (ROOT / "params.yaml").read_text(encoding="utf-8")
        text = re.sub(r"(?m)^active_runs:\n(- .*\n)+", f"active_runs: [{RUN}]\n", text)
        (folder / "params.yaml").write_text(re.sub(r"(?m)^scale: \w+", "scale: smoke", text))
        (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """`dvc repro` of the targets, in a session of its own."""
        command, env = ["dvc", "repro", "--no-run-cache", *options, *TARGETS], pipeline.environment(self.folder)
        with (self.folder / "output.txt").open("w") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            return subprocess.Popen(command, cwd=self.folder, env=env, start_new_session=True, **streams)

    def finish(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for all processes of the session; whether `dvc repro` succeeded."""
        status = process.wait()
        while list(server_soak.session(process.pid)):
            time.sleep(0.05)
        return status == 0

    def contents(self) -> dict[str, str]:
        """{path: hash without times} of every result file, or "damaged: ..."."""
        runs = self.folder / "runs"
        files = {*runs.glob("default/*/seed_*/*.*"), *(runs / "sensitivity").glob("*.*")}
        files -= {runs / "sensitivity" / "contents.json"}  # the hash of the others, times included
        whole = [path for path in files if path.suffix != ".tmp" and not path.stem.endswith(".unfinished")]
        return {str(path.relative_to(self.folder)): content_hash(path) for path in sorted(whole)}


def content_hash(path: Path) -> str:
    try:
        content: Any = path.read_bytes()
        if path.suffix == ".json":
            content = {key: value for key, value in json.loads(content).items() if key not in TIMES}
        elif path.suffix == ".csv":
            header, *rows = csv.reader(content.decode().splitlines())
            content = [column for column in zip(header, *rows, strict=True) if column[0] not in TIMES]
        elif path.suffix == ".safetensors":
            deserialize(content)
    except (ValueError, OSError, SafetensorError) as error:
        return f"damaged: {' '.join(str(error).split())[:120]}"
    if not isinstance(content, bytes):
        content = json.dumps(content, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def signalled(number: int, pattern: str = "") -> Callable[[int], None]:
    """A fault: send a signal to the processes of the session whose command line matches."""

    def fault(leader: int) -> None:
        for pid in server_soak.session(leader):
            with suppress(OSError):
                if re.search(pattern, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()):
                    os.kill(pid, number)

    return fault


def full_disk(leader: int) -> None:
    """No process of the session can write a file of more than 4 KiB from now on."""
    for pid in server_soak.session(leader):
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))


PIPELINE_FAULTS: dict[str, Callable[[int], None]] = {
    "SIGKILL": signalled(signal.SIGKILL),
    "SIGTERM": signalled(signal.SIGTERM),
    "SIGKILL of the stage alone": signalled(signal.SIGKILL, r"-m stages\."),
    "SIGKILL of DVC alone": signalled(signal.SIGKILL, r"dvc repro"),
    "full disk": full_disk,
}


def pipeline_faults(folder: Path, draw: random.Random) -> Iterator[tuple[str, str]]:
    """(fault, problem or empty), one after the other."""
    project = Project(folder)
    start = time.monotonic()
    if not project.finish(project.start()):
        raise UserError(f"the pipeline does not run undisturbed: {(folder / 'output.txt').read_text()[-400:]}")
    seconds, expected = time.monotonic() - start, project.contents()
    while True:
        name = draw.choice(list(PIPELINE_FAULTS))
        process = project.start("--force")
        time.sleep(draw.uniform(0, seconds))
        PIPELINE_FAULTS[name](process.pid)
        project.finish(process)
        damaged = [f"{path}: {value}" for path, value in project.contents().items() if value.startswith("damaged")]
        if not project.finish(project.start()):
            damaged.append(f"dvc repro fails afterwards: {(folder / 'output.txt').read_text()[-200:]}")
        elif project.contents() != expected:
            damaged.append("other results than undisturbed")
        yield f"pipeline: {name}", "; ".join(damaged)


def server_faults(folder: Path, draw: random.Random) -> Iterator[tuple[str, str]]:
    """(fault, problem or empty), one after the other."""
    with server_soak.served(folder) as (serving, model, connect, _):
        tokens, lines = server_soak.clear_answers(model), 1
        while True:
            name = draw.choice(["SIGKILL of the server's party", "client leaves", "random bytes"])
            if name == "random bytes":
                host, port = serving.address.split(":")
                with socket.create_connection((host, int(port))) as connection, suppress(OSError):
                    connection.sendall(draw.randbytes(draw.randint(1, 100_000)))
            else:
                before, client = set(server_soak.session(serving.process.pid)), connect()
                question = {"tokens": 1, "new_tokens": 1, "cached": True}
                client._tunnel.send(question | {"description": client.description.sha256})
                client._tunnel.receive()
                time.sleep(draw.uniform(0, 3))
                if name != "client leaves":
                    for pid in set(server_soak.session(serving.process.pid)) - before:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    time.sleep(1)
                client.close()
            problem, token = "", draw.choice(tokens)
            try:
                lines += 2
                if server_soak.ask(connect(), token) != server_soak.expected(model, token):
                    problem = "a wrong answer afterwards"
                serving.line(lines - 1)
            except ValueError as error:
                problem = f"no answer afterwards: {error}"
            yield f"server: {name}", problem


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("where", nargs="*", default=["pipeline", "server"], help="pipeline, server (default: both)")
    parser.add_argument("--moments", type=int, default=40, help="number of faults in each")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    draw, started, clock = random.Random(chosen.seed), now(), time.monotonic()
    cases: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for where in chosen.where:
        faults = {"pipeline": pipeline_faults, "server": server_faults}[where]
        with tempfile.TemporaryDirectory(prefix="aero-faults-") as folder:
            for name, problem in itertools.islice(faults(Path(folder), draw), chosen.moments):
                case = cases.setdefault(name, {"name": name, "count": 0, "passed": 0, "seen": ""})
                case["count"] += 1
                case["passed"] += not problem
                failures += [f"{name}: {problem}"] if problem else []
                print(f"{name}: {problem or 'as it should be'}", flush=True)
                result = {"cases": list(cases.values()), "failures": failures, "seed": chosen.seed}
                made = {"started": started, "seconds": round(time.monotonic() - clock, 1)}
                timing.save(chosen.out.stem, result, chosen.out.parent, **made)
    return int(bool(failures))


if __name__ == "__main__":
    run_main(main)
