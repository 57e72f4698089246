"""What the notebooks in reports/ have in common: tables of what was trained and of its attention, as data frames."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from aero.report import claims
from aero.report.marks import Html
from aero.report.results import Results
from aero.report.statistics import estimate, relative


def claims_of(results: Results, paper: str) -> Html:
    """The paper's claims with their verdicts."""
    judged = claims.judge(results, paper)
    return Html(claims.table(judged, paper).to_html(index=False))


def trained(results: Results, runs: Iterable[str], baseline: str = "sm-ln-g") -> pd.DataFrame:
    """One line a run that is there: seeds, evaluation perplexity, and its increase over `baseline` in per cent, paired
    by seed, with the 95 % t-interval (NaN for one seed).
    """
    lines = []
    for name in runs:
        seeds = results.seeds(name)
        if not seeds:
            continue
        perplexity = estimate(results.perplexity(name))
        increase = estimate(relative(results.perplexity(name), results.perplexity(baseline)))
        lines.append(
            {
                "run": name,
                "architecture": seeds[0].architecture,
                "seeds": len(seeds),
                "diverged": sum(run.diverged for run in seeds),
                "perplexity": perplexity.mean if perplexity else np.nan,
                "increase, %": increase.mean if increase else np.nan,
                "low": increase.low if increase and increase.has_interval else np.nan,
                "high": increase.high if increase and increase.has_interval else np.nan,
            }
        )
    return pd.DataFrame(lines).set_index("run") if lines else pd.DataFrame()


def heads(results: Results, runs: Iterable[str]) -> pd.DataFrame:
    """One line a head of every run and seed with entropies: run, seed, layer, head, mean entropy in nats, and its share
    of the largest one observed in its model.
    """
    lines = []
    for name in runs:
        for run in results.seeds(name):
            if run.entropy is None:
                continue
            grid = np.array(run.entropy.mean)
            top = np.nanmax(grid)
            for layer, row in enumerate(grid, start=1):
                for head, value in enumerate(row, start=1):
                    lines.append((name, run.seed, layer, head, value, value / top))
    return pd.DataFrame(lines, columns=["run", "seed", "layer", "head", "entropy", "of observed maximum"])
