"""reports/metrics.json: a dozen numbers of the whole report, for DVC."""

from __future__ import annotations

import json
from statistics import fmean

import pytest

from aero.report import claims
from aero.report.results import Results


def test_the_numbers_of_dvc_are_those_of_the_report(full: Results) -> None:
    judged = claims.judge(full)
    (text,) = claims.metrics_file(full, judged).values()
    found = json.loads(text)
    assert found["perplexity"]["sm-ln-r"] == pytest.approx(fmean(full.perplexity("sm-ln-r").values()), abs=1e-4)
    assert sum(found["claims"].values()) == len(judged)
    assert found["gigabytes"]["SM+LN+G"] == pytest.approx(full.cost("SM+LN+G", "tuned").bytes / 1e9, abs=1e-3)
    assert len(found["perplexity"]) >= 5 and sum(map(len, found.values())) <= 15
