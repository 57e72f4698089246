"""`aero ask` and `aero serve` as a user runs them: a session over TLS, what is refused, killed processes, output."""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from made_models import random_model, torch_logits
from middle import wait_until
from tiny_hugging_face import save_with_tokenizer, tiny

from aero import checkpoint, cli
from aero.architecture import parse
from aero.cli import ask as asking
from aero.cli import display, published
from aero.cli.display import printable
from aero.data.tokenizer import build, load_tokenizer
from aero.model import ModelConfig
from aero.two_party.cost import cost_model
from aero.two_party.cost.ledger import Measurement, write
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import without_public
from aero.two_party.program.optimizations import UNREVIEWED, parse_program
from aero.two_party.runtime.settings import Settings, TwoPartyError
from aero.two_party.serving import session as serving
from aero.two_party.serving.answer import Cost, Sampling
from aero.two_party.serving.handshake import Description
from aero.two_party.serving.listener import Listener
from aero.two_party.serving.session import Answered
from aero.two_party.serving.tls import make_certificates
from aero.two_party.serving.tunnel import Tunnel, dial

CONTEXT = 12
PROMPT = "def f():"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


publish = functools.cache(published.publish)
"""Loads and probes a model once for all tests."""


@pytest.fixture(autouse=True)
def published_once(monkeypatch):
    monkeypatch.setattr(published, "publish", publish)


@pytest.fixture(scope="module")
def model():
    return random_model("EReg(SM(t)+ScFuFFN)", layers=1, vocabulary=257, context=CONTEXT)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    """A checkpoint in a folder of runs, with the tokenizer where the pipeline puts it."""
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
    """`aero serve` in a process of its own, and the lines it has printed."""

    def __init__(self, *arguments):
        self.process = started("serve", "--listen", "127.0.0.1:0", *arguments)
        self.lines = []
        self._more = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.address = re.search(r"at (127\.0\.0\.1:\d+),", self.line(0, 120))[1]

    def _read(self):
        for line in self.process.stdout:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()
        self.process.wait()
        with self._more:
            self._more.notify_all()

    def line(self, index, within_s):
        with self._more:
            self._more.wait_for(lambda: len(self.lines) > index or self.process.poll() is not None, within_s)
            assert len(self.lines) > index, (self.lines, self.process.poll() and self.process.stderr.read())
            return self.lines[index]


def children(pid):
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += (task / "children").read_text().split()
    return found


def parties_of(pid):
    """Ids of the party processes that process `pid` has started: copies of its fork server.

    Its other children are commands that the libraries run while it imports them.
    """
    return [party for child in children(pid) for party in children(child) if b"forkserver" in command_line(party)]


def command_line(pid):
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def own_parties():
    """Of this process, not of the servers that it has started."""
    return [child.pid for child in multiprocessing.active_children() if child.name.startswith("aero-")]


def wait_until_gone(pids, within_s):
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), within_s)


