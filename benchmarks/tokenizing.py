"""Tokenising from source files to token files, end to end: MB a second and core, growth with the corpus, memory.

    python -m benchmarks.tokenizing [--repeats N] [--vocabulary N]

The standard library with its tests, once and several times over, is read, encoded, hashed and written on one thread by
`aero.data.tokens.write_tokens`. A core's speed is MB of text over processor seconds, which other work on the machine
does not lengthen. Memory is a fresh process's high-water mark (VmHWM). Learning the tokenizer is not part of it, as it
always learns from the same 20 MB. Writes results/bench/tokenizing.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from aero.data.base import Split
from aero.data.python_stdlib import PythonStandardLibrary
from aero.data.tokenizer import load_tokenizer, train_tokenizer
from aero.data.tokens import write_tokens
from benchmarks.timing import FOLDER, Measured, in_turn, of, peak_bytes, save, side, spread

COPIES = (1, 4, 16)  # a high-water mark rises by ever less: over few copies it looks like growth
VALIDATION = 0.01


class Repeated(PythonStandardLibrary):
    """A corpus whose training documents come several times over."""

    def __init__(self, times: int) -> None:
        super().__init__(VALIDATION, include_tests=True)
        self._times = times

    def documents(self, split: Split) -> Iterator[str]:
        for _ in range(self._times if split == "train" else 1):
            yield from super().documents(split)


def side_of(copies: int, tokenizer_path: str, folder: str) -> Callable[[], Measured]:
    tokenizer = load_tokenizer(tokenizer_path)

    def step() -> Measured:
        began, cpu_began = time.perf_counter(), time.process_time()
        manifest = write_tokens(Repeated(copies), tokenizer, folder, threads=1)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        splits = manifest["splits"].values()
        size = {name: float(sum(split[name] for split in splits)) for name in ("bytes", "tokens")}
        return size | {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": float(peak_bytes())}

    return step


def measure(vocabulary: int, repeats: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        path = str(Path(place) / "tokenizer.json")
        tokenizer = train_tokenizer(PythonStandardLibrary(VALIDATION).documents("train"), vocabulary)
        tokenizer.save(path)
        sides = {n: side(side_of, copies=n, tokenizer_path=path, folder=str(Path(place, str(n)))) for n in COPIES}
        found = in_turn(sides, repeats, warm_ups=0)
    lines = []
    for steps in found.values():
        line = {"bytes": steps[0]["bytes"], "tokens": steps[0]["tokens"], "peak_bytes": max(of(steps, "peak_bytes"))}
        line |= {"seconds": spread(of(steps)), "cpu_seconds": spread(of(steps, "cpu_seconds"))}
        line |= {"mb_per_cpu_second": spread([step["bytes"] / 1e6 / step["cpu_seconds"] for step in steps])}
        lines.append(line)
    return {"vocabulary": tokenizer.vocabulary, "repeats": repeats, "sizes": lines}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenizing", description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[257, 50257])
    chosen = parser.parse_args(arguments)
    found = [measure(vocabulary, chosen.repeats) for vocabulary in chosen.vocabulary]
    for line in found:
        speeds = (f"{size['mb_per_cpu_second']['median']:.1f}" for size in line["sizes"])
        print(f"{line['vocabulary']} entries: {', '.join(speeds)} MB a core second, by growing corpus")
    save("tokenizing", {"vocabularies": found}, chosen.folder)


if __name__ == "__main__":
    main()
