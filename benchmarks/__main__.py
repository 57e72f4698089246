"""`make bench`: speed and memory against what a user would pick instead; results in results/bench/*.json.

    python -m benchmarks [NAME …] [--quick]

Without names every benchmark of `ALL` runs, one after the other, each in a process of its own; `gpu` where there is a
CUDA device. --quick: few repeats, into runs/bench/, as a smoke test. Compare ratios with other machines, not seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from aero.errors import UserError, run_main

QUICK = "runs/bench"
ALL: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "training_step": ((), ("--repeats", "2", "--widths", "128", "--folder", QUICK)),
    "regularized_step": ((), ("--repeats", "2", "--widths", "128", "--folder", QUICK)),
    "entropy_memory": ((), ("--longest", "512", "--folder", QUICK)),
    "tokenizing": ((), ("--repeats", "1", "--folder", QUICK)),
    "two_party": ((), ("--layers", "1", "2", "--folder", QUICK)),
    "pipeline": ((), ("--pairs", "1", "--repeats", "2", "--folder", QUICK)),
    "gpu": (("--out", "results/bench", "--minutes", "30"), ("--tiny", "--out", QUICK)),
}
"""Every benchmark of `make bench` with its arguments, and with those for --quick."""


def of_this_machine() -> list[str]:
    """The benchmarks that can run here: all, but `gpu` only where PyTorch has a CUDA device."""
    import torch

    return [name for name in ALL if name != "gpu" or torch.cuda.is_available()]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    parser.add_argument("--quick", action="store_true", help="few repeats")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.names) - set(ALL)):
        raise UserError(f"unknown benchmark {unknown[0]!r}; known: {', '.join(ALL)}")
    for name in chosen.names or of_this_machine():
        print(f"{name}:", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *ALL[name][chosen.quick]], check=True)


if __name__ == "__main__":
    run_main(main)
