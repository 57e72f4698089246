"""The rules of counts.json agree with tracing the programs."""

from __future__ import annotations

import pytest

from aero.architecture import parse
from aero.errors import UserError
from aero.two_party.cost import counts as module
from aero.two_party.cost.counts import counts, evaluate, published_sizes, traced
from stages.derive_counts import derive_rule, every_architecture


def has_rule(text, sizes, program):
    return module._rule_for(parse(text).at_inference(), sizes, program) is not None


@pytest.mark.parametrize(
    ("text", "family", "changes", "context", "program"),
    [
        ("SM+LN+G", "gpt2", {}, 128, "tuned"),
        ("SM+LN+R", "gpt2", {"layers": 5}, 200, "tuned+narrow_comparisons"),
        ("EReg(SM(t)+R)", "gpt2", {"layers": 7}, 208, "as_written"),
        ("SM+ScFuFFNi_3", "gpt2", {}, 256, "tuned"),
        ("SM(t)+ScFuFFNi_9", "gpt2-18l", {}, 512, "as_written"),
        ("SOTA(SM+ScFuFFNi_1)", "languini-gpt2", {"layers": 5}, 512, "tuned"),
        ("SOTA(SM+ScFFN)", "pythia-70m", {}, 256, "as_written"),
        ("SM+LN+LeakyR", "pythia-70m", {}, 99, "tuned+narrow_comparisons"),
    ],
)
def test_rules_agree_with_tracing(text, family, changes, context, program):
    """If this fails the programs were changed: renew the rules with `python -m stages.derive_counts`."""
    sizes = published_sizes(family, context, **changes)
    assert has_rule(text, sizes, program)
    assert counts(parse(text), sizes, program) == traced(parse(text), sizes, program)


@pytest.mark.parametrize(
    ("text", "family", "changes", "context", "program"),
    [
        ("SM+ScFuFFNi_12", "gpt2", {}, 128, "tuned"),  # every FFN pruned
        ("SM+ScFuFFNi_1", "gpt2", {"layers": 2}, 144, "tuned"),  # too shallow
        ("SM", "gpt2", {"layers": 4}, 15, "as_written"),  # too short
        ("SM+WNorm(QK)", "languini-gpt2", {"layers": 2}, 64, "tuned"),
        ("SM+ScFFN", "gpt2", {"layers": 4, "heads": 6, "width": 192}, 100, "tuned"),  # other width
        ("SM", "gpt2", {"layers": 4}, 32, "tuned-one_qkv"),  # other program
    ],
)
def test_without_a_rule_the_program_is_traced(text, family, changes, context, program):
    sizes = published_sizes(family, context, **changes)
    assert counts(parse(text), sizes, program) and not has_rule(text, sizes, program)


@pytest.mark.parametrize(("name", "program"), [("SM(t)+ScFuFFNi_x", "tuned"), ("SM+LN+G", "as_written")])
def test_a_rule_derived_anew_is_that_of_the_file(name, program):
    assert derive_rule(name, "gpt2", program) == module._rules()[f"gpt2 {program} {name}"]


def test_every_architecture_has_a_rule_in_every_program():
    for name in every_architecture():
        for family in ("gpt2", "gpt2-18l", "pythia-70m", "languini-gpt2"):
            for program in module.PROGRAMS:
                sizes = published_sizes(family, 201, layers=9)
                assert has_rule(name.replace("i_x", "i_2"), sizes, program), (name, family, program)


def test_evaluate_a_rule():
    rule = [["mix 12xTxT,12xTx64", 0, 1, 0], ["rotate(first=T-1) 8x8", 3, 2, -1], ["scale 4,4", 0, 0, 0]]
    assert evaluate(rule, layers=5, pruned=2, context=48) == {
        ("mix", "12x48x48,12x48x64"): 5,
        ("rotate(first=47)", "8x8"): 3 + 10 - 2,
    }


def test_impossible_sizes():
    for arguments, changes, text in (
        (("gpt2", 0), {}, r"context must be 1 to 10,000,000 \(got 0"),
        (("gpt2", 10**23), {}, r"context must be 1 to 10,000,000 \(got 1000"),
        (("gpt2", 128), {"heads": 7}, "width 768 is not divisible by 7 heads"),
    ):
        with pytest.raises(UserError, match=text):
            published_sizes(*arguments, **changes)
    assert published_sizes("gpt2", 128, width=64, heads=4).ffn_width == 256
    assert published_sizes("languini-gpt2", 512).vocabulary == 16384
