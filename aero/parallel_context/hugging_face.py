"""Llama, Mistral and Qwen2 of Hugging Face as models of `encoding`, through their attention and cache interfaces."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel

from aero.parallel_context.attention import Cache, QueryPass, attend

FAMILIES = ("llama", "mistral", "qwen2")
"""Supported values of `model_type`: rotary positions, no soft-capped logits, one kind of attention layer."""
IMPLEMENTATION = "aero_parallel_context"
"""The name under which `_attention` is registered."""
ROTARY = ("default", "linear", "llama3", "yarn", "proportional")
"""Values of `rope_type` whose rotation of a token depends on its position alone; that of `longrope` and `dynamic`
depends on the length of the pass, which differs between segments and query."""


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
            f" {key.shape[-2]}: use a shorter context or a model without a window"
        )
    mask = None if attention_mask is None else attention_mask[0, 0]
    return attend(query, key, value, scaling, mask, query_pass).transpose(1, 2).contiguous(), None


AttentionInterface.register(IMPLEMENTATION, _attention)


class HuggingFaceModel:
    """A Llama, Mistral or Qwen2 causal language model; its attention implementation is replaced for good.

    context: number of positions it was trained on. ValueError for another family or kind of rotary positions.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        if (kind := model.config.model_type) not in FAMILIES:
            raise ValueError(f"model family {kind!r} is not supported; supported: {', '.join(FAMILIES)}")
        rotary = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "default")
        if rotary not in ROTARY:
            raise ValueError(
                f"rope_type {rotary!r} is not supported: it rotates a token by the length of the pass, which differs"
                f" between segments and query; supported: {', '.join(ROTARY)}"
            )
        model.set_attn_implementation(IMPLEMENTATION)
        self.model = model.eval()
        self.context = model.config.max_position_embeddings

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Cache | None = None,
        mask: Tensor | None = None,
        query_pass: QueryPass | None = None,
    ) -> tuple[Tensor, Cache]:
        """Logits (B, m, V) of `ids` (B, m) at `positions` (m,) behind the n tokens of `cache`, and the longer cache.

        mask: (m, n + m) bool instead of causal attention; query_pass: records, and may change, every layer's attention.
        """
        past = DynamicCache()
        for layer, (key, value) in enumerate(cache or []):
            past.update(key, value, layer)
        output = self.model(
            input_ids=ids,
            position_ids=positions.expand(ids.shape),
            attention_mask=None if mask is None else mask[None, None],
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1 if query_pass is None and mask is None else 0,  # a context pass needs only its cache
            query_pass=query_pass,
        )
        return output.logits, [(layer.keys, layer.values) for layer in past.layers]
