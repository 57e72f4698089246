"""torch.compile of a decoder's training step on CUDA: by block, so that its layers share one compilation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from aero.model import GPT
from aero.row_entropy import without_compiling

TokenLoss = Callable[[Tensor, Tensor], Tensor]


def compile_step(model: GPT, token_loss: TokenLoss, backend: str = "inductor") -> TokenLoss:
    """Compile the blocks of `model` in place, and give `token_loss` compiled; by torch.compile's `backend`.

    A whole model of 12 layers compiles for a good part of a minute, which short trainings back to back would pay again
    and again; one block takes seconds and serves all that are alike. The loss is apart from them, since in eager mode
    its float32 logits would go through memory several times. What earlier trainings of this process compiled is
    forgotten first: beyond a few variants of one piece of code, torch stops compiling it and says so only in a log.
    What cannot be compiled runs as it stands, and so do blocks with a weight or spectral norm: each normed matrix is of
    a class of its own, so no two blocks would share a compilation.
    """
    torch._dynamo.reset()
    torch._dynamo.config.suppress_errors = True
    for block in model.blocks:
        if not any(is_parametrized(module) for module in block.modules()):
            block.compile(backend=backend)
    return torch.compile(token_loss, backend=backend)


@contextlib.contextmanager
def as_it_stands() -> Iterator[None]:
    """Nothing is compiled in here: measuring would compile every block again, for its own mode and precision."""
    with without_compiling():
        if "torch._dynamo" not in sys.modules:
            yield
            return
        with torch.compiler.set_stance("force_eager"):
            yield


@contextlib.contextmanager
def tensor_cores(device: torch.device | str) -> Iterator[None]:
    """On a GPU, float32 products by its matrix units, with operands of 10 bits after the point (TF32)."""
    if torch.device(device).type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
