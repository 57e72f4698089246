"""The ablation table from made-up measurements."""

from __future__ import annotations

import csv
import re

import pytest

from aero.pipeline import ROOT
from aero.report.savings import table_errors, table_held_out, table_savings

BYTES = """architecture,program,bytes,seconds
SM+LN+G,as_written,19.5e9,2010.4
SM+LN+G,as_written+one_qkv,19.1e9,1990.6
SM+LN+G,tuned-one_qkv,6.9e9,1400
SM+LN+G,tuned,6.4e9,1300
"""
ERRORS = """architecture,program,scale,prompts,tokens,max_logit_error,same_top_token,provenance
SM+LN+G,as_written,laptop,4,32,0.01200,4,{}
SM+LN+G,tuned,laptop,4,32,0.00300,4,{}
SM+LN+G,tuned-one_qkv,laptop,4,32,0.00400,3,{}
"""


def test_what_is_kept_is_what_the_issue_of_private_inference_asks():
    """The same top token on 200 held-out prompts, and in no line an error above that of the row as written."""
    with (ROOT / "results/two_party/savings_errors.csv").open(encoding="utf-8", newline="") as file:
        every = list(csv.DictReader(file))
    lines = {(one["architecture"], one["program"], one["tokens"]): one for one in every if one["scale"] == "laptop"}
    many = lines["SM+ScFuFFN", "tuned", "24"]
    assert int(many["prompts"]) >= 200 and many["same_top_token"] == many["prompts"]
    for row in "SM+ScFuFFN", "SM+LN+G":
        published = float(lines[row, "as_written", "16"]["max_logit_error"])
        assert float(lines[row, "tuned", "16"]["max_logit_error"]) < published
    assert float(many["max_logit_error"]) < float(lines["SM+ScFuFFN", "as_written", "16"]["max_logit_error"])
    within = "tuned-lattice_products"
    passes = [(row, within) for row in ("SM+LN+G", "SM+LN+R", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)")]
    for row, program in [*passes, ("SM+ScFuFFN", "tuned")]:
        asked, published = lines[row, program, "24"], lines[row, "as_written", "24"]
        assert int(asked["prompts"]) >= 200 and asked["same_top_token"] == asked["prompts"]
        # As written on some of the same prompts.
        assert int(published["prompts"]) == 20 and published["same_top_token"] == "20"
        assert float(asked["max_logit_error"]) < float(published["max_logit_error"])
    # As published too, the row with temperatures on fewer of them.
    for row, _ in passes:
        fit = lines[row, "as_published", "24"]
        assert int(fit["prompts"]) == (5 if row.startswith("EReg") else 20) and fit["same_top_token"] == fit["prompts"]
        assert float(lines[row, "tuned", "24"]["max_logit_error"]) < float(fit["max_logit_error"])


def test_both_directions_stand_side_by_side_and_gaps_are_seen(tmp_path):
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True)
    savings = {"one_qkv": "one product", "last_row": "last row only"}
    assert "not measured yet" in table_savings(tmp_path, savings)._repr_html_()
    (folder / "savings.csv").write_text(BYTES)
    (folder / "savings_errors.csv").write_text(ERRORS)
    html = table_savings(tmp_path, savings)._repr_html_()
    shown = re.sub("<[^>]*>|●", "|", html)
    for text in ("19.50", "6.40", "19.10", "6.90", "2,010", "1,300", "1,991", "1,400"):
        assert len(re.findall(rf"\|{text}\|", shown)) == 1, text
    assert html.count("– | –") == html.count("last row only") == 2
    assert "SM+<wbr>ScFuFFN" not in html  # not measured, so not shown


def test_errors_of_other_prompts_never_stand_side_by_side(tmp_path):
    """A line of the same program with longer prompts has a column of its own."""
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True)
    savings = {"one_qkv": "one product", "absorbed_ffn": "absorbed", "last_row": "last row only"}
    assert "not measured yet" in table_errors(tmp_path, savings)._repr_html_()
    longer = "SM+LN+G,tuned,laptop,200,64,0.00900,199,{}\n"
    absorbed = "SM+LN+G,as_written+folded_ffn+absorbed_ffn,laptop,4,32,0.00700,4,{}\n"
    (folder / "savings_errors.csv").write_text(ERRORS + longer + absorbed)
    html = table_errors(tmp_path, savings)._repr_html_()
    lines = [re.sub(r"<[^>]*>|○", "", line) for line in html.split("<tr>")]
    ends, one_qkv, absorbed_line = lines[2:]  # before them what precedes the grid and its head
    assert "0.0120 (4) | 0.0030 (4)" in ends and "0.0090" not in html  # which is of a table of its own
    assert "– | 0.0040 (4)" in one_qkv and "0.0090" not in one_qkv
    assert "0.0070 (4) | –" in absorbed_line
    said = re.sub(r"<[^>]*>", "", html)
    assert "T=32: 15 of 16." in said


