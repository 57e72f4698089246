"""A file that one process at a time may work on."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from aero.errors import UserError


@contextlib.contextmanager
def lock(path: Path | None, doing: str = "training this run") -> Iterator[None]:
    """Hold the file at `path` for this process alone; the system lets go of it however the process ends.

    UserError if another process holds it: two trainings of one run would overwrite each other's state. doing: what
    that process does, as the error says it.
    """
    if path is None:
        yield
        return
    place = path.with_suffix(".lock")
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is {doing} (it holds {place}); wait for it or stop it") from None
        yield
