"""The report's notebooks as one self-contained HTML page and one PDF.

The notebooks in reports/ are executed one after the other in one kernel. Their Markdown cells and the HTML their code
cells show become one document. Pandoc makes the page of it (formulas as MathML, nothing loaded from outside) and,
through Typst, the PDF. The same inputs give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero.report import style
from aero.report.results import SCALE_VARIABLE

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
CELL_SECONDS = 600
PAGE_COLOURS = {style.INK: "--ink", style.PAPER: "--paper", style.GRID: "--grid", style.MUTED: "--muted"}

_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


@dataclass(frozen=True)
class Rendered:
    html: str
    pdf: bytes


def render(root: Path, scale: str | None = None, footer: str = "") -> Rendered:
    """Render the report of the project in `root` at a training scale (None: the project's own choice).

    Raises ValueError if a notebook is missing or a cell fails.
    """
    cells = execute(root, scale)
    return Rendered(page(cells, footer), pdf(cells, footer))


def execute(root: Path, scale: str | None = None) -> list[Any]:
    """The executed cells of all notebooks, in order."""
    import jupytext
    from jupyter_client import KernelManager
    from nbclient.exceptions import CellExecutionError
    from nbconvert.preprocessors import ExecutePreprocessor
    from nbformat.v4 import new_code_cell, new_notebook

    notebook = new_notebook()
    for name in NOTEBOOKS:
        path = root / "reports" / f"{name}.py"
        if not path.is_file():
            raise ValueError(f"{path} is missing; run from the repository's root folder")
        # Names of one notebook are unknown to the next.
        notebook.cells += [new_code_cell("%reset -f"), *jupytext.read(path, fmt="py:percent").cells]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03d}"
    with tempfile.TemporaryDirectory(prefix="aero-kernel-") as home:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH")))),
            "IPYTHONDIR": home,
            "JUPYTER_CONFIG_DIR": home,
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", home),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            SCALE_VARIABLE: scale or "",
        }
        # A socket file keeps other users of the machine from the kernel; its path must be short.
        transport = "ipc" if os.name == "posix" and len(home) < 85 else "tcp"
        manager = KernelManager(kernel_name="python3", transport=transport, connection_file=f"{home}/kernel.json")
        try:
            manager.start_kernel(env=environment, cwd=str(root))
            executor = ExecutePreprocessor(timeout=CELL_SECONDS)
            notebook, _ = executor.preprocess(notebook, {"metadata": {"path": str(root)}}, km=manager)
        except CellExecutionError as error:
            message = re.sub(r"\x1b\[[0-9;]*m", "", f"{error.ename}: {error.evalue}")
            raise ValueError(f"a notebook in reports/ fails: {' '.join(message.split())}") from None
        finally:
            if manager.has_kernel:
                manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
    return notebook.cells


def document(cells: Iterable[Any], shown: Callable[[str], str]) -> str:
    """Pandoc Markdown: the Markdown cells, and what the code cells show as raw HTML changed by `shown`."""
    parts = []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            parts.append(cell["source"])
            continue
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "text/html" in data:
                parts.append(f"```{{=html}}\n{shown(data['text/html'])}\n```")
            elif "text/markdown" in data:
                parts.append(data["text/markdown"])
    return "\n\n".join(parts)


def page(cells: Iterable[Any], footer: str) -> str:
    """The HTML page. Only the scripts in it may run, by their hashes, and it may load nothing."""
    text = document(cells, lambda html: _SVG.sub(lambda match: _in_page_colours(match.group()), html))
    digests = (hashlib.sha256(script.encode()).digest() for script in _SCRIPT.findall(text))
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    css = (ASSETS / "page.css").read_text(encoding="utf-8")
    variables = {"css": css, "footer": footer, "scripts": hashes or "'none'"}
    return _pandoc(text, "html", "page.html", variables, "--mathml", "--toc", "--toc-depth=2")


def _in_page_colours(svg: str) -> str:
    """The figure in the colours of the page's light or dark scheme, as wide as its box."""
    for colour, name in PAGE_COLOURS.items():
        svg = svg.replace(colour, f"var({name})")
    return re.sub(r'(<svg\b[^>]*?) width="[^"]*"( height="[^"]*")?', r"\1", svg, count=1)


def pdf(cells: Iterable[Any], footer: str) -> bytes:
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

        text = document(cells, lambda html: _SVG.sub(beside, html))
        source = folder / "report.typ"
        written = _pandoc(text, "typst", "page.typ", {"footer": footer}, f"--lua-filter={ASSETS / 'page.lua'}")
        source.write_text(written, encoding="utf-8")
        return typst.compile(str(source), ignore_system_fonts=True, timestamp=0)


def _pandoc(text: str, to: str, template: str, variables: dict[str, str], *options: str) -> str:
    import pypandoc

    title = re.search(r"^# (.*)", text, re.MULTILINE)
    variables = variables | {"title": title[1] if title else "Report"}
    arguments = ["--standalone", f"--template={ASSETS / template}", "--wrap=none", *options]
    arguments += [argument for name, value in variables.items() for argument in ("-V", f"{name}={value}")]
    return pypandoc.convert_text(text, to, format="markdown-citations-smart", extra_args=arguments)
