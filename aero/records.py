"""Result files: provenance, reading and writing trainings, plausibility checks, atomic writes and locks.

The committed results of a scale are three files in results/SCALE: metrics.jsonl, entropy.jsonl and curves.jsonl, one
JSON object a line, sorted by run and seed. A training in runs/ has metrics.json, entropy.json and log.csv instead.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import fcntl
import io
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from aero.errors import UserError, cut, first_error, json_file, text_of

CHANGES = "+changes"
FILES = ("metrics.jsonl", "entropy.jsonl", "curves.jsonl")
"""The committed results of a scale. metrics.jsonl is written last."""
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
"""Flag in /proc/cpuinfo and its name, widest first."""
ROOT = Path(__file__).resolve().parent.parent

Row = dict[str, float | int | None]
"""One row of a training log."""
Key = tuple[str, int]
"""Run and seed."""


@cache
def commit() -> str:
    """Commit of the source tree, with "+changes" if tracked source differs from it. Outside git the value of
    the environment variable AERO_COMMIT, or "unknown" if that is no full commit.
    """
    try:
        _git("ls-files", "--error-unmatch", "aero/records.py")  # fails in a copy that git does not track
        revision = _git("rev-parse", "HEAD")
        changes = changed("aero", "stages", "params.yaml")
    except (OSError, subprocess.SubprocessError):
        given = os.environ.get("AERO_COMMIT", "")
        return given if re.fullmatch("[0-9a-f]{40}", given.removesuffix(CHANGES)) else "unknown"
    return revision + (CHANGES if changes else "")


def changed(*paths: str, untracked: bool = False) -> bool:
    """Whether tracked files below `paths` differ from the commit, or others were added. OSError or SubprocessError
    outside git."""
    return bool(_git("status", "--porcelain", f"--untracked-files={'all' if untracked else 'no'}", "--", *paths))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def machine() -> str:
    """Processor with its vector instructions (results differ with them), cores and memory; no host name."""
    model = _processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")) or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()}"


def _processor(cpuinfo: str) -> str:
    """Model and vector instructions of the first processor in the text of /proc/cpuinfo; "" if it names no model."""
    lines = (line.partition(":") for line in reversed(cpuinfo.splitlines()))
    stated = {name.strip(): value.strip() for name, _, value in lines}
    flags = stated.get("flags", "").split()
    widest = next((f" with {name}" for flag, name in _VECTORS.items() if flag in flags), "")
    return stated["model name"] + widest if "model name" in stated else ""


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()


def provenance(**more: Any) -> dict[str, Any]:
    """Commit, machine and Python version, and the entries of `more`."""
    return {"commit": commit(), "machine": machine(), "python": platform.python_version(), **more}


def require_committed() -> None:
    """UserError if the source tree has uncommitted changes."""
    if commit().endswith(CHANGES):
        raise UserError("--keep refuses results of uncommitted code; commit first, or train without it")


def refuse_changes(values: Mapping[str, Any], path: Path, allow_changes: bool = False) -> None:
    """UserError unless `values`, the content of `path`, name the commit that made them, without uncommitted changes."""
    made = values.get("provenance")
    revision = made.get("commit") if isinstance(made, Mapping) else None
    if not isinstance(revision, str):
        raise UserError(f"{path} does not name the commit that made it; make it again")
    if revision.endswith(CHANGES) and not allow_changes:
        raise UserError(f"{path} was made by uncommitted code; commit and run it again, or --allow-changes")


@dataclass(frozen=True)
class Training:
    """Results of one training. curves: the columns of its log, one value a logged step, None where there is none;
    empty without a log."""

    metrics: dict[str, Any]
    entropy: dict[str, Any] | None = None
    curves: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        return self.metrics["run"], self.metrics["seed"]


def read_metrics(folder: Path) -> dict[str, Any]:
    """Metrics of the finished training in a folder of runs/. UserError if they are damaged; FileNotFoundError if there
    are none.
    """
    path = folder / "metrics.json"
    metrics = json_file(path)
    try:
        _Metrics.model_validate(metrics)
    except ValidationError as error:
        raise UserError(f"{path}: not the metrics of a training ({first_error(error)}); train the run again") from None
    return metrics


def read_training(folder: Path) -> Training:
    """The finished training in a folder of runs/; entropy of an earlier training is left out. Errors: `read_metrics`"""
    metrics = read_metrics(folder)
    entropy = json_file(folder / "entropy.json") if (folder / "entropy.json").is_file() else None
    if entropy is not None and entropy.get("provenance") != metrics["provenance"]:
        entropy = None
    log = read_rows(folder / "log.csv") if (folder / "log.csv").is_file() else []
    return Training(metrics, entropy, {name: [row[name] for row in log] for name in (log[0] if log else ())})


def keep(folders: Iterable[Path], results: Path = Path("results"), allow_changes: bool = False) -> None:
    """Add the finished trainings in folders of runs/ to the committed results. All are read before anything is written;
    UserError for one that is damaged or was made by uncommitted code.
    """
    by_scale: dict[str, list[Training]] = {}
    for folder in folders:
        training = read_training(folder)
        refuse_changes(training.metrics, folder / "metrics.json", allow_changes)
        by_scale.setdefault(training.metrics["scale"], []).append(training)
    for scale, trainings in by_scale.items():
        write_trainings(results / scale, trainings)


def read_trainings(folder: Path, problems: list[str] | None = None) -> dict[Key, Training]:
    """Committed trainings in `folder` (results/SCALE) by run and seed, empty if there are none.

    A damaged line raises UserError; with `problems` it is left out and named there.
    """
    entropies = _by_run(folder / FILES[1], problems)
    curves = _by_run(folder / FILES[2], problems)
    trainings = {}
    for key, metrics in read_all_metrics(folder, problems).items():
        entropy = entropies.get(key)
        if entropy is not None and entropy.get("provenance") != metrics.get("provenance"):
            entropy = None
            if problems is not None:
                problems.append(f"{folder / FILES[1]}: {key[0]} seed {key[1]} left out, measured on another training")
        trainings[key] = Training(metrics, entropy, curves.get(key, {}).get("columns", {}))
    return trainings


def read_all_metrics(folder: Path, problems: list[str] | None = None) -> dict[Key, dict[str, Any]]:
    """The metrics alone of `read_trainings`."""
    return _by_run(folder / FILES[0], problems, _Metrics)


def _by_run(path: Path, problems: list[str] | None, kind: type[BaseModel] | None = None) -> dict[Key, dict[str, Any]]:
    """The lines of `path`, each of that kind, by run and seed."""
    found: dict[Key, dict[str, Any]] = {}
    lines = text_of(path).splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            key = values["run"], values["seed"]
            if kind is not None:
                kind.model_validate(values)
            if key in found:
                raise ValueError(f"{key[0]} seed {key[1]} appears a second time")
            found[key] = values
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = first_error(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
            message = f"{path}, line {number}: not the line of a training ({cut(reason, 200)}); restore the file"
            if problems is None:
                raise UserError(message) from None
            problems.append(message)
    return found


def write_trainings(folder: Path, trainings: Iterable[Training]) -> None:
    """Add trainings to the committed results in `folder` (results/SCALE), replacing those of the same run and seed."""
    with _alone_in([folder]):
        merged = read_trainings(folder) | {training.key: training for training in trainings}
        lines: dict[str, list[str]] = {name: [] for name in FILES}
        for (run, seed), training in sorted(merged.items()):
            values = training.metrics, training.entropy, training.curves and {"columns": training.curves}
            for name, content in zip(FILES, values, strict=True):
                if content:
                    line = json.dumps({"run": run, "seed": seed} | content, allow_nan=False, separators=(",", ":"))
                    lines[name].append(line + "\n")
        contents = {folder / name: "".join(lines[name]) for name in reversed(FILES)}
        _write_temporary(contents)
        for path in contents:
            os.replace(temporary(path), path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file, none if it is missing."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_rows(path: Path) -> list[Row]:
    """Rows of a log.csv; an empty cell is None. UserError if it is damaged."""

    def number(column: str, cell: str) -> float | int | None:
        if cell == "":
            return None
        return int(cell) if column in ("step", "tokens") or column.startswith("overflow_") else float(cell)

    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [{key: number(key, value) for key, value in row.items()} for row in csv.DictReader(file)]
    except (UnicodeDecodeError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} is not a training log ({cut(str(error), 200)}); train the run again") from None


_PlainName = Annotated[str, Field(pattern=r"^[\w-]{1,100}$")]  # a result must not choose the folder it is copied to
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Metrics(BaseModel):
    """What the metrics of a training must have; they may have more."""

    model_config = ConfigDict(strict=True)

    run: _PlainName
    scale: _PlainName
    architecture: str
    seed: _Count
    tokens: _Count
    context: Annotated[int, Field(ge=1, lt=2**63)]
    tokens_per_second: float = Field(ge=0, allow_inf_nan=False)
    eval_loss: float | None
    eval_perplexity: float | None
    diverged_at_step: _Count | None
    provenance: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    train: dict[str, Any] | None = None
    regularizer: dict[str, Any] | None = None
    first_nonfinite: dict[str, Any] | None = None
    float16_overflow: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _loss_and_perplexity_agree(self) -> _Metrics:
        loss, perplexity = (math.nan if value is None else value for value in (self.eval_loss, self.eval_perplexity))
        if not (math.isfinite(loss) and math.isfinite(perplexity)):
            if self.diverged_at_step is None:
                raise ValueError("it has no finite loss and perplexity, but the training did not diverge")
        elif perplexity <= 0 or not math.isclose(math.log(perplexity), loss, abs_tol=1e-3):
            raise ValueError(f"eval_perplexity {perplexity:.6g} is not the exponential of eval_loss {loss:.6g}")
        return self


def finite(value: float) -> float | None:
    """None for a value that is not finite: CSV and JSON have none."""
    return value if math.isfinite(value) else None


def csv_text(names: Sequence[str], rows: Iterable[Row]) -> str:
    """CSV with the columns `names`; None and missing keys are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def temporary(path: Path) -> Path:
    """Place of a file while it is written."""
    return path.with_name(path.name + ".tmp")


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename: a reader sees the old file or the new one, never a part."""
    write_together({path: text})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """Write files that belong together: all beside their places, flushed to disk, before the first one is renamed.

    The last one describes the others, so it is removed first and renamed last: whoever finds it finds its own files. If
    one cannot be written, all stay as they were.
    """
    *others, last = contents
    with _alone_in({path.parent for path in contents}):
        _write_temporary(contents)
        if others:
            last.unlink(missing_ok=True)
        for path in contents:
            os.replace(temporary(path), path)


def _write_temporary(contents: Mapping[Path, str | bytes]) -> None:
    """Write `contents` beside their places, all or none."""
    try:
        for path, content in contents.items():
            with open(temporary(path), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        for path in contents:
            temporary(path).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _alone_in(folders: Collection[Path]) -> Iterator[None]:
    """Hold a lock on `folders` against other processes that write there; sorted, so that none waits in a circle."""
    with contextlib.ExitStack() as held:
        for folder in sorted({folder.resolve() for folder in folders}):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, descriptor)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def lock(path: Path, doing: str = "training this run") -> Iterator[None]:
    """Hold the lock file of `path` until this process ends. UserError if another one holds it, `doing` the same."""
    place = path.with_suffix(".lock")
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is {doing} (it holds {place}); wait for it or stop it") from None
        yield
