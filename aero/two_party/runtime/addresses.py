"""Addresses: host:port as text, free ports on this machine, and host names looked up within a time limit."""

from __future__ import annotations

import ipaddress
import random
import socket
import threading
from contextlib import suppress
from typing import Any

from aero.errors import cut
from aero.two_party.runtime.settings import TwoPartyError

FREE_PORTS = range(20000, 32000)
"""Below the ports that the kernel gives to outgoing connections."""
LOOKUP_TIMEOUT_S = 10.0


def split_address(address: str) -> tuple[str, int]:
    """ "host:port" or "[IPv6]:port" as (host, port); ValueError for anything else. Port 0 means any free one."""
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    # `isdigit` alone takes digits of other scripts, and a superscript two that `int` does not read.
    if not (colon and bare and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise ValueError(f"address {cut(repr(address), 200)} is not host:port; write for example 127.0.0.1:9731")
    if (":" in bare) != (bare != host):
        raise ValueError(
            f"address {cut(repr(address), 200)}: write an IPv6 address in brackets, for example [::1]:9731"
        )
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_address(taken: str = "") -> str:
    """An address on this machine, other than `taken`, whose port is free now."""
    for port in random.SystemRandom().sample(FREE_PORTS, 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if (address := f"127.0.0.1:{port}") != taken:
                return address
    raise TwoPartyError("no free port found on 127.0.0.1; end programs that use many")


def look_up(host: str, port: int | None) -> list[tuple[Any, ...]]:
    """`socket.getaddrinfo` for TCP, IPv4 first. OSError for an unknown name, TwoPartyError after LOOKUP_TIMEOUT_S."""
    found: list[list[tuple[Any, ...]] | Exception] = []

    def resolve() -> None:
        try:
            found.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
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
    return sorted(found[0], key=lambda entry: entry[0] != socket.AF_INET)


def is_loopback(host: str) -> bool:
    """Whether `host` has loopback addresses only. TwoPartyError if its name is not resolved in time."""
    try:
        found = {entry[4][0] for entry in look_up(host, None)}
    except OSError as error:
        raise TwoPartyError(
            f"host {host} is not known ({error.strerror}); check it or give a numeric address"
        ) from None
    return all(ipaddress.ip_address(address).is_loopback for address in found)
