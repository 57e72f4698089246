"""The cost of a private forward pass of any architecture, from operations that were measured.

An operation that was measured at the very shape costs what it cost. Between measured shapes of the same kind it costs
what a law says that is linear in ciphertexts and entries (`aero.two_party.cost.packing`), fitted to all of them; how
wrong
that is, is seen by leaving out each measured shape in turn. Beyond the measured shapes there is no answer, unless it is
asked for and marked. Nothing here loads torch, JAX or SPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aero.architecture import Architecture
from aero.errors import UserError
from aero.pipeline import ROOT
from aero.two_party.cost import ledger, packing
from aero.two_party.cost.counts import OWN, Sizes, counts
from aero.two_party.cost.network import Network, wire_bytes

QUANTITIES = ("bytes_sent_client", "bytes_sent_server", "messages", "rounds", "seconds")
_MEASURED = ("asked_ops.csv", "all_ops.csv", "ops.csv")
KEPT_FILES = tuple(f"results/two_party/{name}" for name in _MEASURED)
_FRESH = tuple(f"runs/two_party/{name}" for name in _MEASURED)
FILES = (*KEPT_FILES, *_FRESH)
PARTS = dict.fromkeys(packing.EMBEDDINGS, "embedding")
PARTS |= dict.fromkeys(packing.VOCABULARY_PROJECTIONS, "vocabulary projection")
BLOCKS = "blocks"
SIDE_BY_SIDE = ("blocks",)
"""Constants that add no rounds: blocks of rows, whose number follows the rows, are worked on at once in each step."""


@dataclass(frozen=True)
class Law:
    """quantity = sum of factor x feature, fitted to the measured operations of a group.

    error: largest relative error at a measured operation that the law was fitted without; None if too few are measured
    to tell. points: how many are measured. others: factors that tell the measured ones as well as the law says of
    itself, and may tell something else where nothing is measured: what grows in proportion cannot be told apart.
    """

    factors: tuple[float, ...]
    error: float | None
    points: int
    others: tuple[tuple[float, ...], ...] = ()

    def __call__(self, features: Sequence[float]) -> float:
        return sum(factor * value for factor, value in zip(self.factors, features, strict=True))

    def bound(self, features: Sequence[float]) -> float:
        """How far the law may be off there, relative: its error, or what sets it apart from `others` if that is more.

        Infinite where nothing tells.
        """
        if self.error is None:
            return math.inf
        told = self(features)
        return max([self.error, *(_relative(abs(Law(one, None, 0)(features) - told), told) for one in self.others)])


LEAST_APART = 4
"""Operations that a law of their own needs: of three one lies between the others, and may be met by chance."""


@dataclass(frozen=True)
class OneCost:
    """What one run of an operation costs, by `QUANTITIES`, and how it is known: measured, timed by law (measured, but
    for its seconds, which are interpolated), interpolated or extrapolated.

    errors: relative bound by quantity: 0 for measured ones, infinite where nothing tells.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    how: str


