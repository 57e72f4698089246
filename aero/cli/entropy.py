"""The command `aero entropy`: attention entropy, on a text, of a checkpoint or a Hugging Face model."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import UserError, text_of

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from aero.entropy import EntropyStatistics

    Opened = tuple[nn.Module, Callable[[str], list[int]], int | None, int | None]

DESCRIPTION = """Measure the attention entropy of every head of MODEL on a text. The text is cut into sequences of one
length; a shorter remainder is dropped. A head's entropy is the mean over queries and sequences. MODEL is a checkpoint
of this project, or a folder with a Hugging Face causal language model and its tokenizer; nothing is downloaded."""
FIGURES = (".svg", ".png", ".pdf")
LONGEST = 1024
"""The default sequence length is the model's context, but at most this."""
TEXT_BYTES = 2**28
"""The longest text that is read: it is tokenized as a whole."""


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("entropy", help="attention entropy of a model on a text", description=DESCRIPTION)
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a folder, or a checkpoint.safetensors")
    add("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text to measure on")
    default = f"(default: the smallest of the model's context, {LONGEST} and --tokens)"
    add("--context", type=int, metavar="T", help=f"tokens per sequence {default}")
    add("--tokens", type=int, default=16384, metavar="N", help="maximum number of tokens (default 16384)")
    add("--batch", type=int, default=4, metavar="B", help="sequences per batch (default 4)")
    precision = "compute precision of a Hugging Face model; auto: as saved (default float32)"
    add("--dtype", choices=("float32", "auto", "bfloat16", "float16"), default="float32", help=precision)
    add("--bos", action="store_true", help="begin every sequence with the tokenizer's BOS token")
    add("--tokenizer", type=Path, help="tokenizer of a checkpoint (default: that of its run)")
    add("--json", action="store_true", help="print everything as one JSON object")
    baseline = "--json output of another model; prints each layer's Wasserstein-1 distance to it"
    add("--baseline", type=Path, metavar="FILE", help=baseline)
    add("--figure", type=Path, metavar="FILE", help="draw a heatmap of layers and heads (svg, png, pdf)")
    parser.set_defaults(run=lambda chosen: print(answer(chosen)))


def answer(chosen: argparse.Namespace) -> str:
    """The output of `aero entropy`."""
    import torch

    from aero import records
    from aero.entropy import measure

    _check(chosen)
    text = text_of(chosen.text, TEXT_BYTES)
    baseline = None if chosen.baseline is None else _baseline(chosen.baseline)
    model, encode, most, bos = _open(chosen)
    if most is not None and (chosen.context or 0) > most:
        raise UserError(f"--context {chosen.context} exceeds the model's {most} positions")
    ids = encode(text)
    begun = bos is not None
    context = min(chosen.context or min(most or LONGEST, LONGEST, chosen.tokens), len(ids) + begun)
    if context < 2:
        raise UserError(f"a sequence of {context} token(s) has no entropy; give a longer --text, --context or --tokens")
    count = min(len(ids) // (context - begun), chosen.tokens // context)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sequences = torch.tensor(ids[: count * (context - begun)], device=device).reshape(count, context - begun)
    if begun:
        sequences = torch.nn.functional.pad(sequences, (1, 0), value=bos)
    statistics = measure(model.to(device).eval(), sequences.split(min(chosen.batch, count)))
    if chosen.figure is not None:
        _draw(chosen.figure, type(model).__name__, statistics)
    layers, heads = statistics.mean.shape
    found = {
        "model": str(chosen.model),
        "class": type(model).__name__,
        "layers": layers,
        "heads": heads,
        "context": context,
        "sequences": count,
        "bos": begun,
        "dtype": str(max(model.parameters(), key=torch.numel).dtype).removeprefix("torch."),
        "device": device.type,
        "text": str(chosen.text),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        **statistics.summary(),
        "of_bound": statistics.failures_of_bound(),
        "landscape": _landscape(chosen, statistics, baseline),
    }
    if not chosen.json:
        return _table(found, statistics, chosen, bos)
    return json.dumps(found | {"provenance": records.provenance(measured=records.now())}, allow_nan=False)


def _check(chosen: argparse.Namespace) -> None:
    """UserError for options that cannot be followed, before anything is loaded."""
    for name in ("context", "tokens", "batch"):
        if getattr(chosen, name) is not None and getattr(chosen, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(chosen, name)}")
    if (chosen.context or 0) > chosen.tokens:
        raise UserError(f"--tokens {chosen.tokens} is less than one sequence of --context {chosen.context}")
    if chosen.figure is not None and chosen.figure.suffix not in FIGURES:
        raise UserError(f"--figure {chosen.figure}: the name must end in one of {', '.join(FIGURES)}")
    if chosen.figure is not None and not chosen.figure.parent.is_dir():
        raise UserError(f"--figure {chosen.figure} cannot be written: there is no folder {chosen.figure.parent}")


def _baseline(path: Path) -> np.ndarray:
    """Headwise means (L, H) from another model's --json; NaN for a head that was not finite."""
    import numpy as np

    try:
        return np.array(json.loads(text_of(path))["entropy_mean"], dtype=float)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"--baseline {path} is no output of `aero entropy --json` ({error!r:.200})") from None


