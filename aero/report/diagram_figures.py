"""The two diagrams of `entropy_guided`, with measured numbers in them: the two parties, and the simplified layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from aero.architecture import parse
from aero.flops import GPT2, count
from aero.report.drawing import AS_WRITTEN, GRID, INK, MUTED, TUNED, WIDTH, style
from aero.report.figure_index import Untrained, stands_for
from aero.report.marks import measured_at
from aero.report.results import Results

CHANGED = "ereg-smt-scfuffn"
STEPS = (
    ("LayerNorm", "layer_norm", "inverse square root"),
    ("Q, K, V: X W", "linear", "product with the server's own"),
    ("Q Kᵀ", "scores", "product of two secrets"),
    ("softmax", "softmax_plain", "maximum, exponential, division"),
    ("P V", "mix", "product of two secrets"),
    ("GELU", "gelu_plain", "comparisons, polynomial"),
    ("ReLU instead", "relu", "one comparison"),
)
"""Steps of a layer, the operation each is measured as, and what it needs; ReLU beside the GELU that it replaces."""


def _largest(results: Results, kind: str) -> dict[str, str] | None:
    """The largest measured operation of a kind at GPT-2's dimensions and T = 128, square ones of products."""
    found = [
        line
        for line in results.operations
        if (line.get("op"), line.get("model"), line.get("context")) == (kind, "gpt2", "128")
        and (kind != "linear" or line.get("shape") == "128x768,768x768")
    ]
    return max(found, key=_bytes, default=None)


def _bytes(operation: dict[str, str]) -> float:
    return float(operation["bytes_sent_client"]) + float(operation["bytes_sent_server"])


def _measured(results: Results) -> list[dict[str, str]]:
    """The operations that are there, of all that the figure has a bar for."""
    return [found for _, kind, _ in STEPS if (found := _largest(results, kind)) is not None]


def _caption(results: Results) -> str:
    """What stands in the caption where others have scale and seeds."""
    if not (found := _measured(results)):
        return "Measured side: GPT-2 small's dimensions, not measured yet; nothing is trained."
    return (
        "Measured side: GPT-2 small's dimensions; nothing is trained, so there is no scale and no seed; "
        f"{measured_at(found)}."
    )


