"""Everything that was measured, read from `results/` (kept copies) and `runs/` (what the stages just wrote).

A fresh result replaces the kept one of the same scale, run and seed, or of the same row or operation. Whatever is
missing stays missing: the report shows a gap. Whatever cannot be read is named in `Results.problems` and left out.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from aero.config import TrainParameters
from aero.errors import UserError, cut, yaml_file
from aero.model import ModelConfig
from aero.records import FILES, Training, check_entropies, read_training, read_trainings
from aero.training.catalogue import BOOKKEEPING

SCALES = ("paper", "gpu", "laptop", "smoke")
"""Largest first: the order in which a scale is chosen when the asked one has no results."""

LOOK = "smoke"
"""A scale of seconds a run, for a look at the machinery: it is not shown beside others and decides nothing there."""
DEFAULT_SEED = 1337
PAPERS_CORPORA = ("codeparrot", "languini")
"""What the papers trained on. Runs of the scale `paper` on another corpus have their size, not their setting."""
SCALE_VARIABLE = "AERO_REPORT_SCALE"
"""How the renderer tells the report's source, which runs in a process of its own, what scale the report is about."""


@dataclass(frozen=True)
class Log:
    """A run's log, one value a logged step; `None` where a step logged nothing of that kind.

    entropy: (steps, L) mean entropy of a layer, nats. overflow: (steps, L) how many values of a block's output float16
    cannot hold, not finite ones included. slopes: (steps, L or 1) learned negative slopes. Rows are empty where the log
    is older than the quantity or the run has none.
    """

    step: tuple[int, ...]
    tokens: tuple[float | None, ...]
    train_loss: tuple[float | None, ...]
    eval_loss: tuple[float | None, ...]
    entropy: tuple[tuple[float | None, ...], ...]
    overflow: tuple[tuple[float | None, ...], ...] = ()
    slopes: tuple[tuple[float | None, ...], ...] = ()

    def evaluations(self) -> tuple[list[int], list[float]]:
        """Steps and losses of the finite evaluations."""
        pairs = [(s, v) for s, v in zip(self.step, self.eval_loss, strict=True) if v is not None and math.isfinite(v)]
        return [s for s, _ in pairs], [v for _, v in pairs]


@dataclass(frozen=True)
class Entropy:
    """Headwise attention entropy of a trained model on held-out tokens, nats.

    mean: (L, H), sem: its standard error over sequences; median: that of all rows. by_position: (L, T), with
    by_position_sem. blocks: (K, L, H), means of K blocks of held-out sequences. quarters: fraction of heads per quarter
    of the maximum, for the maxima "observed", "log_T" and "causal_bound" in `maximum`. overload, collapse: fraction of
    heads and the layers they are in, by `rule`. learned: the model's learned values that a figure may draw. median,
    by_position_sem and blocks are empty in older files.
    """

    mean: tuple[tuple[float, ...], ...]
    by_position: tuple[tuple[float, ...], ...]
    maximum: dict[str, float]
    quarters: dict[str, tuple[float, ...]]
    overload: dict[str, Any]
    collapse: dict[str, Any]
    tokens: int
    rule: str
    sem: tuple[tuple[float, ...], ...] = ()
    median: tuple[tuple[float, ...], ...] = ()
    by_position_sem: tuple[tuple[float, ...], ...] = ()
    blocks: tuple[tuple[tuple[float, ...], ...], ...] = ()
    learned: dict[str, Any] = field(default_factory=dict)

    @property
    def not_finite(self) -> float:
        """Fraction of heads whose mean entropy is not finite; they are in no quarter."""
        heads = [value for layer in self.mean for value in layer]
        return sum(not math.isfinite(value) for value in heads) / len(heads)


