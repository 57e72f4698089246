"""The figures of attention entropy in `aero` and `entropy_guided`, each drawn by the function named after it.

A function's name is the figure's number in `aero`, or `guided_` and the number in `entropy_guided` where `aero` has no
such figure. Results are those of the first seed, except in the distributions, which are means over seeds.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from aero.published import load
from aero.report.drawing import AS_WRITTEN, INK, MUTED, WIDTH, say_missing, style
from aero.report.entropy_drawing import (
    SIGNED,
    colour_bar,
    depth_colours,
    entropy_heatmaps,
    entropy_over_training,
    grid,
    heatmap,
    layer_lines,
    missing_run,
    number_lines,
    overflow_label,
    overflow_map,
    quarter_bars,
    row_name,
    slope_lines,
)
from aero.report.figure_index import stands_for
from aero.report.figures import TABLE_2_RUNS
from aero.report.results import Results, Run

STABILISED_RUNS = ("sm-wnorm-ffn", "sm-snorm-ffn", "sm-scffn")
STABILISED = ("weight norm. (FFN)", "spectral norm. (FFN)", "scaled FFN")
PRUNED_RUNS = ("sm-scfuffn", *(f"sm-scfuffni-{pruned}" for pruned in range(1, 8)))
MARGIN_RUNS = {
    0.00: "ereg-smt-scfuffn-gamma-00",
    0.05: "ereg-smt-scfuffn-gamma-05",
    0.10: "ereg-smt-scfuffn-gamma-10",
    0.15: "ereg-smt-scfuffn-gamma-15",
    0.20: "ereg-smt-scfuffn",
    0.25: "ereg-smt-scfuffn-gamma-25",
    0.30: "ereg-smt-scfuffn-gamma-30",
}
REGULARISED = "ereg-smt-scfuffn"
POSITION_RUNS = ("sm-ln-g", "sm-g", "sm", REGULARISED)
TEMPERATURE_RUNS = (REGULARISED, "smt-scfuffn")
WHISKERS = (
    "Whiskers: two standard errors of where a quarter ends, for the held-out tokens, by a bootstrap over blocks of "
    "them; none where no head comes near. Seeds differ by more: the table of overload and collapse has both."
)
"""What the captions of `quarter_bars` say of its whiskers."""


@stands_for(
    "aero/figure3",
    title="AERO Figure 3a, heads per quarter of the maximum entropy",
    note="Mean over n seeds, against three maxima. Triangles: where the published fraction of the last quarter begins, "
    f"or of the first ends. {WHISKERS}",
    runs=TABLE_2_RUNS,
    seeds="all",
    needs=("entropies not measured", "blocks of held-out sequences not stored"),
)
def figure_3a(results: Results) -> Figure:
    """AERO Figure 3a: fraction of heads per quarter of the maximum entropy, mean over seeds, against three maxima."""
    names = {row_name(run): run for run in TABLE_2_RUNS}
    facts = load("aero").facts["figures"]["3a"]["fractions"]
    printed = [(names[entry["row"]], tuple(entry["quarters"]), entry["value"]) for entry in facts]
    return quarter_bars(results, TABLE_2_RUNS, printed=printed)


@stands_for(
    "aero/figure4",
    title="AERO Figure 4, learned negative slopes of the leaky ReLU",
    note="Without LayerNorm; (a) a slope a layer, numbers are layers, (b) one for all. All start at 0.01 and are "
    "weight-decayed, which alone pulls them towards 0.",
    runs=("sm-leakyr", "sm-leakyr-global"),
    needs=("slopes not logged",),
)
def figure_4(results: Results) -> Figure:
    """AERO Figure 4: learned negative slopes of the leaky ReLU over training, (a) layerwise and (b) global."""
    with style():
        figure, (layerwise, shared) = grid(2, 2, 2.5, wspace=0.26)
        slope_lines(layerwise, results, "sm-leakyr", "(a) one slope a layer")
        slope_lines(shared, results, "sm-leakyr-global", "(b) one slope for all layers")
        layerwise.set_ylabel("negative slope")
    return figure


@stands_for(
    "aero/figure5",
    title="AERO Figure 5, entropy of every head",
    note="Yellow is overload, dark blue collapse.",
    runs=("sm-ln-g", "sm-ln-r", "sm-g", "sm-r"),
    needs=("entropies not measured",),
)
def figure_5(results: Results) -> Figure:
    """AERO Figure 5: entropy of every head, layer by head, with and without LayerNorm, with GELU and ReLU."""
    return entropy_heatmaps(results, ("sm-ln-g", "sm-ln-r", "sm-g", "sm-r"), columns=4)


@stands_for(
    "aero/figure6",
    title="AERO Figure 6, how the Softmax-only model fails",
    note="(a) values of each block's output, on a held-out batch, that are not finite in float16, in which the papers "
    "train, counted in a training whose precision stands below it; blank: none. (b) entropy of every head after "
    "training.",
    runs=("sm",),
    needs=("counts of overflows not logged", "entropies not measured"),
    overflows=("sm",),
)
def figure_6(results: Results) -> Figure:
    """AERO Figure 6: (a) counts of values that float16 cannot hold in each layer of SM over training, (b) entropies."""
    with style():
        figure = Figure(figsize=(WIDTH, 2.9))
        counts, heads = figure.subplots(1, 2, width_ratios=(2.2, 1))
        figure.subplots_adjust(left=0.07, right=0.9, top=0.9, bottom=0.2, wspace=0.6)
        mesh = overflow_map(counts, results, "sm", "(a) SM")
        counts.set_ylabel("layer")
        if mesh is not None:
            colour_bar(
                figure, mesh, (counts.get_position().x1 + 0.02, 0.24, 0.013, 0.6), overflow_label(results.first("sm"))
            )
        heads.set_title("(b) SM")
        trained = results.first("sm")
        if trained is None or trained.entropy is None:
            missing_run(heads, results, "sm")
        else:
            norm = Normalize(0, trained.entropy.maximum["causal_bound"])
            mesh = heatmap(heads, np.array(trained.entropy.mean), norm)
            heads.set_xlabel("head")
            colour_bar(figure, mesh, (0.92, 0.24, 0.013, 0.6), "mean entropy, nats")
    return figure


@stands_for(
    "aero/figure7",
    title="AERO Figure 7, entropy of the stabilised Softmax-only models",
    note="Weight or spectral normalisation of the feed-forward matrices, and learnable scaling of their output.",
    runs=STABILISED_RUNS,
    needs=("entropies not measured",),
)
def figure_7(results: Results) -> Figure:
    """AERO Figure 7: entropy of every head of SM with weight norm, spectral norm or scaling in the FFN."""
    return entropy_heatmaps(results, STABILISED_RUNS, STABILISED, columns=3)


@stands_for(
    "aero/figure9",
    title="AERO Figure 9, heads per quarter of the maximum entropy, stabilised and regularised",
    note=f"Mean over n seeds. {WHISKERS}",
    runs=(*STABILISED_RUNS, REGULARISED),
    seeds="all",
    needs=("entropies not measured", "blocks of held-out sequences not stored"),
)
def figure_9(results: Results) -> Figure:
    """AERO Figure 9: fraction of heads per quarter of the maximum, stabilised models and the regularised one."""
    return quarter_bars(results, (*STABILISED_RUNS, REGULARISED), (*STABILISED, "entropy reg."))


@stands_for(
    "aero/figure10",
    "entropy_guided/figure5",
    title="AERO Figure 10, learned thresholds of the regulariser",
    note="Fractions of log T, all started at one value (dotted, on the colour bar too), coloured from the lowest to "
    "the highest; (b) mean over a layer's heads, and their variance.",
    runs=(REGULARISED,),
    needs=("thresholds not stored",),
)
def figure_10(results: Results) -> Figure:
    """AERO Figure 10: learned thresholds (a) per head, (b) their mean and variance per layer."""
    with style():
        figure = Figure(figsize=(WIDTH, 2.8))
        columns = figure.add_gridspec(
            1, 4, width_ratios=(1, 0.55, 1.2, 1.2), left=0.07, right=0.98, top=0.87, bottom=0.17, wspace=0.35
        )
        heads, means, variances = (figure.add_subplot(columns[column]) for column in (0, 2, 3))  # in 1, the colour bar
        heads.set_title("(a) thresholds")
        means.set_title("(b) mean over heads")
        variances.set_title("variance over heads")
        trained = results.first(REGULARISED)
        found = trained.entropy.learned.get("thresholds") if trained and trained.entropy else None
        if not found:
            for panel in (heads, means, variances):
                missing_run(panel, results, REGULARISED)
            return figure
        thresholds = np.array(found, dtype=float)  # (L, H)
        layers = np.arange(1, len(thresholds) + 1)
        start = float((trained.metrics.get("model") or {}).get("threshold_init", 0.5))
        reach = max(np.abs(thresholds - start).max(), 1e-6)
        low, high = min(start, thresholds.min()), max(start, thresholds.max())
        mesh = heatmap(heads, thresholds, Normalize(low, max(high, low + 1e-6)))
        heads.set_ylabel("layer")
        heads.set_xlabel("head")
        bar = colour_bar(figure, mesh, (0.285, 0.17, 0.013, 0.7), "fraction of log T")
        bar.ax.axhline(start, color=INK, linewidth=1.6, linestyle=(0, (1, 1)))
        for panel, values in ((means, thresholds.mean(1)), (variances, thresholds.var(1))):
            panel.barh(layers, values, 0.7, color=AS_WRITTEN)
            panel.set_yticks(layers if len(layers) <= 12 else layers[::3])
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="x")
        means.set_xlim(min(start, *thresholds.mean(1)) - 0.2 * reach, max(start, *thresholds.mean(1)) + 0.2 * reach)
        means.axvline(start, color=INK, linewidth=0.8, linestyle=":")
        variances.ticklabel_format(axis="x", style="sci", scilimits=(-2, 2))
        variances.xaxis.get_offset_text().set_fontsize(7)
    return figure


@stands_for(
    "aero/figure11",
    title="AERO Figure 11, learned scaling of the feed-forward network",
    note="Dots are seeds, bars their mean; all start at 1.",
    runs=("sm-scffn",),
    seeds="all",
    needs=("scaling of the FFN not stored",),
)
def figure_11(results: Results) -> Figure:
    """AERO Figure 11: learned alpha (divides the FFN's output) and beta (scales the residual connection) per layer."""
    with style():
        figure, panels = grid(2, 2, 2.5)
        seeds = [run for run in results.seeds("sm-scffn") if run.entropy and run.entropy.learned.get("alpha")]
        for panel, name, sign in zip(panels, ("alpha", "beta"), ("α", "β"), strict=True):
            panel.set_title(sign)
            if not seeds:
                missing_run(panel, results, "sm-scffn")
                continue
            values = np.array([run.entropy.learned[name] for run in seeds], dtype=float)  # (seeds, L)
            layers = np.arange(1, values.shape[1] + 1)
            panel.bar(layers, values.mean(0), 0.7, color=AS_WRITTEN)
            for row in values:
                panel.plot(layers, row, linestyle="none", marker="o", markersize=2.5, color=INK)
            panel.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
            panel.set_xticks(layers if len(layers) <= 12 else layers[::3])
            panel.set_xlabel("layer")
            panel.grid(axis="y")
    return figure


@stands_for(
    "aero/figure12",
    title="AERO Figure 12, entropy of each layer over training, fewer nonlinearities",
    note="Lines are layers, the first, middle and last numbered, together where they end at one place; dotted: the "
    "causal bound, and the step a run became not finite.",
    runs=TABLE_2_RUNS,
    needs=("entropies not logged",),
    overflows=("sm",),
)
def figure_12(results: Results) -> Figure:
    """AERO Figure 12: entropy of each layer over training as nonlinearities are removed."""
    return entropy_over_training(results, TABLE_2_RUNS)


@stands_for(
    "aero/figure13",
    title="AERO Figure 13, entropy of each layer over training, leaky ReLU",
    note="Without LayerNorm, negative slope learned.",
    runs=("sm-leakyr", "sm-leakyr-global"),
    needs=("entropies not logged",),
)
def figure_13(results: Results) -> Figure:
    """AERO Figure 13: entropy of each layer over training with a learnable negative slope."""
    return entropy_over_training(
        results, ("sm-leakyr", "sm-leakyr-global"), ("(a) one slope a layer", "(b) one for all"), columns=2
    )


@stands_for(
    "aero/figure14",
    title="AERO Figure 14, entropy of each layer over training, stabilised and regularised",
    note="(a) to (c) Softmax-only models that stabilise the feed-forward network, (d) entropy regularisation in a "
    "scaled and fused one.",
    runs=(*STABILISED_RUNS, REGULARISED),
    needs=("entropies not logged",),
)
def figure_14(results: Results) -> Figure:
    """AERO Figure 14: entropy of each layer over training, stabilised in three ways, and regularised."""
    names = [f"({letter}) {name}" for letter, name in zip("abcd", (*STABILISED, "entropy reg."), strict=True)]
    return entropy_over_training(results, (*STABILISED_RUNS, REGULARISED), names, columns=2)


@stands_for(
    "aero/figure16",
    title="AERO Figure 16, heads per quarter of the maximum entropy by pruned feed-forward networks",
    note=f"Mean over n seeds; i_x: the x deepest feed-forward networks are replaced by the identity. {WHISKERS}",
    runs=PRUNED_RUNS,
    seeds="all",
    needs=("entropies not measured", "blocks of held-out sequences not stored"),
)
def figure_16(results: Results) -> Figure:
    """AERO Figure 16: fraction of heads per quarter of the maximum as the deepest fused FFNs are pruned."""
    names = ("none pruned", *(f"{pruned} pruned" for pruned in range(1, 8)))
    return quarter_bars(results, PRUNED_RUNS, names, ("observed", "causal_bound"))


@stands_for(
    "aero/figure17",
    title="AERO Figure 17, seven feed-forward networks pruned, six, and none",
    note="(a) values of each block's output, on a held-out batch, that are not finite in float16, in a training whose "
    "precision stands below it; blank: none; (b) to (d) entropy of each layer over "
    "training; (e) to (g) of every head.",
    runs=("sm-scfuffn", "sm-scfuffni-6", "sm-scfuffni-7"),
    needs={
        "counts of overflows not logged": ("sm-scfuffni-7",),
        "entropies not logged": ("sm-scfuffn", "sm-scfuffni-6", "sm-scfuffni-7"),
        "entropies not measured": ("sm-scfuffn", "sm-scfuffni-6", "sm-scfuffni-7"),
    },
    overflows=("sm-scfuffni-7",),
)
def figure_17(results: Results) -> Figure:
    """AERO Figure 17: overflow counts of SM+ScFuFFNi_7, entropies over training and heatmaps of i_7, i_6 and none."""
    runs, names = ("sm-scfuffni-7", "sm-scfuffni-6", "sm-scfuffn"), ("7 pruned", "6 pruned", "none pruned")
    with style():
        figure = Figure(figsize=(WIDTH, 4.6))
        panels = figure.subplots(2, 4)
        figure.subplots_adjust(left=0.06, right=0.92, top=0.94, bottom=0.1, wspace=0.48, hspace=0.42)
        mesh = overflow_map(panels[0, 0], results, runs[0], "(a) 7 pruned")
        panels[0, 0].set_ylabel("layer")
        if mesh is not None:
            colour_bar(figure, mesh, (0.06, 0.38, 0.16, 0.018), overflow_label(results.first(runs[0])))
        panels[1, 0].set_visible(False)
        found = {run: trained for run in runs if (trained := results.first(run)) is not None and trained.entropy}
        bound = max((run.entropy.maximum["causal_bound"] for run in found.values()), default=1.0)
        mesh = None
        for column, (run, name) in enumerate(zip(runs, names, strict=True), start=1):
            layer_lines(panels[0, column], results, run, f"({'abcd'[column]}) {name}")
            panels[0, column].set_ylim(0, bound * 1.05)
            panels[0, column].set_xlabel("training step")
            panels[1, column].set_title(f"({'defg'[column]}) {name}")
            if run not in found:
                missing_run(panels[1, column], results, run)
                continue
            mesh = heatmap(panels[1, column], np.array(found[run].entropy.mean), Normalize(0, bound))
            panels[1, column].set_xlabel("head")
        if mesh is not None:
            colour_bar(figure, mesh, (0.94, 0.1, 0.012, 0.34), "mean entropy, nats")
    return figure


def _margins(margins: tuple[float, ...]) -> tuple[list[str], list[str]]:
    return [MARGIN_RUNS[gamma] for gamma in margins], [f"γ = {gamma:.2f}" for gamma in margins]


@stands_for(
    "aero/figure18",
    "entropy_guided/figure6",
    title="AERO Figure 18, heads per quarter of the maximum entropy by margin of the regulariser",
    note="Mean over n seeds; triangles: where the published fraction of the last quarter begins. Published, 0.7 % is "
    f"one of 144 heads, and the head with the largest entropy is always in the last quarter of it. {WHISKERS}",
    runs=tuple(MARGIN_RUNS.values()),
    seeds="all",
    needs=("entropies not measured", "blocks of held-out sequences not stored"),
)
def figure_18(results: Results) -> Figure:
    """AERO Figure 18: fraction of heads per quarter of the maximum by the margin gamma."""
    facts = load("aero").facts["figures"]["18"]["fractions"]
    printed = [(MARGIN_RUNS[gamma], (3,), value) for gamma, value in facts.items()]
    return quarter_bars(results, *_margins(tuple(MARGIN_RUNS)), ("observed", "causal_bound"), printed)


@stands_for(
    "aero/figure19",
    "entropy_guided/figure7",
    title="AERO Figure 19, entropy of each layer over training by margin of the regulariser",
    note="EReg(SM(t)+ScFuFFN).",
    runs=tuple(run for gamma, run in MARGIN_RUNS.items() if gamma <= 0.25),
    needs=("entropies not logged",),
)
def figure_19(results: Results) -> Figure:
    """AERO Figure 19: entropy of each layer over training by the margin gamma."""
    return entropy_over_training(results, *_margins(tuple(gamma for gamma in MARGIN_RUNS if gamma <= 0.25)))


@stands_for(
    "entropy_guided/figure2",
    title="Entropy-Guided Attention Figure 2, entropy of every head, fewer nonlinearities",
    note="Yellow is overload, dark blue collapse.",
    runs=TABLE_2_RUNS,
    needs=("entropies not measured",),
    overflows=("sm",),
)
def guided_figure_2(results: Results) -> Figure:
    """Entropy-Guided Attention Figure 2: entropy of every head of the six configurations of Table 2."""
    return entropy_heatmaps(results, TABLE_2_RUNS, columns=6)


@stands_for(
    "entropy_guided/figure4",
    title="Entropy-Guided Attention Figure 4, entropy of each layer over training",
    note="(a) baseline, (b) Softmax-only, (c) to (e) stabilised, (f) regularised.",
    runs=("sm-ln-g", "sm", *STABILISED_RUNS, REGULARISED),
    needs=("entropies not logged",),
    overflows=("sm",),
)
def guided_figure_4(results: Results) -> Figure:
    """Entropy-Guided Attention Figure 4: entropy of each layer over training, from the baseline to the regularised."""
    names = ("SM+LN+G", "SM", *STABILISED, "entropy reg.")
    lettered = [f"({letter}) {name}" for letter, name in zip("abcdef", names, strict=True)]
    return entropy_over_training(results, ("sm-ln-g", "sm", *STABILISED_RUNS, REGULARISED), lettered)


@stands_for(
    title="Entropy by query position",
    note="Mean over heads and held-out sequences at every position, one line a layer, three of them numbered; bands: "
    "two standard errors over blocks of held-out sequences, where they are stored. Dotted: log i, which the causal "
    "mask allows.",
    runs=POSITION_RUNS,
    needs=("entropies not measured by position", "errors by position not stored"),
)
def figure_positions(results: Results) -> Figure:
    """Mean entropy at each query position i, layer by layer, against its bound log i."""
    with style():
        figure, panels = grid(len(POSITION_RUNS), 2, 2.2, right=0.97)
        for place, (panel, run) in enumerate(zip(panels, POSITION_RUNS, strict=True)):
            panel.set_title(row_name(run))
            trained = results.first(run)
            if trained is None or trained.entropy is None or not trained.entropy.by_position:
                missing_run(panel, results, run)
                continue
            _positions(panel, trained)
            if place % 2 == 0:
                panel.set_ylabel("entropy, nats")
            if place >= 2:
                panel.set_xlabel("query position i")
    return figure


def _positions(panel: Axes, trained: Run) -> None:
    means = np.array(trained.entropy.by_position)  # (L, T)
    errors = np.array(trained.entropy.by_position_sem) if trained.entropy.by_position_sem else None
    positions = np.arange(1, means.shape[1] + 1)
    panel.plot(positions, np.log(positions), color=INK, linewidth=1, linestyle=":")
    for layer, colour in enumerate(depth_colours(len(means))):
        panel.plot(positions, means[layer], color=colour, linewidth=1.1)
        if errors is not None:
            band = 2 * errors[layer]
            panel.fill_between(
                positions, means[layer] - band, means[layer] + band, color=colour, alpha=0.2, linewidth=0
            )
    panel.set_xlim(1, positions[-1] * 1.05)
    panel.set_ylim(bottom=0)
    panel.grid(axis="y")
    ended = {layer: (list(positions), list(row)) for layer, row in enumerate(means) if np.isfinite(row[-1])}
    if ended:
        number_lines(panel, ended, 0.09, positions[-1])


@stands_for(
    title="Learned temperatures",
    note="The softmax's logits are divided by t, of a head and query position (Eq. 11); left: mean over positions, "
    "right: mean over a layer's heads at each position, each with its own scale. Purple: t is below 0. Dotted: where "
    "they start. Nothing keeps a temperature above 0; a negative one turns a row's order of attention around. Of "
    "every run that learns them and every seed, with the lowest and highest position of a layer and its share below 0: "
    "reports/tables/learned_temperatures.csv.",
    runs=TEMPERATURE_RUNS,
    needs=("temperatures not stored", "temperatures by position not stored"),
)
def figure_temperatures(results: Results) -> Figure:
    """Learned temperatures t, with and without the regulariser: by head and by query position."""
    with style():
        figure = Figure(figsize=(WIDTH, 2.5 * len(TEMPERATURE_RUNS)))
        panels = figure.subplots(len(TEMPERATURE_RUNS), 2, width_ratios=(1, 2.6))
        figure.subplots_adjust(left=0.07, right=0.88, top=0.93, bottom=0.1, wspace=0.55, hspace=0.45)
        for run, (heads, positions) in zip(TEMPERATURE_RUNS, panels, strict=True):
            name = {REGULARISED: "EReg(SM(t)+ScFuFFN)", "smt-scfuffn": "SM(t)+ScFuFFN"}[run]
            heads.set_title(name, fontsize=8)
            trained = results.first(run)
            learned = trained.entropy.learned if trained and trained.entropy else {}
            if not learned.get("temperature_mean"):
                missing_run(heads, results, run)
                missing_run(positions, results, run)
                continue
            start = (trained.metrics.get("model") or {}).get("temperature_init")
            values = np.array(learned["temperature_mean"], dtype=float)  # (L, H)
            mesh = heatmap(heads, values, _about_zero(values, start), SIGNED)
            heads.set_ylabel("layer")
            heads.set_xlabel("head")
            _temperature_bar(figure, heads, mesh, values, "mean t", start)
            if not learned.get("temperature_by_position"):
                say_missing(positions, f"not stored by position, measure it again:\n{run}")
                continue
            rows = np.array(learned["temperature_by_position"], dtype=float)  # (L, T)
            mesh = _position_map(positions, rows, _about_zero(rows, start))
            _temperature_bar(figure, positions, mesh, rows, "mean t over heads", start)
    return figure


def _about_zero(values: NDArray[np.float64], start: float | None) -> Normalize:
    """A linear scale with 0 in its middle that holds the start and every finite value."""
    reach = np.abs(values[np.isfinite(values)]).max(initial=max(abs(start or 0.0), 1e-6))
    return Normalize(-reach, reach)


def _position_map(panel: Axes, rows: NDArray[np.float64], norm: Normalize) -> ScalarMappable:
    """Values (L, T) by layer and query position, layer 1 at the bottom; what is not finite stays blank."""
    layers, positions = rows.shape
    # Every cell reaches under the next one: where two only touch, a viewer's antialiasing shows a seam.
    ends = np.minimum(np.arange(positions) + 2.0, positions + 0.5)
    cells = [
        [(i + 0.5, layer + 0.52), (ends[i], layer + 0.52), (ends[i], layer + 1.48), (i + 0.5, layer + 1.48)]
        for layer in range(layers)
        for i in range(positions)
    ]
    mesh = PolyCollection(
        cells, array=np.ma.masked_invalid(rows).ravel(), cmap=SIGNED, norm=norm, linewidth=0, clip_on=False
    )
    panel.add_collection(mesh)
    panel.set_xlim(0.5, positions + 0.5)
    panel.set_ylim(0.5, layers + 0.5)
    panel.set_yticks(range(1, layers + 1) if layers <= 12 else range(1, layers + 1, 3))
    panel.tick_params(axis="y", length=0)
    panel.set_xlabel("query position")
    for spine in panel.spines.values():
        spine.set_visible(False)
    return mesh


def _temperature_bar(
    figure: Figure, panel: Axes, mesh: ScalarMappable, values: NDArray[np.float64], label: str, start: float | None
) -> None:
    """A colour bar to the right of the panel, of so much of the scale as the values, 0 and the start take."""
    box = panel.get_position()
    bar = colour_bar(figure, mesh, (box.x1 + 0.015, box.y0, 0.012, box.height), label)
    if start:
        bar.ax.axhline(start, color=INK, linewidth=0.9, linestyle=":")
    finite = values[np.isfinite(values)]
    bar.ax.set_ylim(finite.min(initial=0.0), finite.max(initial=max(start or 0.0, 1e-6)))
