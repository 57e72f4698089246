"""`aero entropy` on a Hugging Face folder and on a checkpoint; one-line errors."""

import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from tiny_hugging_face import change_config, rows_by_output_attentions, save_with_tokenizer, tiny
from transformers import AutoTokenizer, GPT2LMHeadModel

from aero import checkpoint, cli, landscape
from aero.architecture import parse
from aero.data.tokenizer import build
from aero.entropy import EntropyRegularizer, measure
from aero.errors import UserError
from aero.model import GPT, ModelConfig

TEXT = "def add(a, b):\n    return a + b  # naïve\n" * 20


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "held_out.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def hugging_face_model(folder, name="gpt2", **changes):
    """A model of bytes with its tokenizer in `folder`; the model and the ids of TEXT."""
    model = tiny(name, vocab_size=300, **changes)
    return model, torch.tensor(save_with_tokenizer(model, folder)(TEXT)["input_ids"])


def own_checkpoint(folder):
    torch.manual_seed(0)
    config = ModelConfig(257, 32, layers=2, heads=2, width=16, ffn_width=64, temperature_init=0.5)
    model = GPT(parse("EReg(SM(t)+ScFuFFN)"), config).eval()
    checkpoint.save(folder / "checkpoint.safetensors", model)
    build({bytes([byte]): byte for byte in range(256)}, 256).save(folder / "tokenizer.json")
    return model, torch.tensor(list(TEXT.encode()))


def output(capsys, *arguments):
    cli.main(["entropy", *map(str, arguments)])
    return capsys.readouterr().out


def test_json_and_table_of_a_hugging_face_model(tmp_path, text, capsys):
    """qwen2 has a window of 9 in its third layer."""
    model, ids = hugging_face_model(tmp_path, "qwen2")
    asked = (tmp_path, "--text", text, "--context", 40, "--tokens", 400)
    found = json.loads(output(capsys, *asked, "--json"))
    rows = rows_by_output_attentions(model, ids[:400].reshape(10, 40))  # (L, 10, H, 40)
    assert (found["class"], found["layers"], found["heads"]) == (type(model).__name__, 3, 4)
    assert (found["context"], found["sequences"], found["tokens"]) == (40, 10, 400)
    assert (found["dtype"], found["device"], found["bos"]) == ("float32", "cpu", False)
    by_sequence = rows.mean(-1)  # (L, 10, H)
    for key, expected in (
        ("entropy_mean", by_sequence.mean(1)),
        ("entropy_sem", by_sequence.std(1) / 10**0.5),
        ("entropy_by_position", rows.mean((1, 2))),
    ):
        torch.testing.assert_close(torch.tensor(found[key]).double(), expected, atol=1e-5, rtol=0)
    shares = torch.tensor(found["entropy_mean"]) / torch.tensor(found["entropy_bound"])[:, None]
    assert found["of_bound"]["overload"]["fraction"] == (shares >= 0.75).double().mean()
    assert found["text_sha256"] and found["provenance"]["commit"]
    table = output(capsys, *asked).splitlines()
    for layer, line in enumerate(table[4:7]):
        mean, error = re.match(rf" +{layer + 1} +(\d\.\d{{3}})±(\d\.\d{{3}}) ", line).groups()
        blocks = by_sequence[layer].mean(1)  # each of the ten sequences is a block
        assert float(mean) == pytest.approx(blocks.mean().item(), abs=6e-4)
        assert float(error) == pytest.approx((blocks.std() / 10**0.5).item(), abs=6e-4)
        assert sum(map(int, line.split()[-4:])) == 4
    assert table[-3].startswith("overload: ") and table[-2].startswith("collapse: ")


def test_sizes_and_a_first_token(tmp_path, text, capsys):
    model, ids = hugging_face_model(tmp_path, n_positions=64)
    for asked, tokens, context in ((40, 40, 40), (100, 64, 64)):
        found = json.loads(output(capsys, tmp_path, "--text", text, "--tokens", asked, "--json"))
        assert (found["tokens"], found["context"], found["sequences"]) == (tokens, context, 1)
    asked = (tmp_path, "--text", text, "--context", 16, "--tokens", 64, "--bos")
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": "Z"}))
    found = json.loads(output(capsys, *asked, "--json"))
    begun = torch.nn.functional.pad(ids[:60].reshape(4, 15), (1, 0), value=ord("Z") - 33)
    assert found["bos"] is True and found["sequences"] == 4
    torch.testing.assert_close(torch.tensor(found["entropy_mean"]), measure(model, begun).mean.float())


def test_a_model_in_half_precision_is_measured_in_float32_by_default(tmp_path, text, capsys):
    model, ids = hugging_face_model(tmp_path)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    asked = (tmp_path, "--text", text, "--context", 16, "--tokens", 64, "--json")
    full, auto = (json.loads(output(capsys, *asked, "--dtype", dtype)) for dtype in ("float32", "auto"))
    assert (full["dtype"], auto["dtype"]) == ("float32", "bfloat16")
    exact = measure(model.float(), ids[:64].reshape(4, 16)).mean
    torch.testing.assert_close(torch.tensor(full["entropy_mean"]), exact.float(), atol=1e-5, rtol=0)
    assert auto["entropy_mean"] != full["entropy_mean"]


