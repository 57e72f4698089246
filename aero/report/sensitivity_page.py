"""The report's section on `variance_sensitivity`: its figures and the tables of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from matplotlib.figure import Figure

from aero.report import sensitivity_figures as drawn
from aero.report.marks import Html
from aero.report.page import shown
from aero.report.results import Results
from aero.report.sensitivity import Sweep, setting_text, sweep, titles
from aero.report.sensitivity_nearest import table_best, table_repeated
from aero.report.sensitivity_search import table_conclusions, table_influence, table_nearest, table_ranges

FIGURES: tuple[tuple[Callable[[Results], Figure], str, str], ...] = (
    (
        drawn.figure_2,
        "Variance Sensitivity Figure 2, final loss over the learning rate",
        "Lines are means, bands the range over seeds. Solid: softmax-based; dashed: entropy-stable.",
    ),
    (
        drawn.figure_5,
        "Variance Sensitivity Figure 5, the same for σReparam, ELU+1 and sigmoid",
        "Lines are means, bands the range over seeds.",
    ),
    (
        drawn.figure_1_bottom,
        "Variance Sensitivity Figure 1 (bottom), training behaviour",
        "Entropy and ‖P‖_F: means over layers, band ± standard deviation over layers; dotted and dash-dotted: the "
        "bounds of Proposition 5.3. A cross: the last finite value of a training that diverged; a triangle at the "
        "upper edge: the same, above what is shown. Looked at before every step; drawn at a hundred of them and the "
        "last ten before a divergence, with the largest loss and gradient norm since the point before. A row of "
        "the ReLU kernel that attends to nothing counts as entropy 0.",
    ),
    (drawn.figure_6, "Variance Sensitivity Figure 6, σReparam, ELU+1 and sigmoid", "As above."),
    (drawn.figure_8, "Variance Sensitivity Figure 8, QK-LayerNorm by what is done to γ", "As above."),
    (
        drawn.figure_9,
        "Variance Sensitivity Figure 9, γ layer by layer",
        "Rows: what is done to γ. γ_q and γ_k start equal and enter the logits only by their product, so their "
        "gradients are equal and they stay equal.",
    ),
)


SHOWN = {drawn.figure_1_bottom: drawn.MAIN, drawn.figure_6: drawn.OTHERS, drawn.figure_8: drawn.GAINS}
"""The cores of the figures over training."""


def endings(measured: Sweep | None, cores: Sequence[str]) -> str:
    """Where the curves of the first seed end early, and why; "" if none does, or the rate is none of the sweep's."""
    if measured is None or not cores or not (rate := measured.about.get("figure_rate")):
        return ""
    of_seed = {
        line["core"]: line["diverged_at_step"]
        for line in measured.lines
        if float(line["rate"]) == rate and int(line["seed"]) == measured.seeds[0]
    }
    named = titles()
    ended = [f"{named[core]} at step {of_seed[core]}" for core in cores if of_seed.get(core)]
    return escape(f"Ended by a loss that is not finite: {', '.join(ended)}.") if ended else ""


FIGURE_RATE = "at which most seeds fail with softmax and train with ReLU or QK-LayerNorm"
"""What `aero.sensitivity.sweep.figure_rate` looks for."""


def figures(results: Results) -> Html:
    """All figures of the section."""
    measured = sweep(results)
    parts = []
    for function, title, words in FIGURES:
        name = function.__name__
        identifier = f"variance-sensitivity-{name.replace('_', '-')}"
        source = f"{function.__module__}.{name}"
        over_training = function not in (drawn.figure_2, drawn.figure_5)
        caption = f"{words} {endings(measured, SHOWN.get(function, ()))} {where(measured, over_training)}"
        parts.append(shown(function(results), identifier, title, caption, source).text)
    return Html("".join(parts))


def where(measured: Sweep | None, over_training: bool) -> str:
    """Scale, setting and seeds of a figure; of one over training also its learning rate."""
    if measured is None:
        return ""
    rate = measured.about.get("figure_rate")
    which = f"{len(measured.seeds)} seeds"
    if over_training:
        if measured.figure_rate_by_hand:
            how = f"learning rate {rate:g}, given by hand"
        elif rate:
            how = f"learning rate {rate:g}, the lowest {FIGURE_RATE}"
        else:
            how = f"middle rate, as there is none {FIGURE_RATE}"
        which = f"seed {measured.seeds[0]}, {how}"
    return escape(f"Scale {measured.scale}, {which}; {setting_text(measured.about)}; {measured.folder}.")


def search_tables(results: Results) -> Html:
    """The best single setting, the nearest ones by one seed and again with others, each choice's influence, the
    conclusions over all settings, and where cores train."""
    tables = (table_best, table_nearest, table_repeated, table_influence, table_conclusions, table_ranges)
    return Html("".join(table(results).text for table in tables))
