"""Row entropies without the T x T matrix, against the matrix, plain loops and bounds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from largest_tensor import Kept, Largest
from plain_attention import softmax_with_entropy
from tiny_hugging_face import some_ids, tiny

from aero import attention, row_entropy
from aero.architecture import parse
from aero.attention import matrix_attention, softmax_attention
from aero.entropy import EntropyRegularizer, entropy_regularization
from aero.model import GPT, ModelConfig
from aero.row_entropy import attention_with_entropy, kept_blocks


def random_inputs(context, width=16, heads=3, size=2.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, heads, context, width, generator=generator, dtype=dtype) for _ in range(3))
    return (size * q).requires_grad_(), k.requires_grad_(), v.requires_grad_()


def by_matrix(query, key, value, scale):
    probabilities, entropies = softmax_with_entropy(scale * query @ key.transpose(-2, -1))
    return probabilities @ value, entropies


def by_kept_blocks(query, key, value, scale):
    return kept_blocks(query, key, value, scale, entropy=True)


def values_and_gradients(way, inputs, scale=0.25):
    output, entropies = way(*inputs, scale)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in (output, entropies)]  # alike in any precision
    objective = (output * weights[0]).sum() + (entropies * weights[1]).sum()
    return [output, entropies, *torch.autograd.grad(objective, inputs)]


@pytest.mark.parametrize("context", [1, 64, 65, 150])
@pytest.mark.parametrize("way", [attention_with_entropy, by_kept_blocks])
def test_values_and_gradients_are_those_of_the_matrix(way, context):
    inputs = random_inputs(context)
    for given_, expected in zip(
        values_and_gradients(way, inputs), values_and_gradients(by_matrix, inputs), strict=True
    ):
        torch.testing.assert_close(given_, expected, atol=1e-5, rtol=1e-5)


def test_gradients_against_finite_differences(monkeypatch):
    monkeypatch.setattr(row_entropy, "ROWS", 3)
    inputs = random_inputs(7, width=3, heads=2, dtype=torch.float64)
    seen = torch.rand(2, 1, 7, 7) < 0.6  # some rows see nothing

    def masked(query, key, value):
        return attention_with_entropy(query, key, value, 0.5, lambda start, stop: seen[:, :, start:stop])

    assert torch.autograd.gradcheck(lambda *x: attention_with_entropy(*x, 0.5), inputs)
    assert torch.autograd.gradcheck(masked, inputs)
    assert torch.autograd.gradcheck(lambda *x: by_kept_blocks(*x, 0.5), inputs)
    assert torch.autograd.gradcheck(lambda *x: kept_blocks(*x, 0.5, False)[0], inputs)


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.01, 100), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_entropy_under_any_mask_against_loops(seed, context, size, rows):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, context, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    seen = torch.rand(1, 2, context, context, generator=generator) < 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_entropy, "ROWS", rows)
        output, entropies = attention_with_entropy(q, k, v, size, lambda start, stop: seen[:, :, start:stop])
        shifted = attention_with_entropy(q, k + 3.0, v, size, lambda start, stop: seen[:, :, start:stop])[1]
    bound = seen.sum(-1).clamp_min(1).double().log()
    assert (entropies >= -1e-12).all() and (entropies <= bound + 1e-9).all()
    torch.testing.assert_close(shifted, entropies, atol=1e-9, rtol=0)  # every logit of a row moves by 3 size sum(q)
    for h in range(2):
        for i in range(context):
            keys = [j for j in range(context) if seen[0, h, i, j]]
            if not keys:
                assert entropies[0, h, i] == 0 and not output[0, h, i].any()
                continue
            p = torch.stack([size * q[0, h, i] @ k[0, h, j] for j in keys]).softmax(0)
            entropy = -sum(x * x.log() for x in p if x > 0)
            torch.testing.assert_close(entropies[0, h, i], torch.as_tensor(entropy, dtype=torch.float64))
            torch.testing.assert_close(output[0, h, i], sum(x * v[0, h, j] for x, j in zip(p, keys, strict=True)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("way", [attention_with_entropy, by_kept_blocks])
def test_a_logit_that_is_not_finite_makes_its_row_nan_and_no_other(way, where, bad):
    """A query's row, or the rows that see a key: all after it where it is NaN, else those whose logit becomes +inf."""
    inputs = [x.detach().clone() for x in random_inputs(70)]
    with_bad = inputs[where == "key"][0, 1]  # (T, d)
    with_bad[66, 3] = bad
    query, key, _ = (x.double()[0, 1] for x in inputs)
    logits = query @ key.mT
    seen = torch.ones_like(logits, dtype=torch.bool).tril()
    expected = torch.zeros(2, 3, 70, dtype=torch.bool)
    expected[0, 1] = ((logits.isnan() | (logits == math.inf)) & seen).any(-1)
    assert expected.sum() == 1 if where == "query" else 1 <= expected.sum() <= 4
    expected_entropies = by_matrix(*(x.double() for x in inputs), 0.25)[1]
    output, entropies, *gradients = values_and_gradients(way, [x.requires_grad_() for x in inputs])
    assert torch.equal(entropies.isnan(), expected)
    torch.testing.assert_close(entropies[~expected].double(), expected_entropies[~expected], atol=1e-5, rtol=0)
    assert output[~expected].isfinite().all()
    others = torch.ones(2, 3, dtype=torch.bool)
    others[0, 1] = False
    for gradient in gradients:
        assert gradient[others].isfinite().all() and not gradient[0, 1].isfinite().all()


