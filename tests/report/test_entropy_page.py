"""The page of attention entropy: captions, the index, heads by rule, the table of learned temperatures."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from unittest import mock

import made_results
import numpy as np
import pytest

from aero.report import claims, drawing, entropy_page, evidence
from aero.report.figure_index import FIGURES, PAPERS, stands_for
from aero.report.results import Results, load

DRAWN = {drawn.name: drawn for drawn in FIGURES}
COUNTED = ("figure_20", "figure_21", "guided_figure_1")
"""Those that are drawn from no run."""
OTHERS = ("entropy_landscape", "")


def test_page_shows_every_figure_once_and_so_does_the_index(everything: Results) -> None:
    text = "".join(
        entropy_page.figures(everything, paper).text for paper in ("aero", "entropy_guided", "entropy_landscape", "")
    )
    identifiers = re.findall(r'<div class="figure" id="([^"]+)"', text)
    assert sorted(identifiers) == sorted(name.replace("_", "-") for name in DRAWN)
    index = entropy_page.index(everything).text
    listed = re.findall(r"<code>aero\.report\.\w+\.(\w+)</code>", index)
    assert sorted(listed) == sorted([*DRAWN, "figure_3b"])  # which is shown beside Table 2
    assert listed.index("figure_3b") == listed.index("figure_3a") + 1
    assert ">6 of 6</td>" in indexed(everything, "figure_3b")
    assert "AERO Figure 18; Entropy-Guided Attention Figure 6" in index and "not run yet" not in index
    assert "one seed" in text and "scale laptop" in text


def captions(results: Results) -> dict[str, str]:
    """By figure, what stands below it. The pictures are left out, which takes most of the time."""
    with mock.patch.object(drawing, "svg", return_value="<svg></svg>"):
        text = "".join(entropy_page.figures(results, paper).text for paper in ("aero", "entropy_guided", *OTHERS))
    found = re.findall(r'<div class="figure" id="([^"]+)".*?<div class="caption"><p>(.*?)</p>', text, re.DOTALL)
    return {identifier.replace("-", "_"): said for identifier, said in found}


def indexed(results: Results, name: str) -> str:
    """A figure's row of the index."""
    rows = re.findall(r"<tr>.*?</tr>", entropy_page.index(results).text, re.DOTALL)
    return next(row for row in rows if f".{name}</code>" in row)


def test_captions_name_the_seeds_that_are_drawn(full: Results) -> None:
    averaged = {name for name, drawn in DRAWN.items() if drawn.seeds == "all"}
    assert averaged == {"figure_3a", "figure_9", "figure_11", "figure_16", "figure_18"}
    said = captions(full)
    for name, drawn in DRAWN.items():
        assert "t-interval" not in said[name], name  # no figure of these draws one
        if not any(full.seeds(run) for run in drawn.runs):
            assert "seed (" not in said[name] and "seeds (" not in said[name], name
        elif name in averaged:
            assert "; 3 seeds (1337, 1338, 1339);" in said[name], name
        else:
            assert "; first seed (1337) of 3;" in said[name] and "1338" not in said[name], name
    for name in ("figure_5", "figure_10", "figure_17", "guided_figure_4", "figure_positions", "figure_temperatures"):
        assert DRAWN[name].seeds == "first" and "first seed (1337) of 3" in said[name], name
    assert ">first of 3</td>" in indexed(full, "figure_12") and ">3</td>" in indexed(full, "figure_3a")


def test_the_evidence_of_a_figure_names_the_trainings_that_it_draws(full_root: Path) -> None:
    results = evidence.traced(load(full_root))
    try:
        with mock.patch.object(drawing, "svg", return_value="<svg></svg>"):
            text = "".join(entropy_page.figures(results, paper).text for paper in ("aero", "entropy_guided", *OTHERS))
    finally:
        evidence._root.clear()
    found = dict(
        re.findall(r'<div class="figure" id="([^"]+)".*?<details class="source">(.*?)</details>', text, re.DOTALL)
    )
    for name, drawn in DRAWN.items():
        below = found[name.replace("_", "-")]
        if any(results.seeds(run) for run in drawn.runs):
            assert "/entropy.json" in below or "/log.csv" in below, name
            assert ("seed_1338" in below) == (drawn.seeds == "all"), name


