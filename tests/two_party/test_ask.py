"""`aero ask` and `aero serve` as a person runs them: a session over TLS, what is refused, and how clients fail."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_models import random_model, torch_logits

from aero import checkpoint, cli
from aero.architecture import parse
from aero.cli import ask as asking
from aero.data.tokenizer import build
from aero.model import ModelConfig
from aero.two_party.cost import cost_model as costs
from aero.two_party.cost.ledger import Measurement, write
from aero.two_party.program.forward import operations
from aero.two_party.runtime.settings import Settings, TwoPartyError
from aero.two_party.serving import handshake as hello
from aero.two_party.serving import session as serving
from aero.two_party.serving.answer import Cost, Sampling
from aero.two_party.serving.handshake import PROTOCOL, TRAINING_ONLY, Description, difference, versions
from aero.two_party.serving.session import Answered, Client
from aero.two_party.serving.tls import Credentials, make_certificates
from aero.two_party.serving.tunnel import Listener, Tunnel, dial

CONTEXT = 12
PROMPT = "def f():"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


@pytest.fixture(scope="module")
def model():
    return random_model("EReg(SM(t)+ScFuFFN)", layers=1, vocabulary=257, context=CONTEXT)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    """A checkpoint in a folder of runs, with the tokenizer where the pipeline has it."""
    runs = tmp_path_factory.mktemp("runs")
    build({bytes([byte]): byte for byte in range(256)}, 256).save(runs / "tokens" / "tokenizer.json")
    checkpoint.save(runs / "made" / "seed_1" / "checkpoint.safetensors", model)
    return runs / "made" / "seed_1" / "checkpoint.safetensors"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder, ["127.0.0.1"])
    return folder


def security(folder, role):
    return [f"--certificate={folder}/{role}.pem", f"--key={folder}/{role}.key", f"--ca={folder}/ca.pem"]


def started(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "aero.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


class Serving:
    """`aero serve` in a process of its own, and the lines it has said."""

    def __init__(self, *arguments):
        self.process = started("serve", "--listen", "127.0.0.1:0", *arguments)
        self.lines = []
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        first = self.line(0, 120)
        self.address = re.search(r"at (127\.0\.0\.1:\d+),", first)[1]

    def _read(self):
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()

    def line(self, index, within_s):
        with self._more:
            if not self._more.wait_for(lambda: len(self.lines) > index, within_s):
                raise AssertionError(f"no line {index}: {self.lines}, {self.process.poll()}")
            return self.lines[index]


@pytest.fixture(scope="module")
def server(path, certificates):
    serve = Serving("--checkpoint", path, *security(certificates, "server"))
    yield serve
    serve.process.kill()
    serve.process.wait()


def connected(server, certificates):
    names = (certificates / name for name in ("client.pem", "client.key", "ca.pem"))
    return dial(server.address, Credentials(*names).context(server=False))


def below(pid):
    """Ids of the children of process `pid`, whichever of its threads started them. A thread, or the process, that ends
    while it is looked at has none: its children go to another thread of the process."""
    children = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                children += (task / "children").read_text().split()
    return children


def parties_of(pid):
    """Ids of the party processes that process `pid` has started: children of its fork server."""
    return [party for child in below(pid) for party in below(child)]


def test_a_server_survives_its_clients_and_answers(server, certificates, model):
    """In the order of one server's life: refusals, a client killed at a random moment, an answer, Ctrl-C."""
    assert "SM(t)+ScFuFFN (L=1, H=2, d=16, V=257, context 12), program tuned" in server.lines[0]
    assert "mutually authenticated TLS" in server.lines[0] and "EReg" not in server.lines[0]

    # Another version, another model, too long a prompt, a plain client, none at all: refused at once on both sides.
    tunnel = connected(server, certificates)
    tunnel.send({"hello": PROTOCOL, "versions": versions() | {"spu": "0.9.4"}})
    refusal = "the server has spu 0.9.5, the client 0.9.4; install the same version on both"
    assert tunnel.receive() == {"refused": refusal}
    tunnel.close()
    assert server.line(1, 5).endswith(f"(aero client): failed: {refusal}")

    tunnel = connected(server, certificates)
    tunnel.send({"hello": "aero-ask-0"})
    assert "speaks aero-ask-0" in tunnel.receive()["refused"] and "aero-ask-0" in server.line(2, 5)
    tunnel.close()

    client = Client(connected(server, certificates), 10)
    assert client.description.model_config.context == CONTEXT
    client._tunnel.send({"tokens": 3, "new_tokens": 1, "description": "0" * 64})
    assert "another model than the one published" in client._tunnel.receive()["refused"]
    client.close()
    assert "another model" in server.line(3, 5)

    client = Client(connected(server, certificates), 10)
    client._tunnel.send({"tokens": 13, "new_tokens": 1, "description": client.description.sha256})
    assert "the prompt has 13 tokens, the model's context is 12" in client._tunnel.receive()["refused"]
    client.close()
    assert "13 tokens" in server.line(4, 5)

    tunnel = dial(server.address, None)
    tunnel.send({"hello": PROTOCOL, "versions": versions()})
    with pytest.raises(TwoPartyError):
        tunnel.receive()
    tunnel.close()
    assert "refused: the client at" in server.line(5, 5)

    # A client killed at a random moment of a long question: noticed within 4 s, nothing of it is left after 10.
    arguments = ("--server", server.address, *security(certificates, "client"))
    with started("ask", *arguments, "--tokens", CONTEXT, "a") as asking_:
        while not parties_of(server.process.pid):
            time.sleep(0.05)
        time.sleep(random.uniform(0, 15))
        parties = parties_of(asking_.pid)
        asking_.kill()
        killed = time.monotonic()
    assert "is gone: it closed the connection" in server.line(6, 4), time.monotonic() - killed
    assert not parties_of(server.process.pid)
    # Killed before it has begun, a party sees the end of its parent when it begins.
    while any(Path(f"/proc/{pid}").exists() for pid in parties):
        assert time.monotonic() - killed < 10
        time.sleep(0.05)

    with started("ask", *arguments, "--tokens", 2, "--json", PROMPT) as asking_:
        out, error = asking_.communicate(timeout=280)
    assert (asking_.returncode, error) == (0, "")
    answer = json.loads(out)
    ids = list(PROMPT.encode())
    for token in answer["ids"]:
        assert token == torch_logits(model, np.array(ids)).argmax()
        ids.append(token)
    assert len(answer["ids"]) == 2 and answer["prompt_tokens"] == len(PROMPT)
    assert answer["description"]["architecture"] == "SM(t)+ScFuFFN"
    size = sum(cost["bytes_client"] + cost["bytes_server"] for cost in (answer["setup"], *answer["costs"]))
    assert f"(aero client): 2 new after {len(PROMPT)} tokens, {size / 1e6:.1f} MB" in server.line(7, 10)

    server.process.send_signal(signal.SIGINT)
    assert server.line(8, 10) == "stopped; 1 answered, 6 failed"
    assert server.process.wait(10) == 0 and server.process.stderr.read() == ""


