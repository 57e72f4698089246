"""Where a result comes from: commit, machine, software, time. Written into every result file."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any


@cache
def commit() -> str:
    """Commit of the source tree, with "+changes" if tracked source differs from it, or "unknown" outside git.

    Results and reports do not count as source: they change while the pipeline runs.
    """
    root = Path(__file__).resolve().parent.parent
    try:
        revision = _git(root, "rev-parse", "HEAD")
        changes = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "aero", "stages", "params.yaml")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return revision + ("+changes" if changes else "")


def _git(root: Path, *arguments: str) -> str:
    finished = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return finished.stdout.strip()


def machine() -> str:
    """Processor, core count and memory in words; no host name."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()}"
    except (OSError, ValueError, AttributeError):
        return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def now() -> str:
    """UTC time in ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0).isoformat()


def provenance(**more: Any) -> dict[str, Any]:
    """Commit, machine and Python version, and whatever `more` names."""
    return {"commit": commit(), "machine": machine(), "python": platform.python_version(), **more}