@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(0.0, 100.0), st.floats(-50.0, 50.0))
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("way", [attention_with_entropy, by_kept_blocks])
def test_entropies_lie_between_0_and_log_i_and_ignore_a_shift(way, seed, context, size, shift):
    """In float32, with logits up to some hundreds; all logits of a row are shifted by a part that all keys share."""
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, 2, context, 4, generator=generator) for _ in range(3))
    query, key = size**0.5 * query, size**0.5 * key
    one, common = torch.ones(1, 2, context, 1), torch.full((1, 2, context, 1), shift)
    bound = torch.arange(1, context + 1).log()
    largest = 1 + (query @ key.mT).abs().max() + abs(shift)
    entropies = way(torch.cat([query, one], -1), torch.cat([key, 0 * common], -1), value, 1.0)[1]
    shifted = way(torch.cat([query, one], -1), torch.cat([key, common], -1), value, 1.0)[1]
    for found in (entropies, shifted):
        assert (found >= 0).all() and (found <= bound + 1e-6 * largest).all()
    torch.testing.assert_close(shifted, entropies, atol=float(2e-6 * largest) + 1e-6, rtol=1e-4)


@pytest.mark.parametrize("way", [matrix_attention, attention_with_entropy, by_kept_blocks])
def test_gradients_are_the_same_when_backward_is_called_under_autocast(way):
    """As the search for the place where a gradient breaks does."""
    inputs = random_inputs(20)
    output, entropies = way(*inputs, *(() if way is matrix_attention else (0.25,)))
    expected = torch.autograd.grad(output.sum() + entropies.sum(), inputs, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(output.sum() + entropies.sum(), inputs)
    for given_, other in zip(found, expected, strict=True):
        torch.testing.assert_close(given_, other, atol=0, rtol=0)


def test_the_matrix_is_used_for_short_contexts_only(monkeypatch):
    inputs = random_inputs(40)
    temperature = torch.rand(3, 40) + 0.5
    expected = softmax_attention(*inputs, temperature, entropy=True)
    monkeypatch.setattr(attention, "matrix_attention", None)  # must not be called
    monkeypatch.setattr(attention, "MATRIX_UP_TO", 39)
    for given_, other in zip(softmax_attention(*inputs, temperature, entropy=True), expected, strict=True):
        torch.testing.assert_close(given_, other, atol=1e-5, rtol=1e-5)


def test_the_compiler_traces_it_as_one_graph():
    inputs = random_inputs(130, heads=1)
    compiled = torch.compile(attention_with_entropy, backend="aot_eager", fullgraph=True)
    found, expected = (values_and_gradients(way, inputs) for way in (compiled, attention_with_entropy))
    for given_, other in zip(found, expected, strict=True):
        torch.testing.assert_close(given_, other)


def on_a_gpu(inputs):
    return [x.detach().cuda().requires_grad_() for x in inputs]


def in_float64(way, inputs, scale):
    """Values and gradients on a CPU."""
    return values_and_gradients(way, [x.detach().cpu().double().requires_grad_() for x in inputs], scale)


def assert_as_exact_as_float32(way, inputs, bounds=None):
    """Against float64, by the size of the logits, for a width d of 64.

    bounds: largest errors of an entropy, and of output and gradients over their largest value, over the largest logit.
    Without them what the roundings allow at most: a sum of d products rounded at random is off by some sqrt(d) units of
    its last place, so logits by sqrt(d) eps |z|, z the largest. The softmax makes of an error e of its logits one of
    2 e of a probability, relative to it. Values and gradients are averages by these probabilities, off by as much of
    their largest value; so is the entropy, of 1 nat, as dH = -sum_j dp_j log p_j, and where it is a difference of two
    numbers of size z.
    """
    scale = 0.125
    found, exact = values_and_gradients(way, inputs, scale), in_float64(by_matrix, inputs, scale)
    largest = (inputs[0] @ inputs[1].mT * scale).abs().max().item()
    of_entropies, of_others = bounds or 2 * (2 * math.sqrt(64) * torch.finfo(torch.float32).eps,)
    for name, given_, other in zip(("output", "entropy", "query", "key", "value"), found, exact, strict=True):
        bound = of_entropies if name == "entropy" else of_others * other.abs().max().item()
        assert (given_.cpu().double() - other).abs().max().item() < bound * largest, name


SIZES = [1.0, 12.0, 40.0, 100.0]
"""Standard deviations of logits; the largest are then about 6, 70, 230 and 560."""


@pytest.mark.parametrize("size", [1.0, 40.0])
@pytest.mark.parametrize("way", [attention_with_entropy, by_kept_blocks])
def test_errors_of_values_and_gradients_at_large_logits(way, size):
    """The bounds in the docstring of `attention_with_entropy`."""
    assert_as_exact_as_float32(way, random_inputs(256, width=64, size=size), (5e-7, 2e-7))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", SIZES)
def test_errors_at_large_logits_on_a_gpu(size):
    assert_as_exact_as_float32(attention_with_entropy, on_a_gpu(random_inputs(1024, width=64, size=size)))


def test_kept_blocks_save_the_causal_half_and_its_logarithms():
    """Beside query, key and value: of 640 positions 10 blocks of 64 rows, 64 to 640 keys each."""
    inputs = random_inputs(640, width=4, heads=1)
    half = 2 * 4 * 64 * 64 * sum(range(1, 11))  # two sequences, 4 bytes
    for entropy, parts in ((False, 1), (True, 2)):
        with Kept() as kept:
            kept_blocks(*inputs, 0.25, entropy)
        assert kept.bytes == parts * half + sum(x.untyped_storage().nbytes() for x in inputs)


def test_a_different_number_of_queries_and_keys_needs_a_mask():
    query, key, value = (x.detach() for x in random_inputs(6))
    with pytest.raises(ValueError, match="as many queries as keys, got 5 and 6"):
        attention_with_entropy(query[:, :, 1:], key, value, 1.0)


@pytest.mark.parametrize("context", [1, 64, 65, 200])
def test_kept_blocks_without_entropies_are_plain_attention(context):
    """Values and gradients of torch's own."""
    inputs = random_inputs(context)
    weight = torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(1))
    found = kept_blocks(*inputs, 0.25, entropy=False)
    plain = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True, scale=0.25)
    assert found[1] is None
    torch.testing.assert_close(found[0], plain, atol=1e-5, rtol=1e-5)
    gradients = [torch.autograd.grad((output * weight).sum(), inputs) for output in (found[0], plain)]
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("entropy", [False, True])
def test_kept_blocks_are_used_in_training_on_a_cpu(entropy, monkeypatch):
    taken = []

    def noted(query, *more):
        taken.append(query.shape[-2])
        return kept_blocks(query, *more)

    monkeypatch.setattr(attention, "kept_blocks", noted)
    for context in (256, 257, 512, 513):
        softmax_attention(*random_inputs(context, heads=1), entropy=entropy)
    assert taken == [257, 512]
    inputs = random_inputs(300, heads=1)
    with torch.no_grad():
        expected = softmax_attention(*inputs, entropy=entropy)
    softmax_attention(*(x.detach() for x in inputs), entropy=entropy)
    softmax_attention(*(x.double() for x in inputs), entropy=entropy)
    with torch.autocast("cpu", torch.bfloat16):
        softmax_attention(*inputs, entropy=entropy)
    assert taken == [257, 512]
    for found, value in zip(softmax_attention(*inputs, entropy=entropy), expected, strict=True):
        assert (found is None) == (value is None)
        if found is not None:
            torch.testing.assert_close(found, value, atol=1e-5, rtol=1e-5)


