"""Row entropies without the T x T matrix, against the matrix, plain loops and bounds; FlexAttention as far as a CPU
goes: uncompiled, where it computes the same forward and backward passes through a matrix.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from largest_tensor import Kept, Largest
from plain_attention import softmax_with_entropy

from aero import attention, row_entropy
from aero.attention import softmax_attention
from aero.row_entropy import attention_with_entropy, blocked, causal_blocks, fused, kept_blocks
from aero.training.kernels import eager


def random_inputs(context, width=16, heads=3, size=2.0, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, heads, context, width, generator=generator, dtype=dtype) for _ in range(3))
    return (size * q).requires_grad_(), k.requires_grad_(), v.requires_grad_()


def by_matrix(query, key, value, scale):
    probabilities, entropies = softmax_with_entropy(scale * query @ key.transpose(-2, -1))
    return probabilities @ value, entropies


def matrix_kernel(query, key, values, scale):
    """What a fused kernel returns: averaged values and log-sum-exp."""
    future = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1)
    logits = (scale * query @ key.transpose(-2, -1)).masked_fill(future, -torch.inf)
    return logits.softmax(-1) @ values, logits.logsumexp(-1)


def by_kept_blocks(query, key, value, scale):
    return kept_blocks(query, key, value, scale, entropy=True)


def by_fusing(query, key, value, scale):
    return fused(query, key, value, scale, attend=matrix_kernel)


def values_and_gradients(way, inputs, scale=0.25):
    output, entropies = way(*inputs, scale)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in (output, entropies)]  # alike in any precision
    objective = (output * weights[0]).sum() + (entropies * weights[1]).sum()
    return [output, entropies, *torch.autograd.grad(objective, inputs)]


@pytest.mark.parametrize("context", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("joint_width", [0, 128])
@pytest.mark.parametrize("way", [blocked, by_kept_blocks, by_fusing])
def test_values_and_gradients_are_those_of_the_matrix(way, joint_width, context, monkeypatch):
    monkeypatch.setattr(row_entropy, "JOINT_WIDTH", joint_width)
    inputs = random_inputs(context)
    for given_, expected in zip(
        values_and_gradients(way, inputs), values_and_gradients(by_matrix, inputs), strict=True
    ):
        torch.testing.assert_close(given_, expected, atol=1e-5, rtol=1e-5)


def test_up_to_4096_positions():
    for context in (1024, 4096):
        inputs = random_inputs(context, heads=1, size=1.0)
        inputs = [x.detach()[:1].requires_grad_() for x in inputs]
        expected = values_and_gradients(by_matrix, inputs)
        for way in (blocked, by_kept_blocks, by_fusing):
            for given_, other in zip(values_and_gradients(way, inputs), expected, strict=True):
                torch.testing.assert_close(given_, other, atol=1e-5, rtol=0)


def test_gradients_against_finite_differences(monkeypatch):
    monkeypatch.setattr(row_entropy, "ROWS", 3)
    inputs = random_inputs(7, width=3, heads=2, dtype=torch.float64)
    seen = torch.rand(2, 1, 7, 7) < 0.6  # some rows see nothing

    def masked(query, key, value):
        return blocked(query, key, value, 0.5, lambda start, stop: seen[:, :, start:stop])

    assert torch.autograd.gradcheck(lambda *x: blocked(*x, 0.5), inputs)
    assert torch.autograd.gradcheck(masked, inputs)
    assert torch.autograd.gradcheck(lambda *x: by_fusing(*x, 0.5), inputs)
    assert torch.autograd.gradcheck(lambda *x: by_kept_blocks(*x, 0.5), inputs)
    assert torch.autograd.gradcheck(lambda *x: kept_blocks(*x, 0.5, False)[0], inputs)


def test_rows_by_hand():
    # Keys ln 3 and 0 of width 1, query 1: p = (1), then (3/4, 1/4).
    query = torch.ones(1, 1, 2, 1)
    key = torch.tensor([math.log(3), 0.0]).reshape(1, 1, 2, 1)
    value = torch.tensor([1.0, 5.0]).reshape(1, 1, 2, 1)
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    for way in (blocked, by_kept_blocks, by_fusing):
        output, entropies = way(query, key, value, 1.0)
        torch.testing.assert_close(output.flatten(), torch.tensor([1.0, 2.0]))
        torch.testing.assert_close(entropies.flatten(), torch.tensor([0.0, expected]))


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.01, 100), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_entropy_under_any_mask_against_loops(seed, context, size, rows):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, context, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    seen = torch.rand(1, 2, context, context, generator=generator) < 0.5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_entropy, "ROWS", rows)
        output, entropies = blocked(q, k, v, size, lambda start, stop: seen[:, :, start:stop])
        shifted = blocked(q, k + 3.0, v, size, lambda start, stop: seen[:, :, start:stop])[1]
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


@pytest.mark.parametrize("way", [blocked, by_kept_blocks, by_fusing])
def test_extremes(way):
    zero, key, value = (x.detach() for x in random_inputs(100, size=0.0))
    uniform = way(zero, key, value, 1.0)[1]
    torch.testing.assert_close(uniform[0, 0], torch.arange(1, 101).float().log(), atol=1e-5, rtol=0)
    own = torch.eye(100).expand(2, 3, 100, 100)
    one_hot = way(100 * own, own, value, 1.0)[1]  # every query's own key has logit 100, all others 0
    assert one_hot.abs().max() < 1e-5


@pytest.fixture
def flex_on_a_cpu(monkeypatch):
    """FlexAttention as it stands, which refuses gradients on a CPU, though it has them."""
    from torch.nn.attention import flex_attention as flex

    monkeypatch.setattr(row_entropy, "_compiled", lambda function: function)
    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("joint_width", [0, 128])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("way", [blocked, by_kept_blocks, by_fusing, fused])
def test_a_logit_that_is_not_finite_makes_its_row_nan_and_no_other(
    way, where, bad, joint_width, monkeypatch, flex_on_a_cpu
):
    """A query's row, or the rows that see a key: all after it where it is NaN, else those whose logit becomes +inf."""
    monkeypatch.setattr(row_entropy, "JOINT_WIDTH", joint_width)
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