@pytest.mark.parametrize(
    ("tuned", "plain", "said"),
    [
        ((200, 200, 0.003), (20, 20, 0.012), "met"),
        ((200, 199, 0.003), (20, 20, 0.012), "missed"),
        ((200, 200, 0.013), (20, 20, 0.012), "missed"),
        ((40, 40, 0.003), (20, 20, 0.012), "160 prompts to go"),
        ((200, 200, 0.003), None, "no error as written"),
    ],
)
@pytest.mark.parametrize("published", [None, 0.0025, 0.02])
def test_held_out_prompts_against_their_target(tmp_path, tuned, plain, said, published):
    """published: an error as published, below all tuned ones of the cases or above them."""
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True)
    assert "not measured yet" in table_held_out(tmp_path)._repr_html_()
    lines = [
        f"SM+LN+R,{program},laptop,{asked},24,{error},{same},{{}}\n"
        for program, line in (("tuned", tuned), ("as_written", plain))
        if line is not None
        for asked, same, error in (line,)
    ]
    if published is not None:
        lines.append(f"SM+LN+R,as_published,laptop,20,24,{published},20,{{}}\n")
        said = "missed" if published < 0.003 else said
    elif said == "met":
        said = "no error as published"
    (folder / "savings_errors.csv").write_text(ERRORS + "".join(lines))
    html = table_held_out(tmp_path)._repr_html_()
    (line,) = [re.sub(r"<[^>]*>|○", "", one) for one in html.split("<tr>")[2:]]  # of the ends alone: not SM+LN+G
    assert line.partition("The same answer")[0].strip().endswith(said) and f"{tuned[1]} of {tuned[0]}" in line


def test_passes_of_other_weights_are_said_to_be(tmp_path):
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True)
    line = 'SM+LN+R,{},laptop,20,24,0.003,20,"{{""weights"":""{}""}}"\n'.format
    plain, tuned, within = (line(program, "a") for program in ("as_written", "tuned", "tuned-lattice_products"))
    path = folder / "savings_errors.csv"
    path.write_text(ERRORS + plain + tuned + within)
    assert "like for like" not in table_held_out(tmp_path)._repr_html_()
    path.write_text(ERRORS + plain + tuned + line("tuned-lattice_products", "b"))
    html = re.sub(r"<[^>]*>", "", table_held_out(tmp_path)._repr_html_())
    assert "errors are not like for like: SM+LN+R tuned-lattice_products." in html


def test_held_out_prompts_within_spu_stand_beside_those_outside(tmp_path):
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True)
    line = "SM+LN+R,{},laptop,{},{},{},{},{{}}\n".format
    passes = line("tuned", 200, 24, 0.003, 200) + line("tuned-lattice_products", 20, 24, 0.013, 20)
    passes += line("as_written", 20, 24, 0.012, 20) + line("as_published", 20, 24, 0.014, 20)
    singles = line("as_written+lattice_products", 2, 16, 0.011, 2) + line("tuned-lattice_products", 2, 16, 0.004, 2)
    singles += line("as_written", 2, 16, 0.012, 2)
    (folder / "savings_errors.csv").write_text(ERRORS + passes + singles)
    (held_out,) = [re.sub(r"<[^>]*>|○", " ", one) for one in table_held_out(tmp_path)._repr_html_().split("<tr>")[2:]]
    asked = r"200 of 200\s+0\.0030\s+20 of 20\s+0\.0130\s+20 of 20\s+0\.0120\s+20 of 20\s+0\.0140\s+met; missed"
    assert re.search(asked, held_out)
    html = table_errors(tmp_path, {"lattice_products": "outside"})._repr_html_()
    assert "as_published" not in html
    assert "0.0110 (2) | 0.0040 (2)" in re.sub(r"<[^>]*>|○", "", html) and "one training" not in html
    other = 'SM+LN+R,tuned,laptop,2,16,0.003,2,"{""weights"":""b""}"\n'
    (folder / "savings_errors.csv").write_text(ERRORS + passes + singles + other)
    html = re.sub(r"<[^>]*>", "", table_errors(tmp_path, {})._repr_html_())
    assert "Not all passes are of one training of the model, as their weights’ hashes tell: SM+LN+R." in html
