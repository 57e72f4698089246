"""The stacked models against models trained one by one, the task, and the metric."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from aero.attention_kernels import CORES
from aero.config import load
from aero.sensitivity.conclusions import ORDER
from aero.sensitivity.metric import (
    clipped,
    final_losses,
    sensitivity,
    sensitivity_clipped_after,
    sensitivity_of_means,
)
from aero.sensitivity.regression import Batches, sequences
from aero.sensitivity.setting import TOKENS, Setting, learning_rates
from aero.sensitivity.stacked import Stack, initial, train
from benchmarks.sensitivity import train_single

SETTING = Setting("x3+y", True, "slot", "linear", 8, "fresh", "mean", 8)
RATES, SEEDS = (1e-3, 0.03, 3.0), (0, 3)
EXPLODING = 1e3


def test_the_grid_of_learning_rates_is_the_papers():
    rates = learning_rates()
    assert len(rates) == 19 and rates[:4] == (1e-5, 3e-5, 5e-5, 1e-4) and rates[-4:] == (1.0, 3.0, 5.0, 10.0)


@pytest.mark.parametrize("name", CORES)
def test_trained_together_as_one_by_one(name):
    """Each model of a stack is the one that a plain module and torch.optim.SGD make of the same seed.

    While a model explodes, the last bits in which two programs differ grow with it: compared is what comes before,
    and that both explode.
    """
    settings = (
        SETTING,
        Setting("embedded", True, "linear", "linear", 8, "set", "sum", 8),
        Setting("x2+y", False, "linear", "linear", 8, "fresh", "mean", 4),  # LayerNorms without residuals are chaotic
    )
    for setting in settings:
        together = train(CORES[name], setting, RATES, SEEDS, range(0, 99, 5), torch.float64).losses
        for r, rate in enumerate(RATES):
            for k, seed in enumerate(SEEDS):
                single = train_single(CORES[name], setting, rate, seed, torch.float64)
                single = torch.tensor(single, dtype=torch.float64)
                sane = (together[:, r, k] < EXPLODING).cumprod(0).bool()
                assert sane.all() == (single < EXPLODING).all() and sane[0]
                torch.testing.assert_close(together[sane, r, k], single[sane], atol=1e-6, rtol=1e-6)
        assert (together[:, 0] < EXPLODING).all()


@pytest.mark.parametrize("name", ORDER)
def test_trained_together_as_one_by_one_where_the_table_is_measured(name):
    """The setting of Table 1 itself, its batches and sums, at rates that train; every loss of 20 steps.

    In float64: in float32 rounding is enough to part two trainings with sigmaReparam (docs/decisions.md).
    """
    setting, rates = Setting(**load().sensitivity.experiment(), steps=20), (1e-5, 1e-4, 1e-3)
    together = train(CORES[name], setting, rates, SEEDS, dtype=torch.float64).losses
    assert together.shape == (20, 3, 2) and together.isfinite().all()
    assert (together[-1, 0] - together[-1, -1]).abs().min() > 1e-3  # the rates are not all one training
    for r, rate in enumerate(rates):
        for k, seed in enumerate(SEEDS):
            single = torch.tensor(train_single(CORES[name], setting, rate, seed, torch.float64), dtype=torch.float64)
            torch.testing.assert_close(together[:, r, k], single, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ORDER)
def test_a_model_of_the_table_is_the_same_to_the_last_bit_in_any_company(name, one_thread):
    """The setting, numbers, rates and seeds of Table 1, with the one thread of the sweep: that 95 models are trained
    together is not what rounding does to them."""
    rates, seeds = learning_rates(), (0, 1, 2, 3, 4)
    setting = Setting(**load().sensitivity.experiment(), steps=40)
    together = train(CORES[name], setting, rates, seeds).losses
    for r, k in ((0, 1), (3, 4), (6, 2), (9, 0), (12, 3), (18, 1)):
        alone = train(CORES[name], setting, rates[r : r + 1], seeds[k : k + 1]).losses[:, 0, 0]
        torch.testing.assert_close(together[:, r, k], alone, atol=0, rtol=0, equal_nan=True)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["softmax", "qk_layernorm", "relu", "sigma_reparam"])
def test_a_model_is_the_same_in_any_company(name):
    """In float32 and at every rate of the paper: what else is in the stack does not change a model."""
    rates, setting = learning_rates(), replace(SETTING, steps=40)
    together = train(CORES[name], setting, rates, SEEDS).losses
    for r in (0, 9, 12, 15, 18):
        alone = train(CORES[name], setting, rates[r : r + 1], SEEDS[1:]).losses[:, 0, 0]
        torch.testing.assert_close(together[:, r, 1], alone, atol=1e-6, rtol=1e-6, equal_nan=True)


def test_the_label_of_the_query_is_hidden_and_the_others_are_not():
    tokens, targets = sequences(3, 5, torch.Generator().manual_seed(0))
    assert tokens.shape == (5, TOKENS, 4) and (tokens[:, -1, -1] == 0).all()
    w = torch.linalg.lstsq(tokens[:, :-1, :3], tokens[:, :-1, 3:]).solution  # (5, 3, 1)
    torch.testing.assert_close((tokens[:, -1, None, :3] @ w)[:, 0, 0], targets, atol=1e-4, rtol=1e-4)


def test_batches_depend_on_the_seed_alone_and_a_set_comes_round():
    fresh, same = Batches(SETTING, [4, 5]), Batches(SETTING, [5])
    first, second = fresh.next()[0], fresh.next()[0]
    assert not torch.equal(first, second) and torch.equal(first[1], same.next()[0][0])
    batches = Batches(replace(SETTING, data="set", batch=64), [4, 5])
    drawn = [batches.next()[0] for _ in range(8)]
    assert all(torch.equal(drawn[i], drawn[i + 4]) for i in range(4)) and not torch.equal(drawn[0], drawn[1])


def test_the_expected_loss_of_predicting_zero_is_d():
    _, targets = sequences(SETTING.dimensions, 40_000, torch.Generator().manual_seed(1))
    assert targets.square().mean().item() == pytest.approx(SETTING.zero_loss, rel=0.05)


@pytest.mark.parametrize("name", ["softmax", "sigma_reparam", "elu"])
def test_losses_before_training_are_of_the_batches_of_training(name):
    """l_0 of every step: the untrained model on the sequences that the trained ones see, also when all have diverged;
    and what predicting 0 costs there."""
    steps = 25
    trained = train(CORES[name], replace(SETTING, steps=steps), (1e-3, 1e4), SEEDS, dtype=torch.float64)
    gone = train(CORES[name], replace(SETTING, steps=steps), (1e4,), SEEDS, dtype=torch.float64)
    still = train_single(CORES[name], replace(SETTING, steps=steps), 0.0, SEEDS[1], torch.float64)
    assert not gone.losses[-1].isfinite().any()
    for found in (trained, gone):
        torch.testing.assert_close(found.untrained_losses[:, 1], torch.tensor(still, dtype=torch.float64))
        torch.testing.assert_close(found.untrained_losses[0], found.losses[0, 0])
    batches = Batches(SETTING, SEEDS, torch.float64)
    zero = torch.stack([batches.next()[1].square().mean(1) for _ in range(steps)])
    torch.testing.assert_close(trained.zero_losses, zero)


def test_cores_share_their_initial_weights():
    weights = [initial(core, SETTING, 7)["weights"] for core in CORES.values()]
    assert all(torch.equal(w, weights[0]) for w in weights) and weights[0].abs().max() <= 0.5


def test_what_a_step_does_to_gamma():
    """From gamma = 5: weight clipping takes it to 1, freedom leaves it, gradient clipping bounds how far it moves."""
    moved = {}
    for name in ("qk_layernorm", "qk_layernorm_free", "qk_layernorm_gradient_clip"):
        stack, batches = Stack(CORES[name], SETTING, (1.0,), (0,), torch.float32), Batches(SETTING, (0,))
        stack.parameters["gains"].fill_(5.0)
        stack.parameters["weights"] *= 4
        stack.step(*batches.next())
        moved[name] = (stack.parameters["gains"] - 5).norm(dim=-1)
    assert (moved["qk_layernorm"] >= 2 * 4 - 1e-5).all()
    assert moved["qk_layernorm_free"].max() > 1.5 and moved["qk_layernorm_gradient_clip"].max() <= 1 + 1e-5
    assert "gains" not in Stack(CORES["qk_layernorm_fixed"], SETTING, (1.0,), (0,), torch.float32).parameters


def test_what_is_looked_at():
    """At zero weights: uniform attention, logits without variance."""
    stack = Stack(CORES["softmax"], SETTING, RATES, SEEDS, torch.float32)
    stack.parameters["weights"].zero_()
    seen = stack.look(Batches(SETTING, SEEDS).next()[0])
    assert seen["entropy"].shape == (6, 5) and set(seen) == {"entropy", "frobenius", "variance"}
    torch.testing.assert_close(seen["entropy"], torch.full((6, 5), math.log(TOKENS)))
    torch.testing.assert_close(seen["frobenius"], torch.ones(6, 5))
    assert (seen["variance"] == 0).all()


def test_looking_does_not_change_training():
    for name in ("softmax", "sigma_reparam"):
        plain = train(CORES[name], SETTING, RATES, SEEDS).losses
        looked = train(CORES[name], SETTING, RATES, SEEDS, range(0, 99, 3)).losses
        torch.testing.assert_close(looked, plain, rtol=0, atol=0, equal_nan=True)


def test_sensitivity_by_hand():
    """l_0 = 3; two rates at their losses, one above l_0, one diverged: ((1 + 2 + 3 + 3) / 4) - 1."""
    final = torch.tensor([[1.0], [2.0], [50.0], [math.nan]], dtype=torch.float64)
    assert clipped(final, 3.0)[:, 0].tolist() == [1.0, 2.0, 3.0, 3.0]
    assert sensitivity(final, 3.0).tolist() == [1.25]
    assert sensitivity(torch.full((3, 2), math.inf), torch.tensor([3.0, 2.0])).tolist() == [0.0, 0.0]
    two = torch.tensor([[1.0, 0.0], [3.0, 9.0]])
    assert sensitivity(two, torch.tensor([2.0, 4.0])).tolist() == [0.5, 2.0]
    # Clipped [[1, 2], [2, 0]], over seeds [1.5, 1], so (0.5 + 0) / 2; a seed alone has [0.5, 1].
    two = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    assert sensitivity(two, 2.0).tolist() == [0.5, 1.0] and sensitivity_of_means(two, 2.0) == 0.25


def test_clipping_after_averaging_by_hand():
    """Clipped first [[1, 2], [2, 0]], means [1.5, 1]; means first [1.5, 1.5], below l_0 = 2. One diverged seed takes
    the whole rate to the mean l_0 = 3: [1, 3] instead of [1, (2 + 1) / 2]."""
    two = torch.tensor([[1.0, 2.0], [3.0, 0.0]])
    assert sensitivity_of_means(two, 2.0) == 0.25 and sensitivity_clipped_after(two, 2.0) == 0
    diverged, initial = torch.tensor([[1.0, 1.0], [math.inf, 1.0]]), torch.tensor([2.0, 4.0])
    assert sensitivity_clipped_after(diverged, initial) == 1 and sensitivity_of_means(diverged, initial) == 0.25
    assert sensitivity_clipped_after(torch.tensor([[1.0], [math.nan]]), 2.0) == 0.5


def test_a_diverging_rate_counts_as_the_loss_at_initialisation():
    trained = train(CORES["softmax"], replace(SETTING, steps=30), (1e-3, 1e4), (0, 1))
    assert not torch.isfinite(trained.losses[-1, 1]).any()
    final = final_losses(trained.losses, 5)
    assert torch.isinf(final[1]).all() and torch.isfinite(final[0]).all()
    initial = final_losses(trained.untrained_losses, 5)
    measured = sensitivity(final, initial)
    assert torch.isfinite(measured).all()
    best = torch.minimum(final[0], initial)
    torch.testing.assert_close(measured, (best + initial) / 2 - best)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="hidden=embedded has no number that is the label's"):
        replace(SETTING, hidden="embedded")
    with pytest.raises(ValueError, match="init must be one of normal_0.1, linear, xavier, got 'he'"):
        replace(SETTING, init="he")
    with pytest.raises(ValueError, match="batch 24 must divide the training set of 256 sequences"):
        replace(SETTING, data="set", batch=24)
    with pytest.raises(ValueError, match="window must be 1 to 3"):
        final_losses(torch.zeros(3, 1, 1), 4)
