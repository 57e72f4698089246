"""Files of measurements that are cut off, damaged or of something else: one visible line instead of a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aero.errors import UserError
from aero.report import evidence
from aero.report.marks import Html, gap

UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What drawing a file raises that is no measurement of its kind."""


def measurement(root: Path, file: str) -> dict[str, Any] | None:
    """The mapping that `file` holds, None where there is no such file; raises one of `UNREADABLE` for anything else."""
    try:
        found = json.loads((root / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(found, dict):
        raise TypeError(f"a {type(found).__name__} instead of a mapping")
    return found


def entries(found: Mapping[str, Any], name: str, least: int = 1) -> list[Any]:
    """The list of that name. KeyError or TypeError for none: an empty mapping would pass for nothing that failed."""
    listed = found[name]
    if not isinstance(listed, list) or len(listed) < least:
        raise TypeError(f"{name} is no list of {least} or more")
    return listed


def guarded(file: str, command: str, draw: Callable[[], Html]) -> Html:
    """What `draw` makes of `file`; where it is no measurement, a line that says why and what measures again."""
    try:
        return draw()
    except UserError:  # names a file of its own, and the remedy
        raise
    except UNREADABLE as error:
        evidence.take()  # no table is to name files that were read for this one
        told = f"{error}" if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        why = " ".join(told.split())[:160]
        return Html(f"<p>{gap(f'{file} is no measurement ({why}); measure again ({command})')}</p>")
