"""The runs of params.yaml as a list: what each is for, what is there of it, and what it costs at every scale.

Nothing here loads torch, so that looking things up takes a moment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aero.config import MEASURED, Parameters
from aero.errors import UserError
from aero.flops import count
from aero.records import FILES, read_all_metrics, read_metrics

Status = Literal["missing", "outdated", "diverged", "kept", "fresh"]


@dataclass(frozen=True)
class Result:
    """One finished training, from its metrics.json. fresh: in runs/ and not only in results/."""

    scale: str
    run: str
    seed: int
    fresh: bool
    diverged: bool
    architecture: str
    context: int
    tokens: int
    tokens_per_second: float
    perplexity: float | None = None
    configuration: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its `model`, `train` and `regularizer` as it was trained; empty where its file does not say."""
    machine: str = ""


@dataclass(frozen=True)
class Cost:
    """One training: tokens seen, FLOPs, and hours on `device`; None where nothing tells how fast that is."""

    tokens: int
    flops: float
    device: str
    hours: float | None


def results(root: Path | str = ".", problems: list[str] | None = None) -> dict[tuple[str, str], tuple[Result, ...]]:
    """Finished trainings by scale and run, fresh ones in the place of kept ones; files of another form are left out,
    and told in `problems`.
    """
    root = Path(root)
    found: dict[tuple[str, str, int], Result] = {}
    for path in sorted(root.glob(f"results/*/{FILES[0]}")):
        for metrics in read_all_metrics(path.parent, problems).values():
            _add(found, metrics, fresh=False)
    by_command_line = root.glob("runs/scales/*/*/seed_*/metrics.json")
    for path in (*sorted(by_command_line), *sorted(root.glob("runs/*/seed_*/metrics.json"))):
        try:
            _add(found, read_metrics(path.parent), fresh=True)
        except (OSError, UserError) as error:
            if problems is not None:
                problems.append(str(error))
    by_run: dict[tuple[str, str], tuple[Result, ...]] = {}
    for (scale, run, _), result in sorted(found.items()):
        by_run[scale, run] = (*by_run.get((scale, run), ()), result)
    return by_run


def _add(found: dict[tuple[str, str, int], Result], values: Mapping[str, Any], fresh: bool) -> None:
    made = values.get("provenance") or {}
    speed, cpu_seconds = float(values["tokens_per_second"]), made.get("cpu_seconds")
    if cpu_seconds and made.get("device", "cpu") == "cpu":  # on one thread: its speed without other work
        speed = max(speed, int(values["tokens"]) / cpu_seconds)
    found[values["scale"], values["run"], values["seed"]] = Result(
        values["scale"],
        values["run"],
        values["seed"],
        fresh,
        values["diverged_at_step"] is not None,
        values["architecture"],
        values["context"],
        values["tokens"],
        speed,
        values.get("eval_perplexity"),
        {name: dict(values.get(name) or {}) for name in ("model", "train", "regularizer")},
        str(made.get("machine", "")),
    )


def status(parameters: Parameters, run: str, found: Iterable[Result]) -> Status:
    """What there is of `run` at the active scale, `found` being its results there.

    outdated: a result of another architecture, size, recipe or regulariser than params.yaml has now, or one of fewer
    tokens. diverged: every training ended early, by a number that was not finite. fresh: one at least is in runs/.
    """
    found, expected = tuple(found), tokens(parameters, run)
    if not found:
        return "missing"
    same = str(parameters.architecture(run)), parameters.model(run).context
    configured = _configuration(parameters, run)
    for result in found:
        if (result.architecture, result.context) != same or (not result.diverged and result.tokens != expected):
            return "outdated"
        if any(_differ(given, configured[name]) for name, given in result.configuration.items()):
            return "outdated"
    if all(result.diverged for result in found):
        return "diverged"
    return "fresh" if any(result.fresh for result in found) else "kept"


BOOKKEEPING = frozenset({"threads", "compile", "log_every", "checkpoint_every"})
"""Training settings that change how a run is carried out, not what it is."""


def _configuration(parameters: Parameters, run: str) -> dict[str, dict[str, Any]]:
    """What a result of `run` says of its configuration, of what params.yaml says now."""
    train, regularizer = parameters.train(run), parameters.run_regularizer(run)
    sizes = parameters.model(run)
    weight = regularizer.weight(train.batch_size, sizes.context)
    inits = {name: getattr(regularizer, name) for name in ("temperature_init", "threshold_init")}
    regularized = {"reduction": regularizer.reduction, "gamma": regularizer.gamma, "lambda_": weight}
    values = {"model": sizes.model_dump() | inits, "train": train.model_dump(), "regularizer": regularized}
    return {name: _listed(section) for name, section in values.items()}


def _differ(given: Mapping[str, Any], configured: Mapping[str, Any]) -> bool:
    """Whether a result names another value; what it does not name had no other then."""

    def same(one: Any, other: Any) -> bool:
        numbers = isinstance(one, int | float) and isinstance(other, float)
        return math.isclose(one, other) if numbers else bool(one == other)

    named = (name for name in configured if name in given and name not in BOOKKEEPING)
    return any(not same(given[name], configured[name]) for name in named)


