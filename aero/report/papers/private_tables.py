"""Tables of what private inference costs, as frames: one row of AERO Tables 4-7 a line, bytes in both directions.

"reproduced" is the fit to the published bytes (`costs.fits`), "stock SPU" the program "as_written" under today's SPU,
"optimised" the program "tuned". Cells are text; a missing measurement is "–".
"""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from aero.published import load
from aero.records import read_csv
from aero.report import costs
from aero.report.costs import GB, OPTIMISED, PROGRAMS, STOCK
from aero.report.results import Results
from aero.two_party.cost import ledger
from aero.two_party.program.optimizations import AS_PUBLISHED, OPTIMIZATIONS, TUNED, on_its_own, toggled

MISSING = "–"
ROW = "configuration"
PROGRAM_NAMES = {AS_PUBLISHED: "fit, today's SPU", STOCK: "stock SPU", OPTIMISED: "optimised"}
HEADLINE = {
    "SM+LN+G": "GPT-2: LayerNorm + GELU",
    "SM+LN+R": "ReLU",
    "SM+ScFuFFN": "softmax only, fused FFN",
    "SM+ScFuFFNi_6": "+ 6 FFNs cut",
    "EReg(SM(t)+ScFuFFNi_6)": "+ entropy regularisation",
}
"""Rows of the first table and what they are."""

ABLATION_ERRORS = Path("results/two_party/savings_errors.csv")
OUTSIDE = Path("results/two_party/outside_tuned.csv")
NONLINEARITIES = Path("results/two_party/nonlinearities.csv")
ALTERNATIVES = {
    "LayerNorm": {"layer_norm": "", "rms_norm": "RMSNorm", "dyt": "DyT", "hard_tanh_dyt": "DyT, tanh clipped to ±1"},
    "softmax": {
        "softmax_plain": "",
        "relu_attention": "ReLU attention",
        "sigmoid_attention": "sigmoid attention",
        "consmax": "ConSmax",
    },
    "GELU": {"gelu_plain": "", "silu": "SiLU", "relu": "ReLU", "squared_relu": "squared ReLU"},
}
"""What papers put in place of a function: names of operations and their titles, the function itself first."""


def nonlinearities(results: Results) -> pd.DataFrame:
    """One call of each of ALTERNATIVES at GPT-2's size under stock SPU, beside the function that it replaces.

    Rounds of calls that compute for over a minute are left out: the times that they are fitted to vary too much.
    """
    found = {row.op: row for row in ledger.read(results.root / NONLINEARITIES, ledger.Measurement)}
    return pd.DataFrame(
        {
            "function": title or function,
            "replaces": function if title else "",
            "MB": text(found[op].bytes / 1e6),
            "MB, ratio": f"{text(found[op].bytes / found[next(iter(titles))].bytes, 2)}x" if title else "",
            "rounds": text(found[op].rounds if found[op].seconds < 60 else None),
            "seconds": text(found[op].seconds, 2),
        }
        for function, titles in ALTERNATIVES.items()
        for op, title in titles.items()
    )


def text(value: float | None, digits: int = 3, unit: str = "") -> str:
    """`value` with that many significant digits, without an exponent."""
    if value is None or not math.isfinite(value):
        return MISSING
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:,.{decimals}f}{unit}"


def gigabytes(bytes_: float | None) -> str:
    """GB with the two decimals of the papers."""
    return MISSING if bytes_ is None else f"{bytes_ / GB:.2f}"


