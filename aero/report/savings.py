"""The ablation of the private programs: what each saving is worth alone and left out in bytes, seconds, logit error."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from aero.report.marks import Html, gap, grid, number, row_label
from aero.two_party.program.optimizations import AS_PUBLISHED, TUNED, changed

ENDS = ("as_written", "tuned")
WITHIN = "tuned-lattice_products"
HELD_OUT_PROGRAMS = (AS_PUBLISHED, *ENDS, WITHIN)
"""Those that held-out prompts were asked in, with no saving alone beside them."""
FILES = ("results/two_party/savings.csv", "results/two_party/savings_errors.csv")


def ablation(root: Path, savings: dict[str, str], note: str = "") -> Html:
    """What every saving is worth in bytes and seconds, and below them in logit error; `note` below the first two."""
    return Html(table_savings(root, savings, note).text + table_errors(root, savings).text)


def table_savings(root: Path, savings: dict[str, str], note: str = "") -> Html:
    """GB and seconds, a grid each, of every row with one saving alone (of "as_written") and with one left out of
    "tuned" or, where that lacks it, added to it.

    savings: names and descriptions. A number is missing where the saving does nothing for the row. note: a sentence
    that the captions end with.
    """
    lines = read_lines(root / FILES[0])
    if not lines:
        return Html(f"<p>The savings one by one: {gap()}.</p>")
    amounts = {(line["architecture"], line["program"]): line for line in lines}
    how = (
        "with this saving alone | as <code>tuned</code> without this one; the first line with none | "
        f"<code>tuned</code> whole. {_added(savings)}A dash: it does nothing"
    )
    caption = (
        f"<b>The savings one by one</b>, GB of a forward pass at GPT-2's dimensions: {how} for the row. Composed from "
        f"operations measured in two processes. {note}"
    )
    text = _alone_and_left_out(amounts, savings, "bytes", 1e9, 2, caption, "savings")
    caption = (
        f"<b>The savings one by one, seconds</b> of computing on loopback: {how} for the row. Those of operations that "
        "stand in neither program whole were timed on another day than the others, the median of three runs on either: "
        f"differences below a tenth tell nothing.{_slower(savings)} {note}"
    )
    return Html(text + _alone_and_left_out(amounts, savings, "seconds", 1.0, 0, caption, "savings-seconds"))


def _slower(savings: dict[str, str]) -> str:
    """A sentence on the saving that was timed when the machine was slower."""
    if "fewer_squarings" not in savings:
        return ""
    return (
        " Those of <code>fewer_squarings</code> were timed when the machine took 1.5 times as long; alternating in one "
        "session its exponentials take a tenth less than SPU’s (docs/decisions.md)."
    )


def _alone_and_left_out(
    amounts: dict[tuple[str, str], dict[str, str]],
    savings: dict[str, str],
    column: str,
    unit: float,
    digits: int,
    caption: str,
    identifier: str,
) -> str:
    def shown(row: str, *programs: str) -> str:
        found = [amounts[row, program][column] if (row, program) in amounts else None for program in programs]
        texts = [None if text is None else f"{float(text) / unit:,.{digits}f}" for text in found]
        return " | ".join("–" if text is None else number(text, "paper_dimensions", FILES[0]) for text in texts)

    known = {key for key, line in amounts.items() if line.get(column)}
    rows = [row for row in dict.fromkeys(row for row, _ in amounts) if {(row, end) for end in ENDS} <= known]
    if not rows:
        return ""
    lines = [["all or none", *(shown(row, *ENDS) for row in rows)]]
    for name, what in savings.items():
        cells = [shown(row, *_single(name)) for row in rows]
        lines.append([f"<code>{escape(name)}</code><br>{escape(what)}", *cells])
    heads, width = ["saving", *(row_label(row) for row in rows)], 0.66 / len(rows)
    return grid(heads, lines, caption, identifier, (0.34, *(width for _ in rows)), "dense")


def table_errors(root: Path, savings: dict[str, str]) -> Html:
    """Largest logit error of complete private passes with one saving alone and with one left out, beside both ends.

    A column for each row, scale and length of the prompts, so that none stands beside passes of other prompts; how
    many were asked is in brackets. Where no saving was tried alone is `table_held_out`'s. savings: as `table_savings`
    takes them.
    """
    lines = read_lines(root / FILES[1])
    if not lines:
        return Html(f"<p>The logit errors of the savings: {gap()}.</p>")
    groups = {key: found for key, found in _groups(lines).items() if not found.keys() <= set(HELD_OUT_PROGRAMS)}
    if not groups:
        return Html(f"<p>The logit errors of the savings: {gap()}.</p>")
    rows = [["none or all", *(_pair(found, *ENDS) for found in groups.values())]]
    if any(AS_PUBLISHED in found for found in groups.values()):
        rows.append([f"<code>{AS_PUBLISHED}</code>", *(_pair(found, AS_PUBLISHED) for found in groups.values())])
    for name in savings:
        programs = _single(name)
        cells = [_pair(found, *programs) for found in groups.values()]
        if any(program in found for found in groups.values() for program in programs):
            rows.append([f"<code>{escape(name)}</code>", *cells])
    texts = []
    for (row, scale, tokens), found in groups.items():
        same, asked = (sum(int(line[key]) for line in found.values()) for key in ("same_top_token", "prompts"))
        texts.append(f"{row_label(row)}, scale {escape(scale)}, T={tokens}: {same} of {asked}")
    caption = (
        "<b>Logit errors of the savings</b>: the largest difference of a logit from PyTorch's in complete private "
        "passes of a model trained here, with this saving alone | as <code>tuned</code> without this one. "
        f"{_added(savings)}In brackets the prompts that were asked. A saving that does nothing for a row leaves the "
        "program as it is: what differs there is how far the same program's error varies from pass to pass, by random "
        "truncations. "
        "Same top token as PyTorch's: "
        f"{'; '.join(texts)}.{_of_several_trainings(groups)}"
    )
    width = 0.8 / len(groups)
    heads = ["saving"]
    for row, scale, tokens in groups:  # of the scale the vocabulary alone, where it says so: the caption has the rest
        heads.append(f"{row_label(row)}<br>T={tokens}{escape(''.join(scale.partition(', ')[1:]))}")
    return Html(grid(heads, rows, caption, "savings-errors", (0.2, *(width for _ in groups)), "dense"))


def _of_several_trainings(groups: Mapping[tuple[str, str, str], dict[str, dict[str, str]]]) -> str:
    """A sentence on the rows whose passes are not all of the same weights, as far as lines say; empty if all are."""
    mixed = [
        row_label(row) for (row, *_), found in groups.items() if len({_weights(one) for one in found.values()}) > 1
    ]
    if not mixed:
        return ""
    return f" Not all passes are of one training of the model, as their weights’ hashes tell: {', '.join(mixed)}."


HELD_OUT = 200
"""Held-out prompts that a tuned row's top token is to be PyTorch's of."""


def table_held_out(root: Path) -> Html:
    """The tuned program on held-out prompts against its target: PyTorch's top token, no larger error than a baseline's.

    A line for each row, scale and length of the prompts of which both ends were asked, or one of them; a target is met
    by `HELD_OUT` prompts with the same top token and an error no larger than those as published and as written, of as
    many or fewer of the same prompts.
    """
    lines = [
        (key, [found.get(program) for program in HELD_OUT_PROGRAMS])
        for key, found in _groups(read_lines(root / FILES[1])).items()
        if found.keys() <= set(HELD_OUT_PROGRAMS)
    ]
    if not lines:
        return Html(f"<p>The tuned program on {HELD_OUT} held-out prompts: {gap()}.</p>")
    rows = []
    for (row, scale, tokens), (published, plain, tuned, within) in lines:
        cells = [row_label(row), escape(scale), tokens]
        for line in (tuned, within, plain, published):
            if line is None:
                cells += [gap("–"), gap("–")]
                continue
            asked = f"{line['same_top_token']} of {line['prompts']}"
            cells += [
                number(asked, "smaller_scale", FILES[1]),
                number(f"{float(line['max_logit_error']):.4f}", "smaller_scale", FILES[1]),
            ]
        verdicts = [_verdict((plain, published), line) for line in (tuned, within) if line is not None or line is tuned]
        rows.append([*cells, "; ".join(verdicts)])
    caption = (
        f"<b>The same answer on held-out prompts</b>: the target is PyTorch's top token on {HELD_OUT} prompts and an "
        "error no larger than as published and as written. Complete private passes of models trained here; the largest "
        "difference of a logit. These two answer some of the same prompts, evenly spaced, as many as are said: the "
        "largest error of few is smaller than that of many, so the comparison favours them. Rows that are not listed "
        "were not asked; the models are of the scale named, not of the papers' width. The verdict is first that of "
        "<code>tuned</code>, "
        f"then that of <code>{WITHIN}</code>, which keeps SPU’s products.{_other_weights(lines)}"
    )
    heads = ["configuration", "scale", "T", "tuned, same top token", "error", "SPU’s products, same top token"]
    heads += ["error", "as written, same top token", "error", "as published, same top token", "error", "target"]
    widths = (0.15, 0.06, 0.03, 0.1, 0.065, 0.11, 0.065, 0.09, 0.065, 0.09, 0.065, 0.1)
    return Html(grid(heads, rows, caption, "held-out", widths, "dense"))


def _other_weights(lines: list[tuple[tuple[str, str, str], list[dict[str, str] | None]]]) -> str:
    """A sentence on programs that were asked of other weights than those as written; empty if there are none."""
    found = []
    for (row, _, _), (published, plain, *others) in lines:
        for line in (published, *others):
            known = [_weights(one) for one in (plain, line) if one is not None]
            if len(known) == 2 and all(known) and known[0] != known[1]:
                found.append(f"{row_label(row)} <code>{escape(line['program'])}</code>")
    if not found:
        return ""
    return (
        " Asked of another training of the model than as written (the hashes of the weights differ), so that the "
        f"two errors are not like for like: {', '.join(found)}."
    )


def _weights(line: Mapping[str, str]) -> str | None:
    """The hash of the weights that a line is of."""
    try:
        return str(json.loads(line["provenance"])["weights"])
    except (KeyError, TypeError, ValueError):
        return None


def _verdict(baselines: Iterable[dict[str, str] | None], tuned: dict[str, str] | None) -> str:
    plain, *others = baselines
    if tuned is None:
        return gap("–")
    if tuned["same_top_token"] != tuned["prompts"]:
        return "missed"
    errors = [float(line["max_logit_error"]) for line in (plain, *others) if line is not None]
    if errors and float(tuned["max_logit_error"]) > min(errors):
        return "missed"
    if int(tuned["prompts"]) < HELD_OUT:
        return f"{HELD_OUT - int(tuned['prompts'])} prompts to go"
    lacking = [
        name for name, line in zip(("as written", "as published"), (plain, *others), strict=True) if line is None
    ]
    return f"no error {lacking[0]}" if lacking else "met"


def _groups(lines: list[dict[str, str]]) -> dict[tuple[str, str, str], dict[str, dict[str, str]]]:
    """Lines by program of every row, scale and length of the prompts."""
    groups: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for line in lines:
        groups.setdefault((line["architecture"], line["scale"], line["tokens"]), {})[line["program"]] = line
    return groups


def _single(name: str) -> tuple[str, str]:
    """The programs with saving `name` alone and with all but it; absorbing needs the FFN folded."""
    return f"as_written+{'folded_ffn+' if name == 'absorbed_ffn' else ''}{name}", changed(name)


def _added(savings: dict[str, str]) -> str:
    """A sentence on savings that are added to "tuned" where others are left out of it."""
    names = [f"<code>{escape(name)}</code>" for name in savings if name not in TUNED]
    if not names:
        return ""
    said = f"Of {', '.join(names)}, which <code>tuned</code> lacks, the second figure is with it"
    return (
        f"{said}, in the place of <code>split_exponential</code> for the last. "
        if "fewer_squarings" in savings
        else f"{said}. "
    )


def _pair(found: dict[str, dict[str, str]], *programs: str) -> str:
    cells = []
    for program in programs:
        line = found.get(program)
        if line is None:
            cells.append("–")
            continue
        error = f"{float(line['max_logit_error']):.4f}"
        cells.append(number(error, "smaller_scale", FILES[1]) + f' <span class="where">({int(line["prompts"])})</span>')
    return " | ".join(cells)


def read_lines(path: Path) -> list[dict[str, str]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError:
        return []
