"""Fragments of the page that `reports/aero_softmax_only.py` puts together: tables, claims, figures and lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from matplotlib.figure import Figure

from aero.published import load
from aero.report import drawing, evidence, sensitivity_models, sensitivity_search
from aero.report.costs import GB, published_cost, row_costs
from aero.report.marks import (
    INTERVAL,
    WORDS,
    Html,
    cell_source,
    cost_caption,
    diverged_seeds,
    gap,
    grid,
    measured_number,
    millions,
    number,
    published_number,
    ratio,
    row_label,
    scale_text,
    some,
    training_caption,
)
from aero.report.results import Cost, Results, Run
from aero.report.scales import missing_scale
from aero.report.statistics import estimate, relative
from aero.report.tables import cost_rows, table, training_origin

MODELLED = (
    "Latencies are modelled: computing time + bytes that cost time over bandwidth + rounds x RTT; bytes that cross in "
    "both directions at once cost the larger direction alone, so they are fewer than the bytes of the tables."
)
_FIT = (
    "As published is the configuration that explains the printed bytes best, as a program on today’s SPU, whose "
    "products of two secrets are cheaper than those of then (<code>as_published</code>: weights secret-shared, ids "
    "looked up in secret, logits of every position; docs/forensics.md). As written is each network as its paper writes "
    "it down, with weights that stay the server’s: what this project’s own savings are measured from, as it is cheaper."
)


def fit(results: Results) -> str:
    """What the columns as published and as written are, and what the minutes of the first are to be held against."""
    return _FIT


# Tables -----------------------------------------------------------------------------------------------------------


def table_2(results: Results) -> Html:
    """AERO Table 2, published beside measured."""
    printed = load("aero").tables["2"]
    cells = {(c.row.name, c.published.column.key): c for c in table(results, "2")}
    place = f"AERO Table 2; {printed.place}"
    rows = []
    for row in printed.rows:
        ppl, delta = cells[row.name, "ppl"], cells[row.name, "delta"]
        rows.append(
            [
                row_label(row.name),
                published_number(ppl.published, place),
                measured_number(ppl, results),
                ratio(ppl, results),
                published_number(delta.published, place),
                measured_number(delta, results)
                if row.run != "sm-ln-g" or delta.origin == "missing"
                else number("0.00", delta.origin, cell_source(delta, results)),
                _seed_cell(results, row.run),
            ]
        )
    caption = (
        f"<b>Table 2.</b> Evaluation perplexity and its increase Δ over SM+LN+G, in per cent, paired by seed. "
        f"Published: GPT-2, CodeParrot, {escape(printed.place)}. Perplexities of different corpora and tokenizers "
        f"do not compare; Δ does. {training_caption(results, [r.run for r in printed.rows if r.run])}"
    )
    return Html(
        grid(
            ["configuration", "PPL published", "PPL measured", "ratio", "Δ % published", "Δ % measured", "seeds"],
            rows,
            caption,
            "table-2",
            (0.15, 0.12, 0.23, 0.08, 0.12, 0.22, 0.08),
        )
    )


def _seed_cell(results: Results, run: str | None) -> str:
    seeds = results.seeds(run) if run else ()
    if not seeds:
        return gap("none")
    failed = sum(r.diverged for r in seeds)
    return f"{len(seeds)}" + (f", {failed} NaN" if failed else "")


HEADLINE_ROWS = (
    ("2", "SM+LN+G"),
    ("2", "SM+LN+R"),
    ("2", "SM+G"),
    ("2", "SM+R"),
    ("2", "SM"),
    ("4", "SM+ScFuFFN"),
    ("4", "SM+ScFuFFNi_6"),
    ("4", "EReg(SM(t)+ScFuFFN)"),
    ("4", "EReg(SM(t)+ScFuFFNi_6)"),
)


HEADLINE_WIDTHS = (0.16, 0.07, 0.145, 0.08, 0.075, 0.075, 0.07, 0.08, 0.085, 0.08, 0.08)


@dataclass(frozen=True)
class HeadlineRow:
    """One row of the headline table: perplexity above SM+LN+G in per cent, GB, and minutes on the WAN, each as
    (published, origin and text of the measured one, its source)."""

    name: str
    delta: tuple[str, str, str, str]
    communication: tuple[str, str, str, str]
    latency: tuple[str, str, str, str]
    fitted: tuple[str, str, str]
    """GB as published, the best fit of the printed bytes: origin, text, source."""
    fitted_latency: tuple[str, str, str]
    """Its minutes on the WAN, likewise."""
    tuned: tuple[str, str, str]
    """GB of the tuned program, likewise."""
    tuned_latency: tuple[str, str, str]
    """Its minutes on the WAN, likewise."""


def headline_rows(results: Results) -> list[HeadlineRow]:
    """The rows of the first page and of the README; published Δ follows from the printed perplexities of one table."""
    paper = load("aero")
    cells = {(c.row.name, c.published.column.key): c for c in table(results, "4")}
    rows = []
    for number_, name in HEADLINE_ROWS:
        printed = paper.tables[number_]
        row = printed.row(name)
        own, base = row.cells["ppl"], printed.rows[0].cells["ppl"]
        published = (
            "NaN" if own.diverged else "" if own.value is None else f"{100 * (own.value / base.value - 1):+.1f} %"
        )
        seeds = results.seeds(row.run or "")
        found = estimate(relative(results.perplexity(row.run or ""), results.perplexity("sm-ln-g")))
        source = ", ".join(run.path for run in seeds)
        if not seeds:
            delta = (published, "missing", "", "")
        elif found is None:
            delta = (published, "smaller_scale", "NaN" if any(r.diverged for r in seeds) else "no baseline", source)
        else:
            base_run, found = row.run == "sm-ln-g", found.possible()
            text = "baseline" if base_run else f"{found.mean:+.1f} %"
            if found.has_interval and not base_run:
                text += f" [{found.low:+.1f}, {found.high:+.1f}]"
            if lost := diverged_seeds(seeds):
                text += f" ({lost})"
            delta = ("baseline" if base_run else published, training_origin(results.scale), text, source)
        quantities = []
        for key, unit in (("communication", "GB"), ("latency", "min")):
            cell = cells.get((name, key))
            text = "" if cell is None else f"{cell.published.text} {unit}"
            quantities.append((text, *_as_written(results, name, key, unit, printed=cell is not None)))
        rows.append(HeadlineRow(name, delta, *quantities, *_fitted(results, name), *_tuned(results, name)))
    return rows


def _fitted(results: Results, name: str) -> list[tuple[str, str, str]]:
    """Measured bytes and modelled latency of a row of Table 4 as published, which no other row has."""
    printed = load("aero").tables["4"]
    if name not in {row.name for row in printed.rows}:
        return [("none", "", "")] * 2
    cost = published_cost(results, printed, name)
    return _both(cost, "" if cost is None else f"{cost.path}; {cost.program}, {cost.method}")


def _tuned(results: Results, name: str) -> list[tuple[str, str, str]]:
    """Measured bytes and modelled latency of a row by the tuned program; for which nothing is published."""
    cost = row_costs(results, load("aero").tables["4"], name).get("tuned")
    return _both(cost, "" if cost is None else cost.path)


def _both(cost: Cost | None, source: str) -> list[tuple[str, str, str]]:
    if cost is None:
        return [("missing", "", "")] * 2
    minutes = ("missing", "", "")
    if cost.latency_wan is not None:
        minutes = ("paper_dimensions", f"{cost.latency_wan / 60:.2f} min", source)
    return [("paper_dimensions", f"{cost.bytes / GB:.2f} GB", source), minutes]


def _as_written(results: Results, name: str, key: str, unit: str, *, printed: bool) -> tuple[str, str, str]:
    """The measured quantity of a row, a gap only where the paper prints it too."""
    cost = row_costs(results, load("aero").tables["4"], name).get("as_written")
    value = None if cost is None else cost.bytes / GB if key == "communication" else cost.latency_wan
    if cost is None or value is None:
        return ("missing" if printed else "none", "", "")
    text = f"{value if key == 'communication' else value / 60:.2f} {unit}"
    return ("paper_dimensions", text, f"{cost.path}; as_written, {cost.method}")


def headline(results: Results) -> Html:
    """The first page's table."""
    rows = []
    for row in headline_rows(results):
        line = [row_label(row.name)]
        for published, *measured in (row.delta, row.communication, row.latency):
            line.append(
                number(published, "published", "AERO Tables 2 and 4") if published else '<span class="none">–</span>'
            )
            line.append(_measured(*measured))
        line.insert(4, _measured(*row.fitted))
        line.insert(6, _measured(*row.tuned))
        line.insert(8, _measured(*row.fitted_latency))
        rows.append([*line, _measured(*row.tuned_latency)])
    heads = [
        "configuration",
        "PPL over baseline, published",
        "measured",
        "communi­cation, published",
        "as pub­lished, measured",
        "as written, measured",
        "tuned, measured",
        "latency (WAN), published",
        "as pub­lished, modelled",
        "as written, modelled",
        "tuned, modelled",
    ]
    runs = [load("aero").tables[table_].row(name).run or "" for table_, name in HEADLINE_ROWS]
    caption = (
        f"<b>The headline.</b> {training_caption(results, runs)} Costs: {cost_caption(results)} {fit(results)} "
        f"{MODELLED}"
    )
    return Html(grid(heads, rows, caption, "headline", HEADLINE_WIDTHS, "dense"))


