"""The rendered report: complete, self-contained, the same bytes twice, in time; gaps are seen; nothing typed by
hand.
"""

from __future__ import annotations

import ast
import html
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import jupytext
import made_results
import pytest

from aero.report import marks, page, render
from aero.report.entropy_page import FIGURES
from aero.report.render import Rendered
from aero.report.results import load

TABLES = (
    *(f"aero_table{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9)),
    *(f"aero_table{number}_costs" for number in (4, 5, 6, 7)),
    "entropy_guided_table3",
    "entropy_landscape_table1",
    "variance_sensitivity_table1",
    "parallel_context_table_main",
    "parallel_context_table_ablation",
)


def run_stage(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ) | {"PYTHONPATH": str(made_results.PROJECT), "OMP_NUM_THREADS": "1"} | variables
    return subprocess.run(
        [sys.executable, "-m", "stages.report", *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def rendered_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project rendered by the stage itself; SM+R has one seed, SM+G none, the ten rows no tuned costs."""
    runs = tuple(run for run in made_results.RUNS if run not in ("sm-g", "sm-r"))
    root = made_results.project(tmp_path_factory.mktemp("rendered"), runs=runs)
    made_results.write_run(root / "results/laptop/sm-r", "sm-r", 1337)
    rows = root / "results/two_party/rows.csv"
    rows.write_text("".join(x for x in rows.read_text().splitlines(True) if ",tuned," not in x), encoding="utf-8")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    finished = run_stage(root)
    assert finished.returncode == 0, finished.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # A minute on an idle machine, whatever else runs beside the tests.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
    return root


@pytest.fixture(scope="module")
def text(rendered_root: Path) -> str:
    return (rendered_root / "reports/report.html").read_text(encoding="utf-8")


def test_everything_is_written_and_nothing_half(rendered_root: Path) -> None:
    made = {
        p.relative_to(rendered_root / "reports").as_posix()
        for p in (rendered_root / "reports").rglob("*")
        if p.is_file()
    }
    assert made == {
        "aero_softmax_only.py",
        "report.html",
        "report.pdf",
        "claims.csv",
        "metrics.json",
        *(f"tables/{stem}.{kind}" for stem in TABLES for kind in ("csv", "tex")),
        "tables/learned_temperatures.csv",
        "tables/differences.csv",
    }
    pdf = (rendered_root / "reports/report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF-") and pdf.rstrip().endswith(b"%%EOF") and len(pdf) > 100_000


@pytest.fixture(params=["text", "kept_text"])
def either(request: pytest.FixtureRequest) -> str:
    """The page of made results and that of the kept ones, which has sections that the made ones have no data for."""
    return request.getfixturevalue(request.param)


def addresses(text: str) -> list[tuple[str, str, str]]:
    """Tag, attribute and address of everything that leads somewhere."""
    return re.findall(r"<(\w+)[^>]*?\s(src|href|xlink:href|data|poster|srcset)=[\"']([^\"']*)", text)


def test_the_page_loads_nothing(text: str) -> None:
    assert text.count("<script") == 1
    text = render.without_script(text)
    for tag, name, address in addresses(text):
        assert address.startswith("#") or (tag, name) == ("a", "href"), f"<{tag} {name}={address}>"
        assert not re.match(r"\w+:|//", address), f"<{tag} {name}={address}>"
    assert not re.search(r"<(script|link|iframe|object|embed)\b|@import|url\((?!#|[\"']?#)", text)


def test_the_page_has_all_its_parts(text: str) -> None:
    for part in (
        "table-2",
        "table-4",
        "costs",
        "figure-1",
        "figure-3b",
        *(drawn.name.replace("_", "-") for drawn in FIGURES),
        "heads-by-rule",
        "figure-index",
        "landscape-table-1",
        "pipeline",
        "runs",
        "end-to-end",
        "savings-audit",
        "networks-4",
        "figure-pareto",
        "costs-7",
        "failure-modes",
        "figure-failures",
    ):
        assert text.count(f'id="{part}"') == 1, part
    assert text.count("<svg ") == 27 + len(FIGURES) and "<math " in text and "$$" not in text


def test_no_link_is_dead(rendered_root: Path, text: str) -> None:
    """Anchors lead to an element of the page, files to one of the project: results here, code in the repository."""
    named = set(re.findall(r'\bid="([^"]+)"', text))
    links = {address for tag, name, address in addresses(text) if tag == "a"}
    assert sum(link.startswith("#claim-") for link in links) > 150
    assert {link for link in links if link.startswith("#") and html.unescape(link[1:]) not in named} == set()
    files = {link for link in links if not link.startswith("#")}
    assert len(files) > 100
    for link in files:
        below = (rendered_root / "reports" / link).resolve()
        assert below.is_relative_to(rendered_root), link
        path = below.relative_to(rendered_root)
        where = made_results.PROJECT if path.parts[0] == "aero" else rendered_root
        assert (where / path).is_file(), link


def test_every_table_and_figure_names_its_files_code_and_command(text: str) -> None:
    """Every number stands in a table whose line below, or whose own row, leads to a file."""
    blocks = re.split(r'(?=<div class="(?:table|figure)[ "])', text)[1:]
    assert len(blocks) > 80
    for block in blocks:
        if block.startswith(('<div class="table dense claims"', '<div class="table dense answers"')):
            rows = re.findall(r"<tr>.*?</tr>", block[: block.index("</table>")], re.DOTALL)[1:]
            assert rows and all(re.search(r"<a\b[^>]* href=", row) for row in rows)
            continue
        below = re.search(r'<details class="source">.*?</details>', block, re.DOTALL)
        assert below, block[:200]
        assert '<dt>code</dt><dd><a href="../aero/' in below.group() and "<code>make report</code>" in below.group()
        block = block[: below.end()]
        if re.search(r'class="num (paper_dimensions|smaller_scale)" title="[^"]*(results|runs)/', block):
            assert re.search(r'<a href="../(results|runs)/', below.group()), block[:200]
        if 'class="num published"' in block:
            assert '<a href="../aero/published/' in below.group(), block[:200]


def test_no_number_stands_outside_of_what_names_its_source(either: str) -> None:
    """In running text a number with a decimal point is in a marked number, a formula or the name of a paper."""
    main = either[either.index("<main>") : either.index("</main>")]
    main = re.sub(r"<svg\b.*?</svg>|<math\b.*?</math>|<details\b.*?</details>", "", main, flags=re.DOTALL)
    main = re.sub(r'<div class="caption">.*?</div>', "", main, flags=re.DOTALL)
    main = re.sub(made_results.NUMBER, "", main)
    main = re.sub(r'<a href="#claim-[^>]*>.*?</a>', "", main)  # a claim's name leads to its files
    main = re.sub(r"<tr><td[^>]*>.*?</td>", "<tr>", main, flags=re.DOTALL)  # what a row is about: a claim, a setting
    main = re.sub(r'<span class="where">.*?</span>|<code>.*?</code>', "", main, flags=re.DOTALL)
    for piece in re.findall(r"<(?:p|li|td)\b[^>]*>(.*?)</(?:p|li|td)>", main, re.DOTALL):
        words = re.sub(r"<[^>]+>", "", piece)
        words = re.sub(r"arXiv \d{4}\.\d{5}|(Theorem|Proposition) \d\.\d", "", words)
        loose = re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", words)
        assert not loose, (loose, words[:200])


def test_every_number_in_a_table_says_its_class_and_source(either: str) -> None:
    classes = "|".join(marks.WORDS)
    spans = re.findall(r'<span class="num ([^"]*)"([^>]*)>', either)
    assert len(spans) > 300
    for kind, rest in spans:
        assert re.fullmatch(classes, kind), kind
        title = re.search(r'title="([^"]+)"', rest)
        assert title and html.unescape(title.group(1)).split(": ", 1)[1].strip(), rest
    loose = re.findall(r"<td[^>]*>\s*(?:<em>)?([-+]?\d+\.\d+)", either)
    assert loose == []


def test_a_number_leads_to_its_file_in_one_click(kept_text: str) -> None:
    """Those of the first table and of the list of all claims, and nearly all others."""
    for identifier in ("questions", "all-claims"):
        table = kept_text[kept_text.index(f'id="{identifier}"') :]
        table = table[: table.index("</table>")]
        numbers = re.findall(r'<span class="num [^>]*>(.{9})', table)
        assert len(numbers) > 20 and all(start == '<a href="' for start in numbers), identifier
    # A link in a link is none: the browser ends the outer one.
    assert not re.search(r"<a\b(?:(?!</a>).)*<a\b", render.without_script(kept_text), re.DOTALL)
    links = {html.unescape(one) for one in re.findall(r'<span class="num [^>]*><a href="\.\./([^"]+)"', kept_text)}
    assert len(links) > 60 and [one for one in links if not (made_results.PROJECT / one).is_file()] == []
    spans = re.findall(r'<span class="num (?!published)[^>]*>(.{9})', kept_text)
    assert sum(start == '<a href="' for start in spans) > 0.98 * len(spans)


def test_a_wide_figure_says_so_on_a_phone(text: str) -> None:
    narrow = text[text.index("@media (max-width: 40rem) {") :]
    hint = re.search(r"\.figure > \.scroll::before.*?\{(.*?)\}", narrow, re.DOTALL)
    assert hint and "scroll sideways" in hint.group(1)
    assert text.count('<div class="figure"') > 30


def test_sources_of_measured_numbers_are_files_of_the_project(rendered_root: Path, text: str) -> None:
    named = set(re.findall(r"results/[\w./-]+?\.json", text))
    assert len(named) > 20 and [name for name in named if not (rendered_root / name).is_file()] == []


def test_what_is_missing_is_seen(text: str) -> None:
    missing = text[text.index('id="what-is-missing"') :]
    assert "not run at scale laptop: sm-g" in missing
    assert "one seed only, so no interval and no verdict: sm-r" in missing
    row = re.search(
        r"<tr><td[^>]*><code>SM\+<wbr/?>G</code>.*?</tr>", text[text.index('id="table-2"') :], re.DOTALL
    ).group()
    assert row.count("not measured yet") == 2 and "none" in row
    assert "not testable here" in text


@pytest.mark.slow
def test_a_second_rendering_has_the_same_bytes(rendered_root: Path) -> None:
    """By another process, with other hashes of strings and another time zone and language."""
    before = {p: p.read_bytes() for p in (rendered_root / "reports").rglob("*") if p.is_file()}
    assert run_stage(rendered_root, PYTHONHASHSEED="4711", TZ="Asia/Tokyo", LC_ALL="C").returncode == 0
    for path, data in before.items():
        assert path.read_bytes() == data, path.name


def test_no_number_is_typed_in_the_source() -> None:
    """Digits in prose and captions may only name tables, figures, papers; in formulas they belong to the formula."""
    allowed = re.compile(
        r"Tables? \d( (and|to) \d)?|Figures? \d+[a-c]?( and \d[a-c]?)?|Theorem \d\.\d|LLaMA-1B|GPT-2|P=1"
        r"|arXiv \d{4}\.\d{5}|ICLR \d{4}|\$\$.*?\$\$|\$.*?\$",
        re.DOTALL,
    )
    notebook = jupytext.read(made_results.PROJECT / "reports/aero_softmax_only.py", fmt="py:percent")
    prose = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose.append(cell.source)
        elif "Markdown(" in cell.source or "page." in cell.source:
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                    prose.append(node.value)
    assert len(prose) > 20
    for piece in prose:
        assert not re.search(r"\d", allowed.sub("", piece)), piece


def test_an_unknown_scale_is_one_line_and_leaves_the_report_alone(rendered_root: Path) -> None:
    before = (rendered_root / "reports/report.html").read_bytes()
    finished = run_stage(rendered_root, "--scale", "huge")
    assert finished.returncode == 1 and len(finished.stderr.splitlines()) == 1
    assert finished.stderr.startswith("error: unknown scale 'huge'; known: ") and "laptop" in finished.stderr
    assert (rendered_root / "reports/report.html").read_bytes() == before


def test_a_failing_source_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=(), costs=False)
    (root / "reports/aero_softmax_only.py").write_text("# %%\nraise KeyError('no such thing')\n", encoding="utf-8")
    finished = run_stage(root)
    assert finished.returncode == 1 and len(finished.stderr.strip().splitlines()) == 1
    assert "KeyError: 'no such thing'" in finished.stderr
    assert not (root / "reports/report.html").exists() and not (root / "reports/claims.csv").exists()


def test_no_source_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the report's source reports/aero_softmax_only.py is not in"):
        render.execute(tmp_path)


@pytest.mark.parametrize(
    "piece",
    [
        '<img src="https://example.org/x.png">',
        "<script>1</script>",
        '<link rel="stylesheet" href="x">',
        '<svg><image href="http://e.org"/></svg>',
        "<style>@import 'x'</style>",
        '<p style="background: url(//e.org/x)">',
        '<a href="https://example.org">x</a>',
    ],
)
def test_a_load_from_outside_is_refused(piece: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(render, "execute", lambda root, scale: f"<h1>t</h1>{piece}")
    with pytest.raises(ValueError, match="load something from outside"):
        render.render(tmp_path)


def test_an_unpaired_formula_is_told() -> None:
    with pytest.raises(ValueError, match="only 0 can be set"):
        render.compose_html("<h1>t</h1><p>costs $5, then <b>bold</b>\n\n7$</p>")


def test_nothing_measured_still_gives_a_report(empty_root: Path) -> None:
    found: Rendered = render.render(empty_root)
    assert found.pdf.startswith(b"%PDF-")
    assert found.html.count("not measured yet") > 100 and "No complete private forward pass" in found.html


def test_other_scales_stand_in_columns_of_their_own(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-ln-g", "sm-r"), costs=False)
    assert page.other_scales(load(root), ["sm-ln-g", "sm-r"]).text == ""
    made_results.write_run(root / "results/gpu/sm-ln-g", "sm-ln-g", 1337, "gpu", perplexity=10.0)
    made_results.write_run(root / "results/gpu/sm-r", "sm-r", 1337, "gpu", perplexity=11.0)
    text = page.other_scales(load(root), ["sm-ln-g", "sm-r"]).text
    assert "<th>gpu</th><th>laptop</th>" in text and ">10.0<" in text and "results/gpu/sm-r/metrics.json" in text


def test_runs_not_trained_alike_are_told(tmp_path: Path) -> None:
    root = made_results.project(tmp_path, runs=("sm-ln-g", "sm-r"), costs=False)
    assert "not trained alike" not in page.gaps(load(root), ["sm-ln-g", "sm-r"]).text
    for seed in (1337, 1338, 1339):
        made_results.write_run(root / f"runs/sm-r/seed_{seed}", "sm-r", seed, corpus_sha256="cd" * 32)
    text = page.gaps(load(root), ["sm-ln-g", "sm-r"]).text
    assert "python_stdlib abababab, 500 steps" in text and "python_stdlib cdcdcdcd" in text
