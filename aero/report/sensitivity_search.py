"""The search over what `variance_sensitivity` leaves open: the nearest setting, each choice's influence, and how often
the paper's conclusions hold.

All from search.csv: a line a setting, core and number of steps. A setting's sensitivities depend on the reading
(`aero.sensitivity.search.Reading`), of which the shares take all.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from statistics import fmean, median

from aero.attention_kernels import CORES
from aero.published import load
from aero.report.marks import Html, gap, grid, number
from aero.report.results import Results
from aero.report.sensitivity import FOLDERS, PAPER, Sweep, origin_of, read, sweep, trained_decades
from aero.sensitivity.conclusions import CONCLUSIONS, ORDER
from aero.sensitivity.search import REASONABLE, STEPS, Reading, read_losses, reasonable, sensitivities
from aero.sensitivity.setting import WIDTH, Setting, learning_rates

NORMAL_975 = 1.959964
"""Quantile of the normal distribution, for the interval of a share."""
NEAREST = 5
SEVERAL = "other_width"
"""The mark of what is taken over many settings, whose widths are 3 and 4."""
FORMS = {"relu": "φ = ReLU", "relu_performer": "φ = ReLU + ε"}
"""The ReLU kernel's two usual forms, by core: with the first, a row can be empty; ε is that of Performer."""


@dataclass(frozen=True)
class Search:
    """Sensitivities by core of every (setting number, reading) that was run, and the settings' values by number.

    decades: by (number, steps) and core, between the lowest and the highest rate that trains
        (`aero.report.sensitivity.TRAINS`); None where none does.
    """

    file: str
    found: dict[tuple[int, Reading], dict[str, float]]
    settings: dict[int, dict[str, str]]
    decades: dict[tuple[int, int], dict[str, float | None]]

    @property
    def numbers(self) -> list[int]:
        return sorted({number_ for number_, _ in self.found})

    @property
    def trained(self) -> frozenset[tuple[int, int]]:
        """(number, steps) of the settings in which any core trains at some rate."""
        return frozenset(key for key, decades in self.decades.items() if any(v is not None for v in decades.values()))

    @property
    def learning(self) -> frozenset[tuple[int, int]]:
        """(number, steps) of the settings in which softmax trains at some rate."""
        return frozenset(key for key, of_core in self.decades.items() if of_core.get("softmax") is not None)


@dataclass(frozen=True)
class Share:
    """A fraction of settings (each the mean over its readings) with its 95 % interval (Wilson's, settings as draws)."""

    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return f"{self.value:.0%} [{self.low:.0%}, {self.high:.0%}]"


def search(results: Results) -> Search | None:
    """The search's results, fresh ones if they are more; None if there are none."""
    files = [results.root / folder / "search.csv" for folder in FOLDERS]
    there = [path for path in files if path.is_file()]
    if not there:
        return None
    return _read(max(there, key=lambda path: path.stat().st_size), results.root)


@cache
def _read(path: Path, root: Path) -> Search | None:
    lines = read(path)
    found = sensitivities(lines)
    settings = {int(line["number"]): {name: line[name] for name in REASONABLE} for line in lines}
    decades: dict[tuple[int, int], dict[str, float | None]] = {}
    for line in lines:
        trained = trained_decades(learning_rates(), read_losses(line).tolist(), float(line["zero_loss"]))
        decades.setdefault((int(line["number"]), int(line["steps"])), {})[line["core"]] = trained
    return Search(str(path.relative_to(root)), found, settings, decades) if found else None


def not_run(results: Results) -> str | None:
    """What the search still lacks, in a line; None if it is complete."""
    found = search(results)
    count, of = len(found.numbers) if found else 0, len(reasonable())
    return None if count == of else f"search over settings of variance_sensitivity: {of - count} of {of} not run"


def published() -> dict[str, float]:
    """Table 1 by core."""
    by_title = {core.title: name for name, core in CORES.items()}
    return {by_title[row.name]: row.cells["sensitivity"].value for row in load(PAPER).tables["1"].rows}


