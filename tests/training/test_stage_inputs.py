"""Stages run where nothing but their declared dependencies lies: what they miss, or read beside it, is not declared."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from small_project import make

from aero.pipeline import ROOT, _is_inert, dependency_differences

RUN, SEED = "sm-scfuffni-6", 1337
PIPELINES = {
    name: yaml.safe_load((ROOT / name).read_text(encoding="utf-8")) for name in ("dvc.yaml", "catalogue/dvc.yaml")
}
STAGES = PIPELINES["dvc.yaml"]["stages"]
FURTHER = ("two_party_all", "parallel_context_train", "parallel_context", "parallel_context_cost")  # of the catalogue
OTHER_CORPUS = "runs/tokens_stdlib_docstrings"
# In the order in which they can run.
ORDER = (
    "tokenize",
    "tokenize_languini",
    "configurations",
    "train",
    "entropy",
    "summary",
    "two_party_ops",
    "end_to_end",
    "two_party_rows",
    "sensitivity",
    "sensitivity_theory",
    *FURTHER,
    "report",
)
STAGES = STAGES | {name: PIPELINES["catalogue/dvc.yaml"]["stages"][name] for name in FURTHER}
NAMED = {"scales", "runs", "families", "corpora", "devices"}
"""Sections of params.yaml whose entries have names, which stand as * in what is followed."""
# Follows what a stage opens and which values of params.yaml it uses, by their dotted names, and tells at the end.
FOLLOWED = """
import json, os, runpy, sys
root, told, opened, values = os.getcwd() + "/", sys.argv.pop(1), set(), set()
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        path = os.path.abspath(arguments[0])
        if path.startswith(root) and os.path.isfile(path):
            opened.add(path[len(root):])
sys.addaudithook(hook)
from typing import get_args
from aero import config as parameters
check, places, inside = parameters.load, {}, set()  # inside: the sections of what was loaded, not copies of them
def place(kind, prefix):
    places.setdefault(kind, prefix)
    for name, field in kind.model_fields.items():
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, parameters.BaseModel):
                place(part, prefix + name + (".*." if part is not field.annotation else "."))
def followed(kind):
    plain, names, prefix = object.__getattribute__, set(kind.model_fields), places[kind]
    def read(self, name):
        value = plain(self, name)
        if id(self) not in inside and kind is not parameters.Parameters:
            return value
        if name in names:
            inner = list(value.values()) if isinstance(value, dict) else [value]
            if not inner or not all(isinstance(one, parameters.BaseModel) for one in inner):
                values.add(prefix + name)
        elif name == "model_dump":
            return lambda **given: dumped(value, **given)
        return value
    def dumped(dump, **given):
        values.update(prefix + name for name in set(given.get("include") or names) - set(given.get("exclude", ())))
        return dump(**given)
    return read
def enter(value):
    if isinstance(value, parameters.BaseModel):
        inside.add(id(value))
        for name in type(value).model_fields:
            enter(getattr(value, name))
    elif isinstance(value, dict):
        for one in value.values():
            enter(one)
kept = []
def load(*given):
    found = check(*given)
    kept.append(found)  # so that no other object gets its sections' places in memory
    now = set(values)
    enter(found)
    values.intersection_update(now)
    if not places:
        place(parameters.Parameters, "")
        for kind in places:
            kind.__getattribute__ = followed(kind)
    return found
parameters.load = load
stage = sys.argv.pop(1)
if stage == "stages.report":  # it takes sections of params.yaml as they stand
    from aero import errors
    class Sections(dict):
        def __getitem__(self, name):
            values.add(name)
            return super().__getitem__(name)
        def get(self, name, other=None):
            values.add(name)
            return super().get(name, other)
    yaml_file = errors.yaml_file  # of parameters too, which follows its values itself and has its own name for it
    def sections(path):
        found = yaml_file(path)
        return Sections(found) if "training_order" in found else found
    errors.yaml_file = sections
try:
    runpy.run_module(stage, run_name="__main__", alter_sys=True)
