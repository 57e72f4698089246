"""The entropy regulariser on Hugging Face models: penalty and gradients, and training with transformers' Trainer."""

import copy
import functools
import math

import pytest
import torch
from tiny_hugging_face import CONFIGS, padded, row_entropies, some_ids, tiny
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from aero.entropy import EntropyRegularizer, entropy_regularization, measure
from aero.hf.attention import IMPLEMENTATION

CONTEXT, GAMMA = 80, 0.2


def regularised(name="gpt2", **settings):
    model = tiny(name).train()
    return model, EntropyRegularizer(model, context=CONTEXT, **settings)


@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
def test_the_loss_contains_the_penalty_in_training_mode_only(reduction):
    plain, ids = tiny("gpt2").train(), some_ids()
    expected = plain(ids, labels=ids).loss
    model, regularizer = regularised(lambda_=0.1, gamma=0.05, reduction=reduction)
    loss = model(ids, labels=ids).loss
    penalty = 0.1 * entropy_regularization(row_entropies(plain, ids), regularizer.thresholds, 0.05, reduction)
    if reduction == "position_sum":
        penalty = penalty * 16384 / 160
    assert penalty > 1e-3
    torch.testing.assert_close(loss, expected + penalty)
    torch.testing.assert_close(regularizer.penalty, penalty.detach())
    model.eval()
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    assert isinstance(model.train()(ids, labels=ids, return_dict=False), tuple)


