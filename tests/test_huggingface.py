"""Entropies of Hugging Face models against their own attention weights, and the regulariser under their Trainer."""

import copy
import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_hugging_face import CONFIGS, GROUPED, padded, some_ids, tiny
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    GptOssConfig,
    MambaConfig,
    MambaForCausalLM,
)

from aero import row_entropy
from aero.entropy import BLOCKS, EntropyRegularizer, causal_bound, measure
from aero.hf.measure import row_entropies
from aero.records import ROOT


def by_output_attentions(model, ids, mask=None):
    """-sum p log p of the weights that the model itself gives away, (L, B, H, T), float64."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    positions = None if mask is None else (mask.cumsum(-1) - 1).clamp_min(0)
    with torch.no_grad():
        given = eager(ids, attention_mask=mask, position_ids=positions, output_attentions=True).attentions
    p = torch.stack(given).double()
    return -torch.special.xlogy(p, p).sum(-1)


@pytest.mark.parametrize("padding", [None, "left", "right"])
@pytest.mark.parametrize("name", CONFIGS)
def test_entropies_are_those_of_output_attentions(name, padding):
    model, ids = tiny(name), some_ids()
    before = model.config._attn_implementation
    mask = None if padding is None else padded(padding, [100, 71, 2])
    found = row_entropies(model, ids, mask)
    expected = by_output_attentions(model, ids, mask)
    if mask is not None:
        expected = expected * mask[:, None]
    assert expected.max() > 1
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    assert model.config._attn_implementation == before


def test_the_output_stays_what_it_was():
    for name in CONFIGS:
        model, ids, mask = tiny(name), some_ids(), padded("left", [100, 60, 3])
        with torch.no_grad():
            before = model(ids, attention_mask=mask).logits
            model.set_attn_implementation("aero_entropy")
            after = model(ids, attention_mask=mask).logits
        real = mask.bool()
        torch.testing.assert_close(after[real], before[real], atol=1e-4, rtol=1e-4)


def test_no_layer_holds_a_matrix_and_none_is_kept(monkeypatch):
    """Only row entropies leave a layer, and a block of rows is the most a layer has at once."""
    sizes = []
    whole = row_entropy._probabilities

    def watched(*arguments):
        for rows, keys, p in whole(*arguments):
            sizes.append(p.shape[-2] * p.shape[-1])
            yield rows, keys, p

    monkeypatch.setattr(row_entropy, "_probabilities", watched)
    row_entropies(tiny("mistral"), some_ids(1, 160))
    # Rows 128 to 159 see keys 120 to 159 through a window of 9: no key before that is touched.
    assert len(sizes) == 9 and max(sizes) == 64 * (64 + 8) and sizes[2] == 32 * 40


def test_measured_statistics_of_padded_sequences_are_those_of_the_sequences():
    for name in ("gpt2", "mistral"):
        model, ids, lengths = tiny(name), some_ids(), [100, 71, 20]
        alone = [measure(model, ids[i : i + 1, -n:]) for i, n in enumerate(lengths)]
        together = measure(model, {"input_ids": ids, "attention_mask": padded("left", lengths)})
        mean = torch.stack([one.mean for one in alone])
        torch.testing.assert_close(together.mean, mean.mean(0), atol=1e-6, rtol=0)
        torch.testing.assert_close(together.sem, mean.std(0) / math.sqrt(3), atol=1e-6, rtol=0)
        assert together.tokens == 191 and together.by_position.shape == (3, 100)
        first, later, last = (torch.stack([o.by_position[:, i] for o in alone if i < o.tokens]) for i in (0, 50, 99))
        for position, values in ((0, first), (50, later), (99, last)):
            torch.testing.assert_close(together.by_position[:, position], values.mean(0), atol=1e-6, rtol=0)
        in_batches = measure(model, [ids[i : i + 1, -n:] for i, n in enumerate(lengths)])
        torch.testing.assert_close(in_batches.mean, together.mean, atol=1e-6, rtol=0)
        torch.testing.assert_close(in_batches.by_position, together.by_position, atol=1e-6, rtol=0)


def test_statistics_are_those_of_a_model_that_gives_its_entropies():
    """The same keys as for a checkpoint of ours, and the same values."""
    model, ids = tiny("gpt2"), some_ids(70, 12)
    found = measure(model, ids.split(16))
    expected = measure(lambda part, entropy: (None, row_entropies(model, part)), ids.split(16))
    for name in ("mean", "sem", "by_position", "median", "by_position_sem", "blocks"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=1e-6, rtol=0)
    assert found.blocks.shape == (BLOCKS, 3, 4) and found.summary().keys() == {*expected.summary(), "entropy_bound"}


def test_blocks_and_medians_of_padded_sequences():
    model, ids, lengths = tiny("gpt2"), some_ids(4), [100, 71, 20, 100]
    alone = [row_entropies(model, ids[i : i + 1, -n:]).double() for i, n in enumerate(lengths)]  # (L, 1, H, T)
    found = measure(model, [{"input_ids": ids[:2], "attention_mask": padded("left", lengths[:2])}, *(
        {"input_ids": ids[i : i + 1], "attention_mask": padded("left", lengths[i : i + 1])} for i in (2, 3)
    )])  # fmt: skip
    rows = torch.cat([one[:, 0] for one in alone], -1)  # (L, H, 291)
    torch.testing.assert_close(found.median, rows.median(-1).values, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.blocks, torch.stack([one.mean((1, 3)) for one in alone]), atol=1e-6, rtol=0)
    for position in (0, 50, 99):
        values = torch.stack([o.mean(2)[:, 0, position] for o in alone if position < o.shape[-1]])
        expected = values.std(0) / math.sqrt(len(values))
        torch.testing.assert_close(found.by_position_sem[:, position], expected, atol=1e-6, rtol=0)
    assert measure(model, ids[:1]).by_position_sem.isnan().all()  # one block has no spread


def test_bounds_follow_the_mask():
    causal = measure(tiny("llama"), some_ids(2, 40))
    torch.testing.assert_close(causal.bound, torch.full((3,), causal_bound(40), dtype=torch.float64))
    windowed = measure(tiny("qwen2"), some_ids(2, 40))
    window = sum(math.log(min(i, 9)) for i in range(1, 41)) / 40
    expected = [causal_bound(40), causal_bound(40), window]
    torch.testing.assert_close(windowed.bound, torch.tensor(expected, dtype=torch.float64))
    assert (windowed.mean <= windowed.bound[:, None] + 1e-6).all() and (windowed.mean >= 0).all()
    assert windowed.summary()["entropy_bound"] == pytest.approx(expected)


@pytest.mark.parametrize(("name", "windowed"), [("mistral", [0, 1, 2]), ("qwen2", [2]), ("gpt2", [])])
def test_uniform_attention_is_overloaded_under_any_mask(name, windowed):
    """However few keys a window or a short sequence beside a long one leaves: shares are of what the mask allows."""
    model = tiny(name)
    for parameter, weight in model.named_parameters():
        if any(part in parameter for part in ("c_attn", "q_proj", "k_proj")):
            torch.nn.init.zeros_(weight)
    statistics = measure(model, {"input_ids": some_ids(2), "attention_mask": padded("right", [100, 12])})
    bound = (causal_bound(100) + causal_bound(12)) / 2
    for layer in range(3):
        assert (statistics.bound[layer] < bound - 0.5) == (layer in windowed)
    summary = statistics.summary()
    assert summary["overload"] == {"fraction": 1.0, "layers": [0, 1, 2]} and summary["collapse"]["fraction"] == 0
    assert summary["quarters"]["entropy_bound"] == summary["quarters"]["observed"] == [0, 0, 0, 1]


def test_uniform_and_one_hot_attention():
    model = tiny("gpt2")
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
    uniform = row_entropies(model, some_ids(1, 50))
    torch.testing.assert_close(uniform, torch.arange(1, 51).float().log().expand_as(uniform))
    summary = measure(model, some_ids(1, 50)).summary()
    assert summary["overload"] == {"fraction": 1.0, "layers": [0, 1, 2]} and summary["collapse"]["fraction"] == 0
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.bias[:32] = 1e4  # all queries alike, and keys along them differ by token
            block.attn.c_attn.weight[:, 32:64] = torch.randn(32, 32)
    assert row_entropies(model, some_ids(1, 50)).max() < 1e-3


def test_one_token_and_logits_that_are_not_finite_have_a_defined_answer():
    model = tiny("gpt2")
    alone = measure(model, some_ids(4, 1))
    assert not alone.mean.any()
    assert alone.summary()["overload"] is None and alone.summary()["rule"].startswith("none")
    with torch.no_grad():
        model.transformer.h[1].attn.c_attn.weight[0, 0] = math.nan
    broken = measure(model, some_ids(2, 20))
    assert broken.mean[0].isfinite().all() and broken.mean[1, 0].isnan() and broken.mean[2].isnan().all()
    summary = broken.summary()
    assert summary["entropy_mean"][2] == [None] * 4 and set(summary["collapse"]["layers"]) >= {2}
    alone = measure(model, some_ids(4, 1)).summary()
    assert alone["entropy_mean"][2] == [None] * 4 and set(alone["collapse"]["layers"]) >= {2}
    assert not alone["rule"].startswith("none")


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (torch.zeros(2, 0, dtype=torch.long), "there must be some"),
        (torch.zeros(5, dtype=torch.long), "shape"),
        (torch.zeros(1, 161, dtype=torch.long), "161 tokens exceed the 160 positions"),
        ([], "no tokens"),
        ([[1, 2, 3]], "must be a tensor .* got list"),
        ({"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.tensor([[1, 1, 1], [0, 0, 0]])}, "a 1"),
    ],
)
def test_ids_that_cannot_be_measured(ids, named):
    with pytest.raises(ValueError, match=named):
        measure(tiny("gpt2"), ids)


def test_a_model_that_hides_its_attention_weights():
    without = MambaForCausalLM(MambaConfig(vocab_size=67, hidden_size=32, num_hidden_layers=2))
    with pytest.raises(ValueError, match="MambaForCausalLM hides its attention weights, or has none"):
        measure(without, some_ids())
    hidden = BloomForCausalLM(BloomConfig(vocab_size=67, hidden_size=32, n_layer=2, n_head=4))
    for model, why in ((without, "hides"), (hidden, "cannot be switched to one that knows its entropies")):
        with pytest.raises(ValueError, match=f"ForCausalLM {why}"):
            EntropyRegularizer(model, context=100)
        assert not hasattr(model, "reg_threshold_weights")
    with pytest.raises(ValueError, match="Linear hides its attention weights"):
        measure(torch.nn.Linear(2, 2), some_ids())


class Around(torch.nn.Module):
    """A model in a module of another's, which hands on every keyword."""

    def __init__(self, model, name):
        super().__init__()
        self.add_module(name, model)
        self._name = name

    def forward(self, *args, **kwargs):
        return getattr(self, self._name)(*args, **kwargs)


