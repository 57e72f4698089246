"""One private question, inside the two party processes: N new tokens for a prompt, each by one private pass.

Prompts are not padded: the server learns the prompt's exact length and N.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from aero import checkpoint
from aero.errors import UserError
from aero.model import GPT
from aero.two_party.cost.measure import set_up
from aero.two_party.program.end_to_end import Cost, fails_check
from aero.two_party.program.forward import prefix_past
from aero.two_party.program.generation import Generator
from aero.two_party.program.weights import weight_arrays
from aero.two_party.runtime.party import Party
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import CLIENT, SERVER
from aero.two_party.serving.handshake import Description


@dataclass(frozen=True)
class Sampling:
    """How the client chooses a token: the most likely one, or at random at a temperature above 0.

    entries: tokens that the tokenizer has; ids from this number on are never chosen.
    """

    entries: int
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < 1e3:
            raise ValueError(f"temperature {self.temperature} must be 0 (the most likely token) or above")
        if self.seed < 0:
            raise ValueError(f"seed {self.seed} must be 0 or above")

    def choose(self, logits: np.ndarray, index: int) -> int:
        """The id of the `index`-th new token, after which `logits` (V,) came."""
        logits = logits[: self.entries].astype(np.float64)
        if not self.temperature:
            return int(logits.argmax())
        weights = np.exp((logits - logits.max()) / self.temperature)
        return int(np.random.default_rng((self.seed, index)).choice(len(weights), p=weights / weights.sum()))


def answer_task(party: Party, given: Mapping[str, Any]) -> dict[str, Any]:
    """In a party process: put the weights, then run one pass for each new token; returns costs, and at the client ids
    and whether a pass was "wrong" (`fails_check`).

    given: "description", "tokens" (the prompt's length), "new_tokens", "cached" (both); `Published.of_server` (server
    only); "ids" (T,) and "sampling" (client only). The client gives `Party.control` ("token", id) for every token,
    and ("progress", text).
    """
    description: Description = given["description"]
    weights = prefix = None
    if party.rank == SERVER:
        model = given["load"](given["checkpoint"])
        # The program was chosen for the published weights: with others the answers could be wrong without a message.
        if weights_sha256(model) != given["weights_sha256"]:
            raise UserError(
                f"checkpoint {given['checkpoint']} changed since it was published; start the server, or ask, again"
            )
        weights, prefix = weight_arrays(model, description.program), prefix_past(model, description.prefix)
        del model
    start = time.monotonic()
    # Set-up (keys, first oblivious transfers, what the server prepares once) is counted apart from the tokens.

    def before(number: int, many: int) -> None:
        party.control(("progress", f"set-up, step {number} of {many}"))

    longest = len(description.prefix) + given["tokens"] + given["new_tokens"] - 1
    setup = _cost(party, set_up(party, description.operations(longest), before), start)
    generator = Generator(party, description, weights, given["cached"], len(description.prefix), prefix)
    ids = [int(i) for i in given["ids"]] if party.rank == CLIENT else None
    costs, wrong = [], False
    for index in range(given["new_tokens"]):
        start, new = time.monotonic(), 1 if index else given["tokens"]
        token, spent = f"token {index + 1} of {given['new_tokens']}", setup.bytes + sum(cost.bytes for cost in costs)
        later = given["new_tokens"] - index - 1
        alike = later == 0 or index > 0 or not given["cached"]  # whether they take about as long as this one
        before_part = _reporter(party, token, spent, description.config["layers"], later if alike else None)
        step = generator.step(None if ids is None else ids[-new:], new, before_part)
        setup = replace(setup, seconds=setup.seconds + step.prepared_s)
        costs.append(_cost(party, [step.profile], start + step.prepared_s))
        if ids is not None:
            wrong |= fails_check(description.program, step.logits)
            ids.append(given["sampling"].choose(step.logits, index))
            party.control(("token", ids[-1]))
    return {"setup": setup, "costs": costs, "wrong": wrong, "ids": None if ids is None else ids[given["tokens"] :]}


def _reporter(
    party: Party, token: str, spent: int, layers: int, later: int | None
) -> Callable[[Sequence[str], int], None]:
    """`before_part` of `Party.run` that reports each layer of a pass to whoever started the client.

    later: passes after this one that take about as long; None if they take another time.
    """
    start, seen, first = time.monotonic(), 0, (0.0, 0)

    def before_part(inputs: Sequence[str], size: int) -> None:
        nonlocal seen, first
        found = [int(match[1]) + 1 for name in inputs if (match := re.match(r"w\.layers\.(\d+)\.", name))]
        if not found or max(found) <= seen:
            return
        now, seen, known = time.monotonic(), max(found), seen
        first = first if known else (now, seen)
        said = f"{token}: layer {seen} of {layers}, {(spent + size) / 1e6:.1f} MB so far"
        if known:
            left = (now - first[0]) / (seen - first[1]) * (layers - seen + 1)
            left += (later or 0) * (now - start + left)
            said += f", about {left:.0f} s left" + (" of this pass" if later is None else "")
        party.control(("progress", said))

    party.control(("progress", f"{token}, {spent / 1e6:.1f} MB so far"))
    return before_part


def weights_sha256(model: GPT) -> str:
    """Hash of architecture, sizes and every tensor of a model as it was loaded.

    Only the server may have it: a client could recognise a known model by it.
    """
    return checkpoint.digest(model.state_dict(), {"architecture": str(model.architecture), "config": str(model.config)})


def _cost(party: Party, profiles: list[Profile], start: float) -> Cost:
    sent, received = sum(p.bytes_sent for p in profiles), sum(p.bytes_received for p in profiles)
    client, server = (sent, received) if party.rank == CLIENT else (received, sent)
    messages = sum(p.messages_sent + p.messages_received for p in profiles)
    return Cost(client, server, messages, time.monotonic() - start)