@dataclass
class Operations:
    """Measured operations by (op, shape), and the laws between them."""

    measured: Mapping[tuple[str, str], ledger.Measurement]
    variant: str
    _laws: dict[tuple[str, str, bool | None], Law | None] = field(default_factory=dict)

    @cached_property
    def groups(self) -> dict[str, list[tuple[packing.Sized, ledger.Measurement]]]:
        """Measured operations by the law they follow."""
        found: dict[str, list[tuple[packing.Sized, ledger.Measurement]]] = {}
        for (op, shape), row in self.measured.items():
            one = packing.sized(op, shape)
            found.setdefault(one.group, []).append((one, row))
        return found

    def setup_bytes(self, needed: Iterable[tuple[str, str]]) -> float:
        """Of a session of the operations `needed`, as compositions have it; where none of them is measured, of any."""
        own = [self.measured[key] for key in needed if key in self.measured]
        return ledger.session_setup(own or self.measured.values())

    def cost(self, op: str, shape: str, extrapolate: bool = False) -> OneCost:
        """The cost of an operation; of one that was measured without its seconds, those by their law.

        UserError beyond the measured shapes of its kind, unless `extrapolate`; and with fewer than two of them at all.
        """
        row = self.measured.get((op, shape))
        found = {name: float(getattr(row, name)) for name in QUANTITIES} if row is not None else {}
        wanted = packing.sized(op, shape)
        if found and not math.isnan(found["seconds"]):
            values, errors = found, dict.fromkeys(QUANTITIES, 0.0)
            if math.isnan(found["rounds"]):
                values["rounds"], errors["rounds"] = self._by_law("rounds", wanted)
            return OneCost(values, errors, "measured")
        others = self.groups.get(wanted.group, [])
        told = {name: value for name, value in found.items() if not math.isnan(value)}
        # Bytes and seconds are an answer without rounds, which may not have been measured: those get no bound.
        needed = ["seconds"] if found else [name for name in QUANTITIES if name != "rounds"]
        sizes = {name: [one for one, *_ in self._points(wanted.group, name)] for name in needed}
        inside = all(packing.within(wanted.sizes, of_quantity) for of_quantity in sizes.values())
        if found and not (inside and len(sizes["seconds"]) > 1) and not extrapolate:
            raise UserError(
                f"{op} {shape} was measured without seconds, which other shapes do not tell; measure it again on a "
                "quiet machine, without --no-seconds, or see --extrapolate"
            )
        if not inside and not (extrapolate and others):
            raise UserError(self._outside(op, shape, wanted, bool(others)))
        if len(others) < 2:
            # A law through one point is a constant: the cost of another shape would be that of the measured one.
            raise UserError(
                f"{op} {shape} was not measured, and from one measured shape ({others[0][1].shape}) nothing follows "
                f"for another; {_MEASURE}"
            )
        laws = {name: self.law_for(wanted.group, name, wanted.one_row)[0] for name in needed}
        unknown = [name for name, law in laws.items() if law is None or law.error is None]
        if unknown and not extrapolate:
            few = min(map(len, sizes.values()))
            raise UserError(
                f"{op} {shape} was not {'timed' if found else 'measured'}, and {few} measured shapes of its kind are "
                f"too few to interpolate with a known error; {_REMEDY}"
            )
        values, errors = dict(told), dict.fromkeys(told, 0.0)
        for name in QUANTITIES:
            if name not in told:
                values[name], error = self._by_law(name, wanted)
                errors[name] = error if inside else math.inf
        if unknown or not inside:
            return OneCost(values, errors, "extrapolated")
        return OneCost(values, errors, "timed by law" if found else "interpolated")

    def _by_law(self, name: str, wanted: packing.Sized) -> tuple[float, float]:
        """A quantity by its law, and its bound: infinite beyond what the law is of, which of rounds may be fewer shapes
        than of the rest. NaN without a law.
        """
        law, which = self.law_for(wanted.group, name, wanted.one_row)
        if law is None:
            return math.nan, math.inf
        features = packing.features(wanted)[name]
        if not packing.within(wanted.sizes, [one for one, *_ in self._points(wanted.group, name, which)]):
            return law(features), math.inf
        stocks = 0.0 if wanted.kind in packing.MATRICES else STOCKS.get(name, 0.0)
        return law(features), law.bound(features) + _relative(stocks, law(features))

    def rounds(self, op: str, shape: str) -> float:
        """Rounds of an operation of any size, beyond the measured ones too: for a figure that says "about".

        By the law of all that have its constants, but for `SIDE_BY_SIDE`. UserError if their rounds were not measured.
        """
        row = self.measured.get((op, shape))
        if row is not None and math.isfinite(row.rounds):
            return row.rounds
        one = packing.sized(op, shape, SIDE_BY_SIDE)
        if one.group not in self._rounds_laws:
            raise UserError(f"{op} was not measured")
        law = self._rounds_laws[one.group]
        if law is None:
            raise UserError(f"the rounds of {op} were not measured")
        return law(packing.features(one)["rounds"])

    @cached_property
    def _rounds_laws(self) -> dict[str, Law | None]:
        points: dict[str, list[Point]] = {}
        for (op, shape), row in self.measured.items():
            one = packing.sized(op, shape, SIDE_BY_SIDE)
            of_group = points.setdefault(one.group, [])
            if math.isfinite(row.rounds):
                of_group.append((one.sizes, packing.features(one)["rounds"], row.rounds))
        return {group: fit(of_group) for group, of_group in points.items()}

    def _outside(self, op: str, shape: str, wanted: packing.Sized, any_measured: bool) -> str:
        if not any_measured:
            return f"no {op} was measured, which is needed at {shape}; {_MEASURE}"
        near = sorted(self.groups[wanted.group], key=lambda pair: _distance(pair[0].sizes, wanted.sizes))
        nearest = ", ".join(row.shape for _, row in near[:3])
        return f"{op} {shape} lies outside what was measured, the nearest is {nearest}; {_REMEDY}"

    def law(self, group: str, quantity: str, one_row: bool | None = None) -> Law | None:
        """The law of a group of operations, None if nothing is measured or it cannot be fitted.

        one_row: of those on a single row alone, of those on more, or (None) of both.
        """
        key = group, quantity, one_row
        if key not in self._laws:
            self._laws[key] = fit(self._points(group, quantity, one_row))
        return self._laws[key]

    def law_for(self, group: str, quantity: str, one_row: bool) -> tuple[Law | None, bool | None]:
        """The law that operations of a group on one row, or on more, are interpolated by, and which ones it is of.

        That of operations alike in this, if `LEAST_APART` are measured, or that of both, whichever is nearer to what
        it was fitted without.
        """
        both = self.law(group, quantity)
        alike = self._points(group, quantity, one_row)
        if len(alike) < LEAST_APART or len(alike) == len(self._points(group, quantity)):
            return both, None
        own = self.law(group, quantity, one_row)
        if own is None or own.error is None:
            return both, None
        if both is not None and both.error is not None and both.error < own.error:
            return both, None
        return own, one_row

    def _points(self, group: str, quantity: str, one_row: bool | None = None) -> list[Point]:
        """Those of a group's operations of which `quantity` was measured; one_row: as `law` takes it."""
        points = [
            (one.sizes, packing.features(one)[quantity], float(getattr(row, quantity)))
            for one, row in self.groups.get(group, [])
            if one_row in (None, one.one_row)
        ]
        return [point for point in points if not math.isnan(point[2])]


