"""A training reads the token files of its own scale and corpus; entropy and `aero ask` those it was trained with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from small_project import make, stage

from aero import cli
from aero.checkpoint import metadata
from aero.config import load
from aero.data.tokens import open_tokens
from aero.errors import UserError
from aero.training.run import run_tokens


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokens):
    """The token files of the active scale, `smoke`, in runs/tokens."""
    folder = make(tmp_path_factory.mktemp("scales") / "project")
    shutil.copytree(tokens, folder / "runs/tokens")
    return folder


def test_another_scale_does_not_take_the_active_ones_tokens(project):
    finished = stage(project, "train", "sm", "--scale", "laptop")
    assert finished.returncode == 1
    assert "runs/scales/laptop/tokens of scale laptop are missing" in finished.stderr
    assert "python -m stages.tokenize_corpus --scale laptop" in finished.stderr
    assert not (project / "runs/scales/laptop/sm").exists()


def test_tokens_of_another_corpus_or_a_larger_vocabulary_are_refused(project, tmp_path, monkeypatch):
    parameters = load(project / "params.yaml")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(project / "runs/tokens", "runs/tokens")
    assert (
        run_tokens(parameters, parameters.resolve("sm"), Path("runs")).vocabulary
        == parameters.resolve("sm").vocabulary
        == 512
    )
    shutil.copytree("runs/tokens", "runs/scales/laptop/tokens")
    with pytest.raises(UserError, match="has 512 entries, scale laptop allows 257 for sm; .* --scale laptop$"):
        run_tokens(laptop := parameters.at_scale("laptop"), laptop.resolve("sm"), Path("runs/scales/laptop"))
    with pytest.raises(UserError, match="is of corpus python_stdlib, scale gpu needs installed_python"):
        run_tokens(gpu := parameters.at_scale("gpu"), gpu.resolve("sm"), Path("runs"))
    path = Path("runs/tokens/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["corpus"]["name"] = "local"
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is of corpus local, scale smoke needs python_stdlib; make it again"):
        run_tokens(parameters, parameters.resolve("sm"), Path("runs"))


def test_tokenize_train_and_entropy_of_another_scale(project):
    """As docs/training.md does it, with the scale cut short."""
    values = yaml.safe_load((project / "params.yaml").read_text())
    small, laptop = values["scales"]["smoke"], values["scales"]["laptop"]
    for name in ("tokens", "model", "entropy", "families", "contexts"):
        laptop[name] = small[name]
    laptop["tokens"] = small["tokens"] | {"vocabulary": 300}
    laptop["train"] |= small["train"]
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    for name, *arguments in (("tokenize_corpus",), ("train", "sm-r")):
        finished = stage(project, name, *arguments, "--scale", "laptop")
        assert finished.returncode == 0, finished.stderr
    metrics = json.loads((project / "runs/scales/laptop/sm-r/seed_1337/metrics.json").read_text())
    assert metrics["model"]["vocabulary"] == 300 and metrics["scale"] == "laptop"
    assert json.loads((project / "runs/tokens/manifest.json").read_text())["vocabulary"] == 512


@pytest.fixture
def trained(tmp_path, project):
    """A project whose one training is done, and whose token files are made again with another tokenizer."""
    folder = make(tmp_path / "project", train={"steps": 2})
    shutil.copytree(project / "runs/tokens", folder / "runs/tokens")
    assert stage(folder, "train", "sm-r").returncode == 0
    shutil.copytree(folder / "runs/tokens", folder / "own")
    values = yaml.safe_load((folder / "params.yaml").read_text())
    values["tokenizer"]["training_bytes"] = 50_000
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    assert stage(folder, "tokenize_corpus").returncode == 0
    return folder


def test_other_tokens_and_another_tokenizer_are_refused(trained, monkeypatch):
    own, other = (open_tokens(trained / name).manifest for name in ("own", "runs/tokens"))
    assert own["vocabulary"] == other["vocabulary"] and own["tokenizer_sha256"] != other["tokenizer_sha256"]
    run = next((trained / "runs/default/sm-r").glob("seed_*"))
    assert metadata(run / "checkpoint.safetensors")["tokenizer_sha256"] == own["tokenizer_sha256"]
    assert json.loads((run / "entropy.json").read_text())["run"] == "sm-r"
    monkeypatch.chdir(trained)
    text = trained / "text.py"
    text.write_text("def add(a, b):\n    return a + b\n" * 40)
    checkpoint = str(run / "checkpoint.safetensors")
    for command in (["entropy", checkpoint, "--text", str(text)], ["ask", "--checkpoint", checkpoint, "def"]):
        with pytest.raises(UserError, match=re.escape("was trained with another tokenizer than this one")):
            cli.main(command)
    cli.main(["entropy", checkpoint, "--text", str(text), "--tokenizer", "own/tokenizer.json"])
