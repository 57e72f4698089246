"""A training step as single kernels of PyTorch: its matrix products and, for each other part that its row has, one
kernel on numbers that are there already.

No autograd, no copies between heads and positions, no biases, no clipping, no embedding, no p log p and no penalty:
a step made of PyTorch's kernels takes longer. A kernel of one's own that does several of these at once may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from aero.model import GPT, HeHofmannBlock
from aero.row_entropy import ROWS
from benchmarks import products
from benchmarks.products import random

NAME = "products and single kernels"

_aten = torch.ops.aten
Kernels = Callable[[], object]


def working(model: GPT, ids: Tensor, entropy: bool = False, attention: str | None = None) -> Callable[[], None]:
    """The kernels of one step of `model` on random numbers; of what comes again the numbers are the same, which are in
    the cache if anything is.

    Of every layer what it has of: LayerNorm, GELU or ReLU, the causal half of the softmax in blocks, residual sums with
    learned scales, and shaped attention with the sum of the He & Hofmann block, each with its gradients. Then the
    final LayerNorm and the cross-entropy with their gradients, and AdamW over all weights.
    entropy: the logarithms of the probabilities too. attention: as in `products.multiplying`.
    ValueError for an architecture with parts that are not known here.
    """
    architecture = model.architecture
    unknown = architecture.temperature or architecture.weight_norm or architecture.core != "softmax"
    if unknown or architecture.ffn == "leaky_relu" or model.config.parallel_residual:
        raise ValueError(f"{architecture}: the kernels of a step are written for benchmarks.training_step.ROWS only")
    parts = [products.multiplying(model, ids, attention), *_layers(model, ids, entropy), *_ends(model, ids)]

    def work() -> None:
        for part in parts:
            part()

    return work


def _layers(model: GPT, ids: Tensor, entropy: bool) -> Iterator[Kernels]:
    config = model.config
    tokens, width = ids.numel(), config.width
    shape = (ids.shape[0] * config.heads, ids.shape[1], width // config.heads)
    norm, softmax, sums = _norm(model, tokens), _softmax(shape, entropy), _sums(tokens, width)
    shaped, activation = _shaped(shape), _activation(model, tokens)
    for block in model.blocks:
        for ln in (block.ln_1, getattr(block, "ln_2", None)):
            if isinstance(ln, torch.nn.LayerNorm):
                yield norm
        yield softmax
        if block.ffn is not None and activation is not None:
            yield activation
        if isinstance(block, HeHofmannBlock):
            yield shaped
            yield sums["scaled"]  # b_ff FFN(n) + b_sa attention
            if block.attention.value_weight is not None:
                yield sums["scaled"]  # r W n + s n
        else:
            yield sums["plain"]
            if block.ffn is not None:
                yield sums["plain" if block.alpha is None else "scaled"]


def _norm(model: GPT, tokens: int) -> Kernels:
    width, epsilon = model.config.width, model.config.layer_norm_eps
    x, d_x = random(tokens, width), random(tokens, width)
    gain, bias = torch.ones(width), torch.zeros(width)

    def norm() -> None:
        _, mean, rstd = torch.native_layer_norm(x, [width], gain, bias, epsilon)
        _aten.native_layer_norm_backward(d_x, x, [width], mean, rstd, gain, bias, [True, True, True])

    return norm


def _activation(model: GPT, tokens: int) -> Kernels | None:
    """Between the matrices of a feed-forward block; None for a linear one."""
    if model.architecture.ffn not in ("gelu", "relu"):
        return None
    hidden, d_hidden = (random(tokens, model.config.ffn_width) for _ in range(2))

    def gelu() -> None:
        _aten.gelu(hidden, approximate="tanh")
        _aten.gelu_backward(d_hidden, hidden, approximate="tanh")

    def relu() -> None:
        _aten.threshold_backward(d_hidden, _aten.relu(hidden), 0)

    return gelu if model.architecture.ffn == "gelu" else relu


def _softmax(shape: tuple[int, int, int], entropy: bool) -> Kernels:
    """Of the causal half, in blocks of queries: less than PyTorch's own attention takes beyond its products."""
    heads, context, _ = shape
    blocks = [
        (random(heads, stop - start, stop), random(heads, stop - start, stop))
        for start in range(0, context, ROWS)
        for stop in (min(start + ROWS, context),)
    ]

    def softmax() -> None:
        for z, d_p in blocks:
            p = torch.softmax(z, -1)
            if entropy:
                p.log()
            _aten._softmax_backward_data(d_p, p, -1, z.dtype)

    return softmax


def _sums(tokens: int, width: int) -> dict[str, Kernels]:
    """A sum of two (tokens, width) with its gradient; scaled: with those of its two learned scales."""
    x, y = random(tokens, width), random(tokens, width)

    def plain() -> None:
        torch.add(x, y)
        torch.add(y, x)

    def scaled() -> None:
        torch.add(x, y, alpha=0.5)  # the other scale is one of weights
        torch.add(y, x, alpha=0.5)
        torch.dot(x.flatten(), y.flatten())
        torch.dot(y.flatten(), x.flatten())

    return {"plain": plain, "scaled": scaled}


def _shaped(shape: tuple[int, int, int]) -> Kernels:
    """a V + b P V - g C V of (B H, T, d_k), C V being a running mean, with the gradients of V, P V and the gains."""
    heads, context, width = shape
    v, attended, d_output = (random(*shape) for _ in range(3))
    a, b = torch.ones(heads, 1, 1), torch.ones(heads, 1, 1)
    g = torch.ones(heads, 1, 1) / torch.arange(1, context + 1)[:, None]  # the mean's division is in it
    size = context * width

    def shaped() -> None:
        total = v.cumsum(-2)
        (a * v).addcmul_(b, attended).addcmul_(g, total, value=-1)
        torch.mul(b, d_output)  # gradient of P V
        (g * d_output).cumsum(-2).addcmul_(a, d_output)  # gradient of V; in the model turned round before and after
        for x in (v, attended, total):
            torch.bmm(d_output.view(heads, 1, size), x.view(heads, size, 1))  # of a gain

    return shaped


def _ends(model: GPT, ids: Tensor) -> Iterator[Kernels]:
    """Final LayerNorm, cross-entropy, AdamW over weights of its own."""
    if model.config.ln_f:
        yield _norm(model, ids.numel())
    logits, targets = random(ids.numel(), model.config.vocabulary), ids.reshape(-1)
    d_loss = torch.ones(())

    def cross_entropy() -> None:
        log_p = torch.log_softmax(logits, -1)
        _, total = _aten.nll_loss_forward(log_p, targets, None, 1, -100)
        d_log_p = _aten.nll_loss_backward(d_loss, log_p, targets, None, 1, -100, total)
        _aten._log_softmax_backward_data(d_log_p, log_p, -1, logits.dtype)

    yield cross_entropy
    weights = [torch.nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    yield torch.optim.AdamW(weights, fused=True).step
