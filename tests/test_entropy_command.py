"""`aero entropy` on a Hugging Face folder and on a checkpoint of ours; one line for what it cannot measure."""

import copy
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_hugging_face import CONFIGS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from aero import checkpoint, cli, landscape
from aero.architecture import parse
from aero.cli import entropy as entropy_command
from aero.data.tokenizer import build
from aero.entropy import EntropyRegularizer, measure
from aero.errors import UserError
from aero.model import GPT, ModelConfig
from aero.records import ROOT
from aero.report.papers import panels

TEXT = "def add(a, b):\n    return a + b  # naïve\n" * 20
BYTES = {bytes([byte]): byte for byte in range(256)}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "held_out.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def hugging_face_model(folder):
    """A byte-level GPT-2 with its tokenizer."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0.0)).eval()
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(folder)
    return model, torch.tensor(fast(TEXT)["input_ids"])


def own_checkpoint(folder):
    torch.manual_seed(0)
    config = ModelConfig(257, 32, layers=2, heads=2, width=16, ffn_width=64, temperature_init=0.5)
    model = GPT(parse("EReg(SM(t)+ScFuFFN)"), config).eval()
    checkpoint.save(folder / "checkpoint.safetensors", model)
    build(BYTES, 256).save(folder / "tokenizer.json")
    return model, torch.tensor(list(TEXT.encode()))


def said(capsys, *arguments):
    cli.main(["entropy", *map(str, arguments)])
    return capsys.readouterr().out


def with_code_of_its_own(folder):
    """A model whose classes come with it, in a file that leaves a trace if it is run."""
    hugging_face_model(folder)
    for name in ("config.json", "tokenizer_config.json"):
        content = json.loads((folder / name).read_text())
        classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.T", None]}
        content |= {"auto_map": classes, "model_type": "evil", "tokenizer_class": "T"}
        (folder / name).write_text(json.dumps(content))
    (folder / "evil.py").write_text(f"open({str(folder / 'executed')!r}, 'w').close()\nraise SystemExit\n")
    return folder


def test_a_models_own_code_is_not_run_whoever_says_yes(tmp_path, text):
    folder = with_code_of_its_own(tmp_path / "evil")
    command = [sys.executable, "-m", "aero.cli", "entropy", str(folder), "--text", str(text)]
    env = os.environ | {"HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input="y\n" * 9, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert not (folder / "executed").exists()
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "cannot be loaded" in done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n_layer": 10**7}, "n_layer in .* is 10000000, more than any model has and more than the 41 tensors"),
        ({"n_layer": 1e300}, "n_layer in .* is 1e.300, more than any"),
        ({"n_layer": -3}, "n_layer in .* is -3, a model has one layer at least"),
        ({"num_labels": 10**9}, "num_labels in .* is 1000000000, more than any"),
        ({"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]}, "attention_types in .* is 1000000000"),
        ({"vocab_size": 10**12}, r"describes a model of 3.2e\+13 numbers; its weights, of .* can be 2.7e\+08 at most"),
        ({"n_embd": 10**8}, r"describes a model of .* numbers"),
        ({"n_layer": 4}, "lack 12 tensors that its config.json asks for, such as 'transformer.h.3.attn.c_attn.bias'"),
        ({"n_positions": 128}, r"'transformer.wpe.weight' is \(64, 32\), not \(128, 32\)"),
        ({"n_head": 0}, "integer division or modulo by zero"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_weights_cannot_hold_is_refused(changes, said, tmp_path, text, capfd):
    """Each of the first took all time or memory before a weight was looked at; a missing layer was measured as drawn at
    random. Nothing of transformers' own report, which quotes names as they stand in the file, is shown."""
    hugging_face_model(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=f"cannot be loaded as a causal language model with its tokenizer: .*{said}"):
        cli.main(["entropy", str(tmp_path), "--text", str(text)])
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("place", ["../other/model.safetensors", "/etc/model.safetensors", 7, None])
def test_an_index_names_files_beside_it_alone(place, tmp_path, text):
    """It could have weights read from anywhere."""
    for name in ("model", "other"):
        hugging_face_model(tmp_path / name)
    (tmp_path / "model" / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": place}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match="model.safetensors.index.json is no index of weights"):
        cli.main(["entropy", str(tmp_path / "model"), "--text", str(text)])


def test_weights_of_whole_numbers_are_refused(tmp_path, text):
    """They were converted, and measured: most of them are 0 then."""
    hugging_face_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.h.1.attn.c_attn.weight"] = weights["transformer.h.1.attn.c_attn.weight"].long()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="c_attn.weight' in .*model.safetensors is of type I64, weights are floating"):
        cli.main(["entropy", str(tmp_path), "--text", str(text)])


def test_a_projection_that_is_missing_does_not_matter(tmp_path, text, capsys):
    """Of a model saved without its head, as its base class saves it: entropies do not depend on it."""
    model, _ = hugging_face_model(tmp_path)
    expected = said(capsys, tmp_path, "--text", text, "--json")
    model.transformer.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False}))
    found = said(capsys, tmp_path, "--text", text, "--json")
    assert json.loads(found)["entropy_mean"] == json.loads(expected)["entropy_mean"]


