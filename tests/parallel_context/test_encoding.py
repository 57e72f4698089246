"""Encoding in segments against full attention, against one pass under the mask, and selection that keeps everything."""

import pytest
import torch
from tiny_models import CONTEXT, HUGGING_FACE, hugging_face, ids, made

from aero.parallel_context.attention import AGGREGATIONS, Selection
from aero.parallel_context.encoding import encode, pack, read
from aero.parallel_context.hugging_face import HuggingFaceModel


@pytest.fixture(scope="module", params=HUGGING_FACE)
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


def may_attend(reader, seen):
    """Tokens are (part, place in it): part "prefix", "query", or the number of a segment."""
    (part, place), (other, other_place) = reader, seen
    if part == other:
        return other_place <= place
    return part == "query" or (part != "prefix" and other == "prefix")


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("lengths", [(5, 5, 5), (6, 5, 3)])
def test_segments_equal_one_pass_under_the_mask(family, prefix, lengths):
    model, _ = family
    parts = {"prefix": prefix} | dict(enumerate(lengths)) | {"query": 4}
    places = [(part, place) for part, length in parts.items() for place in range(length)]
    start = {"prefix": 0, "query": prefix + max(lengths)}
    positions = torch.tensor([start.get(part, prefix) + place for part, place in places])
    mask = torch.tensor([[may_attend(reader, seen) for seen in places] for reader in places])
    tokens = ids(1, len(places))
    head, context, query = tokens.split([prefix, sum(lengths), 4], 1)
    reading = read(model, encode(model, segments_of(context, lengths), head[0] if prefix else None), query)
    with torch.no_grad():
        together, _ = model.forward(tokens, positions, mask=mask)
    assert torch.allclose(reading.logits, together[:, -4:], atol=1e-5)
    whole = read(model, encode(model, [context], head[0] if prefix else None), query).logits
    assert (reading.logits - whole).abs().max() > 1e-2, "full attention is another result"


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_selecting_every_segment_changes_nothing(family, aggregation):
    model, _ = family
    context, query = ids(2, 25).split([20, 5], 1)
    encoded = encode(model, segments_of(context, (5, 5, 5, 5)), ids(1, 2, seed=1)[0])
    plain, kept = (read(model, encoded, query, s) for s in (None, Selection(4, aggregation)))
    assert torch.allclose(kept.logits, plain.logits, atol=1e-6) and len(kept.selected) == 2
    assert torch.allclose(kept.entropies, plain.entropies, atol=1e-5)
    fewer = read(model, encoded, query, Selection(1, aggregation))
    assert (fewer.logits - plain.logits).abs().max() > 1e-3


def test_selection_over_layers_is_the_same_in_every_layer(family):
    model, _ = family
    context, query = ids(2, 25).split([20, 5], 1)
    reading = read(model, encode(model, segments_of(context, (5, 5, 5, 5))), query, Selection(2, "LHT"))
    assert len(reading.selected) == 2 and torch.equal(*reading.selected)
    assert (reading.selected[0].sum(-1) == 2).all()


def test_contexts_that_do_not_fit(family):
    model, _ = family
    with pytest.raises(ValueError, match=f"model has {CONTEXT}"):
        encode(model, [ids(1, CONTEXT + 1)])
    encoded = encode(model, [ids(1, CONTEXT - 2)])
    with pytest.raises(ValueError, match="query's 3 tokens"):
        read(model, encoded, ids(1, 3))
    reading = read(model, encode(model, segments_of(ids(1, 3 * 40), (40, 40, 40))), ids(1, 4))
    assert torch.isfinite(reading.logits).all(), "a longer context fits in segments"


def test_unsupported_models():
    with pytest.raises(ValueError, match="gemma2"):
        HuggingFaceModel(hugging_face("gemma2", "eager", head_dim=8))
    windowed = HuggingFaceModel(hugging_face("mistral", sliding_window=8))
    encode(windowed, [ids(1, 8)])
    with pytest.raises(ValueError, match="window of 8 tokens and the context has 9"):
        encode(windowed, [ids(1, 9)])
    for rope in ("longrope", "dynamic"):
        model = hugging_face("llama")
        model.config.rope_parameters = {"rope_type": rope}
        with pytest.raises(ValueError, match=rope):
            HuggingFaceModel(model)


@pytest.mark.parametrize("aggregation", [None, *AGGREGATIONS])
def test_packed_queries_equal_queries_alone(family, aggregation):
    """The answer's tokens too: each selects alone, as if it were generated."""
    model, _ = family
    context, more = ids(1, 20), ids(1, 30, seed=2)[0].tolist()
    encoded = encode(model, segments_of(context, (5, 5, 5, 5)), ids(1, 2, seed=1)[0])
    selection = None if aggregation is None else Selection(2, aggregation)
    queries = [(more[:4], more[4:6]), (more[6:13], []), (more[13:15], more[15:18])]
    tokens, packed = pack(queries)
    together, start = read(model, encoded, tokens, selection, packed), 0
    for question, answered in queries:
        alone = read(model, encoded, torch.tensor([question]), selection)
        logits, entropies = [alone.logits], [alone.entropies]
        for token in answered:
            alone = read(model, alone.encoded, torch.tensor([[token]]), selection)
            logits.append(alone.logits)
            entropies.append(alone.entropies)
        end = start + len(question) + len(answered)
        assert (together.logits[:, start:end] - torch.cat(logits, 1)).abs().max() < 1e-6
        assert (together.entropies[..., start:end] - torch.cat(entropies, -1)).abs().max() < 1e-6
        start = end
