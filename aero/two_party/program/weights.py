"""The server's weights as the private programs need them: transposed and folded, in float32.

The server folds its own weights in float64 before any question arrives. On PyTorch's meta device the same code gives
the shapes, which is all that a client knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aero.architecture import Architecture
from aero.model import GPT, ModelConfig
from aero.two_party.lattice import lookup, matmul
from aero.two_party.program.layers import Affine, Layer, Weights, side_by_side
from aero.two_party.program.optimizations import (
    AS_PUBLISHED,
    Optimizations,
    absorbs,
    linear_ffn,
    parse_program,
    program_name,
)
from aero.weight_transforms import fold_weight_norm

CONDITION_BUDGET = 100.0
State = Mapping[str, Tensor]


def weight_arrays(model: GPT, program: str) -> dict[str, np.ndarray]:
    """The folded weights of `model` as float32 arrays by name. ValueError for an unknown program."""
    weights = folded(model.architecture, model.config, fold_weight_norm(model).state_dict(), program)
    return {name: value.to(torch.float32).contiguous().numpy() for name, value in weights.flat().items()}


def weight_shapes(architecture: Architecture, config: ModelConfig, program: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the folded weights, which are all that a client knows of the server's model."""
    architecture = architecture.at_inference()
    with torch.device("meta"):
        state = GPT(architecture, config).state_dict()
    return {name: tuple(value.shape) for name, value in folded(architecture, config, state, program).flat().items()}


def folded(architecture: Architecture, config: ModelConfig, state: State, program: str) -> Weights:
    """Weights of `program`, float64, from a state of `aero.model.GPT` without norms of weights.

    "as_written" folds only 1/alpha and He & Hofmann scalars that multiply one of the server's matrices. ValueError for
    an architecture or a program that cannot be computed.
    """
    if architecture.core != "softmax":
        raise ValueError(f"{architecture}: a private pass computes softmax attention only; take an SM architecture")
    optimizations, rebased = parse_program(program)
    s = {name: value.detach().double() for name, value in state.items()}
    layers, basis = [], None
    for index in range(config.layers):
        block = _block(s, index)
        ffn = _Ffn.of(architecture, config, block) if index < architecture.ffn_layers(config.layers) else None
        if architecture.block == "he_hofmann":
            layer, basis = _he_hofmann(config, block, optimizations, ffn, basis)
        else:
            if architecture.slope is not None:
                block["slope"] = s["leaky_slopes"][index if architecture.slope == "layer" else 0]
            undone = basis if index in rebased else None
            basis = basis if undone is None else None
            layer, basis = _pre_ln(architecture, config, block, optimizations, ffn, basis)
            layer = layer if undone is None else replace(layer, basis=Affine(undone))
        if "last_row" in optimizations and index == config.layers - 1:
            layer = layer.with_last_query_apart(config.width)
        layers.append(layer)
    head, ln_f = Affine(s["token_embedding.weight" if config.tied else "lm_head.weight"].T), None
    if config.ln_f:
        ln_f = _norm(s, "ln_f")
        if "folded_norms" in optimizations:
            head, ln_f = head.after_norm(ln_f), None
    elif basis is not None:
        head, basis = Affine(basis @ head.weight), None
    return Weights(
        token_embedding=_token_embedding(s, config),
        head=head,
        layers=tuple(layers),
        position_embedding=s["position_embedding.weight"] if config.position == "learned" else None,
        basis=None if basis is None else Affine(basis),
        ln_f=ln_f,
    )


def _block(state: State, layer: int) -> dict[str, Tensor]:
    prefix = f"blocks.{layer}."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def _norm(state: State, name: str) -> Affine:
    """Gain and bias of a LayerNorm; the gain of an RMSNorm."""
    return Affine(state[f"{name}.weight"], state.get(f"{name}.bias"))


