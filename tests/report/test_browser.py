"""The rendered page in a headless Chromium: no overflow at three widths, no console error, light, dark, and printed.

The page is put in frames of the widths, because a window of a headless browser cannot be as narrow as a phone.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import synthetic

from aero.report import appendix, render, show
from aero.report.papers import aero_entropy
from aero.report.results import Results

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on this machine")
WIDTHS = (390, 1024, 1600)

FRAMES = """<!DOCTYPE html><html><body>%s<pre id="found"></pre><script>
const found = {};
const shown = (table, column) => [...table.querySelectorAll('tbody tr')].map((row) => row.cells[column].textContent);
const drawn = () => new Promise((done) => setTimeout(done, 50));  // DataTables sorts a moment after the click
async function explore(tables) {
  const [rows, claims] = tables, hostile = shown(claims, 2)[0], images = claims.querySelectorAll('img').length;
  const perplexity = rows.querySelectorAll('th').length - 1, place = 1, sorted = [];
  for (const [table, column] of [[rows, perplexity], [rows, perplexity], [claims, place]]) {
    table.querySelectorAll('th')[column].click();
    await drawn();
    sorted.push(shown(table, column));
  }
  const search = rows.querySelector('.dt-search input');
  search.value = 'optimised';
  search.dispatchEvent(new Event('input'));
  const filters = [...tables].map((table) => table.querySelectorAll('th .dtcc-button').length);
  claims.querySelectorAll('th .dtcc-button')[1].click();
  claims.querySelector('.dtcc-list-buttons .dtcc-button').click();
  await drawn();
  return {hostile, images, sorted, filters, searched: shown(rows, 2), filtered: shown(claims, 5)};
}
window.addEventListener('load', async () => {
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, root = page.documentElement, width = frame.clientWidth;
    const inside = (e) => e.closest('.scroll, .dt-layout-table');
    const wide = [...page.body.querySelectorAll('*')].filter((e) => !inside(e) && !e.closest('svg, math')
      && e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > width + 1);
    const style = frame.contentWindow.getComputedStyle(page.body);
    const scroll = [...page.querySelectorAll('.scroll, .dt-layout-table')].filter((e) =>
      e.scrollWidth > e.clientWidth + 1 && frame.contentWindow.getComputedStyle(e).overflowX === 'visible');
    const small = [...page.querySelectorAll('p, td, th, li, summary')].filter((e) => e.textContent.trim()
      && parseFloat(frame.contentWindow.getComputedStyle(e).fontSize) < 11);
    found[width] = {
      scrollWidth: root.scrollWidth, background: style.backgroundColor, colour: style.color,
      theme: root.className,
      wide: wide.slice(0, 5).map((e) => e.tagName + '.' + e.className), clipped: scroll.length, small: small.length,
      links: [...page.querySelectorAll('a[href^="#"]')].filter((a) => !page.getElementById(decodeURIComponent(
        a.getAttribute('href').slice(1)))).map((a) => a.getAttribute('href')),
      explorer: await explore(page.querySelectorAll('#explorer-tables .dt-container')),
    };
  }
  document.getElementById('found').textContent = JSON.stringify(found);
});
</script></body></html>"""


def browser(page: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--enable-logging=stderr",
    ]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    return subprocess.run(
        [CHROMIUM, *options, profile, "--virtual-time-budget=20000", *arguments, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, full: Results) -> Path:
    """A page with a formula, a figure, a wide table and the explorer, as the stage leaves it in reports/."""
    wide = pd.DataFrame({f"a column of {number} words": ["EReg(SM(t)+ScFuFFNi_6)"] * 3 for number in range(6)})
    claims = pd.read_csv(synthetic.PROJECT / "reports/claims.csv")
    claims.loc[0, "claim"] = "<img src=x onerror=alert(1)>"
    claims.loc[[0, 1], "where"] = ["A 10", "A 9"]
    rows = appendix.explorer_rows(full).head(12)
    rows[appendix.PERPLEXITY] = [None, 1200.0, -3.0, 20.0, 7.0, None, 0.0, -12.4, 3e4, 100.0, 9.0, None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appendix, "explorer_rows", lambda results: rows)
        explorer = appendix.explorer(full, claims)
    parts = (
        show.figure(aero_entropy.guided_figure_2(full), "A figure", "Of every head.", sources=["results/a.jsonl"]),
        show.table(wide, "A table", "Of six columns.", command="python -m stages.report"),
        explorer,
    )
    text = "# A title\n\n$$E = -\\sum_i \\sum_j a_{ij} \\log a_{ij}$$\n\n## Explorer"
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(render.page([text, *parts], "synthetic results"), encoding="utf-8")
    return path


def measured(page: Path, *arguments: str) -> dict[str, dict]:
    """What the frames of the three widths measured; fails on anything the page wrote to the console."""
    frames = "".join(f'<iframe src="{page.name}" width="{w}" height="900" style="border:0"></iframe>' for w in WIDTHS)
    around = page.with_name("frames.html")
    around.write_text(FRAMES % frames, encoding="utf-8")
    done = browser(around, "--window-size=1700,1000", "--dump-dom", *arguments)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL).group(1)
    assert found, "the frames were not measured"
    return json.loads(html.unescape(found))


@pytest.fixture(scope="module")
def light(page: Path) -> dict[str, dict]:
    return measured(page)


def test_no_overflow_no_console_error_no_dead_anchor(light: dict[str, dict]) -> None:
    assert set(light) == {str(width) for width in WIDTHS}
    for width, seen in light.items():
        assert seen["scrollWidth"] <= int(width), (width, seen["wide"])
        assert not seen["wide"] and not seen["clipped"], (width, seen["wide"])
        assert not seen["links"], (width, seen["links"][:5])
        assert seen["small"] == 0, (width, "text under 11 px", seen["small"])


def test_the_explorer_sorts_searches_and_filters(light: dict[str, dict]) -> None:
    seen = light["1024"]["explorer"]
    assert seen["hostile"].startswith("<img") and seen["images"] == 0
    up, down, places = seen["sorted"]
    ordered = ["-12.4", "-3", "0", "7", "9", "20", "100", "1,200", "30,000"]
    assert (up, down) == ([*ordered, *["–"] * 3], [*ordered[::-1], *["–"] * 3])
    assert places[:2] == ["A 9", "A 10"]
    assert seen["filters"] == [2, 2]
    assert set(seen["searched"]) == {"optimised"}
    assert len(set(seen["filtered"])) == 1


def test_dark_is_dark_and_readable(page: Path, light: dict[str, dict]) -> None:
    bright, dark = light["1024"], measured(page, "--blink-settings=preferredColorScheme=0")["1024"]
    assert (bright["theme"], dark["theme"]) == ("", "dark")  # of DataTables

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert luminance(bright["background"]) > 0.8 > 0.1 > luminance(dark["background"])
    for seen in (bright, dark):
        high, low = sorted((luminance(seen["background"]), luminance(seen["colour"])), reverse=True)
        assert (high + 0.05) / (low + 0.05) > 7


def test_it_prints(page: Path, tmp_path: Path) -> None:
    browser(page, f"--print-to-pdf={tmp_path / 'printed.pdf'}", "--no-pdf-header-footer")
    data = (tmp_path / "printed.pdf").read_bytes()
    assert data.startswith(b"%PDF-") and len(data) > 20_000
