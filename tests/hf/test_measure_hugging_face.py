"""Attention entropy of Hugging Face models, against the attention weights that the models return."""

import copy
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import accelerate
import pytest
import torch
from tiny_hugging_face import CONFIGS, GROUPED, padded, row_entropies, rows_by_output_attentions, some_ids, tiny
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    DiffLlamaConfig,
    Gemma2Config,
    MambaConfig,
    MambaForCausalLM,
    ViTConfig,
    ViTModel,
    ZambaConfig,
)

from aero import row_entropy
from aero.entropy import EntropyRegularizer, causal_bound, measure
from aero.entropy_statistics import BLOCKS
from aero.hf.attention import IMPLEMENTATION


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_entropies_equal_those_of_output_attentions(name, padding):
    model, ids = tiny(name).to(torch.float64 if padding is None else torch.float32), some_ids(3)
    before = model.config._attn_implementation
    mask = None if padding is None else padded(padding, [80, 51, 2])
    found = row_entropies(model, ids, mask)
    expected = rows_by_output_attentions(model, ids, mask)
    if mask is not None:
        expected = expected * mask[:, None]
    assert expected.max() > 1
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)  # of float64, they make NaN of padding
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", CONFIGS)
def test_the_output_of_the_model_does_not_change(name):
    model, ids, mask = tiny(name), some_ids(), padded("left", [80, 40])
    with torch.no_grad():
        before = model(ids, attention_mask=mask).logits
        model.set_attn_implementation(IMPLEMENTATION)
        after = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(after[mask.bool()], before[mask.bool()], atol=1e-4, rtol=1e-4)


def test_a_window_is_computed_in_blocks_of_the_visible_keys(monkeypatch):
    sizes = []
    whole = row_entropy._probabilities

    def watched(*arguments):
        for rows, keys, p in whole(*arguments):
            sizes.append((p.shape[-2], p.shape[-1]))
            yield rows, keys, p

    monkeypatch.setattr(row_entropy, "_probabilities", watched)
    row_entropies(tiny("qwen2"), some_ids(1, 160))
    assert sizes[6:] == [(64, 64), (64, 72), (32, 40)]  # rows 128 to 159 see keys 120 to 159 through a window of 9


def test_statistics_of_padded_sequences_equal_those_of_the_sequences_alone():
    model, ids, lengths = tiny("gpt2"), some_ids(4), [80, 51, 20, 80]
    rows = [row_entropies(model, ids[i : i + 1, -n:]).double() for i, n in enumerate(lengths)]  # (L, 1, H, n)
    batches = [
        {"input_ids": ids[:2], "attention_mask": padded("left", lengths[:2])},
        {"input_ids": ids[2:], "attention_mask": padded("left", lengths[2:])},
    ]
    found = measure(model, batches)
    means = torch.stack([one.mean((1, 3)) for one in rows])  # (N, L, H)
    torch.testing.assert_close(found.mean, means.mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.sem, means.std(0) / 2, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.blocks, means, atol=1e-6, rtol=0)
    every = torch.cat([one[:, 0] for one in rows], -1)  # (L, H, 231)
    torch.testing.assert_close(found.median, every.median(-1).values, atol=1e-6, rtol=0)
    assert found.tokens == sum(lengths) and found.by_position.shape == (3, 80)
    for position in (0, 50, 79):
        values = torch.stack([one.mean(2)[:, 0, position] for one in rows if position < one.shape[-1]])
        torch.testing.assert_close(found.by_position[:, position], values.mean(0), atol=1e-6, rtol=0)
        expected = values.std(0) / math.sqrt(len(values))
        torch.testing.assert_close(found.by_position_sem[:, position], expected, atol=1e-6, rtol=0)
    assert measure(model, ids[:1]).by_position_sem.isnan().all()


def test_a_model_that_returns_its_entropies_gives_the_same_statistics():
    model, ids = tiny("gpt2"), some_ids(70, 12)
    found = measure(model, ids.split(16))
    expected = measure(lambda part, entropy: (None, row_entropies(model, part)), ids.split(16))
    for name in ("mean", "sem", "by_position", "median", "by_position_sem", "blocks"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-6, rtol=0)
    assert found.blocks.shape == (BLOCKS, 3, 4) and found.summary().keys() == {*expected.summary(), "entropy_bound"}


