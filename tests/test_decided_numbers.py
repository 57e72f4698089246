"""Figures that docs/decisions.md states for files of results, held against the files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aero.architecture import parse
from aero.config import load
from aero.published import load as published
from aero.report import lattice_rows, sensitivity_search
from aero.report.costs import audit
from aero.report.results import load as results
from aero.report.sensitivity import sweep
from aero.report.targets import target_rows
from aero.two_party.cost import ledger
from aero.two_party.cost.cost_model import KEPT_FILES, STOCKS, Operations, estimate, law_errors, measured_operations
from aero.two_party.cost.counts import published_sizes
from aero.two_party.program.forward import operations

ROOT = Path(__file__).resolve().parents[1]
TEXT = " ".join((ROOT / "docs/decisions.md").read_text(encoding="utf-8").split())
FUSED = ("SM+ScFuFFN", "SM+ScFuFFNi_6", "SOTA(SM+ScFuFFN)")
WITHIN = ("tuned-lattice_products", "tuned-lattice_products-row_tiles")
PUBLISHED = ("softmax", "window_softmax", "sigma_reparam", "sigmoid", "elu", "qk_layernorm", "relu")


def read(path: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / path).read_text(encoding="utf-8"))


def stated(pattern: str) -> list[str]:
    """The numbers in the one place that `pattern` finds, in order."""
    (found,) = re.findall(pattern, TEXT)
    return list(found) if isinstance(found, tuple) else [found]


def told(values: list[float], like: list[str]) -> list[str]:
    """Values with as many digits as the text has for each."""
    return [f"{v:.{len(text.partition('.')[2])}f}" for v, text in zip(values, like, strict=True)]


def rows(width: int) -> list[dict[str, Any]]:
    by_name = {r["architecture"]: r for r in read("bench/training_step.json")["rows"] if r["width"] == width}
    return [by_name[name] for name in FUSED]


def other_contexts() -> Iterator[float]:
    """How far laws without asked_ops.csv are off its bytes, in per cent; bounds at T = 192 with and without."""
    variant, name = load().two_party.variant(), "results/two_party/asked_ops.csv"
    every = measured_operations(variant, ROOT, KEPT_FILES)
    without = measured_operations(variant, ROOT, [file for file in KEPT_FILES if file != name])
    asked = ledger.read(ROOT / name, ledger.Measurement, ledger.NO_SECONDS)
    for start, of in (("12x1x", "mix"), ("12x", "exponentials(blocks=16,split=1)")):
        off = [
            getattr(row, side) / without.cost(row.op, row.shape).values[side] - 1
            for row in asked
            if row.op == of and row.shape.startswith(start)
            for side in ("bytes_sent_client", "bytes_sent_server")
        ]
        yield 100 * max(map(abs, off))
    # T = 192 was measured later.
    then = Operations({key: row for key, row in every.measured.items() if row.context != 192}, variant)
    for operations_ in (then, without):
        cost = estimate(parse("SM+ScFuFFN"), published_sizes("gpt2", 192), "tuned", operations_)
        yield 100 * cost.bytes_error


def afterwards() -> Iterator[float]:
    """Operations at T = 184 by the laws of other contexts: how many, and in per cent what they are off and may be."""
    kept = measured_operations(load().two_party.variant(), ROOT)
    others = Operations({key: row for key, row in kept.measured.items() if row.context != 184}, kept.variant)
    sides = ("bytes_sent_client", "bytes_sent_server")
    rows = {key: row for key, row in kept.measured.items() if key not in others.measured}
    found = {}
    for key, row in rows.items():
        told = others.cost(*key)
        both = sum(told.values[side] for side in sides)
        off = abs(row.bytes / both - 1)
        bound = sum(told.values[side] * told.errors[side] for side in sides) / both
        found[key] = 100 * off, 100 * bound
    assert all(off < bound for off, bound in found.values())
    yield from (len(rows), len(rows), found["normalise_tiles", "184x768"][0])
    tiles = others.cost("normalise_tiles", "184x768")
    told = sum(tiles.values[side] for side in sides)
    yield rows["normalise_tiles", "184x768"].bytes / 1e6 - told / 1e6
    yield found["normalise_tiles", "184x768"][1] - 100 * sum(STOCKS.values()) / told


def regularized(name: str, *sizes: tuple[int, int]) -> list[float]:
    steps = {(s["width"], s["context"]): s for s in read("bench/regularized_step.json")["steps"]}
    return [steps[size][name]["median"] for size in sizes]


def sensitivity(threads: int) -> Iterator[float]:
    """Lowest and highest ratio over cores, by batch."""
    lines = [line for line in read("bench/sensitivity.json")["lines"] if line["threads"] == threads]
    for batch in (1, 4, 16, 32):
        ratios = [line["ratio"] for line in lines if line["batch"] == batch]
        yield from (min(ratios), max(ratios))


def pipeline() -> list[float]:
    found = read("bench/pipeline.json")
    jobs = found["two_jobs_over_one"]["median"] if "pairs" in found else found["speedup_of_two_jobs"]
    return [found["idle_repro_seconds"]["median"], jobs, found["help_seconds"]["median"]]


def memory(way: str, context: int) -> float:
    """Peak of one layer of attention with entropy, bytes."""
    lines = read("bench/entropy_memory.json")["memory"]
    return next(line["peak_bytes"] for line in lines if (line["way"], line["context"]) == (way, context))


def blocks_over_matrix() -> Iterator[float]:
    """Of the two shapes at T=64, 128 and 256; then the least and the largest repeat at 256."""
    lines = read("bench/entropy_memory.json")["seconds"]
    for context in (64, 128, 256):
        yield from (line["blocks_over_matrix"] for line in lines if line["context"] == context)
    ranges = [line["range"] for line in lines if line["context"] == 256]
    yield from (min(low for low, _ in ranges), max(high for _, high in ranges))


def passes(key: str, program: str = "tuned") -> dict[str, float]:
    entries = read("two_party/full_passes.json")
    return {entry["architecture"]: entry[key] for entry in entries if entry["program"] == program}


def composed(row: str, program: str) -> tuple[float, float]:
    """Seconds, and GB with the set-up, of a program at GPT-2's size, from ops.csv and savings_ops.csv."""
    folder = ROOT / "results/two_party"
    files = [ledger.read(folder / name, ledger.Measurement) for name in ("savings_ops.csv", "ops.csv")]
    measured = ledger.by_operation([*files[0], *files[1]])
    config, context = load(ROOT / "params.yaml").at_scale("laptop").two_party_model()
    parts = [(n, ledger.find(measured, one)) for one, n in operations(parse(row), config, program, context).items()]
    sent = sum(n * one.bytes for n, one in parts) + ledger.session_setup(one for _, one in parts)
    return sum(n * one.seconds for n, one in parts), sent / 1e9


