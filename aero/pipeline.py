"""What a pipeline stage really reads of this source: DVC does not see imports (dvc#9195), so this does.

A stage of `dvc.yaml` must name the source files its module imports, directly or through others: one it does not name
can change without the stage running again, one too many makes it run for nothing. `dependency_differences` says both.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("aero", "stages")

HASHED_CODE = {
    "runs/configurations/": ("aero.training.run",),
    "runs/settings/catalogue.json": ("stages.train", "stages.entropy"),
}
"""{file, or all in a folder, that the stage `configurations` writes: modules with the hash of whose code it holds}."""

_STAGE_COMMAND = re.compile(r"-m\s+(stages\.\w+)")


def import_closure(module: str, root: Path = ROOT) -> set[Path]:
    """Source files of `PACKAGES` that importing and running `module` can read, itself included, relative to `root`.

    module: a dotted name ("stages.train") or the path of a script ("reports/aero.py"). Imports within functions count,
    those under `if TYPE_CHECKING` do not. An `__init__.py` of a package on the way counts only if it holds more than a
    docstring and dunder constants, since nothing in such a file can change a result.
    Raises ValueError if the module, or one of this source it imports, does not exist.
    """
    start = root / module if module.endswith(".py") else _source(module, root)
    if start is None or not start.is_file():
        raise ValueError(f"module {module} does not exist under {root}")
    found: set[Path] = set()
    waiting = [start]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        waiting += _imported_files(path, root)
    return {path.relative_to(root) for path in found if not _is_inert(path)}


def dependency_differences(pipeline: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Where the `deps` of the stages in `pipeline` (the content of dvc.yaml) differ from what their modules import.

    One line a difference, naming stage and file; empty if there is none. A folder among the deps stands for all files
    below it. A script outside `PACKAGES` among the deps (a report's source) is read by its stage, so its imports count
    too. A stage that depends on a file of `HASHED_CODE` depends on the code named there through it, and one that writes
    it reads that code. Data files are not looked at, but a file of `PACKAGES` that does not exist is told.
    """
    differences = []
    for name, stage in pipeline["stages"].items():
        stage = stage.get("do", stage)
        commands = stage["cmd"] if isinstance(stage["cmd"], str) else "\n".join(stage["cmd"])
        deps, outs = (
            [next(iter(path)) if isinstance(path, dict) else path for path in stage.get(kind, [])]
            for kind in ("deps", "outs")
        )
        ours = {Path(dep) for dep in deps if Path(dep).parts[0] in PACKAGES}
        scripts = [dep for dep in deps if dep.endswith(".py") and Path(dep) not in ours]
        needed = set().union(
            *(import_closure(module, root) for module in [*_STAGE_COMMAND.findall(commands), *scripts])
        ) - {Path(script) for script in scripts}
        for place, modules in HASHED_CODE.items():
            if any(dep.startswith(place) for dep in deps):
                needed = needed.difference(*(import_closure(module, root) for module in modules))
            if any(place.startswith(out) for out in outs):
                needed = needed.union(*(import_closure(module, root) for module in modules))
        for path in sorted(ours):
            if not (root / path).exists():
                differences.append(f"stage {name}: {path} is among its deps and does not exist")
            elif path.suffix == ".py" and path not in needed:
                differences.append(f"stage {name}: {path} is among its deps and nothing it runs imports it")
            elif (root / path).is_dir() and not any(path in file.parents for file in needed):
                differences.append(f"stage {name}: {path}/ is among its deps and nothing it runs imports from it")
        for path in sorted(needed):
            if path not in ours and not ours.intersection(path.parents):
                differences.append(f"stage {name}: {path} is imported and missing from its deps")
    return differences


def imported_modules(path: Path, root: Path = ROOT, type_checking: bool = False) -> set[str]:
    """Dotted names imported anywhere in the file: `from a import b` gives both `a` and `a.b`.

    type_checking: whether to count imports that only type checkers see.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    package = path.relative_to(root).with_suffix("").parts[:-1]
    names: set[str] = set()
    for node in _nodes(tree, type_checking):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*outer, *([node.module] if node.module else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
    return names


def _nodes(tree: ast.AST, type_checking: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if not type_checking and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield other
                yield from _nodes(other, type_checking)
            continue
        yield node
        yield from _nodes(node, type_checking)


def _imported_files(path: Path, root: Path) -> Iterator[Path]:
    for name in imported_modules(path, root):
        parts = name.split(".")
        if parts[0] not in PACKAGES:
            continue
        source = _source(name, root)
        if source is None and _source(".".join(parts[:-1]), root) is None:
            raise ValueError(f"{path.relative_to(root)} imports {name}, which does not exist")
        if source is not None:
            yield source
        for length in range(1, len(parts)):
            package = root.joinpath(*parts[:length], "__init__.py")
            if package.is_file():
                yield package


def _source(name: str, root: Path) -> Path | None:
    """The file of a dotted module name, or None: it may be a name within its module."""
    place = root.joinpath(*name.split("."))
    for candidate in (place.with_name(place.name + ".py"), place / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _is_inert(path: Path) -> bool:
    if path.name != "__init__.py":
        return False
    return all(
        (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        or (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and all(isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets)
        )
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )
