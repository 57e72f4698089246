"""The language-model half of `variance_sensitivity`: attention cores in the decoder while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.attention_kernels import core_named
from aero.records import Row
from aero.report import sensitivity
from aero.report.drawing import GRID, MUTED, WIDTH, say_missing, style
from aero.report.marks import Html, gap, grid, number, training_caption
from aero.report.results import Results, Run
from aero.report.sensitivity_theory import CORE_COLOURS
from aero.report.statistics import Estimate, estimate
from aero.report.tables import training_origin
from aero.sensitivity import theory
from aero.sensitivity.conclusions import SOFTMAX_BASED
from aero.sensitivity.setting import TOKENS

HOT, HOT_SCALE = "-hot", "laptop"
"""Runs with a learning rate in proportion to width. params.yaml states it as a number, which is in proportion to the
width of one scale: at another the same runs are of a rate without that meaning, and are neither drawn nor judged."""
RATES = (("", "as printed"), (HOT, "in proportion to width"))
"""Suffix of the runs and what sets their learning rates apart; the rate itself comes from their metrics."""
COMPARED = ("softmax", "relu", "qk_layernorm")
OTHERS = ("window_softmax", "sigma_reparam", "sigmoid", "elu")
CAPTION_1 = (
    "Lines are means over seeds, bands their range; for the entropy, the mean over layers and its standard deviation "
    "over them. Gradient norms are those before clipping at 1. Dotted: log N, 1 and √N, which the paper draws; dashed: "
    "the greatest mean entropy and the least norm that a causal mask allows. In the paper LLaMA-1B, N = 768."
)
CAPTION_7 = "As above, the entropy of the first layer alone. In the paper GPT-2 Large on WikiText-103, N = 200."
FURTHEST = 1e6
"""The largest variance of logits that Figure 4 shows in its place: the last steps before a divergence pass 1e30."""
CAPTION_4 = (
    "Every look at the small model of Figure 1 (bottom), every evaluation of the decoder, with every seed; means over "
    "layers, heads and rows. Circles: softmax-based cores (softmax, window, σReparam); triangles: QK-LayerNorm and "
    "kernels, of which the paper draws the ReLU one; a triangle that points to the right, at the edge: at a variance "
    f"above {FURTHEST:,.0f}, in the last steps before a divergence. The paper draws it for its small model. "
    "N is 20 there; in the decoder a query sees as many keys as stand before it."
)
LATE = 0.5
"""The part of training whose gradient norms are compared: the second half."""


def not_trained(results: Results) -> str | None:
    """What the larger scale still lacks, in a line; None if every core is there."""
    lacking = [
        run_name(core, "")
        for core in COMPARED
        if not any((results.root / f"results/gpu/{run_name(core, '')}").glob("*.json"))
    ]
    return f"attention cores in the decoder at scale gpu: {', '.join(lacking)} not trained" if lacking else None


def run_name(core: str, suffix: str) -> str:
    """The run of an attention core: "core-qk-layernorm-hot"."""
    return f"core-{core.replace('_', '-')}{suffix}"


RUNS = tuple(run_name(core, suffix) for suffix, _ in RATES for core in COMPARED) + tuple(
    run_name(core, HOT) for core in OTHERS
)
"""Every run that this part of the report draws at scale `HOT_SCALE`."""


def left_out(results: Results, run: str) -> str:
    """Why a run is not drawn or judged at the report's scale, "" if it is."""
    if not run.endswith(HOT) or results.scale == HOT_SCALE:
        return ""
    return f"{run}: its rate is in proportion to width at scale {HOT_SCALE} only, not at {results.scale}"


def seeds_of(results: Results, run: str) -> tuple[Run, ...]:
    """The seeds of a run, none if it is left out."""
    return () if left_out(results, run) else results.seeds(run)


def rate_text(results: Results, suffix: str) -> str:
    """The learning rate of the runs with this suffix, in words."""
    rates = {
        (run.metrics.get("train") or {}).get("learning_rate")
        for core in COMPARED + OTHERS
        for run in seeds_of(results, run_name(core, suffix))
    }
    return f"learning rate {', '.join(f'{rate:g}' for rate in sorted(filter(None, rates))) or 'not known'}"


def log_of(results: Results, run: Run) -> list[Row]:
    """The whole log of a run, empty if there is none."""
    return [dict(zip(run.curves, values, strict=True)) for values in zip(*run.curves.values(), strict=True)]


