"""What this source may not contain, and what its installation is made of.

No file or peer is unpickled, evaluated or handed to a shell, weights come from safetensors alone, every package is
pinned. The scan reads the syntax tree, so a comment or a string is no finding; each rule has an example that it finds.
"""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from aero.config import Name, Parameters
from aero.records import ROOT

SOURCES = sorted(path for part in ("aero", "stages", "benchmarks") for path in (ROOT / part).rglob("*.py"))
SOURCES += sorted((ROOT / "reports").glob("*.py"))
UNPICKLING = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "jsonpickle"}
EVALUATING = {"eval", "exec", "compile", "__import__", "input"}
SHELLS = {"sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish", "busybox", "cmd", "cmd.exe", "powershell", "pwsh"}
FORBIDDEN = {
    *(f"os.{name}" for name in ("system", "popen")),
    *(f"subprocess.{name}" for name in ("getoutput", "getstatusoutput")),
    "asyncio.create_subprocess_shell",
    "pty.spawn",
    *(f"torch.{name}" for name in ("load", "jit.load", "hub.load", "package.PackageImporter")),
    *(f"yaml.{name}{many}" for name in ("load", "unsafe_load", "full_load") for many in ("", "_all")),
    *(f"builtins.{name}" for name in ("eval", "exec")),
    "tempfile.mktemp",  # a name that another process may take
    "ssl.CERT_NONE",
}
"""Neither called nor imported nor handed on, whatever name it is given here."""
USUAL = {"np": "numpy"}
"""What examples take for imported."""
# multiprocessing pickles between a process and the one it started; that pipe is nobody else's (SECURITY.md).
MAY_PICKLE = {"aero/two_party/runtime/parties.py"}
# submitit pickles a job into the folder of the one who submits it and unpickles its result from there (SECURITY.md).
MAY_SUBMIT = {"aero/training/many.py"}
# Names of modules that these import are written out in the source.
MAY_IMPORT_BY_NAME = {"aero/entropy.py", "aero/training/tracker.py"}


def findings(source: str, name: str = "aero/some.py") -> list[str]:
    """What a file may not contain, one line each."""
    return [f"{name}:{line}: {what}" for line, what in _findings(ast.parse(source), name)]


def _findings(tree: ast.AST, name: str) -> Iterator[tuple[int, str]]:
    imported, unpickling = dict(USUAL), UNPICKLING | (set() if name in MAY_SUBMIT else {"submitit"})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if set(alias.name.split(".")) & unpickling:
                    yield node.lineno, f"imports {alias.name}"
                imported[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module or ''}.{alias.name}"
                if whole in FORBIDDEN:
                    yield node.lineno, f"imports {whole}"
                elif set(whole.split(".")) & unpickling or ("pickle" in alias.name.lower() and name not in MAY_PICKLE):
                    yield node.lineno, f"imports {whole}"
                else:
                    imported[alias.asname or alias.name] = whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and "pickle" in node.attr.lower() and name not in MAY_PICKLE:
            if node.attr != "allow_pickle":
                yield node.lineno, f"uses {node.attr}"
        if isinstance(node, ast.Attribute | ast.Name) and (whole := _whole(node, imported)) in FORBIDDEN:
            yield node.lineno, f"uses {whole}"
        if isinstance(node, ast.List | ast.Tuple):
            said = [part.value if isinstance(part, ast.Constant) else None for part in node.elts]
            if any(
                str(one).rpartition("/")[2] in SHELLS and str(other).lower() in ("-c", "/c", "-lc", "-command")
                for one, other in itertools.pairwise(said)
            ):
                yield node.lineno, "gives a string to a shell"
        if isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _call(node, _whole(node.func, imported), name))


def _call(node: ast.Call, called: str, name: str) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    *_, owner, last = ["", *called.split(".")]
    if called.removeprefix("builtins.") in EVALUATING:
        yield f"calls {called}"
    if "shell" in given and not _is(given["shell"], False):
        yield "gives a string to a shell"
    if called.startswith("subprocess.") and last in ("run", "Popen", "call", "check_call", "check_output"):
        if isinstance(node.args[0] if node.args else given.get("args"), ast.Constant | ast.JoinedStr | ast.BinOp):
            yield "starts a process by one string"
    if called in ("numpy.load", "numpy.memmap.load") and not _is(given.get("allow_pickle"), False):
        yield f"calls {called} without allow_pickle=False"
    if last == "from_pretrained":
        # Left out, trust_remote_code is asked for on the terminal, where a yes runs the model's own code.
        if not _is(given.get("trust_remote_code"), False) and (
            owner.startswith("Auto") or "trust_remote_code" in given
        ):
            yield "trusts remote code, or asks"
        elif not re.search("Tokenizer|Config|Processor", owner) and not _is(given.get("use_safetensors"), True):
            yield "loads a model without use_safetensors=True"
    elif "trust_remote_code" in given and not _is(given["trust_remote_code"], False):
        yield "trusts remote code"
    if called.endswith("_create_unverified_context") or _is(given.get("verify"), False):
        yield "leaves a certificate unchecked"
    if called == "importlib.import_module" and name not in MAY_IMPORT_BY_NAME:
        if not isinstance(node.args[0] if node.args else given.get("name"), ast.Constant):
            yield "imports a module by a name that is not written out"


