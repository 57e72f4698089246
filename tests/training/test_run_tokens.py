"""Which token files a training reads: those of its own scale, and no other's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_project import make, stage

from aero.config import load
from aero.data.tokens import scale_root
from aero.errors import UserError
from aero.training.run import run_tokens


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The token files of the active scale, `smoke`, in runs/tokens."""
    folder = make(tmp_path_factory.mktemp("scales") / "project")
    assert stage(folder, "tokenize_corpus").returncode == 0
    return folder


def test_the_active_scale_has_the_pipelines_own_folder():
    assert scale_root(None, "laptop") == scale_root("laptop", "laptop") == Path("runs")
    assert scale_root("gpu", "laptop") == Path("runs/scales/gpu")


def test_another_scale_does_not_take_the_active_ones_tokens(project):
    """It did: a model of the scale `gpu` was trained on whatever lay in runs/tokens."""
    for name in ("train", "entropy"):
        finished = stage(project, name, "sm", "--scale", "laptop")
        assert finished.returncode == 1
        if name == "train":
            assert "runs/scales/laptop/tokens of scale laptop are missing" in finished.stderr
            assert "python -m stages.tokenize_corpus --scale laptop" in finished.stderr
    assert not (project / "runs/scales/laptop/sm").exists()


def test_tokens_of_another_corpus_or_a_larger_vocabulary_are_refused(project, tmp_path, monkeypatch):
    parameters = load(project / "params.yaml")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(project / "runs/tokens", "runs/tokens")
    assert run_tokens(parameters, "sm", Path("runs")).vocabulary == parameters.vocabulary("sm") == 512
    shutil.copytree("runs/tokens", "runs/scales/laptop/tokens")
    with pytest.raises(UserError, match="has 512 entries, scale laptop wants at most 257 for sm; .* --scale laptop$"):
        run_tokens(parameters.at_scale("laptop"), "sm", Path("runs/scales/laptop"))
    with pytest.raises(UserError, match="is of corpus python_stdlib, scale gpu wants installed_python for sm"):
        run_tokens(parameters.at_scale("gpu"), "sm", Path("runs"))
    path = Path("runs/tokens/manifest.json")
    manifest = json.loads(path.read_text())
    manifest["corpus"]["name"] = "local"
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is of corpus local, scale smoke wants python_stdlib for sm; make it again"):
        run_tokens(parameters, "sm", Path("runs"))


def test_tokenize_train_and_entropy_of_another_scale(project):
    """As docs/training.md does it, with the scale cut short."""
    import yaml

    values = yaml.safe_load((project / "params.yaml").read_text())
    small, laptop = values["scales"]["smoke"], values["scales"]["laptop"]
    for name in ("tokens", "model", "entropy", "families", "contexts"):
        laptop[name] = small[name]
    laptop["tokens"] = small["tokens"] | {"vocabulary": 300}
    laptop["train"] |= small["train"]
    (project / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    for name, *arguments in (("tokenize_corpus",), ("train", "sm"), ("entropy", "sm")):
        finished = stage(project, name, *arguments, "--scale", "laptop")
        assert finished.returncode == 0, finished.stderr
    metrics = json.loads((project / "runs/scales/laptop/sm/seed_1337/metrics.json").read_text())
    assert metrics["model"]["vocabulary"] == 300 and metrics["scale"] == "laptop"
    assert json.loads((project / "runs/tokens/manifest.json").read_text())["vocabulary"] == 512


@pytest.mark.slow
def test_a_training_by_the_pipeline_is_repeated_when_its_configuration_changes_and_only_then(project):
    """--unless-trained: entropy's settings are no reason, the hash of the code is, and a training by hand forgets."""
    configuration = project / "runs/configurations/sm-scfuffni-6.json"
    configuration.parent.mkdir(exist_ok=True)
    configuration.write_text('{"code_sha256": "one"}')
    metrics = project / "runs/sm-scfuffni-6/seed_1337/metrics.json"

    def trained(*more):
        before = metrics.stat().st_mtime_ns if metrics.exists() else 0
        finished = stage(project, "train", "sm-scfuffni-6", *more)
        assert finished.returncode == 0, finished.stderr
        return metrics.stat().st_mtime_ns != before

    asked = "--unless-trained"
    assert trained(asked) and not trained(asked) and not trained(asked)
    configuration.write_text('{"code_sha256": "two"}')
    assert trained(asked) and not trained(asked)
    assert trained() and trained(asked) and not trained(asked)
