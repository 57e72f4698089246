"""Result files: provenance, plausibility checks, and the lock a process holds while it writes."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import io
import math
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from aero.errors import UserError, cut

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


TOLERANCE = 1e-3
"""Nats by which rounding may carry a mean entropy beyond what is possible, and share by which a perplexity may differ
from the exponential of its loss."""
OBSERVED = 1e-6
"""Share by which the largest mean may differ from what the file calls it."""


_KINDS = {"run": str, "scale": str, "architecture": str, "seed": int, "tokens": int, "context": int}
_SECTIONS = ("provenance", "model", "train", "regularizer", "first_nonfinite", "float16_overflow")
_TOLD = ("commit", "machine", "device", "corpus_sha256", "tokenizer_sha256")


def check_metrics(values: Any, path: Path) -> None:
    """ValueError unless `values` are the metrics of the training whose place `path` is, below the project's root.

    path: results/SCALE/RUN/[seed_SEED/]metrics.json, runs/RUN/[seed_SEED/]metrics.json or
    runs/scales/SCALE/RUN/seed_SEED/metrics.json. The file's own run, scale and seed must be those; a perplexity must be
    exp(loss), nats a token, and both be there where the training did not diverge.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"it holds {cut(repr(values), 40)}, not the metrics of a training")
    for name, kind in _KINDS.items():
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise ValueError(f"{name} is {cut(repr(values[name]), 40)}, not {'a name' if kind is str else 'a number'}")
    for name in _SECTIONS:
        if not isinstance(values.get(name), Mapping | None):
            raise ValueError(f"{name} is {cut(repr(values[name]), 40)}, no mapping")
    made = values.get("provenance") or {}
    for name in _TOLD:
        if not isinstance(said := made.get(name), str | None):
            raise ValueError(f"provenance.{name} is {cut(repr(said), 40)}, no text")
    amounts = {name: made[name] for name in ("seconds", "cpu_seconds") if made.get(name) is not None}
    for name, amount in ({"tokens_per_second": values["tokens_per_second"]} | amounts).items():
        if not _finite(amount) or amount < 0:
            raise ValueError(f"{name} is {cut(repr(amount), 40)}, which it cannot be")
    for name, here in _place(path).items():
        if (said := values[name]) != here:
            raise ValueError(f"{name} is {cut(repr(said), 40)}, but it lies in the place of {here}")
    step, loss, perplexity = (values[name] for name in ("diverged_at_step", "eval_loss", "eval_perplexity"))
    if step is not None and (not isinstance(step, int) or isinstance(step, bool) or step < 0):
        raise ValueError(f"diverged_at_step is {cut(repr(step), 40)}, which is no step")
    if not _finite(loss) or not _finite(perplexity):
        if step is None:
            raise ValueError(
                f"eval_loss is {cut(repr(loss), 40)} and eval_perplexity {cut(repr(perplexity), 40)}, though it names "
                "no step at which the training diverged"
            )
    elif not math.isclose(math.log(perplexity) if perplexity > 0 else -math.inf, loss, abs_tol=TOLERANCE):
        raise ValueError(f"eval_perplexity {perplexity:.6g} is not the exponential of eval_loss {loss:.6g}")
    for name, least in (("seed", 0), ("tokens", 0), ("context", 1)):
        if not least <= values[name] < 2**63:
            raise ValueError(f"{name} is {cut(repr(values[name]), 40)}, which it cannot be")


def check_entropies(values: Mapping[str, Any], mean: Sequence[Sequence[float]], metrics: Mapping[str, Any]) -> None:
    """ValueError unless `mean`, the mean entropy of every head (L, H) in nats, NaN where not finite, can be of the
    training of `metrics`: of its layers and heads, within what its causal mask allows, and what the rest of the file
    says of it.
    """
    sizes = metrics.get("model") if isinstance(metrics.get("model"), Mapping) else {}
    shape = len(mean), len(mean[0])
    asked = sizes.get("layers", shape[0]), sizes.get("heads", shape[1])
    if shape != asked:
        raise ValueError(f"entropy_mean is of {shape[0]} layers x {shape[1]} heads, the training of {asked}")
    context = int(metrics["context"])
    bound = math.lgamma(context + 1) / context  # the largest mean over queries that a causal mask allows
    heads = [head for layer in mean for head in layer if not math.isnan(head)]
    if wrong := [head for head in heads if not -TOLERANCE <= head <= bound + TOLERANCE]:
        raise ValueError(f"a head's entropy is {wrong[0]:.4g} nats, where 0 to {bound:.4g} can be")
    said = values["maximum"]
    if "causal_bound" in said and not math.isclose(float(said["causal_bound"]), bound, rel_tol=OBSERVED):
        raise ValueError(
            f"its causal bound is {cut(repr(said['causal_bound']), 40)}, that of {context} tokens {bound:.6g}"
        )
    largest = max(heads, default=0.0)
    if "observed" in said and not math.isclose(float(said["observed"]), largest, rel_tol=OBSERVED, abs_tol=OBSERVED):
        raise ValueError(f"the largest entropy is called {cut(repr(said['observed']), 40)}, but is {largest:.6g}")
    by_position = values.get("entropy_by_position") or []
    if by_position and len(by_position) != len(mean):
        raise ValueError(f"entropy_by_position is of {len(by_position)} layers, entropy_mean of {len(mean)}")
    for layer, (positions, of_heads) in enumerate(zip(by_position, mean, strict=False), start=1):
        if all(map(_finite, (*positions, *of_heads))) and len(positions) == context:
            one, other = math.fsum(positions) / len(positions), math.fsum(of_heads) / len(of_heads)
            if abs(one - other) > TOLERANCE:
                raise ValueError(f"layer {layer} has a mean of {one:.4g} nats by position and of {other:.4g} by head")


def _place(path: Path) -> dict[str, Any]:
    """What the folders of a metrics file say it is: `run`, and `scale` and `seed` where they do."""
    *folders, _ = path.parts
    found: dict[str, Any] = {}
    if folders and folders[-1].startswith("seed_") and folders[-1][5:].isdecimal():
        found["seed"] = int(folders.pop()[5:])
    if len(folders) >= 2:
        found["run"] = folders[-1]
        if folders[0] == "results" or folders[:2] == ["runs", "scales"]:
            found["scale"] = folders[-2]
    return found


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


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
