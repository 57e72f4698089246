"""`make fuzz`: damaged input for every reader of a file or message, counted in results/robustness/fuzz.json.

python -m benchmarks.fuzz [--target "token files"] [--cases N] [--seconds S] [--seed S] [--engine hypothesis|atheris]

With --target or --engine the other figures in the file stay as they are, with the commit they were made at.

Two engines: hypothesis makes cases from the format (`benchmarks.fuzz_targets`), atheris, where it is installed, changes
bytes and follows which lines of `aero` they reach. Each target runs in a process of its own, with limits on time and
memory, in a folder with a blank and an umlaut in its name. The same seed gives the same cases by hypothesis. Exits with
status 1 if a case ended in anything but success or a good error; its bytes are then in the file, as base64.
"""

from __future__ import annotations

import argparse
import base64
import faulthandler
import importlib.util
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aero import records
from aero.errors import UserError, run_main
from aero.records import write_text

OUT = Path("results/robustness/fuzz.json")
# Cases by hypothesis and by atheris: more of what takes microseconds.
CASES = {
    "notation": (20_000, 50_000),
    "parameters": (12_000, 10_000),
    "token files": (10_000, 5_000),
    "checkpoints": (5_000, 4_000),
    "published numbers": (12_000, 10_000),
    "profile logs": (25_000, 50_000),
    "local corpora": (10_000, 10_000),
    "Languini's books": (10_000, 5_000),
    "files of trainings": (3_000, 2_000),
    "results": (8_000, 4_000),
    "measured costs": (10_000, 10_000),
    "link, server": (8_000, 4_000),
    "link, client": (8_000, 4_000),
    "link, shares": (20_000, 20_000),
}
ENGINES = ("hypothesis", "atheris")
CASE_S = 10.0
"""What one case may take; slower is a hang."""
TARGET_S = 600.0
MEMORY = 4 << 30
"""Bytes of address space that a target may take beyond what it has before its first case."""
_BLOCK = 5_000
_KEPT_CASE = 20_000


class Hang(BaseException):
    """A case took too long."""


class Over(BaseException):
    """Enough cases, or no time left."""


class Tally:
    """Cases of one target, what became of them, and what must not have happened."""

    def __init__(self, read: Callable[[bytes], None], cause: tuple[str, ...]) -> None:
        self._read, self._cause = read, cause
        self.cases = self.accepted = self.refused = 0
        self.slowest_s = 0.0
        self.failures: dict[str, dict[str, Any]] = {}

    def examine(self, case: bytes) -> str | None:
        """Give it one case; what failed, in a line, or None."""
        began = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, CASE_S)
        wrong, refused = None, False
        try:
            try:
                self._read(case)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except (ValueError, OSError) as error:
            from benchmarks.fuzz_target import refusal

            wrong, refused = refusal(error, self._cause), True
            if wrong is not None:
                wrong = f"{wrong} [{_place(error)}]"
        except Hang as error:
            wrong = f"not done after {CASE_S:g} s [{_place(error)}]"
        except (KeyboardInterrupt, Over):
            raise
        except BaseException as error:
            wrong = f"{type(error).__name__}: {error} [{_place(error)}]"
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
        self.cases += 1
        if wrong is not None:
            self._keep(wrong, case)
        elif refused:
            self.refused += 1
        else:
            self.accepted += 1
        return wrong

    def _keep(self, wrong: str, case: bytes) -> None:
        """Failures of one kind at one place are one; the shortest case is kept."""
        wrong = wrong[:600]
        kind = re.sub(r"\d+", "_", f"{wrong.partition(':')[0]} {wrong.rpartition(' ')[2]}")
        found = self.failures.setdefault(kind, {"what": wrong, "times": 0, "case": None})
        found["times"] += 1
        encoded = base64.b64encode(case[:_KEPT_CASE]).decode()
        if found["case"] is None or len(encoded) < len(found["case"]):
            found |= {"what": wrong, "case": encoded}

    def summary(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "accepted": self.accepted,
            "refused": self.refused,
            "slowest_s": round(self.slowest_s, 3),
            "failures": list(self.failures.values()),
        }


def _place(error: BaseException) -> str:
    """Where it was raised: the last line of this project's own source on the way."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/aero/" in frame.filename or "/benchmarks/" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def by_hypothesis(target: Any, tally: Tally, cases: int, seed: int, until: float) -> None:
    """Give `tally` that many cases of the target's strategy, or as many as there is time for."""
    import hypothesis

    def each(case: bytes) -> None:
        if tally.cases >= cases or time.monotonic() > until:
            raise Over
        tally.examine(case)

    block = 0
    while tally.cases < cases and time.monotonic() < until:
        settings = hypothesis.settings(
            max_examples=min(_BLOCK, cases - tally.cases),
            phases=[hypothesis.Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        with_cases = hypothesis.given(target.cases)(each)
        try:
            hypothesis.seed(seed + block)(settings(with_cases))()
        except Over:
            return
        block += 1


def _child(name: str, engine: str, cases: int, seconds: float, seed: int, report: Path) -> None:
    """One target in this process; writes its summary to `report`."""
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="aero fuzz ü ") as folder:
        if engine == "atheris":
            import atheris

            with atheris.instrument_imports(include=["aero"], enable_loader_override=False):
                target = _target(name, Path(folder))
        else:
            target = _target(name, Path(folder))
        tally = Tally(target.read, target.cause)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGALRM, _alarm)
        began = time.monotonic()
        current = os.open(report.with_suffix(".case"), os.O_WRONLY | os.O_CREAT, 0o600)
        read = tally._read

        def read_told(case: bytes) -> None:
            # What a process that dies was at is in this file.
            os.ftruncate(current, len(case))
            os.pwrite(current, case, 0)
            read(case)

        tally._read = read_told
        for seed_case in target.seeds:
            if wrong := tally.examine(seed_case):
                raise RuntimeError(f"valid input is refused: {wrong}")
        if tally.refused:
            raise RuntimeError(f"{tally.refused} of {len(target.seeds)} valid inputs are refused")

        def finish() -> None:
            write_text(report, json.dumps(tally.summary() | {"seconds": round(time.monotonic() - began, 1)}))

        if engine == "hypothesis":
            by_hypothesis(target, tally, cases, seed, began + seconds)
            finish()
            return
        from benchmarks.fuzz_target import put

        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        for number, seed_case in enumerate(target.seeds):
            put(corpus / str(number), seed_case)

        def one(case: bytes) -> None:
            tally.examine(bytes(case))
            if tally.cases >= cases or time.monotonic() > began + seconds:
                finish()
                os._exit(0)  # libFuzzer never returns

        longest = max(map(len, target.seeds)) + 4096
        options = [f"-seed={seed}", f"-max_len={longest}", "-timeout=0", "-rss_limit_mb=0", "-verbosity=0"]
        atheris.Setup(["fuzz", *options, str(corpus)], one)
        atheris.Fuzz()


