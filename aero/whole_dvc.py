"""DVC with a lock file that is never half-written: `python -m aero.whole_dvc repro …`, as `make` runs it.

DVC 3.67 writes dvc.lock in its place, after every stage. A kill or a full disk in that moment leaves its beginning,
which can be valid YAML and lacks the stages behind the cut. Here it is written beside and renamed; nothing else is
changed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from dvc.cli import main
from dvc.utils.serialize import _common


def dump_whole(
    path: str | os.PathLike[str], data: Any, dumper: Callable[..., Any], fs: Any = None, **more: Any
) -> None:
    """In the place of DVC's function that writes a YAML file it has read and changed; `fs` is the local one."""
    temporary = f"{os.fspath(path)}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            dumper(data, file, **more)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


_common._dump_data = dump_whole

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
