"""The decoder against Hugging Face GPT-2, plain-loop transcriptions and its own identities."""

import math

import pytest
import torch

from aero.architecture import parse
from aero.checkpoint import load, save
from aero.model import GPT, ModelConfig

SMALL = {"vocabulary": 40, "context": 9, "layers": 3, "heads": 2, "width": 8, "ffn_width": 32}
EVERY = [
    "SM+LN+G",
    "SM+LN+R",
    "SM+LN",
    "SM+G",
    "SM+R",
    "SM",
    "SM+ScFFN",
    "SM+ScFuFFNi_2",
    "EReg(SM(t)+ScFuFFN)",
    "SOTA(SM+ScFFN)",
    "SOTA(SM+ScFuFFNi_1)",
]


def build(text, **changes):
    torch.manual_seed(1)
    model = GPT(parse(text), ModelConfig(**(SMALL | {"init_std": 0.3, "temperature_init": 0.7} | changes)))
    for parameter in model.parameters():  # gains, biases and norms away from their neutral start
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ids(batch=2, context=9):
    return torch.randint(0, 40, (batch, context), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("gelu", ["tanh", "exact"])
def test_gpt2_logits_equal_hugging_faces(gelu):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = build("SM+LN+G", width=24, ffn_width=96, heads=3, qk_bias=True, vo_bias=True, ffn_bias=True, gelu=gelu)
    config = GPT2Config(
        vocab_size=40,
        n_positions=9,
        n_embd=24,
        n_layer=3,
        n_head=3,
        activation_function={"tanh": "gelu_new", "exact": "gelu"}[gelu],
    )
    theirs = GPT2LMHeadModel(config).eval()
    state = {
        "transformer.wte.weight": model.token_embedding.weight,
        "transformer.wpe.weight": model.position_embedding.weight,
        "transformer.ln_f.weight": model.ln_f.weight,
        "transformer.ln_f.bias": model.ln_f.bias,
        "lm_head.weight": model.token_embedding.weight,
    }
    for i, block in enumerate(model.blocks):
        a, f, h = block.attention, block.ffn, f"transformer.h.{i}."
        qkv = (a.query, a.key, a.value)
        state |= {
            h + "ln_1.weight": block.ln_1.weight,
            h + "ln_1.bias": block.ln_1.bias,
            h + "ln_2.weight": block.ln_2.weight,
            h + "ln_2.bias": block.ln_2.bias,
            h + "attn.c_attn.weight": torch.cat([m.weight.T for m in qkv], 1),
            h + "attn.c_attn.bias": torch.cat([m.bias for m in qkv]),
            h + "attn.c_proj.weight": a.output.weight.T,
            h + "attn.c_proj.bias": a.output.bias,
            h + "mlp.c_fc.weight": f.up.weight.T,
            h + "mlp.c_fc.bias": f.up.bias,
            h + "mlp.c_proj.weight": f.down.weight.T,
            h + "mlp.c_proj.bias": f.down.bias,
        }
    theirs.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(model(ids()), theirs(ids()).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("text", EVERY)
def test_entropy_on_request_changes_no_logit_and_no_position_sees_the_future(text):
    model, tokens = build(text), ids()
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


@torch.no_grad()
def test_he_hofmann_block_against_its_equation():
    model, tokens = build("SOTA(SM+ScFFN)", ln_f=False), ids(1)
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
        ffn = n @ block.ffn.up.weight.T @ block.ffn.down.weight.T
        x = block.b_ff * ffn + block.b_sa * torch.cat(parts, 1)
    torch.testing.assert_close(model(tokens)[0], x @ model.token_embedding.weight.T, atol=1e-4, rtol=1e-4)


def test_he_hofmann_starts_as_identity_attention():
    model = GPT(parse("SOTA(SM+ScFFN)"), ModelConfig(**SMALL))
    block, n = model.blocks[1], torch.randn(1, 9, 8)
    # W_Q = 0 makes the softmax the causal mean, which the centring term removes: A = I.
    torch.testing.assert_close(block.attention(n, False)[0], n)


@torch.no_grad()
def test_fused_ffn_equals_the_two_layer_ffn_it_replaces():
    two, fused = build("SM+ScFFN"), build("SM+ScFuFFN")
    state = two.state_dict()
    for i, block in enumerate(two.blocks):
        state[f"blocks.{i}.ffn.fused.weight"] = block.ffn.down.weight @ block.ffn.up.weight
        del state[f"blocks.{i}.ffn.up.weight"], state[f"blocks.{i}.ffn.down.weight"]
    fused.load_state_dict(state)
    torch.testing.assert_close(fused(ids()), two(ids()), atol=1e-5, rtol=1e-5)


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
        ({"layers": 0}, "layers must be at least 1"),
        ({"gelu": "fast"}, "exact or tanh"),
        ({"temperature_init": 0.0}, "temperature_init"),
    ],
)
def test_impossible_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(**(SMALL | changes))


def test_impossible_models_and_inputs():
    with pytest.raises(ValueError, match="cannot prune 4"):
        GPT(parse("SM+ScFuFFNi_4"), ModelConfig(**SMALL))
    with pytest.raises(ValueError, match="context of 9"):
        build("SM")(torch.zeros(1, 10, dtype=torch.long))


@pytest.mark.parametrize("text", EVERY)
def test_checkpoint_round_trip(text, tmp_path):
    model = build(text)
    save(tmp_path / "c.safetensors", model, run="x")
    again = load(tmp_path / "c.safetensors")
    assert again.architecture == model.architecture and again.config == model.config
    with torch.no_grad():
        assert torch.equal(again(ids()), model(ids()))


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
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, str(path))
    with pytest.raises(ValueError, match="aero-checkpoint-1"):
        load(path)
