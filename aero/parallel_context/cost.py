"""Time and memory of encoding a context in P segments against full attention, which the paper did not measure."""

from __future__ import annotations

import re
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from aero.parallel_context.encoding import encode
from aero.parallel_context.hugging_face import HuggingFaceModel


def measure(folder: Path, tokens: int, segments: int) -> dict[str, Any]:
    """Encode `tokens` random tokens in this process, on one thread, with the model of a folder.

    cpu_s: processor seconds; peak_bytes: peak memory beyond that after a short pass; attention_pairs: query-key pairs
    of one head.
    """
    from aero.hf.loading import load_model

    torch.set_num_threads(1)
    model = HuggingFaceModel(load_model(folder, dtype=torch.float32, attn_implementation="eager"))
    ids = torch.randint(model.model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    parts = list(ids.tensor_split(segments, 1))
    encode(model, [ids[:, :16]])  # libraries allocate at the first pass
    before, cpu, wall = peak_memory(), time.process_time(), time.perf_counter()
    encode(model, parts)
    return {
        "tokens": tokens,
        "segments": segments,
        "cpu_s": round(time.process_time() - cpu, 2),
        "wall_s": round(time.perf_counter() - wall, 2),
        "peak_bytes": peak_memory() - before,
        "attention_pairs": sum(part.shape[1] * (part.shape[1] + 1) // 2 for part in parts),
    }


def measure_in_new_process(folder: Path, tokens: int, segments: int) -> dict[str, Any]:
    """`measure` in a process of its own, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, folder, tokens, segments).result()


def peak_memory() -> int:
    """Peak resident memory of this process in bytes; not of getrusage, which begins at the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[1]) * 1024
