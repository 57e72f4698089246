"""Token ids and masks that cannot be meant, kinds of models, and masks for every pair of tokens."""

import copy

import pytest
import torch
from tiny_hugging_face import CONFIGS, padded, some_ids, tiny
from transformers import (
    AutoModel,
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    ViTConfig,
    ViTModel,
)

from aero.architecture import parse
from aero.entropy import EntropyRegularizer, entropy_regularization, measure
from aero.hf.measure import row_entropies
from aero.model import GPT, ModelConfig


def own():
    return GPT(parse("SM+LN+G"), ModelConfig(67, 160, layers=1, heads=2, width=8, ffn_width=16)).eval()


WRONG_IDS = [
    (some_ids(2, 20).float(), "int64 or int32; got torch.float32"),
    (some_ids(2, 20) == 0, "int64 or int32; got torch.bool"),
    (some_ids(2, 20).to(torch.uint8), "int64 or int32; got torch.uint8"),
    (torch.tensor([[1, 67]]), "from 0 to 66, as the model has 67 tokens; got 1 to 67"),
    (torch.tensor([[5, -100]]), "from 0 to 66, .* got -100 to 5: are they another tokenizer's, or labels"),
    (some_ids(2, 20)[0], r"\(sequences, tokens\), .* got shape \(20,\)"),
    (some_ids(2, 20)[None], r"\(sequences, tokens\), .* got shape \(1, 2, 20\)"),
    (torch.tensor(3), r"\(sequences, tokens\), .* got shape \(\)"),
    (some_ids(2, 20)[:, :0], r"there must be some; got shape \(2, 0\)"),
]


@pytest.mark.parametrize(("ids", "named"), WRONG_IDS)
def test_ids_that_are_none(ids, named):
    """Whichever way they are handed over: one line of ours, none of torch's."""
    model = tiny("gpt2")
    for ask in (
        lambda: measure(model, ids),
        lambda: measure(model, [some_ids(2, 20), ids]),
        lambda: measure(model, {"input_ids": ids}),
        lambda: row_entropies(model, ids),
        lambda: measure(own(), ids),
        lambda: measure(own(), [some_ids(2, 20), ids]),
    ):
        with pytest.raises(ValueError, match=named):
            ask()


@pytest.mark.parametrize("ids", [None, 3, {"attention_mask": torch.ones(2, 20)}, {"input_ids": [[1, 2]]}, "text"])
def test_what_is_no_tensor_of_ids(ids):
    for model in (tiny("gpt2"), own()):
        with pytest.raises(ValueError, match=r"ids must be a tensor of shape \(sequences, tokens\), .* got \w+$"):
            measure(model, ids)


def test_ids_of_32_bits_are_ids():
    for model in (tiny("gpt2"), own()):
        assert torch.equal(measure(model, some_ids(2, 20).int()).mean, measure(model, some_ids(2, 20)).mean)


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        (torch.ones(20), r"the ids' shape, \(sequences, tokens\) = \(2, 20\); got \(20,\)"),
        (torch.ones(2, 21), r"got \(2, 21\)"),
        (torch.ones(1, 20), r"got \(1, 20\)"),
        (torch.ones(2, 1, 20, 20), r"got \(2, 1, 20, 20\)"),
        ([[1] * 20] * 2, "got list"),
        (torch.zeros(2, 20).fill_(-1e9), "1 where a token is real and 0 where it is padding; .* from -1e.09 to -1e.09"),
        (torch.full((2, 20), 2), "other values, from 2 to 2"),
    ],
)
def test_masks_that_are_none(mask, named):
    with pytest.raises(ValueError, match=named):
        measure(tiny("gpt2"), {"input_ids": some_ids(2, 20), "attention_mask": mask})
    with pytest.raises(ValueError, match=named):
        row_entropies(tiny("gpt2"), some_ids(2, 20), mask)


def test_masks_of_any_type_say_the_same():
    model, ids, mask = tiny("gpt2"), some_ids(2, 20), padded("left", [20, 8], 20)
    for dtype in (torch.bool, torch.float32, torch.uint8):
        assert torch.equal(row_entropies(model, ids, mask.to(dtype)), row_entropies(model, ids, mask))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_its_head_is_measured(name):
    """As `AutoModel` makes it, or taken out of the causal model: the entropies need no logits."""
    model, ids = tiny(name), some_ids(2, 20)
    expected = row_entropies(model, ids)
    bare = AutoModel.from_config(copy.deepcopy(CONFIGS[name])).eval()
    bare.load_state_dict(model.base_model.state_dict())
    for without_head in (bare, model.base_model):
        assert torch.equal(row_entropies(without_head, ids), expected)
    regularizer = EntropyRegularizer(bare.train(), context=20, lambda_=1e-2)
    bare(ids)
    penalty = 1e-2 * 16384 / 40 * entropy_regularization(expected, regularizer.thresholds)
    torch.testing.assert_close(regularizer.penalty, penalty)  # to be added to a loss of one's own


