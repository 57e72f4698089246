"""The real benchmarks from local files, for a model with a tokenizer.

synthetic   JSON Lines or JSON in the form of HELMET's `json_kv`: `context` (a JSON object as text), `question` (a key),
            `answer`. Units are its "key": "value" pairs.
rag         in the form of HELMET's `kilt` files: `question`, `answers`, `ctxs` with `title` and `text`. Units are the
            passages.
icl         labelled examples: JSON Lines with `text` and `label`, or lines "LABEL:sub text" (TREC). Units are examples
            of a training file, balanced over labels, which are numbered anew for every question, as HELMET does.
lm          plain text files, or JSON Lines with `text` (PG-19, Proof-pile). Units are tokens.

Templates are this project's own; numbers that are sensitive to the wording of prompts differ from the paper's. What is
wrong with a file is told with the file, the line or entry, and the cause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero.errors import UserError
from aero.parallel_context.evaluate import contains_answer, first_word_is
from aero.parallel_context.tasks import Batch

Encode = Callable[[str], list[int]]
SINK = "Given the following contexts, answer the final question accordingly:\n\n"
"""The shared prefix of the authors' code for all tasks but language modelling."""
LM_SINK = "Given the following partial context, predict the next sequence of words:\n\n"
"""The shared prefix for language modelling (the paper's summary, Module 2)."""

ANSWER_TOKENS = {"synthetic": 40, "rag": 20, "icl": 10}


@dataclass(frozen=True)
class Record:
    """An object of a file, and where it stands: "rag.jsonl, line 3"."""

    values: dict[str, Any]
    where: str

    def field(self, name: str) -> Any:
        """UserError naming what the object has instead, if it lacks `name` or it is null."""
        if self.values.get(name) is None:
            has = ", ".join(sorted(key for key, value in self.values.items() if value is not None)) or "nothing"
            raise UserError(f"{self.where} lacks {name!r}; it has {has}")
        return self.values[name]

    def text(self, name: str) -> str:
        """A field that is text, or a number taken as such."""
        return _as_text(self.field(name), f"{self.where}: {name!r}")


def judge_of(task: str, decode: Callable[[list[int]], str]) -> Callable[[list[int], tuple[str, ...]], bool]:
    """Whether generated ids answer a question of `task`: a label by its first word, anything else by substring match.

    Only the first line counts: a model that goes on behind its answer, with questions of its own, is not asked there.
    """
    judged = first_word_is if task == "icl" else contains_answer
    return lambda ids, accepted: judged(first_line(decode(ids)), accepted)


def first_line(text: str) -> str:
    """What stands before the first newline that follows anything."""
    return text.lstrip().partition("\n")[0]


def files_of(folder: Path, task: str) -> list[tuple[Path, ...]]:
    """The sets of a task: rag*.json, rag*.jsonl; of classification training and test file, icl_train*, icl_test*.

    UserError for a training file without its test file, or the other way round.
    """
    if task != "icl":
        return [(path,) for path in sorted(folder.glob(f"{task}*.json*"))]
    parts = {part: {p.stem.removeprefix(f"icl_{part}"): p for p in folder.glob(f"icl_{part}*")} for part in _ICL}
    alone = sorted(set(parts["train"]) ^ set(parts["test"]))
    if alone:
        has, lacks = _ICL if alone[0] in parts["train"] else _ICL[::-1]
        raise UserError(f"{parts[has][alone[0]]} has no icl_{lacks}{alone[0]}.* beside it; both make a set")
    return [(parts["train"][name], parts["test"][name]) for name in sorted(parts["train"])]


_ICL = ("train", "test")


