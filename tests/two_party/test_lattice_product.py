"""Products with the server's matrix on ciphertexts: the arithmetic against plain integers, the randomness, the link."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest
from clear_text import STEP, occurrences, unprotected
from made_models import random_model, torch_logits

from aero.architecture import parse
from aero.config import TUNED_FRACTION_BITS
from aero.errors import UserError
from aero.model import ModelConfig
from aero.two_party.lattice import matmul as lattice
from aero.two_party.lattice import polynomials
from aero.two_party.lattice.share_steps import STEPS, Hand, ShareStep, plan
from aero.two_party.program.end_to_end import ask, composed_bytes
from aero.two_party.program.forward import operations
from aero.two_party.program.operations import Operation
from aero.two_party.program.weights import within_budget
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.relay import Relay
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

RING = 1 << 64
SMALL = 64  # a degree at which Python's integers are quick; nothing is secure there


def uniform(seed, *shape):
    return np.random.default_rng(seed).integers(0, RING, shape, dtype=np.uint64)


def signed(values):
    return np.asarray(values, np.uint64).view(np.int64)


def product(left, right):
    """Of two elements of the ring modulo 2^64, as Python's integers, place by place."""
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
    assert (np.abs(parts) <= 2**21).all() and (polynomials.joined(parts.astype(np.int64)) == extremes).all()
    power = np.zeros(SMALL, np.uint64)
    power[5] = 1
    assert (polynomials.shifted(a, 5)[1] == product(a[1], power)).all()
    for exponent in (3, SMALL + 1, SMALL // 8 + 1):
        turned = [0] * SMALL
        for place, value in enumerate(a[0].tolist()):
            to = place * exponent % (2 * SMALL)
            turned[to % SMALL] += value if to < SMALL else -value
        expected = np.array([value % RING for value in turned], np.uint64)
        assert (polynomials.substituted(a, exponent)[0] == expected).all()


def test_a_substitution_of_a_product_is_the_product_of_substitutions():
    a, b = uniform(1, SMALL), uniform(2, SMALL)
    turned = product(polynomials.substituted(a, 17), polynomials.substituted(b, 17))
    assert (polynomials.substituted(product(a, b), 17) == turned).all()


def secret_polynomial(secret):
    return polynomials.integers(secret._spectrum)


def test_what_is_announced_is_encryptions_of_zero_and_of_the_turned_secret():
    secret = lattice.Secret(SMALL)
    s = secret_polynomial(secret)
    assert set(np.unique(s)) <= {-1, 0, 1} and len(secret.announced) == lattice.Public.size(SMALL)
    count = 1 + lattice.LEVELS * lattice.DIGITS
    firsts = polynomials.uniform(secret.announced[:32], "keys", count, SMALL)
    seconds = np.frombuffer(secret.announced[32:], "<u8").reshape(count, SMALL)
    decrypted = [signed(second + product(first, s)) for first, second in zip(firsts, seconds, strict=True)]
    assert np.abs(decrypted[0]).max() <= 32 and decrypted[0].any()
    for level in range(lattice.LEVELS):
        turned = polynomials.substituted(s.view(np.uint64), SMALL // 2**level + 1)
        for digit in range(lattice.DIGITS):
            noise = signed(decrypted[1 + level * 3 + digit].view(np.uint64) - (turned << np.uint64(16 * (digit + 1))))
            assert np.abs(noise).max() <= 32 and noise.any()


def test_packed_ciphertexts_hold_the_wanted_coefficients_of_all():
    secret = lattice.Secret(SMALL)
    public, s = lattice.Public(secret.announced, SMALL), secret_polynomial(secret)
    first, second = uniform(3, 16, 2, SMALL), uniform(4, 16, 2, SMALL)
    whole = [
        signed(b + product(a, s)) for a, b in zip(first.reshape(-1, SMALL), second.reshape(-1, SMALL), strict=True)
    ]
    wanted = np.stack(whole).reshape(first.shape)
    second.reshape(16, 2, -1, 16)[..., 1:] = 7  # coefficients that do not matter
    packed = public.packed(first, second)
    for place in range(2):
        found = signed(packed[1][place] + product(packed[0][place], s))
        for c in range(16):
            expected = 16 * wanted[c, place, ::16].view(np.uint64)
            off = signed(found[c::16].view(np.uint64) - expected)
            assert 0 < np.abs(off).max() < 2**26


@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(128, 40, 50), (129, 48, 300), (200, 100, 33), (12, 16, 16), (2, 5, 1), (8, 70, 9)]
)
def test_shares_of_a_product_are_those_of_integers(rows, inner, columns):
    """All shapes that are no multiples, whatever the shares are, within six of the deviation that is said."""
    generator = np.random.default_rng(rows)
    layout = lattice.Layout(rows, inner, columns)
    secret = lattice.Secret()
    public = lattice.Public(secret.announced)
    weights = (0.3 * generator.standard_normal((inner, columns))).astype(np.float32)
    matrix = lattice.Matrix(weights, 18)
    own, other = uniform(5, rows, inner), uniform(6, rows, inner)
    own[0], other[-1] = RING - 1, RING // 2
    queries = [secret.encrypt(own[span], layout, 18) for span in layout.spans()]
    assert {len(query) for query in queries} == {layout.query_bytes} and len(queries) == layout.groups
    answers, masks = matrix.answer(public, queries, layout)
    assert {len(answer) for answer in answers} == {layout.answer_bytes}
    spans = list(layout.spans())
    decrypted = [secret.decrypt(a, layout, s.stop - s.start) for a, s in zip(answers, spans, strict=True)]
    found = np.concatenate(decrypted) + masks + matrix.times_own(other)
    whole = (own + other).astype(object) @ np.rint(weights.astype(np.float64) / STEP).astype(np.int64).astype(object)
    expected = np.array(whole * 2**10 % RING, np.uint64)
    off = signed(found - expected) / 2.0**28
    said = lattice.error_of(weights, 18, layout.wide)
    assert np.abs(off).max() < 6 * said < 3
    if off.size > 1000:
        assert off.std() == pytest.approx(said, rel=0.25)
    assert said <= lattice.error_of(weights, 18)


