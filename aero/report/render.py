"""From the report's source to a self-contained HTML page and a PDF, with packages from the index alone.

reports/aero_softmax_only.py (jupytext percent) is executed in a kernel, nbconvert makes the body of the page of it, and
from that body come the HTML, which loads nothing from anywhere, and, through pandoc and Typst, the PDF. The same inputs
give the same bytes: fixed cell ids, no dates, fixed hash salt in the figures.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from aero.records import write_together
from aero.report import drawing
from aero.report.results import SCALE_VARIABLE

if TYPE_CHECKING:
    from nbformat import NotebookNode

ASSETS = Path(__file__).parent / "assets"
SOURCE = Path("reports") / "aero_softmax_only.py"
"""Not aero.py: a notebook's kernel starts in its folder, and there that file would hide the package."""

SCRIPT = ""
"""The page's one script; the page's own policy lets a browser run no other, and load nothing."""

SECONDS = 600
"""The longest a cell of the source may take."""

_SVG = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_MATH = re.compile(r"\$\$(.+?)\$\$|\$(\S(?:[^$]*\S)?)\$", re.DOTALL)
_PLACE = re.compile(r'<div data-figure="(\d+)">\s*</div>')
_HEADING = re.compile(r'<h([23]) id="([^"]+)">(.*?)</h\1>', re.DOTALL)
_DATA = re.compile(r'<script id="[a-z-]+" type="application/json">[^<]*</script>')
_LOADS = re.compile(
    r"""<(?:script|link|iframe|object|embed|base)\b|(?:\bsrc|\bxlink:href|<a[^>]*\bhref|<image[^>]*\bhref)\s*=\s*["']\s*(?:https?:|//|ftp:)"""
    r"""|@import|url\(\s*["']?(?:https?:|//)""",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Rendered:
    """The report: HTML text and PDF bytes."""

    html: str
    pdf: bytes


def render(root: Path, scale: str | None = None, footer: str = "") -> Rendered:
    """Render the report of the project in `root` for `scale` (None: the project's own choice).

    Raises ValueError if the source is missing, a cell fails, or the page would load anything from outside.
    """
    body = execute(root, scale)
    page = compose_html(body, footer)
    rest = without_script(page)
    if found := _LOADS.search(rest):
        raise ValueError(f"the page would load something from outside: {rest[found.start() : found.start() + 120]!r}")
    return Rendered(page, compose_pdf(body, footer))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8").strip()


def without_script(page: str) -> str:
    """The page without its one script and the data that works on: the rest may load nothing."""
    return _DATA.sub("", page.replace(f"<script>{SCRIPT}</script>", "", 1))


def execute(root: Path, scale: str | None = None) -> str:
    """Execute the source with `root` as working directory; the body as HTML, code hidden, formulas still as $…$."""
    import jupytext
    from jupyter_client import KernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    path = root / SOURCE
    if not path.is_file():
        raise ValueError(f"the report's source {SOURCE} is not in {root}; run from the repository's root folder")
    notebook = jupytext.read(path, fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:03d}"
    # The kernel is this interpreter's own; a user's start-up files, history and configuration stay out of it.
    with tempfile.TemporaryDirectory(prefix="aero-kernel-") as home:
        environment = dict(os.environ) | {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(
                os.pathsep
            ),
            "IPYTHONDIR": home,
            "JUPYTER_CONFIG_DIR": home,
            "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", home),
            "PYTHONHASHSEED": "0",
            "SOURCE_DATE_EPOCH": "0",
            "OMP_NUM_THREADS": "1",
            SCALE_VARIABLE: scale or "",
        }
        # A socket file of our own instead of a TCP port: nothing else on the machine can listen to or reach the kernel.
        # (A socket's path has to fit in 107 bytes, which a long temporary folder leaves no room for.)
        transport = "ipc" if os.name == "posix" and len(home) < 85 else "tcp"
        manager = KernelManager(kernel_name="python3", transport=transport, connection_file=f"{home}/kernel.json")
        client = NotebookClient(notebook, km=manager, timeout=SECONDS, resources={"metadata": {"path": str(root)}})
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            told = re.sub(r"\x1b\[[0-9;]*m", "", f"{error.ename}: {error.evalue}")
            raise ValueError(f"the report's source {SOURCE} fails: {' '.join(told.split())}") from None
        finally:
            if manager.has_kernel:
                manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
    return body_of(notebook)


