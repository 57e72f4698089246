"""Families whose attention does not go through transformers' interface: entropies of the weights that they return."""

import copy
import math

import pytest
import torch
from tiny_hugging_face import GROUPED, padded, row_entropies, rows_by_output_attentions, some_ids
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    GPTJConfig,
    GPTNeoConfig,
    XLNetConfig,
)

from aero.entropy import EntropyRegularizer, causal_bound, measure
from aero.hf.attention import NotSwitched, attention_function

CONFIGS = {
    "gptj": GPTJConfig(
        vocab_size=67, n_embd=32, n_layer=3, n_head=4, n_positions=160, rotary_dim=4,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    ),
    "gpt_neo": GPTNeoConfig(
        vocab_size=67, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=160, window_size=9,
        attention_types=[[["global", "local"], 1]],
    ),
    "falcon": FalconConfig(vocab_size=67, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True),
    "bloom": BloomConfig(vocab_size=67, hidden_size=32, n_layer=2, n_head=4),
}  # fmt: skip


def of_family(name, **loaded):
    """A tiny model with weights so large that its heads are not uniform."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), **loaded).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_entropies_equal_those_of_the_returned_weights(name):
    model, ids = of_family(name), some_ids(2, 40)
    model.train()
    before = model.config._attn_implementation
    with torch.no_grad():
        p = torch.stack(of_family(name, attn_implementation="eager")(ids, output_attentions=True).attentions).double()
    expected = -torch.special.xlogy(p, p).sum(-1)
    assert expected.max() > 1 and expected[..., -1].min() < math.log(40) - 0.2
    torch.testing.assert_close(row_entropies(model, ids).double(), expected, atol=1e-5, rtol=0)
    assert model.config._attn_implementation == before and model.training
    window = sum(math.log(min(i, 9)) for i in range(1, 41)) / 40
    bound = [causal_bound(40), window] if name == "gpt_neo" else [causal_bound(40)] * len(expected)
    assert measure(model, ids).bound.tolist() == pytest.approx(bound)


@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing(name):
    model, ids = of_family(name), some_ids(2, 30)
    mask = padded("left", [30, 12], 30)
    found = row_entropies(model, ids, mask)
    assert not found.transpose(1, 2)[:, :, mask == 0].any()
    for index in range(2):
        alone = row_entropies(model, ids[index][mask[index].bool()][None])[:, 0]
        torch.testing.assert_close(found[:, index][..., mask[index].bool()], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p * 1.01, "a row does not sum to 1"),
        (lambda p: p - 2 * p * (p == p.amax(-1, keepdim=True)), "some are negative"),
        (lambda p: p.flip(-1), "they reach later tokens or padding"),
        (lambda p: p[..., :-1], "shape"),
        (lambda p: None, "does not expose its attention weights"),
    ],
)
def test_weights_of_no_causal_attention_are_refused(change, message):
    model = of_family("bloom")
    for block in model.transformer.h:
        block.self_attention.register_forward_hook(lambda module, args, output: (output[0], change(output[1])))
    with pytest.raises(ValueError, match=message):
        measure(model, some_ids(2, 20))


SPARSE = GROUPED | {
    "num_key_value_heads": 4, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
    "moe_intermediate_size": 16, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "index_topk": 5, "index_n_heads": 2, "index_head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), [("doge", GROUPED), ("deepseek_v32", SPARSE), ("glm_moe_dsa", SPARSE)])
def test_models_that_change_their_mask_are_measured_by_the_returned_weights(name, sizes):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes)).eval()
    ids, before = some_ids(2, 30), model.config._attn_implementation
    found = row_entropies(model, ids).double()
    torch.testing.assert_close(found, rows_by_output_attentions(model, ids), atol=1e-5, rtol=0)
    assert model.config._attn_implementation == before
    with pytest.raises(ValueError, match="changes its mask"):
        EntropyRegularizer(model, context=30)


def test_keys_that_an_indexer_selects_are_not_ignored():
    query = torch.ones(1, 2, 3, 4)
    for name in ("indices", "block_indices"):
        with pytest.raises(NotSwitched):
            attention_function(torch.nn.Identity(), query, query, query, None, **{name: torch.zeros(1)})


def test_bidirectional_attention_and_training_are_refused():
    xlnet = AutoModelForCausalLM.from_config(XLNetConfig(vocab_size=67, d_model=32, n_layer=2, n_head=4, d_inner=64))
    with pytest.raises(ValueError, match="they reach later tokens"):
        measure(xlnet, some_ids(2, 20))
    model = of_family("bloom")
    with pytest.raises(ValueError, match="does not go through transformers' attention interface"):
        EntropyRegularizer(model, context=20)
    assert not hasattr(model, "reg_threshold_weights")
