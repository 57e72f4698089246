"""Addresses: free ports on this machine, and host names looked up within a time limit."""

from __future__ import annotations

import errno
import random
import socket
import threading
from collections.abc import Sequence
from typing import Any

from aero.two_party.runtime.settings import NAMES, Settings, TwoPartyError, split_address

FREE_PORTS = range(20000, 32000)
"""Below the ports that the kernel gives to outgoing connections."""
LOOKUP_TIMEOUT_S = 10.0


def free_address(host: str = "127.0.0.1", taken: Sequence[str] = ()) -> str:
    """An address at `host` with a free port, other than the addresses in `taken`."""
    error: OSError | None = None
    for port in random.SystemRandom().sample(FREE_PORTS, 100):
        address = f"{host}:{port}"
        if address not in taken:
            error = _bind_error(host, port)
            if error is None:
                return address
    reason = error.strerror if error is not None else "all are in use"
    raise TwoPartyError(f"no free port found on {host} ({reason}); give an address with a port")


def listening_addresses(settings: Settings) -> tuple[str, str]:
    """Where client and server listen: port 0 becomes a free port. TwoPartyError if a port is in use."""
    addresses: list[str] = []
    for name, address in zip(NAMES, settings.addresses, strict=True):
        host, port = split_address(address)
        if port:
            check_free(address, name)
        addresses.append(address if port else free_address(host, addresses))
    return addresses[0], addresses[1]


def check_free(address: str, name: str) -> None:
    """TwoPartyError if the party called `name` cannot listen at `address`."""
    host, port = split_address(address)
    error = _bind_error(host, port)
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        raise TwoPartyError(f"port {port} of the {name}'s address {address} is in use; choose another, or 0 for any")
    raise TwoPartyError(f"the {name} cannot listen at {address}: {error.strerror}; give an address of this machine")


def _bind_error(host: str, port: int) -> OSError | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        return error
    return None


def look_up(host: str, port: int | None, family: int = socket.AF_UNSPEC) -> list[tuple[Any, ...]]:
    """`socket.getaddrinfo` for TCP. OSError for an unknown name, TwoPartyError after LOOKUP_TIMEOUT_S."""
    found: list[list[tuple[Any, ...]] | Exception] = []

    def resolve() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
        except UnicodeError:
            found.append(OSError(0, f"{host[:100]!r} is not a host name"))
        except OSError as error:
            found.append(error)

    # In a thread, because getaddrinfo has no time-out.
    thread = threading.Thread(target=resolve, name="aero-lookup", daemon=True)
    thread.start()
    thread.join(LOOKUP_TIMEOUT_S)
    if not found:
        raise TwoPartyError(
            f"the name {host} was not resolved within {LOOKUP_TIMEOUT_S:g} s; give a numeric address, or check the "
            "name servers of this machine"
        )
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
