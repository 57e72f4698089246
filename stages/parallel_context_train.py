"""Train the small rotary decoder of parallel context encoding: `python -m stages.parallel_context_train [--seed SEED]`.

Writes checkpoint.safetensors and training.json to runs/parallel_context/seed_SEED/. Killed, it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from aero import provenance
from aero.architecture import parse
from aero.checkpoint import save
from aero.data.tokens import open_tokens, tokens_folder
from aero.errors import UserError, run_main
from aero.parallel_context.settings import settings
from aero.parallel_context.tasks import Mixture, Vocabulary, make_episode_tasks
from aero.parameters import load
from aero.training.log import LiveLog, write_text
from aero.training.loop import Regularizer, configuration_hash, evaluate, train
from aero.training.processes import default_device
from aero.training.state import lock


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.parallel_context_train", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: the first of parallel_context.seeds")
    parser.add_argument("--scale", help="another scale than params.yaml names")
    parser.add_argument("--tokens", type=Path, help="folder of token files (default: the corpus's)")
    parser.add_argument("--out", type=Path, help="folder to write to (default: runs/parallel_context/seed_SEED)")
    chosen = parser.parse_args(arguments)
    parameters = load()
    scale = chosen.scale or parameters.scale
    section = settings(parameters)
    here = section.at(scale)
    seed = section.seeds[0] if chosen.seed is None else chosen.seed
    folder = chosen.out or Path(f"runs/parallel_context/seed_{seed}")
    tokens = open_tokens(chosen.tokens or tokens_folder(None))
    vocabulary = Vocabulary(tokens.vocabulary)
    config = section.model_config_for(scale, vocabulary.size)
    tasks = make_episode_tasks(vocabulary, here.units)
    description = {
        "seed": seed,
        "scale": scale,
        "architecture": section.architecture,
        "model": vars(config),
        "train": here.train.recipe(),
        "units": here.units,
        "curriculum": here.curriculum,
        "corpus": tokens.manifest["corpus"]["name"],
        "corpus_sha256": tokens.manifest["corpus_sha256"],
    }
    if here.train.threads:
        torch.set_num_threads(here.train.threads)
    length, batch_size = config.context, here.train.batch_size
    held_out = Mixture(tasks, tokens.valid, length, batch_size, seed + 1_000_000)
    evaluation = [held_out.batch(step) for step in range(max(1, here.train.evaluation_tokens // (length * batch_size)))]
    started, clock = provenance.now(), time.monotonic()
    # Outside the stage's outputs, which DVC deletes before it starts the stage.
    state = Path("runs/.resume") / f"parallel_context.seed_{seed}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    with lock(state):
        outcome = train(
            parse(section.architecture),
            config,
            here.train,
            Regularizer("position_sum", 0.0, 0.0),
            Mixture(tasks, tokens.train, length, batch_size, seed, here.curriculum),
            evaluation,
            seed,
            state,
            state_hash := configuration_hash(description),
            default_device(),
            label=f"parallel_context seed {seed}",
            observers=[LiveLog(folder / "log.csv", config.layers)],
        )
        if outcome.diverged_at_step is not None:
            raise UserError(
                f"training became not finite at step {outcome.diverged_at_step}; lower"
                f" parallel_context.scales.{scale}.train.learning_rate"
            )
        result = description | {
            "parameters": sum(parameter.numel() for parameter in outcome.model.parameters()),
            "tokens": outcome.steps_done * length * batch_size,
            "eval_loss": evaluate(outcome.model, evaluation, default_device()),
            "provenance": provenance.provenance(
                torch=torch.__version__,
                corpus_sha256=description["corpus_sha256"],
                started=started,
                seconds=round(time.monotonic() - clock, 1),
                cpu_seconds=round(outcome.cpu_seconds, 1),
            ),
        }
        save(
            folder / "checkpoint.safetensors",
            outcome.model,
            run="parallel_context",
            seed=str(seed),
            config_hash=state_hash,
        )
        write_text(folder / "training.json", json.dumps(result, indent=1) + "\n")
        state.unlink(missing_ok=True)
    print(f"parallel_context seed {seed}: loss {result['eval_loss']:.3f}, {result['provenance']['seconds']:.0f} s")


if __name__ == "__main__":
    run_main(main)