def series(rows: Sequence[Row], column: str) -> tuple[list[int], list[float]]:
    """Steps and values of a column where it has any; of `entropy`, `norm` and `variance` the mean over layers."""
    steps, values = [], []
    for row in rows:
        if column in ("entropy", "norm", "variance"):
            layers = [value for key, value in row.items() if key.startswith(f"{column}_layer_") and value is not None]
            value = fmean(layers) if layers else None
        else:
            value = row.get(column)
        if value is not None:
            steps.append(int(row["step"]))
            values.append(float(value))
    return steps, values


def last(results: Results, run: str, column: str) -> dict[int, float]:
    """The last logged value of a column, by seed."""
    found = {r.seed: series(log_of(results, r), column)[1] for r in results.seeds(run)}
    return {seed: values[-1] for seed, values in found.items() if values}


def change(results: Results, run: str, column: str) -> dict[int, float]:
    """Last logged value minus the first, by seed."""
    found = {r.seed: series(log_of(results, r), column)[1] for r in results.seeds(run)}
    return {seed: values[-1] - values[0] for seed, values in found.items() if len(values) > 1}


def late_mean(results: Results, run: str, column: str) -> dict[int, float]:
    """Mean of a column over the second half of training, by seed."""
    means = {}
    for trained in results.seeds(run):
        steps, values = series(log_of(results, trained), column)
        chosen = [v for step, v in zip(steps, values, strict=True) if step >= LATE * steps[-1]]
        if chosen:
            means[trained.seed] = fmean(chosen)
    return means


def table_models(results: Results) -> Html:
    """Every core's evaluation loss, gradient norm, entropy and norm at the end of training."""
    rows = []
    for suffix, _ in RATES:
        for core in COMPARED + OTHERS:
            name = run_name(core, suffix)
            seeds = seeds_of(results, name)
            if not seeds:
                if core in COMPARED and not left_out(results, name):
                    rows.append([core_named(core).title, "", gap(), "", "", "", ""])
                continue
            failed = sum(run.diverged for run in seeds)
            loss = estimate({r.seed: r.loss for r in seeds if not r.diverged})
            rows.append(
                [
                    core_named(core).title,
                    f"<code>{(seeds[0].metrics.get('train') or {}).get('learning_rate'):g}</code>",
                    _cell(results, name, loss, 3) + (f" {failed} NaN" if failed else ""),
                    _cell(results, name, estimate(late_mean(results, name, "gradient_norm")), 3),
                    _cell(results, name, estimate(change(results, name, "entropy")), 2),
                    _cell(results, name, estimate(last(results, name, "entropy")), 2),
                    _cell(results, name, estimate(last(results, name, "norm")), 2),
                ]
            )
    caption = (
        "<b>Attention cores in the decoder.</b> Evaluation loss at the end, nats; gradient norm before clipping, mean "
        "of the second half of training; entropy (nats) and ‖P‖_F of held-out sequences, means over layers, heads and "
        f"sequences, at the end.{_scale_words(results)} {training_caption(results, _names(results))}"
    )
    heads = ["core", "rate", "evaluation loss", "gradient norm", "entropy, change", "entropy, end", "‖P‖_F, end"]
    return Html(grid(heads, rows, caption, "core-models", (0.16, 0.08, 0.18, 0.18, 0.16, 0.12, 0.12), "dense"))


def _scale_words(results: Results) -> str:
    """That runs at the rate in proportion to width are left out, "" where they are not."""
    if not left_out(results, HOT):
        return ""
    return f" Rates in proportion to width are stated for scale {HOT_SCALE} and neither drawn nor judged at this one."


def _cell(results: Results, run: str, found: Estimate | None, digits: int) -> str:
    if found is None:
        return gap("–")
    return number(found.text(digits), training_origin(results.scale), ", ".join(r.path for r in results.seeds(run)))


def _names(results: Results) -> list[str]:
    names = [run_name(core, suffix) for suffix, _ in RATES for core in COMPARED + OTHERS]
    return [name for name in names if seeds_of(results, name)]


# Figures ----------------------------------------------------------------------------------------------------------


def sensitivity_figure_1_top(results: Results) -> Figure:
    """Figure 1 (top): loss, gradient norm, entropy and ||P||_F of three cores in the decoder over training."""
    return _training(results, COMPARED, first_layer=False)


