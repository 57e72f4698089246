"""Training with PyTorch, numpy, tiktoken and tokenizers alone, as on a borrowed machine."""

import importlib.metadata
import json
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from small_project import ROOT, environment, make, timeless

from aero import config as parameters
from aero import plain_safetensors

ENOUGH = ("torch", "numpy", "tiktoken", "tokenizers")


def foreign_modules():
    """Top-level modules of installed packages that the four packages do not bring with them."""
    wanted, waiting = set(), list(ENOUGH)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in wanted:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        wanted.add(name)
        parsed = (Requirement(text) for text in requirements)
        waiting += [r.name for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
    own = {"aero", "stages"}
    return sorted(
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if module not in own and not wanted & {canonicalize_name(package) for package in packages}
    )


def bare(folder, statement):
    """Run Python code in `folder` where every other installed package is missing."""
    code = f"import sys; sys.modules |= dict.fromkeys({foreign_modules()!r})\n{statement}"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, timeout=180
    )


def bare_stage(folder, name, *arguments):
    return bare(
        folder, f"import runpy; sys.argv[1:] = {arguments!r}; runpy.run_module('stages.{name}', run_name='__main__')"
    )


def test_the_four_packages_leave_the_others_out():
    foreign = set(foreign_modules())
    assert {"pydantic", "safetensors", "dvc", "datasets", "spu", "pandas"} <= foreign
    assert not {"torch", "numpy", "tiktoken", "tokenizers", "yaml", "tqdm"} & foreign


@pytest.mark.slow
def test_tokens_training_and_entropy_without_the_other_packages(tmp_path):
    """At the scale `gpu`, with its precision and switches, in small."""
    folder = make(tmp_path / "project")
    values = yaml.safe_load((folder / "params.yaml").read_text())
    smoke, gpu = values["scales"]["smoke"], values["scales"]["gpu"]
    values["scale"] = "gpu"
    for name in ("tokens", "model", "entropy", "families", "contexts"):
        gpu[name] = smoke[name]
    sizes = ("steps", "batch_size", "evaluation_tokens", "final_evaluation_tokens", "checkpoint_every")
    gpu["train"] |= {name: smoke["train"][name] for name in sizes}
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    run = "ereg-smt-scfuffni-6"
    for name, *arguments in (("tokenize_corpus",), ("train", run, "--scale", "gpu", "--out", "bare")):
        finished = bare_stage(folder, name, *arguments)
        assert finished.returncode == 0, finished.stderr
        assert "pydantic is not installed" in finished.stderr
    finished = bare_stage(folder, "entropy", run, "--scale", "gpu", "--folder", "bare")
    assert finished.returncode == 0, finished.stderr
    assert json.loads((folder / "bare/metrics.json").read_text())["train"]["precision"] == "bfloat16"
    command = [sys.executable, "-m", "stages.train", run, "--out", "full"]
    finished = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=180)
    assert finished.returncode == 0, finished.stderr
    assert timeless(folder / "bare") == timeless(folder / "full")
    checkpoint = safetensors.torch.load_file(folder / "bare/checkpoint.safetensors")
    for name, tensor in safetensors.torch.load_file(folder / "full/checkpoint.safetensors").items():
        assert torch.equal(checkpoint[name], tensor), name


@pytest.mark.slow
def test_a_visit_without_the_other_packages(tmp_path):
    """Tokens of the scale `gpu` from the installed packages, trainings back to back, their merging."""
    folder = make(tmp_path / "project")
    values = yaml.safe_load((folder / "params.yaml").read_text())
    smoke, gpu = values["scales"]["smoke"], values["scales"]["gpu"]
    for name in ("tokens", "model", "entropy", "families", "contexts"):
        gpu[name] = smoke[name]
    gpu["train"] |= smoke["train"] | {name: gpu["train"][name] for name in ("precision", "compile")}
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    finished = bare_stage(folder, "tokenize_corpus", "--scale", "gpu")
    assert finished.returncode == 0, finished.stderr
    manifest = json.loads((folder / "runs/scales/gpu/tokens/manifest.json").read_text())
    assert manifest["corpus"]["name"] == "installed_python" and "site-packages/torch" in manifest["corpus"]["packages"]
    finished = bare_stage(
        folder, "train_many", "failures", "slopes", "core-relu", "--scale", "gpu", "--out", "home", "--minutes", "2"
    )
    assert finished.returncode == 0, finished.stderr
    assert "0 of 4 trainings are done" in finished.stdout and "all are done" in finished.stdout
    finished = bare_stage(folder, "merge_results", "home/trainings.jsonl", "--allow-changes")
    assert finished.returncode == 0, finished.stderr
    kept = sorted(
        path.relative_to(folder / "results").as_posix() for path in (folder / "results").rglob("metrics.json")
    )
    assert kept == [
        f"gpu/{run}/metrics.json" for run in ("core-relu", "sm-leakyr-global", "sm-leakyr", "sm-scfuffni-7")
    ]


