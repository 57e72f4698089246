"""A training step of this project beside one of Hugging Face's GPT-2.

    python -m benchmarks.training_step [--repeats N] [--threads N] [--widths 128 768]

GPT-2's layout with 12 layers, on the same weights, batch and threads: forward and backward pass, clipped gradients,
AdamW. The other side is `GPT2LMHeadModel` with its default attention and the AdamW that its Trainer takes by default,
without dropout. The sides' losses are compared. Writes results/bench/training_step.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aero.architecture import parse
from aero.model import GPT, ModelConfig
from aero.training.kernels import faster_matmul
from aero.training.loop import next_token_loss
from aero.training.schedule import make_optimizer
from benchmarks import timing
from benchmarks.timing import Measured, in_turn, of, ratio, side, spread

LAYERS = 12
TOKENS = 1024
"""In a batch."""
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.999), 1e-8, 0.1, 1.0
OWN, THEIRS = "aero", "transformers"
BASE = "SM+LN+G"


@dataclass(frozen=True)
class Shape:
    """Sizes of a model and its batch; heads are 64 wide as GPT-2's, or 32 where that would leave two."""

    width: int
    context: int
    vocabulary: int

    @property
    def heads(self) -> int:
        return max(4, self.width // 64)

    @property
    def batch(self) -> int:
        return max(1, TOKENS // self.context)

    def config(self, **changes: Any) -> ModelConfig:
        sizes = (self.vocabulary, self.context, LAYERS, self.heads, self.width, 4 * self.width)
        return ModelConfig(*sizes, **({"vo_bias": True, "ffn_bias": True} | changes))


SHAPES = tuple(Shape(*sizes) for sizes in ((128, 128, 1024), (128, 512, 1024), (768, 128, 1024), (768, 512, 1024)))
SHAPES += tuple(Shape(shape.width, shape.context, 50257) for shape in SHAPES)
"""Each with a small vocabulary and with GPT-2's, where the projection onto it is the larger part."""
FIRST_APART, APART = 1e-5, 1e-2
"""How far the sides' losses may differ, relatively: at the first step by the rounding of sums; later by more, since
Adam's first update is the sign of a gradient however small."""


def our_model(shape: Shape, architecture: str = BASE) -> GPT:
    torch.manual_seed(0)
    return GPT(parse(architecture), shape.config())


def their_model(shape: Shape, model: GPT, attention: str | None = None) -> nn.Module:
    """`GPT2LMHeadModel` with the weights of `model`; attention None is its default."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.context,
        n_embd=shape.width,
        n_layer=LAYERS,
        n_head=shape.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,  # as their Trainer sets it: else every step keeps keys and values for a generation
        bos_token_id=None,
        eos_token_id=None,
        **({} if attention is None else {"attn_implementation": attention}),
    )
    theirs = GPT2LMHeadModel(config)
    theirs.load_state_dict(their_state(model))
    return theirs.train()


def their_state(model: GPT) -> dict[str, Tensor]:
    """The weights of a GPT-2 of ours under the names and in the layout of `GPT2LMHeadModel`."""
    state = {
        "transformer.wte.weight": model.token_embedding.weight,
        "transformer.wpe.weight": model.position_embedding.weight,
        "transformer.ln_f.weight": model.ln_f.weight,
        "transformer.ln_f.bias": model.ln_f.bias,
        "lm_head.weight": model.token_embedding.weight,
    }
    for layer, block in enumerate(model.blocks):
        qkv = (block.attention.query, block.attention.key, block.attention.value)
        linear = {
            "attn.c_proj": block.attention.output,
            "mlp.c_fc": block.ffn.up,
            "mlp.c_proj": block.ffn.down,
        }
        here = f"transformer.h.{layer}."
        state[f"{here}attn.c_attn.weight"] = torch.cat([part.weight.T for part in qkv], 1)
        state[f"{here}attn.c_attn.bias"] = torch.cat([part.bias for part in qkv])
        for name, part in linear.items():
            state |= {f"{here}{name}.weight": part.weight.T, f"{here}{name}.bias": part.bias}
        for name, norm in (("ln_1", block.ln_1), ("ln_2", block.ln_2)):
            state |= {f"{here}{name}.weight": norm.weight, f"{here}{name}.bias": norm.bias}
    return {name: value.detach().contiguous() for name, value in state.items()}


def batch_of(shape: Shape) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, shape.vocabulary, (shape.batch, shape.context), generator=generator)


def stepper(
    parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]
) -> Callable[[], Measured]:
    """One training step: seconds in all, of forward and backward pass, processor seconds, its loss and the first."""
    first: list[float] = []

    def step() -> Measured:
        began, cpu_began = time.perf_counter(), time.process_time()
        value = loss()
        value.backward()
        passed = time.perf_counter() - began
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        cpu_seconds = time.process_time() - cpu_began
        if not first:
            first.append(value.item())
        return {
            "seconds": seconds,
            "passes": passed,
            "cpu_seconds": cpu_seconds,
            "loss": value.item(),
            "first_loss": first[0],
        }

    return step


def side_of(side: str, shape: Shape, architecture: str = BASE) -> Callable[[], Measured]:
    """The step of one side, set up as its user would have it."""
    ids = batch_of(shape)
    if side == OWN:
        model = our_model(shape, architecture)
        optimizer = make_optimizer(model, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY)
        with_products = faster_matmul(model)

        def loss() -> Tensor:
            with with_products:
                return next_token_loss(model(ids), ids)

        return stepper(list(model.parameters()), optimizer, loss)
    theirs = their_model(shape, our_model(shape))
    parameters = list(theirs.parameters())
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, fused=True)
    return stepper(parameters, optimizer, lambda: theirs(ids, labels=ids).loss)


def compare(shape: Shape, repeats: int, threads: int) -> dict[str, Any]:
    """Our step against theirs."""
    with ExitStack() as running:
        started = {name: side(side_of, threads, side=name, shape=shape) for name in (OWN, THEIRS)}
        found = in_turn({name: running.enter_context(one) for name, one in started.items()}, repeats, warm_ups=3)
    ours, theirs = found.values()
    first, apart = (
        max(abs(a[name] / b[name] - 1) for a, b in zip(ours, theirs, strict=True)) for name in ("first_loss", "loss")
    )
    if first > FIRST_APART or apart > APART:
        raise RuntimeError(f"{shape}: losses differ by {first:.1e} at first and {apart:.1e} later: not the same model")
    return {
        **asdict(shape),
        "heads": shape.heads,
        "layers": LAYERS,
        "batch": shape.batch,
        "tokens_per_second": {name: spread([TOKENS / s for s in of(steps)]) for name, steps in found.items()},
        "ratio": ratio(of(theirs), of(ours)),
        "passes_ratio": ratio(of(theirs, "passes"), of(ours, "passes")),
        "cpu_ratio": ratio(of(theirs, "cpu_seconds"), of(ours, "cpu_seconds")),
        "first_losses_apart": first,
        "losses_apart": apart,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = timing.arguments_of("training_step", __doc__.splitlines()[0]).parse_args(arguments)
    steps, load_before = [], timing.load()
    for shape in SHAPES:
        if shape.width in chosen.widths:
            steps.append(compare(shape, chosen.repeats, chosen.threads))
            print(f"{shape}: {steps[-1]['ratio']} x transformers' tokens/s", flush=True)
    settings = {"tokens": TOKENS, "threads": chosen.threads, "repeats": chosen.repeats, "load_before": load_before}
    timing.save("training_step", settings | {"steps": steps}, chosen.folder)


if __name__ == "__main__":
    main()