def _measured(origin: str, text: str, source: str) -> str:
    if origin == "none":
        return '<span class="none">–</span>'
    return gap() if origin == "missing" else number(text, origin, source)


def legend() -> Html:
    """The three classes of numbers, and the gap."""
    parts = [
        number("12.3", "published", "sample"),
        number("12.3", "paper_dimensions", "sample"),
        number("12.3", "smaller_scale", "sample"),
        gap(),
    ]
    meanings = [
        "published by the authors",
        WORDS["paper_dimensions"] + " (counted, or really run between two processes)",
        WORDS["smaller_scale"] + " (trained here)",
        "a gap: a result that is not there",
    ]
    # The sample digits are no result: they only show the dress a number wears.
    items = "".join(f"<li>{part} {escape(meaning)}</li>" for part, meaning in zip(parts, meanings, strict=True))
    return Html(f'<div class="legend"><ul>{items}</ul></div>')


# Figures ----------------------------------------------------------------------------------------------------------


def shown(
    figure: Figure,
    identifier: str,
    title: str,
    caption: str,
    source: str,
    files: Sequence[str] = (),
    papers: Sequence[str] = (),
) -> Html:
    """A figure with its caption; `source` names the function that drew it, `files` what it was drawn from besides the
    results that were read for it, `papers` those whose printed numbers are in it.
    """
    picture = drawing.svg(figure, title)
    below = evidence.details("", source, files=files, papers=papers)
    return Html(
        f'<div class="figure" id="{identifier}"><div class="scroll">{picture}</div>'
        f'<div class="caption"><p><b>{escape(title)}.</b> {caption}</p></div>{below}</div>'
    )


