"""How often a program computes each of its operations, at any depth and context, without tracing it every time.

Tracing a program (`aero.two_party.program.forward.operations`) needs JAX and PyTorch and so some seconds.
`counts.json` beside
this file holds what tracing gave, for every architecture of the notation at the sizes of every model family: counts are
linear in the number of layers L and of pruned FFNs x, sizes in shapes linear in the context T. Each such rule was held
against a further trace before it was written; what has no rule is there for the published sizes alone. The file names
the code it was traced from: after a change of the programs, counts are traced again, slowly, until

    python -m aero.two_party.cost.counts

has renewed it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.architecture import Architecture, parse
from aero.errors import UserError, got, run_main
from aero.families import FAMILIES
from aero.pipeline import ROOT, import_closure
from aero.two_party.program.optimizations import check_put_back

if TYPE_CHECKING:
    from aero.model import ModelConfig

PATH = Path(__file__).with_name("counts.json")
PROGRAMS = ("as_written", "tuned", "tuned+narrow_comparisons")
"""Those whose counts are kept; others are traced."""
CONTEXTS = (128, 256, 512)
OWN = "own"
"""How the model of a measurement is called that is no family's at its published sizes but a small scale's own."""
VOCABULARY = {"languini-gpt2": 16384}
"""Entries of the papers' tokenizers, where it is not GPT-2's 50,257."""
LEAST_CONTEXT = 16
"""Contexts a rule is for: from here on, because the programs cut shorter ones into fewer blocks."""
LEAST_LAYERS = 4
_NOT_LEARNED = ("position", "rotary_fraction", "parallel_residual")
# Contexts that no other size of a shape happens to equal.
_TRACED_CONTEXTS = (176, 304)
_CHECKED = ((LEAST_CONTEXT, 6, 2), (391, 9, 4))  # (T, L, x)

MOST = dict.fromkeys(("layers", "heads"), 10_000) | dict.fromkeys(
    ("width", "ffn_width", "vocabulary", "context"), 10**7
)
"""Sizes that a decoder can be asked for, far beyond any; larger ones are typing errors."""

Counts = dict[tuple[str, str], int]
"""Count by operation and shape, both as in ops.csv."""


@dataclass(frozen=True)
class Sizes:
    """A model family at these sizes; the published ones where nothing else is asked for."""

    family: str
    layers: int
    heads: int
    width: int
    ffn_width: int
    vocabulary: int
    context: int

    @property
    def published_width(self) -> bool:
        """Whether all but depth and context are the family's published sizes."""
        own = published_sizes(self.family, self.context)
        return replace(own, layers=self.layers) == self


def published_sizes(family: str, context: int, **changes: int) -> Sizes:
    """The published sizes of `family` with `changes`. UserError for an unknown family or impossible sizes."""
    if family not in FAMILIES:
        raise UserError(f"unknown model family {family!r}; known: {', '.join(FAMILIES)}")
    found = Sizes(family=family, context=context, vocabulary=VOCABULARY.get(family, 50257), **FAMILIES[family].sizes)
    found = replace(found, **changes)
    if "width" in changes and "ffn_width" not in changes:
        found = replace(found, ffn_width=4 * found.width)
    for name, most in MOST.items():
        if getattr(found, name) < 1:
            raise UserError(f"{name} {getattr(found, name)} must be at least 1")
        if getattr(found, name) > most:
            raise UserError(f"{name} must be at most {most:,}{got(getattr(found, name))}")
    if found.width % found.heads:
        raise UserError(f"width {found.width} is not divisible by {found.heads} heads; choose other --heads")
    return found


def model_config(architecture: Architecture, family: str, context: int, **changes: int) -> ModelConfig:
    """The decoder whose costs are those of `architecture` in `family`; loads torch. Raises as `published_sizes`."""
    from aero.model import ModelConfig

    sizes = published_sizes(family, context, **changes)
    switches = FAMILIES[family].switches
    if architecture.block == "he_hofmann":  # it has its own form and learned positions
        switches = {key: value for key, value in switches.items() if key not in _NOT_LEARNED}
    values = {name: getattr(sizes, name) for name in ("layers", "heads", "width", "ffn_width", "vocabulary")}
    return ModelConfig(context=context, **values, **switches)


def counts(architecture: Architecture, sizes: Sizes, program: str) -> tuple[Counts, bool]:
    """Operations of a forward pass with their counts, and whether they are kept ones rather than traced just now.

    Raises UserError if `program` is unknown or cannot compute the architecture.
    """
    architecture = architecture.at_inference()
    if architecture.core != "softmax":
        raise UserError(f"{architecture}: a private pass computes softmax attention only; take an SM architecture")
    try:
        architecture.ffn_layers(sizes.layers)
        check_put_back(architecture, sizes.layers, program)
    except ValueError as error:
        raise UserError(str(error)) from None
    kept = _kept(architecture, sizes, program)
    return (traced(architecture, sizes, program), False) if kept is None else (kept, True)


