"""The section `parallel_context` of params.yaml, checked on reading."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aero import families
from aero.config import Field, ModelParameters, Parameters, Strict, TrainParameters, ValidationError
from aero.errors import UserError
from aero.model import ModelConfig
from aero.parallel_context.selection import Aggregation, Selection

TASKS = ("lm", "icl", "rag", "synthetic")
TaskName = Literal["lm", "icl", "rag", "synthetic"]


class SelectionSettings(Strict):
    """The defaults of selective attention: K, the numbers of largest values, and the aggregation of each task."""

    top_k: int = Field(ge=1)
    score_top: int = Field(ge=1)
    aggregate_top: int | None = Field(ge=1)
    aggregation: dict[TaskName, Aggregation]


class AblationSettings(Strict):
    """What is varied, one at a time from the default, at the largest P of a task."""

    top_k: tuple[Annotated[int, Field(ge=1)], ...]
    aggregation: tuple[Aggregation, ...]
    sinks: dict[str, str]


class CostSettings(Strict):
    """Sizes of the random model whose time and memory are measured, and of its context in tokens."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    width: int = Field(ge=2)
    tokens: int = Field(ge=2)
    segments: tuple[int, ...] = Field(min_length=1)
    repeats: int = Field(ge=1)


class ScaleSettings(Strict):
    """units: of a context, by task. predicted: scored tokens of language modelling. episodes: measured per setting."""

    model: ModelParameters
    train: TrainParameters
    rotary_fraction: float = Field(gt=0, le=1)
    tied: bool = False
    segments: tuple[int, ...] = Field(min_length=1)
    units: dict[TaskName, int] = Field(min_length=len(TASKS))
    predicted: int = Field(ge=2)
    episodes: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    cost: CostSettings


class ParallelContextSettings(Strict):
    """The whole section. sink: the shared prefix of the model trained here. required: the fraction of key-value
    retrieval that full attention must answer for `solves_retrieval` in the result."""

    family: str
    architecture: str
    seeds: tuple[int, ...] = Field(min_length=1)
    sink: str = Field(min_length=1)
    required: float = Field(ge=0, le=1)
    selection: SelectionSettings
    ablation: AblationSettings
    scales: dict[str, ScaleSettings]

    def select(self, task: TaskName, **changes: Any) -> Selection:
        """The task's default selection with `changes`."""
        values = self.selection.model_dump()
        return Selection(**values | {"aggregation": self.selection.aggregation[task]} | changes)

    def at(self, scale: str) -> ScaleSettings:
        if scale not in self.scales:
            raise UserError(f"params.yaml: parallel_context.scales lacks {scale!r}; it has {', '.join(self.scales)}")
        return self.scales[scale]

    def model_config_for(self, scale: str, vocabulary: int) -> ModelConfig:
        """The decoder that is trained at `scale`."""
        chosen = self.at(scale)
        sizes = chosen.model.model_dump()
        return families.config(
            self.family, vocabulary, **sizes, rotary_fraction=chosen.rotary_fraction, tied=chosen.tied
        )


def settings(parameters: Parameters) -> ParallelContextSettings:
    """The checked section; UserError, one line, for anything wrong with it."""
    try:
        return ParallelContextSettings.model_validate(parameters.parallel_context)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("parallel_context", *first["loc"]))
        raise UserError(f"params.yaml: {place}: {first['msg']}") from None