def figure_of(
    results: Results, function: Callable[[Results], Figure], title: str, caption: str, papers: Sequence[str] = ()
) -> Html:
    """A figure drawn from `results` by a function of `aero.report`, which its number is named after."""
    name = function.__name__
    source = f"{function.__module__}.{name}"
    return shown(function(results), name.replace("_", "-"), title, caption, source, papers=papers)


def contents() -> Html:
    """Where the printed page has its table of contents; the web page has it beside the text."""
    return Html('<div class="outline"></div>')


# What was run -----------------------------------------------------------------------------------------------------


def runs_table(results: Results, names: Iterable[str]) -> Html:
    """Every run with its seeds, budget, result and cost in time."""
    rows = []
    for name in names:
        seeds = results.seeds(name)
        if not seeds:
            rows.append([f"<code>{escape(name)}</code>", "", gap("not run yet"), "", "", ""])
            continue
        seconds = [float(r.provenance["seconds"]) for r in seeds if r.provenance.get("seconds") is not None]
        rows.append(
            [
                f"<code>{escape(name)}</code>",
                row_label(seeds[0].architecture),
                ", ".join(str(r.seed) for r in seeds),
                number(
                    some(millions(r.metrics["tokens"]) for r in seeds if r.metrics.get("tokens")),
                    training_origin(results.scale),
                    seeds[0].path,
                ),
                "<br>".join(_outcome(r, results) for r in seeds),
                number(
                    f"{sum(seconds) / 60:.1f} min",
                    training_origin(results.scale),
                    f"{seeds[0].path}, provenance.seconds",
                )
                if seconds
                else "",
            ]
        )
    return Html(
        grid(
            ["run", "architecture", "seeds", "tokens", "evaluation perplexity", "training time, all seeds"],
            rows,
            training_caption(results, list(names)),
            "runs",
            (0.2, 0.24, 0.15, 0.12, 0.16, 0.13),
            "dense",
        )
    )


