"""The report's section on speed, projections: the whole artifact at the papers' scale, and larger models privately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from aero.config import load
from aero.errors import UserError
from aero.report import bench_projections, gpu_speed
from aero.report.bench import file_of, missing, read, where
from aero.report.bench_projections import Training
from aero.report.bench_two_party import single_runs
from aero.report.costs import GB
from aero.report.marks import Html, gap, grid, number, row_label
from aero.report.results import Results
from aero.report.unreadable import UNREADABLE

MB = 1e6
DEVICE = "H200"
"""The GPU that projections name."""
SHOWN_MODELS = ("SM+LN+G", "SM+ScFuFFN")


def _measured_speed(results: Results) -> float | None:
    try:
        return bench_projections.measured_speed(gpu_speed.measured(results.root), DEVICE)
    except UNREADABLE:  # which the GPU's own tables say
        return None


def projected_training(results: Results) -> Html:
    """Hours and cost of all trainings of the papers at their own scale, as a projection with its inputs."""
    try:
        parameters = load(results.root / "params.yaml")
    except UserError:
        return Html(missing("The cost of all trainings", "aero.config"))
    speed = _measured_speed(results)
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
        "assumption. Not counted: evaluation, under 1 % of the tokens, and all stages but the trainings, which follow. "
        f"{more}. Nothing of this was run."
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


def projected_stages(results: Results) -> Html:
    """What the stages beside the trainings take at the papers' scale, from what they took when they were kept."""
    try:
        parameters = load(results.root / "params.yaml")
    except UserError:
        return Html(missing("The cost of all other stages", "aero.config"))
    speed = _measured_speed(results)
    lines = []
    for stage in bench_projections.other_stages(parameters, results.root, DEVICE, speed):
        money = "" if stage.cost is None else f", {stage.cost:,.2f} USD"
        unit = f"{stage.of} hours"
        lines.append(
            [
                stage.name,
                f'{escape(stage.inputs)}<br><span class="where">{escape(stage.source)}</span>',
                number(f"{stage.hours:,.2f} {unit}{money}", "projected", stage.source, "params.yaml"),
            ]
        )
    caption = (
        "<b>Projection: the stages beside the trainings, at the papers’ scale.</b> hours = seconds / 3600 of the kept "
        "measurements, which are at the papers’ own dimensions or at sizes that the scale paper shares; entropy by the "
        f"FLOPs of its forward passes. Cost = hours x rent of params.yaml, {parameters.core_usd_per_hour:g} USD for a "
        "core hour, an assumption. Not counted: rounds and set-up of private operations, complete private passes, "
        "searches for settings, tables and figures. Other processors take other times."
    )
    return Html(grid(["stage", "from", "one device"], lines, caption, "projection-stages", (0.2, 0.5, 0.3)))


def projected_inference(results: Results) -> Html:
    """Private inference of larger models, as a projection from GPT-2 small by the stated orders."""
    found = read(results.root, "two_party")
    if found is None:
        return Html(missing("Private inference of larger models", "benchmarks.two_party"))
    try:
        rent = load(results.root / "params.yaml").core_usd_per_hour
    except UserError:
        return Html(missing("Private inference of larger models", "aero.config"))
    chosen = [line for line in found["models"] if line["architecture"] in SHOWN_MODELS]
    lines, heads = [], []
    for name in dict.fromkeys(line["model"] for line in chosen):
        of_model = [line for line in chosen if line["model"] == name]
        heads = [f"{row_label(line['architecture'])} {line['program']}" for line in of_model]
        first = of_model[0]
        sizes = f"L={first['layers']}, H={first['heads']}, d={first['width']}, V={first['vocabulary']:,}"
        lines.append([f"{name}<br>{sizes}", *(_inference_cell(found, line, rent) for line in of_model)])
    caption = (
        "<b>Projection: one private forward pass of larger models</b>, T=128, GPT-2’s layout: GB in both directions, "
        "hours of computing and on the WAN, and USD: both parties’ cores, one each, for the time of "
        f"computing at {rent:g} USD a core hour (params.yaml, an assumption), nothing for the link "
        "and for waiting. Every part of the measured pass of GPT-2 small (125M, first line) times "
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


def _inference_cell(found: Mapping[str, Any], line: Mapping[str, Any], rent: float) -> str:
    less = bench_projections.fitted_seconds_less(found, line)
    times_ = [_hours(line[name] - less, line[name]) for name in ("seconds", "wan_seconds")]
    text = f"{line['bytes'] / GB:.1f} GB; {times_[0]}; {times_[1]}"
    paid = _range(*(bench_projections.core_cost(line["seconds"] - part, rent) for part in (less, 0.0)), digits=3)
    money = number(f"{paid} USD", "projected", f"{file_of('two_party')}, params.yaml")
    if line["model"] == "125M":
        return f"{number(text, 'paper_dimensions', file_of('two_party'))}; {money}"
    return f"{number(text, 'projected', file_of('two_party'))}; {money}"


def _hours(first: float, second: float) -> str:
    return f"{_range(first / 3600, second / 3600)} h"


def _range(first: float, second: float, digits: int = 2) -> str:
    low, high = (f"{value:.{digits}f}" for value in sorted((first, second)))
    return low if low == high else f"{low}–{high}"


def _fitted(found: Mapping[str, Any]) -> str:
    """What the range of hours is between."""
    powers = {program: bench_projections.fitted_power(found, program) for program in bench_projections.LINEAR}
    told = [
        f"L d<sup>{power:.2f}</sup> {program.replace('_', ' ')}{_of_runs(found, program)}"
        for program, power in powers.items()
        if power is not None
    ]
    if not told:
        return ""
    return (
        "The hours are a range: linear layers’ seconds as L d², and as fitted to d of 256 to 1,024: "
        f"{', '.join(told)}. "
    )


def _of_runs(found: Mapping[str, Any], program: str) -> str:
    """In brackets how many runs the fitted power rests on, where it is one of a size."""
    kind = bench_projections.LINEAR[program]
    line = next(line for line in found["growth"] if (line["axis"], line["kind"]) == ("d", kind))
    return f" ({once})" if (once := single_runs(line)) else ""


def _orders(scaling: Mapping[str, Mapping[str, str]]) -> str:
    """Parts of the same orders together: "softmax L H; LayerNorm, activation L d"."""
    together: dict[tuple[str, str], list[str]] = {}
    for part, order in scaling.items():
        together.setdefault((order["bytes"], order["seconds"]), []).append(part)
    return "; ".join(f"{', '.join(parts)} {_order(*orders)}" for orders, parts in together.items())


def _order(bytes_: str, seconds: str) -> str:
    return bytes_ if bytes_ == seconds else f"{bytes_} (bytes) and {seconds.replace('^2', '²')} (seconds)"
