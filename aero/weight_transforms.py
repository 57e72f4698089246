"""Weight matrices as functions of parameters (weight norm, spectral norm, sigmaReparam), and how to fold them away.

`fold_weight_norm` and `fuse_ffn` return a copy of a trained model with plain weights that computes the same function.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from aero.architecture import ACTIVATIONS, Architecture
from aero.attention_kernels import core_named, sigma_reparam

if TYPE_CHECKING:
    from aero.model import GPT


def parametrize_weights(model: GPT) -> None:
    """Parametrise, in place, the matrices that the architecture of `model` normalises (AERO Eq. 5).

    weight norm: W = g v / |v| with a norm g for the weights of each output; it starts at the plain initial W.
    spectral norm: W / sigma(W). Each forward pass in training mode does one step of power iteration for sigma; in
    evaluation mode sigma = u^T W v with the vectors u, v of the last training step, which checkpoints contain too.
    sigmaReparam: the same for Q, K and V with a trained gain (`variance_sensitivity`, Appendix A).
    """
    architecture: Architecture = model.architecture
    for block in model.blocks:
        attention = block.attention
        if core_named(architecture.core).reparametrised:
            for layer in (attention.query, attention.key, attention.value):
                parametrize.register_parametrization(layer, "weight", SigmaReparam(layer.weight))
                _outside_autocast(layer)
        layers = [
            getattr(attention, name)
            for letter, name in (("Q", "query"), ("K", "key"), ("V", "value"), ("O", "output"))
            if letter in architecture.normed
        ]
        if "FFN" in architecture.normed and block.ffn is not None:
            layers += [layer for layer in block.ffn.children() if isinstance(layer, nn.Linear)]
        for layer in layers:
            if architecture.weight_norm == "weight":
                parametrizations.weight_norm(layer)
            else:
                parametrizations.spectral_norm(layer)
                _outside_autocast(layer)


class SigmaReparam(nn.Module):
    """gamma W / sigma(W) with a trained scalar gamma, initially 1; one power iteration a forward pass in training."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(()))
        _, vector = sigma_reparam(weight.detach(), self.gain.detach(), torch.randn(weight.shape[1]), iterations=15)
        self.register_buffer("vector", vector)

    def forward(self, weight: Tensor) -> Tensor:
        weight, vector = sigma_reparam(weight, self.gain, self.vector, iterations=int(self.training))
        with torch.no_grad():
            self.vector.copy_(vector)
        return weight


class OutsideAutocast(nn.Module):
    """A parametrisation computed in the precision of the weights: in half precision sigma would be another number."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            return self.inner(weight)


def _outside_autocast(layer: nn.Linear) -> None:
    layer.parametrizations.weight[0] = OutsideAutocast(layer.parametrizations.weight[0])


@torch.no_grad()
def fold_weight_norm(model: GPT) -> GPT:
    """A copy of `model`, in evaluation mode, with weight or spectral norms folded into plain weights."""
    source = copy.deepcopy(model).eval()  # in training mode, reading a spectral norm's weight would iterate
    if model.architecture.weight_norm is None:
        return source
    state = {name: value for name, value in source.state_dict().items() if ".parametrizations." not in name}
    for name, module in source.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            state[f"{name}.weight"] = module.weight
    return _rebuilt(model, replace(model.architecture, weight_norm=None, normed=()), state)


def _rebuilt(model: GPT, architecture: Architecture, state: dict[str, Tensor]) -> GPT:
    """A model of another architecture, with the sizes of `model` and the parameters `state`, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; leave the caller's generator alone
        rebuilt = type(model)(architecture, model.config)
    rebuilt.load_state_dict(state)
    return rebuilt.to(model.token_embedding.weight).eval()


@torch.no_grad()
def fuse_ffn(model: GPT) -> GPT:
    """A copy of `model`, in evaluation mode, with every linear FFN as one matrix W_in W_out (AERO §4.2).

    Weight norms are folded first. ValueError if there is an activation between the two matrices.
    """
    architecture = model.architecture
    if architecture.ffn in ACTIVATIONS:
        raise ValueError(
            f"{architecture}: {ACTIVATIONS[architecture.ffn]} between the two FFN matrices, so they do not multiply"
            " into one; only a linear FFN (ScFFN) can be fused"
        )
    folded = fold_weight_norm(model)
    state = folded.state_dict()
    for layer in range(len(folded.blocks)):
        ffn = f"blocks.{layer}.ffn"
        if f"{ffn}.up.weight" not in state:  # fused already, or pruned
            continue
        up, down = state.pop(f"{ffn}.up.weight").double(), state.pop(f"{ffn}.down.weight")  # (4d, d), (d, 4d)
        state[f"{ffn}.fused.weight"] = (down.double() @ up).to(down)  # (d, d)
        if f"{ffn}.up.bias" in state:
            up_bias, down_bias = state.pop(f"{ffn}.up.bias").double(), state.pop(f"{ffn}.down.bias").double()
            state[f"{ffn}.fused.bias"] = (down.double() @ up_bias + down_bias).to(down)  # (d)
    return _rebuilt(folded, replace(folded.architecture, ffn="fused"), state)
