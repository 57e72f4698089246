"""params.yaml: what it accepts, and one clear line for what it does not."""

import copy
from pathlib import Path

import pytest
import ruamel.yaml
import yaml

from aero.config import Parameters, load
from aero.errors import LONGEST_LINE

ROOT = Path(__file__).resolve().parents[1]
VALUES = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


def changed(tmp_path, place, value):
    values = copy.deepcopy(VALUES)
    target = values
    *parents, last = place.split(".")
    for part in parents:
        target = target[part]
    target[last] = value
    path = tmp_path / "params.yaml"
    path.write_text(yaml.dump(values, Dumper=yaml.CSafeDumper), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("scale", "labtop", "did you mean 'laptop'"),
        ("scales.laptop.model.heads", 7, "not divisible by heads 7"),
        ("scales.laptop.train.steps", 0, "scales.laptop.train.steps"),
        ("scales.laptop.train.stepz", 5, "stepz"),
        ("runs.sm.architecture", "SM+LN+Q", "'Q'"),
        ("runs.sm.overrides", {"learning_rat": 1}, "learning_rat"),
        ("active_runs", ["sm", "smm"], "did you mean 'sm'"),
        ("uncompared_runs", ["smm"], "did you mean 'sm'"),
        ("more_seeds", [1337], "seed 1337 occurs twice"),
        ("runs.sm.model", "gpt-2", "did you mean 'gpt2'"),
        ("runs.sm.context", 192, "unknown context '192'"),
        ("runs.sm.budget", 0, "runs.sm.budget"),
        ("runs.sm.regularizer", {"gama": 0.1}, "unknown gama; known: reduction, gamma"),
        ("runs.sm.regularizer", {"gamma": 2}, "regularizer of run sm: gamma"),
        ("runs.sm-wnorm-qk.rows", [], "the reason it exists"),
        ("families.languini-gpt2.train", {"learning_rat": 1}, "learning_rat"),
        ("scales.laptop.families", {"gpt3": {}}, "unknown model family 'gpt3'"),
        ("scales.laptop.families.pythia-70m.model", {"context": 64}, "unknown context; known: layers"),
        ("scales.laptop.families.pythia-70m.model", {"heads": 7}, "not divisible by heads 7"),
        ("scales.laptop.contexts.256.length", 100, "not a multiple of 100"),
        ("scales.laptop.device", "H100", "did you mean 'H200'"),
        ("scales.gpu.corpus", {"nam": "local"}, "scales.gpu.corpus: nam: Extra inputs"),
        ("scales.gpu.corpus", {"name": "local"}, "scales.gpu.corpus: corpus.path must name a folder"),
        ("training_order", {"first": ["sm", "smm"]}, "did you mean 'sm'"),
        ("two_party.field", "FM32", "two_party.field"),
        ("two_party.end_to_end_runs", ["nothing"], "unknown run 'nothing'"),
        ("corpus.name", "books", "python_stdlib"),
        ("corpus.name", "local", "corpus.path"),
        ("corpora.languini.test_split", "poetry", "discworld"),
        ("corpora.languini.vocabulary", 100, "corpora.languini.vocabulary"),
        ("corpora.languini.name", "local", "corpus.path"),
        ("corpora", {"../up": {"name": "python_stdlib"}}, "../up"),
        ("families.languini-gpt2.corpus", "stdlib_docstring", "did you mean 'stdlib_docstrings'"),
        ("runs.sm.corpus", "book", "unknown corpus 'book'"),
        ("regularizer.gamma", -0.1, "regularizer.gamma"),
        ("regularizer.gamma", "0.2", "regularizer.gamma: Input should be a valid number (got '0.2')"),
        ("seeds", [True], "seeds.0: Input should be a valid integer (got True)"),
        ("seeds", 1337, "seeds: Input should be a valid tuple (got 1337)"),
        ("corpus.packing", "yes", "corpus.packing: Input should be a valid boolean (got 'yes')"),
        ("scales.laptop.train.steps", 400.0, "scales.laptop.train.steps: Input should be a valid integer (got 400.0)"),
        ("seeds", [], "seeds"),
        ("scales.smoke.model.layers", 5, "cannot prune 6 FFNs of a model with 5 layers"),
        ("scales.laptop.train.learning_rate", float("inf"), "scales.laptop.train.learning_rate"),
        ("regularizer.temperature_init", float("nan"), "regularizer.temperature_init"),
        ("scales.laptop.train.betas", [0.9, 1.0], "scales.laptop.train.betas"),
        ("scales.laptop.train.steps", 10**400, "scales.laptop.train.steps"),
        ("runs.sm.budget", 1e300, "runs.sm.budget"),
        ("runs.sm.batch", 10**400, "runs.sm.batch"),
        ("families.languini-gpt2.train", {"steps": "many"}, "steps must be a whole number (got 'many')"),
        ("families.languini-gpt2.train", {"accumulation": [1, 2]}, "accumulation must be a whole number"),
        ("scales.laptop.contexts.256.train", {"steps": None}, "steps must be a whole number (got None)"),
        ("runs", VALUES["runs"] | {"sm; touch owned": VALUES["runs"]["sm"]}, "runs.sm; touch owned"),
        ("seeds", [10**4000], "seeds"),
        ("scales.laptop.contexts.512.length", 10**4000, "not a multiple of"),
        ("scale", "x" * 5000, "scale"),
    ],
)
def test_one_line_names_key_and_remedy(tmp_path, place, value, named):
    with pytest.raises(ValueError) as caught:
        load(changed(tmp_path, place, value))
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert len(str(caught.value)) <= LONGEST_LINE