def _landscape(
    chosen: argparse.Namespace, statistics: EntropyStatistics, baseline: np.ndarray | None
) -> dict[str, Any]:
    """Figures 2 and 3 of `entropy_landscape` and the range of its Table 1, from the headwise means.

    None where a number needs a head that was not finite, or a baseline that was not given.
    """
    from aero.landscape import entropy_range, gini_by_layer, steepness, wasserstein_1_by_layer

    def finite(values: Sequence[float]) -> list[float | None]:
        return [float(value) if math.isfinite(value) else None for value in values]

    mean = statistics.mean.double().cpu().numpy().clip(min=0.0)  # a collapsed head can be a rounding error below 0
    try:
        distances = None if baseline is None else finite(wasserstein_1_by_layer(mean, baseline))
    except ValueError as error:
        raise UserError(f"--baseline {chosen.baseline}: {error}") from None
    return {
        "gini_by_layer": finite(gini_by_layer(mean)),
        "steepness": [finite(row) for row in steepness(mean)],
        "range": finite(entropy_range(mean)),
        "wasserstein_1_by_layer": distances,
    }


def _draw(path: Path, name: str, statistics: EntropyStatistics) -> None:
    """Heatmap of the headwise means as in AERO's Figures 5 to 7: layer 1 at the bottom, colours from 0 to the bound."""
    from matplotlib.figure import Figure

    from aero.records import write_together

    layers, heads = statistics.mean.shape
    figure = Figure(figsize=(1.8 + 0.32 * heads, 1.4 + 0.26 * layers), layout="constrained")
    axes = figure.subplots()
    edges = [[i + 0.5 for i in range(count + 1)] for count in (heads, layers)]
    mesh = axes.pcolormesh(
        *edges, statistics.mean.double().cpu().numpy(), vmin=0.0, vmax=statistics.bounds().max().item() or 1.0
    )
    axes.set(xlabel="head", ylabel="layer")
    axes.set_title(f"{name}, T={statistics.by_position.shape[1]}", fontsize=8)
    axes.locator_params(integer=True)
    figure.colorbar(mesh, label="mean entropy, nats")
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], dpi=150, facecolor="white")
    write_together({path: drawn.getvalue()})


def _open(chosen: argparse.Namespace) -> Opened:
    """The model, its encoder of texts, its most tokens if known, and the token that begins every sequence, if any."""
    path = chosen.model
    if any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        return _open_hugging_face(path, chosen.dtype, chosen.bos)
    file = path / "checkpoint.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"{path} is neither a folder with a Hugging Face model (config.json) nor a checkpoint of this project; "
            "nothing is downloaded: for a model of the hub give the folder of huggingface_hub.snapshot_download"
        )
    if chosen.bos or chosen.dtype != "float32":
        raise UserError("--bos and --dtype are for Hugging Face models only")
    from aero import checkpoint

    model = checkpoint.load(file)
    return model, tokenizer_of(file, chosen.tokenizer).encode, model.config.context, None


def tokenizer_of(path: Path, given: Path | str | None) -> Any:
    """The tokenizer in the file `given`, or the one beside the run of the checkpoint at `path`. UserError if there is
    none, or the checkpoint was trained with another."""
    from aero import checkpoint
    from aero.data.tokenizer import load_tokenizer

    header = checkpoint.metadata(path)
    tokenizer = load_tokenizer(_tokenizer_beside(path, header.get("run")) if given is None else given)
    if header.get("tokenizer_sha256", tokenizer.sha256) != tokenizer.sha256:  # earlier versions wrote none
        raise UserError(f"{path} was trained with another tokenizer than this one; give its own as --tokenizer")
    return tokenizer


def _tokenizer_beside(path: Path, run: str | None) -> Path:
    """The tokenizer of the corpus that `run` was trained on, in the folder of runs that contains the checkpoint."""
    from aero.config import load
    from aero.data.tokens import tokens_folder

    corpus = None
    if run is not None and Path("params.yaml").is_file() and run in (parameters := load()).runs:
        corpus = parameters.resolve(run).corpus_name
    for folder in [*path.resolve().parents][2:4]:  # scales/SCALE, or runs with default, above RUN/seed_1/checkpoint
        if (tokenizer := tokens_folder(corpus, folder) / "tokenizer.json").is_file():
            return tokenizer
    raise UserError(
        f"no tokenizer was found for {path} ({tokens_folder(corpus, 'runs')}); give its file as --tokenizer"
    )