def within_spu() -> Iterator[float]:
    """Of SM+ScFuFFN as written: s; with SPU's products: s, share, without tiles too, GB; rows at half of the seconds
    so; tuned: s, share; without tiles s, GB."""
    plain, *others = (composed("SM+ScFuFFN", p) for p in ("as_written", *WITHIN, "tuned", "tuned-row_tiles"))
    within, no_tiles, tuned, tuned_no_tiles = others
    yield from (plain[0], within[0], within[0] / plain[0], no_tiles[0], no_tiles[0] / plain[0], no_tiles[1], within[1])
    own = [row for row in lattice_rows.lattice_rows(results(ROOT)) if row.own]
    yield sum(row.over("seconds", lattice_rows.WITHIN) <= 0.5 for row in own)
    yield len(own)
    yield from (tuned[0], tuned[0] / plain[0], tuned_no_tiles[0], tuned_no_tiles[1])


def over_the_published() -> Iterator[float]:
    """Of Tables 4, 6, 5 and 7: SM+LN+G and SM+LN+R over the printed bytes, the least and most of AERO's rows."""
    rows = target_rows(results(ROOT))
    for which in "4657":
        found = {
            line["row"]: line["published"] for line in rows if line["table"] == which and line["most"]["published"]
        }
        yield from (found.pop("SM+LN+G"), found.pop("SM+LN+R"))
        yield from (min(found.values()), max(found.values()))
    own = [line for line in rows if line["most"]["bytes"]]
    for key in ("bytes", "seconds"):
        yield from (min(line[key] for line in own), max(line[key] for line in own))
    for key in ("bytes", "seconds"):
        yield max(line[key] + line["put_backs"] * line["more"][key] for line in own)


