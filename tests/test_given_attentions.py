"""Families whose attention does not go through transformers' interface: entropies of the weights they give away."""

import copy
import math

import pytest
import torch
from tiny_hugging_face import padded, some_ids, tiny
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CodeGenConfig,
    FalconConfig,
    GPTJConfig,
    GPTNeoConfig,
    MptConfig,
    RwkvConfig,
    XGLMConfig,
    XLNetConfig,
)

from aero.entropy import causal_bound, measure
from aero.hf.measure import row_entropies

GPT = {"vocab_size": 67, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 160}
UNDROPPED = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
SIZES = {"vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS = {
    "gptj": GPTJConfig(**GPT, **UNDROPPED, rotary_dim=4),
    "gpt_neo": GPTNeoConfig(
        vocab_size=67, hidden_size=32, num_layers=4, num_heads=4, max_position_embeddings=160, window_size=9,
        attention_types=[[["global", "local"], 2]],
    ),
    "falcon": FalconConfig(**SIZES, alibi=False),
    "falcon with alibi": FalconConfig(**SIZES, alibi=True),
    "mpt": MptConfig(vocab_size=67, d_model=32, n_layers=3, n_heads=4, max_seq_len=160),
    "bloom": BloomConfig(vocab_size=67, hidden_size=32, n_layer=3, n_head=4),
    "xglm": XGLMConfig(
        vocab_size=67, d_model=32, num_layers=3, attention_heads=4, ffn_dim=64, max_position_embeddings=160
    ),
    "codegen": CodeGenConfig(**GPT, **UNDROPPED, n_ctx=160, rotary_dim=4),
}  # fmt: skip


