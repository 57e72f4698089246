"""Every run of params.yaml trains at the smoke scale, in one process: `make nightly`, about a minute."""

from __future__ import annotations

import math

import pytest
from small_project import ROOT, make, stage

from aero.config import load
from aero.data.tokens import open_tokens, tokens_folder
from aero.training.run import train_run

pytestmark = pytest.mark.nightly
PARAMETERS = load(ROOT / "params.yaml").at_scale("smoke")


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Token files by the name of the corpus, None for the default."""
    folder = make(tmp_path_factory.mktemp("corpora"))
    opened = {}
    for name in {PARAMETERS.resolve(run).corpus_name for run in PARAMETERS.runs}:
        finished = stage(folder, "tokenize_corpus", *(() if name is None else ("--corpus", name)))
        assert finished.returncode == 0, finished.stderr
        opened[name] = open_tokens(tokens_folder(name, folder / "runs"))
    return opened


@pytest.mark.parametrize("run", PARAMETERS.runs)
def test_a_run_ends_with_a_loss_or_with_where_it_diverged(run, corpora, tmp_path):
    metrics = train_run(resolved := PARAMETERS.resolve(run), corpora[resolved.corpus_name], tmp_path)
    assert metrics["architecture"] == PARAMETERS.run(run).architecture
    if metrics["diverged_at_step"] is None:
        assert math.isfinite(metrics["eval_loss"]) and metrics["eval_loss"] < 1.2 * math.log(512)
        assert metrics["first_nonfinite"] is None
    else:
        assert metrics["eval_loss"] is None
        assert set(metrics["first_nonfinite"]) == {"step", "layer", "where"}


@pytest.mark.parametrize("run", ["sm-ln-g", "sm-scfuffn", "pythia-sm-g", "ereg-smt-scfuffni-6", "core-relu"])
def test_a_run_that_is_made_to_diverge_says_in_which_layer(run, corpora, tmp_path):
    """No run of params.yaml may diverge at this scale, so that the branch above would stay untried: one step of this
    size leaves no finite number."""
    changes = {"overrides": {**PARAMETERS.run(run).overrides, "learning_rate": 1e30, "clip": None}}
    changed = PARAMETERS.runs | {run: PARAMETERS.run(run).model_copy(update=changes)}
    parameters = PARAMETERS.model_copy(update={"runs": changed})
    metrics = train_run(resolved := parameters.resolve(run), corpora[resolved.corpus_name], tmp_path)
    assert metrics["eval_loss"] is None and metrics["diverged_at_step"] is not None
    first = metrics["first_nonfinite"]
    assert first["step"] <= metrics["diverged_at_step"] and first["where"]
    layers = PARAMETERS.resolve(run).sizes.layers
    assert first["layer"] in range(layers) or first["where"] in ("embedding", "logits")