@pytest.mark.parametrize("victim", [pytest.param("server", marks=pytest.mark.slow), "its party"])
def test_a_server_killed_at_a_random_moment_ends_the_question(victim, path, certificates):
    """SIGKILL of `aero serve`, or of the party that it started: one line of the client's, no answer, nothing left."""
    server = Serving("--checkpoint", path, *security(certificates, "server"))
    arguments = ("--server", server.address, *security(certificates, "client"))
    try:
        with started("ask", *arguments, "--tokens", CONTEXT - 1, "--json", "a") as asking_:
            while not (parties_of(server.process.pid) and parties_of(asking_.pid)):
                assert asking_.poll() is None, asking_.communicate()
                time.sleep(0.05)
            delay = random.uniform(0, 15)
            time.sleep(delay)
            parties, own = parties_of(server.process.pid), parties_of(asking_.pid)
            os.kill(server.process.pid if victim == "server" else int(parties[0]), signal.SIGKILL)
            killed = time.monotonic()
            out, error = asking_.communicate(timeout=20)
        assert (asking_.returncode, out) == (1, ""), (delay, error)
        assert error.startswith("error: ") and error.count("\n") == 1, (delay, error)
        while any(Path(f"/proc/{pid}").exists() for pid in (*parties, *own)):
            assert time.monotonic() - killed < 20, delay
            time.sleep(0.05)
        if victim == "its party":  # the server tells which question failed, and takes the next
            assert "failed: " in server.line(1, 20) and server.process.poll() is None
    finally:
        server.process.kill()
        server.process.wait()


