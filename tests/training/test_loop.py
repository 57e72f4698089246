"""The training loop: schedule, a plain transcription, resumption bit for bit, divergence in order."""

import math
import signal

import pytest
import torch

from aero.architecture import parse
from aero.checkpoint import read_tensors
from aero.config import TrainParameters
from aero.model import GPT, ModelConfig
from aero.records import csv_text, read_rows, write_text
from aero.training import state
from aero.training.diagnostics import find_nonfinite, layer_columns
from aero.training.loop import Regularizer, Trainer, clip_logits, evaluate, next_token_loss, train
from aero.training.run import columns
from aero.training.schedule import learning_rate_factor, make_optimizer, parameter_groups

CONFIG = ModelConfig(vocabulary=32, context=8, layers=2, heads=2, width=16, ffn_width=64, temperature_init=1.0)
REGULARIZER = Regularizer("position_sum", 0.2, 1e-3)


class Settings(TrainParameters):
    steps: int = 12
    batch_size: int = 4
    learning_rate: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    warmup: float = 0.05
    log_every: int = 3
    evaluate_every: int = 6
    evaluation_tokens: int = 32
    final_evaluation_tokens: int = 32
    checkpoint_every: int = 4


class Source:
    """Sequences of a fixed pattern, the same for the same step."""

    def batch(self, step):
        generator = torch.Generator().manual_seed(step)
        start = torch.randint(0, 32, (4, 1), generator=generator)
        return (start + torch.arange(8)) % 32


class Killed(Source):
    """Fails at one step, as a killed process would stop there."""

    def __init__(self, at):
        self.at = at

    def batch(self, step):
        if step == self.at:
            raise KeyboardInterrupt
        return super().batch(step)


class Signalled(Source):
    """Gets two signals in one step, as Ctrl-C in a terminal sends them: to a process, and by its parent."""

    def batch(self, step):
        if step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        return super().batch(step)


EVALUATION = [(torch.arange(8)[None] + torch.arange(4)[:, None]) % 32]


def run(settings=None, architecture="EReg(SM(t)+ScFuFFN)", source=None, **more):
    torch.set_num_threads(1)
    parts = parse(architecture), CONFIG, settings or Settings(), REGULARIZER, source or Source(), EVALUATION
    return train(Trainer(*parts, seed=7), **more)


@pytest.fixture
def double():
    """Float64, so that AdamW's division by a tiny second moment does not magnify rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def without_seconds(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same_end(one, other):
    assert without_seconds(one.rows) == without_seconds(other.rows)
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_qk_clip_bounds_the_logits_of_the_heads_beyond_it():
    model, ids = GPT(parse("SM+LN+R"), CONFIG), EVALUATION[0]
    with torch.no_grad():
        model.blocks[1].attention.query.weight[:8] *= 1e4  # the first of two heads
        seen = [block.attention.query.weight.clone() for block in model.blocks]
        clip_logits(model, ids, 0.5)
        block, x = model.blocks[1], model.hidden_states(ids)[0][1]
        largest = block.attention.matrices(block.ln_1(x))[1].tril().abs().amax((0, 2, 3))
    torch.testing.assert_close(largest[0], torch.tensor(0.5))
    assert (model.blocks[0].attention.query.weight == seen[0]).all() and largest[1] < 0.5
    assert (block.attention.query.weight[8:] == seen[1][8:]).all()


def test_schedule_by_hand():
    factors = [learning_rate_factor(Settings(steps=10, warmup=0.2), step) for step in range(10)]
    assert factors[:3] == [0.5, 1.0, 8 / 9] and factors[-1] == pytest.approx(1 / 9)
    assert all(a > b for a, b in zip(factors[1:], factors[2:], strict=False))


def test_ramped_cosine_by_hand():
    """Languini's rates as its own schedule gives them: steps count from 1, the ramp multiplies the cosine."""
    settings = Settings(steps=1000, learning_rate=6e-4, schedule="cosine", final_learning_rate=6e-6, warmup_steps=200)
    rates = [6e-4 * learning_rate_factor(settings, step) for step in range(1000)]
    for step in (1, 100, 200, 500, 1000):
        cosine = 6e-6 + 0.5 * (1 + math.cos(math.pi * step / 1000)) * (6e-4 - 6e-6)
        assert rates[step - 1] == pytest.approx(min(step, 200) / 200 * cosine, rel=1e-12)
    assert rates[-1] == pytest.approx(6e-6) and max(rates) == rates[199]


