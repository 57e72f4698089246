"""The runs of params.yaml with the state of their results and their costs at every scale.

Nothing here loads torch, so that `aero runs` answers in a moment.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aero.config import DEFAULT_SET, MEASURED, Parameters, ResolvedRun
from aero.errors import UserError, cut
from aero.flops import count
from aero.records import FILES, read_all_metrics, read_metrics

Status = Literal["missing", "outdated", "diverged", "kept", "fresh"]


@dataclass(frozen=True)
class Result:
    """One finished training. fresh: in runs/ and not only committed."""

    metrics: Mapping[str, Any]
    fresh: bool

    @property
    def seed(self) -> int:
        return self.metrics["seed"]

    @property
    def diverged(self) -> bool:
        return self.metrics["diverged_at_step"] is not None

    @property
    def provenance(self) -> Mapping[str, Any]:
        return self.metrics.get("provenance") or {}

    @property
    def machine(self) -> str:
        return str(self.provenance.get("machine", ""))

    @property
    def tokens_per_second(self) -> float:
        """Its speed; on one thread of a processor, where that is known, its speed without other work."""
        speed, cpu_seconds = float(self.metrics["tokens_per_second"]), self.provenance.get("cpu_seconds")
        if cpu_seconds and self.provenance.get("device", "cpu") == "cpu":
            return max(speed, int(self.metrics["tokens"]) / cpu_seconds)
        return speed


Found = dict[tuple[str, str], tuple[Result, ...]]
"""Results by scale and run."""


@dataclass(frozen=True)
class Cost:
    """One training: tokens seen, FLOPs, and hours on `device` (None if its speed is unknown)."""

    tokens: int
    flops: float
    device: str
    hours: float | None


def results(root: Path | str = ".", problems: list[str] | None = None) -> Found:
    """Finished trainings by scale and run; those in runs/ replace committed ones. Damaged files are left out and
    named in `problems`.
    """
    root = Path(root)
    trainings: list[Result] = []
    for path in sorted(root.glob(f"results/*/{FILES[0]}")):
        trainings += [Result(metrics, False) for metrics in read_all_metrics(path.parent, problems).values()]
    by_command_line = root.glob("runs/scales/*/*/seed_*/metrics.json")
    for path in (*sorted(by_command_line), *sorted(root.glob(f"{DEFAULT_SET}/*/seed_*/metrics.json"))):
        try:
            trainings.append(Result(read_metrics(path.parent), True))
        except (OSError, UserError) as error:
            if problems is not None:
                problems.append(str(error))
    found = {(one.metrics["scale"], one.metrics["run"], one.seed): one for one in trainings}
    by_run: Found = {}
    for (scale, run, _), result in sorted(found.items()):
        by_run[scale, run] = (*by_run.get((scale, run), ()), result)
    return by_run


def status(run: ResolvedRun, found: Iterable[Result]) -> Status:
    """State of the results `found` of `run` at its scale.

    outdated: a result of another architecture, size, recipe or regulariser than params.yaml has now, or one of fewer
    tokens. diverged: every training diverged. fresh: at least one is in runs/. kept: all are committed.
    """
    found, expected = tuple(found), tokens(run)
    if not found:
        return "missing"
    for result in found:
        if contradiction(run, result.metrics) or (not result.diverged and result.metrics["tokens"] != expected):
            return "outdated"
    if all(result.diverged for result in found):
        return "diverged"
    return "fresh" if any(result.fresh for result in found) else "kept"


BOOKKEEPING = frozenset({"threads", "compile", "log_every", "checkpoint_every"})
"""Training settings that do not change the trained model."""


def contradiction(run: ResolvedRun, made: Mapping[str, Any]) -> str:
    """The first setting for which a result's metrics name another value than `run` has, with both; "" if none.

    What a result does not name had only one value then.
    """
    inits = {name: getattr(run.regularizer, name) for name in ("temperature_init", "log_temperature", "threshold_init")}
    sections = {
        "": {"architecture": str(run.architecture), "context": run.sizes.context, "corpus": run.corpus.name},
        "model": run.sizes.model_dump() | inits,
        "train": run.train.model_dump(mode="json"),
        "regularizer": run.regularized,
    }
    for section, values in sections.items():
        given = (made.get(section) or {}) if section else made
        for name in (name for name in values if name in given and name not in BOOKKEEPING):
            one, other = given[name], values[name]
            numbers = isinstance(one, int | float) and isinstance(other, float)
            if not (math.isclose(one, other) if numbers else one == other):
                return f"{f'{section}.{name}'.strip('.')} {cut(repr(one), 40)}, in params.yaml it is {other!r}"
    return ""


def tokens(run: ResolvedRun) -> int:
    """Tokens that `run` is trained on."""
    train = run.train
    return train.steps * train.batch_size * train.accumulation * run.sizes.context


def training_flops(run: ResolvedRun) -> float:
    """FLOPs of training `run`: three forward passes for every token.

    The layers by the papers' formulas (AERO Appendix E), and the vocabulary projection, 2 d V a token, which they leave
    out. Evaluation is not counted.
    """
    sizes = run.sizes
    counted = count(run.architecture, sizes, sizes.context)
    forward = (counted.ffn + counted.attention) / sizes.context + 2 * sizes.width * run.vocabulary
    return 3 * forward * tokens(run)


def cost(parameters: Parameters, name: str, found: Found, device: str = "") -> Cost:
    """Cost of the run at the active scale on `device`, by default the scale's own.

    On a device of params.yaml: FLOPs over peak x assumed utilisation. On the device `measured`: the run's own best
    speed at this scale (other work may have slowed the rest), else the median FLOP/s of the other runs there. Results
    of other scales are not used: models this small take time by operation, not by FLOP.
    """
    device, run = device or parameters.active.device, parameters.resolve(name)
    seen, flops = tokens(run), training_flops(run)
    if device != MEASURED:
        chosen = parameters.device(device)
        return Cost(seen, flops, device, flops / (chosen.peak_tflops * 1e12 * chosen.utilisation) / 3600)
    own = [speed for result in found.get((parameters.scale, name), ()) if (speed := result.tokens_per_second) > 0]
    if own:
        return Cost(seen, flops, device, seen / max(own) / 3600)
    speed = achieved_flops(parameters, found)
    return Cost(seen, flops, device, None if speed is None else flops / speed / 3600)


def achieved_flops(parameters: Parameters, found: Found) -> float | None:
    """Median FLOP/s of the trainings in `found` at the active scale, None if there is none."""
    speeds = []
    for (scale, name), of_run in found.items():
        if scale == parameters.scale and name in parameters.runs:
            run = parameters.resolve(name)
            flops = training_flops(run) / tokens(run)
            speeds += [flops * speed for result in of_run if (speed := result.tokens_per_second) > 0]
    return statistics.median(speeds) if speeds else None
