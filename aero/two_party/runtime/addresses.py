"""Addresses: host:port as text, free ports on this machine, and host names looked up within a time limit."""

from __future__ import annotations

import ipaddress
import random
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from aero.errors import cut
from aero.two_party.runtime.settings import TwoPartyError

FREE_PORTS = range(20000, 32000)
"""Below the ports that the kernel gives to outgoing connections."""
LOOKUP_TIMEOUT_S = 10.0


def split_address(address: str) -> tuple[str, int]:
    """ "host:port" or "[IPv6]:port" as (host, port); ValueError for anything else. Port 0 means any free one."""
    match = re.fullmatch(r"(?:\[([^][]*:[^][]*)\]|([^][:]+)):([0-9]{1,5})", address)
    if match is None or int(match[3]) > 65535:
        raise ValueError(
            f"address {cut(repr(address), 200)} is not host:port; write for example 127.0.0.1:9731, or an "
            "IPv6 address in brackets: [::1]:9731"
        )
    return match[1] or match[2], int(match[3])


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
    pool = ThreadPoolExecutor(1)  # because getaddrinfo has no time-out
    try:
        found = pool.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM).result(LOOKUP_TIMEOUT_S)
    except TimeoutError:
        raise TwoPartyError(
            f"the name {host} was not resolved within {LOOKUP_TIMEOUT_S:g} s; give a numeric address, or check the "
            "name servers of this machine"
        ) from None
    except UnicodeError:
        raise OSError(0, f"{host[:100]!r} is not a host name") from None
    finally:
        pool.shutdown(wait=False)
    return sorted(found, key=lambda entry: entry[0] != socket.AF_INET)


def is_loopback(host: str) -> bool:
    """Whether `host` has loopback addresses only. TwoPartyError if its name is not resolved."""
    try:
        found = look_up(host, None)
    except OSError as error:
        raise TwoPartyError(
            f"host {host} is not known ({error.strerror}); check it or give a numeric address"
        ) from None
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)
