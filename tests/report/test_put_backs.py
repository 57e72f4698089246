"""What tuned rows are priced without: the residual stream put back into its own basis."""

from __future__ import annotations

import re
from pathlib import Path

import made_results
import pytest
import torch

from aero.architecture import parse
from aero.pipeline import ROOT
from aero.published import load as load_paper
from aero.report import cost_page, cost_tables, page, put_backs, savings, targets
from aero.report.results import Results, load
from aero.two_party.cost.counts import counts, published_sizes
from aero.two_party.program.optimizations import SAVINGS

PAPER = load_paper("aero")


@pytest.fixture(scope="module")
def kept() -> Results:
    return load(ROOT)


@pytest.mark.parametrize(
    ("row", "most"),
    [("SM+ScFuFFN", 11), ("EReg(SM(t)+ScFuFFN)", 11), ("SM+ScFuFFNi_6", 5), ("SM", 11), ("SM+LN", 0), ("SM+G", 0),
     ("SOTA(SM+ScFuFFN)", 0)],
)  # fmt: skip
def test_as_many_layers_as_the_weights_of_a_program_can_put_back(row: str, most: int) -> None:
    assert put_backs.most_put_backs(parse(row), 12) == most


def test_no_weights_need_it_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition number beyond every budget, at every layer of small models."""
    import aero.two_party.program.weights as weights
    from aero.model import GPT, ModelConfig

    config = ModelConfig(vocabulary=16, context=8, layers=4, heads=2, width=8, ffn_width=32)
    for row in ("SM+ScFuFFN", "SM", "SM+ScFFN", "SM+ScFuFFNi_2", "SM+LN", "SOTA(SM+ScFuFFN)"):
        torch.manual_seed(0)
        program = weights.within_budget(GPT(parse(row), config), "tuned", budget=0.0)
        layers = [name for name in program.partition("@")[2].split(",") if name]
        assert len(layers) == put_backs.most_put_backs(parse(row), 4), row


def test_each_is_one_product_of_all_tokens() -> None:
    sizes, row = published_sizes("gpt2", 128), parse("SM+ScFuFFN")
    plain, _ = counts(row, sizes, "tuned")
    more, _ = counts(row, sizes, "tuned@6,11")
    assert more == plain | {("lattice_linear", "128x768,768x768"): plain["lattice_linear", "128x768,768x768"] + 2}


def plain_text(html: str) -> str:
    return re.sub("<[^>]+>|●", "", html)


def test_the_captions_say_what_rows_are_priced_without(kept: Results) -> None:
    said = plain_text(put_backs.note(kept, PAPER.tables["4"]))
    assert put_backs.of_passes(kept) == {"tuned@6": 1, "tuned@6,11": 2}
    assert "are those of plain tuned" in said and "tuned@6, tuned@6,11" in said
    # 1.1368 GB and 271.8 s; 3.26864 MB and 0.5122 s each.
    assert re.search(r"3\.27 MB and 0\.5 s\. Before all 11 layers .* SM\+ScFuFFN takes 1\.17 GB and 277 s", said)
    assert said.endswith("instead of 1.14 and 272.")
    assert "Before all 17 layers" in put_backs.note(kept, PAPER.tables["6"])
    of_tables = [cost_page.table_costs(kept), cost_tables.other_rows(kept), cost_tables.savings(kept)]
    of_tables += [
        page.headline(kept),
        savings.table_savings(kept.root, SAVINGS, put_backs.note(kept, PAPER.tables["4"])),
    ]
    assert [plain_text(one.text).count("Each is one product more") for one in of_tables] == [1, 3, 3, 1, 2]
    assert "`SM+ScFuFFN` takes 1.17 GB" in put_backs.note(kept, PAPER.tables["4"], marked=False)


def test_without_the_measured_product_nothing_is_said(tmp_path: Path) -> None:
    made_results.project(tmp_path, runs=())
    assert put_backs.note(load(tmp_path), PAPER.tables["4"]) == ""


def test_the_targets_are_told_with_every_put_back_too(kept: Results) -> None:
    assert "the three targets are met by 28 of 28; 20 of 20; 20 of 20." in plain_text(targets.targets(kept).text)
