"""Imports point one way and form no cycle, functions stay short, nothing is unpickled or evaluated, and the commands
that the report names exist."""

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "aero").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}
BASE = {"architecture", "attention", "attention_kernels", "config", "entropy", "errors", "families", "flops"}
BASE |= {"entropy_statistics", "model", "records", "row_entropy", "schema", "weight_transforms"}
ALLOWED = {
    "data": BASE,
    "two_party": BASE | {"checkpoint"},
    "sensitivity": BASE,
    "training": BASE | {"checkpoint", "data"},
    "published": BASE,
}
"""What a part of `aero` may import of the others, beside itself."""
FORBIDDEN = {"pickle", "cPickle", "dill", "marshal", "shelve", "joblib", "cloudpickle"}


def imports(name):
    """Modules of `aero` that a module imports, also inside functions or for types only."""
    found = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for full in names:
            while full and full not in FILES:
                full = full.rpartition(".")[0]
            while full and not f"{name}.".startswith(f"{full}."):  # importing a module imports its packages first
                found.add(full)
                full = full.rpartition(".")[0]
    return found


def test_no_import_cycles():
    left = {name: imports(name) for name in FILES}
    while leaves := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in leaves:
            del left[name]
    assert not left, f"import cycle among {sorted(left)}"


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    for name in FILES:
        if name.split(".")[1:2] == [part]:
            others = {full.split(".")[1] for full in imports(name) if "." in full} - {part}
            assert others <= ALLOWED[part], f"{name} imports {sorted(others - ALLOWED[part])}"


def test_functions_stay_short():
    for folder in ("aero", "stages", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno - node.lineno < 80, f"{path.relative_to(ROOT)}: {node.name}"


def test_nothing_is_unpickled_or_evaluated():
    for folder in ("aero", "stages"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    assert not FORBIDDEN & {alias.name.split(".")[0] for alias in node.names}, path
                elif isinstance(node, ast.ImportFrom):
                    assert (node.module or "").split(".")[0] not in FORBIDDEN, path
                elif isinstance(node, ast.Call):
                    called = ast.unparse(node.func)
                    assert called not in {"eval", "exec", "torch.load", "os.system"}, path
                    shell = [word for word in node.keywords if word.arg == "shell"]
                    assert not any(ast.unparse(word.value) == "True" for word in shell), path


def test_commands_that_the_report_names_exist():
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "reports").glob("*.py")))
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    modules = {Path(*name.split(".")) for name in re.findall(r"python -m ((?:stages|benchmarks)\.\w+)", text)}
    targets = set(re.findall(r"[\"`]make ([a-z]+)", text))
    assert len(modules) > 5 and len(targets) > 2
    assert not [module for module in modules if not (ROOT / module).with_suffix(".py").exists()]
    assert set(re.findall(r"dvc repro -s (\w+)", text)) <= set(stages)
    assert targets <= set(re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
