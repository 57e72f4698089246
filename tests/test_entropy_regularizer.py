"""The entropy regulariser on Hugging Face models: its penalty by hand, and under their Trainer."""

import copy
import math

import pytest
import torch
from tiny_hugging_face import CONFIGS, padded, some_ids, tiny
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from aero.entropy import EntropyRegularizer, entropy_regularization, measure
from aero.hf.measure import row_entropies


def regularised(name="gpt2", **settings):
    model = tiny(name).train()
    return model, EntropyRegularizer(model, context=100, **settings)


@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
def test_the_loss_has_the_penalty_in_training_only(reduction):
    plain, ids = tiny("gpt2").train(), some_ids()
    expected = plain(ids, labels=ids).loss
    model, regularizer = regularised(lambda_=0.1, gamma=0.05, reduction=reduction)
    loss = model(ids, labels=ids).loss
    rows = row_entropies(plain, ids)
    penalty = 0.1 * entropy_regularization(rows, regularizer.thresholds, 0.05, reduction)
    if reduction == "position_sum":
        penalty = penalty * 16384 / 300
    assert penalty > 1e-3
    torch.testing.assert_close(loss, expected + penalty)
    torch.testing.assert_close(regularizer.penalty, penalty.detach())
    model.eval()
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    assert model.train()(ids).loss is None
    torch.testing.assert_close(regularizer.penalty, penalty)  # for a loss of one's own, with its gradient
    assert torch.autograd.grad(regularizer.penalty, regularizer.thresholds)[0].any()
    assert isinstance(model(ids, labels=ids, return_dict=False), tuple)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_reach_thresholds_temperatures_and_weights(name):
    model, regularizer = regularised(name, lambda_=1e-2)
    ids = some_ids()
    model(ids, labels=ids).loss.backward()
    assert len(regularizer.temperatures) == 3
    for parameter in (regularizer.thresholds, *regularizer.temperatures):
        assert parameter.grad.abs().sum() > 0
    assert all(p.grad is not None for p in model.parameters())


def test_a_temperature_divides_the_logits_of_its_row():
    model, regularizer = regularised()
    ids = some_ids()
    with torch.no_grad():
        regularizer.temperatures[0][:, 30:] = 1e6  # all keys alike
        regularizer.temperatures[0][:, :30] = 1e-6  # one key alone
    entropies = row_entropies(model, ids)
    torch.testing.assert_close(
        entropies[0, :, :, 30:], torch.arange(31, 101).float().log().expand(3, 4, 70), atol=1e-3, rtol=0
    )
    assert entropies[0, :, :, :30].max() < 1e-2
    with pytest.raises(ValueError, match="temperatures for 100 positions"):
        model(some_ids(1, 101))


def test_padding_does_not_count():
    model, regularizer = regularised(lambda_=1.0)
    ids, mask = some_ids(2), padded("right", [100, 40])
    labels = ids.masked_fill(mask == 0, -100)
    model(ids, attention_mask=mask, labels=labels)
    first = regularizer.penalty
    ids[1, 40:] = 5
    model(ids, attention_mask=mask, labels=labels)
    torch.testing.assert_close(regularizer.penalty, first)
    rows = row_entropies(model, ids, mask)
    every = torch.cat([rows[:, 0, :, :], rows[:, 1, :, :40]], -1)[:, None]  # (L, 1, H, 140)
    expected = 16384 / 140 * entropy_regularization(every, regularizer.thresholds, context=100)
    torch.testing.assert_close(first, expected.detach())


@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
def test_the_penalty_is_the_same_whatever_the_padded_length(reduction):
    model, regularizer = regularised(lambda_=1.0, reduction=reduction)
    ids, penalties = some_ids(2, 12), []
    for tokens in (12, 24, 64):
        for side in ("right", "left"):
            mask = padded(side, [12, 12], tokens)
            given = torch.full((2, tokens), 5).masked_scatter(mask.bool(), ids)
            positions = (mask.cumsum(-1) - 1).clamp_min(0)
            model(given, attention_mask=mask, position_ids=positions if tokens > 12 else None)
            penalties.append(regularizer.penalty)
    assert penalties[0] > 1e-3
    # Padding on the left moves a token to another position, whose temperature is 1 here as well.
    torch.testing.assert_close(torch.stack(penalties), penalties[0].expand(6), atol=0, rtol=1e-4)


def test_a_batch_of_padding_has_no_penalty():
    for reduction in ("position_sum", "head_mean"):
        model, regularizer = regularised(lambda_=1.0, reduction=reduction)
        model(some_ids(2, 12), attention_mask=torch.zeros(2, 12).long())
        assert regularizer.penalty == 0
        assert not torch.autograd.grad(regularizer.penalty, regularizer.thresholds)[0].any()


