"""The decoder against Hugging Face GPT-2 and GPT-NeoX and plain loops over the papers' equations; checkpoints."""

import dataclasses
import math

import pytest
import torch
from small_models import SMALL, build, ids

from aero.architecture import parse
from aero.checkpoint import load, save
from aero.families import FAMILIES
from aero.model import GPT, ModelConfig

EVERY = [
    "SM+LN+G",
    "SM+LN+LeakyR(global)",
    "SM+ScFFN",
    "EReg(SM(t)+ScFuFFNi_2)",
    "SOTA(SM+ScFFN)",
    "SM+WNorm(QKVO+FFN)",
    "EReg(SM(t)+ScFuFFN+SNorm(QKV+FFN))",
]
# Heads have four dimensions here, and rotation takes pairs.
PYTHIA = FAMILIES["pythia-70m"].switches | {"rotary_fraction": 0.5}
LANGUINI = FAMILIES["languini-gpt2"].switches
IN_EVERY_FAMILY = [
    pytest.param(text, switches, id=f"{family}-{text}")
    for family, switches in (("gpt2", {}), ("pythia", PYTHIA), ("languini", LANGUINI))
    for text in EVERY
    if not (text.startswith("SOTA") and family == "pythia")  # refused
]


def test_published_sizes_of_the_families():
    def parameters(family, vocabulary, context, **changes):
        values = FAMILIES[family].sizes | FAMILIES[family].switches | changes
        with torch.device("meta"):
            model = GPT(parse("SM+LN+G"), ModelConfig(vocabulary, context, **values))
        return sum(p.numel() for p in model.parameters())

    biased = {"vo_bias": True, "ffn_bias": True}  # Hugging Face's GPT-2 has them, the CodeParrot recipe has not
    assert parameters("gpt2", 50257, 1024, **biased) == 124_439_808
    assert parameters("pythia-70m", 50304, 2048) == 70_426_624  # Biderman et al. (2023), Table 1: 18,915,328 of them
    assert parameters("pythia-70m", 50304, 2048) - 2 * 50304 * 512 == 18_915_328  # without the two embeddings
    layer = 12 * 768**2 + 9 * 768 + 4 * 768  # matrices, biases, two LayerNorms
    assert parameters("gpt2-18l", 100, 128, **biased) - parameters("gpt2", 100, 128, **biased) == 6 * layer


@pytest.mark.parametrize(("text", "switches"), IN_EVERY_FAMILY)
def test_entropy_on_request_changes_no_logit_and_no_position_sees_the_future(text, switches):
    model, tokens = build(text, **switches), ids()
    with torch.no_grad():
        logits = model(tokens)
        with_entropy, entropies = model(tokens, entropy=True)
        assert entropies.shape == (3, 2, 2, 9)
        torch.testing.assert_close(with_entropy, logits, atol=1e-5, rtol=1e-5)
        changed = tokens.clone()
        changed[:, 5:] = (changed[:, 5:] + 1) % 40
        torch.testing.assert_close(model(changed)[:, :5], logits[:, :5], atol=1e-5, rtol=1e-5)
        assert (model(changed)[:, 5:] - logits[:, 5:]).abs().max() > 1e-3