def _outcome(run: Run, results: Results) -> str:
    text = (
        f"NaN at step {run.diverged_at}"
        if run.diverged
        else "–"
        if math.isnan(run.perplexity)
        else f"{run.perplexity:.3f}"
    )
    return number(text, training_origin(results.scale), run.path)


def other_scales(results: Results, names: Iterable[str]) -> Html:
    """The increase in perplexity over SM+LN+G at every scale that has results, one column each; "" for a single one."""
    scales = [scale for scale in results.scales if results.seeds("sm-ln-g", scale)]
    if len(scales) < 2:
        return Html("")
    rows = []
    for name in names:
        line = [row_label(_architecture(results, name, scales))]
        for scale in scales:
            seeds = results.seeds(name, scale)
            found = estimate(relative(results.perplexity(name, scale), results.perplexity("sm-ln-g", scale)))
            text = (
                "NaN" if found is None and any(r.diverged for r in seeds) else found.possible().text(1) if found else ""
            )
            if found and (lost := diverged_seeds(seeds)):
                text += f" ({lost})"
            source = ", ".join(run.path for run in seeds)
            line.append(number(text, training_origin(scale), source) if text else gap())
        rows.append(line)
    caption = (
        "<b>Other scales.</b> Perplexity over that of SM+LN+G, minus one, in per cent, paired by seed; brackets: "
        f"{INTERVAL}. {'; '.join(escape(scale_text(results, scale)) for scale in scales)}."
    )
    return Html(grid(["configuration", *scales], rows, caption, "other-scales", (), "dense"))


def _architecture(results: Results, name: str, scales: Iterable[str]) -> str:
    return next((r.architecture for scale in scales for r in results.seeds(name, scale)), name)


def _corpus_and_budget(run: Run) -> str:
    train = run.metrics.get("train") or {}
    return (
        f"{run.metrics.get('corpus')} {str(run.provenance.get('corpus_sha256'))[:8]}, {train.get('steps')} steps of "
        f"{train.get('batch_size')} sequences at learning rate {train.get('learning_rate')}"
    )


def gaps(results: Results, names: Iterable[str], further: Iterable[str] = ()) -> Html:
    """What is missing or left out, each in a line; says so if nothing is.

    names: runs that are compared with each other. further: runs that other parts of the report draw.
    """
    names = list(names)
    lines = missing_scale(results, names)
    drawn = list(dict.fromkeys([*names, *further]))
    if missing := [name for name in drawn if not results.seeds(name)]:
        lines.append(f"not run at scale {results.scale}: {', '.join(missing)}")
    if single := [name for name in drawn if len(results.seeds(name)) == 1]:
        lines.append(f"one seed only, so no interval and no verdict: {', '.join(single)}")
    if no_entropy := [name for name in names if results.seeds(name) and not results.quarters(name)]:
        lines.append(f"attention entropy not measured: {', '.join(no_entropy)}")
    if costless := sorted({str(e["row"]) for e in cost_rows(results) if e["program"] is None}):
        lines.append(f"two-party cost not measured: {', '.join(costless)}")
    recipes: dict[str, list[str]] = {}
    for name in names:
        if run := results.first(name):
            recipes.setdefault(_corpus_and_budget(run), []).append(name)
    if len(recipes) > 1:
        described = "; ".join(f"{recipe}: {', '.join(those)}" for recipe, those in recipes.items())
        lines.append(f"compared although not trained alike: {described}")
    if results.end_to_end is None:
        lines.append("no complete private forward pass measured")
    for left in (sensitivity_search.not_run(results), sensitivity_models.not_trained(results)):
        if left is not None:
            lines.append(left)
    lines += results.problems
    if not lines:
        return Html("<p>Nothing is missing: every run, entropy and cost of this report is there.</p>")
    return Html('<ul class="gaps">' + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>")
