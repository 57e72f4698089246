"""Entropy-Guided Attention: the figures and tables that are not AERO's too.

Its Figures 5, 6 and 7 are AERO's 10, 18 and 19; the rows of its Tables 2 and 4 to 7 are those of AERO's 2 and 4 to 8.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from aero.report.differences import perplexities
from aero.report.papers.panels import (
    REGULARISED,
    STABILISED,
    STABILISED_RUNS,
    TABLE_2_RUNS,
    heatmaps,
    notation,
    over_training,
)
from aero.report.perplexity import change
from aero.report.results import Results
from aero.report.statistics import difference, estimate

PARTS = ("sm-scfuffn", "smt-scfuffn", "ereg-sm-scfuffn", REGULARISED)
"""Temperature and regulariser, apart and together."""
REGULARISED_RUNS = {"sm-scfuffn": REGULARISED, "sm-scfuffni-6": "ereg-smt-scfuffni-6"}


def figure_2(results: Results) -> Figure:
    return heatmaps(results, TABLE_2_RUNS, columns=6, height=1.9)


def figure_4(results: Results) -> Figure:
    names = ("SM+LN+G", "SM", *STABILISED, "entropy reg.")
    lettered = [f"({letter}) {name}" for letter, name in zip("abcdef", names, strict=True)]
    return over_training(results, ("sm-ln-g", "sm", *STABILISED_RUNS, REGULARISED), lettered)


def table_3(results: Results) -> pd.DataFrame:
    return perplexities(results, "3", "entropy_guided")


def parts(results: Results) -> pd.DataFrame:
    """What temperature and regulariser do to the perplexity of SM+ScFuFFN, apart and together, paired by seed."""
    lines = []
    names = ("neither", "temperature", "regulariser", "both")
    for run, name in zip(PARTS, names, strict=True):
        own, found = estimate(results.perplexity(run)), change(results, run, "sm-scfuffn").estimate
        lines.append(
            {
                "added to SM+ScFuFFN": name,
                "perplexity": "–" if own is None else f"{own.mean:.2f}",
                "change, %": "–" if found is None or run == "sm-scfuffn" else found.text(1),
                "seeds": str(len(results.seeds(run))),
            }
        )
    return pd.DataFrame(lines)


def change_of_heads(results: Results) -> pd.DataFrame:
    """Change in the share of overloaded and collapsed heads by temperature and regulariser, paired by seed."""
    lines = []
    for plain, regularised in REGULARISED_RUNS.items():
        line = {"without": notation(results, plain), "with": notation(results, regularised)}
        for name, quarters in {"overloaded, % points": (3,), "collapsed, % points": (0,)}.items():
            sides = (results.share_of_heads(run, quarters) for run in (regularised, plain))
            found = estimate({seed: 100 * value for seed, value in difference(*sides).items()})
            line[name] = "–" if found is None else found.text(0)
        lines.append(line)
    return pd.DataFrame(lines)
