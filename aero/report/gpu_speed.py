"""The report's tables of training speed on a GPU, from results/bench/gpu.json (`python -m benchmarks.gpu`)."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from aero.report.bench import against, aim
from aero.report.costs import GIB
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results
from aero.report.unreadable import UNREADABLE, guarded

FILE = "results/bench/gpu.json"


def read(root: Path) -> dict[str, Any]:
    """The measurements; one of `UNREADABLE` if there are none, or if they are of the benchmark in small."""
    found: dict[str, Any] = json.loads((root / FILE).read_text(encoding="utf-8"))
    if found["tiny"]:
        raise ValueError("measured with --tiny")
    return found


def measured(root: Path) -> dict[str, Any] | None:
    """As `read`, but None where there is nothing that counts."""
    try:
        return read(root)
    except UNREADABLE:
        return None


def tables(results: Results) -> Html:
    """Steps against the card's measured rate, attention with entropy and its errors, and where a step's time goes."""
    if not (results.root / FILE).is_file():
        how = "<code>python -m benchmarks.gpu</code> measures it where there is a GPU (docs/gpu.md)"
        return Html(f"<p>Training speed on a GPU: {gap('not measured yet')}; {how}.</p>")

    def show() -> Html:
        found = read(results.root)
        return Html(_steps(found) + _attention(found) + _errors(found) + _profile(found))

    return guarded(FILE, "python -m benchmarks.gpu", show)


def _number(text: str) -> str:
    return number(text, "paper_dimensions", FILE)


def _steps(found: dict[str, Any]) -> str:
    targets, overhead = found["targets"], {}
    for line in found["overhead"]:
        overhead[line["architecture"], line["context"], line["compiled"]] = line["overhead"]
    rows = []
    for line in found["steps"]:
        extra = overhead.get((line["architecture"], line["context"], line["compiled"]))
        target = targets["utilisation"].get(str(line["context"]))
        rows.append(
            [
                row_label(line["architecture"]),
                str(line["context"]),
                "yes" if line["compiled"] else "no",
                _number(f"{line['tokens_per_second'] / 1e3:,.0f}"),
                _number(f"{line['utilisation']:.0%}") + _verdict(target, line["utilisation"]),
                "" if extra is None else _number(f"{extra:+.0%}") + _verdict(targets["overhead"], extra, most=True),
                _number(f"{line['peak_bytes'] / GIB:.1f}") if line["peak_bytes"] else "",
            ]
        )
    card, made, sizes = found["card"], found["provenance"], found["sizes"]
    left = "".join(f" Not measured: {escape(entry['part'])} ({escape(entry['why'])})." for entry in found["left_out"])
    caption = (
        f"<b>Training steps on {escape(made['device'])}.</b> {sizes['layers']} layers, d={sizes['width']}, "
        f"{sizes['tokens']} tokens a step, bf16; model FLOPs by the papers' formulas over the matrix rate measured on "
        f"the same card, {card['matrix_flops'] / 1e12:.0f} TFLOP/s at {card['matrix_side']} x {card['matrix_side']}; a "
        f"copy moved {card['copy_bytes_per_second'] / 1e12:.2f} TB/s. Medians over logged steps. "
        "What the regulariser adds is a ratio of such medians, of trainings one after the other, so without a range. "
        "PyTorch "
        f"{escape(made['torch'])}, commit {escape(made['commit'][:10])}; <code>{FILE}</code>.{left}"
    )
    heads = ["step of", "T", "compiled", "10³ tokens/s", "of the matrix rate", "regulariser adds", "peak GiB"]
    return grid(heads, rows, caption, "gpu-steps", (0.26, 0.07, 0.1, 0.13, 0.18, 0.16, 0.1), "dense")


def _verdict(target: float | None, value: float, most: bool = False) -> str:
    """Whether a target is met, and the target; nothing where there is none."""
    return "" if target is None else f" {aim(against(target, value, most), f'{target:.0%}')}"


def _fastest(found: dict[str, Any]) -> str:
    """Of the ways to an entropy the fastest at each T, in a sentence."""
    told = []
    for context in sorted({line["context"] for line in found["attention"]}):
        ways = [
            line
            for line in found["attention"]
            if line["context"] == context and "failed" not in line and line["entropy_error"] is not None
        ]
        if ways:
            told.append(f"{escape(min(ways, key=lambda line: line['seconds'])['way'])} at T={context}")
    return f" Fastest with an entropy: {', '.join(told)}." if told else ""


def _attention(found: dict[str, Any]) -> str:
    contexts = sorted({line["context"] for line in found["attention"]})
    ways = list(dict.fromkeys(line["way"] for line in found["attention"]))
    by = {(line["way"], line["context"]): line for line in found["attention"]}
    rows, memory = [], []
    for way in ways:
        cells, peaks = [], []
        for context in contexts:
            line = by.get((way, context))
            if line is None or "failed" in line:
                cells.append(gap("failed" if line else "none"))
                peaks.append(cells[-1])
                continue
            cells.append(_number(f"{1e3 * line['seconds']:.2f}"))
            peaks.append(_number(f"{line['peak_bytes'] / GIB:.2f}") if line["peak_bytes"] else "")
        errors = [
            line["entropy_error"] for line in found["attention"] if line["way"] == way and line.get("entropy_error")
        ]
        rows.append([escape(way), *cells, _number(f"{max(errors):.1e}") if errors else ""])
        memory.append([escape(way), *peaks])
    caption = (
        "<b>Attention with entropy, one layer, forward and backward.</b> Milliseconds at as many tokens for every T; "
        f"the last column is the largest error of an entropy against float64, nats.{_fastest(found)}"
    )
    columns = [f"T={context}" for context in contexts]
    times = grid(["way", *columns, "error"], rows, caption, "gpu-attention", (), "dense")
    if not any(line.get("peak_bytes") for line in found["attention"]):
        return times  # measured where nothing counts memory
    caption = (
        "<b>Memory of attention with entropy, one layer, forward and backward.</b> Peak GiB, with inputs and gradients "
        "and at as many tokens for every T: what a sequence takes as T stays level, what it takes as T squared grows "
        "as T."
    )
    return times + grid(["way", *columns], memory, caption, "gpu-attention-memory", (), "dense")


def _errors(found: dict[str, Any]) -> str:
    """The largest error over all T, by way and size of the logits, as a share of the quantity's largest value."""
    if not found["errors"]:
        return ""  # the caption of the steps says which parts are left out
    heads = {"output": "output", "entropy": "entropy", "d_query": "dQ", "d_key": "dK", "d_value": "dV"}
    groups: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for line in found["errors"]:
        groups.setdefault((line["logits"], line["way"]), []).append(line)
    rows = []
    for (_, way), lines in groups.items():
        if any("failed" in line for line in lines):
            cells = [gap("failed")] * len(heads)
        else:
            worst = {name: max(line["errors"][name] / line["largest"][name] for line in lines) for name in heads}
            cells = [_number(f"{error:.1e}") for error in worst.values()]
        rows.append([f"{max(line['largest_logit'] for line in lines):.0f}", escape(way), *cells])
    caption = (
        "<b>Errors of attention with entropy against float64</b>, forward and backward, the largest at any T up to "
        f"{max(line['context'] for line in found['errors']):,}, as a share of the largest value of each quantity."
    )
    return grid(["logits up to", "way", *heads.values()], rows, caption, "gpu-errors", (), "dense")


def _profile(found: dict[str, Any]) -> str:
    rows = []
    for line in found["profile"]:
        for kernel in line["kernels"][:6]:
            share = kernel["seconds"] / line["seconds"] if line["seconds"] else 0.0
            name = f"<code>{escape(kernel['kernel'][:60])}</code>"
            where = [row_label(line["architecture"]), str(line["context"]), name]
            rows.append([*where, _number(f"{share:.0%}"), _number(str(kernel["calls"]))])
    caption = (
        "<b>Where a step's time goes.</b> The six kernels that take most of the device's time; all are in the file."
    )
    return grid(["step of", "T", "kernel", "of the time", "calls"], rows, caption, "gpu-profile", (), "dense")