def test_numbers_are_those_that_dvc_reads(tmp_path):
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    path = tmp_path / "params.yaml"
    for written, meant in [("2e-1", 0.2), ("2.5E-1", 0.25), ("+5.e-1", 0.5), ("1", 1.0)]:
        path.write_text(text.replace("gamma: 0.20 ", f"gamma: {written} "), encoding="utf-8")
        assert load(path).regularizer.gamma == meant
        with path.open(encoding="utf-8") as opened:
            assert ruamel.yaml.YAML(typ="safe").load(opened)["regularizer"]["gamma"] == meant


@pytest.mark.parametrize("name", ["params.yaml", "dvc.yaml", "catalogue/dvc.yaml"])
def test_dvc_writes_these_files_as_they_stand(tmp_path, name):
    """So that `dvc exp run -S` and `dvc freeze` change only their own lines."""
    from dvc.utils.hydra import apply_overrides
    from dvc.utils.serialize import modify_yaml

    path = tmp_path / "file.yaml"
    path.write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    if name == "params.yaml":  # its lists are written anew
        apply_overrides(str(path), [f"scale={load(path).scale}"])
    else:
        with modify_yaml(str(path)):
            pass
    assert path.read_text(encoding="utf-8") == (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("text", "said"), [(None, "root folder"), ("a: [", "not valid YAML"), ("3", "mapping")])
