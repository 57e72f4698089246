"""A model measured on contexts in P segments: one row a context and setting.

A context is encoded once a P and shared prefix; all its questions and selections read that encoding, side by side.
Also time and memory of encoding a context in P segments against full attention, which the paper did not measure.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aero.parallel_context.attention import Selection
from aero.parallel_context.encoding import Encoded, encode, pack, read
from aero.parallel_context.tasks import Context, Query

if TYPE_CHECKING:
    from aero.parallel_context.hugging_face import HuggingFaceModel

Row = dict[str, Any]
PARTS = 8
"""Into as many parts the text that is scored is divided, each with a loss and an entropy of its own."""


@dataclass(frozen=True)
class Block:
    """What is measured of one encoding. sink: name of the shared prefix. oracles: also read with the keys, and with the
    values, of full attention."""

    segments: int
    sink: str | None = None
    selections: Sequence[Selection | None] = (None,)
    oracles: bool = False


def rows_of(
    model: HuggingFaceModel,
    context: Context,
    blocks: Sequence[Block],
    prefixes: dict[str, Tensor],
    is_text: bool = False,
) -> Iterator[tuple[Block, list[Row]]]:
    """The rows of every block. is_text: score the loss of the text that follows, not answers.

    peak_bytes, in the first row of a block: the most memory of this process so far.
    """
    whole: Encoded | None = None
    for block in blocks:
        if whole is None and block.sink is None:
            whole = encode(model, _tensors(context, 1))
        encoded = encode(model, _tensors(context, block.segments), prefixes.get(block.sink))
        common = {"segments": block.segments, "sink": block.sink, "tokens": len(encoded.groups)}
        readings = [(selection, None) for selection in block.selections]
        readings += [(None, oracle) for oracle in ("keys", "values") if block.oracles]
        rows = []
        for selection, oracle in readings:
            mixed = encoded if oracle is None else _oracle(encoded, whole, oracle)
            found = _read(model, mixed, context.queries, selection, is_text)
            rows.append(common | _named(selection) | {"oracle": oracle} | found)
        rows[0] |= {"peak_bytes": peak_memory()} | _norms(encoded, whole if block.sink is None else None)
        yield block, rows


def _tensors(context: Context, segments: int) -> list[Tensor]:
    return [torch.tensor([ids]) for ids in context.segments(segments)]


def _named(selection: Selection | None) -> Row:
    if selection is None:
        return {"top_k": None, "aggregation": None, "mass": None}
    fixed = selection.top_k if selection.mass is None else None
    return {"top_k": fixed, "aggregation": selection.aggregation, "mass": selection.mass}


def _oracle(encoded: Encoded, whole: Encoded, which: str) -> Encoded:
    """`encoded` with the keys or the values of full attention; keys bring their positions with them."""
    both = zip(encoded.cache, whole.cache, strict=True)
    if which == "keys":
        return Encoded([(k, v) for (_, v), (k, _) in both], encoded.groups, whole.next_position)
    return Encoded([(k, v) for (k, _), (_, v) in both], encoded.groups, encoded.next_position)


def _read(
    model: HuggingFaceModel, encoded: Encoded, queries: Sequence[Query], selection: Selection | None, is_text: bool
) -> Row:
    """Scores and entropies of every query, and what was recorded by layer."""
    flat = [(number, question, answer) for number, (question, all_) in enumerate(queries) for answer in all_]
    ids, packed = pack([(question, answer[:-1]) for _, question, answer in flat])
    reading = read(model, encoded, ids, selection, packed)
    scores: list[list[float]] = [[] for _ in queries]
    entropies: list[list[float]] = [[] for _ in queries]
    by_token, end = reading.entropies.mean((0, 1, 2)), 0  # (m,)
    for number, question, answer in flat:
        begin, end = end, end + len(question) + len(answer) - 1
        logits, wanted = reading.logits[0, end - len(answer) : end], torch.tensor(answer)
        scores[number].append(float((logits.argmax(-1) == wanted).all()))
        entropies[number].append(float(by_token[begin:end].mean()))
    if is_text:  # one query of as many rows as scored tokens
        losses = F.cross_entropy(reading.logits[0], torch.tensor(flat[0][2]), reduction="none")
        scores = [[float(part.mean())] for part in losses.chunk(PARTS)]
        entropies = [[float(part.mean())] for part in by_token.chunk(PARTS)]
    row: Row = {
        "scores": [round(max(own), 5) for own in scores],
        "entropies": [round(sum(own) / len(own), 4) for own in entropies],
        "entropy_by_layer": rounded(reading.entropies.mean((1, 2, 3))),
    }
    if selection is None:
        row["sink_share"] = rounded(torch.stack(reading.seen.sinks).mean((1, 2, 3)))
        row["logit_mean"] = rounded(torch.stack(reading.seen.logit_sizes))
    elif reading.selected:
        kept = [selected.sum(-1).float().mean() for selected in reading.selected]
        row["kept"] = round(float(torch.stack(kept).mean()), 2)
    return row


def _norms(encoded: Encoded, whole: Encoded | None) -> Row:
    """Mean norms by layer of keys and of values of segments' first tokens, and of later ones, behind the first segment;
    `…_full`: of the same tokens in full attention."""
    groups = encoded.groups
    first = torch.ones_like(groups, dtype=torch.bool)
    first[1:] = groups[1:] != groups[:-1]
    found = {}
    for name, tokens in (("first", first & (groups > 0)), ("later", ~first & (groups > 0))):
        for part, states in enumerate(("key", "value")):
            for end, one in (("", encoded), ("_full", whole)):
                if one is not None and tokens.any():
                    norms = torch.stack([layer[part][0, :, tokens].norm(dim=-1).mean() for layer in one.cache])
                    found[f"{states}_{name}{end}"] = rounded(norms)
    return found


def rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def encoding_cost(folder: Path, tokens: int, segments: int) -> dict[str, Any]:
    """Encode `tokens` random tokens in this process, on one thread, with the model of a folder.

    cpu_s: processor seconds; peak_bytes: peak memory beyond that after a short pass; attention_pairs: query-key pairs
    of one head.
    """
    from aero.hf.loading import load_model
    from aero.parallel_context.hugging_face import HuggingFaceModel

    torch.set_num_threads(1)
    model = HuggingFaceModel(load_model(folder, dtype=torch.float32, attn_implementation="eager"))
    ids = torch.randint(model.model.config.vocab_size, (1, tokens), generator=torch.Generator().manual_seed(0))
    parts = list(ids.tensor_split(segments, 1))
    encode(model, [ids[:, :16]])  # libraries allocate at the first pass
    before, cpu = peak_memory(), time.process_time()
    encode(model, parts)
    return {
        "tokens": tokens,
        "segments": segments,
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_bytes": peak_memory() - before,
        "attention_pairs": sum(part.shape[1] * (part.shape[1] + 1) // 2 for part in parts),
    }


def encoding_cost_in_new_process(folder: Path, tokens: int, segments: int) -> dict[str, Any]:
    """`encoding_cost` in a process of its own, so that its peak memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(encoding_cost, folder, tokens, segments).result()


def peak_memory() -> int:
    """Peak resident memory of this process in bytes; not of getrusage, which begins at the parent's."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))[1]) * 1024
