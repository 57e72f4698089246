"""The cost of an operation at any size, interpolated between measured sizes.

Bytes, messages, rounds and seconds of one kind of operation are modelled as linear in what SPU packs
(`aero.two_party.cost.packing`): ciphertexts, batches, entries. Factors are fitted to all measured sizes of the kind,
with the leave-one-out error. Outside the measured sizes there is no answer unless extrapolation is asked for.
Nothing here loads torch, JAX or SPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from aero.errors import UserError
from aero.two_party.cost import ledger, packing
from aero.two_party.cost.counts import OWN
from aero.two_party.runtime.settings import VARIANT

ROOT = Path(__file__).resolve().parents[3]
QUANTITIES = ("bytes_sent_client", "bytes_sent_server", "messages", "rounds", "seconds")
_MEASURED = ("asked_ops.csv", "all_ops.csv", "ops.csv")
COMMITTED_FILES = tuple(f"results/two_party/{name}" for name in _MEASURED)
FILES = (*COMMITTED_FILES, *(f"runs/two_party/{name}" for name in _MEASURED))
PARALLEL = ("blocks",)
"""Constants that add no rounds: blocks of rows are processed together in each step."""
REFILLS = {"bytes_sent_client": 0.77e6, "bytes_sent_server": 0.92e6}
"""By how much two runs of the same operation may differ in bytes, because one of them refilled a stock of oblivious
transfers (0.266 MB, either way) or of Beaver triples (0.50 and 0.65 MB)."""
SAME_ERROR = 1e-3
"""Relative errors too small to prefer one fit to another: bytes vary by less between runs."""
LEAST_OWN = 4
"""Sizes that a model of single-row operations needs: with three, only one lies between others, which may be chance."""

_MEASURE = "measure it (python -m stages.two_party_all ARCHITECTURE, with the sizes and the program given here)"
_REMEDY = f"{_MEASURE} or see --extrapolate"

Factors = tuple[float, ...]
Point = tuple[Sequence[int], Sequence[float], float]
"""Sizes, features and measured value."""


@dataclass(frozen=True)
class LinearModel:
    """quantity = sum of factor x feature.

    error: largest relative error at a point left out of the fit; infinite with too few points. others: other factors
    that fit as well within that error, as features measured only in one proportion cannot be told apart.
    """

    factors: Factors
    error: float
    others: tuple[Factors, ...] = ()

    def __call__(self, features: Sequence[float]) -> float:
        return _sum(self.factors, features)

    def bound(self, features: Sequence[float]) -> float:
        """Relative error bound: `error`, or the largest difference from `others`."""
        value = self(features)
        differences = (abs(_sum(one, features) - value) for one in self.others)
        return max([self.error, *(relative(difference, value) for difference in differences)])


def _sum(factors: Factors, features: Sequence[float]) -> float:
    return sum(factor * value for factor, value in zip(factors, features, strict=True))


def relative(difference: float, value: float) -> float:
    """Relative difference; infinite where the value is unknown or 0."""
    if math.isnan(difference) or math.isnan(value) or (difference and not value):
        return math.inf
    return difference / value if difference else 0.0


@dataclass(frozen=True)
class OperationCost:
    """Cost of one run of an operation by `QUANTITIES`.

    how: "measured", "timed by law" (measured, but its seconds interpolated), "interpolated" or "extrapolated".
    errors: relative bounds by quantity; 0 for measured ones, infinite where unknown, as for a kind never timed (NaN).
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    how: str