def layer_norm(x, module):
    return (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt() * module.weight + module.bias


def attention_rows(attention, n, temperature=None):
    """softmax(Q K^T / (t sqrt(d_k))) as a list of (T, T) per head, by loops."""
    heads, matrices = attention.heads, []
    q = n @ attention.query.weight.T + attention.query.bias
    k = n @ attention.key.weight.T + attention.key.bias
    size = n.shape[1] // heads
    for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        matrix = torch.zeros(len(n), len(n))
        for i in range(len(n)):
            z = torch.stack([q[i, part] @ k[j, part] for j in range(i + 1)]) / math.sqrt(size)
            matrix[i, : i + 1] = (z if temperature is None else z / temperature[h, i]).softmax(0)
        matrices.append(matrix)
    return matrices


@torch.no_grad()
def test_scaled_fused_pruned_rows_against_equation_6():
    model, tokens = build("EReg(SM(t)+ScFuFFNi_1)"), ids(1)
    x = model.token_embedding.weight[tokens[0]] + model.position_embedding.weight
    for block in model.blocks:
        a = block.attention
        v = x @ a.value.weight.T
        mixed = torch.cat([m @ v[:, 4 * h : 4 * h + 4] for h, m in enumerate(attention_rows(a, x, a.temperature))], 1)
        x = x + mixed @ a.output.weight.T
        if block is not model.blocks[-1]:  # the deepest FFN is pruned
            x = block.beta * x + (x @ block.ffn.fused.weight.T) / block.alpha
    expected = layer_norm(x, model.ln_f) @ model.token_embedding.weight.T
    torch.testing.assert_close(model(tokens)[0], expected, atol=1e-5, rtol=1e-5)


def rotated(x, heads):
    """Rotary positions by complex numbers: the first two of four dimensions a head, rotated by the position's angle."""
    x = x.clone().view(len(x), heads, -1)
    for i in range(len(x)):
        for h in range(heads):
            number = complex(x[i, h, 0], x[i, h, 1]) * complex(math.cos(i), math.sin(i))
            x[i, h, 0], x[i, h, 1] = number.real, number.imag
    return x.flatten(1)


@torch.no_grad()
@pytest.mark.parametrize("text", ["EReg(SM(t)+ScFuFFNi_1)", "SM+ScFFN"])
def test_parallel_rotary_rows_with_scaled_ffns(text):
    model, tokens = build(text, **PYTHIA), ids(1)
    x = model.token_embedding.weight[tokens[0]]
    for layer, block in enumerate(model.blocks):
        a = block.attention
        q = rotated(x @ a.query.weight.T + a.query.bias, 2)
        k = rotated(x @ a.key.weight.T + a.key.bias, 2)
        v = x @ a.value.weight.T + a.value.bias
        heads = []
        for h in range(2):
            part, t = slice(4 * h, 4 * h + 4), torch.ones(9) if a.temperature is None else a.temperature[h]
            for i in range(9):
                weights = (q[i, part] @ k[: i + 1, part].T / (2.0 * t[i])).softmax(0)
                heads.append(weights @ v[: i + 1, part])
        attended = torch.stack(heads).view(2, 9, 4).transpose(0, 1).flatten(1) @ a.output.weight.T + a.output.bias
        if "i_1" in text and layer == 2:  # the deepest FFN is pruned
            x = x + attended
        elif "Fu" in text:
            f = block.ffn.fused
            x = block.beta * x + attended + (x @ f.weight.T + f.bias) / block.alpha
        else:
            up, down = block.ffn.up, block.ffn.down
            y = (x @ up.weight.T + up.bias) @ down.weight.T + down.bias
            x = block.beta * x + attended + y / block.alpha
    expected = layer_norm(x, model.ln_f) @ model.lm_head.weight.T
    torch.testing.assert_close(model(tokens)[0], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_languini_scales_token_embeddings_and_starts_ffn_outputs_small():
    model, tokens = build("SM+LN+G", **LANGUINI), ids(1)
    embedded = math.sqrt(8) * model.token_embedding.weight[tokens[0]] + model.position_embedding.weight
    torch.testing.assert_close(model.hidden_states(tokens)[0][0][0], embedded)
    sizes = SMALL | {"width": 128, "ffn_width": 512}
    for text, written in (("SM+LN+G", "down"), ("SM+ScFuFFN", "fused")):
        ffn = GPT(parse(text), ModelConfig(**(sizes | LANGUINI))).blocks[1].ffn
        assert getattr(ffn, written).weight.std().item() == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
    plain = GPT(parse("SM+LN+G"), ModelConfig(**(sizes | LANGUINI | {"residual_init_scaling": False})))
    assert plain.blocks[1].ffn.down.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("text", ["SM+LeakyR", "SM+LeakyR(global)"])
def test_leaky_relu_with_learnable_slopes(text):
    model, tokens = build(text), ids()
    several = text == "SM+LeakyR"
    assert model.leaky_slopes.shape == ((3,) if several else (1,))
    seen = []
    for block in model.blocks:
        block.ffn.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0].detach(), output.detach())))
    model(tokens).square().sum().backward()
    for layer, (block, (x, y)) in enumerate(zip(model.blocks, seen, strict=True)):
        hidden = x @ block.ffn.up.weight.T
        slope = model.leaky_slopes[layer if several else 0]
        leaky = torch.where(hidden >= 0, hidden, slope * hidden)
        torch.testing.assert_close(y, leaky @ block.ffn.down.weight.T)
    assert (model.leaky_slopes.grad != 0).all()
    assert (GPT(parse(text), ModelConfig(**SMALL)).leaky_slopes == 0.01).all()


