"""The house keeps its order: imports point one way, heavy packages load only where they are used, files stay short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aero.pipeline import ROOT, imported_modules

CORE = {"architecture", "attention", "entropy", "families", "flops", "model", "row_entropy"}
# What a part of `aero` may import of the others. `report` and the commands may read everything.
ALLOWED = {part: CORE for part in CORE} | {
    "errors": set(),
    "provenance": set(),
    "landscape": set(),
    "pipeline": set(),
    "whole_dvc": {"errors", "parameters"},
    "catalogue": CORE | {"errors", "parameters", "result_checks"},
    "plain_safetensors": set(),
    "unchecked": set(),
    "result_checks": {"errors"},
    "checkpoint": CORE | {"plain_safetensors"},
    "given_attentions": set(),
    "padding": set(),
    "huggingface": CORE | {"given_attentions", "padding"},
    "entropy_regularizer": CORE | {"huggingface", "padding"},
    "given_models": {"errors"},
    "locks": {"errors"},
    "sections": {"unchecked"},
    "parameters": CORE | {"errors", "sections"},
    "costed": {"parameters"},
    "data": {"errors"},
    "published": {"errors"},
    "sensitivity": CORE | {"errors", "provenance"},
    "training": CORE
    | {"checkpoint", "data", "errors", "locks", "parameters", "pipeline", "provenance", "result_checks"},
    "parallel_context": CORE | {"checkpoint", "data", "errors", "parameters", "provenance", "sections", "training"},
    "two_party": CORE | {"checkpoint", "errors", "pipeline", "provenance"},
}
ANYTHING = {"report", "cli", "run_list", "asking", "entropy_command"}
HEAVY = (
    "datasets dvc jax matplotlib nbconvert numpy.f2py pandas pyarrow pydantic spu tiktoken tokenizers transformers yaml"
)


def sources(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "aero").with_suffix("").parts[0]


def test_imports_point_one_way():
    wrong = []
    for path in sources("aero"):
        part = part_of(path)
        if part == "__init__":
            continue
        for name in imported_modules(path, type_checking=True):
            top, *rest = name.split(".")
            if top == "stages":
                wrong.append(
                    f"{path.relative_to(ROOT)} imports {name}: stages use the library, not the other way round"
                )
            if top != "aero" or not rest or part in ANYTHING or rest[0] == part or rest[0].startswith("__"):
                continue
            if part not in ALLOWED:
                wrong.append(f"{path.relative_to(ROOT)}: say in this test what the new part {part!r} may import")
            elif rest[0] not in ALLOWED[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}; {part} may read {sorted(ALLOWED[part])}")
    assert not wrong, "\n" + "\n".join(sorted(set(wrong)))


def test_no_stage_hides_a_module_of_python_when_it_is_run_as_a_file():
    """`python stages/NAME.py` has the folder first in its path; `python -m stages.NAME` is what the documents say."""
    assert not {path.stem for path in (ROOT / "stages").glob("*.py")} & sys.stdlib_module_names
    command = [sys.executable, ROOT / "stages/tokenize_corpus.py", "--help"]
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stderr == b""


def test_stages_do_not_import_each_other():
    wrong = [
        f"{path.name} imports {name}"
        for path in sources("stages")
        for name in imported_modules(path, type_checking=True)
        if name.split(".")[0] == "stages"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "also"),
    [
        ("aero.model", ""),
        ("aero.entropy", ""),
        ("aero.checkpoint", ""),
        ("aero.data.corpora", ""),
        ("aero.data.local_folder", ""),
        ("aero.data.codeparrot", ""),
        ("aero.data.docstrings", ""),
        ("aero.data.languini", ""),
        ("aero.data.languini_vocabulary", ""),
        ("aero.data.batches", ""),
        ("aero.data.encode", "tiktoken"),
    ],
)
def test_heavy_packages_load_only_where_they_are_used(module, also):
    unwanted = set(HEAVY.split()) - set(also.split())
    code = f"import sys, {module}; print(*sorted({unwanted!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "", f"import {module} loads {run.stdout.strip()}"


def test_families_and_architectures_are_listed_without_torch():
    code = "import sys, aero.families, aero.architecture, aero.flops; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "False", run.stderr


def test_help_waits_for_no_package():
    unwanted = {*HEAVY.split(), "numpy", "torch"}
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print(*sorted({unwanted!r} & set(sys.modules)), file=sys.stderr))\n"
        "from aero.cli import main\n"
        "main(['--help'])"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and "entropy" in run.stdout
    assert run.stderr.strip() == "", f"aero --help loads {run.stderr.strip()}"


def test_files_stay_short_and_have_telling_names():
    for path in sources("aero") + sources("stages") + sources("tests"):
        length = len(path.read_text(encoding="utf-8").splitlines())
        assert length < 600, f"{path.relative_to(ROOT)} has {length} lines; split it by what it does"
        assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc"}, path
