"""The connection between two hosts without SPU: what it carries, who is let in, and how it tells of its end."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import stat
import threading
import time
import zlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from garbling import Middle

from aero.two_party.runtime import host_names
from aero.two_party.runtime.settings import TwoPartyError
from aero.two_party.serving import tls, tunnel
from aero.two_party.serving.tls import Credentials, context_for, make_certificates
from aero.two_party.serving.tunnel import Listener, dial


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two certificate authorities."""
    both = [tmp_path_factory.mktemp("certificates") / name for name in ("ours", "other")]
    for folder in both:
        make_certificates(folder, ["localhost", "127.0.0.1"])
    return both


def credentials(folder, role, ca=None):
    return Credentials(folder / f"{role}.pem", folder / f"{role}.key", (ca or folder) / "ca.pem")


def joined(server_context, client_context, host="127.0.0.1", through=None):
    """(tunnel or error at the server, the same at the client) of one connection."""
    listener = Listener("127.0.0.1:0", server_context)
    address = listener.address if through is None else through(listener.address)
    found = {}

    def serve():
        try:
            tunnel = found["server"] = listener.establish(*listener.wait())
            tunnel.send({"heard": tunnel.receive()})
        except TwoPartyError as error:
            if "server" in found:
                found["server"].close()
            found["server"] = error

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        client = dial(f"{host}:{address.rpartition(':')[2]}", client_context)
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


def renewed_credentials(authority, folder, role, start, days):
    """A certificate like that of `role` by the same authority, valid for `days` from `start`."""
    key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((authority / f"{role}.pem").read_bytes())
    own = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder(old.issuer, old.subject, own.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(start).not_valid_after(start + datetime.timedelta(days=days))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    (folder / "new.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "new.key").write_bytes(
        own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


class Echo:
    """A local party's port: sends back what it gets."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.socket.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        # A reset is an end, too: an exception would stay with pytest, and the descriptor with it.
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                connection.sendall(data)


def echoed(door, size):
    """What comes back through `door` of `size` random bytes, and whether it is the same."""
    host, port = door.split(":")
    data = os.urandom(size)
    with socket.create_connection((host, int(port)), 10) as connection:
        threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))).start()
        got = b""
        while piece := connection.recv(1 << 16):
            got += piece
    return got == data


@pytest.mark.parametrize("secure", [True, False])
def test_connections_of_both_sides_pass_unchanged_and_the_end_is_agreed(folders, secure):
    contexts = [credentials(folders[0], role).context(server=role == "server") for role in ("server", "client")]
    server, client = joined(*(contexts if secure else (None, None)))
    assert (server.name, client.name) == (("aero client", "aero server") if secure else (None, None))
    doors = [side.carry(Echo().address) for side in (server, client)]
    results = []
    threads = [threading.Thread(target=lambda door=door: results.append(echoed(door, 3_000_001))) for door in doors * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 4
    assert server.failure is None and client.failure is None
    finish = threading.Thread(target=client.finish)
    finish.start()
    server.finish()
    finish.join(10)
    server.give_up(), client.close()  # without effect


@pytest.mark.parametrize("secure", [True, False])
def test_small_frames_wait_for_no_acknowledgement(folders, secure):
    contexts = [credentials(folders[0], role).context(server=role == "server") for role in ("server", "client")]
    sides = joined(*(contexts if secure else (None, None)))
    connections = [side._writer.get_extra_info("socket") for side in sides]
    assert all(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for connection in connections)
    for side in sides:
        side.close()


def test_a_connection_to_a_party_that_does_not_listen_yet_is_closed(folders):
    server, client = joined(None, None)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        server.carry(f"127.0.0.1:{unused.getsockname()[1]}")
        host, port = client.carry(Echo().address).split(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            assert connection.recv(10) == b""
    server.close(), client.close()


def failure(tunnel, within_s=3.0):
    deadline = time.monotonic() + within_s
    while tunnel.failure is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return tunnel.failure


@pytest.mark.parametrize(("end", "said"), [("close", "is gone: it closed the connection"), ("give_up", "gave up on")])
def test_the_end_of_a_peer_is_noticed_at_once(folders, end, said):
    server, client = joined(None, None)
    for side in (server, client):
        side.carry(Echo().address)
    getattr(client, end)()
    assert said in failure(server)
    with pytest.raises(TwoPartyError, match=said):
        server.finish()


def said_done_and_left(within_s=3.0):
    """The server's end of a tunnel whose client has said that all is well and closed; the loss is known."""
    server, client = joined(None, None)
    for side in (server, client):
        side.carry(Echo().address)
    client.send({"done": True})
    client.close()
    failure(server, within_s)
    return server


def test_a_peer_that_says_it_is_done_and_leaves_is_lost_to_a_party_that_is_not():
    """It once was no loss: our party then waited for it for --timeout."""
    server = said_done_and_left()
    assert "is gone: it closed the connection" in server.failure
    assert server._bell.recv(1) == b"!"  # what a parent watches
    server.close()


def test_a_peer_that_was_done_and_left_a_moment_before_us_is_no_failure():
    said_done_and_left().finish()


def test_a_peer_that_was_done_and_gave_up_all_the_same_is_a_failure():
    server, client = joined(None, None)
    server.carry(Echo().address)
    client.send({"done": True})
    client.give_up()
    assert "gave up on" in failure(server)
    with pytest.raises(TwoPartyError, match="gave up on"):
        server.finish()


@pytest.mark.parametrize(("secure", "said"), [(True, r"changed on the way \(TLS"), (False, r"changed on the way \(ch")])
def test_a_garbled_byte_is_never_passed_on(folders, secure, said):
    contexts = [credentials(folders[0], role).context(server=role == "server") for role in ("server", "client")]
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
    host, port = client.carry(Echo().address).split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"a" * 100_000)
        deadline = time.monotonic() + 5
        while len(b"".join(got)) < 100_000 and time.monotonic() < deadline:
            time.sleep(0.01)
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
        (
            ("ours", "server", "ours"),
            ("other", "client", "ours"),
            "showed a certificate that is refused",
            "may have refused",
        ),
        (("other", "server", "ours"), ("ours", "client", "ours"), "may have refused our", "showed a certificate"),
        # A server's certificate does not make a client.
        (("ours", "server", "ours"), ("ours", "server", "ours"), "unsuitable certificate purpose", "may have refused"),
        (("ours", "server", "ours"), None, "does not speak TLS", "gone: it closed|no part"),
        (None, ("ours", "client", "ours"), "sent what is no part", "does not speak TLS|before a word"),
    ],
)
def test_another_certificate_ends_both_with_one_line(folders, server, client, at_server, at_client):
    by_name = dict(zip(("ours", "other"), folders, strict=True))

    def context(given, role):
        if given is None:
            return None
        return credentials(by_name[given[0]], given[1], by_name[given[2]]).context(server=role == "server")

    start = time.monotonic()
    errors = joined(context(server, "server"), context(client, "client"))
    assert time.monotonic() - start < 5
    for error, pattern in zip(errors, (at_server, at_client), strict=True):
        with pytest.raises(TwoPartyError, match=pattern):
            raise error
        assert "\n" not in str(error)


