"""Everything that was measured, from `results/` (committed) and `runs/` (what the stages just wrote).

A fresh result replaces the committed one of the same scale, run and seed, or of the same row or operation. What is
missing stays missing; what cannot be used is named in `Results.problems`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from aero.architecture import parse
from aero.config import DEFAULT_SET, Parameters, TrainParameters
from aero.config import load as load_parameters
from aero.errors import UserError, cut
from aero.model import ModelConfig
from aero.records import FILES, Training, read_csv, read_training, read_trainings
from aero.training.catalogue import BOOKKEEPING, contradiction

SCALES = ("paper", "gpu", "desk", "laptop", "smoke")
"""Largest first: the order in which a scale is chosen when the wanted one has no results."""
SMOKE_TEST = "smoke"
"""A scale of seconds a run that tests the pipeline; it decides nothing."""
DEFAULT_SEED = 1337
SCALE_VARIABLE = "AERO_REPORT_SCALE"
"""The scale that `load` takes by default, for notebooks."""
FITTED = Path("results/two_party/fitted_rows.csv")
Array = NDArray[np.float64]
CostKey = tuple[str, str, int, str]
"""Architecture, model, context and program."""


@dataclass(frozen=True)
class Entropy:
    """Headwise attention entropy of a trained model on held-out tokens, nats.

    mean: (L, H); median: that of all rows. quarters: fraction of heads per quarter of each `maximum` ("observed",
    "log_T", "causal_bound"). learned: such as thresholds.
    """

    mean: Array
    median: Array
    maximum: dict[str, float]
    quarters: dict[str, tuple[float, ...]]
    learned: dict[str, Any]

    @property
    def not_finite(self) -> float:
        """Fraction of heads whose mean entropy is not finite; they are in no quarter."""
        return 1 - float(np.isfinite(self.mean).mean())


@dataclass(frozen=True)
class Run:
    """One training, with its log and entropies if there are any.

    perplexity is NaN for a run that diverged. path: the file of its metrics. curves: the columns of its log.
    """

    name: str
    scale: str
    seed: int
    architecture: str
    perplexity: float
    diverged_at: int | None
    metrics: dict[str, Any]
    path: str
    fresh: bool
    entropy: Entropy | None = None
    curves: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def diverged(self) -> bool:
        return self.diverged_at is not None

    def logged(self, quantity: str) -> pd.DataFrame:
        """The finite values of a quantity by step: one column, or one a layer; steps without any are left out."""
        pattern = re.compile(rf"{quantity}((_layer)?_\d+)?")
        columns = {name: values for name, values in self.curves.items() if pattern.fullmatch(name)}
        frame = pd.DataFrame(columns, index=self.curves.get("step", []), dtype=float)
        return frame.where(np.isfinite(frame)).dropna(how="all")

    def series(self, quantity: str) -> pd.Series:
        """`logged`, mean over layers."""
        return self.logged(quantity).mean(axis=1)

    @property
    def provenance(self) -> dict[str, Any]:
        return self.metrics.get("provenance") or {}

    @property
    def recipe(self) -> str:
        """What two seeds must have in common to be averaged: architecture, sizes, corpus, tokenizer, training."""
        train = self.metrics.get("train") or {}
        train_defaults = {name: f.default for name, f in TrainParameters.model_fields.items()}
        model_defaults = {f.name: f.default for f in dataclasses.fields(ModelConfig)}
        values = [
            *(self.metrics.get(key) for key in ("architecture", "corpus", "context", "regularizer")),
            _changed(self.metrics.get("model") or {}, model_defaults),
            _changed({k: v for k, v in train.items() if k not in BOOKKEEPING}, train_defaults),
            *(self.provenance.get(f"{name}_sha256") for name in ("corpus", "tokenizer")),
        ]
        return json.dumps(values, sort_keys=True)


def _changed(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Settings that differ from the default, which is what an older result that does not name them had."""
    return {k: v for k, v in values.items() if k not in defaults or v != defaults[k]}


@dataclass(frozen=True)
class Cost:
    """A line of two_party/rows.csv or all_rows.csv: one forward pass of a row in one program; bytes both ways.

    more: the whole line.
    """

    architecture: str
    model: str
    context: int
    program: str
    bytes: float
    messages: float | None
    rounds: float | None
    seconds: float | None
    latency_wan: float | None
    latency_lan: float | None
    method: str
    max_logit_error: float | None
    path: str
    more: dict[str, str] = field(default_factory=dict)

    @property
    def operations_path(self) -> str:
        """The file of its operations: ops.csv beside rows.csv, all_ops.csv beside all_rows.csv."""
        return self.path.replace("rows.csv", "ops.csv")


