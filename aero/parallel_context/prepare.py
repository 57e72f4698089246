"""Models with their tasks, ready to be measured: the decoder trained here, or one of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aero.checkpoint import load as load_checkpoint
from aero.data.tokenizer import tokenizer_of
from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import UserError, json_file
from aero.parallel_context import benchmarks
from aero.parallel_context.encoding import Model
from aero.parallel_context.experiment import Task
from aero.parallel_context.own_model import OwnModel
from aero.parallel_context.settings import TASKS, ParallelContextSettings, ScaleSettings, TaskName
from aero.parallel_context.tasks import TextTask, Vocabulary, make_episode_tasks


@dataclass(frozen=True)
class Ready:
    """A model, its tasks, the text of the shared sink by task, and what the result says of the model."""

    model: Model
    tasks: list[Task]
    sinks: dict[str, str]
    encode: Callable[[str], list[int]]
    description: dict[str, Any]

    def prefix(self, text: str) -> Tensor:
        """The tokens of a shared prefix."""
        return torch.tensor(self.encode(text))


def own_model(
    folder: Path, section: ParallelContextSettings, sizes: ScaleSettings, device: str, tokens_in: Path | None = None
) -> Ready:
    """The decoder that stages.parallel_context_train left in `folder`, and its offline tasks."""
    training = json_file(folder / "training.json")
    torch.set_num_threads(max(1, sizes.train.threads or torch.get_num_threads()))
    tokens = open_tokens(tokens_in or tokens_folder(None))
    model = OwnModel(load_checkpoint(folder / "checkpoint.safetensors").to(device))
    text = TextTask(tokens.valid, sizes.units["lm"], sizes.predicted)
    tasks = [
        Task(
            one.name,
            list(one.batches(sizes.episodes, sizes.batch_size, seed=7)),
            f"{one.units} units of {one.width} tokens",
        )
        for one in (text, *make_episode_tasks(Vocabulary(tokens.vocabulary), sizes.units))
    ]
    description = {"model": "own", "family": section.family, "scale": training["scale"], "seed": training["seed"]}
    description |= {"context": model.context, "training": training}
    return Ready(model, tasks, dict.fromkeys(TASKS, section.sink), tokenizer_of(tokens).encode, description)


def hugging_face_model(
    name: str,
    data: Path,
    device: str,
    tasks: Sequence[TaskName],
    *,
    attention: str,
    dtype: str,
    context: int,
    predicted: int,
    examples: int,
) -> Ready:
    """A Hugging Face model and the benchmarks of the folder `data`, see `aero.parallel_context.benchmarks`."""
    from transformers import AutoTokenizer

    from aero.hf.loading import load_model
    from aero.parallel_context.hugging_face import HuggingFaceModel

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        loaded = load_model(name, attn_implementation=attention, dtype=getattr(torch, dtype))
    except Exception as error:  # transformers raises errors of many types
        raise UserError(f"cannot load {name}: {error}") from None
    model = HuggingFaceModel(loaded.to(device))
    encode = partial(tokenizer.encode, add_special_tokens=False)
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    found = benchmarks.load_tasks(data, tasks, encode, decode, context, predicted, examples)
    if not found:
        raise UserError(f"{data} has none of the files that docs/parallel_context.md names")
    sinks = {task: benchmarks.LM_SINK if task == "lm" else benchmarks.SINK for task in TASKS}
    description = {"model": name, "family": loaded.config.model_type, "scale": "paper", "seed": 0}
    return Ready(model, found, sinks, encode, description | {"context": context, "dtype": dtype})