def body_of(notebook: NotebookNode) -> str:
    """What an executed notebook shows, as the body of an HTML page; the notebook's outputs are changed."""
    import nbformat
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    figures: list[str] = []
    for cell in notebook.cells:
        _drop_chatter(cell)
        _set_aside(cell, figures)
    exporter = HTMLExporter(
        config=Config(
            {
                "HTMLExporter": {
                    "template_name": "basic",
                    "exclude_input": True,
                    "exclude_input_prompt": True,
                    "exclude_output_prompt": True,
                    "exclude_anchor_links": True,
                    "sanitize_html": False,
                }
            }
        )
    )
    body, _ = exporter.from_notebook_node(nbformat.from_dict(notebook))
    body = _with_anchors(_unwrapped(body))
    return _PLACE.sub(lambda match: figures[int(match.group(1))], body)


def _drop_chatter(cell: dict) -> None:
    """Keep what a cell shows; what libraries print to standard output or error is no part of a report."""
    if cell.get("cell_type") == "code":
        cell["outputs"] = [output for output in cell["outputs"] if output.get("output_type") != "stream"]
        cell["execution_count"] = None
        for output in cell["outputs"]:
            if "execution_count" in output:
                output["execution_count"] = None


def _set_aside(cell: dict, figures: list[str]) -> None:
    """Move figures out of a cell's HTML: the exporter rewrites HTML and would lower the case of SVG's names."""

    def move(match: re.Match[str]) -> str:
        figures.append(match.group())
        return f'<div data-figure="{len(figures) - 1}"></div>'

    for output in cell.get("outputs", []):
        data = output.get("data", {})
        if "text/html" in data:
            data["text/html"] = _SVG.sub(move, "".join(data["text/html"]))


def _with_anchors(body: str) -> str:
    """Headings with an id made of their words, for the table of contents and for links to a section."""
    taken: set[str] = set()

    def anchored(match: re.Match[str]) -> str:
        level, text = match.group(1), match.group(2)
        words = re.sub(r"[^a-z0-9]+", "-", html.unescape(re.sub(r"<[^>]+>", "", text)).lower()).strip("-")
        anchor = next(name for name in (words, *(f"{words}-{n}" for n in range(2, 100))) if name not in taken)
        taken.add(anchor)
        return f'<h{level} id="{anchor}">{text}</h{level}>'

    return re.sub(r"<h([1-3])[^>]*>(.*?)</h\1>", anchored, body, flags=re.DOTALL)


def _unwrapped(body: str) -> str:
    """The body without the boxes nbconvert puts around cells, which neither the page nor the PDF uses."""
    body = re.sub(
        r'<div[^>]*class="(?:cell|jp-|output|prompt|inner_cell|text_cell|input|rendered_html|border-box)[^"]*"[^>]*>',
        "<div>",
        body,
    )
    return re.sub(r"\n{3,}", "\n\n", body).strip() + "\n"


def compose_html(body: str, footer: str = "") -> str:
    """The page: the body with its figures in the reader's colours, formulas as MathML, a table of contents, the
    style.
    """
    body = _SVG.sub(lambda match: _in_page_colours(match.group()), body)
    body = _with_mathml(body)
    contents = _contents(body)
    template = Template((ASSETS / "page.html").read_text(encoding="utf-8"))
    style = _asset("page.css")
    return template.substitute(
        title=_title(body),
        style=style,
        contents=contents,
        body=body,
        footer=html.escape(footer),
        script=SCRIPT,
        script_hash=base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode(),
    )


def _contents(body: str) -> str:
    """The items of the table of contents: a part a line, its sections in a list of their own."""
    parts: list[tuple[str, list[str]]] = []
    for level, anchor, text in _HEADING.findall(body):
        link = f'<a href="#{anchor}">{re.sub(r"<[^>]+>", "", text)}</a>'
        if level == "2":
            parts.append((link, []))
        elif parts:
            parts[-1][1].append(f"<li>{link}</li>")
    lists = [(link, f"<ol>{''.join(inner)}</ol>" if inner else "") for link, inner in parts]
    return "\n".join(f"<li>{link}{inner}</li>" for link, inner in lists)


def _title(body: str) -> str:
    found = re.search(r"<h1[^>]*>(.*?)</h1>", body, re.DOTALL)
    return re.sub(r"<[^>]+>", "", found.group(1)).strip() if found else "Report"


