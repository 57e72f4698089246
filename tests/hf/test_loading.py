"""Loading Hugging Face models: the saved weights, or an error."""

import pytest
import torch
from tiny_hugging_face import change_config, some_ids, tiny
from transformers.utils import logging

from aero.errors import UserError
from aero.hf.loading import load_model


def test_a_saved_model_is_loaded_unchanged_also_from_shards(tmp_path):
    model, ids = tiny("llama"), some_ids(1, 5)
    for size in ("1GB", "20KB"):
        model.save_pretrained(tmp_path / size, max_shard_size=size)
        before = logging.get_verbosity()
        torch.testing.assert_close(load_model(tmp_path / size)(ids).logits, model(ids).logits, rtol=0, atol=0)
        assert logging.get_verbosity() == before


def test_missing_weights_are_refused_unless_they_are_the_unneeded_head(tmp_path):
    model, ids = tiny("llama", tie_word_embeddings=False), some_ids(1, 5)
    model.model.save_pretrained(tmp_path)
    change_config(tmp_path, architectures=["LlamaForCausalLM"])
    with pytest.raises(UserError, match="lack 1 tensors .* 'lm_head.weight'"):
        load_model(tmp_path)
    hidden = load_model(tmp_path, head_needed=False).model(ids).last_hidden_state
    torch.testing.assert_close(hidden, model.model(ids).last_hidden_state, rtol=0, atol=0)
    change_config(tmp_path, num_hidden_layers=4)
    with pytest.raises(UserError, match="lack .* 'model.layers.3"):
        load_model(tmp_path, head_needed=False)


def test_weights_of_another_shape_are_refused(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path)
    change_config(tmp_path, n_positions=128)
    with pytest.raises(UserError, match=r"'transformer.wpe.weight' has shape \(160, 32\) instead of \(128, 32\)"):
        load_model(tmp_path)
