"""One run from parameters and token files to its result files."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.checkpoint import save
from aero.config import Parameters
from aero.data.batches import Batches, evaluation_batches
from aero.data.tokens import Tokens
from aero.errors import UserError, json_file
from aero.model import GPT
from aero.records import temporary, unfinished, write_together
from aero.training.allocation import keep_freed_memory
from aero.training.configuration import code_hash, configuration, regularizer_of
from aero.training.log import LiveLog, Observer, text_of
from aero.training.loop import ALONE, configuration_hash, evaluate, find_nonfinite, train
from aero.training.processes import Processes, default_device


def train_run(
    parameters: Parameters,
    run: str,
    seed: int,
    tokens: Tokens,
    folder: Path,
    state_path: Path | None = None,
    device: str | None = None,
    progress: bool = True,
    stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
    observers: Sequence[Observer] = (),
    unless_done: bool = False,
    checkpoint: bool = True,
    after: Callable[[GPT, dict[str, Any]], None] | None = None,
) -> dict[str, Any] | None:
    """Train `run` with `seed` and write log.csv, checkpoint.safetensors and, last, metrics.json into `folder`.

    log.unfinished.csv grows while it trains; an earlier training's files in `folder` stay until the new ones take their
    places. Returns the metrics, or None if `stop`, asked before every step, ended it first; the
    state then resumes it. With `unless_done`, metrics of the very same configuration in `folder` are returned as they
    are. Of several `processes` the first alone writes; all return the metrics.
    checkpoint: whether the model is written. after: is given the trained model and its metrics, before metrics.json
    says that the run is done.
    """
    architecture, settings = parameters.architecture(run), parameters.train(run)
    config, regularizer = parameters.model_config_for(run, tokens.vocabulary), regularizer_of(parameters, run)
    slopes = {None: 0, "layer": config.layers, "global": 1}[architecture.slope]
    device = device or (processes.device if processes.several else default_device())
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if device == "cpu":
        keep_freed_memory()
    description = {"seed": seed} | configuration(parameters, run, tokens.manifest)
    packing = description["packing"]
    state_hash = configuration_hash(description)
    if unless_done and (metrics := metrics_of(folder, state_hash)):
        left = [folder / "log.csv", *([folder / "checkpoint.safetensors"] if checkpoint else [])]
        if all(path.is_file() for path in left):
            return metrics
    started, clock = records.now(), time.monotonic()
    batches = Batches(tokens.train, config.context, settings.batch_size, seed, packing, device)

    def held_out(count: int) -> list[torch.Tensor]:
        return list(evaluation_batches(tokens.valid, config.context, settings.batch_size, count, packing))

    evaluation = held_out(settings.evaluation_tokens)
    if processes.first:
        live = unfinished(folder / "log.csv")
        observers = [LiveLog(live, config.layers, settings.log_attention, slopes), *observers]
    try:
        outcome = train(
            architecture,
            config,
            settings,
            regularizer,
            batches,
            evaluation,
            seed,
            state_path,
            f"{state_hash}.{code_hash(__name__)}",  # what older code began is not finished by newer
            device,
            progress,
            f"{run} seed {seed}",
            stop,
            processes,
            observers,
        )
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"{run} does not fit into the memory of {device}: {str(error).splitlines()[0]} "
            "Halve train.batch_size and double train.accumulation"
        ) from None
    finished = outcome.diverged_at_step is not None or outcome.steps_done == settings.steps
    if not finished:
        return None
    loss = None
    if outcome.diverged_at_step is None:
        loss = evaluate(outcome.model, held_out(settings.final_evaluation_tokens), device, processes)
        if not math.isfinite(loss):  # the last step itself broke the weights
            loss, outcome.diverged_at_step = None, outcome.steps_done
            batch = evaluation[0].to(device)
            outcome.first_nonfinite = find_nonfinite(outcome.model, batch, outcome.steps_done, processes)
    predicted = settings.batch_size * settings.accumulation * config.context
    parameters_count = sum(parameter.numel() for parameter in outcome.model.parameters())
    metrics = {
        "run": run,
        "paper_rows": list(parameters.run(run).rows),
        "architecture": str(architecture),
        "scale": parameters.scale,
        "model": {**description["model"], "parameters": parameters_count},
        "corpus": description["corpus"],
        "context": config.context,
        "seed": seed,
        "tokens": outcome.steps_done * predicted,
        "eval_loss": loss,
        "eval_perplexity": None if loss is None else math.exp(min(loss, 700.0)),
        "diverged_at_step": outcome.diverged_at_step,
        "first_nonfinite": outcome.first_nonfinite,
        "float16_overflow": outcome.float16_overflow,
        "tokens_per_second": round(outcome.steps_done * predicted / max(outcome.seconds, 1e-9), 1),
        "train": description["train"],
        "regularizer": description["regularizer"],
        "config_hash": state_hash,
        "provenance": records.provenance(
            torch=torch.__version__,
            device=torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
            processes=processes.count,
            corpus_sha256=description["corpus_sha256"],
            tokenizer_sha256=description["tokenizer_sha256"],
            started=started,
            seconds=round(time.monotonic() - clock, 1),
            cpu_seconds=round(outcome.cpu_seconds, 1),
        ),
    }
    if processes.first:
        place = folder / "checkpoint.safetensors"
        if checkpoint:
            save(
                temporary(place),
                outcome.model,
                run=run,
                seed=str(seed),
                config_hash=state_hash,
                tokenizer_sha256=description["tokenizer_sha256"],
            )
        if after is not None:
            after(outcome.model, metrics)
        texts = {
            folder / "log.csv": text_of(outcome.rows, config.layers, settings.log_attention, slopes),
            folder / "metrics.json": json.dumps(metrics, indent=1, allow_nan=False) + "\n",
        }
        write_together(texts, beside=[place] if checkpoint else [])
        live.unlink(missing_ok=True)
        if state_path is not None:
            state_path.unlink(missing_ok=True)
    return metrics


def run_hash(parameters: Parameters, run: str, seed: int, tokens: Tokens) -> str:
    """The configuration hash that the metrics of this training state."""
    return configuration_hash({"seed": seed} | configuration(parameters, run, tokens.manifest))


def metrics_of(folder: Path, config_hash: str) -> dict[str, Any] | None:
    """The metrics in `folder` if they are of the configuration with this hash."""
    try:
        metrics = json_file(folder / "metrics.json")
    except (OSError, ValueError):
        return None
    return metrics if metrics.get("config_hash") == config_hash else None