class Tuned(Around):
    """PEFT's model, as far as it is asked."""

    def get_base_model(self):
        return getattr(self, self._name)


def test_a_wrapped_model_is_measured_as_the_one_inside():
    model, ids = tiny("gpt2"), some_ids(2, 20)
    expected = measure(model, ids).mean
    for wrapped in (Around(model, "module"), Around(model, "_orig_mod"), Tuned(Around(model, "module"), "inner")):
        assert torch.equal(measure(wrapped, ids).mean, expected)


def test_a_model_that_tells_its_entropies_is_asked_whatever_it_holds():
    class Telling(Around):
        def forward(self, ids, entropy):
            return None, torch.full((1, len(ids), 2, ids.shape[1]), 0.25)

    assert measure(Telling(tiny("gpt2"), "module"), some_ids(2, 20)).mean.tolist() == [[0.25, 0.25]]


def test_a_wrapper_that_cannot_be_looked_into_says_so():
    """Its forward takes any keyword, and the second result of what is inside is a cache, a tuple or nothing."""
    model, ids = tiny("gpt2"), some_ids(1, 20)
    assert not isinstance(model(ids, entropy=True)[1], torch.Tensor)  # what `measure` must not take for entropies
    with pytest.raises(ValueError, match="Around hides its attention weights"):
        measure(Around(model, "network"), ids)
    with pytest.raises(ValueError, match="Around hides its attention weights"):
        measure(Around(torch.nn.Embedding(67, 4), "network"), ids)  # takes no `entropy`
    for result in (torch.zeros(2, 3, 4, 5, 6), (None, torch.zeros(2, 3)), {"logits": None}, (None,)):
        with pytest.raises(ValueError, match="function hides its attention weights"):
            measure(lambda ids, entropy, result=result: result, ids)
    prompted = Tuned(model, "inner")
    prompted.active_peft_config = SimpleNamespace(is_prompt_learning=True)
    with pytest.raises(ValueError, match="Tuned hides its attention weights"):
        measure(prompted, ids)