def hugging_face(folder, family, outliers=False):
    """A model with biases, saved in `folder`, and its tokenizer, which has a token more than the embedding.

    outliers: large values at its first position, as GPT-2 has them.
    """
    sizes = {"vocab_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 24}
    model = tiny(family, bos_token_id=None, eos_token_id=None, **sizes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
        if outliers:
            model.transformer.wpe.weight[0, 3:5] = torch.tensor([3000.0, -2000.0])
    tokenizer = save_with_tokenizer(model, folder)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def check_answer(found, logits, tokenizer, prefix, new):
    """Every new token is the most likely one by `logits` (ids -> (V,)) after the tokens before it."""
    ids = tokenizer.encode(prefix + PROMPT)
    for token in found["ids"]:
        assert token == int(logits(ids).argmax())
        ids.append(token)
    assert len(found["ids"]) == new and found["text"] == tokenizer.decode(found["ids"])


def test_a_server_survives_killed_processes_and_answers(model, path, certificates, capsys):
    """In the order of one server's life: a plain client, a killed client, a killed party, an answer, Ctrl-C."""
    server = Serving("--checkpoint", path, "--prefix", "<", *security(certificates, "server"))
    try:
        assert f"SM(t)+ScFuFFN (L=1, H=2, d=16, V=257, context {CONTEXT}), program tuned" in server.lines[0]
        assert "mutually authenticated TLS" in server.lines[0]
        plain = dial(server.address, None)
        plain.send({"hello": "without TLS"})
        with pytest.raises(TwoPartyError):
            plain.receive()
        plain.close()
        assert "does not speak TLS" in server.line(1, 5)

        ask = ["ask", "--server", server.address, *security(certificates, "client"), "--json"]
        with started(*ask, "--tokens", CONTEXT - 1, "a") as client:
            while not (parties_of(server.process.pid) and (own := parties_of(client.pid))):
                assert client.poll() is None, client.communicate()
                time.sleep(0.05)
            time.sleep(random.uniform(0, 2))
            client.kill()
        assert "is gone: it closed the connection" in server.line(2, 4)
        assert not parties_of(server.process.pid)
        wait_until_gone(own, 10)

        with ThreadPoolExecutor() as here:
            asking_here = here.submit(cli.main, [*ask, "--tokens", str(CONTEXT - 1), "a"])
            while not (parties_of(server.process.pid) and (own := own_parties())):
                assert not asking_here.done(), asking_here.result()
                time.sleep(0.05)
            time.sleep(random.uniform(0, 2))
            os.kill(int(parties_of(server.process.pid)[0]), signal.SIGKILL)
            with pytest.raises(TwoPartyError) as caught:
                asking_here.result(20)
        assert "\n" not in str(caught.value) and "failed: " in server.line(3, 20)
        wait_until_gone(own, 20)
        assert capsys.readouterr() == ("", "")

        cli.main([*ask, "--tokens", "2", PROMPT])
        out, error = capsys.readouterr()
        assert error == ""
        answer = json.loads(out)
        tokenizer = load_tokenizer(path.parents[2] / "tokens" / "tokenizer.json")
        check_answer(answer, lambda ids: torch_logits(model, np.array(ids)), tokenizer, "<", 2)
        assert answer["prompt_tokens"] == len(PROMPT)
        size = sum(cost["bytes_client"] + cost["bytes_server"] for cost in (answer["setup"], *answer["costs"]))
        assert f"(aero client): 2 new after {len(PROMPT)} tokens, {size / 1e6:.1f} MB" in server.line(4, 10)

        server.process.send_signal(signal.SIGINT)
        assert server.line(5, 10) == "stopped; 1 answered, 3 failed"
        assert server.process.wait(10) == 0 and server.process.stderr.read() == ""
    finally:
        server.process.kill()
        server.process.wait()


def test_what_is_refused_before_anything_starts(path, certificates, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serving, "run_parties", None)
    here, there = ["ask", "--checkpoint", str(path)], ["ask", "--server", "127.0.0.1:1"]
    build({bytes([byte]): byte for byte in range(256)} | {b"ab": 256}, 257).save(tmp_path / "larger.json")
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes(path.read_bytes())
    for arguments, said in [
        ([*here, "a" * 13], "the prompt has 13 tokens, too many for the model's context of 12; shorten it by 1"),
        ([*here, "--tokens", "6", PROMPT], "leaves room for 5 new ones"),
        ([*here, ""], "the prompt is empty"),
        ([*there, "--tokens", "0", PROMPT], "--tokens 0 must be at least 1"),
        ([*here, "--program", "fast", PROMPT], "unknown program 'fast'"),
        ([*there, "--temperature", "nan", PROMPT], "temperature nan must be 0"),
        ([*here, "--timeout", "0", PROMPT], "timeout_s 0"),
        ([*here, "--ca", "x", PROMPT], "belong together"),
        ([*here, *security(certificates, "client"), PROMPT], "are for --server"),
        ([*here, "--server", "127.0.0.1:1", PROMPT], "not allowed with argument"),
        ([*there, "--prefix", "a", PROMPT], "--prefix is the server's"),
        ([*here, "--prefix", "a" * 12, PROMPT], "a public prefix of 12 tokens leaves no room"),
        ([*here, "--prefix", "a" * 5, PROMPT], "too many for the model's context of 12 after a public prefix of 5"),
        (["ask", "--server", "192.0.2.1:9731", PROMPT], "plain TCP between hosts is refused"),
        (["serve", "--checkpoint", str(path), "--listen", "0.0.0.0:0"], "plain TCP between hosts is refused"),
        (["serve", "--checkpoint", str(path), "--most-tokens", "0"], "--most-tokens must be at least 1, got 0"),
        (["ask", "--server", "nowhere", PROMPT], "is not host:port"),
        ([*there, "--wait", "inf", PROMPT], "--wait inf must be above 0 and below 1,000"),
        (["ask", "--checkpoint", str(alone), PROMPT], "give its file as --tokenizer"),
        ([*here, "--tokenizer", str(tmp_path / "larger.json"), PROMPT], "has 258 entries, the model 257"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)) as caught:
            cli.main(arguments)
        assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == ""


def test_a_model_with_outliers_is_refused_without_a_prefix(tmp_path):
    hugging_face(tmp_path, "gpt2", outliers=True)
    with pytest.raises(TwoPartyError, match=r"do not fit fixed point: [\d.e+]+ in \w+ \(rsqrt\) of layer 2") as caught:
        cli.main(["ask", "--model", str(tmp_path), PROMPT])
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_the_folder_of_a_hugging_face_model_answers(family, tmp_path, capsys):
    """GPT-2's with outliers at its first position, behind a public prefix."""
    prefix = "<" if family == "gpt2" else ""
    model, tokenizer = hugging_face(tmp_path, family, outliers=bool(prefix))
    command = ["ask", "--model", str(tmp_path), "--prefix", prefix]
    with pytest.raises(ValueError, match=r"token '\[PAD\]' with id 256, but the model has only 256") as caught:
        cli.main([*command, f"{PROMPT}[PAD]"])
    assert "\n" not in str(caught.value)
    capsys.readouterr()
    cli.main([*command, "--tokens", "2", "--json", PROMPT])
    answer = json.loads(capsys.readouterr().out)
    check_answer(answer, lambda ids: model(torch.tensor([ids])).logits[0, -1], tokenizer, prefix, 2)


@pytest.mark.parametrize(
    ("listen", "more", "unreviewed"),
    [("127.0.0.1:0", [], True), ("0.0.0.0:0", [], False), ("0.0.0.0:0", ["--unreviewed"], True)],
)
def test_own_cryptography_is_off_beyond_this_machine(path, monkeypatch, capsys, listen, more, unreviewed):
    """Unless asked for, and one line says which."""

    def stop(server, listener, say):
        assert bool(parse_program(server._published.description.program)[0] & UNREVIEWED) == unreviewed
        raise KeyboardInterrupt

    monkeypatch.setattr(serving.Server, "answer", stop)
    cli.main(["serve", "--checkpoint", str(path), "--listen", listen, "--insecure", *more])
    assert ("review" in capsys.readouterr().out) == (listen != "127.0.0.1:0")


def serve_one(server, listener, lines):
    thread = threading.Thread(target=server.answer, args=(listener, lines.append), daemon=True)
    thread.start()
    return thread


def test_a_server_with_another_model_than_expected(path):
    model, _ = publish(path, None, "tuned")
    server, listener, lines = serving.Server(model, Settings(), 5), Listener("127.0.0.1:0", None), []
    sha256 = model.description.sha256
    for arguments, said in [
        (["--expect", "0" * 64], "the server has another model than expected: SM(t)+ScFuFFN"),
        (["--expect", sha256[:8], "--program", "as_written"], "the server runs tuned, not as_written"),
        (["--tokens", "6"], "6 new tokens are asked for, this server gives 5"),
    ]:
        thread = serve_one(server, listener, lines)
        with pytest.raises(ValueError, match=re.escape(said)):
            cli.main(["ask", "--server", listener.address, *arguments, "a"])
        thread.join(10)
        assert not thread.is_alive()
    listener.close()


def test_changed_weights_are_not_served(path, tmp_path, monkeypatch, capsys):
    """The published program fits the published weights. The client gets neither the reason nor any weights' hash."""
    monkeypatch.setattr(serving, "renew", lambda: None)  # both sides' parties have one fork server here
    sent, send = [], Tunnel.send
    monkeypatch.setattr(Tunnel, "send", lambda self, message, *more: (sent.append(message), send(self, message, *more)))
    own = shutil.copytree(path.parents[2], tmp_path / "runs") / path.relative_to(path.parents[2])
    model, _ = publish(own, None, "tuned")
    server, listener, lines = serving.Server(model, Settings(), 5), Listener("127.0.0.1:0", None), []
    checkpoint.save(own, random_model("EReg(SM(t)+ScFuFFN)", seed=1, layers=1, vocabulary=257, context=CONTEXT))
    thread = serve_one(server, listener, lines)
    with pytest.raises(TwoPartyError, match="gave up on this question; its own output says why"):
        cli.main(["ask", "--server", listener.address, "a"])
    thread.join(60)
    listener.close()
    assert len(lines) == 1 and re.search("failed: server: checkpoint .* changed since it was published", lines[0])
    assert any("tokenizer" in message for message in sent) and model.weights_sha256 not in json.dumps(sent)
    assert capsys.readouterr().out == ""


def answering(tokens, costs, shown=None, capsys=None):
    """In the place of `ask_here`: an answer of these tokens."""

    def ask_here(published, ids, new_tokens, sampling, settings, on_control, cached):
        assert ids == list(PROMPT.encode()) and sampling == Sampling(257, 0.0, 0)
        for token in tokens:
            on_control(("token", token))
            if capsys is not None:
                shown.append(capsys.readouterr().out)
        return Answered(list(tokens), costs, Cost(10_000_000, 12_000_000, 5000, 3.0), cached)

    return ask_here


def test_tokens_are_printed_as_they_come_and_then_their_costs(path, monkeypatch, capsys):
    shown, costs = [], [Cost(1_500_000, 2_500_000, 40, 2.0)] * 3
    monkeypatch.setattr(serving, "ask_here", answering("né".encode(), costs, shown, capsys))
    cli.main(["ask", "--checkpoint", str(path), "--tokens", "3", PROMPT])
    assert shown == [f"{PROMPT}n", "", "é"]  # the first byte of a character waits for the second
    out = capsys.readouterr().out
    rows = {line[:10]: line.split()[-4:] for line in out.splitlines()}
    assert rows["set-up, on"] == ["10.0", "12.0", "5000", "3.0"]
    assert rows["prompt, 8 "] == ["1.5", "2.5", "40", "2.0"] and rows["2 more tok"] == ["3.0", "5.0", "80", "4.0"]
    assert "2.0 s a token" in out


def test_control_characters_of_a_token_are_escaped(path, monkeypatch, capsys):
    """The tokenizer is the server's: a token of its own could clear a screen, or rename a window."""
    monkeypatch.setattr(serving, "ask_here", answering(b"a\x1b[2J\x9b\x07\r\t\n\x7f", [Cost(1, 1, 1, 0.0)]))
    cli.main(["ask", "--checkpoint", str(path), "--tokens", "2", PROMPT])
    out = capsys.readouterr().out
    assert out.startswith(f"{PROMPT}a\\x1b[2J") and "\\x07\\r\t\n\\x7f" in out
    assert not [char for char in out if unicodedata.category(char) == "Cc" and char not in "\n\t"]
    # Bidirectional overrides and invisible characters; but no joiner of a script or of emoji.
    assert printable("a\u202eb\u2066c\u200f\ufeff\U000e0041") == r"a\u202eb\u2066c\u200f\ufeff\U000e0041"
    assert printable("\u200c\U0001f469\u200d\U0001f4bb") == "\u200c\U0001f469\u200d\U0001f4bb"


def test_the_prompt_and_what_is_going_on_are_shown(path, monkeypatch, capsys):
    """Lines elsewhere than on a terminal; on one a view that is gone at the end, and the text on standard output."""
    monkeypatch.setattr(display, "PLAIN_S", 0.0)

    def ask_here(published, ids, new_tokens, sampling, settings, on_control, cached):
        on_control(("progress", "token 1 of 1: layer 3 of 12, 4.5 MB so far"))
        on_control(("token", ord("x")))
        return Answered([ord("x")], [Cost(1, 1, 1, 0.0)], Cost(1, 1, 1, 0.0), cached)

    monkeypatch.setattr(serving, "ask_here", ask_here)
    command = ["ask", "--checkpoint", str(path), PROMPT + "\x1b[2J"]
    cli.main(command)
    out, error = capsys.readouterr()
    assert out.startswith(f"{PROMPT}\\x1b[2Jx\n") and "\x1b" not in out + error
    assert "layer 3 of 12, 4.5 MB" in error and "nonsense" in error
    cli.main([*command, "--json"])
    out, error = capsys.readouterr()
    assert json.loads(out)["text"] == "x" and error == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    cli.main(command)
    out, error = capsys.readouterr()
    assert out.startswith(f"{PROMPT}\\x1b[2Jx\n") and "\x1b[2J" not in out + error
    assert "layer 3 of 12, 4.5 MB" in error and "nonsense" in error


def test_a_missing_file_or_a_port_in_use_is_reported_before_anything_is_loaded(path, tmp_path):
    """In seconds less than PyTorch takes to load."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        here = f"127.0.0.1:{used.getsockname()[1]}"
        cases = [
            (["serve", "--checkpoint", str(tmp_path / "none")], "does not exist; `make example`"),
            (["ask", "--checkpoint", str(tmp_path / "none"), "a"], "does not exist; `make example`"),
            (["serve", "--checkpoint", "/dev/zero"], "pipe, socket or device; name a file"),
            (["ask", "--checkpoint", str(tmp_path), "a"], "is a folder"),
            (["serve", "--checkpoint", str(path), "--tokenizer", "/dev/zero"], "pipe, socket or device"),
            (["serve", "--checkpoint", str(path), "--listen", here], "cannot listen at"),
            (["serve", "--checkpoint", str(path), "--listen", "::1:9731"], "in brackets, for example"),
        ]
        arguments = json.dumps([arguments for arguments, _ in cases])
        found = subprocess.run([sys.executable, "-c", REFUSED, arguments], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    for line, (_, said) in zip(json.loads(found.stdout), cases, strict=True):
        assert said in line and "\n" not in line


REFUSED = """
import json, sys
sys.modules["torch"] = sys.modules["jax"] = None  # importing them fails
from aero import cli
lines = []
for arguments in json.loads(sys.argv[1]):
    try:
        cli.main(arguments)
    except ValueError as error:
        lines.append(str(error))
print(json.dumps(lines))
"""


def test_only_a_server_limits_the_whole_question():
    parser = argparse.ArgumentParser()
    asking.add_commands(parser.add_subparsers())
    for more, seconds in ([], 3600), (["--total", "7"], 7):
        assert asking._settings(parser.parse_args(["serve", "--checkpoint", "x", *more])).total_timeout_s == seconds
    assert asking._settings(parser.parse_args(["ask", "--checkpoint", "x", "y"])).total_timeout_s is None


# Rounds, composed from measured operations.


def measured(op, shape, rounds, variant="cheetah-FM64-18-exact"):
    return Measurement(op, shape, "gpt2", 128, variant, 0, 0, 0, rounds, 0, 0, 1, "{}")


def save(root, rows):
    write(root / "results/two_party/all_ops.csv", rows, Measurement)


@pytest.fixture(scope="module")
def description():
    config = ModelConfig(vocabulary=257, context=CONTEXT, layers=2, heads=2, width=16, ffn_width=64)
    return Description.of(parse("SM(t)+ScFuFFN"), config, "tuned", "0" * 64)


def needed(description, length, past=None):
    counts = operations(description.parsed, description.model_config, description.program, length, past)
    return [(without_public(one), count) for one, count in counts.items()]


def test_rounds_are_composed_or_unknown(tmp_path, description, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cost_model, "ROOT", tmp_path)
    assert asking._rounds(description, 8, 1, False)[0] is None
    passes = [needed(description, length) for length in (8, 9)]
    row = needed(description, 1, CONTEXT - 1)
    every = sorted({(one.name, one.shape) for counts in (*passes, row) for one, _ in counts})
    rows = [measured(*one, 2.0) for one in every]
    save(tmp_path, [*rows, *(measured(*one, 50.0, "cheetah-FM64-18-lsb_error") for one in every)])
    expected = 2 * sum(count for counts in passes for _, count in counts)
    assert asking._rounds(description, 8, 2, False) == (expected, None)
    cached = 2 * sum(count for counts in (passes[0], row, row) for _, count in counts)
    assert asking._rounds(description, 8, 3, True) == (cached, None)
    # A client on another host may be in any folder: the costs are then those beside the package.
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert asking._rounds(description, 8, 2, False) == (expected, None)
    save(tmp_path, [row for row in rows if row.op != "inverse_sums"])
    assert asking._rounds(description, 8, 2, False) == (None, "the rounds of inverse_sums were not measured")
    save(tmp_path, [measured(*one, math.nan) for one in every])
    rounds, unknown = asking._rounds(description, 8, 1, False)
    assert rounds is None and re.fullmatch(r"the rounds of \S+ were not measured", unknown)


@pytest.mark.parametrize("damage", ["a,b\n1,2\n", "\x00", "{head}{line}x\n", "{head}odd,2x0,"])
def test_a_damaged_file_of_measurements_does_not_cost_the_answer(path, tmp_path, monkeypatch, capsys, damage):
    save(tmp_path, [measured("linear", "8x8,8x8", 1.0)])
    file = tmp_path / "results/two_party/all_ops.csv"
    head, line = file.read_text().splitlines(keepends=True)
    file.write_text(damage.replace("{head}", head).replace("{line}", line.rstrip()))
    monkeypatch.setattr(serving, "ask_here", answering(b"a", [Cost(1, 1, 1, 0.0)]))
    monkeypatch.chdir(tmp_path)
    cli.main(["ask", "--checkpoint", str(path), PROMPT, "--json"])
    answer = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert answer["text"] == "a" and answer["rounds"] is None and answer["rounds_unknown"]
