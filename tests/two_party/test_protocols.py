"""Stock operations under SPU's other protocols, between real processes: what they compute, and bytes by hand."""

import math

import numpy as np
import pytest

from aero.report.papers.private_inference import protocols
from aero.report.results import load
from aero.two_party.cost.measure import arguments
from aero.two_party.program.operations import Operation
from benchmarks.protocols import Session

LINEAR = Operation("linear", ((8, 16), (16, 24)))
OPENED = 8 * 16 + 16 * 24
RESULT = 8 * 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "elements"),
    # SEMI2K: both parties open both masked operands, and one element an entry truncates the result.
    # ABY3: three parties reshare the result, and 3.5 elements an entry truncate it.
    [("SEMI2K", 2 * OPENED + RESULT), ("ABY3", 3 * RESULT + 3.5 * RESULT)],
)
def test_a_matrix_multiplication(protocol, elements):
    session = Session(protocol)
    size, rounds, result = session.run(LINEAR.function, values := arguments(LINEAR))
    session.close()
    np.testing.assert_allclose(result, values[0] @ values[1], atol=1e-3)
    assert size == 8 * elements and 1 <= rounds <= 2


def test_most_of_the_saving_remains_without_cheetah():
    """What the report states of the committed results."""
    results = load()
    for number in ("4", "6"):
        frame = protocols(results, number).set_index("configuration").drop(columns="rounds")
        savings = frame.apply(lambda column: column.str.extract(r"([\d.]+)x$", expand=False)).astype(float)
        assert list(savings) == ["saving, paper", "Cheetah", "SEMI2K", "ABY3"] and savings["SEMI2K"].iloc[0] == 1
        assert (savings[["SEMI2K", "ABY3"]].iloc[1:] > 1.5).all(axis=None)
    largest = savings.loc[savings["saving, paper"].idxmax()]
    assert largest["saving, paper"] == 4.23
    assert all(math.log(largest[name]) > 0.5 * math.log(4.23) for name in ("SEMI2K", "ABY3"))
