"""`aero entropy MODEL --text FILE` on a saved model of every family, its table and its --json."""

import copy
import json
import re
import statistics

import pytest
import torch
from tiny_hugging_face import CONFIGS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, BloomConfig, PreTrainedTokenizerFast

from aero import cli

TEXT = "def add(a, b):\n    return a + b  # naïve\n" * 20
FAMILIES = CONFIGS | {"bloom": BloomConfig(hidden_size=32, n_layer=3, n_head=4, initializer_range=0.3)}


def saved(name, folder):
    """A tiny model of bytes with its tokenizer, as `save_pretrained` writes them."""
    torch.manual_seed(0)
    config = copy.deepcopy(FAMILIES[name])
    config.vocab_size = 300  # bytes, and what transformers adds to a tokenizer by the model's type
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.save_pretrained(folder)
    return model, torch.tensor(fast(TEXT)["input_ids"])


def rows_by_output_attentions(model, ids):
    """(L, B, H, T), float64, of the weights that the model itself gives away."""
    eager = copy.deepcopy(model)
    eager.config._attn_implementation = "eager"
    with torch.no_grad():
        p = torch.stack(eager(ids, output_attentions=True).attentions).double()
    return -torch.special.xlogy(p, p).sum(-1)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_command_measures_every_family(name, tmp_path, capsys):
    model, ids = saved(name, tmp_path / "model")
    text = tmp_path / "held_out.txt"
    text.write_text(TEXT, encoding="utf-8")
    asked = ["entropy", str(tmp_path / "model"), "--text", str(text), "--context", "40", "--tokens", "400"]
    cli.main([*asked, "--json"])
    found = json.loads(capsys.readouterr().out)
    rows = rows_by_output_attentions(model, ids[:400].reshape(10, 40))  # (L, 10, H, 40)
    assert (found["class"], found["layers"], found["heads"]) == (type(model).__name__, 3, 4)
    assert (found["context"], found["sequences"], found["tokens"]) == (40, 10, 400)
    by_sequence = rows.mean(-1)  # (L, 10, H)
    for key, expected in (
        ("entropy_mean", by_sequence.mean(1)),
        ("entropy_sem", by_sequence.std(1) / 10**0.5),
        ("entropy_by_position", rows.mean((1, 2))),
    ):
        torch.testing.assert_close(torch.tensor(found[key]).double(), expected, atol=1e-5, rtol=0)

    cli.main(asked)
    table = capsys.readouterr().out.splitlines()
    assert f"{type(model).__name__}, 3 layers x 4 heads; 10 sequences of 40 tokens" in table[0]
    assert table[1].endswith("±: standard error of the mean, over 10 blocks of consecutive sequences.")
    for layer, line in enumerate(table[4:7]):
        mean, error = re.match(rf" +{layer + 1} +(\d\.\d{{3}})±(\d\.\d{{3}}) ", line).groups()
        of_sequences = by_sequence[layer].mean(1).tolist()  # ten sequences are ten blocks
        assert float(mean) == pytest.approx(statistics.mean(of_sequences), abs=6e-4)
        assert float(error) == pytest.approx(statistics.stdev(of_sequences) / 10**0.5, abs=6e-4)
        assert line.index("±") == table[4].index("±") and float(error) > 0


def test_one_sequence_has_no_sampling_error(tmp_path, capsys):
    saved("gpt2", tmp_path / "model")
    text = tmp_path / "held_out.txt"
    text.write_text(TEXT, encoding="utf-8")
    cli.main(["entropy", str(tmp_path / "model"), "--text", str(text), "--context", "40", "--tokens", "40"])
    table = capsys.readouterr().out
    assert "One block of sequences: no sampling error." in table and "±" not in table and "nan" not in table
