"""Loading Hugging Face models: safetensors only, no code of the model's own, no missing weights."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import UserError, cut

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(name: Path | str, head_needed: bool = True, **options: Any) -> PreTrainedModel:
    """The causal language model called `name`, or in that folder; options as for `from_pretrained`.

    head_needed: whether the vocabulary projection must be among the weights. Entropies do not need it, and base models
    are saved without it.
    Raises UserError for missing weights or weights of another shape, which transformers would initialise at random;
    otherwise transformers' own errors.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    if (Path(name) / "adapter_config.json").is_file() and importlib.util.find_spec("peft") is None:
        raise UserError(
            f"{name} has a PEFT adapter, which would be ignored: pip install peft, or merge it into the model"
        )
    with contextlib.ExitStack() as undo:  # suppress transformers' loading report and progress bar
        undo.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            undo.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        model, found = AutoModelForCausalLM.from_pretrained(
            name,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below
            **options,
        )
    if found["mismatched_keys"]:
        key, there, wanted = min(found["mismatched_keys"])
        raise UserError(
            f"the weights of {name} do not fit its config.json: {cut(repr(key), 100)} has shape {tuple(there)} instead "
            f"of {tuple(wanted)}"
        )
    head = None if head_needed else model.get_output_embeddings()
    unneeded = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    if missing := sorted(key for key in found["missing_keys"] if id(named.get(key)) not in unneeded):
        raise UserError(
            f"the weights of {name} lack {len(missing)} tensors that its config.json asks for, such as "
            f"{cut(repr(missing[0]), 100)}"
        )
    return model
