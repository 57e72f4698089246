"""One run from parameters and token files to its result files."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from aero import records
from aero.checkpoint import load, packed
from aero.config import Parameters, ResolvedRun
from aero.data.batches import Batches, evaluation_batches
from aero.data.tokens import Tokens, open_tokens, tokens_folder
from aero.entropy import measure
from aero.errors import UserError
from aero.model import GPT
from aero.records import Row, csv_text, write_text, write_together
from aero.training.diagnostics import find_nonfinite
from aero.training.kernels import default_device, eager
from aero.training.loop import Regularizer, Trainer, evaluate, train

UNFINISHED, STATE = "log.unfinished.csv", "resume.safetensors"
"""The log until its training is over, and the state from which the training resumes."""


def train_run(
    run: ResolvedRun,
    tokens: Tokens,
    folder: Path,
    device: str | None = None,
    unless_done: bool = False,
    checkpoint: bool = True,
) -> dict[str, Any]:
    """Train `run` and write log.csv, checkpoint.safetensors, entropy.json and, last, metrics.json into `folder`.

    log.unfinished.csv grows while it trains; earlier files in `folder` stay until the new ones replace them. Returns
    the metrics. With `unless_done`, metrics of the same configuration in `folder` are returned as they are. checkpoint:
    whether to write the model.
    """
    state_hash = run.hash(tokens.manifest)
    device = device or default_device()
    if run.train.threads:
        torch.set_num_threads(run.train.threads)
    if unless_done and (metrics := finished_metrics(folder, state_hash, checkpoint)):
        if checkpoint and not has_entropy(folder, run, tokens):
            model = load(folder / "checkpoint.safetensors").to(device)
            write_text(folder / "entropy.json", entropies(model, metrics, tokens, run, device))
        return metrics

    def log(rows: Sequence[Row]) -> None:
        write_text(folder / UNFINISHED, csv_text(_columns_of(run), rows))

    config, held_out = run.model_config(tokens.vocabulary), _held_out(run, tokens, run.train.evaluation_tokens)
    batches = Batches(tokens.train, config.context, run.train.batch_size, run.seed, run.corpus.packing)
    regularizer = Regularizer(**run.regularized)
    try:
        training = Trainer(run.architecture, config, run.train, regularizer, batches, held_out, run.seed, device)
        train(training, folder / STATE, state_hash, run.label, log)
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"{run.name} does not fit into the memory of {device}: {str(error).splitlines()[0]} "
            "Halve train.batch_size and double train.accumulation"
        ) from None
    metrics, contents = _metrics(run, training, tokens, _final_loss(run, training, tokens)), {}
    metrics["provenance"] |= {
        "started": training.started,
        "seconds": round(time.monotonic() - training.clock, 1),
        "cpu_seconds": round(training.outcome.cpu_seconds, 1),
    }
    model = training.outcome.model
    if checkpoint:
        named = {"run": run.name, "seed": str(run.seed), "config_hash": metrics["config_hash"]}
        written = packed(model, **named, tokenizer_sha256=metrics["provenance"]["tokenizer_sha256"])
        metrics["provenance"]["checkpoint_sha256"] = hashlib.sha256(written).hexdigest()
        contents[folder / "checkpoint.safetensors"] = written
    if measured := entropies(model, metrics, tokens, run, device):
        contents[folder / "entropy.json"] = measured
    contents[folder / "log.csv"] = csv_text(_columns_of(run), training.outcome.rows)
    contents[folder / "metrics.json"] = json.dumps(metrics, indent=1, allow_nan=False) + "\n"
    write_together(contents)
    for name in (UNFINISHED, STATE):
        (folder / name).unlink(missing_ok=True)
    return metrics


def has_entropy(folder: Path, run: ResolvedRun, tokens: Tokens) -> bool:
    """Whether the finished training in `folder` has its entropy, on as many tokens as `run` names, or can have none."""
    found = records.read_training(folder)
    if found.entropy is None:
        return found.metrics["diverged_at_step"] is not None
    return found.entropy["tokens"] == sum(ids.numel() for ids in _held_out(run, tokens, run.entropy_tokens))


def columns(layers: int, attention: bool = False, slopes: int = 0) -> list[str]:
    """Columns of log.csv; of layer i, on held-out sequences (in the row of a divergence on the batch that broke it):
    entropy_layer_i is the mean over heads in nats, activation_layer_i the largest magnitude of the block's output,
    overflow_layer_i how many of its values float16 cannot hold (beyond 65504, infinite or not a number).

    attention: also norm_layer_i, the mean ||P||_F of its heads, and variance_layer_i, the mean variance of the logits
    in a row (`variance_sensitivity`, Definition 5.2). slopes: how many negative slopes of a leaky ReLU are learned, one
    a layer or one for all; slope_i are their values.
    """
    head = ["step", "tokens", "train_loss", "regularization", "eval_loss", "learning_rate", "gradient_norm", "seconds"]
    measured = ("entropy", "activation", "overflow", *(("norm", "variance") if attention else ()))
    layered = [f"{name}_layer_{i}" for name in measured for i in range(layers)]
    return head + layered + [f"slope_{i}" for i in range(slopes)]


def _columns_of(run: ResolvedRun) -> list[str]:
    """Columns of the run's log."""
    layers = run.sizes.layers
    slopes = {None: 0, "layer": layers, "global": 1}[run.architecture.slope]
    return columns(layers, run.train.log_attention, slopes)


