"""A regularised training step at T = 640 makes no tensor of T x T elements, in any layer of a whole model, and keeps
nothing that grows as T x T for its backward pass."""

import copy

import pytest
import torch
from largest_tensor import Kept, Largest
from tiny_hugging_face import CONFIGS, some_ids
from transformers import AutoModelForCausalLM

from aero import attention
from aero.architecture import parse
from aero.attention import KEPT_UP_TO, MATRIX_UP_TO
from aero.entropy import EntropyRegularizer, entropy_regularization
from aero.model import GPT, ModelConfig
from aero.row_entropy import ROWS

T, HEADS = 640, 4
BLOCK = HEADS * ROWS * T
"""Elements of the largest thing that is to be made: the rows of a block, of all heads. All else is below 128 T."""


def long_model(name):
    torch.manual_seed(0)
    config = copy.deepcopy(CONFIGS[name])
    config.max_position_embeddings = T
    return AutoModelForCausalLM.from_config(config).train()


def largest_of_a_step(loss):
    with Largest() as largest:
        loss().backward()
    return largest.size


@pytest.mark.parametrize("padding", [0, 200])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_hugging_face_model_with_the_regularizer(name, padding):
    model = long_model(name)
    regularizer = EntropyRegularizer(model, context=T, lambda_=1e-2)
    ids, mask = some_ids(1, T), torch.ones(1, T, dtype=torch.long)
    mask[:, T - padding :] = 0
    most = largest_of_a_step(lambda: model(ids, attention_mask=mask, labels=ids).loss)
    assert most <= BLOCK < T * T and regularizer.thresholds.grad.any()


def test_eager_attention_does_make_the_matrix():
    """So it would be seen."""
    model = long_model("gpt2")
    model.set_attn_implementation("eager")
    assert largest_of_a_step(lambda: model(some_ids(1, T), labels=some_ids(1, T)).loss) >= HEADS * T * T


def model_of_ours(context=T):
    config = ModelConfig(67, context, layers=2, heads=HEADS, width=32, ffn_width=128, temperature_init=0.5)
    model = GPT(parse("EReg(SM(t)+ScFuFFN)"), config)

    def loss():
        logits, entropies = model(some_ids(1, context), entropy=True)
        return logits.logsumexp(-1).mean() + entropy_regularization(entropies, model.reg_threshold_weights)

    return model, loss


def test_a_regularised_model_of_ours(monkeypatch):
    model, loss = model_of_ours()
    assert MATRIX_UP_TO < KEPT_UP_TO < T
    assert largest_of_a_step(loss) <= BLOCK and model.reg_threshold_weights.grad.any()
    monkeypatch.setattr(attention, "MATRIX_UP_TO", T)
    assert largest_of_a_step(loss) >= HEADS * T * T  # it would be seen


def kept_by(context):
    _, loss = model_of_ours(context)
    with Kept() as kept:
        loss()
    return kept.bytes


def test_what_a_regularised_model_of_ours_keeps_grows_as_the_context(monkeypatch):
    """Twice the context, twice the memory and a little; not so where blocks are kept, which training up to 512 does."""
    assert kept_by(2 * T) <= 2.01 * kept_by(T)
    monkeypatch.setattr(attention, "KEPT_UP_TO", 2 * T)
    assert kept_by(2 * T) >= 3 * kept_by(T)  # it would be seen
