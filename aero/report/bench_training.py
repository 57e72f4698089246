"""The report's account of a training step's speed: beside transformers, by row, and with the regulariser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aero.report.bench import STEP, against, aim, file_of, missing, origin_of, read, times, where
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results

STEP_T512, STEP_T128, HALF_MEMORY, OVERHEAD = 2.5, 1.5, 0.5, 0.15
IN_PROPORTION = 1.0
"""Speed-up over FLOPs saved, of fused rows without norms."""
MB = 1e6


def caption(results: Results) -> str:
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
        "AdamW, of their matrix products alone, which bounds nothing as the first row has more than products to save, "
        "and at most: the step of the first row over the row’s products with one kernel of PyTorch’s for each other "
        f"part that it has: {_in_proportion(found['rows'])}. The FLOPs are those of matrix "
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
    """The same of forward and backward pass alone and of the matrix products alone, as far as they were measured, and
    what the row's products and single kernels bound it by.
    """
    found = [
        f"{row[name]['median'] / row['flops_ratio']:.2f}"
        for name in ("speedup_of_passes", "products_speedup")
        if name in row
    ]
    bound = row.get("kernels_bound")
    at_most = gap() if bound is None else times(bound, file_of("training_step"), origin_of(row["width"]))
    return f" ({', '.join([*found, f'at most {at_most}'])})"


def regularized(results: Results) -> Html:
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
            memory += f"<br>{aim(against(HALF_MEMORY, step['memory_ratio'], most=True), HALF_MEMORY)}"
        lines.append(
            [
                f"d={step['width']}, T={step['context']}",
                f"{times(ratio, source, origin)}<br>{aim(against(target, ratio['median']), target)}",
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
        f"fast as these kernels could be, {_attention(found)}, if norms, activations, softmax, entropy, loss and "
        "optimiser took no time; and "
        "with single kernels of PyTorch’s for those, without autograd, copies, biases, clipping and penalty: as fast "
        "as a step made of PyTorch’s kernels could be, though not one with kernels of its own. "
        "Memory: of a fresh process, for one forward and backward pass beyond the model, gradients included; at T=512 "
        "ours keeps the causal half of every attention matrix, which is the fastest there and grows as T². "
        f"Overhead: over the same step without the regulariser. In brackets the target. {where(found, name)}"
    )
    heads = ["model", "times the authors’ speed", "without any regulariser", "peak memory, ours of theirs", "overhead"]
    return Html(grid(heads, lines, caption, "bench-regularized", (0.13, 0.2, 0.24, 0.25, 0.18)))


def _attention(found: Mapping[str, Any]) -> str:
    """What multiplied within attention; files from before there was a choice had PyTorch's own bmm."""
    ways = [escape(way) for way in found.get("attention_products", ["bmm"])]
    if ways == ["bmm"]:
        return "with PyTorch’s own bmm in attention"
    return f"with the faster of {' and '.join(ways)} in attention"


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