@pytest.mark.parametrize("way", [blocked, by_kept_blocks, by_fusing])
def test_a_row_all_of_whose_logits_are_minus_infinity_is_nan(way):
    query, key, value = torch.ones(1, 1, 3, 1), torch.full((1, 1, 3, 1), -math.inf), torch.ones(1, 1, 3, 1)
    key[..., 2, :] = 1.0
    assert way(query, key, value, 1.0)[1].flatten().isnan().tolist() == [True, True, False]


@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(0.0, 100.0), st.floats(-50.0, 50.0))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("way", [blocked, by_kept_blocks, by_fusing])
def test_entropies_lie_between_0_and_log_i_and_ignore_a_shift_of_all_logits(way, seed, context, size, shift):
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


def test_nothing_is_fused_where_nothing_may_be_compiled(monkeypatch):
    """FlexAttention as it stands holds the T x T matrix."""

    class OnGpu:
        device, dtype, shape = torch.device("cuda"), torch.float32, (1, 1, 128, 64)

    monkeypatch.setattr(row_entropy, "_TRITON", True)
    assert row_entropy.can_fuse(OnGpu, OnGpu)
    with eager():
        assert not row_entropy.can_fuse(OnGpu, OnGpu)
    assert row_entropy.can_fuse(OnGpu, OnGpu)


