"""Encrypted lookups: arithmetic against plain integers, noise bounds, randomness, and two real processes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from clear_text import STEP, occurrences, unprotected
from made_models import random_model, torch_logits
from middle import RecordingRelay

from aero.architecture import parse
from aero.model import ModelConfig
from aero.two_party.lattice import lookup, matmul, polynomials
from aero.two_party.lattice.share_steps import STEPS, StepContext
from aero.two_party.program.end_to_end import ask
from aero.two_party.program.forward import operations
from aero.two_party.program.inputs import one_hot_rows
from aero.two_party.program.operations import Operation
from aero.two_party.program.weights import within_budget
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

RING = 1 << 64
LARGE = 5003  # entries, from where a lookup is cheaper: not a multiple of the ring's degree
SMALL = 16
SESSION = bytes(range(32))  # a session's seed of the public elements


def table_of(vocabulary, width, seed=0):
    return 0.15 * np.random.default_rng(seed).standard_normal((vocabulary, width)).astype(np.float32)


def public_matrix(vocabulary, degree):
    """A (V, n) as Python's integers: row i of a block holds the coefficients of which s makes coefficient i of a s."""
    rows = []
    for element in lookup.public_elements(SESSION, -(-vocabulary // degree), degree).tolist():
        for i in range(degree):
            rows.append([element[i - j] if j <= i else -element[degree + i - j] for j in range(degree)])
    return np.array(rows[:vocabulary], object)


def integers(table):
    return np.rint(table.astype(np.float64) / STEP).astype(np.int64).astype(object)


def entries(message, tokens, vocabulary):
    """The queries (T, V) of 48 bits as Python's integers."""
    digits = np.frombuffer(message, np.uint8).reshape(tokens, vocabulary, 6).astype(object)
    return sum(digits[..., place] << (8 * place) for place in range(6))


def signed(values):
    values = values % RING
    return np.where(values >= RING // 2, values - RING, values)


@pytest.mark.parametrize("entry", [None, 7.9, -7.9, 2.0**-18])
def test_limb_arithmetic_is_that_of_integers(entry):
    """Random tables and the largest entries; at full degree the sums are larger, see the next test."""
    table = table_of(45, 3)
    if entry is not None:
        table[:] = entry
    made = lookup.Table(table, SESSION, SMALL)
    matrix = public_matrix(45, SMALL)
    assert (made.hint.astype(object) == (matrix.T @ integers(table)) * 2**11 % RING).all()
    message = np.random.default_rng(1).bytes(4 * 45 * 6)
    queries = np.frombuffer(message, np.uint8).reshape(4, 45, 6)
    expected = (entries(message, 4, 45) @ integers(table)) * 2**16 % RING
    assert (made.select(queries).astype(object) == expected).all()
    ones = np.full_like(queries, 255)
    assert (made.select(ones)[0].astype(object) == ((2**48 - 1) * integers(table).sum(0)) * 2**16 % RING).all()


def test_a_hint_at_full_degree_is_that_of_integers():
    """Some of its rows, for the largest entries that fixed point may hold here: of one sign, and of both."""
    generator = np.random.default_rng(2)
    blocks, degree = 3, lookup.DEGREE
    columns = np.stack([np.full(blocks * degree, 31 << 18), generator.integers(-31 << 18, 31 << 18, blocks * degree)])
    hint = lookup._times_public(columns.reshape(2, blocks, degree), SESSION).astype(object)
    for j in generator.integers(0, degree, 4).tolist():
        column = [
            element[i - j] if j <= i else -element[degree + i - j]
            for element in lookup.public_elements(SESSION, blocks).tolist()
            for i in range(degree)
        ]
        assert ((hint[:, j] - columns.astype(object) @ np.array(column, object)) % 2**53 == 0).all()


def test_inexact_float64_is_an_error():
    for size in (24, 30, 45):
        with pytest.raises(ArithmeticError, match="not exact"):
            lookup._times_public(np.full((1, 40, lookup.DEGREE), 1 << (11 + size)), SESSION)


def test_queries_encrypt_the_one_hot_vector_and_never_repeat():
    """b - A s is 2^28 at the token, plus noise within 10 sigma and the dropped bits; another pass differs."""
    ids, matrix = np.array([0, 44, 44]), public_matrix(45, SMALL)
    found = [lookup.encrypt(ids, 45, SESSION, SMALL) for _ in range(2)]
    for secrets, message in found:
        assert set(np.unique(secrets)) <= {-1, 0, 1} and len(message) == 3 * 45 * 6
        sent = entries(message, 3, 45) * 2**5
        errors = (sent - secrets.astype(object) @ matrix.T - 2**28 * np.eye(45, dtype=int)[ids].astype(object)) % 2**53
        errors = np.where(errors >= 2**52, errors - 2**53, errors)
        assert np.abs(errors).max() <= 32 + 16 and len(np.unique(errors)) > 30
    (first, one), (second, other) = found
    assert (first != second).any() and (first[1] != first[2]).any()
    assert (entries(one, 3, 45) != entries(other, 3, 45)).all()


def test_distributions_of_secrets_and_noise():
    count = 200_000
    shares_of = np.bincount(polynomials.ternary(count) + 1, minlength=3) / count
    np.testing.assert_allclose(shares_of, 1 / 3, atol=5 * math.sqrt(2 / 9 / count))
    most, thresholds = polynomials.gaussian_thresholds()
    weights = np.exp(-(np.arange(-most, most + 1) ** 2) / (2 * polynomials.DEVIATION**2))
    probabilities = np.diff(np.concatenate([[0], thresholds.astype(np.float64), [2.0**64]])) / 2.0**64
    np.testing.assert_allclose(probabilities, weights / weights.sum(), atol=1e-15)
    errors = polynomials.gaussian(count)
    assert errors.std() == pytest.approx(polynomials.DEVIATION, rel=0.01) and abs(errors.mean()) < 0.04
    for value in (-4, 0, 3):
        expected = weights[value + most] / weights.sum()
        assert (errors == value).mean() == pytest.approx(expected, abs=5 * math.sqrt(expected / count))


def test_a_lookup_is_the_row_of_the_table():
    """At full degree, in integers: C - S H is 2^39 times the row plus small noise."""
    table, ids = table_of(LARGE, 8), np.array([0, 1, 2047, 2048, LARGE - 1])
    made = lookup.Table(table, SESSION)
    secrets, message = lookup.encrypt(ids, LARGE, SESSION)
    selected = made.select(np.frombuffer(message, np.uint8).reshape(len(ids), LARGE, 6))
    found = signed(selected.astype(object) - secrets.astype(object) @ made.hint.astype(object))
    off = np.array((found - 2**39 * integers(table)[ids]) / 2**39, float)
    assert np.abs(off).max() < 5 * lookup.noise_of(table) < 0.6
    assert off.std() == pytest.approx(lookup.noise_of(table), rel=0.4)
    layout, key = matmul.HintLayout.of(len(ids), lookup.DEGREE, 8), matmul.SecretKey()
    query, public = layout.encrypt(key, secrets.astype(np.uint64)), matmul.PublicMaterial(key.public_material)
    (answer,), masks = layout.matrix(made.hint).answer(public, [query], layout)
    product = key.decrypt(answer, layout, len(ids)) + masks
    off = np.array(signed(product.astype(object) - secrets.astype(object) @ made.hint.astype(object)) / 2**39, float)
    assert 0 < np.abs(off).max() < 0.5 and off.std() < 0.12


def test_tables_beyond_the_budget_are_refused():
    """For one entry that is too large, or for the noise of many."""
    assert lookup.fits(np.full((LARGE, 2), 0.5, np.float32))
    large, many = np.float32([[7.95]]), np.full((LARGE, 2), -7.5, np.float32)
    assert lookup.noise_of(large) < lookup.NOISE_BUDGET < lookup.noise_of(many)
    assert lookup.fits(np.float32([[7.5]])) and not lookup.fits(large) and not lookup.fits(many)
    with pytest.raises(ValueError, match="too large for a lookup"):
        lookup.Table(large, SESSION)


def test_every_session_has_public_elements_of_its_own():
    """The client draws a seed and sends it before the first lookup of a session, and not again."""
    prepare, sent, seeds = STEPS["lattice_query"].prepare, [], []
    for _ in range(2):
        client = StepContext(CLIENT, send=sent.append)
        server = StepContext(SERVER, receive=lambda size: sent[-1])
        for _ in range(2):
            assert prepare(client, None) is None
            table = prepare(server, table_of(45, 3))
        seeds.append(client.kept["lattice_query"])
        assert table.hint.tobytes() == lookup.Table(table_of(45, 3), seeds[-1]).hint.tobytes()
    assert sent == seeds and seeds[0] != seeds[1] and {len(seed) for seed in seeds} == {lookup.SEED}
    one, other = (lookup.public_elements(seed, 2) for seed in seeds)
    assert (one != other).mean() > 0.999 and one.max() < 1 << 53


LARGEST_MODULUS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""log2 q for 128 bits of security against classical attacks, by degree: uniform ternary secrets, noise of deviation
8 / sqrt(2 pi) (HomomorphicEncryption.org standard of 2018, Table 1)."""


def security_bits(degree, modulus_bits):
    """Of the primal attack on LWE with uniform ternary secrets, as the lattice estimator models it: uSVP with the
    estimate of 2016, BKZ of block size b at dimension d for 2^(0.292 b + 16.4) 8 d."""
    secret, noise, q = math.sqrt(2 / 3), polynomials.DEVIATION, modulus_bits * math.log(2)
    for block in range(60, 3000):
        delta = ((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) ** (1 / (2 * (block - 1)))
        for samples in range(degree // 2, 2 * degree + 1, degree // 32):
            dimension = degree + samples + 1
            short = math.log(math.sqrt(block) * noise)
            volume = (samples * q + degree * math.log(noise / secret)) / dimension
            if short <= (2 * block - dimension - 1) * math.log(delta) + volume:
                return 0.292 * block + 16.4 + math.log2(8 * dimension)
    return math.inf


def test_the_parameters_are_those_of_the_standard():
    """A lookup is at the limit of its degree, matrix multiplication far below. The estimator's own figures are 132 and
    233 bits."""
    assert lookup.MODULUS_BITS <= LARGEST_MODULUS[lookup.DEGREE] and 64 <= LARGEST_MODULUS[matmul.DEGREE]
    assert polynomials.DEVIATION >= 8 / math.sqrt(2 * math.pi)
    assert security_bits(lookup.DEGREE, lookup.MODULUS_BITS) == pytest.approx(132, abs=1.5)
    assert security_bits(matmul.DEGREE, 64) == pytest.approx(233, abs=1.5)
    for degree, bits in list(LARGEST_MODULUS.items())[:4]:  # the estimate is near the standard's own
        assert security_bits(degree, bits) == pytest.approx(128, abs=4)


def test_when_a_program_uses_a_lookup():
    """By the noise budget of the table, in the name of the program, and by the size of the vocabulary."""
    model = random_model("SM+ScFuFFN", layers=1, vocabulary=LARGE)
    assert within_budget(model, "tuned") == "tuned"
    model.token_embedding.weight.data *= 200.0
    assert within_budget(model, "tuned") == "tuned-lattice_lookup"
    assert within_budget(model, "tuned+lattice_rest@0") == "tuned-lattice_lookup"
    assert within_budget(model, "as_written+lattice_lookup") == "as_written"
    config = ModelConfig(vocabulary=50257, context=128, layers=1, heads=12, width=768, ffn_width=3072)
    with_lookup = operations(parse("SM+ScFuFFN"), config, "tuned", 128)
    without = operations(parse("SM+ScFuFFN"), config, "tuned-lattice_lookup", 128)
    assert with_lookup - without == {Operation("embedding_lookup", ((128, 50257), (50257, 768))): 1}
    assert {o.shape: n for o, n in (without - with_lookup).items()} == {"128x1024,1024x768": 49, "128x81,81x768": 1}
    small = ModelConfig(vocabulary=4095, context=16, layers=1, heads=2, width=16, ffn_width=64)
    kinds = {o.kind for o in operations(parse("SM"), small, "tuned", 16)}
    assert "embedding_slice" in kinds and "embedding_lookup" not in kinds


TOKENS, WIDTH, PASSES = 20, 16, 2


def lookup_task(who, given):
    """Two passes on one table and one on another: rows, profiles, and seconds of preparing."""
    operation = Operation("embedding_lookup", ((TOKENS, LARGE), (LARGE, WIDTH)), given["constants"])
    function, profiles, rows, prepared = operation.function(), [], [], []
    for table, passes in (("tables", PASSES), ("others", 1)):
        held = given[table] if who.rank == SERVER else None
        who.put("table", held, (LARGE, WIDTH), owner=SERVER, from_rank=SERVER)
        for _ in range(passes):
            one_hot = one_hot_rows(given["ids"], LARGE) if who.rank == CLIENT else None
            who.put("one_hot", one_hot, (TOKENS, LARGE), owner=CLIENT, from_rank=CLIENT)
            prepared.append(who.prepare(function, ["one_hot", "table"], ["y"]))
            profiles.append(who.run(function, ["one_hot", "table"], ["y"]))
            rows.append(who.reveal("y", to=CLIENT))
    return rows, profiles, prepared


@pytest.fixture(scope="module", params=[(), (("lattice_linear", 1),)], ids=["hint by SPU", "hint outside"])
def looked_up(request):
    ids = np.random.default_rng(3).integers(0, LARGE, TOKENS)
    tables = [table_of(LARGE, WIDTH, seed) for seed in (4, 5)]
    relay = RecordingRelay()
    given = {"ids": ids, "constants": request.param}
    held = given | dict(zip(("tables", "others"), tables, strict=True))
    client, server = run_parties(lookup_task, given, held, Settings(), relay=relay)
    return ids, tables, client, server, [bytes(stream) for stream in relay.recorded], bool(request.param)


def test_rows_of_two_processes_are_exact_up_to_fixed_point(looked_up):
    """Within 2 last bits: the noise, below 0.6, may change the rounding by one, and SPU's truncation by one more."""
    ids, (table, other), (rows, _, _), (nothing, _, _), *_ = looked_up
    assert nothing == [None] * (PASSES + 1)
    for found, expected in zip(rows, (table, table, other), strict=True):
        assert np.abs(integers(found) - integers(expected)[ids]).max() <= 2


def test_both_parties_count_the_same_bytes(looked_up):
    _, _, (_, ours, prepared), (_, theirs, _), _, outside = looked_up
    layout = matmul.HintLayout.of(TOKENS, lookup.DEGREE, WIDTH)
    queries = TOKENS * LARGE * 6 + (layout.groups * layout.query_bytes if outside else 0)
    for client, server in zip(ours, theirs, strict=True):
        assert (client.bytes_sent, client.messages_sent) == (server.bytes_received, server.messages_received)
        assert client.bytes_sent > queries
    in_programs = sum(one.bytes_sent for one in ours[1].operations)
    assert ours[1].bytes_sent == queries + in_programs
    assert prepared[1] < min(prepared[0], prepared[2])  # the table of the second pass is that of the first


def test_the_transcript_has_no_token_no_row_and_no_repeated_query(looked_up):
    ids, tables, _, _, (to_server, to_client), _ = looked_up
    one_hot = one_hot_rows(ids, LARGE)
    ones = {
        "float": one_hot[:2].tobytes(),
        "fixed point": (one_hot[:2] / STEP).astype("<i8").tobytes(),
        "scaled": (one_hot[:2].astype("<i8") << 28).tobytes(),
        "ids": ids.astype("<i8").tobytes(),
    }
    weights = unprotected(*tables)
    hint = lookup.Table(tables[0], SESSION).hint
    for stream in (to_server, to_client):
        assert not [name for name, secret in ones.items() if secret in stream]
        assert occurrences(weights, stream) == 0
        assert not any(row.tobytes() in stream for row in hint[:64])
    # Eight entries of 6 bytes in two places would be a repeated query.
    parts = [to_server[at : at + 48] for at in range(0, len(to_server) - 48, 48)]
    long = [part for part in parts if len(set(part)) > 30]
    assert len(long) > 3 * TOKENS * LARGE * 6 // 48 * 0.9 and len(set(long)) == len(long)
    assert set(re.findall(rb'"name": "([\w.]+)"', to_server + to_client)) == {b"y"}


@pytest.mark.slow
@pytest.mark.parametrize("program", ["tuned", "tuned+lattice_rest"])
def test_a_private_pass_with_a_lookup_agrees_with_torch(program):
    model = random_model("SM+ScFuFFN", layers=1, width=16, vocabulary=LARGE)
    assert within_budget(model, program) == program
    prompts = np.random.default_rng(6).integers(0, LARGE, (2, 12))
    answers = ask(model, prompts, program)
    for prompt, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer.logits, torch_logits(model, prompt), atol=0.02, rtol=0)
