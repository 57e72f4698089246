"""Llama, Mistral and Qwen2 of Hugging Face as models of `encoding`, through their attention and cache interfaces."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

from aero.parallel_context.attention import QueryPass, attend
from aero.parallel_context.encoding import Cache

FAMILIES = ("llama", "mistral", "qwen2")
"""`model_type` of the configurations that are supported: rotary, no soft-capped logits, one kind of attention layer."""

IMPLEMENTATION = "aero_parallel_context"
"""The name under which `_attention` is registered."""

REPLACEABLE = ("eager", "sdpa", IMPLEMENTATION)
"""Attention implementations whose numbers this one reproduces."""


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    query_pass: QueryPass | None = None,
    **_more: Any,
) -> tuple[Tensor, None]:
    """The interface's form of `attend`: returns (B, m, H, d_k)."""
    if sliding_window is not None and key.shape[-2] > sliding_window:
        raise ValueError(
            f"{type(module).__name__} attends to a window of {sliding_window} tokens and the context has"
            f" {key.shape[-2]}: a segment is seen whole or not at all; use a shorter context or a model without window"
        )
    mask = None if attention_mask is None else attention_mask[0, 0]
    return attend(query, key, value, scaling, mask, query_pass).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _attention)


def check_implementation(name: str | None) -> None:
    """ValueError for an attention implementation that parallel encoding cannot work with."""
    if name is not None and name not in REPLACEABLE:
        raise ValueError(
            f"attention implementation {name!r} is not supported: entropy and selection need the attention"
            f" probabilities, which it never forms; load the model with attn_implementation='sdpa' or 'eager'"
        )


class HuggingFaceModel:
    """A Llama, Mistral or Qwen2 for causal language modelling; its attention implementation is replaced for good.

    ValueError for another family, an attention implementation or a cache that cannot be replaced.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        kind = model.config.model_type
        if kind not in FAMILIES:
            raise ValueError(f"model family {kind!r} is not supported: parallel encoding knows {', '.join(FAMILIES)}")
        check_implementation(model.config._attn_implementation)
        model.set_attn_implementation(IMPLEMENTATION)
        self.model = model.eval()
        self.context, self.layers = model.config.max_position_embeddings, model.config.num_hidden_layers

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Cache | None = None,
        mask: Tensor | None = None,
        query_pass: QueryPass | None = None,
    ) -> tuple[Tensor, Cache]:
        """See `encoding.Model`."""
        past = DynamicCache()
        for layer, (key, value) in enumerate(cache or []):
            past.update(key, value, layer)
        output = self.model(
            input_ids=ids,
            position_ids=positions.expand(ids.shape),
            attention_mask=None if mask is None else mask[None, None],
            past_key_values=past,
            use_cache=True,
            # A context pass is for its cache: the logits of its last token are the fewest it can give.
            logits_to_keep=1 if query_pass is None and mask is None else 0,
            query_pass=query_pass,
        )
        return output.logits, [(layer.keys, layer.values) for layer in past.layers]
