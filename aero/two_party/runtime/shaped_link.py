"""Running the two parties over a link of given rate and delay, and checking that link with plain TCP.

Two ways. "kernel": each party in a network namespace of its own, a veth pair between them, each end of it shaped by
`tc` (tbf for the rate, netem for the delay); needs root, `ip`, `tc` and a kernel that has both. "relay": both parties
on this machine, every byte through `aero.two_party.runtime.relay`; needs nothing. Neither leaves anything behind.

They differ in what a rate counts: tbf whole Ethernet frames, 1,514 bytes for 1,448 of payload; the relay the payload.
And in TCP: over the kernel's link its window grows from slow start, over the relay each half of a connection is local.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

from aero.two_party.cost.network import Network
from aero.two_party.runtime.parties import Task, run_parties, run_party
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings, TwoPartyError, split_address

Way = Literal["kernel", "relay"]

PAYLOAD_SHARE = 1448 / 1514
"""TCP payload of a full Ethernet frame with timestamps, as the kernel's shaper counts it."""

_CLONE_NEWNET = 0x40000000
# RFC 2544: addresses for benchmarks of networks, routed nowhere.
_ADDRESSES = ("198.18.0.1", "198.18.0.2")
_PORTS = (9731, 9732)
_DEVICES = ("aero0", "aero1")
# What a shaper may send at once, which is also how late a busy machine may wake it without losing rate.
_BURST_S = 2e-3
_LEAST_BURST_BYTES = 1600
_QUEUE_S = 2.0
_PROBE_TIMEOUT_S = 60.0
_PING = b"\xff"


class Namespaces:
    """Two network namespaces with a shaped veth pair between them, while the `with` block lasts.

    Threads of this process live in them, so they vanish with the process, however that ends. TwoPartyError on entering
    if this machine cannot do it, naming what is missing: right, tool or kernel module.
    """

    def __init__(self, network: Network | None) -> None:
        """network: None for an unshaped pair."""
        self._network = network
        self._stack = ExitStack()

    def __enter__(self) -> Namespaces:
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise TwoPartyError(f"no `{tool}` here to shape a link with; install iproute2, or use the relay")
        with ExitStack() as stack:
            self._threads = [stack.enter_context(ThreadPoolExecutor(1, "aero-namespace")) for _ in _DEVICES]
            ids = [thread.submit(_own_namespace).result() for thread in self._threads]
            pair = f"type veth peer name {_DEVICES[SERVER]} netns {ids[SERVER]}"
            self._tell(CLIENT, f"ip link add {_DEVICES[CLIENT]} {pair}")
            for rank, device in enumerate(_DEVICES):
                self._tell(rank, "ip link set lo up")
                self._tell(rank, f"ip address add {_ADDRESSES[rank]}/30 dev {device}")
                self._tell(rank, f"ip link set {device} up")
                for command in _shapers(device, self._network):
                    self._tell(rank, command)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def submit(self, rank: int, function: Callable[..., Any], *arguments: Any) -> Future:
        """Start `function` in the namespace of that party, one at a time in each; processes it starts are there too."""
        return self._threads[rank].submit(function, *arguments)

    def address(self, rank: int) -> str:
        """host:port of that party inside its namespace."""
        return f"{_ADDRESSES[rank]}:{_PORTS[rank]}"

    def _tell(self, rank: int, command: str) -> None:
        self.submit(rank, _command, command).result()


def _own_namespace() -> int:
    """Give the calling thread a network namespace of its own; returns the thread's id."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise TwoPartyError(f"no network namespace can be made here ({reason}); run as root, or use the relay")
    return threading.get_native_id()


def _command(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[:160]
        raise TwoPartyError(f"`{command}` failed ({said}); does this kernel have the module? use the relay")


def _shapers(device: str, network: Network | None) -> list[str]:
    """The `tc` commands that give what leaves `device` the network's rate and half of its round-trip time."""
    if network is None:
        return []
    add, parent = f"tc qdisc add dev {device}", "root"
    commands = []
    if network.rtt_ms:
        commands.append(f"{add} {parent} handle 1: netem delay {network.rtt_ms / 2:g}ms limit 100000")
        parent = "parent 1:1"
    burst = max(_LEAST_BURST_BYTES, round(network.bytes_per_second * _BURST_S))
    shaper = f"tbf rate {network.bandwidth_mbit * 1e6:.0f}bit burst {burst} latency {_QUEUE_S:g}s"
    return [*commands, f"{add} {parent} handle 10: {shaper}"]


