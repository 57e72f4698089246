"""Measure one call of each function that can replace LayerNorm, softmax and GELU, at GPT-2's size (nonlinearities.csv).

Takes about ten minutes. After an interruption it continues.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from aero.architecture import parse
from aero.config import load
from aero.errors import run_main
from aero.two_party.cost.counts import model_config
from aero.two_party.cost.resume import Wanted, measure_missing
from aero.two_party.program.nonlinear import causal_mask, relu
from aero.two_party.program.operations import Kind, Operation, Owner
from aero.two_party.runtime.settings import Settings


def dyt(x: Array, alpha: Array, weight: Array, bias: Array) -> Array:
    """Dynamic Tanh (arXiv 2503.10622) in place of LayerNorm: tanh(alpha x) with gain and bias."""
    return jnp.tanh(alpha * x) * weight + bias


def hard_tanh_dyt(x: Array, alpha: Array, weight: Array, bias: Array) -> Array:
    """`dyt` with alpha x clipped to +-1 in place of tanh."""
    return jnp.clip(alpha * x, -1.0, 1.0) * weight + bias


def attention_weights(logits: Array, function: Callable[[Array], Array], factor: float | Array = 1.0) -> Array:
    """Causal attention weights factor * function(logits) of (H, rows, columns), without a sum over the row."""
    return jnp.where(causal_mask(*logits.shape[-2:]), function(logits) * factor, 0.0)


def relu_attention(logits: Array) -> Array:
    """relu(z) / T (arXiv 2309.08586)."""
    return attention_weights(logits, relu, 1.0 / logits.shape[-1])


def sigmoid_attention(logits: Array) -> Array:
    """sigmoid(z - log T) (arXiv 2409.04431)."""
    return attention_weights(logits - math.log(logits.shape[-1]), jax.nn.sigmoid)


def consmax(logits: Array, factor: Array) -> Array:
    """ConSmax at inference (arXiv 2402.10930): C e^z, the server's C (H, 1, 1) being e^-beta / gamma of each head."""
    return attention_weights(logits, jnp.exp, factor)


def squared_relu(x: Array) -> Array:
    """relu(x)^2 (arXiv 2109.08668)."""
    return jnp.square(relu(x))


KINDS = {
    "dyt": Kind(dyt, ("secret", "server", "server", "server")),
    "hard_tanh_dyt": Kind(hard_tanh_dyt, ("secret", "server", "server", "server")),
    "relu_attention": Kind(relu_attention, ("secret",)),
    "sigmoid_attention": Kind(sigmoid_attention, ("secret",)),
    "consmax": Kind(consmax, ("secret", "server")),
    "squared_relu": Kind(squared_relu, ("secret",)),
}


@dataclass(frozen=True, order=True)
class Replacement(Operation):
    """An operation of KINDS, which no program has."""

    @property
    def owners(self) -> tuple[Owner, ...]:
        return KINDS[self.kind].owners

    def function(self) -> Callable[..., Array]:
        return KINDS[self.kind].function


def nonlinearities() -> list[Wanted]:
    """One call of each at the published size of GPT-2 small."""
    rows = 128
    size = model_config(parse("SM+LN+G"), "gpt2", rows)
    states, gain, hidden = (rows, size.width), (size.width,), (rows, size.ffn_width)
    logits = (size.heads, rows, rows)
    shapes = {"layer_norm": (states, gain, gain), "rms_norm": (states, gain), "consmax": (logits, (size.heads, 1, 1))}
    shapes |= dict.fromkeys(("dyt", "hard_tanh_dyt"), (states, (), gain, gain))
    shapes |= dict.fromkeys(("softmax_plain", "relu_attention", "sigmoid_attention"), (logits,))
    shapes |= dict.fromkeys(("gelu_plain", "silu", "relu", "squared_relu"), (hidden,))
    made = ((Replacement if kind in KINDS else Operation)(kind, of) for kind, of in shapes.items())
    return [Wanted(operation, "gpt2", rows) for operation in made]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.other_nonlinearities", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/two_party"))
    path = parser.parse_args(arguments).folder / "nonlinearities.csv"
    settings = Settings(**load().two_party.settings())
    measure_missing(nonlinearities(), path, settings, rounds_runs=3, repeats={128: 3})


if __name__ == "__main__":
    run_main(main)
