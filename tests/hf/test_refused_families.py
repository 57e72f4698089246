"""Families whose attention does not go through transformers' interface, or not with the mask alone: refused."""

import pytest
import torch
from tiny_hugging_face import GROUPED, some_ids
from transformers import AutoConfig, AutoModelForCausalLM, BloomConfig, GPTNeoConfig, XLNetConfig

from aero.entropy import EntropyRegularizer, measure
from aero.hf.attention import NotSwitched, attention_function

CONFIGS = {
    "gpt_neo": GPTNeoConfig(
        vocab_size=67, hidden_size=32, num_layers=2, num_heads=4, max_position_embeddings=160, window_size=9,
        attention_types=[[["global", "local"], 1]],
    ),
    "bloom": BloomConfig(vocab_size=67, hidden_size=32, n_layer=2, n_head=4),
    "xlnet": XLNetConfig(vocab_size=67, d_model=32, n_layer=2, n_head=4, d_inner=64),
    "doge": AutoConfig.for_model("doge", **GROUPED | {"num_key_value_heads": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_they_are_neither_measured_nor_trained(name):
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    before = model.config._attn_implementation
    with pytest.raises(NotSwitched, match="use GPT-2"):
        measure(model, some_ids(2, 20))
    with pytest.raises(NotSwitched, match="use GPT-2"):
        EntropyRegularizer(model, context=20)
    assert model.config._attn_implementation == before and not hasattr(model, "reg_threshold_weights")


def test_keys_that_an_indexer_selects_are_not_ignored():
    query = torch.ones(1, 2, 3, 4)
    for name in ("indices", "block_indices"):
        with pytest.raises(NotSwitched):
            attention_function(torch.nn.Identity(), query, query, query, None, **{name: torch.zeros(1)})
