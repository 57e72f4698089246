"""The ablation table from made-up measurements."""

from __future__ import annotations

from aero.report.savings import table_savings

BYTES = """architecture,program,bytes
SM+LN+G,as_published,19.5e9
SM+LN+G,as_published+one_qkv,19.1e9
SM+LN+G,tuned-one_qkv,6.9e9
SM+LN+G,tuned,6.4e9
"""
ERRORS = """architecture,program,scale,prompts,tokens,max_logit_error,same_top_token,provenance
SM+LN+G,as_published,laptop,4,32,0.01200,4,{}
SM+LN+G,tuned,laptop,4,32,0.00300,4,{}
SM+LN+G,tuned-one_qkv,laptop,4,32,0.00400,3,{}
"""


def test_both_directions_stand_side_by_side_and_gaps_are_seen(tmp_path):
    folder = tmp_path / "results/two_party"
    folder.mkdir(parents=True)
    savings = {"one_qkv": "one product", "last_row": "last row only"}
    assert "not measured yet" in table_savings(tmp_path, savings)._repr_html_()
    (folder / "savings.csv").write_text(BYTES)
    (folder / "savings_errors.csv").write_text(ERRORS)
    html = table_savings(tmp_path, savings)._repr_html_()
    for text in ("19.50", "6.40", "19.10", "6.90", "– | –", "0.0040", "11 of 12 prompts", "last row only"):
        assert text in html
    assert "SM+<wbr>ScFuFFN" not in html  # not measured, so not shown
