"""Latencies with rounds and wire bytes of the operations' own shapes: by hand, gaps, and the measuring benchmark."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import made_results
import pytest

import benchmarks.full_links
from aero.report import full_links
from aero.report.full_links import PROGRAMS
from aero.report.results import load
from aero.two_party.cost import ledger
from aero.two_party.cost.network import BOTH_WAYS_AT_ONCE, Network
from aero.two_party.program.operations import Operation

LINEAR, GELU = ("linear", "8x16,16x16"), ("gelu_plain", "8x64")
HEAD = "op,shape,seconds,wire_bytes,rounds,bytes,messages,provenance\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose rows are two products and three GELUs each."""
    made_results.project(tmp_path, runs=())
    monkeypatch.setattr(full_links, "counts", lambda architecture, sizes, program: ({LINEAR: 2, GELU: 3}, True))
    line = ledger.Measurement(*LINEAR, "gpt2", 128, "v", 3e8, 1e8, 8, 0.5, 20, 10.0, 3, "{}")
    gelu = replace(line, op=GELU[0], shape=GELU[1], bytes_sent_client=5e8, bytes_sent_server=4e8, rounds=80, seconds=30)
    path = tmp_path / full_links.OPERATIONS
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger.write(path, [line, gelu], ledger.Measurement)
    return tmp_path


def test_rounds_and_wire_bytes_by_hand(made: Path) -> None:
    assert full_links.both_ways(made, "SM+LN+G", "tuned") is None
    assert "not measured yet" in full_links.table(load(made)).text
    path = made / full_links.PATH
    path.write_text(HEAD + '"linear","8x16,16x16",1,1,1,1,1,{}\ngelu_plain,8x64,99,6e8,120,9e8,9,{}\n')
    told, own = full_links.both_ways(made, "SM+LN+G", "tuned")
    # The product's own line is not taken: its rounds are lost in its noise. Of the GELU 500 MB by the larger direction.
    assert told == full_links.OnLink(2 * 10 + 3 * 30, 2 * 4e8 + 3 * 5e8, 2 * 0.5 + 3 * 80)
    assert own == full_links.OnLink(110, 2 * 4e8 + 3 * 6e8, 2 * 0.5 + 3 * 120)
    # 8e-8 s a byte and 80 ms a round.
    assert told.minutes(Network(100, 80)) * 60 == pytest.approx(110 + 2.3e9 * 8e-8 + 241 * 0.08)
    text = re.sub("<[^>]+>|●", " ", full_links.table(load(made)).text)
    least, most = 110 + 2.3e9 * 8e-8 + 241 * 0.08, 110 + 2.6e9 * 8e-8 + 361 * 0.08
    assert text.count(f"{most / least - 1:+.1%}") == 6 and "exact GELU" not in text
    path.write_text(path.read_text() + "gelu_exact,16x1024,9,1.5e8,120,2e8,9,{}\n")
    text = re.sub("<[^>]+>|[●○]", "", full_links.table(load(made)).text)
    assert "An exact GELU of 16 × 1024, as Pythia’s, costs the time of 0.75 of its bytes" in text


@pytest.mark.parametrize("text", ["", HEAD, HEAD + "gelu_plain,8x64,1,much,1,1,1,{}\n", "a,b\n1,2\n"])
def test_files_without_what_is_needed_leave_a_gap(made: Path, text: str) -> None:
    (made / full_links.PATH).write_text(text)
    assert "not measured yet" in full_links.table(load(made)).text


def test_what_is_measured_is_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real operation of two processes, over the relay."""
    benchmark, path = benchmarks.full_links, tmp_path / "full_links.csv"
    monkeypatch.setattr(benchmark, "PATH", path)
    monkeypatch.setattr(benchmark, "wanted", lambda: [Operation("relu", ((4, 8),))])
    benchmark.main([])
    first = path.read_bytes()
    with path.open(encoding="utf-8", newline="") as file:
        (line,) = csv.DictReader(file)
    assert (line["op"], line["shape"]) == ("relu", "4x8") and float(line["bytes"]) > 1000
    assert 3 < float(line["rounds"]) < 30 and "relu 4x8" in capsys.readouterr().out
    monkeypatch.setattr(benchmark, "measure_costs", None)
    benchmark.main([])
    assert path.read_bytes() == first


def test_the_rule_of_both_directions_is_what_the_kept_links_show() -> None:
    """Of operations that move for seconds; a rule that counts whole what crosses both ways would flatter savings.

    LayerNorm and what computes as long as it moves (ReLU, tiles, exponentials) lie between and are counted whole.
    """
    kept = Path(__file__).parents[2] / full_links.PATH
    with kept.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert {(line["op"], line["shape"]) for line in lines} == {
        (one.name, one.shape) for one in benchmarks.full_links.wanted()
    }
    large = {
        line["op"]: float(line["wire_bytes"]) / float(line["bytes"]) for line in lines if float(line["bytes"]) > 1e8
    }
    assert set(large) == {"softmax_plain", "gelu_plain", "gelu_segments", "gelu_exact"}
    assert set(large) <= BOTH_WAYS_AT_ONCE and max(large.values()) < 0.65
    (whole,) = [line for line in lines if line["op"] == "scale"]
    assert 0.9 < float(whole["wire_bytes"]) / float(whole["bytes"]) < 1.1 and "scale" not in BOTH_WAYS_AT_ONCE


def test_the_decisions_have_the_figures_of_the_kept_links() -> None:
    """The least and largest latency beside the tables', and rounds and shares of bytes of some operations."""
    root = Path(__file__).parents[2]
    text = " ".join((root / "docs/decisions.md").read_text(encoding="utf-8").split())
    found = [full_links.both_ways(root, row, program) for row in benchmarks.full_links.ROWS for program in PROGRAMS]
    ratios = [own.minutes(Network(100, 80)) / told.minutes(Network(100, 80)) for told, own in filter(None, found)]
    assert len(ratios) == 6
    assert f"rows and two programs are {min(ratios):.2f} to {max(ratios):.2f} times the tables'" in text
    lines = full_links.lines(root)
    shares = {key: float(line["wire_bytes"]) / float(line["bytes"]) for key, line in lines.items()}
    rounds = {key: float(line["rounds"]) for key, line in lines.items()}
    softmax, gelu, norm = ("softmax_plain", "12x128x128"), ("gelu_plain", "128x3072"), "128x768,768,768"
    relu, tiles = shares["relu", "128x3072"], shares["normalise_tiles", "128x768"]
    assert (
        f"a softmax has {rounds[softmax]:.0f} rounds and the time of {shares[softmax]:.2f} of its bytes, a GELU 128 x "
        f"3,072 {rounds[gelu]:.0f} and {shares[gelu]:.2f}; a LayerNorm 128 x 768 has {rounds['layer_norm', norm]:.0f} "
        f"and {shares['layer_norm', norm]:.2f}, a ReLU {relu:.2f}, tiles {tiles:.2f}, all counted whole. An exact GELU "
        f"of 16 x 1,024 costs the time of {shares['gelu_exact', '16x1024']:.2f} of its bytes"
    ) in text


def test_products_of_matrices_are_left_out_and_cheap_ones_come_first() -> None:
    found = [(one.name, one.shape) for one in benchmarks.full_links.wanted()]
    assert ("layer_norm", "128x768,768,768") in found and ("softmax_plain", "12x128x128") in found
    assert not [name for name, _ in found if name.startswith(("linear", "scores", "mix", "embedding", "vocabulary"))]
    assert found.index(("relu", "1x3072")) < found.index(("gelu_exact", "16x1024")) < found.index(("relu", "128x3072"))