def test_languini_recipe_equals_a_plain_transcription(double):
    """Adam, no decay, no clipping: two steps of the loop against torch's own Adam driven by hand."""
    settings = Settings(
        steps=2,
        optimizer="adam",
        betas=(0.9, 0.95),
        weight_decay=0.0,
        clip=None,
        schedule="cosine",
        learning_rate=6e-4,
        final_learning_rate=6e-6,
        warmup_steps=2,
    )
    outcome = run(settings, "SM+LN+G")
    torch.manual_seed(7)
    model = GPT(parse("SM+LN+G"), CONFIG)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95), eps=1e-8)
    for step, rate in ((0, 0.5 * (6e-6 + 0.5 * (6e-4 - 6e-6))), (1, 6e-6)):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        ids = Source().batch(step)
        torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        optimizer.step()
    assert outcome.rows[-1]["gradient_norm"] == pytest.approx(norm.item()) and outcome.rows[-1]["step"] == 2
    for ours, theirs in zip(outcome.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-10)


def test_weight_decay_spares_vectors_norms_temperatures_and_thresholds():
    model = GPT(parse("EReg(SM(t)+LN+R)"), CONFIG)
    decayed, rest = (group["params"] for group in parameter_groups(model, 0.1))
    names = {id(p): n for n, p in model.named_parameters()}
    assert {names[id(p)].rsplit(".", 1)[-1] for p in decayed} == {"weight"}
    assert all(p.ndim == 2 for p in decayed) and len(decayed) + len(rest) == len(names)
    assert {"blocks.0.attention.temperature", "reg_threshold_weights", "ln_f.weight"} <= {names[id(p)] for p in rest}


def test_weight_decay_spares_the_gains_of_weight_norms_and_not_the_slopes():
    model = GPT(parse("SM+LeakyR(global)+WNorm(QK)"), CONFIG)
    names = {id(p): n for n, p in model.named_parameters()}
    decayed, rest = ({names[id(p)] for p in group["params"]} for group in parameter_groups(model, 0.1))
    normed = "blocks.0.attention.query.parametrizations.weight."
    assert {normed + "original1", "leaky_slopes"} <= decayed and normed + "original0" in rest