T, HEADS = 640, 4
BLOCK = HEADS * row_entropy.ROWS * T
"""Elements of the largest tensor that may occur: one block of rows, of all heads."""


def regularised_step(context=T):
    torch.manual_seed(0)
    config = ModelConfig(67, context, layers=2, heads=HEADS, width=32, ffn_width=128, temperature_init=0.5)
    model = GPT(parse("EReg(SM(t)+ScFuFFN)"), config)
    logits, entropies = model(torch.randint(67, (1, context)), entropy=True)
    return logits.logsumexp(-1).mean() + entropy_regularization(entropies, model.reg_threshold_weights)


def test_a_regularised_training_step_of_a_decoder_makes_no_matrix(monkeypatch):
    with Largest() as largest:
        regularised_step().backward()
    assert largest.size <= BLOCK < T * T
    saved = []
    for context in (T, 2 * T):
        with Kept() as kept:
            regularised_step(context)
        saved.append(kept.bytes)
    assert saved[1] <= 2.01 * saved[0]  # memory for the backward pass grows as T
    monkeypatch.setattr(attention, "MATRIX_UP_TO", T)
    with Largest() as largest:
        regularised_step().backward()
    assert largest.size >= HEADS * T * T  # the check finds a matrix


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_a_regularised_training_step_of_a_hugging_face_model_makes_no_matrix(name):
    model = tiny(name, max_position_embeddings=T).train()
    regularizer = EntropyRegularizer(model, context=T, lambda_=1e-2)
    ids = some_ids(1, T)
    with Largest() as largest:
        model(ids, labels=ids).loss.backward()
    assert largest.size <= BLOCK and regularizer.thresholds.grad.any()
