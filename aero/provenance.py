"""Where a result comes from: commit, machine, software, time. Written into every result file."""

from __future__ import annotations

import datetime
import hashlib
import io
import os
import platform
import re
import subprocess
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

SOURCE = ("aero", "stages", "params.yaml")
"""What makes a result, besides data."""
COMMIT_VARIABLE = "AERO_COMMIT"
"""Names the commit where the source tree is a copy without its .git; `source_digest` shows whether it is."""
UNKNOWN = "unknown"
CHANGES = "+changes"
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}
"""Widest first: the flag in /proc/cpuinfo, and its name."""
_ROOT = Path(__file__).resolve().parent.parent
_WHOLE = re.compile(r"[0-9a-f]{40}")


@cache
def commit() -> str:
    """Commit of the source tree, with "+changes" if tracked source differs from it. Outside git what AERO_COMMIT says,
    or "unknown" where that is no whole commit.

    Results and reports do not count as source: they change while the pipeline runs.
    """
    try:
        revision = _git(_ROOT, "rev-parse", "HEAD")
        changes = _git(_ROOT, "status", "--porcelain", "--untracked-files=no", "--", *SOURCE)
    except (OSError, subprocess.SubprocessError):
        said = os.environ.get(COMMIT_VARIABLE, UNKNOWN)
        return said if is_commit(said) else UNKNOWN
    return revision + (CHANGES if changes else "")


def is_commit(text: Any) -> bool:
    """Whether this is what `commit` says: a whole commit, perhaps with "+changes", or "unknown"."""
    return text == UNKNOWN or (isinstance(text, str) and bool(_WHOLE.fullmatch(text.removesuffix(CHANGES))))


def source_digest(root: Path = _ROOT) -> str:
    """SHA-256 of the source files under `root`: the Python and YAML files of `SOURCE`, names and contents."""
    places = [root / name for name in SOURCE]
    files = [path for place in places for path in (place.rglob("*") if place.is_dir() else [place])]
    return _digest({path.relative_to(root).as_posix(): path.read_bytes() for path in files if _is_source(path.name)})


def committed_digest(revision: str, root: Path = _ROOT) -> str:
    """`source_digest` of a commit, given whole. ValueError if the repository at `root` does not have it."""
    # It may come from somebody's file of trainings, and git would take `--output=FILE` for an option and write there.
    if not _WHOLE.fullmatch(revision):
        raise ValueError(f"{revision[:60]!r} is no commit of 40 hexadecimal digits; give what git rev-parse says")
    try:
        archive = subprocess.run(
            ["git", "-C", str(root), "archive", "--format=tar", "--end-of-options", revision, *SOURCE],
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        raise ValueError(f"commit {revision} is not in the repository at {root}; fetch it first") from None
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar if _is_source(member.name)}
    return _digest(files)


def _is_source(name: str) -> bool:
    return name.endswith((".py", ".yaml"))


def _digest(files: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n".encode())
    return whole.hexdigest()


def _git(root: Path, *arguments: str) -> str:
    finished = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20
    )
    return finished.stdout.strip()


def machine() -> str:
    """Processor with its widest vector instructions, core count and memory in words; no host name.

    The instructions are named because trainings differ with them (docs/determinism.md), and a rented machine's
    processor may hide its model.
    """
    model = platform.processor() or platform.machine()
    try:
        model = _processor(Path("/proc/cpuinfo").read_text(encoding="utf-8")) or model
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()}"
    except (OSError, ValueError, AttributeError):
        return f"{model}, {os.cpu_count()} cores, {platform.system()}"


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
    """Commit, machine and Python version, and whatever `more` names."""
    return {"commit": commit(), "machine": machine(), "python": platform.python_version(), **more}