def sensitivity_figure_7(results: Results) -> Figure:
    """Figure 7: the same of two cores, the entropy of the first layer alone."""
    return _training(results, ("softmax", "relu"), first_layer=True)


def _training(results: Results, cores: Sequence[str], first_layer: bool) -> Figure:
    with style():
        figure = Figure(figsize=(WIDTH, 3.9))
        panels = figure.subplots(2, 4, squeeze=False)
        figure.subplots_adjust(left=0.075, right=0.985, top=0.84, bottom=0.11, wspace=0.32, hspace=0.45)
        for row, (suffix, words) in enumerate(RATES):
            names = {core: run_name(core, suffix) for core in cores}
            trained = {core: seeds_of(results, name) for core, name in names.items()}
            if not any(trained.values()):
                for panel in panels[row]:
                    say_missing(panel, _why_missing(results, suffix, "\n"))
                continue
            for core, runs in trained.items():
                logs = [log_of(results, run) for run in runs]
                if not any(logs):
                    continue
                colour = CORE_COLOURS[core]
                _seeds(panels[row, 0], [series(log, "train_loss") for log in logs], colour)
                _seeds(panels[row, 1], [series(log, "gradient_norm") for log in logs], colour)
                _layers(panels[row, 2], logs, colour, first_layer)
                _seeds(panels[row, 3], [series(log, "norm") for log in logs], colour)
            panels[row, 1].set_yscale("log")
            if context := next((r.metrics["context"] for runs in trained.values() for r in runs), None):
                _bounds(panels[row, 2], panels[row, 3], context)
            for panel in panels[row]:
                panel.grid(color=GRID)
            panels[row, 0].set_ylabel(f"{rate_text(results, suffix)},\n{words}", fontsize=7.5)
        entropy = "entropy, first layer" if first_layer else "attention entropy"
        for panel, title in zip(panels[0], ("training loss", "gradient norm", entropy, "‖P‖_F"), strict=True):
            panel.set_title(title, fontsize=8.5)
        for panel in panels[1]:
            panel.set_xlabel("step", labelpad=1)
        for index, core in enumerate(cores):
            figure.text(
                0.075 + 0.2 * index, 0.965, f"—  {core_named(core).title}", color=CORE_COLOURS[core], va="center"
            )
    return figure


def _why_missing(results: Results, suffix: str, space: str) -> str:
    """What an empty panel says, its words apart by `space`."""
    words = f"only at scale {HOT_SCALE}" if left_out(results, suffix) else "not measured yet"
    return words.replace(" ", space)


def _seeds(panel: Axes, curves: Sequence[tuple[list[int], list[float]]], colour: str) -> None:
    """The mean over seeds at their common steps, and the range."""
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return
    steps = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
    values = np.array([[dict(zip(*curve, strict=True))[step] for step in steps] for curve in curves])
    panel.plot(steps, values.mean(0), color=colour, linewidth=1.2)
    if len(values) > 1:
        panel.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)


def _layers(panel: Axes, logs: Sequence[Sequence[Row]], colour: str, first_layer: bool) -> None:
    """Mean entropy and its standard deviation over layers; for the first layer alone, the mean and range of seeds."""
    if first_layer:
        _seeds(panel, [series(log, "entropy_layer_0") for log in logs], colour)
        return
    spread: dict[int, list[list[float]]] = {}
    for log in logs:
        for row in log:
            layers = [v for key, v in row.items() if key.startswith("entropy_layer_") and v is not None]
            if layers:
                spread.setdefault(int(row["step"]), []).append(layers)
    steps = sorted(step for step, found in spread.items() if len(found) == len(logs))
    mean = np.array([np.mean(spread[step]) for step in steps])
    deviation = np.array([np.std(np.mean(spread[step], axis=0)) for step in steps])
    panel.plot(steps, mean, color=colour, linewidth=1.2)
    panel.fill_between(steps, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)


def _bounds(entropy: Axes, norm: Axes, context: int) -> None:
    """The paper's lines at log N, 1 and sqrt(N), and what causal rows can reach."""
    keys = theory.visible_keys("causal", context)
    least, greatest = theory.norm_range(keys)
    entropy.set_ylim(0, math.log(context) * 1.05)
    norm.set_ylim(0, greatest * 1.05)
    for panel, printed, causal in (
        (entropy, (math.log(context),), theory.entropy_maximum(keys)),
        (norm, (1.0, greatest), least),
    ):
        for value in printed:
            panel.axhline(value, color=MUTED, linewidth=0.8, linestyle=":")
        panel.axhline(causal, color=MUTED, linewidth=0.8, linestyle="--")