def _target(name: str, folder: Path) -> Any:
    from benchmarks.fuzz_targets import TARGETS

    return TARGETS[name](folder)


def _alarm(*_: Any) -> None:
    raise Hang


def _run(name: str, engine: str, cases: int, seconds: float, seed: int) -> dict[str, Any]:
    """One target in a process of its own, ended if it goes on beyond its time."""
    with tempfile.TemporaryDirectory(prefix="aero-fuzz-") as folder:
        report = Path(folder) / "report.json"
        numbers = [str(cases), str(seconds), str(seed)]
        command = [sys.executable, "-m", "benchmarks.fuzz", "--one", name, engine, *numbers, str(report)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, said = process.communicate(timeout=seconds + 120)
        except subprocess.TimeoutExpired:
            process.kill()
            _, said = process.communicate()
        about = {"target": name, "engine": engine, "of": cases, "seed": seed, "commit": records.commit()}
        if process.returncode == 0 and report.is_file():
            return about | json.loads(report.read_text(encoding="utf-8"))
        case = report.with_suffix(".case")
        last = case.read_bytes()[:_KEPT_CASE] if case.is_file() else b""
        end = f"the process ended with status {process.returncode}: {' '.join(said.split())[-500:]}"
        failure = {"what": end, "times": 1, "case": base64.b64encode(last).decode()}
        return about | {
            "cases": 0,
            "accepted": 0,
            "refused": 0,
            "slowest_s": 0.0,
            "seconds": 0.0,
            "failures": [failure],
        }


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--one"]:
        name, engine, cases, seconds, seed, report = arguments[1:]
        _child(name, engine, int(cases), float(seconds), int(seed), Path(report))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", choices=list(CASES), help="may be repeated; default: all")
    parser.add_argument("--cases", type=int, help="of each target and engine (default: by target)")
    parser.add_argument("--seconds", type=float, default=TARGET_S, help="of each target and engine (default 600)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, help="default: both, atheris if it is installed")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(arguments)
    installed = importlib.util.find_spec("atheris") is not None
    if chosen.engine == "atheris" and not installed:
        raise UserError("atheris is not installed; pip install -e '.[fuzz]' in your clone, or --engine hypothesis")
    engines = [chosen.engine] if chosen.engine else list(ENGINES if installed else ENGINES[:1])
    names = chosen.target or list(CASES)
    chosen_alone = len(names) < len(CASES) or chosen.engine is not None
    results = [
        found
        for found in (_kept(chosen.out) if chosen_alone else [])
        if found["target"] not in names or found["engine"] not in engines
    ]
    for name in names:
        for engine in engines:
            cases = chosen.cases or CASES[name][ENGINES.index(engine)]
            found = _run(name, engine, cases, chosen.seconds, chosen.seed)
            results.append(found)
            results.sort(key=lambda found: (list(CASES).index(found["target"]), ENGINES.index(found["engine"])))
            print(
                f"{name} by {engine}: {found['cases']} cases in {found['seconds']:g} s, {found['refused']} refused, "
                f"slowest {found['slowest_s']:g} s, {len(found['failures'])} failures",
                flush=True,
            )
            for failure in found["failures"]:
                print(f"  {failure['times']} x {failure['what']}", flush=True)
            _write(chosen.out, results, chosen.seed, len(CASES) * (2 if installed else 1))
    # What time ran out for was not asked, and cannot pass for it.
    return int(any(found["failures"] or found["cases"] < found["of"] for found in results))


def _kept(path: Path) -> list[dict[str, Any]]:
    """What an earlier run found, each target with the commit it was found at; nothing if there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [{"commit": content["provenance"]["commit"]} | found for found in content["targets"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _write(path: Path, results: list[dict[str, Any]], seed: int, planned: int) -> None:
    total = {key: sum(found[key] for found in results) for key in ("cases", "accepted", "refused")}
    failures = sum(len(found["failures"]) for found in results)
    limits = {"asked": len(results), "of": planned, "case_limit_s": CASE_S, "memory_limit_bytes": MEMORY, "seed": seed}
    made = records.provenance(measured=records.now())
    content = total | {"failures": failures} | limits | {"targets": results, "provenance": made}
    write_text(path, json.dumps(content, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    run_main(main)