_MEASURE = "measure it (python -m stages.two_party_all ARCHITECTURE, with the sizes and the program given here)"
_IN_CLONE = "run it in the root folder of a clone of this project"
_REMEDY = f"{_MEASURE} or see --extrapolate"


def _distance(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(one, other, strict=True))


Point = tuple[Sequence[int], Sequence[float], float]
"""Sizes, features and measured value."""


def fit(points: Sequence[Point]) -> Law | None:
    """The law through `points`, least squares of relative errors with no factor below 0; None without a point.

    Its error is that of points between the others, as only such are asked for; where there is none between, that of
    the outer ones, which is larger.
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
        # As bounds are used: of what the law tells.
        error = _relative(abs(value - (told := Law(without, None, 0)(features))), told)
        (between if inside else outer).append(error)
    errors = between or outer
    law = Law(whole, max(errors) if errors else None, len(points))
    if law.error is None:
        return law
    # The law itself may miss an outer point by more than its error says.
    allowed = max(law.error, _miss(whole, points), ALIKE)
    return replace(law, others=tuple(one for one in possible if _miss(one, points) <= allowed))


def _miss(factors: Factors, points: Sequence[Point]) -> float:
    """The largest relative error of a law at the points that it is of."""
    law = Law(factors, None, 0)
    return max((abs(law(features) / value - 1) for _, features, value in points if value > 0), default=0.0)


STOCKS = {"bytes_sent_client": 0.77e6, "bytes_sent_server": 0.92e6}
"""What a measured run sent more, or less, than another of the same operation, because it fell to it or not to renew a
stock of oblivious transfers (0.266 MB, either way) and one of products of few elements (0.50 and 0.65 MB)."""
ALIKE = 1e-3
"""Relative errors that are no reason to prefer one law to another: bytes vary by less from run to run."""

Factors = tuple[float, ...]


def _factors(points: Sequence[tuple[Sequence[float], float]]) -> tuple[list[Factors | None], list[Factors]]:
    """Factors, none negative, with the least sum of squared relative errors: of all points, then without each of them;
    and those by which each subset of the features tells all points best, if none is negative.

    Points that are not above 0 have no relative error and are left out. None where nothing can be fitted.
    """
    import numpy as np

    positive = [value > 0 for _, value in points]
    # One fit of all and one without each point, stacked: a row of zeros weighs nothing.
    weights = np.concatenate([np.ones((1, len(points))), 1 - np.eye(len(points))])[:, positive]
    if not any(positive):
        return [None] * len(weights), []
    values = np.array([value for _, value in points])[positive]
    matrix = np.array([features for features, _ in points], dtype=float)[positive] / values[:, None]
    width = matrix.shape[1]
    best: list[tuple[float, int, Factors] | None] = [None] * len(weights)
    possible: list[Factors] = []
    # With so few factors, trying each subset is the plainest way to keep them from being negative. Those of one size
    # are solved in one stack: (subsets, fits, points, size).
    for size in range(1, min(width, len(values)) + 1):
        subsets = list(itertools.combinations(range(width), size))
        part = weights[None, :, :, None] * np.moveaxis(matrix[:, subsets], 1, 0)[:, None]
        scale = np.abs(part).max(2)
        usable = scale.all(-1) & (weights.sum(1) >= size)
        scale = np.where(scale > 0, scale, 1)
        ones = weights[None, :, :, None]
        solved = (np.linalg.pinv(part / scale[:, :, None, :], rcond=1e-9) @ ones)[..., 0] / scale
        residuals = ((part @ solved[..., None] - ones) ** 2).sum((2, 3))
        usable &= (solved >= 0).all(-1)
        for which, place in np.argwhere(usable).tolist():
            factors = np.zeros(width)
            factors[list(subsets[which])] = solved[which, place]
            residual, full = float(residuals[which, place]), tuple(factors.tolist())
            if place == 0:
                possible.append(full)
            # A further factor must earn its place.
            known = best[place]
            if known is None or residual < known[0] * (1 - 1e-3 * (size - known[1])) - 1e-14:
                best[place] = residual, size, full
    return [None if one is None else one[2] for one in best], possible


def variant_of(protocol: Mapping[str, Any]) -> str:
    """How result files name the fields of `Settings` in `protocol`: as `aero.config.TwoPartyParameters.variant`."""
    exact = "lsb_error" if protocol["mul_lsb_error"] else "exact"
    return f"cheetah-{protocol['field']}-{protocol['fraction_bits']}-{exact}"


def measured_operations(variant: str, root: Path | str = ".", files: Sequence[str] = FILES) -> Operations:
    """What was measured with the protocol's settings `variant`; later `files` replace what earlier ones say.

    Small scales' own models are left out: in their few hundred kB, chance (new stocks of oblivious transfers) tells.
    """
    found: dict[tuple[str, str], ledger.Measurement] = {}
    for name in files:
        # A report's root is a path that notes what is read below it.
        path = (root if isinstance(root, Path) else Path(root)) / name
        if path.is_file():
            rows = ledger.read(path, ledger.Measurement, ledger.NO_SECONDS)
            kept = ledger.by_operation(row for row in rows if row.variant == variant and not row.model.startswith(OWN))
            # One without seconds adds to what is known, and takes the place of none that has them.
            found |= {key: row for key, row in kept.items() if key not in found or not math.isnan(row.seconds)}
    if not found:
        if not has_costs(root, files):
            raise UserError(f"the kept costs of operations ({files[0]} and others) are not in this folder; {_IN_CLONE}")
        raise UserError(f"no operation measured with {variant} in {', '.join(files)}; {_MEASURE}")
    return Operations(found, variant)


def has_costs(root: Path | str, files: Sequence[str] = FILES) -> bool:
    """Whether there is any file of measured operations below `root`."""
    root = root if isinstance(root, Path) else Path(root)
    return any((root / name).is_file() for name in files)


def folder_of_costs(start: Path, needed: Sequence[str] = ()) -> Path:
    """Where a command that is run in `start` reads costs: there, if it has measured operations or a file `needed`, else
    in the clone that this package is installed from. UserError if neither is the place."""
    if has_costs(start) or any((start / name).is_file() for name in needed):
        return start
    if not (has_costs(ROOT) and all((ROOT / name).is_file() for name in needed)):
        raise UserError(f"the kept costs of operations are neither in this folder nor beside this package; {_IN_CLONE}")
    return ROOT


@dataclass(frozen=True)
class PassCost:
    """Cost of one private forward pass, set-up included, and the bounds of its errors.

    wire_bytes: those that cost time on a link (`network.wire_bytes`). bytes_error, wire_error, rounds_error,
    seconds_error: relative, of what is interpolated; infinite where something is extrapolated, or was not measured
    often enough to tell. Adds to what a composition is wrong by. by_part: bytes of embedding, blocks, vocabulary
    projection and set-up. seconds_by_kind: by kind of operation. timed_by_law: the operations that were measured but
    for their seconds. seconds_timed_once: those of operations that were timed in a single run, which repeats worse than
    the median of several. interpolated, extrapolated: those that were not measured themselves.
    """

    architecture: str
    sizes: Sizes
    program: str
    bytes_client: float
    bytes_server: float
    wire_bytes: float
    messages: float
    rounds: float
    seconds: float
    bytes_error: float
    wire_error: float
    rounds_error: float
    seconds_error: float
    by_part: Mapping[str, float]
    seconds_by_kind: Mapping[str, float]
    operations: int
    timed_by_law: tuple[str, ...]
    seconds_timed_once: float
    interpolated: tuple[str, ...]
    extrapolated: tuple[str, ...]
    counts_kept: bool

    @property
    def bytes(self) -> float:
        """Bytes in both directions."""
        return self.bytes_client + self.bytes_server

    def latency(self, network: Network) -> float:
        """Seconds on `network`; NaN if rounds were not measured."""
        return network.latency_seconds(self.seconds, self.wire_bytes, 0.0, self.rounds)

    def latency_error(self, network: Network) -> float:
        """Relative bound of the latency's error: computing, transfer and rounds may all be off to the same side."""
        parts = (
            (network.latency_seconds(self.seconds, 0.0, 0.0, 0.0), self.seconds_error),
            (network.latency_seconds(0.0, self.wire_bytes, 0.0, 0.0), self.wire_error),
            (network.latency_seconds(0.0, 0.0, 0.0, self.rounds), self.rounds_error),
        )
        return _relative(sum(_off(seconds, error) for seconds, error in parts), self.latency(network))