def test_a_hugging_face_folder(tmp_path, text, capsys):
    model, ids = hugging_face_model(tmp_path / "model")
    found = json.loads(said(capsys, tmp_path / "model", "--text", text, "--json"))
    expected = measure(model, ids[: len(ids) // 64 * 64].reshape(-1, 64))
    torch.testing.assert_close(torch.tensor(found["entropy_mean"]).double(), expected.mean, atol=1e-6, rtol=0)
    assert (found["layers"], found["heads"], found["context"]) == (3, 4, 64)
    assert found["tokens"] == expected.tokens == found["sequences"] * 64
    assert found["text_sha256"] and found["provenance"]["commit"]
    table = said(capsys, tmp_path / "model", "--text", text, "--context", "16", "--tokens", "160").splitlines()
    assert "3 layers x 4 heads; 10 sequences of 16 tokens" in table[0]
    assert [line.split()[0] for line in table[4:7]] == ["1", "2", "3"]  # as in the report
    assert all(sum(map(int, line.split()[5:9])) == 4 for line in table[4:7])
    assert table[-3].startswith("overload: ") and table[-2].startswith("collapse: ") and "3/4 max" in table[-1]
    own = {"entropy_median", "entropy_by_position_sem", "entropy_blocks", "of_bound"}
    assert own <= found.keys()


def test_failures_are_also_counted_against_the_bound(tmp_path, text, capsys):
    """Logits 50 times as large leave every head sharp: by the largest one observed some still pass for overloaded."""
    model, _ = hugging_face_model(tmp_path)
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :32] *= 50
    model.save_pretrained(tmp_path)
    found = json.loads(said(capsys, tmp_path, "--text", text, "--json"))
    shares = torch.tensor(found["entropy_mean"]) / torch.tensor(found["entropy_bound"])[:, None]
    by_bound = found["of_bound"]
    assert found["overload"]["fraction"] > 0 and by_bound["overload"] == {"fraction": 0.0, "layers": []}
    assert by_bound["collapse"]["fraction"] == (shares < 0.25).double().mean() > found["collapse"]["fraction"]
    assert by_bound["collapse"]["layers"] == (shares < 0.25).double().mean(1).gt(0.5).nonzero().flatten().tolist()
    *_, high, low, _ = said(capsys, tmp_path, "--text", text).splitlines()
    assert high.startswith("overload: ") and high.endswith("; against the bound 0.0 % of heads")
    majority = [layer + 1 for layer in by_bound["collapse"]["layers"]]  # a reader counts from 1
    assert majority and low.endswith(f", most heads of layers {', '.join(map(str, majority))}")


@pytest.mark.parametrize("change", [{"n_layer": 1e9}, {"n_embd": "8"}, {"vocab_size": None}, {"n_head": 0}])
def test_sizes_that_transformers_refuses_in_its_own_way(change, tmp_path, text):
    hugging_face_model(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match="cannot be loaded as a causal language model"):
        cli.main(["entropy", str(tmp_path), "--text", str(text)])


def test_quarters_of_a_window_are_of_what_it_allows(tmp_path, text, capsys):
    """The lines of the table add up to the failures below it: nine keys are all that a head with a window sees."""
    hugging_face_model(tmp_path)
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS["qwen2"])  # its third layer has a window of 9
    config.vocab_size = 300
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    shown = said(capsys, tmp_path, "--text", text, "--context", 64)
    lines = [line.split() for line in shown.splitlines() if line[:5].strip().isdigit()]
    overloaded = sum(int(line[-1]) for line in lines)
    heads = sum(int(count) for line in lines for count in line[-4:])
    assert float(lines[2][4]) < 2.2 < float(lines[0][4]) and int(lines[2][-1]) > 0
    assert f"overload: {100 * overloaded / heads:.1f} % of heads" in shown
    assert "quarter of the maximum (observed, each head as a fraction of its layer's entropy_bound)" in shown


