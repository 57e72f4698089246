"""`aero serve` and `aero ask` on two hosts: two network namespaces, a cable between them and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_models import random_model, torch_logits

from aero import checkpoint
from aero.data.tokenizer import build
from aero.two_party.runtime.settings import CLIENT, SERVER, TwoPartyError
from aero.two_party.runtime.shaped_link import Namespaces
from aero.two_party.serving.tls import make_certificates

PROMPT = "def f():"


@pytest.fixture
def hosts():
    namespaces = Namespaces(None)
    try:
        namespaces.__enter__()
    except TwoPartyError as error:
        pytest.skip(str(error))
    yield namespaces
    namespaces.__exit__(None, None, None)


@pytest.mark.slow
def test_a_question_crosses_between_two_hosts(hosts, tmp_path):
    model = random_model("SM+ScFuFFN", layers=1, vocabulary=257, context=12)
    build({bytes([byte]): byte for byte in range(256)}, 256).save(tmp_path / "tokens" / "tokenizer.json")
    path = tmp_path / "made" / "seed_1" / "checkpoint.safetensors"
    checkpoint.save(path, model)
    address = hosts.address(SERVER)
    make_certificates(tmp_path / "keys", [address.partition(":")[0]])
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}

    def start(role, *arguments):
        keys = [f"--certificate={tmp_path}/keys/{role}.pem", f"--key={tmp_path}/keys/{role}.key"]
        command = [sys.executable, "-m", "aero.cli", *arguments, *keys, f"--ca={tmp_path}/keys/ca.pem"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, **pipes)

    serve = ("serve", "--listen", address, "--checkpoint", str(path), "--once")
    ask = ("ask", "--server", address, "--tokenizer", str(tmp_path / "tokens/tokenizer.json"), "--json", PROMPT)
    with hosts.submit(SERVER, start, "server", *serve).result() as server:
        try:
            assert f"at {address}," in server.stdout.readline()
            # Not from here: there is no way to that address but the cable.
            outside = start("client", *ask)
            answer, errors = outside.communicate(timeout=120)
            assert (outside.returncode, answer) == (1, "") and address in errors and errors.count("\n") == 1
            with hosts.submit(CLIENT, start, "client", *ask).result() as client:
                answer, errors = client.communicate(timeout=300)
            assert (client.returncode, errors) == (0, "")
            assert server.wait(timeout=60) == 0
        finally:
            server.kill()
    expected = int(torch_logits(model, np.array(list(PROMPT.encode()))).argmax())
    assert json.loads(answer)["ids"] == [expected]