def _off(value: float, error: float) -> float:
    """By how much a value may be off; one of 0 by nothing, whatever its relative error is."""
    return abs(value) * error if value and error else 0.0


def _relative(off: float, value: float) -> float:
    """Infinite where the value is not known."""
    if math.isnan(off) or math.isnan(value) or (off and not value):
        return math.inf
    return off / value if off else 0.0


def estimate(
    architecture: Architecture, sizes: Sizes, program: str, operations: Operations, extrapolate: bool = False
) -> PassCost:
    """The cost of `architecture` at `sizes`, one set-up included.

    UserError if an operation lies outside what was measured (unless `extrapolate`), or if the program cannot compute
    the architecture.
    """
    needed, kept = counts(architecture, sizes, program)
    total, error = dict.fromkeys(QUANTITIES, 0.0), dict.fromkeys(QUANTITIES, 0.0)
    setup = operations.setup_bytes(needed)
    by_part = {"embedding": 0.0, BLOCKS: 0.0, "vocabulary projection": 0.0, "set-up": setup}
    by_kind: dict[str, float] = {}
    wire, wire_off, timed_once = setup, 0.0, 0.0
    not_measured: dict[str, list[str]] = {"interpolated": [], "extrapolated": [], "timed by law": []}
    for (op, shape), count in needed.items():
        one = operations.cost(op, shape, extrapolate)
        for name in QUANTITIES:
            total[name] += count * one.values[name]
            error[name] += count * _off(one.values[name], one.errors[name])
        sent = [one.values[f"bytes_sent_{who}"] for who in ("client", "server")]
        wire += count * wire_bytes(op, *sent)
        # The larger of two directions is off by no more than the larger of what they are off by.
        off = [_off(one.values[name], one.errors[name]) for name in ("bytes_sent_client", "bytes_sent_server")]
        wire_off += count * wire_bytes(op, *off)
        kind = op.partition("(")[0]
        by_part[PARTS.get(kind, BLOCKS)] += count * sum(sent)
        by_kind[kind] = by_kind.get(kind, 0.0) + count * one.values["seconds"]
        if one.how in not_measured:
            not_measured[one.how].append(f"{op} {shape}")
        elif operations.measured[op, shape].runs == 1:
            timed_once += count * one.values["seconds"]
    # Keys and first oblivious transfers go both ways in about equal parts.
    client, server = (total[f"bytes_sent_{who}"] + setup / 2 for who in ("client", "server"))
    return PassCost(
        architecture=str(architecture),
        sizes=sizes,
        program=program,
        bytes_client=client,
        bytes_server=server,
        wire_bytes=wire,
        messages=total["messages"],
        rounds=total["rounds"],
        seconds=total["seconds"],
        bytes_error=_relative(error["bytes_sent_client"] + error["bytes_sent_server"], client + server),
        wire_error=_relative(wire_off, wire),
        rounds_error=_relative(error["rounds"], total["rounds"]),
        seconds_error=_relative(error["seconds"], total["seconds"]),
        by_part=by_part,
        seconds_by_kind=by_kind,
        operations=len(needed),
        timed_by_law=tuple(not_measured["timed by law"]),
        seconds_timed_once=timed_once,
        interpolated=tuple(not_measured["interpolated"]),
        extrapolated=tuple(not_measured["extrapolated"]),
        counts_kept=kept,
    )


