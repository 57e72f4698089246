"""Tiny random models of Hugging Face's families, and token ids for them; not a module of tests."""

import copy

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, MistralConfig, Qwen2Config

SIZES = {"vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
ROPE = SIZES | {"intermediate_size": 64, "max_position_embeddings": 160, "initializer_range": 0.3}
GROUPED = ROPE | {"num_key_value_heads": 2}
CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=67, n_embd=32, n_layer=3, n_head=4, n_positions=160, initializer_range=0.3,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    ),
    "gpt_neox": GPTNeoXConfig(**ROPE),
    "llama": LlamaConfig(**GROUPED),
    "mistral": MistralConfig(**GROUPED, sliding_window=9),
    "qwen2": Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=9, max_window_layers=2),
}  # fmt: skip


def tiny(name, seed=0):
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name])).eval()


def some_ids(sequences=3, tokens=100, seed=1):
    return torch.randint(67, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def padded(side, lengths, tokens=100):
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    return (mask if side == "right" else mask.flip(-1)).long()
