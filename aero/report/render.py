"""The report's notebooks as one self-contained HTML page and one PDF.

The notebooks in reports/ are executed in one kernel. Their Markdown cells and the HTML their code cells show become
one document, in the order of the notebooks. Pandoc makes the page of it (formulas as MathML, nothing loaded from
outside) and, through Typst, the PDF. The same inputs give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

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
"""In the order of the report, a chapter each. Not aero.py: in the kernel's folder it would shadow the package."""

_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_GLYPH = re.compile(r'<path id="(DejaVu[^"]*)"[^>]*/>')
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
"""What neither HTML nor UTF-8 can hold."""


def render(root: Path, footer: str = "") -> tuple[str, bytes]:
    """The report of the project in `root` as HTML and PDF. ValueError if a notebook fails."""
    parts = execute(root)
    return page(parts, footer), pdf(parts, footer)


def execute(root: Path) -> list[str]:
    """The Markdown of all notebooks and, as `HTML`, what their code shows, in order."""
    import jupytext
    from jupyter_client import AsyncKernelManager
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from nbconvert.preprocessors import ExecutePreprocessor
    from nbformat.v4 import new_code_cell, new_notebook

    notebook = new_notebook()
    for name in NOTEBOOKS:
        # Names of one notebook are unknown to the next.
        read = jupytext.read(root / "reports" / f"{name}.py", fmt="py:percent")
        notebook.cells += [new_code_cell("%reset -f"), *read.cells]
    with tempfile.TemporaryDirectory(prefix="aero-kernel-") as home:
        environment = os.environ | dict.fromkeys(("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"), home)
        environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        # A socket file keeps other users of the machine from the kernel.
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{home}/kernel.json")
        client = ExecutePreprocessor(km=manager, timeout=600, shutdown_kernel="immediate")
        client.nb = notebook
        try:
            with client.setup_kernel(cleanup_kc=True, cwd=str(root), env=environment):
                for number, cell in enumerate(notebook.cells):  # not `client.execute`, which takes SIGTERM
                    client.execute_cell(cell, number)
        except CellExecutionError as error:
            message = re.sub(r"\x1b\[[0-9;]*m", "", f"{error.ename}: {error.evalue}")
            raise ValueError(f"a notebook in reports/ fails: {cut(' '.join(message.split()), 300)}") from None
        except DeadKernelError:
            raise ValueError("the report's kernel died; is there enough memory?") from None
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            shown = (output.get("data", {}).get("text/html") for output in cell.outputs)
            parts += [HTML(one) for one in shown if one]
    return parts


def document(parts: Iterable[str], changed: Callable[[str], str]) -> str:
    """Pandoc Markdown: the Markdown cells, and what the code cells show as raw HTML changed by `changed`."""
    blocks = []
    for part in parts:
        if not isinstance(part, HTML):
            blocks.append(part)
        else:
            html = changed(part)
            # Longer than any run of backticks in it, which would end the block and make Markdown of the rest.
            fence = "`" * (1 + max(map(len, re.findall("`{2,}", html)), default=2))
            blocks.append(f"{fence}{{=html}}\n{html}\n{fence}")
    return _UNPRINTABLE.sub("\ufffd", "\n\n".join(blocks))


def page(parts: Iterable[str], footer: str) -> str:
    """The HTML page. Only the explorer's script may run, by its hash, and it may load nothing."""
    text = document(parts, lambda html: _SVG.sub(_in_page_colours, html))
    style, script = appendix.explorer_assets()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    css = (ASSETS / "page.css").read_text(encoding="utf-8")
    raw = ("-V", f"css={css}", "-V", f"scripts='sha256-{digest}'")
    html = _pandoc(text, "html", "page.html", footer, "--mathml", "--toc", "--toc-depth=2", *raw)
    # Every figure defines the shapes of its letters; the page has each once.
    glyphs = {match[1]: match[0] for match in _GLYPH.finditer(html)}
    shared = f'<svg width="0" height="0" style="position:absolute"><defs>{"".join(glyphs.values())}</defs></svg>'
    html = _GLYPH.sub("", html).replace("<main>", f"<main>\n{shared}", 1)
    html = html.replace("<style>", f"<style>\n{style}\n</style>\n<style>", 1)  # before the page's own
    return html.replace("</main>", f'</main>\n<script type="module">{script}</script>', 1)


def _in_page_colours(svg: re.Match[str]) -> str:
    """The figure in the colours of the page's light or dark scheme, as wide as its box."""
    text = svg.group()
    for colour, name in {show.INK: "ink", show.PAPER: "paper", show.GRID: "grid", show.MUTED: "muted"}.items():
        text = text.replace(colour, f"var(--{name})")
    return re.sub(r'(<svg\b[^>]*?) width="[^"]*"( height="[^"]*")?', r"\1", text, count=1)


def pdf(parts: Iterable[str], footer: str) -> bytes:
    """The PDF, with figures as vector graphics."""
    import typst

    with tempfile.TemporaryDirectory(prefix="aero-pdf-") as name:
        folder, numbers = Path(name), itertools.count(1)

        def beside(match: re.Match[str]) -> str:
            file = f"figure{next(numbers)}.svg"
            (folder / file).write_text(match.group(), encoding="utf-8")
            return f'<img src="{file}" width="100%">'

        printed = (part for part in parts if not part.startswith('<div class="screen-only"'))
        text = document(printed, lambda html: _SVG.sub(beside, html))
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
