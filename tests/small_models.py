"""A small decoder with no parameter left at its neutral start, and token ids for it."""

import torch

from aero.architecture import parse
from aero.model import GPT, ModelConfig

SMALL = {"vocabulary": 40, "context": 9, "layers": 3, "heads": 2, "width": 8, "ffn_width": 32}


def build(text, **changes):
    torch.manual_seed(1)
    model = GPT(parse(text), ModelConfig(**(SMALL | {"init_std": 0.3, "temperature_init": 0.7} | changes)))
    for parameter in model.parameters():  # gains, biases and norms away from their neutral start
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def ids(batch=2, context=9):
    return torch.randint(0, 40, (batch, context), generator=torch.Generator().manual_seed(2))
