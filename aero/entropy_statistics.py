"""Statistics of attention entropies, in nats, and the formula of the regulariser (AERO §3, §4.3, Algorithm 1).

Shapes: L layers, B sequences of a batch, N sequences in all, H heads, T positions, K blocks of sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

Reduction = Literal["head_mean", "position_sum"]

BLOCKS = 32
"""A measurement is split into at most this many blocks of consecutive sequences, for its sampling error."""


def max_entropy(context: int) -> float:
    """log T, the papers' E_max: the entropy of a row uniform over T positions."""
    return math.log(context)


def causal_bound(context: int) -> float:
    """ln(T!) / T: the largest mean over queries that a causal mask allows, since row i is bounded by ln i."""
    return math.lgamma(context + 1) / context


def headwise(entropies: Tensor) -> Tensor:
    """Mean over queries and sequences (Eq. 10): (L, B, H, T) -> (L, H)."""
    return entropies.mean(dim=(1, 3))


def entropy_regularization(
    entropies: Tensor,
    thresholds: Tensor,
    gamma: float = 0.20,
    reduction: Reduction = "position_sum",
    context: int | None = None,
) -> Tensor:
    """Entropy regularisation loss (), to be multiplied by lambda and added to the cross-entropy.

    entropies: (L, B, H, T). thresholds: (L, H), `reg_threshold_weights`, fractions of E_max = log T.
    context: T in E_max, if `entropies` are only some of the rows.
    A deviation from thresholds * E_max is penalised by its square where its size exceeds gamma * E_max.

    reduction="head_mean" is Algorithm 1: one penalty a head, of the entropy averaged over queries and sequences.
    reduction="position_sum" is the authors' code: a penalty at every query position, summed over sequences and
    positions. Both are then averaged over heads and layers. A NaN entropy makes the loss NaN.
    """
    if entropies.ndim != 4:
        raise ValueError(f"entropies must have shape (L, B, H, T), got {tuple(entropies.shape)}")
    layers, _, heads, positions = entropies.shape
    if tuple(thresholds.shape) != (layers, heads):
        raise ValueError(f"thresholds must have shape (L, H) = {(layers, heads)}, got {tuple(thresholds.shape)}")
    if gamma < 0:
        raise ValueError(f"gamma must not be negative, got {gamma}")
    maximum = max_entropy(context or positions)
    if reduction == "head_mean":
        deviation = headwise(entropies) - thresholds * maximum  # (L, H)
        penalty = torch.where(deviation.abs() <= gamma * maximum, 0.0, deviation.square())
        return penalty.mean()
    if reduction == "position_sum":
        deviation = entropies - thresholds[:, None, :, None] * maximum  # (L, B, H, T)
        penalty = torch.where(deviation.abs() <= gamma * maximum, 0.0, deviation.square())
        return penalty.sum(dim=(1, 3)).mean()
    raise ValueError(f"unknown reduction {reduction!r}: head_mean or position_sum")


def _quarters(values: Tensor, maximum: float) -> Tensor:
    """The quarter of `maximum` that each value is in, 0 to 3 (boundaries belong to the upper one); -1 if not finite."""
    boundaries = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=values.device) * maximum
    return torch.bucketize(values.double(), boundaries, right=True).masked_fill(~torch.isfinite(values), -1)


def quarter_fractions(values: Tensor, maximum: float) -> list[float]:
    """Fractions of heads per quarter of `maximum`: [0, max/4), [max/4, max/2), [max/2, 3max/4), [3max/4, max].

    values: (L, H). Heads that are not finite are in no quarter, so the fractions then sum to less than 1.
    """
    if maximum <= 0:
        raise ValueError(f"maximum entropy must be positive, got {maximum}")
    quarters = _quarters(values, maximum)
    counts = torch.bincount(quarters.flatten() + 1, minlength=5)[1:]  # (4)
    return (counts.double() / quarters.numel()).tolist()


@dataclass(frozen=True)
class HeadFailures:
    """Overloaded or collapsed heads: their fraction of all heads, and the layers in which they are the majority."""

    fraction: float
    layers: tuple[int, ...]


def _failures(mask: Tensor) -> HeadFailures:
    majority = (mask.double().mean(-1) > 0.5).nonzero().flatten().tolist()
    return HeadFailures(mask.double().mean().item(), tuple(majority))


def overload(values: Tensor, maximum: float) -> HeadFailures:
    """Entropic overload: mean entropy in the top quarter of `maximum` (AERO §3, "between 3max/4 and max")."""
    return _failures(_quarters(values, maximum) == 3)


def collapse(values: Tensor, maximum: float) -> HeadFailures:
    """Entropy collapse: mean entropy in the bottom quarter of `maximum` (AERO Observation 3), or not finite."""
    return _failures(_quarters(values, maximum) <= 0)