def test_uniform_attention_is_overloaded_also_under_a_window_and_padding():
    """Heads are compared with what their layer's mask allows, however few keys that leaves."""
    for name, windowed in (("qwen2", [2]), ("gpt2", [])):
        model = tiny(name)
        for parameter, weight in model.named_parameters():
            if any(part in parameter for part in ("c_attn", "q_proj", "k_proj")):
                torch.nn.init.zeros_(weight)
        statistics = measure(model, {"input_ids": some_ids(2), "attention_mask": padded("right", [80, 12])})
        causal = (causal_bound(80) + causal_bound(12)) / 2
        window = sum(sum(math.log(min(i, 9)) for i in range(1, n + 1)) / n for n in (80, 12)) / 2
        expected = [window if layer in windowed else causal for layer in range(3)]
        assert statistics.bound.tolist() == pytest.approx(expected)
        summary = statistics.summary()
        assert summary["overload"] == {"fraction": 1.0, "layers": [0, 1, 2]} and summary["collapse"]["fraction"] == 0
        assert summary["quarters"]["entropy_bound"] == summary["quarters"]["observed"] == [0, 0, 0, 1]


def test_documents_packed_into_a_row_are_sequences_of_their_own():
    for model in (tiny("llama"), tiny("gpt2"), tiny("qwen2")):
        ids, lengths = some_ids(1, 30), [12, 18]
        positions = torch.cat([torch.arange(length) for length in lengths])[None]
        found = measure(model, {"input_ids": ids, "labels": ids, "position_ids": positions})
        alone = [row_entropies(model, part).double().mean((1, 3)) for part in ids.split(lengths, 1)]
        torch.testing.assert_close(found.mean, torch.stack(alone).mean(0), atol=1e-5, rtol=0)
        assert found.tokens == 30 and found.by_position.shape == (3, 18)
    shifted = measure(tiny("gpt2"), {"input_ids": ids, "position_ids": torch.arange(5, 35)[None]})
    assert shifted.by_position.shape == (3, 30) and (shifted.mean != measure(tiny("gpt2"), ids).mean).all()


def test_other_entries_of_a_batch_are_used_or_refused():
    model, ids = tiny("gpt2"), some_ids(2, 20)
    kinds = measure(model, {"input_ids": ids, "token_type_ids": torch.full_like(ids, 3)}).mean
    with torch.no_grad():  # GPT-2 adds the embedding of the type to that of the token
        model.transformer.wpe.weight += model.transformer.wte.weight[3]
    torch.testing.assert_close(kinds, measure(model, ids).mean, atol=1e-5, rtol=0)
    ones, packed = torch.ones_like(ids), torch.arange(20).remainder(10).expand(2, 20)
    for name, others, message in (
        ("llama", {"pixel_values": torch.zeros(2, 3, 8, 8)}, "'pixel_values'"),
        ("llama", {"token_type_ids": ones}, "takes no token_type_ids"),
        ("llama", {"position_ids": torch.zeros(2, 7)}, "position_ids must"),
        ("llama", {"position_ids": packed, "attention_mask": ones}, "leave one of them out"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(tiny(name), {"input_ids": ids} | others)
    assert measure(tiny("llama"), {"input_ids": ids, "token_type_ids": 0 * ids}).tokens == 40


def test_attentions_are_counted_by_module():
    """Zamba's layers share one attention; DiffLlama's subtract two softmaxes."""
    sizes = GROUPED | {"pad_token_id": 0}
    zamba = ZambaConfig(**sizes, layer_types=["mamba", "hybrid", "hybrid"])
    assert measure(AutoModelForCausalLM.from_config(zamba), some_ids(1, 9)).mean.shape == (2, 4)
    different = AutoModelForCausalLM.from_config(DiffLlamaConfig(**sizes))
    for use in (lambda: measure(different, some_ids(1, 9)), lambda: EntropyRegularizer(different, context=9)):
        with pytest.raises(ValueError, match="combines 2 attentions"):
            use()


def test_offloaded_weights():
    ids = some_ids(2, 20)
    expected = measure(tiny("llama"), ids).mean
    offloaded = accelerate.cpu_offload(tiny("llama"), torch.device("cpu"))
    assert offloaded.device.type == "meta"
    torch.testing.assert_close(measure(offloaded, ids).mean, expected)
    with pytest.raises(ValueError, match="offloaded"):
        EntropyRegularizer(offloaded, context=20)


def test_logits_that_are_not_finite_are_reported():
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[0, 0] = math.nan
    broken = measure(model, some_ids(2, 20))
    assert broken.mean[0].isfinite().all() and broken.mean[1, 0].isnan() and broken.mean[2].isnan().all()
    summary = broken.summary()
    assert summary["entropy_mean"][2] == [None] * 4 and 2 in summary["collapse"]["layers"]


def test_a_half_precision_model_has_entropies_in_float32():
    model, ids = tiny("llama"), some_ids()
    exact, rough = row_entropies(model, ids), row_entropies(model.bfloat16(), ids)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough[0], exact[0], atol=0.05, rtol=0)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(2, 0, dtype=torch.long), "non-empty"),
        (torch.zeros(5, dtype=torch.long), "shape"),
        (some_ids().float(), "int64 or int32"),
        (torch.tensor([[5, -100]]), "from 0 to 66, .* got -100 to 5"),
        (torch.zeros(1, 161, dtype=torch.long), "161 tokens exceed the 160 positions"),
        ([], "no held-out tokens"),
        ([[1, 2, 3]], "tensor .* got list"),
        ({"input_ids": some_ids(2, 3), "attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "a 1"),
        ({"input_ids": some_ids(2, 3), "attention_mask": torch.ones(2, 4)}, r"the ids' shape \(2, 3\)"),
        ({"input_ids": some_ids(2, 3), "attention_mask": torch.full((2, 3), -1e9)}, "must be 1 where a token is real"),
    ],
)
def test_bad_ids_and_masks(ids, message):
    with pytest.raises(ValueError, match=message):
        measure(tiny("gpt2"), ids)