def test_an_error_of_the_models_own_stays_its_own():
    def broken(ids, entropy):
        raise TypeError("unsupported operand")

    with pytest.raises(TypeError, match="unsupported operand"):
        measure(broken, some_ids())


def test_dropout_and_changed_logits_are_refused():
    config = copy.deepcopy(CONFIGS["gpt2"])
    config.attn_pdrop = 0.1
    model = AutoModelForCausalLM.from_config(config).train()
    model.set_attn_implementation("aero_entropy")
    with pytest.raises(ValueError, match="attn_pdrop=0.0"):
        model(some_ids(), labels=some_ids())
    model = tiny("gpt2")
    bias = torch.zeros(1, 1, 100, 100).fill_(0.5)
    model.set_attn_implementation("aero_entropy")
    with pytest.raises(ValueError, match="adds to the logits"):
        model(some_ids(), attention_mask=bias)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (
            Gemma2Config(**GROUPED, attn_logit_softcapping=50.0),
            "Gemma2Attention uses softcap, which changes the logits",
        ),
        (GptOssConfig(**GROUPED, num_local_experts=2, num_experts_per_tok=1), "GptOssAttention uses s_aux"),
    ],
)
def test_models_that_change_their_logits_are_refused(config, named):
    with pytest.raises(ValueError, match=named):
        measure(AutoModelForCausalLM.from_config(config), some_ids())


def test_a_bias_by_position_is_refused():
    """No causal model has one here; the interface hands on whatever a model gives."""
    attention = AttentionInterface()["aero_entropy"]
    query = torch.ones(1, 2, 3, 4)
    with pytest.raises(ValueError, match="Identity uses position_bias, which changes the logits"):
        attention(torch.nn.Identity(), query, query, query, None, position_bias=torch.zeros(1, 2, 3, 3))
    attention(torch.nn.Identity(), query, query, query, None, position_bias=None)


def test_without_transformers_the_remedy_is_named():
    code = "import sys; sys.modules['transformers'] = None; from aero.entropy import measure, EntropyRegularizer"
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert finished.stderr.endswith(
        "ImportError: EntropyRegularizer needs transformers: pip install -e '.[hf]' in your clone\n"
    )


def test_half_precision_models_are_measured_in_float32_rows():
    model, ids = tiny("llama"), some_ids()
    exact, rough = row_entropies(model, ids), row_entropies(model.bfloat16(), ids)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough[0], exact[0], atol=0.05, rtol=0)
