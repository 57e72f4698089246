"""The real benchmarks from local files, for a model with a tokenizer.

synthetic   JSON Lines or JSON in the form of HELMET's `json_kv`: `context` (a JSON object as text), `question` (a key),
            `answer`. Units are its "key": "value" pairs.
rag         in the form of HELMET's `kilt` files: `question`, `answers`, `ctxs` with `title` and `text`. Units are the
            passages.
icl         labelled examples: JSON Lines with `text` and `label`, or lines "LABEL:sub text" (TREC). Units are examples
            of a training file, balanced over labels, which are renumbered for every question, as in HELMET.
lm          plain text files, or JSON Lines with `text` (PG-19, Proof-pile). Units are tokens.

Prompts are this project's own; numbers that depend on their wording differ from the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero.errors import UserError
from aero.parallel_context.evaluate import Judge, contains_answer, first_word_is
from aero.parallel_context.experiment import Task
from aero.parallel_context.settings import TaskName
from aero.parallel_context.tasks import Batch

Encode = Callable[[str], list[int]]
SINK = "Given the following contexts, answer the final question accordingly:\n\n"
"""The shared prefix of the authors' code for all tasks but language modelling."""
LM_SINK = "Given the following partial context, predict the next sequence of words:\n\n"
"""The shared prefix for language modelling (the paper's summary, Module 2)."""
ANSWER_TOKENS = {"synthetic": 40, "rag": 20, "icl": 10}


def load_tasks(
    folder: Path,
    tasks: tuple[TaskName, ...],
    encode: Encode,
    decode: Callable[[list[int]], str],
    tokens: int,
    predicted: int,
    count: int,
) -> list[Task]:
    """The given tasks whose files are in `folder`: up to `count` examples a file, contexts up to `tokens` long."""
    found = []
    texts = next((path for path in (folder / "lm", *sorted(folder.glob("lm.*"))) if path.exists()), None)
    if texts is not None and "lm" in tasks:
        batches = list(language_modelling(texts, encode, tokens, predicted, count, 0))
        found.append(Task("lm", batches, f"{texts.name}: {tokens} tokens, {predicted} scored"))
    for name, load in (("icl", icl), ("rag", rag), ("synthetic", synthetic)):
        sets = {}
        for files in files_of(folder, name) if name in tasks else []:
            sets[files[-1].name] = list(load(*files, encode, tokens, count, 0))
        if not sets:
            continue
        sizes = tuple((file, len(batches)) for file, batches in sets.items())
        description = f"{name}: up to {tokens} tokens, {', '.join(f'{n} of {file}' for file, n in sizes)}"
        batches = [batch for batches in sets.values() for batch in batches]
        found.append(Task(name, batches, description, judge_of(name, decode), ANSWER_TOKENS[name], sizes))
    return found


def judge_of(task: str, decode: Callable[[list[int]], str]) -> Judge:
    """Judge of generated ids: a label by the first word, any other answer by substring match, in the first line only.

    What a model generates behind its answer, such as questions of its own, does not count.
    """
    judged = first_word_is if task == "icl" else contains_answer
    return lambda ids, accepted: judged(decode(ids).lstrip().partition("\n")[0], accepted)


def files_of(folder: Path, task: str) -> list[tuple[Path, ...]]:
    """The files of a task: rag*.json, rag*.jsonl; for icl pairs of icl_train* and icl_test* of the same ending."""
    if task != "icl":
        return [(path,) for path in sorted(folder.glob(f"{task}*.json*"))]
    train, test = (
        {path.stem.removeprefix(f"icl_{part}"): path for path in folder.glob(f"icl_{part}*")}
        for part in ("train", "test")
    )
    if alone := sorted(set(train) ^ set(test)):
        raise UserError(f"{folder}: icl_train{alone[0]}.* and icl_test{alone[0]}.* must both exist")
    return [(train[name], test[name]) for name in sorted(train)]


def records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Objects of a .jsonl file, or of a .json file with a list or an object with `data`; each with its place."""
    with _expecting(path, "one JSON object a line, or a JSON list of objects"):
        if path.suffix == ".jsonl":  # not splitlines: JSON allows Unicode's line separators in a text
            return [
                (f"{path}, line {number}", dict(json.loads(line)))
                for number, line in enumerate(read_text(path).split("\n"), start=1)
                if line.strip()
            ]
        whole = json.loads(read_text(path))
        whole = whole["data"] if isinstance(whole, dict) else whole
        return [(f"{path}, entry {number}", dict(one)) for number, one in enumerate(whole, start=1)]


def read_text(path: Path, encoding: str = "utf-8") -> str:
    with _expecting(path, f"text in {encoding}"):
        return path.read_bytes().decode(encoding)


@contextmanager
def _expecting(where: object, expected: str) -> Iterator[None]:
    """UserError naming the place and what is expected there, for content of another form."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{where}: expected {expected} ({type(error).__name__}: {error})") from None


