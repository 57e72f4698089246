"""Lattice matrix multiplication: arithmetic against plain integers, noise bounds, randomness, two real processes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from clear_text import STEP, occurrences, unprotected
from middle import RecordingRelay

from aero.two_party.lattice import matmul as lattice
from aero.two_party.lattice import polynomials
from aero.two_party.lattice.share_steps import STEPS, StepContext
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

RING = 1 << 64
SMALL = 64  # an insecure degree at which Python's integers are quick


def uniform(seed, *shape):
    return np.random.default_rng(seed).integers(0, RING, shape, dtype=np.uint64)


def signed(values):
    return np.asarray(values, np.uint64).view(np.int64)


def product(left, right):
    """Of two elements of the ring modulo 2^64, by the definition, with Python's integers."""
    n = len(left)
    found = [0] * n
    for i, a in enumerate(left.tolist()):
        for j, b in enumerate(right.tolist()):
            found[(i + j) % n] += a * b if i + j < n else -a * b
    return np.array([value % RING for value in found], np.uint64)


def test_ring_arithmetic_is_that_of_integers():
    a, s = uniform(0, 3, SMALL), np.stack([polynomials.ternary(SMALL) for _ in range(3)])
    found = polynomials.times_small(polynomials.limb_spectra(a), polynomials.spectrum(s.astype(np.float64)))
    for one, small, result in zip(a, s, found, strict=True):
        assert (result == product(one, small)).all()
    extremes = np.array([0, 1, RING - 1, RING // 2, RING // 2 - 1, 2**21, 2**21 - 1, 2**43], np.uint64)
    parts = np.stack(polynomials.limbs(extremes))
    assert (np.abs(parts) <= 2**21).all() and (polynomials.from_limbs(parts.astype(np.int64)) == extremes).all()
    power = np.zeros(SMALL, np.uint64)
    power[5] = 1
    assert (polynomials.times_monomial(a, 5)[1] == product(a[1], power)).all()
    for exponent in (3, SMALL + 1, SMALL // 8 + 1):
        turned = [0] * SMALL
        for place, value in enumerate(a[0].tolist()):
            to = place * exponent % (2 * SMALL)
            turned[to % SMALL] += value if to < SMALL else -value
        expected = np.array([value % RING for value in turned], np.uint64)
        assert (polynomials.automorphism(a, exponent)[0] == expected).all()


def secret_polynomial(secret):
    return polynomials.inverse_spectrum(secret._spectrum)


def test_public_material_encrypts_zero_and_the_automorphisms_of_the_secret():
    secret = lattice.SecretKey(SMALL)
    s = secret_polynomial(secret)
    assert set(np.unique(s)) <= {-1, 0, 1} and len(secret.public_material) == lattice.PublicMaterial.size(SMALL)
    count = 1 + lattice.LEVELS * lattice.DIGITS
    firsts = polynomials.uniform(secret.public_material[:32], "keys", count, SMALL)
    seconds = np.frombuffer(secret.public_material[32:], "<u8").reshape(count, SMALL)
    decrypted = [signed(second + product(first, s)) for first, second in zip(firsts, seconds, strict=True)]
    assert np.abs(decrypted[0]).max() <= 32 and decrypted[0].any()
    for level in range(lattice.LEVELS):
        turned = polynomials.automorphism(s.view(np.uint64), SMALL // 2**level + 1)
        for digit in range(lattice.DIGITS):
            noise = signed(decrypted[1 + level * 3 + digit].view(np.uint64) - (turned << np.uint64(16 * (digit + 1))))
            assert np.abs(noise).max() <= 32 and noise.any()


def test_a_packed_ciphertext_holds_the_wanted_coefficients_of_all():
    secret = lattice.SecretKey(SMALL)
    public, s = lattice.PublicMaterial(secret.public_material, SMALL), secret_polynomial(secret)
    first, second = uniform(3, 16, 2, SMALL), uniform(4, 16, 2, SMALL)
    whole = [
        signed(b + product(a, s)) for a, b in zip(first.reshape(-1, SMALL), second.reshape(-1, SMALL), strict=True)
    ]
    wanted = np.stack(whole).reshape(first.shape)
    second.reshape(16, 2, -1, 16)[..., 1:] = 7  # coefficients that do not matter
    packed = public.pack(np.stack([first, second]))
    for place in range(2):
        found = signed(packed[1][place] + product(packed[0][place], s))
        for c in range(16):
            expected = 16 * wanted[c, place, ::16].view(np.uint64)
            off = signed(found[c::16].view(np.uint64) - expected)
            assert 0 < np.abs(off).max() < 2**26


def answered_and_decrypted(secret, layout, matrix, encrypt, own):
    """Both parties' shares of own times the other party's matrix, added up."""
    spans, public = list(layout.spans()), lattice.PublicMaterial(secret.public_material)
    queries = [encrypt(own[span]) for span in spans]
    answers, masks = matrix.answer(public, queries, layout)
    assert {len(query) for query in queries} == {layout.query_bytes} and len(queries) == layout.groups
    assert {len(answer) for answer in answers} == {layout.answer_bytes}
    decrypted = [secret.decrypt(a, layout, s.stop - s.start) for a, s in zip(answers, spans, strict=True)]
    return np.concatenate(decrypted) + masks


@pytest.mark.parametrize("rows, inner, columns", [(128, 40, 50), (129, 48, 300), (12, 16, 16), (2, 5, 1), (1, 9, 1100)])
def test_shares_of_the_result_are_those_of_integers(rows, inner, columns):
    """Within six predicted standard deviations of the noise, for sizes that need padding."""
    layout, secret = lattice.Layout(rows, inner, columns), lattice.SecretKey()
    weights = (0.3 * np.random.default_rng(rows).standard_normal((inner, columns))).astype(np.float32)
    matrix, own, other = lattice.Matrix(weights), uniform(5, rows, inner), uniform(6, rows, inner)
    own[0], other[-1] = RING - 1, RING // 2
    crossed = answered_and_decrypted(secret, layout, matrix, lambda share: secret.encrypt(share, layout, 28 - 18), own)
    whole = (own + other).astype(object) @ np.rint(weights.astype(np.float64) / STEP).astype(np.int64).astype(object)
    off = signed(crossed + matrix.times_own(other) - np.array(whole * 2**10 % RING, np.uint64)) / 2.0**28
    said = lattice.noise_of(weights, layout.wide)
    assert np.abs(off).max() < 6 * said < 3
    if off.size > 1000:
        assert off.std() == pytest.approx(said, rel=0.25)
    assert said <= lattice.noise_of(weights, lattice.WIDE if rows > 1 else lattice.WIDE_OF_A_ROW)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(128, 64, 128), (129, 24, 300), (20, 400, 70), (1, 48, 500)])
def test_shares_of_a_product_of_shares_are_those_of_integers(rows, inner, columns):
    layout, secret = lattice.PairLayout.of(rows, inner, columns), lattice.SecretKey()
    own, other = uniform(5, rows, inner), uniform(6, inner, columns)
    own[0], other[-1] = RING - 1, RING // 2
    matrix = lattice.ShareMatrix(other, layout)
    crossed = answered_and_decrypted(secret, layout, matrix, lambda share: layout.encrypt(secret, share), own)
    off = signed(crossed - (own @ other << np.uint64(14))) / 2.0**32
    assert np.abs(off).max() < 6 * layout.noise < 24 and layout.digits == (3 if rows < 128 else 2)
    assert off.std() == pytest.approx(layout.noise, rel=0.25)


@pytest.mark.parametrize(("rows", "inner"), [(128, 768), (129, 100), (3, 1), (9, 1025), (2, 2048)])
def test_shares_of_sums_of_squares_are_those_of_integers(rows, inner):
    layout, secret = lattice.SquaresLayout.of(rows, inner), lattice.SecretKey()
    own, other = uniform(5, rows, inner), uniform(6, rows, inner)
    matrix = lattice.ShareMatrix(other.T, layout)
    crossed = answered_and_decrypted(secret, layout, matrix, lambda share: layout.encrypt(secret, share), own)
    off = signed(crossed.diagonal() - ((own * other).sum(1) << np.uint64(layout.scale_bits))) / 2.0**32
    assert np.abs(off).max() < 6 * layout.noise < 6 and inner <= 2 ** (15 - layout.scale_bits) < 2 * max(1, inner)
    pytest.raises(ValueError, lattice.SquaresLayout.of, rows, 2049)


def test_queries_do_not_repeat():
    layout, secret, share = lattice.Layout(128, 32, 32), lattice.SecretKey(), np.zeros((128, 32), np.uint64)
    words = [np.frombuffer(secret.encrypt(share, layout, lattice.RESULT_BITS - 18)[32:], "<u8") for _ in range(2)]
    assert (words[0] != words[1]).mean() > 0.999 and len(np.unique(np.concatenate(words))) > 0.999 * 2 * len(words[0])


def answered(layout, public, matrix, queries):
    """Both halves (packs, n) of the answers to all groups, (2, groups, packs, n), and the server's share."""
    answers, masks = matrix.answer(public, queries, layout)
    return np.stack([np.stack(list(lattice._unpacked(answer, layout))) for answer in answers], 1), masks


@pytest.fixture(scope="module")
def hidden():
    """Two answers to one and the same queries: 2 groups, 3 packs, and places in a ciphertext that hold no entry."""
    layout, secret = lattice.Layout(200, 32, 90), lattice.SecretKey()
    assert layout.groups == 2 and layout.packs == 3 and layout.height * layout.wide * 16 < lattice.DEGREE
    public = lattice.PublicMaterial(secret.public_material)
    matrix = lattice.Matrix(np.full((32, 90), 0.1, np.float32))
    queries = [secret.encrypt(np.zeros((100, 32), np.uint64), layout, lattice.RESULT_BITS - 18) for _ in range(2)]
    return layout, public, queries, [answered(layout, public, matrix, queries) for _ in range(2)]


def test_masks_of_answers_are_uniform_and_none_is_used_twice(hidden, monkeypatch):
    """With encryptions of zero switched off, every pair of `b` halves differs by something uniform, everywhere."""
    layout, public, queries, _ = hidden
    zeros = [np.zeros((layout.groups, lattice.DEGREE), np.uint64)] * 2
    monkeypatch.setattr(public, "encryptions_of_zero", lambda count, degree: zeros)
    matrix = lattice.Matrix(np.zeros((32, 90), np.float32))
    found = [answered(layout, public, matrix, queries) for _ in range(2)]
    halves = np.concatenate([halves[1].reshape(-1, lattice.DEGREE) for halves, _ in found])
    unused = slice(layout.height * layout.wide * 16, None)
    for i in range(len(halves)):
        for j in range(i):
            for places in (slice(None), unused):
                top = (halves[i] - halves[j])[places] >> np.uint64(60)
                counts = np.bincount(top.astype(int), minlength=16) / len(top)
                assert np.abs(counts - 1 / 16).max() < 6 * math.sqrt(15 / 256 / len(top))
    assert (found[0][1] != found[1][1]).all()


def test_a_halves_of_answers_are_hidden_by_independent_secrets(hidden):
    """All columns of the matrix are equal, and so are all combinations of a group's public elements: only the fresh
    encryptions of zero differ."""
    _, _, _, found = hidden
    for group in range(2):
        firsts = np.concatenate([halves[0, group] for halves, _ in found])
        for i in range(len(firsts)):
            for j in range(i):
                top = (firsts[i] - firsts[j]) >> np.uint64(60)
                assert np.bincount(top.astype(int), minlength=16).min() > 150
    across = found[0][0][0, 0] - found[0][0][0, 1]
    assert len(np.unique(across[0] - across[1])) > 0.99 * lattice.DEGREE  # one secret for both groups would cancel


def test_fresh_encryptions_of_zero(monkeypatch):
    """Both halves have independent noise, and decrypt to small values."""
    secret = lattice.SecretKey(SMALL)
    public, s = lattice.PublicMaterial(secret.public_material, SMALL), secret_polynomial(secret)
    drawn = []

    def recorded(count):
        drawn.append(polynomials.ternary(count))
        return drawn[-1]

    monkeypatch.setattr(lattice, "ternary", recorded)
    first, second = public.encryptions_of_zero(3, SMALL)
    (small,) = (one.reshape(3, SMALL) for one in drawn)
    key = polynomials.uniform(secret.public_material[:32], "keys", 13, SMALL)[0]
    key_second = np.frombuffer(secret.public_material[32:], "<u8").reshape(13, SMALL)[0]
    for half, element in ((first, key), (second, key_second)):
        noise = np.stack([signed(a - product(element, u.view(np.uint64))) for a, u in zip(half, small, strict=True)])
        assert 1 < noise.std() < 6 and np.abs(noise).max() <= 32
        assert (noise[0] != noise[1]).any() and (noise[1] != noise[2]).any()
    decrypted = np.stack([signed(b + product(a, s)) for a, b in zip(first, second, strict=True)])
    assert 0 < np.abs(decrypted).max() < 2000


def test_the_noise_bound_covers_any_neighbouring_columns():
    """Three large columns across an edge of 16, in a layout 3 wide."""
    weights = np.zeros((768, 48), np.float32)
    weights[:, 15:18] = 0.5
    alone = lattice.noise_of(weights[:, 15:16])
    assert lattice.noise_of(weights) > 1.6 * alone
    assert lattice.noise_of(weights, 3) == lattice.noise_of(weights)


def test_matrices_beyond_the_budget_are_refused():
    assert lattice.fits(np.full((768, 4), 0.1, np.float32))
    with pytest.raises(ValueError, match="is too large; compute without"):
        lattice.Matrix(np.full((768, 4), 1.5, np.float32))
    assert not lattice.fits(np.array([[np.nan]]))
    with pytest.raises(ValueError, match="too large for exact multiplication"):
        lattice.times(uniform(0, 1, 1), np.array([[1 << 32]]))
    assert STEPS["lattice_product"].prepare(StepContext(CLIENT), None) is None


ROWS, INNER, COLUMNS, PASSES = 20, 40, 24, 3
LIMITS = {"lattice_linear": 2.0**14, "mix": 2.0**10}  # of results, which are scaled and truncated in two steps


def product_task(who, given):
    """Passes on one matrix and one on another: results and profiles; and results below and beyond LIMIT."""
    operation = Operation("lattice_linear", ((ROWS, INNER), (INNER, COLUMNS)))
    function, profiles, found = operation.function(), [], []
    for index in (0, 0, 1):
        held = given["matrices"][index] if who.rank == SERVER else None
        if len(profiles) != 1:
            who.put("w", held, (INNER, COLUMNS), owner=SERVER, from_rank=SERVER)
        who.put("x", given["x"] if who.rank == CLIENT else None, (ROWS, INNER), from_rank=CLIENT)
        who.prepare(function, ["x", "w"], ["y"])
        profiles.append(who.run(function, ["x", "w"], ["y"]))
        found.append(who.reveal("y", to=CLIENT))
    cases = [(kind, share) for kind in LIMITS for share in (0.7, 2.6)]
    return found, profiles, {case: large_product(who, *case) for case in cases}


def large_product(who, kind, share):
    """A product whose every entry should be `share` of the limit."""
    secrets = kind == "mix"
    lead, constants = ((1,), (("lattice", 1),)) if secrets else ((), ())
    operation = Operation(kind, ((*lead, ROWS, INNER), (*lead, INNER, COLUMNS)), constants)
    for name, entries, rank in (
        ("x", np.full((*lead, ROWS, INNER), 2 * share * LIMITS[kind], np.float32), CLIENT),
        ("w", 0.5 * np.eye(INNER, COLUMNS, dtype=np.float32).reshape(*lead, INNER, COLUMNS), SERVER),
    ):
        held, owner = (entries if who.rank == rank else None), (SERVER if rank == SERVER and not secrets else None)
        who.put(name, held, entries.shape, owner=owner, from_rank=rank)
    who.run(operation.function(), ["x", "w"], ["y"])
    return who.reveal("y", to=CLIENT)


@pytest.fixture(scope="module")
def multiplied():
    generator = np.random.default_rng(7)
    x = (3.0 * generator.standard_normal((ROWS, INNER))).astype(np.float32)
    matrices = [(0.3 * generator.standard_normal((INNER, COLUMNS))).astype(np.float32) for _ in range(2)]
    relay = RecordingRelay()
    client, server = run_parties(product_task, {"x": x}, {"matrices": matrices}, Settings(), relay=relay)
    return x, matrices, client, server, [bytes(stream) for stream in relay.recorded]


def test_results_of_two_processes_are_exact_up_to_fixed_point(multiplied):
    """Within 4 last bits: the noise, and two truncations."""
    x, matrices, (found, _, large), (nothing, *_), _ = multiplied
    assert nothing == [None] * PASSES
    fixed = np.trunc(x.astype(np.float64) / STEP)  # as SPU takes an input
    for one, matrix in zip(found, (matrices[0], matrices[0], matrices[1]), strict=True):
        exact = (fixed @ np.rint(matrix.astype(np.float64) / STEP)) * STEP**2
        assert np.abs(one - exact).max() < 4 * STEP
    for kind, limit in LIMITS.items():
        assert np.allclose(large[kind, 0.7], 0.7 * limit, atol=0.01)
        assert not np.isclose(large[kind, 2.6], 2.6 * limit, rtol=0.01).all()


def test_public_material_is_sent_once_and_both_parties_count_the_same(multiplied):
    _, _, (_, ours, _), (_, theirs, _), _ = multiplied
    for client, server in zip(ours, theirs, strict=True):
        assert (client.bytes_sent, client.messages_sent) == (server.bytes_received, server.messages_received)
        assert (client.bytes_received, client.messages_received) == (server.bytes_sent, server.messages_sent)
    layout = lattice.Layout(ROWS, INNER, COLUMNS)
    for one, keys in zip(ours, (lattice.PublicMaterial.size(), 0, 0), strict=True):
        in_programs = sum(o.bytes_sent for o in one.operations), sum(o.bytes_received for o in one.operations)
        assert one.bytes_sent == keys + layout.query_bytes + in_programs[0]
        assert one.bytes_received == layout.answer_bytes + in_programs[1]


def test_the_transcript_holds_neither_secret_nor_weight(multiplied):
    x, matrices, _, _, streams = multiplied
    for stream in streams:
        assert occurrences(unprotected(x, *matrices), stream) == 0
        assert (x[:2] / STEP).astype("<i8").tobytes() not in stream
    assert set(re.findall(rb'"name": "([\w.]+)"', b"".join(streams))) == {b"w", b"x", b"y"}
