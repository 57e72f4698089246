"""Losses by kind against plain loops, and a training that learns to look up among a few pairs."""

import numpy as np
import pytest
import torch
from tiny_models import own

from aero.config import TrainParameters
from aero.data.tokens import TokenStream
from aero.model import GPT
from aero.parallel_context.tasks import UNSCORED, Mixture, Vocabulary, make_episode_tasks
from aero.parallel_context.training import losses_by_kind, train

SETTINGS = TrainParameters(
    steps=6, batch_size=8, learning_rate=1e-2, betas=(0.9, 0.98), epsilon=1e-8, weight_decay=0.1, clip=1.0, warmup=0.05,
    log_every=2, evaluate_every=6, evaluation_tokens=1, final_evaluation_tokens=1, checkpoint_every=6,
)  # fmt: skip


def test_losses_by_kind_by_plain_loops():
    model = own()
    ids = torch.randint(97, (4, 12), generator=torch.Generator().manual_seed(0))
    scored = torch.rand(4, 12, generator=torch.Generator().manual_seed(1)) < 0.4
    with torch.no_grad():
        losses, shares = losses_by_kind(model, ids, ids.masked_fill(~scored, UNSCORED), ["a", "b"])
        logs = model(ids).log_softmax(-1)
    for kind, rows in (("a", (0, 2)), ("b", (1, 3))):
        places = [(r, t) for r in rows for t in range(1, 12) if scored[r, t]]
        expected = -sum(logs[r, t - 1, ids[r, t]].item() for r, t in places) / len(places)
        right = sum(logs[r, t - 1].argmax().item() == ids[r, t].item() for r, t in places) / len(places)
        assert losses[kind].item() == pytest.approx(expected, abs=1e-5) and shares[kind] == pytest.approx(right)


def mixture():
    stream = TokenStream(np.arange(400, dtype=np.uint16) % 8, np.array([0, 400]))
    tasks = make_episode_tasks(Vocabulary(8, 8, 4, 8, 8, 2), {"synthetic": 4, "rag": 2, "icl": 8})
    return Mixture(tasks, stream, 48, 8, 1)


def test_training_is_repeatable_and_lowers_the_loss():
    runs = []
    for _ in range(2):
        model = own()
        torch.manual_seed(0)
        model, rows = GPT(model.architecture, model.config), []
        assert train(model, mixture(), SETTINGS, rows.append) > 0
        runs.append(rows)
    assert runs[0] == runs[1] and [row["step"] for row in rows] == [2, 4, 6]
    assert rows[-1]["loss_synthetic"] < rows[0]["loss_synthetic"] and not model.training
    assert rows[0]["loss_lm"] == "", "the other tasks wait until pairs can be looked up"


def test_training_that_diverges():
    model = own()
    with torch.no_grad():
        model.ln_f.weight.fill_(float("inf"))
    with pytest.raises(ValueError, match="not finite at step 0"):
        train(model, mixture(), SETTINGS, print)
