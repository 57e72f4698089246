"""Attention cores in the decoder: against plain loops, their gains, what is logged of them, where they are refused."""

import copy
import math

import pytest
import torch

from aero.architecture import parse
from aero.attention_kernels import CORES, GAIN_GRADIENT_LIMIT, GAIN_LIMIT
from aero.checkpoint import load, save
from aero.config import TrainParameters
from aero.families import FAMILIES
from aero.flops import count
from aero.model import GPT, ModelConfig
from aero.records import csv_text, read_rows
from aero.training.diagnostics import attention_statistics
from aero.training.log import columns
from aero.training.loop import Regularizer, train
from aero.training.schedule import parameter_groups
from aero.weight_transforms import fold_weight_norm

SMALL = {"vocabulary": 40, "context": 9, "layers": 3, "heads": 2, "width": 8, "ffn_width": 32}
WINDOW = 8


def notation(core):
    return "SM+LN+G" if core == "softmax" else f"Core({core})+LN+G"


def build(core, **changes):
    torch.manual_seed(1)
    model = GPT(parse(notation(core)), ModelConfig(**(SMALL | {"init_std": 0.5} | changes))).double()
    for parameter in model.parameters():  # gains, biases and norms away from their neutral start
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ids(batch=2, context=9):
    return torch.randint(0, 40, (batch, context), generator=torch.Generator().manual_seed(2))


def weight_of(layer, core):
    """The matrix in use: gamma W / sigma(W), sigma by the vector v that iteration left, |W v| for a unit v."""
    if core != "sigma_reparam":
        return layer.weight
    inner = layer.parametrizations.weight[0].inner
    original = layer.parametrizations.weight.original
    return inner.gain * original / torch.linalg.norm(original @ inner.vector)


def normed(row, gain):
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    return torch.stack([(x - mean) / math.sqrt(variance + 1e-5) * g for x, g in zip(row, gain, strict=True)])


def similarity(core, q, k):
    """Positive similarity of one query and one key, each (d_k,), by the papers' formulas."""
    if core == "sigmoid":
        return sum(1 / (1 + torch.exp(-a)) / (1 + torch.exp(-b)) for a, b in zip(q, k, strict=True))
    if core == "elu":
        phi = lambda x: x + 1 if x > 0 else torch.exp(x)  # noqa: E731
        return sum(phi(a) * phi(b) for a, b in zip(q, k, strict=True))
    if core in ("relu", "relu_performer"):
        shift = 1e-3 if core == "relu_performer" else 0.0
        return sum((max(a, 0) + shift) * (max(b, 0) + shift) for a, b in zip(q, k, strict=True))
    return torch.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)))


def attention_rows(attention, n, core):
    """One (T, T) matrix a head, by loops over heads, queries and keys."""
    q = n @ weight_of(attention.query, core).T + attention.query.bias
    k = n @ weight_of(attention.key, core).T + attention.key.bias
    size, matrices = n.shape[1] // attention.heads, []
    epsilon = 1e-6 if core in ("sigmoid", "elu", "relu") else 0.0
    for h in range(attention.heads):
        part = slice(h * size, (h + 1) * size)
        matrix = torch.zeros(len(n), len(n), dtype=torch.float64)
        for i in range(len(n)):
            query = q[i, part]
            if core.startswith("qk"):
                query = normed(query, attention.query_gain)
            for j in range(i + 1):
                key = k[j, part]
                if core.startswith("qk"):
                    key = normed(key, attention.key_gain)
                if core != "window_softmax" or i - j <= WINDOW:
                    matrix[i, j] = similarity(core, query, key)
            matrix[i] /= sum(matrix[i]) + epsilon
        matrices.append(matrix)
    return matrices


