"""The report's section on speed: training, entropy, tokenising, private inference, the pipeline, and projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aero.report import bench_figures, bench_projected, bench_two_party
from aero.report.bench import (
    STEP,
    against,
    file_of,
    missing,
    origin_of,
    read,
    times,
    where,
)
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.page import figure_of
from aero.report.results import Results

STEP_T512, STEP_T128, HALF_MEMORY, OVERHEAD = 2.5, 1.5, 0.5, 0.15
IN_PROPORTION = 1.0
"""Speed-up over FLOPs saved, of fused rows without norms."""
TOKENIZED, IDLE, JOBS, HELP = 10.0, 5.0, 1.5, 0.3
AT_ONCE, TABLE_BATCH = 20.0, 16
"""How many times as fast all models of the learning-rate sweep at once should be, and the batch of its table."""
MB = 1e6


def section(results: Results) -> Html:
    """All of it; gaps where nothing was measured."""
    parts = [
        figure_of(results, bench_figures.bench_training, "A training step", caption_training(results)),
        table_regularized(results),
        table_tokenizing(results),
        *bench_two_party.parts(results),
        table_pipeline(results),
        table_sensitivity(results),
        *bench_projected.parts(results),
    ]
    return Html("".join(part.text for part in parts))


def caption_training(results: Results) -> str:
    found = read(results.root, "training_step")
    if found is None:
        return gap()
    reached = sum(step["ratio"]["median"] >= STEP for step in found["steps"])
    passes = "; ".join(
        f"d={step['width']} T={step['context']} V={step['vocabulary']:,} "
        + times(step["passes_ratio"], file_of("training_step"), origin_of(step["width"]))
        for step in found["steps"]
    )
    return (
        f"12 layers, {found['tokens']:,} tokens a batch, {found['threads']} threads, the same weights; forward and "
        "backward pass, clipping and AdamW, which is the fused one of PyTorch on both sides. Each side in a process "
        f"of its own, steps in turn; medians of {found['repeats']} with the range of the ratios, "
        f"which goes on where an arrow ends it. {_allocator(found)} "
        f"{_cache(found)}"
        f"At least {STEP} times transformers’ tokens a second at {reached} of {len(found['steps'])} sizes. Forward and "
        f"backward pass alone: {passes}. Right: the papers’ rows at T=128, V=1,024; a point on the line is faster in "
        "proportion to the FLOPs saved, vocabulary projection included. Speed-up over FLOPs saved, of the rows that "
        "save any, fused and without norms; in brackets of forward and backward pass alone, without clipping and "
        f"AdamW, and of their matrix products alone: {_in_proportion(found['rows'])}. The FLOPs are those of matrix "
        "products; softmax, embedding and what is done element by element stay. "
        f"{where(found, 'training_step')}"
    )


def _allocator(found: Mapping[str, Any]) -> str:
    """Which side kept freed memory, and what that gives transformers."""
    if "allocator" not in found:
        return "Here ours kept freed memory and transformers’ did not."
    gains = "; ".join(
        f"d={step['width']} T={step['context']} V={step['vocabulary']:,} "
        + times(step["allocator_gain"], file_of("training_step"), origin_of(step["width"]))
        for step in found["steps"]
    )
    over = sum(step["ratio_as_it_comes"]["median"] >= STEP for step in found["steps"])
    return (
        f"Both keep freed memory. It makes transformers’ step this many times as fast as with the allocator as it "
        f"comes: {gains}; against that one ours reaches {STEP} at {over} sizes."
    )


def _cache(found: Mapping[str, Any]) -> str:
    """That transformers kept what its Trainer would not, in files from before that was left out."""
    if "use_cache" in found:
        return ""
    return "Transformers kept keys and values for a generation here, which its Trainer does not. "


def _in_proportion(rows: Sequence[Mapping[str, Any]]) -> str:
    """Speed-up over FLOP ratio of the rows that save FLOPs, by width, and whether it reaches 1."""
    return "; ".join(
        f"{row_label(row['architecture'])} d={row['width']} "
        + number(f"{row['speedup_over_flops']:.2f}", origin_of(row["width"]), file_of("training_step"))
        + _in_brackets(row)
        + f" {against(IN_PROPORTION, row['speedup_over_flops'])}"
        for row in rows
        if row["flops_ratio"] > 1
    )


def _in_brackets(row: Mapping[str, Any]) -> str:
    """The same of forward and backward pass alone, and of the matrix products alone, as far as they were measured."""
    found = [
        f"{row[name]['median'] / row['flops_ratio']:.2f}"
        for name in ("speedup_of_passes", "products_speedup")
        if name in row
    ]
    return f" ({', '.join(found)})" if found else ""


def table_regularized(results: Results) -> Html:
    """The regularised step against the authors' way: time, memory, overhead."""
    name = "regularized_step"
    found = read(results.root, name)
    if found is None:
        return Html(missing("The regularised step", f"benchmarks.{name}"))
    source = file_of(name)
    lines = []
    for step in found["steps"]:
        origin, target = origin_of(step["width"]), STEP_T512 if step["context"] == 512 else STEP_T128
        overhead, ratio = step["overhead"], step["ratio"]
        percent = {key: 100 * value for key, value in overhead.items()}
        ours, theirs = (number(f"{step['peak_bytes'][side] / MB:.0f}", origin, source) for side in ("aero", "authors"))
        share = number(f"{step['memory_ratio']:.2f}", origin, source)
        memory = f"{ours} of {theirs} MB = {share}"
        if step["context"] == 512:
            memory += f"<br>{_aim(against(HALF_MEMORY, step['memory_ratio'], most=True), HALF_MEMORY)}"
        lines.append(
            [
                f"d={step['width']}, T={step['context']}",
                f"{times(ratio, source, origin)}<br>{_aim(against(target, ratio['median']), target)}",
                _without(step, origin, source),
                memory,
                f"{times(percent, source, origin, 0)} %<br>"
                f"{against(OVERHEAD, overhead['median'], most=True)} ({100 * OVERHEAD:.0f} %)",
            ]
        )
    caption = (
        "<b>A training step with the entropy regulariser</b> against the authors’ way, which is transformers’ GPT-2 "
        "with <code>output_attentions=True</code> and Algorithm 1 as a loop over layers and heads. 12 layers, V=1,024, "
        f"{found['threads']} threads, 1,024 tokens a batch, reading <code>head_mean</code>, gamma {found['gamma']}; "
        f"medians of {found['repeats']} interleaved repeats with their range. "
        f"{'All sides keep freed memory. ' if 'allocator' in found else 'Here ours alone keeps freed memory. '}"
        f"{_cache(found)}"
        "Without any regulariser: our step without one over the authors’ with theirs, which is what a free regulariser "
        "would give, and no bound, as another attention may be faster; below it the authors’ seconds over those of "
        "plain transformers, whose work is part of theirs, and over those of the matrix products of our step alone: as "
        "fast as these kernels could be if norms, activations, softmax, entropy, loss and optimiser took no time; and "
        "with single kernels of PyTorch’s for those, without autograd, copies, biases, clipping and penalty: as fast "
        "as a step made of PyTorch’s kernels could be, though not one with kernels of its own. "
        "Memory: of a fresh process, for one forward and backward pass beyond the model, gradients included; at T=512 "
        "ours keeps the causal half of every attention matrix, which is the fastest there and grows as T². "
        f"Overhead: over the same step without the regulariser. In brackets the target. {where(found, name)}"
    )
    heads = ["model", "times the authors’ speed", "without any regulariser", "peak memory, ours of theirs", "overhead"]
    return Html(grid(heads, lines, caption, "bench-regularized", (0.13, 0.2, 0.24, 0.25, 0.18)))


