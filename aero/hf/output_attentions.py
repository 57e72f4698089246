"""Row entropies from the attention weights of `output_attentions=True`: for measuring the families whose attention does
not go through transformers' attention interface (GPT-J, GPT-Neo, Falcon, MPT, Bloom, XGLM, CodeGen, ...).

The model returns the weights of all layers at once: L x H x T x T numbers for each sequence, one sequence at a time.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from aero.hf.attention import Rows


def rows_from_weights(model: PreTrainedModel, given: dict[str, Any], real: Tensor) -> list[Rows]:
    """The rows of every layer, entropies in float32; empty if the model returns no attention weights.

    given: the arguments of `model.base_model`, with `input_ids` (B, T). real: (B, T) bool, False for padding.
    Raises ValueError if the weights are not those of causal attention: rows that sum to 1, with nothing on later tokens
    or on padding.
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
            sequences.append([_row_entropies(model, p, real[index : index + 1]) for p in weights])
    layers = enumerate(zip(*sequences, strict=True))
    return [Rows(None, torch.cat(entropies), _visible_keys(model, layer, real)) for layer, entropies in layers]


def _row_entropies(model: PreTrainedModel, p: Tensor, real: Tensor) -> Tensor:
    """-sum p log p of the weights p (1, H, T, T) of one sequence: (1, H, T), 0 in the rows of padding."""
    tokens = real.shape[-1]
    if p.ndim != 4 or p.shape[0] != 1 or p.shape[-2:] != (tokens, tokens):
        raise _no_weights(model, f"shape {tuple(p.shape)} is not (sequences, heads, {tokens}, {tokens})")
    if bool((p < 0).any()):
        raise _no_weights(model, "some are negative")
    p = p.masked_fill(~real[:, None, :, None], 0.0)
    # A row with logits that are not finite is NaN, and so is its entropy.
    visible = real[:, None, None, :] & torch.ones(tokens, tokens, dtype=torch.bool, device=p.device).tril()
    if bool(p.masked_fill(visible, 0.0).nan_to_num().any()):
        raise _no_weights(model, "they reach later tokens or padding")
    off = (p.float().sum(-1) - real[:, None].float()).abs()
    if bool((off > 1e-3 + 8 * torch.finfo(p.dtype).eps).any()):
        raise _no_weights(model, "a row does not sum to 1")
    p = p.float()
    return -torch.special.xlogy(p, p).sum(-1)


def _visible_keys(model: PreTrainedModel, layer: int, real: Tensor) -> Tensor:
    """Number of keys that each query sees, (B, T): the real ones up to it, in GPT-Neo's local layers in a window."""
    counts = real.cumsum(-1)
    config = model.config
    kinds = getattr(config, "attention_layers", None)
    if config.model_type == "gpt_neo" and kinds[layer] == "local" and config.window_size < counts.shape[-1]:
        before = torch.nn.functional.pad(counts, (config.window_size, 0))[..., : counts.shape[-1]]
        counts = counts - before
    return counts


@contextlib.contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """Inside, every part of `model` uses the attention implementation that returns its weights.

    `set_attn_implementation` refuses these families, but some (Falcon) read the configuration in each forward pass.
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
        f"the attention weights of {type(model).__name__} are not those of causal attention: {why}; if it is a causal "
        'model, load it with attn_implementation="eager"'
    )
