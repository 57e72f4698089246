"""Which figure of the report is which published one, from what runs: the functions that draw them register here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from matplotlib.figure import Figure

from aero.report.results import Results, Run

Draw = Callable[[Results], Figure]
Seeds = Literal["first", "all"]

PAPERS = {
    "aero": "AERO",
    "entropy_guided": "Entropy-Guided Attention",
    "entropy_landscape": "Entropy Landscape",
    "variance_sensitivity": "Variance Sensitivity",
    "parallel_context": "Parallel Context Encoding",
}
"""The papers in the order of the report, by the name a reader sees."""


def _logged(run: Run, quantity: str) -> bool:
    rows = getattr(run.log, quantity) if run.log else ()
    return any(value is not None for row in rows for value in row)


def _measured(run: Run, quantity: str) -> bool:
    return run.entropy is not None and bool(getattr(run.entropy, quantity))


def _learned(run: Run, name: str) -> bool:
    return run.entropy is not None and bool(run.entropy.learned.get(name))


NEEDS: dict[str, Callable[[Run], bool]] = {
    "entropies not measured": lambda run: _measured(run, "mean"),
    "entropies not measured by position": lambda run: _measured(run, "by_position"),
    "errors by position not stored": lambda run: _measured(run, "by_position_sem"),
    "medians not stored": lambda run: _measured(run, "median"),
    "blocks of held-out sequences not stored": lambda run: _measured(run, "blocks"),
    "thresholds not stored": lambda run: _learned(run, "thresholds"),
    "scaling of the FFN not stored": lambda run: _learned(run, "alpha") and _learned(run, "beta"),
    "temperatures not stored": lambda run: _learned(run, "temperature_mean"),
    "temperatures by position not stored": lambda run: _learned(run, "temperature_by_position"),
    "entropies not logged": lambda run: _logged(run, "entropy"),
    "counts of overflows not logged": lambda run: _logged(run, "overflow"),
    "slopes not logged": lambda run: _logged(run, "slopes"),
}
"""What a figure can need of a training, named by what is said where it is missing. Older files lack some of it."""


@dataclass(frozen=True)
class Untrained:
    """What a figure is made of that no training is drawn in.

    present: what of it is there, for the index ("counted"); sizes: at which; caption: the sentence that stands where
    other captions have scale and seeds.
    """

    present: Callable[[Results], str]
    sizes: str
    caption: Callable[[Results], str]


@dataclass(frozen=True)
class Drawn:
    """A function that draws a figure, and what it is drawn of.

    published: the papers' figures it stands for, as params.yaml writes them ("aero/figure12"); empty for one of ours.
    note: what the caption says of it. runs: those it is drawn from; none for a figure that is `untrained`. seeds:
    whether it shows the first seed of each alone. needs: keys of `NEEDS`, with the runs that each is needed of.
    overflows: the runs of which the caption says how many of all their seeds overflow, drawn or not.
    """

    draw: Draw
    published: tuple[str, ...]
    title: str
    note: str
    runs: tuple[str, ...]
    seeds: Seeds = "first"
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    untrained: Untrained | None = None
    overflows: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.draw.__name__

    @property
    def numbers(self) -> str:
        """The published figures in words: "AERO Figure 12; Entropy-Guided Attention Figure 2"."""
        parts = (published.split("/figure") for published in self.published)
        return "; ".join(f"{PAPERS[paper]} Figure {number}" for paper, number in parts)

    @property
    def papers(self) -> tuple[str, ...]:
        """Whose figures it stands for, each once, the one whose section of the report shows it first."""
        return tuple(dict.fromkeys(published.split("/")[0] for published in self.published))

    def whole(self, results: Results) -> dict[str, tuple[Run, ...]]:
        """By run, those trainings of the figure's seeds that have all it needs."""
        return {name: tuple(r for r in self._asked(results, name) if not self._lacks(r)) for name in self.runs}

    def shown(self, results: Results) -> dict[str, tuple[Run, ...]]:
        """By run, those trainings of the figure's seeds that have something of what it needs."""
        return {name: tuple(r for r in self._asked(results, name) if self._has_some(r)) for name in self.runs}

    def missing(self, results: Results) -> dict[str, list[str]]:
        """The runs without a whole training, by what is missing: "not run yet", "slopes not logged"."""
        reasons: dict[str, list[str]] = {}
        for name, whole in self.whole(results).items():
            if not whole:
                asked = self._asked(results, name)
                for reason in self._lacks(asked[0]) if asked else ["not run yet"]:
                    reasons.setdefault(reason, []).append(name)
        return reasons

    def _asked(self, results: Results, name: str) -> tuple[Run, ...]:
        first = results.first(name)
        return results.seeds(name) if self.seeds == "all" or first is None else (first,)

    def _lacks(self, run: Run) -> list[str]:
        return [what for what, of in self.needs.items() if run.name in of and not NEEDS[what](run)]

    def _has_some(self, run: Run) -> bool:
        return len(self._lacks(run)) < sum(run.name in of for of in self.needs.values())


FIGURES: list[Drawn] = []


def stands_for(
    *published: str,
    title: str,
    note: str,
    runs: Sequence[str] = (),
    seeds: Seeds = "first",
    needs: Sequence[str] | Mapping[str, Sequence[str]] = (),
    untrained: Untrained | None = None,
    overflows: Sequence[str] = (),
) -> Callable[[Draw], Draw]:
    """Register the decorated function as the one that draws the published figures, in the order of the report.

    The arguments are the fields of `Drawn`; needs without runs are those of all. ValueError for needs that are none,
    and for a figure that neither has runs nor says what it is made of instead.
    """
    if not runs and untrained is None:
        raise ValueError(f"{title}: neither runs nor what it is drawn of without them")
    of = needs if isinstance(needs, Mapping) else dict.fromkeys(needs, runs)
    if unknown := of.keys() - NEEDS.keys():
        raise ValueError(f"{', '.join(sorted(unknown))}: not in NEEDS")

    def register(draw: Draw) -> Draw:
        needed = {what: tuple(names) for what, names in of.items()}
        FIGURES.append(Drawn(draw, published, title, note, tuple(runs), seeds, needed, untrained, tuple(overflows)))
        return draw

    return register