def test_queries_do_not_repeat():
    layout, secret = lattice.Layout(128, 32, 32), lattice.Secret()
    share = np.zeros((128, 32), np.uint64)
    words = [np.frombuffer(secret.encrypt(share, layout, 18)[32:], "<u8") for _ in range(2)]
    assert (words[0] != words[1]).mean() > 0.999 and len(np.unique(np.concatenate(words))) > 0.999 * 2 * len(words[0])


def answered(layout, public, matrix, queries):
    """Both halves (packs, n) of the answers to all groups, (2, groups, packs, n), and the server's share."""
    answers, masks = matrix.answer(public, queries, layout)
    return np.stack([np.stack(list(lattice._unpacked(answer, layout))) for answer in answers], 1), masks


@pytest.fixture(scope="module")
def hidden():
    """Two answers to one and the same queries: 2 groups, 3 packs, and places in a ciphertext that hold no entry."""
    layout, secret = lattice.Layout(200, 32, 90), lattice.Secret()
    assert layout.groups == 2 and layout.packs == 3 and layout.height * layout.wide * 16 < lattice.DEGREE
    public, matrix = lattice.Public(secret.announced), lattice.Matrix(np.full((32, 90), 0.1, np.float32), 18)
    queries = [secret.encrypt(np.zeros((100, 32), np.uint64), layout, 18) for _ in range(2)]
    return layout, public, queries, [answered(layout, public, matrix, queries) for _ in range(2)]


def test_masks_of_answers_are_uniform_and_none_is_used_twice(hidden, monkeypatch):
    """Of second halves, with nothing else to hide them: every pair differs by something uniform, at every place."""
    layout, public, queries, _ = hidden
    zeros = [np.zeros((layout.groups, lattice.DEGREE), np.uint64)] * 2
    monkeypatch.setattr(public, "encryptions_of_zero", lambda count, degree: zeros)
    matrix = lattice.Matrix(np.zeros((32, 90), np.float32), 18)
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


def test_first_halves_of_answers_are_hidden_each_by_a_secret_of_its_own(hidden):
    """All columns of the matrix are alike, and so are all combinations of one group's public elements: what differs is
    what hides them."""
    _, _, _, found = hidden
    for group in range(2):
        firsts = np.concatenate([halves[0, group] for halves, _ in found])
        for i in range(len(firsts)):
            for j in range(i):
                top = (firsts[i] - firsts[j]) >> np.uint64(60)
                assert np.bincount(top.astype(int), minlength=16).min() > 150
    across = found[0][0][0, 0] - found[0][0][0, 1]
    assert len(np.unique(across[0] - across[1])) > 0.99 * lattice.DEGREE  # one secret for both groups would cancel


