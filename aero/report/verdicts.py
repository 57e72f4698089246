"""The rules that turn what was measured for a claim into a verdict.

A claim names its rule and the rule's parameters in `aero/published`. Common to all rules:

- Training claims compare runs by seed. An interval is the 95 % t-interval over seeds, of paired differences where two
  runs are compared; with one seed there is no interval and no verdict.
- A published size can be met only by trainings of the papers' own size, budget and corpus. Smaller trainings can show
  the direction.
- An effect that is absent or opposite in a smaller training is "not seen at this scale". It is "contradicted" at the
  papers' own size, and where no training is involved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aero.report.statistics import Estimate

VERDICTS = REPRODUCED, DIRECTION, NOT_SEEN, CONTRADICTED, NOT_TESTABLE = (
    "reproduced",
    "direction reproduced",
    "not seen at this scale",
    "contradicted",
    "not testable here",
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

    effects: what the rule judges, by name. against: how much more it is than in a baseline; the baseline must have
    less. checks: conditions by name. text, scale, evidence: as they stand in claims.csv. missing: why there can be no
    verdict. own_size: whether an absent effect contradicts the paper. sizes_compare: whether a published size can be
    met.
    """

    text: str
    scale: str
    evidence: str = ""
    effects: Mapping[str, Estimate] = field(default_factory=dict)
    against: Mapping[str, Estimate] = field(default_factory=dict)
    checks: Mapping[str, bool] = field(default_factory=dict)
    missing: str = ""
    own_size: bool = True
    sizes_compare: bool = True

    @property
    def absent(self) -> str:
        """The verdict for an effect that is absent or opposite."""
        return CONTRADICTED if self.own_size else NOT_SEEN

    @property
    def same_size(self) -> str:
        """The verdict for an effect in the published direction whose size is the published one."""
        return REPRODUCED if self.sizes_compare else DIRECTION

    def beyond(self, side: int, limit: float = 0.0) -> bool:
        """Whether every effect's interval lies above (1) or below (-1) `limit`, and more so than in the baselines."""
        return all(one.excludes(limit) == side for one in self.effects.values()) and all(
            one.excludes() > 0 for one in self.against.values()
        )

    def opposite(self, signs: Sequence[int]) -> str:
        """A note that names the effects whose interval lies on the other side of 0."""
        pairs = zip(self.effects.items(), signs, strict=True)
        names = [name for (name, one), sign in pairs if one.excludes() == -sign]
        which = f" for {', '.join(names)}" if any(names) else ""
        return f"the opposite holds here{which}" if names else ""


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
    verdict, *notes = (NOT_TESTABLE, measured.missing) if measured.missing else RULES[rule](measured, **parameters)
    evidence = "; ".join(filter(None, (measured.evidence, *notes)))
    return Decision(verdict, measured.text, measured.scale, evidence, next(iter(measured.effects.values()), None))


def text(function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """A rule or quantity in words: its name, its parameters and the first sentence of its docstring."""
    given = ", ".join(f"{name}={_short(value)}" for name, value in parameters.items())
    words = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).rstrip(".")
    return f"{function.__name__}({given}): {words}"


def _short(value: Any) -> str:
    return f"[{', '.join(map(_short, value))}]" if isinstance(value, list) else str(value)


# Rules: each returns a verdict and, where it helps, a note ------------------------------------------------------------


def equal_within(m: Measurement, value: float, tolerance: float | None = None, beyond: float = 0.0) -> tuple[str, ...]:
    """Direction reproduced if every interval lies on the side of `beyond` (default 0) where `value` does; reproduced
    if `value` is in the interval or within `tolerance` of the mean besides, where sizes compare."""
    side = 1 if value > beyond else -1
    if not m.beyond(side, beyond):
        return m.absent, "" if beyond else m.opposite([side] * len(m.effects))
    met = all(e.contains(value) if tolerance is None else abs(e.mean - value) <= tolerance for e in m.effects.values())
    return (m.same_size if met else DIRECTION,)


def above(m: Measurement, limit: float = 0.0, size: float | None = None, complete: bool = False) -> tuple[str, ...]:
    """Direction reproduced if every interval lies above `limit`; reproduced if the values reach `size` besides, or if
    the direction is all that is claimed (`complete`)."""
    return _beyond(m, 1, limit, complete or (size is not None and all(e.mean >= size for e in m.effects.values())))


