"""The table of fits: what it shows of a file of fits, and its gap without one."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re

import made_results

from aero.report import forensics
from aero.report.results import Results, load
from benchmarks.forensics import FITS

KEPT = forensics.FILE


def test_the_table_shows_each_row_of_the_best_fit_and_each_rank(full: Results, tmp_path) -> None:
    (tmp_path / KEPT).parent.mkdir(parents=True)
    header = (
        "rank,configuration,largest_percent,largest_but_odd_percent,one_off_gb,largest_with_one_off_percent,"
        "table,row,published_gb,fitted_gb,residual_percent,residual_with_one_off_percent\n"
    )
    text = header
    for rank, fitted, with_one_off in (("1", 25.1, 0.5), ("77", 19.5, 0.25)):
        for table, row, published in (("4", "SM+LN+G", 25.32), ("6", "SM+ScFuFFN", 8.83)):
            text += f"{rank},SPU {rank} <a>,1.5,1.25,0.125,{with_one_off},"
            text += f"{table},{row},{published},{fitted},-0.87,0.{rank}\n"
    (tmp_path / KEPT).write_text(text)
    shown = forensics.table_fits(dataclasses.replace(full, root=tmp_path)).text
    assert ">25.10<" in shown and ">25.32<" in shown and ">-0.87<" in shown
    assert ">19.50<" not in shown and ">77</td>" in shown  # ranked, but its rows are not listed
    assert "SPU 1 &lt;a&gt;" in shown and re.search(r">0\.12(</a>)?</span> GB added", shown)
    assert ">+0.77<" in shown and ">+0.10<" not in shown  # of the rank nearest with one amount added


def test_no_file_is_a_visible_gap(full: Results, tmp_path) -> None:
    assert "not measured yet" in forensics.table_fits(dataclasses.replace(full, root=tmp_path)).text
    assert str(FITS) == KEPT


def test_the_page_does_not_take_as_written_for_what_the_papers_ran() -> None:
    """Another configuration fits best, and the text that says what as written is says so too."""
    configuration = forensics.best_fit(load(made_results.PROJECT), "4", "SM+LN+G")[1]
    assert "SPU 0.9.2b0" in configuration and importlib.metadata.version("spu") == "0.9.5"
    source = (made_results.PROJECT / "reports/aero_softmax_only.py").read_text(encoding="utf-8")
    text = " ".join(source.replace("\n# ", " ").split())
    said = text[text.index("*As written* is") : text.index("*Tuned* is the same model")]
    assert "under the version of SPU in `requirements.lock`" in said and "must have run" not in said
    assert "the papers ran seems to be another configuration of an earlier one" in said
    assert "*Where the published bytes come from*" in said
