"""The runs of params.yaml against the papers' tables, and what `aero.training.catalogue` says of their state and
cost."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aero import published
from aero.architecture import parse
from aero.config import load
from aero.model import GPT
from aero.records import Training, read_trainings, write_trainings
from aero.report.claims import compared_runs, deciding_scale
from aero.report.results import load as load_results
from aero.report.statistics import evidence, registered
from aero.training.catalogue import (
    achieved_flops,
    cost,
    results,
    status,
    tokens,
    training_flops,
)

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = load(ROOT / "params.yaml")
PAPER_SCALE = PARAMETERS.at_scale("paper")
PAPERS = ("aero", "entropy_guided", "entropy_landscape")
TRAINED = [
    (short, number, row.name, training, run)
    for short in PAPERS
    for number, table in published.load(short).tables.items()
    for row in table.rows
    for training, run in row.trained.items()
]


def test_every_printed_row_is_trained() -> None:
    for short in PAPERS:
        for number, table in published.load(short).tables.items():
            for row in table.rows:
                assert row.trained, f"{short} Table {number}, {row.name} names no run"
    assert len(TRAINED) == 80 + 12 + 20


@pytest.mark.parametrize(("short", "number", "row", "training", "run"), TRAINED)
def test_a_row_names_a_run_of_its_configuration(short: str, number: str, row: str, training: str, run: str) -> None:
    table = published.load(short).tables[number]
    setting = table.setting(table.row(row), training)
    assert PAPER_SCALE.resolve(run).architecture == parse(setting["architecture"])
    sizes = PAPER_SCALE.resolve(run).sizes
    assert (sizes.layers, sizes.heads, sizes.width) == (setting["layers"], setting["heads"], setting["width"])
    assert (PAPER_SCALE.resolve(run).context, sizes.context) == (setting["context"], setting["context"])
    languini = setting["corpus"] == "Languini"
    assert (PAPER_SCALE.resolve(run).corpus_name is None) != languini
    assert PAPER_SCALE.run(run).model == ("languini-gpt2" if languini else setting["model"])
    if "gamma" in setting:
        assert PAPER_SCALE.resolve(run).regularizer.gamma == setting["gamma"]
    if "tokens" in setting:  # printed in billions, with one decimal
        assert abs(tokens(PAPER_SCALE.resolve(run)) - setting["tokens"]) <= 0.05e9


def test_runs_and_tables_name_each_other() -> None:
    of_run = defaultdict(set)
    for short in PAPERS:
        for table in published.load(short).tables.values():
            for row in table.rows:
                for training, run in row.trained.items():
                    of_run[run].add(f"{short}/table{table.number}/{row.name}" + (f"/{training}" if training else ""))
    assert set(of_run) <= set(PARAMETERS.runs)
    for name, run in PARAMETERS.runs.items():
        assert set(run.rows) == of_run[name], name
        assert len(set(run.rows)) == len(run.rows) and len(set(run.figures)) == len(run.figures), name


def trained_configuration(run: str, scale: str) -> str:
    """What a training depends on: parameters that its architecture does not use are left out."""
    at_scale, architecture = PARAMETERS.at_scale(scale), PARAMETERS.resolve(run).architecture
    regularizer = at_scale.resolve(run).regularizer
    used = [str(architecture), at_scale.run(run).model, at_scale.resolve(run).corpus_name]
    used += [at_scale.resolve(run).sizes.model_dump(), at_scale.resolve(run).train.model_dump()]
    if architecture.temperature:
        used.append(regularizer.temperature_init)
    if architecture.entropy_regularized:
        used.append(regularizer.model_dump())
    return json.dumps(used)


@pytest.mark.parametrize("scale", list(PARAMETERS.scales))
def test_none_is_trained_twice(scale: str) -> None:
    seen = defaultdict(list)
    for run in PARAMETERS.runs:
        seen[trained_configuration(run, scale)].append(run)
    assert [runs for runs in seen.values() if len(runs) > 1] == []
    assert len(PARAMETERS.trainings()) == len(set(PARAMETERS.trainings()))


NORMALISED = {"sm-wnorm-ffn", "sm-snorm-ffn"}
MARGINS = {"ereg-smt-scfuffn", *(f"ereg-smt-scfuffn-gamma-{margin}" for margin in ("00", "05", "10", "15", "25"))}
PANELS = {
    "aero/figure3": {"sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm"},
    "aero/figure4": {"sm-leakyr", "sm-leakyr-global"},
    "aero/figure5": {"sm-ln-g", "sm-ln-r", "sm-g", "sm-r"},
    "aero/figure6": {"sm"},
    "aero/figure7": {"sm-scffn"} | NORMALISED,
    "aero/figure9": {"sm-scffn", "ereg-smt-scfuffn"} | NORMALISED,
    "aero/figure10": {"ereg-smt-scfuffn"},
    "aero/figure11": {"sm-scffn"},
    "aero/figure12": {"sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm"},
    "aero/figure13": {"sm-leakyr", "sm-leakyr-global"},
    "aero/figure14": {"sm-scffn", "ereg-smt-scfuffn"} | NORMALISED,
    "aero/figure15": {
        *("pythia-sm-ln-g-t256", "pythia-sm-ln-r-t256", "pythia-sm-r-t256", "pythia-sota-sm-scffn-t256"),
        *("pythia-sota-sm-scfuffn-t256", "pythia-sm-scffn-t256", "pythia-sm-scfuffn-t256"),
        "pythia-ereg-smt-scfuffn-t256",
    },
    "aero/figure16": {"sm-scfuffn", *(f"sm-scfuffni-{pruned}" for pruned in range(1, 8))},
    "aero/figure17": {"sm-scfuffn", "sm-scfuffni-6", "sm-scfuffni-7"},
    "aero/figure18": MARGINS | {"ereg-smt-scfuffn-gamma-30"},
    "aero/figure19": MARGINS,  # its panels are those of entropy_guided, Figure 7: up to 0.25
    "entropy_guided/figure2": {"sm-ln-g", "sm-ln-r", "sm-ln", "sm-g", "sm-r", "sm"},
    "entropy_guided/figure3": {"ereg-smt-scfuffn"},
    "entropy_guided/figure4": {"sm-ln-g", "sm", "sm-wnorm-ffn", "sm-snorm-ffn", "sm-scffn", "ereg-smt-scfuffn"},
    "entropy_guided/figure5": {"ereg-smt-scfuffn"},
    "entropy_guided/figure6": MARGINS | {"ereg-smt-scfuffn-gamma-30"},
    "entropy_guided/figure7": MARGINS,
    "entropy_landscape/figure1": {"sm-ln-g", "sm-ln-r", "ereg-smt-ln-g", "ereg-smt-ln-r"},
    "entropy_landscape/figure2": {"sm-ln-g", "ereg-smt-ln-g-gamma-00", "ereg-smt-ln-g-gamma-10", "ereg-smt-ln-g"},
    "entropy_landscape/figure3": {
        *(f"sm-ln-{activation}-18l" for activation in "gr"),
        *(f"ereg-smt-ln-{activation}-18l{margin}" for activation in "gr" for margin in ("-gamma-00", "-gamma-10", "")),
    },
}


@pytest.mark.parametrize("figure", PANELS)
def test_a_figure_has_the_runs_of_its_caption(figure: str) -> None:
    assert {run for run, values in PARAMETERS.runs.items() if figure in values.figures} == PANELS[figure]


@pytest.mark.parametrize(
    "scale", [pytest.param(scale, marks=pytest.mark.slow) for scale in ("smoke", "laptop", "desk", "gpu", "paper")]
)
def test_every_run_can_be_built(scale: str) -> None:
    """No run asks for a combination that the model refuses. Without memory: on PyTorch's meta device."""
    at_scale = PARAMETERS.at_scale(scale)
    models = {}  # those that runs share, once
    for run in at_scale.runs:
        architecture, config = at_scale.resolve(run).architecture, at_scale.resolve(run).model_config()
        models[str(architecture), repr(config)] = architecture, config
    assert 60 < len(models) <= len(at_scale.runs)
    with torch.device("meta"):
        for architecture, config in models.values():
            GPT(architecture, config)


