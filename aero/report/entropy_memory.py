"""Figure of the report: what attention with entropy needs in memory, through the matrix and by blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from aero.report.drawing import AS_WRITTEN, MUTED, TUNED, WIDTH, say_missing, style
from aero.report.marks import Html
from aero.report.page import shown
from aero.report.results import Results
from aero.report.unreadable import guarded, measurement

FILE = "results/bench/entropy_memory.json"
_KEPT = "#d55e00"
_WAYS = {
    "matrix": ("T x T matrix", AS_WRITTEN),
    "kept": ("blocks of rows, kept", _KEPT),
    "blocks": ("blocks of rows, made again", TUNED),
}


def entropy_memory(results: Results) -> Html:
    """The figure with what its file says, or that this is no measurement."""
    return guarded(FILE, "python -m benchmarks.entropy_memory", lambda: _drawn(results))


def _drawn(results: Results) -> Html:
    found = measurement(results.root, FILE)
    caption = ""
    if found is not None:
        longest = max(found["errors"], key=lambda line: line["context"])
        where = found["provenance"]
        growths = _listed(f"T<sup>{found['growth'][way]:.2f}</sup>" for way in _WAYS)

        def errors_of(what: str) -> str:
            return _listed(f"{longest[f'{way}_{what}']:.1e}" for way in _WAYS)

        caption = (
            f"One attention layer of {found['heads']} heads of width {found['width']}, forward and backward, float32: "
            "what a fresh process needs beyond its inputs. Between the two longest contexts it grows as "
            f"{growths}. At T={longest['context']} the largest errors against float64 are {errors_of('values')} for "
            f"outputs and entropies, {errors_of('gradients')} for gradients (matrix, kept blocks, blocks made again). "
            "Times are medians of interleaved repeats on one thread; the file has their ranges. Training takes the "
            f"matrix up to T={found['matrix_up_to']}, on a CPU kept blocks from there to "
            f"T={found['kept_up_to']}, and blocks made again beyond. {_taken(results, found)}"
            f"{escape(where['machine'])}, PyTorch {escape(where['torch'])}, "
            f"commit {escape(where['commit'][:10])}; <code>{FILE}</code>."
        )
    return shown(
        figure_entropy_memory(results),
        "figure-entropy-memory",
        "Memory of attention with entropy",
        caption,
        f"{__name__}.{figure_entropy_memory.__name__}",
    )


def figure_entropy_memory(results: Results) -> Figure:
    """Peak memory against T, both axes logarithmic; right, time by blocks over time through the matrix."""
    found = measurement(results.root, FILE)
    with style():
        figure = Figure(figsize=(WIDTH, 2.9))
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        figure.subplots_adjust(left=0.09, right=0.97, top=0.9, bottom=0.16, wspace=0.26)
        if found is None:
            say_missing(left, "not measured yet")
            say_missing(right, "not measured yet")
            return figure
        for way, (name, colour) in _WAYS.items():
            points = [(line["context"], line["peak_bytes"] / 1e6) for line in found["memory"] if line["way"] == way]
            left.plot(*zip(*points, strict=True), color=colour, marker="o", markersize=3)
            left.plot([], [], color=colour, marker="o", markersize=3, label=name)
        left.legend(frameon=False, loc="lower right")
        left.set_title("peak memory, MB")
        left.set_yscale("log")
        left.set_ylim(bottom=0.5)  # room for the names below the curves
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for shape, (marker, line_style) in zip(
            dict.fromkeys(line["shape"] for line in found["seconds"]), (("o", "-"), ("s", "--")), strict=False
        ):
            how = {"marker": marker, "markersize": 3, "linestyle": line_style}
            of_shape = [line for line in found["seconds"] if line["shape"] == shape]
            contexts = [line["context"] for line in of_shape]
            for way in ("kept", "blocks"):
                right.plot(contexts, [line[f"{way}_over_matrix"] for line in of_shape], color=_WAYS[way][1], **how)
            right.plot([], [], color=MUTED, label=shape, **how)
        right.axhline(1, color=AS_WRITTEN, linewidth=1)
        right.legend(frameon=False, loc="upper right")
        right.set_title("time / time through the matrix")
        right.set_ylim(0)
        for panel, key in ((left, "memory"), (right, "seconds")):
            contexts = sorted({line["context"] for line in found[key]})
            panel.set_xscale("log", base=2)
            panel.xaxis.set_major_locator(FixedLocator(contexts))
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.set_xlabel("positions T")
            panel.grid()
    return figure


def _taken(results: Results, found: dict) -> str:
    """Which way the trainings here took to their entropies, by their contexts: a sentence with a space behind it, or
    nothing without any. On a CPU, since a fused kernel needs no matrix at any length.
    """
    trained = [run for (scale, _), runs in results.runs.items() if scale == results.scale for run in runs]
    contexts = [(run.metrics.get("model") or {}).get("context") for run in trained]
    contexts = [context for context in contexts if context is not None]
    if not contexts:
        return ""
    here = f"The trainings shown here (scale {escape(results.scale)}) have up to T={max(contexts)} positions: on a CPU "
    if max(contexts) <= found["matrix_up_to"]:
        return f"{here}all have their entropies from the matrix, and none from a way whose memory grows as T. "
    made_again = sum(context > found["kept_up_to"] for context in contexts)
    return f"{here}{made_again} of {len(contexts)} have them from the way whose memory grows as T. "


def _listed(texts: Iterable[str]) -> str:
    *before, last = texts
    return f"{', '.join(before)} and {last}"
