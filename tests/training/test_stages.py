"""The stages as commands: a whole tiny pipeline by hand, and bad input in one line with a non-zero exit."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from small_project import make, one_line_error, stage, start, timeless

from aero.data.base import sha256_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokens):
    folder = make(tmp_path_factory.mktemp("project with a space"))
    shutil.copytree(tokens, folder / "runs/tokens")
    return folder


def test_a_training_and_its_entropy(project):
    finished = stage(project, "train", "ereg-smt-scfuffni-6")
    assert finished.returncode == 0, finished.stderr
    (folder,) = project.glob("runs/scales/*/ereg-smt-scfuffni-6/seed_1337")
    metrics = json.loads((folder / "metrics.json").read_text())
    about = {"run", "paper_rows", "architecture", "model", "corpus", "context", "seed", "tokens"}
    assert about | {"eval_perplexity", "diverged_at_step", "tokens_per_second"} <= set(metrics)
    assert metrics["architecture"] == "EReg(SM(t)+ScFuFFNi_6)"
    assert {"commit", "machine", "torch", "corpus_sha256", "started", "seconds"} <= set(metrics["provenance"])
    assert metrics["tokens"] == 12 * 8 * 16 and metrics["eval_loss"] > 0
    entropy = json.loads((folder / "entropy.json").read_text())
    assert len(entropy["entropy_mean"]) == len(entropy["entropy_median"]) == 12 and entropy["tokens"] > 0
    assert len(entropy["learned"]["alpha"]) == 6 and len(entropy["learned"]["thresholds"]) == 12
    assert sum(entropy["quarters"]["observed"]) == pytest.approx(1)
    assert len(entropy["learned"]["temperature_by_position"][0]) == 16 and entropy["learned"]["slopes"] is None
    assert {"commit", "machine", "torch", "at"} <= set(entropy["measured"])


def test_a_killed_training_resumes_to_the_same_metrics(project):
    whole = project / "whole"
    assert stage(project, "train", "sm-r", "--out", str(whole)).returncode == 0
    process = start(project, "-m", "stages.train", "sm-r")
    state = project / "runs/default/sm-r/seed_1337/resume.safetensors"
    while process.poll() is None and not state.exists():
        pass
    process.kill()
    process.wait()
    cut = project / "runs/default/sm-r/seed_1337"
    assert not (cut / "metrics.json").exists(), "the run ended before it could be killed"
    finished = stage(project, "train", "sm-r")
    assert finished.returncode == 0 and "starting anew" not in finished.stdout
    assert timeless(cut) == timeless(whole)
    assert (cut / "checkpoint.safetensors").read_bytes() == (whole / "checkpoint.safetensors").read_bytes()
    (named,) = {json.loads((of / "metrics.json").read_text())["provenance"]["checkpoint_sha256"] for of in (cut, whole)}
    assert named == sha256_of(cut / "checkpoint.safetensors")


def test_unknown_names(project):
    one_line_error(stage(project, "train", "sm-lng"), "sm-lng", "sm-ln-g")
    one_line_error(stage(project, "train", "sm", "--scale", "huge"), "huge", "laptop")


def test_missing_and_corrupt_inputs(project, tmp_path):
    one_line_error(stage(project, "train", "sm-ln-r", "--tokens", str(tmp_path / "none")), "none")
    tokens = tmp_path / "tokens"
    shutil.copytree(project / "runs/tokens", tokens)
    data = (tokens / "train.bin").read_bytes()
    (tokens / "train.bin").write_bytes(data[: len(data) // 2])
    one_line_error(
        stage(project, "train", "sm-ln-r", "--tokens", str(tokens), "--out", str(tmp_path / "o")), "train.bin"
    )
    assert not (tmp_path / "o").exists()
    trained = project / "runs/default/sm-ln-r/seed_1337"
    trained.mkdir(parents=True)
    (trained / "checkpoint.safetensors").write_bytes(b"no tensors")
    one_line_error(stage(project, "end_to_end", "sm-ln-r"), "checkpoint.safetensors", "damaged")
    one_line_error(stage(tmp_path, "train", "sm-ln-r"), "params.yaml", "root folder")


def test_a_wrong_python_is_one_clear_line():
    finished = subprocess.run(
        ["make", "-s", "-W", "pyproject.toml", "install", "PYTHON=/bin/false"], cwd=ROOT, capture_output=True, text=True
    )
    assert finished.returncode != 0 and "Python 3.11 is needed" in finished.stderr