@dataclass
class Operations:
    """Measured operations by (op, shape), and the models between them. without: as `packing.sized` takes it."""

    measured: Mapping[tuple[str, str], ledger.Measurement]
    without: Sequence[str] = ()
    _models: dict[tuple[str, str, bool | None], LinearModel | None] = field(default_factory=dict)

    @cached_property
    def groups(self) -> dict[str, list[tuple[packing.Sized, ledger.Measurement]]]:
        """Measured operations by the model they follow."""
        found: dict[str, list[tuple[packing.Sized, ledger.Measurement]]] = {}
        for (op, shape), row in self.measured.items():
            one = packing.sized(op, shape, self.without)
            found.setdefault(one.group, []).append((one, row))
        return found

    def setup_bytes(self, needed: Iterable[tuple[str, str]]) -> float:
        """Set-up of a session with the operations `needed`; where none of them is measured, of any session."""
        own = [self.measured[key] for key in needed if key in self.measured]
        return ledger.session_setup(own or self.measured.values())

    def cost(self, op: str, shape: str, extrapolate: bool = False) -> OperationCost:
        """The cost of an operation. UserError outside the measured sizes of its kind, unless `extrapolate`, and with
        fewer than two measured sizes in any case."""
        row, wanted = self.measured.get((op, shape)), packing.sized(op, shape)
        values = {} if row is None else {name: float(getattr(row, name)) for name in QUANTITIES}
        values = {name: value for name, value in values.items() if not math.isnan(value)}
        errors, how = dict.fromkeys(values, 0.0), "measured"
        others, timed = self.groups.get(wanted.group, []), len(self._points(wanted.group, "seconds"))
        if row is None:
            # Rounds and seconds may have been measured at fewer sizes: beyond these they have no bound.
            models = [self.model_for(wanted.group, name, wanted.one_row)[0] for name in QUANTITIES[:3]]
            bounded = all(model is not None and model.error < math.inf for model in models)
            inside = packing.within(wanted.sizes, [one.sizes for one, _ in others])
            how = "interpolated" if inside and bounded else "extrapolated"
        elif "seconds" not in values and (timed or "rounds" not in values):
            how = "timed by law"
        if how != "measured" and len(others) < 2 or how == "extrapolated" and not extrapolate:
            raise UserError(self._refusal(op, shape, wanted))
        if how in ("interpolated", "timed by law") and timed < 2 <= len(others) and not extrapolate:
            raise UserError(
                f"{op} {shape} was measured without seconds, and too few other shapes have them; measure it again on a "
                "quiet machine, without --no-seconds, or see --extrapolate"
            )
        for name in QUANTITIES:
            if name not in values:
                values[name], errors[name] = self._modelled(name, wanted)
        return OperationCost(values, errors, how)

    def _modelled(self, name: str, wanted: packing.Sized) -> tuple[float, float]:
        """A quantity by its model, and its error bound: infinite outside the sizes that the model was fitted to, which
        for rounds may be fewer. NaN without a model."""
        model, which = self.model_for(wanted.group, name, wanted.one_row)
        if model is None:
            return math.nan, math.inf
        features = packing.features(wanted)[name]
        if not packing.within(wanted.sizes, [one for one, *_ in self._points(wanted.group, name, which)]):
            return model(features), math.inf
        refills = 0.0 if wanted.kind in packing.MATRICES else REFILLS.get(name, 0.0)
        return model(features), model.bound(features) + relative(refills, model(features))

    def rounds(self, op: str, shape: str) -> float:
        """Approximate rounds of an operation of any size, with all blockings in one model. UserError if none were
        measured."""
        row = self.measured.get((op, shape))
        if row is not None and math.isfinite(row.rounds):
            return row.rounds
        one = packing.sized(op, shape, PARALLEL)
        model = self._all_blockings.model(one.group, "rounds")
        if model is None:
            raise UserError(f"the rounds of {op} were not measured")
        return model(packing.features(one)["rounds"])

    @cached_property
    def _all_blockings(self) -> Operations:
        return Operations(self.measured, PARALLEL)

    def _refusal(self, op: str, shape: str, wanted: packing.Sized) -> str:
        """Why there is no answer for an operation that was not measured."""
        others = self.groups.get(wanted.group, [])
        if not others:
            return f"no {op} was measured, which is needed at {shape}; {_MEASURE}"

        def distance(pair: tuple[packing.Sized, ledger.Measurement]) -> float:
            return sum(abs(math.log(a / b)) for a, b in zip(pair[0].sizes, wanted.sizes, strict=True))

        nearest = ", ".join(row.shape for _, row in sorted(others, key=distance)[:3])
        if len(others) < 2 or packing.within(wanted.sizes, [one.sizes for one, _ in others]):
            few = f"{len(others)} measured shapes of its kind ({nearest}) are too few"
            return f"{op} {shape} was not measured, and {few}; {_MEASURE}"
        return f"{op} {shape} lies outside what was measured, the nearest is {nearest}; {_REMEDY}"

    def model(self, group: str, quantity: str, one_row: bool | None = None) -> LinearModel | None:
        """The model of a group, None without a point. one_row: of operations on one row, on more, or (None) all."""
        key = group, quantity, one_row
        if key not in self._models:
            self._models[key] = fit(self._points(group, quantity, one_row))
        return self._models[key]

    def model_for(self, group: str, quantity: str, one_row: bool) -> tuple[LinearModel | None, bool | None]:
        """The model used for operations on one row, or on more, and its `one_row`.

        It is that of operations alike in this if `LEAST_OWN` are measured, or that of all, whichever has the smaller
        leave-one-out error.
        """
        both, alike = self.model(group, quantity), self._points(group, quantity, one_row)
        if LEAST_OWN <= len(alike) < len(self._points(group, quantity)):
            own = self.model(group, quantity, one_row)
            if own and own.error < math.inf and (not both or own.error <= both.error):
                return own, one_row
        return both, None

    def _points(self, group: str, quantity: str, one_row: bool | None = None) -> list[Point]:
        """The group's operations of which `quantity` was measured."""
        points = [
            (one.sizes, packing.features(one)[quantity], float(getattr(row, quantity)))
            for one, row in self.groups.get(group, [])
            if one_row in (None, one.one_row)
        ]
        return [point for point in points if not math.isnan(point[2])]


