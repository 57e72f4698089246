"""Tiny random Hugging Face models, token ids and padding masks for tests."""

import copy
import json

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from aero.hf.measure import run

ROPE = {
    "vocab_size": 67, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 160, "initializer_range": 0.3,
}  # fmt: skip
GROUPED = ROPE | {"num_key_value_heads": 2}
CONFIGS = {
    "gpt2": GPT2Config(
        vocab_size=67, n_embd=32, n_layer=3, n_head=4, n_positions=160, initializer_range=0.3,
        attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    ),
    "gpt_neox": GPTNeoXConfig(**ROPE),
    "llama": LlamaConfig(**GROUPED),
    "qwen2": Qwen2Config(**GROUPED, use_sliding_window=True, sliding_window=9, max_window_layers=2),
}  # fmt: skip
"""One each of: learned positions, rotary positions, grouped queries, a sliding window of 9 in the last layer."""


def tiny(name, **changes):
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[name])
    for key, value in changes.items():
        setattr(config, key, value)
    return AutoModelForCausalLM.from_config(config).eval()


def some_ids(sequences=2, tokens=80, seed=1):
    return torch.randint(67, (sequences, tokens), generator=torch.Generator().manual_seed(seed))


def padded(side, lengths, tokens=80):
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    return (mask if side == "right" else mask.flip(-1)).long()


@torch.no_grad()
def row_entropies(model, ids, mask=None):
    """Entropy of every attention row as `measure` computes it, (L, B, H, T) nats; 0 where the query is padding."""
    rows, real = run(model, ids, attention_mask=mask)
    return torch.stack([torch.where(real[:, None], row.entropies, 0.0) for row in rows])


def rows_by_output_attentions(model, ids, mask=None):
    """-sum p log p of the attention weights that the model itself returns, (L, B, H, T), float64."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    positions = None if mask is None else (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        given = eager(ids, attention_mask=mask, position_ids=positions, output_attentions=True).attentions
    p = torch.stack(given).double()
    return -torch.special.xlogy(p, p).sum(-1)


def save_with_tokenizer(model, folder):
    """Save a model of bytes (at least 256 entries) with a byte-level tokenizer; the tokenizer."""
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(folder)
    return fast


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