def records(path: Path) -> list[Record]:
    """Objects of a .jsonl file, or of a .json file holding a list or an object with `data`."""
    text = read_text(path)
    if path.suffix == ".jsonl":
        # Not splitlines: JSON allows line separators of Unicode within a text.
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        found = [(_json(line, f"{path}, line {number}"), f"{path}, line {number}") for number, line in lines]
    else:
        whole = _json(text, str(path))
        whole = whole.get("data") if isinstance(whole, dict) else whole
        if not isinstance(whole, list):
            raise UserError(f"{path} must hold a list of objects, or an object with such a list as 'data'")
        found = [(one, f"{path}, entry {number}") for number, one in enumerate(whole, start=1)]
    if not found:
        raise UserError(f"{path} is empty: it must hold one object a line, or a list of objects")
    for one, where in found:
        if not isinstance(one, dict):
            raise UserError(f"{where}: expected an object, got {_kind(one)}")
    return [Record(*one) for one in found]


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text; UserError if it is not there or not in that encoding."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; docs/parallel_context.md says which files are read") from None
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: byte 0x{data[error.start]:02x} is not {encoding.upper()}") from None


def synthetic(path: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """Key-value retrieval. A context is cut to the pairs that fit `tokens`, the asked one among them."""
    for record in _some(records(path), count, seed):
        pairs = record.field("context")
        pairs = _json(pairs, f"{record.where}: 'context'") if isinstance(pairs, str) else pairs
        if not isinstance(pairs, dict):
            raise UserError(f"{record.where}: 'context' must be an object of keys and values, it is {_kind(pairs)}")
        key, value = record.text("question"), record.text("answer")
        lines = {k: f'"{k}": "{v}"\n' for k, v in pairs.items()}
        if key not in lines:
            raise UserError(f"{record.where}: the asked key {key[:80]!r} is not in its 'context'")
        units = _fitting([encode(line) for line in lines.values()], list(lines).index(key), tokens)
        question = encode(f'\nThe value of the key "{key}" above is: "')
        yield _batch(units, question, (value,))


def rag(path: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """Questions with retrieved passages, as many of them as fit `tokens`, in the file's order."""
    for record in _some(records(path), count, seed):
        units = _fitting([encode(passage) for passage in _passages(record)], None, tokens)
        question = encode(f"Question: {record.text('question')}\nAnswer:")
        answers = record.field("answers")
        if not isinstance(answers, list):
            answers = [answers]
        if not answers:
            raise UserError(f"{record.where}: 'answers' is empty, so nothing could be right")
        yield _batch(units, question, tuple(_as_text(one, f"{record.where}: one of 'answers'") for one in answers))


def _passages(record: Record) -> list[str]:
    """The texts of `ctxs` with their titles."""
    given = record.field("ctxs")
    if not isinstance(given, list) or not given:
        raise UserError(f"{record.where}: 'ctxs' must be a list of passages, it is {_kind(given)}")
    passages = []
    for number, one in enumerate(given, start=1):
        where = f"{record.where}, passage {number} of 'ctxs'"
        if not isinstance(one, dict):
            raise UserError(f"{where}: expected an object with 'text', got {_kind(one)}")
        passages.append(f"Title: {one.get('title') or ''}\n{Record(one, where).text('text')}\n\n")
    return passages


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
        texts += [r.text("text") for r in records(file)] if file.suffix in (".jsonl", ".json") else [read_text(file)]
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
        return [(record.text("text"), record.text("label")) for record in records(path)]
    found = []
    # TREC's own encoding, in which splitlines would end lines within words.
    for number, line in enumerate(read_text(path, "latin-1").split("\n"), start=1):
        if not line.strip():
            continue
        label, space, text = line.rstrip("\r").partition(" ")
        if ":" not in label or not space:
            raise UserError(f"{path}, line {number}: expected LABEL:sub and a text, got {line[:40]!r}")
        found.append((text, label))
    if not found:
        raise UserError(f"{path} holds no labelled example")
    return found


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}") from None


_KINDS = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}


def _kind(value: Any) -> str:
    """What a JSON value is, in words."""
    return "an empty list" if value == [] else _KINDS.get(type(value), "a number")


def _as_text(value: Any, where: str) -> str:
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise UserError(f"{where} must be text, it is {_kind(value)}")


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
