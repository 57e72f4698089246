"""The connection between two hosts without SPU: what it carries, who is let in, and how its end is reported."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import shutil
import signal
import socket
import stat
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st
from middle import Echo, Middle, wait_until

from aero.two_party.runtime import addresses
from aero.two_party.runtime.settings import TwoPartyError
from aero.two_party.serving import listener as listening
from aero.two_party.serving import tls, tunnel
from aero.two_party.serving.listener import Listener
from aero.two_party.serving.tls import context_for, make_certificates, tls_context
from aero.two_party.serving.tunnel import dial


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two certificate authorities."""
    both = [tmp_path_factory.mktemp("certificates") / name for name in ("ours", "other")]
    for folder in both:
        make_certificates(folder, ["localhost", "127.0.0.1", "::1"])
    return both


def write_private(path, content):
    path.touch(0o600)
    path.write_bytes(content)


def context(folder, role, ca=None):
    files = folder / f"{role}.pem", folder / f"{role}.key", (ca or folder) / "ca.pem"
    return tls_context(*files, server=role == "server")


def joined(server_context=None, client_context=None, through=None, at="127.0.0.1:0"):
    """(tunnel or error at the server, the same at the client) of one connection, after a hello and its answer."""
    listener = Listener(at, server_context)
    address = listener.address if through is None else through(listener.address)
    found = {}

    def serve():
        arrival = listener.arrival()
        found["server"] = arrival.tunnel or TwoPartyError(arrival.failure)
        if arrival.tunnel is not None:
            arrival.tunnel.send({"heard": arrival.hello})

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        client = dial(address, client_context)
        try:
            client.send({"hello": "you"})
            assert client.receive() == {"heard": {"hello": "you"}}
        except TwoPartyError:
            client.close()
            raise
    except TwoPartyError as error:
        client = error
    thread.join(30)
    listener.close()
    return found["server"], client


def connect(address):
    return socket.create_connection(addresses.split_address(address), 10)


def echoed(door, size):
    """Whether `size` random bytes come back through `door` unchanged."""
    data = os.urandom(size)
    with connect(door) as connection:
        threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))).start()
        got = b""
        while piece := connection.recv(1 << 16):
            got += piece
    return got == data


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize("secure", [True, False])
def test_connections_of_both_sides_pass_unchanged_and_the_end_is_agreed(folders, secure, host):
    known = "".join(file.read_text() for file in Path("/proc/net").glob("if_inet6"))
    if host == "[::1]" and f"{1:032x}" not in known:
        pytest.skip("no IPv6 here")
    contexts = [context(folders[0], role) for role in ("server", "client")]
    server, client = joined(*(contexts if secure else ()), at=f"{host}:0")
    assert f"{host}:" in client.peer and f"{host}:" in server.peer
    assert (server.name, client.name) == (("aero client", "aero server") if secure else (None, None))
    doors = [side.carry(Echo().address) for side in (server, client)]
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda door: echoed(door, 3_000_001), doors * 2, timeout=30))
    assert server.failure is None and client.failure is None
    finish = threading.Thread(target=client.finish)
    finish.start()
    server.finish()
    finish.join(10)
    server.give_up(), client.close()  # without effect


@pytest.mark.parametrize("address", ["::1:9731", "[::1]", "[]:1", "[localhost]:1", "a:b:1", "h:99999", "h:\u0668", "h"])
def test_an_address_that_is_no_host_and_port(address):
    with pytest.raises(ValueError, match="host:port|brackets"):
        addresses.split_address(address)


def test_a_connection_to_a_party_that_does_not_listen_yet_is_closed():
    server, client = joined()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.carry(f"127.0.0.1:{unused.getsockname()[1]}")
        with connect(client.carry(Echo().address)) as connection:
            assert connection.recv(10) == b""
    server.close(), client.close()


def failure(tunnel, within_s=3.0):
    wait_until(lambda: tunnel.failure is not None, within_s)
    return tunnel.failure


@pytest.mark.parametrize(("end", "said"), [("close", "is gone: it closed the connection"), ("give_up", "gave up on")])
def test_the_end_of_a_peer_is_noticed_at_once(end, said):
    server, client = joined()
    for side in (server, client):
        side.carry(Echo().address)
    getattr(client, end)()
    assert said in failure(server)
    assert server._signal.recv(1) == b"!"  # what a parent watches
    with pytest.raises(TwoPartyError, match=said):
        server.finish()