def _held_out(run: ResolvedRun, tokens: Tokens, count: int) -> list[torch.Tensor]:
    sizes, packing = run.sizes, run.corpus.packing
    return list(evaluation_batches(tokens.valid, sizes.context, run.train.batch_size, count, packing))


def _final_loss(run: ResolvedRun, training: Trainer, tokens: Tokens) -> float | None:
    """Loss of the trained model on the final evaluation's tokens; None for a training that diverged, also in the last
    update."""
    outcome, device = training.outcome, training.device
    if outcome.diverged_at_step is not None:
        return None
    held_out = _held_out(run, tokens, run.train.final_evaluation_tokens)
    loss = evaluate(outcome.model, held_out, device)
    if math.isfinite(loss):
        return loss
    outcome.diverged_at_step = outcome.steps_done
    outcome.first_nonfinite = find_nonfinite(outcome.model, held_out[0].to(device), outcome.steps_done)
    return None


def _metrics(run: ResolvedRun, training: Trainer, tokens: Tokens, loss: float | None) -> dict[str, Any]:
    outcome, device = training.outcome, training.device
    description = run.configuration(tokens.manifest)
    count = outcome.steps_done * run.train.batch_size * run.train.accumulation * run.sizes.context
    size = sum(parameter.numel() for parameter in outcome.model.parameters())
    return {
        "run": run.name,
        "paper_rows": list(run.parameters.rows),
        "architecture": str(run.architecture),
        "scale": run.scale,
        "model": {**description["model"], "parameters": size},
        "corpus": description["corpus"],
        "context": run.sizes.context,
        "seed": run.seed,
        "tokens": count,
        "eval_loss": loss,
        "eval_perplexity": None if loss is None else math.exp(min(loss, 700.0)),
        "diverged_at_step": outcome.diverged_at_step,
        "first_nonfinite": outcome.first_nonfinite,
        "float16_overflow": outcome.float16_overflow,
        "tokens_per_second": round(count / max(outcome.seconds, 1e-9), 1),
        "train": description["train"],
        "regularizer": description["regularizer"],
        "config_hash": run.hash(tokens.manifest),
        "provenance": records.provenance(
            torch=torch.__version__,
            device=torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
            corpus_sha256=description["corpus_sha256"],
            tokenizer_sha256=description["tokenizer_sha256"],
        ),
    }


def finished_metrics(folder: Path, config_hash: str, checkpoint: bool = False) -> dict[str, Any] | None:
    """The metrics in `folder` if they are of the configuration with this hash and its log (and checkpoint) exists."""
    try:
        metrics = records.read_metrics(folder)
    except (OSError, ValueError):
        return None
    needed = [folder / "log.csv", *([folder / "checkpoint.safetensors"] if checkpoint else [])]
    return metrics if metrics.get("config_hash") == config_hash and all(path.is_file() for path in needed) else None


