"""Time and memory of encoding a context in P segments against full attention, which the paper did not measure.

Weights are random: they change neither time nor memory. Three ways to encode: full (P = 1), segments (each on its own,
equal ones as one batch), mask (one pass under the mask of `Layout`, the usual emulation of parallel encoding).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from aero import families
from aero.architecture import parse
from aero.errors import UserError
from aero.model import GPT
from aero.parallel_context.encoding import encode, in_one_pass, read
from aero.parallel_context.layout import Layout, split
from aero.parallel_context.own_model import OwnModel


def measure(
    layers: int, heads: int, width: int, tokens: int, segments: int, way: str, repeats: int, question: int = 16
) -> dict[str, Any]:
    """Encode `tokens` random tokens in this process and read them with `question` more; the fastest of `repeats`.

    cpu_s: processor seconds; peak_bytes: peak memory beyond that after a short pass; attention_pairs: query-key pairs
    of one head.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = families.config(
        "pythia-70m", 1024, tokens + question, layers=layers, heads=heads, width=width, ffn_width=4 * width,
        rotary_fraction=1.0,
    )  # fmt: skip
    model = OwnModel(GPT(parse("SM+LN+G"), config))
    ids = torch.randint(1024, (1, tokens + question))
    lengths = split(tokens, segments)

    def context() -> Any:
        if way == "mask":
            return in_one_pass(model, Layout(0, lengths, 0), ids[:, :tokens])
        return encode(model, ids[:, :tokens].split(list(lengths), 1), query=question)

    read(model, encode(model, [ids[:, :16]]), ids[:, :1])  # libraries allocate at the first pass
    before = _peak_memory()
    context()
    peak = _peak_memory() - before
    encoding = [_timed(context) for _ in range(repeats)]
    encoded = encode(model, ids[:, :tokens].split(list(lengths), 1), query=question)
    reading = [_timed(lambda: read(model, encoded, ids[:, tokens:])) for _ in range(repeats)]
    return {
        "way": way,
        "segments": segments,
        "tokens": tokens,
        "cpu_s": min(cpu for cpu, _ in encoding),
        "wall_s": min(wall for _, wall in encoding),
        "question_cpu_s": min(cpu for cpu, _ in reading),
        "peak_bytes": peak,
        "attention_pairs": sum(length * (length + 1) // 2 for length in lengths),
        "repeats": repeats,
    }


def measure_in_new_process(**setting: Any) -> dict[str, Any]:
    """`measure(**setting)` in a process of its own, so that its peak memory is its own. UserError if that fails."""
    finished = subprocess.run(
        [sys.executable, "-m", "aero.parallel_context.cost", json.dumps(setting)], capture_output=True, text=True
    )
    if finished.returncode:
        raise UserError(f"measuring {setting} failed: {finished.stderr.strip().splitlines()[-1:]}")
    return json.loads(finished.stdout)


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def _peak_memory() -> int:
    """Peak resident memory of this process in bytes; not of getrusage, which begins at the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[1]) * 1024


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
