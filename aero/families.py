"""The papers' model families as fields of `aero.model.ModelConfig`: sizes and switches.

gpt2, gpt2-18l   GPT-2 small with 12 and 18 layers in the CodeParrot recipe (the defaults of `ModelConfig`)
pythia-70m       GPT-NeoX: rotary positions on a quarter of each head, parallel residual, untied, biases everywhere
languini-gpt2    languini-kitchen's GPT-2 small: embeddings x sqrt(d), scaled FFN start, untied, biases everywhere

Importing this module loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_BIASED_UNTIED = {"qk_bias": True, "vo_bias": True, "ffn_bias": True, "tied": False}


@dataclass(frozen=True)
class Family:
    """sizes: as published; a smaller scale replaces them. switches: what defines the family at any size."""

    sizes: dict[str, int]
    switches: dict[str, Any] = field(default_factory=dict)


CHANGEABLE = {
    "layers": "number of layers, L",
    "heads": "attention heads of a layer, H",
    "width": "width of the residual stream, d",
    "vocabulary": "entries of the vocabulary, V",
}
"""Sizes that commands accept as options (--layers ...). The FFN's width follows from `width`."""

FAMILIES = {
    "gpt2": Family({"layers": 12, "heads": 12, "width": 768, "ffn_width": 3072}),
    "gpt2-18l": Family({"layers": 18, "heads": 12, "width": 768, "ffn_width": 3072}),
    "pythia-70m": Family(
        {"layers": 6, "heads": 8, "width": 512, "ffn_width": 2048},
        _BIASED_UNTIED | {"gelu": "exact", "position": "rotary", "rotary_fraction": 0.25, "parallel_residual": True},
    ),
    "languini-gpt2": Family(
        {"layers": 12, "heads": 12, "width": 768, "ffn_width": 3072},
        _BIASED_UNTIED | {"gelu": "tanh", "embedding_scale": True, "residual_init_scaling": True},
    ),
}
