"""Units by hand-worked cases: nats, FLOPs, bits and bytes, one and two directions."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from aero.architecture import parse
from aero.attention_kernels import row_entropy
from aero.entropy import causal_bound, max_entropy
from aero.flops import Sizes, count
from aero.two_party.cost.ledger import Measurement, Row, read
from aero.two_party.cost.network import Network, implied_bandwidth_mbit, lower_bound_seconds
from aero.two_party.runtime.profile import parse as parse_profile

ROOT = Path(__file__).resolve().parents[1]


def test_entropies_are_in_nats():
    """A row that is uniform over i positions has ln i nats: over 8 positions 2.0794, not 3 bits."""
    rows = torch.tril(torch.ones(8, 8)) / torch.arange(1, 9)[:, None]
    assert row_entropy(rows).tolist() == pytest.approx([math.log(i) for i in range(1, 9)], abs=1e-6)
    assert max_entropy(128) == pytest.approx(4.852030263919617)
    assert causal_bound(128) == pytest.approx(sum(math.log(i) for i in range(1, 129)) / 128)


def test_flops_count_a_multiplication_and_an_addition():
    """A fused layer multiplies (128, 768) by (768, 768): 75,497,472 multiplications and as many additions."""
    one, two = (count(parse(text), Sizes(2, 12, 768), 128).ffn for text in ("SM+ScFuFFN", "SM+ScFuFFNi_1"))
    assert one - two == 2 * 75_497_472


def test_networks_are_in_mbit_and_milliseconds():
    network = Network(100, 80)
    assert network.transfer_seconds(12.5e6, 0) == pytest.approx(1.0)  # 12.5 million bytes are 100 million bits
    assert network.latency_seconds(0, 0, 0, 50) == pytest.approx(4.0)  # 50 round trips of 80 ms
    assert lower_bound_seconds(25.32e9, 100, "one_way") == pytest.approx(2025.6)  # 1 GB is 1e9 bytes
    assert lower_bound_seconds(25.32e9, 100, "both_overlapping") == pytest.approx(2025.6 / 2)
    assert round(implied_bandwidth_mbit(145.24e9, 30.74 * 60)) == 315  # half in each direction


def test_bytes_count_both_directions():
    profile = parse_profile((ROOT / "tests/two_party/spu_0.9.5_client.txt").read_text())
    assert profile.bytes == 7_593_984 + 2_088_960
    assert Measurement("relu", "1", "gpt2", 1, "", 300.0, 200.0, 0, 0, 1e9, 0, 1, "").bytes == 500.0
    for row in read(ROOT / "results/two_party/rows.csv", Row):
        assert row.bytes == row.bytes_client + row.bytes_server


def test_the_report_states_gigabytes_of_1e9_bytes():
    with open(ROOT / "reports/tables/aero_table4.csv", encoding="utf-8", newline="") as file:
        cells = {(cell["row"], cell["column"]): cell for cell in csv.DictReader(file)}
    cell = cells["SM+LN+G", "Comm."]
    fitted = [
        float(row["bytes"])
        for row in csv.DictReader(open(ROOT / "results/two_party/fitted_rows.csv", encoding="utf-8"))
        if (row["architecture"], row["model"], row["context"], row["program"])
        == ("SM+LN+G", "gpt2", "128", "as_published")
    ]
    assert cell["unit"] == "GB" and float(cell["measured"]) == pytest.approx(fitted[0] / 1e9, abs=6e-3)
