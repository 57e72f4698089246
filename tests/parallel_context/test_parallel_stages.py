"""The stages at the smoke scale, and a Hugging Face model from a folder."""

import json
from pathlib import Path

import pytest
import yaml
from tiny_models import hugging_face

from aero.parallel_context.cost import measure
from stages import keep, parallel_context, parallel_context_cost, parallel_context_train, tokenize_corpus

ROOT = Path(__file__).resolve().parents[2]
METHODS = [(None, None), (None, 2), ("sink", None), ("sink", 2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel context")
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    values["scale"] = "smoke"
    values["scales"]["smoke"]["tokens"] |= {"train_bytes": 100_000, "validation_bytes": 20_000}
    values["parallel_context"]["scales"]["smoke"]["cost"] |= {"segments": [1]}
    (folder / "params.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return folder


@pytest.fixture
def project(folder, monkeypatch):
    """The working directory, with token files."""
    monkeypatch.chdir(folder)
    if not (folder / "runs/tokens").exists():
        tokenize_corpus.main([])
    return folder


def test_train_then_measure(project, capsys):
    with pytest.raises(OSError, match="training.json"):
        parallel_context.main([])
    parallel_context_train.main([])
    training = json.loads((project / "runs/parallel_context/seed_1337/training.json").read_text())
    assert training["scale"] == "smoke" and training["tokens"] == 6 * 8 * 64 and training["last"]["step"] == 6
    assert {"commit", "machine", "torch", "corpus_sha256", "seconds"} <= set(training["provenance"])

    parallel_context.main([])
    assert "note: full attention answers" in capsys.readouterr().out
    measured = json.loads((project / "runs/parallel_context/seed_1337/measured.json").read_text())
    assert not measured["solves_retrieval"] and measured["training"] == training
    for task in ("lm", "icl", "rag", "synthetic"):
        rows = [row for row in measured["rows"] if row["task"] == task]
        for segments in (1, 2, 4):
            found = [(r["sink"], r["top_k"]) for r in rows if r["segments"] == segments and r["aggregation"] != "T"]
            assert set(METHODS) <= set(found)
        assert {r["top_k"] for r in rows if r["segments"] == 4} >= {None, 1, 2, 5, 10}
        assert {r["sink"] for r in rows} == {None, "sink", "two newlines", "instruction"} or task == "lm"
        assert all(r["entropy"] > 0 and r["low"] <= r["score"] <= r["high"] for r in rows)
        # P = 1: nothing to select
        full = [r for r in rows if r["segments"] == 1 and r["sink"] is None]
        assert len({r["score"] for r in full}) == 1
    assert {"commit", "machine", "torch", "started", "seconds"} <= set(measured["provenance"])


def test_partial_measurement_needs_its_own_file(project, tmp_path):
    part, out = ["--tasks", "synthetic", "--segments", "1", "32"], tmp_path / "part.json"
    with pytest.raises(ValueError, match="--out"):
        parallel_context.main(part)
    parallel_context.main([*part, "--out", str(out)])
    assert json.loads(out.read_text())["tasks"]["synthetic"]["left_out"] == [32]


def test_time_and_memory(project):
    parallel_context_cost.main([])
    (full,) = json.loads((project / "runs/parallel_context/cost.json").read_text())["rows"]
    sizes = {"layers": 2, "heads": 2, "width": 16, "tokens": 64, "repeats": 1}
    rows = [measure(**sizes, segments=4, way=way) for way in ("segments", "mask")]
    assert [row["attention_pairs"] for row in (full, *rows)] == [64 * 65 // 2, 4 * 16 * 17 // 2, 4 * 16 * 17 // 2]
    assert all(row["cpu_s"] > 0 and row["question_cpu_s"] > 0 for row in (full, *rows)) and full["peak_bytes"] > 0


def test_results_are_kept_by_scale(project):
    keep.main(["--allow-changes"])
    kept = project / "results/parallel_context/smoke"
    assert sorted(path.name for path in kept.iterdir()) == ["cost.json", "seed_1337.json"]
    assert json.loads((kept / "seed_1337.json").read_text())["model"] == "own"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A tiny random Llama with a byte-level tokenizer, saved as its users save theirs."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-llama")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    hugging_face("llama", max_position_embeddings=512, vocab_size=len(alphabet)).save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    (tmp_path / "lm.txt").write_text("some words and more of them " * 20, encoding="utf-8")
    labelled = "".join(f"{kind}:x what is {kind} {i} ?\n" for i in range(6) for kind in ("A", "B"))
    (tmp_path / "icl_train.txt").write_text(labelled, encoding="utf-8")
    (tmp_path / "icl_test.txt").write_text("A:x what is it ?\n", encoding="utf-8")
    pairs = {f"k{i}": f"v{i}" for i in range(8)}
    record = {"context": json.dumps(pairs), "question": "k3", "answer": "v3"}
    (tmp_path / "synthetic.jsonl").write_text(json.dumps(record), encoding="utf-8")
    passages = [{"title": f"t{i}", "text": "a passage"} for i in range(5)]
    record = {"question": "who?", "answers": ["Ada"], "ctxs": passages}
    (tmp_path / "rag.jsonl").write_text(json.dumps(record), encoding="utf-8")
    return tmp_path


def test_hugging_face_model_on_benchmark_files(project, llama, data, tmp_path):
    out = tmp_path / "other.json"
    common = ["--data", data, "--context", 120, "--predicted", 16, "--dtype", "float32", "--segments", 1, 2]

    def run(*arguments):
        parallel_context.main([str(argument) for argument in (*common, *arguments)])

    run("--model", llama, "--out", out)
    measured = json.loads(out.read_text())
    assert measured["family"] == "llama" and set(measured["tasks"]) == {"lm", "icl", "rag", "synthetic"}
    assert {r["segments"] for r in measured["rows"]} == {1, 2}
    assert set(next(r for r in measured["rows"] if r["task"] == "rag")["sets"]) == {"rag.jsonl"}
    with pytest.raises(ValueError, match="flash_attention_2|FlashAttention"):
        run("--model", llama, "--attention", "flash_attention_2", "--out", tmp_path / "no")
    with pytest.raises(ValueError, match="cannot load"):
        run("--model", tmp_path / "nothing", "--out", tmp_path / "no")
    with pytest.raises(ValueError, match="--out"):
        run("--model", llama)
    with pytest.raises(ValueError, match="--model needs --data"):
        parallel_context.main(["--model", str(llama)])
    assert not (tmp_path / "no").exists()
