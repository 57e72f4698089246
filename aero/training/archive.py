"""Finished trainings in few files, for the way home from a machine that lets only a few small files out.

A file holds one training a line: JSON with the texts of its metrics.json, entropy.json and log.csv, and their SHA-256.
Lines are appended and flushed to disk, so a process killed at any moment leaves every finished training whole.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero import records
from aero.errors import UserError, check_file
from aero.training.kept import FILES

FORMAT = "aero-trainings-1"
LARGEST = 12 * 2**20
"""Bytes after which a file is not added to; a training is below a megabyte."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True)
class Finished:
    """One training as its small files. source: `aero.records.source_digest` of the code that trained it."""

    run: str
    seed: int
    scale: str
    source: str
    files: dict[str, str]

    @property
    def metrics(self) -> dict[str, Any]:
        return json.loads(self.files["metrics.json"])

    @property
    def name(self) -> str:
        return f"{self.run} seed {self.seed}"

    def line(self) -> str:
        values = {"run": self.run, "seed": self.seed, "scale": self.scale, "source": self.source, "files": self.files}
        return json.dumps({"format": FORMAT, "sha256": _sha256(values)} | values) + "\n"


def finished(folder: Path, source: str) -> Finished:
    """What lies in the folder of a finished run."""
    files = {name: (folder / name).read_text(encoding="utf-8") for name in FILES if (folder / name).is_file()}
    metrics = json.loads(files["metrics.json"])
    return Finished(metrics["run"], metrics["seed"], metrics["scale"], source, files)


class Archive:
    """The files trainings*.jsonl of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """Its files, in the order in which they were written."""
        return sorted(self.folder.glob("trainings*.jsonl"), key=lambda path: (len(path.name), path.name))

    def read(self) -> Iterator[Finished]:
        for path in self.paths():
            yield from read(path)[0]

    def add(self, training: Finished) -> Path:
        """Append a training and flush it to disk; the file it went to."""
        paths, line = self.paths(), training.line().encode()
        path = paths[-1] if paths else self.folder / "trainings.jsonl"
        if path.is_file():
            _cut_unfinished_line(path)
            if path.stat().st_size + len(line) > LARGEST:
                path = self.folder / f"trainings-{len(paths) + 1}.jsonl"
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        return path


def read(path: Path) -> tuple[list[Finished], bool]:
    """The trainings in a file, and whether its last line is only begun, as a kill while writing leaves it.

    UserError, naming the line, for anything that is damaged or was not written here.
    """
    try:
        check_file(path, 16 * LARGEST)
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    *lines, rest = content.split(b"\n")
    if not lines and not rest.startswith(b'{"format": "' + FORMAT.encode()):
        raise UserError(f"{path} is no file of trainings")
    return [_read_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)], bool(rest)


def _read_line(line: bytes, place: str) -> Finished:
    try:
        values = json.loads(line)
        if values.pop("format") != FORMAT:
            raise UserError(f"{place}: no training in the form {FORMAT}; merge it with the version that wrote it")
        if values.pop("sha256") != _sha256(values):
            raise UserError(f"{place} is damaged: its SHA-256 does not fit; bring the file home again")
        training = Finished(**values)
        _check(training, place)
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{place} is no training ({type(error).__name__}: {str(error)[:200]})") from None
    return training


def _check(training: Finished, place: str) -> None:
    """UserError, or another that tells of a part that is missing or of another type, unless it can be merged.

    What could not be written is told here, before a merge has begun to write.
    """
    metrics, files = training.metrics, training.files
    told, origin = (metrics["run"], metrics["seed"], metrics["scale"]), metrics["provenance"]
    metrics["config_hash"], datetime.datetime.fromisoformat(origin["started"])
    for text in files.values():
        text.encode()
    if told != (training.run, training.seed, training.scale) or not set(files) <= set(FILES):
        said = f"{', '.join(files):.100} of {told[0]!s:.60} seed {told[1]!s:.60}"
        raise UserError(f"{place} is no training: its files are {said}")
    seeded = type(training.seed) is int and 0 <= training.seed < 2**64
    if not (_NAME.fullmatch(training.run) and _NAME.fullmatch(training.scale) and seeded):
        said = f"{training.run!r:.60} seed {training.seed!s:.60} at scale {training.scale!r:.60}"
        raise UserError(f"{place}: {said} is no name of a run; leave the line out")
    if not records.is_commit(origin["commit"]):
        said = f"{origin['commit']!s:.60}"
        raise UserError(f"{place}: {said!r} is no commit (40 hexadecimal digits); train it again")


def _cut_unfinished_line(path: Path) -> None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)


def _sha256(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
