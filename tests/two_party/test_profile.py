"""Reading SPU's log lines. The samples were logged by spu 0.9.5: ReLU of 128 x 768, and a first 768 x 768 product."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aero.two_party.runtime.profile import Operation, check_pair, parse

HERE = Path(__file__).parent
RELU = (HERE / "spu_0.9.5_client.txt").read_text()
RELU_SERVER = (HERE / "spu_0.9.5_server.txt").read_text()
PRODUCT = (HERE / "spu_0.9.5_client_product.txt").read_text()


def test_totals_and_operations_of_a_sample():
    profile = parse(RELU)
    assert (profile.bytes_sent, profile.bytes_received) == (7_593_984, 2_088_960)
    assert (profile.messages_sent, profile.messages_received) == (44, 40)
    assert profile.seconds == 5.504201826
    assert profile.operations[0] == Operation("msb_a2b", 1, 6_795_264, 1_290_240, 40, 36)
    assert sum(o.bytes_sent for o in profile.operations) == 7_593_984


def test_lines_of_other_parts_of_spu_are_passed_over():
    assert "CheetahDot uses" in PRODUCT
    assert parse(PRODUCT).bytes_sent == 12_229_000
    assert parse("something a library printed\n" + RELU + "[W] more\n") == parse(RELU)


def test_what_one_sends_the_other_receives():
    server = parse(RELU_SERVER)
    check_pair(parse(RELU), server)
    with pytest.raises(ValueError, match="client sent 12229000 bytes but the other party received 7593984"):
        check_pair(parse(PRODUCT), server)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("Link details", "Link detail", "one complete"),
        ("total send bytes 7593984,", "total send bytes 7.6M,", "one complete"),
        ("total send bytes 7593984", "total send bytes 7593985", "add up to"),
        ("send actions 44, recv actions 40", "send actions 45, recv actions 40", "add up to"),
        ("duration 5.183216793s", "duration 5183.2ms", "add up to"),
        ("executed 1 times", "executed once", "add up to"),
        ("- msb_a2b, executed", "- msb_a2b ran, executed", "add up to"),
        ("MPC profiling", "XYZ profiling", "one complete"),
        ("total time 5.504201826s.", "total time unknown.", "one complete"),
        ("total send bytes 7593984", "total send bytes " + 30 * "9", "add up to"),
        ("recv actions 40\n", "recv actions \u0664\u0660\n", "one complete"),
        ("send bytes 798720", "send bytes 798\u00a0720", "add up to"),
    ],
)
def test_a_changed_line_is_an_error(old, new, message):
    assert old in RELU
    with pytest.raises(ValueError, match=message):
        parse(RELU.replace(old, new))


def test_no_run_and_two_runs_are_errors():
    with pytest.raises(ValueError, match="one complete"):
        parse("")
    with pytest.raises(ValueError, match="one complete"):
        parse(RELU + RELU)


SAMPLES = [path.read_text() for path in sorted(HERE.glob("spu_0.9.5_*.txt"))]


def numbers(text: str) -> tuple | None:
    """What a profile's users read: totals, seconds, what each operation cost; None for an error."""
    try:
        profile = parse(text)
    except ValueError:
        return None
    totals = (profile.bytes_sent, profile.bytes_received, profile.messages_sent, profile.messages_received)
    rows = [(o.name, o.bytes_sent, o.bytes_received, o.messages_sent, o.messages_received) for o in profile.operations]
    return (*totals, profile.seconds, sorted(row for row in rows if any(row[1:])))


def assert_same_or_error(changed: str, original: str) -> None:
    found = numbers(changed)
    assert found is None or found == numbers(original)


def profile_lines(text: str) -> list[int]:
    return [index for index, line in enumerate(text.splitlines()) if "[api.cc" in line]


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_dropped_doubled_or_moved_line_ends_in_an_error_or_the_same_numbers(text, data):
    lines = text.splitlines(keepends=True)
    chosen = data.draw(st.sampled_from(profile_lines(text)))
    other = data.draw(st.sampled_from(profile_lines(text)))
    change = data.draw(st.sampled_from(["drop", "double", "move", "swap"]))
    line = lines[chosen]
    if change == "drop":
        del lines[chosen]
    elif change == "double":
        lines.insert(other, line)
    elif change == "move":
        del lines[chosen]
        lines.insert(other, line)
    else:
        # With the same numbers only the names change places, which nothing contradicts.
        assume(line.partition("send bytes")[2] != lines[other].partition("send bytes")[2])
        lines[chosen], lines[other] = lines[other], line
    assert_same_or_error("".join(lines), text)


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_log_cut_anywhere_is_an_error_unless_only_its_end_is_lost(text, data):
    cut = data.draw(st.integers(0, len(text)))
    assert_same_or_error(text[:cut], text)
    if cut < text.index("Link details"):
        assert numbers(text[:cut]) is None