def sensitivity_figure_4(results: Results) -> Figure:
    """Figure 4: normalised entropy H / (log N - H) (Eq. 8) against the variance of the logits while training, of the
    small model and of the decoder at both learning rates."""
    with style():
        figure = Figure(figsize=(WIDTH, 3.2))
        panels = figure.subplots(1, 3, sharey=True)
        figure.subplots_adjust(left=0.08, right=0.985, top=0.82, bottom=0.17, wspace=0.08)
        suffixes = ("", *(suffix for suffix, _ in RATES))
        titles = ("small model", *(f"decoder, {rate_text(results, suffix)}" for suffix, _ in RATES))
        points = (_of_small_model(results), *(_of_decoders(results, suffix) for suffix, _ in RATES))
        for panel, title, suffix, found in zip(panels, titles, suffixes, points, strict=True):
            panel.set_title(title, fontsize=8.5)
            if not any(found.values()):
                say_missing(panel, _why_missing(results, suffix, " "))
                continue
            panel.set_xscale("log")
            dressed = {"s": 9, "alpha": 0.6, "linewidth": 0}
            for core, pairs in found.items():
                within = [pair for pair in pairs if pair[0] <= FURTHEST]
                marker = "o" if core in SOFTMAX_BASED else "v"
                panel.scatter(*np.array(within).reshape(-1, 2).T, marker=marker, color=CORE_COLOURS[core], **dressed)
            for core, pairs in found.items():
                if beyond := [ratio for variance, ratio in pairs if variance > FURTHEST]:
                    edge = [FURTHEST] * len(beyond)
                    panel.scatter(edge, beyond, marker=">", color=CORE_COLOURS[core], clip_on=False, **dressed)
            panel.set_xlim(right=min(panel.get_xlim()[1], FURTHEST))
            panel.set_yscale("log")
            panel.grid(color=GRID)
        figure.text(0.53, 0.03, "variance of the logits in a row (Definition 5.2)", ha="center", va="center")
        panels[0].set_ylabel("H / (log N − H)")
        x = 0.08
        for core in (core for core in COMPARED + OTHERS if any(core in found for found in points)):
            title = core_named(core).title.replace(" Kernel", "")
            figure.text(x, 0.955, title, color=CORE_COLOURS[core], fontsize=7.5)
            x += 0.045 + 0.0095 * len(title)
    return figure


Points = dict[str, list[tuple[float, float]]]


def _of_small_model(results: Results) -> Points:
    """Variance and normalised entropy at every look of the traces of `aero.report.sensitivity`."""
    place = sensitivity.folder(results)
    found: Points = {}
    for line in sensitivity.read(results.root / place / "traces.csv") if place else []:
        if line["core"] in COMPARED + OTHERS and line.get("variance") and line["entropy"]:
            point = float(line["variance"]), _normalised(float(line["entropy"]), TOKENS)
            if all(math.isfinite(x) and x > 0 for x in point):
                found.setdefault(line["core"], []).append(point)
    return found


def _of_decoders(results: Results, suffix: str) -> Points:
    """The same at every evaluation of every seed."""
    found: Points = {}
    for core in COMPARED + OTHERS:
        for run in seeds_of(results, run_name(core, suffix)):
            log = log_of(results, run)
            variances, entropies = (series(log, name)[1] for name in ("variance", "entropy"))
            pairs = [(v, _normalised(h, run.metrics["context"])) for v, h in zip(variances, entropies, strict=True)]
            if pairs:
                found.setdefault(core, []).extend(pairs)
    return found


def _normalised(entropy: float, positions: int) -> float:
    """H / (log N - H), Eq. 8."""
    return entropy / (math.log(positions) - entropy)


def figure_of(results: Results, draw: Callable[[Results], Figure], title: str, caption: str) -> Html:
    """A figure of this module with the runs it is drawn from."""
    from aero.report import page

    words = f"{caption}{_scale_words(results)} {training_caption(results, _names(results))}"
    return page.figure_of(results, draw, title, words)
