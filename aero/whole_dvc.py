"""DVC whose own files are never half-written: `python -m aero.whole_dvc repro …`, as `make` runs it.

DVC 3.67 writes dvc.lock and the list of its locks (.dvc/tmp/rwlock) in their places, before and after every stage. A
kill or a full disk in that moment leaves a part of them: of the first, the beginning, which can be valid YAML and lacks
the stages behind the cut; of the second, what DVC refuses to read ever after. Here both are written beside and renamed,
a damaged list of locks is taken away at the start.

And DVC puts values of params.yaml into commands that a shell runs (seeds, names of runs and corpora) before any stage
has checked them. Here the file is checked first, so that a seed "1; rm -r data" is refused and not run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from dvc import rwlock
from dvc.cli import main
from dvc.utils.serialize import _common

from aero import config as parameters
from aero.errors import UserError

LOCKS = Path(".dvc") / "tmp" / rwlock.RWLOCK_FILE


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A text file that takes its place when all of it is on the disk; if it cannot be written, the old one stays."""
    temporary = f"{os.fspath(path)}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def dump_whole(
    path: str | os.PathLike[str], data: Any, dumper: Callable[..., Any], fs: Any = None, **more: Any
) -> None:
    """In the place of DVC's function that writes a YAML file it has read and changed; `fs` is the local one."""
    with whole(path) as file:
        dumper(data, file, **more)


class WholeFiles:
    """DVC's local file system, but for files opened for writing, which are `whole`."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: str, mode: str = "r", **more: Any) -> AbstractContextManager[Any]:
        return whole(path) if "w" in mode else self._files.open(path, mode, **more)


def take_away_damaged(path: Path) -> None:
    """Remove a list of DVC's locks that cannot be read: whoever wrote it was killed and holds none any more."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except ValueError:
        print(f"{path} was half-written by a DVC that was killed; it is made anew", file=sys.stderr)
        path.unlink(missing_ok=True)


_edit_locks = rwlock._edit_rwlock
rwlock._edit_rwlock = lambda folder, files, hardlink: _edit_locks(folder, WholeFiles(files), hardlink)
_common._dump_data = dump_whole

if __name__ == "__main__":
    take_away_damaged(LOCKS)
    if parameters.PATH.exists():
        try:
            parameters.load()
        except UserError as error:
            sys.exit(f"error: {error}")
    sys.exit(main(sys.argv[1:]))
