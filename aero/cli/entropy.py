"""The command `aero entropy`: attention entropy, on a text, of a checkpoint of ours or a Hugging Face model."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aero.errors import UserError, text_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from aero.entropy import EntropyStatistics, HeadFailures

DESCRIPTION = """The text is cut into sequences of one length, the last short one dropped; every head's entropy is the
mean over queries and sequences. Nothing is downloaded: MODEL is a folder with a Hugging Face causal language model and
its tokenizer, or a checkpoint of this project."""
FIGURES = (".svg", ".png", ".pdf")
LONGEST = 1024
"""The default sequence length is the model's context, up to this."""


DTYPES = ("float32", "auto", "bfloat16", "float16")
TEXT_BYTES = 2**28
"""The longest text that is read: it is tokenized whole, whatever part of it is measured."""


def add_commands(commands: Any) -> None:
    """Add the parser of `aero entropy` to the subparsers of `aero`; it sets `run`."""
    parser = commands.add_parser("entropy", help="attention entropy of a model on a text", description=DESCRIPTION)
    parser.add_argument("model", type=Path, metavar="MODEL", help="a folder, or a checkpoint.safetensors of ours")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="UTF-8 text that the model reads")
    parser.add_argument(
        "--context",
        type=int,
        metavar="T",
        help=f"tokens a sequence (default: the model's, {LONGEST} or --tokens, the least of them)",
    )
    parser.add_argument("--tokens", type=int, default=16384, metavar="N", help="at most so many tokens (default 16384)")
    parser.add_argument("--batch", type=int, default=4, metavar="B", help="sequences at once (default 4)")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="what a Hugging Face model computes in; auto: what it was saved in (default float32)",
    )
    parser.add_argument(
        "--bos", action="store_true", help="begin every sequence with the tokenizer's token for that (default: none)"
    )
    parser.add_argument("--tokenizer", type=Path, help="of a checkpoint of ours (default: beside its run)")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="--json of another model: distance of each layer")
    parser.add_argument(
        "--figure", type=Path, metavar="FILE", help="draw the heatmap of layers and heads (svg, png, pdf)"
    )
    parser.set_defaults(run=lambda chosen: print(answer(chosen)))


@dataclass(frozen=True)
class Reader:
    """A model with its tokenizer. context: the most tokens it takes; None: not said. bos: the token that begins every
    sequence; None: none does."""

    model: nn.Module
    encode: Callable[[str], list[int]]
    context: int | None
    bos: int | None = None


@dataclass(frozen=True)
class Measured:
    """What was measured of a reader's model on so many sequences of `text`. landscape: see `_landscape`."""

    reader: Reader
    statistics: EntropyStatistics
    text: str
    sequences: int
    landscape: dict[str, Any]


def answer(chosen: argparse.Namespace) -> str:
    """The text of `aero entropy`."""
    import torch

    from aero.entropy import measure

    for name in ("context", "tokens", "batch"):
        if getattr(chosen, name) is not None and getattr(chosen, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(chosen, name)}")
    if chosen.figure is not None and chosen.figure.suffix not in FIGURES:
        raise UserError(f"--figure {chosen.figure}: the name must end in one of {', '.join(FIGURES)}")
    text = text_of(chosen.text, TEXT_BYTES)
    baseline = None if chosen.baseline is None else _baseline(chosen.baseline)
    reader = _open(chosen)
    if reader.context is not None and (chosen.context or 0) > reader.context:
        raise UserError(f"--context {chosen.context} exceeds the model's {reader.context} positions")
    if (chosen.context or 0) > chosen.tokens:
        raise UserError(f"--tokens {chosen.tokens} is less than one sequence of --context {chosen.context}")
    ids = reader.encode(text)
    if not ids:  # transformers makes an empty tokenizer where its files are missing
        raise UserError(
            f"the tokenizer of {chosen.model} makes no token of {chosen.text}: is the text empty, or tokenizer.json "
            "missing?"
        )
    begun = reader.bos is not None
    context = min(chosen.context or min(reader.context or LONGEST, LONGEST, chosen.tokens), len(ids) + begun)
    if context < 2:
        raise UserError(
            f"a sequence of {context} token(s) has entropy 0 by definition, as a token alone sees only itself; give a "
            "longer --text, --context or --tokens"
        )
    count = min(len(ids) // (context - begun), chosen.tokens // context)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sequences = torch.tensor(ids[: count * (context - begun)], device=device).reshape(count, context - begun)
    if begun:
        sequences = torch.nn.functional.pad(sequences, (1, 0), value=reader.bos)
    statistics = measure(reader.model.to(device).eval(), sequences.split(min(chosen.batch, count)))
    if chosen.figure is not None:
        _draw(chosen, reader, statistics)
    measured = Measured(reader, statistics, text, count, _landscape(chosen, statistics, baseline))
    return (_json if chosen.json else _table)(chosen, measured)


def _baseline(path: Path) -> list[list[float]]:
    """Headwise means (L, H) of another model's --json; NaN for a head that was not finite."""
    try:
        mean = json.loads(text_of(path))["entropy_mean"]
        rows = [[math.nan if value is None else float(value) for value in row] for row in mean]
        if not rows or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ValueError("its `entropy_mean` is no table of layers and heads")
        if any(math.isinf(value) for row in rows for value in row):
            raise ValueError("an entropy in it is infinite")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"--baseline {path} is no output of `aero entropy --json` ({error!r:.200})") from None
    return rows


