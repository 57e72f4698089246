"""`variance_sensitivity`, Table 1: what the sweep over learning rates measured, beside the published numbers."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aero.attention_kernels import CORES
from aero.published import load
from aero.report.marks import Html, gap, grid, number, published_number
from aero.report.results import Results
from aero.report.statistics import CONFIDENCE, Estimate, estimate
from aero.report.tables import COLUMNS, csv_text
from aero.sensitivity.metric import clipped, sensitivity, sensitivity_clipped_after, sensitivity_of_means
from aero.sensitivity.setting import LAYERS, TOKENS, WIDTH, Setting

PAPER = "variance_sensitivity"
FOLDERS = ("runs/sensitivity", "results/sensitivity")
TRAINS = 0.5
"""A rate trains if its final loss is below this part of the loss of predicting 0, one bound for every core."""


def trained_decades(rates: Iterable[float], losses: Iterable[float], zero_loss: float) -> float | None:
    """log10 of the highest over the lowest rate that trains, None if none does. zero_loss: that of predicting 0."""
    trained = [rate for rate, loss in zip(rates, losses, strict=True) if loss < TRAINS * zero_loss]
    return math.log10(max(trained) / min(trained)) if trained else None


SETTING = tuple(field.name for field in fields(Setting))


def origin_of(setting: Setting) -> str:
    """The mark of what is measured in a setting: the paper's dimensions only where the width is the printed D, too."""
    return "paper_dimensions" if setting.width == WIDTH else "other_width"


Line = dict[str, str]


@dataclass(frozen=True)
class Sweep:
    """Final losses (R, K) and losses at initialisation (K,) by core, R learning rates and K seeds.

    zero: losses (K,) of predicting 0, on the same sequences. folder: where the files lie, relative to the project's
    root. about: sweep.json. lines: losses.csv.
    """

    folder: str
    about: dict[str, Any]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    final: dict[str, Tensor]
    initial: dict[str, Tensor]
    zero: Tensor
    lines: tuple[Line, ...]

    @property
    def scale(self) -> str:
        return str(self.about["scale"])

    @property
    def origin(self) -> str:
        """Only the training at scale `smoke` is cut short; else the model is the paper's own, if its width is."""
        return "smaller_scale" if self.scale == "smoke" else origin_of(self.setting)

    @property
    def setting(self) -> Setting:
        return Setting(**{name: value for name, value in self.about["setting"].items() if name in SETTING})

    @property
    def figure_rate_by_hand(self) -> bool:
        """Whether the rate that the figures over training show was given by hand and not found by the rule."""
        return bool(self.about.get("figure_rate_by_hand"))

    def sensitivities(self, core: str) -> dict[int, float]:
        values = sensitivity(self.final[core], self.initial[core].double())
        return dict(zip(self.seeds, values.tolist(), strict=True))

    def estimate(self, core: str) -> Estimate | None:
        return estimate(self.sensitivities(core))

    def of_means(self, core: str) -> float:
        """The sensitivity of clipped losses averaged over seeds first (Section 4.3, Figure 2)."""
        return sensitivity_of_means(self.final[core], self.initial[core].double())

    def clipped_after(self, core: str) -> float:
        """The same, clipped after averaging: the paper does not print which comes first."""
        return sensitivity_clipped_after(self.final[core], self.initial[core].double())

    def lowest(self, core: str) -> float:
        """l* of `of_means`: the lowest of the clipped losses that are averaged over seeds."""
        return clipped(self.final[core], self.initial[core].double()).mean(1).min().item()

    def estimate_of_means(self, core: str) -> Estimate:
        """`of_means` with a 95 % bootstrap interval over seeds.

        K seeds are few enough to take every one of the K^K resamples instead of a random part of them. Such an interval
        is too narrow for five seeds, but a sensitivity of averages is one number and has no t-interval.
        """
        final, initial = self.final[core], self.initial[core].double()
        count = len(self.seeds)
        values = []
        for draw in itertools.combinations_with_replacement(range(count), count):
            orders = math.factorial(count) // math.prod(map(math.factorial, Counter(draw).values()))
            seeds = list(draw)
            values.append((sensitivity_of_means(final[:, seeds], initial[seeds]), orders))
        values.sort()
        low, high = (_quantile(values, tail) for tail in (0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2))
        several = count > 1
        return Estimate(self.of_means(core), low if several else None, high if several else None, self.seeds)

    def first_seed(self, name: str, results: Results) -> list[Line]:
        """Lines of traces.csv or gains.csv of the first seed, which the figures draw."""
        return [line for line in read(results.root / self.folder / name) if int(line.get("seed") or 0) == self.seeds[0]]

    def training_rates(self, core: str) -> dict[int, int]:
        """Learning rates, by seed, whose final loss is below half that of predicting 0.

        Not half of l_0: sigmaReparam starts from nearly twice the loss of the others, so that half of its l_0 is about
        the loss of predicting 0.
        """
        trained = self.final[core] < TRAINS * self.zero
        return dict(zip(self.seeds, trained.sum(0).tolist(), strict=True))