def test_missing_or_broken_file(tmp_path, text, said):
    if text is not None:
        (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        load(tmp_path / "params.yaml")


def test_corpora_by_name_and_those_of_another_scale():
    parameters = load(ROOT / "params.yaml")
    assert parameters.corpus_called(None) == parameters.corpus and parameters.corpus.name == "python_stdlib"
    assert parameters.corpus_called("languini").packing and not parameters.corpus.packing
    gpu = parameters.at_scale("gpu").corpus_called(None)
    assert gpu.name == "installed_python" and gpu.include_tests is parameters.corpus.include_tests
    with pytest.raises(ValueError, match="unknown corpus 'languin'; did you mean 'languini'"):
        parameters.corpus_called("languin")


def test_overrides_reach_the_training():
    values = copy.deepcopy(VALUES)
    values["runs"]["sm"]["overrides"] = {"learning_rate": 0.5}
    parameters = Parameters.model_validate(values)
    assert parameters.resolve("sm").train.learning_rate == 0.5
    assert parameters.resolve("sm-r").train.learning_rate == VALUES["scales"]["laptop"]["train"]["learning_rate"]
    values["runs"]["sm"]["overrides"] = {"learning_rate": -1}
    with pytest.raises(ValueError, match="runs.sm.overrides"):
        Parameters.model_validate(values)


def test_a_context_a_family_and_a_budget_change_what_they_say_and_nothing_else():
    parameters = load(ROOT / "params.yaml").at_scale("paper")
    base, longer = parameters.resolve("sm-ln-g").train, parameters.resolve("sm-ln-g-t256").train
    assert longer.batch_size * 256 == base.batch_size * 128
    assert longer.model_copy(update={"batch_size": base.batch_size}) == base
    assert parameters.resolve("sm-ln-g-t256").sizes.model_dump() == parameters.resolve("sm-ln-g").sizes.model_dump() | {
        "context": 256
    }
    assert parameters.resolve("sm-ln-g-18l").sizes.model_dump() == parameters.resolve("sm-ln-g").sizes.model_dump() | {
        "layers": 18
    }
    once, twice, fourfold = (parameters.resolve(f"languini-sm-ln-g-{tag}").train for tag in ("1b2", "2b4", "4b8"))
    assert (twice.steps, twice.accumulation) == (2 * once.steps, once.accumulation)
    assert (fourfold.steps, fourfold.accumulation) == (2 * once.steps, 2 * once.accumulation)
    assert once.learning_rate == 6e-4 != base.learning_rate


def test_a_run_changes_the_regularizer_and_its_family_does():
    parameters = load(ROOT / "params.yaml")
    assert parameters.resolve("ereg-smt-scfuffn").regularizer == parameters.regularizer
    assert parameters.resolve("ereg-smt-scfuffn-gamma-00").regularizer.gamma == 0
    assert parameters.resolve("ereg-smt-scfuffn-head-mean").regularizer.reduction == "head_mean"
    languini = parameters.resolve("languini-ereg-smt-scfuffn-1b2").regularizer
    assert (languini.lambda_, languini.temperature_init, languini.gamma) == (5e-5, 0.1, 0.2)


def test_families_bring_their_switches():
    parameters = load(ROOT / "params.yaml").at_scale("paper")
    gpt2 = parameters.resolve("sm-ln-g").model_config(50000)
    assert gpt2.tied and gpt2.position == "learned" and not gpt2.vo_bias and not gpt2.embedding_scale
    pythia = parameters.resolve("pythia-sm-g-t256").model_config(50000)
    assert (pythia.layers, pythia.heads, pythia.width, pythia.context) == (6, 8, 512, 256)
    assert pythia.position == "rotary" and pythia.parallel_residual and not pythia.tied
    assert parameters.two_party_model()[0].width == 768 and parameters.at_scale("smoke").two_party_model()[1] == 16
    simplified = parameters.resolve("pythia-sota-sm-scffn-t256").model_config(50000)
    assert simplified.position == "learned" and not simplified.parallel_residual and not simplified.tied
    assert parameters.resolve("languini-sm-ln-g-1b2").model_config(16384).embedding_scale


def test_position_sum_weight_means_the_same_for_every_batch():
    regularizer = load(ROOT / "params.yaml").regularizer
    assert regularizer.weight(128, 128) == pytest.approx(1e-5)
    assert regularizer.weight(16, 64) * 16 * 64 == pytest.approx(1e-5 * 128 * 128)
    assert regularizer.model_copy(update={"reduction": "head_mean"}).weight(16, 64) == pytest.approx(1e-5)


def test_tables_are_trained_whole_in_the_order_of_a_visit():
    parameters = load(ROOT / "params.yaml")
    listed = [run for table in parameters.training_order.values() for run in table]
    assert len(listed) == len(set(listed))
    assert set(parameters.active_runs) <= set(parameters.training_order["tables_2_and_4"])
    for number in ("2", "3", "4", "5", "6", "8", "9"):
        rows = {run for run, values in parameters.runs.items() if any(f"aero/table{number}/" in r for r in values.rows)}
        assert rows <= set(listed), number
    landscape = {run for run, values in parameters.runs.items() if any("landscape/table1" in r for r in values.rows)}
    assert landscape <= set(listed)
    # Every other run too, but those that need further token files, those of a rate that means something at scale laptop
    # alone, and those with qk_clip.
    apart = {run for run in parameters.runs if parameters.resolve(run).corpus_name is not None}
    apart |= {run for run in parameters.runs if parameters.resolve(run).train.qk_clip}
    hot = {run for run in parameters.runs if run.endswith("-hot")}
    assert set(listed) == set(parameters.runs) - apart - hot and len(hot) == 7
    gpu = parameters.at_scale("gpu")
    for name, table in parameters.training_order.items():
        budgets = set()
        for run in map(gpu.resolve, table):
            budgets.add(run.train.steps * run.train.batch_size * run.train.accumulation * run.sizes.context)
        assert len(budgets) == 1, name