def test_a_sequence_longer_than_the_context_is_refused():
    model, _ = regularised(temperature_init=None)
    model(some_ids(1, 120), attention_mask=padded("right", [100], 120))
    with pytest.raises(ValueError, match="101 tokens, but the regulariser's context is 100"):
        model(some_ids(1, 101))


def test_accumulated_micro_batches_weigh_as_one_batch():
    """Trainer hands the number of all labels of a step to each of its micro-batches."""
    model, _ = regularised(lambda_=1e-2)
    ids = some_ids(4)
    model(ids, labels=ids).loss.backward()
    whole = model.reg_threshold_weights.grad.clone(), model.transformer.h[0].attn.c_attn.weight.grad.clone()
    model.zero_grad()
    for part in ids.split(2):
        model(part, labels=part, num_items_in_batch=torch.tensor(4 * 99)).loss.backward()
    torch.testing.assert_close(model.reg_threshold_weights.grad, whole[0])
    torch.testing.assert_close(model.transformer.h[0].attn.c_attn.weight.grad, whole[1], atol=1e-5, rtol=1e-3)


def after_steps(folder, lengths, micro_batch, accumulated):
    """Thresholds, temperatures and weights after two steps of the real Trainer on sequences of such lengths."""
    torch.manual_seed(0)
    model, regularizer = regularised(lambda_=1e-2, gamma=0.05)
    mask, ids = padded("right", lengths, 40), some_ids(len(lengths), 40)
    labels = ids.masked_fill(mask == 0, -100)
    data = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]
    arguments = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=accumulated,
        learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", seed=3,
    )  # fmt: skip
    start = regularizer.thresholds.detach().clone()
    Trainer(model, arguments, train_dataset=data).train()
    weight = model.transformer.h[0].attn.c_attn.weight
    return [p.detach() for p in (regularizer.thresholds - start, *regularizer.temperatures, weight)]


def test_trainer_with_accumulation_takes_the_steps_of_one_batch(tmp_path):
    one, two = (after_steps(tmp_path, [40] * 8, *shape) for shape in ((4, 1), (2, 2)))
    assert one[0].abs().max() > 1e-2
    for whole, accumulated in zip(one, two, strict=True):
        torch.testing.assert_close(accumulated, whole, atol=1e-5, rtol=1e-3)


def test_trainer_with_accumulation_of_unequal_padding_nearly_does(tmp_path):
    """Weighed by labels, of which a sequence has one fewer than tokens."""
    one, two = (after_steps(tmp_path, [40, 5, 9, 31, 3, 40, 22, 4], *shape) for shape in ((4, 1), (2, 2)))
    moved = one[0].norm()
    assert moved > 1e-2 and (one[0] - two[0]).norm() < 0.1 * moved


def test_gradient_checkpointing():
    ids, gradients = some_ids(), []
    for checkpointed in (False, True):
        model, regularizer = regularised(lambda_=1e-2)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model(ids, labels=ids).loss.backward()
        gradients.append([regularizer.thresholds.grad, *(t.grad for t in regularizer.temperatures)])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    model, _ = regularised()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant"):
        model(ids, labels=ids)


def test_generating_with_a_cache_meets_the_same_temperatures():
    for name in ("gpt2", "mistral"):
        model, regularizer = regularised(name)
        model.eval()
        with torch.no_grad():
            for temperature in regularizer.temperatures:
                temperature.uniform_(0.3, 3)
        prompt = some_ids(2, 12)
        settings = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        with_cache, without = (model.generate(prompt, use_cache=cached, **settings) for cached in (True, False))
        assert with_cache.shape == (2, 32) and torch.equal(with_cache, without)