def test_what_is_refused_before_anything_starts(path, certificates, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serving, "run_parties", None)
    here = ["ask", "--checkpoint", str(path)]
    for arguments, said in [
        ([*here, "a" * 13], "the prompt has 13 tokens, the model's context is 12; shorten it by 1"),
        ([*here, "--tokens", "6", PROMPT], "leaves room for 5 new ones"),
        ([*here, ""], "the prompt is empty"),
        ([*here, "--tokens", "0", PROMPT], "--tokens 0 must be at least 1"),
        ([*here, "--program", "fast", PROMPT], "unknown program 'fast'"),
        ([*here, "--temperature", "-1", PROMPT], "temperature -1.0 must be 0"),
        ([*here, "--temperature", "1", "--seed", "-1", PROMPT], "seed -1 must be 0 or above"),
        ([*here, "--timeout", "0", PROMPT], "timeout_s 0"),
        ([*here, "--ca", "x", PROMPT], "belong together"),
        ([*here, *security(certificates, "client"), PROMPT], "are for --server"),
        (["ask", "--checkpoint", str(tmp_path / "none"), PROMPT], "does not exist; train the run first"),
        (["ask", "--checkpoint", str(tmp_path), PROMPT], "is a folder: give the checkpoint.safetensors of a run"),
        ([*here, "--server", "127.0.0.1:1", PROMPT], "not allowed with argument"),
        (["ask", "--server", "192.0.2.1:9731", PROMPT], "plain TCP between hosts is refused"),
        (["serve", "--checkpoint", str(path), "--listen", "0.0.0.0:0"], "plain TCP between hosts is refused"),
        (["serve", "--checkpoint", str(path), "--most-tokens", "0"], "--most-tokens must be at least 1, got 0"),
        (["ask", "--server", "nowhere", PROMPT], "is not host:port"),
        (["ask", "--server", "127.0.0.1:1", "--tokens", "-5", PROMPT], "--tokens -5 must be at least 1"),
        (["ask", "--server", "127.0.0.1:1", ""], "the prompt is empty"),
        (["ask", "--server", "127.0.0.1:1", "--temperature", "nan", PROMPT], "temperature nan must be 0"),
        *(
            (
                ["ask", "--server", "127.0.0.1:1", "--wait", wait, PROMPT],
                f"--wait {said} must be above 0 and below 1,000",
            )
            for wait, said in (("inf", "inf"), ("nan", "nan"), ("0", "0"), ("1e6", "1e+06"))
        ),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            cli.main(arguments)
        assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""
    alone = tmp_path / "checkpoint.safetensors"
    alone.write_bytes(path.read_bytes())
    with pytest.raises(ValueError, match="no tokenizer was found .*--tokenizer"):
        cli.main(["ask", "--checkpoint", str(alone), PROMPT])
    build({bytes([byte]): byte for byte in range(256)} | {b"ab": 256}, 257).save(tmp_path / "larger.json")
    with pytest.raises(ValueError, match="has 258 entries, the model 257"):
        cli.main([*here, "--tokenizer", str(tmp_path / "larger.json"), PROMPT])


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"hello": PROTOCOL, "versions": versions() | {"code": "1"}}, "the server has code 1, the client "),
        ({"hello": "other"}, "speaks other, not aero-ask-1"),
        (
            {"hello": PROTOCOL, "versions": versions(), "description": {"program": "tuned"}},
            "published a model that cannot",
        ),
        ({"refused": "busy\n\x1b[31m"}, "refused: busy"),
        ({}, "speaks None"),
    ],
)
def test_a_server_of_another_kind_is_left_at_once(said, error):
    listener = Listener("127.0.0.1:0", None)
    heard = []

    def serve():
        tunnel = listener.establish(*listener.wait())
        tunnel.receive()
        tunnel.send(said)
        heard.append(tunnel.receive())
        tunnel.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with pytest.raises(TwoPartyError, match=error) as caught:
        Client(dial(listener.address, None), 5)
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)
    thread.join(10)
    listener.close()
    assert heard == [{"failed": True}]


