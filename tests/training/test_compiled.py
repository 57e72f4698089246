"""torch.compile of a decoder's blocks and loss: the compiled step is the step as it stands."""

import dataclasses

import pytest
import torch

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training.kernels import as_it_stands, compile_step
from aero.training.loop import next_token_loss

CONFIG = ModelConfig(vocabulary=32, context=8, layers=2, heads=2, width=16, ffn_width=64, temperature_init=1.0)
IDS = (torch.tensor([[3], [8], [20], [29]]) + torch.arange(8)) % 32

# With "aot_eager" the backward pass of these two cores fails in torch itself ("view size is not compatible with input
# tensor's size and stride"): it keeps strides that the forward pass did not have. With "inductor", which trainings
# use, it does not.
CODE_ONLY = ["Core(qk_layernorm)+LN+G", "Core(elu)+LN+G"]


@pytest.mark.parametrize(
    "architecture",
    [
        "SM+LN+G",
        "EReg(SM(t)+ScFuFFNi_1)",
        "SM(t)+LeakyR",
        "SM+WNorm(FFN)",
        "SM+SNorm(QKV+FFN)",
        "SOTA(SM+ScFuFFNi_1)",
        "Core(relu)+LN+G",
    ],
)
def test_a_compiled_step_is_the_step_as_it_stands(architecture):
    """Through the graphs that torch.compile captures, without the code it would make of them for a GPU."""
    check_compiled(architecture, "aot_eager", layers=6)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", CODE_ONLY)
def test_a_step_compiled_to_code_is_the_step_as_it_stands(architecture):
    """Through the code that torch makes for the processor, of cores whose graphs alone do not run."""
    check_compiled(architecture, "inductor", layers=3)


def check_compiled(architecture, backend, layers):
    torch.manual_seed(1)
    model, ids = GPT(parse(architecture), dataclasses.replace(CONFIG, layers=layers)), IDS

    def gradients(token_loss):
        model.load_state_dict(weights)  # a spectral norm's vectors move at every pass
        regularized = parse(architecture).entropy_regularized
        logits, entropies = model(ids, entropy=True) if regularized else (model(ids), torch.zeros(()))
        loss = token_loss(logits, ids) + entropies.mean()
        model.zero_grad()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = gradients(next_token_loss)
    counters = torch._dynamo.utils.counters
    try:
        compiled = compile_step(model, next_token_loss, backend=backend)
        counters.clear()
        with torch._dynamo.config.patch(suppress_errors=False):  # it shall not run as it stands and pass
            found = gradients(compiled)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
        assert not counters["graph_break"], dict(counters["graph_break"])
        assert counters["stats"]["unique_graphs"] <= 4  # the loss, and few kinds of blocks
        with as_it_stands():
            model(ids)
    finally:
        torch._dynamo.reset()
