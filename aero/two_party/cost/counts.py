"""How often a private program computes each operation, for any depth and context, without tracing it.

Tracing a program (`aero.two_party.program.forward.operations`) loads JAX and PyTorch, which takes seconds.
`counts.json` holds a rule for every architecture of the notation at every family's width: counts are linear in the
number of layers L and of pruned FFNs x, and sizes in shapes are linear in the context T. Other widths, very shallow
models and programs without rules are traced. After a change of the programs, renew the rules with
`python -m stages.derive_counts`; `tests/two_party/test_counts.py` compares them with tracing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.architecture import Architecture
from aero.errors import UserError, got
from aero.families import FAMILIES
from aero.two_party.program.optimizations import check_rebased

if TYPE_CHECKING:
    from aero.model import ModelConfig

PATH = Path(__file__).with_name("counts.json")
PROGRAMS = ("as_written", "tuned", "tuned+narrow_comparisons")
"""Programs that have rules; others are traced."""
OWN = "own"
"""Prefix of the model name in measurements at a small scale's own sizes instead of a family's published ones."""
VOCABULARY = {"languini-gpt2": 16384}
"""Entries of the papers' tokenizers, where it is not GPT-2's 50,257."""
LEAST_CONTEXT, LEAST_LAYERS = 16, 4
"""The rules hold from here on: programs cut shorter contexts into fewer blocks."""
_SHARED = ("layers", "heads", "width", "ffn_width", "vocabulary")
"""Sizes that a model's configuration has as well."""
_NOT_LEARNED = ("position", "rotary_fraction", "parallel_residual")

MOST = {"layers": 10_000, "heads": 10_000} | dict.fromkeys(("width", "ffn_width", "vocabulary", "context"), 10**7)
"""Largest sizes accepted; larger ones are typing errors."""

Counts = dict[tuple[str, str], int]
"""Count by operation and shape, both as in ops.csv."""


@dataclass(frozen=True)
class Sizes:
    """A model family at these sizes; the published ones where nothing else is asked for.

    config: of a Hugging Face model, whose `family` is the name of its folder.
    """

    family: str
    layers: int
    heads: int
    width: int
    ffn_width: int
    vocabulary: int
    context: int
    config: ModelConfig | None = None


def published_sizes(family: str, context: int, **changes: int) -> Sizes:
    """The published sizes of `family` with `changes`. UserError for an unknown family or impossible sizes."""
    if family not in FAMILIES:
        raise UserError(f"unknown model family {family!r}; known: {', '.join(FAMILIES)}")
    found = Sizes(family=family, context=context, vocabulary=VOCABULARY.get(family, 50257), **FAMILIES[family].sizes)
    found = replace(found, **changes)
    if "width" in changes and "ffn_width" not in changes:
        found = replace(found, ffn_width=4 * found.width)
    for name, most in MOST.items():
        if not 1 <= getattr(found, name) <= most:
            raise UserError(f"{name} must be 1 to {most:,}{got(getattr(found, name))}")
    if found.width % found.heads:
        raise UserError(f"width {found.width} is not divisible by {found.heads} heads; choose other --heads")
    return found


def sizes_of(name: str, config: ModelConfig, context: int) -> Sizes:
    """Sizes of a Hugging Face model. UserError for a longer context than it has."""
    if not 1 <= context <= config.context:
        raise UserError(f"--context {context} must be 1 to {config.context}, the positions of {name}")
    return Sizes(family=name, context=context, config=config, **{name: getattr(config, name) for name in _SHARED})


def model_config(architecture: Architecture, family: str, context: int, **changes: int) -> ModelConfig:
    """The decoder whose costs are those of `architecture` in `family`; loads torch. Raises as `published_sizes`."""
    from aero.model import ModelConfig

    sizes = published_sizes(family, context, **changes)
    switches = FAMILIES[family].switches
    if architecture.block == "he_hofmann":  # it has its own form and learned positions
        switches = {key: value for key, value in switches.items() if key not in _NOT_LEARNED}
    return ModelConfig(context=context, **{name: getattr(sizes, name) for name in _SHARED}, **switches)


def counts(architecture: Architecture, sizes: Sizes, program: str) -> Counts:
    """Operations of a forward pass with their counts, from a rule if there is one, else from tracing.

    Raises UserError if `program` is unknown or cannot compute the architecture.
    """
    architecture = architecture.at_inference()
    if architecture.core != "softmax":
        raise UserError(f"{architecture}: a private pass computes softmax attention only; take an SM architecture")
    try:
        architecture.ffn_layers(sizes.layers)
        check_rebased(architecture, sizes.layers, program)
    except ValueError as error:
        raise UserError(str(error)) from None
    rule = _rule_for(architecture, sizes, program)
    if rule is None:
        return traced(architecture, sizes, program)
    return evaluate(rule, sizes.layers, architecture.pruned, sizes.context)


def traced(architecture: Architecture, sizes: Sizes, program: str) -> Counts:
    """Counts from tracing the program; UserError if it cannot compute the architecture."""
    from aero.two_party.program.forward import operations

    changes = {name: getattr(sizes, name) for name in _SHARED}
    config = sizes.config or model_config(architecture, sizes.family, sizes.context, **changes)
    try:
        found = operations(architecture.at_inference(), config, program, sizes.context)
    except ValueError as error:
        raise UserError(str(error)) from None
    return {(operation.name, operation.shape): count for operation, count in found.items()}


Rule = list[list[Any]]
"""Lines [operation and shape with "T" for the context, count for L = x = 0, per layer, per pruned FFN]."""


@cache
def _rules() -> dict[str, Rule]:
    return json.loads(PATH.read_text(encoding="utf-8"))


def rule_key(family: str, program: str, name: str) -> str:
    """The name of a rule. Families that differ only in depth share their rules."""
    return f"{'gpt2' if family == 'gpt2-18l' else family} {program} {name}"


def _rule_for(architecture: Architecture, sizes: Sizes, program: str) -> Rule | None:
    if sizes.config or sizes.context < LEAST_CONTEXT or sizes.layers < LEAST_LAYERS:
        return None
    if published_sizes(sizes.family, sizes.context, layers=sizes.layers) != sizes:
        return None
    name = str(architecture)
    if 0 < architecture.pruned < sizes.layers:  # with all FFNs pruned there is no rule
        name = re.sub(r"i_\d+", "i_x", name)
    return _rules().get(rule_key(sizes.family, program, name))


def evaluate(rule: Rule, layers: int, pruned: int, context: int) -> Counts:
    """The counts of `rule` at L = layers, x = pruned, T = context."""
    found: Counter[tuple[str, str]] = Counter()
    for text, base, per_layer, per_pruned in rule:
        filled = text.replace("T-1", str(context - 1)).replace("T", str(context))
        if count := base + per_layer * layers + per_pruned * pruned:
            name, _, shape = filled.partition(" ")
            found[name, shape] += count
    return dict(found)
