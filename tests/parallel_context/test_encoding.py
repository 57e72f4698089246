"""Encoding in segments against full attention, against one pass under the mask, and selection that keeps everything."""

import pytest
import torch
from tiny_models import CONTEXT, HUGGING_FACE, hugging_face, ids, made, own

from aero.parallel_context import attention
from aero.parallel_context.attention import attend
from aero.parallel_context.encoding import answer, encode, in_one_pass, read
from aero.parallel_context.layout import Layout
from aero.parallel_context.own_model import OwnModel
from aero.parallel_context.selection import AGGREGATIONS, Selection

FAMILIES = ("own", *HUGGING_FACE)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return made(request.param)


def segments_of(tokens, lengths):
    return list(tokens.split(list(lengths), 1))


@pytest.mark.parametrize("prefix", [0, 3])
def test_one_segment_equals_full_attention(family, prefix):
    model, full = family
    tokens = ids(2, 30)
    head, context, query = tokens.split([prefix, 20 - prefix, 10], 1)
    head = head[0].expand(2, prefix)
    reading = read(model, encode(model, [context], head[0] if prefix else None), query)
    with torch.no_grad():
        expected = full(torch.cat([head, context, query], 1))[:, 20:]
    assert (reading.logits - expected).abs().max() < 1e-6
    assert expected.abs().max() > 0.1, "the comparison must be about something"


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (6, 5, 3)])
def test_segments_equal_one_pass_under_the_mask(family, prefix, lengths):
    model, _ = family
    layout = Layout(prefix, lengths, 4)
    tokens = ids(1, layout.length)
    head, context, query = tokens.split([prefix, sum(lengths), 4], 1)
    reading = read(model, encode(model, segments_of(context, lengths), head[0] if prefix else None), query)
    together = in_one_pass(model, layout, tokens)
    assert torch.allclose(reading.logits, together[:, -4:], atol=1e-5)


def test_several_segments_differ_from_full_attention(family):
    model, full = family
    context, query = ids(1, 24).split([20, 4], 1)
    apart = read(model, encode(model, segments_of(context, (10, 10))), query).logits
    with torch.no_grad():
        whole = full(torch.cat([context, query], 1))[:, 20:]
    assert (apart - whole).abs().max() > 1e-2


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("top_k", [4, 9])
def test_selecting_every_segment_is_no_selection(family, aggregation, top_k):
    model, _ = family
    context, query = ids(2, 25).split([20, 5], 1)
    encoded = encode(model, segments_of(context, (5, 5, 5, 5)), ids(1, 2, seed=1)[0])
    plain, kept = (read(model, encoded, query, s) for s in (None, Selection(top_k, aggregation)))
    assert torch.allclose(kept.logits, plain.logits, atol=1e-6) and len(kept.selected) == 2
    assert torch.allclose(kept.entropies, plain.entropies, atol=1e-5)
    fewer = read(model, encoded, query, Selection(1, aggregation))
    assert (fewer.logits - plain.logits).abs().max() > 1e-3


def test_a_selection_over_layers_is_the_same_in_all(family):
    model, _ = family
    context, query = ids(2, 25).split([20, 5], 1)
    reading = read(model, encode(model, segments_of(context, (5, 5, 5, 5))), query, Selection(2, "LHT"))
    assert len(reading.selected) == 2 and torch.equal(*reading.selected)
    assert (reading.selected[0].sum(-1) == 2).all()


def test_greedy_answers_by_repeated_full_attention(family):
    model, full = family
    context, question = ids(2, 22).split([18, 4], 1)
    given, entropies = answer(model, encode(model, [context]), question, 3)
    tokens = torch.cat([context, question], 1)
    for place in range(3):
        with torch.no_grad():
            following = full(tokens)[:, -1].argmax(-1, keepdim=True)
        assert torch.equal(following[:, 0], given[:, place])
        tokens = torch.cat([tokens, following], 1)
    assert entropies.shape == (2, 2, 4, 6)


def test_entropies_are_those_of_the_model_itself():
    plain = own()
    context, query = ids(2, 20).split([12, 8], 1)
    reading = read(OwnModel(own()), encode(OwnModel(own()), [context]), query)
    with torch.no_grad():
        _, entropies = plain(torch.cat([context, query], 1), entropy=True)
    assert torch.allclose(reading.entropies, entropies[:, :, :, 12:], atol=1e-5)


