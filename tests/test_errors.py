"""How a command ends for whoever typed it."""

from __future__ import annotations

import pytest

from aero.errors import UserError, run_main


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no such\n thing"), 1, "error: no such thing\n"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device\n"),
        (MemoryError(), 1, "error: out of memory; free some, or ask for less at once\n"),
        (MemoryError("8 GiB"), 1, "error: out of memory (8 GiB); free some, or ask for less at once\n"),
        (KeyboardInterrupt(), 130, "error: interrupted; a run can be resumed by the same command\n"),
    ],
)
def test_an_error_is_one_line_and_a_status(capsys, error, status, said):
    def main(_):
        raise error

    with pytest.raises(SystemExit) as ended:
        run_main(main, [])
    assert ended.value.code == status and capsys.readouterr() == ("", said)


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda _: 1 // 0, [])
