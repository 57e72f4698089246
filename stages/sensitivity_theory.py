"""Check the theory of `variance_sensitivity`: `python -m stages.sensitivity_theory [--out FOLDER]`.

Writes theory.json (settings and small results) and theory.jsonl (tables, one row a line): what the paper prints, what
was derived (docs/variance_sensitivity.md), and draws, each mean with its standard error.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from aero import records
from aero.config import load
from aero.errors import run_main
from aero.records import write_together
from aero.sensitivity import theory_checks


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.sensitivity_theory", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/sensitivity"))
    chosen = parser.parse_args(arguments)
    parameters = load()
    settings = parameters.sensitivity_theory
    if (normals := parameters.active.sensitivity.normals) is not None:
        settings = settings.model_copy(update={"normals": normals})
    torch.set_num_threads(1)
    started, clock = records.now(), time.monotonic()
    tables, small = theory_checks.results(settings)
    rows = [{"table": name, **row} for name, table in tables.items() for row in table]
    summary = {"scale": parameters.scale, "settings": settings.model_dump(mode="json"), **small}
    seconds = round(time.monotonic() - clock, 1)
    summary["provenance"] = records.provenance(
        started=started, seconds=seconds, numpy=np.__version__, torch=torch.__version__
    )
    lines = [json.dumps({k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in r.items()}) for r in rows]
    texts = {
        "theory.jsonl": "\n".join(lines) + "\n",
        "theory.json": json.dumps(summary, indent=1, allow_nan=False) + "\n",
    }
    write_together({chosen.out / name: text for name, text in texts.items()})
    print(f"{chosen.out}/theory.json and theory.jsonl, {seconds:.0f} s")


if __name__ == "__main__":
    run_main(main)
