"""The training log: one CSV row per logged step."""

from __future__ import annotations

import csv
import fcntl
import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TextIO

Row = dict[str, float | int | None]


class Observer(Protocol):
    """Who follows a training: `begin` with the rows of the steps that are already done, `add` for every new one."""

    def begin(self, rows: Sequence[Row]) -> None: ...

    def add(self, row: Row) -> None: ...

    def end(self) -> None: ...


def columns(layers: int, attention: bool = False, slopes: int = 0) -> list[str]:
    """Columns of log.csv; of layer i, on held-out sequences (in the row of a divergence on the batch that broke it):
    entropy_layer_i is the mean over heads in nats, activation_layer_i the largest magnitude of the block's output,
    overflow_layer_i how many of its values float16 cannot hold (beyond 65504, infinite or not a number).

    attention: also norm_layer_i, the mean ||P||_F of its heads, and variance_layer_i, the mean variance of the logits
    in a row (`variance_sensitivity`, Definition 5.2). slopes: how many negative slopes of a leaky ReLU are learned, one
    a layer or one for all; slope_i are their values.
    """
    head = ["step", "tokens", "train_loss", "regularization", "eval_loss", "learning_rate", "gradient_norm", "seconds"]
    measured = ("entropy", "activation", "overflow", *(("norm", "variance") if attention else ()))
    layered = [f"{name}_layer_{i}" for name in measured for i in range(layers)]
    return head + layered + [f"slope_{i}" for i in range(slopes)]


class LiveLog:
    """The log while its training runs: every row is in the file as soon as it is known.

    It is a file of its own, so that the log beside the metrics of an earlier training stays theirs until the new ones
    are there. A kill can leave half a row at the end. Resuming writes the rows of the saved state anew and goes on
    behind them, so the log of a training has each step once, however often it was killed.
    """

    def __init__(self, path: Path, layers: int, attention: bool = False, slopes: int = 0) -> None:
        self._path, self._columns = path, columns(layers, attention, slopes)
        self._file: TextIO | None = None

    def begin(self, rows: Sequence[Row]) -> None:
        write_text(self._path, csv_text(self._columns, rows, header=True))
        self._file = open(self._path, "a", encoding="utf-8", newline="")

    def add(self, row: Row) -> None:
        assert self._file is not None, "begin comes first"
        self._file.write(csv_text(self._columns, [row], header=False))
        self._file.flush()

    def end(self) -> None:
        if self._file is not None:
            self._file.close()


def write(path: Path, rows: Sequence[Row], layers: int, attention: bool = False, slopes: int = 0) -> None:
    """Write all rows atomically."""
    write_text(path, text_of(rows, layers, attention, slopes))


def text_of(rows: Sequence[Row], layers: int, attention: bool = False, slopes: int = 0) -> str:
    """log.csv; numbers in the shortest form that reads back to the same float, gaps empty."""
    return csv_text(columns(layers, attention, slopes), rows)


def csv_text(names: Sequence[str], rows: Iterable[Row], header: bool = True) -> str:
    """CSV with the columns `names`; None and missing keys are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return text.getvalue()


def read(path: Path) -> list[Row]:
    """Rows of a log.csv, empty cells as None."""
    with open(path, encoding="utf-8", newline="") as file:
        return [
            {key: None if value == "" else (int(value) if _counts(key) else float(value)) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def _counts(column: str) -> bool:
    return column in ("step", "tokens") or column.startswith("overflow_")


def unfinished(path: Path) -> Path:
    """Where the log lies until its training is over: log.unfinished.csv for log.csv."""
    return path.with_name(f"{path.stem}.unfinished{path.suffix}")


def temporary(path: Path) -> Path:
    """Where a file is written before it takes its place."""
    return path.with_name(path.name + ".tmp")


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename: a reader sees the old file or the new one, never a part."""
    write_together({path: text})


def write_together(
    contents: Mapping[Path, str | bytes], beside: Sequence[Path] = (), without: Sequence[Path] = ()
) -> None:
    """Write files that belong together: all beside their places, flushed to disk, before the first one is renamed.

    Of several the last says what the others are, so it goes before they come: whoever finds it finds its own files,
    whenever this was killed. If one cannot be written, on a full disk say, all stay as they were. beside: files of the
    same kind that already lie at `temporary` of their places. without: what else may lie there of the ones before, and
    goes with them.
    """
    paths = [*beside, *contents]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in({path.parent for path in paths}):
        _write(paths, contents, without)


@contextmanager
def _alone_in(folders: Collection[Path]) -> Iterator[None]:
    """Of all processes that write here, this one alone writes into `folders`: what lies beside a place until it is
    renamed has one name, and would be another's half. In one order, so that none waits for one that waits for it.
    """
    with ExitStack() as held:
        for folder in sorted({folder.resolve() for folder in folders}):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            held.callback(os.close, descriptor)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _write(paths: Sequence[Path], contents: Mapping[Path, str | bytes], without: Sequence[Path]) -> None:
    try:
        for path, content in contents.items():
            with open(temporary(path), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        for path in paths:
            temporary(path).unlink(missing_ok=True)
        raise
    if len(paths) > 1 or without:
        paths[-1].unlink(missing_ok=True)
    for path in set(without) - set(paths):
        path.unlink(missing_ok=True)
    for path in paths:
        os.replace(temporary(path), path)
