"""Private questions: to a server process started for one of them on this machine, or to a server on another host.

The server publishes a `Description` and answers one question after the other, each in a new process, so that whatever
a question does ends with it. Between hosts everything goes through one `Tunnel`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from aero import checkpoint
from aero.errors import UserError, one_line
from aero.model import GPT
from aero.two_party.program.end_to_end import UNBOUNDED
from aero.two_party.runtime.addresses import free_address
from aero.two_party.runtime.parties import Task, run_parties, run_party
from aero.two_party.runtime.processes import ready, renew
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings, TwoPartyError
from aero.two_party.serving.answer import Cost, Sampling, answer_task
from aero.two_party.serving.handshake import PROTOCOL, Description, check_lengths, version_mismatch, versions
from aero.two_party.serving.listener import Listener
from aero.two_party.serving.tunnel import Tunnel, plain

QUESTION_S = 30.0
"""From the server's description to the client's question."""
CONNECT_S = 90.0
"""The peer's process may start later than ours by the time that importing SPU takes on a busy machine."""
LOG_LINES, LOG_S = 10, 60.0
"""Log lines on failed clients in so many seconds: anybody who can connect could fill a disk."""
OnControl = Callable[[tuple[str, Any]], None]
"""Takes ("token", id) of every new token, and ("progress", text)."""


@dataclass(frozen=True)
class Published:
    """A model that is asked or served. tokenizer: text of its file. weights_sha256: never sent to a client.
    checked: what its holder checked and what not, one line for the client. load: reads the model at `path`."""

    path: Path
    description: Description
    tokenizer: str
    weights_sha256: str
    checked: str = ""
    load: Callable[[Path], GPT] = checkpoint.load

    @property
    def of_server(self) -> dict[str, Any]:
        """What the server's process is given, and no other."""
        return {"checkpoint": self.path, "load": self.load, "weights_sha256": self.weights_sha256}


@dataclass(frozen=True)
class Answered:
    """A finished question: ids of the new tokens, the cost of each, and that of setting up; whether keys and values
    were cached."""

    ids: list[int]
    costs: list[Cost]
    setup: Cost
    cached: bool


def ask_here(
    published: Published,
    ids: Sequence[int],
    new_tokens: int,
    sampling: Sampling,
    settings: Settings,
    on_control: OnControl,
    cached: bool = True,
) -> Answered:
    """Ask a checkpoint with a client and a server process on this machine.

    Only the server's process reads the weights, only the client's is given the ids. cached: where the program allows
    it. Raises as `run_parties`.
    """
    description = published.description
    check_lengths(description, len(ids), new_tokens)
    cached = cached and description.cacheable
    common = {"description": description, "tokens": len(ids), "new_tokens": new_tokens, "cached": cached}
    on_control(("progress", "starting client and server, and connecting them"))
    client, server = run_parties(
        answer_task,
        common | {"ids": list(ids), "sampling": sampling},
        common | published.of_server,
        settings,
        on_control=on_control,
    )
    for ours, theirs in zip([client["setup"], *client["costs"]], [server["setup"], *server["costs"]], strict=True):
        if replace(ours, seconds=0) != replace(theirs, seconds=0):
            raise TwoPartyError("client and server counted different bytes; run again")
    return _checked(client, cached)


def _checked(found: Mapping[str, Any], cached: bool) -> Answered:
    if found["wrong"]:
        raise UserError(UNBOUNDED)
    return Answered(found["ids"], found["costs"], found["setup"], cached)


class Client:
    """A connection to a server that has published its `description` and its `tokenizer` (text of a file)."""

    def __init__(self, tunnel: Tunnel, wait_s: float) -> None:
        """Exchange versions; wait_s: how long the server may be busy with others. TwoPartyError if it refuses."""
        self._tunnel = tunnel
        try:
            ready()
            tunnel.send({"hello": PROTOCOL, "versions": versions()})
            said = _not_refused(tunnel, tunnel.receive(wait_s))
            if said.get("hello") != PROTOCOL:
                raise TwoPartyError(f"{tunnel.peer} speaks {plain(said.get('hello'))}, not {PROTOCOL}")
            if wrong := version_mismatch(said.get("versions"), versions()):
                raise TwoPartyError(wrong)
            self.description = Description.received(said.get("description"))
            self.tokenizer = str(said.get("tokenizer"))
            self.checked = plain(said.get("checked"))
            if any("\ud800" <= character <= "\udfff" for character in self.tokenizer):
                raise TwoPartyError(f"{tunnel.peer} published a tokenizer that is not text; is it this program?")
        except BaseException:
            tunnel.give_up()
            raise

    def ask(
        self,
        ids: Sequence[int],
        new_tokens: int,
        sampling: Sampling,
        settings: Settings,
        on_control: OnControl,
        cached: bool = True,
    ) -> Answered:
        """Ask. cached: where the program allows it. TwoPartyError on any failure of either."""
        try:
            check_lengths(self.description, len(ids), new_tokens)
            cached = cached and self.description.cacheable
            lengths = {"tokens": len(ids), "new_tokens": new_tokens, "cached": cached}
            self._tunnel.send(lengths | {"description": self.description.sha256})
            if _not_refused(self._tunnel, self._tunnel.receive()).get("begin") is not True:
                raise TwoPartyError(f"{self._tunnel.peer} did not begin; are both of one version?")
            common = lengths | {"description": self.description}
            on_control(("progress", "starting the client, and connecting it to the server"))
            found = run_through(
                self._tunnel,
                CLIENT,
                answer_task,
                common | {"ids": list(ids), "sampling": sampling},
                settings,
                on_control=on_control,
            )
        except BaseException:
            self._tunnel.give_up()
            raise
        return _checked(found, cached)

    def close(self) -> None:
        """Leave without a question."""
        self._tunnel.give_up()