def are_kept(architecture: Architecture, sizes: Sizes, program: str) -> bool:
    """Whether `counts` answers from its file, at once, rather than by tracing the program."""
    return _kept(architecture.at_inference(), sizes, program) is not None


def traced(architecture: Architecture, sizes: Sizes, program: str) -> Counts:
    """Counts from tracing the program itself; UserError if it cannot compute the architecture."""
    from aero.two_party.program.forward import operations

    changes = {name: getattr(sizes, name) for name in ("layers", "heads", "width", "ffn_width", "vocabulary")}
    config = model_config(architecture, sizes.family, sizes.context, **changes)
    try:
        found = operations(architecture.at_inference(), config, program, sizes.context)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error)) from None
    return {(operation.name, operation.shape): count for operation, count in found.items()}


@cache
def _file() -> dict[str, Any]:
    """The rules of counts.json; empty if it is missing, damaged or of other code."""
    try:
        values = json.loads(PATH.read_text(encoding="utf-8"))
        # Reading what the code says takes ten times as long as seeing that it is the same text.
        same = all(_sha256(ROOT / path) == digest for path, digest in values["files"].items())
        return values["rules"] if same or values["code"] == code() else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files() -> list[Path]:
    """The files that decide about counts: the programs, and the model for the shapes of its weights."""
    needed = {Path("aero") / name for name in ("model.py", "architecture.py", "families.py")}
    needed |= {
        path for path in import_closure("aero.two_party.program.forward") if path.parts[:2] == ("aero", "two_party")
    }
    return sorted(needed)


