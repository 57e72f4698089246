"""Several clients of one server, hostile clients and servers, and what a server publishes. Without SPU processes."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import random_model
from middle import wait_until

from aero.architecture import parse
from aero.model import ModelConfig
from aero.two_party.runtime.channel import Channel
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings, TwoPartyError
from aero.two_party.serving import answer, listener, session
from aero.two_party.serving.answer import Cost, Sampling
from aero.two_party.serving.handshake import PROTOCOL, TRAINING_ONLY, Description, version_mismatch, versions
from aero.two_party.serving.listener import Arrival, Listener
from aero.two_party.serving.session import Client, Published, Server
from aero.two_party.serving.tls import make_certificates, tls_context
from aero.two_party.serving.tunnel import CLIENT_MESSAGE_BYTES, dial, plain

ANSWER_S = 0.6
MODEL = random_model("SM+ScFuFFN", layers=1)
DESCRIPTION = Description.of(MODEL.architecture, MODEL.config, "tuned", "0" * 64)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"])
    return {
        role: tls_context(folder / f"{role}.pem", folder / f"{role}.key", folder / "ca.pem", server=role == "server")
        for role in ("server", "client")
    }


@pytest.fixture
def served(contexts, monkeypatch):
    """A server whose answers take ANSWER_S and cost nothing: (its address, the lines it prints, errors to raise)."""
    cost, lines, errors, over = Cost(1, 1, 1, 0.0), [], [], []

    def run_through(tunnel, rank, task, own_input, settings, on_control=None):
        if rank == SERVER:
            time.sleep(ANSWER_S)
            if errors:
                raise errors.pop()
        tunnel.carry("127.0.0.1:1")
        tunnel.finish()
        return {"ids": [own_input.get("ids", [0])[0]], "costs": [cost], "setup": cost, "wrong": False}

    monkeypatch.setattr(session, "run_through", run_through)
    monkeypatch.setattr(session, "ready", lambda: None)
    monkeypatch.setattr(session, "renew", lambda: lines.append("renew"))
    door = Listener("127.0.0.1:0", contexts["server"])
    server = Server(Published(Path("none"), DESCRIPTION, "{}", "0" * 64, "all tokens checked"), Settings(), 5)

    def serve():
        while not over:
            try:
                server.answer(door, lines.append)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield door.address, lines, errors
    over.append(True)
    door.close()
    thread.join(10)


def connect(address, contexts, wait_s=30.0):
    return Client(dial(address, contexts["client"], wait_s), wait_s)


def said(lines, count):
    """The lines, once there are as many: the server's comes a moment after the client's answer."""
    wait_until(lambda: len(lines) >= count)
    return lines


def ask(client, token):
    return client.ask([token], 1, Sampling(41), Settings(), lambda *_: None).ids


def test_clients_that_ask_together_are_answered_in_turn(served, contexts):
    """In the order in which they connected; one that waits for less than its turn takes gets one line."""
    address, lines, _ = served
    answers = {}
    threads = [
        threading.Thread(target=lambda token=token: answers.update({token: ask(connect(address, contexts), token)}))
        for token in range(3)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.2)
    with pytest.raises(TwoPartyError, match="did not answer within 0.5 s; it may be busy with another question"):
        connect(address, contexts, 0.5)
    for thread in threads:
        thread.join(20)
    assert answers == {token: [token] for token in range(3)} and list(answers) == [0, 1, 2]
    # The one that gave up is noticed in its turn, and the next client is served at once.
    client = connect(address, contexts)
    assert client.checked == "all tokens checked" and ask(client, 7) == [7]
    assert [": 1 new after 1 tokens" in line for line in said(lines, 5)] == [True] * 3 + [False, True]


def test_silent_connections_delay_nobody(served, contexts):
    """Each has its ten seconds, beside the others; the oldest goes when there are too many."""
    address, lines, _ = served
    host, port = address.split(":")
    quiet = [socket.create_connection((host, int(port)), 10) for _ in range(listener.HANDSHAKES + 1)]
    began = time.monotonic()
    assert ask(connect(address, contexts), 3) == [3]
    assert time.monotonic() - began < 0.8 * listener.HANDSHAKE_S
    assert quiet[0].recv(10) == b"" == quiet[1].recv(10)
    assert wait_until(lambda: sum("too many clients" in line for line in lines) == 2)
    for connection in quiet:
        connection.close()


def test_a_client_that_asks_nothing_is_let_go(served, contexts, monkeypatch):
    monkeypatch.setattr(session, "QUESTION_S", 0.5)
    address, lines, _ = served
    quiet = dial(address, contexts["client"])
    quiet.send({"hello": PROTOCOL, "versions": versions()})
    assert "description" in quiet.receive()
    assert ask(connect(address, contexts), 3) == [3]
    assert len(said(lines, 2)) == 2 and "did not answer within 0.5 s" in lines[0]
    quiet.close()


def test_of_too_many_that_wait_the_last_is_refused(served, contexts, monkeypatch):
    address, _, _ = served
    monkeypatch.setattr(listener, "WAITING", 1)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(ask(connect(address, contexts), 5))) for _ in range(2)]
    for thread in threads:  # one is answered, one waits
        thread.start()
        time.sleep(0.2)
    with pytest.raises(TwoPartyError, match="1 clients are waiting; ask again later"):
        connect(address, contexts)
    for thread in threads:
        thread.join(20)
    assert answers == [[5], [5]]


def test_a_failed_question_renews_the_process_that_its_party_came_from(served, contexts):
    address, lines, errors = served
    errors.append(TwoPartyError("the server process ended by signal 11 (SIGSEGV) while running"))
    with pytest.raises(TwoPartyError, match="gave up on this question; its own output says why"):
        ask(connect(address, contexts), 1)
    assert ask(connect(address, contexts), 2) == [2]
    assert len(said(lines, 3)) == 3 and lines[0] == "renew" and "SIGSEGV" in lines[1]


def test_the_log_of_failed_clients_is_limited(monkeypatch):
    """Anybody can connect, without a certificate; the next line after a while counts what was left out."""
    monkeypatch.setattr(session, "ready", lambda: None)
    monkeypatch.setattr(session, "LOG_LINES", 3)
    monkeypatch.setattr(session, "LOG_S", 0.2)
    arrivals = SimpleNamespace(arrival=lambda: Arrival("192.0.2.1:5", None, {}, "192.0.2.1:5: failed"))
    server, lines = Server(Published(Path("none"), DESCRIPTION, "{}", "0" * 64), Settings(), 5), []
    assert not any(server.answer(arrivals, lines.append) for _ in range(50))
    assert lines == ["192.0.2.1:5: failed"] * 3
    time.sleep(0.25)
    server.answer(arrivals, lines.append)
    assert len(lines) == 4 and "47" in lines[-1]


HELLO = {"hello": PROTOCOL, "versions": versions()}
QUESTION = {"tokens": 1, "new_tokens": 1, "cached": True, "description": DESCRIPTION.sha256}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"hello": "aero-ask-0"}], "the client speaks aero-ask-0"),
        ([HELLO | {"versions": []}], "gives no versions"),
        ([HELLO | {"versions": versions() | {"spu": "0.9.4"}}], "the client 0.9.4; install the same version on both"),
        ([HELLO, QUESTION | {"description": ["x"]}], "asks another model"),
        ([HELLO, QUESTION | {"tokens": True}], "must be integers"),
        ([HELLO, QUESTION | {"new_tokens": 10**30}], "must be integers"),
        ([HELLO, QUESTION | {"new_tokens": 10**6}], "leaves room for"),
        ([HELLO, QUESTION | {"tokens": -1}], "at least one token"),
        ([HELLO, QUESTION | {"tokens": 13}], "13 tokens, too many for the model's context of 12"),
        ([HELLO, QUESTION | {"new_tokens": 6}], "this server gives 5"),
        ([HELLO, QUESTION | {"cached": 1}], "cached must be true or false"),
        ([HELLO, {"failed": True}], "left without a question"),
    ],
)
def test_a_hello_or_question_that_is_refused(served, contexts, messages, reason):
    """Reported to the client and on the server's line."""
    address, lines, _ = served
    connection, heard = dial(address, contexts["client"]), {}
    for message in messages:
        connection.send(message)
        if "failed" not in message:
            heard = connection.receive()
    assert len(said(lines, 1)) == 1 and reason in lines[0] and "\n" not in lines[0]
    assert reason in heard.get("refused", reason)
    connection.close()