def compared_by_claims() -> dict[str, set[str]]:
    """{run: claims} of all runs that a claim of the papers on entropy and of `variance_sensitivity` names."""
    found: dict[str, set[str]] = {}
    for paper in ("aero", "entropy_guided", "entropy_landscape", "variance_sensitivity"):
        for claim in published.load(paper).claims:
            for name in compared_runs(SimpleNamespace(parameters=PARAMETERS), claim):
                found.setdefault(name, set()).add(claim.id)
    return found


def test_what_the_claims_compare_has_three_seeds() -> None:
    planned = set(PARAMETERS.trainings())
    compared = compared_by_claims()
    assert len(compared) >= 60
    seeds = (*PARAMETERS.seeds, *PARAMETERS.more_seeds)
    assert len(seeds) >= 3
    for run, claims in compared.items():
        assert {(run, seed) for seed in seeds} <= planned, claims


def test_the_laptop_scale_keeps_what_a_table_shows_or_a_claim_decides() -> None:
    """Each within three minutes of processor time: its metrics, its log, and its entropy if it did not diverge."""
    found, committed = read_trainings(ROOT / "results/laptop"), load_results(ROOT, "laptop")
    claims = [claim for short in published.known_papers() for claim in published.load(short).claims]
    decided_there = [claim for claim in claims if deciding_scale(committed, claim)[0] == "laptop"]
    needed = {run for claim in decided_there for run in compared_runs(committed, claim)}
    for table in (table for short in PAPERS for table in published.load(short).tables.values()):
        if table.rows and evidence(committed, *table.rows[0].trained.values()) is committed:
            needed |= {run for row in table.rows for run in row.trained.values()}
    needed |= set(PARAMETERS.active_runs)
    pooled = {one[side] for one in registered(committed) for side in ("run", "against")}
    drawn = {run for run in PARAMETERS.runs if PARAMETERS.runs[run].figures}
    seeds = (*PARAMETERS.seeds, *PARAMETERS.more_seeds)
    assert {(run, seed) for run in needed for seed in seeds} <= set(found)
    assert {run for run, _ in found} <= needed | drawn | pooled
    for (run, _), training in found.items():
        assert training.curves and 0 < training.metrics["provenance"]["cpu_seconds"] <= 180, run
        diverged = training.metrics["diverged_at_step"] is not None
        assert diverged or training.entropy, run


