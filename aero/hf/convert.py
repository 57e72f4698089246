"""GPT-2, GPT-NeoX (Pythia) and Llama of Hugging Face as `aero.model.GPT`: converted when read, nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aero.architecture import Architecture, parse
from aero.errors import UserError, cut
from aero.hf.loading import load_model
from aero.model import GPT, ModelConfig

GELU = {"gelu": "exact", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
"""`ModelConfig.gelu` by transformers' name."""
REQUIRED: dict[str, dict[str, Any]] = {
    "gpt2": {"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    "gpt_neox": {},
    "llama": {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"},
}
"""By `model_type`, the only supported value of settings that change the function."""
NAMES = {
    "gpt2": {
        "token_embedding": "transformer.wte",
        "position_embedding": "transformer.wpe",
        "ln_f": "transformer.ln_f",
        "blocks": "transformer.h",
        "ln_1": "ln_1",
        "ln_2": "ln_2",
        "attention.query_key_value": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "ffn.up": "mlp.c_fc",
        "ffn.down": "mlp.c_proj",
    },
    "gpt_neox": {
        "token_embedding": "gpt_neox.embed_in",
        "ln_f": "gpt_neox.final_layer_norm",
        "blocks": "gpt_neox.layers",
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attention.query_key_value": "attention.query_key_value",
        "attention.output": "attention.dense",
        "ffn.up": "mlp.dense_h_to_4h",
        "ffn.down": "mlp.dense_4h_to_h",
    },
    "llama": {
        "token_embedding": "model.embed_tokens",
        "ln_f": "model.norm",
        "blocks": "model.layers",
        "ln_1": "input_layernorm",
        "ln_2": "post_attention_layernorm",
        "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj",
        "attention.value": "self_attn.v_proj",
        "attention.output": "self_attn.o_proj",
        "ffn.gate": "mlp.gate_proj",
        "ffn.up": "mlp.up_proj",
        "ffn.down": "mlp.down_proj",
    },
}
"""By `model_type`, the modules of `GPT` and theirs; those of a block are relative to it."""
QUERY_KEY_VALUE = ("attention.query", "attention.key", "attention.value")


def load(folder: Path | str) -> GPT:
    """The model in `folder`, config.json and safetensors files as `save_pretrained` writes them, in float32.

    UserError for a model that is not supported or damaged.
    """
    architecture, config = describe(folder)
    theirs = load_model(folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager")
    model = GPT(architecture, config)
    copy_weights(theirs, model)
    return model.eval()


def copy_weights(theirs: torch.nn.Module, model: GPT) -> None:
    """Copy the weights of a Hugging Face model into a `GPT` of its sizes; thresholds of the regulariser stay."""
    found, kind = theirs.state_dict(), theirs.config.model_type
    names = model.state_dict().keys() - {"reg_threshold_weights"}
    model.load_state_dict({name: _tensor(name, found, kind, model.config) for name in names}, strict=False)


def describe(path: Path | str) -> tuple[Architecture, ModelConfig]:
    """Architecture and sizes of the model in a folder or of a config.json file, without its weights.

    UserError, naming what is not supported, for a model that `GPT` does not compute.
    """
    from transformers import AutoConfig

    path = Path(path)
    if (path / "adapter_config.json").is_file():
        raise UserError(f"{path} has a PEFT adapter; merge it into the model (merge_and_unload) and save that")
    try:
        theirs = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises errors of many types
        raise UserError(f"{path} has no configuration of a Hugging Face model: {cut(str(error), 300)}") from None
    if theirs.model_type not in REQUIRED:
        raise UserError(f"{path}: model type {theirs.model_type!r} is not supported; supported: {', '.join(REQUIRED)}")
    for name, wanted in {**REQUIRED[theirs.model_type], "quantization_config": None, "sliding_window": None}.items():
        if (given := getattr(theirs, name, wanted)) != wanted:
            raise UserError(f"{path}: {name} is {cut(repr(given), 100)}; only {wanted!r} is supported")
    try:
        architecture, values = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "llama": _llama}[theirs.model_type](theirs)
        return parse(architecture), ModelConfig(vocabulary=theirs.vocab_size, tied=theirs.tie_word_embeddings, **values)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def _gpt2(theirs: Any) -> tuple[str, dict[str, Any]]:
    return "SM+LN+G", {
        "context": theirs.n_positions,
        "layers": theirs.n_layer,
        "heads": theirs.n_head,
        "width": theirs.n_embd,
        "ffn_width": theirs.n_inner or 4 * theirs.n_embd,
        "layer_norm_eps": theirs.layer_norm_epsilon,
        "gelu": _gelu(theirs.activation_function),
        **dict.fromkeys(("qk_bias", "vo_bias", "ffn_bias"), True),
    }


def _gpt_neox(theirs: Any) -> tuple[str, dict[str, Any]]:
    return "SM+LN+G", {
        **_common(theirs),
        "layer_norm_eps": theirs.layer_norm_eps,
        "gelu": _gelu(theirs.hidden_act),
        "qk_bias": theirs.attention_bias,
        "vo_bias": theirs.attention_bias,
        "ffn_bias": True,
        "rotary_fraction": theirs.rope_parameters.get("partial_rotary_factor", 0.25),
        "parallel_residual": theirs.use_parallel_residual,
    }


def _llama(theirs: Any) -> tuple[str, dict[str, Any]]:
    if theirs.head_dim * theirs.num_attention_heads != theirs.hidden_size:
        raise ValueError(f"head_dim {theirs.head_dim} is not hidden_size / num_attention_heads, which is not supported")
    if (part := theirs.rope_parameters.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ValueError(f"partial_rotary_factor is {part}; only 1.0 is supported")
    return "SM+RMS+SwiGLU", {
        **_common(theirs),
        "layer_norm_eps": theirs.rms_norm_eps,
        "qk_bias": False,
        "rotary_fraction": 1.0,
        "kv_heads": theirs.num_key_value_heads,
    }


def _common(theirs: Any) -> dict[str, Any]:
    if (kind := theirs.rope_parameters.get("rope_type", "default")) != "default":
        raise ValueError(f"rope_type is {cut(repr(kind), 100)}; only 'default' is supported, without scaling")
    return {
        "context": theirs.max_position_embeddings,
        "layers": theirs.num_hidden_layers,
        "heads": theirs.num_attention_heads,
        "width": theirs.hidden_size,
        "ffn_width": theirs.intermediate_size,
        "position": "rotary",
        "rotary_base": float(theirs.rope_parameters["rope_theta"]),
    }


def _gelu(name: str) -> str:
    if name not in GELU:
        raise ValueError(f"activation {cut(repr(name), 100)} is not supported; supported: {', '.join(GELU)}")
    return GELU[name]


def _tensor(name: str, theirs: Mapping[str, Tensor], kind: str, config: ModelConfig) -> Tensor:
    """The parameter `name` of `GPT`."""
    module, _, last = name.rpartition(".")
    if module == "lm_head":
        return theirs[name]
    names, place = NAMES[kind], ""
    if module.startswith("blocks."):
        _, index, module = module.split(".", 2)
        place = f"{names['blocks']}.{index}."
    part = None if module in names else QUERY_KEY_VALUE.index(module)
    found = theirs[f"{place}{names[module] if part is None else names['attention.query_key_value']}.{last}"]
    if kind == "gpt2" and place and found.ndim == 2:  # a Conv1D holds (in, out)
        found = found.T
    if part is None:
        return found
    if kind == "gpt2":  # Q, K and V, one below the other
        return found.chunk(3)[part]
    return found.unflatten(0, (config.heads, 3, -1))[:, part].flatten(0, 1)  # Q, K and V of the first head, and so on
