"""Attention-only Transformers, many at once: the models of all (learning rate, seed) pairs are one stack of parameters.

Shapes: R learning rates, K seeds, S = R K models with the seed running fastest, L layers, B sequences, N tokens,
D width.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aero.attention_kernels import (
    Core,
    attend,
    attended,
    clip_gain,
    clip_gain_gradient,
    frobenius_norm,
    normalise,
    row_entropy,
)
from aero.attention_kernels import sigma_reparam as reparametrise
from aero.sensitivity.regression import Batches
from aero.sensitivity.setting import LAYERS, Setting

FIRST_ITERATIONS = 30
"""Of the power iteration at initialisation; one a step follows."""
DROP_EVERY = 10
"""Steps after which models that have diverged leave the stack: many of the rates diverge within few steps."""


class Stack:
    """S models of one core with their parameters stacked.

    parameters: "weights" (S, L, 3, D, D), W_Q, W_K, W_V, applied from the right; "gains" (S, L, 2, D), gamma_q and
    gamma_k of QK-LayerNorm; "sigma_gains" (S, L, 3), gamma of sigmaReparam; "embedding" (S, d + 1, D) and "readout"
    (S, D). Only those exist that are trained.
    """

    def __init__(
        self, core: Core, setting: Setting, rates: Sequence[float], seeds: Sequence[int], dtype: torch.dtype
    ) -> None:
        self.core, self.setting = core, setting
        drawn = [initial(core, setting, seed) for seed in seeds]
        self.parameters = {
            name: torch.stack([d[name] for d in drawn]).to(dtype).repeat(len(rates), *[1] * drawn[0][name].ndim)
            for name in drawn[0]
        }
        self.rates = torch.tensor(rates, dtype=dtype).repeat_interleave(len(seeds))  # (S,)
        self.seed_of = torch.arange(len(seeds)).repeat(len(rates))  # (S,), its place in `seeds`
        self.vectors: Tensor | None = None
        if core.reparametrised:
            weights = self.parameters["weights"]
            unit, start = torch.ones(weights.shape[:3], dtype=dtype), torch.ones(weights.shape[:4], dtype=dtype)
            _, self.vectors = reparametrise(weights, unit, start, FIRST_ITERATIONS)

    def keep(self, which: Tensor) -> None:
        """Leave only the models marked in `which` (S,)."""
        self.parameters = {name: value[which] for name, value in self.parameters.items()}
        self.rates, self.seed_of = self.rates[which], self.seed_of[which]
        self.vectors = None if self.vectors is None else self.vectors[which]

    def forward(self, tokens: Tensor, look: Callable[[int, Tensor, Tensor], None] | None = None) -> Tensor:
        """Predictions (S, B) for tokens (S, B, N, d + 1).

        `look` is called with every layer's number, P (S, B, N, N) and logits Z (S, B, N, N), its queries times its keys
        after QK-LayerNorm. Without it the last layer has only the query that the prediction reads.
        """
        p, (models, batch, count, _), width = self.parameters, tokens.shape, self.setting.width
        weights = p["weights"]
        if self.vectors is not None:
            weights, vectors = reparametrise(weights, p["sigma_gains"], self.vectors)
            if torch.is_grad_enabled():  # looking at a model does not move it
                self.vectors = vectors
        x = tokens
        if "embedding" in p:
            x = (tokens.reshape(models, batch * count, -1) @ p["embedding"]).view(models, batch, count, width)
        joined = weights.permute(1, 0, 3, 2, 4).reshape(LAYERS, models, width, 3 * width)  # x W_Q | x W_K | x W_V
        for layer in range(LAYERS):
            qkv = (x.reshape(models, batch * count, width) @ joined[layer]).view(models, batch, count, 3 * width)
            query, key, value = qkv.split(width, -1)  # (S, B, N, D) each
            if layer == LAYERS - 1 and look is None:
                query, x = query[..., -1:, :], x[..., -1:, :]
            gains = None
            if "gains" in p:
                gamma_q, gamma_k = p["gains"][:, layer].unbind(1)  # (S, D)
                gains = gamma_q[:, None, None], gamma_k[:, None, None]
            if look is None:
                update = attended(self.core, query, key, value, gains)
            else:
                update, probabilities = attend(self.core, query, key, value, gains)
                normal_query, normal_key = normalise(self.core, query, key, gains)
                look(layer, probabilities, normal_query @ normal_key.mT)
            x = x + update if self.setting.residual else update
        last = x[..., -1, :]  # (S, B, D)
        if "readout" in p:
            return (last @ p["readout"][..., None])[..., 0]
        return last[..., -1]

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error (S,) of each model on tokens (K, B, N, d + 1) and targets (K, B) of each seed."""
        return (self.forward(tokens[self.seed_of]) - targets[self.seed_of]).square().mean(-1)

    def step(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One step of SGD of every model at its own rate; losses before it and norms of the gradient, (S,) each.

        A norm is infinite where its square overflows: in float32 from 1.8e19. It stays so because the kept sweep was
        measured so; a sum in double would turn its gaps into numbers.
        """
        names, values = list(self.parameters), list(self.parameters.values())
        for value in values:
            value.requires_grad_()
        losses = self.losses(tokens, targets)
        gradients = torch.autograd.grad(losses.sum(), values)
        factor = self.setting.batch if self.setting.reduction == "sum" else 1.0
        squares = torch.zeros_like(losses)
        with torch.no_grad():
            for name, value, gradient in zip(names, values, gradients, strict=True):
                value.requires_grad_(False)
                gradient = gradient * factor
                squares += gradient.flatten(1).square().sum(1)
                if name == "gains" and self.core.gains == "gradient_clip":
                    gradient = clip_gain_gradient(gradient)
                value -= self.rates.view(-1, *[1] * (value.ndim - 1)) * gradient
                if name == "gains" and self.core.gains == "weight_clip":
                    clip_gain(value)
        return losses.detach(), squares.sqrt()

    @torch.no_grad()
    def look(self, tokens: Tensor) -> dict[str, Tensor]:
        """What attention does on tokens (K, B, N, d + 1): means over sequences and rows, (S, L) each.

        entropy (nats, Eq. 7), frobenius (||P||_F), variance (of the logits of a row, Definition 5.2), and for a core
        with gains gain_q, gain_k (norms of gamma).
        """
        seen: dict[str, list[Tensor]] = {"entropy": [], "frobenius": [], "variance": []}

        def look(layer: int, probabilities: Tensor, logits: Tensor) -> None:
            seen["entropy"].append(row_entropy(probabilities).mean((1, 2)))
            seen["frobenius"].append(frobenius_norm(probabilities).mean(1))
            seen["variance"].append(logits.var(-1, correction=0).mean((1, 2)))

        self.forward(tokens[self.seed_of], look)
        found = {name: torch.stack(values, 1) for name, values in seen.items()}
        if self.core.gains is not None:
            fixed = torch.ones(len(self.rates), LAYERS, 2, self.setting.width, dtype=tokens.dtype)
            norms = self.parameters.get("gains", fixed).norm(dim=-1)
            found |= {"gain_q": norms[..., 0], "gain_k": norms[..., 1]}
        return found


def initial(core: Core, setting: Setting, seed: int) -> dict[str, Tensor]:
    """Parameters of one model at initialisation: a function of the seed and the setting; the weights of all cores are
    the same.
    """
    generator, width = torch.Generator().manual_seed(2 * seed), setting.width

    def matrix(*shape: int, fan_in: int, fan_out: int) -> Tensor:
        bound = setting.bound(fan_in, fan_out)
        if bound is None:
            return 0.1 * torch.randn(*shape, generator=generator)
        return (2 * torch.rand(*shape, generator=generator) - 1) * bound

    made = {"weights": matrix(LAYERS, 3, width, width, fan_in=width, fan_out=width)}
    if setting.hidden == "embedded":
        inputs = setting.dimensions + 1
        made["embedding"] = matrix(inputs, width, fan_in=inputs, fan_out=width)
    if setting.readout == "linear":
        made["readout"] = matrix(width, fan_in=width, fan_out=1)
    if core.gains not in (None, "fixed"):
        made["gains"] = torch.ones(LAYERS, 2, width)
    if core.reparametrised:
        made["sigma_gains"] = torch.ones(LAYERS, 3)
    return made


@dataclass
class Trained:
    """What a stack did: losses and gradient norms (steps, R, K); the losses, on the same batches, of the untrained
    models and of predicting 0, (steps, K) each; and `Stack.look` at `looked` steps, (looks, R, K, L) each. Not a number
    once a model has diverged.
    """

    losses: Tensor
    gradient_norms: Tensor
    untrained_losses: Tensor
    zero_losses: Tensor
    looked: list[int] = field(default_factory=list)
    seen: dict[str, Tensor] = field(default_factory=dict)


def train(
    core: Core,
    setting: Setting,
    rates: Sequence[float],
    seeds: Sequence[int],
    looks: Container[int] = (),
    dtype: torch.dtype = torch.float32,
) -> Trained:
    """Train the models of all pairs of `rates` and `seeds` at once, `setting.steps` steps of SGD.

    A training ends with its first loss that is not finite. looks: steps before which `Stack.look` looks at them.
    """
    stack, batches, shape = Stack(core, setting, rates, seeds, dtype), Batches(setting, seeds, dtype), (-1, len(seeds))
    untrained = Stack(core, setting, rates[:1], seeds, dtype)
    alive = torch.arange(len(stack.rates))
    losses = torch.full((setting.steps, len(alive)), torch.nan, dtype=dtype)
    norms, looked, seen = losses.clone(), [], []
    untrained_losses, zero_losses = torch.empty(2, setting.steps, len(seeds), dtype=dtype)
    for step in range(setting.steps):
        tokens, targets = batches.next()
        with torch.no_grad():
            untrained_losses[step] = untrained.losses(tokens, targets)
            zero_losses[step] = targets.square().mean(-1)
        if not len(alive):
            continue
        if step in looks:
            looked.append(step)
            seen.append({name: _among(alive, value, losses.shape[1]) for name, value in stack.look(tokens).items()})
        losses[step, alive], norms[step, alive] = stack.step(tokens, targets)
        if (step + 1) % DROP_EVERY == 0:
            finite = torch.isfinite(losses[step + 1 - DROP_EVERY : step + 1, alive]).all(0)
            if not finite.all():
                stack.keep(finite)
                alive = alive[finite]
    found = {name: torch.stack([s[name] for s in seen]).unflatten(1, shape) for name in (seen[0] if seen else ())}
    losses, norms = losses.unflatten(1, shape), norms.unflatten(1, shape)
    return Trained(losses, norms, untrained_losses, zero_losses, looked, found)


def _among(places: Tensor, values: Tensor, count: int) -> Tensor:
    """`values` (S, L) at their places among `count` models, not a number elsewhere."""
    found = torch.full((count, values.shape[1]), torch.nan, dtype=values.dtype)
    found[places] = values
    return found
