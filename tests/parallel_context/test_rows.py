"""Rows of one context against the model asked directly, and the stage on a tiny random Llama."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from tiny_hugging_face import save_with_tokenizer
from tiny_models import VOCABULARY, hugging_face, ids
from transformers import AutoModelForCausalLM

from aero.config import load
from aero.data.base import sha256_of
from aero.errors import UserError
from aero.parallel_context import pretrained, tasks
from aero.parallel_context.attention import Selection
from aero.parallel_context.encoding import encode, read
from aero.parallel_context.hugging_face import HuggingFaceModel
from aero.parallel_context.measure import PARTS, Block, rows_of
from aero.parallel_context.settings import settings
from aero.parallel_context.tasks import TASKS, Context
from stages import keep, parallel_context, parallel_context_cost

ROOT = Path(__file__).resolve().parents[2]
UNITS = [ids(1, 2 + number % 3, seed=number)[0].tolist() for number in range(8)]


@pytest.fixture(scope="module")
def model():
    return HuggingFaceModel(hugging_face("llama").double())


def rows(model, context, *blocks, **options):
    return [
        row for _, found in rows_of(model, context, blocks, {"sink": torch.tensor([1, 2])}, **options) for row in found
    ]


def test_answers_are_right_if_all_their_tokens_are_most_likely(model):
    plain, flat = hugging_face("llama").double(), sum(UNITS, [])
    question = [5, 6, 7]
    answer = []
    for _ in range(2):
        logits = plain(torch.tensor([flat + question + answer])).logits[0, -1]
        answer.append(int(logits.argmax()))
    wrong = [answer[0], (answer[1] + 1) % VOCABULARY]
    context = Context(UNITS, [(question, [answer]), (question, [wrong]), (question, [wrong, answer])])
    (row,) = rows(model, context, Block(1))
    assert row["scores"] == [1, 0, 1] and len(row["entropies"]) == 3 and len(row["entropy_by_layer"]) == 2
    assert 0 < row["sink_share"][0] < 1 and row["logit_mean"][0] > 0


def test_language_modelling_is_the_loss_of_the_text(model):
    flat, text = sum(UNITS, []), ids(1, 17, seed=3)[0].tolist()
    (row,) = rows(model, Context(UNITS, [(text[:1], [text[1:]])]), Block(1), is_text=True)
    logits = hugging_face("llama").double()(torch.tensor([flat + text])).logits[0, len(flat) : -1]
    losses = F.cross_entropy(logits, torch.tensor(text[1:]), reduction="none")
    assert row["scores"] == pytest.approx(losses.view(PARTS, -1).mean(1).tolist(), abs=1e-4)


def test_rows_of_segments_remedies_and_oracles(model):
    context = Context(UNITS, [([5, 6], [[7]])])
    every = (None, Selection(4, "HT"), Selection(1, "HT"), Selection(aggregation="HT", mass=0.5))
    blocks = [Block(1), Block(4, None, every, oracles=True), Block(4, "sink", every[:2])]
    full, naive, kept, one, mass, keys, values, sink, both = rows(model, context, *blocks)
    assert kept["entropies"] == pytest.approx(naive["entropies"], abs=1e-4) and kept["kept"] == 4
    assert one["kept"] == 1 <= mass["kept"] < 4 and one["entropies"] < naive["entropies"]
    assert naive["entropies"] != full["entropies"] and sink["entropies"] != naive["entropies"] == pytest.approx(
        both["entropies"], abs=9
    )
    assert keys["oracle"] == "keys" and keys["entropies"] not in (naive["entropies"], values["entropies"])
    assert full["entropy_by_layer"][0] == pytest.approx(keys["entropy_by_layer"][0], abs=1e-3), (
        "values do not matter yet"
    )
    # The first layer's keys know nothing but their token; the values of deeper ones differ.
    assert naive["key_first"][0] == pytest.approx(naive["key_first_full"][0], abs=1e-4)
    assert naive["key_first"][1] != naive["key_first_full"][1] and "key_first_full" not in sink


def test_a_context_is_divided_into_whole_units():
    context = Context([[1], [2, 3], [4], [5], [6]], [])
    assert context.segments(2) == [[1, 2, 3, 4], [5, 6]] and context.segments(5)[1] == [2, 3]


def test_the_grid_of_params():
    section = settings(load())
    for name, plan in section.tasks.items():
        blocks = section.blocks(TASKS[name].kind, plan)
        assert {block.segments for block in blocks} == set(plan.segments) and plan.segments[-1] <= plan.units
        (most,) = [b for b in blocks if b.segments == max(plan.segments) and b.sink is None]
        assert {s.top_k for s in most.selections if s} >= {1, 2, 5, 10} and most.oracles
    with pytest.raises(UserError, match="1 to 16"):
        section.blocks("synthetic", section.tasks["pairs"], (32,))


@pytest.mark.parametrize("name", TASKS)
def test_tasks_are_repeatable_and_answers_are_in_the_context(name):
    def encode(text):
        return list(text.encode())

    try:
        made, again, other = (TASKS[name].make(encode, number, 12, 8) for number in (0, 0, 1))
    except UserError as error:
        pytest.skip(str(error))
    assert made == again != other and len(made.units) == 12
    text = bytes(sum(made.units, [])).decode()
    for question, (answer,) in made.queries:
        assert len(answer) == 8 if TASKS[name].kind == "lm" else bytes(answer).decode().strip() in text
        assert name not in ("people", "pairs") or bytes(question + answer).decode() in text


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A tiny random Llama with a byte-level tokenizer, saved as its users save theirs."""
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    save_with_tokenizer(hugging_face("llama", max_position_embeddings=4096, vocab_size=256), folder)
    return folder