class Server:
    """Answers questions to a published checkpoint."""

    def __init__(self, published: Published, settings: Settings, most_tokens: int) -> None:
        """most_tokens: new tokens that one question may ask for."""
        self._published, self._settings, self._most_tokens = published, settings, most_tokens
        self._failed_at: list[float] = []  # when the latest failures were logged
        self._not_logged = 0
        ready()

    def answer(self, listener: Listener, say: Callable[[str], None]) -> bool:
        """Wait for the next client and answer it; `say` gets one line on it. Returns whether it was answered.

        Of failures `say` gets LOG_LINES in LOG_S seconds; a later line counts the others.
        """
        arrival = listener.arrival()
        who, tunnel = arrival.who, arrival.tunnel
        if tunnel is None:
            return self._failed(arrival.failure, say)
        try:
            question, found = self._serve(tunnel, arrival.hello)
        except BaseException as error:
            tunnel.give_up()
            if not isinstance(error, ValueError | OSError | RuntimeError):
                raise
            return self._failed(f"{who}: failed: {one_line(error)}", say)
        costs: list[Cost] = found["costs"]
        size = found["setup"].bytes + sum(cost.bytes for cost in costs)
        say(
            f"{who}: {question['new_tokens']} new after {question['tokens']} tokens, {size / 1e6:.1f} MB, "
            f"{found['setup'].seconds + sum(cost.seconds for cost in costs):.1f} s"
        )
        return True

    def _failed(self, line: str, say: Callable[[str], None]) -> bool:
        now = time.monotonic()
        self._failed_at = [at for at in self._failed_at if now - at < LOG_S]
        if len(self._failed_at) >= LOG_LINES:
            self._not_logged += 1
        else:
            say(line + (f" ({self._not_logged:,} more failures were not logged)" if self._not_logged else ""))
            self._failed_at.append(now)
            self._not_logged = 0
        return False

    def _serve(self, tunnel: Tunnel, hello: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        if hello.get("hello") != PROTOCOL:
            raise _refused(tunnel, f"the client speaks {plain(hello.get('hello'))}, the server {PROTOCOL}")
        if wrong := version_mismatch(versions(), hello.get("versions")):
            raise _refused(tunnel, wrong)
        description, checked = self._published.description, self._published.checked
        published = {"description": asdict(description), "tokenizer": self._published.tokenizer, "checked": checked}
        tunnel.send({"hello": PROTOCOL, "versions": versions()} | published)
        question = tunnel.receive(QUESTION_S)
        if question.get("failed"):
            raise TwoPartyError("the client left without a question")
        if question.get("description") != description.sha256:
            raise _refused(tunnel, "the client asks another model than the one published; connect again")
        tokens, new_tokens, cached = (question.get(name) for name in ("tokens", "new_tokens", "cached"))
        if not all(type(number) is int and abs(number) < 2**31 for number in (tokens, new_tokens)):
            raise _refused(tunnel, "tokens and new_tokens must be integers")
        if type(cached) is not bool or cached > description.cacheable:
            raise _refused(tunnel, "cached must be true or false, and false for a program without a cache")
        try:
            check_lengths(description, tokens, new_tokens)
        except TwoPartyError as error:
            raise _refused(tunnel, str(error)) from None
        if new_tokens > self._most_tokens:
            raise _refused(tunnel, f"{new_tokens} new tokens are asked for, this server gives {self._most_tokens}")
        tunnel.send({"begin": True})
        given = {"description": description, "tokens": tokens, "new_tokens": new_tokens, "cached": cached}
        given |= self._published.of_server
        try:
            return question, run_through(tunnel, SERVER, answer_task, given, self._settings)
        except Exception:
            renew()
            raise


def run_through(
    tunnel: Tunnel,
    rank: int,
    task: Task,
    own_input: Any,
    settings: Settings,
    on_control: Callable[[Any], Any] | None = None,
) -> Any:
    """Run our party through the tunnel, as `run_party` does; returns its result when the other side is done as well."""
    own = free_address()
    door = tunnel.carry(own)
    addresses = (own, door) if rank == CLIENT else (door, own)
    settings = replace(settings, connect_timeout_s=min(settings.receive_timeout_s, CONNECT_S))
    found = run_party(rank, task, own_input, addresses, settings, on_control=on_control, alarm=tunnel)
    tunnel.finish()
    return found


def _refused(tunnel: Tunnel, reason: str) -> TwoPartyError:
    """Send the reason to the client, and return the error to raise here."""
    tunnel.send({"refused": reason})
    return TwoPartyError(reason)


def _not_refused(tunnel: Tunnel, said: dict[str, Any]) -> dict[str, Any]:
    if "refused" in said or "failed" in said:
        raise TwoPartyError(f"{tunnel.peer} refused: {plain(said.get('refused', 'its own output says why'))}")
    return said
