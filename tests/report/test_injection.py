"""Markup in any text of any result file stays text on the page and in the PDF."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jupytext
import pandas as pd
import pytest
import synthetic

from aero.report import claims, render, results, show
from aero.report.appendix import explorer_assets

MARKUP = (
    "<script>alert(1)</script><img src=x onerror=alert(1)></svg></details><svg onload=alert(1)>"
    "\n```\n\n[a](javascript:alert(1)) ![b](x.png) #panic(1) $\\frac{$ ` \x01 {{7*7}}"
)
"""HTML, the end of a block of Pandoc's Markdown with a link and an image behind it, Typst, a formula, a template."""


class Active(HTMLParser):
    """What could run or load: scripts, event handlers, sources, links that are no anchors or files."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] if tag in ("script", "img", "iframe", "object", "embed", "link", "form") else []
        for name, value in attrs:
            if name.startswith("on") or name in ("src", "srcdoc", "formaction"):
                self.found.append(f"{tag} {name}")
            if name.endswith("href") and not (value or "").startswith(("#", "../")):
                self.found.append(f"{tag} {name}={value}")


def marked(values: list[str]) -> dict[str, str]:
    """The last distinct value of a field with markup behind it, by its plain form; the others stay as they are."""
    plain = [value for value in dict.fromkeys(values) if value and not re.fullmatch(r"[-+.\deE]+|nan|inf", value)]
    return {plain[-1]: plain[-1] + MARKUP} if plain else {}


def mark_csv(text: str) -> tuple[str, int]:
    rows = list(csv.DictReader(io.StringIO(text)))
    fields = [name for name in rows[0] if not (rows[0][name] or "").startswith(("{", "["))]
    changes = {name: marked([row[name] for row in rows]) for name in fields}
    for row in rows:
        row |= {name: changes[name].get(row[name], row[name]) for name in fields}
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue(), sum(map(bool, changes.values()))


def mark_json(document: Any) -> int:
    """Marks one value of every field, lists counting as one place; the number of fields."""
    found: dict[tuple[str, ...], list[str]] = {}

    def walk(value: Any, path: tuple[str, ...], act: Callable[[tuple[str, ...], str], str | None]) -> None:
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            below = (*path, key) if isinstance(value, dict) else path
            if isinstance(inner, dict | list):
                walk(inner, below, act)
            elif isinstance(inner, str):
                value[key] = act(below, inner) or inner

    walk(document, (), lambda path, text: found.setdefault(path, []).append(text))
    changes = {path: marked(texts) for path, texts in found.items()}
    walk(document, (), lambda path, text: changes[path].get(text))
    return sum(map(bool, changes.values()))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the committed results of every kind, all with markup; trainings are synthetic."""
    root = synthetic.project(tmp_path_factory.mktemp("hostile"), seeds=(1337,), runs=("sm-ln-g", "sm-r", "sm-scffn"))
    for path in sorted(synthetic.PROJECT.glob("results/**/*.*")):
        target = root / path.relative_to(synthetic.PROJECT)
        if not target.is_file() and path.suffix in (".csv", ".json", ".jsonl"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    fields = 0
    for path in sorted(root.glob("results/**/*.*")):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            text, count = mark_csv(text)
        else:
            lines = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
            count = mark_json(lines)
            text = "\n".join(map(json.dumps, lines)) + "\n"
        path.write_text(text, encoding="utf-8")
        fields += count
    assert fields > 200
    return root


def outputs(name: str) -> tuple[list[str], int]:
    """HTML of a notebook's code cells, and the number of cells that refuse the results."""
    shown: list[Any] = []
    names: dict[str, Any] = {"display": shown.append}
    refused = 0
    for cell in jupytext.read(synthetic.PROJECT / f"reports/{name}.py", fmt="py:percent").cells:
        if cell["cell_type"] != "code":
            continue
        *statements, last = ast.parse(cell["source"]).body
        try:
            exec(compile(ast.Module(statements, []), name, "exec"), names)
            if isinstance(last, ast.Expr):
                shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
            else:
                exec(compile(ast.Module([last], []), name, "exec"), names)
        except (KeyError, ValueError):
            refused += 1
    return [one for one in shown if isinstance(one, show.HTML)], refused


def test_markup_in_result_files_stays_text(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged = pd.read_csv(
        io.StringIO(mark_csv((synthetic.PROJECT / "reports/claims.csv").read_text(encoding="utf-8"))[0])
    )
    monkeypatch.setattr(claims, "judge", lambda results, *papers: judged)
    empty = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" aria-label="{}"></svg>'
    monkeypatch.setattr(show, "svg", lambda figure, title: empty.format(show.escape(title)))
    monkeypatch.setattr(results, "find_root", lambda start=None: root)
    made = {name: outputs(name) for name in render.NOTEBOOKS}
    assert sum(refused for _, refused in made.values()) < 10
    parts = [part for shown, _ in made.values() for part in shown]
    assert not [found for part in parts if (found := re.search(r"\{[a-z_]+(:[^}]*)?\}", part))]  # a forgotten f""
    page = render.page(["# Title", *parts], MARKUP)
    assert page.count("alert(1)") > 20
    page = page.replace(f'<script type="module">{explorer_assets()[1]}</script>', "")
    assert Active(page).found == []
    marked_parts = [part for part in parts if "alert(1)" in part]
    assert render.pdf(["# Title", *marked_parts], MARKUP).startswith(b"%PDF")


def test_markup_in_a_figure_is_drawn_as_text() -> None:
    figure, axes = show.subplots(height=1)
    axes.set_title(MARKUP.replace("\x01", ""))
    axes.set_xscale("log")
    svg = show.svg(figure, MARKUP)
    found = Active(svg.replace('"#', '"')).found
    assert [one for one in found if not one.startswith("use xlink:href")] == []


def test_an_empty_table_and_a_failing_document_are_no_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = ["# Title", show.table(pd.DataFrame(), "T", "C")]
    assert render.pdf(empty, "").startswith(b"%PDF")
    monkeypatch.setattr(render, "_pandoc", lambda *arguments: "#panic()")
    with pytest.raises(ValueError, match="PDF"):
        render.pdf(empty, "")