@pytest.mark.parametrize("end", ["close", "give_up"])
def test_a_peer_that_was_done_before_it_left_is_no_failure_unless_it_gave_up(end):
    server, client = joined()
    server.carry(Echo().address)
    client.send({"done": True})
    getattr(client, end)()
    assert failure(server)
    with contextlib.nullcontext() if end == "close" else pytest.raises(TwoPartyError, match="gave up on"):
        server.finish()


def test_a_peer_that_never_says_that_it_is_done(monkeypatch):
    monkeypatch.setattr(tunnel, "GOODBYE_S", 0.5)
    server, client = joined()
    with pytest.raises(TwoPartyError, match="did not answer within 0.5 s"):
        client.finish()
    server.close()


@pytest.mark.parametrize(("secure", "said"), [(True, r"changed on the way \(TLS"), (False, r"changed on the way \(ch")])
def test_a_garbled_byte_is_never_passed_on(folders, secure, said):
    contexts = [context(folders[0], role) for role in ("server", "client")]
    middles = []

    def through(address):
        middles.append(Middle(address))
        return middles[0].address

    server, client = joined(*(contexts if secure else (None, None)), through=through)
    got = []

    class Sink(Echo):
        def answer(self, connection):
            while data := connection.recv(1 << 16):
                got.append(data)

    server.carry(Sink().address)
    with connect(client.carry(Echo().address)) as connection:
        connection.sendall(b"a" * 100_000)
        wait_until(lambda: len(b"".join(got)) == 100_000)
        middles[0].garble()
        connection.sendall(b"a" * 100_000)
        assert re.search(said, failure(server))
        assert set(b"".join(got)) == set(b"a")
    server.close(), client.close()
    middles[0].close()


@pytest.mark.parametrize(
    ("server", "client", "at_server", "at_client"),
    [
        # The client's certificate is of another CA than the one the server names.
        (("ours", "server", "ours"), ("other", "client", "ours"), "a certificate that is refused", "may have refused"),
        (("other", "server", "ours"), ("ours", "client", "ours"), "may have refused our", "showed a certificate"),
        # A server's certificate does not make a client.
        (("ours", "server", "ours"), ("ours", "server", "ours"), "unsuitable certificate purpose", "may have refused"),
        (("ours", "server", "ours"), None, "does not speak TLS", "gone: it closed|no part"),
        (None, ("ours", "client", "ours"), "sent data that is no part", "does not speak TLS|at once"),
    ],
)
def test_another_certificate_ends_both_with_one_line(folders, server, client, at_server, at_client):
    by_name = dict(zip(("ours", "other"), folders, strict=True))

    def made(given, is_server):
        if given is None:
            return None
        folder, role, ca = by_name[given[0]], given[1], by_name[given[2]]
        files = folder / f"{role}.pem", folder / f"{role}.key", ca / "ca.pem"
        return tls_context(*files, server=is_server)

    start = time.monotonic()
    errors = joined(made(server, True), made(client, False))
    assert time.monotonic() - start < 5
    for error, pattern in zip(errors, (at_server, at_client), strict=True):
        with pytest.raises(TwoPartyError, match=pattern):
            raise error
        assert "\n" not in str(error)


