"""The private programs in the clear: the logits of the PyTorch model, for every row and program."""

from __future__ import annotations

import math
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from made_models import compiled, plaintext, random_model, torch_logits

from aero.architecture import parse
from aero.model import ModelConfig
from aero.published import load
from aero.two_party.program import nonlinear
from aero.two_party.program.forward import forward, operations
from aero.two_party.program.inputs import Past, at_positions, one_hot_rows
from aero.two_party.program.operations import WEIGHTS_AT_ONCE, Operation, call, linear_in_slices, trace, without_public
from aero.two_party.program.optimizations import OPTIMIZATIONS, TUNED, on_its_own, parse_program, program_name, toggled
from aero.two_party.program.weights import weight_arrays, weight_shapes, within_budget

ROWS = dict.fromkeys(row.name for number in "24" for row in load("aero").tables[number].rows)
GPT2 = ModelConfig(vocabulary=50257, context=128, layers=12, heads=12, width=768, ffn_width=3072)
PYTHIA = {"position": "rotary", "rotary_fraction": 0.5, "parallel_residual": True, "tied": False, "gelu": "exact"}
LLAMA = {"position": "rotary", "rotary_fraction": 1.0, "rotary_base": 1e5, "qk_bias": False, "tied": False}
LLAMA |= {"kv_heads": 1, "layer_norm_eps": 1e-3}
IDS = np.random.default_rng(2).integers(0, 41, 12)
ROWS_OF_THREE_LAYERS = [row.replace("i_6", "i_2") for row in ROWS]


@cache
def exact(gelu):
    """The operations with exact functions instead of approximations: only the folding is left, and it is exact."""

    def softmax(x, blocks=1, narrow=0, wide=0):
        return nonlinear.softmax_plain(x, narrow=bool(narrow), wide=wide)

    functions = {
        "softmax_cover": softmax,
        "softmax_plain": softmax,
        "exponentials": lambda x, blocks, split, narrow=0, wide=0: nonlinear.exponentials(
            x, None, blocks, False, bool(narrow), wide=wide
        ),
        "gelu_segments": lambda x, narrow=0: jax.nn.gelu(x, approximate=gelu != "exact"),
        "silu_segments": lambda x, narrow=0: jax.nn.silu(x),
        "reciprocal_sums": lambda x, narrow=1: call("inverse_sums", x),
        "reciprocal_means": lambda x, narrow=1: jnp.append(call("inverse_sums", x), 0.0),
        "normalise": lambda x, narrow=0: nonlinear.normalise(x),
        "gelu_squares": lambda x, narrow=0: jax.nn.gelu(x, approximate=gelu != "exact"),
        "normalise_tiles": lambda x, narrow=0, lattice=0: nonlinear.normalise(x, tiles=True),
    }
    return compiled(lambda kind, *arrays, **constants: functions.get(kind, partial(call, kind))(*arrays, **constants))


def exact_logits(model, program):
    weights, one_hot = weight_arrays(model, program), np.eye(41, dtype=np.float32)[IDS]
    return forward(exact(model.config.gelu), model.architecture, model.config, program, weights, one_hot)[0]