def _without(step: Mapping[str, Any], origin: str, source: str) -> str:
    """Our step without a regulariser over the authors' with it; theirs over plain transformers' and our kernels."""
    if "plain_ratio" in step:
        free = times(step["plain_ratio"], source, origin)
    elif "seconds" in step:
        medians = {side: step["seconds"][side]["median"] for side in ("authors", "plain")}
        free = number(f"{medians['authors'] / medians['plain']:.2f}", origin, source) + " (of medians)"
    else:
        free = gap()
    check, alone, kernels = (
        times(step[name], source, origin) if name in step else gap()
        for name in ("authors_over_transformers", "products_ratio", "kernels_ratio")
    )
    return f"{free}<br>authors’ over plain: {check}<br>products alone: {alone}<br>with single kernels: {kernels}"


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
        f"{one['vocabulary']:,} entries: time grows as size<sup>{one['seconds_exponent']:.2f}</sup>, memory as "
        f"size<sup>{one['memory_exponent']:.2f}</sup>, {_memory_slope(one['sizes'], source)}, "
        f"{against(TOKENIZED, one['sizes'][-1]['mb_per_cpu_second']['median'])} at the largest"
        for one in found["vocabularies"]
    )
    caption = (
        "<b>Tokenising</b>, from source files to token files on one thread: reading, encoding, hashing, writing. The "
        f"standard library with its tests, one to four times over. The target is {TOKENIZED:.0f} MB a core second. "
        f"{told}. {where(found, name)}"
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
    return f"{number(f'{slope:.2f}', 'smaller_scale', source)} byte more of it a byte of text"


def table_pipeline(results: Results) -> Html:
    found = read(results.root, "pipeline")
    if found is None:
        return Html(missing("The pipeline", "benchmarks.pipeline"))
    source = file_of("pipeline")
    idle, helped, change = found["idle_repro_seconds"], found["help_seconds"], found["change"]
    kinds: dict[str, list[str]] = {}
    for stage in change["then"]:
        kinds.setdefault(stage.rpartition(":")[2].partition("@")[0], []).append(stage)
    touched = ", ".join(f"{kind} ({len(stages)})" for kind, stages in kinds.items())
    jobs = found.get("two_jobs_over_one")
    typed, full = found.get("plain_repro_seconds"), found.get("idle_repro_with_catalogue_seconds")
    lines = [
        [
            f"<code>dvc repro -s dvc.yaml</code> (single stages) with nothing to do, {found['stages']} stages",
            f"{times(idle, source, digits=1)} s",
            f"{_aim(against(IDLE, idle['median'], most=True), f'{IDLE:g} s')}",
        ],
        [
            "plain <code>dvc repro</code> with nothing to do"
            + (f", the catalogue’s {found['further_stages']} stages too" if typed else ", the catalogue’s stages too"),
            f"{times(typed, source, digits=1)} s" if typed else gap(),
            f"{_aim(against(IDLE, typed['median'], most=True), f'{IDLE:g} s')}" if typed else "",
        ],
        [
            "<code>dvc repro -s dvc.yaml</code> in such a clone, the catalogue made too",
            f"{times(full, source, digits=1)} s" if full else gap(),
            f"{_aim(against(IDLE, full['median'], most=True), f'{IDLE:g} s')}" if full else "",
        ],
        [
            f"two jobs over one, {found['trainings']} trainings at scale {escape(found['scale'])}, "
            + (f"{found['pairs']} pairs" if jobs else "one pair, the one job first"),
            times(jobs, source) if jobs else number(f"{found['speedup_of_two_jobs']:.2f}", "smaller_scale", source),
            f"{_aim(against(JOBS, jobs['median'] if jobs else found['speedup_of_two_jobs']), f'{JOBS:g}')}",
        ],
        [
            "<code>aero --help</code>",
            f"{times(helped, source)} s",
            f"{_aim(against(HELP, helped['median'], most=True), f'{HELP:g} s')}",
        ],
        [
            f"stages that a changed learning rate of {escape(change['run'])} makes outdated",
            escape(touched),
            "",
        ],
    ]
    caption = (
        "<b>The pipeline itself</b>, in a clone. For the first three lines outputs are stood in for by small files, "
        f"which DVC treats as any others. {where(found, 'pipeline')}"
    )
    return Html(grid(["what", "measured", "target"], lines, caption, "bench-pipeline", (0.5, 0.28, 0.22)))


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
        f"made with here: {told}. {where(found, name)}"
    )
    heads = ["core", *(f"batch {batch}" for batch in batches)]
    return Html(grid(heads, lines, caption, "bench-sensitivity"))


def _aim(words: str, target: object) -> str:
    """Whether a target is met, and the target: no result, but a number that was asked for."""
    return f'<span class="where">{words} ({target})</span>'
