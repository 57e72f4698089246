"""Kill the pipeline at random moments: are results whole, are the last ones there, does it go on to the same end?

    python -m benchmarks.faults --moments 100

A copy of this project at the smoke scale, with DVC and without git, on a small disk of its own (a tmpfs in a private
mount namespace; without the right to mount, a folder and a limit on file sizes). `dvc repro` tokenizes, trains,
measures entropies and sweeps learning rates, again and again for two sets of parameters in turn, and is struck at a
random moment (a random part of the time of a stage, every stage as likely, by the kind of strike that this
stage has seen least), up to three times before it may end, until it has been struck `--moments` times. After every
strike:

- no result file is half-written, and each is the old one or the new one, those of one training together;
- DVC's lock can be read, its cache has what the lock names, and `dvc status` says of every output what its hash says.

An attempt that is not stopped must end with the very results of an undisturbed run. Figures go to
results/robustness/faults.json after every strike.

    python -m benchmarks.faults --targets report --moments 40 --out results/robustness/faults_report.json

does so with every stage of dvc.yaml, from one training over private passes in two processes to the rendered page. What
differs from one measurement to the next (seconds, rounds, errors) is left out there, and pages only have to be whole,
all of one rendering: `reports/metrics.json`, which goes first and comes last, says that they are.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import yaml
from dvc.exceptions import DvcException
from dvc.repo import Repo

from aero import records
from aero.errors import UserError, run_main
from aero.records import ROOT, write_text
from benchmarks.fault_results import content_of, md5_of

FILE = Path("results/robustness/faults.json")
DISK_BYTES = 64 << 20
WHOLE_DISK_BYTES = 512 << 20  # DVC's cache keeps every rendered page
TARGETS = ("entropy@ereg-smt-scfuffn-1337", "sensitivity")
IN_A_ROW = 3
"""Strikes before an attempt may end, so that the next ones find every stage outdated again and not the last alone."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
END_S = 1800.0
"""After which what was struck, or ran undisturbed, is said to hang; generous, for a busy machine."""
_CLONE_NEWNS = 0x20000
VARIANTS = ("one", "other")
WHOLE = "report"
"""The target that needs every stage of dvc.yaml: of one training, with real private passes, to the rendered page."""
WHOLE_RUN = "sm-scfuffn"
METRICS = "reports/metrics.json"
SAME = {"runs/sensitivity/theory_curves.csv", "runs/sensitivity/theory_bounds.csv"}
"""Results that depend on no parameter that differs."""


@contextmanager
def disk(size: int) -> Iterator[tuple[Path, bool]]:
    """An empty folder, and whether it is a disk of its own of so many bytes, which ends with this process."""
    with tempfile.TemporaryDirectory(prefix="aero-faults-") as name:
        own = ctypes.CDLL(None).unshare(_CLONE_NEWNS) == 0 and all(
            subprocess.run(command, capture_output=True).returncode == 0
            for command in (
                ["mount", "--make-rprivate", "/"],
                ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name],
            )
        )
        try:
            yield Path(name), own
        finally:
            if own:
                subprocess.run(["umount", "-l", name], capture_output=True)