def test_the_stage_goes_on_where_it_stopped(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text((ROOT / "params.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ["--model", str(llama), "--tasks", "pairs", "--contexts", "1"]
    parallel_context.main([*arguments, "--segments", "1"])
    out = Path("runs/parallel_context/tiny-llama.jsonl")
    before = out.read_text()
    out.write_text(before + '{"task": "pairs", "cont')
    parallel_context.main([*arguments, "--segments", "1", "2"])
    assert out.read_text().startswith(before) and "cont\n" not in out.read_text()
    found = [json.loads(line) for line in out.read_text().splitlines()]
    made = [row for row in found if "task" in row]
    assert [row["segments"] for row in made[:2]] == [1, 2] and len({json.dumps(row) for row in made}) == len(made)
    about = found[0]["run"]
    assert set(about["sha256"]) == {"model.safetensors"} and {"commit", "machine", "torch"} <= set(about)
    keep.main(["--allow-changes"])
    assert Path("results/parallel_context/tiny-llama.jsonl").read_text() == out.read_text()
    found[0]["run"]["sha256"] = {}
    out.write_text("".join(json.dumps(row) + "\n" for row in found))
    with pytest.raises(UserError, match="another model"):
        parallel_context.main(arguments)
    with pytest.raises(UserError, match="cannot load"):
        parallel_context.main(["--model", str(tmp_path / "nothing")])


def test_texts_are_measured_again_at_other_lengths(llama, tmp_path, monkeypatch, capsys):
    """As far as the model's context goes."""
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    units = {"300": {"docs": 300}, "4096": {"docs": 4096}, "500": {"words": 50}}
    values["parallel_context"]["longer"] = {"units": units, "contexts": 1, "segments": [1, 2, 301]}
    values["parallel_context"]["tasks"]["docs"] |= {"units": 200, "segments": [1]}
    Path("params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    parallel_context.main(["--model", str(llama), "--tasks", "docs", "--contexts", "1"])
    found = {
        (row["tokens"], row["segments"])
        for path in Path("runs/parallel_context").rglob("tiny-llama.jsonl")
        for row in map(json.loads, path.read_text().splitlines()[1:])
        if row["sink"] is None
    }
    assert found == {(200, 1), (300, 1), (300, 2)} and Path("runs/parallel_context/300/tiny-llama.jsonl").is_file()
    assert "contexts of 4096 tokens left out: tiny-llama has a context of 4096" in capsys.readouterr().out


def test_a_missing_package_is_one_line_and_skips_the_stages(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pretrained.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install") as caught:
        pretrained.smollm2(tmp_path / "none")
    assert "\n" not in str(caught.value) and not (tmp_path / "none").exists()
    for stage in (parallel_context, parallel_context_cost):
        stage.main([])
        assert "skipped" in (printed := capsys.readouterr().out) and printed.count("\n") == 1
    assert not list(tmp_path.iterdir())
    tasks._bible.cache_clear()
    with pytest.raises(UserError, match="pip install"):
        tasks._bible()


@pytest.mark.slow
def test_time_and_memory(llama, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["parallel_context"]["cost"] = {"tokens": [64], "segments": [4]}
    Path("params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    parallel_context_cost.main(["--model", str(llama), "--folder", "."])
    (row,) = json.loads(Path("cost.json").read_text())["rows"]
    assert row["attention_pairs"] == 4 * 16 * 17 // 2 and row["cpu_s"] >= 0 and row["peak_bytes"] >= 0


@pytest.mark.slow
@pytest.mark.skipif(bool(pretrained.missing()), reason="the extra `pretrained` is not installed")
def test_one_segment_of_smollm2_equals_full_attention(tmp_path):
    """In double precision, so that the comparison is of the method and not of rounding."""
    folder = pretrained.smollm2(tmp_path / "smollm2")
    assert json.loads((folder / "source.json").read_text())["sha256"] == sha256_of(folder / "model.safetensors")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokens = torch.arange(1000, 1150)[None]
    expected = plain(tokens).logits[:, 100:]
    model = HuggingFaceModel(plain)
    reading = read(model, encode(model, [tokens[:, :100]]), tokens[:, 100:])
    assert (reading.logits - expected).abs().max() < 1e-5 < expected.abs().max()