finally:
    found = {"": sorted(values)}
    if stage == "stages.configurations":  # what each of its files stands for
        from stages.configurations import SETTINGS, trained_by
        given, run = load(), os.environ["FOLLOWED_RUN"]
        files = {f"runs/settings/{name}.json": lambda of=of: of(given) for name, of in SETTINGS.items()}
        files[f"runs/configurations/{run}.json"] = lambda: trained_by(given, run, "")
        for name, make in files.items():
            values.clear()
            make()
            found[name] = sorted(values)
    with open(told, "w") as file:
        json.dump({"opened": sorted(opened), "values": found}, file)
"""


def filled(text: str) -> str:
    """A name or command in dvc.yaml for `RUN` and `SEED`."""
    for name, value in {
        "item.run": RUN,
        "item.seed": SEED,
        "seeds[0]": SEED,
        "families.languini-gpt2.corpus": "stdlib_docstrings",
    }.items():
        text = text.replace(f"${{{name}}}", str(value))
    return text


def declared(stage: str) -> tuple[list[str], list[str]]:
    """(dependencies, values of params.yaml) of the stage, for `RUN`; the dependencies with those of `configurations` if
    it depends on a file of that stage."""
    names = [filled(text) for text in STAGES[stage].get("deps", [])]
    values = []
    for dotted in STAGES[stage].get("params", []):
        first, *rest = filled(dotted).replace("${scale}", "*").split(".")
        values.append(".".join([first, "*", *rest[1:]] if first in NAMED and rest else [first, *rest]))
    if any(name.startswith(("runs/configurations/", "runs/settings/")) for name in names):
        names = list(dict.fromkeys([*names, *declared("configurations")[0]]))
    return names, values


def alone(folder: Path, whole: Path, names: list[str]) -> None:
    """Make `folder` hold params.yaml and `names`, code from this source and data from `whole`, nothing else but the
    `__init__.py` that have no code."""
    shutil.copytree(whole, folder, ignore=lambda path, _: ["runs", "results"] if Path(path) == whole else [])
    packages = [*(ROOT / "aero").rglob("__init__.py"), ROOT / "stages/__init__.py"]
    for name in [*names, *(path.relative_to(ROOT).as_posix() for path in packages if _is_inert(path))]:
        source = (ROOT if name.split("/")[0] in ("aero", "stages") else whole) / name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)


def run(folder: Path, stage: str) -> subprocess.CompletedProcess:
    arguments = [folder / "told.json", *filled(STAGES[stage]["cmd"]).removeprefix("python -m ").split()]
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/nonexistent", "FOLLOWED_RUN": RUN}
    done = [sys.executable, "-c", FOLLOWED, *map(str, arguments)]
    return subprocess.run(done, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A project in which the stages have run, each alone with what it declares, and what each of them read."""
    whole = make(tmp_path_factory.mktemp("whole") / "project")
    values = yaml.safe_load((whole / "params.yaml").read_text(encoding="utf-8"))
    every = [*values["active_runs"], *values["more_runs"]]
    values["active_runs"], values["more_runs"] = [RUN], [run for run in every if run != RUN]
    values["two_party"] |= {"end_to_end_runs": [RUN], "programs": ["tuned"]}
    values["sensitivity_theory"]["controlled"]["positions"] = 50
    for scale in values["scales"].values():
        scale["end_to_end_runs"] = [RUN]
    printed = {RUN}  # by `two_party_all`, which at this scale measures each printed architecture in its own sizes
    for name, run_values in values["runs"].items():
        if name not in printed:
            run_values |= {"rows": [], "figures": [], "reason": "a test"}
    (whole / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    shutil.copytree(ROOT / "results/two_party", whole / "results/two_party")
    for name in ("dvc.yaml",):
        (whole / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, whole / name)
    read = {}
    for stage in ORDER:
        folder = tmp_path_factory.mktemp(stage) / "a folder with blanks"
        alone(folder, whole, declared(stage)[0])
        finished = run(folder, stage)
        assert finished.returncode == 0, f"{stage} does not run on what it declares: {finished.stderr}"
        told = json.loads((folder / "told.json").read_text(encoding="utf-8"))
        read[stage] = told["opened"], told["values"]
        shutil.copytree(folder / "runs", whole / "runs", dirs_exist_ok=True)
    return whole, read


def test_every_stage_of_the_pipelines_is_followed():
    trainings = {"train", "train_again"}  # the catalogue's, of the same two modules as train and entropy
    catalogue = set(PIPELINES["catalogue/dvc.yaml"]["stages"]) - trainings
    assert set(ORDER) == set(PIPELINES["dvc.yaml"]["stages"]) | catalogue


@pytest.mark.slow
@pytest.mark.parametrize("stage", ORDER)
def test_a_stage_reads_nothing_that_it_does_not_declare(made, stage):
    names, known = declared(stage)
    opened, followed = made[1][stage]
    inside = [name for name in opened if name.split("/")[0] in ("aero", "stages", "runs", "results")]
    assert len([name for name in inside if name.endswith(".py")]) > 10, "nothing was followed"
    own = ("__init__.py", ".pyc")
    odd = [
        name
        for name in inside
        if not name.endswith(own) and not any(name == dep or name.startswith(f"{dep}/") for dep in names)
    ]
    outs = [
        next(iter(out)) if isinstance(out, dict) else out
        for out in [*STAGES[stage].get("outs", []), *STAGES[stage].get("metrics", [])]
    ]
    odd = [name for name in odd if not any(name.startswith(filled(out).rpartition("/")[0]) for out in outs)]
    assert odd == []
    # Files of `configurations` stand for what was followed while they were made.
    stood_for = made[1]["configurations"][1]
    files = ["runs/settings/report.json"] if stage == "report" else names  # it depends on all of runs
    known += [value for name in files for value in stood_for.get(name, [])]
    # Which seeds and scale there are is in the names of the stages; where a run is computed does not change its result.
    # Of the vocabulary it is asked only whether the token files, a dependency, have it.
    free = ("seeds", "scale", "scales.*.device", "scales.*.tokens.vocabulary")
    values = [value for value in followed[""] if value not in free]
    assert values and [v for v in values if not any(f"{v}.".startswith(f"{name}.") for name in known)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "value"), [("two_party_ops", "scales.*.tokens"), ("sensitivity", "scales.*.sensitivity")]
)
def test_what_a_stage_uses_of_params_yaml_is_followed_to_its_place(made, stage, value):
    """The other way round: a value that was not declared would be seen."""
    assert any(f"{used}.".startswith(f"{value}.") for used in made[1][stage][1][""])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "missing", "said"),
    [
        ("train", "runs/tokens", "runs/tokens/manifest.json does not exist"),
        ("train", "aero/training/state.py", "cannot import name 'state'"),
    ],
)
def test_a_dependency_that_is_not_declared_is_missed(made, tmp_path, stage, missing, said):
    """The other way round: with an incomplete list the run above fails, and says what is missing."""
    folder = tmp_path / "incomplete"
    alone(folder, made[0], [name for name in declared(stage)[0] if name != missing])
    finished = run(folder, stage)
    assert finished.returncode != 0 and said in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["train", "entropy"])