def test_parameters_are_the_same_without_pydantic():
    """Every run at every scale, value for value."""
    dump = (
        "import json\nfrom aero.config import CHECKED, load\nparameters = load('params.yaml')\n"
        "print(json.dumps([CHECKED, parameters.model_dump(), {f'{scale} {run}': parameters.at_scale(scale).train(run)"
        ".recipe() for scale in parameters.scales for run in parameters.runs}]))"
    )
    finished = bare(ROOT, dump)
    assert finished.returncode == 0, finished.stderr
    checked, values, recipes = json.loads(finished.stdout)
    ours = parameters.load(ROOT / "params.yaml")
    assert not checked and values == json.loads(json.dumps(ours.model_dump()))
    for scale in ours.scales:
        for run in ours.runs:
            expected = ours.at_scale(scale).train(run).recipe()
            assert recipes[f"{scale} {run}"] == json.loads(json.dumps(expected)), (scale, run)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("scales", "gpu", "train", "stepz"), 3, "scales.gpu.train.stepz"),
        (("scales", "gpu", "train", "steps"), "many", "scales.gpu.train.steps"),
        (("scales", "gpu", "train", "clip"), "wide", "scales.gpu.train.clip"),
        (("runs", "sm", "architecture"), "SM+X", "runs.sm.architecture"),
        (("scale",), "huge", "huge"),
        (("seeds",), None, "seeds"),
        (("seeds",), "1337", "seeds: Input should be a valid tuple"),
        (("seeds",), [1337, True], "seeds.1: Input should be a valid int"),
        (("regularizer", "gamma"), "0.2", "regularizer.gamma: Input should be a valid float"),
        (("corpus", "packing"), 1, "corpus.packing: Input should be a valid bool"),
        (("corpus", "text_column"), 7, "corpus.text_column: Input should be a valid str"),
    ],
)
def test_bad_parameters_are_told_without_pydantic_too(tmp_path, place, value, told):
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(values))
    finished = bare(
        tmp_path, "from aero.errors import run_main\nfrom aero.config import load\nrun_main(lambda _: load() and 0)"
    )
    assert finished.returncode == 1 and "Traceback" not in finished.stderr, finished.stderr
    assert finished.stderr.splitlines()[-1].startswith("error: ") and told in finished.stderr.splitlines()[-1]


TENSORS = {
    "weights": torch.arange(6, dtype=torch.float32).view(2, 3),
    "step": torch.tensor(7.0),
    "count": torch.tensor([1, -2], dtype=torch.int64),
    "half": torch.tensor([0.5, -1.5], dtype=torch.float16),
    "brain": torch.tensor([0.5, -1.5], dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "flags": torch.tensor([True, False, True]),
}


def equal(read):
    return all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in TENSORS.items())


def test_plain_safetensors_are_what_the_package_reads_and_writes(tmp_path):
    path = str(tmp_path / "plain")
    plain_safetensors.save_file(TENSORS, path, {"aero": "é"})
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"aero": "é"} and set(file.keys()) == set(TENSORS)
        assert equal({name: file.get_tensor(name) for name in file.keys()})
    safetensors.torch.save_file(TENSORS, path, {"aero": "é"})
    with plain_safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata() == {"aero": "é"} and set(file.keys()) == set(TENSORS)
        assert equal({name: file.get_tensor(name) for name in file.keys()})


def test_plain_safetensors_refuse_damage(tmp_path):
    path = tmp_path / "file"
    plain_safetensors.save_file(TENSORS, str(path), {})
    whole = path.read_bytes()
    header = whole[8 : 8 + int.from_bytes(whole[:8], "little")]
    strange = header.replace(b'"F16"', b'"F12"')
    for damaged in (b"", whole[:5], whole[:40], whole[:-1], whole + b"x", np.random.default_rng(0).bytes(200)):
        path.write_bytes(damaged)
        with pytest.raises(plain_safetensors.SafetensorError):
            plain_safetensors.safe_open(str(path), framework="pt")
    path.write_bytes(whole.replace(header, strange))
    with pytest.raises(plain_safetensors.SafetensorError, match="half"):
        plain_safetensors.safe_open(str(path), framework="pt").get_tensor("half")