@dataclass(frozen=True, eq=False)
class Results:
    """All results under `root`, and the training scale the report is about; equal to itself alone.

    fitted: costs measured in one session with "as_published" (`python -m benchmarks.as_published`).
    """

    root: Path
    scale: str
    runs: dict[tuple[str, str], tuple[Run, ...]]
    costs: Mapping[CostKey, Cost]
    problems: tuple[str, ...]
    parameters: Parameters
    fitted: Mapping[CostKey, Cost] = field(default_factory=dict)

    def seeds(self, run: str, scale: str | None = None) -> tuple[Run, ...]:
        """The trainings of `run` at `scale` (the report's if None), one a seed, of one recipe."""
        return self.runs.get((scale or self.scale, run), ())

    def first(self, run: str) -> Run | None:
        """A training of `run` that did not diverge, if there is one: that with the default seed, else the first."""
        return min(self.seeds(run), key=lambda one: (one.diverged, one.seed != DEFAULT_SEED), default=None)

    def perplexity(self, run: str, scale: str | None = None) -> dict[int, float]:
        """Evaluation perplexity by seed, diverged trainings left out."""
        return {r.seed: r.perplexity for r in self.seeds(run, scale) if not r.diverged and math.isfinite(r.perplexity)}

    def quarters(self, run: str, maximum: str = "observed") -> dict[int, tuple[float, ...]]:
        """Fraction of heads per quarter of `maximum`, by seed."""
        return {
            r.seed: r.entropy.quarters[maximum] for r in self.seeds(run) if r.entropy and maximum in r.entropy.quarters
        }

    def share_of_heads(self, run: str, quarters: Sequence[int], maximum: str = "observed") -> dict[int, float]:
        """Fraction of heads in the given quarters of `maximum`, by seed; heads that are not finite: in the lowest."""
        shares = {}
        for trained in self.seeds(run):
            found = trained.entropy
            if found and (maximum in found.quarters or found.not_finite == 1):  # without a finite head, no maximum
                values = found.quarters.get(maximum, (0.0,) * 4)
                broken = found.not_finite if 0 in quarters else 0.0
                shares[trained.seed] = math.fsum([*(values[q] for q in quarters), broken])
        return shares

    def cost(self, architecture: str, program: str, context: int = 128, model: str = "gpt2") -> Cost | None:
        """The cost of one forward pass; None if it was not measured."""
        return self.costs.get((architecture, model, context, program))

    def file(self, name: str) -> Path | None:
        """The path of a file below runs/ or, if it is not there, below results/; None if it is in neither."""
        paths = (self.root / folder / name for folder in ("runs", "results"))
        return next((path for path in paths if path.is_file()), None)

    def json(self, name: str) -> Any:
        """The content of that file, an empty mapping without it."""
        path = self.file(name)
        return json.loads(path.read_text(encoding="utf-8")) if path else {}

    def at(self, scale: str) -> Results:
        """The same results, seen from another training scale."""
        return self if scale == self.scale else _seen_from(self, scale)

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that have results, largest first."""
        present = {scale for scale, _ in self.runs}
        return tuple(s for s in SCALES if s in present) + tuple(sorted(present - set(SCALES)))


@cache
def _seen_from(results: Results, scale: str) -> Results:
    return dataclasses.replace(results, scale=scale)


def find_root() -> Path:
    """The nearest folder that has a params.yaml, the working directory or above it; ValueError if there is none."""
    start = Path.cwd()
    for folder in (start, *start.parents):
        if (folder / "params.yaml").is_file():
            return folder
    raise ValueError(f"no params.yaml at or above {start}; run from inside the project")


def load(root: Path | str | None = None, scale: str | None = None) -> Results:
    """Read all results below `root` (found from the working directory if None).

    The report is about `scale`: the one given, else params.yaml's if it has results, else the largest that has.
    """
    if root is None:
        return _load_once(find_root(), scale)
    root = Path(root)
    parameters, problems = load_parameters(root / "params.yaml"), []
    planned = [run for run in _runs(root, problems) if _is_planned(run, parameters, problems)]
    runs = _by_name(planned, parameters, problems)
    present = {found for found, _ in runs}
    scale = scale or os.environ.get(SCALE_VARIABLE)
    if scale:
        parameters.at_scale(scale)  # UserError if it is unknown
    else:
        scale = next((one for one in (parameters.scale, *SCALES) if one in present), parameters.scale)
    measured = [f"{top}/two_party/{name}" for top in ("results", "runs") for name in ("all_rows.csv", "rows.csv")]
    costs = _costs(root, measured, problems)
    fitted = _costs(root, [str(FITTED.with_name("fitted_figure15_rows.csv")), str(FITTED)], problems)
    return Results(root, scale, runs, costs, tuple(problems), parameters, fitted)


_load_once = cache(load)
"""For the notebooks, which share a kernel."""


def _runs(root: Path, problems: list[str]) -> Iterator[Run]:
    """All trainings, committed ones first; those that cannot be read are added to `problems`."""
    for path in sorted(root.glob(f"results/*/{FILES[0]}")):
        for training in read_trainings(path.parent, problems).values():
            yield _run(training, str(path.relative_to(root)), fresh=False)
    for path in sorted(root.glob(f"{DEFAULT_SET}/*/seed_*/metrics.json")):
        try:
            yield _run(read_training(path.parent), str(path.relative_to(root)), fresh=True)
        except (OSError, UserError) as error:
            problems.append(str(error).removeprefix(f"{root}/"))


def _is_planned(run: Run, parameters: Parameters, problems: list[str]) -> bool:
    """Whether params.yaml has this training; one of another architecture or a foreign seed is added to `problems`."""
    stated, seeds = parameters.runs.get(run.name), (*parameters.seeds, *parameters.more_seeds)
    if stated is not None and str(parse(stated.architecture)) != run.architecture:
        fault = f"architecture {run.architecture}, in params.yaml it is {stated.architecture}"
    elif run.seed not in seeds:
        fault = f"a seed that is not in params.yaml ({', '.join(map(str, seeds))})"
    else:
        return True
    problems.append(f"{run.path}: {run.name} seed {run.seed} left out, {fault}")
    return False


def _run(training: Training, path: str, fresh: bool) -> Run:
    metrics = training.metrics
    diverged = metrics["diverged_at_step"]
    return Run(
        name=metrics["run"],
        scale=metrics["scale"],
        seed=int(metrics["seed"]),
        architecture=metrics["architecture"],
        perplexity=_number(metrics["eval_perplexity"]),
        diverged_at=None if diverged is None else int(diverged),
        metrics=metrics,
        path=path,
        fresh=fresh,
        entropy=_entropy(training.entropy) if training.entropy else None,
        curves=training.curves,
    )


def _entropy(values: Mapping[str, Any]) -> Entropy:
    return Entropy(
        **{name: np.array(values[f"entropy_{name}"], dtype=float) for name in ("mean", "median")},
        maximum={key: _number(value) for key, value in values["maximum"].items()},
        quarters={key: tuple(map(_number, fractions)) for key, fractions in values["quarters"].items()},
        learned=values.get("learned") or {},
    )


def _by_name(
    planned: Iterable[Run], parameters: Parameters, problems: list[str]
) -> dict[tuple[str, str], tuple[Run, ...]]:
    """Runs by scale and name, one a seed and all of one recipe."""
    found = {(run.scale, run.name, run.seed): run for run in planned}  # a fresh one in place of the committed one
    groups: dict[tuple[str, str], list[Run]] = {}
    for (scale, name, _), run in sorted(found.items()):
        groups.setdefault((scale, name), []).append(run)
    return {key: _of_one_recipe(group, parameters, problems) for key, group in groups.items()}


def _of_one_recipe(group: Sequence[Run], parameters: Parameters, problems: list[str]) -> tuple[Run, ...]:
    """The seeds trained by the recipe of the fresh result, else of one that agrees with params.yaml, else of most; the
    others are added to `problems`."""
    scale, name, faults = group[0].scale, group[0].name, {}
    if scale in parameters.scales and name in parameters.runs:
        resolved = parameters.at_scale(scale).resolve(name)
        faults = {run.seed: contradiction(resolved, run.metrics) for run in group}
    most = Counter(run.recipe for run in group)
    reference = max(
        group, key=lambda run: (run.fresh, not faults.get(run.seed), most[run.recipe], run.seed == DEFAULT_SEED)
    )
    for run in group:
        if run.recipe != reference.recipe:
            other = f"another model, corpus or budget than seed {reference.seed} in {reference.path}"
            fault = faults.get(run.seed) or other
            problems.append(f"{run.path}: {name} seed {run.seed} of scale {scale} left out, {fault}")
    return tuple(run for run in group if run.recipe == reference.recipe)


def _costs(root: Path, places: Iterable[str], problems: list[str]) -> dict[CostKey, Cost]:
    """The costs of files of rows, the last one of each; a line that is no cost is added to `problems`."""
    found: dict[CostKey, Cost] = {}
    for place in places:
        for number, row in enumerate(read_csv(root / place), start=2):
            try:
                key = row["architecture"], row["model"], int(row["context"]), row["program"]
                found[key] = Cost(*key, **_amounts(row), method=row.get("method") or "", path=place, more=row)
            except (KeyError, TypeError, ValueError) as error:
                problems.append(f"{place}, line {number}: not a cost ({cut(repr(error), 200)})")
    return found


def _amounts(row: Mapping[str, str]) -> dict[str, float | None]:
    size, parts = float(row["bytes"]), [_optional(row.get(f"bytes_{side}")) for side in ("client", "server")]
    if not math.isfinite(size):
        raise ValueError("no bytes")
    if None not in parts and not math.isclose(size, sum(parts), rel_tol=1e-6):
        raise ValueError(f"bytes is {size:.0f}, not the sum of bytes_client and bytes_server")
    names = ("messages", "rounds", "seconds", "latency_wan_s", "latency_lan_s", "max_logit_error")
    return {"bytes": size} | {name.removesuffix("_s"): _optional(row.get(name)) for name in names}


def _number(value: Any) -> float:
    """A number of a file; null and "" are NaN."""
    return math.nan if value is None or value == "" else float(value)


def _optional(value: Any) -> float | None:
    number = _number(value)
    return None if math.isnan(number) else number
