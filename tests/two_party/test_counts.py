"""Counts without tracing are those of the traced program, at any depth and context, or the program is traced."""

from __future__ import annotations

import json

import pytest

from aero.architecture import parse
from aero.errors import UserError
from aero.pipeline import ROOT
from aero.two_party.cost import counts as module
from aero.two_party.cost.counts import counts, evaluate, published_sizes, traced


@pytest.mark.parametrize(
    ("text", "family", "changes", "context"),
    [
        ("SM+LN+G", "gpt2", {}, 128),
        ("EReg(SM(t)+R)", "gpt2", {"layers": 7}, 208),
        ("SM+ScFuFFNi_3", "gpt2", {}, 256),
        ("SM(t)+ScFuFFNi_9", "gpt2-18l", {}, 512),
        ("SM+ScFuFFNi_12", "gpt2", {}, 128),  # none left
        ("SM+ScFuFFNi_1", "gpt2", {"layers": 2}, 144),  # too shallow for a rule
        ("SOTA(SM+ScFuFFNi_1)", "languini-gpt2", {"layers": 5}, 512),
        ("SOTA(SM+ScFFN)", "pythia-70m", {}, 256),
        ("SM+LN+LeakyR", "pythia-70m", {}, 256),
        ("SM+WNorm(QK)", "languini-gpt2", {"layers": 6}, 64),
        ("SM+ScFFN", "gpt2", {"heads": 6, "width": 192}, 100),
        ("SM+LN+G", "gpt2", {"layers": 5}, 200),
        ("SM(t)+ScFuFFNi_2", "pythia-70m", {}, 99),
        ("SM", "gpt2", {"layers": 4}, 15),  # too short for a rule
    ],
)
@pytest.mark.parametrize("program", module.PROGRAMS)
def test_counts_are_those_of_the_program(text, family, changes, context, program):
    sizes = published_sizes(family, context, **changes)
    assert counts(parse(text), sizes, program)[0] == traced(parse(text), sizes, program)


def test_the_file_is_of_this_code_and_answers_without_tracing(monkeypatch):
    """If this fails the programs were changed: `python -m aero.two_party.cost.counts` traces them again."""
    values = json.loads(module.PATH.read_text(encoding="utf-8"))
    assert values["code"] == module.code()
    # Of other text of the same code the file is believed too, after half a second of reading that code.
    assert values["files"] == {str(path): module._sha256(ROOT / path) for path in module._files()}
    monkeypatch.setattr(module, "traced", None)
    for text in (text.replace("i_x", "i_2") for text in module.every_architecture()):
        for context in (module.LEAST_CONTEXT, 201, 384):
            found, kept = counts(parse(text), published_sizes("gpt2", context, layers=9), "tuned")
            assert kept and found


def test_what_the_file_holds_of_other_code_is_not_believed(tmp_path, monkeypatch):
    values = json.loads(module.PATH.read_text(encoding="utf-8"))
    changed = tmp_path / "counts.json"
    for made in ({**values, "code": "0" * 64, "files": {"aero/model.py": "0"}}, {}, []):
        changed.write_text(json.dumps(made), encoding="utf-8")
        monkeypatch.setattr(module, "PATH", changed)
        module._file.cache_clear()
        sizes = published_sizes("gpt2", 128, layers=4)
        found, kept = counts(parse("SM"), sizes, "tuned")
        assert not kept and found == traced(parse("SM"), sizes, "tuned")
    module._file.cache_clear()


def test_a_rule_by_hand():
    rule = [["mix 12x<1,0>x<1,0>,12x<1,0>x64", 0, 1, 0], ["linear <1,2>x8,8x8", 3, 2, -1], ["scale 4,4", 0, 0, 0]]
    assert evaluate(rule, layers=5, pruned=2, context=48) == {
        ("mix", "12x48x48,12x48x64"): 5,
        ("linear", "50x8,8x8"): 3 + 10 - 2,
    }


def test_sizes_that_cannot_be():
    for arguments, changes, text in (
        (("gpt3", 128), {}, "unknown model family 'gpt3'; known: gpt2"),
        (("gpt2", 0), {}, "context 0 must be at least 1"),
        (("gpt2", 10**23), {}, r"context must be at most 10,000,000 \(got 1000"),
        (("gpt2", 128), {"layers": 10**50}, "layers must be at most 10,000 "),
        (("gpt2", 128), {"heads": 7}, "width 768 is not divisible by 7 heads"),
    ):
        with pytest.raises(UserError, match=text):
            published_sizes(*arguments, **changes)
    with pytest.raises(UserError, match="cannot prune 13 FFNs"):
        counts(parse("SM+ScFuFFNi_13"), published_sizes("gpt2", 128), "tuned")
    with pytest.raises(UserError, match="unknown program 'fast'"):
        counts(parse("SM"), published_sizes("gpt2", 128), "fast")
    assert published_sizes("gpt2", 128, width=64, heads=4).ffn_width == 256
    assert published_sizes("languini-gpt2", 512).vocabulary == 16384