def _columns(results: Results, number: str) -> pd.DataFrame:
    """All that is shown of the costs of a table's rows; savings are over SM+LN+G, the first row."""
    table, fitted, lines = load("aero").tables[number], costs.fits(results), []
    base = fitted.get((number, table.rows[0].name))
    for row in table.rows:
        fit, found = fitted.get((number, row.name)), costs.audit(results, table, row.name, "bytes")
        saving = row.cells.get("savings_communication")
        line = {
            ROW: row.name,
            "GB, paper": row.cells["communication"].text,
            "GB, reproduced": gigabytes(fit and fit.gigabytes * GB),
            "reproduced - paper, %": MISSING if fit is None else f"{fit.residual_percent:+.2f}",
            "saving, paper": "1.00x" if row is table.rows[0] else text(saving and saving.value, 3, "x"),
            "saving, reproduced": text(fit and base and base.gigabytes / fit.gigabytes, 3, "x"),
            "stock SPU": text(found.as_written, 3, "x"),
            "stock SPU, cheap GELU in the baseline": text(found.one_gelu, 3, "x"),
            "optimised": text(found.tuned, 3, "x"),
            "min, paper": f"{row.cells['latency'].value:.2f}",
            "least min for the paper's GB": text(costs.least_minutes(table, row.name)),
            "Mbit/s that the paper's min need": text(costs.needed_mbit(table, row.name)),
        }
        for program in PROGRAMS:
            words, cost = PROGRAM_NAMES[program], costs.row_costs(results, table, row.name).get(program)
            wan = costs.wan_minutes(results, cost)
            line |= {
                f"GB, {words}": gigabytes(cost and cost.bytes),
                f"rounds, {words}": text(cost and cost.rounds),
                f"computing s, {words}": text(cost and cost.seconds),
                f"network min, {words}": text(wan and wan.on_network, 2),
                f"WAN min, {words}": text(wan and wan.total, 2),
            }
        lines.append(line)
    return pd.DataFrame(lines)


def headline(results: Results) -> pd.DataFrame:
    """One private forward pass of GPT-2, T=128: GB and saving, published and reproduced, and GB optimised."""
    shown = ["GB, paper", "GB, reproduced", "saving, paper", "saving, reproduced", "GB, optimised"]
    return _columns(results, "4").set_index(ROW).loc[list(HEADLINE), shown].reset_index()


def new_measurements(results: Results) -> pd.DataFrame:
    """What no paper measures: the optimised program at GPT-2's size, by architecture."""
    found = _columns(results, "4").set_index(ROW).loc[list(HEADLINE)].reset_index()
    shown = [f"{what}, {words}" for what in ("rounds", "computing s") for words in ("stock SPU", "optimised")]
    both = found["WAN min, stock SPU"] + " / " + found["WAN min, optimised"]
    return found[[ROW, *shown]].assign(**{"WAN min, stock SPU / optimised": both})


def communication(results: Results, number: str) -> pd.DataFrame:
    """GB of every row of a table: published, reproduced, stock SPU, optimised."""
    shown = ["GB, paper", "GB, reproduced", "reproduced - paper, %", "GB, stock SPU", "GB, optimised"]
    return _columns(results, number)[[ROW, *shown]]


def savings(results: Results, number: str) -> pd.DataFrame:
    """Saving in GB over SM+LN+G: published, reproduced, and measured here with three baselines."""
    names = {"saving, paper": "paper", "saving, reproduced": "reproduced"}
    shown = ["paper", "reproduced", "stock SPU", "stock SPU, cheap GELU in the baseline", "optimised"]
    return _columns(results, number)[1:].rename(columns=names)[[ROW, *shown]]


def minutes(results: Results, number: str) -> pd.DataFrame:
    """Published minutes beside the least that the published bytes need, and network minutes of both programs."""
    least, needed = "least min for the paper's GB", "Mbit/s that the paper's min need"
    shown = ["min, paper", least, needed, "network min, stock SPU", "network min, optimised"]
    return _columns(results, number)[[ROW, *shown]]


def figure_15(results: Results) -> pd.DataFrame:
    """GB and WAN minutes of Figure 15's architectures (Pythia-70M, T=256), whose printed values are lost."""
    lines = []
    for run, entry in results.parameters.runs.items():
        if costs.FIGURE_15 in entry.figures:
            name, context, model = entry.architecture, results.parameters.resolve(run).context, entry.model
            fitted = results.fitted.get((name, model, context, AS_PUBLISHED))
            by_program = {program: results.cost(name, program, context, model) for program in PROGRAMS}
            line = {ROW: name}
            for program, cost in {AS_PUBLISHED: fitted, **by_program}.items():
                line[f"GB, {PROGRAM_NAMES[program]}"] = gigabytes(cost and cost.bytes)
            for program, cost in by_program.items():
                minutes = costs.wan_minutes(results, cost)
                line[f"min, {PROGRAM_NAMES[program]}"] = text(minutes and minutes.total, 2)
            lines.append(line)
    return pd.DataFrame(lines)


