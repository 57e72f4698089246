"""Tokenising from source files to token files, end to end: MB a second and core, growth with the corpus, memory.

    python -m benchmarks.tokenizing [--repeats N] [--vocabulary N]

The standard library with its tests, once and several times over, is read, encoded, hashed and written on one thread by
`aero.data.tokens.write_tokens`. A core's speed is MB of text over processor seconds, which other work on the machine
does not lengthen. Memory is a fresh process's high-water mark (VmHWM). Learning the tokenizer is not
part of it, as it always learns from the same 20 MB. Writes results/bench/tokenizing.json.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aero.data.base import Split
from aero.data.python_stdlib import PythonStandardLibrary
from aero.data.tokenizer import load_tokenizer, train_tokenizer
from aero.data.tokens import write_tokens
from benchmarks import timing
from benchmarks.timing import MB, Measured, in_turn, of, side, spread

COPIES = (1, 4, 16)
"""A high-water mark rises by ever less: over few copies it looks like growth."""
VALIDATION = 0.01


class Repeated:
    """A corpus whose training documents come several times over."""

    def __init__(self, times: int) -> None:
        self._once = PythonStandardLibrary(VALIDATION, include_tests=True)
        self._times = times
        self.name = self._once.name

    def documents(self, split: Split) -> Iterator[str]:
        for _ in range(self._times if split == "train" else 1):
            yield from self._once.documents(split)

    def manifest(self) -> dict[str, Any]:
        return self._once.manifest()


def side_of(copies: int, tokenizer_path: str, folder: str) -> Callable[[], Measured]:
    tokenizer = load_tokenizer(tokenizer_path)

    def step() -> Measured:
        began, cpu_began = time.perf_counter(), time.process_time()
        manifest = write_tokens(Repeated(copies), tokenizer, folder, threads=1)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        splits = manifest["splits"].values()
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "bytes": float(sum(split["bytes"] for split in splits)),
            "tokens": float(sum(split["tokens"] for split in splits)),
            "peak_bytes": float(timing.peak_bytes()),
        }

    return step


def measure(vocabulary: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, ExitStack() as running:
        path = str(Path(place) / "tokenizer.json")
        tokenizer = train_tokenizer(PythonStandardLibrary(VALIDATION).documents("train"), vocabulary)
        tokenizer.save(path)
        started = {n: side(side_of, copies=n, tokenizer_path=path, folder=str(Path(place, str(n)))) for n in COPIES}
        found = in_turn({str(n): running.enter_context(one) for n, one in started.items()}, repeats, warm_ups=0)
    lines = [
        {
            "bytes": steps[0]["bytes"],
            "tokens": steps[0]["tokens"],
            "mb_per_second": spread([step["bytes"] / MB / step["seconds"] for step in steps]),
            "mb_per_cpu_second": spread([step["bytes"] / MB / step["cpu_seconds"] for step in steps]),
            "seconds": spread(of(steps)),
            "cpu_seconds": spread(of(steps, "cpu_seconds")),
            "peak_bytes": max(of(steps, "peak_bytes")),
        }
        for steps in found.values()
    ]
    sizes = [line["bytes"] for line in lines]
    return {
        "vocabulary": tokenizer.vocabulary,
        "repeats": repeats,
        "sizes": lines,
        "seconds_exponent": round(timing.exponent(sizes, [line["cpu_seconds"]["median"] for line in lines]), 3),
        "memory_exponent": round(timing.exponent(sizes, [line["peak_bytes"] for line in lines]), 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = timing.arguments_of("tokenizing", __doc__.splitlines()[0], repeats=3)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[257, 50257])
    chosen = parser.parse_args(arguments)
    found = [measure(vocabulary, chosen.repeats) for vocabulary in chosen.vocabulary]
    for line in found:
        largest = line["sizes"][-1]
        print(
            f"{line['vocabulary']} entries: {largest['mb_per_cpu_second']['median']:.1f} MB a core second, "
            f"time as size^{line['seconds_exponent']:.2f}, memory as size^{line['memory_exponent']:.2f}"
        )
    timing.save("tokenizing", {"vocabularies": found}, chosen.folder)


if __name__ == "__main__":
    main()