@cache
def code() -> str:
    """Hash of what decides about counts, comments and docstrings left out."""
    digest = hashlib.sha256()
    for path in _files():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
                if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
                    body.pop(0)
        digest.update(f"{path}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()


def _name(architecture: Architecture, layers: int) -> str:
    """The rule that an architecture without training parts goes by: pruned ones share one, but for all FFNs pruned."""
    text = str(architecture)
    if not architecture.pruned:
        return text
    return re.sub(r"i_\d+", "i_all" if architecture.pruned == layers else "i_x", text)


def _kept(architecture: Architecture, sizes: Sizes, program: str) -> Counts | None:
    if not sizes.published_width:
        return None
    rules = _file().get(_widths(sizes.family), {}).get(program, {}).get(_name(architecture, sizes.layers))
    if rules is None:
        return None
    exact = rules.get("exact", {}).get(f"{sizes.layers},{architecture.pruned},{sizes.context}")
    if exact is not None:
        return {_key(text): count for text, count in exact.items()}
    if "rule" not in rules or sizes.context < LEAST_CONTEXT or sizes.layers < LEAST_LAYERS:
        return None
    return evaluate(rules["rule"], sizes.layers, architecture.pruned, sizes.context)


def _widths(family: str) -> str:
    """The family under which counts are kept: those that differ in depth alone share them."""
    return "gpt2" if family == "gpt2-18l" else family


def _key(text: str) -> tuple[str, str]:
    name, _, shape = text.partition(" ")
    return name, shape


Rule = list[list[Any]]
"""Lines [operation and shape with "<p,b>" for a size p T + b, count for L = x = 0, per layer, per pruned FFN]."""


def evaluate(rule: Rule, layers: int, pruned: int, context: int) -> Counts:
    """The counts of `rule` at L = layers, x = pruned, T = context, at least LEAST_CONTEXT."""
    found: Counter[tuple[str, str]] = Counter()
    for text, base, per_layer, per_pruned in rule:
        filled = re.sub(r"<(-?\d+),(-?\d+)>", lambda m: str(int(m[1]) * context + int(m[2])), text)
        if count := base + per_layer * layers + per_pruned * pruned:
            found[_key(filled)] += count
    return dict(found)


def _generalised(low: Counts, high: Counts) -> list[str] | None:
    """Operations of the same program at the two `_TRACED_CONTEXTS`, with sizes that follow T as "<p,b>"."""
    if len(low) != len(high):
        return None
    return [_one_text(a, b) for a, b in zip(map(" ".join, low), map(" ".join, high), strict=True)]


def _one_text(low: str, high: str) -> str:
    pieces_low, pieces_high = re.split(r"(\d+)", low), re.split(r"(\d+)", high)
    if len(pieces_low) != len(pieces_high):
        return low  # two different operations: the check against a further trace will tell
    pieces = []
    for one, other in zip(pieces_low, pieces_high, strict=True):
        if one == other or not one.isdigit() or not other.isdigit():
            pieces.append(one)
            continue
        slope = Fraction(int(other) - int(one), _TRACED_CONTEXTS[1] - _TRACED_CONTEXTS[0])
        offset = int(one) - slope * _TRACED_CONTEXTS[0]
        pieces.append(f"<{slope},{offset}>" if slope.denominator == offset.denominator == 1 else one)
    return "".join(pieces)


def _rule(name: str, family: str, program: str) -> Rule | None:
    """The rule of an architecture, None if counts and sizes do not follow one."""
    pruned = name.count("i_x")

    def trace(layers: int, x: int, context: int) -> Counts:
        return traced(_architecture(name, x), published_sizes(family, context, layers=layers), program)

    shallow, deep = (trace(layers, pruned, _TRACED_CONTEXTS[0]) for layers in (5, 6))
    more = trace(6, 2, _TRACED_CONTEXTS[0]) if pruned else deep
    texts = _generalised(deep, trace(6, pruned, _TRACED_CONTEXTS[1]))
    if texts is None or not set(shallow) == set(deep) == set(more):
        return None
    rule: Rule = []
    for text, key in zip(texts, deep, strict=True):
        per_layer, per_pruned = deep[key] - shallow[key], more[key] - deep[key]
        rule.append([text, deep[key] - 6 * per_layer - pruned * per_pruned, per_layer, per_pruned])
    for context, layers, x in (*_CHECKED, (CONTEXTS[-1], LEAST_LAYERS, 1)):
        if evaluate(rule, layers, pruned * x, context) != trace(layers, pruned * x, context):
            return None
    return rule


def _architecture(name: str, pruned: int) -> Architecture:
    return parse(name.replace("i_x", f"i_{pruned}"))


def every_architecture() -> Iterator[str]:
    """What the notation can say of a model at inference; "i_x" stands for any number of pruned FFNs."""
    for softmax in ("SM", "SM(t)"):
        for norm in ("", "+LN"):
            for activation in ("", "+G", "+R", "+LeakyR", "+LeakyR(global)"):
                yield softmax + norm + activation
        for ffn in ("ScFFN", "ScFuFFN", "ScFuFFNi_x"):
            yield f"{softmax}+{ffn}"
    for ffn in ("ScFFN", "ScFuFFN", "ScFuFFNi_x"):
        yield f"SOTA(SM+{ffn})"


def make(families: Sequence[str] = tuple(FAMILIES)) -> dict[str, Any]:
    """The content of counts.json, by tracing; what a program cannot compute is left out."""
    rules: dict[str, Any] = {}
    for family in dict.fromkeys(map(_widths, families)):
        depths = {one.sizes["layers"] for name, one in FAMILIES.items() if _widths(name) == family}
        for program in PROGRAMS:
            of_program = rules.setdefault(family, {}).setdefault(program, {})
            for name in every_architecture():
                try:
                    rule = _rule(name, family, program)
                except UserError:
                    continue
                of_program[name] = {"exact": _exact(name, family, program, depths)} if rule is None else {"rule": rule}
    return {"code": code(), "files": {str(path): _sha256(ROOT / path) for path in _files()}, "rules": rules}


def _exact(name: str, family: str, program: str, depths: set[int]) -> Mapping[str, Mapping[str, int]]:
    found = {}
    for layers in sorted(depths):
        for pruned in range(1, layers) if "i_x" in name else (0,):
            for context in CONTEXTS:
                sizes = published_sizes(family, context, layers=layers)
                one = traced(_architecture(name, pruned), sizes, program)
                found[f"{layers},{pruned},{context}"] = {" ".join(key): count for key, count in one.items()}
    return found


def _main(arguments: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m aero.two_party.cost.counts", description="Renew counts.json.").parse_args(
        arguments
    )
    made = make()
    temporary = PATH.with_name(PATH.name + ".tmp")
    temporary.write_text(_text(made), encoding="utf-8")
    os.replace(temporary, PATH)
    entries = [entry for programs in made["rules"].values() for names in programs.values() for entry in names.values()]
    ruled = sum("rule" in entry for entry in entries)
    print(f"{PATH}: {len(entries)} architectures in programs and families, {ruled} by a rule")


def _text(made: Mapping[str, Any]) -> str:
    """JSON with a line an architecture, so that a change is seen where it is."""
    lines = [f'{{"code": "{made["code"]}",', f' "files": {json.dumps(made["files"])},', ' "rules": {']
    families = made["rules"].items()
    for index, (family, programs) in enumerate(families):
        lines.append(f' "{family}": {{')
        for place, (program, names) in enumerate(programs.items()):
            lines.append(f'  "{program}": {{')
            entries = [f"   {json.dumps(name)}: {json.dumps(entry)}" for name, entry in names.items()]
            lines.append(",\n".join(entries))
            lines.append("  }" + ("," if place < len(programs) - 1 else ""))
        lines.append(" }" + ("," if index < len(families) - 1 else ""))
    return "\n".join([*lines, "}}", ""])


if __name__ == "__main__":
    run_main(_main)