@dataclass(frozen=True)
class Run:
    """One training: its metrics, and its log and entropies if they are there.

    perplexity is NaN for a run that diverged. `path` is the metrics file, relative to the project's root.
    """

    name: str
    scale: str
    seed: int
    architecture: str
    perplexity: float
    loss: float
    diverged_at: int | None
    metrics: dict[str, Any]
    path: str
    fresh: bool
    log: Log | None = None
    entropy: Entropy | None = None
    curves: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """All columns of the log."""

    @property
    def diverged(self) -> bool:
        return self.diverged_at is not None

    @property
    def provenance(self) -> dict[str, Any]:
        return self.metrics.get("provenance") or {}

    @property
    def recipe(self) -> tuple[str, ...]:
        """What must agree before two seeds are put in one mean: architecture, sizes, corpus, hashes of its text and of
        its tokenizer, training.

        A setting that older results do not know counts as its default, which is how they were trained.
        """
        train, model = chosen_settings(self.metrics.get("train") or {}, self.metrics.get("model") or {})
        values = [self.metrics.get(key) for key in ("architecture", "corpus", "context", "regularizer")]
        tokens = [self.provenance.get(f"{what}_sha256") for what in ("corpus", "tokenizer")]
        return tuple(json.dumps(v, sort_keys=True) for v in (*values, model, train, *tokens))


@dataclass(frozen=True)
class Cost:
    """A line of two_party/rows.csv or all_rows.csv: one forward pass of a row, in one program; bytes both ways,
    seconds.
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
        """The file of the operations that it is composed from: ops.csv beside rows.csv, all_ops.csv beside
        all_rows.csv.
        """
        own = PurePosixPath(self.path)
        return str(own.with_name(own.name.replace("rows", "ops")))


@dataclass(frozen=True)
class Results:
    """All results under `root`, and the training scale the report is about.

    operations: each once, from the file that goes first. by_file: all lines of each of those files. substitute: whether
    what is looked at was trained on another corpus than the papers'.
    """

    root: Path
    scale: str
    runs: dict[tuple[str, str], tuple[Run, ...]]
    costs: tuple[Cost, ...]
    operations: tuple[dict[str, str], ...]
    by_file: dict[str, tuple[dict[str, str], ...]]
    end_to_end: Any
    problems: tuple[str, ...]
    parameters: dict[str, Any]
    substitute: bool = False

    @property
    def published_scale(self) -> bool:
        """Whether a training seen here is of the papers' own size, budget and corpus."""
        return self.scale == "paper" and not self.substitute

    def substituted(self, runs: Iterable[str], scale: str) -> bool:
        """Whether any training of `runs` at `scale` is of another corpus than the papers'."""
        trained = (run for name in runs for run in self.seeds(name, scale))
        return any(run.metrics.get("corpus") not in PAPERS_CORPORA for run in trained)

    def seeds(self, run: str, scale: str | None = None) -> tuple[Run, ...]:
        """The trainings of `run` at `scale` (the report's if None), one a seed, of one recipe; empty if there is
        none.
        """
        return self.runs.get((scale or self.scale, run), ())

    def first(self, run: str) -> Run | None:
        """The training of `run` with the lowest-numbered default seed, else the first there is."""
        seeds = self.seeds(run)
        return next((r for r in seeds if r.seed == DEFAULT_SEED), seeds[0] if seeds else None)

    def perplexity(self, run: str, scale: str | None = None) -> dict[int, float]:
        """Evaluation perplexity by seed, diverged trainings left out."""
        return {r.seed: r.perplexity for r in self.seeds(run, scale) if not r.diverged and math.isfinite(r.perplexity)}

    def quarters(self, run: str, maximum: str = "observed") -> dict[int, tuple[float, ...]]:
        """Fraction of heads per quarter of `maximum`, by seed."""
        return {
            r.seed: r.entropy.quarters[maximum] for r in self.seeds(run) if r.entropy and maximum in r.entropy.quarters
        }

    def share_of_heads(self, run: str, quarters: Sequence[int], maximum: str = "observed") -> dict[int, float]:
        """Fraction of heads in the given quarters of `maximum`, by seed; heads that are not finite count with the
        lowest quarter, as `aero.entropy.collapse` has them.
        """
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
        wanted = (architecture, program, context, model)
        found = (c for c in self.costs if (c.architecture, c.program, c.context, c.model) == wanted)
        return next(found, None)

    def operations_of(self, cost: Cost) -> tuple[dict[str, str], ...]:
        """The operations measured in the file that the cost is composed from; none if that is not there."""
        return self.by_file.get(cost.operations_path, ())

    def at(self, scale: str, substitute: bool = False) -> Results:
        """The same results, seen from another training scale, or as trained on a substitute of the papers' corpus."""
        # A copy reads every field, and what is read counts as evidence where that is noted.
        if (scale, substitute) == (self.scale, self.substitute):
            return self
        return dataclasses.replace(self, scale=scale, substitute=substitute)

    def scales_of(self, *runs: str) -> tuple[str, ...]:
        """The scales that are shown of the runs, largest first: those with a result of any, and the report's own."""
        shown = {s for s in self.scales if LOOK not in (s, self.scale) and any(self.seeds(run, s) for run in runs)}
        return tuple(dict.fromkeys(s for s in (*self.scales, self.scale) if s in shown or s == self.scale))

    @property
    def scales(self) -> tuple[str, ...]:
        """The scales that have results, largest first."""
        present = {scale for scale, _ in self.runs}
        return tuple(s for s in SCALES if s in present) + tuple(sorted(present - set(SCALES)))


