"""FLOPs and nonlinear operations against the published columns of AERO Table 4."""

import pytest

from aero.architecture import parse
from aero.flops import count
from aero.model import ModelConfig

GPT2 = ModelConfig(vocabulary=50257, context=128, layers=12, heads=12, width=768, ffn_width=3072)
SM, LN24, LN1 = "SM:144×R^{128×128}", "LN:24×R^{128×768}", "LN:1×R^{128×768}"


def billions(flops):
    return f"{flops / 1e9:.1f}B"


@pytest.mark.parametrize(
    ("architecture", "ffn", "attention", "nonlinear"),
    [
        ("SM+LN+G", "14.5B", "7.7B", [SM, LN24, "G:12×R^{128×3072}"]),
        ("SM+LN+R", "14.5B", "7.7B", [SM, LN24, "R:12×R^{128×3072}"]),
        ("SOTA(SM+ScFFN)", "14.5B", "3.9B", [SM, LN1]),
        ("SOTA(SM+ScFuFFN)", "1.8B", "3.9B", [SM, LN1]),
        # Table 4 prints 1.2B here. One pruned FFN of twelve leaves 11 x 2 d^2 x T = 1.66e9; 1.2B would be four pruned.
        ("SOTA(SM+ScFuFFNi_1)", "1.7B", "3.9B", [SM, LN1]),
        ("SM+ScFFN", "14.5B", "7.7B", [SM]),
        ("SM+ScFuFFN", "1.8B", "7.7B", [SM]),
        ("SM+ScFuFFNi_6", "0.9B", "7.7B", [SM]),
        ("EReg(SM(t)+ScFuFFN)", "1.8B", "7.7B", [SM]),
        ("EReg(SM(t)+ScFuFFNi_6)", "0.9B", "7.7B", [SM]),
    ],
)
def test_table_4(architecture, ffn, attention, nonlinear):
    counted = count(parse(architecture), GPT2, 128)
    assert (billions(counted.ffn), billions(counted.attention)) == (ffn, attention)
    assert [str(operation) for operation in counted.nonlinear] == nonlinear


def test_four_pruned_ffns_give_the_printed_figure_of_the_sota_row():
    assert billions(count(parse("SOTA(SM+ScFuFFNi_4)"), GPT2, 128).ffn) == "1.2B"


@pytest.mark.parametrize(
    ("layers", "context", "ffn", "attention"),
    [(12, 256, "29.0B", "16.3B"), (18, 128, "21.7B", "11.6B"), (12, 512, "58.0B", "36.2B")],
)
def test_other_published_sizes(layers, context, ffn, attention):
    model = ModelConfig(vocabulary=50257, context=context, layers=layers, heads=12, width=768, ffn_width=3072)
    counted = count(parse("SM+LN+G"), model, context)
    assert (billions(counted.ffn), billions(counted.attention)) == (ffn, attention)


def test_attention_formula_by_hand():
    tiny = ModelConfig(vocabulary=10, context=3, layers=1, heads=1, width=2, ffn_width=8)
    # 8 d^2 + 3 T d + d = 32 + 18 + 2 = 52 a token, 16 d^2 = 64 a token; 3 tokens.
    counted = count(parse("SM"), tiny, 3)
    assert (counted.attention, counted.ffn) == (156, 192)