def test_the_model_is_left_as_it_was():
    model = own()
    attentions = [block.attention for block in model.blocks]
    encode(OwnModel(model), [ids(1, 5)])
    assert [block.attention for block in model.blocks] == attentions


def test_what_does_not_fit_is_refused(family):
    model, _ = family
    with pytest.raises(ValueError, match=f"segment 1 of 1 has {CONTEXT + 1} tokens, the model has {CONTEXT} positions"):
        encode(model, [ids(1, CONTEXT + 1)])
    encoded = encode(model, [ids(1, CONTEXT - 2)])
    with pytest.raises(ValueError, match="query's 3 tokens"):
        read(model, encoded, ids(1, 3))


def test_a_context_longer_than_the_model_fits_in_segments(family):
    model, _ = family
    reading = read(model, encode(model, segments_of(ids(1, 3 * 40), (40, 40, 40))), ids(1, 4))
    assert torch.isfinite(reading.logits).all()


def test_unsupported_models_are_refused_with_the_reason():
    from aero.parallel_context.hugging_face import HuggingFaceModel, check_implementation

    with pytest.raises(ValueError, match="flash_attention_2.*never forms.*sdpa"):
        check_implementation("flash_attention_2")
    flex = hugging_face("llama", "flex_attention")
    with pytest.raises(ValueError, match="flex_attention.*not supported"):
        HuggingFaceModel(flex)
    with pytest.raises(ValueError, match="'gemma2' is not supported: parallel encoding knows llama, mistral, qwen2"):
        HuggingFaceModel(hugging_face("gemma2", "eager", head_dim=8))
    windowed = HuggingFaceModel(hugging_face("mistral", sliding_window=8))
    encode(windowed, [ids(1, 8)])
    with pytest.raises(ValueError, match="window of 8 tokens and the context has 9"):
        encode(windowed, [ids(1, 9)])
    with pytest.raises(ValueError, match="needs rotary positions"):
        OwnModel(own(position="learned"))
    with pytest.raises(ValueError, match="temperature belongs to one query position"):
        OwnModel(own("SM(t)+LN+G"))


@pytest.mark.parametrize("core", ["relu", "elu", "sigmoid", "window_softmax", "relu_performer"])
def test_cores_that_are_no_softmax_are_refused(core):
    with pytest.raises(ValueError, match=f"computes softmax attention.*'{core}'"):
        OwnModel(own(f"Core({core})+LN+G"))


def test_a_core_that_changes_weights_alone_equals_full_attention():
    plain = own("Core(sigma_reparam)+LN+G").double()
    context, query = ids(2, 20).split([14, 6], 1)
    reading = read(OwnModel(plain), encode(OwnModel(plain), [context]), query)
    with torch.no_grad():
        expected = plain(torch.cat([context, query], 1))[:, 14:]
    assert (reading.logits - expected).abs().max() < 1e-6 and expected.abs().max() > 0.1


@pytest.mark.parametrize("masked", [False, True])
def test_grouped_heads_behind_a_prefix_by_plain_loops(masked, monkeypatch):
    """With a mask, explicit or for more keys than queries, grouped heads are repeated and `enable_gqa` stays off."""
    asked = []

    def recorded(*tensors, attn_mask=None, enable_gqa=False, **more):
        asked.append((attn_mask is not None, enable_gqa))
        return torch.nn.functional.scaled_dot_product_attention(
            *tensors, attn_mask=attn_mask, enable_gqa=enable_gqa, **more
        )

    monkeypatch.setattr(attention, "F", type("F", (), {"scaled_dot_product_attention": staticmethod(recorded)}))
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, h, n, 4, generator=random).double() for h, n in ((4, 3), (2, 5), (2, 5)))
    causal = torch.ones(3, 5, dtype=torch.bool).tril(2)
    mask = causal & (torch.arange(5) != 1) if masked else None
    found = attend(query, key, value, 0.5, mask)
    for h in range(4):
        for i in range(3):
            row = [j for j in range(i + 3) if not (masked and j == 1)]
            weights = torch.stack([0.5 * query[0, h, i] @ key[0, h // 2, j] for j in row]).softmax(0)
            expected = sum(w * value[0, h // 2, j] for w, j in zip(weights, row, strict=True))
            assert torch.allclose(found[0, h, i], expected)
    attend(query, query, query, 0.5)
    attend(query, key[:, :, :3], value[:, :, :3], 0.5)
    assert asked == [(True, False), (False, False), (False, True)]