def test_another_model_than_expected(path, tmp_path):
    """A server in this process, which no question ever reaches."""
    description, tokenizer, weights = asking._published(path, None, "tuned", Settings())
    server = serving.Server(path, description, asking._text_of(tokenizer), Settings(), 5, weights)
    listener = Listener("127.0.0.1:0", None)
    lines = []
    for arguments, said in [
        (["--expect", "0" * 64], "the server has another model than expected: SM(t)+ScFuFFN"),
        (["--expect", description.sha256[:7]], "another model than expected"),
        (["--expect", description.sha256[:8], "--program", "as_written"], "the server runs tuned, not as_written"),
        (["--tokens", "6"], "6 new tokens are asked for, this server gives 5"),
    ]:
        thread = threading.Thread(target=server.answer, args=(listener, lines.append), daemon=True)
        thread.start()
        began = time.monotonic()
        with pytest.raises(ValueError, match=re.escape(said)):
            cli.main(["ask", "--server", listener.address, *arguments, "a"])
        thread.join(10)
        assert not thread.is_alive() and time.monotonic() - began < 5, said
    listener.close()
    assert [line.partition(": ")[2] for line in lines] == ["failed: the client left without a question"] * 3 + [
        "failed: 6 new tokens are asked for, this server gives 5"
    ]


def retrained(path):
    """Writes another model of the same sizes to `path`."""
    checkpoint.save(path, random_model("EReg(SM(t)+ScFuFFN)", seed=1, layers=1, vocabulary=257, context=CONTEXT))


@pytest.fixture
def own_path(path, tmp_path):
    """The checkpoint of a folder of runs that this test may write to."""
    return shutil.copytree(path.parents[2], tmp_path / "runs") / path.relative_to(path.parents[2])


def test_weights_that_are_no_longer_the_published_ones_are_not_asked_here(own_path, monkeypatch, capsys):
    """Nothing else tells them apart: the fixed point was checked and the program chosen for other ones."""
    published = asking._published
    monkeypatch.setattr(asking, "_published", lambda *given: (published(*given), retrained(own_path))[0])
    with pytest.raises(ValueError, match="^server: checkpoint .* changed since it was published; start the server, or"):
        cli.main(["ask", "--checkpoint", str(own_path), "a"])
    assert capsys.readouterr().out == ""


def test_weights_that_are_no_longer_the_published_ones_are_not_served(own_path, monkeypatch, capsys):
    """The client is told neither why nor their hash, by which it could tell which of the models it knows is served."""
    monkeypatch.setattr(serving, "renew", lambda: None)  # both sides' parties are of one fork server here
    sent, send = [], Tunnel.send
    monkeypatch.setattr(Tunnel, "send", lambda self, message, *more: (sent.append(message), send(self, message, *more)))
    description, tokenizer, published = asking._published(own_path, None, "tuned", Settings())
    server = serving.Server(own_path, description, asking._text_of(tokenizer), Settings(), 5, published)
    retrained(own_path)
    listener, lines = Listener("127.0.0.1:0", None), []
    thread = threading.Thread(target=server.answer, args=(listener, lines.append), daemon=True)
    thread.start()
    with pytest.raises(TwoPartyError, match="gave up on this question; its own output says why"):
        cli.main(["ask", "--server", listener.address, "a"])
    thread.join(60)
    listener.close()
    assert len(lines) == 1 and re.search("failed: server: checkpoint .* changed since it was published", lines[0])
    assert any("tokenizer" in message for message in sent) and published not in json.dumps(sent)
    assert capsys.readouterr().out == ""


