"""Under every table and figure: the files that were really read, the code, the command."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import made_results
import pytest

from aero.report import (
    evidence,
    figures,
    marks,
    page,
    parallel_context,
    sensitivity,
    sensitivity_models,
    sensitivity_page,
    sensitivity_theory,
)
from aero.report.results import Results, load

PROJECT = made_results.PROJECT


@pytest.fixture
def traced(full_root: Path) -> Iterator[Results]:
    yield evidence.traced(load(full_root))
    evidence._root.clear()


def test_only_what_was_used_is_noted(traced: Results) -> None:
    assert evidence.take() == ()
    assert traced.perplexity("sm-r")
    assert evidence.take() == tuple(
        f"results/laptop/sm-r/{folder}metrics.json" for folder in ("", "seed_1338/", "seed_1339/")
    )
    assert traced.first("sm-g").entropy.mean
    assert evidence.take() == ("results/laptop/sm-g/entropy.json",)
    assert traced.first("sm-g").log.step and traced.cost("SM+LN+R", "tuned").bytes
    assert evidence.take() == ("results/laptop/sm-g/log.csv", "results/two_party/rows.csv")
    assert traced.operations
    assert evidence.take() == ("results/two_party/ops.csv",)
    assert evidence.take() == ()


def test_files_opened_by_their_path_are_noted_and_others_are_not(traced: Results) -> None:
    (traced.root / "results" / "two_party" / "rows.csv").read_text(encoding="utf-8")
    (traced.root / "params.yaml").read_text(encoding="utf-8")
    assert not (traced.root / "runs" / "two_party" / "rows.csv").is_file()
    assert evidence.take() == ("results/two_party/rows.csv",)


def test_a_figure_names_its_own_files_code_and_command(traced: Results) -> None:
    traced.perplexity("sm-scffn")  # read for something else
    evidence.take()
    text = page.figure_of(traced, figures.figure_3b, "Figure 3b", "caption").text
    below = text[text.index('<details class="source">') :]
    assert "results/laptop/sm-ln-g/log.csv" in below and "sm-scffn" not in below
    assert '<a href="../aero/report/figures.py">aero/report/figures.py</a>, <code>figure_3b</code>' in below
    command = re.search(r"python -m stages.train_many ([\w -]+?) --seeds 1337 1338 1339 --scale laptop --keep", below)
    assert set(command.group(1).split()) == {"sm", "sm-g", "sm-ln", "sm-ln-g", "sm-ln-r", "sm-r"}
    assert "commit c0ffeec0ff" in below and "make report" in below


def test_a_table_names_its_own_files_and_the_function_that_made_it(traced: Results) -> None:
    text = page.table_2(traced).text
    assert "results/laptop/sm-r/seed_1339/metrics.json" in text[text.index("<details") :]
    assert re.search(r"aero/report/page.py</a>, <code>table_2</code>, line \d+", text)
    assert '<a href="../aero/published/aero.yaml">' in text


def test_nothing_is_named_outside_the_report(full: Results) -> None:
    assert "<details" not in page.table_2(full).text


def test_every_kept_result_has_a_command_whose_module_exists() -> None:
    listed = subprocess.run(["git", "-C", PROJECT, "ls-files", "results"], capture_output=True, text=True, check=True)
    kept = [path for path in listed.stdout.split() if Path(path).suffix in (".json", ".csv")]
    assert len(kept) > 100
    without = [path for path in kept if not evidence.commands([path], PROJECT)]
    assert not without
    for command in evidence.commands(kept, PROJECT):
        if found := re.match(r"python -m ([\w.]+)", command):
            assert (PROJECT / (found.group(1).replace(".", "/") + ".py")).is_file(), command
        elif found := re.match(r"dvc repro -s (\w+)", command):
            assert f"\n  {found.group(1)}:" in (PROJECT / "dvc.yaml").read_text(encoding="utf-8"), command
        else:
            assert f"\n{command.removeprefix('make ')}:" in (PROJECT / "Makefile").read_text(encoding="utf-8"), command


def test_the_advisories_name_their_own_command() -> None:
    found = evidence.commands(["results/robustness/advisories.json"], PROJECT)
    assert found == ("python -m benchmarks.advisories --database DIR",)


def test_the_search_over_settings_names_its_own_command_and_commit() -> None:
    path = "results/sensitivity/search.csv"
    assert evidence.commands([path], PROJECT) == ("python -m stages.sensitivity_search",)
    with open(PROJECT / path, encoding="utf-8", newline="") as file:
        written = {line["commit"][:10] for line in csv.DictReader(file)}
    assert set(evidence.commits([path], PROJECT)) == written


def test_commits_come_from_the_files_or_what_stands_beside_them(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"provenance": {"commit": "1234567890abcdef+changes"}}))
    (tmp_path / "b.csv").write_text('x,provenance\n1,"{""commit"": ""fedcba9876543210""}"\n')
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.json").write_text(json.dumps({"provenance": {"commit": "aaaaaaaaaaaaaaaa"}}))
    (folder / "log.csv").write_text("step\n1\n")
    assert evidence.commits(["a.json", "b.csv", "run/log.csv"], tmp_path) == (
        "1234567890+changes",
        "aaaaaaaaaa",
        "fedcba9876",
    )


def test_the_names_in_a_number_are_found() -> None:
    text = marks.number(
        "1", "paper_dimensions", "results/two_party/rows.csv, tuned; results/laptop/sm-g/seed_1338/log.csv"
    )
    assert evidence.files_in(text) == ("results/laptop/sm-g/seed_1338/log.csv", "results/two_party/rows.csv")
    place = marks.number("2.69", "published", "AERO Table 4") + marks.number(
        "1", "published", "Entropy Landscape Table 1"
    )
    assert evidence.papers_in(place) == ("aero", "entropy_landscape")


def test_tables_of_the_kept_results_mark_every_number() -> None:
    """Those whose data the made results do not have: decimals stand in marked numbers, or name a setting in code."""
    kept = load(PROJECT)
    tables = (
        sensitivity.table_1,
        sensitivity_models.table_models,
        sensitivity_page.search_tables,
        sensitivity_theory.table_derivative,
        sensitivity_theory.table_relu,
        sensitivity_theory.table_bounds,
        parallel_context.table_main,
        parallel_context.table_methods,
        parallel_context.table_correlation,
    )
    for table in tables:
        text = re.sub(r'<div class="caption">.*?</div>', "", table(kept).text, flags=re.DOTALL)
        assert text.count('class="num ') > 5, table.__name__
        assert not re.search(r'class="num [^"]*" title="[^":]*: "', text), table.__name__
        text = re.sub(made_results.NUMBER, "", text)
        text = re.sub(r"<tr><td[^>]*>.*?</td>|<code>.*?</code>", "", text, flags=re.DOTALL)
        assert not re.findall(r">[^<]*\d\.\d[^<]*</td>", text), table.__name__