def test_a_clients_message_has_a_few_numbers_and_no_more(served, contexts):
    address, lines, _ = served
    connection = dial(address, contexts["client"])
    connection.send({"hello": "x" * CLIENT_MESSAGE_BYTES})
    assert "no part of a private question" in said(lines, 1)[0]
    connection.close()


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)),
    max_leaves=8,
)


def answer_of_a_server(messages):
    """What a client raises at a server that sends these messages; None if it accepts them."""
    door, heard = Listener("127.0.0.1:0", None), []

    def serve():
        tunnel = door.arrival().tunnel
        for message in messages:
            tunnel.send(message)
        heard.append(tunnel.receive())
        tunnel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        Client(dial(door.address, None), 5).close()
    except TwoPartyError as error:
        return str(error)
    finally:
        thread.join(10)
        door.close()
        assert heard == [{"failed": True}]
    return None


PUBLISHED = HELLO | {"description": asdict(DESCRIPTION), "tokenizer": "{}"}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (PUBLISHED | {"versions": versions() | {"code": "1"}}, "the server has code 1, the client "),
        (PUBLISHED | {"hello": "other"}, "speaks other, not aero-ask-2"),
        (PUBLISHED | {"description": {"program": "tuned"}}, "published a model that cannot"),
        (PUBLISHED | {"tokenizer": "{\ud800}"}, "published a tokenizer that is not text"),
        ({"refused": "busy\n\x1b[31m"}, "refused: busy"),
        ({}, "speaks None"),
    ],
)
def test_a_server_of_another_kind_is_left_with_one_line(message, error):
    line = answer_of_a_server([message])
    assert re.search(error, line) and "\n" not in line and "\x1b" not in line