def within_budget(model: GPT, program: str, budget: float = CONDITION_BUDGET) -> str:
    """The program that computes `program` accurately on this model; its name is known to both parties.

    Layers after "@" are added wherever the condition number of the absorbed matrices would exceed `budget`, because
    fixed-point errors grow by about as much. lattice_lookup, lattice_products or lattice_rest are left out where the
    model's entries are too large for them, gelu_by_squares where it has no GELU. ValueError if a weight is not finite,
    as after a training that diverged.
    """
    for name, values in model.state_dict().items():
        if not values.isfinite().all():
            raise ValueError(f"{name} has values that are not finite: the training diverged; take another checkpoint")
    optimizations, rebased = parse_program(program)
    if model.architecture.ffn != "gelu":
        optimizations -= {"gelu_by_squares"}
    architecture, state = model.architecture, fold_weight_norm(model).state_dict()
    if "lattice_lookup" in optimizations and model.config.vocabulary >= lookup.LEAST_VOCABULARY:
        if not lookup.fits(_token_embedding(state, model.config).numpy()):
            optimizations -= {"lattice_lookup"}
    if absorbs(architecture, optimizations):
        rebased = _rebased(architecture, model.config, state, budget)
    if optimizations & {"lattice_products", "lattice_rest"}:
        weights = folded(architecture, model.config, state, program_name(optimizations, rebased)).flat()
        matrices = [w for name, w in weights.items() if name.endswith(".weight") and w.ndim == 2]
        but_head = [w for w in matrices if w is not weights["head.weight"]]
        wide = {"lattice_products": (but_head, matmul.WIDE), "lattice_rest": (matrices, matmul.WIDE_OF_A_ROW)}
        for name, (needed, columns) in wide.items():
            if name in optimizations and not all(matmul.fits(one.numpy(), columns) for one in needed):
                optimizations -= {name}
    return program_name(optimizations, rebased)


def _rebased(architecture: Architecture, config: ModelConfig, state: State, budget: float) -> tuple[int, ...]:
    """The layers before which the change of basis is undone."""
    rebased: list[int] = []
    basis = torch.eye(config.width, dtype=torch.float64)
    for layer in range(architecture.ffn_layers(config.layers)):
        block = {name: value.double() for name, value in _block(state, layer).items()}
        matrix = _Ffn.of(architecture, config, block).with_residual().weight
        if float(torch.linalg.cond(basis @ matrix)) > budget and layer > 0:
            rebased.append(layer)
            basis = torch.eye(config.width, dtype=torch.float64)
        basis = basis @ matrix
    return tuple(rebased)


def _token_embedding(state: State, config: ModelConfig) -> Tensor:
    return state["token_embedding.weight"] * (config.width**0.5 if config.embedding_scale else 1.0)


def _identity(like: Tensor) -> Tensor:
    """The identity matrix with as many columns."""
    return torch.eye(like.shape[1], dtype=torch.float64, device=like.device)


def _affine(block: State, name: str, width: int) -> Affine:
    """The linear map called `name` with `width` outputs; zero bias where the recipe has none."""
    weight = block[f"{name}.weight"].T
    return Affine(weight, block.get(f"{name}.bias", torch.zeros(width, dtype=torch.float64, device=weight.device)))


@dataclass
class _Ffn:
    """The feed-forward network of a `Layer` while it is folded."""

    up: Affine | None
    down: Affine
    beta: Any = None
    slope: Any = None
    around: Affine | None = None

    @classmethod
    def of(cls, architecture: Architecture, config: ModelConfig, block: State) -> _Ffn:
        """With 1/alpha in the last matrix, and beta where there is one."""
        if architecture.ffn == "fused":
            ffn = cls(None, _affine(block, "ffn.fused", config.width))
        else:
            first = ["ffn.gate", "ffn.up"] if architecture.ffn == "swiglu" else ["ffn.up"]
            up = side_by_side([_affine(block, name, config.ffn_width) for name in first])
            ffn = cls(up, _affine(block, "ffn.down", config.width))
        if architecture.scaled and architecture.block != "he_hofmann":
            ffn.down = Affine(ffn.down.weight / block["alpha"], ffn.down.bias / block["alpha"])
            ffn.beta = block["beta"]
        return ffn

    def change_first(self, change: Callable[[Affine], Affine]) -> None:
        if self.up is None:
            self.down = change(self.down)
        else:
            self.up = change(self.up)

    def as_one(self) -> Affine:
        """The one matrix of an FFN without an activation."""
        if self.up is None:
            return self.down
        return Affine(self.up.weight @ self.down.weight, self.up.bias @ self.down.weight + self.down.bias)

    def with_residual(self) -> Affine:
        """A linear feed-forward block with the residual connection around it: x -> x M + c."""
        one = self.as_one()
        return Affine(one.weight + (1.0 if self.beta is None else self.beta) * _identity(one.weight), one.bias)

    def into(self, layer: Layer) -> Layer:
        return replace(layer, **vars(self))