def _quantile(values: list[tuple[float, int]], share: float) -> float:
    """The smallest of the sorted (value, times) with at least `share` of all times at or below it."""
    wanted, seen = share * sum(times for _, times in values), 0
    for value, times in values:
        seen += times
        if seen >= wanted:
            return value
    raise ValueError("no values")


def folder(results: Results) -> str | None:
    """Where the sweep is that the report is about: a fresh one of the report's scale, else the kept one."""
    found = {f: _about(results.root / f) for f in FOLDERS}
    fresh, kept = (found[f] for f in FOLDERS)
    if fresh and (not kept or fresh.get("scale") == results.scale):
        return FOLDERS[0]
    return FOLDERS[1] if kept else None


def _about(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / "sweep.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def sweep(results: Results) -> Sweep | None:
    """The sweep, None if there is none."""
    if (place := folder(results)) is None:
        return None
    lines = read(results.root / place / "losses.csv")
    rates = tuple(dict.fromkeys(float(line["rate"]) for line in lines))
    seeds = tuple(dict.fromkeys(int(line["seed"]) for line in lines))
    final: dict[str, Tensor] = {}
    initial: dict[str, Tensor] = {}
    zero = torch.zeros(len(seeds), dtype=torch.float64)
    for line in lines:
        core, r, k = line["core"], rates.index(float(line["rate"])), seeds.index(int(line["seed"]))
        final.setdefault(core, torch.full((len(rates), len(seeds)), torch.inf, dtype=torch.float64))
        initial.setdefault(core, torch.zeros(len(seeds), dtype=torch.float64))
        final[core][r, k] = float(line["final_loss"] or math.inf)
        initial[core][k], zero[k] = float(line["initial_loss"]), float(line["zero_loss"])
    return Sweep(place, _about(results.root / place) or {}, rates, seeds, final, initial, zero, tuple(lines))


def read(path: Path) -> list[Line]:
    """Lines of a CSV file, none if it is not there."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []


def titles() -> dict[str, str]:
    """Title by core, those of the printed Table 1 first and in its order."""
    printed = [row.name for row in load(PAPER).tables["1"].rows]
    by_title = {core.title: name for name, core in CORES.items()}
    first = {by_title[title]: title for title in printed if title in by_title}
    return first | {name: core.title for name, core in CORES.items() if name not in first}


def setting_text(about: Mapping[str, Any]) -> str:
    """The setting of sweep.json in words."""
    chosen = about["setting"]
    residual = "residual connections" if chosen["residual"] else "no residual connections"
    return (
        f"{chosen['hidden']} hidden state, {residual}, {chosen['readout']} readout, init {chosen['init']}, "
        f"{chosen['steps']} steps of SGD on batches of {chosen['batch']} ({chosen['data']}), "
        f"{chosen['reduction']} loss, final loss over the last {min(chosen['window'], chosen['steps'])} steps, "
        f"l0 of {'predicting 0' if chosen['initial'] == 'zero' else 'the untrained models'} on the same batches"
    )


def width_text(about: Mapping[str, Any]) -> str:
    """D of the setting of sweep.json, and whether it is the printed one."""
    chosen = {name: value for name, value in about["setting"].items() if name in SETTING}
    width = Setting(**chosen).width
    return f"D={width}" + ("" if width == WIDTH else f" (printed: {WIDTH}; what else was tried is below)")


def caption(measured: Sweep) -> str:
    """Scale, setting, seeds, commit and machine of the sweep."""
    origin = measured.about.get("provenance", {})
    revision, plus, _ = str(origin.get("commit", "")).partition("+")
    revision = revision[:10] + ("+changes" if plus else "")
    seconds = sum(measured.about.get("seconds", {}).values())
    return escape(
        f"Measured side: scale {measured.scale}, the paper's L={LAYERS}, N={TOKENS} and {len(measured.rates)} learning "
        f"rates, {width_text(measured.about)}; "
        f"{setting_text(measured.about)}; {len(measured.seeds)} seeds; "
        f"all {len(measured.final)} cores in {seconds / 60:.1f} min; commit {revision}; "
        f"machine {origin.get('machine', '')}."
    )


def table_1(results: Results) -> Html:
    """Table 1 with every core of the registry; a gap if the sweep has not been run."""
    printed, measured = load(PAPER).tables["1"], sweep(results)
    none = '<span class="none">–</span>'
    rows = []
    for core, title in titles().items():
        cell = next((row.cells["sensitivity"] for row in printed.rows if row.name == title), None)
        published = published_number(cell, f"{PAPER} Table 1") if cell else none
        if measured is None or core not in measured.final:
            rows.append([escape(title), published, gap(), "", "", "", "", "", ""])
            continue
        source = f"{measured.folder}/losses.csv"
        found, alone = measured.estimate_of_means(core), measured.estimate(core)
        trained = estimate({seed: float(count) for seed, count in measured.training_rates(core).items()})
        diverged = sum(1 for line in measured.lines if line["core"] == core and line["diverged_at_step"])
        rows.append(
            [
                escape(title),
                published,
                number(found.text(), measured.origin, source),
                number(f"{found.mean / cell.value:.2f}", measured.origin, source) if cell else none,
                number(f"{measured.lowest(core):.2f}", measured.origin, source),
                number(f"{measured.clipped_after(core):.2f}", measured.origin, source),
                number(alone.text() if alone else "", measured.origin, source),
                number(f"{trained.mean:.1f}" if trained else "", measured.origin, source),
                number(f"{diverged}", measured.origin, source),
            ]
        )
    heads = [
        "re-weighting function",
        "published",
        "measured",
        "ratio",
        "l*",
        "clipped after",
        "of each seed",
        "rates that train, of 19",
        "diverged, of 95",
    ]
    if measured is not None:
        heads[7:] = [
            f"rates that train, of {len(measured.rates)}",
            f"diverged, of {len(measured.rates) * len(measured.seeds)}",
        ]
    words = (
        "<b>Table 1, sensitivity to the learning rate.</b> E[min(l, l<sub>0</sub>) − l*] over the grid of rates; a "
        "diverged training counts as l<sub>0</sub>, the loss at initialisation, on the sequences of the final loss. "
        "The paper averages final losses over its runs, but does not say whether it clips before or after. Measured: "
        "clipped, then averaged over the seeds at each rate, with the range of 95 % of all resamples of seeds, which "
        "is narrow for so few; l* is its lowest average. Clipped after: averaged, then clipped, a rate at which any "
        "seed diverged counting as the mean l<sub>0</sub>. Of each seed: of its own losses and its own l*, then "
        "averaged, with a t-interval. A rate trains if its final loss is below half of that of predicting 0, one bound "
        "for every core. Rounding decides σReparam’s losses, so its row is one realisation (docs/decisions.md). Rows "
        "without a published number are not in the paper’s table. A low value can mean “never learnt”: where "
        "hardly any rate trains and l* stays high, as with the ReLU kernel, a wrong rate has little to lose. "
    )
    return Html(
        grid(
            heads,
            rows,
            words + (caption(measured) if measured else ""),
            "variance-sensitivity-table-1",
            (0.2, 0.08, 0.16, 0.06, 0.06, 0.08, 0.16, 0.1, 0.1),
        )
    )


def table_1_csv(results: Results) -> str:
    """reports/tables/variance_sensitivity_table1.csv: three lines a core, one a way of averaging. The published number
    stands in the first of them alone."""
    printed, measured = load(PAPER).tables["1"], sweep(results)
    lines = []
    for core, title in titles().items():
        cell = next((row.cells["sensitivity"] for row in printed.rows if row.name == title), None)
        known = measured is not None and core in measured.final
        after = Estimate(measured.clipped_after(core), None, None, measured.seeds) if known else None
        ways = {
            "sensitivity": (measured.estimate_of_means(core) if known else None, "losses clipped, averaged over seeds"),
            "sensitivity clipped after": (after, "losses averaged over seeds, then clipped"),
            "sensitivity of each seed": (measured.estimate(core) if known else None, "of each seed's losses, averaged"),
        }
        for column, (found, note) in ways.items():
            lines.append(
                {
                    "row": title,
                    "column": column,
                    "published": cell.text if cell and column == "sensitivity" else "",
                    "measured": f"{found.mean:.4f}" if found else "",
                    "unit": "loss",
                    "scale": measured.scale if measured and found else "",
                    "seeds": len(found.seeds) if found else 0,
                    "ci_low": f"{found.low:.4f}" if found and found.low is not None else "",
                    "ci_high": f"{found.high:.4f}" if found and found.high is not None else "",
                    "note": note if cell else f"{note}; not a row of the published table",
                }
            )
    return csv_text(lines, COLUMNS)


def files(results: Results) -> dict[Path, str]:
    """Path below the project's root and text of this section's table files."""
    return {Path("reports") / "tables" / f"{PAPER}_table1.csv": table_1_csv(results)}