def communication_fit(results: Results) -> pd.DataFrame:
    """The best fits of the published bytes, and the best with one choice changed: largest residual of all rows.

    Choices are named as in the file of fits.
    """
    by_rank = {int(line["rank"]): line for line in reversed(read_csv(results.root / costs.FITS))}
    lines, best = [], []
    for rank, line in sorted(by_rank.items()):
        chosen = line["configuration"].split("; ")
        best = best or chosen
        differs = [(old, new) for old, new in zip(best, chosen, strict=True) if old != new]
        if len(differs) < 2 or rank < 5:
            fitted, instead = zip(*differs, strict=True) if differs else (["nothing changed"], [""])
            lines.append(
                {
                    "in the best fit": "; ".join(fitted),
                    "instead": "; ".join(instead),
                    "largest residual, %": text(float(line["largest_percent"])),
                    "rank": rank,
                }
            )
    return pd.DataFrame(lines)


def complete_passes(results: Results) -> pd.DataFrame:
    """Complete passes at GPT-2's size (random weights) against the sum of their operations measured alone."""
    return pd.DataFrame(
        {
            ROW: entry["architecture"],
            "program": _program(entry["computed_as"]),
            "GB": gigabytes(entry["bytes_client"] + entry["bytes_server"]),
            "GB, sum / pass": f"{entry['composed_over_measured_bytes']:.3f}",
            "seconds, sum / pass": text(entry["composed_over_measured_seconds"], 3),
            "largest logit error": text(entry["max_logit_error"], 2),
        }
        for entry in results.json("two_party/full_passes.json")
    )


def minutes_of_a_pass(results: Results, row: str) -> dict[str, float]:
    """WAN minutes of an optimised pass of a row of Table 4, in all and by part; and of a next token and its rounds.

    That was measured beside a whole pass on another machine: its computing is scaled as that of the pass.
    """
    cost = costs.row_costs(results, load("aero").tables["4"], row).get(OPTIMISED)
    whole, measured = costs.wan_minutes(results, cost), costs.next_tokens(results).get(row)
    if whole is None or measured is None:
        return dict.fromkeys(("total", "computing", "transfer", "rounds", "next", "next_rounds"), math.nan)
    wan, computing = costs.network(results, "wan"), whole.computing * measured["seconds"][1] / measured["seconds"][0]
    transfer, rounds = measured["bytes"][1] / wan.bytes_per_second / 60, measured["rounds"][1] * wan.rtt_ms / 60e3
    return vars(whole) | {"total": whole.total, "next": computing + transfer + rounds, "next_rounds": rounds}


def row_maxima(results: Results) -> pd.DataFrame:
    """The largest difference, in nats, between the maxima of rows of one head's logits."""
    lines = pd.DataFrame(read_csv(results.root / "results/two_party/row_maxima.csv"))
    found = lines.set_index(["run", "prompts", "tokens"])[["all_positions", "one_position"]].astype(float)
    return found.groupby(level=[0, 1, 2], sort=False).max().map(text).reset_index()


def cached_passes(results: Results) -> pd.DataFrame:
    """A whole pass beside a next token from one row with cached keys and values."""
    programs = dict.fromkeys(line["program"] for line in read_csv(results.root / costs.GENERATION))
    return pd.DataFrame(
        {
            ROW: row,
            "program": _program(program),
            "GB, whole / next": _beside(*found["bytes"], GB),
            "computing s, whole / next": _beside(*found["seconds"]),
            "rounds, whole / next": _beside(*found["rounds"]),
        }
        for program in programs
        for row, found in costs.next_tokens(results, program).items()
    )


