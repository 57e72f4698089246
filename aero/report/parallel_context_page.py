"""The report's section on parallel context encoding, put together."""

from __future__ import annotations

from collections.abc import Sequence

from aero.report import parallel_context_figures as figures
from aero.report.marks import Html
from aero.report.page import figure_of
from aero.report.parallel_context import (
    Measured,
    caption_of,
    own_models,
    table_ablation,
    table_correlation,
    table_cost,
    table_main,
    table_methods,
    table_others,
)
from aero.report.results import Results


def section(results: Results) -> Html:
    """Tables and figures; gaps where nothing was measured."""
    models = own_models(results)
    parts = [table_main(results)]
    if models:
        parts += [
            _figure(results, models, figures.figure_parallel_performance, "Performance against P", _LINES),
            _figure(results, models, figures.figure_parallel_entropy, "Attention entropy against P", _LINES),
            table_correlation(results),
            _figure(
                results,
                models,
                figures.figure_parallel_correlation,
                "Entropy against what is lost",
                "One point a degree of parallelism; r: without a remedy.",
            ),
            _figure(
                results,
                models,
                figures.figure_parallel_norms,
                "Key and value norms by layer",
                "Language modelling, mean over heads and episodes; with P=1 the first token is the context's. The first"
                " layer's norms depend on the token alone. Dashed, where it was measured: the same tokens in full"
                " attention; both then without the first segment, which sees the same at any P.",
            ),
            table_methods(results),
            table_ablation(results),
        ]
    parts += [table_others(results), table_cost(results)]
    parts.append(
        figure_of(
            results,
            figures.figure_parallel_cost,
            "Time and memory against P",
            "Ratios to full attention of what the table above has.",
        )
    )
    return Html("".join(part.text for part in parts))


_LINES = "Means over seeds, bands their range; dashed: full attention."


def _figure(results: Results, models: Sequence[Measured], function: object, title: str, words: str) -> Html:
    return figure_of(results, function, title, f"{words} {caption_of(models)}")
