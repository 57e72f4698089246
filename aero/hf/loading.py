"""Hugging Face models that somebody brings: looked at before they are built, never completed with made-up weights."""

from __future__ import annotations

import contextlib
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import UserError, cut, text_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_REPEATED = re.compile(r"(^|_)(layers?|blocks?|experts?|groups|depth|stages|labels|attention_types)$")
"""Keys of a config.json by which transformers repeats something, in Python: each time takes a millisecond."""
_LAYERS = ("n_layer", "num_layers", "num_hidden_layers")
REPEATS = 1000
"""What any model may repeat; more than that needs as many tensors."""
LAYERS_TIMES_EXPERTS = 30_000
"""Likewise of experts in every layer: the largest models that are published have 61 x 384."""
_HEADER_BYTES = 100_000_000
"""The most that the safetensors format allows of a header."""
_SPARE = 2**28
"""Numbers that a model may have beyond those of its weights, in tables that are computed (1 GiB in float32)."""
_NUMBERS_A_BYTE = 8
"""Of a quantized weight, at one bit each."""


def load_model(name: Path | str, head_needed: bool = True, **options: Any) -> PreTrainedModel:
    """The causal language model called `name`, or in that folder, of safetensors alone, with none of its own code.

    head_needed: whether the projection onto the vocabulary must be among the weights; entropies do not depend on it,
    and models without their own are saved so. UserError for weights that are missing or of other sizes, which
    transformers would draw at random, and, of a folder, for a config.json that is none or claims what the weights
    beside it cannot hold, before anything is built. Else transformers' own errors, of any type.
    """
    from transformers import AutoModelForCausalLM

    folder = Path(name)
    with _quiet():
        if (folder / "config.json").is_file():
            _check_sizes(folder, options)
        model, found = AutoModelForCausalLM.from_pretrained(
            name,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # told below; its own error refers to the report
            **options,
        )
    if found["mismatched_keys"]:
        key, there, wanted = min(found["mismatched_keys"])
        raise UserError(
            f"the weights of {name} are not of the sizes in its config.json: {cut(repr(key), 100)} is {tuple(there)}, "
            f"not {tuple(wanted)}; are both of one model?"
        )
    head = None if head_needed else model.get_output_embeddings()
    unneeded = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    if missing := sorted(key for key in found["missing_keys"] if id(named.get(key)) not in unneeded):
        raise UserError(
            f"the weights of {name} lack {len(missing)} tensors that its config.json asks for, such as "
            f"{cut(repr(missing[0]), 100)}; are both of one model?"
        )
    return model


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report of a model, which quotes names of tensors as they are, escapes too."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_sizes(folder: Path, options: dict[str, Any]) -> None:
    """UserError if config.json in `folder` claims what the files of weights beside it cannot hold."""
    path = folder / "config.json"
    try:
        values = json.loads(text_of(path))
    except (RecursionError, ValueError) as error:
        raise UserError(f"{path} is no configuration ({type(error).__name__}: {cut(str(error), 200)})") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} is no configuration: it holds no JSON object")
    if "transformers_weights" in values:  # its index may name files anywhere
        raise UserError(f"{path} says where its weights are (transformers_weights); they are read beside it alone")
    files = _files(folder)
    headers = {file: _header(file) for file in files}
    tensors, size = sum(map(len, headers.values())), sum(file.stat().st_size for file in files)
    most_layers = most_experts = 1
    for key, number in _numbers("", values):
        if key.endswith("experts"):
            most_experts = max(most_experts, number)
        elif key.endswith(("layer", "layers")):
            most_layers = max(most_layers, number)
        if number < 1 and key in _LAYERS:
            raise UserError(f"{key} in {path} is {number}, a model has one layer at least")
        if number > max(REPEATS, tensors) and _REPEATED.search(key):
            raise UserError(
                f"{cut(key, 100)} in {path} is {cut(repr(number), 100)}, more than any model has and more than the "
                f"{tensors} tensors of its weights"
            )
    if most_layers * most_experts > max(LAYERS_TIMES_EXPERTS, tensors):
        raise UserError(
            f"{path} asks for {most_experts:g} experts in {most_layers:g} layers, more than any model has and more "
            f"than the {tensors} tensors of its weights"
        )
    if "quantization_config" not in values:  # transformers would convert them without a word
        for file, header in headers.items():
            for name, about in header.items():
                dtype = about.get("dtype") if isinstance(about, dict) else None
                if name.endswith(".weight") and str(dtype).startswith(("I", "U", "BOOL")):
                    raise UserError(f"{cut(repr(name), 100)} in {file} is of type {dtype}, weights are floating-point")
    if not files:  # transformers says so before it builds anything
        return
    numbers = _numbers_of(folder, options)
    if numbers > (most := _NUMBERS_A_BYTE * size + _SPARE):
        raise UserError(
            f"{path} describes a model of {numbers:.3g} numbers; its weights, of {size:.3g} bytes, and tables that "
            f"are computed can be {most:.3g} at most"
        )


def _files(folder: Path) -> list[Path]:
    """The files of weights that transformers reads: one, or those of the index. UserError for an index that names files
    elsewhere than beside it."""
    single, path = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file() or not path.is_file():
        return [single] if single.is_file() else []
    try:
        named = sorted(set(json.loads(text_of(path))["weight_map"].values()))
        if other := [name for name in named if name != Path(name).name]:
            raise ValueError(f"it names {cut(repr(other[0]), 100)}, which is no file beside it")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{path} is no index of weights ({type(error).__name__}: {cut(str(error), 200)})") from None
    return [folder / name for name in named if (folder / name).is_file()]


def _header(path: Path) -> dict[str, Any]:
    """{name: what a file of safetensors says of that tensor}; empty if it is none, which transformers tells."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            found = json.loads(file.read(length)) if length <= _HEADER_BYTES else {}
    except (OSError, struct.error, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(key: str, part: Any) -> Iterator[tuple[str, int]]:
    """(nearest key, number) of every whole number in a tree of JSON."""
    if isinstance(part, dict):
        for name, value in part.items():
            yield from _numbers(name, value)
    elif isinstance(part, list):
        for value in part:
            yield from _numbers(key, value)
    elif isinstance(part, int | float) and not isinstance(part, bool):
        yield key, part


def _numbers_of(folder: Path, options: dict[str, Any]) -> int:
    """How many numbers the model has, weights and computed tables, without a place for any; 0 if it cannot be built
    so, which is told, if it is an error, where it is built."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            chosen = {name: options[name] for name in ("attn_implementation",) if name in options}
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **chosen)
    except Exception:
        return 0
    return sum(tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
