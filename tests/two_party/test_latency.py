"""The latency model: sums by hand, costs out of made profiles, and rounds of operations in two real processes."""

from __future__ import annotations

from collections import Counter

import pytest

from aero.two_party.cost.latency import (
    DELAYED,
    LIMITED,
    REFILL_MESSAGES,
    Cost,
    cost_of,
    error_share,
    measure_costs,
    predict,
    refill_cost,
    refills_of,
)
from aero.two_party.cost.network import Network
from aero.two_party.program.operations import Operation
from aero.two_party.runtime.profile import Profile
from aero.two_party.runtime.settings import Settings

RELU, TRUNCATION = Operation("relu", ((8, 64),)), Operation("scale_public", ((8, 64),), (("factor", 0.5),))
COSTS = {
    (RELU.name, RELU.shape): Cost(RELU.name, RELU.shape, 0.5, 2e6, 10.0, 3e6, 40.0),
    (TRUNCATION.name, TRUNCATION.shape): Cost(TRUNCATION.name, TRUNCATION.shape, 0.1, 1e6, 1.0, 1e6, 2.0),
    ("refill", ""): Cost("refill", "", 1.5, 5e5, 4.0, 266e3, 1281.0),
}
COUNTS = Counter({RELU: 3, TRUNCATION: 5})


def test_a_pass_is_the_sum_of_its_operations_and_refills():
    found = predict(COUNTS, COSTS, 2, Network(100, 80))
    assert found.compute == pytest.approx(3 * 0.5 + 5 * 0.1 + 2 * 1.5)
    assert found.transfer == pytest.approx((3 * 2e6 + 5 * 1e6 + 2 * 5e5) / 12.5e6)
    assert found.rounds == pytest.approx((3 * 10 + 5 + 2 * 4) * 0.08)
    assert found.seconds == pytest.approx(5.0 + 0.96 + 3.44)
    assert predict(COUNTS, COSTS, 2, None).seconds == pytest.approx(5.0)
    assert error_share(9.0, 10.0) == pytest.approx(-0.1)


def test_refills_are_the_messages_that_operations_do_not_account_for():
    own = 3 * 40 + 5 * 2
    assert refills_of(COUNTS, COSTS, own + 30) == 0
    assert refills_of(COUNTS, COSTS, own + 4 * REFILL_MESSAGES - 30) == 4


def test_what_was_not_measured_is_not_guessed():
    with pytest.raises(ValueError, match="relu 9x64 was not measured"):
        predict({Operation("relu", ((9, 64),)): 1}, COSTS, 0, None)


def made(seconds: float, messages: int = 40, size: int = 1000) -> Profile:
    return Profile(size, size, messages // 2, messages // 2, seconds, ())


def with_refill(seconds: float) -> Profile:
    return made(seconds, 40 + REFILL_MESSAGES + 1, 1000 + 133_000)


def test_computing_is_the_median_and_slopes_are_between_least_times_of_runs_without_a_refill():
    profiles = {
        "open": [made(1.0), made(1.2), made(1.1), with_refill(0.5)],
        "delayed": [made(1.5), with_refill(9.0), made(1.6)],
        "limited": [made(1.6), made(1.6), made(9.0)],
    }
    cost = cost_of(RELU, profiles)
    assert cost.seconds == pytest.approx(1.1)
    assert cost.rounds == pytest.approx((1.5 - 1.0) / (2 * DELAYED))
    assert cost.wire_bytes == pytest.approx((1.6 - 1.0) * LIMITED)
    assert (cost.bytes, cost.messages) == (2000, 40)


@pytest.mark.parametrize("kind, wire", [("linear", 2000), ("scores", 1000)])
def test_a_matrix_product_has_the_rounds_of_a_small_one_and_wire_bytes_by_rule(kind, wire):
    profiles = {
        "open": [made(5.0), made(7.0), made(6.0)],
        "small, open": [made(0.2), made(0.1)],
        "small, delayed": [made(0.2), made(0.14)],
    }
    cost = cost_of(Operation(kind, ((1, 8, 8), (1, 8, 8))), profiles)
    assert (cost.seconds, cost.wire_bytes) == (6.0, wire)
    assert cost.rounds == pytest.approx(0.04 / (2 * DELAYED))


def test_a_refill_is_what_it_adds_and_must_have_been_seen():
    links = {"open": 2.0, "delayed": 2.2, "limited": 2.1}
    profiles = {link: [made(1.0), with_refill(seconds), made(1.0)] for link, seconds in links.items()}
    cost = refill_cost(profiles)
    assert (cost.seconds, cost.bytes) == (pytest.approx(1.0), 266_000)
    assert cost.rounds == pytest.approx(0.2 / (2 * DELAYED)) and cost.wire_bytes == pytest.approx(0.1 * LIMITED)
    profiles["limited"] = [made(1.0)]
    with pytest.raises(ValueError, match="no refill .* limited link"):
        refill_cost(profiles)


@pytest.mark.slow
def test_costs_of_operations_in_two_processes():
    seen = []
    product = Operation("linear", ((16, 64), (64, 32)))
    costs = measure_costs([RELU, TRUNCATION, RELU, product], Settings(), on_measured=seen.append)
    assert list(costs.values()) == seen
    assert [cost.op for cost in seen] == [RELU.name, TRUNCATION.name, "linear", "refill"]
    relu, truncation, matrix, refill = seen
    assert 200e3 < refill.bytes < 350e3
    assert 6 < relu.rounds < 25 and truncation.rounds < 5 and matrix.rounds < 6
    assert (relu.messages, truncation.messages) == (40, 2)
    assert matrix.wire_bytes == matrix.bytes > 1e5