@stands_for(
    "entropy_guided/figure1",
    title="Entropy-Guided Attention Figure 1, who holds what, and what the protocols cost",
    note="Both parties are semi-honest. Bars: MB in both directions of one such operation of GPT-2 small at T = 128, "
    "as written, measured between two processes (results/two_party/ops.csv); X W: one of 768 x 768.",
    untrained=Untrained(
        present=lambda results: f"{len(_measured(results))} of {len(STEPS)} operations measured",
        sizes="GPT-2 small's dimensions",
        caption=_caption,
    ),
)
def guided_figure_1(results: Results) -> Figure:
    """Entropy-Guided Attention Figure 1: threat model and protocols, with the measured bytes of every step."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.3))
        # Between the two panels stand the names of the bars, a quarter of the page wide.
        parties, bars = (figure.add_axes((x, 0.14, width, 0.78)) for x, width in ((0.01, 0.34), (0.61, 0.36)))
        _parties(parties)
        found = [_largest(results, kind) for _, kind, _ in STEPS]
        sizes = [None if operation is None else _bytes(operation) / 1e6 for operation in found]
        places = np.arange(len(STEPS))
        for place, (size, (_, kind, needs)) in enumerate(zip(sizes, STEPS, strict=True)):
            if size is None:
                bars.text(0, place, f" not measured yet: {kind}", va="center", color=MUTED, style="italic", fontsize=7)
                continue
            linear = "product" in needs
            bars.barh(place, size, 0.62, color=AS_WRITTEN if linear else "#d55e00")
            bars.text(size, place, f" {size:,.0f} MB", va="center", fontsize=7)
        bars.set_yticks(places, [f"{name}\n{needs}" for name, _, needs in STEPS], fontsize=6.5)
        bars.invert_yaxis()
        bars.tick_params(axis="y", length=0)
        if any(sizes):
            bars.set_xlim(0, max(size or 0.0 for size in sizes) * 1.3)
        bars.set_xlabel("MB, both directions")
        bars.set_title("one operation of a layer")
        bars.grid(axis="x")
    return figure


def _parties(panel: Axes) -> None:
    panel.set_axis_off()
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1)
    panel.set_title("two parties")
    _box(panel, 0.0, 0.62, 0.44, 0.3, "client\nprompt", TUNED)
    _box(panel, 0.56, 0.62, 0.44, 0.3, "server\nweights", AS_WRITTEN)
    _box(panel, 0.0, 0.1, 1.0, 0.26, "every step on secret shares:\nneither party sees an activation", MUTED)
    for x, text in ((0.22, "shares of\nthe prompt"), (0.78, "its own\nweights")):
        panel.annotate("", (x, 0.37), (x, 0.61), arrowprops={"arrowstyle": "<->", "color": INK, "linewidth": 0.9})
        panel.text(x + 0.03, 0.49, text, fontsize=7, va="center")
    panel.text(0.5, 0.02, "the client alone learns the logits", ha="center", fontsize=7.5)


def _box(panel: Axes, x: float, y: float, width: float, height: float, text: str, colour: str) -> None:
    shape = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.03",
        facecolor=GRID,
        edgecolor=colour,
        linewidth=1.2,
        clip_on=False,
    )
    panel.add_patch(shape)
    panel.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=7.5)


@stands_for(
    "entropy_guided/figure3",
    title="Entropy-Guided Attention Figure 3, the simplified layer",
    note="One layer before and after, from bottom to top; orange: nonlinear. Counts: applications in GPT-2 small at "
    "T = 128. Ranges: learned values of the first seed, t being its mean over a head's positions.",
    runs=(CHANGED,),
    needs=("temperatures not stored", "thresholds not stored", "scaling of the FFN not stored"),
)
def guided_figure_3(results: Results) -> Figure:
    """Entropy-Guided Attention Figure 3: a layer of SM+LN+G, one of EReg(SM(t)+ScFuFFN) and what that has learned."""
    trained = results.first(CHANGED)
    learned = trained.entropy.learned if trained and trained.entropy else {}

    def span(name: str) -> str:
        values = np.array(learned.get(name) or [], dtype=float)
        return f"{values.min():.2g} to {values.max():.2g}" if values.size else f"not run yet: {CHANGED}"

    before = [
        ("LayerNorm", "", True),
        ("attention: softmax(Q Kᵀ / √dₖ) V", "", True),
        ("LayerNorm", "", True),
        ("W_in, d × 4d", "", False),
        ("GELU", "", True),
        ("W_out, 4d × d", "", False),
    ]
    after = [
        ("attention: softmax(Q Kᵀ / (t √dₖ)) V", f"t {span('temperature_mean')}", True),
        ("entropy regulariser (training only)", f"thresholds {span('thresholds')}", False),
        ("W_ffn, d × d, divided by α", f"α {span('alpha')}", False),
        ("plus β times its input", f"β {span('beta')}", False),
    ]
    with style():
        figure = Figure(figsize=(WIDTH, 4.2))
        panels = figure.subplots(1, 2)
        figure.subplots_adjust(left=0.02, right=0.98, top=0.91, bottom=0.02, wspace=0.08)
        for panel, name, steps in zip(panels, ("SM+LN+G", "EReg(SM(t)+ScFuFFN)"), (before, after), strict=True):
            _chain(panel, name, steps)
    return figure


def _chain(panel: Axes, name: str, steps: Sequence[tuple[str, str, bool]]) -> None:
    panel.set_axis_off()
    panel.set_xlim(0, 1)
    panel.set_ylim(0, 1)
    panel.set_title(name)
    counted = count(parse(name), GPT2["small"], 128)
    letters = {"SM": "softmax", "LN": "LayerNorm", "G": "GELU"}
    text = "\n".join(f"{o.count} × {letters[o.name]} of {o.rows} × {o.columns}" for o in counted.nonlinear)
    panel.text(0.5, 0.97, text, ha="center", va="top", fontsize=7, color=MUTED)
    height, bottom, top = 0.1, 0.02, 0.85
    places = np.linspace(bottom, top - height, 6)[: len(steps)]
    for place, (label, value, nonlinear) in zip(places, steps, strict=True):
        _box(panel, 0.06, place, 0.88, height, label + (f"\n{value}" if value else ""), "#d55e00" if nonlinear else INK)
    for low, high in zip(places, places[1:], strict=False):
        panel.annotate(
            "", (0.5, high), (0.5, low + height), arrowprops={"arrowstyle": "->", "color": INK, "linewidth": 0.9}
        )