def test_no_more_tokens_are_read_than_asked(tmp_path, text, capsys):
    hugging_face_model(tmp_path)  # 64 positions
    found = json.loads(said(capsys, tmp_path, "--text", text, "--tokens", "40", "--json"))
    assert (found["tokens"], found["context"], found["sequences"]) == (40, 40, 1)
    found = json.loads(said(capsys, tmp_path, "--text", text, "--tokens", "100", "--json"))
    assert (found["tokens"], found["context"], found["sequences"]) == (64, 64, 1)
    with pytest.raises(UserError, match="--tokens 40 is less than one sequence of --context 41"):
        said(capsys, tmp_path, "--text", text, "--tokens", "40", "--context", "41")


def test_the_heatmap_is_drawn_as_in_the_report(tmp_path, text, capsys, monkeypatch):
    """Layer 1 at the bottom, colours from 0 to the bound, whatever the largest mean is."""
    hugging_face_model(tmp_path)
    drawn = {}

    def draw(panel, values, norm):
        drawn.update(panel=panel, values=values, norm=norm)
        return original(panel, values, norm)

    original = panels.heatmap
    monkeypatch.setattr(panels, "heatmap", draw)
    figure = tmp_path / "heads.png"
    found = json.loads(said(capsys, tmp_path, "--text", text, "--figure", figure, "--json"))
    assert drawn["values"].tolist() == found["entropy_mean"]
    assert (drawn["norm"].vmin, drawn["norm"].vmax) == (0, max(found["entropy_bound"]))
    assert drawn["norm"].vmax > found["maximum"]["observed"]
    assert drawn["panel"].get_ylim() == (0.5, 3.5) and list(drawn["panel"].get_yticks()) == [1, 2, 3]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_of_ours(tmp_path, text, capsys):
    model, ids = own_checkpoint(tmp_path)
    arguments = ["--text", text, "--tokenizer", tmp_path / "tokenizer.json", "--json"]
    found = json.loads(said(capsys, tmp_path, *arguments))
    assert json.loads(said(capsys, tmp_path, *arguments, "--batch", 10**20))["tokens"] == found["tokens"]
    expected = measure(model, ids[: len(ids) // 32 * 32].reshape(-1, 32))
    torch.testing.assert_close(torch.tensor(found["entropy_mean"]).double(), expected.mean, atol=1e-6, rtol=0)
    assert json.loads(said(capsys, tmp_path / "checkpoint.safetensors", *arguments))["tokens"] == found["tokens"]
    high = (expected.mean >= 0.75 * found["maximum"]["causal_bound"]).double().mean().item()
    assert found["of_bound"]["overload"]["fraction"] == high


def test_a_saved_regularised_model_is_measured_with_its_temperatures(tmp_path, text, capsys):
    hugging_face_model(tmp_path)
    plain = json.loads(said(capsys, tmp_path, "--text", text, "--json"))
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    EntropyRegularizer(model, context=64, temperature_init=1e6)
    model.save_pretrained(tmp_path)
    flat = json.loads(said(capsys, tmp_path, "--text", text, "--json"))
    assert min(map(min, flat["entropy_mean"])) == pytest.approx(flat["maximum"]["causal_bound"], abs=1e-3)
    assert min(map(min, plain["entropy_mean"])) < flat["maximum"]["causal_bound"] - 0.01


def test_a_regulariser_of_fewer_positions_or_of_none(tmp_path, text, capsys):
    """Temperatures for 32 positions of 64: they are what is measured. And a config.json that says nonsense of one."""
    hugging_face_model(tmp_path)
    model = GPT2LMHeadModel.from_pretrained(tmp_path)
    EntropyRegularizer(model, context=32, temperature_init=2.0)
    model.save_pretrained(tmp_path)
    found = json.loads(said(capsys, tmp_path, "--text", text, "--json"))
    assert found["context"] == 32
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"entropy_regularizer": {"foo": 1}}))
    with pytest.raises(UserError, match="entropy_regularizer in .*config.json is none of this project's"):
        cli.main(["entropy", str(tmp_path), "--text", str(text)])