def test_tokens_with_one_flipped_bit_are_refused(made, tmp_path, stage):
    """They have the right size and are valid tokens: only their checksum tells."""
    folder = tmp_path / "project"
    alone(folder, made[0], declared(stage)[0])
    path = folder / "runs/tokens/valid.bin"
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.unlink()
    path.write_bytes(content)
    finished = run(folder, stage)
    line = finished.stderr.strip().splitlines()[-1]
    assert finished.returncode != 0 and "valid.bin" in line and "its SHA-256 is not the one in manifest.json" in line


@pytest.mark.parametrize("name", ["dvc.yaml", "catalogue/dvc.yaml"])
def test_the_check_of_code_names_every_file_that_is_left_out(name):
    """Of every stage, all files of code at once."""
    pipeline = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    for stage, content in pipeline["stages"].items():
        code = [dep for dep in content.get("deps", []) if dep.split("/")[0] in ("aero", "stages")]
        rest = [dep for dep in content.get("deps", []) if dep not in code]
        found = dependency_differences({"stages": {stage: content | {"deps": rest}}})
        named = {line.removeprefix(f"stage {stage}: ").split(" ")[0] for line in found}
        folders = [dep for dep in code if not dep.endswith(".py")]
        assert {dep for dep in code if dep.endswith(".py")} <= named
        assert all(any(file.startswith(f"{folder}/") for file in named) for folder in folders)


def test_costs_depend_on_the_architecture_of_every_active_run():
    active = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["active_runs"]
    assert {f"runs.{run}.architecture" for run in active} <= set(STAGES["two_party_ops"]["params"])
