"""The training loop: schedule, golden curve, resumption bit for bit, divergence in order."""

import dataclasses
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training.log import columns, read, write
from aero.training.loop import Regularizer, evaluate, next_token_loss, train
from aero.training.schedule import linear_warmup_decay, make_optimizer, parameter_groups

CONFIG = ModelConfig(vocabulary=32, context=8, layers=2, heads=2, width=16, ffn_width=64, temperature_init=1.0)
REGULARIZER = Regularizer("position_sum", 0.2, 1e-3)


@dataclasses.dataclass(frozen=True)
class Settings:
    steps: int = 12
    batch_size: int = 4
    accumulation: int = 1
    learning_rate: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    warmup: float = 0.05
    precision: str = "float32"
    compile: bool = False
    log_every: int = 3
    evaluate_every: int = 6
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


EVALUATION = [(torch.arange(8)[None] + torch.arange(4)[:, None]) % 32]


def run(settings=None, architecture="EReg(SM(t)+ScFuFFN)", source=None, **more):
    torch.set_num_threads(1)
    return train(
        parse(architecture),
        CONFIG,
        settings or Settings(),
        REGULARIZER,
        source or Source(),
        EVALUATION,
        7,
        progress=False,
        **more,
    )


@pytest.fixture
def double():
    """Float64, so that AdamW's division by a tiny second moment does not magnify rounding."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def without_seconds(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_schedule_by_hand():
    factors = [linear_warmup_decay(step, 10, 0.2) for step in range(10)]
    assert factors[:3] == [0.5, 1.0, 8 / 9] and factors[-1] == pytest.approx(1 / 9)
    assert all(a > b for a, b in zip(factors[1:], factors[2:], strict=False))


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
    optimizer = make_optimizer(model, settings.learning_rate, settings.betas, settings.epsilon, settings.weight_decay)
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


@pytest.mark.parametrize("killed_at", [1, 5, 8, 11])
def test_killed_and_resumed_equals_unkilled(tmp_path, killed_at):
    state = tmp_path / "state.safetensors"
    whole = run()
    with pytest.raises(KeyboardInterrupt):
        run(source=Killed(killed_at), state_path=state, state_hash="h")
    assert state.exists() == (killed_at >= 4)
    resumed = run(state_path=state, state_hash="h")
    assert without_seconds(resumed.rows) == without_seconds(whole.rows)
    for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_time_limit_saves_a_state_that_resumes_to_the_same_end(tmp_path):
    state = tmp_path / "state.safetensors"
    stopped = run(state_path=state, state_hash="h", stop_at=time.monotonic() - 1)
    assert stopped.steps_done == 0 and state.exists()
    assert without_seconds(run(state_path=state, state_hash="h").rows) == without_seconds(run().rows)


def test_a_state_of_another_configuration_or_a_damaged_one_is_ignored(tmp_path, capsys):
    state = tmp_path / "state.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(source=Killed(9), state_path=state, state_hash="other")
    expected = without_seconds(run().rows)
    assert without_seconds(run(state_path=state, state_hash="mine").rows) == expected
    state.write_bytes(b"x" * 100)
    assert without_seconds(run(state_path=state, state_hash="mine").rows) == expected
    assert capsys.readouterr().out.count("starting anew") == 2


def test_divergence_ends_in_order_and_names_the_layer():
    outcome = run(Settings(learning_rate=1e25, clip=1e9), "SM")
    assert outcome.diverged_at_step is not None and outcome.diverged_at_step < 12
    assert outcome.first_nonfinite["step"] == outcome.diverged_at_step
    assert outcome.first_nonfinite["where"] in ("block output", "logits", "gradient", "embedding")
    overflow = outcome.float16_overflow
    assert overflow is None or overflow["value"] is None or overflow["value"] > 65504
    assert all(value is None or math.isfinite(value) for row in outcome.rows for value in row.values())


def test_first_nonfinite_layer():
    from aero.training.loop import find_nonfinite

    model = GPT(parse("SM"), CONFIG)
    model.blocks[1].attention.value.weight.data.fill_(math.inf)
    assert find_nonfinite(model, Source().batch(0), 3) == {"step": 3, "layer": 1, "where": "block output"}


def test_log_round_trip(tmp_path):
    rows = [{"step": 1, "tokens": 8, "train_loss": 0.1 + 0.2, "eval_loss": None, "entropy_layer_1": 1e-9}]
    write(tmp_path / "log.csv", rows, 2)
    back = read(tmp_path / "log.csv")
    assert list(back[0]) == columns(2)
    assert {key: value for key, value in back[0].items() if value is not None} == {
        key: value for key, value in rows[0].items() if value is not None
    }


def test_next_token_loss_by_hand():
    logits = torch.log(torch.tensor([[[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]]]))
    assert next_token_loss(logits, torch.tensor([[0, 1, 1]])).item() == pytest.approx(
        -(math.log(0.5) + math.log(0.8)) / 2
    )


def test_the_model_needs_torch_alone():
    code = (
        "import sys, aero.model; print(sorted(m for m in ('spu','jax','dvc','datasets','pandas') if m in sys.modules))"
    )
    root = Path(__file__).resolve().parents[2]
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert finished.stdout.strip() == "[]"
