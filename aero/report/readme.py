"""The headline table of README.md, written between `<!-- headline -->` and `<!-- /headline -->` from the results.

`python -m aero.report.readme` rewrites it in the project around the working directory.
"""

from __future__ import annotations

import re

from aero.errors import run_main
from aero.published import load as load_paper
from aero.report.claims import group_counts, judge
from aero.report.lattice_rows import sentence
from aero.report.marks import MARKS, WORDS, reported_runs, scale_text, training_caption
from aero.report.page import MODELLED, fit, headline_rows
from aero.report.put_backs import note
from aero.report.render import write
from aero.report.results import Results, find_root, load

_BLOCK = re.compile(r"(<!-- headline -->\n).*?(<!-- /headline -->)", re.DOTALL)


def headline_markdown(results: Results) -> str:
    """The table, its legend, and how many claims got which verdict, in Markdown."""
    lines = [
        "| configuration | PPL over baseline: published | measured | communication: published | as published, measured "
        "| as written, measured | tuned, measured | latency (WAN): published | as published, modelled "
        "| as written, modelled | tuned, modelled |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in headline_rows(results):
        cells = [f"`{row.name}`"]
        for published, *measured in (row.delta, row.communication, row.latency):
            cells += [published or "–", _measured(*measured)]
        cells.insert(4, _measured(*row.fitted))
        cells.insert(6, _measured(*row.tuned))
        cells.insert(8, _measured(*row.fitted_latency))
        cells.append(_measured(*row.tuned_latency))
        lines.append("| " + " | ".join(cells) + " |")
    found = "; ".join(
        f"{group.replace('’', chr(39))}: {', '.join(f'{count} {verdict}' for verdict, count in of.items() if count)}"
        for group, of in group_counts(judge(results)).items()
        if any(of.values())
    )
    marks = ", ".join(
        f"{MARKS[origin]} {WORDS[origin].replace('’', chr(39))}" for origin in ("paper_dimensions", "smaller_scale")
    )
    caption = training_caption(results, reported_runs())
    lines += ["", re.sub("</?code>", "`", fit(results)).replace("’", chr(39)), "", MODELLED.replace(" x ", " × ")]
    if said := note(results, load_paper("aero").tables["4"], marked=False):
        lines += ["", said.replace("’", chr(39))]
    if said := sentence(results):
        lines += ["", said]
    lines += ["", f"{marks}: {scale_text(results)}. Claims so far, by what they rest on: {found}.", "", caption]
    return "\n".join(lines) + "\n"


def _measured(origin: str, text: str, _: str) -> str:
    return "–" if origin == "none" else "*not measured yet*" if origin == "missing" else f"{MARKS[origin]} {text}"


def with_headline(text: str, results: Results) -> str:
    """`text` with the block between the two comments replaced; ValueError if it does not have exactly one such
    block.
    """
    if len(_BLOCK.findall(text)) != 1:
        raise ValueError("README.md needs one line <!-- headline --> followed by one line <!-- /headline -->")
    return _BLOCK.sub(lambda match: match.group(1) + headline_markdown(results) + match.group(2), text)


def main(arguments: list[str]) -> None:
    if arguments:
        raise ValueError("python -m aero.report.readme takes no arguments")
    path = find_root() / "README.md"
    write(path, with_headline(path.read_text(encoding="utf-8"), load(path.parent)))


if __name__ == "__main__":
    run_main(main)