def _in_page_colours(svg: str) -> str:
    for colour, name in (
        (drawing.INK, "--ink"),
        (drawing.PAPER, "--paper"),
        (drawing.GRID, "--grid"),
        (drawing.MUTED, "--muted"),
    ):
        svg = svg.replace(colour, f"var({name})")
    return re.sub(r'(<svg\b[^>]*?) width="[^"]*"( height="[^"]*")?', r"\1", svg, count=1)


def _formulas(body: str) -> list[str]:
    return [match.group() for match in _MATH.finditer(body)]


def _with_mathml(body: str) -> str:
    """Every $…$ and $$…$$ of the body as MathML, by one call of pandoc."""
    import pypandoc

    found = _formulas(body)
    if not found:
        return body
    source = "\n\n".join(html.unescape(formula) for formula in found)
    converted = pypandoc.convert_text(source, "html", format="markdown", extra_args=["--mathml", "--wrap=none"])
    elements = re.findall(r"<math\b.*?</math>", converted, re.DOTALL)
    if len(elements) != len(found):
        raise ValueError(
            f"of {len(found)} formulas in the report's source only {len(elements)} can be set; look for an unpaired $"
        )
    # A long formula scrolls by itself instead of widening the page of a phone.
    replacements = iter(
        f'<span class="formula scroll">{one}</span>' if 'display="block"' in one else one for one in elements
    )
    return _MATH.sub(lambda _: next(replacements), body)


def compose_pdf(body: str, footer: str = "") -> bytes:
    """The body as PDF: figures as vector pictures beside the Typst text that pandoc makes of it."""
    import pypandoc
    import typst

    body = _DATA.sub("", body)
    with tempfile.TemporaryDirectory(prefix="aero-pdf-") as name:
        folder = Path(name)
        count = 0

        def beside(match: re.Match[str]) -> str:
            nonlocal count
            count += 1
            (folder / f"figure{count}.svg").write_text(match.group(), encoding="utf-8")
            return f'<img src="figure{count}.svg" width="100%" alt="figure {count}">'

        body = re.sub(r"<wbr\s*/?>", "\u200b", _SVG.sub(beside, _for_print(body)))
        text = pypandoc.convert_text(
            body,
            "typst",
            format="html+tex_math_dollars",
            extra_args=["--wrap=none", f"--lua-filter={ASSETS / 'page.lua'}"],
        )
        # pandoc centres every table; a number is easier to find at the left edge of its column.
        text = text.replace("align(center)[#table(", "align(left)[#table(")
        template = Template((ASSETS / "page.typ").read_text(encoding="utf-8"))
        page = folder / "report.typ"
        page.write_text(
            template.substitute(title=_title(body), body=text, footer=_typst_text(footer)), encoding="utf-8"
        )
        return typst.compile(str(page), ignore_system_fonts=True, timestamp=0)


_DETAILS = re.compile(r'<details class="source">\s*<summary>(.*?)</summary>(.*?)</details>', re.DOTALL)
_ENTRY = re.compile(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", re.DOTALL)
_LONGEST = 110
"""Letters of a list of files or commands on the printed page; the web page has the whole."""


def _for_print(body: str) -> str:
    """The body without what paper cannot do: what folds is said in a line, links lead nowhere."""
    body = _DETAILS.sub(_printed_details, body)
    body = re.sub(r'<span id="claim-[^"]*">\s*</span>', "", body)
    body = re.sub(r'<a class="square (v-[^"]*)"[^>]*>(.*?)</a>', r'<span class="verdict \1">\2</span>', body)
    return re.sub(r"</?a\b[^>]*>", "", body)


def _printed_details(match: re.Match[str]) -> str:
    """Files, code and command in a line; "" for those of a single claim, whose rule stands beside it anyway."""
    summary, entries = match.groups()
    if "test" in summary:
        return ""
    told = []
    for name, value in _ENTRY.findall(entries):
        text = re.sub(r"<br\s*/?>", "; ", value)
        text = re.sub(r"<(?!/?code)[^>]+>", "", text)
        if len(plain := re.sub(r"<[^>]+>", "", text)) > _LONGEST:
            text = plain[:_LONGEST].rsplit(" ", 1)[0].rstrip(",;:") + " …"
        told.append(f"<b>{name}</b> {text}")
    return f'<div class="source"><p>{". ".join(told)}.</p></div>'


def _typst_text(text: str) -> str:
    return re.sub(r"([\\#$*_`<>@\[\]~])", r"\\\1", text)


def write(path: Path, content: str | bytes) -> None:
    """Write beside `path` and rename, so that a reader never sees half of it."""
    write_together({path: content})