def test_one_step_equals_a_plain_transcription(double):
    settings = Settings(steps=1)
    outcome = run(settings)
    torch.manual_seed(7)
    model = GPT(parse("EReg(SM(t)+ScFuFFN)"), CONFIG)
    optimizer = make_optimizer(model, settings)
    ids = Source().batch(0)
    logits, entropies = model(ids, entropy=True)
    deviation = entropies - model.reg_threshold_weights[:, None, :, None] * math.log(8)
    penalty = (deviation**2 * (deviation.abs() > 0.2 * math.log(8))).sum() / (2 * 2)
    loss = -torch.stack([logits[b, t].log_softmax(-1)[ids[b, t + 1]] for b in range(4) for t in range(7)]).mean()
    (loss + 1e-3 * penalty).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert outcome.rows[0]["train_loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert outcome.rows[0]["regularization"] == pytest.approx(1e-3 * penalty.item(), rel=1e-5)
    for ours, theirs in zip(outcome.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_accumulation_equals_one_large_batch(double):
    class Doubled(Source):
        def batch(self, step):
            return torch.cat([Source.batch(self, 2 * step), Source.batch(self, 2 * step + 1)])

    parts = run(Settings(steps=4, accumulation=2), "SM+LN+G")
    whole = run(Settings(steps=4), "SM+LN+G", Doubled())
    for a, b in zip(parts.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    assert parts.rows[-1]["tokens"] == 4 * 2 * 4 * 8


def test_training_learns_and_logs():
    outcome = run(Settings(steps=60))
    losses = [row["eval_loss"] for row in outcome.rows if row.get("eval_loss") is not None]
    assert losses[0] == pytest.approx(math.log(32), abs=0.2) and losses[-1] < 1.5
    assert outcome.diverged_at_step is None and outcome.steps_done == 60
    steps = [row["step"] for row in outcome.rows]
    assert steps == sorted(set(steps)) and steps[-1] == 60
    assert evaluate(outcome.model, EVALUATION) == pytest.approx(losses[-1])


@pytest.mark.parametrize("killed_at", [1, 8])
@pytest.mark.parametrize("settings", [Settings(), Settings(precision="float16")])
def test_killed_and_resumed_equals_unkilled(tmp_path, killed_at, settings):
    state = tmp_path / "state.safetensors"
    whole = run(settings)
    with pytest.raises(KeyboardInterrupt):
        run(settings, source=Killed(killed_at), state_path=state, state_hash="h")
    assert state.exists() == (killed_at >= 4)
    assert_same_end(run(settings, state_path=state, state_hash="h"), whole)


def test_two_signals_end_it_after_the_step_and_lose_none(tmp_path):
    kept, handler = tmp_path / "state.safetensors", signal.default_int_handler
    before = {one: signal.signal(one, handler) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt):
            run(source=Signalled(), state_path=kept, state_hash="h")
        assert [signal.signal(one, given) for one, given in before.items()] == [handler, handler]
    finally:
        for one, given in before.items():
            signal.signal(one, given)
    assert read_tensors(kept, state.FORMAT)[1]["steps_done"] == "6"
    assert_same_end(run(state_path=kept, state_hash="h"), run())


def test_the_log_is_live_and_written_anew_from_the_state(tmp_path):
    path, kept = tmp_path / "log.csv", tmp_path / "state.safetensors"

    def log(rows):
        write_text(path, csv_text(columns(2), rows))

    class Watched(Killed):
        def batch(self, step):
            if step == 8:
                assert [row["step"] for row in read_rows(path)] == [1, 3, 6]
            return super().batch(step)

    with pytest.raises(KeyboardInterrupt):
        run(source=Watched(10), state_path=kept, state_hash="h", log=log)
    assert [row["step"] for row in read_rows(path)] == [1, 3, 6, 9]
    outcome = run(state_path=kept, state_hash="h", log=log)
    assert path.read_text() == csv_text(columns(2), outcome.rows)
    assert [row["step"] for row in outcome.rows] == [1, 3, 6, 9, 12]


def test_the_steps_of_a_fused_optimiser_are_restored(tmp_path):
    outcome = run(Settings(steps=1))
    optimizers = [make_optimizer(outcome.model, Settings(), fused=True) for _ in range(2)]
    updated = []
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for index, optimizer in enumerate(optimizers):
        if index:
            state.restore(tmp_path / "state", "h", outcome, optimizer, scaler)
        for seed in range(index, 2):
            for number, parameter in enumerate(outcome.model.parameters()):
                generator = torch.Generator().manual_seed(100 * seed + number)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
            if seed == 0:
                state.store(tmp_path / "state", "h", outcome, optimizer, scaler)
        updated.append([parameter.detach().clone() for parameter in outcome.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*updated, strict=True))
    assert {int(values["step"]) for values in optimizers[1].state.values()} == {2}


def test_a_state_of_another_configuration_or_a_damaged_one_is_ignored(tmp_path, capsys):
    state = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(source=Killed(9), state_path=state, state_hash="other")
    expected = without_seconds(run().rows)
    assert without_seconds(run(state_path=state, state_hash="mine").rows) == expected
    state.write_bytes(b"x" * 100)
    assert without_seconds(run(state_path=state, state_hash="mine").rows) == expected
    assert capsys.readouterr().out.count("starting anew") == 2


class Breaks(Source):
    """From step 3 on, the model it is given is no longer what it was."""

    def __init__(self, how):
        self.how, self.model = how, None

    def batch(self, step):
        if step == 3:
            self.how(self.model)
        return super().batch(step)


def broken_run(monkeypatch, how, architecture="SM", **settings):
    """The outcome of a training that `how` breaks at step 3."""
    source = Breaks(how)

    def model(*arguments):
        source.model = GPT(*arguments)
        return source.model

    monkeypatch.setattr("aero.training.loop.GPT", model)
    return run(Settings(**settings), architecture, source)


def break_output(model):
    model.blocks[1].attention.value.weight.data.fill_(math.inf)


def break_weights(model):
    """An infinite gradient that only block 0's own weights see."""
    model.blocks[0].attention.value.weight.register_hook(lambda gradient: gradient * math.inf)


def break_output_gradient(model):
    """What block 1 gives on to block 0 is not finite, block 1's own gradients are."""
    model.blocks[1].register_full_backward_hook(
        lambda module, into, out: tuple(None if g is None else g * math.nan for g in into)
    )


def break_norm(model):
    """Gradients that are finite, their squares are not."""
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient.sign() * 1e30)


@pytest.mark.parametrize("architecture", ["SM", "EReg(SM(t)+ScFuFFN)"])
@pytest.mark.parametrize(
    ("how", "where", "layer"),
    [
        (break_output, "block output", 1),
        (break_weights, "gradient of weights", 0),
        (break_output_gradient, "gradient of weights", 0),
    ],
)
def test_the_first_layer_that_is_not_finite_is_named(how, where, layer, architecture, monkeypatch):
    outcome = broken_run(monkeypatch, how, architecture)
    assert outcome.diverged_at_step == 3 and outcome.steps_done == 3
    assert outcome.first_nonfinite == {"step": 3, "layer": layer, "where": where}
    last = outcome.rows[-1]
    assert last["step"] == 4  # the fourth, which broke: every step has at most one row
    assert len({row["step"] for row in outcome.rows}) == len(outcome.rows)
    broken = where == "block output"
    assert (last["overflow_layer_1"] > 0) is broken and last["overflow_layer_0"] == 0
    assert all(value is None or math.isfinite(value) for row in outcome.rows for value in row.values())


def test_a_gradient_whose_norm_alone_is_not_finite_is_no_divergence(monkeypatch):
    outcome = broken_run(monkeypatch, break_norm, "SM")
    assert outcome.diverged_at_step is None and outcome.rows[-1]["gradient_norm"] > 1e30


def test_a_float16_training_whose_gradient_stays_infinite_ends(monkeypatch):
    """The scaler halves 65,536 sixteen times, skipping the step each time; then it is the gradient itself."""
    outcome = broken_run(monkeypatch, break_weights, precision="float16", steps=40)
    assert outcome.diverged_at_step == 3 + 16
    assert outcome.first_nonfinite == {"step": 19, "layer": 0, "where": "gradient of weights"}


def test_divergence_in_an_accumulated_part_is_looked_for_there(monkeypatch):
    """The first of two micro-batches breaks the model: token 31 has an embedding that is not finite in layer 0."""

    class Half(Source):
        def batch(self, step):
            return torch.full((4, 8), 31 if step % 2 == 0 else 0)

    class Broken(GPT):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.token_embedding.weight.data[31] = math.inf

    monkeypatch.setattr("aero.training.loop.GPT", Broken)
    outcome = run(Settings(accumulation=2), "SM", Half())
    assert outcome.first_nonfinite == {"step": 0, "layer": None, "where": "embedding"}
    assert [outcome.rows[-1][f"overflow_layer_{layer}"] for layer in range(2)] == [4 * 8 * 16] * 2


@pytest.mark.parametrize("part", [0, 1])
def test_a_gradient_that_breaks_in_an_accumulated_part_is_looked_for_there(part, monkeypatch):
    """Losses are finite; the weights of block 1 have an infinite gradient for token 31, which one micro-batch has."""

    class Half(Source):
        def batch(self, step):
            return torch.full((4, 8), 31 if step % 2 == part else 0)

    def model(*arguments):
        built, seen = GPT(*arguments), []
        built.token_embedding.register_forward_hook(lambda module, ids, out: seen.append(bool((ids[0] == 31).any())))
        weight = built.blocks[1].attention.value.weight
        weight.register_hook(lambda gradient: gradient * math.inf if seen[-1] else gradient)
        return built

    monkeypatch.setattr("aero.training.loop.GPT", model)
    outcome = run(Settings(accumulation=2), "SM", Half())
    assert outcome.first_nonfinite == {"step": 0, "layer": 1, "where": "gradient of weights"}


def test_overflows_are_counted_by_layer():
    model = GPT(parse("SM"), CONFIG)
    model.position_embedding.weight.data.zero_()
    model.token_embedding.weight.data.zero_()
    model.token_embedding.weight.data[0, 0] = 7e4
    model.token_embedding.weight.data[1, 1] = math.nan
    for parameter in model.blocks.parameters():
        parameter.data.zero_()
    ids = torch.tensor([[0, 2, 2, 0], [2, 2, 2, 2]])
    row = layer_columns(model, ids)
    assert [row[f"overflow_layer_{layer}"] for layer in range(2)] == [2, 2]
    assert [row[f"activation_layer_{layer}"] for layer in range(2)] == [7e4, 7e4]
    ids[1, 3] = 1
    assert layer_columns(model, ids)["overflow_layer_0"] > 2


def test_measuring_does_not_train(tmp_path):
    """A spectral norm iterates at every pass in training mode: a measurement in between must not count as one."""
    model = GPT(parse("SM"), CONFIG).train()
    torch.nn.utils.parametrizations.spectral_norm(model.blocks[0].attention.query)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layer_columns(model, Source().batch(0))
    find_nonfinite(model, Source().batch(0), 3)
    evaluate(model, EVALUATION)
    assert model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("most", [1.0, None])
def test_a_finite_gradient_whose_norm_is_beyond_float32_is_clipped_and_no_divergence(monkeypatch, most):
    from aero.training import loop

    model = GPT(parse("SM"), CONFIG)
    count = sum(parameter.numel() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, -1e20)
    assert loop.clip(model, most) == math.inf
    assert loop._clip_in_double(model, most) == pytest.approx(1e20 * math.sqrt(count))
    clipped = {value.item() for p in model.parameters() for value in p.grad.unique()}
    (value,) = clipped
    assert value == pytest.approx(-1e20 if most is None else -1 / math.sqrt(count), rel=1e-6)
    parameter.grad[0] = math.inf
    assert loop._clip_in_double(model, most) == math.inf


@pytest.mark.parametrize(("architecture", "slopes"), [("SM+LeakyR", 2), ("SM+LeakyR(global)", 1), ("SM+R", 0)])
def test_learned_slopes_are_logged_at_every_logged_step(architecture, slopes, tmp_path):
    outcome = run(architecture=architecture)
    names = [f"slope_{index}" for index in range(slopes)]
    assert all([key for key in row if key.startswith("slope_")] == names for row in outcome.rows)
    if slopes:
        assert [outcome.rows[-1][name] for name in names] == outcome.model.leaky_slopes.tolist()
        assert outcome.rows[0][names[0]] != outcome.rows[-1][names[0]]
    (tmp_path / "log.csv").write_text(csv_text(columns(2, slopes=slopes), outcome.rows))
    assert [{key: row.get(key) for key in columns(2, slopes=slopes)} for row in outcome.rows] == read_rows(
        tmp_path / "log.csv"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_next_token_loss_is_that_of_the_cut_logits(dtype):
    """Value and gradient, bit for bit: what trainings of before this form of it are compared with."""
    torch.manual_seed(0)
    ids, logits = torch.randint(0, 1024, (5, 67)), torch.randn(5, 67, 1024).to(dtype)
    ours, cut = (logits.clone().requires_grad_() for _ in range(2))
    value = next_token_loss(ours, ids)
    scored = cut[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(
        scored if dtype == torch.float64 else scored.float(), ids[:, 1:].flatten()
    )
    value.backward()
    expected.backward()
    assert value.dtype == expected.dtype and torch.equal(value, expected)
    assert torch.equal(ours.grad, cut.grad) and not ours.grad[:, -1].any()
