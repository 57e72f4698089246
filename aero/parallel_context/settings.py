"""The section `parallel_context` of params.yaml, checked on reading."""

from __future__ import annotations

from typing import Any, Literal

from aero import families
from aero.config import ModelParameters, Parameters, TrainParameters
from aero.errors import UserError
from aero.model import ModelConfig
from aero.parallel_context.selection import Aggregation, Selection
from aero.sections import Field, Strict, ValidationError

TASKS = ("lm", "icl", "rag", "synthetic")
TaskName = Literal["lm", "icl", "rag", "synthetic"]


class SelectionSettings(Strict):
    """The defaults of selective attention: K, the numbers of largest values, and the aggregation of each task."""

    top_k: int = Field(ge=1)
    score_top: int = Field(ge=1)
    aggregate_top: int | None = Field(ge=1)
    aggregation: dict[TaskName, Aggregation]


class AblationSettings(Strict):
    """What is varied, each from the default, at the largest P of a task."""

    top_k: tuple[int, ...]
    aggregation: tuple[Aggregation, ...]
    sinks: dict[str, str]


class CostSettings(Strict):
    """Sizes of the random model whose time and memory are measured, and its context in tokens."""

    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    width: int = Field(ge=2)
    tokens: int = Field(ge=2)
    segments: tuple[int, ...] = Field(min_length=1)
    repeats: int = Field(ge=1)


class ScaleSettings(Strict):
    """units: of a context, a task. predicted: scored tokens of language modelling. episodes: measured, a setting."""

    model: ModelParameters
    train: TrainParameters
    rotary_fraction: float = Field(gt=0, le=1)
    tied: bool = False
    segments: tuple[int, ...] = Field(min_length=1)
    units: dict[TaskName, int]
    predicted: int = Field(ge=2)
    episodes: int = Field(ge=1)
    batch_size: int = Field(ge=1)
    cost: CostSettings


class ParallelContextSettings(Strict):
    """The whole section. sink: the shared prefix of the model trained here. required: the fraction of the synthetic
    task that full attention must solve for the result to say `solves_retrieval`; all is measured in any case."""

    family: str
    architecture: str
    seeds: tuple[int, ...] = Field(min_length=1)
    sink: str = Field(min_length=1)
    required: float = Field(ge=0, le=1)
    selection: SelectionSettings
    ablation: AblationSettings
    scales: dict[str, ScaleSettings]

    def select(self, task: TaskName, **changes: Any) -> Selection:
        """The task's selection, `changes` replacing fields of it."""
        chosen = self.selection
        return Selection(
            **{
                "top_k": chosen.top_k,
                "aggregation": chosen.aggregation[task],
                "score_top": chosen.score_top,
                "aggregate_top": chosen.aggregate_top,
            }
            | changes
        )

    def at(self, scale: str) -> ScaleSettings:
        if scale not in self.scales:
            raise UserError(f"params.yaml: parallel_context.scales lacks {scale!r}; it has {', '.join(self.scales)}")
        return self.scales[scale]

    def model_config_for(self, scale: str, vocabulary: int) -> ModelConfig:
        """The decoder that is trained at `scale`: the family's switches with the rotary fraction of the section."""
        chosen = self.at(scale)
        sizes = chosen.model.model_dump()
        switches = {"rotary_fraction": chosen.rotary_fraction, "tied": chosen.tied}
        return families.config(self.family, vocabulary, **sizes, **switches)


def settings(parameters: Parameters) -> ParallelContextSettings:
    """The checked section; UserError, one line, for anything wrong with it."""
    try:
        found = ParallelContextSettings.model_validate(parameters.parallel_context)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in ("parallel_context", *first["loc"]))
        raise UserError(f"params.yaml: {place}: {first['msg']}") from None
    for name, scale in found.scales.items():
        if missing := set(TASKS) - set(scale.units):
            raise UserError(f"params.yaml: parallel_context.scales.{name}.units lacks {', '.join(sorted(missing))}")
    return found
