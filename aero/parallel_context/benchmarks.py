"""The real benchmarks from local files, for a model with a tokenizer.

synthetic   JSON Lines or JSON in the form of HELMET's `json_kv`: `context` (a JSON object as text), `question` (a key),
            `answer`. Units are its "key": "value" pairs.
rag         in the form of HELMET's `kilt` files: `question`, `answers`, `ctxs` with `title` and `text`. Units are the
            passages.
icl         labelled examples: JSON Lines with `text` and `label`, or lines "LABEL:sub text" (TREC). Units are examples
            of a training file, balanced over labels, which are numbered anew for every question, as HELMET does.
lm          plain text files, or JSON Lines with `text` (PG-19, Proof-pile). Units are tokens.

Templates are this project's own; numbers that are sensitive to the wording of prompts differ from the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero.errors import UserError
from aero.parallel_context.tasks import Batch

Encode = Callable[[str], list[int]]
SINK = "Given the following contexts, answer the final question accordingly:\n\n"
"""The shared prefix of the authors' code for all tasks but language modelling."""
LM_SINK = "Given the following partial context, predict the next sequence of words:\n\n"
"""The shared prefix for language modelling (the paper's summary, Module 2)."""

ANSWER_TOKENS = {"synthetic": 40, "rag": 20, "icl": 10}


def records(path: Path) -> list[dict[str, Any]]:
    """Objects of a .jsonl file, or of a .json file holding a list or an object with `data`. UserError naming what is
    wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            found = json.loads(text)
            found = found["data"] if isinstance(found, dict) else found
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; docs/parallel_context.md says which files are read") from None
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not JSON or JSON Lines of the expected form: {error}") from None
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{path} must hold one object a line, or a list of objects")
    return found


def synthetic(path: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """Key-value retrieval. A context is cut to the pairs that fit `tokens`, the asked one among them."""
    for record in _some(records(path), count, seed):
        pairs = _field(record, "context", path)
        try:
            pairs = json.loads(pairs) if isinstance(pairs, str) else pairs
        except ValueError as error:
            raise UserError(f"{path}: `context` must be a JSON object of keys and values: {error}") from None
        key, value = str(_field(record, "question", path)), str(_field(record, "answer", path))
        lines = {k: f'"{k}": "{v}"\n' for k, v in pairs.items()}
        if key not in lines:
            raise UserError(f"{path}: the asked key {key!r} is not in its `context`")
        units = _fitting([encode(line) for line in lines.values()], list(lines).index(key), tokens)
        question = encode(f'\nThe value of the key "{key}" above is: "')
        yield _batch(units, question, (value,))


def rag(path: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """Questions with retrieved passages, as many of them as fit `tokens`, in the file's order."""
    for record in _some(records(path), count, seed):
        passages = [f"Title: {c.get('title', '')}\n{c['text']}\n\n" for c in _field(record, "ctxs", path)]
        units = _fitting([encode(passage) for passage in passages], None, tokens)
        question = encode(f"Question: {_field(record, 'question', path)}\nAnswer:")
        answers = _field(record, "answers", path)
        yield _batch(units, question, tuple([answers] if isinstance(answers, str) else map(str, answers)))


def icl(train: Path, test: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """In-context classification with examples of `train`, as many as fit `tokens`, every label equally often."""
    examples, asked = labelled(train), _some(labelled(test), count, seed)
    names = sorted({label for _, label in examples})
    if unknown := {label for _, label in asked} - set(names):
        raise UserError(f"{test}: label {min(unknown)!r} does not occur in {train}")
    for number, (text, label) in enumerate(asked):
        random = np.random.default_rng((seed, number))
        numbers = dict(zip(names, random.permutation(len(names)).tolist(), strict=True))
        by_label = [[one for one in examples if one[1] == name] for name in names]
        shuffled = [[own[place] for place in random.permutation(len(own))] for own in by_label]
        balanced = [own[turn] for turn in range(max(map(len, shuffled))) for own in shuffled if turn < len(own)]
        units = _fitting([encode(f"{words}\nlabel: {numbers[name]}\n\n") for words, name in balanced], None, tokens)
        units = [units[place] for place in random.permutation(len(units))]
        yield _batch(units, encode(f"{text}\nlabel:"), (str(numbers[label]),))


def language_modelling(
    path: Path, encode: Encode, tokens: int, predicted: int, count: int, seed: int
) -> Iterator[Batch]:
    """One window a document: `tokens` of context, one token between, `predicted` scored ones."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    texts: list[str] = []
    for file in files:
        texts += [str(_field(r, "text", file)) for r in records(file)] if file.suffix in (".jsonl", ".json") else [
            file.read_text(encoding="utf-8")
        ]  # fmt: skip
    windows = 0
    for text in _some(texts, None, seed):
        # Windows are short against books: what is certainly too long need not be tokenized.
        ids = torch.tensor(encode(text[: 12 * (tokens + 1 + predicted)])[: tokens + 1 + predicted])
        if len(ids) == tokens + 1 + predicted and windows < count:
            windows += 1
            context, between, answer = ids[None].split([tokens, 1, predicted], 1)
            yield Batch(list(context.split(1, 1)), between, answer)
    if not windows:
        raise UserError(f"{path} has no text of {tokens + 1 + predicted} tokens: choose a shorter context")


def labelled(path: Path) -> list[tuple[str, str]]:
    """(text, label) of a file of labelled examples. UserError naming what is wrong."""
    if path.suffix in (".jsonl", ".json"):
        return [(str(_field(r, "text", path)), str(_field(r, "label", path))) for r in records(path)]
    try:
        lines = path.read_text(encoding="latin-1").splitlines()  # TREC's own encoding
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; docs/parallel_context.md says which files are read") from None
    found = []
    for number, line in enumerate(filter(None, lines), start=1):
        label, space, text = line.partition(" ")
        if ":" not in label or not space:
            raise UserError(f"{path}, line {number}: expected LABEL:sub and a text, got {line[:40]!r}")
        found.append((text, label))
    if not found:
        raise UserError(f"{path} holds no labelled example")
    return found


def _field(record: dict[str, Any], name: str, path: Path) -> Any:
    if name not in record:
        raise UserError(f"{path}: a record lacks {name!r}; it has {', '.join(sorted(record))}")
    return record[name]


def _some(values: list[Any], count: int | None, seed: int) -> list[Any]:
    order = np.random.default_rng(seed).permutation(len(values))[:count]
    return [values[place] for place in order]


def _fitting(units: list[list[int]], wanted: int | None, tokens: int) -> list[list[int]]:
    """Units from the first on, as many as fit `tokens`; the `wanted` one takes the place of others if it must."""
    left = tokens - (len(units[wanted]) if wanted is not None else 0)
    kept = []
    for place, unit in enumerate(units):
        if place == wanted:
            kept.append(unit)
        elif len(unit) <= left:
            left -= len(unit)
            kept.append(unit)
        elif wanted is None or place > wanted:
            break
    if not kept:
        raise UserError(f"not even one piece of the context fits {tokens} tokens: allow a longer context")
    return kept


def _batch(units: list[list[int]], question: list[int], accepted: tuple[str, ...]) -> Batch:
    return Batch([torch.tensor([unit]) for unit in units], torch.tensor([question]), torch.empty(1, 0), [accepted])
