"""The report's notebooks as one self-contained HTML page and one PDF.

The code cells of the notebooks in reports/ are run by two processes. Their Markdown cells and what the code cells show
become one document, in the order of the notebooks. Pandoc makes the page of it (formulas as MathML, nothing loaded from
outside) and, through Typst, the PDF. The same inputs give the same bytes.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import gc
import hashlib
import os
import re
import sys
import tempfile
from code import InteractiveInterpreter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from aero.errors import cut
from aero.report import appendix, show
from aero.report.show import HTML

ASSETS = Path(__file__).parent / "assets"
NOTEBOOKS = (
    "overview",
    "aero_paper",
    "entropy_guided",
    "entropy_landscape",
    "variance_sensitivity",
    "parallel_context",
    "private_inference",
    "appendix",
)
"""In the order of the report, a chapter each."""
SCREEN_ONLY = '<div class="screen-only"'
"""What a cell shows on the page alone starts with this."""
PAGE_COLOURS = {show.INK: "--ink", show.PAPER: "--paper", show.GRID: "--grid", show.MUTED: "--muted"}

_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_GLYPH = re.compile(r'<path id="(DejaVu[^"]*)"[^>]*/>')
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What neither HTML nor UTF-8 can hold."""


@dataclass(frozen=True)
class Rendered:
    html: str
    pdf: bytes


def render(root: Path, footer: str = "") -> Rendered:
    """Render the report of the project in `root`. ValueError if a notebook is missing or fails."""
    parts = execute(root)
    with ThreadPoolExecutor() as pool:
        html = pool.submit(page, parts, footer)
        return Rendered(pdf=pdf(parts, footer), html=html.result())


def execute(root: Path) -> list[str]:
    """The Markdown of all notebooks and, as `HTML`, what their code shows, in order.

    This process and a copy of it, which has all that this one has loaded, each take the longest notebook that is left.
    """
    sources = {}
    for name in NOTEBOOKS:
        path = root / "reports" / f"{name}.py"
        if not path.is_file():
            raise ValueError(f"{path} is missing; run from the repository's root folder")
        sources[name] = path.read_text(encoding="utf-8")
    names = sorted(sources, key=lambda name: len(sources[name]), reverse=True)
    left, fill = os.pipe()
    os.write(fill, bytes(range(len(names))))
    os.close(fill)
    gc.freeze()  # nothing that is loaded is garbage
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    other = context.Process(target=_send, args=(there, names, sources, left))
    with contextlib.chdir(root):
        other.start()
        there.close()
        try:
            made, found = _run_notebooks(names, sources, left), here.recv()
        except EOFError:
            raise ValueError("a process of the report died; is there enough memory?") from None
        finally:
            os.close(left)
            other.kill()
            other.join()
    if isinstance(found, ValueError):
        raise found
    return [part for name in NOTEBOOKS for part in (made | found)[name]]


def _send(there: Connection, names: list[str], sources: dict[str, str], left: int) -> None:
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # the first process reports why it ended
        try:
            there.send(_run_notebooks(names, sources, left))
        except ValueError as error:
            there.send(error)


def _run_notebooks(names: list[str], sources: dict[str, str], left: int) -> dict[str, list[str]]:
    """Run the notebooks whose places are taken from the pipe `left`."""
    made = {}
    while place := os.read(left, 1):
        name, notebook, parts = names[place[0]], Notebook(), []
        try:
            for is_markdown, text in cells(sources[name]):
                parts += [text] if is_markdown else notebook.run(text)
        except Exception as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"a notebook in reports/ fails: {cut(message, 300)}") from error
        made[name] = parts
    return made


def cells(source: str) -> Iterator[tuple[bool, str]]:
    """Of each cell of a notebook in percent format, whether it is Markdown, and its text."""
    _, *parts = re.split(r"^# %%(.*)\n", source, flags=re.MULTILINE)
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        is_markdown = "[markdown]" in kind
        yield is_markdown, re.sub("^# ?", "", text, flags=re.MULTILINE).strip() if is_markdown else text


class Notebook(InteractiveInterpreter):
    """Runs code cells as Python's prompt does, with names of its own."""

    def run(self, text: str) -> list[HTML]:
        """What a cell shows."""
        shown: list[Any] = []
        before, sys.displayhook = sys.displayhook, shown.append
        try:
            self.locals["display"] = shown.append
            self.runcode(compile(ast.Interactive(ast.parse(text).body), "notebook", "single"))
        finally:
            sys.displayhook = before
        return [one for one in shown if isinstance(one, HTML)]

    def showtraceback(self) -> None:
        raise


