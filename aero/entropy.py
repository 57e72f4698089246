"""Attention entropy: bounds, distributions, overload and collapse, and the regulariser (AERO §3, §4.3, Algorithm 1).

Entropies are in nats throughout. `measure` also takes Hugging Face models, and `EntropyRegularizer` is for them; their
code is in aero.hf.measure and aero.hf.regularizer, loaded when it is asked for, as it needs transformers.
"""

from __future__ import annotations

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Reduction = Literal["head_mean", "position_sum"]


def max_entropy(context: int) -> float:
    """log T, the papers' E_max: the entropy of a row uniform over T positions."""
    return math.log(context)


def causal_bound(context: int) -> float:
    """ln(T!) / T: the largest mean over queries that a causal mask allows, since row i is bounded by ln i."""
    return math.lgamma(context + 1) / context


def headwise(entropies: Tensor) -> Tensor:
    """Mean over queries and sequences (Eq. 10): (L, B, H, T) -> (L, H)."""
    return entropies.mean(dim=(1, 3))


def _quarters(values: Tensor, maximum: float) -> Tensor:
    """The quarter of `maximum` that each value is in, 0 to 3, a boundary with the quarter above it; not finite: -1."""
    boundaries = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=values.device) * maximum
    return torch.bucketize(values.double(), boundaries, right=True).masked_fill(~torch.isfinite(values), -1)


def quarter_fractions(values: Tensor, maximum: float) -> list[float]:
    """Fractions of heads per quarter of `maximum`: [0, max/4), [max/4, max/2), [max/2, 3max/4), [3max/4, max].

    values: (L, H). Non-finite heads are in no quarter, so the four fractions then sum to less than 1.
    """
    if maximum <= 0:
        raise ValueError(f"maximum entropy must be positive, got {maximum}")
    quarters = _quarters(values, maximum)
    counts = torch.bincount(quarters.flatten() + 1, minlength=5)[1:]
    return (counts.double() / quarters.numel()).tolist()


@dataclass(frozen=True)
class HeadFailures:
    """Heads called overloaded or collapsed: their fraction of all heads, and layers where they are the majority."""

    fraction: float
    layers: tuple[int, ...]


def _failures(mask: Tensor) -> HeadFailures:
    majority = (mask.double().mean(-1) > 0.5).nonzero().flatten().tolist()
    return HeadFailures(mask.double().mean().item(), tuple(majority))


def overload(values: Tensor, maximum: float) -> HeadFailures:
    """Entropic overload: mean entropy in the top quarter of `maximum` (AERO §3, "between 3max/4 and max")."""
    return _failures(_quarters(values, maximum) == 3)


def collapse(values: Tensor, maximum: float) -> HeadFailures:
    """Entropy collapse: mean entropy in the bottom quarter of `maximum` (AERO Observation 3), or non-finite."""
    return _failures(_quarters(values, maximum) <= 0)