def _listed(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in section.items()}


def tokens(parameters: Parameters, run: str) -> int:
    """Tokens that `run` is trained on at the active scale."""
    train = parameters.train(run)
    return train.steps * train.batch_size * train.accumulation * parameters.model(run).context


def training_flops(parameters: Parameters, run: str) -> float:
    """FLOPs of training `run` at the active scale: three forward passes for every token.

    The stack by the papers' formulas (AERO Appendix E), and the vocabulary projection, 2 d V a token, which they leave
    out. Evaluation is not counted.
    """
    sizes = parameters.model(run)
    counted = count(parameters.architecture(run), sizes, sizes.context)
    forward = (counted.ffn + counted.attention) / sizes.context + 2 * sizes.width * parameters.vocabulary(run)
    return 3 * forward * tokens(parameters, run)


def cost(parameters: Parameters, run: str, found: dict[tuple[str, str], tuple[Result, ...]], device: str = "") -> Cost:
    """What `run` costs at the active scale on `device`, the scale's own by default.

    On a device of params.yaml the hours are FLOPs over peak x assumed utilisation. On the device `measured` they follow
    from `found`: the run's own best speed at this scale (other work may have slowed the rest), else the median FLOP/s
    of the other runs there. Results of other scales tell nothing: a step of a model this small costs its calls, not its
    FLOPs (d=32 takes 10 to 50 times what the FLOP/s of d=64 make of it).
    """
    device = device or parameters.active.device
    seen, flops = tokens(parameters, run), training_flops(parameters, run)
    if device != MEASURED:
        chosen = parameters.device(device)
        return Cost(seen, flops, device, flops / (chosen.peak_tflops * 1e12 * chosen.utilisation) / 3600)
    results_here = found.get((parameters.scale, run), ())  # one that diverged at its first step has no speed
    own = [result.tokens_per_second for result in results_here if result.tokens_per_second > 0]
    if own:
        return Cost(seen, flops, device, seen / max(own) / 3600)
    speed = achieved_flops(parameters, found)
    return Cost(seen, flops, device, None if speed is None else flops / speed / 3600)


def achieved_flops(parameters: Parameters, found: dict[tuple[str, str], tuple[Result, ...]]) -> float | None:
    """Median FLOP/s of the trainings in `found` at the active scale, None if there is none."""
    speeds = [
        speed
        for (scale, run), of_run in found.items()
        if scale == parameters.scale and run in parameters.runs
        for speed in _speeds(parameters, run, of_run)
    ]
    return statistics.median(speeds) if speeds else None


def _speeds(parameters: Parameters, run: str, of_run: Iterable[Result]) -> list[float]:
    """FLOP/s of the results of `run` at the active scale; one that diverged at its first step has none."""
    flops = training_flops(parameters, run) / tokens(parameters, run)
    return [flops * result.tokens_per_second for result in of_run if result.tokens_per_second > 0]


def in_order(parameters: Parameters, found: dict[tuple[str, str], tuple[Result, ...]]) -> list[tuple[str, int]]:
    """(run, seed) of `training_order`, table after table; then the further seeds of its compared runs, closest first.

    How close a run is to the nearest of its table, in relative perplexity at the active scale, is what a further seed
    can decide; a table's first run, its baseline, comes before the others of it. Unknown ones come last, as listed.
    """
    tables = parameters.training_order.values()
    first = [(run, seed) for table in tables for run in table for seed in parameters.seeds]
    gaps: dict[str, float] = {}
    for table in tables:
        known = {run: value for run in table if (value := _perplexity(found.get((parameters.scale, run), ())))}
        own = {
            run: min((abs(value / other - 1) for name, other in known.items() if name != run), default=float("inf"))
            for run, value in known.items()
        }
        if table and table[0] in own:
            own[table[0]] = min(own.values())
        gaps |= {run: min(gap, gaps.get(run, gap)) for run, gap in own.items()}
    listed = [run for run in dict.fromkeys(run for run, _ in first) if run in parameters.compared_runs]
    closest = sorted(listed, key=lambda run: gaps.get(run, float("inf")))
    return first + [(run, seed) for run in closest for seed in parameters.more_seeds]


def _perplexity(found: Iterable[Result]) -> float | None:
    values = [result.perplexity for result in found if result.perplexity is not None]
    return statistics.fmean(values) if values else None


def expected_seconds(
    parameters: Parameters, run: str, found: dict[tuple[str, str], tuple[Result, ...]]
) -> tuple[float | None, bool]:
    """How long `run` trains at the active scale, and whether results there tell it; else the scale's device is assumed.

    None where nothing tells. Evaluation counts as far as the results' tokens a second hold it.
    """
    measured = any(scale == parameters.scale for scale, _ in found)
    hours = cost(parameters, run, found, MEASURED if measured else "").hours
    return None if hours is None else 3600 * hours, measured