def test_few_bits_are_computed_in_float32(monkeypatch):
    inputs = [x.detach().bfloat16() for x in random_inputs(70)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, entropies = attention_with_entropy(*inputs, 0.25)
    assert output.dtype == torch.bfloat16 and entropies.dtype == torch.float32
    expected = by_matrix(*(x.float() for x in inputs), 0.25)
    torch.testing.assert_close(entropies, expected[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(output, expected[0].bfloat16())


@pytest.mark.parametrize(("size", "most"), [(1.0, 1e-5), (4.0, 1e-4), (12.0, 1e-3)])
def test_the_error_of_the_fused_path_grows_with_the_logits_and_no_faster(size, most):
    """Against float64, as its docstring says; blocks of rows stay below 1e-4 at all of these."""
    inputs = [x.detach() for x in random_inputs(256, width=64, size=size)]
    _, exact = by_matrix(*(x.double() for x in inputs), 0.125)
    logits = (inputs[0] @ inputs[1].mT * 0.125).abs().max().item()
    _, found = fused(*inputs, 0.125, matrix_kernel)
    error = (found - exact).abs().max().item()
    assert error < min(most, 1e-6 + 1e-6 * logits)
    _, in_blocks = blocked(*inputs, 0.125)
    assert (in_blocks - exact).abs().max() < 1e-4


def test_the_kernel_is_asked_for_float32_as_it_is(monkeypatch):
    """It would take TF32 where the process allows that for products, as `Trainer(tf32=True)` does."""
    asked = []

    def kernel(query, key, value, **given):
        asked.append(given["kernel_options"])
        output, lse = matrix_kernel(query, key, value, given["scale"])
        return output, SimpleNamespace(lse=lse)

    monkeypatch.setattr(row_entropy, "_compiled", lambda function: kernel)
    fused(*random_inputs(20), 0.25)
    assert asked == [{"FLOAT32_PRECISION": "'ieee'"}]


def test_where_there_is_a_kernel_no_context_holds_the_matrix(monkeypatch):
    inputs = random_inputs(40)
    expected = softmax_attention(*inputs, entropy=True)
    monkeypatch.setattr(attention, "matrix_attention", None)  # must not be called
    monkeypatch.setattr(attention, "can_fuse", lambda query, value: True)
    for given_, other in zip(softmax_attention(*inputs, entropy=True), expected, strict=True):
        torch.testing.assert_close(given_, other, atol=1e-5, rtol=1e-5)


def test_the_matrix_of_half_precision_has_logits_in_float32():
    inputs = [x.detach().bfloat16() for x in random_inputs(70, size=3.0)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, entropies = softmax_attention(*inputs, entropy=True)
    scale = 1 / math.sqrt(inputs[0].shape[-1])
    _, exact = by_matrix(*(x.double() for x in inputs), scale)
    torch.testing.assert_close(entropies.double(), exact, atol=2e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("joint_width", [0, 128])
def test_flex_attention_gives_the_same_values_and_gradients(joint_width, monkeypatch, flex_on_a_cpu):
    monkeypatch.setattr(row_entropy, "JOINT_WIDTH", joint_width)
    inputs = random_inputs(150)
    found, expected = (values_and_gradients(way, inputs) for way in (fused, by_matrix))
    for given_, other in zip(found, expected, strict=True):
        torch.testing.assert_close(given_, other, atol=1e-5, rtol=0)


def compiling_with(backend, monkeypatch):
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compile_(function, backend=backend, **how))
    row_entropy._compiled.cache_clear()


def test_flex_attention_is_one_graph(monkeypatch):
    """As `_compiled` asks for: what is left out would run as it stands. Inductor has no gradients of it on a CPU."""
    from torch.nn.attention import flex_attention as flex

    monkeypatch.setattr(flex, "_validate_device", lambda *tensors: None)
    compiling_with("aot_eager", monkeypatch)
    inputs = random_inputs(150)
    found, expected = (values_and_gradients(way, inputs) for way in (fused, by_matrix))
    row_entropy._compiled.cache_clear()
    for given_, other in zip(found, expected, strict=True):
        torch.testing.assert_close(given_, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("suppressed", [False, True])
def test_what_torch_no_longer_compiles_is_an_error(suppressed, monkeypatch):
    """It would run as it stands, with the T x T matrix; `aero.training.kernels` has errors suppressed."""
    compiling_with("eager", monkeypatch)

    def kernel(x):
        return x + 1.0 if torch.compiler.is_compiling() else x + math.nan

    compiled = row_entropy._compiled(kernel)
    limit = torch._dynamo.config.recompile_limit
    with torch._dynamo.config.patch(suppress_errors=suppressed):
        for axes in range(1, limit + 1):
            assert compiled(torch.ones(axes * (2,))).isfinite().all()
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            compiled(torch.ones((limit + 1) * (2,)))


def test_the_compiler_traces_it_without_a_break():
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernel needs a GPU")
@pytest.mark.parametrize("context", [129, 1024, 4096])
@pytest.mark.parametrize("width", [16, 64, 96, 128])
def test_the_fused_path_on_a_gpu_is_that_of_the_matrix(width, context):
    inputs = on_a_gpu(random_inputs(context, width=width, heads=1, size=1.0))
    assert row_entropy.can_fuse(inputs[0], inputs[2])
    found = values_and_gradients(attention_with_entropy, inputs, 1 / math.sqrt(width))
    for given_, other in zip(found, in_float64(by_matrix, inputs, 1 / math.sqrt(width)), strict=True):
        torch.testing.assert_close(given_.cpu().double(), other, atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", [blocked, by_kept_blocks, by_fusing])
def test_errors_of_values_and_gradients_at_large_logits(way, size):
    """On a CPU within what docs/measure_entropy.md and the docstrings state."""
    for stated in (
        "entropies by up to 5e-7 of the largest logit",
        "output and gradients by up to 2e-7 of the largest logit times their own largest value",
    ):
        assert stated in " ".join(attention_with_entropy.__doc__.split())
    assert_as_exact_as_float32(way, random_inputs(256, width=64, size=size), (5e-7, 2e-7))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernel needs a GPU")
@pytest.mark.parametrize("size", SIZES)
def test_errors_at_large_logits_on_a_gpu(size):
    assert_as_exact_as_float32(fused, on_a_gpu(random_inputs(1024, width=64, size=size)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA's allocator counts what is held")
@pytest.mark.parametrize("way", [fused, blocked])
def test_memory_grows_as_the_context_on_a_gpu(way):
    """At one number of heads and sequences; the matrix takes four times as much for twice the positions."""
    peaks = []
    for context in (2048, 4096):
        inputs = on_a_gpu(random_inputs(context, width=64, size=1.0))
        values_and_gradients(way, inputs, 0.125)  # what compiling holds is not counted
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        values_and_gradients(way, inputs, 0.125)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del inputs
    assert peaks[0] > 0 and peaks[1] < 2.3 * peaks[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the fused kernel needs a GPU")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_a_logit_that_is_not_finite_on_a_gpu(where, bad):
    inputs = on_a_gpu(random_inputs(200))
    with torch.no_grad():
        inputs[where][0, 1, 150, 3] = bad
    _, expected = blocked(*inputs, 0.25)
    assert torch.equal(fused(*inputs, 0.25)[1].isnan(), expected.isnan()) and expected.isnan().any()


@pytest.mark.parametrize("context", [1, 100, 128, 129, 700])
def test_the_causal_blocks_are_those_that_flex_attention_finds(context):
    from torch.nn.attention.flex_attention import create_block_mask

    found = create_block_mask(lambda b, h, q, k: k <= q, None, None, context, context, device="cpu")
    ours = causal_blocks(context, torch.device("cpu"))
    assert ours.shape == found.shape
    for numbers, indices in (
        ("kv_num_blocks", "kv_indices"),
        ("full_kv_num_blocks", "full_kv_indices"),
        ("q_num_blocks", "q_indices"),
        ("full_q_num_blocks", "full_q_indices"),
    ):
        counts = getattr(ours, numbers)
        assert torch.equal(counts, getattr(found, numbers)), numbers
        assert counts.dtype == torch.int32 and getattr(ours, indices).dtype == torch.int32
        for row, count in enumerate(counts[0, 0].tolist()):
            mine, theirs = (getattr(mask, indices)[0, 0, row, :count].tolist() for mask in (ours, found))
            assert sorted(mine) == sorted(theirs), indices


def test_training_takes_the_matrix_only_for_short_contexts(monkeypatch):
    inputs = random_inputs(40)
    temperature = torch.rand(3, 40) + 0.5
    expected = softmax_attention(*inputs, temperature, entropy=True)
    monkeypatch.setattr(attention, "matrix_attention", None)  # must not be called
    monkeypatch.setattr(attention, "MATRIX_UP_TO", 39)
    for given_, other in zip(softmax_attention(*inputs, temperature, entropy=True), expected, strict=True):
        torch.testing.assert_close(given_, other, atol=1e-5, rtol=1e-5)


def test_nothing_of_the_size_of_the_matrix_is_kept():
    """The largest tensor of the forward and backward passes holds one block of rows, and only the inputs are kept."""
    inputs = random_inputs(640, width=4, heads=1)
    with Largest() as largest:
        values_and_gradients(attention_with_entropy, inputs)
    assert largest.size <= 2 * row_entropy.ROWS * 640
    with Kept() as kept:
        attention_with_entropy(*inputs, 0.25)
    assert kept.bytes == sum(x.untyped_storage().nbytes() for x in inputs)


def test_kept_blocks_keep_the_causal_half_and_its_logarithms():
    """Beside query, key and value: of 640 positions 10 blocks of 64 rows, 64 to 640 keys each."""
    inputs = random_inputs(640, width=4, heads=1)
    half = 2 * 4 * 64 * 64 * sum(range(1, 11))  # two sequences, 4 bytes
    for entropy, parts in ((False, 1), (True, 2)):
        with Kept() as kept:
            kept_blocks(*inputs, 0.25, entropy)
        assert kept.bytes == parts * half + sum(x.untyped_storage().nbytes() for x in inputs)


def test_queries_and_keys_that_do_not_fit_are_refused():
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
def test_blocks_are_kept_where_a_training_on_a_cpu_is_faster_by_it(entropy, monkeypatch):
    """Longer than the matrix is held for and up to the limit, for a backward pass in float32; to the same numbers."""
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
