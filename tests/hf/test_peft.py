"""The entropy regulariser beside PEFT: trained with an adapter, saved with it, loaded and measured."""

import importlib.util

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_hugging_face import some_ids, tiny
from transformers import AutoModelForCausalLM

from aero.entropy import EntropyRegularizer, measure
from aero.errors import UserError
from aero.hf.loading import load_model


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A regularised model with an adapter after two steps, and the folders of the base model, the adapter and both."""
    folder, ids = tmp_path_factory.mktemp("peft"), some_ids(2, 20)
    tiny("llama").save_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    regularizer = EntropyRegularizer(base, context=20, lambda_=0.01, gamma=0.0)
    saved = ["reg_threshold_weights", "entropy_temperature"]
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=saved)).train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(folder / "adapter")
    return model.eval(), regularizer, folder


def test_thresholds_and_temperatures_are_trained_and_saved_with_the_adapter(tuned):
    model, regularizer, folder = tuned
    assert regularizer.penalty > 0 and (regularizer.thresholds != 0.5).any()
    assert all((temperature != 1).any() for temperature in regularizer.temperatures)
    base = AutoModelForCausalLM.from_pretrained(folder / "base")
    again = EntropyRegularizer(base, context=20, lambda_=0.01, gamma=0.0)
    loaded = PeftModel.from_pretrained(base, folder / "adapter")
    for found, expected in zip(
        (again.thresholds, *again.temperatures), (regularizer.thresholds, *regularizer.temperatures), strict=True
    ):
        assert torch.equal(found, expected)
    assert torch.equal(measure(loaded, some_ids()[:, :20]).mean, measure(model, some_ids()[:, :20]).mean)


def test_an_adapter_is_not_measured_without_its_temperatures(tuned):
    _, _, folder = tuned
    plain = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base"), folder / "adapter")
    for model in (plain, load_model(folder / "adapter")):
        with pytest.raises(ValueError, match="same EntropyRegularizer on the base model"):
            measure(model, some_ids(1, 5))


def test_a_folder_with_an_adapter_is_refused_without_peft(tuned, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "peft" else real(name, *rest))
    with pytest.raises(UserError, match="PEFT adapter.*pip install peft"):
        load_model(tuned[2] / "adapter")


def test_a_merged_model_is_saved_and_loaded_as_any_regularised_model(tuned, tmp_path):
    model, _, _ = tuned
    expected = measure(model, some_ids(1, 20)).mean
    model.merge_and_unload().save_pretrained(tmp_path)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path)
    EntropyRegularizer.load(merged, tmp_path)
    torch.testing.assert_close(measure(merged, some_ids(1, 20)).mean, expected, atol=1e-4, rtol=0)