def distance(values: Mapping[str, float]) -> float:
    """Root mean square of the differences from the published seven."""
    printed = published()
    return math.sqrt(sum((values[core] - printed[core]) ** 2 for core in ORDER) / len(ORDER))


def share(found: Search, conclusion: str, among: Collection[tuple[int, int]] | None = None) -> Share:
    """How often a conclusion holds: every setting counts alike, with the fraction of its readings that agree.

    among: (number, steps) of the settings and readings that count; None for all.
    """
    holds = CONCLUSIONS[conclusion].holds
    by_setting: dict[int, list[bool]] = {}
    for (number_, reading), values in found.found.items():
        if among is None or (number_, reading.steps) in among:
            by_setting.setdefault(number_, []).append(holds(values))
    fractions = [sum(flags) / len(flags) for flags in by_setting.values()]
    return Share(sum(fractions) / len(fractions), *wilson(sum(fractions) / len(fractions), len(fractions)))


def wilson(fraction: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share seen in `count` settings; for fractions a bit too wide."""
    square = NORMAL_975**2
    centre = (fraction + square / (2 * count)) / (1 + square / count)
    half = NORMAL_975 * math.sqrt(fraction * (1 - fraction) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, centre - half), min(1.0, centre + half)


def table_nearest(results: Results) -> Html:
    """The settings nearest to Table 1, one reading each, beside the published values and the sweep."""
    found, measured = search(results), sweep(results)
    if found is None:
        return Html(f"<p>The search over what the paper leaves open: {gap()}.</p>")
    printed = published()
    cells = [number(f"{printed[core]:.2f}", "published", f"{PAPER} Table 1") for core in ORDER]
    rows = [["published", *cells, ""]]
    if measured is not None and set(ORDER) <= set(measured.final):
        means = {core: measured.of_means(core) for core in ORDER}
        cells = [number(f"{means[core]:.2f}", measured.origin, f"{measured.folder}/losses.csv") for core in ORDER]
        seeds = f"the sweep of Table 1, {len(measured.seeds)} seeds averaged"
        rows.append([seeds, *cells, number(f"{distance(means):.2f}", measured.origin, f"{measured.folder}/losses.csv")])
    middle = fmean(printed.values())
    cells = [number(f"{middle:.2f}", "published", f"{PAPER} Table 1") for _ in ORDER]
    flat = number(f"{distance(dict.fromkeys(ORDER, middle)):.2f}", "published", f"{PAPER} Table 1")
    rows.append(["all seven alike, at their published mean", *cells, flat])
    places = []
    for relu, meaning in FORMS.items():
        ranking = ranked(found, relu)
        if measured is not None and (place := place_of(found, relu, measured)) is not None:
            places.append(f"number {place} of {len(ranking)} with {meaning}")
        shown = ranking[:NEAREST]
        if not any(_width(found, number_) == WIDTH for number_, _, _ in shown):
            shown += [item for item in ranking if _width(found, item[0]) == WIDTH][:1]
        rows.append([f"<i>nearest with {meaning}</i>", *[""] * (len(ORDER) + 1)])
        for number_, off, reading in shown:
            values = found.found[number_, reading]
            mark = origin_of(_setting(found.settings[number_], reading.steps))
            cells = [number(f"{values[core]:.2f}", mark, found.file) for core in ORDER]
            label = escape(words(found.settings[number_], reading))
            rows.append([label, *cells, number(f"{off:.2f}", mark, found.file)])
    heads = [
        "setting",
        *(CORES[core].title.replace(" Kernel", "").replace("Window Softmax", "Window") for core in ORDER),
    ]
    caption = (
        f"<b>The nearest settings.</b> Of {len(found.numbers)} settings drawn from {len(reasonable())} reasonable ones "
        "with the reading of each that comes nearest: sensitivities of one seed, and the root mean square of their "
        "differences from the published seven. The two forms of the ReLU kernel are ranked apart; the row of Table 1 "
        f"and of the sweep is the one with {FORMS['relu']}; Performer’s ε leaves no row without a key to attend to. "
        + (f"At the sweep’s own steps and l0 its setting is {' and '.join(places)}. " if places else "")
        + "All this rests on single seeds, and the nearest are the best of hundreds of readings; the row of the sweep "
        "shows how far other seeds can move a setting, that of seven alike values how far off a table without any "
        "difference between the cores is: what is not clearly nearer explains nothing. The next table has "
        "them with fresh seeds. "
        f"The paper prints D={WIDTH}; a hidden state of x3+y has 4 numbers. "
        f"Read from <code>{escape(found.file)}</code>."
    )
    return Html(grid([*heads, "off"], rows, caption, "sensitivity-nearest", (0.29, *[0.09] * 7, 0.08), "dense"))


def ranked(found: Search, relu: str) -> list[tuple[int, float, Reading]]:
    """Number, distance and nearest reading of every setting, the nearest first, with one form of the ReLU kernel."""
    best: dict[int, tuple[float, Reading]] = {}
    for (number_, reading), values in found.found.items():
        if reading.relu == relu and (number_ not in best or distance(values) < best[number_][0]):
            best[number_] = distance(values), reading
    return sorted(((number_, *of) for number_, of in best.items()), key=lambda item: item[1])


def place_of(found: Search, relu: str, measured: Sweep) -> int | None:
    """Where the sweep's setting stands, from 1, among all settings by the distance of the reading that is the sweep's
    too, by steps and l_0; None if the search has not run it, or no such reading."""
    own = {name: str(getattr(measured.setting, name)) for name in REASONABLE}
    reading = Reading(measured.setting.steps, measured.about["setting"]["initial"], relu)
    offs = {number_: distance(values) for (number_, of), values in found.found.items() if of == reading}
    mine = [off for number_, off in offs.items() if found.settings[number_] == own]
    return 1 + sum(off < mine[0] for off in offs.values()) if mine else None


def _setting(values: Mapping[str, str], steps: int) -> Setting:
    """The setting of a line of search.csv."""
    named = {name: values[name] for name in REASONABLE}
    named |= {"residual": values["residual"] == "True", "batch": int(values["batch"])}  # type: ignore[dict-item]
    return Setting(**named, steps=steps)  # type: ignore[arg-type]


def _width(found: Search, number_: int) -> int:
    return _setting(found.settings[number_], 1).width


def words(setting: Mapping[str, str], reading: Reading | None = None) -> str:
    """A setting of search.csv in words, with the reading's choices."""
    made = _setting(setting, reading.steps if reading else reasonable()[0].steps)
    if reading is None:
        return str(made).rsplit(",", 1)[0]
    return f"{made}, l0 {reading.initial}, {FORMS[reading.relu]}"


def choices(found: Search) -> dict[str, dict[str, list[tuple[int, Reading]]]]:
    """(setting, reading) pairs by choice and value, for everything that is left open."""
    grouped: dict[str, dict[str, list[tuple[int, Reading]]]] = {}
    for key in found.found:
        number_, reading = key
        made = {**found.settings[number_], "steps": str(reading.steps)}
        made |= {"l0": reading.initial, "ReLU": FORMS[reading.relu]}
        for name, value in made.items():
            grouped.setdefault(name, {}).setdefault(value, []).append(key)
    return grouped


def table_influence(results: Results) -> Html:
    """What each choice does to the table: medians over all settings and readings that share a value.

    Not means: an untrained model with large weights has a loss of hundreds, and so would have its sensitivity.
    """
    found = search(results)
    if found is None:
        return Html("")
    rows = []
    for name, by_value in choices(found).items():
        for value, keys in sorted(by_value.items()):
            values = [found.found[key] for key in keys]
            medians = [median(v[core] for v in values) for core in ORDER]
            agree = sum(CONCLUSIONS["stable_below_softmax"].holds(v) for v in values) / len(values)
            near = min(distance(v) for v in values)
            rows.append(
                [
                    f"{escape(name)}: {escape(value)}",
                    *(number(f"{value_:.2f}", SEVERAL, found.file) for value_ in medians),
                    number(f"{agree:.0%}", SEVERAL, found.file),
                    number(f"{near:.2f}", SEVERAL, found.file),
                ]
            )
    heads = [
        "choice",
        *(CORES[core].title.replace(" Kernel", "").replace("Window Softmax", "Window") for core in ORDER),
    ]
    caption = (
        f"<b>What each open choice does.</b> Median sensitivity over those of the {len(found.numbers)} settings that "
        f"were run (of {len(reasonable())}), and their readings, with that value; how "
        "often QK-LayerNorm and ReLU are both below all softmax-based cores; the smallest distance from the paper's."
    )
    return Html(
        grid(
            [*heads, "agrees", "nearest"],
            rows,
            caption,
            "sensitivity-influence",
            (0.23, *[0.09] * 7, 0.07, 0.07),
            "dense",
        )
    )


def table_conclusions(results: Results) -> Html:
    """Each conclusion of the paper with the share of reasonable settings in which it holds."""
    found, measured = search(results), sweep(results)
    if found is None:
        return Html("")
    learning = found.learning
    rows = []
    for name, conclusion in CONCLUSIONS.items():
        in_sweep = gap()
        if measured is not None and set(ORDER) <= set(measured.final):
            by_seed = [{core: measured.sensitivities(core)[seed] for core in ORDER} for seed in measured.seeds]
            agree = sum(conclusion.holds(values) for values in by_seed)
            in_sweep = number(f"{agree} of {len(by_seed)} seeds", measured.origin, f"{measured.folder}/losses.csv")
        rows.append(
            [
                f'{escape(conclusion.text)}<br><span class="where">{escape(conclusion.where)}</span>',
                number(share(found, name).text, SEVERAL, found.file),
                number(share(found, name, learning).text, SEVERAL, found.file) if learning else gap(),
                in_sweep,
            ]
        )
    caption = (
        f"<b>Which conclusions survive the choice of setting.</b> Share of {len(found.numbers)} settings drawn at "
        f"random from {len(reasonable())} reasonable ones (one seed each, every setting by the fraction of its "
        "readings), with Wilson's 95 % interval, settings as draws; the same share of the "
        f"{len({number_ for number_, _ in learning})} of them in which softmax trains at some rate (below half of the "
        "loss of predicting 0), by the readings with a number of steps at which it does; and in the setting of "
        f"Table 1. In {len(found.numbers) - len({number_ for number_, _ in found.trained})} of them no core trains at "
        "any rate: there it is decided by how losses that nothing learnt are clipped."
    )
    heads = ["conclusion", "share of settings", "share where softmax trains", "in the sweep"]
    return Html(grid(heads, rows, caption, "sensitivity-conclusions", (0.46, 0.19, 0.19, 0.16), "dense"))


def table_ranges(results: Results) -> Html:
    """Over how many decades of the learning rate each core trains, by the number of steps: what Figure 2 is about."""
    found = search(results)
    if found is None:
        return Html("")
    rows = []
    for steps in STEPS:
        chosen = [of_core for key, of_core in found.decades.items() if key[1] == steps and key in found.learning]
        for core in (*ORDER, *(core for core in FORMS if core not in ORDER)):
            decades = sorted(of_core.get(core) or 0.0 for of_core in chosen)
            cells = [f"{median(decades):.1f}", f"{decades[-1]:.1f}"] if decades else []
            rows.append(
                [
                    str(steps),
                    escape(CORES[core].title),
                    str(sum(of_core.get(core) is not None for of_core in chosen)),
                    *(number(text, SEVERAL, found.file) for text in cells),
                ]
            )
    counts = " and ".join(f"{sum(of == steps for _, of in found.learning)} at {steps:,} steps" for steps in STEPS)
    caption = (
        "<b>Over how many decades of the learning rate a core trains.</b> From the lowest to the highest rate whose "
        "final loss is below half of that of predicting 0, of the grid's six decades, in the settings of the search in "
        f"which softmax trains at some rate ({counts}); 0 for one rate or none. In the paper's Figure 2 the ReLU "
        "kernel trains over “nearly five orders of magnitude”."
    )
    heads = ["steps", "re-weighting function", "settings in which it trains", "median decades", "most decades"]
    return Html(grid(heads, rows, caption, "sensitivity-ranges", (0.1, 0.36, 0.22, 0.16, 0.16), "dense"))
