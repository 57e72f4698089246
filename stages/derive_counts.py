"""Derive the rules of aero/two_party/cost/counts.json anew, after a change of the private programs."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
from collections.abc import Iterator

from aero.architecture import parse
from aero.errors import UserError, run_main
from aero.families import FAMILIES
from aero.records import write_text
from aero.two_party.cost.counts import (
    LEAST_CONTEXT,
    LEAST_LAYERS,
    PATH,
    PROGRAMS,
    Counts,
    Rule,
    evaluate,
    published_sizes,
    rule_key,
    traced,
)

CONTEXT, CHECKED = 211, ((LEAST_CONTEXT, 6, 2), (391, 9, 4), (512, LEAST_LAYERS, 1))
"""A rule is derived at this context, which neither equals another size in a shape nor follows one, and checked at
(T, L, x)."""


def derive_rule(name: str, family: str, program: str) -> Rule | None:
    """The rule of an architecture by tracing it; None if counts and sizes do not follow one. "i_x" in `name`: any x."""
    pruned = name.count("i_x")

    def trace(layers: int, x: int, context: int = CONTEXT) -> Counts:
        architecture = parse(name.replace("i_x", f"i_{x}"))
        return traced(architecture, published_sizes(family, context, layers=layers), program)

    shallow, deep = (trace(layers, pruned) for layers in (5, 6))
    more = trace(6, 2) if pruned else deep
    if not set(shallow) == set(deep) == set(more):
        return None
    symbols = {str(CONTEXT): "T", str(CONTEXT - 1): "T-1"}
    rule: Rule = []
    for key, count in deep.items():
        text = re.sub(r"\d+", lambda number: symbols.get(number[0], number[0]), " ".join(key))
        per_layer, per_pruned = count - shallow[key], more[key] - count
        rule.append([text, count - 6 * per_layer - pruned * per_pruned, per_layer, per_pruned])
    for context, layers, x in CHECKED:
        if evaluate(rule, layers, pruned * x, context) != trace(layers, pruned * x, context):
            return None
    return rule


def every_architecture() -> Iterator[str]:
    """Every architecture of the notation at inference; "i_x" stands for any number of pruned FFNs."""
    for softmax in ("SM", "SM(t)"):
        for norm in ("", "+LN"):
            for activation in ("", "+G", "+R", "+LeakyR", "+LeakyR(global)"):
                yield softmax + norm + activation
        for ffn in ("ScFFN", "ScFuFFN", "ScFuFFNi_x"):
            yield f"{softmax}+{ffn}"
    for ffn in ("ScFFN", "ScFuFFN", "ScFuFFNi_x"):
        yield f"SOTA(SM+{ffn})"


def main(arguments: list[str]) -> None:
    argparse.ArgumentParser(prog="python -m stages.derive_counts", description=__doc__).parse_args(arguments)
    rules: dict[str, Rule] = {}
    for family, program, name in itertools.product(FAMILIES, PROGRAMS, every_architecture()):
        with contextlib.suppress(UserError):  # the program cannot compute the architecture
            if (key := rule_key(family, program, name)) not in rules and (rule := derive_rule(name, family, program)):
                rules[key] = rule
    # One line a rule, so that a diff shows which changed.
    write_text(PATH, "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(rules[key])}" for key in rules) + "\n}\n")
    print(f"{PATH}: {len(rules)} rules")


if __name__ == "__main__":
    run_main(main)
