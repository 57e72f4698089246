"""The limits of SPU's fixed point, and models that exceed them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from made_models import random_model, torch_logits

from aero.two_party.program import fixed_point
from aero.two_party.program.end_to_end import ask
from aero.two_party.program.fixed_point import LIMITS, farthest, fitting, watched
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, Settings, TwoPartyError

TOLERANCE = 0.02


def reciprocal_root(x):
    return jax.lax.rsqrt(x)


def quotient(x):
    return x / (x + 1.0)


def halves(x):
    return 0.5 * x


def with_exponential(x):
    return jnp.exp(-x)


# For each limit a function, and the ratio of its argument to the limited value.
KNOWN = {
    "rsqrt": (reciprocal_root, 1.0),
    "div": (quotient, 1.0),
    "product": (halves, 2.0),
    "exp": (with_exponential, 1.0),
}


def on_both(party, own):
    found = {}
    for name, (function, scale) in KNOWN.items():
        for side, share in (("below", 0.7), ("beyond", 6.3)):
            x = np.full(8, scale * share * LIMITS[name], np.float32)
            party.put("x", x if party.rank == CLIENT else None, x.shape, from_rank=CLIENT)
            party.run(function, ["x"], ["y"])
            found[name, side] = party.reveal("y", to=CLIENT)
    return found


@pytest.mark.slow
def test_spu_is_right_below_each_limit_and_wrong_beyond():
    found, _ = run_parties(on_both, None, None, Settings())
    for name, (function, scale) in KNOWN.items():
        for side, share in (("below", 0.7), ("beyond", 6.3)):
            expected = np.asarray(function(jnp.full(8, scale * share * LIMITS[name])))
            right = np.allclose(found[name, side], expected, rtol=0.01, atol=1e-3)
            assert right is (side == "below"), (name, side, found[name, side], expected)


@pytest.mark.parametrize(
    "row", [pytest.param("SM+LN+G", marks=pytest.mark.slow), "EReg(SM(t)+ScFFN)", "SOTA(SM+ScFuFFN)"]
)
@pytest.mark.parametrize("program", ["tuned+narrow_comparisons+bounded_reciprocals", "tuned+lattice_rest"])
def test_ordinary_models_fit(row, program):
    model = random_model(row, layers=2)
    found = farthest(model, program)
    # By design the split exponential multiplies 2^13 and 2^12, and `bounded.reciprocal_root` compares with up to 3,360;
    # nothing else comes near.
    assert found.value < (0.83 if "bounded" in program else 0.51) * found.limit


def scaled(row, factor):
    """A model whose residual stream is `factor` times as large after the embedding."""
    model = random_model(row, layers=2)
    with torch.no_grad():
        model.token_embedding.weight.mul_(factor)
        model.position_embedding.weight.mul_(factor)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("program", ["as_written", "tuned"])
def test_a_model_with_too_large_variances_is_refused_and_would_be_wrong(program):
    """LayerNorm takes any scale; its variance, 2^17 and more, is what SPU's `rsqrt` does not. (Digits are lost before:
    1 / 77 has twelve bits at 18 fraction bits.)"""
    prompt = np.random.default_rng(0).integers(0, 41, 12)
    good, bad = scaled("SM+LN+R", 10.0), scaled("SM+LN+R", 4000.0)
    assert fitting(good, program) == program
    with pytest.raises(TwoPartyError, match="the model's values do not fit fixed point: .* private answers would be"):
        fitting(bad, program)
    errors = []
    for model in (good, bad):
        (answer,) = ask(model, prompt, program)
        errors.append(np.abs(answer.logits - torch_logits(model, prompt)).max())
    assert errors[0] < TOLERANCE < 10 * TOLERANCE < errors[1]


RARE = 250
"""A token that random prompts do not have."""


def with_one_odd_token(kind):
    """A model that fits but for one token of 300, or one position of 200."""
    changes = {"vocabulary": 300, "layers": 1, "ffn_bias": True, "context": 200 if kind == "position" else 12}
    model = random_model("SM+LN+R" if kind == "channel" else "SM+R", **changes)
    token, ffn = model.token_embedding.weight.data, model.blocks[0].ffn
    if kind == "embedding":
        token[RARE] *= 40_000.0
    elif kind == "channel":
        token[RARE, 3] = 10_000.0
    elif kind == "position":
        model.position_embedding.weight.data[150] *= 1e8
    else:  # a hidden unit of the FFN that this token alone sets off; its embedding is as large as others
        model.position_embedding.weight.data[0] = 0.0
        model.blocks[0].attention.output.weight.data[:] = 0.0
        ffn.up.weight.data[0] = 1e6 * token[RARE] / token[RARE].square().sum()
        ffn.up.bias.data[0] = -0.95e6
        ffn.down.weight.data[:, 0] = 1e4
        token *= token[RARE].norm() / token.norm(dim=1, keepdim=True)
    return model


@pytest.mark.parametrize("kind", ["embedding", "channel", "position", "hidden"])
def test_a_token_or_a_position_that_random_prompts_lack_is_found(kind, monkeypatch):
    model = with_one_odd_token(kind)
    drawn = np.random.default_rng(0).integers(0, 300, 128)
    with monkeypatch.context() as patched:
        patched.setattr(fixed_point, "probes", lambda model, prefix: [drawn[:12]])
        assert RARE not in drawn and farthest(model, "as_written").value < 2.0**20
    if kind != "position":
        assert fixed_point.worst_first(model)[0] == RARE
    with pytest.raises(TwoPartyError, match="do not fit.* of layer 1, which" if kind == "hidden" else "do not fit"):
        fitting(model, "as_written")


def test_the_client_is_told_what_was_checked():
    model = random_model("SM+LN+G", layers=2)
    prompts = len(list(fixed_point.probes(model, ())))
    assert {str(prompts), str(model.config.vocabulary)} <= set(fixed_point.coverage(model).split())


def test_limits_by_hand():
    expected = {"product": 26, "rsqrt": 17, "div": 18, "exp": 9, "square": 13, "negative": 12, "value": 44}
    assert LIMITS == {name: 2.0**power for name, power in expected.items()} | {"logit": 5.5}
    assert "dot_general" in fixed_point.PRODUCTS


def test_lattice_multiplication_has_a_smaller_range():
    """The limit that two processes show in test_matmul.py."""
    for kind, most, lead, constants in (("lattice_linear", 2.0**14, (), {}), ("mix", 2.0**10, (1,), {"lattice": 1})):
        for share, right in ((0.99, True), (1.01, False)):
            _, seen = watched(kind, (jnp.full((*lead, 2, 2), share * most / 2), jnp.ones((*lead, 2, 2))), constants)
            assert all(value < LIMITS[limit] for limit, value in seen.items()) is right


def test_dropped_results_of_scaled_rows_do_not_count():
    """Rows of 2^13 with factors of 2^-6 beside rows of 1 with factors of 1."""
    x, factors = jnp.tile(jnp.array([[8192.0], [1.0]]), (16, 8)), jnp.tile(jnp.array([2.0**-6, 1.0]), 16)
    _, seen = watched("scale_row_tiles", (x, factors), {"lattice": 1})
    assert all(value < LIMITS[limit] for limit, value in seen.items())


def test_a_model_beyond_the_lattice_range_is_computed_within_spu():
    """W_V so large that P V W_O exceeds 2^14 and stays below 2^26."""
    model = random_model("SM", layers=2, ln_f=False)
    assert fitting(model, "tuned@1") == "tuned@1"
    with torch.no_grad():
        model.blocks[-1].attention.value.weight.mul_(1e5)
    found = farthest(model, "tuned")
    assert found.what.startswith("lattice_linear") and found.value > found.limit
    assert fitting(model, "tuned@1") == "tuned-lattice_products@1"
    assert fitting(model, "tuned+lattice_attention-last_row@1") == "tuned-lattice_products-last_row@1"
    assert fitting(model, "as_written") == "as_written"
    assert fitting(model, "tuned+narrow_comparisons@1") == "tuned-lattice_products+narrow_comparisons@1"
    assert fitting(model, "tuned+lattice_rest@1") == "tuned-lattice_products@1"
    with pytest.raises(TwoPartyError, match="do not fit"):
        fitting(scaled("SM", 1e20), "tuned")


def test_a_model_with_too_large_preactivations_is_compared_in_the_large_ring():
    model = random_model("SM+R", layers=2)
    program = "tuned+narrow_comparisons"
    assert fitting(model, program) == program
    with torch.no_grad():
        ffn = model.blocks[0].ffn
        ffn.up.weight.mul_(1e5), ffn.down.weight.mul_(1e-5)
    found = farthest(model, "tuned-lattice_products+narrow_comparisons")
    assert found.what == "relu (negative)" and 2**13 < found.value < 2**26
    assert fitting(model, "tuned-lattice_products+narrow_comparisons") == "tuned-lattice_products"
    assert fitting(model, program) == "tuned-lattice_products"


def test_a_model_with_too_large_variances_takes_the_roots_of_spu():
    """Variances between 2^12 and 2^17, and between 2^10 and 2^12 where squares are summed outside SPU."""
    program = "as_written+folded_norms+bounded_reciprocals"
    assert fitting(random_model("SM+LN+R", layers=2), program) == program
    assert fitting(scaled("SM+LN+R", 400.0), program) == "as_written+folded_norms"
    assert fitting(scaled("SM+LN+R", 2.0), "tuned+lattice_rest") == "tuned+lattice_rest"
    assert fitting(scaled("SM+LN+R", 200.0), "tuned+lattice_rest") == "tuned"
    assert fitting(model := scaled("SM+LN+R", 2.0), "tuned+bounded_logits") == "tuned+bounded_logits"
    with torch.no_grad():
        model.blocks[1].attention.query.weight.mul_(1e3)
    assert fitting(model, "tuned+bounded_logits") == "tuned"
