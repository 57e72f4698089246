"""Weight norm, spectral norm and sigmaReparam, and how they are folded away; fused feed-forward matrices."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from small_models import SMALL, build, ids

from aero.architecture import NORMED, parse
from aero.checkpoint import load, save
from aero.model import GPT, ModelConfig
from aero.training.run import learned
from aero.training.schedule import parameter_groups
from aero.weight_transforms import fold_weight_norm


@torch.no_grad()
@pytest.mark.parametrize("layers", NORMED)
def test_weight_norm_equals_equation_5_and_starts_at_the_plain_weights(layers):
    torch.manual_seed(3)
    plain = GPT(parse("SM"), ModelConfig(**SMALL)).eval()
    torch.manual_seed(3)
    normed = GPT(parse(f"SM+WNorm({layers})"), ModelConfig(**SMALL)).eval()
    torch.testing.assert_close(normed(ids()), plain(ids()))
    names = {"Q": "query", "K": "key", "V": "value", "O": "output"}
    for block in normed.blocks:
        found = {
            letter for letter, name in names.items() if hasattr(getattr(block.attention, name), "parametrizations")
        }
        found |= {"FFN" for layer in (block.ffn.up, block.ffn.down) if hasattr(layer, "parametrizations")}
        assert found == set(NORMED[layers])
    normed = build(f"SM+WNorm({layers})")
    layer = normed.blocks[1].ffn.up if "FFN" in layers else normed.blocks[1].attention.query
    g, v = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    rows = [g[row] * v[row] / math.sqrt(sum(float(x) ** 2 for x in v[row])) for row in range(len(v))]
    torch.testing.assert_close(layer.weight, torch.stack(rows))


@torch.no_grad()
def test_spectral_norm_iterates_in_training_mode_only_and_finds_the_largest_singular_value():
    model = build("SM+SNorm(FFN)")  # the weights were changed after the singular vectors were found
    up = model.blocks[0].ffn.up
    before = up.weight.clone()
    model(ids())
    assert torch.equal(up.weight, before)
    model.train()
    for _ in range(200):
        model(ids())
    model.eval()
    original = up.parametrizations.weight.original
    torch.testing.assert_close(up.weight, original / torch.linalg.matrix_norm(original, 2))
    assert (up.weight - before).abs().max() > 1e-3


@torch.no_grad()
def test_spectral_norm_is_computed_outside_autocast():
    model, seen = build("SM+SNorm(FFN)"), []
    inner = model.blocks[0].ffn.up.parametrizations.weight[0].inner
    inner.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(ids()).dtype == torch.bfloat16
    assert seen == [False]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["WNorm", "SNorm"])
@pytest.mark.parametrize("layers", ["FFN", "QKVO+FFN"])
@pytest.mark.parametrize("rest", ["SM+LN+R+{}", "EReg(SM(t)+ScFuFFNi_1+{})"])
def test_folding_keeps_the_function(kind, layers, rest):
    model = build(rest.format(f"{kind}({layers})"))
    model.train()
    model(ids())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    folded = fold_weight_norm(model)
    assert model.training and all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert folded.architecture == parse(rest.format("X").replace("+X", ""))
    assert set(folded.state_dict()) == set(GPT(folded.architecture, model.config).state_dict())
    assert torch.equal(folded(ids()), model.eval()(ids()))


@torch.no_grad()
def test_temperatures_by_their_logarithm_start_as_others_stay_positive_and_are_folded_away():
    torch.manual_seed(3)
    other = GPT(parse("EReg(SM(t)+ScFuFFN)"), ModelConfig(**SMALL, temperature_init=0.01)).eval()
    torch.manual_seed(3)
    model = GPT(other.architecture, replace(other.config, log_temperature=True)).eval()
    torch.testing.assert_close(model(ids()), other(ids()))
    for block in model.blocks:
        block.attention.parametrizations.temperature.original.add_(torch.randn(()) * 3 - 3)
        assert (block.attention.temperature > 0).all()
    folded = fold_weight_norm(model)
    assert set(folded.state_dict()) == set(other.state_dict())
    assert torch.equal(folded(ids()), model(ids()))
    assert learned(model) == learned(folded)
    assert [len(group["params"]) for group in parameter_groups(model, 0.1)] == [
        len(group["params"]) for group in parameter_groups(other, 0.1)
    ]


@torch.no_grad()
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("text", ["SM+ScFFN", "EReg(SM(t)+ScFFN)", "SOTA(SM+ScFFN)"])
def test_a_fused_ffn_equals_the_two_layers_it_replaces(text, biased):
    """AERO §4.2: W_in W_out is one matrix."""
    two = build(text, ffn_bias=biased)
    fused = GPT(parse(text.replace("ScFFN", "ScFuFFN")), two.config).eval()
    fused.load_state_dict(two.state_dict(), strict=False)
    for one, other in zip(fused.blocks, two.blocks, strict=True):
        one.ffn.fused.weight.copy_(other.ffn.down.weight @ other.ffn.up.weight)
        if biased:
            one.ffn.fused.bias.copy_(other.ffn.down(other.ffn.up.bias))
    torch.testing.assert_close(fused(ids()), two(ids()), atol=1e-5, rtol=1e-5)


def test_sigma_reparam_has_unit_spectral_norm_and_iterates_in_training_mode_only(tmp_path):
    torch.manual_seed(1)
    model = GPT(parse("Core(sigma_reparam)+LN+G"), ModelConfig(**SMALL))
    attention = model.blocks[0].attention
    for layer in (attention.query, attention.key, attention.value):
        for _ in range(500):
            layer.weight  # noqa: B018  one power iteration
        assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(1, abs=1e-3)
    assert not hasattr(attention.output, "parametrizations")
    model.eval()
    before = attention.query.parametrizations.weight[0].inner.vector.clone()
    assert torch.equal(attention.query.weight, attention.query.weight)
    assert torch.equal(before, attention.query.parametrizations.weight[0].inner.vector)
    save(tmp_path / "model", model)
    torch.testing.assert_close(load(tmp_path / "model")(ids()), model(ids()), atol=0, rtol=0)
    torch.testing.assert_close(fold_weight_norm(copy.deepcopy(model))(ids()), model(ids()))