def _both_failures(values: Tensor, maximum: float) -> dict[str, dict[str, object]]:
    """`overload` and `collapse`, JSON-ready."""
    failures = {"overload": overload(values, maximum), "collapse": collapse(values, maximum)}
    return {name: {"fraction": found.fraction, "layers": list(found.layers)} for name, found in failures.items()}


@dataclass(frozen=True)
class EntropyStatistics:
    """Attention entropies of a model on held-out sequences.

    mean, sem: (L, H), mean over queries and sequences, and its standard error over sequences.
    by_position: (L, T), mean over heads and sequences at each query position.
    tokens: number of tokens measured.
    median: (L, H), median over all rows (queries of all sequences).
    by_position_sem: (L, T), standard error of by_position over the blocks.
    blocks: (K, L, H), mean over queries and sequences of each block of consecutive sequences. Neighbouring sequences
        often come from one document and are alike; the spread of blocks contains that, the spread of sequences not.
    bound: (L), the largest mean over queries that the mask of the layer allows; None: `causal_bound` of T positions.
    """

    mean: Tensor
    sem: Tensor
    by_position: Tensor
    tokens: int
    median: Tensor
    by_position_sem: Tensor
    blocks: Tensor
    bound: Tensor | None = None

    def summary(self) -> dict[str, object]:
        """JSON-ready values, with maxima, quarter fractions, overload and collapse, and the rule that was applied.

        Quarters are of the largest observed mean, of log T and of ln(T!)/T (`causal_bound`). If the masks are not the
        plain causal one (sliding window, padding), heads count as fractions of their layer's own bound instead.
        """
        context = self.by_position.shape[1]
        observed = _largest(self.mean)
        found: dict[str, object] = {
            "entropy_mean": _json_values(self.mean),
            "entropy_sem": _json_values(self.sem),
            "entropy_by_position": _json_values(self.by_position, 6),
            "entropy_median": _json_values(self.median),
            "entropy_by_position_sem": _json_values(self.by_position_sem, 3),
            "entropy_blocks": [_json_values(block, 6) for block in self.blocks],
            "tokens": self.tokens,
            "maximum": {
                "observed": observed if math.isfinite(observed) else None,
                "log_T": max_entropy(context),
                "causal_bound": causal_bound(context),
            },
            "quarters": {},
            "overload": None,
            "collapse": None,
            "rule": "none: a sequence of one token has entropy 0 in every head",
        }
        if context > 1:
            scales, reference, rule = self.scales()
            found["quarters"] = {name: quarter_fractions(*scale) for name, scale in scales.items()}
            found |= _both_failures(*scales[reference])
            found["rule"] = (
                "overload: head mean >= 3/4 max; collapse: head mean < 1/4 max or not finite; max is "
                f"{rule}; a layer is named where more than half of its heads are"
            )
        if self.bound is not None:
            found["entropy_bound"] = self.bound.tolist()
        return found

    def scales(self) -> tuple[dict[str, tuple[Tensor, float]], str, str]:
        """{name: (head values, their maximum)}, the one that overload and collapse refer to, and how to describe it.

        For T > 1.
        """
        context, bounds = self.by_position.shape[1], self.bounds()
        scales = {"log_T": (self.mean, max_entropy(context))}
        plain = torch.full_like(bounds, causal_bound(context))
        if torch.allclose(bounds, plain, rtol=1e-9, atol=0.0):
            values, reference, rules = self.mean, "log_T", ("observed", "log_T")
            scales["causal_bound"] = (values, causal_bound(context))
        else:
            values, reference = self._shares(), "entropy_bound"
            rules = "observed, each head as a fraction of its layer's entropy_bound", "the layer's entropy_bound"
            scales["entropy_bound"] = (values, 1.0)
        if (observed := _largest(values)) > 0:
            return {"observed": (values, observed), **scales}, "observed", rules[0]
        return scales, reference, rules[1]  # every head is at 0 or not finite

    def bounds(self) -> Tensor:
        """The largest mean over queries that the mask of each layer allows: (L), float64, nats."""
        plain = torch.full_like(self.mean[:, 0].double(), causal_bound(self.by_position.shape[1]))
        return plain if self.bound is None else self.bound.double()

    def failures_of_bound(self) -> dict[str, object]:
        """`overload` and `collapse` relative to `bounds`, JSON-ready, with the rule.

        Relative to the largest observed entropy, as in the papers, every model has an overloaded head.
        """
        rule = "the same with max = the largest mean that the layer's mask allows (entropy_bound or causal_bound)"
        return {**_both_failures(self._shares(), 1.0), "rule": rule}

    def _shares(self) -> Tensor:
        """`mean` as fractions of `bounds`, (L, H) float64, 0 where a layer sees one key."""
        bounds = self.bounds()[:, None]
        return torch.where(bounds > 0, self.mean.double() / bounds, 0.0 * self.mean.double())


def _largest(values: Tensor) -> float:
    """The largest finite value; NaN if there is none."""
    finite = values[torch.isfinite(values)]
    return finite.max().item() if finite.numel() else math.nan


