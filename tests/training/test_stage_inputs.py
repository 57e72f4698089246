"""Stages run where nothing but their declared dependencies lies: what they miss, or read beside it, is not declared."""

from __future__ import annotations

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
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
OTHER_CORPUS = "runs/tokens_stdlib_docstrings"
# Follows what a stage opens and which sections of params.yaml it uses, and tells at the end.
FOLLOWED = """
import os, runpy, sys
root, told, opened, sections = os.getcwd() + "/", sys.argv.pop(1), set(), set()
def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        path = os.path.abspath(arguments[0])
        if path.startswith(root) and os.path.isfile(path):
            opened.add(path[len(root):])
sys.addaudithook(hook)
from aero import parameters
check = parameters.load
def load(*given):
    found = check(*given)
    kind = type(found)
    names = set(kind.model_fields)
    plain = kind.__getattribute__
    def followed(self, name):
        if name in names:
            sections.add(name)
        return plain(self, name)
    kind.__getattribute__ = followed
    return found
parameters.load = load
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
finally:
    with open(told, "w") as file:
        print(*sorted(opened), sep="\\n", file=file)
        print("sections", *sorted(sections), file=file)
"""


def declared(stage: str) -> tuple[list[str], list[str]]:
    """(dependencies, sections of params.yaml) of the stage, for `RUN`, with what its configuration file stands for."""
    names = [text.replace("${item.run}", RUN).replace("${item.seed}", str(SEED)) for text in STAGES[stage]["deps"]]
    names = [name.replace("${families.languini-gpt2.corpus}", "stdlib_docstrings") for name in names]
    sections = [name.split(".")[0] for name in STAGES[stage].get("params", [])]
    if any(name.startswith(("runs/configurations/", "runs/settings/")) for name in names):
        further, more = declared("configurations")
        return [*names, *further], [*sections, *more]
    return names, sections


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
    command = STAGES[stage]["cmd"].replace("${item.run}", RUN).replace("${item.seed}", str(SEED))
    arguments = [folder / "told.txt", *command.removeprefix("python -m ").split()]
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PATH": "/nonexistent"}
    done = [sys.executable, "-c", FOLLOWED, *map(str, arguments)]
    return subprocess.run(done, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def made(tmp_path_factory, tokens):
    """A project in which the stages have run, each alone with what it declares, and what each of them read."""
    whole = make(tmp_path_factory.mktemp("whole") / "project")
    for name in ("runs/tokens", OTHER_CORPUS):
        shutil.copytree(tokens, whole / name)
    shutil.copytree(ROOT / "results/two_party", whole / "results/two_party")
    read = {}
    for stage in ("configurations", "train", "entropy", "summary"):
        folder = tmp_path_factory.mktemp(stage) / "a folder with blanks"
        alone(folder, whole, declared(stage)[0])
        finished = run(folder, stage)
        assert finished.returncode == 0, f"{stage} does not run on what it declares: {finished.stderr}"
        *opened, sections = (folder / "told.txt").read_text().splitlines()
        read[stage] = opened, sections.split()[1:]
        shutil.copytree(folder / "runs", whole / "runs", dirs_exist_ok=True)
    return whole, read


@pytest.mark.parametrize("stage", ["configurations", "train", "entropy", "summary"])
def test_a_stage_reads_nothing_that_it_does_not_declare(made, stage):
    names, known = declared(stage)
    opened, sections = made[1][stage]
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
        for out in STAGES[stage].get("outs") or STAGES[stage]["metrics"]
    ]
    written = [text.replace("${item.run}", RUN).replace("${item.seed}", str(SEED)) for text in outs]
    odd = [name for name in odd if not any(name.startswith(out.rpartition("/")[0]) for out in written)]
    assert odd == []
    # Which runs and seeds there are is in the names of the stages; where a run is computed does not change its result.
    assert set(sections) - {"runs", "seeds", "scale"} <= set(known), sorted(set(sections) - set(known))


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
    for stage in ("two_party_ops", "two_party_rows"):
        assert {f"runs.{run}.architecture" for run in active} <= set(STAGES[stage]["params"])
