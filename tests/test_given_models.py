"""Loading Hugging Face models that somebody brings: what is refused, and what is not looked at."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from aero.errors import UserError
from aero.hf.loading import load_model


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=41, tie_word_embeddings=False, **sizes)).eval()


def changed(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_missing_head_is_refused_where_logits_are_asked_for(model, tmp_path):
    """It was drawn at random, and answers came from it."""
    model.model.save_pretrained(tmp_path)
    changed(tmp_path, architectures=["LlamaForCausalLM"])
    with pytest.raises(UserError, match="lack 1 tensors .* 'lm_head.weight'"):
        load_model(tmp_path)
    ids = torch.arange(5)[None]
    hidden = load_model(tmp_path, head_needed=False).model(ids).last_hidden_state
    torch.testing.assert_close(hidden, model.model(ids).last_hidden_state, rtol=0, atol=0)


def test_a_whole_model_is_the_one_that_was_saved_and_transformers_goes_on_speaking(model, tmp_path):
    model.save_pretrained(tmp_path)
    before = logging.get_verbosity()
    loaded = load_model(tmp_path)
    assert logging.get_verbosity() == before
    ids = torch.arange(5)[None]
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_files_that_are_not_the_models_are_not_looked_at(model, tmp_path):
    """Say a quantized export beside the weights."""
    model.save_pretrained(tmp_path)
    save_file({"a.weight": torch.zeros(3, dtype=torch.int8)}, tmp_path / "quantized.safetensors")
    load_model(tmp_path)


def test_sharded_weights_are_read_by_their_index(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="5KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1 and not (tmp_path / "model.safetensors").exists()
    ids = torch.arange(5)[None]
    torch.testing.assert_close(load_model(tmp_path)(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_an_index_of_another_name_is_not_followed(model, tmp_path):
    """config.json can name one, whose files may be anywhere."""
    for name in ("here", "there"):
        model.save_pretrained(tmp_path / name)
    (tmp_path / "here" / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(model.state_dict(), "../there/model.safetensors")}
    (tmp_path / "here" / "x.safetensors.index.json").write_text(json.dumps(index))
    changed(tmp_path / "here", transformers_weights="x.safetensors.index.json")
    with pytest.raises(UserError, match="says where its weights are"):
        load_model(tmp_path / "here")


def test_experts_in_every_layer_are_bounded_together(model, tmp_path):
    """Each number alone is a model's, together they take transformers half an hour."""
    model.save_pretrained(tmp_path)
    changed(tmp_path, num_hidden_layers=900, num_local_experts=800)
    with pytest.raises(UserError, match="asks for 800 experts in 900 layers"):
        load_model(tmp_path)
    changed(tmp_path, num_hidden_layers=2, num_local_experts=800, num_labels=1000)  # Llama knows no experts
    load_model(tmp_path)