def find_root(start: Path | None = None) -> Path:
    """The project's root: the nearest folder at or above `start` that has a params.yaml; ValueError if there is
    none.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "params.yaml").is_file():
            return folder
    raise ValueError(f"no params.yaml at or above {start}; run from inside the project")


def chosen_settings(train: dict[str, Any], model: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of a training and of its model that are not the default, which is what older results do not name, and
    no bookkeeping."""
    recipe = {name: value for name, value in train.items() if name not in BOOKKEEPING}
    train_defaults = {name: f.default for name, f in TrainParameters.model_fields.items()}
    model_defaults = {f.name: f.default for f in dataclasses.fields(ModelConfig)}
    return _without_defaults(recipe, train_defaults), _without_defaults(model, model_defaults)


def _without_defaults(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}


def load(root: Path | str | None = None, scale: str | None = None) -> Results:
    """Read all results below `root` (found from the working directory if None).

    The report is about `scale`: the one given, else params.yaml's if it has results, else the largest that has.
    """
    root = Path(root) if root is not None else find_root()
    parameters = yaml_file(root / "params.yaml")
    problems: list[str] = []
    found: dict[tuple[str, str, int], Run] = {}
    for path in sorted(root.glob(f"results/*/{FILES[0]}")):
        relative: list[str] = []
        for training in read_trainings(path.parent, relative).values():
            if (run := _run(training, path.relative_to(root), False, problems)) is not None:
                found[run.scale, run.name, run.seed] = run
        problems += [line.removeprefix(f"{root}/") for line in relative]
    for path in sorted(root.glob("runs/*/seed_*/metrics.json")):
        try:
            run = _run(read_training(path.parent), path.relative_to(root), True, problems)
        except (OSError, UserError) as error:
            problems.append(str(error).removeprefix(f"{root}/"))
            continue
        if run is not None:
            found[run.scale, run.name, run.seed] = run
    runs = _by_recipe(found, problems)
    present = {s for s, _ in runs}
    if scale is None:
        active = parameters.get("scale")
        scale = active if active in present else next((s for s in SCALES if s in present), active)
    costs: dict[tuple[str, ...], Cost] = {}
    operations: dict[tuple[str, ...], dict[str, str]] = {}
    by_file: dict[str, tuple[dict[str, str], ...]] = {}
    for folder in (root / "results" / "two_party", root / "runs" / "two_party"):
        for name in ("all_rows.csv", "rows.csv"):
            for cost in read_costs(folder / name, root, problems):
                costs[cost.architecture, cost.model, str(cost.context), cost.program] = cost
        for name in ("all_ops.csv", "ops.csv"):
            by_file[(folder / name).relative_to(root).as_posix()] = found_there = tuple(
                _read_csv(folder / name, root, problems)
            )
            for line in found_there:
                operations[tuple(line.get(key) or "" for key in ("op", "shape", "model", "context", "variant"))] = line
    end_to_end = _read_json(root / "runs" / "two_party" / "end_to_end.json", root, problems)
    if end_to_end is None:
        end_to_end = _read_json(root / "results" / "two_party" / "end_to_end.json", root, problems)
    return Results(
        root,
        str(scale),
        runs,
        tuple(costs.values()),
        tuple(operations.values()),
        by_file,
        end_to_end,
        tuple(problems),
        parameters,
    )


