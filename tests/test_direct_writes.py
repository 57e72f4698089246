"""Every result file is written beside its place and renamed: no other line of the source may write into one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from aero.pipeline import ROOT

FOLDERS = ("aero", "stages", "benchmarks", "reports")
WRITERS = {"write_text", "write_bytes", "savefig", "to_csv", "to_json", "save_file", "tofile", "savez", "save"}
# What writes all the same: file and function, and why that is no result half-written.
ALLOWED = {
    ("aero/training/log.py", "_write"): "the writer: to a temporary name, then renamed",
    ("aero/two_party/cost/ledger.py", "write"): "to a temporary name, then renamed",
    ("aero/training/log.py", "begin"): "the log of a training that runs, log.unfinished.csv",
    ("aero/records.py", "lock"): "an empty file to hold a lock on",
    ("aero/training/many.py", "do"): "what a training printed",
    ("aero/training/run.py", "train_run"): "to a temporary name, renamed by write_together",
    ("aero/cli/entropy.py", "_draw"): "into memory, then write_together",
    ("stages/parallel_context_train.py", "main"): "to a temporary name, renamed by write_together",
    ("aero/checkpoint.py", "write_tensors"): "to a temporary name, then renamed",
    ("aero/whole_dvc.py", "whole"): "to a temporary name, then renamed",
    ("aero/plain_safetensors.py", "save_file"): "called by write_tensors alone",
    ("aero/two_party/cost/counts.py", "_main"): "to a temporary name, then renamed",
    ("aero/two_party/serving/tls.py", "make_certificates"): "never over a file; all are taken away if one fails",
    ("aero/data/encode.py", "write_tokens"): "into the folder that is built beside, then renamed",
    ("aero/data/encode.py", "_write_split"): "into the folder that is built beside, then renamed",
    ("aero/data/tokenizer.py", "save"): "to a temporary name, then renamed",
    ("aero/data/languini_vocabulary.py", "save"): "to a temporary name, then renamed",
    ("aero/cli/ask.py", "_text_of"): "into a temporary folder",
    ("aero/cli/ask.py", "_load_text"): "into a temporary folder",
    ("aero/parallel_context/cost.py", "_reset_peak"): "to the kernel, in /proc",
    ("aero/report/render.py", "beside"): "into a temporary folder",
    ("aero/report/render.py", "compose_pdf"): "into a temporary folder",
    ("aero/report/drawing.py", "svg"): "into memory",
    ("aero/cli/pareto.py", "pareto"): "into memory",
    ("benchmarks/faults.py", "__init__"): "the copy of the project that is struck",
    ("benchmarks/faults.py", "fill_disk"): "what fills the disk",
    ("benchmarks/forensics_party.py", "main"): "standard error",
    ("benchmarks/long_server.py", "made"): "into a temporary folder",
    ("benchmarks/long_server.py", "served"): "into a temporary folder",
    ("aero/training/archive.py", "add"): "a line at the end with its checksum; half a line is cut off when it goes on",
    ("benchmarks/fuzz_target.py", "put"): "into a temporary folder",
    ("benchmarks/pipeline.py", "clone"): "into a temporary folder",
    ("benchmarks/pipeline.py", "stand_in"): "into a temporary folder",
    ("benchmarks/pipeline.py", "touched"): "into a temporary folder",
    ("benchmarks/pipeline.py", "main"): "by `timing.save`, which uses write_text",
    ("benchmarks/regularized_step.py", "main"): "by `timing.save`, which uses write_text",
    ("benchmarks/tokenizing.py", "main"): "by `timing.save`, which uses write_text",
    ("benchmarks/tokenizing.py", "measure"): "into a temporary folder",
    ("benchmarks/training_step.py", "main"): "by `timing.save`, which uses write_text",
    ("benchmarks/two_party.py", "main"): "by `timing.save`, which uses write_text",
    ("benchmarks/growth_layers.py", "main"): "by `timing.save`, which uses write_text",
    ("benchmarks/timing.py", "forget_peak"): "to the kernel, in /proc",
    ("benchmarks/timing.py", "serve"): "to a pipe",
    ("benchmarks/scale_search.py", "main"): "a log of trials, a whole row at a time",
}


def direct_writes(path: Path) -> Iterator[tuple[str, int]]:
    """(function, line) of every call in the file that writes to a path, other than through aero's own writers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _writes(node):
            around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
            yield (max(around, key=lambda f: f.lineno).name if around else "<module>"), node.lineno


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("open", "fdopen"):
        # open(path, mode), os.fdopen(descriptor, mode); path.open(mode)
        of_path = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in ("os", "io", "gzip")
        given = call.args[0 if of_path else 1 :][:1] + [k.value for k in call.keywords if k.arg == "mode"]
        modes = [mode.value for mode in given if isinstance(mode, ast.Constant)]
        return any(set("wax+") & set(str(mode)) for mode in modes)
    if isinstance(call.func, ast.Name):
        return name in WRITERS - {"write_text"}  # write_text(path, text) is aero's own
    return name in WRITERS or (name == "dump" and ast.unparse(call.func).startswith(("json.", "yaml.")))


def test_no_result_is_written_in_its_place():
    wrong = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for function, line in direct_writes(path):
                if (name, function) not in ALLOWED:
                    wrong.append(f"{name}:{line}: {function} writes into a file; use aero.training.log.write_text")
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_exception_is_one():
    found = {
        (path.relative_to(ROOT).as_posix(), function)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for function, _ in direct_writes(path)
    }
    assert not set(ALLOWED) - found, "these write no more; take them off the list"


@pytest.mark.parametrize(
    ("line", "writes"),
    [
        ("open(p, 'w')", True),
        ("open(p, mode='ab')", True),
        ("p.open('r+')", True),
        ("open(p, encoding='utf-8')", False),
        ("p.open(encoding='utf-8', newline='')", False),
        ("p.write_text(t)", True),
        ("write_text(p, t)", False),
        ("figure.savefig(p)", True),
        ("json.dump(v, f)", True),
        ("json.dumps(v)", False),
        ("np.save(p, a)", True),
        ("frame.to_csv(p)", True),
        ("os.fdopen(d, 'wb')", True),
    ],
)
def test_what_counts_as_writing(tmp_path, line, writes):
    (tmp_path / "one.py").write_text(f"def f():\n    {line}\n")
    assert list(direct_writes(tmp_path / "one.py")) == ([("f", 2)] if writes else [])


def test_results_persist_until_their_stage_replaces_them():
    """DVC would delete the results of a stage before it runs it, and a kill would leave none."""
    import yaml

    rebuilt = {"tokenize", "tokenize_languini", "configurations"}  # what is made from the corpus again, and no result
    wrong = []
    for name in ("dvc.yaml", "catalogue/dvc.yaml"):
        for stage, entry in yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["stages"].items():
            for out in (out for kind in ("outs", "plots", "metrics") for out in entry.get(kind, [])):
                if stage not in rebuilt and not (isinstance(out, dict) and next(iter(out.values())).get("persist")):
                    wrong.append(f"{name}, {stage}: {out}")
    assert not wrong, "\n" + "\n".join(wrong)