def test_tokens_are_printed_as_they_come_and_then_what_they_cost(path, monkeypatch, capsys):
    shown = []

    def ask_here(path, weights, description, ids, new_tokens, sampling, settings, on_token):
        costs = [Cost(1_500_000, 2_500_000, 40, 2.0)] * new_tokens
        assert ids == list(PROMPT.encode()) and sampling == Sampling(257, 0.0, 0)
        for token in "né".encode():
            on_token(token, costs[0])
            shown.append(capsys.readouterr().out)
        return Answered(list("né".encode()), costs, Cost(10_000_000, 12_000_000, 5000, 3.0))

    monkeypatch.setattr(serving, "ask_here", ask_here)
    cli.main(["ask", "--checkpoint", str(path), "--tokens", "3", PROMPT])
    # The first byte of a character waits for the second.
    assert shown == ["n", "", "é"]
    out = capsys.readouterr().out
    assert "3 tokens after 8: 4.5 MB from the client, 7.5 MB from the server, 120 messages, " in out
    assert "; a token 4.0 MB, 40 messages, about " in out and " rounds, 2.0 s\n" in out
    assert "set-up, once a session: 22.0 MB, 5000 messages, 3.0 s" in out


def test_what_a_token_says_to_a_terminal_is_written_out(path, monkeypatch, capsys):
    """The tokenizer is the server's: a token of its own may clear a screen, or rename a window."""

    def ask_here(path, weights, description, ids, new_tokens, sampling, settings, on_token):
        for token in b"a\x1b[2J\x9b\x07\r\t\n\x7f":
            on_token(token, cost)
        return Answered([1], [cost], cost)

    cost = Cost(1, 1, 1, 0.0)
    monkeypatch.setattr(serving, "ask_here", ask_here)
    cli.main(["ask", "--checkpoint", str(path), "--tokens", "2", PROMPT])
    out = capsys.readouterr().out
    assert out.startswith("a\\x1b[2J") and "\\x07\\r\t\n\\x7f" in out
    assert not [char for char in out if unicodedata.category(char) == "Cc" and char not in "\n\t"]
    assert asking._harmless("é\u2028\u200d\x85\x9b") == "é\u2028\u200d\\x85\\x9b"
    # Bidirectional overrides and isolates, and what is not seen at all; but no joiner of a script or of emoji.
    assert asking._harmless("a\u202eb\u2066c\u200f\ufeff\U000e0041") == r"a\u202eb\u2066c\u200f\ufeff\U000e0041"
    assert asking._harmless("\u200c\U0001f469\u200d\U0001f4bb") == "\u200c\U0001f469\u200d\U0001f4bb"


def test_a_server_gives_a_question_an_hour_unless_told_otherwise():
    parser = argparse.ArgumentParser()
    asking.add_commands(parser.add_subparsers())
    for more, seconds in ([], 3600), (["--total", "7"], 7):
        assert asking._settings(parser.parse_args(["serve", "--checkpoint", "x", *more])).total_timeout_s == seconds
    assert asking._settings(parser.parse_args(["ask", "--checkpoint", "x", "y"])).total_timeout_s is None
    with pytest.raises(ValueError, match="total_timeout_s 0.0 must be"):
        asking._settings(parser.parse_args(["serve", "--checkpoint", "x", "--total", "0"]))


