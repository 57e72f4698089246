"""Peers that send what no peer should: what once ended in a hang, a traceback or an error without its cause.

The connection is real, the party behind it is not started: `make fuzz` has the same targets and many more cases.
"""

from __future__ import annotations

import json
import struct
import time
from dataclasses import asdict

import numpy as np
import pytest

from aero.errors import LONGEST_LINE, one_line
from aero.two_party.runtime.settings import TwoPartyError
from aero.two_party.serving.handshake import PROTOCOL, Description, versions
from aero.two_party.serving.tunnel import QUESTION_BYTES
from benchmarks.fuzz_links import END, MESSAGE, OPEN, _tiny_description, frame, link_client, link_server, shares

DEEP = b"[" * 20_000
DESCRIPTION, _ = _tiny_description()


def refused(target, case, *named):
    began = time.monotonic()
    with pytest.raises(TwoPartyError) as caught:
        target.read(case)
    line = one_line(caught.value)
    for text in named:
        assert text in line
    assert len(line) <= LONGEST_LINE and time.monotonic() - began < 5
    return line


def message(content):
    return frame(MESSAGE, 0, content if isinstance(content, bytes) else json.dumps(content).encode())


HELLO = message({"hello": PROTOCOL, "versions": versions()})
QUESTION = message({"tokens": 2, "new_tokens": 1, "description": DESCRIPTION.sha256})


@pytest.fixture
def server(tmp_path):
    return link_server(tmp_path)


@pytest.fixture
def client(tmp_path):
    return link_client(tmp_path)


def test_json_of_any_depth_is_no_message_at_the_server(server):
    refused(server, message(DEEP), "sent no message where one was due")
    refused(server, HELLO + message(DEEP), "sent no message where one was due")


def test_json_of_any_depth_while_connections_are_carried_is_told_at_once(server):
    """The task that delivers what comes would have ended without a word, and our party have waited for nothing."""
    refused(server, HELLO + QUESTION + frame(OPEN, 1, b"") + message(DEEP), "sent no message where one was due")


def test_json_of_any_depth_is_no_message_at_the_client(client):
    refused(client, message(DEEP), "sent no message where one was due")


def test_a_tokenizer_that_is_no_text_is_the_servers_fault(client):
    """Half of a surrogate pair, which JSON may hold and UTF-8 may not."""
    hello = {"hello": PROTOCOL, "versions": versions(), "description": asdict(DESCRIPTION), "tokenizer": "{\ud800}"}
    refused(client, message(hello), "published a tokenizer that is no text")


def test_a_client_says_a_few_numbers_and_no_more(server):
    """A message may have 32 MB from the server, which sends a tokenizer; JSON of that size takes a gigabyte."""
    long = message(b'{"hello": "' + b"x" * QUESTION_BYTES + b'"}')
    refused(server, long, "no part of a private question")


@pytest.mark.parametrize(
    "question",
    [{"tokens": True}, {"tokens": 1e999}, {"tokens": -1}, {"new_tokens": "1"}, {"tokens": 9}, {"new_tokens": 10**4000}],
)
def test_a_question_in_other_numbers_is_refused(server, question):
    asked = {"tokens": 2, "new_tokens": 1, "description": DESCRIPTION.sha256} | question
    refused(server, HELLO + message(asked), "here:1")


def test_frames_of_channels_that_nobody_opened_are_passed_over(server):
    server.read(HELLO + QUESTION + frame(END, 7, b"") * 3 + frame(2, 9, b"x") + message({"done": True}))


def published(**changes):
    content = asdict(DESCRIPTION)
    return content | {
        name: content[name] | value if isinstance(value, dict) else value for name, value in changes.items()
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {"layers": 10**9}},
        {"config": {"layers": 255.5}},
        {"config": {"width": 2**40}},
        {"config": {"width": 2**17, "vocabulary": 2**20, "heads": 1}},  # the places of its weights are terabytes
        {"config": {"layer_norm_eps": float("nan")}},
        {"config": {"tied": 1}},
        {"protocol": {"threads": 10**6}},
        {"protocol": {"threads": True}},
        {"protocol": {"mul_lsb_error": "no"}},
        {"protocol": {"field": "FM32", "fraction_bits": 12}},  # in which SPU cannot divide
        {"protocol": {"field": "FM128"}, "program": "tuned"},
        {"program": 3},
        {"program": "tuned@" + "9" * 5000},
        {"architecture": "SM+ScFuFFNi_" + "9" * 5000},
        {"tokenizer_sha256": ["a"]},
        {"config": []},
    ],
)
def test_a_published_model_is_typed_and_of_a_size_that_can_be(changes):
    began = time.monotonic()
    with pytest.raises(TwoPartyError, match="the server published a model that cannot be run here") as caught:
        Description.received(published(**changes))
    assert len(str(caught.value)) < LONGEST_LINE and time.monotonic() - began < 5


def test_the_published_model_itself_is_received():
    assert Description.received(asdict(DESCRIPTION)) == DESCRIPTION


@pytest.fixture(scope="module")
def share(tmp_path_factory):
    return shares(tmp_path_factory.mktemp("share"))


def parts_of(case):
    found = []
    while case:
        (size,) = struct.unpack("<I", case[:4])
        found.append(case[4 : 4 + size])
        case = case[4 + size :]
    return found


def joined(*parts):
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def test_a_share_is_looked_at_before_spu_takes_it(share):
    head, meta, *chunks = parts_of(share.seeds[0])
    share.read(joined(head, meta, *chunks))
    named = "the share of x"
    for bad in (b"[]", b"3", DEEP, b'"x"', b"\xff", b"{}"):
        refused(share, joined(bad, meta, *chunks), named, "bytes that are no share")
    for bad in (b"", meta[:-3], b"\xff" * 9, meta.replace(b"AShr", b"BShr"), meta.replace(b"AShr", b"A\xff\xff\xff")):
        refused(share, joined(head, bad, *chunks), named)
    public = meta.replace(b"cheetah.AShr<FM64>", b"Pub2k<FM64>\x00\x00\x00\x00\x00\x00\x00")
    refused(share, joined(head, public, *chunks), named)
    for bad in (b"", chunks[0][:-8], chunks[0] + b"\0" * 8, b"\x80" * 1_000_000):
        refused(share, joined(head, meta, bad), named)
    refused(share, joined(json.dumps(json.loads(head) | {"chunks": True}).encode(), meta, *chunks), named)


def test_a_share_of_other_sizes_is_refused_by_its_shape(share):
    """As many bytes as its own header says, but of another shape than both agreed on."""
    import spu
    from spu import libspu

    config = libspu.RuntimeConfig(
        protocol=libspu.ProtocolKind.CHEETAH, field=libspu.FieldType.FM64, fxp_fraction_bits=18
    )
    head = parts_of(share.seeds[0])[0]
    for values in (np.zeros((3, 2), np.float32), np.zeros((2, 3), np.int32), np.zeros((2, 2**16), np.float32)):
        other = spu.Io(2, config).make_shares(values, libspu.Visibility.VIS_SECRET, -1)[1]
        content = json.dumps(json.loads(head) | {"chunks": len(other.share_chunks)}).encode()
        refused(share, joined(content, other.meta, *other.share_chunks), "the share of x", "not 'cheetah.AShr<FM64>'")