def write_metrics(folder: Path, run: str = "sm", seed: int = 1337, **changes: object) -> None:
    values = {"scale": "laptop", "run": run, "seed": seed, "diverged_at_step": None, "architecture": "SM"}
    values |= {"context": 64, "tokens": 1_024_000, "tokens_per_second": 8000.0, "eval_perplexity": 8.0} | changes
    if (perplexity := values["eval_perplexity"]) is None:
        values["diverged_at_step"] = 3
    values["eval_loss"] = None if perplexity is None else math.log(perplexity)
    if "results" in folder.parts:
        write_trainings(folder, [Training(values)])
    else:
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(values), encoding="utf-8")


def test_status_is_that_of_the_files(tmp_path: Path) -> None:
    def found() -> str:
        return status(PARAMETERS.resolve("sm"), results(tmp_path).get(("laptop", "sm"), ()))

    assert found() == "missing"
    write_metrics(tmp_path / "results/laptop", diverged_at_step=3, tokens=3072)
    assert found() == "diverged"
    write_metrics(tmp_path / "results/laptop", seed=1338)
    assert found() == "kept"
    write_metrics(tmp_path / "runs/default/sm/seed_1337")
    assert found() == "fresh"
    assert [(r.seed, r.fresh) for r in results(tmp_path)["laptop", "sm"]] == [(1337, True), (1338, False)]
    write_metrics(tmp_path / "runs/default/sm/seed_1339", seed=1339, tokens=999)
    assert found() == "outdated"
    (tmp_path / "runs/default/sm/seed_1339/metrics.json").write_text("{", encoding="utf-8")
    assert found() == "fresh"


