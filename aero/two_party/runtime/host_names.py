"""The addresses of a host's name, looked up within a time limit."""

from __future__ import annotations

import socket
import threading
from typing import Any

from aero.two_party.runtime.settings import TwoPartyError

LOOKUP_S = 10.0


def looked_up(host: str, port: int | None, family: int = socket.AF_UNSPEC) -> list[tuple[Any, ...]]:
    """What `socket.getaddrinfo` finds for TCP. Its OSError if there is nothing, TwoPartyError if it does not end."""
    found: list[list[tuple[Any, ...]] | Exception] = []

    def look_up() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:  # the latter for what can be no name
            found.append(error)

    # A thread, because no time-out reaches a name lookup that hangs.
    looking = threading.Thread(target=look_up, name="aero-lookup", daemon=True)
    looking.start()
    looking.join(LOOKUP_S)
    if not found:
        raise TwoPartyError(
            f"the name {host} was not looked up within {LOOKUP_S:g} s; give an address in numbers, or check the name "
            "servers of this machine"
        )
    (outcome,) = found
    if isinstance(outcome, UnicodeError):
        raise OSError(0, f"{host[:100]!r} is no name of a host")
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