def load_for_report() -> Results:
    """What the report's source calls: the project around the working directory, at the scale the renderer asks for."""
    return load(None, os.environ.get(SCALE_VARIABLE) or None)


def _run(training: Training, path: Path, fresh: bool, problems: list[str]) -> Run | None:
    metrics, name = training.metrics, str(path)
    where = f"{path} {metrics['run']} seed {metrics['seed']}"
    try:
        diverged = metrics["diverged_at_step"]
        return Run(
            name=metrics["run"],
            scale=metrics["scale"],
            seed=int(metrics["seed"]),
            architecture=metrics["architecture"],
            perplexity=_number(metrics["eval_perplexity"]),
            loss=_number(metrics["eval_loss"]),
            diverged_at=None if diverged is None else int(diverged),
            metrics=metrics,
            path=name,
            fresh=fresh,
            log=_log(training.curves, where, problems, int(metrics["context"])),
            entropy=_entropy(training.entropy, where, problems, metrics),
            curves=training.curves,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        problems.append(f"{where}: not the metrics of a run ({_said(error)})")
        return None


def _by_recipe(found: dict[tuple[str, str, int], Run], problems: list[str]) -> dict[tuple[str, str], tuple[Run, ...]]:
    """Group by scale and run; a seed trained by another recipe than the newest result is named and left out."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for (scale, name, _), run in sorted(found.items()):
        groups.setdefault((scale, name), []).append(run)
    chosen = {}
    for key, group in groups.items():
        reference = next((r for r in group if r.fresh), next((r for r in group if r.seed == DEFAULT_SEED), group[0]))
        same = [r for r in group if r.recipe == reference.recipe]
        for run in group:
            if run not in same:
                problems.append(f"{run.path}: left out, another model, corpus or budget than {reference.path}")
        chosen[key] = tuple(same)
    return chosen


def _log(curves: Mapping[str, Sequence[Any]], where: str, problems: list[str], context: int) -> Log | None:
    if not curves:
        return None

    def table(prefix: str) -> tuple[tuple[float | None, ...], ...]:
        names = sorted((k for k in curves if k.startswith(prefix)), key=lambda k: int(k.rsplit("_", 1)[1]))
        return tuple(zip(*(map(_optional, curves[name]) for name in names), strict=True)) or ((),) * len(curves["step"])

    def possible(value: float | None) -> bool:
        return value is None or -_ENTROPY_TOLERANCE <= value <= bound + _ENTROPY_TOLERANCE

    bound = math.lgamma(context + 1) / context  # the largest mean over queries that a causal mask allows
    try:
        entropy = table("entropy_layer_")
        if wrong := sum(not possible(value) for row in entropy for value in row):
            said = f"{wrong} entropies below 0 or above the causal bound left out; train it again"
            problems.append(f"{where}: {said}")
            entropy = tuple(tuple(value if possible(value) else None for value in row) for row in entropy)
        return Log(
            step=tuple(curves["step"]),
            **{name: tuple(map(_optional, curves[name])) for name in ("tokens", "train_loss", "eval_loss")},
            entropy=entropy,
            overflow=table("overflow_layer_"),
            slopes=table("slope_"),
        )
    except (KeyError, TypeError, ValueError) as error:
        problems.append(f"{where}: not a training log ({_said(error)})")
        return None


def _entropy(values: Any, where: str, problems: list[str], metrics: Mapping[str, Any]) -> Entropy | None:
    """Entropies of the training of `metrics`."""
    if values is None:
        return None
    try:
        mean = _rows(values["entropy_mean"])
        quarters = {k: tuple(_number(v) for v in q) for k, q in values["quarters"].items()}
        if not mean or len({len(layer) for layer in mean}) != 1 or any(len(q) != 4 for q in quarters.values()):
            raise ValueError("entropy_mean must be (L, H) and every entry of quarters four fractions")
        if wrong := _impossible(values.get("entropy_by_position", [])):
            problems.append(f"{where}: left out, {wrong}; measure it again")
            return None
        check_entropies(values, mean, metrics)
        return Entropy(
            mean=mean,
            by_position=_rows(values.get("entropy_by_position", [])),
            maximum={k: _number(v) for k, v in values["maximum"].items()},
            quarters=quarters,
            overload=values["overload"],
            collapse=values["collapse"],
            tokens=int(values["tokens"]),
            rule=str(values.get("rule", "")),
            sem=_rows(values.get("entropy_sem", [])),
            median=_rows(values.get("entropy_median", [])),
            by_position_sem=_rows(values.get("entropy_by_position_sem", [])),
            blocks=tuple(_rows(block) for block in values.get("entropy_blocks", [])),
            learned=dict(values.get("learned") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problems.append(f"{where}: not the entropies of a run ({_said(error)})")
        return None


def read_costs(path: Path, root: Path, problems: list[str]) -> tuple[Cost, ...]:
    """The costs of a file of rows; what cannot be read is added to `problems`."""
    known = (
        "architecture",
        "model",
        "context",
        "program",
        "bytes",
        "messages",
        "rounds",
        "seconds",
        "latency_wan_s",
        "latency_lan_s",
        "method",
        "max_logit_error",
    )
    costs = []
    for number, row in enumerate(_read_csv(path, root, problems), start=2):
        try:
            costs.append(
                Cost(
                    architecture=row["architecture"],
                    model=row["model"],
                    context=int(row["context"]),
                    program=row["program"],
                    bytes=_amount(row, "bytes", needed=True),
                    messages=_amount(row, "messages"),
                    rounds=_amount(row, "rounds"),
                    seconds=_amount(row, "seconds"),
                    latency_wan=_amount(row, "latency_wan_s"),
                    latency_lan=_amount(row, "latency_lan_s"),
                    method=row.get("method", ""),
                    max_logit_error=_amount(row, "max_logit_error"),
                    path=str(path.relative_to(root)),
                    more={k: v for k, v in row.items() if k not in known},
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"{path.relative_to(root)}, line {number}: not a cost ({_said(error)})")
    return tuple(costs)


def _read_csv(path: Path, root: Path, problems: list[str]) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problems.append(f"{path.relative_to(root)}: cannot be read ({cut(str(error), 300)})")
        return []


def _read_json(path: Path, root: Path, problems: list[str]) -> Any:
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path.relative_to(root)}: cannot be read ({cut(str(error), 300)})")
        return None
    if values is None:
        problems.append(f"{path.relative_to(root)}: holds nothing (null)")
    return values


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {cut(str(error), 300)}"


_ENTROPY_TOLERANCE = 1e-3
"""Nats by which rounding may carry a mean entropy beyond what is possible."""


def _impossible(by_position: Any) -> str:
    """What is wrong with mean entropies at query positions i, which lie between 0 and log i: "" if nothing is."""
    for row in _rows(by_position):
        for position, value in enumerate(row, start=1):
            if not -_ENTROPY_TOLERANCE <= value <= math.log(position) + _ENTROPY_TOLERANCE and not math.isnan(value):
                return f"an entropy of {value:.4g} nats at query position {position}, where 0 to log {position} can be"
    return ""


def _rows(values: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(_number(value) for value in row) for row in values)


def _number(value: Any) -> float:
    """A number of a file; null and "" are NaN, text that is no number raises ValueError."""
    return math.nan if value is None or value == "" else float(value)


def _optional(value: Any) -> float | None:
    number = _number(value)
    return None if math.isnan(number) else number


def _amount(row: dict[str, str], name: str, needed: bool = False) -> float | None:
    """The field of a line, None where nothing was measured; ValueError if it is below 0, without end, or needed."""
    value = _optional(row[name] if needed else row.get(name))
    if (needed and value is None) or (value is not None and not 0 <= value < math.inf):
        raise ValueError(f"{name} is {row[name][:100] or 'missing'}, which it cannot be")
    return value