def _landscape(
    chosen: argparse.Namespace, statistics: EntropyStatistics, baseline: list[list[float]] | None
) -> dict[str, Any]:
    """What "Regularizing the Entropy Landscape" makes of the headwise means: its Figures 2 and 3, and Table 1's range.

    None where a number needs a head that was not finite, or, for the Wasserstein-1 distances, a baseline.
    """
    from aero.landscape import entropy_range, gini_by_layer, steepness, wasserstein_1_by_layer

    mean = statistics.mean.double().cpu().numpy().clip(min=0.0)  # a collapsed head may be a rounding error below 0
    found: dict[str, Any] = {
        "gini_by_layer": [_known(value) for value in gini_by_layer(mean)],
        "steepness": [[_known(value) for value in row] for row in steepness(mean)],
        "range": [_known(value) for value in entropy_range(mean)],
        "wasserstein_1_by_layer": None,
    }
    if baseline is not None:
        try:
            found["wasserstein_1_by_layer"] = [_known(value) for value in wasserstein_1_by_layer(mean, baseline)]
        except ValueError as error:
            raise UserError(f"--baseline {chosen.baseline}: {error}") from None
    return found


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _draw(chosen: argparse.Namespace, reader: Reader, statistics: EntropyStatistics) -> None:
    """Heatmap of the headwise means, as AERO's Figures 5, 6b, 7 and 17e to g have them: layer 1 at the bottom, colours
    from 0 to the most that the mask of any layer allows; written beside and renamed.
    """
    from aero.records import write_together

    try:
        from matplotlib.colors import Normalize
        from matplotlib.figure import Figure

        from aero.report.papers.panels import heatmap
        from aero.report.style import style
    except ModuleNotFoundError:
        raise UserError("--figure needs matplotlib: pip install -e '.[report]' in your clone") from None
    layers, heads = statistics.mean.shape
    drawn = io.BytesIO()
    with style():
        figure = Figure(figsize=(1.8 + 0.32 * heads, 1.4 + 0.26 * layers), layout="constrained")
        axes = figure.subplots()
        norm = Normalize(0.0, _bounds(statistics).max().item() or 1.0)
        mesh = heatmap(axes, statistics.mean.double().cpu().numpy(), norm)
        axes.set(xlabel="head", ylabel="layer")
        axes.set_title(f"{type(reader.model).__name__}, T={statistics.by_position.shape[1]}", fontsize=8)
        bar = figure.colorbar(mesh, label="mean entropy, nats")
        bar.outline.set_visible(False)
        bar.solids.set(rasterized=False, edgecolor="face")
        # Outside the report nothing lies behind the figure.
        figure.savefig(drawn, format=chosen.figure.suffix[1:], dpi=150, facecolor="white")
    if not chosen.figure.parent.is_dir():
        raise UserError(f"--figure {chosen.figure} cannot be written: there is no folder {chosen.figure.parent}")
    try:
        write_together({chosen.figure: drawn.getvalue()})
    except OSError as error:
        raise UserError(f"--figure {chosen.figure} cannot be written: {error.strerror}") from None


def _open(chosen: argparse.Namespace) -> Reader:
    path = chosen.model
    if (path / "config.json").is_file():
        return _open_hugging_face(path, chosen.dtype, chosen.bos)
    checkpoint = path / "checkpoint.safetensors" if path.is_dir() else path
    if not checkpoint.is_file():
        raise UserError(
            f"{path} is neither a folder with a Hugging Face model (config.json) nor a checkpoint of this project; "
            "of a hub, give the folder that huggingface_hub.snapshot_download returns: nothing is downloaded here"
        )
    if chosen.bos or chosen.dtype != DTYPES[0]:
        raise UserError("--bos and --dtype are for Hugging Face models; checkpoints of this project have neither")
    return _open_checkpoint(checkpoint, chosen.tokenizer)