@pytest.mark.parametrize("whose", ["server", "client"])
def test_an_expired_certificate_is_refused_and_named(folders, tmp_path, whose):
    """Signed by the same authority as the good one."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    authority = serialization.load_pem_private_key((folders[0] / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((folders[0] / f"{whose}.pem").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(old.issuer, old.subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=1))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / f"{whose}.pem").write_bytes(builder.sign(authority, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, no_password)
    write_private(tmp_path / f"{whose}.key", private)
    other = "client" if whose == "server" else "server"
    contexts = {whose: context(tmp_path, whose, folders[0]), other: context(folders[0], other)}
    found = joined(contexts["server"], contexts["client"])
    errors = dict(zip(("server", "client"), found, strict=True))
    assert re.search(f"the {whose} at .* showed a certificate that is refused .*has expired", str(errors[other]))
    assert "may have refused our certificate" in str(errors[whose])


def test_a_server_under_another_name_is_refused(tmp_path):
    make_certificates(tmp_path / "elsewhere", ["model.example"])
    _, error = joined(context(tmp_path / "elsewhere", "server"), context(tmp_path / "elsewhere", "client"))
    assert isinstance(error, TwoPartyError) and "127.0.0.1" in str(error)


def test_plain_tcp_between_hosts_is_refused_unless_asked_for(folders, tmp_path):
    for server, host in ((True, "127.0.0.1"), (True, "[::1]"), (False, "localhost")):
        assert context_for(f"{host}:1", None, False, server=server) is None
    assert context_for("0.0.0.0:1", None, True, server=True) is None
    for address in ("0.0.0.0:1", "[::]:0", "192.0.2.1:9731"):
        with pytest.raises(TwoPartyError, match="plain TCP between hosts is refused"):
            context_for(address, None, False, server=True)
    with pytest.raises(TwoPartyError, match="--key .* does not exist"):
        tls_context(folders[0] / "server.pem", tmp_path / "none", folders[0] / "ca.pem", server=True)
    with pytest.raises(TwoPartyError, match="cannot be used together"):
        tls_context(folders[0] / "server.pem", folders[0] / "client.key", folders[0] / "ca.pem", server=True)


def test_an_encrypted_key_is_refused_without_a_prompt(folders, tmp_path):
    key = serialization.load_pem_private_key((folders[0] / "client.key").read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)
    write_private(tmp_path / "client.key", text)
    with pytest.raises(TwoPartyError, match="client.key is encrypted"):
        tls_context(folders[0] / "client.pem", tmp_path / "client.key", folders[0] / "ca.pem", server=False)


@pytest.fixture
def own(folders, tmp_path):
    """(the client's credentials in a folder of their own, a function that loads them)."""
    names = ("client.pem", "client.key", "ca.pem")
    for name in names:
        shutil.copy(folders[0] / name, tmp_path / name)
    files = dict(zip(("certificate", "key", "ca"), (tmp_path / name for name in names), strict=True))
    return files, lambda: tls_context(**files, server=False)


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("key", 0o644, "can be read by other users .mode 644.; chmod 600"),
        ("key", 0o640, "can be read by"),
        ("key", 0o620, "can be read by"),
        ("ca", 0o666, "can be changed by other users .mode 666.; chmod 644"),
        ("certificate", 0o664, "can be changed by"),
    ],
)
def test_files_that_other_users_can_read_or_change_are_refused(own, name, mode, said):
    files, load = own
    load()
    files[name].chmod(mode)
    with pytest.raises(TwoPartyError, match=said):
        load()
    target = files[name].rename(files["key"].with_name("elsewhere"))  # the same through a link
    files[name].symlink_to(target)
    with pytest.raises(TwoPartyError, match=said):
        load()
    target.chmod(0o600)
    load()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["key", "ca"])
def test_a_key_or_a_link_of_another_user_is_refused(own, name):
    files, load = own
    path = files[name]
    os.chown(path, 12345, -1)
    with pytest.raises(TwoPartyError, match="belongs to user 12345"):
        load()
    os.chown(path, 0, -1)
    link = path.rename(path.with_name("elsewhere"))
    path.symlink_to(link)
    os.chown(path, 12345, -1, follow_symlinks=False)
    with pytest.raises(TwoPartyError, match="belongs to user 12345"):
        load()


@pytest.mark.parametrize("name", ["key", "ca", "certificate"])
def test_a_device_is_no_credential(folders, name):
    files = {"certificate": "client.pem", "key": "client.key", "ca": "ca.pem"}
    paths = {field: folders[0] / file for field, file in files.items()} | {name: Path("/dev/zero")}
    with pytest.raises(ValueError, match="/dev/zero is a folder, pipe, socket or device"):
        tls_context(**paths, server=False)


def test_a_dangling_link_in_the_place_of_a_key_stops_before_anything_is_written(tmp_path):
    (tmp_path / "client.key").symlink_to(tmp_path / "others")
    with pytest.raises(TwoPartyError, match="already there"):
        make_certificates(tmp_path, ["localhost"])
    assert os.listdir(tmp_path) == ["client.key"]