def test_trainer_learns_saves_and_goes_on(tmp_path):
    torch.manual_seed(0)
    model, regularizer = regularised(lambda_=1e-3, temperature_init=0.5)
    start = [p.detach().clone() for p in (regularizer.thresholds, *regularizer.temperatures)]
    data = [{"input_ids": row, "labels": row} for row in some_ids(24, 32)]
    arguments = {
        "max_steps": 6, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-2,
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "logging_steps": 1, "save_steps": 3, "seed": 3,
    }  # fmt: skip
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "run"), **arguments), train_dataset=data)
    trainer.train()
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)
    for before, after in zip(start, (regularizer.thresholds, *regularizer.temperatures), strict=True):
        assert (before != after).any()
    trainer.save_model(str(tmp_path / "saved"))

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="saved with an entropy regulariser"):
        measure(loaded, some_ids(2, 32, seed=9))
    again = EntropyRegularizer.load(loaded, tmp_path / "saved")
    assert (again.lambda_, again.gamma, again.reduction) == (1e-3, 0.20, "position_sum")
    for mine, theirs in zip(again.named_parameters(), regularizer.named_parameters(), strict=True):
        assert mine[0] == theirs[0] and torch.equal(mine[1], theirs[1])
    ids = some_ids(2, 32, seed=9)
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits)

    resumed_model, resumed = regularised(lambda_=1e-3, temperature_init=0.5)
    resumed_trainer = Trainer(
        resumed_model, TrainingArguments(str(tmp_path / "again"), **arguments), train_dataset=data
    )
    resumed_trainer.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-3"))
    torch.testing.assert_close(resumed.thresholds, regularizer.thresholds)


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"gpt2"}))
def test_trainer_takes_steps_with_every_family(name, tmp_path):
    """GPT-2 is trained at length above."""
    model, regularizer = regularised(name, lambda_=1e-2)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    data = [{"input_ids": row, "labels": row} for row in some_ids(4, 24)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, logging_steps=1, report_to=[],
        use_cpu=True, disable_tqdm=True, save_strategy="no", seed=3,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 2 and all(map(math.isfinite, losses)) and losses[-1] > regularizer.penalty > 0
    assert all(p.isfinite().all() and (p != start[name]).any() for name, p in model.named_parameters())


def steps_of_one_layer(folder, **settings):
    """Losses of three steps of the Trainer on a model of one layer, and how far thresholds and temperatures moved."""
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS["gpt2"])
    config.n_layer = 1
    model = AutoModelForCausalLM.from_config(config).train()
    regularizer = EntropyRegularizer(model, context=100, lambda_=1e-4, gamma=0.05)
    learned = regularizer.thresholds, *regularizer.temperatures
    start = [p.detach().clone() for p in learned]
    data = [{"input_ids": row, "labels": row} for row in some_ids(6, 32)]
    arguments = TrainingArguments(
        str(folder), max_steps=3, per_device_train_batch_size=2, learning_rate=0.01, optim="sgd", logging_steps=1,
        max_grad_norm=0, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", seed=3, **settings,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data)
    trainer.train()
    assert regularizer.penalty > 1e-3 and all(p.dtype == torch.float32 for p in learned)
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    assert len(losses) == 3
    return losses, [p.detach() - before for p, before in zip(learned, start, strict=True)]


def test_mixed_precision_takes_nearly_the_steps_of_float32(tmp_path):
    """bfloat16 has 8 bits, of which the losses keep more; entropies and penalty are computed in float32."""
    losses, moved = steps_of_one_layer(tmp_path)
    found, mixed = steps_of_one_layer(tmp_path, bf16=True)
    assert found != losses and found == pytest.approx(losses, rel=2**-8)
    for one, other in zip(mixed, moved, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()


def test_torch_compile_takes_the_same_steps(tmp_path):
    """Traced and differentiated by torch.compile, with PyTorch's own kernels."""
    losses, moved = steps_of_one_layer(tmp_path)
    found, compiled = steps_of_one_layer(tmp_path, torch_compile=True, torch_compile_backend="aot_eager")
    assert found == pytest.approx(losses, rel=1e-5)
    for one, other in zip(compiled, moved, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_loading_what_was_not_saved_is_refused(tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match="saved without an entropy regulariser"):
        EntropyRegularizer.load(AutoModelForCausalLM.from_pretrained(tmp_path / "plain"), tmp_path / "plain")
    model, _ = regularised()
    with pytest.raises(ValueError, match="plain has no reg_threshold_weights, transformer.h.0"):
        EntropyRegularizer.load(_with_settings(model), tmp_path / "plain")
    with pytest.raises(ValueError, match="has an entropy regulariser already"):
        EntropyRegularizer(model, context=100)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gamma": -1}, "gamma -1 must not be negative"),
        ({"gamma": math.nan}, "gamma nan must not be negative"),
        ({"lambda_": math.inf}, "lambda_ inf"),
        ({"threshold_init": math.nan}, "threshold_init nan from 0 to 1"),
        ({"threshold_init": 1.5}, "threshold_init 1.5 from 0 to 1"),
        ({"temperature_init": -1}, "temperature_init -1 must be positive"),
        ({"temperature_init": 0}, "temperature_init 0 must be positive"),
        ({"temperature_init": math.nan}, "temperature_init nan must be positive"),
        ({"reduction": "sum"}, "reduction 'sum' must be one of"),
        ({"lambda_positions": 0}, "lambda_positions 0 at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, said):
    model = tiny("gpt2")
    with pytest.raises(ValueError, match=said):
        EntropyRegularizer(model, context=100, **settings)
    assert not hasattr(model, "reg_threshold_weights")


def _with_settings(model):
    other = tiny("gpt2")
    other.config.entropy_regularizer = model.config.entropy_regularizer
    return other


def test_parameter_groups_leave_the_regulariser_undecayed():
    model, regularizer = regularised()
    decayed, others = regularizer.parameter_groups(0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1 and others["weight_decay"] == 0.0
    assert "reg_threshold_weights" in {names[id(p)] for p in others["params"]}
    assert all(names[id(p)].endswith("weight") and p.ndim == 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))


def steps_of_an_own_loss(folder, micro_batch, accumulated, add):
    """Thresholds after two steps of Trainer with a `compute_loss_func` that adds the penalty by `add`."""
    torch.manual_seed(0)
    model, regularizer = regularised(lambda_=1e-2, gamma=0.05)
    start = regularizer.thresholds.detach().clone()

    def own_loss(outputs, labels, num_items_in_batch=None):
        logits, shifted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        summed = torch.nn.functional.cross_entropy(logits, shifted, reduction="sum")
        return summed / num_items_in_batch + add(regularizer, labels, num_items_in_batch)

    data = [{"input_ids": row, "labels": row} for row in some_ids(8, 40)]
    arguments = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=accumulated,
        learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", seed=3,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"without labels, .* adds regularizer\.share"):
        Trainer(model, arguments, train_dataset=data, compute_loss_func=own_loss).train()
    return regularizer.thresholds.detach() - start


def test_a_loss_of_your_own_adds_its_share(tmp_path):
    """The same steps as with the model's own loss, whatever the accumulation; the bare penalty weighs it too often."""
    own = after_steps(tmp_path, [40] * 8, 4, 1)[0]
    for shape in ((4, 1), (2, 2)):
        found = steps_of_an_own_loss(tmp_path, *shape, lambda r, *labels: r.share(*labels))
        torch.testing.assert_close(found, own, atol=1e-5, rtol=1e-3)
    bare = steps_of_an_own_loss(tmp_path, 2, 2, lambda r, *_: r.penalty)
    assert bare.norm() > 1.9 * own.norm()


def test_a_share_needs_a_pass_without_labels():
    model, regularizer = regularised()
    ids = some_ids(2, 12)
    with pytest.raises(RuntimeError, match="in training mode without labels first"):
        regularizer.share(ids)
    model(ids, labels=ids)
    with pytest.raises(RuntimeError, match="in training mode without labels first"):
        regularizer.share(ids)
    model(ids)
    assert regularizer.share(ids) is regularizer.penalty and regularizer.penalty.requires_grad
    labels = ids.clone()
    labels[0, 5:] = -100  # 4 and 11 labels are left, shifted
    torch.testing.assert_close(regularizer.share(labels, 60), regularizer.penalty / 4)


def with_temperatures(name):
    model, regularizer = regularised(name)
    with torch.no_grad():
        for temperature in regularizer.temperatures:
            temperature.uniform_(0.3, 3)
    return model.eval()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_static_cache_meets_the_same_temperatures(name):
    """Of fixed size, longer than what is generated: the number of keys does not tell the position."""
    model, prompt = with_temperatures(name), some_ids(2, 12)
    settings = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    static = model.generate(prompt, cache_implementation="static", **settings)
    without = model.generate(prompt, use_cache=False, **settings)
    assert static.shape == (2, 32) and torch.equal(static, without)


@pytest.mark.parametrize("added", [False, True])
def test_a_mask_of_the_callers_with_a_cache_meets_the_same_temperatures(added):
    """The queries are the last of its keys."""
    model, ids = with_temperatures("gpt2"), some_ids(2, 30)
    seen = torch.ones(30, 30, dtype=torch.bool).tril()[None, None].expand(2, 1, 30, 30)
    given = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min) if added else seen
    with torch.no_grad():
        whole = model(ids).logits
        first = model(ids[:, :20], attention_mask=given[:, :, :20, :20], use_cache=True)
        rest = model(ids[:, 20:], attention_mask=given[:, :, 20:], past_key_values=first.past_key_values)
    torch.testing.assert_close(first.logits, whole[:, :20])
    torch.testing.assert_close(rest.logits, whole[:, 20:])


def test_wrapped_models_and_attention_dropout_are_refused():
    with pytest.raises(ValueError, match="DataParallel is no PreTrainedModel of transformers: give the model inside"):
        EntropyRegularizer(torch.nn.DataParallel(tiny("gpt2")), context=100)
    for name, option in (("gpt2", "attn_pdrop"), ("llama", "attention_dropout")):
        model = tiny(name)
        setattr(model.config, option, 0.1)
        with pytest.raises(ValueError, match=f"attention dropout 0.1 is on, .* load the model with {option}=0.0"):
            EntropyRegularizer(model, context=100)
        assert not hasattr(model, "reg_threshold_weights")


def test_loading_from_a_hub_names_the_remedy():
    model, _ = regularised()
    with pytest.raises(ValueError, match="me/model is no folder: .*snapshot_download"):
        EntropyRegularizer.load(_with_settings(model), "me/model")