def test_fresh_encryptions_of_zero_are_what_they_are_said_to_be(monkeypatch):
    """Both halves have errors, of each one its own, and decrypt to little."""
    secret = lattice.Secret(SMALL)
    public, s = lattice.Public(secret.announced, SMALL), secret_polynomial(secret)
    drawn = []

    def recorded(count):
        drawn.append(polynomials.ternary(count))
        return drawn[-1]

    monkeypatch.setattr(lattice, "ternary", recorded)
    first, second = public.encryptions_of_zero(3, SMALL)
    (small,) = (one.reshape(3, SMALL) for one in drawn)
    key = polynomials.uniform(secret.announced[:32], "keys", 13, SMALL)[0]
    key_second = np.frombuffer(secret.announced[32:], "<u8").reshape(13, SMALL)[0]
    for half, element in ((first, key), (second, key_second)):
        noise = np.stack([signed(a - product(element, u.view(np.uint64))) for a, u in zip(half, small, strict=True)])
        assert 1 < noise.std() < 6 and np.abs(noise).max() <= 32
        assert (noise[0] != noise[1]).any() and (noise[1] != noise[2]).any()
    decrypted = np.stack([signed(b + product(a, s)) for a, b in zip(first, second, strict=True)])
    assert 0 < np.abs(decrypted).max() < 2000


def test_the_error_that_is_said_holds_for_columns_wherever_they_stand():
    """Three large columns across an edge of 16, in a layout 3 wide: no cut of the matrix sees them together."""
    weights = np.zeros((768, 48), np.float32)
    weights[:, 15:18] = 0.5
    alone = lattice.error_of(weights[:, 15:16], 18)
    assert lattice.error_of(weights, 18) > 1.6 * alone
    assert lattice.error_of(weights, 18, 3) == lattice.error_of(weights, 18)


def test_matrices_beyond_the_budget_and_other_fixed_points_are_refused():
    lattice.check(np.full((768, 4), 0.1, np.float32))
    large = np.full((768, 4), 1.5, np.float32)
    with pytest.raises(lattice.OverBudget, match="off by .* last bits .*more than 4; compute without lattice_products"):
        lattice.Matrix(large, 18)
    with pytest.raises(lattice.OverBudget):
        lattice.check(np.array([[np.nan]]))
    with pytest.raises(ValueError, match="too large for exact products"):
        lattice.times(uniform(0, 1, 1), np.array([[1 << 32]]))
    prepare = STEPS["lattice_product"].prepare
    for hand in (Hand(CLIENT, 18, "FM128"), Hand(CLIENT, 15), Hand(CLIENT, 21)):
        with pytest.raises(UserError, match="need the ring FM64 and 16 to 20 fraction bits"):
            prepare(hand, None)
    assert prepare(Hand(CLIENT), None) is None
    assert lattice.FRACTION_BITS == TUNED_FRACTION_BITS


def test_the_program_says_whether_products_are_outside_spu():
    model = random_model("SM+ScFuFFN")
    text = "tuned"
    assert within_budget(model, text) == text
    assert within_budget(model, "as_written+lattice_products") == "as_written+lattice_products"
    model.blocks[0].attention.value.weight.data *= 3000.0
    assert within_budget(model, text) == "tuned-lattice_products"
    config = ModelConfig(vocabulary=50257, context=128, layers=3, heads=12, width=768, ffn_width=3072)
    for row in ("SM+LN+G", "SM+ScFuFFN", "SOTA(SM+ScFuFFN)", "EReg(SM(t)+ScFuFFN)"):
        plain, outside = (operations(parse(row), config, p, 128) for p in ("tuned-lattice_products", text))
        assert not any(o.kind == "lattice_linear" for o in plain)
        assert {o.shapes[0][0] for o in outside if o.kind == "linear"} == {1}
        others = [{o: n for o, n in one.items() if not o.kind.endswith("linear")} for one in (plain, outside)]
        assert others[0] == others[1]


