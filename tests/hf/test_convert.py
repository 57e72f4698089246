"""Hugging Face models as `aero.model.GPT`: transformers' own logits, and refusal of what it does not compute."""

import pytest
import torch
from tiny_hugging_face import change_config, save_with_tokenizer, some_ids, tiny
from transformers import GPT2Config, GPTNeoXConfig

from aero.errors import UserError
from aero.families import FAMILIES
from aero.hf.convert import describe, load
from aero.parallel_context.measure import encoding_cost
from stages.parallel_context import opened

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {}),
        ("gpt2", {"activation_function": "gelu", "n_inner": 48, "tie_word_embeddings": False}),
        ("gpt_neox", {}),
        ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100_000.0}, "rms_norm_eps": 0.01}),
        ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    ],
)
def test_logits_equal_hugging_faces(name, changes, tmp_path):
    theirs, ids = tiny(name, **changes), some_ids(2, 150)
    with torch.no_grad():
        for parameter in theirs.parameters():  # gains and biases away from their neutral start
            parameter.add_(0.1 * torch.randn_like(parameter))
        theirs.save_pretrained(tmp_path)
        model, logits = load(tmp_path), theirs(ids).logits
        torch.testing.assert_close(model(ids), logits, atol=1e-4, rtol=0)
        torch.testing.assert_close(model(ids, entropy=True)[0], logits, atol=1e-4, rtol=0)


def test_a_folder_that_asks_for_an_attention_that_is_not_installed_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    theirs = tiny("llama")
    save_with_tokenizer(theirs, tmp_path)
    change_config(tmp_path, attn_implementation="flash_attention_2")
    ids = some_ids(1, 20)
    torch.testing.assert_close(load(tmp_path)(ids), theirs(ids).logits, atol=1e-4, rtol=0)
    assert opened(tmp_path)[0].context == 160
    assert encoding_cost(str(tmp_path), 20, 2)["tokens"] == 20


@pytest.mark.parametrize(("name", "theirs"), [("gpt2", GPT2Config), ("pythia-70m", GPTNeoXConfig)])
def test_families_have_hugging_faces_switches(name, theirs, tmp_path):
    theirs().save_pretrained(tmp_path)
    _, found = describe(tmp_path)
    recipe = {"vo_bias", "ffn_bias"} if name == "gpt2" else set()  # which the CodeParrot recipe leaves out
    for switch, value in FAMILIES[name].switches.items():
        assert switch in recipe or getattr(found, switch) == value, switch


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("qwen2", {}, "model type 'qwen2'"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "rope_type .*linear"),
        ("llama", {"rope_scaling": LLAMA3}, "rope_type .*llama3"),
        ("llama", {"attention_bias": True}, "attention_bias is True"),
        ("llama", {"mlp_bias": True}, "mlp_bias is True"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"head_dim": 16}, "head_dim 16"),
        ("llama", {"sliding_window": 64}, "sliding_window is 64"),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
        ("gpt2", {"activation_function": "relu"}, "activation 'relu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name, changes, named, tmp_path):
    tiny(name).config.save_pretrained(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(UserError, match=named):
        describe(tmp_path / "config.json")
