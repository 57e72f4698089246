"""A party has and sends only what it may: inputs, process memory and all bytes of the link are searched."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import sys
from functools import partial

import numpy as np
import pytest
from clear_text import STEP, found_in_memory, large_runs, near, occurrences, unprotected
from made_models import random_model, torch_logits
from middle import RecordingRelay

from aero import checkpoint
from aero.two_party.program.weights import weight_arrays
from aero.two_party.runtime import parties
from aero.two_party.runtime.settings import NAMES, Settings
from aero.two_party.serving.answer import Sampling, weights_sha256
from aero.two_party.serving.handshake import Description
from aero.two_party.serving.session import Published, ask_here

TOKENS, NEW, VOCABULARY = 8, 2, 257
# Random tokens, and the vocabulary's last entry repeated.
PROMPTS = [np.random.default_rng(1).integers(1, VOCABULARY, TOKENS).tolist(), [VOCABULARY - 1] * TOKENS]
TEXT = "only the one who asks may know this"


def of_prompt(prompt):
    """{name: bytes} of what exposes a prompt, in memory or on the link."""
    ones = np.eye(VOCABULARY)[prompt[:2]]  # two rows, with all the zeros around their ones
    return {
        "ids, 32 bits": np.asarray(prompt, "<i4").tobytes(),
        "ids, 64 bits": np.asarray(prompt, "<i8").tobytes(),
        "ids, text": str(prompt)[1:-1].encode(),
        "ids, pickled": pickled(prompt),
        "one-hot": ones.astype("<f4").tobytes(),
        "one-hot, fixed point": (ones / STEP).astype("<i8").tobytes(),
        "text": TEXT.encode(),
    }


def pickled(prompt):
    """The ids as they stand in the pickle of a longer message."""
    return pickle.dumps(prompt, 4)[14:-2]


def of_model(model, program="tuned"):
    """{name: bytes} of what exposes weights: a row of Q's matrix as it is in the checkpoint, and of the first
    layer's largest matrix as the program takes it, folded, and as it is multiplied by outside SPU."""
    query = model.blocks[0].attention.query.weight.detach().numpy()[3]
    of_layer = (a for name, a in weight_arrays(model, program).items() if name.startswith("layers.0.") and a.ndim == 2)
    folded = max(of_layer, key=np.size)[3]
    fixed = np.floor(folded.astype(np.float64) / STEP).astype("<i8")
    integers = np.rint(folded.astype(np.float64) / STEP).astype("<i4")
    found = {"query": query, "folded": folded, "folded, fixed point": fixed, "folded, integers": integers}
    return {name: row.tobytes() for name, row in found.items()}


class Session:
    """One question, recorded: what each process was given, its memory after a pass, the bytes of the link."""

    def __init__(self, model, path, description, prompt, patch, search_memory, new=NEW):
        self.given, self.memory = {}, {}
        relay, give = RecordingRelay(), parties._give

        def recording_give(connection, message):
            self.given[NAMES[pickle.loads(message)[0]]] = bytes(message)
            give(connection, message)

        patch.setattr(parties, "_give", recording_give)
        # As on the command line, where the prompt is an argument of the process that starts both.
        patch.setattr(sys, "argv", ["aero", "ask", "--checkpoint", str(path), TEXT])

        def on_control(said):
            if said[0] == "token" and search_memory and not self.memory:
                weights = of_model(model, description.program)
                own = {
                    "client": {"one-hot": of_prompt(prompt)["one-hot"]},
                    "server": {name: weights[name] for name in ("folded", "folded, integers")},
                }
                others = {"client": weights, "server": of_prompt(prompt)}
                for child in multiprocessing.active_children():
                    name = child.name.removeprefix("aero-")
                    self.memory[name] = found_in_memory(child.pid, own[name] | others[name])

        settings = Settings(receive_timeout_s=300)
        question = (prompt, new, Sampling(VOCABULARY), settings, on_control)
        published = Published(path, description, "", weights_sha256(model))
        patch.setattr("aero.two_party.serving.session.run_parties", partial(parties.run_parties, relay=relay))
        self.answered = ask_here(published, *question)
        self.to_server, self.to_client = relay.recorded


@pytest.fixture(scope="module")
def model():
    return random_model("SM+ScFuFFN", layers=1, vocabulary=VOCABULARY, context=TOKENS + NEW)


def recorded(model, program, folder, search_memory=True, new=NEW):
    """A session for each prompt; the memory of the first is searched."""
    path, found = folder / "checkpoint.safetensors", []
    checkpoint.save(path, model)
    description = Description.of(model.architecture, model.config, program, "0" * 64)
    for prompt in PROMPTS:
        with pytest.MonkeyPatch.context() as patch:
            found.append(Session(model, path, description, prompt, patch, search_memory and not found, new))
    return found


@pytest.fixture(scope="module")
def sessions(model, tmp_path_factory):
    return recorded(model, "tuned", tmp_path_factory.mktemp("model"))


def test_the_client_gets_the_models_own_answer(sessions, model):
    for prompt, session in zip(PROMPTS, sessions, strict=True):
        ids = list(prompt)
        for token in session.answered.ids:
            assert token == torch_logits(model, np.array(ids)).argmax()
            ids.append(token)


