"""Units, by cases worked by hand: each check holds for the code as it is and fails for it in another unit."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from aero.attention_kernels import row_entropy
from aero.entropy import causal_bound, max_entropy
from aero.flops import Sizes, count
from aero.published import load
from aero.records import read_trainings
from aero.report import costs
from aero.report.costs import published_bound
from aero.two_party.cost.ledger import DetailedRow, Measurement, Row, read
from aero.two_party.cost.network import Network, implied_bandwidth_mbit, lower_bound_seconds
from aero.two_party.runtime.profile import Profile, parse

ROOT = Path(__file__).resolve().parents[1]
LN2 = math.log(2)


def close(found: float, expected: float) -> None:
    assert found == pytest.approx(expected, rel=1e-6)


def uniform_rows(entropy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A row that is uniform over i positions has ln i nats: over 8 positions 2.0794, not 3 (bits)."""
    found = entropy(torch.tril(torch.ones(8, 8)) / torch.arange(1, 9)[:, None])
    for i, value in enumerate(found.tolist(), 1):
        assert value == pytest.approx(math.log(i), abs=1e-6)


def largest(maximum: Callable[[int], float]) -> None:
    close(maximum(128), 4.852030263919617)


def bound_of_a_causal_mask(bound: Callable[[int], float]) -> None:
    close(bound(128), sum(math.log(i) for i in range(1, 129)) / 128)
    assert f"{bound(128):.3f}" == "3.878"


def transfer(seconds: Callable[[Network, float], float]) -> None:
    """12.5 million bytes are 100 million bits."""
    close(seconds(Network(100, 80), 12.5e6), 1.0)


def round_trips(seconds: Callable[[Network, int], float]) -> None:
    close(seconds(Network(100, 80), 50), 4.0)


def least_time(seconds: Callable[[float], float]) -> None:
    """25.32 GB (1e9 bytes) one after the other at 100 Mbit/s, and half of that in both directions at once."""
    close(seconds(25.32e9), 2025.6)


def least_minutes(minutes: Callable[[], float]) -> None:
    close(minutes(), 2025.6 / 60)


def implied(mbit: Callable[[float, float], float]) -> None:
    """145.24 GB in 30.74 minutes, half in each direction: 315 Mbit/s."""
    assert f"{mbit(145.24e9, 30.74 * 60):.0f}" == "315"


SAMPLE = parse((ROOT / "tests/two_party/spu_0.9.5_client.txt").read_text())


def both_ways(size: Callable[[Profile], int]) -> None:
    """What the log of a ReLU says was sent and what was received, together."""
    assert size(SAMPLE) == 7_593_984 + 2_088_960


def of_an_operation(size: Callable[[Measurement], float]) -> None:
    close(size(Measurement("relu", "1", "gpt2", 1, "", 300.0, 200.0, 0, 0, 1e9, 0, 1, "")), 500.0)


def one_fused_layer(flops: Callable[[], float]) -> None:
    """A product of (128, 768) and (768, 768) is 128 x 768^2 products and as many sums: 2 x 75,497,472 FLOPs."""
    assert flops() == 150_994_944


def fused() -> int:
    from aero.architecture import parse as notation

    one, two = (count(notation(text), Sizes(2, 12, 768), 128).ffn for text in ("SM+ScFuFFN", "SM+ScFuFFNi_1"))
    return one - two