@pytest.mark.parametrize(
    ("section", "changed", "expected"),
    [
        ("train", {"learning_rate": 1e-3, "betas": [0.9, 0.999]}, "kept"),
        ("train", {"learning_rate": 2e-3}, "outdated"),
        ("train", {"betas": [0.9, 0.95]}, "outdated"),
        ("train", {"threads": 7, "compile": True}, "kept"),  # another way to the same
        ("model", {"width": 128}, "outdated"),
        ("model", {"temperature_init": 1.0}, "outdated"),
        ("regularizer", {"gamma": 0.1}, "outdated"),
        ("regularizer", None, "kept"),
    ],
)
def test_a_result_of_another_configuration_is_outdated(tmp_path, section, changed, expected) -> None:
    write_metrics(tmp_path / "results/laptop", **{section: changed})
    assert status(PARAMETERS.resolve("sm"), results(tmp_path)["laptop", "sm"]) == expected


def test_every_kept_result_is_of_the_configuration_as_status_reads_it() -> None:
    found = results(ROOT)
    for scale in {scale for scale, _ in found}:
        for run in PARAMETERS.runs:
            if kept := [result for result in found.get((scale, run), ()) if not result.fresh]:
                assert status(PARAMETERS.at_scale(scale).resolve(run), kept) in ("kept", "diverged"), (scale, run)


def test_cost_by_hand(tmp_path: Path) -> None:
    run, laptop = "sm-scfuffn", PARAMETERS.at_scale("laptop")
    assert tokens(laptop.resolve(run)) == 1000 * 16 * 64
    # Per token 12 layers of 2 d^2 (fused) + 8 d^2 + 3 T d + d, and the vocabulary projection 2 d V.
    forward = 12 * (10 * 64**2 + 3 * 64 * 64 + 64) + 2 * 64 * 257
    assert training_flops(laptop.resolve(run)) == 3 * forward * 1_024_000
    paper = cost(PAPER_SCALE, "sm-ln-g", {}, "A100")
    stack = (14.5e9 + 7.7e9) / 128  # Table 4, FLOPs of one forward pass
    assert paper.flops == pytest.approx(3 * (stack + 2 * 768 * 50_000) * paper.tokens, rel=0.01)
    assert paper.hours == pytest.approx(paper.flops / (312e12 * 0.3) / 3600)
    assert cost(laptop, run, {}).hours is None and achieved_flops(laptop, {}) is None
    write_metrics(tmp_path / "results/laptop", tokens_per_second=4000.0)
    found = results(tmp_path)
    assert cost(laptop, "sm", found).hours == pytest.approx(1_024_000 / 4000 / 3600)
    speed = 4000 * training_flops(laptop.resolve("sm")) / 1_024_000
    assert cost(laptop, run, found).hours == pytest.approx(training_flops(laptop.resolve(run)) / speed / 3600)
    # A scale without results of its own: what the run reached at another one tells nothing of a smaller model.
    smoke = PARAMETERS.at_scale("smoke")
    assert cost(smoke, "sm", found).hours is None and cost(smoke, run, found).hours is None
    # The processor was its own for 100 of the seconds that other work made 256.
    write_metrics(tmp_path / "runs/default/sm/seed_1337", tokens_per_second=4000.0, provenance={"cpu_seconds": 100.0})
    assert cost(laptop, "sm", results(tmp_path)).hours == pytest.approx(100 / 3600)
