"""Models with a regulariser: measured without their head, switched to another attention, sharing a configuration."""

import copy

import pytest
import torch
from tiny_hugging_face import some_ids, tiny

from aero.entropy import EntropyRegularizer, measure
from aero.hf.measure import IMPLEMENTATION, row_entropies


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_without_its_head_a_model_is_measured_with_its_temperatures(name):
    whole = tiny(name)
    stack = copy.deepcopy(whole.base_model)
    for model in (whole, stack):
        for temperature in EntropyRegularizer(model, context=100).temperatures:
            temperature.data.fill_(5.0)
    ids = some_ids()
    expected, plain = row_entropies(whole, ids), row_entropies(tiny(name), ids)
    assert (expected - plain).abs().max() > 0.1
    assert torch.equal(row_entropies(stack, ids), expected)
    assert torch.equal(measure(stack, ids).mean, measure(whole, ids).mean)
    stack.eval()
    assert torch.equal(row_entropies(stack, ids), expected) and not stack.training
    # What it records while it trains is nobody else's, and a pass in evaluation leaves none.
    stack.train()
    stack(ids)
    assert torch.equal(row_entropies(stack, ids), expected) and stack.training


@pytest.mark.parametrize("training", [True, False])
def test_another_attention_than_the_regularisers_is_refused(training):
    model = tiny("gpt2").train(training)
    EntropyRegularizer(model, context=100)
    ids = some_ids()
    expected = model(ids, labels=ids).loss
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="was switched to eager, which knows no temperatures and no entropies"):
        model(ids, labels=ids)
    measure(model, ids)  # by our own, whatever the model uses
    model.set_attn_implementation(IMPLEMENTATION)
    assert torch.equal(model(ids, labels=ids).loss, expected)


@pytest.mark.parametrize("context", [8.5, True, "8", None])
def test_a_context_is_a_whole_number_and_a_refused_one_leaves_the_model_alone(context):
    model = tiny("gpt2")
    with pytest.raises(ValueError, match="must be a whole number of tokens"):
        EntropyRegularizer(model, context=context)
    assert EntropyRegularizer(model, context=100).thresholds.shape == (3, 4)


def test_a_model_that_shares_the_configuration_of_a_regularised_one_is_told_so():
    model = tiny("gpt2")
    other = type(model)(model.config)
    EntropyRegularizer(model, context=100)
    with pytest.raises(ValueError, match="shares the configuration of a model that has one: give it a copy"):
        measure(other, some_ids())