def run_tokens(parameters: Parameters, run: ResolvedRun, root: Path, given: Path | None = None) -> Tokens:
    """The verified token files of the run's corpus below `root`, or those in `given`.

    UserError if they are of another corpus than the scale's or have too large a vocabulary; ValueError if they are
    missing or damaged.
    """
    if given is not None:
        return open_tokens(given)
    folder = tokens_folder(run.corpus_name, root)
    option = "" if run.corpus_name is None else f" --corpus {run.corpus_name}"
    if root != Path("runs"):
        option += f" --scale {parameters.scale}"
    remedy = f"make it again: python -m stages.tokenize_corpus{option}"
    if not (folder / "manifest.json").is_file() and root != Path("runs"):
        raise UserError(f"token files {folder} of scale {parameters.scale} are missing; {remedy}")
    tokens = open_tokens(folder)
    corpus = tokens.manifest["corpus"]["name"]
    if corpus != run.corpus.name:
        raise UserError(f"{folder} is of corpus {corpus}, scale {run.scale} needs {run.corpus.name}; {remedy}")
    if tokens.vocabulary > run.vocabulary:
        raise UserError(
            f"{folder} has {tokens.vocabulary} entries, scale {run.scale} allows {run.vocabulary} for {run.name};"
            f" {remedy}"
        )
    return tokens


def entropies(model: GPT, metrics: dict[str, Any], tokens: Tokens, run: ResolvedRun, device: str) -> str:
    """The content of entropy.json: attention entropy of the trained `model` of `metrics` on held-out tokens; "" for a
    model that diverged and has no finite entropies."""
    config = model.config
    batches = evaluation_batches(tokens.valid, config.context, 32, run.entropy_tokens, run.corpus.packing)
    model.eval()  # in training mode a spectral norm would iterate
    try:
        with eager():
            measured = measure(model, (ids.to(device) for ids in batches)).summary()
    except ValueError:
        if metrics["diverged_at_step"] is None:
            raise
        return ""
    for unread in ("entropy_sem", "entropy_by_position", "entropy_by_position_sem", "entropy_blocks"):
        del measured[unread]  # three quarters of the file
    result = {
        **{name: metrics[name] for name in ("run", "seed", "scale", "architecture")},
        "context": config.context,
        "layers": config.layers,
        "heads": config.heads,
        **measured,
        "learned": learned(model),
        "provenance": metrics["provenance"],
        "measured": records.provenance(torch=torch.__version__, device=device, at=records.now()),
    }
    return json.dumps(result, allow_nan=False) + "\n"


def learned(model: torch.nn.Module) -> dict[str, object]:
    """The learned values that figures draw: alpha and beta (L), thresholds (L, H), slopes (L or 1), and of temperatures
    (L, H, T) the means over positions (L, H) and over heads (L, T); None for what a model does not have.
    """
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = (getattr(module, "temperature", None) for module in model.modules())
    temperatures = [value.detach() for value in found if isinstance(value, torch.Tensor)]

    def of(suffix: str) -> list[Any]:
        return [value.tolist() for name, value in values.items() if name.endswith(suffix)]

    return {
        "alpha": of(".alpha") or None,
        "beta": of(".beta") or None,
        "thresholds": next(iter(of("reg_threshold_weights")), None),
        "slopes": next(iter(of("leaky_slopes")), None),
        "temperature_mean": [value.mean(-1).tolist() for value in temperatures] or None,
        "temperature_by_position": [value.mean(0).tolist() for value in temperatures] or None,
    }


def outcome_line(metrics: dict[str, Any]) -> str:
    """Perplexity and time of a training, or the step at which it diverged."""
    if metrics["eval_perplexity"] is None:
        return f"diverged at step {metrics['diverged_at_step']}"
    return f"perplexity {metrics['eval_perplexity']:.3f}, {metrics['provenance']['seconds']:.0f} s"
