"""AERO Figures 20 and 21: FLOPs of attention and feed-forward network by context length, counted by Appendix E."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.architecture import parse
from aero.flops import GPT2, PYTHIA, Sizes, count, crossover
from aero.report.drawing import AS_WRITTEN, INK, PAPER, PUBLISHED, style, swatch
from aero.report.entropy_drawing import grid
from aero.report.figure_index import Untrained, stands_for
from aero.report.results import Results

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
_NOTE = (
    "FLOPs per token of the whole stack, counted by Appendix E; those of a forward pass are T times as many. Above "
    "each bar: the feed-forward networks' share. Dotted: T = 8d/3, where both are equal to within one part in 8d."
)
_COUNTED = Untrained(
    present=lambda results: "counted",
    sizes="published sizes",
    caption=lambda results: "Counted at the published sizes; nothing is trained, so there is no scale and no seed.",
)


def shares(sizes: Sizes) -> dict[int, float]:
    """The feed-forward networks' share of all FLOPs at each context length."""
    return {context: count(parse("SM+LN+G"), sizes, context).ffn_share for context in CONTEXTS}


@stands_for("aero/figure20", title="AERO Figure 20, FLOPs of GPT-2 by context length", note=_NOTE, untrained=_COUNTED)
def figure_20(results: Results) -> Figure:
    """AERO Figure 20: FLOPs of GPT-2, small to XL, from 128 to 8K tokens."""
    del results
    return _breakdown(GPT2, 2)


@stands_for("aero/figure21", title="AERO Figure 21, FLOPs of Pythia by context length", note=_NOTE, untrained=_COUNTED)
def figure_21(results: Results) -> Figure:
    """AERO Figure 21: FLOPs of Pythia, 70M to 12B, from 128 to 8K tokens."""
    del results
    return _breakdown(PYTHIA, 2)


def _breakdown(models: Mapping[str, Sizes], columns: int) -> Figure:
    height = 1.75
    rows = -(-len(models) // columns)
    with style():
        figure, panels = grid(len(models), columns, height, top=0.5, wspace=0.16, hspace=0.5)
        for place, (panel, (name, sizes)) in enumerate(zip(panels, models.items(), strict=True)):
            _bars(panel, sizes)
            panel.set_title(
                f"{name} (L={sizes.layers}, d={sizes.width}), 8d/3 = {8 * sizes.width / 3:,.0f}", fontsize=8
            )
            if place % columns == 0:
                panel.set_ylabel("10⁹ FLOPs a token")
            if place >= len(models) - columns:
                panel.set_xlabel("context length T")
        top, unit = 1 - 0.13 / (rows * height), 1 / (rows * height)
        for x, colour, text in ((0.07, AS_WRITTEN, "feed-forward networks"), (0.32, PUBLISHED, "attention")):
            swatch(figure, x, top - 0.07 * unit, colour, "", 0.14 * unit)
            figure.text(x + 0.035, top, text, va="center")
    return figure


def _bars(panel: Axes, sizes: Sizes) -> None:
    places = np.arange(len(CONTEXTS))
    counts = [count(parse("SM+LN+G"), sizes, context) for context in CONTEXTS]
    ffn = np.array([c.ffn / context / 1e9 for c, context in zip(counts, CONTEXTS, strict=True)])
    attention = np.array([c.attention / context / 1e9 for c, context in zip(counts, CONTEXTS, strict=True)])
    panel.bar(places, ffn, 0.72, color=AS_WRITTEN)
    panel.bar(places, attention, 0.72, bottom=ffn, color=PUBLISHED)
    box = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}  # the dotted line passes behind the percentages
    for place, total, counted in zip(places, ffn + attention, counts, strict=True):
        panel.text(place, total, f"{counted.ffn_share:.0%}", ha="center", va="bottom", fontsize=7, bbox=box)
    panel.set_ylim(0, (ffn + attention).max() * 1.16)
    panel.set_xlim(-0.6, len(CONTEXTS) - 0.4)
    equal = float(np.log2(crossover(sizes.width) / CONTEXTS[0]))
    if equal < len(CONTEXTS) - 0.5:
        panel.axvline(equal, color=INK, linewidth=0.9, linestyle=":")
    panel.set_xticks(places, [str(c) if c < 1024 else f"{c // 1024}K" for c in CONTEXTS])
    panel.grid(axis="y")
