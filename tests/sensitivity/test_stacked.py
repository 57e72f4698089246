"""Models trained as a stack against models trained one by one; the regression task; the sensitivity metric."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from aero.attention_kernels import CORES, attend, clip_gain, clip_gain_gradient, sigma_reparam
from aero.config import load
from aero.sensitivity.metric import (
    clipped,
    sensitivity,
    sensitivity_clipped_after,
    sensitivity_of_means,
    trained_decades,
)
from aero.sensitivity.setting import LAYERS, TOKENS, Setting, draw_batches, learning_rates, sequences
from aero.sensitivity.stacked import FIRST_ITERATIONS, Stack, initial, train

SETTING = Setting("x3+y", True, "slot", "linear", 8, "fresh", "mean", 8)
RATES, SEEDS = (1e-3, 0.03, 3.0), (0, 3)


def train_single(core, setting, rate, seed):
    """Losses of one model in float64, with plain autograd and torch.optim.SGD."""
    drawn = {name: value.double() for name, value in initial(core, setting, seed).items()}
    flat = {name: [torch.nn.Parameter(m.clone()) for m in drawn[name].flatten(0, 1)] for name in drawn if "w" in name}
    weights = flat["weights"]
    gains = [torch.nn.Parameter(g.clone()) for g in drawn.get("gains", torch.empty(0, 2)).flatten(0, 1)]
    sigma = [torch.nn.Parameter(g.clone()) for g in drawn.get("sigma_gains", torch.empty(0)).flatten()]
    ends = {name: torch.nn.Parameter(drawn[name].clone()) for name in ("embedding", "readout") if name in drawn}
    vectors = [torch.ones(len(w), dtype=w.dtype) for w in weights]
    if core.reparametrised:
        vectors = [sigma_reparam(w, g, v, FIRST_ITERATIONS)[1] for w, g, v in zip(weights, sigma, vectors, strict=True)]
    optimizer = torch.optim.SGD([*weights, *gains, *sigma, *ends.values()], lr=rate)
    batches, losses = draw_batches(setting, [seed], torch.float64), []
    for _ in range(setting.steps):
        (x,), (targets,) = next(batches)
        if "embedding" in ends:
            x = x @ ends["embedding"]
        for layer in range(LAYERS):
            used = list(weights[3 * layer : 3 * layer + 3])
            for i in range(3 if core.reparametrised else 0):
                place = 3 * layer + i
                used[i], vectors[place] = sigma_reparam(used[i], sigma[place], vectors[place])
            pair = (gains[2 * layer], gains[2 * layer + 1]) if gains else None
            update, _ = attend(core, *(x @ w for w in used), pair)
            x = x + update if setting.residual else update
        predicted = x[:, -1] @ ends["readout"] if "readout" in ends else x[:, -1, -1]
        loss = (predicted - targets).square().mean()
        optimizer.zero_grad()
        (loss * (setting.batch if setting.reduction == "sum" else 1)).backward()
        if core.gains == "gradient_clip":
            for gain in gains:
                gain.grad = clip_gain_gradient(gain.grad)
        optimizer.step()
        if core.gains == "weight_clip":
            for gain in gains:
                clip_gain(gain)
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", CORES)
def test_stack_equals_single_models(name):
    """Compared until a model explodes, where the last bits in which two programs differ grow."""
    settings = (
        SETTING,
        Setting("embedded", True, "linear", "linear", 8, "set", "sum", 8),
        Setting("x2+y", False, "linear", "linear", 8, "fresh", "mean", 4),
    )
    for setting in settings:
        together = train(CORES[name], setting, RATES, SEEDS, range(0, 99, 5), torch.float64).losses
        for r, rate in enumerate(RATES):
            for k, seed in enumerate(SEEDS):
                single = train_single(CORES[name], setting, rate, seed)
                sane = (together[:, r, k] < 1e3).cumprod(0).bool()
                assert sane.all() == (single < 1e3).all() and sane[0]
                torch.testing.assert_close(together[sane, r, k], single[sane], atol=1e-6, rtol=1e-6)
        assert (together[:, 0] < 1e3).all()


@pytest.mark.parametrize("name", ["qk_layernorm", "sigma_reparam"])
def test_model_does_not_depend_on_the_rest_of_its_stack(name):
    """The setting, rates and seeds of Table 1, to the last bit."""
    rates, seeds = learning_rates(), (0, 1, 2, 3, 4)
    setting = Setting(**load().sensitivity.experiment(), steps=30)
    together = train(CORES[name], setting, rates, seeds).losses
    for r, k in ((0, 1), (6, 2), (18, 3)):
        alone = train(CORES[name], setting, rates[r : r + 1], seeds[k : k + 1]).losses[:, 0, 0]
        torch.testing.assert_close(together[:, r, k], alone, atol=0, rtol=0, equal_nan=True)


def test_task_is_linear_regression_with_the_last_label_hidden():
    tokens, targets = sequences(3, 5, torch.Generator().manual_seed(0))
    assert tokens.shape == (5, TOKENS, 4) and (tokens[:, -1, -1] == 0).all()
    w = torch.linalg.lstsq(tokens[:, :-1, :3], tokens[:, :-1, 3:]).solution  # (5, 3, 1)
    torch.testing.assert_close((tokens[:, -1, None, :3] @ w)[:, 0, 0], targets, atol=1e-4, rtol=1e-4)
    _, targets = sequences(3, 40_000, torch.Generator().manual_seed(1))
    assert targets.square().mean().item() == pytest.approx(3, rel=0.05)


def test_batches_depend_on_the_seed_alone():
    fresh, same = draw_batches(SETTING, [4, 5]), draw_batches(SETTING, [5])
    first, second = next(fresh)[0], next(fresh)[0]
    assert not torch.equal(first, second) and torch.equal(first[1], next(same)[0][0])
    batches = draw_batches(replace(SETTING, data="set", batch=64), [4, 5])
    drawn = [next(batches)[0] for _ in range(8)]
    assert all(torch.equal(drawn[i], drawn[i + 4]) for i in range(4)) and not torch.equal(drawn[0], drawn[1])


def test_initial_losses_are_of_the_training_batches():
    """Also where all models have diverged; and the loss of predicting 0."""
    setting = replace(SETTING, steps=25)
    trained = train(CORES["sigma_reparam"], setting, (1e-3, 1e4), SEEDS, dtype=torch.float64)
    diverged = train(CORES["sigma_reparam"], setting, (1e4,), SEEDS, dtype=torch.float64)
    still = train_single(CORES["sigma_reparam"], setting, 0.0, SEEDS[1])
    assert not diverged.losses[-1].isfinite().any()
    for found in (trained, diverged):
        torch.testing.assert_close(found.untrained_losses[:, 1], still)
        torch.testing.assert_close(found.untrained_losses[0], found.losses[0, 0])
    batches = draw_batches(SETTING, SEEDS, torch.float64)
    zero = torch.stack([next(batches)[1].square().mean(1) for _ in range(25)])
    torch.testing.assert_close(trained.zero_losses, zero)


def test_step_treats_gamma_by_core():
    """From gamma = 5: weight clipping sets it to 1, gradient clipping bounds how far it moves, freedom does neither."""
    moved = {}
    for name in ("qk_layernorm", "qk_layernorm_free", "qk_layernorm_gradient_clip"):
        stack, batches = Stack(CORES[name], SETTING, (1.0,), (0,), torch.float32), draw_batches(SETTING, (0,))
        stack.parameters["gains"].fill_(5.0)
        stack.parameters["weights"] *= 4
        stack.step(*next(batches))
        moved[name] = (stack.parameters["gains"] - 5).norm(dim=-1)
    assert (moved["qk_layernorm"] >= 2 * 4 - 1e-5).all()
    assert moved["qk_layernorm_free"].max() > 1.5 and moved["qk_layernorm_gradient_clip"].max() <= 1 + 1e-5
    assert "gains" not in Stack(CORES["qk_layernorm_fixed"], SETTING, (1.0,), (0,), torch.float32).parameters


def test_attention_statistics_of_uniform_attention():
    stack = Stack(CORES["softmax"], SETTING, RATES, SEEDS, torch.float32)
    stack.parameters["weights"].zero_()
    seen = stack.attention_statistics(next(draw_batches(SETTING, SEEDS))[0])
    torch.testing.assert_close(seen["entropy"], torch.full((6, 5), math.log(TOKENS)))
    torch.testing.assert_close(seen["frobenius"], torch.ones(6, 5))
    assert (seen["variance"] == 0).all()


@pytest.mark.parametrize("name", ["softmax", "sigma_reparam"])
def test_observing_does_not_change_training(name):
    plain = train(CORES[name], SETTING, RATES, SEEDS).losses
    observed = train(CORES[name], SETTING, RATES, SEEDS, range(0, 99, 3)).losses
    torch.testing.assert_close(observed, plain, rtol=0, atol=0, equal_nan=True)


def test_sensitivity_by_hand():
    """l_0 = 3; two rates at their losses, one above l_0, one diverged: ((1 + 2 + 3 + 3) / 4) - 1."""
    final = torch.tensor([[1.0], [2.0], [50.0], [math.nan]], dtype=torch.float64)
    assert clipped(final, 3.0)[:, 0].tolist() == [1.0, 2.0, 3.0, 3.0]
    assert sensitivity(final, 3.0).tolist() == [1.25]
    assert sensitivity(torch.full((3, 2), math.inf), torch.tensor([3.0, 2.0])).tolist() == [0.0, 0.0]
    # Clipped [[1, 2], [2, 0]], over seeds [1.5, 1], so (0.5 + 0) / 2; a seed alone has [0.5, 1].
    two = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    assert sensitivity(two, 2.0).tolist() == [0.5, 1.0] and sensitivity_of_means(two, 2.0) == 0.25
    assert trained_decades((0.1, 1, 10, 100), (0.9, 0.3, 0.9, 0.4), 1.0) == pytest.approx(2)
    assert trained_decades((0.1, 1), (0.9, math.inf), 1.0) is None


def test_clipping_after_averaging_by_hand():
    """Clipped first [[1, 2], [2, 0]], means [1.5, 1]; means first [1.5, 1.5], below l_0 = 2. One diverged seed takes
    the whole rate to the mean l_0 = 3: [1, 3] instead of [1, (2 + 1) / 2]."""
    two = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert sensitivity_of_means(two, 2.0) == 0.25 and sensitivity_clipped_after(two, 2.0) == 0
    diverged, start = torch.tensor([[1.0, 1.0], [math.inf, 1.0]]), torch.tensor([2.0, 4.0])
    assert sensitivity_clipped_after(diverged, start) == 1 and sensitivity_of_means(diverged, start) == 0.25


def test_impossible_settings():
    with pytest.raises(ValueError, match="hidden=embedded"):
        replace(SETTING, hidden="embedded")
    with pytest.raises(ValueError, match="batch 24 must divide"):
        replace(SETTING, data="set", batch=24)