def within_reach() -> Iterator[float]:
    """Least and most of AERO's rows if dividing rows cost nothing, and of products alone."""
    least = [line["least"] for line in target_rows(results(ROOT)) if line["most"]["seconds"]]
    for key in ("factors", "products"):
        yield from (min(getattr(one, key) for one in least), max(getattr(one, key) for one in least))


def searched() -> Iterator[float]:
    """The search of variance_sensitivity: its settings, those where softmax trains by steps, most decades of ReLU, of
    softmax and of QK-LayerNorm by steps, shares in per cent with their intervals, and the nearest settings."""
    found = sensitivity_search.search(results(ROOT))
    yield len(found.numbers)
    yield from (sum(of == steps for _, of in found.learning) for steps in (500, 2000))
    for core in ("relu", "softmax", "qk_layernorm"):
        for steps in (500, 2000):
            yield max(found.decades[key].get(core) or 0.0 for key in found.learning if key[1] == steps)
    for name, among in (
        ("stable_below_softmax", None),
        *((f"{name}_below_softmax", found.learning) for name in ("stable", "relu", "qk", "window")),
    ):
        share = sensitivity_search.share(found, name, among)
        yield from (100 * value for value in (share.value, share.low, share.high))
    for form in ("relu", "relu_performer"):
        yield from (off for _, off, _ in sensitivity_search.ranked(found, form)[:3])
    printed = sensitivity_search.published()
    yield sensitivity_search.distance(dict.fromkeys(printed, sum(printed.values()) / len(printed)))
    swept = sweep(results(ROOT))
    yield from (sensitivity_search.place_of(found, form, swept) for form in ("relu", "relu_performer"))
    yield len(found.numbers) - len({number for number, _ in found.trained})
    for steps in (500, 2000):
        yield max(found.decades[key].get("sigma_reparam") or 0.0 for key in found.learning if key[1] == steps)