def test_the_landscape_of_anybodys_model(tmp_path, text, capsys):
    """Gini, steepness, distance from another model and the heatmap, against the functions that make the paper's."""
    model, _ = hugging_face_model(tmp_path / "model")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :32] *= 20
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "model", other)
    model.save_pretrained(other)
    base = tmp_path / "base.json"
    base.write_text(said(capsys, tmp_path / "model", "--text", text, "--json"))
    figure = tmp_path / "heads.svg"
    drawn = ["--text", text, "--baseline", base, "--figure", figure]
    found = json.loads(said(capsys, other, *drawn, "--json"))
    mean, first = (np.array(one["entropy_mean"]) for one in (found, json.loads(base.read_text())))
    assert found["landscape"]["gini_by_layer"] == pytest.approx(landscape.gini_by_layer(mean).tolist())
    assert np.array(found["landscape"]["steepness"]) == pytest.approx(landscape.steepness(mean))
    assert found["landscape"]["range"] == pytest.approx([mean.min(), mean.max()])
    distances = landscape.wasserstein_1_by_layer(mean, first).tolist()
    assert found["landscape"]["wasserstein_1_by_layer"] == pytest.approx(distances) and min(distances) > 0.01
    assert json.loads(base.read_text())["landscape"]["wasserstein_1_by_layer"] is None
    picture = figure.read_text()
    assert picture.count("QuadMesh") == 2 and "<image" not in picture  # heatmap and colour bar, in vectors
    assert not list(tmp_path.glob("*.tmp"))
    told = said(capsys, other, *drawn)
    assert "landscape: Gini by layer " in told and f"Wasserstein-1 to {base} by layer, nats: " in told


def test_heads_that_are_not_finite_are_told(tmp_path, text, capsys):
    model, _ = own_checkpoint(tmp_path)
    with torch.no_grad():
        model.blocks[1].attention.query.weight[0, 0] = float("nan")  # the first head of the last layer
    checkpoint.save(tmp_path / "checkpoint.safetensors", model)
    table = said(capsys, tmp_path, "--text", text, "--tokenizer", tmp_path / "tokenizer.json").splitlines()
    assert table[5].endswith("1 not finite") and "collapse: " in table[-2]
    arguments = ["--text", text, "--tokenizer", tmp_path / "tokenizer.json", "--json"]
    assert None in json.loads(said(capsys, tmp_path, *arguments))["landscape"]["steepness"][1]


@pytest.mark.parametrize(
    "mean", ["[[1" + "0" * 400 + "]]", "[[Infinity]]", '[["' + "x" * 10000 + '"]]', "[[1], [1, 2]]", "{}"]
)
def test_a_baseline_that_is_no_table_of_numbers_is_one_short_line(tmp_path, mean):
    path = tmp_path / "other.json"
    path.write_text(f'{{"entropy_mean": {mean}}}')
    with pytest.raises(UserError, match="is no output of `aero entropy --json`") as refused:
        entropy_command._baseline(path)
    assert len(str(refused.value)) < 300 + len(str(path))