def _query_key(block: State, config: ModelConfig, scaled: bool) -> list[Affine]:
    """Q and K; `scaled` folds 1/sqrt(d_k) into Q."""
    factor = (config.width / config.heads) ** -0.5 if scaled else 1.0
    query = _affine(block, "attention.query", config.width)
    return [query.times(factor), _affine(block, "attention.key", config.kv_width)]


def _inverse_gains(basis: Tensor) -> Tensor:
    """Inverse of a diagonal matrix of gains. ValueError if one is 0."""
    try:
        return torch.linalg.inv(basis)
    except torch.linalg.LinAlgError as error:
        raise ValueError("a gain of 0 cannot be folded into the matrices around it; take as_written") from error


def _pre_ln(
    architecture: Architecture,
    config: ModelConfig,
    block: State,
    optimizations: Optimizations,
    ffn: _Ffn | None,
    basis: Tensor | None,
) -> tuple[Layer, Tensor | None]:
    """A pre-LN layer, and the basis N after it: the residual stream is X = Z N, and Z is what is computed.

    Without LayerNorm and activation a layer is X' = X M + A W_O M + c (in parallel form X M + A W_O + c), A being the
    concatenated heads. With N' = N M it is Z' = Z + A (W_O M N'^-1) + c N'^-1: nothing multiplies the residual stream,
    and the matrices that read X read Z by N W_Q, N W_K, N W_V.
    """
    norm, fold_norms = architecture.layer_norm, "folded_norms" in optimizations
    ln_1 = _norm(block, "ln_1") if norm else None
    projections = _query_key(block, config, scaled="one_qkv" in optimizations)
    projections.append(_affine(block, "attention.value", config.kv_width))
    if norm and fold_norms:
        projections = [one.after_norm(ln_1) for one in projections]
    elif basis is not None:
        projections = [one.reading(basis) for one in projections]
    matrices = dict(zip(("query", "key", "value"), projections, strict=True))
    if "one_qkv" in optimizations:
        matrices = {"qkv": side_by_side(projections)}
    temperature = 1.0 / block["attention.temperature"] if architecture.temperature else None  # (H, T)
    layer = Layer(ln_1=None if fold_norms else ln_1, inverse_temperature=temperature, **matrices)
    output = _affine(block, "attention.output", config.width)
    if linear_ffn(architecture) and "folded_ffn" in optimizations:
        if ffn is not None:
            through = ffn.with_residual()
            output = output if config.parallel_residual else output.then(through.weight)
            output = Affine(output.weight, output.bias + through.bias)
            if "absorbed_ffn" not in optimizations:
                both = torch.cat([through.weight, output.weight])
                return replace(layer, from_both=Affine(both, output.bias)), basis
            basis = through.weight if basis is None else basis @ through.weight
        if basis is not None:
            output = output.then(torch.linalg.inv(basis))
        return replace(layer, from_attention=output), basis
    if AS_PUBLISHED in optimizations and architecture.scaled and not norm:
        # X = c Z with a number c in place of the matrix N: beta x costs nothing, the matrices take up the numbers.
        before = _identity(output.weight) if basis is None else basis
        basis = (1.0 if ffn is None else ffn.beta) * before
        output = output.then(_inverse_gains(basis if config.parallel_residual else before))
        if ffn is not None:
            ffn.beta = None
            ffn.change_first(lambda one: one.reading(before))
            ffn.down = ffn.down.then(_inverse_gains(basis))
    layer = replace(layer, output=output)
    if ffn is None:
        return layer, basis
    if norm and fold_norms:
        ffn.change_first(lambda one: one.after_norm(_norm(block, "ln_2")))
    elif norm:
        layer = replace(layer, ln_2=_norm(block, "ln_2"))
    if architecture.ffn == "linear" and "folded_ffn" in optimizations:  # LayerNorm before it, no activation inside
        ffn.down, ffn.up = ffn.as_one(), None
    if architecture.ffn == "leaky_relu" and "folded_ffn" in optimizations:
        # Of u + (1 - s)(relu(u) - u), the linear part s u becomes one small matrix around the activation.
        slope, up, down = block["slope"], ffn.up, ffn.down
        ffn.around = Affine(slope * up.weight @ down.weight)
        ffn.down = Affine((1.0 - slope) * down.weight, down.bias + slope * up.bias @ down.weight)
    elif architecture.ffn == "leaky_relu":
        ffn.slope = block["slope"]
    return ffn.into(layer), basis


