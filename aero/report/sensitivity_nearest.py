"""The nearest settings of the search, trained again with fresh seeds: how near the published seven values does the best
single setting of `variance_sensitivity`'s experiment come, for all its cores at once.

The search ranks settings by one seed each, and the first of a ranking of hundreds of readings are flattered by that
seed. What is chosen, and how, was written and committed before any of these trainings was run:

- `chosen`: the first `NEAREST` settings of the ranking of each form of the ReLU kernel, each at the number of steps and
  with the l_0 by which it stands there. Nothing else of the search is trained again.
- `FRESH`: five seeds that neither the search (whose seeds are the settings' numbers, 0 to 239) nor the sweep (0 to 4)
  has seen.
- `best`: of these the one that comes nearest by Table 1's own way of averaging, losses clipped and then averaged over
  seeds. It is nearer than a table without any difference between the cores only if it is so by all three `WAYS`.
- A conclusion of the paper holds in it, as in the sweep, if both averages and every seed agree.

Table 1's own setting stays what it is: its rule was stated before its data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from statistics import fmean

import torch
from torch import Tensor

from aero.attention_kernels import CORES
from aero.report.marks import Html, gap, grid, number
from aero.report.results import Results
from aero.report.sensitivity import FOLDERS, PAPER, Line, origin_of, read, sweep
from aero.report.sensitivity_search import FORMS, NEAREST, distance, published, ranked, search, words
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.metric import sensitivity, sensitivity_clipped_after, sensitivity_of_means
from aero.sensitivity.search import REASONABLE, RELU_CORES, Reading, read_losses, reasonable
from aero.sensitivity.setting import Setting

Way = Callable[[Tensor, Tensor], float]
WAYS: dict[str, Way] = {
    "clipped, then averaged": sensitivity_of_means,
    "averaged, then clipped": sensitivity_clipped_after,
    "mean of each seed’s own": lambda final, initial: sensitivity(final, initial).mean().item(),
}
"""From final losses (R, K) and l_0 (K,); the first is Table 1's own."""
FRESH = (1001, 1002, 1003, 1004, 1005)
"""The seeds of the trainings that are trained again."""


def chosen(results: Results) -> list[tuple[int, Reading]]:
    """Number and reading of the settings that are trained again, form after form, the nearest of each first."""
    found = search(results)
    if found is None:
        return []
    return [(number_, reading) for form in FORMS for number_, _, reading in ranked(found, form)[:NEAREST]]


def trainings(results: Results) -> list[tuple[int, Setting, str]]:
    """What `chosen` needs: number, setting at its steps, core; each once, as a setting can be near by both forms."""
    needed = [
        (number_, reasonable(reading.steps)[number_], reading.relu if core in RELU_CORES else core)
        for number_, reading in chosen(results)
        for core in ORDER
    ]
    return list(dict.fromkeys(needed))


@dataclass(frozen=True)
class Repeated:
    """A setting that was trained again: by core, final losses (R, K) and l_0 (K,) as its reading has it.

    off: how far from the published seven it was by the search's one seed.
    """

    number: int
    reading: Reading
    off: float
    final: Mapping[str, Tensor]
    initial: Mapping[str, Tensor]

    def values(self, way: str) -> dict[str, float]:
        """Sensitivity by core."""
        return {core: WAYS[way](self.final[core], self.initial[core]) for core in ORDER}

    def by_seed(self) -> list[dict[str, float]]:
        """Sensitivities of every seed by core."""
        own = {core: sensitivity(self.final[core], self.initial[core]).tolist() for core in ORDER}
        return [{core: values[k] for core, values in own.items()} for k in range(len(FRESH))]

    def distances(self) -> dict[str, float]:
        """How far from the published seven, by way of averaging."""
        return {way: distance(self.values(way)) for way in WAYS}

    def holds(self, conclusion: str) -> tuple[dict[str, bool], int]:
        """Whether a conclusion of the paper holds by either average, and in how many seeds."""
        holds = CONCLUSIONS[conclusion].holds
        averages = {way: holds(self.values(way)) for way in tuple(WAYS)[:2]}
        return averages, sum(map(holds, self.by_seed()))


def file_of(results: Results) -> str | None:
    """The file of the repeated settings, the fresh one if it has more; None if there is none."""
    files = [results.root / folder / "nearest.csv" for folder in FOLDERS]
    there = [path for path in files if path.is_file()]
    return str(max(there, key=lambda path: path.stat().st_size).relative_to(results.root)) if there else None


def repeated(results: Results) -> list[Repeated]:
    """Those of `chosen` that have been trained again with every seed and core, in its order."""
    if (file := file_of(results)) is None:
        return []
    found = search(results)
    by_training: dict[tuple[str, str, str], dict[int, Line]] = {}
    for line in read(results.root / file):
        by_training.setdefault((line["number"], line["steps"], line["core"]), {})[int(line["seed"])] = line
    made = []
    for number_, reading in chosen(results):
        column = "initial_loss" if reading.initial == "measured" else "zero_loss"
        final, initial = {}, {}
        for core in ORDER:
            trained = reading.relu if core in RELU_CORES else core
            lines = by_training.get((str(number_), str(reading.steps), trained), {})
            if set(FRESH) <= set(lines):
                final[core] = torch.stack([read_losses(lines[seed]) for seed in FRESH], 1)
                initial[core] = torch.tensor([float(lines[seed][column]) for seed in FRESH], dtype=torch.float64)
        if set(final) == set(ORDER):
            off = distance(found.found[number_, reading])
            made.append(Repeated(number_, reading, off, final, initial))
    return made


