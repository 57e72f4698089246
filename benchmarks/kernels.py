"""A training step with the entropy regulariser as single kernels of PyTorch: its matrix products and, for each other
part that no such step can be without, one kernel on numbers that are there already.

No autograd, no copies between heads and positions, no biases, no clipping, no embedding, no p log p and no penalty:
a step made of PyTorch's kernels takes longer. A kernel of one's own that does several of these at once may not.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from aero.model import GPT
from aero.row_entropy import ROWS
from benchmarks import products

NAME = "products and single kernels"

_aten = torch.ops.aten


def working(model: GPT, ids: Tensor) -> Callable[[], None]:
    """The kernels of one step of GPT-2's layout with block LayerNorms and a GELU, on random numbers.

    A layer: two LayerNorms, GELU and the causal half of the softmax, each with its gradient, the logarithm of the
    probabilities (the entropy), and both residual sums with theirs. Then the final LayerNorm and the cross-entropy
    with their gradients, and AdamW over all weights. What comes again takes the same numbers, which are in the cache
    if anything is.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    multiply = products.multiplying(model, ids)
    config = model.config
    batch, context = ids.shape
    tokens, width = batch * context, config.width
    x, d_x = random(tokens, width), random(tokens, width)
    gain, bias = torch.ones(width), torch.zeros(width)
    hidden, d_hidden = random(tokens, config.ffn_width), random(tokens, config.ffn_width)
    heads = batch * config.heads
    blocks = [
        (random(heads, stop - start, stop), random(heads, stop - start, stop))
        for start in range(0, context, ROWS)
        for stop in (min(start + ROWS, context),)
    ]
    logits, targets = random(tokens, config.vocabulary), ids.reshape(-1)
    d_loss = torch.ones(())
    weights = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer = torch.optim.AdamW(weights, fused=True)

    def norm() -> None:
        _, mean, rstd = torch.native_layer_norm(x, [width], gain, bias, config.layer_norm_eps)
        _aten.native_layer_norm_backward(d_x, x, [width], mean, rstd, gain, bias, [True, True, True])

    def layer() -> None:
        norm()
        norm()
        _aten.gelu(hidden, approximate="tanh")
        _aten.gelu_backward(d_hidden, hidden, approximate="tanh")
        for z, d_p in blocks:
            p = torch.softmax(z, -1)
            p.log()
            _aten._softmax_backward_data(d_p, p, -1, z.dtype)
        for _ in range(2):
            x + d_x  # residual
            d_x + x  # its gradient

    def work() -> None:
        multiply()
        for _ in range(config.layers):
            layer()
        norm()
        log_p = torch.log_softmax(logits, -1)
        _, total = _aten.nll_loss_forward(log_p, targets, None, 1, -100)
        d_log_p = _aten.nll_loss_backward(d_loss, log_p, targets, None, 1, -100, total)
        _aten._log_softmax_backward_data(d_log_p, log_p, -1, logits.dtype)
        optimizer.step()

    return work