def test_a_program_is_cut_at_its_product():
    operation = Operation("lattice_linear", ((4, 24), (24, 8)))
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in operation.shapes]
    cut = plan(operation.function(), arguments, ["x", "w"], ["y"])
    steps = [part for part in cut.parts if isinstance(part, ShareStep)]
    assert [step.step for step in steps] == ["lattice_product", "apart"]
    assert steps[0].inputs == ("x", "w")
    generator = np.random.default_rng(0)
    x, w = (generator.standard_normal(shape).astype(np.float32) for shape in operation.shapes)
    np.testing.assert_allclose(operation.function()(x, w), x @ w, atol=1e-5)


ROWS, INNER, COLUMNS, PASSES = 20, 40, 24, 3


def product_task(who, given):
    """Passes on one matrix and one on another: results and profiles."""
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
    return found, profiles


@pytest.fixture(scope="module")
def multiplied():
    generator = np.random.default_rng(7)
    x = (3.0 * generator.standard_normal((ROWS, INNER))).astype(np.float32)
    matrices = [(0.3 * generator.standard_normal((INNER, COLUMNS))).astype(np.float32) for _ in range(2)]
    relay = Relay(record=True)
    client, server = run_parties(product_task, {"x": x}, {"matrices": matrices}, Settings(), relay=relay)
    return x, matrices, client, server, [bytes(stream) for stream in relay.recorded]


def test_private_products_are_those_of_the_matrices(multiplied):
    """Within 4 last bits of what fixed point has of both: the product's own error, and two truncations."""
    x, matrices, (found, _), (nothing, _), _ = multiplied
    assert nothing == [None] * PASSES
    fixed = np.trunc(x.astype(np.float64) / STEP)  # as SPU takes an input
    for one, matrix in zip(found, (matrices[0], matrices[0], matrices[1]), strict=True):
        exact = (fixed @ np.rint(matrix.astype(np.float64) / STEP)) * STEP**2
        assert np.abs(one - exact).max() < 4 * STEP


def test_keys_are_sent_once_and_both_count_the_same(multiplied):
    _, _, (_, ours), (_, theirs), _ = multiplied
    for client, server in zip(ours, theirs, strict=True):
        assert (client.bytes_sent, client.messages_sent) == (server.bytes_received, server.messages_received)
        assert (client.bytes_received, client.messages_received) == (server.bytes_sent, server.messages_sent)
    layout = lattice.Layout(ROWS, INNER, COLUMNS)
    for one, keys in zip(ours, (lattice.Public.size(), 0, 0), strict=True):
        of_spu = [o for o in one.operations if o.level == "mpc"]
        in_programs = sum(o.bytes_sent for o in of_spu), sum(o.bytes_received for o in of_spu)
        assert one.bytes_sent == keys + layout.query_bytes + in_programs[0]
        assert one.bytes_received == layout.answer_bytes + in_programs[1]


def test_the_transcript_holds_neither_secret_nor_weight(multiplied):
    x, matrices, _, _, streams = multiplied
    for stream in streams:
        assert occurrences(unprotected(x, *matrices), stream) == 0
        assert (x[:2] / STEP).astype("<i8").tobytes() not in stream
    assert set(re.findall(rb'"name": "([\w.]+)"', b"".join(streams))) == {b"x", b"y"}


@pytest.mark.parametrize("row", ["SM+LN+G", "SM+ScFuFFN", "EReg(SM(t)+ScFuFFNi_1)", "SOTA(SM+ScFuFFN)"])
def test_a_private_pass_with_such_products_is_torchs(row):
    """Two prompts of one session, and another length with its own layouts."""
    model = random_model(row, layers=2)
    program = "tuned"
    assert within_budget(model, program).startswith(program)
    prompts = np.random.default_rng(8).integers(0, 41, (2, 12))
    answers, alone = ask(model, prompts, program, operation_runs=1)
    for prompt, answer in zip(prompts, answers, strict=True):
        np.testing.assert_allclose(answer.logits, torch_logits(model, prompt), atol=0.02, rtol=0)
    counts = operations(model.architecture, model.config, within_budget(model, program), 12)
    assert any(operation.kind == "lattice_linear" for operation in counts)
    measured = min(answer.bytes for answer in answers)
    assert composed_bytes(counts, alone) == pytest.approx(measured, abs=0.03 * measured + 1.2e6)
