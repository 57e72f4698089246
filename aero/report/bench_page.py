"""The report's section on speed: training, entropy, tokenising, private inference, the pipeline, and projections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape

from aero.report import bench_figures, bench_projected, bench_training, bench_two_party
from aero.report.bench import against, aim, file_of, missing, read, times, where
from aero.report.bench_sweep import beside_the_sweep
from aero.report.marks import Html, gap, grid, number
from aero.report.page import figure_of
from aero.report.results import Results
from aero.report.unreadable import guarded

TOKENIZED, IDLE, JOBS, HELP = 10.0, 5.0, 1.5, 0.3
LINEAR, FLAT = 1.1, 0.05
"""The exponent of time that still is linear, and the bytes of peak memory a byte of text that still are flat: holding
the text would take 1, its ids 2 a token."""
ONLY = "only what depends on it"
AT_ONCE, TABLE_BATCH = 20.0, 16
"""How many times as fast all models of the learning-rate sweep at once should be, and the batch of its table."""
MB = 1e6


def section(results: Results) -> Html:
    """All of it; gaps where nothing was measured, a line where a file is no measurement."""
    parts = (
        ("training_step", figure_training),
        ("regularized_step", bench_training.regularized),
        ("tokenizing", table_tokenizing),
        ("two_party", bench_two_party.table_parts),
        ("two_party", bench_two_party.figure_growth),
        (bench_figures.LAYERS, bench_two_party.figure_layers),
        ("two_party", bench_two_party.figure_limits),
        ("pipeline", table_pipeline),
        ("sensitivity", table_sensitivity),
        ("tokenizing", bench_projected.projected_training),
        ("two_party", bench_projected.projected_stages),
        ("two_party", bench_projected.projected_inference),
    )
    made_by = {bench_figures.LAYERS: "growth_layers"}
    drawn = (
        guarded(file_of(name), f"python -m benchmarks.{made_by.get(name, name)}", partial(part, results))
        for name, part in parts
    )
    return Html("".join(part.text for part in drawn))


def figure_training(results: Results) -> Html:
    return figure_of(results, bench_figures.bench_training, "A training step", bench_training.caption(results))


def table_tokenizing(results: Results) -> Html:
    name = "tokenizing"
    found = read(results.root, name)
    if found is None:
        return Html(missing("Tokenising", f"benchmarks.{name}"))
    source = file_of(name)
    lines = [
        [
            f"{one['vocabulary']:,}",
            number(f"{size['bytes'] / MB:.0f}", "smaller_scale", source),
            times(size["mb_per_cpu_second"], source, digits=1),
            number(f"{size['peak_bytes'] / MB:.0f}", "smaller_scale", source),
        ]
        for one in found["vocabularies"]
        for size in one["sizes"]
    ]
    told = "; ".join(
        f"{one['vocabulary']:,} entries: {against(TOKENIZED, one['sizes'][-1]['mb_per_cpu_second']['median'])} at the "
        f"largest; time grows as size<sup>{one['seconds_exponent']:.2f}</sup>, linear: "
        f"{against(LINEAR, one['seconds_exponent'], most=True)}; memory as "
        f"size<sup>{one['memory_exponent']:.2f}</sup>, {_memory_slope(one['sizes'], source)}"
        for one in found["vocabularies"]
    )
    caption = (
        "<b>Tokenising</b>, from source files to token files on one thread: reading, encoding, hashing, writing. The "
        "standard library with its tests, once and several times over. Targets: "
        f"{TOKENIZED:.0f} MB a core second, time linear (at most size<sup>{LINEAR}</sup>), memory flat (at most {FLAT} "
        f"byte of peak a byte of text). {told}. A peak is a process’s high-water mark, with what its allocator holds "
        "free; it rises by ever less with every batch that is cut elsewhere (docs/decisions.md). "
        f"{where(found, name)}"
    )
    heads = ["vocabulary", "corpus, MB", "MB a core second", "peak memory, MB"]
    return Html(grid(heads, lines, caption, "bench-tokenizing"))


def _memory_slope(sizes: Sequence[Mapping[str, float]], source: str) -> str:
    """Bytes of peak memory that another byte of text takes, between the smallest and the largest corpus.

    The libraries take most of the peak, so its exponent is near 0 whatever the text adds.
    """
    if len(sizes) < 2:
        return gap()
    first, last = sizes[0], sizes[-1]
    slope = (last["peak_bytes"] - first["peak_bytes"]) / (last["bytes"] - first["bytes"])
    shown = number(f"{slope:.2f}", "smaller_scale", source)
    return f"{shown} byte more of it a byte of text, flat: {against(FLAT, slope, most=True)}"


def table_pipeline(results: Results) -> Html:
    found = read(results.root, "pipeline")
    if found is None:
        return Html(missing("The pipeline", "benchmarks.pipeline"))
    source = file_of("pipeline")
    idle, helped, change = found["idle_repro_seconds"], found["help_seconds"], found["change"]
    further = change.get("catalogue")
    jobs = found.get("two_jobs_over_one")
    typed, full = found.get("plain_repro_seconds"), found.get("idle_repro_with_catalogue_seconds")
    lines = [
        [
            f"<code>dvc repro -s dvc.yaml</code> (single stages) with nothing to do, {found['stages']} stages",
            f"{times(idle, source, digits=1)} s",
            f"{aim(against(IDLE, idle['median'], most=True), f'{IDLE:g} s')}",
        ],
        [
            "plain <code>dvc repro</code> with nothing to do"
            + (f", the catalogue’s {found['further_stages']} stages too" if typed else ", the catalogue’s stages too"),
            f"{times(typed, source, digits=1)} s" if typed else gap(),
            f"{aim(against(IDLE, typed['median'], most=True), f'{IDLE:g} s')}" if typed else "",
        ],
        [
            "<code>dvc repro -s dvc.yaml</code> in such a clone, the catalogue made too",
            f"{times(full, source, digits=1)} s" if full else gap(),
            f"{aim(against(IDLE, full['median'], most=True), f'{IDLE:g} s')}" if full else "",
        ],
        [
            f"two jobs over one, {found['trainings']} trainings at scale {escape(found['scale'])}, "
            + (f"{found['pairs']} pairs" if jobs else "one pair, the one job first"),
            times(jobs, source) if jobs else number(f"{found['speedup_of_two_jobs']:.2f}", "smaller_scale", source),
            f"{aim(against(JOBS, jobs['median'] if jobs else found['speedup_of_two_jobs']), f'{JOBS:g}')}",
        ],
        [
            "<code>aero --help</code>",
            f"{times(helped, source)} s",
            f"{aim(against(HELP, helped['median'], most=True), f'{HELP:g} s')}",
        ],
        [
            f"stages that a changed learning rate of {escape(change['run'])} makes outdated in dvc.yaml",
            _kinds(change["then"]),
            aim(against(0, _beyond(change["run"], change["then"]), most=True), ONLY),
        ],
        [
            "and in the catalogue",
            _kinds(further["then"]) if further else gap(),
            aim(against(0, _beyond(change["run"], further["then"]), most=True), ONLY) if further else "",
        ],
    ]
    caption = (
        "<b>The pipeline itself</b>, in a clone. For the first three lines outputs are stood in for by small files, "
        f"which DVC treats as any others. {where(found, 'pipeline')}"
    )
    if "provenance" in change:
        caption += f" What a change makes outdated was looked at apart: {where(change, 'pipeline')}"
    return Html(grid(["what", "measured", "target"], lines, caption, "bench-pipeline", (0.5, 0.28, 0.22)))


def _kinds(stages: Sequence[str]) -> str:
    """Names of stages with how many there are of each."""
    kinds = Counter(stage.rpartition(":")[2].partition("@")[0] for stage in stages)
    return escape(", ".join(f"{kind} ({count})" for kind, count in kinds.items())) or "none"


def _beyond(run: str, stages: Sequence[str]) -> int:
    """How many of `stages`, which a change of `run` makes outdated, are neither its own nor the report."""
    return sum(stage != "report" and stage.partition("@")[2].rpartition("-")[0] != run for stage in stages)


def table_sensitivity(results: Results) -> Html:
    """All small Transformers of the learning-rate sweep at once against one after the other."""
    name = "sensitivity"
    found = read(results.root, name)
    if found is None:
        return Html(missing("The models of the learning-rate sweep at once", f"benchmarks.{name}"))
    source = file_of(name)
    ratios = {(one["core"], one["batch"], one["threads"]): one["ratio"] for one in found["lines"]}
    threads, batches = ([*dict.fromkeys(one[key] for one in found["lines"])] for key in ("threads", "batch"))
    lines = []
    for core in dict.fromkeys(one["core"] for one in found["lines"]):
        for many in threads:
            cells = [f"{escape(core)}, {many} thread{'s' if many > 1 else ''}"]
            for batch in batches:
                ratio = ratios.get((core, batch, many))
                cells.append(
                    gap()
                    if ratio is None
                    else number(f"{ratio:.1f}", "paper_dimensions", source) + f" {against(AT_ONCE, ratio)}"
                )
            lines.append(cells)
    of_table = [one["ratio"] for one in found["lines"] if one["batch"] == TABLE_BATCH]
    told = "not measured" if not of_table else "met" if min(of_table) >= AT_ONCE else "not met"
    caption = (
        f"<b>The learning-rate sweep</b>: seconds of {found['models']} models one after the other over those of all at "
        f"once, a step, by batch. One thread by processor time, more by the clock; medians of interleaved repeats. The "
        f"target is {AT_ONCE:.0f}; at the batch of {TABLE_BATCH} that Table 1 of <code>variance_sensitivity</code> was "
        f"made with here: {told}. {beside_the_sweep(found, TABLE_BATCH)}{where(found, name)}"
    )
    heads = ["core", *(f"batch {batch}" for batch in batches)]
    return Html(grid(heads, lines, caption, "bench-sensitivity"))