def entropy_regularization(
    entropies: Tensor,
    thresholds: Tensor,
    gamma: float = 0.20,
    reduction: Reduction = "position_sum",
    context: int | None = None,
) -> Tensor:
    """Entropy regularisation loss, to be weighted by lambda and added to the cross-entropy.

    entropies: (L, B, H, T) nats. thresholds: (L, H), `reg_threshold_weights`, fractions of E_max = log T.
    A deviation from thresholds * E_max is penalised by its square where its size exceeds gamma * E_max.

    reduction="head_mean" is Algorithm 1: the entropy is averaged over queries (and sequences) first, one penalty a
    head. "position_sum" is the authors' listing: a penalty at every query position, summed over sequences and
    positions. Both are then averaged over heads and layers. `context` is T if the rows are a subset of it. An entropy
    that is not a number makes the loss one, so that nobody trains on: its gradient would break the model anyway.
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


BLOCKS = 32
"""Most blocks of consecutive held-out sequences that a measurement is split into for its sampling error."""


@dataclass(frozen=True)
class EntropyStatistics:
    """Attention entropies of a model on held-out sequences, nats.

    mean, sem: (L, H), mean over queries and sequences and its standard error over sequences.
    by_position: (L, T), mean over heads and sequences at each query position.
    tokens: number of tokens measured.
    median: (L, H), median over all rows, i.e. queries of all sequences.
    by_position_sem: (L, T), standard error of by_position, over the blocks.
    blocks: (K, L, H), the mean over queries and sequences of each of K blocks of consecutive sequences. Neighbours are
    often cut from one document and so alike: the blocks' spread holds that, the sequences' does not.
    bound: (L), the largest mean over queries that the mask of the layer allows; None: `causal_bound` of T positions.
    """

    mean: Tensor
    sem: Tensor
    by_position: Tensor
    tokens: int
    median: Tensor | None = None
    by_position_sem: Tensor | None = None
    blocks: Tensor | None = None
    bound: Tensor | None = None

    def summary(self) -> dict[str, object]:
        """As JSON-ready values, with maxima, quarter fractions, and overload and collapse by the stated rules.

        Quarters are of the largest mean observed, of log T and of ln(T!)/T (`causal_bound`). Where `bound` is another
        than that, each layer's own takes its place (`entropy_bound`), and the largest observed is one of its fractions.
        """
        context = self.by_position.shape[1]
        if context == 1:
            return self._of_one_position()
        maxima = self._maxima()
        usable, reference, rule = self._compared(maxima)
        high, low = overload(*usable[reference]), collapse(*usable[reference])
        return {
            "entropy_mean": _json_values(self.mean),
            "entropy_sem": _json_values(self.sem),
            "entropy_by_position": _json_values(self.by_position),
            "tokens": self.tokens,
            "maximum": {name: value if math.isfinite(value) else None for name, value in maxima.items()},
            "quarters": {name: quarter_fractions(*of) for name, of in usable.items()},
            "overload": {"fraction": high.fraction, "layers": list(high.layers)},
            "collapse": {"fraction": low.fraction, "layers": list(low.layers)},
            "rule": "overload: head mean >= 3/4 max; collapse: head mean < 1/4 max or not finite; max is "
            f"{rule}; a layer is named where more than half of its heads are",
            **self._for_sampling_errors(),
            **({} if self.bound is None else {"entropy_bound": self.bound.tolist()}),
        }

    def compared(self) -> tuple[Tensor, float, str]:
        """Heads, (L, H), the maximum that overload and collapse go by, and how the rule puts it. For T above 1."""
        usable, reference, rule = self._compared(self._maxima())
        return *usable[reference], rule

    def _maxima(self) -> dict[str, float]:
        context = self.by_position.shape[1]
        bounds = {"log_T": max_entropy(context), "causal_bound": causal_bound(context)}
        return {"observed": _largest(self.mean), **bounds}

    def _compared(self, maxima: dict[str, float]) -> tuple[dict[str, tuple[Tensor, float]], str, str]:
        """By the name of a maximum: heads and what their quarters are of. Also the name that overload and collapse go
        by, and how the rule puts it.

        Where the masks are not the plain causal one of T positions (windows, padding), heads are compared as fractions
        of what their layer's mask allows: uniform attention to nine keys is no more focused than to all of them.
        """
        # A model whose heads are all at 0 has no observed maximum to take quarters of.
        usable = {name: (self.mean, value) for name, value in maxima.items() if value > 0}
        shares = self._shares_of_bound()
        if shares is None:
            reference = "observed" if "observed" in usable else "log_T"
            return usable, reference, reference
        usable = {"log_T": usable["log_T"], "entropy_bound": (shares, 1.0)}
        if not (observed := _largest(shares)) > 0:
            return usable, "entropy_bound", "the layer's entropy_bound"
        usable = {"observed": (shares, observed), **usable}
        return usable, "observed", "observed, each head as a fraction of its layer's entropy_bound"

    def _shares_of_bound(self) -> Tensor | None:
        """`mean` as fractions of `bound`, (L, H) float64; None if that is the plain causal one, alike for all layers. A
        layer that sees one key has fraction 0.
        """
        if self.bound is None:
            return None
        bound = self.bound.double()
        plain = torch.full_like(bound, causal_bound(self.by_position.shape[1]))
        if torch.allclose(bound, plain, rtol=1e-9, atol=0.0):  # a mean of logarithms here, a log-gamma there
            return None
        return torch.where(bound[:, None] > 0, self.mean.double() / bound[:, None], 0.0 * self.mean.double())

    def _of_one_position(self) -> dict[str, object]:
        """The one row has one weight, 1, in every head: entropy 0, no maximum above it, and no rule to apply. Where the
        logit is not finite there is no entropy, and the head counts as collapsed, as in any longer sequence.
        """
        rule, collapsed = "none: a sequence of one token has entropy 0 in every head", None
        broken = _failures(~torch.isfinite(self.mean))
        if broken.fraction:
            rule = "collapse: head mean not finite; all else none: a sequence of one token has entropy 0 in other heads"
            collapsed = {"fraction": broken.fraction, "layers": list(broken.layers)}
        return {
            "entropy_mean": _json_values(self.mean),
            "entropy_sem": _json_values(self.sem),
            "entropy_by_position": _json_values(self.by_position),
            "tokens": self.tokens,
            "maximum": {"observed": None if broken.fraction == 1 else 0.0, "log_T": 0.0, "causal_bound": 0.0},
            "quarters": {},
            "overload": None,
            "collapse": collapsed,
            "rule": rule,
        }

    def _for_sampling_errors(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if self.median is not None:
            found["entropy_median"] = _json_values(self.median)
        if self.by_position_sem is not None:
            found["entropy_by_position_sem"] = _json_values(self.by_position_sem, 3)
        if self.blocks is not None:
            found["entropy_blocks"] = [_json_values(block, 6) for block in self.blocks]
        return found


def _largest(values: Tensor) -> float:
    """Of the finite ones; NaN without any."""
    finite = values[torch.isfinite(values)]
    return finite.max().item() if finite.numel() else math.nan


def _json_values(values: Tensor, digits: int = 17) -> list[list[float | None]]:
    """Rows of numbers to so many digits (17: every one), null where a number is not finite."""
    return [[float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in row] for row in values.tolist()]


@torch.no_grad()
def measure(model: Callable[..., Any], ids: Tensor | Iterable[Any]) -> EntropyStatistics:
    """Attention entropies of `model` on `ids`: token ids (B, T), or several such batches.

    model: a Hugging Face causal language model (then `ids` may also be a tokenizer's output, with its padding; see
    `aero.hf.measure.measure`), or one whose `model(ids, entropy=True)` gives (logits, (L, B, H, T)), as
    `aero.model.GPT`. Every row's entropy of the latter is held until the end, in float32, for the medians. Either may
    be wrapped by torch.compile, by a module that holds it as `module` (DistributedDataParallel), or by PEFT.
    ValueError if there is no batch, batches differ in T, ids are no token ids of the model, or it does not tell its
    attention entropies.
    """
    model = _unwrapped(model)
    transformers = sys.modules.get("transformers")  # a model of theirs cannot be there before it
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        return importlib.import_module("aero.hf.measure").measure(model, ids)
    parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    if not any(p.name == "entropy" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise _hidden(model)
    batches = [ids] if isinstance(ids, Tensor) else ids
    if not isinstance(batches, Iterable):
        check_ids(batches, None)
    vocabulary = getattr(getattr(model, "config", None), "vocabulary", None)
    per_sequence, by_position, rows, tokens = [], [], [], 0
    for batch in batches:
        check_ids(batch, vocabulary)
        entropies = _row_entropies(model, batch).double()  # (L, B, H, T)
        per_sequence.append(entropies.mean(-1))  # (L, B, H)
        by_position.append(entropies.mean(2))  # (L, B, T)
        rows.append(entropies.float().cpu())
        tokens += batch.numel()
    if not tokens:
        raise ValueError("no held-out tokens to measure entropy on")
    if len({part.shape[-1] for part in by_position}) > 1:
        raise ValueError("all batches must have the same context length")
    sequences, positions = torch.cat(per_sequence, dim=1), torch.cat(by_position, dim=1)  # (L, N, H), (L, N, T)
    return EntropyStatistics(
        mean=sequences.mean(1),
        sem=standard_error(sequences, 1),
        by_position=positions.mean(1),
        tokens=tokens,
        median=torch.stack([_median([part[layer] for part in rows]) for layer in range(len(sequences))]),
        by_position_sem=standard_error(_blocks(positions), 0),
        blocks=_blocks(sequences),
    )


def check_ids(ids: object, vocabulary: int | None) -> None:
    """ValueError unless `ids` are token ids (B, T), at least one, int64 or int32, each from 0 to below `vocabulary`.

    vocabulary None: not known, and not looked at.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not ids.numel():
        given = f"shape {tuple(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be a tensor of shape (sequences, tokens), and there must be some; got {given}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"ids must be token ids, int64 or int32; got {ids.dtype}: `ids.long()`, if they are whole numbers"
        )
    if vocabulary is not None:
        low, high = ids.min().item(), ids.max().item()
        if low < 0 or high >= vocabulary:
            raise ValueError(
                f"ids must be from 0 to {vocabulary - 1}, as the model has {vocabulary} tokens; got {low} to {high}: "
                "are they another tokenizer's, or labels with their -100?"
            )