def test_keys_are_private_and_never_overwritten(folders):
    for name in tls.FILES:
        mode = stat.S_IMODE((folders[0] / name).stat().st_mode)
        assert mode & 0o077 == 0 or not name.endswith(".key")
    with pytest.raises(TwoPartyError, match="already there; choose another folder"):
        make_certificates(folders[0], ["localhost"])


@pytest.mark.parametrize("host", ["", "a\nb", "*", "é☃", "1.2.3.999", "x" * 3000, "-a", "a..b", "10.0.0.1:80"])
def test_an_impossible_host_gets_no_certificate(host, tmp_path):
    with pytest.raises(TwoPartyError, match="is neither a name nor an address of a host") as caught:
        make_certificates(tmp_path / "made", ["localhost", host])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert not (tmp_path / "made").exists()


def test_names_and_addresses_are_in_the_servers_certificate(tmp_path):
    hosts = ["a-b.example.org", "my_box", "10.0.0.1", "::1", "xn--bcher-kva.example", "3com.com"]
    make_certificates(tmp_path / "made", hosts)
    certificate = x509.load_pem_x509_certificate((tmp_path / "made/server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == hosts


def test_a_silent_and_an_absent_server():
    listener = Listener("127.0.0.1:0", None)
    client = dial(listener.address, None)
    with pytest.raises(TwoPartyError, match="did not answer within 0.3 s; it may be busy"):
        client.receive(0.3)
    client.close()
    with pytest.raises(TwoPartyError, match="cannot listen at"):
        Listener(listener.address, None)
    listener.close()
    with pytest.raises(TwoPartyError, match="no server at .*start one there"):
        dial(listener.address, None)


def test_a_signal_ends_the_wait_though_its_exception_was_lost():
    listener = Listener("127.0.0.1:0", None)
    before = signal.signal(signal.SIGINT, lambda *_: None)  # as where a destructor loses KeyboardInterrupt
    listener.end_on_signals()
    for late in (0, 0.2):
        threading.Timer(late, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        time.sleep(0.1)
        with pytest.raises(KeyboardInterrupt):
            listener.arrival()
    listener.close()
    signal.signal(signal.SIGINT, before)
    with pytest.raises(OSError, match="closed"):
        listener.arrival()


def test_a_server_that_is_busy_for_longer_than_the_client_waits(folders):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        began = time.monotonic()
        with pytest.raises(TwoPartyError, match="the server at .* did not answer within 0.5 s; it may be busy"):
            dial(f"127.0.0.1:{busy.getsockname()[1]}", context(folders[0], "client"), 0.5)
    assert 0.5 <= time.monotonic() - began < 3


@pytest.mark.parametrize("secure", [True, False])
def test_a_client_that_says_nothing_is_let_go(folders, monkeypatch, secure):
    for module in (listening, tunnel):
        monkeypatch.setattr(module, "HANDSHAKE_S", 0.5)
    monkeypatch.setattr(tunnel.Tunnel.establish, "__defaults__", (0.5,))
    listener = Listener("127.0.0.1:0", context(folders[0], "server") if secure else None)
    with connect(listener.address) as client:
        arrival = listener.arrival()
        assert arrival.tunnel is None and "did not answer within 0.5 s" in arrival.failure
        assert client.recv(100) == b""
    listener.close()


def test_names_that_do_not_resolve_and_names_of_several_addresses(monkeypatch):
    with pytest.raises(TwoPartyError, match="no server at a+.b:9731 .'a+.b' is not a host name.; start one"):
        dial("a" * 64 + ".b:9731", None)
    listener = Listener("127.0.0.1:0", None)
    port = int(listener.address.rpartition(":")[2])
    places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place, port)) for place in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(tunnel, "look_up", lambda *_: places)
    dial("two.example:1", None).close()
    listener.close()
    monkeypatch.undo()
    over = threading.Event()
    monkeypatch.setattr(addresses, "LOOKUP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    with pytest.raises(TwoPartyError, match="the name slow.example was not resolved within 0.3 s"):
        dial("slow.example:9731", None)
    over.set()


# Hostile peers.


def frame(kind, channel, content=b""):
    head = tunnel.HEAD.pack(kind, channel, len(content))
    return head + tunnel.CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content


@contextlib.contextmanager
def hostile():
    """(a raw connection, the server's tunnel at its other end, which carries connections to an echo)."""
    listener = Listener("127.0.0.1:0", None)
    with connect(listener.address) as client:
        client.sendall(frame(tunnel.MESSAGE, 0, b"{}"))
        server = listener.arrival().tunnel
        server.carry(Echo().address)
        yield client, server
        server.close()
    listener.close()


def send(client, data):
    with contextlib.suppress(OSError):  # the other side has closed
        client.sendall(data)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"".join(frame(tunnel.OPEN, 2 * index + 1) for index in range(500)), "more connections than"),
        (frame(tunnel.OPEN, 1) * 2, "more connections than"),
        (tunnel.HEAD.pack(tunnel.DATA, 1, tunnel.CHUNK_BYTES + 1) + bytes(100), "no part of a private question"),
        (
            tunnel.HEAD.pack(tunnel.MESSAGE, 0, tunnel.SERVER_MESSAGE_BYTES) + bytes(100),
            "no part of a private question",
        ),
        (os.urandom(100_000), "no part of a private question|was changed on the way"),
        (frame(tunnel.OPEN, 1) + frame(tunnel.END, 1) + frame(tunnel.DATA, 1, b"x"), "a connection that it had closed"),
        (frame(tunnel.MESSAGE, 0, b"\xff\xfe"), "did not send the expected message"),
        (frame(tunnel.MESSAGE, 0, b"[" * 60_000), "did not send the expected message"),
    ],
)
def test_a_peer_that_sends_too_much_or_malformed_frames(sent, said):
    """Ends the session with its cause; what it had opened is closed, and no more than CHANNELS of it."""
    tunnel.event_loop()
    before = descriptors()
    with hostile() as (client, server):
        threading.Thread(target=send, args=(client, sent), daemon=True).start()
        assert re.search(said, failure(server, 10))
        assert descriptors() < before + 3 * tunnel.CHANNELS + 20
    assert wait_until(lambda: descriptors() <= before + 1)  # the echo's own socket stays


