"""dvc.yaml against the imports of its stages, and the reading of imports itself."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import networkx
import pytest
import yaml
from dvc.repo import Repo

from aero import published
from aero.config import load
from aero.pipeline import HASHED_CODE, ROOT, dependency_differences, import_closure, imported_modules
from stages.configurations import SETTINGS

FILES = ("dvc.yaml", "catalogue/dvc.yaml")


def pipeline(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture
def tree(tmp_path):
    files = {
        "aero/__init__.py": '"""Doc."""\n__version__ = "1"\n',
        "aero/core.py": "import os, json as j\nimport typing\nif typing.TYPE_CHECKING:\n    from aero import typed\n",
        "aero/typed.py": "",
        "aero/lazy.py": "x = 1\n",
        "aero/unused.py": "",
        "aero/sub/__init__.py": "from .inner import thing\n",
        "aero/sub/inner.py": "from ..core import a_name\nthing = 1\n",
        "aero/sub/other.py": "def f():\n    from aero import lazy\n    from aero.sub.inner import thing\n",
        "stages/__init__.py": "",
        "stages/first.py": "import aero.core\nimport numpy\n",
        "stages/second.py": "from aero.sub import other\n",
        "report/page.py": "from aero.sub.inner import thing\n",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def names(paths):
    return sorted(map(str, paths))


SECOND = ["aero/core.py", "aero/lazy.py", "aero/sub/__init__.py", "aero/sub/inner.py", "aero/sub/other.py"]


def test_closure_by_hand(tree):
    assert names(import_closure("stages.first", tree)) == ["aero/core.py", "stages/first.py"]
    assert names(import_closure("stages.second", tree)) == [*SECOND, "stages/second.py"]
    assert names(import_closure("report/page.py", tree)) == [
        "aero/core.py",
        "aero/sub/__init__.py",
        "aero/sub/inner.py",
        "report/page.py",
    ]


def test_imported_modules(tree):
    assert imported_modules(tree / "aero/sub/inner.py", tree) == {"aero.core", "aero.core.a_name"}
    assert "aero.typed" not in imported_modules(tree / "aero/core.py", tree)
    assert "aero.typed" in imported_modules(tree / "aero/core.py", tree, type_checking=True)


def test_missing_modules_are_told(tree):
    with pytest.raises(ValueError, match="stages.none does not exist"):
        import_closure("stages.none", tree)
    (tree / "stages/first.py").write_text("from aero.gone.far import x\n")
    with pytest.raises(ValueError, match="stages/first.py imports aero.gone.far"):
        import_closure("stages.first", tree)


def stage(cmd, *deps):
    return {"cmd": cmd, "deps": list(deps)}


def test_differences_name_stage_and_file(tree):
    first = stage("python -m stages.first", "stages/first.py", "aero/core.py", "runs/tokens")
    assert dependency_differences({"stages": {"a": first}}, tree) == []
    first["deps"].remove("aero/core.py")
    first["deps"] += ["aero/unused.py", "aero/gone.py", "aero/sub"]
    assert dependency_differences({"stages": {"a": first}}, tree) == [
        "stage a: aero/gone.py is among its deps and does not exist",
        "stage a: aero/sub/ is among its deps and nothing it runs imports from it",
        "stage a: aero/unused.py is among its deps and nothing it runs imports it",
        "stage a: aero/core.py is imported and missing from its deps",
    ]


def test_folders_matrix_commands_and_scripts(tree):
    second = {"matrix": {"run": ["x"]}, **stage("python -m stages.second ${item.run}", "stages/second.py", "aero")}
    looped = {"foreach": ["x"], "do": stage(["true", "python -m stages.second"], "stages/second.py", *SECOND)}
    page = stage("python -m stages.first", "stages/first.py", "aero/core.py", "report/page.py")
    assert dependency_differences({"stages": {"a": second, "b": looped}}, tree) == []
    assert dependency_differences({"stages": {"page": page}}, tree) == [
        "stage page: aero/sub/__init__.py is imported and missing from its deps",
        "stage page: aero/sub/inner.py is imported and missing from its deps",
    ]


def test_a_configuration_stands_for_the_code_it_names(tree):
    (tree / "aero/training").mkdir()
    (tree / "aero/training/run.py").write_text("from aero.sub import other\n")
    (tree / "stages/train.py").write_text("import aero.training.run\nimport aero.unused\n")
    (tree / "stages/entropy.py").write_text("import aero.core\n")
    configured = stage("python -m stages.train", "stages/train.py", "runs/configurations/${item.run}.json")
    assert dependency_differences({"stages": {"c": configured}}, tree) == [
        "stage c: aero/unused.py is imported and missing from its deps"
    ]
    both = stage(["python -m stages.train", "python -m stages.entropy"], "runs/settings/catalogue.json")
    assert dependency_differences({"stages": {"d": both}}, tree) == []
    both["deps"] = ["runs/settings/entropy.json"]
    assert len(dependency_differences({"stages": {"d": both}}, tree)) == 9
    (tree / "stages/configurations.py").write_text("")
    writer = stage("python -m stages.configurations", "stages/configurations.py") | {"outs": ["runs/settings"]}
    assert len(dependency_differences({"stages": {"e": writer}}, tree)) == 9
    writer["outs"] = ["runs/tokens"]
    assert dependency_differences({"stages": {"e": writer}}, tree) == []


def test_the_settings_of_the_catalogue_hold_the_hash_of_its_code():
    """Of every file that its two stages read, but for that of the parameters, whose values are in the settings."""
    held = SETTINGS["catalogue"](load(ROOT / "params.yaml"))["code_sha256"]
    assert tuple(held) == HASHED_CODE["runs/settings/catalogue.json"]
    for module, found in held.items():
        digest = hashlib.sha256()
        for path in sorted(import_closure(module)):
            if path.name != "parameters.py":
                digest.update(f"{path}\n".encode() + (ROOT / path).read_bytes())
        assert found == digest.hexdigest(), module
        assert Path("stages", module.removeprefix("stages.")).with_suffix(".py") in import_closure(module)


def test_the_files_of_the_pipeline_share_the_trainings_without_a_gap():
    """Every (run, seed) of the parameters is a stage of one file, with its entropy, and of one file only."""
    parameters = load(ROOT / "params.yaml")
    lists = {f"${{{name}}}": getattr(parameters, name) for name in ("active_runs", "more_runs", "compared_runs")}
    lists |= {f"${{{name}}}": getattr(parameters, name) for name in ("seeds", "more_seeds")}
    for module in ("stages.train", "stages.entropy"):
        made = [
            (run, seed)
            for stages in (pipeline(name)["stages"] for name in FILES)
            for stage in stages.values()
            if module in str(stage["cmd"])
            for run in lists[stage["matrix"]["run"]]
            for seed in lists[stage["matrix"]["seed"]]
        ]
        assert sorted(made) == sorted(parameters.trainings())


def test_plain_dvc_repro_reaches_every_training():
    """It asks for the stages of dvc.yaml and what those need: the report needs all of runs/."""
    with Repo(ROOT) as repo:
        graph = repo.index.graph
        asked = {stage for stage in graph if Path(stage.path) == ROOT / "dvc.yaml"}
        reached = asked.union(*(networkx.descendants(graph, stage) for stage in asked))
        commands = "\n".join(str(stage.cmd) for stage in reached)
    made = re.findall(r"stages\.train (\S+) --seed (\d+)", commands)
    assert sorted((run, int(seed)) for run, seed in made) == sorted(load(ROOT / "params.yaml").trainings())


def test_the_default_file_holds_tables_2_and_4_alone():
    stages = pipeline("dvc.yaml")["stages"]
    assert stages["train"]["matrix"] == stages["entropy"]["matrix"] == {"run": "${active_runs}", "seed": "${seeds}"}
    printed = {row.run for number in ("2", "4") for row in published.load("aero").tables[number].rows}
    assert set(load(ROOT / "params.yaml").active_runs) == printed
    # `dvc repro -s dvc.yaml` runs the stages in the order of the file.
    order = ["tokenize", "tokenize_languini", "configurations", "train", "entropy", "two_party_ops", "report"]
    assert [name for name in stages if name in order] == order and list(stages)[-1] == "report"


def test_every_corpus_that_a_run_names_is_tokenized():
    parameters = yaml.safe_load((ROOT / "params.yaml").read_text())
    named = {run.get("corpus") for run in parameters["runs"].values()}
    named |= {family.get("corpus") for name, family in parameters["families"].items() if name != "languini-gpt2"}
    assert named == {None}, "dvc.yaml tokenizes `corpus` and the corpus of families.languini-gpt2 only"


@pytest.mark.parametrize("name", FILES)
def test_every_stage_names_what_it_imports(name):
    assert pipeline(name)["stages"]
    differences = dependency_differences(pipeline(name))
    assert not differences, "\n" + "\n".join(differences)


def test_closures_of_the_real_stages_keep_to_their_part():
    """Training reads token files; it must not run again because the loader of one corpus changed."""
    read = import_closure("stages.train")
    assert Path("aero/data/tokens.py") in read and Path("aero/model.py") in read
    for part in ("corpora", "codeparrot", "languini", "docstrings", "local_folder", "tokenizer", "encode"):
        assert Path(f"aero/data/{part}.py") not in read
