"""Small models with no parameter left at a value that would hide it, and their plaintext logits by PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.utils import parametrize

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.two_party.program.forward import forward
from aero.two_party.program.inputs import prompt_array
from aero.two_party.program.operations import call
from aero.two_party.program.weights import weight_arrays

SIZES = {"vocabulary": 41, "context": 12, "layers": 3, "heads": 2, "width": 16, "ffn_width": 64}


def random_model(architecture: str, seed: int = 0, **changes: object) -> GPT:
    """A model none of whose parameters is at a value that hides it (gains of 1, biases of 0, W_V of 0)."""
    torch.manual_seed(seed)
    model = GPT(parse(architecture), ModelConfig(**(SIZES | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and "temperature" not in name:
                parameter.copy_(0.25 * torch.randn_like(parameter))
            elif name.endswith("alpha") or "temperature" in name:
                parameter.copy_(0.8 + 0.8 * torch.rand_like(parameter))
            else:
                parameter.copy_(parameter + 0.2 * torch.randn_like(parameter))
        model.train()
        for module in model.modules():
            if parametrize.is_parametrized(module, "weight"):
                for _ in range(30):  # reading a spectral norm's weight is a step of its power iteration, as in training
                    _ = module.weight
    return model.eval()


def torch_logits(model: GPT, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(ids)[None])[0, -1].numpy()


@cache
def compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run(kind, *arrays, **constants)`, each kind compiled as a whole: faster than step by step."""
    made = cache(lambda kind, constants: jax.jit(partial(run, kind, **dict(constants))))
    return lambda kind, *arrays, **constants: made(kind, tuple(constants.items()))(*arrays)


def plaintext(model: GPT, program: str, ids: np.ndarray) -> np.ndarray:
    """The logits of the private program in float32 in the clear."""
    weights, prompt = weight_arrays(model, program), prompt_array(ids, model.config.vocabulary, program)
    with jax.default_matmul_precision("highest"):
        prompt = jax.numpy.asarray(prompt)
        return np.asarray(forward(compiled(call), model.architecture, model.config, program, weights, prompt)[0])