def _beside(whole: float, part: float, unit: float = 1.0) -> str:
    """A whole and its part in that unit and, if both were measured, the part's share."""
    share = "" if math.isnan(part / whole) else f" ({text(part / whole, 2)}x)"
    return f"{text(whole / unit)} / {text(part / unit)}{share}"


def verified_passes(results: Results) -> pd.DataFrame:
    """A cached pass over one new token beside passes that verify proposed ones; the link is `network`'s model."""
    lines = [
        line for line in read_csv(results.root / costs.GENERATION) if line["cached"] == "1" and line["past"] != "0"
    ]
    runs, wan = {line["run"] for line in lines if line.get("tokens_per_pass")}, costs.network(results, "wan")
    last = {(line["run"], line["rows"]): line for line in lines if line["run"] in runs and wan}
    found = []
    for (run, rows), line in last.items():
        bytes_, rounds, seconds = (float(line[name] or "nan") for name in ("bytes", "rounds", "seconds"))
        tokens, latency = float(line.get("tokens_per_pass") or 1), wan.latency_seconds(seconds, bytes_, rounds)
        amounts = (bytes_ / 1e6, seconds, rounds, tokens, latency / tokens)
        names = ("MB per pass", "computing s per pass", "rounds per pass", "new tokens per pass", "WAN s per token")
        found.append({"model, tokens": f"{run}, {rows}"} | dict(zip(names, map(text, amounts), strict=True)))
    return pd.DataFrame(found)


def trained_passes(results: Results) -> pd.DataFrame:
    """Complete passes of models trained here: logits against PyTorch, bytes against the sum of the operations."""
    return pd.DataFrame(
        {
            ROW: entry["architecture"],
            "program": _program(entry["computed_as"]),
            "MB": text(entry["megabytes"]),
            "MB, sum / pass": f"{entry['composed_over_measured']:.3f}",
            "same top token": f"{entry['same_top_token']} of {entry['prompts']}",
            "largest logit error": text(entry["max_logit_error"], 2),
        }
        for entry in results.json("two_party/end_to_end.json")
    )


def largest_logit_errors(results: Results) -> dict[str, float]:
    """The largest difference of a logit from PyTorch's, by program, on held-out prompts and (`..._at_size`) in complete
    passes at GPT-2's size; NaN where none was measured."""
    held_out = [(line["program"], float(line["max_logit_error"])) for line in _held_out(results)]
    at_size = [(one["program"], one["max_logit_error"]) for one in results.json("two_party/full_passes.json")]
    return {
        name + end: max((error for own, error in errors if own == program), default=math.nan)
        for name, program in (("optimised", OPTIMISED), ("stock", STOCK))
        for end, errors in (("", held_out), ("_at_size", at_size))
    }


def _held_out(results: Results) -> list[dict[str, str]]:
    return [line for line in read_csv(results.root / ABLATION_ERRORS) if line["tokens"] == "24"]


def _program(name: str) -> str:
    """A program's name for readers; @6 names the layers before which the residual stream is restored."""
    plain, _, layers = name.partition("@")
    without = [one.replace("_", " ") for one in OPTIMIZATIONS if one not in TUNED and f"+{one}" not in plain]
    if plain.startswith(f"{OPTIMISED}+") and len(without) <= 2:
        plain = f"all optimizations but {' and '.join(without)}" if without else "all optimizations"
    for program, words in PROGRAM_NAMES.items():
        if plain.startswith(program):
            changes = plain.removeprefix(program).replace("_", " ")
            plain = words + changes.replace("+", " + ").replace("-", " - ")
    return plain + (f" @{layers}" if layers else "")


ABLATED = ("SM+LN+G", "SM+ScFuFFN")