def test_models_that_cannot_be_measured():
    bart = {"vocab_size": 67, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # fmt: skip
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    for model, message in (
        (MambaForCausalLM(MambaConfig(vocab_size=67, hidden_size=32, num_hidden_layers=2)), "has no attention, or"),
        (BartForConditionalGeneration(BartConfig(**bart)), "has an encoder and a decoder"),
        (ViTModel(ViTConfig(**sizes, image_size=32)), "takes no token ids"),
        (AutoModelForCausalLM.from_config(Gemma2Config(**GROUPED, attn_logit_softcapping=50.0)), "softcap"),
        (torch.nn.Linear(2, 2), "Linear does not expose"),
    ):
        with pytest.raises(ValueError, match=message):
            measure(model, some_ids(2, 20))


def test_options_that_change_the_logits_are_refused():
    attention = AttentionInterface()[IMPLEMENTATION]
    query = torch.ones(1, 2, 3, 4)
    with pytest.raises(ValueError, match="position_bias"):
        attention(torch.nn.Identity(), query, query, query, None, position_bias=torch.zeros(1, 2, 3, 3))
    with pytest.raises(ValueError, match="dropout"):
        attention(torch.nn.Identity(), query, query, query, None, dropout=0.1)
    with pytest.raises(ValueError, match="adds to the logits"):
        attention(torch.nn.Identity(), query, query, query, torch.full((1, 1, 3, 3), 0.5))


class Around(torch.nn.Module):
    """A module that holds a model and passes every call on."""

    def __init__(self, model, name):
        super().__init__()
        self.add_module(name, model)
        self._name = name

    def forward(self, *args, **kwargs):
        return getattr(self, self._name)(*args, **kwargs)


class Tuned(Around):
    """The interface of a PEFT model."""

    def get_base_model(self):
        return getattr(self, self._name)


def test_wrapped_models_are_measured_as_the_model_inside():
    model, ids = tiny("gpt2"), some_ids(2, 20)
    expected = measure(model, ids).mean
    for wrapped in (Around(model, "module"), Around(model, "_orig_mod"), Tuned(Around(model, "module"), "inner")):
        assert torch.equal(measure(wrapped, ids).mean, expected)
    with pytest.raises(ValueError, match="Around does not expose"):
        measure(Around(model, "network"), ids)
    prompted = Tuned(model, "inner")
    prompted.active_peft_config = SimpleNamespace(is_prompt_learning=True)
    with pytest.raises(ValueError, match="Tuned does not expose"):
        measure(prompted, ids)
    with pytest.raises(ValueError, match="function does not expose"):
        measure(lambda ids, entropy: (None, torch.zeros(2, 3)), ids)


def test_a_regularised_model_is_measured_with_its_temperatures():
    whole, ids = tiny("llama"), some_ids()
    plain, stack = row_entropies(whole, ids), copy.deepcopy(whole.base_model)
    for model in (whole, stack):
        for temperature in EntropyRegularizer(model, context=80).temperatures:
            temperature.data.fill_(5.0)
    expected = row_entropies(whole, ids)
    assert (expected - plain).abs().max() > 0.1
    assert torch.equal(row_entropies(stack, ids), expected)  # without the vocabulary projection


def test_without_transformers_the_remedy_is_named():
    code = "import sys; sys.modules['transformers'] = None; from aero.entropy import measure, EntropyRegularizer"
    root = Path(__file__).resolve().parents[2]
    finished = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert finished.stderr.endswith("EntropyRegularizer needs transformers: pip install -e '.[hf]' in your clone\n")
