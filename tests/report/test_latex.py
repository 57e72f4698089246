"""LaTeX tables: ASCII, balanced, as many cells a row as columns, read by a LaTeX parser, the numbers of the CSV."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pypandoc
import pytest

from aero.report import landscape_tables, latex, parallel_context_tables, sensitivity, tables
from aero.report.results import Results


def every_table(results: Results) -> dict[Path, str]:
    return latex.files(
        tables.files(results)
        | landscape_tables.files(results)
        | sensitivity.files(results)
        | parallel_context_tables.files(results)
    )


@pytest.fixture(scope="module")
def made(full: Results) -> dict[Path, str]:
    return every_table(full)


def test_every_table_of_the_papers_has_one(made: dict[Path, str]) -> None:
    names = {path.stem for path in made}
    assert names == {
        *(f"aero_table{n}" for n in (2, 3, 4, 5, 6, 7, 8, 9)),
        *(f"aero_table{n}_costs" for n in (4, 5, 6, 7)),
        "entropy_guided_table3",
        "entropy_landscape_table1",
        "variance_sensitivity_table1",
        "parallel_context_table_main",
        "parallel_context_table_ablation",
    }
    assert all(path.suffix == ".tex" for path in made)


def test_the_structure_is_whole(made: dict[Path, str]) -> None:
    for path, text in made.items():
        assert text.isascii(), path
        plain = text.replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}"), path
        assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0, path
        assert re.findall(r"\\begin\{(\w+\*?)\}", text) == re.findall(r"\\end\{(\w+\*?)\}", text)[::-1], path
        parts = re.findall(r"\\begin\{tabular\}\{@\{\}([lr]+)@\{\}\}(.*?)\\end\{tabular\}", text, re.DOTALL)
        for columns, part in parts:
            rows = [line for line in part.splitlines() if line.endswith("\\\\")]
            assert len(rows) > 3 and {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)}, path
        # Outside of mathematics and of what is escaped, nothing that LaTeX reads as a command.
        outside = re.sub(r"\$[^$]*\$", "", re.sub(r"\\[%&$#_{}]", "", re.sub(r"(?m)^%.*\n", "", text)))
        body = outside[outside.index("\\midrule") : outside.index("\\bottomrule")]
        assert not re.search(r"[#_^~%]", body), path


def test_a_parser_of_latex_reads_the_same_cells(made: dict[Path, str]) -> None:
    text = made[Path("reports/tables/aero_table4.tex")]
    # This parser does not know \\shortstack: its lines beside one another.
    flat = re.sub(r"\\shortstack\[.\]\{((?:[^{}]|\{(?:[^{}]|\{.*?\})*\})*)\}", lambda m: m[1].replace(r"\\", " "), text)
    page = pypandoc.convert_text(flat, "html", format="latex")
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL)
    ]
    assert {len(row) for row in rows} == {10}
    first = next(row for row in rows if row[:2] == ["SM+LN+G", "published"])
    assert first[2] == "2.69" and first[6:8] == ["25.32", "8.21"]
    measured = rows[rows.index(first) + 1]
    assert measured[1] == "measured" and measured[6] == "15.30" and rows[rows.index(first) + 2][6] == "0.60"


def test_numbers_are_rounded_as_printed_and_gaps_are_dashes(empty: Results) -> None:
    text = every_table(empty)[Path("reports/tables/aero_table2.tex")]
    assert "SM+LN+G & published & 2.688 & 0.00" in text and " & measured & -- & --" in text and "& ratio &" not in text
    assert "SM & published & NaN & --" in text and "Measured: nothing yet." in text


def test_odd_characters_are_escaped_or_told() -> None:
    assert latex.escape("50 % & a_b #1 {x} × γ") == r"50 \% \& a\_b \#1 \{x\} $\times$ $\gamma$"
    with pytest.raises(ValueError, match="no LaTeX known for 'ж'"):
        latex.escape("ж")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex on this machine")
def test_every_table_compiles(made: dict[Path, str], tmp_path: Path) -> None:
    body = "\n".join(made.values())
    (tmp_path / "all.tex").write_text(
        "\\documentclass[twocolumn]{article}\\usepackage[margin=1in]{geometry}\\usepackage{booktabs,amssymb}\\begin{document}\n"
        f"{body}\n\\clearpage\\end{{document}}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert b"Overfull" not in done.stdout, done.stdout.decode("latin-1")


def test_many_columns_come_in_parts_that_name_their_rows(made: dict[Path, str]) -> None:
    text = made[Path("reports/tables/entropy_landscape_table1.tex")]
    parts = text.split("\\par\\medskip")
    assert len(parts) > 1
    for part in parts:
        assert part.count("L=12 T=128 GELU & published") == 1 and part.count(" & published & ") == 5
    assert "Baseline" in parts[0] and not any("Baseline" in part for part in parts[1:])
    for margin in ("=0\\\\", "=10E", "=20E"):
        assert sum(f"Tmargin{margin}" in part for part in parts) == 1, margin