def test_help_says_what_a_time_out_is_of(capsys):
    """One message: a whole question may take longer."""
    for command in ("ask", "serve"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert "longest wait for one message of the other party" in " ".join(capsys.readouterr().out.split())


VARIANT = "cheetah-FM64-18-exact"


def measured(op, shape, rounds, variant=VARIANT):
    return Measurement(op, shape, "gpt2", 128, variant, 0, 0, 0, rounds, 0, 0, 1, "{}")


def keep(root, rows, name="results/two_party/all_ops.csv"):
    write(root / name, rows, Measurement)


def of_program(program):
    """What a server publishes of a model of two layers."""
    config = ModelConfig(vocabulary=257, context=CONTEXT, layers=2, heads=2, width=16, ffn_width=64)
    return Description.of(parse("SM(t)+ScFuFFN"), config, program, Settings(), "0" * 64)


def needed(description, length):
    return operations(description.parsed, description.model_config, description.program, length)


def test_rounds_are_composed_or_said_to_be_unknown(tmp_path):
    """From the files and the protocol of `aero cost`, whatever file of them has the operation."""
    description = of_program("tuned")
    rounds, unknown = asking._rounds(description, 8, 1, tmp_path)
    assert rounds is None and unknown == (
        "the kept costs of operations (results/two_party/asked_ops.csv and others) are not in this folder; run it in "
        "the root folder of a clone of this project"
    )
    passes = [needed(description, length) for length in (8, 9)]
    every = {(one.name, one.shape) for counts in passes for one in counts}
    rows = [measured(*one, 2.0) for one in sorted(every)]
    other = [measured(*one, 50.0, "cheetah-FM64-18-lsb_error") for one in sorted(every)]
    keep(tmp_path, [*rows[:5], *other])
    keep(tmp_path, rows[5:], "runs/two_party/ops.csv")
    assert asking._rounds(description, 8, 2, tmp_path) == (2 * sum(sum(counts.values()) for counts in passes), None)
    keep(tmp_path, rows[:5])
    keep(tmp_path, [row for row in rows[5:] if row.op != "inverse_sums"], "runs/two_party/ops.csv")
    assert asking._rounds(description, 8, 2, tmp_path) == (None, "inverse_sums was not measured")


def test_who_asks_from_elsewhere_has_the_rounds_of_the_clone(tmp_path, monkeypatch):
    """A client on another host stands in any folder; without a clone either, one line says what to do."""
    monkeypatch.chdir(tmp_path)
    description = of_program("as_written")
    (tmp_path / "clone").mkdir()
    rows = [measured(one.name, one.shape, 2.0) for one in needed(description, 8)]
    keep(tmp_path / "clone", rows)
    monkeypatch.setattr(costs, "ROOT", tmp_path / "clone")
    expected = 2 * sum(needed(description, 8).values())
    assert asking._rounds(description, 8, 1) == (expected, None)
    keep(tmp_path, [replace(row, rounds=3.0) for row in rows])
    assert asking._rounds(description, 8, 1) == (1.5 * expected, None)  # its own go first
    (tmp_path / "results/two_party/all_ops.csv").unlink()
    monkeypatch.setattr(costs, "ROOT", tmp_path / "gone")
    assert asking._rounds(description, 8, 1) == (
        None,
        "the kept costs of operations are neither in this folder nor beside this package; run it in the root folder of "
        "a clone of this project",
    )


def test_rounds_of_other_sizes_are_those_of_the_law(tmp_path):
    """A maximum over twice the entries takes 10 rounds more; the number of its blocks, which follows the rows, none."""
    description = of_program("tuned")
    rows = [measured(f"exponentials(blocks={blocks},split=1)", f"12x{blocks}x{n}", 20.0 + 10 * log)
            for blocks in (1, 16) for log, n in ((7, 128), (8, 256))]  # fmt: skip
    fixed = {(one.name, one.shape) for one in needed(description, 8) if one.kind != "exponentials"}
    keep(tmp_path, [*rows, *(measured(*one, 3.0) for one in sorted(fixed))])
    counts = needed(description, 8)
    softmax = {one.name: count for one, count in counts.items() if one.kind == "exponentials"}
    assert softmax == {"exponentials(blocks=8,split=1)": 1, "exponentials(blocks=1,split=1)": 1}
    found, unknown = asking._rounds(description, 8, 1, tmp_path)
    assert unknown is None and found == pytest.approx(3 * (sum(counts.values()) - 2) + 2 * (20 + 10 * 3))


def test_rounds_are_those_of_the_same_constants(tmp_path):
    """An exponential of another protocol is another operation, though of the same kind."""
    description = of_program("tuned-split_exponential")
    every = sorted({(one.name, one.shape) for one in needed(description, 8)})
    keep(tmp_path, [measured(name.replace("split=0", "split=1"), shape, 2.0) for name, shape in every])
    said = "exponentials(blocks=8,split=0) was not measured"
    assert asking._rounds(description, 8, 1, tmp_path) == (None, said)
    assert asking._rounds(of_program("tuned"), 8, 1, tmp_path)[1] is None


def test_rounds_that_were_not_measured_are_no_number(tmp_path):
    """As `--no-rounds` leaves them; JSON knows no NaN."""
    description = of_program("tuned")
    every = sorted({(one.name, one.shape) for one in needed(description, 8)})
    keep(tmp_path, [measured(*one, math.nan) for one in every])
    rounds, unknown = asking._rounds(description, 8, 1, tmp_path)
    assert rounds is None and re.fullmatch(r"the rounds of \S+ were not measured", unknown)


@pytest.mark.parametrize(
    "damage", ["a,b\n1,2\n", "\x00", "{head}{line}x\n", "{head}" + "x" * 140_000 + "\n", "{head}odd,2x0,"]
)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_damaged_file_of_measurements_keeps_no_answer_back(path, tmp_path, monkeypatch, capsys, damage, as_json):
    """The pass has been made by then, and paid for."""
    keep(tmp_path, [measured("linear", "8x8,8x8", 1.0)])
    file = tmp_path / "results/two_party/all_ops.csv"
    head, line = file.read_text().splitlines(keepends=True)
    file.write_text(damage.replace("{head}", head).replace("{line}", line.rstrip()))
    cost = Cost(1, 1, 1, 0.0)
    monkeypatch.setattr(serving, "ask_here", lambda *given: (given[-1](97, cost), Answered([97], [cost], cost))[1])
    monkeypatch.chdir(tmp_path)
    cli.main(["ask", "--checkpoint", str(path), PROMPT, *(["--json"] if as_json else [])])
    out = capsys.readouterr().out
    if as_json:
        answer = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert answer["text"] == "a" and answer["rounds"] is None and answer["rounds_unknown"]
    else:
        assert out.startswith("a\n\n1 token after 8: ") and "messages, rounds unknown (" in out


def test_the_description_tells_sizes_and_nothing_of_training():
    config = ModelConfig(vocabulary=41, context=12, layers=2, heads=2, width=16, ffn_width=64, init_std=0.7)
    description = Description.of(parse("EReg(SM(t)+ScFuFFN)"), config, "tuned", Settings(), "0" * 64)
    assert Description.received(json.loads(json.dumps(vars(description)))) == description
    assert "0.7" not in json.dumps(vars(description)) and not TRAINING_ONLY & set(description.config)
    other = Description.of(parse("SM(t)+ScFuFFN"), config, "as_written", Settings(), "0" * 64)
    assert other.sha256 != description.sha256
    with pytest.raises(ValueError, match="unknown program"):
        Description.of(parse("SM+R"), config, "fast", Settings(), "0" * 64)
    for change in ({"config": {}}, {"protocol": {"field": "FM64"}}, {"program": "x"}, {"more": 1}, {"architecture": 3}):
        with pytest.raises(TwoPartyError, match="cannot be run here"):
            Description.received(vars(description) | change)
    assert difference(versions(), versions()) is None
    assert "gives no versions" in difference(None, versions())
    assert hello.plain("a\x1b[0m\n" + "b" * 400) == "a [0m " + "b" * 294


def test_sampling_follows_the_logits_and_the_seed():
    logits = np.array([0.0, 3.0, 1.0, 50.0])
    assert Sampling(3).choose(logits, 0) == 1  # entry 3 is none of the tokenizer's
    drawn = [Sampling(3, 1.0, 5).choose(logits, index) for index in range(2000)]
    assert drawn == [Sampling(3, 1.0, 5).choose(logits, index) for index in range(2000)]
    expected = np.exp(logits[:3]) / np.exp(logits[:3]).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / 2000, expected, atol=0.03)
