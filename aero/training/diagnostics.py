"""Measurements on a model while it trains: layer statistics, attention statistics, the first non-finite value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from aero.attention_kernels import causal_mask
from aero.model import GPT
from aero.records import Row
from aero.training.distributed import ALONE, Processes
from aero.training.kernels import eager

FLOAT16_MAX = 65504.0

Backward = Callable[[list[Tensor], list[Tensor]], None]


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
def find_nonfinite(
    model: GPT, ids: Tensor, step: int, processes: Processes = ALONE, backward: Backward | None = None
) -> dict[str, Any]:
    """The first layer whose output is not finite on `ids`, of any process: {"step", "layer", "where"}.

    If all activations and logits are finite, "gradient"; with `backward`, the place where the gradient breaks first,
    from the loss down: "gradient of block output" or "gradient of weights", and the layer. "gradient" without a layer
    then means that every entry is finite and only the norm is not.
    backward: takes the states (L + 1 of (B, T, d)) and row entropies of a pass, and calls backward() on its loss.
    """
    model.eval()
    with eager():
        states, _ = model.hidden_states(ids)
        values = [*states, model(ids)]
    model.train()
    # 0: embedding, 1 … L: blocks, L + 1: logits, L + 2: none of them
    place = next((index for index, value in enumerate(values) if not torch.isfinite(value).all()), len(values))
    place = processes.lowest(place)
    if place == 0:
        return {"step": step, "layer": None, "where": "embedding"}
    if place < len(states):
        return {"step": step, "layer": place - 1, "where": "block output"}
    if place == len(states):
        return {"step": step, "layer": None, "where": "logits"}
    found = {"step": step, "layer": None, "where": "gradient"}
    return found if backward is None else found | _nonfinite_gradient(model, ids, backward, processes)


@torch.enable_grad()
def _nonfinite_gradient(model: GPT, ids: Tensor, backward: Backward, processes: Processes) -> dict[str, Any]:
    """The layer nearest to the loss with a non-finite gradient, in one more pass over `ids`."""
    model.zero_grad(set_to_none=True)
    with eager():
        states, entropies = model.hidden_states(ids, entropy=model.architecture.entropy_regularized)
        for state in states:
            state.retain_grad()
        backward(states, entropies)

    def broken(tensors: Iterable[Tensor]) -> bool:
        return any(tensor.grad is not None and not torch.isfinite(tensor.grad).all() for tensor in tensors)

    last = len(model.blocks) - 1
    # 2 d for the output of the block d below the last, 2 d + 1 for its weights
    places = [
        place
        for depth, block in enumerate(reversed(model.blocks))
        for place, tensors in ((2 * depth, states[last + 1 - depth :][:1]), (2 * depth + 1, block.parameters()))
        if broken(tensors)
    ]
    place = processes.lowest(min(places, default=2 * last + 2))
    model.zero_grad(set_to_none=True)
    if place > 2 * last + 1:
        return {}
    where = "gradient of weights" if place % 2 else "gradient of block output"
    return {"layer": last - place // 2, "where": where}


def finite(value: float) -> float | None:
    """None for a value that is not finite: CSV and JSON have none."""
    return value if math.isfinite(value) else None