def _unwrapped(model: Any) -> Any:
    """The model inside the wrappers that compute what it computes; one that tells its entropies is no wrapper."""
    while "entropy" not in inspect.signature(getattr(model, "forward", model)).parameters:
        # With a prompt of PEFT's own in front the model inside sees other rows; sharded, it has no whole weights.
        prompted = getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
        if prompted or type(model).__name__ == "FullyShardedDataParallel":
            raise _hidden(model)
        if isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):  # torch.compile
            model = inner
        elif isinstance(inner := getattr(model, "module", None), torch.nn.Module):
            model = inner
        elif callable(base := getattr(model, "get_base_model", None)) and isinstance(inner := base(), torch.nn.Module):
            if inner is model:
                break
            model = inner
        else:
            break
    return model


def _row_entropies(model: Callable[..., Any], batch: Any) -> Tensor:
    """Second result of model(batch, entropy=True), (L, B, H, T). ValueError if it is none: a model that takes any
    keyword, and so a wrapper of one, may give its cache of keys there.
    """
    try:
        result = model(batch, entropy=True)
    except TypeError as error:  # what is wrapped takes no such keyword
        if "'entropy'" not in str(error):
            raise
        raise _hidden(model) from error
    try:
        found = None if isinstance(result, Tensor) else result[1]
    except (TypeError, LookupError):
        found = None
    if not isinstance(found, Tensor) or found.ndim != 4:
        raise _hidden(model)
    return found