def fit(points: Sequence[Point]) -> LinearModel | None:
    """Least squares of relative errors with non-negative factors; None without a point.

    The error is that of left-out points between the others, as only such sizes are asked for; without any, that of the
    outer ones, which is larger.
    """
    (whole, *without_one), possible = _factors([(features, value) for _, features, value in points])
    if whole is None:
        return None
    between: list[float] = []
    outer: list[float] = []
    for index, (sizes, features, value) in enumerate(points):
        others = [*points[:index], *points[index + 1 :]]
        without = without_one[index]
        if without is None or value <= 0 or len(others) < 2:
            continue
        inside = packing.within(sizes, [other for other, _, _ in others])
        predicted = _sum(without, features)
        # Relative to the prediction, as bounds are used.
        (between if inside else outer).append(relative(abs(value - predicted), predicted))
    errors = between or outer or [math.inf]
    # The fit itself may miss an outer point by more than its leave-one-out error.
    allowed = max(*errors, _largest_miss(whole, points), SAME_ERROR)
    return LinearModel(whole, max(errors), tuple(one for one in possible if _largest_miss(one, points) <= allowed))


def _largest_miss(factors: Factors, points: Sequence[Point]) -> float:
    """The largest relative error at the fitted points."""
    return max((abs(_sum(factors, features) / value - 1) for _, features, value in points if value > 0), default=0.0)


def _factors(points: Sequence[tuple[Sequence[float], float]]) -> tuple[list[Factors | None], list[Factors]]:
    """Non-negative factors with the least sum of squared relative errors, of all points and then without each of them
    (None where nothing can be fitted); and the best non-negative factors of every subset of the features.

    Values not above 0 have no relative error and are left out.
    """
    import numpy as np

    positive = [value > 0 for _, value in points]
    # One fit of all points and one without each, stacked: a row of zeros has no weight.
    weights = np.concatenate([np.ones((1, len(points))), 1 - np.eye(len(points))])[:, positive]
    if not any(positive):
        return [None] * len(weights), []
    values = np.array([value for _, value in points])[positive]
    matrix = np.array([features for features, _ in points], dtype=float)[positive] / values[:, None]
    width = matrix.shape[1]
    best: list[tuple[float, int, Factors] | None] = [None] * len(weights)
    possible: list[Factors] = []
    # With so few features, trying every subset is the simplest way to non-negative factors. The fits of one subset are
    # solved in one stack: (fits, points, size).
    sizes = range(1, min(width, len(values)) + 1)
    for subset in itertools.chain.from_iterable(itertools.combinations(range(width), size) for size in sizes):
        part, size = weights[..., None] * matrix[:, subset], len(subset)
        scale = np.abs(part).max(1)
        usable = scale.all(-1) & (weights.sum(1) >= size)
        scale = np.where(scale > 0, scale, 1)
        solved = (np.linalg.pinv(part / scale[:, None, :], rcond=1e-9) @ weights[..., None])[..., 0] / scale
        residuals = (((part @ solved[..., None])[..., 0] - weights) ** 2).sum(1)
        for place in np.flatnonzero(usable & (solved >= 0).all(-1)).tolist():
            factors = np.zeros(width)
            factors[list(subset)] = solved[place]
            residual, full = float(residuals[place]), tuple(factors.tolist())
            if place == 0:
                possible.append(full)
            # A further feature must reduce the residual noticeably.
            known = best[place]
            if known is None or residual < known[0] * (1 - 1e-3 * (size - known[1])) - 1e-14:
                best[place] = residual, size, full
    return [None if one is None else one[2] for one in best], possible


def measured_operations(root: Path | str = ".", files: Sequence[str] = FILES) -> Operations:
    """Operations measured with the settings VARIANT; later `files` replace what earlier ones have.

    A small scale's own models are left out: refills of oblivious transfers dominate their few hundred kB.
    """
    found: dict[tuple[str, str], ledger.Measurement] = {}
    for name in files:
        path = Path(root) / name
        if path.is_file():
            rows = ledger.read(path, ledger.Measurement)
            own = ledger.by_operation(row for row in rows if row.variant == VARIANT and not row.model.startswith(OWN))
            # A measurement without seconds replaces none that has them.
            found |= {key: row for key, row in own.items() if key not in found or not math.isnan(row.seconds)}
    if not found:
        raise UserError(f"no operation measured with {VARIANT} in {', '.join(files)}; {_MEASURE}")
    return Operations(found)


def folder_of_costs(start: Path, needed: Sequence[str] = ()) -> Path:
    """The root of measured costs: `start` if it has any or a file `needed`, else the clone that this package is in.
    UserError if neither has."""
    for root in (start, ROOT):
        if any((root / name).is_file() for name in (*FILES, *needed)):
            return root
    raise UserError(
        "the measured costs of operations are neither in this folder nor beside this package; run it in the root "
        "folder of a clone of this project"
    )
