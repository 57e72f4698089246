"""The benchmark of the savings' errors: what a killed run has measured stays, and is not measured twice."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from made_models import random_model

from aero.two_party.runtime.settings import TwoPartyError
from benchmarks import savings

WEIGHTS = "c" * 64
KEY = ("SM+ScFuFFN", "tuned", "laptop", "4")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setattr(savings, "ERRORS", tmp_path / "errors.csv")
    monkeypatch.setattr(savings.provenance, "commit", lambda: "a" * 40)
    return tmp_path / "errors.csv"


@pytest.mark.slow
def test_passes_of_one_program_are_measured_in_parts_and_gone_on_with(kept, monkeypatch):
    """Two real processes; the second session of four breaks, and the next call asks what is left and nothing else."""
    model = random_model("SM+ScFuFFN", layers=1, vocabulary=32, context=4)
    ids = torch.randint(0, 32, (3, 4), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain = model(ids)[:, -1].numpy()
    monkeypatch.setattr(savings, "CHUNK", 1)
    ask, asked = savings.ask, []

    def breaking(model, prompts, *given):
        asked.append(prompts.tolist())
        if len(asked) == 2:
            raise TwoPartyError("the link broke")
        return ask(model, prompts, *given)

    monkeypatch.setattr(savings, "ask", breaking)
    with pytest.raises(TwoPartyError):
        savings.against_torch(model, ids, plain, KEY, {})
    (line,) = savings.error_lines()
    assert line["prompts"] == line["same_top_token"] == "1"
    savings.against_torch(model, ids, plain, KEY, {})
    assert asked[2:] == [[row] for row in ids[1:].tolist()]
    (line,) = savings.error_lines()
    assert line["prompts"] == line["same_top_token"] == "3" and 0 < float(line["max_logit_error"]) < 0.05


def test_a_line_takes_the_place_of_its_own_and_of_no_other(kept, monkeypatch):
    savings.keep_errors(KEY, WEIGHTS, 20, 0.01, 20)
    savings.keep_errors((KEY[0], "as_written", *KEY[2:]), WEIGHTS, 20, 0.02, 19)
    savings.keep_errors(KEY, WEIGHTS, 40, 0.03, 40)
    with kept.open(encoding="utf-8", newline="") as file:
        lines = {line["program"]: line for line in csv.DictReader(file)}
    assert (lines["tuned"]["prompts"], lines["as_written"]["prompts"]) == ("40", "20")
    assert savings.resumed(KEY, WEIGHTS) == (40, 0.03, 40)
    assert savings.resumed(("SM", *KEY[1:]), WEIGHTS) == (0, 0.0, 0)
    assert savings.resumed(KEY, "d" * 64) == (0, 0.0, 0)  # other weights: measured anew
    monkeypatch.setattr(savings.provenance, "commit", lambda: "b" * 40)
    assert savings.resumed(KEY, WEIGHTS) == (40, 0.03, 40)  # another commit, of the same private code
    versions = savings.hello.versions()
    monkeypatch.setattr(savings.hello, "versions", lambda: versions | {"code": "c" * 64})
    assert savings.resumed(KEY, WEIGHTS) == (0, 0.0, 0)  # other code: measured anew
    assert np.isfinite(float(lines["tuned"]["max_logit_error"]))