def below(m: Measurement, limit: float = 0.0, complete: bool = False) -> tuple[str, ...]:
    """Direction reproduced if every interval lies below `limit`; reproduced if that is all that is claimed
    (`complete`)."""
    return _beyond(m, -1, limit, complete)


def _beyond(m: Measurement, side: int, limit: float, complete: bool) -> tuple[str, ...]:
    if not m.beyond(side, limit):
        return m.absent, "" if limit else m.opposite([side] * len(m.effects))
    return (REPRODUCED if complete else DIRECTION,)


def not_above(m: Measurement, limit: float) -> tuple[str, ...]:
    """Not above `limit`: direction reproduced if the whole interval lies below, reproduced if sizes compare besides,
    undecided if the interval contains it."""
    (effect,) = m.effects.values()
    side = effect.excludes(limit)
    if not side:
        return NOT_TESTABLE, "seed noise is wider than the margin"
    return (m.same_size if side < 0 else m.absent,)


def ordering(m: Measurement, signs: list[int] | None = None) -> tuple[str, ...]:
    """Reproduced if every difference is beyond noise on its claimed side of 0 (default: above); direction reproduced
    if at least one is and none is on the other side."""
    signs = signs or [1] * len(m.effects)
    sides = [e.excludes() * sign for e, sign in zip(m.effects.values(), signs, strict=True)]
    if min(sides) > 0:
        return (REPRODUCED,)
    return (DIRECTION if max(sides) > 0 and min(sides) == 0 else m.absent), m.opposite(signs)


def in_seeds(m: Measurement, otherwise: str = "") -> tuple[str, ...]:
    """Reproduced if it happens in every seed, direction reproduced if in some; or if in none, but every difference
    lies on the side of 0 that `otherwise` names."""
    happened = list(m.checks.values())
    if happened and any(happened):
        return (REPRODUCED if all(happened) else DIRECTION,)
    side = {"above": 1, "below": -1}.get(otherwise, 0)
    return (DIRECTION if side and m.effects and m.beyond(side) else m.absent,)


def all_hold(m: Measurement, above: float | None = None) -> tuple[str, ...]:
    """Direction reproduced if every condition holds; reproduced if every interval lies above `above` besides."""
    if not all(m.checks.values()):
        return (m.absent,)
    return (REPRODUCED if above is not None and m.effects and m.beyond(1, above) else DIRECTION,)


def ratio_direction(m: Measurement, factor: float, tolerance: float) -> tuple[str, ...]:
    """Reproduced if the ratio is `factor` within the share `tolerance`; direction reproduced if it is above 1."""
    (effect,) = m.effects.values()
    near = abs(effect.mean / factor - 1) <= tolerance
    return (REPRODUCED if near else DIRECTION if effect.mean > 1 else m.absent,)


def either_within(m: Measurement, value: float, tolerance: float) -> tuple[str, ...]:
    """Reproduced if the first number is `value` within `tolerance`, direction reproduced if another one is."""
    near = [abs(e.mean - value) <= tolerance for e in m.effects.values()]
    return (REPRODUCED if near[0] else DIRECTION if any(near) else m.absent,)


def holds(m: Measurement) -> tuple[str, ...]:
    """Reproduced if every condition holds, contradicted if not."""
    failing = [name for name, held in m.checks.items() if not held]
    more = f" and {len(failing) - 3} more" if len(failing) > 3 else ""
    note = f"fails for {'; '.join(failing[:3])}{more}" if any(failing) else ""
    return (m.absent if failing else REPRODUCED), note


def paper_self_consistency(m: Measurement) -> tuple[str, ...]:
    """Reproduced if what the papers print fits together, contradicted if not."""
    return holds(m)


RULES: dict[str, Callable[..., tuple[str, ...]]] = {
    rule.__name__: rule
    for rule in (
        equal_within,
        above,
        below,
        not_above,
        ordering,
        in_seeds,
        all_hold,
        ratio_direction,
        either_within,
        holds,
        paper_self_consistency,
    )
}
