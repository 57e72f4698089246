"""Reading SPU's log lines. The samples were logged by spu 0.9.5: ReLU of 128 x 768, and a first 768 x 768 product."""

from __future__ import annotations

from pathlib import Path

import pytest

from aero.two_party.profile import Operation, check_pair, parse

HERE = Path(__file__).parent
RELU = (HERE / "spu_0.9.5_client.txt").read_text()
PRODUCT = (HERE / "spu_0.9.5_client_product.txt").read_text()


def test_totals_and_operations_of_a_sample():
    profile = parse(RELU)
    assert (profile.bytes_sent, profile.bytes_received) == (7_593_984, 2_088_960)
    assert (profile.messages_sent, profile.messages_received) == (44, 40)
    assert profile.seconds == 5.504201826
    assert profile.operations[0] == Operation("pphlo", "pphlo.less", 1, 5.217877793, 6_795_264, 1_290_240, 40, 36)
    assert [o.name for o in profile.operations if o.level == "hal"] == ["f_less", "mixed_mul"]
    assert sum(o.bytes_sent for o in profile.operations if o.level == "mpc") == 7_593_984


def test_lines_of_other_parts_of_spu_are_passed_over():
    assert "CheetahDot uses" in PRODUCT
    assert parse(PRODUCT).bytes_sent == 12_229_000
    assert parse("something a library printed\n" + RELU + "[W] more\n") == parse(RELU)


def test_what_one_sends_the_other_receives():
    server = parse((HERE / "spu_0.9.5_server.txt").read_text())
    check_pair(parse(RELU), server)
    with pytest.raises(ValueError, match="client sent 12229000 bytes but the other party received 7593984"):
        check_pair(parse(PRODUCT), server)


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("Link details", "Link detail", "reads as no known"),
        ("total send bytes 7593984,", "total send bytes 7.6M,", "reads as no known"),
        ("total send bytes 7593984", "total send bytes 7593985", "add up to"),
        ("send actions 44, recv actions 40", "send actions 45, recv actions 40", "add up to"),
        ("duration 5.217877793s", "duration 5217.9ms", "reads as no known"),
        ("executed 1 times", "executed once", "reads as no known"),
        ("send bytes 6795264 recv", "send bytes 679526 recv", "add up to"),
        ("- msb_a2b, executed", "- msb_a2b ran, executed", "reads as no known"),
        ("MPC profiling", "XYZ profiling", "reads as no known"),
        ("total time 5.504201826s.", "total time unknown.", "before the line of the execution"),
        ("HAL profiling", "HLO profiling", "second HLO"),
        ("[api.cc:", "[api.cpp:", "reads as no known"),
        ("[2026-", "2026-", "reads as no known"),
    ],
)
def test_a_changed_line_is_an_error(old, new, message):
    assert old in RELU
    with pytest.raises(ValueError, match=message):
        parse(RELU.replace(old, new))


def without(text: str, part: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if part not in line)


@pytest.mark.parametrize("part", ["Link details", "[Profiling]", "pphlo.less", "msb_a2b"])
def test_a_missing_line_is_an_error(part):
    with pytest.raises(ValueError):
        parse(without(RELU, part))


def test_a_missing_level_is_an_error():
    lines = RELU.splitlines(keepends=True)
    start, end = (next(i for i, line in enumerate(lines) if f"{name} profiling" in line) for name in ("HAL", "MPC"))
    with pytest.raises(ValueError, match=r"lacks the levels \['hal'\]"):
        parse("".join(lines[:start] + lines[end:]))


def test_no_run_half_a_run_and_two_runs_are_errors():
    with pytest.raises(ValueError, match="no complete SPU profile"):
        parse("")
    with pytest.raises(ValueError):
        parse(RELU[: len(RELU) // 2])
    with pytest.raises(ValueError, match="more than one run"):
        parse(RELU + RELU)
