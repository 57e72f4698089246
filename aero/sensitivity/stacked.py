"""Attention-only Transformers trained together: all (learning rate, seed) pairs are one stack of parameters.

Shapes: R learning rates, K seeds, S = R K models (the seed runs fastest), L layers, B sequences, N tokens, D width.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aero.attention_kernels import Core, attend, attended, clip_gain, clip_gain_gradient, normalise, row_entropy
from aero.attention_kernels import sigma_reparam as reparametrise
from aero.sensitivity.setting import LAYERS, Setting, draw_batches

FIRST_ITERATIONS = 30
"""Power iterations at initialisation; one a step follows."""
DROP_EVERY = 10
"""Steps between removals of diverged models from the stack."""


class Stack:
    """S models of one core.

    parameters, of which only the trained ones exist: "weights" (S, L, 3, D, D), W_Q, W_K, W_V applied from the right;
    "gains" (S, L, 2, D), gamma_q and gamma_k of QK-LayerNorm; "sigma_gains" (S, L, 3), gamma of sigmaReparam;
    "embedding" (S, d + 1, D); "readout" (S, D).
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
        self.seed_of = torch.arange(len(seeds)).repeat(len(rates))  # (S,), index into `seeds`
        self.vectors: Tensor | None = None  # of sigmaReparam's power iteration
        if core.reparametrised:
            weights = self.parameters["weights"]
            unit, start = torch.ones(weights.shape[:3], dtype=dtype), torch.ones(weights.shape[:4], dtype=dtype)
            _, self.vectors = reparametrise(weights, unit, start, FIRST_ITERATIONS)

    def keep(self, which: Tensor) -> None:
        """Keep only the models marked in `which` (S,)."""
        self.parameters = {name: value[which] for name, value in self.parameters.items()}
        self.rates, self.seed_of = self.rates[which], self.seed_of[which]
        self.vectors = None if self.vectors is None else self.vectors[which]

    def forward(self, tokens: Tensor, seen: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """Predictions (S, B) for tokens (S, B, N, d + 1).

        seen: where every layer adds P and the logits Z after QK-LayerNorm, (S, B, N, N) each. Without it the last layer
        computes only the query that the prediction reads.
        """
        p, (models, batch, count, _), width = self.parameters, tokens.shape, self.setting.width
        weights = p["weights"]
        if self.vectors is not None:
            weights, vectors = reparametrise(weights, p["sigma_gains"], self.vectors)
            if torch.is_grad_enabled():  # observing a model does not change it
                self.vectors = vectors
        x = tokens
        if "embedding" in p:
            x = (tokens.reshape(models, batch * count, -1) @ p["embedding"]).view(models, batch, count, width)
        joined = weights.permute(1, 0, 3, 2, 4).reshape(LAYERS, models, width, 3 * width)  # x W_Q | x W_K | x W_V
        for layer in range(LAYERS):
            qkv = (x.reshape(models, batch * count, width) @ joined[layer]).view(models, batch, count, 3 * width)
            query, key, value = qkv.split(width, -1)  # (S, B, N, D) each
            if layer == LAYERS - 1 and seen is None:
                query, x = query[..., -1:, :], x[..., -1:, :]
            gains = None
            if "gains" in p:
                gamma_q, gamma_k = p["gains"][:, layer].unbind(1)  # (S, D)
                gains = gamma_q[:, None, None], gamma_k[:, None, None]
            if seen is None:
                update = attended(self.core, query, key, value, gains)
            else:
                update, probabilities = attend(self.core, query, key, value, gains)
                normal_query, normal_key = normalise(self.core, query, key, gains)
                seen.append((probabilities, normal_query @ normal_key.mT))
            x = x + update if self.setting.residual else update
        last = x[..., -1, :]  # (S, B, D)
        if "readout" in p:
            return (last @ p["readout"][..., None])[..., 0]
        return last[..., -1]

    def losses(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error (S,) of each model on the tokens (K, B, N, d + 1) and targets (K, B) of its seed."""
        return (self.forward(tokens[self.seed_of]) - targets[self.seed_of]).square().mean(-1)

    def step(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One step of SGD; losses before it and gradient norms, (S,) each.

        A norm is infinite where its square overflows, in float32 from 1.8e19, as in the committed sweep.
        """
        for value in self.parameters.values():
            value.requires_grad_()
        losses = self.losses(tokens, targets)
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        factor = self.setting.batch if self.setting.reduction == "sum" else 1.0
        squares = torch.zeros_like(losses)
        with torch.no_grad():
            for (name, value), gradient in zip(self.parameters.items(), gradients, strict=True):
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
    def attention_statistics(self, tokens: Tensor) -> dict[str, Tensor]:
        """Means over sequences and rows of tokens (K, B, N, d + 1), (S, L) each.

        entropy (nats, Eq. 7), frobenius (||P||_F), variance (of a row's logits, Definition 5.2) and, for a core with
        gains, gain_q and gain_k (norms of gamma).
        """
        seen: list[tuple[Tensor, Tensor]] = []
        self.forward(tokens[self.seed_of], seen)
        found = {
            "entropy": torch.stack([row_entropy(p).mean((1, 2)) for p, _ in seen], 1),
            "frobenius": torch.stack([torch.linalg.matrix_norm(p).mean(1) for p, _ in seen], 1),
            "variance": torch.stack([z.var(-1, correction=0).mean((1, 2)) for _, z in seen], 1),
        }
        if self.core.gains is not None:
            fixed = torch.ones(len(self.rates), LAYERS, 2, self.setting.width, dtype=tokens.dtype)
            norms = self.parameters.get("gains", fixed).norm(dim=-1)
            found |= {"gain_q": norms[..., 0], "gain_k": norms[..., 1]}
        return found


def initial(core: Core, setting: Setting, seed: int) -> dict[str, Tensor]:
    """Parameters of one model at initialisation; all cores share the weights of a seed and setting."""
    generator, width = torch.Generator().manual_seed(2 * seed), setting.width

    def matrix(*shape: int, fan_in: int, fan_out: int) -> Tensor:
        if setting.init == "normal_0.1":
            return 0.1 * torch.randn(*shape, generator=generator)
        bound = 1 / math.sqrt(fan_in) if setting.init == "linear" else math.sqrt(6 / (fan_in + fan_out))
        return (2 * torch.rand(*shape, generator=generator) - 1) * bound

    drawn = {"weights": matrix(LAYERS, 3, width, width, fan_in=width, fan_out=width)}
    if setting.hidden == "embedded":
        inputs = setting.dimensions + 1
        drawn["embedding"] = matrix(inputs, width, fan_in=inputs, fan_out=width)
    if setting.readout == "linear":
        drawn["readout"] = matrix(width, fan_in=width, fan_out=1)
    if core.gains not in (None, "fixed"):
        drawn["gains"] = torch.ones(LAYERS, 2, width)
    if core.reparametrised:
        drawn["sigma_gains"] = torch.ones(LAYERS, 3)
    return drawn


@dataclass
class Trained:
    """Losses and gradient norms of a stack, (steps, R, K) each, NaN once a model has diverged.

    untrained_losses, zero_losses: (steps, K), on the same batches, of the untrained models and of predicting 0.
    statistics: `Stack.attention_statistics` before each observed step, (observed steps, R, K, L) each.
    """

    losses: Tensor
    gradient_norms: Tensor
    untrained_losses: Tensor
    zero_losses: Tensor
    statistics: dict[str, Tensor] = field(default_factory=dict)


def train(
    core: Core,
    setting: Setting,
    rates: Sequence[float],
    seeds: Sequence[int],
    observe_at: Container[int] = (),
    dtype: torch.dtype = torch.float32,
) -> Trained:
    """Train the models of all pairs of `rates` and `seeds` for `setting.steps` steps of SGD.

    A training ends with its first loss that is not finite. observe_at: steps before which attention is measured.
    """
    stack, untrained = (Stack(core, setting, some, seeds, dtype) for some in (rates, rates[:1]))
    alive = torch.arange(len(stack.rates))
    losses = torch.full((setting.steps, len(alive)), torch.nan, dtype=dtype)
    norms, observed = losses.clone(), []
    untrained_losses, zero_losses = torch.empty(2, setting.steps, len(seeds), dtype=dtype)
    for step, (tokens, targets) in zip(range(setting.steps), draw_batches(setting, seeds, dtype), strict=False):
        with torch.no_grad():
            untrained_losses[step] = untrained.losses(tokens, targets)
            zero_losses[step] = targets.square().mean(-1)
        if not len(alive):
            continue
        if step in observe_at:
            nothing = torch.full((losses.shape[1], LAYERS), torch.nan, dtype=dtype)
            seen = stack.attention_statistics(tokens)
            observed.append({name: nothing.index_copy(0, alive, value) for name, value in seen.items()})
        losses[step, alive], norms[step, alive] = stack.step(tokens, targets)
        if (step + 1) % DROP_EVERY == 0:
            finite = torch.isfinite(losses[step + 1 - DROP_EVERY : step + 1, alive]).all(0)
            if not finite.all():
                stack.keep(finite)
                alive = alive[finite]
    names, shape = observed[0] if observed else (), (-1, len(seeds))
    statistics = {name: torch.stack([seen[name] for seen in observed]).unflatten(1, shape) for name in names}
    losses, norms = losses.unflatten(1, shape), norms.unflatten(1, shape)
    return Trained(losses, norms, untrained_losses, zero_losses, statistics)