def test_bad_input_is_one_line(tmp_path, text):
    own_checkpoint(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.txt").write_text("x")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with open(tmp_path / "large.txt", "wb") as file:
        file.truncate(3 << 30)
    for name, content in (("damaged", "{"), ("unknown", '{"model_type": "no such"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    hugging_face_model(tmp_path / "untold")
    for path in (tmp_path / "untold").glob("tokenizer*"):
        path.unlink()
    own = [str(tmp_path), "--tokenizer", str(tmp_path / "tokenizer.json"), "--text"]
    cases = [
        ([str(tmp_path / "empty"), "--text", str(text)], "neither a folder with a Hugging Face model"),
        ([str(tmp_path / "damaged"), "--text", str(text)], "damaged cannot be loaded"),
        ([str(tmp_path / "unknown"), "--text", str(text)], "no such"),
        ([str(tmp_path / "untold"), "--text", str(text)], "is the text empty, or tokenizer.json missing"),
        ([*own, str(tmp_path / "none.txt")], "none.txt"),
        ([*own, str(tmp_path / "binary")], "not UTF-8"),
        ([*own, str(tmp_path / "large.txt")], "more than the 268,435,456 that are read; give a part of it"),
        ([*own, str(tmp_path / "one.txt")], "longer --text"),
        ([*own, str(text), "--context", "33"], "exceeds the model's 32 positions"),
        ([*own, str(text), "--tokens", "0"], "--tokens must be at least 1"),
        ([*own, str(text), "--figure", "heads.jpg"], "must end in one of .svg, .png, .pdf"),
        ([*own, str(text), "--baseline", str(text)], "is no output of `aero entropy --json`"),
        ([*own, str(text), "--figure", str(tmp_path / "no" / "such.svg")], "cannot be written: there is no folder"),
    ]
    code = "import sys, json; from aero.errors import run_main; from aero.cli import main\n" + (
        "for arguments in json.loads(sys.argv[1]):\n    try: run_main(main, ['entropy', *arguments])\n"
        "    except SystemExit as end: print(end.code)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, json.dumps([arguments for arguments, _ in cases])],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.stdout.split() == ["1"] * len(cases), finished.stderr
    lines = [line for line in finished.stderr.splitlines() if not line.startswith("[transformers]")]
    assert len(lines) == len(cases), finished.stderr
    for line, (_, named) in zip(lines, cases, strict=True):
        assert line.startswith("error: ") and named in line


def test_a_saved_half_is_measured_in_float32_unless_asked(tmp_path, text, capsys):
    model, ids = hugging_face_model(tmp_path / "m")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "m")
    found = {}
    for dtype in ("float32", "auto"):
        asked = (tmp_path / "m", "--text", text, "--context", 16, "--tokens", 64, "--dtype", dtype)
        found[dtype] = json.loads(said(capsys, *asked, "--json"))
        named = {"float32": "float32", "auto": "bfloat16"}[dtype]
        assert (found[dtype]["dtype"], found[dtype]["device"], found[dtype]["bos"]) == (named, "cpu", False)
        assert f"; {named} on cpu\n" in said(capsys, *asked)
    exact = measure(model.float(), ids[:64].reshape(4, 16)).mean
    torch.testing.assert_close(torch.tensor(found["float32"]["entropy_mean"]), exact.float(), atol=1e-5, rtol=0)
    assert found["auto"]["entropy_mean"] != found["float32"]["entropy_mean"]


def test_a_sequence_begins_with_the_tokenizers_token_if_asked(tmp_path, text, capsys):
    model, ids = hugging_face_model(tmp_path / "m")
    asked = (tmp_path / "m", "--text", text, "--context", 16, "--tokens", 64, "--bos")
    with pytest.raises(UserError, match="has no token that begins a sequence: leave --bos out"):
        cli.main(["entropy", *map(str, asked)])
    path = tmp_path / "m" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"bos_token": "Z"}))
    found = json.loads(said(capsys, *asked, "--json"))
    begun = torch.nn.functional.pad(ids[:60].reshape(4, 15), (1, 0), value=ord("Z") - 33)
    expected = measure(model, begun).mean
    assert found["bos"] is True and found["sequences"] == 4
    torch.testing.assert_close(torch.tensor(found["entropy_mean"]), expected.float(), atol=1e-5, rtol=0)
    assert f"4 sequences of 16 tokens of {text}, the first of them {ord('Z') - 33}; float32" in said(capsys, *asked)


def test_a_checkpoint_of_ours_has_neither_dtype_nor_first_token(tmp_path, text):
    own_checkpoint(tmp_path)
    for option in (("--bos",), ("--dtype", "bfloat16")):
        with pytest.raises(UserError, match="--bos and --dtype are for Hugging Face models"):
            cli.main(["entropy", str(tmp_path), "--text", str(text), *option])
