"""The regulariser's penalty on Hugging Face models, and its gradients, against autograd through their own weights."""

import copy
import math

import pytest
import torch
from tiny_hugging_face import CONFIGS, padded, some_ids, tiny

from aero.entropy import EntropyRegularizer

GAMMA, CONTEXT = 0.2, 100


def by_output_attentions(model, thresholds, ids, mask, reduction):
    """lambda 1 times the papers' penalty of the matrices that the model's eager attention returns, and its gradients by
    the parameters' names. thresholds: (L, H)."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    thresholds = thresholds.detach().clone().requires_grad_()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    given = eager(ids, attention_mask=mask, position_ids=positions, output_attentions=True).attentions
    largest, total = math.log(CONTEXT), 0.0
    for layer, p in enumerate(given):
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()  # finite, with its gradient, where p is 0
        rows = -(p * log_p).sum(-1).transpose(0, 1)[:, mask.bool()]  # (H, real queries)
        wanted = thresholds[layer][:, None] * largest
        if reduction == "head_mean":
            deviation = rows.mean(1, keepdim=True) - wanted
        else:
            deviation = rows - wanted
        counted = torch.where(deviation.abs() > GAMMA * largest, deviation**2, 0.0)
        total = total + counted.sum() / len(rows)  # mean over heads
    total = total / len(given)
    if reduction == "position_sum":
        total = total * 16384 / mask.sum()
    total.backward()
    found = {name: p.grad for name, p in eager.named_parameters() if p.grad is not None}
    return total.detach(), found | {"reg_threshold_weights": thresholds.grad}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_through_the_models_own_weights(name, reduction, side):
    """Within 1e-5 of each parameter's largest gradient, with a sequence of padding: by rows that are never a matrix and
    probabilities made again in the backward pass, where autograd keeps the matrices."""
    model, ids = tiny(name), some_ids(2, CONTEXT)
    mask = padded(side, [CONTEXT, 61])
    wanted = torch.rand(3, 4, generator=torch.Generator().manual_seed(5))
    expected, gradients = by_output_attentions(model, wanted, ids, mask, reduction)

    model.train()
    regularizer = EntropyRegularizer(
        model, CONTEXT, lambda_=1.0, gamma=GAMMA, reduction=reduction, temperature_init=None
    )
    with torch.no_grad():
        regularizer.thresholds.copy_(wanted)
    model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0))
    regularizer.penalty.backward()
    torch.testing.assert_close(regularizer.penalty.detach(), expected, atol=0, rtol=1e-5)
    # Autograd leaves None where ours leaves 0: of the last layer's values and all that follows the last attention.
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    assert len(gradients) > 20 and gradients.keys() <= found.keys()
    for parameter, gradient in found.items():
        wanted = gradients.get(parameter, torch.zeros_like(gradient))
        scale = wanted.abs().max().item()
        assert (gradient - wanted).abs().max().item() <= 1e-5 * scale, parameter


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox"])
def test_gradients_of_temperatures_are_finite_differences(name):
    """Eager attention has no temperatures. In float64, which the others' norms leave for float32 by themselves."""
    model, ids = tiny(name).train(), some_ids(2, 30)
    regularizer = EntropyRegularizer(model, 30, lambda_=1.0, gamma=0.05, reduction="head_mean")
    model.double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for temperature in regularizer.temperatures:
            temperature.copy_(0.5 + torch.rand(temperature.shape, generator=generator))
    model(ids)
    gradients = torch.autograd.grad(regularizer.penalty, regularizer.temperatures)

    def penalty(value, at, to):
        with torch.no_grad():
            before = value[at].item()
            value[at] = to
            model(ids)
            value[at] = before
        return regularizer.penalty.item()

    for layer, at in ((0, (0, 1)), (0, (3, 29)), (1, (2, 13)), (2, (1, 20))):
        value = regularizer.temperatures[layer]
        here = value[at].item()
        difference = (penalty(value, at, here + 1e-4) - penalty(value, at, here - 1e-4)) / 2e-4
        assert gradients[layer][at].item() == pytest.approx(difference, rel=1e-4, abs=1e-8)
        assert abs(difference) > 1e-6