def _he_hofmann(
    config: ModelConfig, block: State, optimizations: Optimizations, ffn: _Ffn | None, basis: Tensor | None
) -> tuple[Layer, Tensor | None]:
    """x' = b_ff FFN(n) + b_sa Concat_h((a_h I + b_h P_h - g_h C) V_h), V = n or, in the first layer, n W_V.

    With the basis of x' where gains are folded into it.
    """
    fold = "folded_ffn" in optimizations
    query, key = _query_key(block, config, scaled=fold)
    a, b, g = (block["b_sa"] * block[f"attention.shape_{name}"][:, None, None] for name in "abg")
    layer = Layer(query=query, key=key, b_ff=block["b_ff"], shape_a=a, shape_b=b, shape_g=g)
    if "ln_1.weight" in block:  # the first layer
        value = block["attention.value_residual"] * block["attention.value_weight"].T
        value = value + block["attention.value_skip"] * _identity(value)
        layer = replace(layer, ln_1=_norm(block, "ln_1"), value=Affine(value))
    if fold:
        return _combined(layer, config, ffn), None
    if ffn is not None:
        ffn.down = ffn.down.times(layer.b_ff)
        layer = replace(ffn.into(layer), b_ff=None)
    return _gains_folded(layer, config, basis) if AS_PUBLISHED in optimizations else (layer, None)


def _combined(layer: Layer, config: ModelConfig, ffn: _Ffn | None) -> Layer:
    """A He & Hofmann layer as one matrix behind [n | P n | C n], with n W_V for n in the first layer's P n.

    A head's gains act on its own columns; C V = C (n W_V) = (C n) W_V, and P V is taken with V itself.
    """
    size, eye = config.width // config.heads, _identity(layer.query.weight)
    before = eye if layer.value is None else layer.value.weight
    gains = (layer.shape_a, layer.shape_b, layer.shape_g)
    a, b, g = (torch.diag(gain.flatten().repeat_interleave(size)) for gain in gains)
    whole = Affine(eye, torch.zeros_like(layer.query.bias)) if ffn is None else ffn.as_one()
    direct, mean, bias = before @ a + layer.b_ff * whole.weight, -before @ g, layer.b_ff * whole.bias
    qk, values = side_by_side([layer.query, layer.key]), None
    if layer.ln_1 is not None:
        gain, shift = layer.ln_1.weight[:, None], layer.ln_1.bias
        # Every row of the causal mean and of the softmax sums to 1, so LayerNorm's bias passes through both.
        bias = bias + shift @ direct + shift @ mean
        qk = qk.after_norm(layer.ln_1)
        direct, mean = gain * direct, gain * mean
        values = Affine(gain * before, shift @ before)
    return Layer(value=values, qkv=qk, combine=Affine(torch.cat([direct, b, mean]), bias))


def _gains_folded(layer: Layer, config: ModelConfig, basis: Tensor | None) -> tuple[Layer, Tensor]:
    """A He & Hofmann layer in which gains cost nothing, and the basis N of its output: x' = Z N.

    V = Z_V N_V and b_h on a head's columns are diagonal, so b needs no multiplication: with N = N_V diag(b),
    Z = (P + (a/b) I - (g/b) C) Z_V + FFN(n) N^-1. What is added to P is "shape" (H, T, T), a weight like others.
    """
    a, b, g, b_ff = layer.shape_a, layer.shape_b, layer.shape_g, layer.b_ff
    before = _identity(layer.query.weight) if basis is None else basis
    after = before @ torch.diag(b.flatten().repeat_interleave(config.width // config.heads))
    inverse = _inverse_gains(after)
    direct, up, down = a / b, layer.up, layer.down
    if b_ff is not None and layer.value is None:
        direct = direct + b_ff / b
    elif b_ff is not None:  # the first layer, where V is not n
        down = Affine(b_ff * before, torch.zeros_like(layer.query.bias))
    if up is not None:
        up, down = up.reading(before), down.then(inverse)
    elif down is not None:
        down = down.reading(before).then(inverse)
    seen = torch.ones(config.context, config.context, dtype=b.dtype, device=b.device).tril()
    shape = direct * _identity(seen) - g / b * (seen / seen.sum(1, keepdim=True))
    query, key = layer.query.reading(before), layer.key.reading(before)
    return Layer(query=query, key=key, value=layer.value, ln_1=layer.ln_1, up=up, down=down, shape=shape), after
