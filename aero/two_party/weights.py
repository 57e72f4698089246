"""A model's weights as the two programs need them: transposed, folded, in float32.

Everything here is done by the server on its own weights, in float64, before a question arrives. On PyTorch's meta
device the same code gives the shapes, which is all that a client knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor

from aero.architecture import Architecture
from aero.model import GPT, ModelConfig, fold_weight_norm

Weights = dict[str, Tensor]


def weight_arrays(model: GPT, program: str) -> dict[str, np.ndarray]:
    """The folded weights of `model` as float32 arrays, ready for the server's process.

    Weight and spectral norms are folded away first. ValueError for a model the programs cannot run yet.
    """
    if model.architecture.weight_norm is not None:
        model = fold_weight_norm(model)
    weights = folded(model.architecture, model.config, model.state_dict(), program)
    return {name: value.to(torch.float32).contiguous().numpy() for name, value in weights.items()}


def weight_shapes(architecture: Architecture, config: ModelConfig, program: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the folded weights, from the sizes alone: all a client knows of the server's model.

    ValueError for a model the programs cannot run yet.
    """
    architecture = architecture.at_inference()
    state = _shapes_of_model(architecture, config)
    return {name: tuple(value.shape) for name, value in folded(architecture, config, state, program).items()}


@cache
def _shapes_of_model(architecture: Architecture, config: ModelConfig) -> dict[str, Tensor]:
    """A state of `aero.model.GPT` without values."""
    with torch.device("meta"):
        return GPT(architecture, config).state_dict()


def folded(architecture: Architecture, config: ModelConfig, state: Mapping[str, Tensor], program: str) -> Weights:
    """Weights of `program` ("as_published" or "tuned"), float64, from a state of `aero.model.GPT`.

    as_published keeps every matrix apart and folds only 1/alpha and the He & Hofmann scalars that multiply a matrix of
    the server's. tuned folds whatever is linear (see `aero.two_party.program`).
    """
    _refuse_unknown(architecture, config)
    if program not in ("as_published", "tuned"):
        raise ValueError(f"unknown program {program!r}: as_published or tuned")
    s = {name: value.detach().double() for name, value in state.items()}
    make = _he_hofmann if architecture.block == "he_hofmann" else _pre_ln
    weights: Weights = {
        "token_embedding": s["token_embedding.weight"] * (config.width**0.5 if config.embedding_scale else 1.0),
        "position_embedding": s["position_embedding.weight"],
    }
    for layer in range(config.layers):
        block = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in s.items()
            if name.startswith(f"blocks.{layer}.")
        }
        for name, value in make(architecture, config, block, program == "tuned", layer).items():
            weights[f"{layer}.{name}"] = value
    head = s["token_embedding.weight" if config.tied else "lm_head.weight"].T
    if config.ln_f:
        if program == "tuned":
            weights["head_bias"] = s["ln_f.bias"] @ head
            head = s["ln_f.weight"][:, None] * head
        else:
            weights["ln_f.weight"], weights["ln_f.bias"] = s["ln_f.weight"], s["ln_f.bias"]
    weights["head"] = head
    return weights


def _refuse_unknown(architecture: Architecture, config: ModelConfig) -> None:
    """ValueError for what neither program computes: better none than the cost or the logits of another model."""
    if architecture.slope is not None:
        reason = "the learnable slope of a leaky ReLU"
    elif config.position != "learned":
        reason = f"{config.position} positions"
    elif config.parallel_residual:
        reason = "a parallel residual connection"
    elif architecture.weight_norm is not None:
        reason = "weights with a norm; fold it away first (aero.model.fold_weight_norm)"
    else:
        return
    raise ValueError(f"{architecture}: two-party inference does not know {reason}")


def _bias(block: Mapping[str, Tensor], name: str, width: int) -> Tensor:
    """The bias called `name`, or zeros where the recipe has none."""
    device = block["attention.query.weight"].device
    return block.get(f"{name}.bias", torch.zeros(width, dtype=torch.float64, device=device))


