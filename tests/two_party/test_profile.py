"""Reading SPU's log lines. The samples were logged by spu 0.9.5: ReLU of 128 x 768, and a first 768 x 768 product."""

from __future__ import annotations

import re
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
    assert profile.operations[0] == Operation("pphlo", "pphlo.less", 1, 5.217877793, 6_795_264, 1_290_240, 40, 36)
    assert [o.name for o in profile.operations if o.level == "hal"] == ["f_less", "mixed_mul"]
    assert sum(o.bytes_sent for o in profile.operations if o.level == "mpc") == 7_593_984


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
        ("took 5.504183919s", "took 5504.183919s", "steps of the execution"),
        ("total time 5.504201826s.", "total time 5504.2s.", "steps of the execution"),
        ("HLO profiling: total time 5.473284487", "HLO profiling: total time 5.5", "seconds of pphlo operations"),
        ("duration 5.183216793s", "duration 51.83216793s", "seconds of mpc operations"),
        ("duration 5.183216793s", "duration 1e+99s", "seconds of mpc operations"),
        ("duration 5.183216793s", "duration 1e+999s", "reads as no known"),
        ("total send bytes 7593984", "total send bytes " + 30 * "9", "reads as no known"),
        ("recv actions 40\n", "recv actions \u0664\u0660\n", "reads as no known"),
        ("send bytes 798720", "send bytes 798\u00a0720", "reads as no known"),
        ("- mixed_mul, executed 1 times", "- mixed_mul, executed 0 times", "never executed"),
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


def test_hal_operations_that_do_not_account_for_all_are_left_out_and_too_many_are_an_error():
    line = next(line for line in RELU.splitlines() if "- mixed_mul," in line)
    fewer = parse(RELU.replace(line, line.replace("send bytes 798720", "send bytes 798719")))
    assert all(o.level != "hal" for o in fewer.operations) and fewer.bytes_sent == parse(RELU).bytes_sent
    with pytest.raises(ValueError, match="hal operations add up to"):
        parse(RELU.replace(line, line.replace("send bytes 798720", "send bytes 798721")))


SAMPLED = sorted(HERE.glob("spu_0.9.5_*.txt"))
SAMPLES = [path.read_text() for path in SAMPLED]
NAMES = [path.stem.removeprefix("spu_0.9.5_") for path in SAMPLED]


def numbers(text: str) -> tuple | None:
    """What a profile's users read: totals, seconds, and every level's bytes and messages; None for an error.

    HAL operations may be left out; what is kept of them must be right.
    """
    try:
        profile = parse(text)
    except ValueError:
        return None
    rows = [
        (o.level, o.name, o.bytes_sent, o.bytes_received, o.messages_sent, o.messages_received, round(o.seconds, 9))
        for o in profile.operations
        if o.level != "hal"
    ]
    totals = (profile.bytes_sent, profile.bytes_received, profile.messages_sent, profile.messages_received)
    return (*totals, profile.seconds, sorted(rows))


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
        lines[chosen], lines[other] = lines[other], line
    changed, original = numbers("".join(lines)), numbers(text)
    if changed is not None:
        # A line that cost nothing may come, go or change its level: totals and everything that cost bytes stay.
        assert changed[:5] == original[:5]
        assert [row for row in changed[5] if any(row[2:6])] == [row for row in original[5] if any(row[2:6])]


@settings(deadline=None)
@given(st.sampled_from(SAMPLES), st.data())
def test_a_log_cut_anywhere_is_an_error_unless_only_its_end_is_lost(text, data):
    cut = data.draw(st.integers(0, len(text)))
    assert_same_or_error(text[:cut], text)
    if cut < text.index("Link details"):
        assert numbers(text[:cut]) is None


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(SAMPLES), st.data(), st.text(min_size=1, max_size=3))
def test_other_characters_anywhere_in_a_line_end_in_an_error_or_the_same_numbers(text, data, new):
    lines = text.splitlines(keepends=True)
    chosen = data.draw(st.sampled_from(profile_lines(text)))
    line = lines[chosen]
    start = line.index("] ", line.index("[api.cc"))
    at = data.draw(st.integers(start, len(line) - 2))
    width = data.draw(st.integers(0, 2))
    # Names and how often an operation ran are said once: nothing contradicts another one.
    assume(not (" - " in line and at < line.index(", duration")))
    lines[chosen] = line[:at] + new + line[at + width :]
    assert_same_or_error("".join(lines), text)


@settings(deadline=None)
@given(
    st.sampled_from(SAMPLES), st.data(), st.sampled_from(["K", "kB", "ms", "e3", "0", ".0", "us", "%", "\u0660", "-"])
)
def test_another_unit_or_format_of_any_number_ends_in_an_error_or_the_same_numbers(text, data, unit):
    places = [match.span(1) for match in re.finditer(r"(?:bytes|actions|duration|time|took) ([\d.e-]+\d)", text)]
    start, end = data.draw(st.sampled_from(places))
    assert_same_or_error(text[:end] + unit + text[end:], text)
    assert_same_or_error(text[:start] + unit + text[start:], text)


@pytest.mark.parametrize("other", SAMPLES, ids=NAMES)
@pytest.mark.parametrize("text", SAMPLES, ids=NAMES)
def test_two_runs_spliced_anywhere_are_an_error_or_one_of_them(text, other):
    """Every splice of every two samples. One alone goes unnoticed: the server's line of the execution before the rest
    of what the client logged of the same run, 30 ms later. Bytes and messages are then the client's, and the seconds
    of the whole the server's; nothing in SPU's lines says which party printed them.
    """
    lines, more = text.splitlines(keepends=True), other.splitlines(keepends=True)
    known, unnoticed = (numbers(text)[:5], numbers(other)[:5]), []
    for end in range(len(lines) + 1):
        for start in range(len(more) + 1):
            found = numbers("".join(lines[:end] + more[start:]))
            if found is not None and found[:5] not in known:
                unnoticed.append((end, start, found[:5]))
    of_one_run = (text, other) == (RELU_SERVER, RELU)
    assert unnoticed == ([(1, 1, (*numbers(RELU)[:4], numbers(RELU_SERVER)[4]))] if of_one_run else [])