def penalty_by_output_attentions(model, thresholds, ids, mask, reduction):
    """The penalty of the matrices that the model's eager attention returns, and its gradients by parameter name."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    thresholds = thresholds.detach().clone().requires_grad_()
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    given = eager(ids, attention_mask=mask, position_ids=positions, output_attentions=True).attentions
    largest, total = math.log(CONTEXT), 0.0
    for layer, p in enumerate(given):
        log_p = p.clamp_min(torch.finfo(p.dtype).tiny).log()
        rows = -(p * log_p).sum(-1).transpose(0, 1)[:, mask.bool()]  # (H, real queries)
        target = thresholds[layer][:, None] * largest
        deviation = rows.mean(1, keepdim=True) - target if reduction == "head_mean" else rows - target
        total = total + torch.where(deviation.abs() > GAMMA * largest, deviation**2, 0.0).sum() / len(rows)
    total = total / len(given)
    if reduction == "position_sum":
        total = total * 16384 / mask.sum()
    total.backward()
    found = {name: p.grad for name, p in eager.named_parameters() if p.grad is not None}
    return total.detach(), found | {"reg_threshold_weights.weight": thresholds.grad}


@pytest.mark.parametrize(
    ("name", "reduction", "side"),
    [
        ("gpt2", "position_sum", "left"),
        ("gpt2", "head_mean", "right"),
        ("gpt_neox", "head_mean", "left"),
        ("llama", "position_sum", "right"),
        ("qwen2", "position_sum", "left"),
    ],
)
def test_gradients_equal_those_through_the_models_own_attention(name, reduction, side):
    model, ids = tiny(name), some_ids()
    mask = padded(side, [CONTEXT, 51])
    thresholds = torch.rand(3, 4, generator=torch.Generator().manual_seed(5))
    expected, gradients = penalty_by_output_attentions(model, thresholds, ids, mask, reduction)
    model.train()
    regularizer = EntropyRegularizer(
        model, CONTEXT, lambda_=1.0, gamma=GAMMA, reduction=reduction, temperature_init=None
    )
    regularizer.thresholds.data.copy_(thresholds)
    model(ids, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0))
    regularizer.penalty.backward()
    torch.testing.assert_close(regularizer.penalty.detach(), expected, atol=0, rtol=1e-5)
    for parameter, value in model.named_parameters():
        found = torch.zeros_like(value) if value.grad is None else value.grad
        wanted = gradients.get(parameter, torch.zeros_like(found))
        assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max(), parameter


def test_gradients_of_temperatures_equal_finite_differences():
    model, ids = tiny("gpt2").train(), some_ids(2, 30)
    regularizer = EntropyRegularizer(model, 30, lambda_=1.0, gamma=0.05, reduction="head_mean")
    model.double()
    for seed, temperature in enumerate(regularizer.temperatures):
        generator = torch.Generator().manual_seed(seed)
        temperature.data.copy_(0.5 + torch.rand(temperature.shape, generator=generator))
    model(ids)
    gradients = torch.autograd.grad(regularizer.penalty, regularizer.temperatures)

    @torch.no_grad()
    def penalty(value, at, to):
        before = value[at].item()
        value[at] = to
        model(ids)
        value[at] = before
        return regularizer.penalty.item()

    for layer, at in ((0, (0, 1)), (1, (2, 13)), (2, (1, 20))):
        value = regularizer.temperatures[layer]
        here = value[at].item()
        difference = (penalty(value, at, here + 1e-4) - penalty(value, at, here - 1e-4)) / 2e-4
        assert gradients[layer][at].item() == pytest.approx(difference, rel=1e-4, abs=1e-8)
        assert abs(difference) > 1e-6


def pair_mask(mask, added):
    """A mask (B, T) as (B, 1, T, T): True, or 0 to be added to the logits, where a query sees a key."""
    tokens = mask.shape[1]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril() & mask.bool()[:, None, None]
    return torch.where(seen, 0.0, torch.finfo(torch.float32).min) if added else seen


@pytest.mark.parametrize("reduction", ["position_sum", "head_mean"])
def test_padding_does_not_count(reduction):
    model, regularizer = regularised(lambda_=1.0, reduction=reduction)
    ids, mask = some_ids(), padded("right", [80, 31])
    model(ids, attention_mask=mask)
    expected = regularizer.penalty
    other = ids.masked_fill(mask == 0, 5)
    for given in (mask, pair_mask(mask, added=False), pair_mask(mask, added=True)):
        model(other, attention_mask=given)
        torch.testing.assert_close(regularizer.penalty, expected)
    rows = row_entropies(model, ids, mask)
    real = torch.cat([rows[:, 0], rows[:, 1, :, :31]], -1)[:, None]  # (L, 1, H, 111)
    penalty = entropy_regularization(real, regularizer.thresholds, reduction=reduction, context=CONTEXT)
    torch.testing.assert_close(expected, penalty * (16384 / 111 if reduction == "position_sum" else 1))
    model(ids[:, :12], attention_mask=torch.zeros(2, 12).long())  # nothing but padding
    assert regularizer.penalty == 0


def test_packed_sequences_count_as_sequences_of_their_own():
    model, regularizer = regularised("llama", lambda_=1.0, temperature_init=None)
    ids = some_ids(1, 30)
    documents = (torch.arange(30) >= 12).long()
    packed = (documents[:, None] == documents) & torch.ones(30, 30, dtype=torch.bool).tril()
    positions = torch.cat([torch.arange(12), torch.arange(18)])[None]
    model(ids, attention_mask=packed[None, None], position_ids=positions)
    alone = torch.cat([row_entropies(model, part) for part in ids.split([12, 18], 1)], -1)
    expected = 16384 / 30 * entropy_regularization(alone, regularizer.thresholds, context=CONTEXT)
    torch.testing.assert_close(regularizer.penalty, expected)


def with_temperatures(name):
    model, regularizer = regularised(name)
    torch.manual_seed(0)
    for temperature in regularizer.temperatures:
        temperature.data.uniform_(0.3, 3)
    return model.eval()


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_generation_with_any_cache_uses_the_temperatures_of_the_positions(name):
    model, prompt = with_temperatures(name), some_ids(2, 12)
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    without = model.generate(prompt, use_cache=False, **settings)
    assert torch.equal(model.generate(prompt, **settings), without)
    assert torch.equal(model.generate(prompt, cache_implementation="static", **settings), without)


@pytest.mark.parametrize("cache", ["dynamic", "static", None])
def test_temperatures_are_those_of_the_real_tokens_of_left_padded_prompts(cache):
    model, ids = with_temperatures("llama"), some_ids(2, 12) + 0
    mask = padded("left", [12, 7], 12)
    rows, alone = row_entropies(model, ids, mask), row_entropies(model, ids[1:, -7:])
    torch.testing.assert_close(rows[:, 1, :, -7:], alone[:, 0], atol=1e-5, rtol=0)
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    settings |= {"use_cache": False} if cache is None else {"cache_implementation": cache}
    batch = model.generate(ids, attention_mask=mask, **settings)
    assert torch.equal(batch[1, 5:], model.generate(ids[1:, -7:], **settings)[0])


def test_documents_of_packed_rows_are_penalised_as_if_padded():
    model, regularizer = regularised("llama", lambda_=1.0)
    for temperature in regularizer.temperatures:
        temperature.data.copy_(torch.linspace(0.3, 2, CONTEXT).expand(4, -1))
    ids, lengths = some_ids(1, 100), [60, 40]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    rows = torch.nn.utils.rnn.pad_sequence(ids[0].split(lengths), batch_first=True)
    model(rows, attention_mask=padded("right", lengths, 60))
    expected = regularizer.penalty
    model(ids, position_ids=positions, use_cache=False)  # the row is longer than the context, its documents are not
    torch.testing.assert_close(regularizer.penalty, expected)
    with pytest.raises(ValueError, match="use_cache=False"):
        model(ids[:, :70], position_ids=positions[:, :70])  # then transformers attends across the documents


def test_a_model_can_be_copied_after_a_training_pass_without_labels():
    model, regularizer = regularised()
    model(some_ids())
    copied = copy.deepcopy(model)
    copied(some_ids())
    assert regularizer.penalty.requires_grad
    copied.reg_threshold_weights.weight.data.fill_(0.0)
    copied(some_ids())  # the copy has a regulariser of its own
    model(some_ids())
    assert (model.reg_threshold_weights.weight == 0.5).all()


def trained(folder, lengths=(40,) * 8, micro_batch=4, accumulated=1, own_loss=None, **settings):
    """Change of the thresholds, temperatures and a weight after two steps of Trainer with SGD."""
    torch.manual_seed(0)
    model, regularizer = regularised(lambda_=1e-4, gamma=0.05)
    mask, ids = padded("right", list(lengths), 40), some_ids(len(lengths), 40)
    labels = ids.masked_fill(mask == 0, -100)
    data = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids, mask, labels, strict=True)]
    arguments = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=micro_batch, gradient_accumulation_steps=accumulated,
        learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", seed=3, **settings,
    )  # fmt: skip
    weight = model.transformer.h[0].attn.c_attn.weight
    learned = [regularizer.thresholds, *regularizer.temperatures, weight]
    start = [p.detach().clone() for p in learned]
    loss = None if own_loss is None else functools.partial(own_loss, regularizer)
    Trainer(model, arguments, train_dataset=data, compute_loss_func=loss).train()
    return [p.detach() - before for p, before in zip(learned, start, strict=True)]


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("steps"))


def test_accumulated_micro_batches_take_the_steps_of_one_batch(steps, tmp_path):
    assert steps[0].abs().max() > 1e-2
    for found, expected in zip(trained(tmp_path, micro_batch=2, accumulated=2), steps, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


def test_an_own_loss_function_adds_the_share(steps, tmp_path):
    def loss(regularizer, outputs, labels, num_items_in_batch=None):
        logits, shifted = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        summed = torch.nn.functional.cross_entropy(logits, shifted, reduction="sum")
        return summed / num_items_in_batch + regularizer.share(labels, num_items_in_batch)

    with pytest.warns(UserWarning, match="regularizer.share"):
        found = trained(tmp_path, micro_batch=2, accumulated=2, own_loss=loss)
    torch.testing.assert_close(found[0], steps[0], atol=1e-5, rtol=1e-3)
    model, regularizer = regularised()
    model(some_ids(), labels=some_ids())
    with pytest.raises(RuntimeError, match="without labels"):
        regularizer.share(some_ids())


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [({"bf16": True}, 0.05), pytest.param({"torch_compile_backend": "aot_eager"}, 1e-3, marks=pytest.mark.slow)],
)
def test_mixed_precision_and_compiling_take_nearly_the_same_steps(steps, tmp_path, settings, tolerance):
    for found, expected in zip(trained(tmp_path, **settings)[:4], steps[:4], strict=True):
        assert found.dtype == torch.float32 and (found - expected).norm() < tolerance * expected.norm()


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


def test_trainer_learns_saves_and_resumes(tmp_path):
    torch.manual_seed(0)
    model, regularizer = regularised(lambda_=1e-3, temperature_init=0.5)
    start = [p.detach().clone() for p in (regularizer.thresholds, *regularizer.temperatures)]
    data = [{"input_ids": row, "labels": row} for row in some_ids(8, 32)]
    arguments = {
        "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "logging_steps": 1, "save_steps": 2, "seed": 3,
    }  # fmt: skip
    trainer = Trainer(model, TrainingArguments(str(tmp_path / "run"), **arguments), train_dataset=data)
    trainer.train()
    assert all(math.isfinite(line["loss"]) for line in trainer.state.log_history if "loss" in line)
    for before, after in zip(start, (regularizer.thresholds, *regularizer.temperatures), strict=True):
        assert (before != after).any()
    trainer.save_model(str(tmp_path / "saved"))

    loaded, ids = AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), some_ids(2, 32, seed=9)
    with pytest.raises(ValueError, match="saved with an entropy regulariser"):
        measure(loaded, ids)
    with pytest.raises(ValueError, match=r"EntropyRegularizer.load\(model"):
        EntropyRegularizer(loaded, context=CONTEXT)
    again = EntropyRegularizer.load(loaded, tmp_path / "saved")
    assert (again.lambda_, again.gamma, again.reduction) == (1e-3, 0.20, "position_sum")
    for mine, theirs in zip(again.named_parameters(), regularizer.named_parameters(), strict=True):
        assert mine[0] == theirs[0] and torch.equal(mine[1], theirs[1])
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits)

    resumed_model, resumed = regularised(lambda_=1e-3, temperature_init=0.5)
    resuming = Trainer(resumed_model, TrainingArguments(str(tmp_path / "again"), **arguments), train_dataset=data)
    resuming.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    torch.testing.assert_close(resumed.thresholds, regularizer.thresholds)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameter_groups_decay_matrices_only(name):
    model, regularizer = regularised(name)
    decayed, others = regularizer.parameter_groups(0.1)
    names = {id(p): name for name, p in model.named_parameters()}
    assert decayed["weight_decay"] == 0.1 and others["weight_decay"] == 0.0
    assert "reg_threshold_weights.weight" in {names[id(p)] for p in others["params"]}
    assert all(names[id(p)].endswith("weight") and p.ndim == 2 for p in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(list(model.parameters()))


def test_whole_numbers_start_thresholds_and_temperatures():
    _, regularizer = regularised(threshold_init=1, temperature_init=1)
    for tensor in (regularizer.thresholds, *regularizer.temperatures):
        assert tensor.dtype == torch.float32 and (tensor == 1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -1}, "gamma -1"),
        ({"lambda_": math.inf}, "lambda_ inf"),
        ({"threshold_init": 1.5}, "threshold_init 1.5"),
        ({"temperature_init": 0}, "temperature_init 0"),
        ({"reduction": "sum"}, "reduction 'sum'"),
        ({"lambda_positions": 0}, "lambda_positions 0"),
        ({"context": 8.5}, "whole number of tokens"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    model = tiny("gpt2")
    with pytest.raises(ValueError, match=message):
        EntropyRegularizer(model, **{"context": CONTEXT} | settings)
    assert not hasattr(model, "reg_threshold_weights")


def test_models_that_cannot_have_a_regulariser(tmp_path):
    with pytest.raises(ValueError, match="DataParallel is no PreTrainedModel"):
        EntropyRegularizer(torch.nn.DataParallel(tiny("gpt2")), context=CONTEXT)
    with pytest.raises(ValueError, match="attn_pdrop=0.0"):
        EntropyRegularizer(tiny("gpt2", attn_pdrop=0.1), context=CONTEXT)
    model, _ = regularised()
    with pytest.raises(ValueError, match="already"):
        EntropyRegularizer(model, context=CONTEXT)
    tiny("gpt2").save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="saved without an entropy regulariser"):
        EntropyRegularizer.load(loaded, tmp_path)
    loaded.config.entropy_regularizer = model.config.entropy_regularizer
    with pytest.raises(ValueError, match="has no reg_threshold_weights"):
        EntropyRegularizer.load(loaded, tmp_path)


def test_bad_input_in_training_is_refused():
    model, _ = regularised()
    ids = some_ids()
    for given, message in (
        ({"input_ids": ids.float()}, "int64 or int32"),
        ({"input_ids": ids, "attention_mask": torch.ones(2, 79)}, "does not fit ids"),
        ({"input_ids": ids, "attention_mask": torch.full((2, 80), -1e9)}, "1 where a token is real"),
        ({"input_ids": some_ids(1, 81)}, "81"),
    ):
        with pytest.raises(ValueError, match=message):
            model(**given)
    expected = model(ids, labels=ids).loss
    model.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="was switched to eager"):
        model(ids, labels=ids)
    model.set_attn_implementation(IMPLEMENTATION)
    assert torch.equal(model(ids, labels=ids).loss, expected)