def _identity(like: Tensor) -> Tensor:
    """The identity matrix as wide as `like`."""
    return torch.eye(like.shape[1], dtype=torch.float64, device=like.device)


def _query_key(block: Mapping[str, Tensor], config: ModelConfig, scaled: bool) -> dict[str, Tensor]:
    """Q and K as (in, out) matrices; `scaled` folds 1/sqrt(d_k) into Q."""
    factor = (config.width / config.heads) ** -0.5 if scaled else 1.0
    return {
        "query": factor * block["attention.query.weight"].T,
        "query_bias": factor * _bias(block, "attention.query", config.width),
        "key": block["attention.key.weight"].T,
        "key_bias": _bias(block, "attention.key", config.width),
    }


def _pre_ln(
    architecture: Architecture, config: ModelConfig, block: Mapping[str, Tensor], tuned: bool, layer: int
) -> Weights:
    d = config.width
    w = _query_key(block, config, scaled=tuned)
    w |= {
        "value": block["attention.value.weight"].T,
        "value_bias": _bias(block, "attention.value", d),
        "output": block["attention.output.weight"].T,
        "output_bias": _bias(block, "attention.output", d),
    }
    if architecture.temperature:
        w["inverse_temperature"] = 1.0 / block["attention.temperature"]  # (H, T)
    for name in ("ln_1", "ln_2"):
        if architecture.layer_norm:
            w[f"{name}.weight"], w[f"{name}.bias"] = block[f"{name}.weight"], block[f"{name}.bias"]
    has_ffn = layer < architecture.ffn_layers(config.layers)
    if has_ffn:
        if architecture.ffn == "fused":
            ffn = {"fused": block["ffn.fused.weight"].T, "fused_bias": _bias(block, "ffn.fused", d)}
        else:
            ffn = {
                "up": block["ffn.up.weight"].T,
                "up_bias": _bias(block, "ffn.up", config.ffn_width),
                "down": block["ffn.down.weight"].T,
                "down_bias": _bias(block, "ffn.down", d),
            }
        if architecture.scaled:
            last = "fused" if architecture.ffn == "fused" else "down"
            ffn[last] = ffn[last] / block["alpha"]
            ffn[f"{last}_bias"] = ffn[f"{last}_bias"] / block["alpha"]
            w["beta"] = block["beta"]
        w |= ffn
    return _fold_pre_ln(architecture, w, has_ffn) if tuned else w


def _fold_pre_ln(architecture: Architecture, w: Weights, has_ffn: bool) -> Weights:
    """Q, K, V as one product; LayerNorm's gain and bias into the next product; linear FFNs into W_O.

    With x_SA = x + A W_O and x' = x_SA M, M = beta I + W_ffn / alpha:  x' = [x | A] [[M], [W_O M]].
    """
    tuned: Weights = {}
    qkv = torch.cat([w["query"], w["key"], w["value"]], 1)
    qkv_bias = torch.cat([w["query_bias"], w["key_bias"], w["value_bias"]])
    if architecture.layer_norm:
        qkv_bias = qkv_bias + w["ln_1.bias"] @ qkv
        qkv = w["ln_1.weight"][:, None] * qkv
    tuned["qkv"], tuned["qkv_bias"] = qkv, qkv_bias
    if "inverse_temperature" in w:
        tuned["inverse_temperature"] = w["inverse_temperature"]
    if architecture.ffn in ("gelu", "relu") or (architecture.layer_norm and has_ffn):
        tuned["output"], tuned["output_bias"] = w["output"], w["output_bias"]
        up, up_bias, down, down_bias = w["up"], w["up_bias"], w["down"], w["down_bias"]
        if architecture.layer_norm:
            up_bias = up_bias + w["ln_2.bias"] @ up
            up = w["ln_2.weight"][:, None] * up
        if architecture.ffn == "linear":  # LayerNorm before it, but no activation inside: one matrix
            tuned["ffn"], tuned["ffn_bias"] = up @ down, up_bias @ down + down_bias
        else:
            tuned |= {"up": up, "up_bias": up_bias, "down": down, "down_bias": down_bias}
        return tuned
    identity = _identity(w["output"])
    if not has_ffn:
        matrix, bias = identity, torch.zeros_like(w["output_bias"])
    elif "fused" in w:
        matrix, bias = w["beta"] * identity + w["fused"], w["fused_bias"]
    else:
        matrix = w.get("beta", 1.0) * identity + w["up"] @ w["down"]
        bias = w["up_bias"] @ w["down"] + w["down_bias"]
    tuned["from_attention"] = w["output"] @ matrix
    tuned["block_bias"] = w["output_bias"] @ matrix + bias
    if has_ffn:
        tuned["from_both"] = torch.cat([matrix, tuned.pop("from_attention")])  # (2d, d)
    return tuned


