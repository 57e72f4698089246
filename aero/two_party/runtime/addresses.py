"""Where parties on this machine listen: ports that are free, or a line that says why one is not."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Sequence

from aero.two_party.runtime.settings import NAMES, Settings, TwoPartyError, split_address

# Below the ports that the kernel hands to outgoing connections.
FREE_PORTS = range(20000, 32000)


def free_address(host: str = "127.0.0.1", taken: Sequence[str] = ()) -> str:
    """An address at `host` on which nothing listens, below the ports of outgoing connections, and none of `taken`."""
    error: OSError | None = None
    for candidate in random.SystemRandom().sample(FREE_PORTS, 100):
        address = f"{host}:{candidate}"
        if address not in taken:
            error = _bind_error(host, candidate)
            if error is None:
                return address
    reason = error.strerror if error is not None else "all are taken"
    raise TwoPartyError(f"no free port found on {host} ({reason}); give an address with a port of your own")


def listening_addresses(settings: Settings) -> tuple[str, str]:
    """Where client and server listen; ports 0 replaced by free ones. TwoPartyError if a port is in use."""
    addresses: list[str] = []
    for name, address in zip(NAMES, settings.addresses, strict=True):
        host, port = split_address(address)
        if port:
            check_free(address, name)
            addresses.append(address)
            continue
        addresses.append(free_address(host, addresses))
    return addresses[0], addresses[1]


def check_free(address: str, name: str) -> None:
    """TwoPartyError if the party called `name` cannot listen at `address`."""
    error = _bind_error(*split_address(address))
    if error is None:
        return
    if error.errno == errno.EADDRINUSE:
        port = split_address(address)[1]
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
