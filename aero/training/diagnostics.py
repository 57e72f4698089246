"""Measurements on a model while it trains: layer statistics, attention statistics, the first non-finite value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aero.attention_kernels import causal_mask
from aero.model import GPT
from aero.records import Row, finite
from aero.training.kernels import eager

FLOAT16_MAX = 65504.0


@torch.no_grad()
def layer_columns(model: GPT, ids: Tensor) -> Row:
    """Columns of the log, measured on `ids` (B, T). Of every layer: mean attention entropy in nats, the largest
    magnitude of the block's output, and how many of its values float16 cannot hold (beyond 65504, infinite or not a
    number)."""
    model.eval()  # in training mode a spectral norm would iterate, and measuring would change the training
    with eager():
        states, entropies = model.hidden_states(ids, entropy=True)
    model.train()
    row: Row = {}
    for layer, (state, entropy) in enumerate(zip(states[1:], entropies, strict=True)):
        magnitudes = state.float().abs()  # (B, T, d)
        row[f"entropy_layer_{layer}"] = finite(entropy.float().mean().item())
        row[f"activation_layer_{layer}"] = finite(magnitudes.max().item())
        row[f"overflow_layer_{layer}"] = int((~(magnitudes <= FLOAT16_MAX)).sum())
    return row


@torch.no_grad()
def attention_columns(model: GPT, ids: Tensor) -> Row:
    """Columns of the log, measured on `ids` (B, T). Of every layer: the mean ||P||_F of its attention matrices, and the
    mean variance of a query's logits over the keys it may see (`variance_sensitivity`, Definition 5.2)."""
    model.eval()
    with eager():
        states, _ = model.hidden_states(ids)
    allowed = causal_mask(ids.shape[1], ids.device).float()  # (T, T)
    keys = allowed.sum(-1)  # (T,)
    row: Row = {}
    for layer, (block, x) in enumerate(zip(model.blocks, states, strict=False)):
        probabilities, logits = block.attention.matrices(block.ln_1(x))
        logits = logits.float()
        mean = (logits * allowed).sum(-1) / keys  # (B, H, T)
        variance = ((logits - mean[..., None]).square() * allowed).sum(-1) / keys
        row[f"norm_layer_{layer}"] = finite(torch.linalg.matrix_norm(probabilities.float()).mean().item())
        row[f"variance_layer_{layer}"] = finite(variance.mean().item())
    model.train()
    return row


@torch.no_grad()
def find_nonfinite(model: GPT, ids: Tensor, step: int) -> dict[str, Any]:
    """The first layer whose output is not finite on `ids`: {"step", "layer", "where"}.

    If all activations and logits are finite, "gradient of weights" and the layer nearest to the loss whose weights have
    a gradient that is not finite; "gradient" without a layer if there is none, as only the norm is not finite.
    """
    model.eval()
    with eager():
        states, _ = model.hidden_states(ids)
        values = [*states, model(ids)]
    model.train()
    layers = list(enumerate(model.blocks))
    places = [(None, "embedding"), *((layer, "block output") for layer, _ in layers), (None, "logits")]
    for layer, block in reversed(layers):
        if not all(torch.isfinite(p.grad).all() for p in block.parameters() if p.grad is not None):
            places.append((layer, "gradient of weights"))
    places.append((None, "gradient"))
    first = next((index for index, value in enumerate(values) if not torch.isfinite(value).all()), len(values))
    layer, where = places[first]
    return {"step": step, "layer": layer, "where": where}