def _he_hofmann(
    architecture: Architecture, config: ModelConfig, block: Mapping[str, Tensor], tuned: bool, layer: int
) -> Weights:
    """x' = b_ff FFN(n) + b_sa Concat_h((a_h I + b_h P_h - g_h C) V_h), V = n or, in the first layer, n W_V."""
    d, size = config.width, config.width // config.heads
    w = _query_key(block, config, scaled=tuned)
    if layer == 0:
        w["ln_1.weight"], w["ln_1.bias"] = block["ln_1.weight"], block["ln_1.bias"]
        w["value"] = block["attention.value_residual"] * block["attention.value_weight"].T
        w["value"] = w["value"] + block["attention.value_skip"] * _identity(w["value"])
    if layer >= architecture.ffn_layers(config.layers):
        ffn, bias = None, torch.zeros_like(w["query_bias"])
    elif architecture.ffn == "fused":
        ffn, bias = block["ffn.fused.weight"].T, _bias(block, "ffn.fused", d)
    else:
        up, down = block["ffn.up.weight"].T, block["ffn.down.weight"].T
        bias = _bias(block, "ffn.up", config.ffn_width) @ down + _bias(block, "ffn.down", d)
        ffn = up @ down
    b_ff, b_sa = block["b_ff"], block["b_sa"]
    if not tuned:
        gains = {name: b_sa * block[f"attention.{name}"] for name in ("shape_a", "shape_b", "shape_g")}
        w |= {name: value[:, None, None] for name, value in gains.items()}
        if ffn is None:
            w["b_ff"] = b_ff
        elif architecture.ffn == "fused":
            w["fused"], w["fused_bias"] = b_ff * ffn, b_ff * bias
        else:
            w["up"], w["up_bias"] = up, _bias(block, "ffn.up", config.ffn_width)
            w["down"], w["down_bias"] = b_ff * down, b_ff * _bias(block, "ffn.down", d)
        return w
    folded_weights: Weights = {}
    identity = _identity(w["query"])
    value = w.pop("value", identity)
    gains = (block[f"attention.{name}"] for name in ("shape_a", "shape_b", "shape_g"))
    a, b, g = (torch.diag((b_sa * gain).repeat_interleave(size)) for gain in gains)
    direct = value @ a + b_ff * (identity if ffn is None else ffn)
    # The head's gains act on its own columns; C V = C (n W_V) = (C n) W_V, and P V is taken with V itself.
    query_key = torch.cat([w["query"], w["key"]], 1)
    qk_bias = torch.cat([w["query_bias"], w["key_bias"]])
    mean_part, block_bias = -value @ g, b_ff * bias
    if layer == 0:
        gain, shift = w["ln_1.weight"][:, None], w["ln_1.bias"]
        # Every row of the causal mean and of the softmax sums to 1, so LayerNorm's bias passes through both.
        block_bias = block_bias + shift @ direct + shift @ mean_part
        qk_bias, query_key = qk_bias + shift @ query_key, gain * query_key
        direct, mean_part = gain * direct, gain * mean_part
        folded_weights["value"], folded_weights["value_bias"] = gain * value, shift @ value
    folded_weights |= {
        "qk": query_key,
        "qk_bias": qk_bias,
        "combine": torch.cat([direct, b, mean_part]),
        "block_bias": block_bias,
    }
    return folded_weights