PUBLISHED = published_bound(load("aero"), "4", "SM+LN+G")
CHECKS: list[tuple[Callable[[Any], None], Any, dict[str, Any]]] = [
    (uniform_rows, row_entropy, {"bits": lambda p: row_entropy(p) / LN2}),
    (largest, max_entropy, {"bits": math.log2}),
    (
        bound_of_a_causal_mask,
        causal_bound,
        {"bits": lambda t: causal_bound(t) / LN2, "sum": lambda t: causal_bound(t) * t},
    ),
    (
        transfer,
        lambda network, size: network.transfer_seconds(size, 0),
        {
            "Mbyte/s": lambda n, size: size / (n.bandwidth_mbit * 1e6),
            "Mibit/s": lambda n, size: size * 8 / (100 * 2**20),
        },
    ),
    (
        round_trips,
        lambda network, rounds: network.latency_seconds(0, 0, 0, rounds),
        {"one way": lambda n, rounds: rounds * n.rtt_ms / 2e3, "s": lambda n, rounds: rounds * n.rtt_ms},
    ),
    (
        least_time,
        lambda size: lower_bound_seconds(size, 100, "one_way"),
        {
            "both ways": lambda size: lower_bound_seconds(size, 100, "both_overlapping"),
            "GiB": lambda s: s * 2**30 / 1e9 * 8e-8,
        },
    ),
    (
        least_minutes,
        lambda: PUBLISHED.one_way,
        {"both ways": lambda: PUBLISHED.overlapped, "s": lambda: PUBLISHED.one_way * 60},
    ),
    (implied, implied_bandwidth_mbit, {"one way": lambda size, s: 2 * implied_bandwidth_mbit(size, s)}),
    (both_ways, lambda p: p.bytes, {"sent": lambda p: p.bytes_sent, "received": lambda p: p.bytes_received}),
    (
        of_an_operation,
        lambda m: m.bytes,
        {"the client's": lambda m: m.bytes_sent_client, "with set-up": lambda m: m.bytes + m.setup_bytes},
    ),
    (one_fused_layer, fused, {"multiply-adds": lambda: fused() // 2}),
]


@pytest.mark.parametrize(("check", "right"), [(check, right) for check, right, _ in CHECKS])
def test_the_unit_is_the_one_that_is_stated(check, right):
    check(right)


WRONG = [(check, name, function) for check, _, wrong in CHECKS for name, function in wrong.items()]


@pytest.mark.parametrize(("check", "name", "wrong"), WRONG, ids=[f"{c.__name__}-{n}" for c, n, _ in WRONG])
def test_another_unit_is_seen(check, name, wrong):
    with pytest.raises(AssertionError):
        check(wrong)


def test_a_gigabyte_of_another_size_is_seen(monkeypatch):
    monkeypatch.setattr(costs, "GB", 2**30)
    with pytest.raises(AssertionError):
        least_minutes(lambda: PUBLISHED.one_way)


def table_cells(number: str) -> list[dict[str, str]]:
    with open(ROOT / f"reports/tables/aero_table{number}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def kept_rows() -> dict[str, Row]:
    rows = read(ROOT / "results/two_party/rows.csv", Row)
    return {r.architecture: r for r in rows if (r.model, r.context, r.program) == ("gpt2", 128, "as_written")}


def test_kept_costs_count_both_directions():
    for row in kept_rows().values():
        assert row.bytes == row.bytes_client + row.bytes_server
        assert min(row.bytes_client, row.bytes_server) > 0.3 * row.bytes


def test_the_tables_of_the_report_have_the_kept_bytes_in_gigabytes_and_seconds_in_minutes():
    rows, seen = kept_rows(), 0
    fitted = {
        row.architecture: row
        for row in read(ROOT / "results/two_party/fitted_rows.csv", DetailedRow)
        if (row.model, row.context, row.program) == ("gpt2", 128, "as_published")
    }
    for cell in table_cells("4"):
        row = rows.get(cell["row"])
        if row is None or not cell["measured"]:
            continue
        if cell["column"] in ("Comm.", "communication"):
            assert cell["unit"] == "GB" and float(cell["measured"]) == pytest.approx(
                fitted[cell["row"]].bytes / 1e9, abs=6e-3
            )
            assert f"as_written {row.bytes / 1e9:.2f}, composed" in cell["note"]
            seen += 1
        if cell["column"] in ("Lat.", "latency"):
            minutes = fitted[cell["row"]].latency_wan_s / 60
            assert cell["unit"] == "min" and float(cell["measured"]) == pytest.approx(minutes, abs=6e-3)
            assert f"as_written {row.latency_wan_s / 60:.2f} on another day" in cell["note"]
            seen += 1
    assert seen >= 16


def test_kept_entropies_are_in_nats_of_their_context():
    """At most ln(T!) / T, and near it in some model: in bits they would exceed it, in a base of T be far below."""
    highest = 0.0
    for training in read_trainings(ROOT / "results/laptop").values():
        if (values := training.entropy) is None:
            continue
        bound = causal_bound(values["context"])
        means = [v for layer in values["entropy_mean"] for v in layer if v is not None]
        assert all(-1e-6 <= value <= bound + 1e-4 for value in means), training.key
        highest = max([highest, *(value / bound for value in means)])
    assert highest > 0.95
