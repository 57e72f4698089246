"""The same commit, seed and machine give the same numbers, bit for bit, on a CPU (docs/determinism.md)."""

from __future__ import annotations

import json
import math

import pytest
from small_project import finish, start, timeless, without_seconds

RUN = "ereg-smt-scfuffni-6"  # temperatures, thresholds, scaling, the entropy's own backward pass
ENTROPY_S = ("provenance", "measured")


def trained(folder, out, hash_seed, threads="1"):
    """Train and measure in a process of its own; (log, metrics, checkpoint's bytes, entropies)."""
    more = {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    finished = finish(start(folder, "-m", "stages.train", RUN, "--out", out, **more))
    assert finished.returncode == 0, finished.stderr
    entropies = json.loads((folder / out / "entropy.json").read_text())
    for name in ENTROPY_S:
        del entropies[name]
    return (
        without_seconds(folder / out / "log.csv"),
        timeless(folder / out),
        (folder / out / "checkpoint.safetensors").read_bytes(),
        entropies,
    )


@pytest.mark.slow
def test_two_processes_give_the_same_bits(project):
    """Another order of hashing, another folder and other thread variables of the environment change nothing: the
    number of threads is a parameter."""
    folder = project(train={"threads": 1})
    first, second = trained(folder, "one", "0"), trained(folder, "a second one", "77", threads="2")
    for name, one, other in zip(("log", "metrics", "checkpoint", "entropies"), first, second, strict=True):
        assert one == other, name


@pytest.mark.slow
def test_another_number_of_threads_is_as_close_as_the_documentation_says(project):
    """Sums are split among threads, so their last bits differ: docs/determinism.md has the measured
    differences, a tenth of what is allowed here."""
    folder, losses = project(train={"threads": 1}), []
    for number in (1, 2):
        path = folder / "params.yaml"
        path.write_text(path.read_text().replace("threads: 1", f"threads: {number}"))
        finished = finish(start(folder, "-m", "stages.train", RUN, "--out", f"of {number}"))
        assert finished.returncode == 0, finished.stderr
        losses.append(json.loads((folder / f"of {number}" / "metrics.json").read_text())["eval_loss"])
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
