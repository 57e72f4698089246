"""Weights as functions of parameters (weight norm, spectral norm, sigmaReparam, log t), and how to fold them away.

`fold_weight_norm` returns a copy of a trained `aero.model.GPT` with plain weights that computes the same function.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from aero.architecture import Architecture
from aero.attention_kernels import core_named, sigma_reparam


def parametrize_weights(model: nn.Module) -> None:
    """Parametrise, in place, the matrices that the architecture of `model`, a GPT, normalises (AERO Eq. 5), and its
    temperatures with `log_temperature`.

    weight norm: W = g v / |v| with a norm g for the weights of each output; it starts at the plain initial W.
    spectral norm: W / sigma(W). Each forward pass in training mode does one step of power iteration for sigma; in
    evaluation mode sigma = u^T W v with the vectors u, v of the last training step, which checkpoints contain too.
    sigmaReparam: the same for Q, K and V with a trained gain (`variance_sensitivity`, Appendix A).
    """
    architecture: Architecture = model.architecture
    for block in model.blocks:
        attention = block.attention
        if model.config.log_temperature and architecture.temperature:
            parametrize.register_parametrization(attention, "temperature", Exponential())
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


class Exponential(nn.Module):
    """t = e^s of a trained s."""

    def forward(self, logarithm: Tensor) -> Tensor:
        return logarithm.exp()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value.log()


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
def fold_weight_norm(model: nn.Module) -> nn.Module:
    """A copy of `model`, a GPT, in evaluation mode, with weight norms and e^s of `log_temperature` folded in."""
    source = copy.deepcopy(model).eval()  # in training mode, reading a spectral norm's weight would iterate
    if model.architecture.weight_norm is None and not model.config.log_temperature:
        return source
    state = {name: value for name, value in source.state_dict().items() if ".parametrizations." not in name}
    for name, module in source.named_modules():
        for weight in getattr(module, "parametrizations", ()):
            state[f"{name}.{weight}"] = getattr(module, weight)
    with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten; leave the caller's generator alone
        architecture = replace(model.architecture, weight_norm=None, normed=())
        folded = type(model)(architecture, replace(model.config, log_temperature=False))
    folded.load_state_dict(state)
    return folded.to(model.token_embedding.weight).eval()