def synthetic(path: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """Key-value retrieval. A context is reduced to the pairs that fit `tokens`, the one of the question among them."""
    for where, record in _sample(records(path), count, seed):
        with _expecting(where, "'context' (an object of keys and values), 'question' (one of the keys), 'answer'"):
            pairs = record["context"]
            pairs = json.loads(pairs) if isinstance(pairs, str) else pairs
            lines = {key: f'"{key}": "{value}"\n' for key, value in pairs.items()}
            wanted, answer = list(lines).index(_text(record["question"])), _text(record["answer"])
        units = _fitting([encode(line) for line in lines.values()], wanted, tokens)
        question = encode(f'\nThe value of the key "{record["question"]}" above is: "')
        yield _batch(units, question, (answer,))


def rag(path: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """Questions with as many retrieved passages as fit `tokens`, in the file's order."""
    for where, record in _sample(records(path), count, seed):
        with _expecting(where, "'question', 'answers' (not empty) and 'ctxs', a list of objects with 'text'"):
            passages = [f"Title: {one.get('title') or ''}\n{_text(one['text'])}\n\n" for one in record["ctxs"]]
            question, answers = _text(record["question"]), record["answers"]
            answers = tuple(_text(one) for one in (answers if isinstance(answers, list) else [answers]))
            if not answers:
                raise ValueError("no answer")
        units = _fitting([encode(passage) for passage in passages], None, tokens)
        yield _batch(units, encode(f"Question: {question}\nAnswer:"), answers)


def icl(train: Path, test: Path, encode: Encode, tokens: int, count: int, seed: int) -> Iterator[Batch]:
    """In-context classification with as many examples of `train` as fit `tokens`, balanced over labels."""
    examples, asked = labelled(train), _sample(labelled(test), count, seed)
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


def labelled(path: Path) -> list[tuple[str, str]]:
    """(text, label) of every example of a file."""
    if path.suffix in (".jsonl", ".json"):
        with _expecting(path, "objects with 'text' and 'label'"):
            return [(_text(record["text"]), _text(record["label"])) for _, record in records(path)]
    found = []
    # TREC's encoding, in which splitlines would end lines within words
    for number, line in enumerate(read_text(path, "latin-1").split("\n"), start=1):
        label, space, text = line.rstrip("\r").partition(" ")
        if line.strip():
            if ":" not in label or not space:
                raise UserError(f"{path}, line {number}: expected LABEL:sub and a text, got {line[:40]!r}")
            found.append((text, label))
    return found


def language_modelling(
    path: Path, encode: Encode, tokens: int, predicted: int, count: int, seed: int
) -> Iterator[Batch]:
    """One window a document: `tokens` of context, one token between, `predicted` scored ones."""
    texts: list[str] = []
    for file in sorted(path.glob("*.txt")) if path.is_dir() else [path]:
        if file.suffix in (".jsonl", ".json"):
            with _expecting(file, "objects with 'text'"):
                texts += [_text(record["text"]) for _, record in records(file)]
        else:
            texts.append(read_text(file))
    windows, length = 0, tokens + 1 + predicted
    for text in _sample(texts, None, seed):
        ids = torch.tensor(encode(text[: 12 * length])[:length])  # a book need not be tokenised whole
        if len(ids) == length and windows < count:
            windows += 1
            context, question, answer = ids[None].split([tokens, 1, predicted], 1)
            yield Batch(list(context.split(1, 1)), question, answer)
    if not windows:
        raise UserError(f"{path}: no text of {length} tokens")


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"text, not {value!r:.40}")
    return str(value)


def _sample(values: list[Any], count: int | None, seed: int) -> list[Any]:
    order = np.random.default_rng(seed).permutation(len(values))[:count]
    return [values[place] for place in order]


def _fitting(units: list[list[int]], wanted: int | None, tokens: int) -> list[list[int]]:
    """The first units that fit `tokens`, always with the `wanted` one."""
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
        raise UserError(f"no unit of the context fits {tokens} tokens: allow a longer context")
    return kept


def _batch(units: list[list[int]], question: list[int], accepted: tuple[str, ...]) -> Batch:
    return Batch([torch.tensor([unit]) for unit in units], torch.tensor([question]), torch.empty(1, 0), [accepted])