def ablation(results: Results) -> pd.DataFrame:
    """What each optimization does; relative bytes with it alone (over stock SPU) and left out (over optimised); the
    largest logit error of a pass with it alone, and those of whole programs."""
    sent = {
        (line["architecture"], line["program"]): float(line["bytes"])
        for path in (OUTSIDE, "results/two_party/savings.csv")
        for line in read_csv(results.root / path)
    }
    errors = {
        (line["architecture"], line["program"]): float(line["max_logit_error"])
        for line in read_csv(results.root / ABLATION_ERRORS)
        if (line["scale"], line["tokens"]) == ("laptop", "16")
    }

    def change(row: str, program: str, base: str) -> str:
        ratio = sent.get((row, program), math.nan) / sent.get((row, base), math.nan)
        return MISSING if math.isnan(ratio) else f"{100 * (ratio - 1):+.1f} %"

    # The others are exact but for the fixed point.
    approximate = {"segmented_gelu", "gelu_by_squares", "split_exponential", "bounded_reciprocals", "bounded_logits"}
    programs = {"none (stock SPU)": STOCK, **{name: on_its_own(name) for name in OPTIMIZATIONS}}
    programs["all (optimised)"] = OPTIMISED
    if outside := read_csv(results.root / OUTSIDE):
        programs[_program(outside[-1]["program"])] = outside[-1]["program"]
    lines = []
    for name, program in programs.items():
        what = OPTIMIZATIONS.get(name, "").partition(" (")[0] + ("; approximated" if name in approximate else "")
        one = name in OPTIMIZATIONS
        added = " (added)" if one and name not in TUNED else ""
        line = {"optimization": name.replace("_", " ") + added, "what it does": what}
        for row in ABLATED:
            both = f"{change(row, program, STOCK)} / {change(row, toggled(name), OPTIMISED)}" if one else MISSING
            line |= {f"{row}: bytes": both, f"{row}: logit error": text(errors.get((row, program)), 2)}
        lines.append(line)
    return pd.DataFrame(lines)


def outside_tuned(results: Results, alone: bool = True) -> pd.DataFrame:
    """Costs of the optimised program, then of others; their times over its own. alone: those with one change, too."""
    cells: dict[str, dict[str, str]] = {}
    optimised: dict[str, dict[str, float]] = {}
    for line in read_csv(results.root / OUTSIDE):
        row, program = line["architecture"], line["program"]
        if not alone and program.count("+") + program.count("-") == 1:
            continue
        cost = {name: float(line[name]) for name in line if name not in ("architecture", "program")}
        if program == OPTIMISED:
            optimised[row] = cost
            times = f"computing {cost['seconds']:.0f} s, WAN {cost['wan_seconds'] / 60:.1f} min"
        else:
            computing, wan = (cost[name] / optimised[row][name] for name in ("seconds", "wan_seconds"))
            times = f"computing {computing:.2f}x, WAN {wan:.2f}x" if computing > 0 else "not timed"
        sent, rounds = f"{gigabytes(cost['bytes'])} GB", f"{cost['rounds']:,.0f} rounds"
        if cost["rounds_without_maxima"] < cost["rounds"]:
            sent += f" ({gigabytes(cost['bytes_without_maxima'])})"
            rounds += f" ({cost['rounds_without_maxima']:,.0f})"
        cells.setdefault(program, {})[row] = f"{sent}, {rounds}, {times}"
    return pd.DataFrame({"program": _program(program), **found} for program, found in cells.items())


def latency_model(results: Results) -> pd.DataFrame:
    """Complete passes of small models over links of limited rate and delay: seconds measured and predicted."""
    return pd.DataFrame(
        {
            ROW: line["architecture"],
            "program": _program(line["program"]),
            "link": f"{float(line['bandwidth_mbit']):g} Mbit/s, {float(line['rtt_ms']):g} ms"
            if line["bandwidth_mbit"]
            else "loopback",
            "s, measured": text(float(line["seconds"])),
            "s, predicted": text(float(line["predicted"])),
            "error": f"{float(line['error']):+.1%}",
        }
        for line in read_csv(results.root / "results/two_party/shaped.csv")
        if line["predicted"]
    )
