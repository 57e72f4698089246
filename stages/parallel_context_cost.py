"""Measure time and memory of encoding a context in P segments: `python -m stages.parallel_context_cost`.

Writes runs/parallel_context/cost.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from aero import records
from aero.config import load
from aero.errors import run_main
from aero.parallel_context.cost import measure_in_new_process
from aero.parallel_context.settings import settings
from aero.records import write_text


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context_cost", description=__doc__)
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--out", type=Path, default=Path("runs/parallel_context/cost.json"))
    chosen = parser.parse_args(arguments)
    parameters = load()
    scale = chosen.scale or parameters.scale
    sizes = settings(parameters).at(scale).cost
    origin = records.provenance(torch=torch.__version__, started=records.now())
    clock = time.monotonic()
    model = {"layers": sizes.layers, "heads": sizes.heads, "width": sizes.width}
    rows = []
    for segments in sizes.segments:
        for way in ("full",) if segments == 1 else ("segments", "mask"):
            row = measure_in_new_process(
                **model, tokens=sizes.tokens, segments=segments, way=way, repeats=sizes.repeats
            )
            rows.append(row)
            print(f"P={segments} {way}: {row['cpu_s']:.2f} s, {row['peak_bytes'] / 2**20:.0f} MiB", flush=True)
    result = {
        "scale": scale,
        "model": model,
        "rows": rows,
        "provenance": origin | {"seconds": round(time.monotonic() - clock, 1)},
    }
    write_text(chosen.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