def test_a_run_without_what_a_figure_needs_is_missing(tmp_path: Path) -> None:
    runs = ("sm-leakyr", "sm-leakyr-global", "sm-ln-g", "ereg-smt-ln-g")
    root = made_results.project(tmp_path, seeds=(1337, 1338), runs=runs, costs=False)
    assert "2 of 2" in indexed(load(root), "figure_4") and "not logged" not in captions(load(root))["figure_4"]
    path = root / "results/laptop/sm-leakyr/log.csv"
    path.write_text(path.read_text().replace("slope_", "another_"))
    path = root / "results/laptop/sm-ln-g/entropy.json"
    values = json.loads(path.read_text())
    for key in ("entropy_median", "entropy_blocks", "entropy_by_position_sem"):
        del values[key]
    path.write_text(json.dumps(values))
    results = load(root)
    said = captions(results)
    assert "1 of 2" in indexed(results, "figure_4") and "Slopes not logged: sm-leakyr<" in indexed(results, "figure_4")
    assert "Slopes not logged: sm-leakyr." in said["figure_4"]
    assert "2 of 2" in indexed(results, "figure_13")  # the entropies were logged
    assert (
        "1 of 4" in indexed(results, "landscape_figure_2")
        and "Medians not stored: sm-ln-g." in said["landscape_figure_2"]
    )
    assert "Errors by position not stored: sm-ln-g." in said["figure_positions"]
    assert "first seed (1337) of 2" in said["figure_positions"]  # its means are drawn
    (root / "results/laptop/ereg-smt-ln-g/entropy.json").unlink()
    assert "Entropies not measured: ereg-smt-ln-g." in captions(load(root))["landscape_figure_1"]
    with pytest.raises(ValueError, match="colours: not in NEEDS"):
        stands_for(title="", note="", runs=("sm",), needs=("colours",))


def test_captions_say_how_many_seeds_overflow(tmp_path: Path) -> None:
    """The first seed is drawn; whether it is the odd one is not seen in it."""
    root = made_results.project(tmp_path, seeds=(), runs=(), costs=False)
    for seed in (1337, 1338, 1339):
        made_results.write_run(root / f"results/laptop/sm/seed_{seed}", "sm", seed)
    said = re.sub("<[^>]+>", "", captions(load(root))["figure_6"])
    assert "SM: overflow in ○0 of 3 seeds." in said
    path = root / "results/laptop/sm/seed_1337/metrics.json"
    overflow = {"float16_overflow": {"step": 40, "layer": 10, "value": 7e4}}
    path.write_text(json.dumps(json.loads(path.read_text()) | overflow))
    for name in ("figure_6", "figure_12", "guided_figure_2", "guided_figure_4"):
        said = re.sub("<[^>]+>", "", captions(load(root))[name])
        assert "SM: overflow in ○1 of 3 seeds, the first among them." in said, name
    path.rename(path.with_name("kept"))
    made_results.write_run(path.parent, "sm", 1337)
    made_results.write_run(root / "results/laptop/sm/seed_1338", "sm", 1338, diverged_at=180)
    said = re.sub("<[^>]+>", "", captions(load(root))["guided_figure_2"])
    assert "SM: overflow in ○1 of 3 seeds, the first not among them." in said


def test_a_figure_without_a_training_says_what_it_is_made_of(everything: Results, empty: Results) -> None:
    said = captions(everything)
    for name in COUNTED:
        assert "nothing is trained, so there is no scale and no seed" in said[name] and ">none</td>" in indexed(
            everything, name
        )
    assert "Counted at the published sizes" in said["figure_20"] and ">counted</td>" in indexed(everything, "figure_21")
    row = indexed(everything, "guided_figure_1")
    assert ">7 of 7 operations measured</td>" in row and "counted" not in row and "published sizes" not in row
    assert "commit (not recorded)" in said["guided_figure_1"]  # the made operations name none
    assert "not measured yet; nothing is trained" in captions(empty)["guided_figure_1"]
    assert ">0 of 7 operations measured</td>" in indexed(empty, "guided_figure_1")
    with pytest.raises(ValueError, match="neither runs"):
        stands_for(title="A figure", note="")


def test_a_papers_own_page_has_every_one_of_its_figures(everything: Results) -> None:
    """Also those that stand for AERO's first: Entropy-Guided Attention's 5 to 7."""
    text = entropy_page.all_figures(everything, "entropy_guided").text
    assert re.findall(r'<div class="figure" id="([^"]+)"', text) == [
        *(f"guided-figure-{number}" for number in (1, 2, 3, 4)),
        *("figure-10", "figure-18", "figure-19"),
    ]
    for paper in ("entropy_guided", "entropy_landscape"):
        published = {figure for drawn in FIGURES for figure in drawn.published if figure.startswith(paper)}
        text = entropy_page.all_figures(everything, paper).text
        assert text.count('<div class="figure"') == len(published)
        source = (made_results.PROJECT / f"reports/{paper}.py").read_text(encoding="utf-8")
        assert "\nentropy_page.all_figures(results, PAPER)\n" in source


def test_figures_have_their_papers_name_and_the_sizes_of_their_own_runs(full: Results) -> None:
    """Several papers have a Figure 4; the made project lacks the 18-layer runs, and so knows no sizes of them."""
    for drawn in FIGURES:
        if drawn.published:
            assert drawn.title.startswith(f"{PAPERS[drawn.published[0].split('/')[0]]} Figure "), drawn.name
    said = captions(full)
    assert "L=12" in said["landscape_figure_1"] and "L=" not in said["landscape_figure_3"]
    assert "Measured side: scale laptop, not run yet." in said["landscape_figure_3"]


