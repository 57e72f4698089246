"""Several clients of one server, and questions that fail: who is served when, and who is told what. Without SPU."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from made_models import random_model

from aero.two_party.runtime.settings import SERVER, Settings, TwoPartyError
from aero.two_party.serving import session as serving
from aero.two_party.serving import tunnel
from aero.two_party.serving.answer import Cost, Sampling
from aero.two_party.serving.handshake import PROTOCOL, Description, versions
from aero.two_party.serving.session import Client, Server
from aero.two_party.serving.tls import Credentials, make_certificates
from aero.two_party.serving.tunnel import Listener, dial

ANSWER_S = 0.6


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"])
    return {
        role: Credentials(folder / f"{role}.pem", folder / f"{role}.key", folder / "ca.pem").context(
            server=role == "server"
        )
        for role in ("server", "client")
    }


@pytest.fixture
def served(contexts, monkeypatch):
    """A server whose answers take ANSWER_S and cost nothing; (its address, the lines it says, what goes wrong)."""
    model = random_model("SM+ScFuFFN", layers=1)
    description = Description.of(model.architecture, model.config, "tuned", Settings(), "0" * 64)
    cost = Cost(1, 1, 1, 0.0)
    wrong = []

    def run_through(tunnel, rank, task, own_input, settings, on_control=None):
        if rank == SERVER:
            time.sleep(ANSWER_S)
            if wrong:
                raise wrong.pop()
        tunnel.carry("127.0.0.1:1")
        tunnel.finish()
        return {"ids": [own_input.get("ids", [0])[0]], "costs": [cost], "setup": cost}

    monkeypatch.setattr(serving, "run_through", run_through)
    for name in ("ready", "renew"):
        monkeypatch.setattr(serving, name, lambda name=name: lines.append(name) if name == "renew" else None)
    lines: list[str] = []
    listener = Listener("127.0.0.1:0", contexts["server"])
    server = Server("none", description, "text", Settings(), 5, "0" * 64)

    def serve():
        while not over:
            try:
                server.answer(listener, lines.append)
            except OSError:
                return

    over = []
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.address, lines, wrong
    over.append(True)
    dial(listener.address, contexts["client"]).close()
    thread.join(10)
    listener.close()


def connect(address, contexts, wait_s=30.0):
    return Client(dial(address, contexts["client"], wait_s), wait_s)


def said(lines, count):
    """The lines, when there are as many: the server's comes a moment after the client's answer."""
    deadline = time.monotonic() + 5
    while len(lines) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    return lines


def ask(client, token):
    return client.ask([token], 1, Sampling(41), Settings(), lambda *_: None).ids


def test_clients_that_ask_together_are_answered_one_after_the_other(served, contexts):
    """In the order in which they connected; one that waits for less than its turn takes is told so."""
    address, lines, _ = served
    answers, ended = {}, []

    def client(token):
        answers[token] = ask(connect(address, contexts), token)
        ended.append(token)

    threads = [threading.Thread(target=client, args=(token,)) for token in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="did not answer within 0.5 s; it may be busy with another question"):
        connect(address, contexts, 0.5)
    assert time.monotonic() - began < 1.5
    for thread in threads:
        thread.join(20)
    assert answers == {token: [token] for token in range(4)} and ended == [0, 1, 2, 3]
    # The one that gave up is noticed in its turn, and the next client is served at once.
    assert ask(connect(address, contexts), 7) == [7]
    assert [": 1 new after 1 tokens" in line for line in said(lines, 6)] == [True] * 4 + [False, True]


def raw(address):
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), 10)


def test_silent_connections_hold_up_nobody(served, contexts):
    """Each has its ten seconds, but beside the others; the oldest goes when there are too many."""
    address, lines, _ = served
    quiet = [raw(address) for _ in range(tunnel.HANDSHAKES + 1)]
    began = time.monotonic()
    assert ask(connect(address, contexts), 3) == [3]
    assert ask(connect(address, contexts), 4) == [4]
    assert time.monotonic() - began < 0.8 * tunnel.HANDSHAKE_S
    assert quiet[0].recv(10) == b"" == quiet[1].recv(10)  # these made room for the last of them and the first who asks
    assert sum("refused" in line for line in said(lines, 4)) == 2
    for connection in quiet:
        connection.close()


def test_a_client_that_says_its_first_word_and_asks_nothing_is_let_go(served, contexts, monkeypatch):
    monkeypatch.setattr(serving, "QUESTION_S", 0.5)
    address, lines, _ = served
    quiet = dial(address, contexts["client"])
    quiet.send({"hello": PROTOCOL, "versions": versions()})
    assert "description" in quiet.receive()
    began = time.monotonic()
    assert ask(connect(address, contexts), 3) == [3]
    assert time.monotonic() - began < ANSWER_S + 4
    assert len(said(lines, 2)) == 2 and "did not answer within 0.5 s" in lines[0]
    quiet.close()


def test_of_too_many_that_wait_the_last_is_told_so(served, contexts, monkeypatch):
    address, lines, _ = served
    monkeypatch.setattr(tunnel, "WAITING", 1)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(connect(address, contexts), 5))) for _ in range(2)]
    for thread in threads:  # one is answered, one waits
        thread.start()
        time.sleep(0.2)
    with pytest.raises(TwoPartyError, match="1 clients are waiting for their turn; ask again later"):
        connect(address, contexts)
    for thread in threads:
        thread.join(20)
    assert answers == [[5], [5]]


def test_a_listener_that_is_closed_leaves_nothing(contexts):
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    listener, ended = Listener("127.0.0.1:0", None), []

    def wait():
        with pytest.raises(OSError, match="the listener is closed"):
            listener.arrival()
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    silent = raw(listener.address)
    deadline = time.monotonic() + 5
    while not listener._greeted and time.monotonic() < deadline:
        time.sleep(0.01)
    began = time.monotonic()
    listener.close()
    waiting.join(5)
    silent.close()
    assert ended and time.monotonic() - began < 5
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


def test_a_failed_question_ends_the_process_that_its_party_came_from(served, contexts):
    address, lines, wrong = served
    wrong.append(TwoPartyError("the server process ended by signal 11 (SIGSEGV) while running"))
    with pytest.raises(TwoPartyError, match="gave up on this question; its own output says why"):
        ask(connect(address, contexts), 1)
    assert ask(connect(address, contexts), 2) == [2]
    assert len(said(lines, 3)) == 3 and lines[0] == "renew" and "SIGSEGV" in lines[1]


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([{"hello": PROTOCOL, "versions": []}], "gives no versions"),
        ([{"hello": [1] * 1000}], "the client speaks"),
        (["description", {"tokens": 1, "new_tokens": 1, "description": ["x"]}], "asks another model"),
        (["description", {"tokens": True, "new_tokens": 1}], "names no numbers"),
        (["description", {"tokens": 1, "new_tokens": 10**30}], "names no numbers"),
        (["description", {"tokens": 1, "new_tokens": 10**6}], "leaves room for"),
        (["description", {"tokens": -1, "new_tokens": 1}], "at least one token"),
        (["description", {"tokens": 1, "new_tokens": 6}], "this server gives 5"),
        (["description", {"failed": True}], "left without a question"),
    ],
)
def test_a_hello_or_question_that_is_none(served, contexts, messages, told):
    """Told to the client if it still listens, and on the server's line; the next one is served."""
    address, lines, _ = served
    connection, heard = dial(address, contexts["client"]), {}
    for message in messages:
        if message == "description":
            message = {"hello": PROTOCOL, "versions": versions()}
        elif "description" in heard and "description" not in message:
            message |= {"description": Description.received(heard["description"]).sha256}
        connection.send(message)
        if message != {"failed": True}:
            heard = connection.receive()
    connection.close()
    assert told in heard.get("refused", told)
    assert ask(connect(address, contexts), 3) == [3]
    assert len(said(lines, 2)) == 2 and told in lines[0] and "\n" not in lines[0]
