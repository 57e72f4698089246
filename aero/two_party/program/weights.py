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
from aero.model import GPT, ModelConfig
from aero.two_party.lattice import lookup
from aero.two_party.lattice import matmul as lattice_product
from aero.two_party.program.optimizations import AS_PUBLISHED, Savings, absorbs, chosen, linear_ffn, named
from aero.weight_transforms import fold_weight_norm

Weights = dict[str, Tensor]
CONDITION_BUDGET = 100.0
MATRICES = frozenset(
    {"query", "key", "value", "output", "qkv", "qk", "others", "basis", "from_both", "from_attention", "combine"}
    | {"fused", "up", "down", "around"}
)
"""Names, within a layer, of the matrices that several rows are multiplied by."""


def weight_arrays(model: GPT, program: str) -> dict[str, np.ndarray]:
    """The folded weights of `model` as float32 arrays, ready for the server's process.

    Weight and spectral norms are folded away first. ValueError for an unknown program.
    """
    if model.architecture.weight_norm is not None:
        model = fold_weight_norm(model)
    weights = folded(model.architecture, model.config, model.state_dict(), program)
    return {name: value.to(torch.float32).contiguous().numpy() for name, value in weights.items()}


def weight_shapes(architecture: Architecture, config: ModelConfig, program: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the folded weights, from the sizes alone: all a client knows of the server's model."""
    architecture = architecture.at_inference()
    state = _shapes_of_model(architecture, config)
    return {name: tuple(value.shape) for name, value in folded(architecture, config, state, program).items()}


@cache
def _shapes_of_model(architecture: Architecture, config: ModelConfig) -> dict[str, Tensor]:
    """A state of `aero.model.GPT` without values."""
    with torch.device("meta"):
        return GPT(architecture, config).state_dict()


def folded(architecture: Architecture, config: ModelConfig, state: Mapping[str, Tensor], program: str) -> Weights:
    """Weights of `program`, float64, from a state of `aero.model.GPT`.

    "as_written" keeps every matrix apart and folds only 1/alpha and the He & Hofmann scalars that multiply a matrix
    of the server's. The savings of `aero.two_party.program.optimizations` that fold matrices do the rest.
    """
    if architecture.weight_norm is not None:
        raise ValueError(f"{architecture}: the weights have a norm; fold it first (fold_weight_norm)")
    if architecture.core != "softmax":
        raise ValueError(f"{architecture}: a private pass computes softmax attention only; take an SM architecture")
    savings, rebased = chosen(program)
    s = {name: value.detach().double() for name, value in state.items()}
    weights: Weights = {"token_embedding": _token_embedding(s, config)}
    if config.position == "learned":
        weights["position_embedding"] = s["position_embedding.weight"]
    basis: Tensor | None = None
    for layer in range(config.layers):
        block = {
            name.removeprefix(f"blocks.{layer}."): value
            for name, value in s.items()
            if name.startswith(f"blocks.{layer}.")
        }
        if architecture.block == "he_hofmann":
            made, basis = _he_hofmann(architecture, config, block, savings, layer, basis)
        else:
            if architecture.slope is not None:
                block["slope"] = s["leaky_slopes"][layer if architecture.slope == "layer" else 0]
            made = {}
            if basis is not None and layer in rebased:
                made["basis"], basis = basis, None
            layer_weights, basis = _pre_ln(architecture, config, block, savings, layer, basis)
            made |= layer_weights
        if {"lattice_products", "last_row"} <= savings and layer == config.layers - 1:
            made = _apart(made, config.width)
        weights |= {f"{layer}.{name}": value for name, value in made.items()}
    head = s["token_embedding.weight" if config.tied else "lm_head.weight"].T
    if config.ln_f:
        if basis is not None:
            weights["basis"] = basis
        if "folded_norms" in savings:
            weights["head_bias"] = s["ln_f.bias"] @ head
            head = s["ln_f.weight"][:, None] * head
        else:
            weights["ln_f.weight"], weights["ln_f.bias"] = s["ln_f.weight"], s["ln_f.bias"]
    elif basis is not None:
        head = basis @ head
    weights["head"] = head
    return weights


def _apart(w: Weights, width: int) -> Weights:
    """A layer's weights with the query, of which the last row alone is wanted, apart from key and value.

    A step on shares takes a matrix as the server put it.
    """
    for name in ("qkv", "qk"):
        if name in w:
            whole, bias = w.pop(name), w.pop(f"{name}_bias")
            w["last_query"], w["last_query_bias"] = whole[:, :width], bias[:width]
            w["others"], w["others_bias"] = whole[:, width:], bias[width:]
    return w


def within_budget(model: GPT, program: str, budget: float = CONDITION_BUDGET, fraction_bits: int = 18) -> str:
    """`program` with the layers named before which the residual stream is put back into its own basis.

    That is wherever the condition number of the product of absorbed matrices would exceed `budget`: an error of the
    fixed point grows by about as much. And without lattice_lookup or lattice_products, where the embedding's entries or
    those of some other matrix are too large for it. The name of the program is part of what both parties know.
    """
    savings, _ = chosen(program)
    if model.architecture.weight_norm is not None:
        model = fold_weight_norm(model)
    architecture, state = model.architecture, model.state_dict()
    if "lattice_lookup" in savings and model.config.vocabulary >= lookup.LEAST_VOCABULARY:
        try:
            lookup.check(_token_embedding(state, model.config).numpy(), fraction_bits)
        except lookup.OverBudget:
            savings -= {"lattice_lookup"}
            program = named(savings, chosen(program)[1])
    if absorbs(architecture, savings):
        program = named(savings, _rebased(architecture, model.config, state, budget))
    if "lattice_products" in savings:
        try:
            for name, value in folded(architecture, model.config, state, program).items():
                if name.rpartition(".")[2] in MATRICES:
                    lattice_product.check(value.numpy(), fraction_bits)
        except lattice_product.OverBudget:
            program = named(savings - {"lattice_products"}, chosen(program)[1])
    return program


def _rebased(
    architecture: Architecture, config: ModelConfig, state: Mapping[str, Tensor], budget: float
) -> tuple[int, ...]:
    """The layers before which the residual stream is put back into its own basis."""
    rebased: list[int] = []
    basis = torch.eye(config.width, dtype=torch.float64)
    for layer in range(config.layers):
        prefix = f"blocks.{layer}."
        block = {name.removeprefix(prefix): v.double() for name, v in state.items() if name.startswith(prefix)}
        if layer >= architecture.ffn_layers(config.layers):
            break
        matrix = _through_ffn(architecture, config, block)[0]
        if float(torch.linalg.cond(basis @ matrix)) > budget and layer > 0:
            rebased.append(layer)
            basis = torch.eye(config.width, dtype=torch.float64)
        basis = basis @ matrix
    return tuple(rebased)


def _token_embedding(state: Mapping[str, Tensor], config: ModelConfig) -> Tensor:
    return state["token_embedding.weight"] * (config.width**0.5 if config.embedding_scale else 1.0)


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


def _multiply(w: Weights, name: str, matrix: Tensor) -> None:
    """Put `matrix` behind the matrix `name` and its bias."""
    w[name], w[f"{name}_bias"] = w[name] @ matrix, w[f"{name}_bias"] @ matrix


def _inverse_gains(basis: Tensor) -> Tensor:
    """Of a diagonal matrix of gains. ValueError if one is 0."""
    try:
        return torch.linalg.inv(basis)
    except torch.linalg.LinAlgError as error:
        raise ValueError("a gain of 0 cannot be folded into the matrices around it; take as_written") from error


def _ffn(architecture: Architecture, config: ModelConfig, block: Mapping[str, Tensor]) -> Weights:
    """The feed-forward matrices (in, out) with 1/alpha in the last of them, and beta where there is one."""
    if architecture.ffn == "fused":
        ffn = {"fused": block["ffn.fused.weight"].T, "fused_bias": _bias(block, "ffn.fused", config.width)}
    else:
        ffn = {
            "up": block["ffn.up.weight"].T,
            "up_bias": _bias(block, "ffn.up", config.ffn_width),
            "down": block["ffn.down.weight"].T,
            "down_bias": _bias(block, "ffn.down", config.width),
        }
    if architecture.scaled:
        last = "fused" if architecture.ffn == "fused" else "down"
        ffn[last] = ffn[last] / block["alpha"]
        ffn[f"{last}_bias"] = ffn[f"{last}_bias"] / block["alpha"]
        ffn["beta"] = block["beta"]
    return ffn


def _through_ffn(architecture: Architecture, config: ModelConfig, block: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """(M, c): x -> x M + c is a linear feed-forward block with the residual connection around it."""
    ffn = _ffn(architecture, config, block)
    if "fused" in ffn:
        matrix, bias = ffn["fused"], ffn["fused_bias"]
    else:
        matrix, bias = ffn["up"] @ ffn["down"], ffn["up_bias"] @ ffn["down"] + ffn["down_bias"]
    return matrix + ffn.get("beta", 1.0) * _identity(matrix), bias


def _pre_ln(
    architecture: Architecture,
    config: ModelConfig,
    block: Mapping[str, Tensor],
    savings: Savings,
    layer: int,
    basis: Tensor | None,
) -> tuple[Weights, Tensor | None]:
    """The weights of a layer, and the basis N of what it leaves: the residual stream is X = Z N, Z what is computed.

    Without LayerNorm and activation a layer is X' = X M + A W_O M + c (in parallel form X M + A W_O + c), A being the
    concatenated heads. With N' = N M it is Z' = Z + A (W_O M N'^-1) + c N'^-1: no product with the residual stream is
    left, and the matrices that read X read Z by N W_Q, N W_K, N W_V.
    """
    d, norm = config.width, architecture.layer_norm
    w = _query_key(block, config, scaled="one_qkv" in savings)
    w["value"], w["value_bias"] = block["attention.value.weight"].T, _bias(block, "attention.value", d)
    w["output"], w["output_bias"] = block["attention.output.weight"].T, _bias(block, "attention.output", d)
    if architecture.temperature:
        w["inverse_temperature"] = 1.0 / block["attention.temperature"]  # (H, T)
    for name in ("query", "key", "value"):
        if norm and "folded_norms" in savings:
            w[f"{name}_bias"] = w[f"{name}_bias"] + block["ln_1.bias"] @ w[name]
            w[name] = block["ln_1.weight"][:, None] * w[name]
        elif basis is not None:
            w[name] = basis @ w[name]
    if norm and "folded_norms" not in savings:
        w["ln_1.weight"], w["ln_1.bias"] = block["ln_1.weight"], block["ln_1.bias"]
    if "one_qkv" in savings:
        w["qkv"] = torch.cat([w.pop("query"), w.pop("key"), w.pop("value")], 1)
        w["qkv_bias"] = torch.cat([w.pop("query_bias"), w.pop("key_bias"), w.pop("value_bias")])
    has_ffn = layer < architecture.ffn_layers(config.layers)
    if linear_ffn(architecture) and "folded_ffn" in savings:
        output, bias = w.pop("output"), w.pop("output_bias")
        if has_ffn:
            matrix, ffn_bias = _through_ffn(architecture, config, block)
            if not config.parallel_residual:
                output, bias = output @ matrix, bias @ matrix
            bias = bias + ffn_bias
            if "absorbed_ffn" in savings:
                basis = matrix if basis is None else basis @ matrix
            else:
                return w | {"from_both": torch.cat([matrix, output]), "block_bias": bias}, basis
        if basis is not None:
            inverse = torch.linalg.inv(basis)
            output, bias = output @ inverse, bias @ inverse
        return w | {"from_attention": output, "block_bias": bias}, basis
    ffn = _ffn(architecture, config, block) if has_ffn else {}
    if AS_PUBLISHED in savings and architecture.scaled and not norm:
        # X = c Z with a number c in place of the matrix N: beta x costs nothing, the matrices take up the numbers.
        before = _identity(w["output"]) if basis is None else basis
        basis = ffn.pop("beta", 1.0) * before
        _multiply(w, "output", _inverse_gains(basis if config.parallel_residual else before))
        if has_ffn:
            first, last = ("fused", "fused") if "fused" in ffn else ("up", "down")
            ffn[first] = before @ ffn[first]
            _multiply(ffn, last, _inverse_gains(basis))
    if not has_ffn:
        return w, basis
    if norm and "folded_norms" in savings:
        first = "fused" if "fused" in ffn else "up"
        ffn[f"{first}_bias"] = ffn[f"{first}_bias"] + block["ln_2.bias"] @ ffn[first]
        ffn[first] = block["ln_2.weight"][:, None] * ffn[first]
    elif norm:
        w["ln_2.weight"], w["ln_2.bias"] = block["ln_2.weight"], block["ln_2.bias"]
    if architecture.ffn == "linear" and "folded_ffn" in savings:  # LayerNorm before it, no activation inside
        ffn["fused_bias"] = ffn.pop("up_bias") @ ffn["down"] + ffn.pop("down_bias")
        ffn["fused"] = ffn.pop("up") @ ffn.pop("down")
    if architecture.ffn == "leaky_relu":
        # Of u + (1 - s) (relu(u) - u), the linear part s u needs no activation: one small matrix in its place.
        if "folded_ffn" in savings:
            ffn["around"] = block["slope"] * ffn["up"] @ ffn["down"]
            ffn["down_bias"] = ffn["down_bias"] + block["slope"] * ffn["up_bias"] @ ffn["down"]
            ffn["down"] = (1.0 - block["slope"]) * ffn["down"]
        else:
            ffn["slope"] = block["slope"]
    return w | ffn, basis


def _he_hofmann(
    architecture: Architecture,
    config: ModelConfig,
    block: Mapping[str, Tensor],
    savings: Savings,
    layer: int,
    basis: Tensor | None,
) -> tuple[Weights, Tensor | None]:
    """x' = b_ff FFN(n) + b_sa Concat_h((a_h I + b_h P_h - g_h C) V_h), V = n or, in the first layer, n W_V.

    With the weights, the basis of x' where gains are folded into it.
    """
    d, size = config.width, config.width // config.heads
    tuned = "folded_ffn" in savings
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
        return _gains_folded(w, config, basis) if AS_PUBLISHED in savings else (w, None)
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
    return folded_weights, None


def _gains_folded(w: Weights, config: ModelConfig, basis: Tensor | None) -> tuple[Weights, Tensor]:
    """Weights of a He & Hofmann block in which gains cost nothing, and the basis N of its output: x' = Z N.

    V = Z_V N_V and b_h on a head's columns are diagonal, so that b needs no product: Z = (P + (a/b) I - (g/b) C) Z_V
    + FFN(n) N^-1 with N = N_V diag(b). What is added to P is "shape" (H, T, T), a weight as others.
    """
    a, b, g = (w.pop(name) for name in ("shape_a", "shape_b", "shape_g"))
    before = _identity(w["query"]) if basis is None else basis
    after = before @ torch.diag(b.flatten().repeat_interleave(config.width // config.heads))
    inverse = _inverse_gains(after)
    direct = a / b
    if "b_ff" in w and "value" not in w:
        direct = direct + w.pop("b_ff") / b
    elif "b_ff" in w:
        w["fused"], w["fused_bias"] = w.pop("b_ff") * before, torch.zeros_like(w["query_bias"])
    first, last = ("up", "down") if "up" in w else ("fused", "fused")
    for name in {"query", "key", first} & w.keys():
        w[name] = before @ w[name]
    if last in w:
        _multiply(w, last, inverse)
    seen = torch.ones(config.context, config.context, dtype=b.dtype, device=b.device).tril()
    w["shape"] = direct * _identity(seen) - g / b * (seen / seen.sum(1, keepdim=True))
    return w, after
