"""Families beside the five that everything is tested with: their entropies against their own attention weights."""

import copy

import pytest
import torch
import transformers
from test_huggingface import by_output_attentions
from tiny_hugging_face import ROPE, SIZES, padded, some_ids
from transformers import AutoModelForCausalLM

from aero.hf.measure import row_entropies
from aero.records import ROOT

SPREAD = 0.2
"""Of the weights. At 0.3 their three layers make of float32's rounding up to 1.5e-5 nats, by eager attention alone."""

PLAIN = ROPE | {"initializer_range": SPREAD}
FEWER_KEYS = PLAIN | {"num_key_value_heads": 2}
WIDE = FEWER_KEYS | {"head_dim": 8}
OPT = {
    **SIZES,
    "word_embed_proj_dim": 32,
    "ffn_dim": 64,
    "max_position_embeddings": 160,
    "dropout": 0.0,
    "init_std": SPREAD,
}
BIG_CODE = {
    "vocab_size": 67,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 160,
    "attn_pdrop": 0.0,
    "initializer_range": SPREAD,
}
WINDOWS = {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}  # those of real models are beyond 67
FAMILIES = {
    "OPT": ("OPTConfig", OPT),
    "Phi": ("PhiConfig", PLAIN),
    "Gemma": ("GemmaConfig", WIDE),
    "Gemma 3": ("Gemma3TextConfig", WIDE | WINDOWS),
    "OLMo 2": ("Olmo2Config", PLAIN),
    "StableLM": ("StableLmConfig", FEWER_KEYS),
    "StarCoder 2": ("Starcoder2Config", FEWER_KEYS),
    "GPT-BigCode": ("GPTBigCodeConfig", BIG_CODE),
    "Qwen3": ("Qwen3Config", WIDE),
    "Mixtral": ("MixtralConfig", FEWER_KEYS | {"num_local_experts": 2}),
    "Cohere": ("CohereConfig", FEWER_KEYS),
    "BioGPT": ("BioGptConfig", PLAIN | {"attention_probs_dropout_prob": 0.0}),
}  # fmt: skip
"""As docs/measure_entropy.md names them, through transformers' attention interface."""


def test_the_page_names_these_families():
    page = (ROOT / "docs/measure_entropy.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if "through transformers' attention interface" in line)
    named = row.split("|")[1].strip()
    assert named == f"GPT-2, GPT-NeoX, Llama, Mistral, Qwen2; also {', '.join(FAMILIES)}"


@pytest.mark.parametrize("name", FAMILIES)
def test_entropies_are_those_of_output_attentions(name):
    config, sizes = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config)(**copy.deepcopy(sizes), **TOKENS)
    model, ids = AutoModelForCausalLM.from_config(config).eval(), some_ids()
    for mask in (torch.ones_like(ids), padded("left", [100, 71, 2]), padded("right", [100, 71, 2])):
        found = row_entropies(model, ids, mask)
        expected = by_output_attentions(model, ids, mask) * mask[:, None]
        assert found.shape == (3, 3, 4, 100) and expected.max() > 1
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