@pytest.mark.parametrize(("days", "shift_s", "reason"), [(2 / 1440, 0, "has expired"), (365, 3600, "is not yet valid")])
@pytest.mark.parametrize("whose", ["server", "client"])
def test_an_expired_certificate_is_refused_and_named(folders, tmp_path, days, shift_s, reason, whose):
    """Of the same authority as the good one, which has not expired; made 5 minutes ago for 2, or for an hour hence."""
    start = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=shift_s)
    other = "client" if whose == "server" else "server"
    renewed_credentials(folders[0], tmp_path, whose, start - datetime.timedelta(minutes=5), days)
    contexts = {
        whose: Credentials(tmp_path / "new.pem", tmp_path / "new.key", folders[0] / "ca.pem"),
        other: credentials(folders[0], other),
    }
    began = time.monotonic()
    errors = dict(
        zip(
            ("server", "client"),
            joined(*(contexts[role].context(server=role == "server") for role in ("server", "client"))),
            strict=True,
        )
    )
    assert time.monotonic() - began < 5
    assert re.search(
        f"the {whose} at .* showed a certificate that is refused .*{reason}.*make new ones", str(errors[other])
    )
    assert "may have refused our certificate" in str(errors[whose])


def test_a_server_under_another_name_is_refused(folders, tmp_path):
    make_certificates(tmp_path / "elsewhere", ["model.example"])
    server = credentials(tmp_path / "elsewhere", "server").context(server=True)
    client = credentials(tmp_path / "elsewhere", "client").context(server=False)
    _, error = joined(server, client)
    assert isinstance(error, TwoPartyError) and "127.0.0.1" in str(error)


def test_plain_tcp_between_hosts_is_refused_unless_asked_for(folders, tmp_path):
    assert context_for("127.0.0.1:1", None, False, server=True) is None
    assert context_for("localhost:1", None, False, server=False) is None
    assert context_for("0.0.0.0:1", None, True, server=True) is None
    for address in ("0.0.0.0:1", "192.0.2.1:9731"):
        with pytest.raises(TwoPartyError, match="not on this machine, and plain TCP between hosts is refused; give"):
            context_for(address, None, False, server=True)
    with pytest.raises(TwoPartyError, match="--key .* does not exist; make certificates"):
        Credentials(folders[0] / "server.pem", tmp_path / "none", folders[0] / "ca.pem").context(server=True)
    with pytest.raises(TwoPartyError, match="cannot be used together"):
        Credentials(folders[0] / "server.pem", folders[0] / "client.key", folders[0] / "ca.pem").context(server=True)


