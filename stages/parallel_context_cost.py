"""Measure time and memory of encoding a context in P segments: `python -m stages.parallel_context_cost`.

Writes cost.json to `--folder`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from aero import records
from aero.config import load
from aero.errors import run_main
from aero.parallel_context import pretrained
from aero.parallel_context.measure import encoding_cost_in_new_process
from aero.parallel_context.settings import settings


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context_cost", description=__doc__)
    parser.add_argument("--model", type=Path, help="folder of a Llama, Mistral or Qwen2 (default: SmolLM2-135M)")
    parser.add_argument("--folder", type=Path, default=Path("runs/parallel_context"), help="folder for cost.json")
    chosen = parser.parse_args(arguments)
    if chosen.model is None and (line := pretrained.missing()):
        print(f"skipped: {line}")
        return
    sizes = settings(load()).cost
    folder = chosen.model or pretrained.smollm2()
    result = {"model": folder.name, "rows": [], "provenance": records.provenance(torch=torch.__version__)}
    for tokens in sizes.tokens:
        for segments in sizes.segments:
            row = encoding_cost_in_new_process(folder, tokens, segments)
            result["rows"].append(row)
            print(
                f"{tokens} tokens, P={segments}: {row['cpu_s']:.2f} s, {row['peak_bytes'] / 2**20:.0f} MiB", flush=True
            )
    records.write_text(chosen.folder / "cost.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run_main(main)