def _open_checkpoint(path: Path, tokenizer: Path | None) -> Reader:
    from aero import checkpoint
    from aero.cli.ask import check_tokenizer, tokenizer_beside
    from aero.data.tokenizer import load_tokenizer

    model = checkpoint.load(path)
    _, _, header = checkpoint.describe(path)
    found = load_tokenizer(tokenizer or tokenizer_beside(path, header.get("run")))
    check_tokenizer(found.sha256, header, path)
    if found.vocabulary > model.config.vocabulary:
        raise UserError(
            f"the tokenizer has {found.vocabulary} entries, the model {model.config.vocabulary}; give the model's own "
            "as --tokenizer"
        )
    return Reader(model, found.encode, model.config.context)


def _open_hugging_face(path: Path, dtype: str, begin: bool) -> Reader:
    try:
        from transformers import AutoTokenizer
        from transformers.utils import logging
    except ModuleNotFoundError:
        raise UserError(f"{path} needs transformers: pip install -e '.[hf]' in your clone") from None
    from aero.hf.loading import load_model

    logging.disable_progress_bar()
    try:
        # Unset, trust_remote_code is asked for on the terminal.
        model = load_model(path, head_needed=False, local_files_only=True, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers checks sizes with errors of its own, or divides by them
        raise UserError(f"{path} cannot be loaded as a causal language model with its tokenizer: {error}") from None
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise UserError(f"the tokenizer in {path} has {len(tokenizer)} entries, more than the model: it is another's")
    if begin and tokenizer.bos_token_id is None:
        raise UserError(f"the tokenizer in {path} has no token that begins a sequence: leave --bos out")
    from aero.hf.measure import positions_of

    context = positions_of(model)
    if getattr(model.config, "entropy_regularizer", None) is not None:
        from aero.entropy import EntropyRegularizer

        try:
            regularizer = EntropyRegularizer.load(model, path)  # its temperatures are part of the model
        except TypeError as error:  # config.json says what it likes
            raise UserError(
                f"the entropy_regularizer in {path}/config.json is none of this project's: {error}"
            ) from None
        for temperatures in regularizer.temperatures:  # one a position, of which the model may have more
            context = min(temperatures.shape[-1], context or temperatures.shape[-1])

    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    return Reader(model, encode, context, tokenizer.bos_token_id if begin else None)


def _json(chosen: argparse.Namespace, measured: Measured) -> str:
    from aero import records

    layers, heads = measured.statistics.mean.shape
    content = {
        "model": str(chosen.model),
        "class": type(measured.reader.model).__name__,
        "layers": layers,
        "heads": heads,
        "context": measured.statistics.by_position.shape[1],
        "sequences": measured.sequences,
        "bos": measured.reader.bos is not None,
        "dtype": _dtype(measured.reader.model),
        "device": next(measured.reader.model.parameters()).device.type,
        "text": str(chosen.text),
        "text_sha256": hashlib.sha256(measured.text.encode()).hexdigest(),
        **measured.statistics.summary(),
        "of_bound": {
            **{
                what: {"fraction": found.fraction, "layers": list(found.layers)}
                for what, found in _against_bound(measured.statistics).items()
            },
            "rule": "the same with the largest mean that the layer's mask allows (entropy_bound, else causal_bound) as "
            "max",
        },
        "landscape": measured.landscape,
        "provenance": records.provenance(measured=records.now()),
    }
    return json.dumps(content, allow_nan=False)


def _dtype(model: nn.Module) -> str:
    """What most numbers of the model are in, as torch calls it."""
    return str(max(model.parameters(), key=lambda one: one.numel()).dtype).removeprefix("torch.")


def _against_bound(statistics: EntropyStatistics) -> dict[str, HeadFailures]:
    """Overload and collapse by the largest mean over queries that each layer's mask allows, ln(T!)/T for a causal one.

    The largest entropy observed, which the papers take, calls some head overloaded in every model.
    """
    import torch

    from aero.entropy import collapse, overload

    least = torch.finfo(torch.float64).tiny  # the bound is 0 where a mask shows a single key
    share = statistics.mean.double() / _bounds(statistics).clamp_min(least)[:, None]
    return {"overload": overload(share, 1.0), "collapse": collapse(share, 1.0)}


def _bounds(statistics: EntropyStatistics) -> Tensor:
    """The largest mean over queries that the mask of each layer allows: (L), float64, nats."""
    import torch

    from aero.entropy import causal_bound

    if statistics.bound is not None:
        return statistics.bound.double()
    return torch.full_like(statistics.mean[:, 0].double(), causal_bound(statistics.by_position.shape[1]))


def _table(chosen: argparse.Namespace, measured: Measured) -> str:
    """A line a layer, counted from 1: mean with its sampling error, lowest and highest head, and heads by quarter
    of the largest; failures by two maxima.
    """
    import torch

    from aero.entropy import quarter_fractions

    bounds = _bounds(measured.statistics).tolist()
    summary, mean = measured.statistics.summary(), measured.statistics.mean.double()
    layers, heads = mean.shape
    maxima = summary["maximum"]
    compared, largest, name = measured.statistics.reference()
    lines = [
        f"{chosen.model}: {type(measured.reader.model).__name__}, {layers} layers x {heads} heads; "
        f"{measured.sequences} sequences of {measured.statistics.by_position.shape[1]} tokens of {chosen.text}"
        f"{', the first of them ' + repr(measured.reader.bos) if measured.reader.bos is not None else ''}; "
        f"{_dtype(measured.reader.model)} on {next(measured.reader.model.parameters()).device.type}",
        f"Entropies in nats; maximum observed {_number(maxima['observed'])}, causal bound ln(T!)/T "
        f"{_number(maxima['causal_bound'])}, log T {_number(maxima['log_T'])}.{_of_errors(measured.statistics)}",
        "",
        f"layer  {'mean':>12}  lowest  highest   bound  heads per quarter of the maximum ({name})",
    ]
    for layer, values in enumerate(mean):
        finite = values[torch.isfinite(values)]
        least, most = (finite.min().item(), finite.max().item()) if len(finite) else (None, None)
        counts = [round(fraction * heads) for fraction in quarter_fractions(compared[layer], largest)]
        lines.append(
            f"{layer + 1:5}  {_with_error(measured.statistics, layer):>12}  {_number(least):>6}  "
            f"{_number(most):>7}  {_number(bounds[layer]):>6}  {' '.join(f'{count:3}' for count in counts)}"
            + (f"   {heads - len(finite)} not finite" if len(finite) < heads else "")
        )
    lines.append("")
    steep = [value for row in measured.landscape["steepness"] for value in row if value is not None]
    lines.append(
        f"landscape: Gini by layer {_series(measured.landscape['gini_by_layer'])}; steepness "
        f"{_number(sum(steep) / len(steep) if steep else None)} on average, {_number(max(steep, default=None))} at most"
    )
    if (distances := measured.landscape["wasserstein_1_by_layer"]) is not None:
        lines.append(f"Wasserstein-1 to {chosen.baseline} by layer, nats: {_series(distances)}")
    for what, by_bound in _against_bound(measured.statistics).items():
        found = summary[what]
        lines.append(
            f"{what}: {_failed(found['fraction'], found['layers'])}; against the bound "
            f"{_failed(by_bound.fraction, by_bound.layers)}"
        )
    return "\n".join([*lines, f"rule: {summary['rule']}; the bound of a layer stands in its line"])


def _with_error(statistics: EntropyStatistics, layer: int) -> str:
    """Mean of the layer's finite heads, and its standard error where there are two blocks of sequences or more.

    Heads of one model read the same sequences, so their own errors do not make that of their mean: blocks do.
    """
    import torch

    from aero.entropy import standard_error

    mean = statistics.mean[layer].double()
    finite = torch.isfinite(mean)
    if not finite.any():
        return "-"
    shown = _number(mean[finite].mean().item())
    if statistics.blocks is None or len(statistics.blocks) < 2:
        return shown
    return f"{shown}±{_number(standard_error(statistics.blocks[:, layer, finite].double().mean(1), 0).item())}"


def _of_errors(statistics: EntropyStatistics) -> str:
    if statistics.blocks is None or len(statistics.blocks) < 2:
        return " One block of sequences: no sampling error."
    return f" ±: standard error of the mean, over {len(statistics.blocks)} blocks of consecutive sequences."


def _series(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in values)


def _failed(fraction: float, layers: Sequence[int]) -> str:
    named = f", most heads of layers {', '.join(str(layer + 1) for layer in layers)}" if layers else ""
    return f"{100 * fraction:.1f} % of heads{named}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
