"""The runs of params.yaml as a list: what each is for, what is there of it, and what it costs at every scale.

Nothing here loads torch, so that looking things up takes a moment.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aero.flops import count
from aero.parameters import MEASURED, Parameters

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


@dataclass(frozen=True)
class Cost:
    """One training: tokens seen, FLOPs, and hours on `device`; None where nothing tells how fast that is."""

    tokens: int
    flops: float
    device: str
    hours: float | None


def results(root: Path | str = ".") -> dict[tuple[str, str], tuple[Result, ...]]:
    """Finished trainings by scale and run, fresh ones in the place of kept ones; files of another form are left out."""
    root = Path(root)
    kept = (*root.glob("results/*/*/metrics.json"), *root.glob("results/*/*/seed_*/metrics.json"))
    found: dict[tuple[str, str, int], Result] = {}
    by_hand = root.glob("runs/scales/*/*/seed_*/metrics.json")  # at a scale that was named on the command line
    for path in (*sorted(kept), *sorted(by_hand), *sorted(root.glob("runs/*/seed_*/metrics.json"))):
        try:
            result = _read(path, path.is_relative_to(root / "runs"))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        found[result.scale, result.run, result.seed] = result
    by_run: dict[tuple[str, str], tuple[Result, ...]] = {}
    for (scale, run, _), result in sorted(found.items()):
        by_run[scale, run] = (*by_run.get((scale, run), ()), result)
    return by_run


def _read(path: Path, fresh: bool) -> Result:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    speed, cpu_seconds = float(values["tokens_per_second"]), values.get("provenance", {}).get("cpu_seconds")
    if cpu_seconds:  # on one thread: what it does on a machine of its own
        speed = max(speed, int(values["tokens"]) / cpu_seconds)
    return Result(
        values["scale"],
        values["run"],
        int(values["seed"]),
        fresh,
        values["diverged_at_step"] is not None,
        values["architecture"],
        int(values["context"]),
        int(values["tokens"]),
        speed,
    )


def status(parameters: Parameters, run: str, found: Iterable[Result]) -> Status:
    """What there is of `run` at the active scale, `found` being its results there.

    outdated: a result of another architecture, context or number of tokens than params.yaml has now. diverged: every
    training ended early, by a number that was not finite. fresh: one at least is in runs/.
    """
    found, expected = tuple(found), tokens(parameters, run)
    if not found:
        return "missing"
    same = str(parameters.architecture(run)), parameters.model(run).context
    for result in found:
        if (result.architecture, result.context) != same or (not result.diverged and result.tokens != expected):
            return "outdated"
    if all(result.diverged for result in found):
        return "diverged"
    return "fresh" if any(result.fresh for result in found) else "kept"


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
    of the other runs there.
    """
    device = device or parameters.active.device
    seen, flops = tokens(parameters, run), training_flops(parameters, run)
    if device != MEASURED:
        chosen = parameters.device(device)
        return Cost(seen, flops, device, flops / (chosen.peak_tflops * 1e12 * chosen.utilisation) / 3600)
    own = [result.tokens_per_second for result in found.get((parameters.scale, run), ())]
    if own:
        return Cost(seen, flops, device, seen / max(own) / 3600)
    speed = achieved_flops(parameters, found)
    return Cost(seen, flops, device, None if speed is None else flops / speed / 3600)


def achieved_flops(parameters: Parameters, found: dict[tuple[str, str], tuple[Result, ...]]) -> float | None:
    """Median FLOP/s of the trainings in `found` at the active scale, None if there is none."""
    speeds = [
        result.tokens_per_second * training_flops(parameters, run) / tokens(parameters, run)
        for (scale, run), of_run in found.items()
        if scale == parameters.scale and run in parameters.runs
        for result in of_run
    ]
    return statistics.median(speeds) if speeds else None