def document(parts: Iterable[str], changed: Callable[[str], str]) -> str:
    """Pandoc Markdown: the Markdown cells, and what the code cells show as raw HTML changed by `changed`."""
    blocks = []
    for part in parts:
        if not isinstance(part, HTML):
            blocks.append(part)
        elif html := changed(part):
            # Longer than any run of backticks in it, which would end the block and make Markdown of the rest.
            fence = "`" * (1 + max(map(len, re.findall("`+", html)), default=2))
            blocks.append(f"{fence}{{=html}}\n{html}\n{fence}")
    return _UNPRINTABLE.sub("\ufffd", "\n\n".join(blocks))


def page(parts: Iterable[str], footer: str) -> str:
    """The HTML page. Only the explorer's script may run, by its hash, and it may load nothing."""
    shown: list[str] = []

    def placeholder(html: str) -> str:
        shown.append(_UNPRINTABLE.sub("\ufffd", _SVG.sub(lambda match: _in_page_colours(match.group()), html)))
        return f"<!--shown {len(shown) - 1}-->"

    text = document(parts, placeholder)
    digest = base64.b64encode(hashlib.sha256(appendix.explorer_script().encode()).digest()).decode()
    css = (ASSETS / "page.css").read_text(encoding="utf-8")
    raw = ("-V", f"css={css}", "-V", f"scripts='sha256-{digest}'")
    shown = _share_glyphs(shown)
    around = _pandoc(text, "html", "page.html", footer, "--mathml", "--toc", "--toc-depth=2", *raw)
    return re.sub("<!--shown ([0-9]+)-->", lambda match: shown[int(match[1])], around)


def _share_glyphs(shown: list[str]) -> list[str]:
    """The shapes of letters, which every figure defines for itself, once for all, before what is shown first."""
    glyphs: dict[str, str] = {}

    def taken(match: re.Match[str]) -> str:
        glyphs.setdefault(match[1], match[0])
        return ""

    shown = [_GLYPH.sub(taken, html) for html in shown]
    if glyphs:
        defined = "".join(glyphs.values())
        shown[0] = f'<svg width="0" height="0" style="position:absolute"><defs>{defined}</defs></svg>{shown[0]}'
    return shown


def _in_page_colours(svg: str) -> str:
    """The figure in the colours of the page's light or dark scheme, as wide as its box."""
    for colour, name in PAGE_COLOURS.items():
        svg = svg.replace(colour, f"var({name})")
    return re.sub(r'(<svg\b[^>]*?) width="[^"]*"( height="[^"]*")?', r"\1", svg, count=1)


def pdf(parts: Iterable[str], footer: str) -> bytes:
    """The PDF, with figures as vector graphics."""
    import typst

    with tempfile.TemporaryDirectory(prefix="aero-pdf-") as name:
        folder = Path(name)
        count = 0

        def beside(match: re.Match[str]) -> str:
            nonlocal count
            count += 1
            (folder / f"figure{count}.svg").write_text(match.group(), encoding="utf-8")
            return f'<img src="figure{count}.svg" width="100%">'

        text = document(parts, lambda html: "" if html.startswith(SCREEN_ONLY) else _SVG.sub(beside, html))
        source = folder / "report.typ"
        written = _pandoc(text, "typst", "page.typ", footer, f"--lua-filter={ASSETS / 'page.lua'}")
        source.write_text(written, encoding="utf-8")
        try:
            return typst.compile(str(source), ignore_system_fonts=True, timestamp=0)
        except typst.TypstError as error:
            raise ValueError(f"no PDF can be made of the report: {cut(str(error), 200)}") from None


def _pandoc(text: str, to: str, template: str, footer: str, *options: str) -> str:
    """Metadata (-M) is escaped, variables (-V) among the options are not."""
    import pypandoc

    title = re.search(r"^# (.*)", text, re.MULTILINE)
    metadata = ("-M", f"title={title[1] if title else 'Report'}", "-M", f"footer={_UNPRINTABLE.sub('', footer)}")
    arguments = ["--standalone", f"--template={ASSETS / template}", "--wrap=none", *metadata, *options]
    return pypandoc.convert_text(text, to, format="markdown-citations-smart", extra_args=arguments)
