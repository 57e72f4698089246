"""Attention entropy of a model, in nats, and its regularisation: what other code imports of them.

What `measure` and `EntropyRegularizer` need for Hugging Face models (`aero.hf`, transformers) is imported on use.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from aero.entropy_statistics import (  # noqa: F401
    EntropyStatistics,
    HeadFailures,
    Reduction,
    causal_bound,
    check_ids,
    collapse,
    entropy_regularization,
    headwise,
    max_entropy,
    overload,
    quarter_fractions,
    statistics_of,
)


def measure(model: Callable[..., Any], ids: Tensor | Iterable[Any]) -> EntropyStatistics:
    """Attention entropies of `model` on `ids`: token ids (B, T), or several such batches of one length T.

    model: a Hugging Face causal language model (then `ids` may also be a tokenizer's output, with its padding; see
    `aero.hf.measure.measure`), or a model whose `model(ids, entropy=True)` returns (logits, (L, B, H, T)), as
    `aero.model.GPT` does. Wrappers (torch.compile, DistributedDataParallel, PEFT) are removed.
    Raises ValueError if there is no batch, batches differ in T, ids are no token ids of the model, or the model does
    not expose its attention entropies.
    """
    model = _unwrapped(model)
    transformers = sys.modules.get("transformers")  # imported already, if the model is one of theirs
    if transformers is not None and isinstance(model, transformers.PreTrainedModel):
        from aero.hf.measure import measure as measure_theirs

        return measure_theirs(model, ids)
    if not _takes_entropy(model):
        raise _no_entropies(model)
    return statistics_of(_measured_batches(model, [ids] if isinstance(ids, Tensor) else ids))


def _measured_batches(model: Callable[..., Any], batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor, None]]:
    """The batches of `statistics_of`."""
    vocabulary = getattr(getattr(model, "config", None), "vocabulary", None)
    context = None
    for batch in batches:
        check_ids(batch, vocabulary)
        if batch.shape[1] != (context := context or batch.shape[1]):
            raise ValueError("all batches must have the same context length")
        with torch.no_grad():
            result = model(batch, entropy=True)
        if not isinstance(result, tuple) or not isinstance(result[1], Tensor) or result[1].ndim != 4:
            raise _no_entropies(model)
        yield result[1], torch.ones(batch.shape, dtype=torch.bool), None


def _takes_entropy(model: Any) -> bool:
    return "entropy" in inspect.signature(getattr(model, "forward", model)).parameters


def _unwrapped(model: Any) -> Any:
    """The model inside wrappers: torch.compile (`_orig_mod`), parallel training (`module`), PEFT (`get_base_model`)."""
    while not _takes_entropy(model):
        if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
            raise _no_entropies(model)  # the model inside would not see the prompt
        inner = getattr(model, "_orig_mod", None)
        if inner is None:
            inner = getattr(model, "module", None)
        if inner is None and hasattr(model, "get_base_model"):
            inner = model.get_base_model()
        if not isinstance(inner, nn.Module) or inner is model:
            break
        model = inner
    return model


def _no_entropies(model: object) -> ValueError:
    return ValueError(
        f"{type(model).__name__} does not expose its attention entropies: a model must be one of transformers, or its "
        "model(ids, entropy=True) must return (logits, row entropies (L, B, H, T))"
    )


def __getattr__(name: str) -> Any:
    if name == "EntropyRegularizer":
        try:
            from aero.hf.regularizer import EntropyRegularizer
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} needs {error.name}: pip install -e '.[hf]' in your clone") from None
        return EntropyRegularizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
