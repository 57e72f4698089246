"""Ways to compute a training step faster: torch.compile and TF32 on CUDA, oneDNN's matrix multiplications on a CPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from aero.model import GPT
from aero.training.schedule import takes_faster_kernels

TokenLoss = Callable[[Tensor, Tensor], Tensor]


def default_device() -> str:
    """The device that trainings take."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def compile_step(model: GPT, token_loss: TokenLoss, backend: str = "inductor") -> TokenLoss:
    """Compile the blocks of `model` in place with torch.compile, and return `token_loss` compiled.

    Blocks are compiled one by one because one compilation then serves all equal blocks; compiling 12 layers at once
    takes most of a minute. Earlier compilations of this process are dropped first: torch stops compiling after a few
    variants of the same code. Blocks with a weight or spectral norm stay eager: each normed matrix has a class of its
    own, so no two blocks share a compilation.
    """
    torch._dynamo.reset()
    torch._dynamo.config.suppress_errors = True
    for block in model.blocks:
        if not any(is_parametrized(module) for module in block.modules()):
            block.compile(backend=backend)
    return torch.compile(token_loss, backend=backend)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Nothing is compiled within: measurements would compile every block again for their own mode and precision."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def faster_matmul(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Within it, `F.linear` of float32 tensors uses oneDNN if `model` is large and on a CPU. First derivatives only.

    PyTorch uses MKL for float32, which runs at half the speed on processors of other vendors than Intel. The results
    differ in their last bits, so small models keep PyTorch's choice.
    """
    return _Matmul() if takes_faster_kernels(model) else contextlib.nullcontext()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b with oneDNN: (…, n), (m, n), (m) -> (…, m)."""
    return _Linear.apply(x, weight, bias)


class _Matmul(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if function is F.linear and _plain(args, kwargs or {}):
            return linear(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    tensors = [x for x in (*args, *kwargs.values()) if x is not None]
    return all(x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() for x in tensors) and (
        not torch.is_autocast_enabled("cpu")
    )


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        return matmul(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_output = d_output.contiguous()
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = d_output.flatten(0, -2)  # (rows, m)
        return (
            matmul(d_output, weight.mT) if needs_x else None,
            weight_gradient(rows, x.flatten(0, -2)) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def weight_gradient(rows: Tensor, x: Tensor) -> Tensor:
    """rows^T x, (rows, m) and (rows, n) -> (m, n), in the order of factors that copies less.

    The operator copies a transposed first factor, which for a vocabulary projection is as large as the logits; the
    other order copies the result instead. Both give the same numbers.
    """
    (count, m), n = rows.shape, x.shape[1]
    if count * (m - n) > 2 * m * n:
        return matmul(x.mT, rows.mT).mT.contiguous()
    return matmul(rows.mT, x.mT)
