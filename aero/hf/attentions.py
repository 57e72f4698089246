"""Row entropies from attention weights that a Hugging Face model gives away: for the families whose attention does not
go through transformers' attention interface (GPT-J, GPT-Neo, Falcon, MPT, Bloom, XGLM, CodeGen, ...).

The model makes every layer's T x T matrix, and `output_attentions=True` hands over all layers' at once: of one sequence
at a time, L x H x T x T weights. Their entropies are known and no way into the logits, so this measures and trains not.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel


def row_entropies_given(model: PreTrainedModel, given: dict[str, Any], real: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of every layer: entropies (B, H, T), nats, float32, and how many keys each query may see, (B, T).

    given: what `model.base_model` is called with, `input_ids` (B, T) among it. real: (B, T) bool, False where a token
    is padding, whose rows mean nothing. The list is empty if the model gives no attention weights. The model is in
    evaluation mode.

    ValueError if what it gives are no weights of causal attention (rows that sum to 1, nothing on later tokens or on
    padding): then they are not what the model computes with, or there is no such entropy.
    """
    parameters = inspect.signature(model.base_model.forward).parameters
    if not any(name == "output_attentions" or p.kind is p.VAR_KEYWORD for name, p in parameters.items()):
        return []
    sequences = []
    with _eager(model):
        for index in range(len(real)):
            alone = {k: v[index : index + 1] if isinstance(v, Tensor) else v for k, v in given.items()}
            attentions = getattr(model.base_model(**alone, output_attentions=True), "attentions", None)
            weights = [p for p in attentions or () if p is not None]
            sequences.append([_of_layer(model, p, real[index : index + 1]) for p in weights])
    layers = zip(*sequences, strict=True)
    rows = [torch.cat(layer) for layer in layers]
    return [(entropies, _seen(model, layer, real)) for layer, entropies in enumerate(rows)]


def _of_layer(model: PreTrainedModel, p: Tensor, real: Tensor) -> Tensor:
    """-sum p log p of one sequence's weights p (1, H, T, T): (1, H, T), 0 in the rows of padding."""
    tokens = real.shape[-1]
    if p.ndim != 4 or p.shape[0] != 1 or p.shape[-2:] != (tokens, tokens):
        raise _no_weights(model, f"shape {tuple(p.shape)} is not (sequences, heads, {tokens}, {tokens})")
    if bool((p < 0).any()):
        raise _no_weights(model, "some are negative")
    p = p.masked_fill(~real[:, None, :, None], 0.0)
    # A row of a head whose logits are not finite is all NaN, and its entropy NaN.
    visible = real[:, None, None, :] & torch.ones(tokens, tokens, dtype=torch.bool, device=p.device).tril()
    if bool(p.masked_fill(visible, 0.0).nan_to_num().any()):
        raise _no_weights(model, "they reach later tokens or padding")
    off = (p.float().sum(-1) - real[:, None].float()).abs()
    if bool((off > 1e-3 + 8 * torch.finfo(p.dtype).eps).any()):
        raise _no_weights(model, "a row does not sum to 1")
    p = p.float()
    return -torch.special.xlogy(p, p).sum(-1)


def _seen(model: PreTrainedModel, layer: int, real: Tensor) -> Tensor:
    """How many keys each query may see, (B, T): the real ones up to it, in GPT-Neo's local layers in their window."""
    counts = real.cumsum(-1)
    config = model.config
    kinds = getattr(config, "attention_layers", None)
    if config.model_type == "gpt_neo" and kinds[layer] == "local" and config.window_size < counts.shape[-1]:
        before = torch.nn.functional.pad(counts, (config.window_size, 0))[..., : counts.shape[-1]]
        counts = counts - before
    return counts


@contextlib.contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """Within it, every part of `model` makes its mask for, and takes, the attention that gives its weights away.

    `set_attn_implementation` refuses these families as a whole, though some (Falcon) look at the configuration in each
    pass: with another implementation there they mask nothing where they trust a kernel to.
    """
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation = "eager"
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def _no_weights(model: PreTrainedModel, why: str) -> ValueError:
    return ValueError(
        f"what {type(model).__name__} gives as its attention weights are none of causal attention: {why}; if it is a "
        'causal model, load it with attn_implementation="eager"'
    )