def _json_values(values: Tensor, digits: int = 17) -> list[list[float | None]]:
    """Rows of numbers with so many significant digits (17: exact), null where a number is not finite."""
    return [[float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in row] for row in values.tolist()]


def statistics_of(batches: Iterable[tuple[Tensor, Tensor, Tensor | None]]) -> EntropyStatistics:
    """Statistics of batches of row entropies, computed on the CPU in float64.

    Each batch: entropies (L, B, H, T); real (B, T) bool, False where a token is padding, which counts nowhere; and the
    number of keys that each query sees (L, B, T), or None for the plain causal mask in all batches. A position is
    counted from the first real token of its sequence. All rows are held in float32 until the end, for the medians.
    ValueError if there is no batch, or a sequence without a token.
    """
    means, bounds, positions, lengths, rows = [], [], [], [], []
    for entropies, real, seen in batches:
        entropies, real = entropies.cpu(), real.cpu()
        length = real.sum(-1)  # (B)
        if not length.all():
            raise ValueError("a sequence without a token has no entropy: every row of the attention mask needs a 1")
        rows.append(entropies.transpose(2, 3)[:, real].float())  # (L, rows, H)
        entropies = torch.where(real[:, None], entropies.double(), 0.0)  # (L, B, H, T)
        means.append(entropies.sum(-1) / length[:, None])  # (L, B, H)
        if seen is not None:
            bounds.append((seen.cpu().clamp_min(1).double().log() * real).sum(-1) / length)  # (L, B)
        order = (~real).to(torch.uint8).argsort(dim=-1, stable=True)  # (B, T), real tokens first
        positions.append(entropies.mean(2).gather(-1, order.expand(len(entropies), *order.shape)))  # (L, B, T)
        lengths.append(length)
    if not lengths:
        raise ValueError("no held-out tokens to measure entropy on")
    sequences, length = torch.cat(means, 1), torch.cat(lengths)  # (L, N, H), (N)
    longest = int(length.max())  # T of the result
    by_position = torch.cat(
        [nn.functional.pad(part, (0, longest))[..., :longest] for part in positions], 1
    )  # (L, N, T)
    present = torch.arange(longest) < length[:, None]  # (N, T)
    return EntropyStatistics(
        mean=sequences.mean(1),
        sem=standard_error(sequences, 1),
        by_position=by_position.sum(1) / present.sum(0),
        tokens=int(length.sum()),
        median=torch.from_numpy(
            np.stack([np.median(torch.cat(layer).double(), 0) for layer in zip(*rows, strict=True)])
        ),
        by_position_sem=_error_over_blocks(by_position, present),
        blocks=torch.stack([part.mean(1) for part in _blocks(sequences)]),
        bound=torch.cat(bounds, 1).mean(1) if bounds else None,
    )


def _blocks(sequences: Tensor, dim: int = 1) -> tuple[Tensor, ...]:
    """Up to BLOCKS runs of consecutive sequences, of equal size as far as possible."""
    return sequences.tensor_split(min(BLOCKS, sequences.shape[dim]), dim=dim)


def standard_error(values: Tensor, dim: int) -> Tensor:
    """Standard error of the mean over `dim`; NaN for a single value."""
    count = values.shape[dim]
    return values.std(dim) / math.sqrt(count) if count > 1 else torch.full_like(values.mean(dim), math.nan)


def _error_over_blocks(by_position: Tensor, present: Tensor) -> Tensor:
    """Standard error (L, T) of the mean at each position, over the blocks of sequences that have the position.

    by_position: (L, N, T), 0 where a sequence has no such position by `present` (N, T). NaN with fewer than two blocks.
    """
    counts = torch.stack([part.sum(0) for part in _blocks(present, 0)])  # (K, T)
    sums = torch.stack([part.sum(1) for part in _blocks(by_position)])  # (K, L, T)
    means = sums / counts.clamp_min(1)[:, None]  # (K, L, T)
    has = counts[:, None] > 0  # (K, 1, T)
    number = has.sum(0)  # (1, T)
    squares = torch.where(has, means - means.sum(0) / number, 0.0).square().sum(0)  # (L, T)
    return torch.where(number > 1, (squares / (number - 1).clamp_min(1) / number).sqrt(), math.nan)


def check_ids(ids: object, vocabulary: int | None) -> None:
    """ValueError unless `ids` is a non-empty (B, T) tensor of token ids, int64 or int32, from 0 to below `vocabulary`.

    vocabulary: None if it is not known.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel():
        given = f"shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be a non-empty tensor of shape (sequences, tokens), got {given}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids must be token ids of type int64 or int32, got {ids.dtype}")
    if vocabulary is not None:
        low, high = ids.min().item(), ids.max().item()
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"ids must be from 0 to {vocabulary - 1}, as the model has {vocabulary} tokens; got {low} to {high}: "
                "from another tokenizer, or labels with -100?"
            )