def _open_hugging_face(path: Path, dtype: str, begin: bool) -> Opened:
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError:
        raise UserError(f"{path} needs transformers: pip install -e '.[hf]' in your clone") from None
    from aero.entropy import EntropyRegularizer
    from aero.hf.loading import load_model
    from aero.hf.measure import positions_of

    try:
        # Attention is replaced anyway, so that a kernel which the configuration asks for need not be installed.
        model = load_model(path, head_needed=False, local_files_only=True, dtype=dtype, attn_implementation="eager")
        # Without trust_remote_code=False, transformers asks on the terminal.
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        regularizer = None
        if getattr(model.config, "entropy_regularizer", None) is not None:
            regularizer = EntropyRegularizer.load(model, path)  # its temperatures are part of the model
    except Exception as error:  # transformers raises errors of many types
        raise UserError(f"{path} cannot be loaded as a causal language model with its tokenizer: {error}") from None
    if begin and tokenizer.bos_token_id is None:
        raise UserError(f"the tokenizer in {path} has no BOS token: omit --bos")
    temperatures = [] if regularizer is None else regularizer.temperatures  # (H, positions) each
    context = min(filter(None, [positions_of(model), *(one.shape[-1] for one in temperatures)]), default=None)

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    return model, encode, context, tokenizer.bos_token_id if begin else None


def _table(found: dict[str, Any], statistics: EntropyStatistics, chosen: argparse.Namespace, bos: int | None) -> str:
    """One line a layer: mean with standard error, lowest and highest head, bound, heads by quarter of the maximum."""
    from aero.entropy import quarter_fractions

    scales, reference, name = statistics.scales()
    values, largest = scales[reference]
    maxima, landscape, heads = found["maximum"], found["landscape"], found["heads"]
    begun = "" if bos is None else f", each beginning with token {bos}"
    lines = [
        f"{found['model']}: {found['class']}, {found['layers']} layers x {heads} heads; {found['sequences']} sequences "
        f"of {found['context']} tokens of {found['text']}{begun}; {found['dtype']} on {found['device']}",
        f"Entropies in nats; maximum observed {_number(maxima['observed'])}, causal bound ln(T!)/T "
        f"{_number(maxima['causal_bound'])}, log T {_number(maxima['log_T'])}. ±: standard error",
        "",
        f"layer  {'mean':>12}  lowest  highest   bound  heads per quarter of the maximum ({name})",
    ]
    for layer, bound in enumerate(statistics.bounds().tolist()):
        mean, finite = _with_error(statistics, layer)
        low, high = min(finite, default=None), max(finite, default=None)
        counts = [round(fraction * heads) for fraction in quarter_fractions(values[layer], largest)]
        line = f"{layer + 1:5}  {mean:>12}  {_number(low):>6}  {_number(high):>7}  {_number(bound):>6}  "
        line += " ".join(f"{count:3}" for count in counts)
        lines.append(line + (f"   {heads - len(finite)} not finite" if len(finite) < heads else ""))
    steep = [value for row in landscape["steepness"] for value in row if value is not None] or [math.nan]
    lines += [
        "",
        f"landscape: Gini by layer {_series(landscape['gini_by_layer'])}; steepness "
        f"{_number(sum(steep) / len(steep))} on average, at most {_number(max(steep))}",
    ]
    if (distances := landscape["wasserstein_1_by_layer"]) is not None:
        lines.append(f"Wasserstein-1 to {chosen.baseline} by layer, nats: {_series(distances)}")
    for failure in ("overload", "collapse"):
        of_bound = _failed(found["of_bound"][failure])
        lines.append(f"{failure}: {_failed(found[failure])}; relative to the bound {of_bound}")
    return "\n".join([*lines, f"rule: {found['rule']}"])


def _with_error(statistics: EntropyStatistics, layer: int) -> tuple[str, list[float]]:
    """Mean of the layer's finite heads ± its standard error over blocks, if it has one; and their entropies."""
    from aero.entropy_statistics import standard_error

    finite = statistics.mean[layer].isfinite()
    entropies = statistics.mean[layer, finite].double()
    error = standard_error(statistics.blocks[:, layer, finite].double().mean(1), 0).item()
    return _number(entropies.mean().item()) + (f"±{error:.3f}" if math.isfinite(error) else ""), entropies.tolist()


def _series(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def _failed(found: dict[str, Any]) -> str:
    named = ", ".join(str(layer + 1) for layer in found["layers"])
    return f"{100 * found['fraction']:.1f} % of heads" + (f", most heads of layers {named}" if named else "")


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3f}"