def _whole(node: ast.AST, imported: dict[str, str]) -> str:
    """A name as it is written, its first part as it was imported: `sp.run` is subprocess.run after `as sp`."""
    first, dot, rest = ast.unparse(node).partition(".")
    return imported.get(first, first) + dot + rest


def _is(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import submitit",
        "from submitit.helpers import DelayedSubmission",
        "from multiprocessing import reduction as r\nr.ForkingPickler.dumps(1)",
        "import os\nos.system(name)",
        "eval(text)",
        "exec(open(path).read())",
        "__import__(name)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(f'train {run}')",
        "subprocess.Popen('a ' + name)",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
        "AutoModelForCausalLM.from_pretrained(path)",
        "AutoTokenizer.from_pretrained(path, trust_remote_code=True)",
        "tempfile.mktemp()",
        "ssl._create_unverified_context()",
        "requests.get(url, verify=False)",
        "importlib.import_module(params['module'])",
        "importlib.import_module(name=module)",
        "from torch import load\nload(p)",
        "from torch import load as read_weights",
        "import torch as t\nt.load(p)",
        "reader = torch.load",
        "from os import system",
        "from yaml import unsafe_load",
        "import yaml\nyaml.full_load_all(text)",
        "from numpy import load\nload(p)",
        "from multiprocessing.reduction import ForkingPickler",
        "LlamaForCausalLM.from_pretrained(p)",
        "transformers.AutoModel.from_pretrained(p, use_safetensors=True)",
        "AutoTokenizer.from_pretrained(p)",
        "AutoModel.from_pretrained(p, use_safetensors=True, trust_remote_code=chosen.trust)",
        "AutoModel.from_config(c, trust_remote_code=True)",
        "subprocess.run(['sh', '-c', x])",
        "command = ['env', '/bin/bash', '-c', x]",
        "from subprocess import run as start\nstart('a ' + name)",
        "subprocess.run(args=f'train {run}')",
        "context.verify_mode = ssl.CERT_NONE",
    ],
)
def test_the_scan_finds_what_it_is_for(source):
    assert len(findings(source)) == 1, findings(source)


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "# eval(x)",
        "re.compile(x)",
        "from re import compile\ncompile(x)",
        "np.load(p, allow_pickle=False)",
        "subprocess.run(args=x)",
        "subprocess.run([*command, '-c'])",
        "from aero.config import load\nload()",
        "AutoModel.from_pretrained(p, use_safetensors=True, trust_remote_code=False)",
    ],
)
def test_the_scan_finds_nothing_else(source):
    assert findings(source) == []


def test_nothing_of_it_stands_in_the_source():
    assert len(SOURCES) > 150
    found = [line for path in SOURCES for line in findings(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())]
    assert found == []


@pytest.mark.parametrize("file", ["dvc.yaml", "catalogue/dvc.yaml"])
def test_only_checked_names_and_numbers_reach_a_shell(file):
    """DVC gives a command to a shell. What it puts in there of params.yaml is a name of a run or corpus, or a seed."""
    known = {"item.run", "item.seed", "families.languini-gpt2.corpus"}
    for name, stage in yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["stages"].items():
        commands = [stage["cmd"]] if isinstance(stage["cmd"], str) else stage["cmd"]
        for command in commands:
            assert set(re.findall(r"\$\{([^}]*)\}", command)) <= known, name
            assert re.fullmatch(r"python -m stages\.\w+( --?[\w-]+| \$\{[\w.-]+\})*", command), name


@pytest.mark.parametrize("name", ["a; touch owned", "$(touch owned)", "a b", "../up", "a\nb", "", "-rf", "`id`", "A|b"])
def test_no_name_of_a_run_says_anything_to_a_shell(name):
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["runs"][name] = values["runs"]["sm"]
    values["more_runs"].append(name)
    with pytest.raises(ValueError, match=r"runs\."):
        Parameters.model_validate(values)


def test_names_are_checked_by_one_rule():
    fields = Parameters.model_fields
    assert all(Name in fields[field].annotation.__args__ for field in ("runs", "scales"))


LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_of_the_lock_has_one_version():
    assert len(LOCK) > 100
    assert [line for line in LOCK if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line)] == []
    names = [plain(line.split("==")[0]) for line in LOCK]
    assert len(set(names)) == len(names)


def test_the_lock_has_the_versions_that_the_project_names():
    """All extras but those that are left out of it on purpose (docs/decisions.md)."""
    locked = {plain(line.split("==")[0]): line.split("==")[1] for line in LOCK}
    left_out = {"tensorboard", "wandb", "fuzz"}
    extras = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in left_out}
    for wanted in [*PROJECT["dependencies"], *(one for some in extras.values() for one in some)]:
        name, _, version = wanted.partition("==")
        if version:
            assert locked[plain(name)] == version, wanted
        elif not wanted.startswith("aero-reproduced["):
            assert plain(re.split(r"[<>=]", wanted)[0]) in locked, wanted
    for name in left_out:
        assert all("==" in wanted for wanted in PROJECT["optional-dependencies"][name])


def test_nothing_is_installed_from_elsewhere():
    """Neither an address nor a second index, in the lock, the project or the Makefile."""
    for path in ("requirements.lock", "pyproject.toml", "Makefile"):
        text = Path(ROOT / path).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|git\+|http://|--trusted-host|curl |wget ", text), path
