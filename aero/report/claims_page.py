"""The claims on the page: one table a topic with the rule that decides, and one of all of them to look up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from aero.report import evidence
from aero.report.claims import VERDICTS, Judged, group_counts, stated_words
from aero.report.decisions import PUBLISHED_ONLY
from aero.report.figure_index import PAPERS
from aero.report.marks import Html, gap, grid, number
from aero.report.results import Results

MEANINGS = {
    "reproduced": "the effect is there, in the published direction and size",
    "direction reproduced": "the effect is there, its size is another",
    "not seen at this scale": "absent or opposite here, in models smaller than the papers' or under settings that they "
    "do not print; says nothing about theirs",
    "contradicted": "wrong where size does not matter: costs, counts, theory, and what the papers print against it",
    "not testable here": "not decided yet: a run, a second seed or a measurement is missing",
}
"""The five verdicts in plain words."""


def verdict(text: str) -> str:
    return f'<span class="verdict v-{text.replace(" ", "-")}">{escape(text)}</span>'


def legend() -> Html:
    """What the five verdicts mean."""
    rows = "".join(f"<li>{verdict(kind)} {escape(MEANINGS[kind])}</li>" for kind in VERDICTS)
    return Html(f'<div class="legend verdicts"><ul>{rows}</ul></div>')


def measured(judged: Judged, short: bool = False) -> str:
    """What was found, dressed as the class of number it is; a gap if nothing was."""
    if not judged.decision.measured:
        return gap("–" if short else "not measured yet")
    return _number(judged, judged.decision.measured)


def _number(judged: Judged, text: str) -> str:
    """Something that was found, in the class of its scale, with the files it comes from."""
    scale = judged.decision.scale
    origin = "paper_dimensions" if scale in ("paper_dimensions", "paper") else "smaller_scale"
    source = "; ".join((*judged.files, judged.decision.evidence))
    printed = f"aero/published/{judged.paper}.yaml"  # of the printed numbers, which are the tables' and not the claims'
    file = printed if scale == PUBLISHED_ONLY else next(iter(judged.files), judged.code_file)
    return number(text, "published" if scale == PUBLISHED_ONLY else origin, source, file)


def _published(j: Judged) -> str:
    """What the paper says, which leads to the file that the claim stands in."""
    place = f"{PAPERS[j.paper]}, {j.claim.where}"
    return number(j.claim.published, "published", place, f"aero/published/{j.claim.file}")


def claims_table(results: Results, judged: Sequence[Judged], *topics: str) -> Html:
    """The claims of the given topics: published, found, verdict, the rule that decides, and the files behind it."""
    shown = [j for j in judged if j.claim.topic in topics]
    caption = (
        f"Of these claims {escape(stated_words(shown))}. "
        '<a href="claims.csv">reports/claims.csv</a> and '
        '<a href="#every-claim">the list of all claims</a> have them all.'
    )
    rows = [_row(results, j) for j in shown]
    heads = ["claim", "published", "found here", "verdict", "how it was decided"]
    return Html(grid(heads, rows, caption, "", (0.27, 0.13, 0.17, 0.13, 0.30), "dense claims", sources=False))


def _row(results: Results, j: Judged) -> list[str]:
    claim, decision = j.claim, j.decision
    return [
        f'<span id="claim-{claim.id}"></span>{escape(claim.claim)}<br><span class="where">{escape(claim.where)}</span>',
        _published(j),
        measured(j),
        verdict(decision.verdict),
        f'<span class="where">{escape(decision.rule)}. {escape(decision.evidence)}.</span>{_sources(results, j)}',
    ]


def _sources(results: Results, j: Judged) -> str:
    """The files a claim was decided on, the printed numbers and the deciding function, folded away."""
    parts = [("printed", evidence.link(f"aero/published/{j.claim.file}"))]
    if j.files:
        parts.append(("measured", evidence.file_links(j.files, Path(results.root))))
    parts.append(("test", evidence.code_link(j.code)))
    parts.append(("needs", escape(j.needs)))
    parts.append(("stated", escape(j.claim.stated)))
    body = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in parts)
    return f'<details class="source"><summary>files and test</summary><dl>{body}</dl></details>'


def every_claim(judged: Sequence[Judged]) -> Html:
    """All claims, one short line each, with a link to where each is told at length."""
    rows = []
    for j in judged:
        where = f'<a href="#claim-{j.claim.id}">{escape(j.claim.short)}</a>'
        rows.append(
            [
                f'{where}<br><span class="where">{escape(PAPERS[j.paper])}, {escape(j.claim.where)}</span>',
                verdict(j.decision.verdict),
                _published(j),
                measured(j, short=True),
                escape(scale_words(j.decision.scale)),
            ]
        )
    caption = (
        f"<b>Every claim.</b> {len(judged)} of them; a claim's name leads to its rule and its files. By the dates of "
        f"the commits {escape(stated_words(judged))}. The same as a "
        'table: <a href="claims.csv">reports/claims.csv</a>.'
    )
    heads = ["claim", "verdict", "published", "found here", "measured at"]
    return Html(grid(heads, rows, caption, "all-claims", (0.32, 0.14, 0.19, 0.23, 0.12), "dense claims", sources=False))


def scale_words(scale: str) -> str:
    return {"paper_dimensions": "the papers’ dimensions", PUBLISHED_ONLY: "print alone"}.get(scale, f"scale {scale}")


def count_line(judged: Iterable[Judged]) -> Html:
    """How many claims got each verdict, a line for each thing that claims rest on."""
    lines = []
    for group, found in group_counts(judged).items():
        parts = [f"<b>{count}</b> {verdict(kind)}" for kind, count in found.items() if count]
        if parts:
            spans = " · ".join(f"<span>{part}</span>" for part in parts)
            lines.append(f'<p class="counts"><span class="of">{escape(group)}</span> {spans}</p>')
    return Html("".join(lines))


def answer(j: Judged) -> str:
    """A claim in a few words with what was found and what is published, linked to its rule."""
    decision = j.decision
    found = re.split(r"; |, (?=[A-Z])", decision.measured)[0]
    numbers = ""
    if found and len(found) <= _LONGEST:
        numbers = f": {_number(j, found)}"
        if re.match(r"[-+]?\d[\d.]*(?: ?\S+)?$", j.claim.published) and decision.scale != PUBLISHED_ONLY:
            numbers += f" ({_published(j)})"
    quiet = " quiet" if decision.verdict == "not seen at this scale" else ""
    return f'<span class="answer{quiet}"><a href="#claim-{j.claim.id}">{escape(j.claim.short)}</a>{numbers}</span>'


_LONGEST = 44
"""Letters of a finding that the first page still shows; longer ones are read at the claim."""