@settings(deadline=None, max_examples=20)
@given(st.dictionaries(st.sampled_from(["hello", "versions", "description", "tokenizer", "refused"]), JSON))
def test_any_message_of_a_server_ends_in_one_line(changes):
    line = answer_of_a_server([PUBLISHED | changes])
    assert line is None or "\n" not in line


def changed(**changes):
    content = asdict(DESCRIPTION)
    return content | {
        name: content[name] | value if isinstance(value, dict) else value for name, value in changes.items()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"layers": 10**9}},
        {"config": {"layers": 255.5}},
        {"config": {"width": 2**17, "vocabulary": 2**20, "heads": 1}},  # placeholders for its weights: terabytes
        {"config": {"layer_norm_eps": float("nan")}},
        {"config": {"tied": 1}},
        {"config": []},
        {"protocol": {"threads": 10**6}},
        {"protocol": {"threads": True}},
        {"protocol": {"field": "FM32", "fraction_bits": 12}},
        {"program": 3},
        {"program": "tuned@" + "9" * 5000},
        {"architecture": "SM+ScFuFFNi_" + "9" * 5000},
        {"tokenizer_sha256": ["a"]},
        {"prefix": [True]},
        {"prefix": [41]},
        {"prefix": [1] * 12},
        {"more": 1},
    ],
)
def test_a_published_model_must_be_typed_and_of_a_possible_size(changes):
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="the server published a model that cannot be run here") as caught:
        Description.received(changed(**changes))
    assert len(str(caught.value)) < 1000 and time.monotonic() - began < 5


def test_the_description_has_sizes_and_nothing_of_training():
    config = ModelConfig(vocabulary=41, context=12, layers=2, heads=2, width=16, ffn_width=64, init_std=0.7)
    description = Description.of(parse("EReg(SM(t)+ScFuFFN)"), config, "tuned", "0" * 64)
    assert Description.received(json.loads(json.dumps(vars(description)))) == description
    assert "0.7" not in json.dumps(vars(description)) and not TRAINING_ONLY & set(description.config)
    other = Description.of(parse("SM(t)+ScFuFFN"), config, "as_written", "0" * 64)
    assert other.sha256 != description.sha256
    with pytest.raises(ValueError, match="unknown program"):
        Description.of(parse("SM+R"), config, "fast", "0" * 64)
    assert version_mismatch(versions(), versions()) is None
    assert plain("a\x1b[0m\n" + "b" * 400) == "a [0m " + "b" * 294