def best(results: Results) -> Repeated | None:
    """The repeated setting nearest to Table 1 by its own way of averaging."""
    return min(repeated(results), key=lambda one: one.distances()[next(iter(WAYS))], default=None)


def flat() -> float:
    """How far off a table is whose seven values are all the published mean."""
    printed = published()
    return distance(dict.fromkeys(printed, fmean(printed.values())))


def _words(one: Repeated) -> str:
    setting = reasonable(one.reading.steps)[one.number]
    return words({name: str(getattr(setting, name)) for name in REASONABLE}, one.reading)


def _origin(one: Repeated) -> str:
    return origin_of(reasonable(one.reading.steps)[one.number])


def _heads() -> list[str]:
    short = (CORES[core].title.replace(" Kernel", "").replace("Window Softmax", "Window") for core in ORDER)
    return ["setting", *short, "off"]


def table_repeated(results: Results) -> Html:
    """The nearest settings with fresh seeds beside what one seed said, by all ways of averaging."""
    made, file = repeated(results), file_of(results)
    if not made or file is None:
        return Html(f"<p>The nearest settings with fresh seeds: {gap()}.</p>")
    found, rows = search(results), []
    for form, meaning in FORMS.items():
        rows.append([f"<i>nearest with {meaning}</i>", *[""] * (len(ORDER) + 1)])
        for one in (one for one in made if one.reading.relu == form):
            mark = _origin(one)
            lines = {"one seed, the search’s": (found.found[one.number, one.reading], found.file)}
            lines |= {f"five others, {way}": (one.values(way), file) for way in WAYS}
            rows.append([escape(_words(one)), *[""] * (len(ORDER) + 1)])
            for label, (values, source) in lines.items():
                cells = [number(f"{values[core]:.2f}", mark, source) for core in ORDER]
                rows.append([label, *cells, number(f"{distance(values):.2f}", mark, source)])
    lacking = len(chosen(results)) - len(made)
    caption = (
        "<b>The nearest settings with five other seeds.</b> The first of the ranking of each form of the ReLU kernel, "
        f"trained again with the seeds {FRESH[0]} to {FRESH[-1]}, which neither search nor sweep has seen; which are "
        "trained again was fixed before. Off: root mean square of the differences from the published seven, which is "
        f"{flat():.2f} for a table without any difference between the cores. "
        + (f"{lacking} of {lacking + len(made)} are not trained again yet. " if lacking else "")
        + f"Read from <code>{escape(file)}</code>."
    )
    return Html(grid(_heads(), rows, caption, "sensitivity-repeated", (0.29, *[0.09] * 7, 0.08), "dense"))


def table_best(results: Results) -> Html:
    """The best of the repeated settings: its seven values beside the published ones and Table 1's, and which of the
    paper's conclusions hold in it."""
    one, file, measured = best(results), file_of(results), sweep(results)
    if one is None or file is None:
        return Html(f"<p>The best single setting: {gap()}.</p>")
    printed, mark = published(), _origin(one)
    rows = [["published", *(number(f"{printed[core]:.2f}", "published", f"{PAPER} Table 1") for core in ORDER), ""]]
    if measured is not None and set(ORDER) <= set(measured.final):
        means, source = {core: measured.of_means(core) for core in ORDER}, f"{measured.folder}/losses.csv"
        cells = [number(f"{means[core]:.2f}", measured.origin, source) for core in ORDER]
        off = number(f"{distance(means):.2f}", measured.origin, source)
        rows.append(["setting of Table 1, clipped, then averaged", *cells, off])
    for way in WAYS:
        values = one.values(way)
        cells = [number(f"{values[core]:.2f}", mark, file) for core in ORDER]
        rows.append([f"best single setting, {way}", *cells, number(f"{distance(values):.2f}", mark, file)])
    all_hold, told = [], []
    for name, conclusion in CONCLUSIONS.items():
        averages, seeds = one.holds(name)
        if all(averages.values()) and seeds == len(FRESH):
            all_hold.append(conclusion.text)
        else:
            said = {True: "holds", False: "does not hold"}
            first, second = (said[there] for there in averages.values())
            told.append(
                f"{conclusion.text}: {first} of averages{'' if first == second else f' ({second} clipped after)'}, "
                + number(f"{seeds} of {len(FRESH)} seeds", mark, file)
            )
    count = len(repeated(results))
    nearer = sum(off < flat() for off in one.distances().values())
    of_flat = (
        "nearer than" if nearer == len(WAYS) else "no nearer than" if not nearer else "not by all ways nearer than"
    )
    caption = (
        "<b>The best single setting for all seven cores at once.</b> Of "
        f"{count} settings and readings that were trained again the one nearest by Table 1’s averages: "
        f"{escape(_words(one))}; five fresh seeds. It is {of_flat} a table without any difference between the cores "
        f"({flat():.2f} off). The nearest of {count} by these seeds is itself a choice, so a little flattered. It does "
        "not take the place of Table 1’s setting, which was chosen before the data. Of the paper’s conclusions hold in "
        "it, by both averages and in every seed: "
        + ("; ".join(all_hold) or "none")
        + ". Others: "
        + ("; ".join(told) or "none")
        + f". Read from <code>{escape(file)}</code>."
    )
    return Html(grid(_heads(), rows, caption, "sensitivity-best", (0.29, *[0.09] * 7, 0.08), "dense"))
