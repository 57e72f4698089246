"""Products with weight matrices on a CPU by oneDNN, whose kernels use all of the processor's vector width.

PyTorch takes MKL's for float32, which on other processors than Intel's run at half the speed (docs/decisions.md). The
result differs in its last bits, so small models, the laptop scale's among them, keep to PyTorch's choice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from aero.training.schedule import takes_faster_kernels


def faster_products(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Within it, `F.linear` of float32 tensors goes through oneDNN if `model` is large and on a CPU; else nothing
    changes. First derivatives only.
    """
    return _Products() if available() and takes_faster_kernels(model) else contextlib.nullcontext()


def available() -> bool:
    """Whether this PyTorch has oneDNN's products of plain tensors, which it keeps for its compiler."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T + b by oneDNN: (…, n), (m, n), (m) -> (…, m)."""
    return _Linear.apply(x, weight, bias)


class _Products(TorchFunctionMode):
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


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_output = d_output.contiguous()
        wanted_x, wanted_weight, wanted_bias = ctx.needs_input_grad
        rows = d_output.flatten(0, -2)  # (rows, m)
        return (
            product(d_output, weight.mT) if wanted_x else None,
            of_weight(rows, x.flatten(0, -2)) if wanted_weight else None,
            rows.sum(0) if wanted_bias else None,
        )


def of_weight(rows: Tensor, x: Tensor) -> Tensor:
    """rows^T x, (rows, m) and (rows, n) -> (m, n): the same numbers by either order of the factors.

    The operator copies its first factor where that is transposed, and the turned product is copied into the layout of
    the weight. Of a vocabulary's projection the first of these copies would be as large as the logits.
    """
    (count, m), n = rows.shape, x.shape[1]
    if count * (m - n) > 2 * m * n:
        return product(x.mT, rows.mT).mT.contiguous()
    return product(rows.mT, x.mT)