def test_certificates_are_private_and_never_overwritten(folders):
    for name in tls.FILES:
        mode = stat.S_IMODE((folders[0] / name).stat().st_mode)
        assert mode & 0o077 == 0 or not name.endswith(".key")
    with pytest.raises(TwoPartyError, match="already there; choose another folder"):
        make_certificates(folders[0], ["localhost"])


@pytest.mark.parametrize(
    "host", ["", "a\nb", "a b", "*", "é☃", "1.2.3.999", "x" * 3000, "-a", "a..b", "a.", "10.0.0.1:80", "host\n"]
)
def test_a_host_that_nobody_can_reach_gets_no_certificate(host, tmp_path):
    with pytest.raises(TwoPartyError, match="is neither a name nor an address of a host") as caught:
        make_certificates(tmp_path / "made", ["localhost", host])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert not (tmp_path / "made").exists()


def test_names_and_addresses_get_one(tmp_path):
    hosts = ["a-b.example.org", "my_box", "10.0.0.1", "::1", "xn--bcher-kva.example", "3com.com"]
    make_certificates(tmp_path / "made", hosts)
    certificate = x509.load_pem_x509_certificate((tmp_path / "made/server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == hosts
    (tmp_path / "file").write_text("x")
    with pytest.raises(TwoPartyError, match="file is a file; name a folder"):
        make_certificates(tmp_path / "file", hosts)


def test_an_encrypted_key_is_refused_and_nobody_asked(folders, tmp_path):
    """OpenSSL would ask for the password on the terminal, and wait."""
    key = serialization.load_pem_private_key((folders[0] / "client.key").read_bytes(), None)
    encrypted = serialization.BestAvailableEncryption(b"secret")
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encrypted)
    (tmp_path / "client.key").write_bytes(text)
    given = Credentials(folders[0] / "client.pem", tmp_path / "client.key", folders[0] / "ca.pem")
    with pytest.raises(TwoPartyError, match="client.key is encrypted, .*; decrypt it"):
        given.context(server=False)


def test_a_silent_and_an_absent_peer(folders):
    listener = Listener("127.0.0.1:0", None)
    tunnel = dial(listener.address, None)
    with pytest.raises(TwoPartyError, match="did not answer within 0.3 s; it may be busy"):
        tunnel.receive(0.3)
    tunnel.close()
    with pytest.raises(TwoPartyError, match="cannot listen at"):
        Listener(listener.address, None)
    listener.close()
    with pytest.raises(TwoPartyError, match="no server at .*start one there"):
        dial(listener.address, None)


def silent(listener):
    """A raw connection to the listener, over which nothing has been said."""
    host, port = listener.address.split(":")
    return socket.create_connection((host, int(port)), 10)


@pytest.mark.parametrize("secure", [True, False])
def test_a_client_that_connects_and_says_nothing(folders, secure):
    """Let go after a time: in the handshake of TLS, or in the wait for its first word."""
    listener = Listener("127.0.0.1:0", credentials(folders[0], "server").context(server=True) if secure else None)
    began = time.monotonic()
    with silent(listener) as client:
        with pytest.raises(TwoPartyError, match="the client at .* did not answer within 0.5 s$"):
            listener.establish(*listener.wait(), 0.5).receive(0.5)
        if secure:
            assert client.recv(100) == b""
    assert time.monotonic() - began < 3
    listener.close()


def test_a_peer_that_never_says_that_it_is_done(folders, monkeypatch):
    """Waited for GOODBYE_S, then an error: the session's end was not agreed."""
    monkeypatch.setattr(tunnel, "GOODBYE_S", 0.5)
    listener = Listener("127.0.0.1:0", None)
    client = dial(listener.address, None)
    server = listener.establish(*listener.wait())
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="did not answer within 0.5 s"):
        client.finish()
    assert 0.4 <= time.monotonic() - began < 3
    server.close()
    listener.close()


def test_nothing_is_kept_of_channels_that_have_ended():
    """However many a peer opens one after the other; one that it opens again is a new one."""
    listener, target = Listener("127.0.0.1:0", None), Echo()
    with silent(listener) as client, client.makefile("rb") as heard:
        server = listener.establish(*listener.wait())
        server.carry(target.address)
        for index in range(3 * tunnel.CHANNELS):
            channel = 1 + 2 * (index % (2 * tunnel.CHANNELS))
            whole = frame(tunnel.DATA, channel, b"x") + frame(tunnel.END, channel)
            client.sendall(frame(tunnel.OPEN, channel) + whole)
            assert heard.read(len(whole)) == whole  # sent back
        deadline = time.monotonic() + 5
        while server._writers and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.failure is None and not (server._writers or server._ended or server._half_closed)
        server.close()
    listener.close()