def test_heads_by_rule_states_published_measured_and_errors(everything: Results, full: Results) -> None:
    text = entropy_page.heads_by_rule(everything).text
    row = text[text.index("<wbr>G</code>") :]
    assert "58 %" in text and "6.25 %" in text and "about 90 %" in row and "±" in row
    trained = everything.first("sm-g")
    blocks = np.array(trained.entropy.blocks)
    quarters = [
        np.mean(heads >= 0.75 * heads.max())
        for chosen in np.random.default_rng(0).integers(0, len(blocks), (400, len(blocks)))
        for heads in [blocks[chosen].mean(0)]
    ]
    assert entropy_page.fraction_error(trained, (3,)) == pytest.approx(np.std(quarters, ddof=1), abs=1e-9)
    measured = 100 * np.mean([q[3] for q in full.quarters("sm-g").values()])
    assert f"{measured:.0f} [" in entropy_page.heads_by_rule(full).text


def test_intervals_of_shares_end_at_0_and_100_per_cent(tmp_path: Path) -> None:
    """Three seeds at 75, 100 and 100 per cent: 91.7 with a half width of 35.9 by Student's t."""
    root = made_results.project(tmp_path, runs=("sm-ln-g",), costs=False)
    for path, top in zip(sorted(root.glob("results/laptop/sm-ln-g/**/entropy.json")), (0.75, 1.0, 1.0), strict=True):
        values = json.loads(path.read_text())
        values["quarters"]["observed"] = [0.0, 0.0, 1 - top, top]
        path.write_text(json.dumps(values))
    text = entropy_page.heads_by_rule(load(root), ("sm-ln-g",)).text
    assert "92 [56, 100] %" in text and "8 [0, 44] %" in text and "cut at 0 and 100 %" in text
    assert not re.search(r"\[-|, 1[0-9][1-9]\]", text)
    measured = dict(claims.judge(load(root), "aero").set_index("id").measured)
    assert measured["f3a-baseline-gelu-well-behaved"] == "0.08 [0.00, 0.44]"


def temperatures(results: Results) -> list[dict[str, str]]:
    found = entropy_page.files(results)
    assert list(found) == [Path("reports/tables/learned_temperatures.csv")]
    return list(csv.DictReader(io.StringIO(next(iter(found.values())))))


def test_learned_temperatures_are_in_a_table(full: Results) -> None:
    lines = temperatures(full)
    heads = [line for line in lines if line["head"].isdigit()]
    learned = {run for run, (architecture, _) in made_results.RUNS.items() if "SM(t)" in architecture}
    assert {line["run"] for line in heads} == learned and len(learned) == 2
    assert len(heads) == 2 * 3 * 12 * 4 and {line["seed"] for line in heads} == {"1337", "1338", "1339"}
    for line in heads:
        trained = next(r for r in full.seeds(line["run"]) if r.seed == int(line["seed"]))
        stored = trained.entropy.learned["temperature_mean"][int(line["layer"]) - 1][int(line["head"]) - 1]
        assert float(line["temperature"]) == pytest.approx(stored, rel=1e-5) and line["scale"] == "laptop"
        assert line["lowest"] == line["highest"] == line["share_below_0"] == ""  # stored by position of layers alone
    missing = {line["run"] for line in lines if line["note"] == "not run yet"}
    runs = full.parameters["runs"]
    assert missing == {run for run, entry in runs.items() if "SM(t)" in entry["architecture"]} - learned
    link = '<a href="../reports/tables/learned_temperatures.csv">reports/tables/learned_temperatures.csv</a>'
    assert link in entropy_page.figures(full, "").text


def test_temperatures_below_0_at_some_positions_are_in_the_table(tmp_path: Path) -> None:
    """A mean over positions hides them."""
    root = made_results.project(tmp_path, seeds=(1337, 1338), runs=("smt-scfuffn",), costs=False)
    path = root / "results/laptop/smt-scfuffn/entropy.json"
    values = json.loads(path.read_text())
    values["learned"]["temperature_by_position"][4] = [-0.02] * 16 + [0.0] * 16 + [0.06] * 32
    path.write_text(json.dumps(values))
    other = root / "results/laptop/smt-scfuffn/seed_1338/entropy.json"
    learned = {"temperature_mean": [[0.01, 0.03]] * 12}
    other.write_text(json.dumps(json.loads(other.read_text()) | {"learned": learned}))
    lines = [line for line in temperatures(load(root)) if line["head"] == "mean"]
    of = {(line["seed"], line["layer"]): line for line in lines}
    assert len(lines) == 2 * 12 and of["1337", "5"]["temperature"] == "0.065"  # (0.05 + 0.06 + 0.07 + 0.08) / 4
    below = [of["1337", layer]["share_below_0"] for layer in ("4", "5")]
    assert below == ["0", "0.25"] and (of["1337", "5"]["lowest"], of["1337", "5"]["highest"]) == ("-0.02", "0.06")
    older = of["1338", "5"]
    assert older["temperature"] == "0.02" and older["lowest"] == older["share_below_0"] == ""
    assert older["note"] == "temperatures by position not stored"
    path.write_text(json.dumps(values | {"learned": {}}))
    notes = [line["note"] for line in temperatures(load(root)) if line["run"] == "smt-scfuffn" and not line["layer"]]
    assert notes == ["temperatures not stored"]
