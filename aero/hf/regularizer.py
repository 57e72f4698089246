"""AERO's entropy regulariser for Hugging Face's causal language models.

It adds a learnable threshold for every head, a learnable temperature for every query position, and a penalty in the
loss, through the attention function of `aero.hf.attention`.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from aero.entropy_statistics import Reduction, check_ids, entropy_regularization
from aero.hf.attention import IMPLEMENTATION, Rows, document_starts, recorded_rows, switch_attention
from aero.hf.measure import check_padding, run, vocabulary


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `model`, by name."""
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    return {**given, **given.get("kwargs", {})}


def _part(labels: Tensor, together: Tensor | int) -> Tensor:
    """A micro-batch's share of the labels of a step, by its shifted labels."""
    return labels.ne(-100).sum() / together


class Learned(nn.Module):
    """A parameter as a module of its own, which PEFT's `modules_to_save` can train and save."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(start)


class EntropyRegularizer:
    """AERO's entropy regulariser on a Hugging Face model, with learnable thresholds and temperatures (Algorithm 1).

        regularizer = EntropyRegularizer(model, context=128)
        Trainer(model=model, ...).train()

    In training mode the model then adds lambda times the regularisation to its loss, without padding by a mask (B, T)
    or (B, 1, T, S). A loss function of your own adds `share`. The new parameters are `reg_threshold_weights` (L, H),
    fractions of log T, and in every attention module `entropy_temperature` (H, context), which divides the logits of
    its query row, by its position among the real tokens of its document. The model saves them; `load` restores them.

    context: the longest sequence, or document of a packed row, and T in E_max = log T for every batch, so that neither
        padding nor packing changes the penalty.
    lambda_, gamma, reduction: see `aero.entropy.entropy_regularization`; head_mean averages over all real queries.
    lambda_positions: `position_sum` sums over the tokens of a batch, so the penalty is scaled to a batch of this many
        tokens (the papers' 128 x 128); None: not scaled.
    temperature_init: 1 leaves a trained model unchanged, the papers start new ones at 0.01; None: no temperatures.
        Nothing keeps a temperature positive: Adam moves one of 0.01 below 0 in about ten steps at 1e-3.

    Raises ValueError for a model or a value that is not supported; in training, if ids are no token ids of the model,
    the mask does not show the padding, or packed documents are not kept apart.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        context: int,
        lambda_: float = 1e-5,
        gamma: float = 0.20,
        reduction: Reduction = "position_sum",
        lambda_positions: int | None = 16384,
        threshold_init: float = 0.5,
        temperature_init: float | None = 1.0,
    ) -> None:
        if not isinstance(model, PreTrainedModel):
            raise ValueError(
                f"{type(model).__name__} is no PreTrainedModel of transformers: create the regulariser before "
                "torch.compile, PEFT or a parallel wrapper"
            )
        kind, config = type(model).__name__, model.config.get_text_config()
        dropout = [name for name in ("attn_pdrop", "attention_dropout") if getattr(config, name, 0.0)]
        saved = getattr(model.config, "entropy_regularizer", None) is not None and model.name_or_path
        offloaded = any(p.is_meta for p in model.parameters())
        for wrong, message in (
            (hasattr(model, "reg_threshold_weights"), f"this {kind} has an entropy regulariser already"),
            (saved, f"this {kind} was saved with a regulariser: use EntropyRegularizer.load(model, folder)"),
            (offloaded, f"weights of this {kind} are offloaded: load it without offloading"),
            (dropout, f"the entropy of dropped weights is meaningless: load the model with {''.join(dropout)}=0.0"),
        ):
            if wrong:
                raise ValueError(message)
        for name, value, possible, words in (
            ("context", context, type(context) is int and context > 0, "a whole number of tokens"),
            ("lambda_", lambda_, 0 <= lambda_ < math.inf, "finite and not negative"),
            ("gamma", gamma, 0 <= gamma < math.inf, "finite and not negative"),
            ("reduction", reduction, reduction in Reduction.__args__, f"one of {Reduction.__args__}"),
            ("lambda_positions", lambda_positions, lambda_positions is None or lambda_positions >= 1, "1 or more"),
            ("threshold_init", threshold_init, 0 <= threshold_init <= 1, "from 0 to 1"),
            (
                "temperature_init",
                temperature_init,
                temperature_init is None or 0 < temperature_init < math.inf,
                "positive",
            ),
        ):
            if not possible:
                raise ValueError(f"{name} {value!r} must be {words}")
        rows, _ = run(model, torch.zeros(1, 1, dtype=torch.long))
        heads = rows[0].entropies.shape[1]
        thresholds = torch.full((len(rows), heads), float(threshold_init), device=model.device)
        model.reg_threshold_weights = Learned(thresholds)
        if temperature_init is not None:
            for module in {id(row.module): row.module for row in rows}.values():
                start = torch.full((heads, context), float(temperature_init), device=next(module.parameters()).device)
                module.entropy_temperature = Learned(start)
        switch_attention(model)
        self.model = model
        self.context, self.gamma, self.reduction = context, gamma, reduction
        self.lambda_, self.lambda_positions = lambda_, lambda_positions
        self._warned = False
        self.penalty: Tensor | None = None
        """What the last forward pass in training mode added to the loss, nats. If it had no labels: what your own loss
        should add, with gradient (`share` under gradient accumulation)."""
        names = ("context", "lambda_", "gamma", "reduction", "lambda_positions")
        model.config.entropy_regularizer = {name: getattr(self, name) for name in names}
        model.config.entropy_regularizer["temperature_init"] = temperature_init
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after, with_kwargs=True, always_call=True)

    @classmethod
    def load(cls, model: PreTrainedModel, folder: Path | str) -> EntropyRegularizer:
        """The regulariser of `model`, which was loaded from `folder` and saved there with a regulariser.

        ValueError if it was saved without one, or its parameters are not in the folder's safetensors files.
        """
        if not Path(folder).is_dir():
            raise ValueError(
                f"{folder} is no folder: give the folder of save_pretrained, or of huggingface_hub.snapshot_download"
            )
        settings = getattr(model.config, "entropy_regularizer", None)
        if settings is None:
            raise ValueError(f"the model in {folder} was saved without an entropy regulariser")
        model.config.entropy_regularizer = None
        try:
            regularizer = cls(model, **settings)
        finally:
            model.config.entropy_regularizer = settings
        waiting = dict(regularizer.named_parameters())
        for path in sorted(Path(folder).glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for name in waiting.keys() & file.keys():
                    waiting.pop(name).data.copy_(file.get_tensor(name))
        if waiting:
            del model.reg_threshold_weights  # so that the model still counts as one to be loaded
            raise ValueError(f"{folder} has no {', '.join(sorted(waiting))} in a safetensors file")
        return regularizer

    def __getstate__(self) -> dict[str, Any]:
        """For copies of the model: the penalty without its graph, which cannot be copied."""
        return self.__dict__ | {"penalty": None if self.penalty is None else self.penalty.detach()}

    @property
    def thresholds(self) -> Tensor:
        """`reg_threshold_weights` (L, H)."""
        return self.model.reg_threshold_weights.weight

    @property
    def temperatures(self) -> list[Tensor]:
        """The temperatures (H, context) of every attention module; empty if there are none."""
        modules = [part for part in self.model.modules() if hasattr(part, "entropy_temperature")]
        return [module.entropy_temperature.weight for module in modules]

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters of the regulariser with their names in the model."""
        own = {"reg_threshold_weights", "entropy_temperature"}
        return ((name, value) for name, value in self.model.named_parameters() if own & set(name.split(".")))

    def share(self, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """What your own `compute_loss_func` adds after a forward pass without labels, with gradient, nats.

        labels: (B, T), -100 where there is none. num_items_in_batch: the number of labels of all accumulated
        micro-batches, from `Trainer`, if your loss is divided by it; None: the whole penalty.
        RuntimeError without such a forward pass.
        """
        if self.penalty is None or self.penalty.grad_fn is None:
            raise RuntimeError(
                "no penalty with a gradient: call the model in training mode without labels first, with gradients"
            )
        return self.penalty if num_items_in_batch is None else self.penalty * _part(labels[..., 1:], num_items_in_batch)

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """All parameters of the model for an optimizer: decay on matrices only, not on biases, norms, regulariser."""
        own = {name for name, _ in self.named_parameters()}
        decayed, others = [], []
        for name, value in self.model.named_parameters():
            (decayed if value.ndim > 1 and name not in own else others).append(value)
        return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if model.config._attn_implementation != IMPLEMENTATION:
            raise ValueError(
                f"the attention of this {type(model).__name__} was switched to {model.config._attn_implementation}; "
                f"call model.set_attn_implementation('{IMPLEMENTATION}') first"
            )
        if not model.training:
            return
        recorded_rows.set([])
        given = _bound(model, args, kwargs)
        if (ids := given.get("input_ids")) is not None:
            # On a GPU the values are not checked, since every step would wait for it.
            check_ids(ids, vocabulary(model) if ids.device.type == "cpu" else None)
        if (mask := given.get("attention_mask")) is not None:
            check_padding(mask, ids)

    def _after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """`output` with the penalty in its loss. model: `self.model` or a replica of it."""
        if not model.training:
            return None
        rows = recorded_rows.get()
        recorded_rows.set(None)
        if output is None:  # the forward pass failed
            return None
        given = _bound(model, args, kwargs)
        thresholds = model.reg_threshold_weights.weight
        home = thresholds.device  # the layers may be on several devices
        position_ids = given.get("position_ids")
        if given.get("attention_mask") is None and position_ids is not None and position_ids.ndim == 2:
            begun = document_starts(position_ids) & (rows[0].positions.to(position_ids.device) != 0)
            if bool(begun[:, 1:].any()):
                raise ValueError(
                    "position_ids pack documents into rows, but the model attends across them: call it with "
                    "use_cache=False, or pad the documents"
                )
        entropies = torch.stack([row.entropies.to(home) for row in rows])  # (L, B, H, T)
        if torch.is_grad_enabled() and model.is_activation_checkpointing and not entropies.requires_grad:
            raise ValueError(
                "reentrant gradient checkpointing loses the gradient of the entropies: use "
                "gradient_checkpointing_kwargs={'use_reentrant': False}"
            )
        self.penalty = penalty = self._weighted(entropies, thresholds, rows[0])
        if given.get("labels") is None:
            if given.get("num_items_in_batch") is not None and not self._warned:
                self._warned = True
                warnings.warn(
                    "the model was called without labels, so its loss is computed elsewhere (compute_loss_func, label "
                    "smoothing) and has no penalty unless that adds regularizer.share(labels, num_items_in_batch)",
                    stacklevel=2,
                )
            return None
        if (together := given.get("num_items_in_batch")) is not None:
            # The loss is then this micro-batch's share of the step's loss; so must the penalty be.
            labels = given.get("shift_labels")
            labels = given["labels"][..., 1:] if labels is None else labels
            penalty = penalty * _part(labels, together)
        self.penalty = penalty.detach()
        if isinstance(output, tuple):
            return output[0] + penalty, *output[1:]
        output.loss = output.loss + penalty
        return output

    def _weighted(self, entropies: Tensor, thresholds: Tensor, first: Rows) -> Tensor:
        """lambda times the regularisation of entropies (L, B, H, T), without the rows of padding."""
        rows, positions = entropies.transpose(1, 2).flatten(2)[:, None], first.positions  # (L, 1, H, B T)
        if first.real is not None:
            real = first.real.expand(entropies.shape[1], -1)  # (B, T)
            rows = rows[..., real.flatten().to(rows.device)]
            positions = positions.expand_as(real)[real.to(positions.device)]
        if not rows.shape[-1]:
            return 0.0 * thresholds.sum()
        if entropies.shape[-1] > self.context and (longest := int(positions.max()) + 1) > self.context:
            raise ValueError(
                f"a sequence of {longest} tokens, but the regulariser's context is {self.context}: "
                "create EntropyRegularizer with the longest context"
            )
        weight = self.lambda_
        if self.reduction == "position_sum" and self.lambda_positions is not None:
            weight *= self.lambda_positions / rows.shape[-1]
        return weight * entropy_regularization(rows, thresholds, self.gamma, self.reduction, self.context)