def two_party_file(name: str) -> list[dict[str, str]]:
    with (ROOT / "results/two_party" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def sliced(column: str) -> float:
    """An embedding of 128 tokens of 50,257 x 768 in slices."""
    found = {r["shape"]: float(r[column]) for r in two_party_file("ops.csv") if r["op"] == "embedding_slice"}
    return 49 * found["128x1024,1024x768"] + found["128x81,81x768"]


def whose_saving() -> Iterator[float]:
    table = published("aero").tables["4"]
    for quantity in ("bytes", "latency_wan"):
        found = audit(results(ROOT), table, "SM+ScFuFFNi_6", quantity)
        yield from (found.as_written, found.by_gelu, found.one_gelu, 100 * found.share)


def laws(column: int, *names: str) -> list[float]:
    """Errors of the laws between measured operations, per cent: of bytes (2), rounds (3) or seconds (4)."""
    found = {line[0]: line for line in law_errors(measured_operations("cheetah-FM64-18-exact", ROOT))}
    return [100 * found[name][column] for name in names]


def logit_errors(row: str) -> dict[str, float]:
    """By program, of passes of 16 tokens: both ends, as published, and 14 savings in either way."""
    lines = [
        line
        for line in two_party_file("savings_errors.csv")
        if (line["architecture"], line["tokens"], line["scale"]) == (row, "16", "laptop")
    ]
    assert len(lines) == 31 and all(line["same_top_token"] == line["prompts"] == "2" for line in lines)
    return {line["program"]: float(line["max_logit_error"]) for line in lines}


def held_out(row: str) -> Iterator[float]:
    """Prompts, same top tokens and error of a row with SPU's products; the same of as_written, on some of them."""
    lines = {
        line["program"]: line
        for line in two_party_file("savings_errors.csv")
        if (line["architecture"], line["tokens"]) == (row, "24")
    }
    ends = [lines[program] for program in (WITHIN[0], "as_written") if program in lines]
    weights = {json.loads(line["provenance"])["weights"] for line in ends}
    assert WITHIN[0] in lines and len(weights) == 1
    for line in (lines[program] for program in (WITHIN[0], "as_written") if program in lines):
        yield from (float(line[name]) for name in ("prompts", "same_top_token", "max_logit_error"))


def errors_of_savings() -> Iterator[float]:
    found, other = logit_errors("SM+LN+G"), logit_errors("SM+ScFuFFN")
    yield from (found["as_written"], found["tuned"], other["as_written"], other["tuned"])
    two = ("split_exponential", "segmented_gelu")
    differ = (*two, "fewer_squarings")  # another exponential too, told of with its own figures
    yield from (found[f"tuned-{name}"] for name in two)
    yield from (found[f"as_written+{name}"] for name in two)
    yield found["as_written"]
    yield from (found[f"{end}+fewer_squarings"] for end in ("as_written", "tuned-split_exponential"))
    yield from (found["as_published"], other["as_published"])
    for end in ("as_written", "tuned"):
        rest = [error for name, error in found.items() if name.startswith(end) and not name.endswith(differ)]
        yield from (min(rest), max(rest))


def seconds_of_savings() -> Iterator[float]:
    """Of SM+ScFuFFN: as written, less what either saving on products leaves, tuned, and tuned without two, which
    agree."""
    lines = [line for line in two_party_file("savings.csv") if line["architecture"] == "SM+ScFuFFN"]
    seconds = {line["program"]: float(line["seconds"]) for line in lines}
    plain = seconds["as_written"]
    assert abs(seconds["tuned-late_division"] - seconds["tuned-row_tiles"]) < 1
    yield plain
    yield from (plain - seconds[f"as_written+{name}"] for name in ("lattice_lookup", "lattice_products"))
    yield from (seconds["tuned"], seconds["tuned-row_tiles"])


N = r"([\d.]*\d)"
CASES = {
    "two parties, seconds of savings": (
        rf"Of SM\+ScFuFFN's {N} s as written `lattice_lookup` alone takes {N} away and `lattice_products` {N}; tuned "
        rf"has {N} s, and {N} without either `late_division` or `row_tiles`",
        lambda: list(seconds_of_savings()),
    ),
    "two parties, errors of savings": (
        rf"SM\+LN\+G as written {N}, tuned {N}; SM\+ScFuFFN {N} and {N}\. Two savings make the difference, split "
        rf"exponentials and the segmented GELU: without the one or the other SM\+LN\+G tuned has {N} and {N}, with one "
        rf"alone {N} and {N} instead of {N}\. So do .*?: {N} alone, {N} in its place\. As published the two rows have "
        rf"{N} and {N}\. The others move nothing beyond what repetition does: {N} to {N} with any of them alone, {N} "
        rf"to {N} with any left out",
        lambda: list(errors_of_savings()),
    ),
    "two parties, errors of looking up": (
        rf"With a vocabulary of 4,096 SM\+ScFuFFN has {N} as written and {N} with it alone, {N} tuned and {N} "
        rf"without it\.",
        lambda: [
            float(line["max_logit_error"])
            for program in ("as_written", "as_written+lattice_lookup", "tuned", "tuned-lattice_lookup")
            for line in two_party_file("savings_errors.csv")
            if (line["program"], line["scale"]) == (program, "laptop, V=4096")
        ],
    ),
    "two parties, complete passes": (
        rf"`tuned`\): SM\+LN\+G {N} s and {N} GB, SM\+LN\+R {N} and {N}, SM\+ScFuFFN {N} and {N}\. Sums",
        lambda: [
            value
            for row in ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN")
            for value in (passes("seconds")[row], (passes("bytes_client")[row] + passes("bytes_server")[row]) / 1e9)
        ],
    ),
    "two parties, sums over passes": (
        rf"with the median, are {N} to {N} of the bytes and {N} to {N} of the seconds\. With",
        lambda: [
            choose(passes(f"composed_over_measured_{what}").values())
            for what in ("bytes", "seconds")
            for choose in (min, max)
        ],
    ),
    "two parties, bytes of sums": (
        rf"up to {N} % of bytes in the small models \(`results/two_party/end_to_end.json`\) and {N} % at GPT-2's size",
        lambda: [
            100 * max(abs(e["composed_over_measured"] - 1) for e in read("two_party/end_to_end.json")),
            100 * max(abs(e["composed_over_measured_bytes"] - 1) for e in read("two_party/full_passes.json")),
        ],
    ),
    "two parties, within SPU": (
        rf"of SM\+ScFuFFN at T = 128, {N} s as written, {N} `tuned-lattice_products` \({N}\), {N} without "
        rf"`row_tiles` too \({N}, at {N} GB instead of {N}\), all measured together; half of the seconds was reached "
        rf"by {N} of AERO's {N} rows\. .*?: {N} s \({N}\)\. Tiles .*? takes {N} s at {N} GB\.",
        lambda: list(within_spu()),
    ),
    "two parties, over the published": (
        rf"12 layers SM\+LN\+G {N} \(0.30\), SM\+LN\+R {N} \(0.35\), AERO's rows {N} to {N} \(0.30\); 18 layers {N}, "
        rf"{N}, {N} to {N}; T=256 {N}, {N}, {N} to {N} \(0.35\); T=512 {N}, {N}, {N} to {N} \(0.35\)\. AERO's rows "
        rf"take {N} to {N} of the bytes \(0.5\) and {N} to {N} of the seconds \(0.5\) of `as_written`; .*? can need "
        rf"it {N} and {N} at most\.",
        lambda: list(over_the_published()),
    ),
    "two parties, within reach": (
        rf"AERO's rows would take {N} to {N} of the seconds as written; products alone take {N} to {N}\.",
        lambda: list(within_reach()),
    ),
    "search of variance_sensitivity": (
        rf"What the {N} say\. Softmax trains at some rate in {N} of them within 500 steps and in {N} within 2,000\. "
        rf"Where it does, the ReLU kernel trains over at most {N} and {N} decades, softmax {N} and {N}, QK-LayerNorm "
        rf"{N} and {N}: .*? core in {N}% \[{N}%, {N}%\] of all settings and {N}% \[{N}%, {N}%\] of those where "
        rf"softmax trains, ReLU below softmax in {N}% \[{N}%, {N}%\] of the latter, QK-LayerNorm in "
        rf"{N}% \[{N}%, {N}%\], the window in {N}% \[{N}%, {N}%\]\. The nearest settings are {N}, {N}, {N} off "
        rf"\(root mean square\) with phi = ReLU and {N}, {N}, {N} with 0\.001 more; .*? mean, is {N} off\. At "
        rf"the sweep's own steps and l_0 its setting is number {N} and {N} of the 70 .*? In {N} of the 70 no core "
        rf"trains at any rate\. The widest range of all is σReparam's, {N} and {N} decades",
        lambda: list(searched()),
    ),
    "two parties, held-out prompts": (
        rf"On {N} held-out prompts of 24 tokens SM\+ScFuFFN `tuned-lattice_products` has PyTorch's top token {N} "
        rf"times and an error of {N} at most; `as_written` has it on an evenly spaced {N} of them {N} times, with an "
        rf"error of {N}",
        lambda: list(held_out("SM+ScFuFFN")),
    ),
    "two parties, held-out prompts of the baselines": (
        rf"SM\+LN\+G so was asked {N} and has it {N} times, with an error of {N} at most \(as written on an "
        rf"evenly spaced {N}: {N} times, {N}\), SM\+LN\+R {N}, {N} times, {N} "
        rf"\(on an evenly spaced {N}: {N} times, {N}\)\.",
        lambda: [*held_out("SM+LN+G"), *held_out("SM+LN+R")],
    ),
    "two parties, costs at other contexts": (
        rf"{N} % for P V of one row and {N} % for the exponentials, .*? --context 192` had its bytes within {N} % with "
        rf"them, .*? and would have had them within {N} % without\.",
        lambda: list(other_contexts()),
    ),
    "two parties, costs measured afterwards": (
        rf"fitted to: {N} of {N} operations of four rows at T = 184, .*? LayerNorm's tiles are {N} % off, {N} MB, "
        rf"where {N} were allowed",
        lambda: list(afterwards()),
    ),
    "two parties, whose saving": (
        rf"{N} times fewer bytes for SM\+ScFuFFNi_6, both rows `as_written`, are {N} times by the GELU of the "
        rf"baseline \(segmented instead of `jax.nn`'s\) and {N} times by the architecture, {N} % in "
        rf"logarithms; of {N} times in WAN latency {N} and {N}, {N} %\.",
        lambda: list(whose_saving()),
    ),
    "two parties, laws": (
        rf"now {N}, {N} and {N} % \({N} % for Q K\^T of one row\)\. .*? is still told to within {N} %",
        lambda: laws(2, "mix", "scores", "gelu_segments", "scores of one row", "gelu_segments of one row"),
    ),
    "two parties, embeddings": (
        rf"1,{N} \| {N}; processor some 480",
        lambda: [sliced("messages") % 1000, sliced("seconds")],
    ),
    "two parties, law of seconds": (
        rf"automorphisms \(1.2 ms\): within {N} %",
        lambda: laws(4, "product with the server's matrix"),
    ),
    "entropy by blocks, time": (
        rf"blocks take {N} and {N} of the matrix's time at T=64, {N} and {N} at T=128, {N} and {N} at T=256 "
        rf"\(GPT-2's and the laptop scale's shapes; the repeats at 256 range from {N} to {N}\)",
        lambda: list(blocks_over_matrix()),
    ),
    "entropy by blocks, memory at 256": (
        rf"costs time and memory there \({N} MB against {N}\)",
        lambda: [memory(way, 256) / 1e6 for way in ("matrix", "blocks")],
    ),
    "entropy by blocks, memory at 4,096": (
        rf"at T=4,096 {N} GB through the matrix, {N} MB by blocks and {N} MB by kept blocks",
        lambda: [memory("matrix", 4096) / 1e9, memory("blocks", 4096) / 1e6, memory("kept", 4096) / 1e6],
    ),
    "entropy by blocks, growth": (
        rf"grows as T\^{N} and T\^{N}\.",
        lambda: [read("bench/entropy_memory.json")["growth"][way] for way in ("matrix", "blocks")],
    ),
    "fused rows": (
        rf"V=1,024\): SM\+ScFuFFN {N} at d=128 and {N} at d=768, SM\+ScFuFFNi_6 {N} and {N}, "
        rf"SOTA\(SM\+ScFuFFN\) {N} and {N}\.",
        lambda: [r["speedup_over_flops"] for pair in zip(rows(128), rows(768), strict=True) for r in pair],
    ),
    "fused rows, passes": (
        rf"pass alone give {N}, {N}, {N} at d=128 and {N}, {N}, {N} at d=768",
        lambda: [r["speedup_of_passes"]["median"] / r["flops_ratio"] for r in (*rows(128), *rows(768))],
    ),
    "fused rows, products": (
        rf"the same file, give {N}, {N}, {N} at d=128 and {N}, {N}, {N} at d=768",
        lambda: [r["products_speedup"]["median"] / r["flops_ratio"] for r in (*rows(128), *rows(768))],
    ),
    "regularised step": (
        rf"at T=512 it is {N} \(d=128\) and {N} times \(d=768\) as fast as the authors' way, not 2.5",
        lambda: regularized("ratio", (128, 512), (768, 512)),
    ),
    "regularised step, T=128": (
        rf"at T=128 is {N} \(d=128\) and {N} times \(d=768\) as fast as the authors' way \(1.5 asked",
        lambda: regularized("ratio", (128, 128), (768, 128)),
    ),
    "regularised step, products alone": (
        rf"they are {N} and {N} times as fast as the authors' whole step",
        lambda: regularized("products_ratio", (128, 512), (768, 512)),
    ),
    "regularised step, with single kernels": (
        rf"calling it all: {N} \({N} to {N} in seven repeats\) and {N} times \({N} to {N}\)\.",
        lambda: [
            step["kernels_ratio"][key]
            for step in read("bench/regularized_step.json")["steps"]
            if step["context"] == 512
            for key in ("median", "low", "high")
        ],
    ),
    "free regulariser": (
        rf"Without any regulariser our step is {N} and {N} times as fast as theirs with one \(medians, T=512\)",
        lambda: regularized("plain_ratio", (128, 512), (768, 512)),
    ),
    "idle": (rf"which leaves 6, and, with YAML's C parser, {N} s", lambda: pipeline()[:1]),
    "idle, plain": (
        rf"named anyway: {N} s \(median of five, {N} to {N}; 5 asked\)",
        lambda: [read("bench/pipeline.json")["plain_repro_seconds"][key] for key in ("median", "low", "high")],
    ),
    "regularised step, memory": (
        rf"and {N} and {N} of their memory at T=512",
        lambda: [s["memory_ratio"] for s in read("bench/regularized_step.json")["steps"] if s["context"] == 512],
    ),
    "plain step": (
        rf"{N} to {N} times Hugging Face's tokens in all eight shapes \(1.3 asked\), "
        rf"{N} and {N} of them at d=128, T=512",
        lambda: (
            [
                choose(step["ratio"]["median"] for step in read("bench/training_step.json")["steps"])
                for choose in (min, max)
            ]
            + [
                step["ratio"]["median"]
                for step in read("bench/training_step.json")["steps"]
                if (step["width"], step["context"]) == (128, 512)
            ]
        ),
    ),
    "regularised step, overhead": (
        r"It takes (-?\d+) to (\d+) % more than the unregularised step",
        lambda: [
            100 * choose(step["overhead"]["median"] for step in read("bench/regularized_step.json")["steps"])
            for choose in (min, max)
        ],
    ),
    "plain step, as it comes": (
        rf"it is {N} to {N} times",
        lambda: [
            choose(s["ratio_as_it_comes"]["median"] for s in read("bench/training_step.json")["steps"])
            for choose in (min, max)
        ],
    ),
    "two jobs": (rf"Two jobs were {N} times", lambda: pipeline()[1:2]),
    "help": (rf"when it runs: 0.87 to {N} s", lambda: pipeline()[2:]),
    "sweep, load": (
        rf"one thread, load {N}\): 95 models",
        lambda: [read("bench/sensitivity.json")["load_before"]],
    ),
    "sweep, one thread": (
        rf"are {N} to {N} times faster at batch 1, {N} to {N} at batch 4, {N} to {N} at the table's 16, "
        rf"{N} to {N} at 32",
        lambda: list(sensitivity(1)),
    ),
    "sweep, two threads": (
        rf"by the clock {N} to {N}, {N} to {N}, {N} to {N} and {N} to {N}\.",
        lambda: list(sensitivity(2)),
    ),
    "sweep, seconds": (
        rf"published cores took {N} s, all eleven {N} s",
        lambda: [
            sum(read("sensitivity/sweep.json")["seconds"][core] for core in PUBLISHED),
            sum(read("sensitivity/sweep.json")["seconds"].values()),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_figure_in_the_decisions_is_that_of_its_file(case: str) -> None:
    pattern, values = CASES[case]
    found = stated(pattern)
    assert found == told(values(), found)


def test_the_table_of_shaped_passes_is_that_of_the_file() -> None:
    text = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    lines = [line for line in two_party_file("shaped.csv") if line["predicted"]]
    for line in lines:
        measured, predicted, *parts = (
            f"{float(line[key]):.1f}" for key in ("seconds", "predicted", "compute", "transfer", "rounds")
        )
        cells = [line["architecture"], line["program"], line["network"], measured, predicted, " + ".join(parts)]
        assert f"| {' | '.join(cells)} | {100 * float(line['error']):+.1f} % |\n" in text
    worst = max(abs(float(line["error"])) for line in lines)
    assert f"All {len(lines)} are within {100 * worst:.1f} %" in text and worst < 0.1
    assert text.count("| loopback |") == sum(line["network"] == "loopback" for line in lines)


def test_the_least_norm_of_relu_is_that_of_the_sweep():
    with (ROOT / "results/sensitivity/traces.csv").open(encoding="utf-8", newline="") as file:
        norms = [
            float(line["frobenius"]) for line in csv.DictReader(file) if line["core"] == "relu" and line["frobenius"]
        ]
    page = (ROOT / "docs/variance_sensitivity.md").read_text(encoding="utf-8")
    assert f"falls below 1, to {min(norms):.2f} in the sweep" in page
