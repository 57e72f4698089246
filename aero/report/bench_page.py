"""The report's section on speed: training, entropy, tokenising, private inference, the pipeline, and projections."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from aero.errors import UserError
from aero.parameters import load
from aero.report import bench_figures, bench_projections, gpu_speed
from aero.report.bench import (
    GROWTH,
    OPERATIONS,
    STEP,
    against,
    file_of,
    kept_kinds,
    kept_seconds,
    missing,
    origin_of,
    read,
    times,
    where,
)
from aero.report.bench_projections import Training
from aero.report.bench_sweep import beside_the_sweep
from aero.report.costs import GB
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.page import figure_of
from aero.report.results import Results
from aero.two_party import packing

STEP_T512, STEP_T128, HALF_MEMORY, OVERHEAD = 2.5, 1.5, 0.5, 0.15
BELOW = 0.25
"""How far an exponent of seconds lies below its expected order where the report says so."""
PRODUCTS: Mapping[tuple[str, str], Callable[[int], tuple[int, int, int]]] = {
    ("T", "scores"): lambda t: (t, 64, t),
    ("T", "mix"): lambda t: (t, t, 64),
    ("d", "linear"): lambda d: (128, d, d),
}
"""Rows, inner size and columns of the products whose growth is measured, as in `benchmarks.two_party.growing`."""
IN_PROPORTION = 1.0
"""Speed-up over FLOPs saved, of fused rows without norms."""
TOKENIZED, IDLE, JOBS, HELP = 10.0, 5.0, 1.5, 0.3
AT_ONCE, TABLE_BATCH = 20.0, 16
"""How many times as fast all models of the learning-rate sweep at once should be, and the batch of its table."""
LIMITS = "What limits a private pass, by part of the program"
MB = 1e6
DEVICE = "H200"
"""The GPU that projections name."""
SHOWN_ROWS = ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)")
SHOWN_MODELS = ("SM+LN+G", "SM+ScFuFFN")


def section(results: Results) -> Html:
    """All of it; gaps where nothing was measured."""
    parts = [
        figure_of(results, bench_figures.bench_training, "A training step", caption_training(results)),
        table_regularized(results),
        table_tokenizing(results),
        table_parts(results),
        figure_of(results, bench_figures.bench_growth, "How private operations grow", caption_growth(results)),
        figure_of(
            results,
            bench_figures.bench_limits,
            LIMITS,
            caption_limits(results),
        ),
        table_pipeline(results),
        table_sensitivity(results),
        projected_training(results),
        projected_inference(results),
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


def table_parts(results: Results) -> Html:
    """Bytes and seconds of each part of a private pass: as published, and tuned."""
    found = read(results.root, "two_party")
    if found is None:
        return Html(missing("Private passes part by part", "benchmarks.two_party"))
    source = file_of("two_party")
    by_row = {(row["architecture"], row["program"]): row["parts"] for row in found["rows"]}
    names = list(dict.fromkeys(part for row in found["rows"] for part in row["parts"]))
    lines = []
    for name in [*names, "all"]:
        cells = [name]
        for row in SHOWN_ROWS:
            both = [by_row[row, program] for program in ("as_published", "tuned")]
            for quantity, unit, digits in (("bytes", GB, 2), ("seconds", 60.0, 1)):
                values = [_sum(parts, name, quantity) for parts in both]
                cells.append(
                    " → ".join(
                        "–" if value is None else number(f"{value / unit:.{digits}f}", "paper_dimensions", source)
                        for value in values
                    )
                )
        lines.append(cells)
    caption = (
        "<b>Part by part</b>, as published → tuned: GB in both directions and minutes of computing on loopback, of a "
        "forward pass at GPT-2’s dimensions and T=128, set-up left out; a dash where the program has no such part. "
        f"{kept_seconds(results.root, OPERATIONS)} {where(found, 'two_party')}"
    )
    heads = ["part", *(f"{row_label(row)} {unit}" for row in SHOWN_ROWS for unit in ("GB", "min"))]
    return Html(grid(heads, lines, caption, "bench-parts", (), "dense"))


def _sum(parts: Mapping[str, Mapping[str, float]], name: str, quantity: str) -> float | None:
    if name == "all":
        return sum(part[quantity] for part in parts.values())
    return parts[name][quantity] if name in parts else None


def caption_growth(results: Results) -> str:
    found = read(results.root, "two_party")
    if found is None:
        return gap()
    depth = "; ".join(
        f"{line['program']} bytes as L<sup>{line['bytes_exponent']:.2f}</sup>, seconds as "
        f"L<sup>{line['seconds_exponent']:.2f}</sup>"
        for line in found["depth"]
    )
    return (
        "Two processes, one head of width 64 and rows of width 768 against T; 128 positions, and d/64 heads, against "
        "d. Values over that at the smallest size; behind the name the fitted exponent; dashed, the orders that are "
        "expected: T² of what has an entry for every pair of positions, T of the rest and of the bytes of P V, which "
        "sends the values and its result only; d² of a linear layer’s computing, d of its bytes and of the rest. "
        "Growth with L is composed from the same kept operations, not measured: layers repeat them, so L is expected; "
        "embedding, vocabulary projection and the shorter last layer of the tuned program keep SM+LN+G from it: "
        f"{depth}, of L=6 to 18. {_below_order(found)}{_left_out(results, found)}{kept_seconds(results.root, GROWTH)} "
        f"{where(found, 'two_party')}"
    )


def _below_order(found: Mapping[str, Any]) -> str:
    """The kinds whose seconds grow clearly slower than expected over the measured sizes, and what is known of why."""
    told, packed = [], []
    for line in found["growth"]:
        if line.get("seconds_exponent", math.inf) > line["expected_seconds"] - BELOW:
            continue
        title = bench_figures.KINDS[line["kind"]][0]
        power = number(f"{line['seconds_exponent']:.2f}", "paper_dimensions", file_of("two_party"))
        name = f"{title} against {line['axis']}"
        told.append(f"{name} (exponent {power}, expected {line['expected_seconds']:.0f})")
        if product := PRODUCTS.get((line["axis"], line["kind"])):
            sizes = [point["size"] for point in line["points"]]
            small, large = (packing.ciphertexts(*product(size)) for size in (min(sizes), max(sizes)))
            packed.append(f"{name} {large.multiplied / small.multiplied:.0f} and {large.turned / small.turned:.0f}")
        else:
            packed.append(f"{name} not explained")
    if not told:
        return ""
    return (
        f"Seconds below the expected order over the measured range: {'; '.join(told)}. Products of ciphertexts grow in "
        "that order, automorphisms, by which SPU packs answers, in a lower one, and some of the time does not grow. At "
        "the largest size there are so many times the products and automorphisms of the smallest, by SPU’s packing "
        f"(<code>aero/two_party/packing.py</code>): {'; '.join(packed)}. "
    )


def _left_out(results: Results, found: Mapping[str, Any]) -> str:
    """The kinds of kept operations whose growth was not measured."""
    kinds = kept_kinds(results.root) - {line["kind"] for line in found["growth"]}
    return f"Left out: {', '.join(f'<code>{escape(kind)}</code>' for kind in sorted(kinds))}. " if kinds else ""


def caption_limits(results: Results) -> str:
    found = read(results.root, "two_party")
    if found is None:
        return gap()
    told = []
    for network in found["networks"]:
        limits = [row["limit"][network] for row in found["rows"]]
        most = max(set(limits), key=limits.count)
        told.append(f"on {network.upper()} {most} of {limits.count(most)} of {len(limits)} rows and programs")
    return (
        "GPT-2’s dimensions, T=128, composed. Computing is split by part of the program, not by what the processor "
        "did: encrypted products are all of the parts that multiply matrices under homomorphic encryption, nonlinear "
        "functions all others, with oblivious transfers for comparisons and truncations and products of shared "
        "entries. Bandwidth and round "
        f"trips: {found['networks']['wan']['bandwidth_mbit']:g} Mbit/s, {found['networks']['wan']['rtt_ms']:g} ms. "
        f"Computing is that of two processes on two shared cores, one thread each. The largest share: "
        f"{'; '.join(told)}. {kept_seconds(results.root, OPERATIONS)} {where(found, 'two_party')}"
    )


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
        f"made with here: {told}. {beside_the_sweep(found, TABLE_BATCH)}{where(found, name)}"
    )
    heads = ["core", *(f"batch {batch}" for batch in batches)]
    return Html(grid(heads, lines, caption, "bench-sensitivity"))


def projected_training(results: Results) -> Html:
    """Hours and cost of all trainings of the papers at their own scale, as a projection with its inputs."""
    try:
        parameters = load(results.root / "params.yaml")
    except UserError:
        return Html(missing("The cost of all trainings", "aero.parameters"))
    speed = bench_projections.measured_speed(gpu_speed.measured(results.root), DEVICE)
    lines = [
        _training_line(bench_projections.training(parameters, DEVICE, speed, gpu_speed.FILE)),
        *(
            _training_line(bench_projections.training(parameters, name))
            for name in parameters.devices
            if name != DEVICE
        ),
    ]
    tokenizing = read(results.root, "tokenizing")
    more = f"Tokenising the papers’ 8 GB: {gap()}"
    if tokenizing is not None:
        largest = max(tokenizing["vocabularies"], key=lambda one: one["vocabulary"])
        rate = largest["sizes"][-1]["mb_per_cpu_second"]["median"]
        minutes = bench_projections.CODEPARROT_BYTES / MB / rate / 60
        more = f"Tokenising the papers’ 8 GB: 8,000 MB / {rate:.1f} MB a core second = {minutes:.0f} core minutes"
    caption = (
        "<b>Projection: every training of the papers at their scale.</b> hours = FLOPs / FLOP/s / 3600, FLOPs = 3 x "
        "(stack by the papers’ formulas + 2 d V) x tokens of all runs and seeds; eight devices train one run each, "
        "longest first, and are all paid for until the last is done; cost = hours x rent of params.yaml, an "
        "assumption. Not counted: evaluation, under 1 % of the tokens, and all stages but the trainings: entropy, "
        f"two-party measurement, learning-rate sensitivity and parallel context. {more}. Nothing of this was run."
    )
    heads = ["device, rent", "FLOP/s", "trainings, tokens, FLOPs", "one device", "eight devices"]
    return Html(grid(heads, lines, caption, "projection-training", (0.12, 0.24, 0.24, 0.2, 0.2)))


def _training_line(made: Training) -> list[str]:
    source = f"aero/report/bench_projections.py, from params.yaml and {made.speed_from}"

    def marked(text: str) -> str:
        return number(text, "projected", source, "params.yaml")

    def projected(hours: float, cost: float | None) -> str:
        money = "" if cost is None else f", {cost:,.0f} USD"
        return marked(f"{hours:,.0f} h{money}")

    speed = marked(f"{made.speed / 1e12:.0f} T")
    rent = gap("rent unknown") if made.usd_per_hour is None else marked(f"{made.usd_per_hour:.2f} USD/h")
    return [
        f"{escape(made.device)}<br>{rent}",
        f'{speed}<br><span class="where">{escape(made.speed_from)}</span>',
        marked(f"{made.trainings}; {made.tokens / 1e9:.0f} B; {made.flops:.2g}"),
        projected(made.hours, made.cost),
        projected(made.hours_of_eight, made.cost_of_eight),
    ]


def _aim(words: str, target: object) -> str:
    """Whether a target is met, and the target: no result, but a number that was asked for."""
    return f'<span class="where">{words} ({target})</span>'


def projected_inference(results: Results) -> Html:
    """Private inference of larger models, as a projection from GPT-2 small by the stated orders."""
    found = read(results.root, "two_party")
    if found is None:
        return Html(missing("Private inference of larger models", "benchmarks.two_party"))
    chosen = [line for line in found["models"] if line["architecture"] in SHOWN_MODELS]
    lines, heads = [], []
    for name in dict.fromkeys(line["model"] for line in chosen):
        of_model = [line for line in chosen if line["model"] == name]
        heads = [f"{row_label(line['architecture'])} {line['program']}" for line in of_model]
        first = of_model[0]
        sizes = f"L={first['layers']}, H={first['heads']}, d={first['width']}, V={first['vocabulary']:,}"
        lines.append([f"{name}<br>{sizes}", *(_inference_cell(found, line) for line in of_model)])
    caption = (
        "<b>Projection: one private forward pass of larger models</b>, T=128, GPT-2’s layout: GB in both directions, "
        "hours of computing and on the WAN. Every part of the measured pass of GPT-2 small (125M, first line) times "
        f"what it is in proportion to: {_orders(found['scaling'])}. {_fitted(found)}Memory, the fixed-point range and "
        "larger ciphertexts that a wider model may need are not looked at. Only the first line rests on measured "
        "operations. "
        f"{_names(chosen)}"
        f"{where(found, 'two_party')}"
    )
    return Html(grid(["model", *heads], lines, caption, "projection-inference", (), "dense"))


def _names(lines: Sequence[Mapping[str, Any]]) -> str:
    """How many parameters the larger models have in GPT-2's layout, which are not those of their names."""
    sizes = {line["model"]: line["parameters"] for line in lines if line["model"] != lines[0]["model"]}
    told = ", ".join(
        f"“{name}” {number(f'{many / 1e9:.1f}B', 'projected', file_of('two_party'))}" for name, many in sizes.items()
    )
    return f"Names are of the models that depth, width, heads and vocabulary are from; with GPT-2’s layout: {told}. "


