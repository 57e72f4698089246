"""Tiny random models of every supported family, with the plain full-attention logits of each."""

import torch

from aero.parallel_context.hugging_face import HuggingFaceModel

VOCABULARY, CONTEXT = 97, 64
HUGGING_FACE = ("llama", "mistral", "qwen2")


def hugging_face(kind, attention="sdpa", **changes):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    if kind == "mistral":
        sizes["sliding_window"] = None
    config = AutoConfig.for_model(kind, **(sizes | changes))
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def made(kind):
    """The model as one of `encoding`, and a function of ids that gives its own full-attention logits, in float64.

    The reference is Hugging Face's `sdpa`, because its `eager` rounds probabilities to single precision.
    """
    plain = hugging_face(kind).double()
    return HuggingFaceModel(hugging_face(kind).double()), lambda ids: plain(ids).logits


def ids(sequences, tokens, seed=0):
    return torch.randint(VOCABULARY, (sequences, tokens), generator=torch.Generator().manual_seed(seed))