def kernel_lacks(network: Network) -> str:
    """Why this machine cannot shape such a link in its kernel; empty if it can."""
    try:
        with Namespaces(network):
            return ""
    except TwoPartyError as error:
        return str(error)


def relay_of(network: Network | None) -> Relay:
    """A relay that is the link `network`; None for one that only passes on."""
    return Relay() if network is None else Relay(network.rtt_ms / 2e3, network.bytes_per_second)


def run_shaped(
    task: Task,
    client_input: Any,
    server_input: Any,
    settings: Settings,
    network: Network,
    way: Way,
    *,
    on_control: Callable[[Any], Any] | None = None,
) -> tuple[Any, Any]:
    """`run_parties` over a link that is `network`, made in the given way. Raises as it does, and as `Namespaces` does.

    In the kernel's way a party whose peer fails notices after `receive_timeout_s` at the latest, as on two hosts.
    """
    if way == "relay":
        relay = relay_of(network)
        return run_parties(task, client_input, server_input, settings, relay=relay, on_control=on_control)
    with Namespaces(network) as both:
        settings = replace(settings, addresses=(both.address(CLIENT), both.address(SERVER)))
        inputs = (client_input, server_input)

        def party(rank: int) -> Any:
            return run_party(rank, task, inputs[rank], settings, on_control=on_control)

        futures = [both.submit(rank, party, rank) for rank in (CLIENT, SERVER)]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            if future.done():
                future.result()  # the one that failed first has the cause to tell
        return futures[CLIENT].result(), futures[SERVER].result()


@dataclass(frozen=True)
class Probe:
    """What plain TCP found: the median round trip of one byte, and payload bytes a second of one large transfer."""

    rtt_s: float
    bytes_per_second: float


def probe(network: Network | None, way: Way, size: int, pings: int = 20) -> Probe:
    """Send one byte back and forth `pings` times, then `size` bytes from client to server, over such a link."""
    if way == "kernel":
        with Namespaces(network) as both:
            listener = both.submit(SERVER, _listen, both.address(SERVER)).result()
            with listener:
                server = both.submit(SERVER, _answer, listener)
                found = both.submit(CLIENT, _ask, both.address(SERVER), size, pings).result()
                server.result()
        return found
    relay = relay_of(network)
    with _listen("127.0.0.1:0") as listener, ThreadPoolExecutor(1) as thread:
        target = f"127.0.0.1:{listener.getsockname()[1]}"
        doors = relay.open((target, target))
        try:
            server = thread.submit(_answer, listener)
            found = _ask(doors[SERVER], size, pings)
            server.result()
        finally:
            relay.close()
    return found


def _listen(address: str) -> socket.socket:
    return socket.create_server(split_address(address))


def _answer(listener: socket.socket) -> None:
    """Give every byte back until the other end says how many will come, then confirm when they all have."""
    listener.settimeout(_PROBE_TIMEOUT_S)
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_PROBE_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while (ping := connection.recv(1)) == _PING:
            connection.sendall(ping)
        left, room = int.from_bytes(ping + _exactly(connection, 7), "big"), bytearray(1 << 20)
        while left:
            got = connection.recv_into(room)
            if not got:
                raise TwoPartyError(f"the link closed with {left} bytes of a known transfer to come; try again")
            left -= got
        connection.sendall(_PING)


def _ask(address: str, size: int, pings: int) -> Probe:
    with socket.create_connection(split_address(address), timeout=_PROBE_TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(pings):
            began = time.perf_counter()
            connection.sendall(_PING)
            _exactly(connection, 1)
            trips.append(time.perf_counter() - began)
        rtt = statistics.median(trips)
        piece = memoryview(bytes(1 << 20))
        began = time.perf_counter()
        connection.sendall(size.to_bytes(8, "big"))
        for sent in range(0, size, len(piece)):
            connection.sendall(piece[: size - sent])
        _exactly(connection, 1)
        return Probe(rtt, size / (time.perf_counter() - began - rtt))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise TwoPartyError("the link closed in the middle of a known transfer; try again")
        data += piece
    return data
