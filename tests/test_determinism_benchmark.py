"""What `benchmarks.determinism` compares a training with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aero.errors import UserError
from aero.pipeline import ROOT
from benchmarks import determinism
from benchmarks.determinism import OLDER, RUNS, Way, ways


def result(folder, losses, perplexity, heads, config_hash, weights=None):
    folder.mkdir(parents=True)
    (folder / "log.csv").write_text(
        "step,tokens,train_loss\n" + "".join(f"{i},{i},{x}\n" for i, x in enumerate(losses))
    )
    made = {"started": "2026-11-22T12:42:30+00:00"}
    metrics = {"eval_perplexity": perplexity, "config_hash": config_hash, "provenance": made}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "entropy.json").write_text(json.dumps({"entropy_mean": [heads]}))
    if weights is not None:
        (folder / "checkpoint.safetensors").write_bytes(weights)


def test_a_kept_result_of_the_very_training_is_compared_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr(determinism, "ROOT", tmp_path / "project")
    monkeypatch.setattr(determinism, "trained", lambda *_: ([1.0], 8.0, [2.0], b"w"))
    work = tmp_path / "work"
    result(work / "sm first", [4.0, 2.0], 8.0, [1.5, 0.5], "this recipe", b"weights")
    first = determinism.results_in(work / "sm first")
    trainings, of_cpu = ["the same again", "2 threads", *OLDER], ways("cpu", "float32")
    assert [name for name, _ in determinism.others(work, "laptop", "sm", of_cpu)] == trainings
    kept = tmp_path / "project/results/laptop/sm"
    result(kept, [4.0, 2.1], 8.2, [1.5, 0.4], "this recipe")
    (name, found), *more = determinism.others(work, "laptop", "sm", of_cpu)
    assert name == "the kept result of 2026-11-22" and [name for name, _ in more] == trainings
    told = determinism.compared(first, found)
    assert not told["identical"] and told["steps"] == 2
    assert told["loss"] == pytest.approx(0.05) and told["perplexity"] == pytest.approx(0.025)
    assert told["entropy"] == pytest.approx(0.1)
    # Equal in all that is kept, which the weights are not.
    assert determinism.compared(first, (*first[:3], b""))["identical"]
    assert not determinism.compared(first, (*first[:3], b"others"))["identical"]
    assert not determinism.compared(first, ([4.0, 2.1], *first[1:3], b""))["identical"]
    done = [name, "2 threads"]  # of an earlier call
    left = [name for name, _ in determinism.others(work, "laptop", "sm", of_cpu, done)]
    assert left == ["the same again", *OLDER]
    (kept / "metrics.json").write_text((kept / "metrics.json").read_text().replace("this recipe", "another"))
    assert [name for name, _ in determinism.others(work, "laptop", "sm", of_cpu)] == trainings


def test_rows_by_device_and_precision():
    assert list(ways("cpu", "float32")) == list(ways("cpu", "bfloat16")) == ["the same again", "2 threads", *OLDER]
    assert {way.device for way in ways("cpu", "float32").values()} == {"cpu"}
    of_gpu = ways("cuda", "float32")
    assert list(of_gpu) == ["the same again", "the CPU", "TF32 products", "bfloat16 autocast"]
    assert [way.device for way in of_gpu.values()] == ["cuda", "cpu", "cuda", "cuda"]
    assert of_gpu["the same again"] == Way("cuda") and of_gpu["bfloat16 autocast"].precision == "bfloat16"
    assert list(ways("cuda", "bfloat16")) == list(ways("cuda", "float16")) == ["the same again", "the CPU"]


def test_the_variable_for_tf32_is_one_that_pytorch_heeds():
    command = [sys.executable, "-c", "import torch; print(torch.get_float32_matmul_precision())"]
    for variables, precision in ((determinism.TF32, "high"), ({}, "highest")):
        said = subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout
        assert said.strip() == precision


@pytest.fixture
def stages(monkeypatch):
    """Stages that train nothing and say where they would have: environments, by command."""
    called = []

    def run(command, cwd, env, **_):
        called.append((command[2:], env))
        if command[2] == "stages.train":
            on = "cpu" if env.get("CUDA_VISIBLE_DEVICES") == "" else "NVIDIA H100"
            out = Path(command[-1])
            result(out, [4.0], 8.0, [1.5], "recipe")
            metrics = json.loads((out / "metrics.json").read_text())
            precision = "bfloat16" if "precision: bfloat16" in (cwd / "params.yaml").read_text() else "float32"
            metrics |= {"train": {"precision": precision}}
            metrics["provenance"]["device"] = on
            (out / "metrics.json").write_text(json.dumps(metrics))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(determinism.subprocess, "run", run)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return called


def test_the_cpu_is_forced_where_there_is_a_gpu(tmp_path, stages):
    determinism.trained(tmp_path, "smoke", "sm-r", "one", Way())
    assert [command[0] for command, _ in stages] == ["stages.tokenize_corpus", "stages.train", "stages.entropy"]
    assert all(env["CUDA_VISIBLE_DEVICES"] == "" for _, env in stages)
    determinism.trained(tmp_path, "smoke", "sm-r", "other", Way("cuda", environment=determinism.TF32))
    assert "CUDA_VISIBLE_DEVICES" not in stages[-1][1] and stages[-1][1].items() >= determinism.TF32.items()


def test_a_training_elsewhere_than_asked_is_no_measurement(tmp_path, stages, monkeypatch):
    monkeypatch.setattr(determinism, "NO_GPU", {})
    with pytest.raises(UserError, match="was to train on cpu and did on NVIDIA H100"):
        determinism.trained(tmp_path, "smoke", "sm-r", "one", Way())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="was to train on cuda and did on cpu"):
        determinism.trained(tmp_path, "smoke", "sm-r", "two", Way("cuda"))


def test_without_cuda_it_is_refused_in_a_line_and_nothing_is_written(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device cuda: PyTorch sees no CUDA device here"):
        determinism.main(["--device", "cuda", "--out", str(tmp_path / "out.json")])
    assert not list(tmp_path.iterdir())


class Stopped(Exception):
    pass


@pytest.fixture
def trainings(monkeypatch):
    """Trainings that cost nothing, and the names of those that were asked for; `most` ends them as a limit would."""
    asked = []

    def trained(folder, scale, run, name, way):
        if trained.most is not None and len(asked) >= trained.most:
            raise Stopped
        asked.append(name)
        result(folder / name, [4.0], 8.0, [1.5], f"{scale} {run}")
        return determinism.results_in(folder / name)

    trained.most = None
    monkeypatch.setattr(determinism, "trained", trained)
    return trained, asked


def content(path):
    found = json.loads(path.read_text())
    return found, [(line["scale"], line["run"], line["compared"]) for line in found["comparisons"]]


def test_what_was_stopped_goes_on_with_what_lacks(tmp_path, trainings):
    trained, asked = trainings
    out = tmp_path / "out.json"
    trained.most = 8  # the second run's first training and two comparisons
    with pytest.raises(Stopped):
        determinism.main(["--out", str(out)])
    found, _ = content(out)
    assert (found["asked"], found["of"]) == (6, 12) and found["plan"] == {"smoke": list(RUNS)}
    trained.most = None
    asked.clear()
    determinism.main(["--out", str(out)])
    rest = [f"{RUNS[2]} {name}" for name in ("first", "the same again", "2 threads", *OLDER)]
    assert asked == [f"{RUNS[1]} {name}" for name in ("first", *OLDER)] + rest
    found, names = content(out)
    assert found["asked"] == found["of"] == 12 == len(set(names))
    assert {run for _, run, _ in names} == set(RUNS) and found["provenance"]["device"] == "cpu"
    asked.clear()
    determinism.main(["--out", str(out)])
    assert not asked  # it is whole
    determinism.main(["--out", str(out), "--scale", "laptop:sm-r"])
    found, names = content(out)
    assert asked[0] == "sm-r first" and found["asked"] == found["of"] == 16 and names[-1][:2] == ("laptop", "sm-r")


def test_what_other_code_or_parameters_made_is_measured_again(tmp_path, trainings, monkeypatch):
    _, asked = trainings
    out = tmp_path / "out.json"
    determinism.main(["--out", str(out), "--scale", "smoke:sm-r"])
    asked.clear()
    monkeypatch.setattr(determinism.provenance, "machine", lambda: "another machine")
    determinism.main(["--out", str(out)])
    assert len(asked) == 5 and content(out)[0]["provenance"]["machine"] == "another machine"
    of = [
        determinism.made_with(*which, "cpu") for which in (("smoke", "sm-r"), ("laptop", "sm-r"), ("smoke", "sm-ln-g"))
    ]
    assert len({*of, determinism.made_with("smoke", "sm-r", "NVIDIA H100")}) == 4
    assert determinism.made_with("smoke", "sm-r", "cpu") == of[0]


def test_a_machine_without_pydantic_finds_the_same_lines():
    code = "from benchmarks import determinism as d; print(d.made_with('smoke', 'sm-r', 'cpu'))"
    said = [
        subprocess.run(
            [sys.executable, "-c", before + code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        for before in ("", "import sys; sys.modules['pydantic'] = None; ")
    ]
    assert said[0] == said[1] != ""


def test_cuda_has_a_file_and_rows_of_its_own(tmp_path, trainings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(determinism, "cuda_device", lambda: "NVIDIA H100")
    determinism.main(["--device", "cuda", "--scale", "smoke:sm-r", "--scale", "gpu:sm-r"])
    assert [path.name for path in determinism.FOLDER.iterdir()] == ["determinism_cuda.json"]
    found, names = content(determinism.FILES["cuda"])
    of = [("smoke", "sm-r", name) for name in ways("cuda", "float32")]
    assert names == of + [("gpu", "sm-r", name) for name in ways("cuda", "bfloat16")]
    assert found["provenance"]["device"] == "NVIDIA H100" and found["asked"] == found["of"] == 6


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"comparisons": null}', '{"comparisons": [{}]}', "[" * 100_000])
def test_a_file_that_is_none_of_comparisons_is_not_overwritten(tmp_path, trainings, text):
    out = tmp_path / "out.json"
    out.write_text(text)
    with pytest.raises(UserError, match="no file of comparisons to go on with"):
        determinism.main(["--out", str(out)])
    assert out.read_text() == text and not trainings[1]


def test_the_kept_file_says_what_lacks():
    """Lines of before the file kept its plan count as they are; one that says it is whole has every row."""
    for device, path in determinism.FILES.items():
        if not (ROOT / path).is_file():
            assert device == "cuda"
            continue
        found, names = content(ROOT / path)
        rows = [name for name in names if not name[2].startswith(determinism.KEPT)]
        assert found["asked"] == len(rows) == len(set(rows)) <= found["of"]
        if found["asked"] == found["of"]:
            runs = {(scale, run) for scale, run, _ in rows}
            assert len(rows) == sum(len(ways(device, "float32")) for _ in runs)
            assert runs == {(scale, run) for scale, of in found["plan"].items() for run in of}
