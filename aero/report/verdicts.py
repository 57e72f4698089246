"""The rules that turn what was measured for a claim into a verdict.

A claim names its rule and the rule's parameters in `aero/published`. Verdicts on trained models follow the rules that
results/desk/predictions.yaml registered before the trainings of scale `desk`:

- An interval on the claimed side of zero shows the direction. If it contains the published number, it reproduces it.
- An interval on the other side is "opposite here"; one that contains zero is "undecided".
- A claim whose runs are missing, failed or rest on a control that fails the gate is "not testable here".

"Contradicted" is kept for logic, arithmetic, counts and costs at the papers' dimensions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aero.report.statistics import Estimate

VERDICTS = REPRODUCED, DIRECTION, OPPOSITE, UNDECIDED, CEILING, NOT_TESTABLE, CONTRADICTED = (
    "reproduced",
    "direction reproduced",
    "opposite here",
    "undecided",
    "at ceiling",
    "not testable here",
    "contradicted",
)
PAPER_DIMENSIONS = "paper_dimensions"
"""The scale of costs, counts and theory, at the sizes of the papers."""
PUBLISHED_ONLY = "published numbers"
"""The scale of a claim that needs nothing measured."""


def exact(value: float) -> Estimate:
    """A number without sampling noise, as an estimate."""
    return Estimate(value, value, value, ())


@dataclass(frozen=True)
class Measurement:
    """What was measured for a claim.

    effects: what the rule judges, by name. checks: conditions by name. text, scale, evidence: as they stand in
    claims.csv. missing: why there can be no verdict. trained: whether it was seen in models trained here, which cannot
    contradict a paper. fractions: the two sides of a comparison of fractions.
    """

    text: str
    scale: str
    evidence: str = ""
    effects: Mapping[str, Estimate] = field(default_factory=dict)
    checks: Mapping[str, bool] = field(default_factory=dict)
    missing: str = ""
    trained: bool = False
    fractions: Sequence[float] = ()

    @property
    def at_ceiling(self) -> bool:
        """Whether all compared fractions lie within 0.02 of 0, or of 1, which leaves no room for a difference."""
        ends = (all(abs(one - end) <= 0.02 for one in self.fractions) for end in (0, 1))
        return bool(self.fractions) and any(ends)

    def absent(self, opposite: bool) -> str:
        """The verdict for an effect that is absent, or `opposite` beyond noise."""
        return CONTRADICTED if not self.trained else OPPOSITE if opposite else UNDECIDED


@dataclass(frozen=True)
class Decision:
    """A verdict with the effect (mean and interval) that it rests on, and what claims.csv tells beside it."""

    verdict: str
    measured: str
    scale: str
    evidence: str
    effect: Estimate | None = None


def decide(rule: str, measured: Measurement, **parameters: Any) -> Decision:
    """The verdict by the rule of that name; "not testable here" where something is missing."""
    if measured.missing:
        verdict, *notes = NOT_TESTABLE, measured.missing
    elif measured.at_ceiling:
        verdict, *notes = (CEILING,)
    else:
        verdict, *notes = RULES[rule](measured, **parameters)
    evidence = "; ".join(filter(None, (measured.evidence, *notes)))
    said = measured.text or measured.missing
    return Decision(verdict, said, measured.scale, evidence, next(iter(measured.effects.values()), None))


def text(function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """A rule or quantity in words: its name, its parameters and the first sentence of its docstring."""
    given = ", ".join(f"{name}={_short(value)}" for name, value in parameters.items())
    words = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).rstrip(".")
    return f"{function.__name__}({given}): {words}"


def _short(value: Any) -> str:
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, list) else str(value)


# Rules: each returns a verdict and, where it helps, a note ------------------------------------------------------------


Numbers = float | dict[str, float]
"""A published number: one for all effects, or one for each by its name."""


def _number(value: Numbers, effect: str) -> float:
    return value[effect] if isinstance(value, dict) else value


def equal_within(
    m: Measurement, value: Numbers, tolerance: float | None = None, beyond: float = 0.0
) -> tuple[str, ...]:
    """Direction reproduced if every interval lies on the side of `beyond` (default 0) where `value` does; reproduced
    if every interval contains `value` besides, or every mean is within `tolerance` of it where that is given."""
    values = {name: _number(value, name) for name in m.effects}
    met = all(
        one.contains(values[name]) if tolerance is None else abs(one.mean - values[name]) <= tolerance
        for name, one in m.effects.items()
    )
    return _on_sides(m, [1 if one > beyond else -1 for one in values.values()], beyond, met)


def above(m: Measurement, limit: float = 0.0, size: Numbers | None = None) -> tuple[str, ...]:
    """Direction reproduced if every interval lies above `limit`; reproduced if the means reach `size` besides."""
    met = size is not None and all(one.mean >= _number(size, name) for name, one in m.effects.items())
    return _on_sides(m, [1] * len(m.effects), limit, met)


def below(m: Measurement) -> tuple[str, ...]:
    """Direction reproduced if every interval lies below 0."""
    return _on_sides(m, [-1] * len(m.effects), 0.0, False)


def ordering(m: Measurement, signs: list[int] | None = None) -> tuple[str, ...]:
    """Reproduced if every difference is beyond noise on its claimed side of 0 (default: above); direction reproduced
    if at least one is and none is on the other side."""
    return _on_sides(m, signs or [1] * len(m.effects), 0.0, met=True, one_is_enough=True)


def _on_sides(
    m: Measurement, sides: Sequence[int], limit: float, met: bool, one_is_enough: bool = False
) -> tuple[str, ...]:
    """The verdict on effects that should each lie on one side of `limit`, with a note on those that do not."""
    found = {name: side * one.excludes(limit) for side, (name, one) in zip(sides, m.effects.items(), strict=True)}
    least, most = min(found.values()), max(found.values())
    if least > 0:
        return (REPRODUCED if met else DIRECTION,)
    if one_is_enough and least == 0 < most:
        return (DIRECTION,)
    opposite = [name for name, side in found.items() if side < 0]
    note = f"the opposite holds for {', '.join(opposite)}" if opposite and len(found) > 1 else ""
    return m.absent(opposite=bool(opposite)), note


def in_seeds(m: Measurement) -> tuple[str, ...]:
    """Reproduced if it happens in every training, direction reproduced if in some, opposite here if in none."""
    happened = list(m.checks.values())
    return (REPRODUCED if all(happened) else DIRECTION if any(happened) else m.absent(opposite=True),)


def all_hold(m: Measurement, above: float | None = None) -> tuple[str, ...]:
    """Direction reproduced if every condition holds; reproduced if every interval lies above `above` besides;
    undecided if some hold, opposite here if none does."""
    if not all(m.checks.values()):
        return (m.absent(opposite=not any(m.checks.values())),)
    sure = above is not None and m.effects and all(one.excludes(above) > 0 for one in m.effects.values())
    return (REPRODUCED if sure else DIRECTION,)


def ratio_direction(m: Measurement, factor: Numbers, tolerance: float) -> tuple[str, ...]:
    """Reproduced if every ratio is its `factor` within the share `tolerance`; direction reproduced if all are above
    1."""
    near = [abs(one.mean / _number(factor, name) - 1) <= tolerance for name, one in m.effects.items()]
    more = all(one.mean > 1 for one in m.effects.values())
    return (REPRODUCED if all(near) else DIRECTION if more else m.absent(opposite=True),)


def either_within(m: Measurement, value: float, tolerance: float) -> tuple[str, ...]:
    """Reproduced if the first number is `value` within `tolerance`, direction reproduced if another one is."""
    near = [abs(e.mean - value) <= tolerance for e in m.effects.values()]
    return (REPRODUCED if near[0] else DIRECTION if any(near) else m.absent(opposite=True),)


def holds(m: Measurement) -> tuple[str, ...]:
    """Reproduced if every condition holds, contradicted if not."""
    failing = [name for name, held in m.checks.items() if not held]
    more = f" and {len(failing) - 3} more" if len(failing) > 3 else ""
    note = f"fails for {'; '.join(failing[:3])}{more}" if any(failing) else ""
    return (m.absent(opposite=True) if failing else REPRODUCED), note


def paper_self_consistency(m: Measurement) -> tuple[str, ...]:
    """Reproduced if what the papers print fits together, contradicted if not."""
    return holds(m)


_RULES = (equal_within, above, below, ordering, in_seeds, all_hold, ratio_direction, either_within, holds)
RULES: dict[str, Callable[..., tuple[str, ...]]] = {rule.__name__: rule for rule in (*_RULES, paper_self_consistency)}