def _hidden(model: object) -> ValueError:
    return ValueError(
        f"{type(model).__name__} hides its attention weights: a model must be one of transformers, or give its row "
        "entropies (L, B, H, T) as the second result of model(ids, entropy=True)"
    )


def _median(rows: Sequence[Tensor]) -> Tensor:
    """Median over sequences and queries of one layer's row entropies, each (B, H, T): (H,)."""
    values = torch.cat([part.transpose(0, 1).flatten(1) for part in rows], dim=1)  # (H, N T)
    # torch's median is the lower of the two in the middle of an even number.
    return (values.median(1).values.double() - (-values).median(1).values.double()) / 2


def _blocks(sequences: Tensor) -> Tensor:
    """Means of up to BLOCKS runs of consecutive sequences, as equal in number as can be: (L, N, …) -> (K, L, …)."""
    return torch.stack([part.mean(1) for part in sequences.tensor_split(min(BLOCKS, sequences.shape[1]), dim=1)])


def standard_error(values: Tensor, dim: int) -> Tensor:
    """Of the mean over `dim`; NaN for a single value."""
    count = values.shape[dim]
    return values.std(dim) / math.sqrt(count) if count > 1 else torch.full_like(values.mean(dim), math.nan)


def __getattr__(name: str) -> Any:
    if name == "EntropyRegularizer":
        try:
            return importlib.import_module("aero.hf.regularizer").EntropyRegularizer
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} needs {error.name}: pip install -e '.[hf]' in your clone") from None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
