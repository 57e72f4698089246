"""FLOPs and nonlinear operations against the published columns of AERO Table 4."""

import pytest

from aero.architecture import parse
from aero.flops import Sizes, count, crossover
from aero.model import ModelConfig

SMALL = ModelConfig(vocabulary=50257, context=128, layers=12, heads=12, width=768, ffn_width=3072)
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
        # Table 4 states 1.2B, which would be four pruned FFNs. One of twelve leaves 11 x 2 d^2 x T = 1.66e9.
        ("SOTA(SM+ScFuFFNi_1)", "1.7B", "3.9B", [SM, LN1]),
        ("SM+ScFFN", "14.5B", "7.7B", [SM]),
        ("SM+ScFuFFN", "1.8B", "7.7B", [SM]),
        ("SM+ScFuFFNi_6", "0.9B", "7.7B", [SM]),
        ("EReg(SM(t)+ScFuFFN)", "1.8B", "7.7B", [SM]),
        ("EReg(SM(t)+ScFuFFNi_6)", "0.9B", "7.7B", [SM]),
    ],
)
def test_table_4(architecture, ffn, attention, nonlinear):
    counted = count(parse(architecture), SMALL, 128)
    assert (billions(counted.ffn), billions(counted.attention)) == (ffn, attention)
    assert [str(operation) for operation in counted.nonlinear] == nonlinear


def test_the_crossover_is_where_attention_overtakes_the_ffn():
    # d = 2: 16 d^2 = 64 a token; attention 8 d^2 + 3 T d + d = 34 + 6 T is 64 at T = 5.
    assert crossover(2) == 5
    tiny = Sizes(layers=3, heads=1, width=2)
    shares = [count(parse("SM+LN+G"), tiny, context).ffn_share for context in (4, 5, 6)]
    assert shares[1] == 0.5 and shares[0] == 64 / (64 + 58) and shares[2] == 64 / (64 + 70)