def of_family(name, **loaded):
    """A tiny model with weights large enough that its heads are not all uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), **loaded).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


def by_one_sequence(name, ids):
    """-sum p log p, by float64 logarithms, of what the model gives for sequences without padding: (L, B, H, T)."""
    with torch.no_grad():
        given = of_family(name, attn_implementation="eager")(ids, output_attentions=True).attentions
    p = torch.stack(given).double()
    assert not p.triu(1).any()
    return -torch.special.xlogy(p, p).sum(-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_entropies_are_those_of_the_weights_given(name):
    model, ids = of_family(name), some_ids(2, 40)
    model.train()
    before = model.config._attn_implementation
    expected = by_one_sequence(name, ids)
    assert expected.max() > 1 and expected[..., -1].min() < math.log(40) - 0.2  # not uniform
    torch.testing.assert_close(row_entropies(model, ids).double(), expected, atol=1e-5, rtol=0)
    assert model.config._attn_implementation == before and model.training
    statistics = measure(model, ids)
    torch.testing.assert_close(statistics.mean, expected.mean((1, 3)), atol=1e-5, rtol=0)
    window = sum(math.log(min(i, 9)) for i in range(1, 41)) / 40
    bound = [causal_bound(40), window] * 2 if name == "gpt_neo" else [causal_bound(40)] * 3
    assert statistics.bound.tolist() == pytest.approx(bound)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing(name, side):
    """A padded sequence has the entropies of the sequence alone, and those of padding are 0."""
    model, ids, lengths = of_family(name), some_ids(2, 30), [30, 12]
    mask = padded(side, lengths, 30)
    found = row_entropies(model, ids, mask)
    assert not found.transpose(1, 2)[:, :, mask == 0].any()
    for index in range(2):
        alone = row_entropies(model, ids[index][mask[index].bool()][None])[:, 0]
        torch.testing.assert_close(found[:, index][..., mask[index].bool()], alone, atol=1e-5, rtol=0)
    if name == "gpt_neo":  # its window of 9 holds fewer of 12 tokens, wherever they stand
        short = sum(math.log(min(i, 9)) for i in range(1, 13)) / 12
        bound = measure(model, {"input_ids": ids[1:], "attention_mask": mask[1:]}).bound
        assert bound.tolist() == pytest.approx([causal_bound(12), short] * 2)


def test_uniform_attention_reaches_the_bound():
    model = of_family("gpt_neo")
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.attention.q_proj.weight)
    statistics = measure(model, some_ids(1, 50))
    torch.testing.assert_close(statistics.mean, statistics.bound[:, None].expand(4, 4), atol=1e-6, rtol=0)


def test_one_token_and_weights_that_are_not_finite():
    model = of_family("gptj")
    assert not row_entropies(model, some_ids(2, 1)).any()
    with torch.no_grad():
        model.transformer.h[1].attn.q_proj.weight[0, 0] = math.nan  # of the first head
    broken = measure(model, some_ids(2, 20)).mean
    assert broken[0].isfinite().all() and broken[1, 0].isnan() and broken[1, 1:].isfinite().all()


def test_a_model_of_few_bits():
    exact, rough = (row_entropies(of_family("gptj").to(dtype), some_ids(2, 30)) for dtype in (None, torch.bfloat16))
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough[0], exact[0], atol=0.1, rtol=0)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (XLNetConfig(vocab_size=67, d_model=32, n_layer=2, n_head=4, d_inner=64), "they reach later tokens"),
        (RwkvConfig(vocab_size=67, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32), "shape"),
    ],
)
def test_what_is_no_causal_attention_is_refused(config, why):
    with pytest.raises(ValueError, match=f"are none of causal attention: {why}"):
        measure(AutoModelForCausalLM.from_config(config), some_ids(2, 20))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda p: p * 1.01, "a row does not sum to 1"),
        (lambda p: p - 2 * p * (p == p.amax(-1, keepdim=True)), "some are negative"),
        (lambda p: p.flip(-1), "they reach later tokens or padding"),
        (lambda p: p[..., :-1], "shape"),
        (lambda p: None, "MptForCausalLM hides its attention weights"),
    ],
)
def test_weights_that_are_none_are_refused(spoil, why):
    model = of_family("mpt")
    for block in model.transformer.blocks:
        block.attn.register_forward_hook(lambda module, args, output: (output[0], spoil(output[1])))
    with pytest.raises(ValueError, match=why):
        measure(model, some_ids(2, 20))


def test_more_tokens_than_the_model_takes():
    with pytest.raises(ValueError, match="161 tokens exceed the 160 positions of MptForCausalLM"):
        measure(of_family("mpt"), some_ids(1, 161))


def test_one_sequence_at_a_time_whatever_the_batch():
    """All layers' matrices are there at once, so not all sequences' too."""
    model, sizes = of_family("bloom"), []
    for block in model.transformer.h:
        block.self_attention.register_forward_hook(lambda module, args, output: sizes.append(output[1].shape))
    row_entropies(model, some_ids(4, 12))
    assert sizes == [(1, 4, 12, 12)] * 3 * 4


def test_models_that_can_be_switched_give_no_matrix_away():
    model, given = tiny("gpt2"), []
    for block in model.transformer.h:
        block.attn.register_forward_hook(lambda module, args, output: given.append(output[1]))
    row_entropies(model, some_ids(2, 12))
    assert given == [None] * 3


def test_a_switch_that_does_not_take_leaves_the_weights_given(monkeypatch):
    """transformers' flag says that it can be switched, and it is not."""
    model, ids = of_family("gptj"), some_ids(2, 40)
    monkeypatch.setattr(type(model), "_can_set_attn_implementation", lambda *_: True)
    monkeypatch.setattr(model, "set_attn_implementation", lambda *_: None)
    torch.testing.assert_close(row_entropies(model, ids).double(), by_one_sequence("gptj", ids), rtol=0, atol=2e-5)


def test_batches_that_can_only_be_indexed_are_measured():
    class Batches:
        def __getitem__(self, index):
            return (some_ids(2, 40), some_ids(3, 40))[index]

    model = tiny("gpt2")
    together = measure(model, [some_ids(2, 40), some_ids(3, 40)])
    torch.testing.assert_close(measure(model, Batches()).mean, together.mean, rtol=0, atol=0)
