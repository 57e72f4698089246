"""What a struck pipeline's files are judged by: hashes as DVC makes them, and of what a result says but for times."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

from aero.checkpoint import read_tensors

TIMES = {"provenance", "measured", "tokens_per_second", "seconds"}
"""What differs between two runs of the same code on the same data."""
MEASURED = {
    "passes": {"run", "program", "scale", "prompts", "tokens"},
    "end_to_end.json": {"run", "program", "scale", "prompts", "tokens"},
    "ops.csv": {"op", "shape", "model", "context", "variant", "runs"},
    "rows.csv": {"architecture", "model", "context", "program", "method"},
}
"""What does not differ between two measurements of private passes, where bytes (by less than 0.1 %), rounds and errors
do: by file or folder. Beside it the settings that stand in the provenance."""


_ENDS = {".html": b"</html>", ".pdf": b"%%EOF", ".tex": b"}"}


def md5_of(path: Path) -> str | None:
    """As DVC hashes: a file's content; a folder's sorted list of paths and hashes, with ".dir" behind."""
    if path.is_dir():
        files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        listed = [{"md5": md5_of(path / file), "relpath": file} for file in files]
        return hashlib.md5(json.dumps(listed, sort_keys=True).encode()).hexdigest() + ".dir"
    return hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else None


def content_of(path: Path) -> str:
    """A hash of what a result file says, times and provenance left out; or why it is not whole. A page, whose numbers
    are partly times, is whole or not."""
    kept = MEASURED.get(path.name) or MEASURED.get(path.parent.name)
    try:
        if path.suffix in _ENDS:
            content = path.read_bytes().rstrip()
            return "whole" if content.endswith(_ENDS[path.suffix]) else "damaged: its end is not there"
        if path.suffix == ".json":
            values: Any = json.loads(path.read_text(encoding="utf-8"))
            if kept:
                values = [{key: one[key] for key in sorted(kept)} | _settings(one["provenance"]) for one in values]
                return _hash(values)
            values = {key: value for key, value in values.items() if key not in TIMES}
            if path.name == "entropy.json":
                values.pop("measured", None)
        elif path.suffix == ".csv":
            text = path.read_text(encoding="utf-8")
            rows = list(csv.reader(io.StringIO(text)))
            if not text.endswith("\n") or len({len(row) for row in rows}) != 1:
                return "damaged: a row is not whole"
            if "reports" in path.parts:
                return "whole"
            if kept:
                settings = [_settings(json.loads(row[rows[0].index("provenance")])) for row in rows[1:]]
                values = [[row[rows[0].index(name)] for name in sorted(kept)] for row in rows]
                return _hash([values, settings])
            keep = [index for index, name in enumerate(rows[0]) if name not in TIMES]
            values = [[row[index] for index in keep] for row in rows]
        elif path.suffix == ".safetensors":
            read_tensors(path, "aero-checkpoint-1", header_only=True)
            values = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            values = hashlib.sha256(path.read_bytes()).hexdigest()
    except (ValueError, KeyError, IndexError, OSError) as error:
        return f"damaged: {' '.join(str(error).split())[:120]}"
    return "whole" if "reports" in path.parts else _hash(values)


def _settings(provenance: dict[str, Any]) -> dict[str, Any]:
    return {"settings": provenance["settings"]}


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