class Project:
    """A copy of the pipeline in `folder`, with the results that each set of parameters should give."""

    def __init__(self, folder: Path, targets: Sequence[str]) -> None:
        self.folder, self.targets = folder, targets
        self.runs = [target[len("entropy@") : -len("-1337")] for target in targets if target.startswith("entropy@")]
        self.whole = WHOLE in targets
        if self.whole:
            self.runs = self.runs or [WHOLE_RUN]
            shutil.copytree(ROOT / "results" / "two_party", folder / "results" / "two_party")
            (folder / "reports").mkdir()
            shutil.copy(ROOT / "reports" / "aero_softmax_only.py", folder / "reports")
        self._output = tempfile.TemporaryFile()
        for name in ("aero", "stages"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("dvc.yaml", ".dvcignore"):
            shutil.copy(ROOT / name, folder / name)
        (folder / ".dvc").mkdir()
        config = (ROOT / ".dvc" / "config").read_text(encoding="utf-8")
        (folder / ".dvc" / "config").write_text(config.replace("[core]\n", "[core]\n    no_scm = true\n"))
        self.expected: dict[str, dict[str, str]] = {}
        self.rendered: dict[str, str] = {}
        """The report's files as the last attempt left them that nobody stopped, by their hashes."""
        self._latest: subprocess.Popen[bytes] | None = None
        os.environ["DVC_SITE_CACHE_DIR"] = str(folder / ".dvc" / "site")
        self.environment = os.environ | {
            "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def choose(self, variant: str) -> None:
        """Write params.yaml: the two variants differ in the corpus, and so in everything."""
        values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
        every = [*values["active_runs"], *values["more_runs"]]
        values["scale"], values["active_runs"] = "smoke", self.runs
        values["more_runs"] = [run for run in every if run not in self.runs]
        size = {"one": 200_000, "other": 300_000}[variant]
        values["scales"]["smoke"]["tokens"] |= {"train_bytes": size, "validation_bytes": 30_000}
        # Its steps alone leave gains.csv as it is, whose trainings end earlier than either.
        sweep = {"one": {"steps": 20, "seeds": 2}, "other": {"steps": 18, "seeds": 1}}[variant]
        values["scales"]["smoke"]["sensitivity"] |= sweep
        if self.whole:
            bits = {"one": 18, "other": 17}[variant]
            values["two_party"] |= {"end_to_end_runs": self.runs, "programs": ["tuned"], "fraction_bits": bits}
            for scale in values["scales"].values():
                scale["end_to_end_runs"] = self.runs
            values["sensitivity_theory"]["seed"] = bits
        write_text(self.folder / "params.yaml", yaml.safe_dump(values, sort_keys=False))

    def start(self) -> subprocess.Popen[bytes]:
        self._output.truncate(0)
        self._latest = subprocess.Popen(
            [sys.executable, "-m", "dvc", "repro", "--no-run-cache", *self.targets],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self._latest

    def close(self) -> None:
        """Leave no process behind."""
        if self._latest is not None:
            tell(list(session(self._latest.pid)), signal.SIGKILL)

    def output(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace").replace("\0", "")

    def results(self) -> list[Path]:
        """Result files, relative to the folder; what is being written or is only made for others is none."""
        runs, reports = self.folder / "runs", self.folder / "reports"
        files = [*runs.glob("*/seed_*/*.*"), *(runs / "sensitivity").glob("*.*")]
        if self.whole:
            files += [*(runs / "two_party").glob("*.*"), *(runs / "two_party" / "passes").glob("*.*")]
            files += [path for path in reports.rglob("*.*") if path.suffix != ".py"]
        names = {path.relative_to(self.folder) for path in files}
        return sorted(path for path in names if path.suffix != ".tmp" and not path.stem.endswith(".unfinished"))

    def contents(self) -> dict[str, str]:
        """{path: hash of what is in it but for times}; "damaged: …" for a file that is not whole."""
        return {str(path): content_of(self.folder / path) for path in self.results()}

    def problems(self) -> list[str]:
        """What is wrong after a strike; empty if nothing is."""
        found, contents = [], self.contents()
        allowed = {name: {contents[name] for contents in self.expected.values()} for name in self.expected["one"]}
        for name, values in allowed.items():
            if name not in contents:
                # The report's own sign that its files are of two renderings: it comes last, and goes first.
                if name != METRICS:
                    found.append(f"{name} is gone")
            elif contents[name] not in values:
                found.append(f"{name}: {contents[name]}, neither the old nor the new one")
        found += [f"{name} is no result" for name in contents.keys() - allowed.keys()]
        for run in self.runs:
            trained = [f"runs/{run}/seed_1337/{name}" for name in ("checkpoint.safetensors", "log.csv", "metrics.json")]
            if not any(all(contents.get(n) == expected[n] for n in trained) for expected in self.expected.values()):
                found.append(f"{run}: the files are not of one training")
        now = self.report()
        if now and now.get(METRICS) == self.rendered.get(METRICS) and now != self.rendered:
            found.append(f"{METRICS} is of the last report, others beside it are not")
        return found + self._lock_problems()

    def report(self) -> dict[str, str]:
        """{path: hash} of the report's files as they are; empty where none is made."""
        return {str(path): str(md5_of(self.folder / path)) for path in self.results() if path.parts[0] == "reports"}

    def _uncached(self) -> set[str]:
        """Outputs that dvc.yaml leaves out of the cache."""
        stages = yaml.safe_load((self.folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"].values()
        outs = [out for stage in stages for out in (*stage.get("outs", []), *stage.get("metrics", []))]
        return {
            name for out in outs if isinstance(out, dict) for name, about in out.items() if about.get("cache") is False
        }

    def _lock_problems(self) -> list[str]:
        """Where DVC's lock, its cache, its own status and the files disagree."""
        try:
            lock = yaml.safe_load((self.folder / "dvc.lock").read_text(encoding="utf-8"))
            stages = lock["stages"]
        except (OSError, yaml.YAMLError, TypeError, KeyError) as error:
            return [f"dvc.lock cannot be read ({type(error).__name__})"]
        try:
            with chdir(self.folder), Repo() as repo:
                status = repo.status()
        except DvcException as error:
            return [f"dvc status fails: {' '.join(str(error).split())[:200]}"]
        found, uncached = [], self._uncached()
        for stage, entry in stages.items():
            said: dict[str, str] = {}
            for one in status.get(stage, []):
                if isinstance(one, dict):
                    said |= one.get("changed outs", {})
            for out in entry.get("outs", []):
                here, name = md5_of(self.folder / out["path"]), out["path"]
                differs = here != out["md5"]
                if differs != (said.get(name) in ("modified", "deleted")):
                    found.append(
                        f"{name}: dvc status says {said.get(name)}, its hash {'differs' if differs else 'agrees'}"
                    )
                if name in uncached:
                    continue
                cached = self.folder / ".dvc" / "cache" / "files" / "md5" / out["md5"][:2] / out["md5"][2:]
                if not cached.is_file() or md5_of(cached) != out["md5"].removesuffix(".dir"):
                    found.append(f"{name}: DVC's cache lacks what its lock names")
        return found


# Strikes: each takes the process that runs `dvc repro`, the leader of a session of its own, and the project.


def session(leader: int) -> dict[int, str]:
    """{process id: command line} of what still runs in the session of `leader`."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, _, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == leader and state != "Z":
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except (OSError, ValueError):
            continue
    return found


def processor_s(leader: int) -> float:
    """Processor seconds of the session of `leader`, so that a strike's moment does not depend on what else runs."""
    total = 0
    for pid in session(leader):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # its own time and that of the children it has waited for
        except (OSError, ValueError):
            continue
    return total * TICK_S


def seconds_now(leader: int, project: Project) -> float:
    """What moments are drawn from: processor seconds, but with private passes those of the wall.

    The processor time of SPU's parties goes when they end (they are nobody's children that anyone waits for), and they
    wait for each other for much of theirs.
    """
    return time.monotonic() if project.whole else processor_s(leader)


def undisturbed(process: subprocess.Popen[bytes], project: Project) -> dict[str, float]:
    """Wait for the end; {stage: seconds by `seconds_now` while it ran}, in the order of the run."""
    found: dict[str, float] = {}
    before = time.monotonic() if project.whole else 0.0
    while process.poll() is None:
        now = max(before, seconds_now(process.pid, project))
        stage = running(project.output())
        found[stage] = found.get(stage, 0.0) + now - before
        before = now
        time.sleep(0.05)
    return found


def reached(process: subprocess.Popen[bytes], project: Project, stage: str, seconds: float) -> bool:
    """Wait until `stage` has run for `seconds` by `seconds_now`, or has ended before; False once `dvc repro` ended."""
    begun = None
    while process.poll() is None:
        here, now = running(project.output()), seconds_now(process.pid, project)
        if begun is None and here == stage:
            begun = now
        if begun is not None and (here != stage or now >= begun + seconds):
            return True
        time.sleep(0.05)
    return False


def stage_processes(leader: int) -> list[int]:
    return [pid for pid, command in session(leader).items() if "-m stages." in command and "/bin/" not in command[:9]]


def tell(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def kill_all(leader: int, project: Project) -> None:
    tell(list(session(leader)), signal.SIGKILL)


def terminate_all(leader: int, project: Project) -> None:
    tell(list(session(leader)), signal.SIGTERM)


def awaited_stage(leader: int) -> list[int]:
    """The processes of the stage that runs now or next; empty if none comes any more."""
    while leader in session(leader):
        if found := stage_processes(leader):
            return found
        time.sleep(0.02)
    return []


def kill_stage(leader: int, project: Project) -> None:
    tell(awaited_stage(leader), signal.SIGKILL)


def kill_dvc(leader: int, project: Project) -> None:
    """The stage runs on without DVC, and may end what it does."""
    tell([leader], signal.SIGKILL)


def fill_disk(leader: int, project: Project) -> None:
    """Not one byte is free from now on."""
    with open(project.folder / "filler.tmp", "ab", 0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def limit(
    which: int, amount: Callable[[int], int], whom: Callable[[int], Iterable[int]]
) -> Callable[[int, Project], None]:
    def strike(leader: int, project: Project) -> None:
        for pid in whom(leader):
            try:
                most = amount(pid)
                resource.prlimit(pid, which, (most, most))
            except (OSError, ValueError):
                continue

    return strike


def memory_of(pid: int) -> int:
    """Bytes of address space that the process has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def strikes(own_disk: bool) -> dict[str, Callable[[int, Project], None]]:
    full = fill_disk if own_disk else limit(resource.RLIMIT_FSIZE, lambda pid: 4096, session)
    return {
        "SIGKILL": kill_all,
        "SIGTERM": terminate_all,
        "SIGKILL of the stage alone": kill_stage,
        "SIGKILL of DVC alone": kill_dvc,
        "full disk" if own_disk else "full disk (limit on file sizes)": full,
        "a stage out of memory (limit on address space)": limit(resource.RLIMIT_AS, memory_of, awaited_stage),
    }


def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for all of the session; the exit status of `dvc repro`."""
    status = process.wait(END_S)
    until = time.monotonic() + END_S
    while left := session(process.pid):
        if time.monotonic() > until:
            raise UserError(f"after {END_S:g} s these still run: {left}")
        time.sleep(0.05)
    return status


def running(output: str) -> str:
    """The stage that DVC named last."""
    named = [line.split("'")[1].partition("@")[0] for line in output.splitlines() if line.startswith("Running stage '")]
    return named[-1] if named else "before any stage"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument(
        "--targets",
        nargs="+",
        default=TARGETS,
        help="stages of dvc.yaml: sensitivity, entropy@RUN-1337, or report, which needs all of them",
    )
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    draw, origin, clock = random.Random(chosen.seed), records.provenance(started=records.now()), time.monotonic()
    out = chosen.out.resolve()
    size = WHOLE_DISK_BYTES if WHOLE in chosen.targets else DISK_BYTES
    with disk(size) as (name, own_disk), ExitStack() as last:
        project = Project(name / "project" if own_disk else name, chosen.targets)
        last.callback(project.close)
        stages: dict[str, float] = {}
        for variant in VARIANTS:
            project.choose(variant)
            process = project.start()
            stages = undisturbed(process, project)
            if ended(process) != 0:
                raise UserError(f"the pipeline does not run undisturbed: {project.output()[-400:]}")
            project.expected[variant] = project.contents()
            project.rendered = project.report()
        one, other = (project.expected[variant] for variant in VARIANTS)
        # Else a stage would never run again, and old results could not be told from new ones.
        alike = [name for name in one if one[name] == other.get(name) and one[name] != "whole"]
        if alike := sorted(set(alike) - SAME):
            raise UserError(f"the two sets of parameters give the same {', '.join(alike)}")
        kinds = strikes(own_disk)
        struck: Counter[str] = Counter()
        passed: Counter[str] = Counter()
        places: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
        failures: list[str] = []
        chain: list[tuple[str, bool]] = []
        ahead: list[
            str
        ] = []  # where the next strikes fall, in the order of the run: a stage that ended is not run again
        ends = right_ends = attempts = 0
        variant = VARIANTS[0]
        project.choose(variant)

        def write() -> None:
            cases = [
                {
                    "name": f"pipeline struck by {kind}",
                    "count": struck[kind],
                    "passed": passed[kind],
                    "seen": ", ".join(f"{stage} {count}" for stage, count in places[kind].most_common()),
                }
                for kind in kinds
            ]
            ended_as = f"two sets of parameters in turn, {attempts} attempts"
            cases.append(
                {"name": "ends with the undisturbed results", "count": ends, "passed": right_ends, "seen": ended_as}
            )
            result = {
                "cases": cases,
                "asked": struck.total(),
                "of": chosen.moments,
                "failures": failures,
                "disk": f"tmpfs of {size >> 20} MiB" if own_disk else "a folder",
                "targets": chosen.targets,
                f"{'' if project.whole else 'processor_'}seconds_undisturbed": {
                    stage: round(seconds, 1) for stage, seconds in stages.items()
                },
                "seed": chosen.seed,
                "provenance": origin | {"seconds": round(time.monotonic() - clock, 1)},
            }
            write_text(out, json.dumps(result, indent=1) + "\n")

        while struck.total() < chosen.moments or chain:
            attempts += 1
            process, hit = project.start(), False
            if struck.total() < chosen.moments and len(chain) < IN_A_ROW:
                ahead = ahead or sorted(draw.choices(list(stages), k=IN_A_ROW), key=list(stages).index)
                stage = ahead.pop(0)
                # Every kind in every stage, which as many strikes of each alone would leave to chance.
                kind = min(kinds, key=lambda kind: (places[kind][stage], struck[kind], draw.random()))
                if hit := reached(process, project, stage, draw.uniform(0, stages[stage])):
                    kinds[kind](process.pid, project)
            status = ended(process)
            (project.folder / "filler.tmp").unlink(missing_ok=True)
            if status != 0:
                wrong = project.problems()
                if not hit:
                    failures.append(f"fails without a strike after {[kind for kind, _ in chain]}: {'; '.join(wrong)}")
                    write()
                    raise UserError(f"cannot go on after a strike: {project.output()[-400:]}; {wrong}")
                place = running(project.output())
                struck[kind] += 1
                places[kind][place] += 1
                chain.append((kind, not wrong))
                failures += [f"{kind} in {place}: {line}" for line in wrong]
                print(f"{struck.total()}: {kind} in {place}: {'; '.join(wrong) or 'as it should be'}", flush=True)
            else:
                ends += 1
                now, then = project.contents(), project.expected[variant]
                others = sorted(name for name in now.keys() | then.keys() if now.get(name) != then.get(name))
                others += project.problems()
                right = not others
                right_ends += right
                project.rendered = project.report()
                if not right:
                    failures.append(f"another end after {[kind for kind, _ in chain]}: {'; '.join(others)}")
                passed.update(kind for kind, good in chain if good and right)
                chain, ahead = [], []
                print(f"an end {'like' if right else 'unlike'} the undisturbed one", flush=True)
                variant = VARIANTS[1 - VARIANTS.index(variant)]
                project.choose(variant)
            write()
    print(f"{passed.total()} of {struck.total()} strikes, {time.monotonic() - clock:.0f} s")
    return int(bool(failures) or passed != struck)


if __name__ == "__main__":
    run_main(main)
