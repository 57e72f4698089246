"""Training of the small decoder that parallel context encoding is measured on.

Only what the context determines is scored: text, and answers. Every task counts equally. Episodes grow as a task is
solved (a curriculum): a model that cannot look up one of four pairs learns nothing from forty-eight.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from aero.model import GPT
from aero.parallel_context.tasks import UNSCORED, Mixture
from aero.schema import TrainParameters
from aero.training.schedule import learning_rate_factor, make_optimizer

SOLVED, GROWTH = 0.9, 0.02
"""A task grows by GROWTH of its full size after every step with SOLVED of the knowable answers right, as a moving
average over about ten steps."""
FIRST, OPENS = "synthetic", 0.1
"""Key-value retrieval trains alone until it has grown this far: the other tasks need looking up, and with all four
tasks from the start it is learnt much later."""
KNOWABLE = {"icl": 0.8}
"""Fraction of answers that can be known: the first example of each topic cannot."""


def train(
    model: GPT,
    mixture: Mixture,
    settings: TrainParameters,
    log: Callable[[dict[str, Any]], None],
    device: str = "cpu",
    label: str = "",
) -> float:
    """Train `model` in place; `log` receives a row of losses, accuracies and sizes every logged step.

    Returns processor seconds. ValueError if the loss is not finite.
    """
    optimizer = make_optimizer(
        model, settings.learning_rate, settings.betas, settings.epsilon, settings.weight_decay, settings.optimizer
    )
    grown = dict.fromkeys(mixture.kinds, 0.0)
    right = dict.fromkeys(mixture.kinds, 0.0)
    began = time.process_time()
    model.train()
    for step in tqdm(range(settings.steps), desc=label, unit="step", disable=None, mininterval=1.0):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_factor(settings, step)
        kinds = mixture.kinds if grown[FIRST] >= OPENS else [FIRST]
        ids, targets = (x.to(device) for x in mixture.batch(step, grown, kinds))
        losses, hits = losses_by_kind(model, ids, targets, kinds)
        loss = torch.stack(list(losses.values())).mean()
        if not math.isfinite(loss.item()):
            raise ValueError(f"the loss is not finite at step {step}; lower the learning rate")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip or math.inf)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for kind, share in hits.items():
            right[kind] += 0.1 * (share - right[kind])
            if right[kind] >= SOLVED * KNOWABLE.get(kind, 1.0):
                grown[kind] = min(1.0, grown[kind] + GROWTH)
        if (step + 1) % settings.log_every == 0 or step + 1 == settings.steps:
            row: dict[str, Any] = {"step": step + 1}
            row |= {f"loss_{kind}": round(losses[kind].item(), 4) if kind in losses else "" for kind in mixture.kinds}
            row |= {f"right_{kind}": round(value, 3) for kind, value in right.items()}
            row |= {f"grown_{kind}": round(value, 2) for kind, value in grown.items() if kind != "lm"}
            log(row)
    model.eval()
    return time.process_time() - began


def losses_by_kind(
    model: GPT, ids: Tensor, targets: Tensor, kinds: list[str]
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Mean loss in nats and fraction of right predictions over the scored tokens of each kind (see `Mixture.batch`)."""
    logits = model(ids)[:, :-1]
    wanted = targets[:, 1:]
    flat = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=UNSCORED, reduction="none")
    losses = flat.view(wanted.shape)
    scored, hit = wanted != UNSCORED, logits.argmax(-1) == wanted
    means, shares = {}, {}
    for place, kind in enumerate(kinds):
        count = scored[place :: len(kinds)].sum()
        means[kind] = losses[place :: len(kinds)].sum() / count
        shares[kind] = (hit[place :: len(kinds)].sum() / count).item()
    return means, shares