def _inference_cell(found: Mapping[str, Any], line: Mapping[str, Any]) -> str:
    less = bench_projections.fitted_seconds_less(found, line)
    times_ = [_hours(line[name] - less, line[name]) for name in ("seconds", "wan_seconds")]
    text = f"{line['bytes'] / GB:.1f} GB; {times_[0]}; {times_[1]}"
    if line["model"] == "125M":
        return number(text, "paper_dimensions", file_of("two_party"))
    return number(text, "projected", file_of("two_party"))


def _hours(first: float, second: float) -> str:
    low, high = (f"{seconds / 3600:.2f}" for seconds in sorted((first, second)))
    return f"{low} h" if low == high else f"{low}–{high} h"


def _fitted(found: Mapping[str, Any]) -> str:
    """What the range of hours is between."""
    power = bench_projections.fitted_power(found)
    if power is None:
        return ""
    return (
        f"The hours are a range: linear layers’ seconds as L d², and as L d<sup>{power:.2f}</sup>, which was fitted "
        "to d of 256 to 1,024. "
    )


def _orders(scaling: Mapping[str, Mapping[str, str]]) -> str:
    """Parts of the same orders together: "softmax L H; LayerNorm, activation L d"."""
    together: dict[tuple[str, str], list[str]] = {}
    for part, order in scaling.items():
        together.setdefault((order["bytes"], order["seconds"]), []).append(part)
    return "; ".join(f"{', '.join(parts)} {_order(*orders)}" for orders, parts in together.items())


def _order(bytes_: str, seconds: str) -> str:
    return bytes_ if bytes_ == seconds else f"{bytes_} (bytes) and {seconds.replace('^2', '²')} (seconds)"