@pytest.mark.parametrize("row", ROWS_OF_THREE_LAYERS)
def test_as_written_in_the_clear_agrees_with_torch(row):
    model = random_model(row)
    ids = np.random.default_rng(1).integers(0, 41, 12)
    logits = plaintext(model, "as_written", ids)
    np.testing.assert_allclose(logits, torch_logits(model, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("row", ROWS_OF_THREE_LAYERS)
@pytest.mark.parametrize("switches", [{}, {"vo_bias": True, "ffn_bias": True, "ln_f": False, "tied": False}])
def test_tuned_folding_is_exact(row, switches):
    model = random_model(row, **switches)
    program = within_budget(model, "tuned")
    np.testing.assert_allclose(exact_logits(model, program), torch_logits(model, IDS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("switches", [LLAMA, LLAMA | {"kv_heads": 0, "ffn_bias": True, "vo_bias": True}])
def test_llama_in_the_clear_agrees_with_torch(switches):
    model = random_model("SM+RMS+SwiGLU", **switches)
    written = plaintext(model, "as_written", IDS)
    np.testing.assert_allclose(written, torch_logits(model, IDS), atol=1e-4, rtol=0)
    np.testing.assert_allclose(exact_logits(model, "tuned"), torch_logits(model, IDS), atol=1e-4, rtol=0)


SCALED = ("SM+ScFFN", "EReg(SM(t)+ScFuFFNi_2)")


@pytest.mark.parametrize(
    ("row", "switches"),
    [("SM+LN+G", {}), ("SM+LeakyR", {"ffn_bias": True}), ("SM", {"vo_bias": True})]
    + [(row, switches) for row in SCALED for switches in ({}, {"vo_bias": True, "ffn_bias": True, "ln_f": False})]
    + [(row, PYTHIA) for row in SCALED]
    + [(row, {}) for row in ROWS_OF_THREE_LAYERS if row.startswith("SOTA")]
    + [(row, {"ffn_bias": True, "qk_bias": True, "ln_f": False}) for row in ("SOTA(SM+ScFFN)", "SOTA(SM+ScFuFFNi_3)")],
)
def test_as_published_in_the_clear_agrees_with_torch(row, switches):
    model = random_model(row, **switches)
    logits = plaintext(model, "as_published", IDS)
    np.testing.assert_allclose(logits, torch_logits(model, IDS), atol=1e-4, rtol=0)


def test_as_published_is_the_best_fit_of_the_published_bytes():
    fitted, plain = (operations(parse("SM+ScFuFFN"), GPT2, program, 128) for program in ("as_published", "as_written"))
    count = {kind: sum(n for o, n in fitted.items() if o.kind == kind) for kind in {o.kind for o in fitted}}
    # No party owns an argument, beta costs nothing, and one more matrix undoes the change of basis before ln_f.
    assert all(set(o.owners) <= {"secret", "ids"} for o in fitted) and not {"scale", "scale_shared"} & count.keys()
    assert count["softmax_clipped"] == 12 and count["id_lookup"] * 2 == 128 and count["linear_shared"] == 12 * 5 + 1
    slices = [o for o in fitted if o.kind == "vocabulary_slice_shared"]
    assert {o.shapes[0][0] for o in slices} == {128}
    assert sum(o.shapes[1][1] * fitted[o] for o in slices) == 50257
    same = {o.kind for o in fitted} & {o.kind for o in plain}
    assert same == {"scores", "mix", "scale_public"} and all(fitted[o] == plain[o] for o in fitted if o.kind in same)


@pytest.mark.parametrize(
    ("row", "gain"), [("SOTA(SM+ScFuFFNi_1)", "blocks.2.attention.shape_b"), ("SM+ScFFN", "blocks.1.beta")]
)
def test_a_gain_of_0_cannot_be_folded(row, gain):
    model = random_model(row)
    with torch.no_grad():
        (values,) = (value for name, value in model.named_parameters() if name == gain)
        values.view(-1)[0] = 0.0
    with pytest.raises(ValueError, match="a gain of 0 cannot be folded.*take as_written"):
        weight_arrays(model, "as_published")


@pytest.mark.parametrize(
    ("row", "switches"),
    [
        ("SM+LN+G", {}),
        ("SM+LeakyR", {"ffn_bias": True}),
        ("EReg(SM(t)+ScFuFFNi_2)", {"vo_bias": True}),
        ("SOTA(SM+ScFFN)", {}),
        ("SM+ScFFN", PYTHIA),
    ],
)
def test_every_optimization_alone_and_all_but_it(row, switches):
    whole, bounded = random_model(row, **switches), random_model(row, **switches)
    with torch.no_grad():
        for block in bounded.blocks:
            block.attention.query.weight.mul_(0.05)
    for text in (*map(on_its_own, OPTIMIZATIONS), *map(toggled, OPTIMIZATIONS)):
        model = bounded if "bounded_logits" in text else whole
        program = within_budget(model, text)
        np.testing.assert_allclose(exact_logits(model, program), torch_logits(model, IDS), atol=2e-4, rtol=0)


@pytest.mark.parametrize("row", ["SM+LN+G", "SM", "EReg(SM(t)+ScFuFFNi_2)", "SOTA(SM+ScFuFFN)"])
def test_tuned_in_the_clear_is_as_near_as_its_approximations(row):
    model = random_model(row)
    program = within_budget(model, "tuned")
    logits = plaintext(model, program, IDS)
    np.testing.assert_allclose(logits, torch_logits(model, IDS), atol=2e-2, rtol=0)


def test_programs_by_name():
    assert parse_program("tuned") == (TUNED, ())
    assert parse_program("tuned+narrow_comparisons") == (TUNED | {"narrow_comparisons"}, ())
    assert parse_program("as_written+gelu_by_squares") == parse_program("as_written")
    assert toggled("gelu_by_squares") == "tuned+gelu_by_squares" and toggled("row_tiles") == "tuned-row_tiles"
    assert parse_program("tuned-narrow_comparisons") == parse_program("tuned")
    assert parse_program("as_written+last_row@1,2") == (frozenset({"last_row"}), (1, 2))
    assert "absorbed_ffn" not in parse_program("tuned-folded_ffn")[0]
    for text in (
        "tuned",
        "as_written",
        "as_published",
        "tuned@3,7",
        "tuned-lattice_products-last_row",
        "tuned-lattice_products+narrow_comparisons@2",
        "as_written+segmented_gelu+narrow_comparisons+gelu_by_squares",
        "tuned-split_exponential+gelu_by_squares",
    ):
        assert program_name(*parse_program(text)) == text
    assert program_name(*parse_program("tuned+lattice_products@2")) == "tuned@2"
    with pytest.raises(ValueError, match="last_row"):
        parse_program("tuned-last_rows")
    for text in ("turned", "as_published+last_row"):
        with pytest.raises(ValueError, match="unknown program"):
            parse_program(text)


def test_the_change_of_basis_is_undone_where_the_condition_number_exceeds_the_budget():
    model = random_model("SM+ScFuFFN", layers=6)
    state = model.state_dict()
    state["blocks.2.ffn.fused.weight"][0] *= 300.0
    rebased = parse_program(within_budget(model, "tuned"))[1]
    assert rebased and rebased == parse_program(within_budget(model, "tuned@5"))[1]
    assert len(parse_program(within_budget(model, "tuned", budget=3.0))[1]) > len(rebased)
    assert within_budget(model, "as_written") == "as_written"
    counts = operations(model.architecture, model.config, "tuned@3", 12)
    plain = operations(model.architecture, model.config, "tuned", 12)
    assert counts - plain == {Operation("lattice_linear", ((12, 16), (16, 16))): 1} and not plain - counts


@pytest.mark.parametrize("row", ["SM+LN+R", "SM+ScFFN", "SOTA(SM+ScFuFFN)"])
def test_shapes_from_the_sizes_alone_are_those_of_the_weights(row):
    model = random_model(row, vo_bias=True)
    for program in ("as_written", "tuned"):
        shapes = weight_shapes(model.architecture, model.config, program)
        assert shapes == {name: value.shape for name, value in weight_arrays(model, program).items()}


@pytest.mark.parametrize("program", ["as_written", "tuned"])
@pytest.mark.parametrize("row", ["SM+LN+R+WNorm(QKVO+FFN)", "EReg(SM(t)+ScFuFFNi_1+SNorm(QK+FFN))"])
def test_weight_norms_are_folded_away_and_embeddings_scaled(row, program):
    model = random_model(row, embedding_scale=True)
    ids = np.random.default_rng(4).integers(0, 41, 12)
    weights = weight_arrays(model, program)
    logits = plaintext(model, program, ids)
    np.testing.assert_allclose(logits, torch_logits(model, ids), atol=2e-2, rtol=0)
    assert weight_shapes(model.architecture, model.config, program) == {n: v.shape for n, v in weights.items()}
    plain = operations(model.architecture.at_inference(), model.config, program, 12)
    assert operations(model.architecture, model.config, program, 12) == plain


def test_operations_of_one_row_by_hand():
    """SM+LN+G at GPT-2's sizes: 12 layers of two norms, four projections, two FFN matrices, one softmax, one GELU."""
    counts = {
        (operation.name, operation.shape): count
        for operation, count in operations(parse("SM+LN+G"), GPT2, "as_written", 128).items()
    }
    assert counts == {
        ("embedding_slice", "128x1024,1024x768"): 49,
        ("embedding_slice", "128x81,81x768"): 1,
        ("layer_norm", "128x768,768,768"): 25,  # two a layer and ln_f
        ("linear", "128x768,768x768"): 48,
        ("scale_public(factor=0.125)", "128x768"): 12,
        ("scores", "12x128x64,12x128x64"): 12,
        ("softmax_plain", "12x128x128"): 12,
        ("mix", "12x128x128,12x128x64"): 12,
        ("linear", "128x768,768x1024"): 36,  # three slices of the columns, three of the inner side
        ("gelu_plain", "128x3072"): 12,
        ("linear", "128x1024,1024x768"): 36,
        ("vocabulary_slice", "1x768,768x16384"): 3,
        ("vocabulary_slice", "1x768,768x1105"): 1,
    }


@pytest.mark.parametrize("row", ["SM", "SM+ScFuFFN", "SM+LN+G"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_diverged_model_is_refused_by_the_name_of_its_tensor(row, value):
    model = random_model(row)
    name, tensor = next((n, t) for n, t in model.named_parameters() if n.startswith("blocks.1.ffn") and t.ndim == 2)
    with torch.no_grad():
        tensor[0, 0] = value
    for program in ("tuned", "as_written"):
        with pytest.raises(ValueError, match=f"{re.escape(name)} .*not finite"):
            within_budget(model, program)


@pytest.mark.parametrize(
    ("row", "program", "switches"),
    [
        ("SM+LN+G", "tuned", {}),
        ("SM(t)+R", "tuned-split_exponential", {}),
        ("EReg(SM(t)+ScFuFFNi_2)", "tuned", {}),
        ("SM+LN+R", "tuned+narrow_comparisons+wide_maxima+bounded_reciprocals", PYTHIA),
        ("SM(t)+ScFFN", "as_written", PYTHIA),
        ("SM+RMS+SwiGLU", "tuned+lattice_attention", LLAMA),
        ("SM+ScFFN", "as_written+causal_cover", {}),
    ],
)
def test_a_cached_pass_in_the_clear_agrees_with_torch(row, program, switches):
    """Three tokens as a prefix, four after them, then one after a cache of which two slots are empty."""
    model = random_model(row, **switches)
    config, program = model.config, within_budget(model, program)
    weights = weight_arrays(model, program)

    def cached(first, tokens, past):
        rows = one_hot_rows(IDS[first : first + tokens], 41)
        placed = at_positions(weights, first, tokens)
        logits, *made = forward(compiled(call), model.architecture, config, program, placed, rows, past)
        np.testing.assert_allclose(logits, torch_logits(model, IDS[: first + tokens]), atol=2e-2, rtol=0)
        earlier = [[np.zeros_like(one[:, :0]) for one in part] for part in made] if past is None else past
        pairs = zip((earlier.keys, earlier.values) if past else earlier, made, strict=True)
        return [[jax.numpy.concatenate(pair, 1) for pair in zip(*both, strict=True)] for both in pairs]

    prefix = cached(0, 3, None)
    kept = [[np.pad(one, ((0, 0), (2, 0), (0, 0))) for one in part] for part in cached(3, 4, Past(*prefix))]
    rotary = nonlinear.rotary_table(7, 1, config.rotary_dims, config.rotary_base) if switches else None
    cached(7, 1, Past(*kept, np.float32(2.0), rotary))


def test_operations_after_a_cache_are_those_of_one_row():
    """Of SM+LN+G at GPT-2's sizes: every matrix takes one row, and attention 129 columns."""
    counts = operations(parse("SM+LN+G"), GPT2, "tuned", 1, past=128)
    counts = {(one.name, one.shape): count for one, count in ((without_public(one), n) for one, n in counts.items())}
    assert counts == {
        ("embedding_lookup", "1x50257,50257x768"): 1,
        ("normalise", "1x768"): 25,
        ("linear", "1x768,768x2304"): 11,
        ("linear", "1x768,768x768"): 13,  # W_O, and the last layer's query apart
        ("linear", "1x768,768x1536"): 1,
        ("linear", "1x768,768x3072"): 12,
        ("linear", "1x3072,3072x768"): 12,
        ("scores", "12x1x64,12x129x64"): 12,
        ("exponentials(blocks=1,split=1)", "12x1x129"): 12,
        ("inverse_sums", "12x1x129"): 12,
        ("mix", "12x1x129,12x129x64"): 12,
        ("scale_rows", "12x1x64,12x1"): 12,
        ("gelu_segments", "1x3072"): 12,
        ("vocabulary_slice", "1x768,768x16384"): 3,
        ("vocabulary_slice", "1x768,768x1105"): 1,
    }


def test_matmul_in_slices():
    generator = np.random.default_rng(0)
    for inner, columns in ((768, 3072), (3072, 768), (2304, 768)):
        x = generator.standard_normal((2, inner)).astype(np.float32)
        weight = generator.standard_normal((inner, columns)).astype(np.float32)
        np.testing.assert_allclose(np.asarray(linear_in_slices(call, x, weight)), x @ weight, atol=2e-3)
        shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(weight.shape, weight.dtype))
        for operation in trace(linear_in_slices, *shapes):
            assert math.prod(operation.shapes[1]) <= WEIGHTS_AT_ONCE
