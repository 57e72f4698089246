"""The section `parallel_context` of params.yaml, checked on reading, and the grid that it describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from aero.config import Field, Parameters, checked
from aero.errors import UserError
from aero.parallel_context.attention import Aggregation, Selection
from aero.parallel_context.measure import Block
from aero.schema import Positive, Strict

Kind = Literal["lm", "icl", "rag", "synthetic"]
Several = Annotated[tuple[Positive, ...], Field(min_length=1)]


class SelectionSettings(Strict):
    """The defaults of selective attention: K, and the aggregation of each kind."""

    top_k: Positive
    aggregation: dict[Kind, Aggregation]


class AblationSettings(Strict):
    """What is varied, one at a time from the default, at the largest P of a task."""

    top_k: tuple[Positive, ...]
    aggregation: tuple[Aggregation, ...]
    mass: tuple[Annotated[float, Field(gt=0, lt=1)], ...]


class TaskSettings(Strict):
    """contexts: measured. units: of a context. questions: about it, or scored tokens. segments: P. remedies: the P,
    besides the largest, at which the remedies are measured too."""

    contexts: Positive
    units: Positive
    questions: Positive
    segments: Several
    remedies: tuple[Positive, ...]


class LongerSettings(Strict):
    """What is measured again with longer contexts: their number, P as far as they have as many units, and, by the
    number of tokens they have about, the units of each task."""

    contexts: Positive
    segments: Several
    units: dict[str, dict[str, Positive]]


class CostSettings(Strict):
    """Lengths of the contexts, and P, whose time and memory are measured."""

    tokens: Several
    segments: Several


class ParallelContextSettings(Strict):
    """The whole section. sinks: shared prefixes by name, the first for every remedy, the others for comparison."""

    sinks: dict[str, str] = Field(min_length=1)
    selection: SelectionSettings
    ablation: AblationSettings
    tasks: dict[str, TaskSettings]
    longer: LongerSettings
    cost: CostSettings

    def plans(self, names: Sequence[str], longer: bool = True) -> dict[str, dict[str, TaskSettings]]:
        """The named tasks by subfolder of their results: "", and with `longer` the number of tokens."""
        plans = {"": {name: self.tasks[name] for name in names}}
        for tokens, units in self.longer.units.items() if longer else ():
            for name in (name for name in names if name in units):
                segments = tuple(p for p in self.longer.segments if p <= units[name])
                changes = {"units": units[name], "contexts": self.longer.contexts, "segments": segments}
                plans.setdefault(tokens, {})[name] = self.tasks[name].model_copy(update=changes)
        return plans

    def blocks(self, kind: Kind, task: TaskSettings, segments: tuple[int, ...] = ()) -> list[Block]:
        """What is measured of every context of a task. segments: other P than the task's."""
        default = Selection(**self.selection.model_dump() | {"aggregation": self.selection.aggregation[kind]})
        varied = [replace(default, top_k=k) for k in self.ablation.top_k]
        if kind != "lm":
            varied += [replace(default, aggregation=one) for one in self.ablation.aggregation]
        varied += [replace(default, mass=mass) for mass in self.ablation.mass]
        chosen = sorted(set(segments or task.segments))
        if chosen[0] < 1 or chosen[-1] > task.units:
            raise UserError(f"P={chosen} is not possible: P must be 1 to {task.units}, the units of the context")
        found, (sink, *other_sinks) = [], self.sinks
        for p in chosen:
            largest = p == chosen[-1]
            if p == 1 or not (largest or p in task.remedies):
                found.append(Block(p))
                continue
            selections = dict.fromkeys([default, *(varied if largest else ())])  # each once
            found.append(Block(p, None, (None, *selections), oracles=True))
            found.append(Block(p, sink, (None, default)))
            found += [Block(p, other) for other in other_sinks if largest]
        return found


def settings(parameters: Parameters) -> ParallelContextSettings:
    """The checked section; UserError, one line, for anything wrong with it."""
    return checked(ParallelContextSettings, parameters.parallel_context, "params.yaml: parallel_context")