@torch.no_grad()
@pytest.mark.parametrize("core", CORES)
def test_logits_equal_plain_loops(core):
    context = 12 if core == "window_softmax" else 9  # so that the window hides something
    model, tokens = build(core, context=context), ids(1, context)
    x = model.token_embedding.weight[tokens[0]] + model.position_embedding.weight
    expected_norms, expected_entropies = [], []
    for block in model.blocks:
        a, f = block.attention, block.ffn
        n = block.ln_1(x)
        v = n @ weight_of(a.value, core).T
        matrices = attention_rows(a, n, core)
        mixed = torch.cat([m @ v[:, 4 * h : 4 * h + 4] for h, m in enumerate(matrices)], 1)
        x = x + mixed @ a.output.weight.T
        hidden = block.ln_2(x) @ f.up.weight.T
        gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + gelu @ f.down.weight.T
        expected_norms.append(sum(math.sqrt((m**2).sum()) for m in matrices) / 2)
        rows = [[-sum(p * math.log(p) for p in row if p > 0) for row in m.tolist()] for m in matrices]
        expected_entropies.append(torch.tensor(rows, dtype=torch.float64))
    logits, entropies = model(tokens, entropy=True)
    torch.testing.assert_close(logits[0], model.ln_f(x) @ model.token_embedding.weight.T, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(entropies[:, 0], torch.stack(expected_entropies), atol=1e-9, rtol=1e-9)
    assert attention_statistics(model, tokens)[0] == pytest.approx(expected_norms, rel=1e-5)


@torch.no_grad()
def test_logit_variance_is_that_of_the_visible_keys():
    model, tokens = build("softmax"), ids(1)
    n = model.blocks[0].ln_1(model.hidden_states(tokens)[0][0])[0]
    a, found = model.blocks[0].attention, []
    q, k = n @ a.query.weight.T + a.query.bias, n @ a.key.weight.T + a.key.bias
    for part in (slice(0, 4), slice(4, 8)):
        for i in range(9):
            z = [float(q[i, part] @ k[j, part]) / 2 for j in range(i + 1)]
            found.append(sum((x - sum(z) / len(z)) ** 2 for x in z) / len(z))
    assert attention_statistics(model, tokens)[1][0] == pytest.approx(sum(found) / len(found), rel=1e-5)


@pytest.mark.parametrize("core", CORES)
def test_every_core_trains_and_sees_no_future(core):
    model, tokens = build(core), ids()
    model.train()
    model(tokens).square().sum().backward()
    still = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    fixed = core == "qk_layernorm_fixed"
    assert {name.rpartition(".")[2] for name in still} == ({"query_gain", "key_gain"} if fixed else set())
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    model.eval()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 40
    with torch.no_grad():
        torch.testing.assert_close(model(changed)[:, :5], model(tokens)[:, :5], atol=1e-9, rtol=1e-9)


def test_gains_are_clipped_as_their_core_says():
    for core, limited in (("qk_layernorm", True), ("qk_layernorm_free", False), ("relu", None)):
        model = build(core)
        if limited is not None:
            model.blocks[1].attention.key_gain.data[:] = torch.tensor([1.7, -2.0, 0.3, 1.0])
        model.clip_gains()
        if limited is not None:
            expected = [min(max(x, -GAIN_LIMIT), GAIN_LIMIT) if limited else x for x in (1.7, -2.0, 0.3, 1.0)]
            assert model.blocks[1].attention.key_gain.tolist() == pytest.approx(expected)
    gradients = {}
    for core in ("qk_layernorm_free", "qk_layernorm_gradient_clip"):
        model = build(core)
        (1e4 * model(ids()).square().sum()).backward()
        gradients[core] = model.blocks[0].attention.query_gain.grad
    free, clipped = gradients.values()
    assert free.norm() > GAIN_GRADIENT_LIMIT
    torch.testing.assert_close(clipped, free * GAIN_GRADIENT_LIMIT / free.norm())


def test_sigma_reparam_has_unit_spectral_norm_and_iterates_in_training_only():
    torch.manual_seed(1)
    model = GPT(parse("Core(sigma_reparam)+LN+G"), ModelConfig(**SMALL))
    attention = model.blocks[0].attention
    for layer in (attention.query, attention.key, attention.value):
        for _ in range(500):
            layer.weight  # noqa: B018  a pass of power iteration
        assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(1, abs=1e-3)
    assert not hasattr(attention.output, "parametrizations")
    model.eval()
    with torch.no_grad():
        attention.query.parametrizations.weight.original.copy_(torch.randn(8, 8))
    before = attention.query.parametrizations.weight[0].inner.vector.clone()
    assert torch.equal(attention.query.weight, attention.query.weight)
    assert torch.equal(before, attention.query.parametrizations.weight[0].inner.vector)


@torch.no_grad()
@pytest.mark.parametrize("core", ["relu", "qk_layernorm", "sigma_reparam"])
def test_a_checkpoint_and_a_fold_keep_the_function(core, tmp_path):
    model = build(core).float()
    save(tmp_path / "model", model)
    torch.testing.assert_close(load(tmp_path / "model")(ids()), model(ids()), atol=0, rtol=0)
    torch.testing.assert_close(fold_weight_norm(copy.deepcopy(model))(ids()), model(ids()))


def test_gains_do_not_decay():
    model = build("qk_layernorm")
    decayed = {id(p) for p in parameter_groups(model, 0.1)[0]["params"]}
    assert not decayed & {id(p) for name, p in model.named_parameters() if name.endswith("_gain")}


def test_where_a_core_makes_no_sense_it_is_refused():
    for text in ("Core(relu(t))", "EReg(Core(relu)+LN+G)", "SOTA(Core(relu)+ScFFN)", "Core(relu)+G+WNorm(FFN)"):
        with pytest.raises(ValueError, match="Core"):
            parse(text)
    with pytest.raises(ValueError, match=r"Core\(softmax\) is written SM"):
        parse("Core(softmax)+LN+G")
    with pytest.raises(ValueError, match="unknown attention core 'rbf'; known: softmax, window_softmax"):
        GPT(parse("Core(rbf)+LN+G"), ModelConfig(**SMALL))
    rotary = SMALL | {"width": 16, "position": "rotary", "rotary_fraction": 0.5}
    with pytest.raises(ValueError, match="position=learned"):
        GPT(parse("Core(qk_layernorm)+LN+G"), ModelConfig(**rotary))
    GPT(parse("Core(relu)+LN+G"), ModelConfig(**(SMALL | FAMILIES["pythia-70m"].switches | {"rotary_fraction": 0.5})))


def test_a_private_pass_refuses_it():
    from aero.errors import UserError
    from aero.two_party.cost.counts import counts, published_sizes
    from aero.two_party.program.weights import weight_arrays

    with pytest.raises(ValueError, match=r"Core\(relu\)\+LN\+G: a private pass computes softmax attention only"):
        weight_arrays(build("relu"), "tuned")
    with pytest.raises(UserError, match="softmax attention only"):
        counts(parse("Core(relu)+LN+G"), published_sizes("gpt2", 128), "tuned")


def test_counts_leave_out_what_no_paper_counts():
    sizes = ModelConfig(**SMALL)
    ours, plain = (count(parse(notation(core)), sizes, 9) for core in ("relu", "softmax"))
    assert (ours.ffn, ours.attention) == (plain.ffn, plain.attention)
    assert [o.name for o in ours.nonlinear] == ["LN", "G"] and [o.name for o in plain.nonlinear] == ["SM", "LN", "G"]


def test_the_log_has_norms_and_variances_only_where_they_are_asked_for(tmp_path):
    plain, measured = columns(2), columns(2, attention=True)
    assert measured == plain + [f"{name}_layer_{i}" for name in ("norm", "variance") for i in (0, 1)]
    values = {"steps": 4, "batch_size": 2, "learning_rate": 1e-2, "betas": (0.9, 0.999), "epsilon": 1e-8}
    values |= {"weight_decay": 0.1, "clip": 1.0, "warmup": 0.0, "log_every": 1, "evaluate_every": 2}
    values |= {"evaluation_tokens": 9, "final_evaluation_tokens": 9, "checkpoint_every": 2}
    rows, recipes = {}, {}
    for asked in (False, True):
        settings = TrainParameters(**values, log_attention=asked)
        recipes[asked] = settings.recipe()
        torch.manual_seed(0)
        outcome = train(
            parse("Core(relu)+LN+G"),
            ModelConfig(**SMALL),
            settings,
            Regularizer("position_sum", 0.2, 1e-5),
            Same(),
            [ids()],
            seed=3,
            progress=False,
        )
        rows[asked] = outcome.rows
        (tmp_path / f"{asked}.csv").write_text(csv_text(columns(3, asked), outcome.rows))
    assert "log_attention" not in recipes[False] and recipes[True]["log_attention"]
    assert [row["train_loss"] for row in rows[True]] == [row["train_loss"] for row in rows[False]]
    assert not any(key.startswith(("norm_", "variance_")) for row in rows[False] for key in row)
    with_norms = [row["step"] for row in rows[True] if "norm_layer_2" in row]
    assert with_norms == [1, 2, 4] == [row["step"] for row in rows[True] if row.get("eval_loss") is not None]
    final = read_rows(tmp_path / "True.csv")[-1]
    expected = attention_statistics(outcome.model, ids())
    assert [final[f"norm_layer_{i}"] for i in range(3)] == pytest.approx(expected[0])
    assert [final[f"variance_layer_{i}"] for i in range(3)] == pytest.approx(expected[1])
    with pytest.raises(ValueError, match="log_attention knows no shaped attention"):
        train(
            parse("SOTA(SM+ScFFN)"), ModelConfig(**SMALL), settings, Regularizer("position_sum", 0.2, 0), Same(), [], 1
        )


class Same:
    """The same sequences at every step."""

    def batch(self, step):
        return ids()