FRAMES = st.builds(frame, st.integers(0, 4), st.integers(0, 3), st.binary(max_size=40))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(FRAMES, st.binary(max_size=40)), max_size=8))
def test_any_frames_end_in_one_line_and_leave_nothing_open(frames):
    tunnel.event_loop()
    before = descriptors()
    with hostile() as (client, server):
        send(client, b"".join(frames))
        client.shutdown(socket.SHUT_WR)
        assert "\n" not in failure(server, 10)
    assert wait_until(lambda: descriptors() <= before + 1)


def test_nothing_is_kept_of_channels_that_have_ended():
    """However many a peer opens one after the other."""
    with hostile() as (client, server), client.makefile("rb") as heard:
        for index in range(2 * tunnel.CHANNELS):
            channel = 1 + 2 * (index % tunnel.CHANNELS)
            whole = frame(tunnel.DATA, channel, b"x") + frame(tunnel.END, channel)
            client.sendall(frame(tunnel.OPEN, channel) + whole)
            assert heard.read(len(whole)) == whole
        assert wait_until(lambda: not server._writers) and server.failure is None and not server._ended


def test_data_for_a_party_that_was_killed_is_dropped_in_silence(monkeypatch):
    logged = []
    monkeypatch.setattr(logging.getLogger("asyncio"), "warning", logged.append)
    with hostile() as (client, server), socket.create_server(("127.0.0.1", 0)) as party:
        server._target = f"127.0.0.1:{party.getsockname()[1]}"
        client.sendall(frame(tunnel.OPEN, 1) + frame(tunnel.DATA, 1, b"x"))
        killed, _ = party.accept()
        assert killed.recv(1) == b"x"
        killed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
        killed.close()
        assert client.recv(100) == frame(tunnel.END, 1)
        client.sendall(frame(tunnel.DATA, 1, b"x") * 20 + frame(tunnel.MESSAGE, 0, b'{"done": true}'))
        assert wait_until(lambda: server._peer_done) and not logged