def test_models_of_two_stacks_or_of_no_text_are_refused():
    bart = {"vocab_size": 67, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # fmt: skip
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    for model, why in (
        (BartForConditionalGeneration(BartConfig(**bart)), "has an encoder and a decoder"),
        (ViTModel(ViTConfig(**sizes, image_size=32)), "takes no token ids"),
    ):
        with pytest.raises(ValueError, match=f"{type(model).__name__} {why}"):
            measure(model, some_ids(2, 20))
        with pytest.raises(ValueError, match=f"{type(model).__name__} {why}"):
            EntropyRegularizer(model, context=20)
    decoder = BartForCausalLM(BartConfig(**bart)).eval()
    assert measure(decoder, some_ids(2, 20)).mean.shape == (1, 2)
    # Of a model that sees what follows, every row may reach log T.
    bound = measure(BertModel(BertConfig(**sizes, vocab_size=67)), some_ids(2, 20)).bound
    torch.testing.assert_close(bound, torch.tensor([20.0], dtype=torch.float64).log())


def regularised(name="gpt2", **settings):
    model = tiny(name).train()
    return model, EntropyRegularizer(model, context=100, lambda_=1.0, **settings)


@pytest.mark.parametrize(("ids", "named"), WRONG_IDS)
def test_the_regulariser_refuses_ids_that_are_none(ids, named):
    model, _ = regularised()
    with pytest.raises(ValueError, match=named):
        model(ids)
    with pytest.raises(ValueError, match=named):
        model(input_ids=ids)
    assert model(some_ids(2, 20), labels=some_ids(2, 20)).loss.isfinite()  # and goes on


@pytest.mark.parametrize(
    ("mask", "named"),
    [
        (torch.ones(2, 20, 20), r"\(sequences, tokens\) or \(sequences, 1, queries, keys\); got \(2, 20, 20\)"),
        ({"full_attention": torch.ones(2, 1, 20, 20)}, "got dict"),
        (torch.ones(2, 19), r"of shape \(2, 19\) does not fit ids of shape \(2, 20\)"),
        (torch.ones(3, 20), r"of shape \(3, 20\) does not fit"),
        (torch.ones(3, 1, 20, 20).bool(), r"of shape \(3, 1, 20, 20\) does not fit"),
        (torch.zeros(2, 20).fill_(-1e9), "1 where a token is real"),
    ],
)
def test_the_regulariser_refuses_masks_that_tell_no_padding(mask, named):
    model, _ = regularised()
    with pytest.raises(ValueError, match=named):
        model(some_ids(2, 20), attention_mask=mask)


def of_every_pair(mask, added):
    """What transformers makes of a mask (B, T): (B, 1, T, T), of True or of 0 where a query sees a key."""
    tokens = mask.shape[1]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril() & mask.bool()[:, None, None]
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min) if added else seen


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_mask_of_every_pair_tells_padding_too(name, reduction, added):
    """The penalty is that of the mask (B, T) it was made of, and no token of padding has a part in it."""
    model, regularizer = regularised(name, reduction=reduction)
    ids, mask = some_ids(2, 40), padded("right", [40, 11], 40)
    model(ids, attention_mask=mask)
    expected = regularizer.penalty
    whole = torch.autograd.grad(expected, regularizer.thresholds)[0]
    for given in (ids, ids.masked_fill(mask == 0, 5)):
        model(given, attention_mask=of_every_pair(mask, added))
        torch.testing.assert_close(regularizer.penalty, expected)
        torch.testing.assert_close(torch.autograd.grad(regularizer.penalty, regularizer.thresholds)[0], whole)
    model(ids)
    assert (regularizer.penalty - expected).abs() > 0.01 * expected


def test_a_mask_of_packed_sequences_has_no_padding():
    """Two documents in one row: every token counts, and none sees the other document's."""
    model, regularizer = regularised("llama", temperature_init=None)
    ids = some_ids(1, 30)
    documents = (torch.arange(30) >= 12).long()
    packed = (documents[:, None] == documents) & torch.ones(30, 30, dtype=torch.bool).tril()
    positions = torch.cat([torch.arange(12), torch.arange(18)])[None]
    model(ids, attention_mask=packed[None, None], position_ids=positions)
    alone = torch.cat([row_entropies(model, part) for part in ids.split([12, 18], 1)], -1)
    expected = 16384 / 30 * entropy_regularization(alone, regularizer.thresholds, context=100)
    torch.testing.assert_close(regularizer.penalty, expected)


def test_one_mask_for_all_sequences():
    model, regularizer = regularised()
    mask = of_every_pair(torch.ones(1, 20), added=False)
    model(some_ids(2, 20), attention_mask=mask)
    found = regularizer.penalty
    model(some_ids(2, 20))
    torch.testing.assert_close(found, regularizer.penalty)