@torch.no_grad()
@pytest.mark.parametrize("text", ["SOTA(SM+ScFFN)", "SOTA(SM+ScFuFFN)", "SOTA(SM+ScFuFFNi_1)"])
def test_he_hofmann_block_against_its_equation(text):
    model, tokens = build(text, ln_f=False), ids(1)
    x = model.token_embedding.weight[tokens[0]] + model.position_embedding.weight
    for layer, block in enumerate(model.blocks):
        a = block.attention
        n = layer_norm(x, block.ln_1) if layer == 0 else x
        v = n
        if layer == 0:
            v = n @ (a.value_residual * a.value_weight + a.value_skip * torch.eye(8)).T
        parts = []
        for h, softmax in enumerate(attention_rows(a, n)):
            causal_mean = torch.tensor([[1 / (i + 1) if j <= i else 0.0 for j in range(9)] for i in range(9)])
            shaped = a.shape_a[h] * torch.eye(9) + a.shape_b[h] * softmax - a.shape_g[h] * causal_mean
            parts.append(shaped @ v[:, 4 * h : 4 * h + 4])
        if block.ffn is None:
            assert "i_1" in text and layer == 2
            ffn = n
        elif "Fu" in text:
            ffn = n @ block.ffn.fused.weight.T
        else:
            ffn = n @ block.ffn.up.weight.T @ block.ffn.down.weight.T
        x = block.b_ff * ffn + block.b_sa * torch.cat(parts, 1)
    torch.testing.assert_close(model(tokens)[0], x @ model.token_embedding.weight.T, atol=1e-4, rtol=1e-4)


def test_he_hofmann_starts_as_identity_attention():
    model = GPT(parse("SOTA(SM+ScFFN)"), ModelConfig(**SMALL))
    block, n = model.blocks[1], torch.randn(1, 9, 8)
    # W_Q = 0 makes the softmax the causal mean, which the centring term removes: A = I.
    torch.testing.assert_close(block.attention(n, False)[0], n)


def test_initial_values_of_the_recipe():
    torch.manual_seed(0)
    model = GPT(parse("EReg(SM(t)+ScFuFFNi_2)"), ModelConfig(**(SMALL | {"width": 128, "ffn_width": 512})))
    attention = model.blocks[0].attention
    assert attention.query.weight.std().item() == pytest.approx(0.02, rel=0.05) and (attention.query.bias == 0).all()
    assert attention.value.bias is None and attention.output.bias is None and model.lm_head is None
    assert attention.temperature.shape == (2, 9) and (attention.temperature == 0.01).all()
    assert model.reg_threshold_weights.shape == (3, 2) and (model.reg_threshold_weights == 0.5).all()
    assert model.blocks[0].alpha == model.blocks[0].beta == 1
    assert model.blocks[1].ffn is None and model.blocks[2].alpha is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "width 8 is not divisible by heads 3"),
        ({"kv_heads": 3}, "kv_heads 3 must divide heads 2"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"gelu": "fast"}, "exact or tanh"),
        ({"temperature_init": 0.0}, "temperature_init"),
        ({"position": "sinusoidal"}, "learned or rotary"),
        ({"position": "rotary", "rotary_fraction": 0.75}, "dimensions is 3: rotation takes pairs"),
        ({"position": "rotary", "rotary_fraction": 0.25}, "dimensions is 1: rotation takes pairs"),
        ({"position": "rotary", "rotary_fraction": 2.0}, "from 2 to all of them"),
    ],
)
def test_impossible_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**(SMALL | changes))


def test_impossible_models_and_inputs():
    with pytest.raises(RuntimeError, match="temperature"):
        build("SM(t)+R", context=12).load_state_dict(build("SM(t)+R").state_dict())
    with pytest.raises(ValueError, match="cannot prune 4"):
        GPT(parse("SM+ScFuFFNi_4"), ModelConfig(**SMALL))
    with pytest.raises(ValueError, match="all 3 FFNs are pruned, so there is none to normalise"):
        GPT(parse("SM+ScFuFFNi_3+WNorm(FFN)"), ModelConfig(**SMALL))
    for switch in ({"position": "rotary", "rotary_fraction": 0.5}, {"parallel_residual": True}):
        with pytest.raises(ValueError, match="parallel_residual"):
            GPT(parse("SOTA(SM+ScFFN)"), ModelConfig(**(SMALL | switch)))
    for text in ("SM", "SM(t)+R"):
        with pytest.raises(ValueError, match="context of 9"):
            build(text)(torch.zeros(1, 10, dtype=torch.long))


@pytest.mark.parametrize(("text", "switches"), IN_EVERY_FAMILY)
def test_checkpoint_round_trip(text, switches, tmp_path):
    model = build(text, **switches)
    save(tmp_path / "c.safetensors", model, run="x")
    again = load(tmp_path / "c.safetensors")
    assert again.architecture == model.architecture and again.config == model.config
    with torch.no_grad():
        assert torch.equal(again(ids()), model(ids()))


def test_checkpoint_with_temperatures_of_another_context(tmp_path):
    model = build("SM(t)+R")
    model.config = dataclasses.replace(model.config, context=12)
    save(tmp_path / "c.safetensors", model)
    with pytest.raises(ValueError, match=r"does not fit its own description.*\(9, 8\), not .*\(12, 8\)"):
        load(tmp_path / "c.safetensors")


def test_damaged_checkpoints_are_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(ValueError, match="does not exist"):
        load(path)
    save(path, build("SM"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
        load(path)