@pytest.fixture
def names_that_hang(monkeypatch):
    """Lookups that do not end before the test does; the limit is 0.3 s."""
    over = threading.Event()
    monkeypatch.setattr(host_names, "LOOKUP_S", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60) and [])
    yield
    over.set()


@pytest.mark.parametrize(
    "look_up",
    [
        lambda: dial("slow.example:9731", None),
        lambda: Listener("slow.example:9731", None),
        lambda: context_for("slow.example:9731", None, False, server=False),
    ],
)
def test_a_name_that_is_never_looked_up(names_that_hang, look_up):
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="the name slow.example was not looked up within 0.3 s; give an address"):
        look_up()
    assert 0.3 <= time.monotonic() - began < 2


def test_names_that_lead_nowhere_and_names_of_several_addresses(monkeypatch):
    with pytest.raises(TwoPartyError, match="no server at a+.b:9731 .'a+.b' is no name of a host.; start one"):
        dial("a" * 64 + ".b:9731", None)
    listener = Listener("127.0.0.1:0", None)
    port = int(listener.address.rpartition(":")[2])
    places = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place, port)) for place in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(tunnel, "looked_up", lambda *_: places)
    dial("two.example:1", None).close()
    monkeypatch.setattr(tunnel, "looked_up", lambda *_: places[:1])
    with pytest.raises(TwoPartyError, match="no server at two.example:1 .Connection refused.; start one there"):
        dial("two.example:1", None)
    listener.close()


def test_a_server_that_is_busy_for_longer_than_the_client_waits(folders):
    """It has taken the connection, as a system does for a busy program, and does nothing for its part of TLS."""
    listener = Listener("127.0.0.1:0", None)
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="the server at .* did not answer within 0.5 s; it may be busy"):
        dial(listener.address, credentials(folders[0], "client").context(server=False), 0.5)
    assert 0.5 <= time.monotonic() - began < 3
    listener.close()


def sending(client, data):
    with contextlib.suppress(OSError):  # the other side has heard enough
        client.sendall(data)


def descriptors():
    """Those this process has open: number and what it is, so that one that is left can be told."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself, or closed meanwhile
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def frame(kind, channel, content=b""):
    head = tunnel._HEAD.pack(kind, channel, len(content))
    return head + tunnel._CRC.pack(zlib.crc32(content, zlib.crc32(head))) + content


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"".join(frame(tunnel.OPEN, 2 * index + 1) for index in range(500)), "more connections than"),
        (frame(tunnel.OPEN, 1) * 2, "more connections than"),
        (tunnel._HEAD.pack(tunnel.DATA, 1, tunnel.CHUNK_BYTES + 1) + bytes(100), "no part of a private question"),
        (tunnel._HEAD.pack(tunnel.MESSAGE, 0, tunnel.MESSAGE_BYTES + 1) + bytes(100), "no part of a private question"),
        (tunnel._HEAD.pack(9, 0, 0) + bytes(100), "no part of a private question"),
        (os.urandom(100_000), "no part of a private question|was changed on the way"),
        # It once ended the task that delivers without a word: nobody told the cause, or even that the link was lost.
        (frame(tunnel.OPEN, 1) + frame(tunnel.END, 1) + frame(tunnel.DATA, 1, b"x"), "a connection it had ended"),
        (frame(tunnel.MESSAGE, 0, b"[1]"), "sent no message where one was due"),
        (frame(tunnel.MESSAGE, 0, b"\xff\xfe"), "sent no message where one was due"),
        (frame(tunnel.MESSAGE, 0, b"[" * 60_000), "sent no message where one was due"),
    ],
)
def test_a_peer_that_sends_too_much_or_what_is_no_frame(sent, said):
    """Ends the session with its cause; what it had opened is closed, and no more than CHANNELS of it."""
    listener, target = Listener("127.0.0.1:0", None), Echo()
    before = descriptors()
    with silent(listener) as client:
        server = listener.establish(*listener.wait())
        server.carry(target.address)
        threading.Thread(target=sending, args=(client, sent), daemon=True).start()
        assert re.search(said, failure(server, 10))
        assert len(descriptors()) < len(before) + 3 * tunnel.CHANNELS + 20
        server.close()
    deadline = time.monotonic() + 5
    while descriptors() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descriptors() - before == set()
    listener.close()