LawErrors = tuple[str, int, float | None, float | None, float | None]


def law_errors(operations: Operations) -> list[LawErrors]:
    """(group, measured shapes, error of the bytes, of the rounds, of the seconds) of every kind of operation, by
    leaving one out; operations on a single row apart where more are measured too.
    """
    found: list[LawErrors] = []
    for group, members in operations.groups.items():
        both = len({one.one_row for one, _ in members}) == 2
        for one_row in sorted({one.one_row for one, _ in members}):
            sent, answered, rounds, seconds = (
                None if law is None else law.error
                for name in ("bytes_sent_client", "bytes_sent_server", "rounds", "seconds")
                for law, _ in (operations.law_for(group, name, one_row),)
            )
            name = group.rpartition(" ")[0] + (" of one row" if both and one_row else "")
            bytes_ = None if sent is None or answered is None else max(sent, answered)
            found.append((name, sum(one.one_row is one_row for one, _ in members), bytes_, rounds, seconds))
    return sorted(found, key=lambda one: one[:2])


def composition_error(passes: Iterable[Mapping[str, object]]) -> float | None:
    """Largest relative difference of bytes between complete passes and the sum of their operations; None without one.

    passes: the entries of end_to_end.json and full_passes.json.
    """
    return _largest(passes, ("composed_over_measured", "composed_over_measured_bytes"))


def composition_seconds_error(passes: Iterable[Mapping[str, object]]) -> float | None:
    """The same of seconds of computing, which operations measured at another time do not share; None without a pass."""
    return _largest(passes, ("composed_over_measured_seconds",))


def composition_messages_error(passes: Iterable[Mapping[str, object]]) -> float | None:
    """The same of messages, of which a complete pass has more; None without a pass at the papers' own size."""
    return _largest(passes, ("composed_over_measured_messages",))


def _largest(passes: Iterable[Mapping[str, object]], keys: Sequence[str]) -> float | None:
    ratios = [entry.get(key) for entry in passes for key in keys]
    return max((abs(ratio - 1) for ratio in ratios if isinstance(ratio, int | float)), default=None)