def test_sampling_follows_the_logits_and_the_seed():
    logits = np.array([0.0, 3.0, 1.0, 50.0])
    assert Sampling(3).choose(logits, 0) == 1  # the tokenizer has no entry 3
    drawn = [Sampling(3, 1.0, 5).choose(logits, index) for index in range(800)]
    assert drawn[:50] == [Sampling(3, 1.0, 5).choose(logits, index) for index in range(50)]
    expected = np.exp(logits[:3]) / np.exp(logits[:3]).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 800, expected, atol=0.05)


@pytest.mark.parametrize(
    ("later", "left"), [(None, "about 4 s left of this pass"), (0, "about 4 s left"), (2, "about 28 s left")]
)
def test_progress_of_a_pass_by_hand(monkeypatch, later, left):
    """Layers of 2 s after 4 s before the first one: at the third of four, 8 s are over and 4 to go."""
    said, now = [], [0.0]
    monkeypatch.setattr(answer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    party = SimpleNamespace(control=lambda message: said.append(message[1]))
    before_part = answer._reporter(party, "token 1 of 3", 1_000_000, 4, later)
    for now[0], names in (
        (4.0, ["w.layers.0.qkv.weight"]),
        (6.0, ["x", "w.layers.1.up.weight"]),
        (8.0, ["w.layers.2.a"]),
    ):
        before_part(names, 500_000)
    assert said[0] == "token 1 of 3, 1.0 MB so far" and said[1] == "token 1 of 3: layer 1 of 4, 1.5 MB so far"
    assert said[-1] == f"token 1 of 3: layer 3 of 4, 1.5 MB so far, {left}"


# Shares from a hostile party.


@pytest.fixture(scope="module")
def io():
    import spu
    from spu import libspu

    field = libspu.FieldType.FM64
    return spu.Io(2, libspu.RuntimeConfig(protocol=libspu.ProtocolKind.CHEETAH, field=field, fxp_fraction_bits=18))


def shared(io, values):
    """(header, metadata, chunks) of a share, as a party sends it."""
    from spu import libspu

    share = io.make_shares(values, libspu.Visibility.VIS_SECRET, -1)[1]
    chunks = list(share.share_chunks)
    return {"name": "x", "shape": [2, 3], "dtype": "<f4", "chunks": len(chunks)}, share.meta, chunks


def received(*messages):
    """What the client makes of these messages as the share of x, float32 (2, 3)."""
    channel = Channel.__new__(Channel)
    channel.rank, channel.other, channel._settings, left = CLIENT, SERVER, Settings(), list(messages)

    def recv(_):
        if not left:
            raise RuntimeError("Get data timeout")  # as SPU
        return left.pop(0)

    channel.link = SimpleNamespace(recv=recv)
    return channel.receive_share("x", (2, 3), np.dtype(np.float32))


def test_a_share_is_checked_before_spu_takes_it(io):
    head, meta, chunks = shared(io, np.arange(6, dtype=np.float32).reshape(2, 3))
    header = json.dumps(head).encode()
    assert received(header, meta, *chunks).meta == meta
    public = meta.replace(b"cheetah.AShr<FM64>", b"Pub2k<FM64>\x00\x00\x00\x00\x00\x00\x00")
    wrong = [(bad, meta, *chunks) for bad in (b"[]", b"3", b"[" * 20_000, b"\xff", b"{}")]
    wrong += [(header, bad, *chunks) for bad in (b"", meta[:-3], b"\xff" * 9, public)]
    wrong += [(header, meta, bad) for bad in (b"", chunks[0][:-8], chunks[0] + b"\0" * 8, b"\x80" * 1_000_000)]
    wrong += [(json.dumps(head | {"chunks": chunks_}).encode(), meta, *chunks) for chunks_ in (True, -1, 10**9)]
    for values in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32), np.zeros((2, 2**16), np.float32)):
        _, other_meta, other_chunks = shared(io, values)
        wrong.append((json.dumps(head | {"chunks": len(other_chunks)}).encode(), other_meta, *other_chunks))
    for messages in wrong:
        with pytest.raises(TwoPartyError, match="the share of x"):
            received(*messages)