def test_a_checkpoint(tmp_path, text, capsys):
    model, ids = own_checkpoint(tmp_path)
    arguments = ["--text", text, "--tokenizer", tmp_path / "tokenizer.json", "--json"]
    found = json.loads(output(capsys, tmp_path, *arguments))
    expected = measure(model, ids[: len(ids) // 32 * 32].reshape(-1, 32))
    torch.testing.assert_close(torch.tensor(found["entropy_mean"]).double(), expected.mean, atol=1e-6, rtol=0)
    assert json.loads(output(capsys, tmp_path / "checkpoint.safetensors", *arguments))["tokens"] == found["tokens"]
    with torch.no_grad():
        model.blocks[1].attention.query.weight[0, 0] = float("nan")  # the first head of the last layer
    checkpoint.save(tmp_path / "checkpoint.safetensors", model)
    assert "1 not finite" in output(capsys, tmp_path, *arguments[:-1]).splitlines()[5]
    assert None in json.loads(output(capsys, tmp_path, *arguments))["landscape"]["steepness"][1]


def test_folders_as_other_tools_leave_them(tmp_path, text, capsys):
    """An attention kernel that is not installed, a tokenizer with an added token, a text with a byte-order mark."""
    hugging_face_model(tmp_path)
    asked = (tmp_path, "--text", text, "--context", 16, "--tokens", 64, "--json")
    expected = json.loads(output(capsys, *asked))
    change_config(tmp_path, attn_implementation="flash_attention_2", vocab_size=300)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens([f"<{i}>" for i in range(60)] + ["xyzzy"])
    tokenizer.save_pretrained(tmp_path)
    text.write_text(TEXT, encoding="utf-8-sig")
    found = json.loads(output(capsys, *asked))
    assert found["entropy_mean"] == expected["entropy_mean"] and found["text_sha256"] == expected["text_sha256"]
    text.write_text("xyzzy" + TEXT)
    with pytest.raises(ValueError, match="from 0 to 299.*got .* to 316"):
        output(capsys, *asked)


def test_a_saved_regularised_model_is_measured_with_its_temperatures(tmp_path, text, capsys):
    hugging_face_model(tmp_path)
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    EntropyRegularizer(model, context=32, temperature_init=1e6)  # for fewer positions than the model has
    model.save_pretrained(tmp_path)
    flat = json.loads(output(capsys, tmp_path, "--text", text, "--json"))
    assert flat["context"] == 32
    assert min(map(min, flat["entropy_mean"])) == pytest.approx(flat["maximum"]["causal_bound"], abs=1e-3)


def test_landscape_baseline_and_figure(tmp_path, text, capsys):
    model, _ = hugging_face_model(tmp_path / "model")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :32] *= 20
    save_with_tokenizer(model, tmp_path / "other")
    base, figure = tmp_path / "base.json", tmp_path / "heads.svg"
    base.write_text(output(capsys, tmp_path / "model", "--text", text, "--json"))
    asked = (tmp_path / "other", "--text", text, "--baseline", base, "--figure", figure)
    found = json.loads(output(capsys, *asked, "--json"))
    mean, first = (np.array(one["entropy_mean"]) for one in (found, json.loads(base.read_text())))
    assert found["landscape"]["gini_by_layer"] == pytest.approx(landscape.gini_by_layer(mean).tolist())
    assert np.array(found["landscape"]["steepness"]) == pytest.approx(landscape.steepness(mean))
    assert found["landscape"]["range"] == pytest.approx([mean.min(), mean.max()])
    distances = landscape.wasserstein_1_by_layer(mean, first).tolist()
    assert found["landscape"]["wasserstein_1_by_layer"] == pytest.approx(distances) and min(distances) > 0.01
    assert figure.stat().st_size > 1000 and not list(tmp_path.glob("*.tmp"))
    assert "Wasserstein-1" in output(capsys, *asked)


def test_the_models_own_code_is_never_run(tmp_path, text, monkeypatch):
    """Nor is the user asked whether it may be."""
    folder = tmp_path / "evil"
    hugging_face_model(folder)
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.T", None]}
        content |= {"auto_map": classes, "model_type": "evil", "tokenizer_class": "T"}
        (folder / name).write_text(json.dumps(content))
    (folder / "evil.py").write_text(f"open({str(folder / 'executed')!r}, 'w').close()\nraise SystemExit\n")
    answers = io.StringIO("y\n" * 9)
    monkeypatch.setattr(sys, "stdin", answers)
    with pytest.raises(UserError, match="evil cannot be loaded"):
        cli.main(["entropy", str(folder), "--text", str(text)])
    assert not (folder / "executed").exists() and answers.tell() == 0


def test_errors(tmp_path, text):
    own_checkpoint(tmp_path)
    hugging_face_model(tmp_path / "hf")
    change_config(tmp_path / "hf", n_layer=4)
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text("{")
    (tmp_path / "one.txt").write_text("x")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    own = [tmp_path, "--tokenizer", tmp_path / "tokenizer.json", "--text"]
    for arguments, message in (
        ([tmp_path / "empty", "--text", text], "neither a folder with a Hugging Face model"),
        ([tmp_path / "damaged", "--text", text], "damaged cannot be loaded"),
        ([tmp_path / "hf", "--text", text], "lack 12 tensors"),
        ([*own, tmp_path / "binary"], "not UTF-8"),
        ([*own, tmp_path / "one.txt"], "longer --text"),
        ([*own, text, "--context", "33"], "exceeds the model's 32 positions"),
        ([*own, text, "--tokens", "20", "--context", "21"], "less than one sequence"),
        ([*own, text, "--tokens", "0"], "--tokens must be at least 1"),
        ([*own, text, "--figure", "heads.jpg"], "must end in one of .svg, .png, .pdf"),
        ([*own, text, "--baseline", text], "is no output of `aero entropy --json`"),
        ([*own, text, "--figure", tmp_path / "no" / "such.svg"], "cannot be written: there is no folder"),
        ([*own, text, "--bos"], "for Hugging Face models only"),
    ):
        with pytest.raises(UserError, match=message):
            cli.main(["entropy", *map(str, arguments)])