def test_each_process_is_given_only_what_it_owns(sessions, model):
    for prompt, session in zip(PROMPTS, sessions, strict=True):
        client, server = session.given["client"], session.given["server"]
        assert pickled(prompt) in client  # as it looks there
        assert not any(secret in server for secret in of_prompt(prompt).values())
        assert b"checkpoint.safetensors" in server and b"checkpoint" not in client
        assert not any(row in client + server for row in of_model(model).values())
        # By it a client could tell which of the models it knows is served.
        known = weights_sha256(model).encode()
        assert known in server and known not in client + session.to_client + session.to_server


def test_nothing_of_one_party_is_in_the_memory_of_the_other(sessions):
    """Looked through after the first pass, while both are waiting."""
    (client, client_size), (server, server_size) = (sessions[0].memory[name] for name in NAMES)
    assert client_size > 1e8 and server_size > 1e8
    # That the search finds what is there is seen from what each one owns.
    assert client == {"one-hot"} and server == {"folded", "folded, integers"}


def test_nothing_in_the_clear_crosses_the_link(sessions, model):
    for prompt, session in zip(PROMPTS, sessions, strict=True):
        nothing_in_the_clear(session, prompt, model, "tuned")


def nothing_in_the_clear(session, prompt, model, program):
    given = [parameter.detach().numpy() for parameter in model.parameters()]
    weights = unprotected(*given, *weight_arrays(model, program).values())
    after, logits = list(prompt), []
    for token in session.answered.ids:
        logits.append(large_runs(torch_logits(model, np.array(after))))
        assert len(logits[-1])
        after.append(token)
    # The new ids with the two before them: fewer small numbers in a row stand in any large ciphertext.
    secrets = of_prompt(prompt) | of_model(model, program)
    for name, dtype in (("new ids", "<i4"), ("new ids, wide", "<i8")):
        secrets[name] = np.asarray(after[-2 - len(logits) :], dtype).tobytes()
    secrets["new ids, text"] = str(after[-2 - len(logits) :])[1:-1].encode()
    for stream in (session.to_server, session.to_client):
        assert len(stream) > 5e6
        assert not [name for name, secret in secrets.items() if secret in stream]
        assert occurrences(weights, stream) == 0
        assert not any(near(runs, stream) for runs in logits)
    # Shares are sent by name. Beside those of random numbers that set-up runs on (a0, a1) there is one: that of
    # the logits, after each pass, to the client.
    to_server, to_client = (
        re.findall(rb'"name": "([\w.]+)"', stream) for stream in (session.to_server, session.to_client)
    )
    assert set(to_server) <= {b"a0", b"a1"}
    assert [name for name in to_client if name not in (b"a0", b"a1")] == [b"logits"] * len(logits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "program", "at_the_server"),
    [
        ("SM+ScFuFFN", "tuned+lattice_attention+narrow_comparisons", {"folded", "folded, integers"}),
        ("SM+ScFuFFN", "tuned-lattice_products", {"folded"}),
        ("SM+LN+G", "as_written+segmented_gelu+gelu_by_squares", None),
    ],
)
def test_other_programs_expose_nothing_either(tmp_path, row, program, at_the_server):
    """Nothing in the clear, one size whatever the prompt, and nothing of one party in the other's memory."""
    model = random_model(row, layers=1, vocabulary=VOCABULARY, context=TOKENS + NEW)
    found = recorded(model, program, tmp_path, at_the_server is not None, new=1)
    for prompt, session in zip(PROMPTS, found, strict=True):
        assert session.answered.ids[0] == torch_logits(model, np.array(prompt)).argmax()
        nothing_in_the_clear(session, prompt, model, program)
    of_one_size(*found)
    if at_the_server is not None:
        seen = {name: names for name, (names, _) in found[0].memory.items()}
        assert seen == {"client": {"one-hot"}, "server": at_the_server}


def test_the_search_finds_weights_and_logits_that_do_cross(sessions, model):
    """In a stream as recorded, at an odd place, each way they could be written."""
    stream, cut = sessions[0].to_client, 1_000_003
    head = model.blocks[0].attention.value.weight.detach().numpy()
    for secret in (head[3, :2].astype("<f4"), (head[3, :2].astype(np.float64) / STEP).astype("<i8")):
        assert occurrences(unprotected(head), stream[:cut] + secret.tobytes() + stream[cut:]) == 1
    runs = large_runs(torch_logits(model, np.array(PROMPTS[0])))
    # 700 steps: as wrong as fixed point makes them.
    for secret in (runs[0].astype("<f4"), (runs[1] / STEP).astype("<i4"), (runs[-1] / STEP).astype("<i8") + 700):
        assert near(runs, stream[:cut] + secret.tobytes() + stream[cut:])


def of_one_size(one, other):
    """The same messages, and the same bytes but for the compression of ciphertexts, which varies by some bytes."""
    for a, b in zip(
        [one.answered.setup, *one.answered.costs], [other.answered.setup, *other.answered.costs], strict=True
    ):
        assert a.messages == b.messages
        assert a.bytes_client == pytest.approx(b.bytes_client, rel=1e-3)
        assert a.bytes_server == pytest.approx(b.bytes_server, rel=1e-3)
    assert len(one.to_server) == pytest.approx(len(other.to_server), rel=1e-3)
    assert len(one.to_client) == pytest.approx(len(other.to_client), rel=1e-3)


def test_transcripts_of_two_prompts_of_one_length_have_one_size(sessions):
    of_one_size(*sessions)
