"""How the command line tells of bad input: one line on standard error, exit status 1, no traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class UserError(ValueError):
    """Input a person can mend; its text names the cause and the remedy in one line."""


def run_main(main: Callable[[list[str]], int | None], arguments: list[str] | None = None) -> None:
    """Run `main(arguments)` and leave the process.

    `ValueError`, `OSError` and `KeyboardInterrupt` become one line on standard error and exit status 1 (130 for an
    interrupt), and so does a lack of memory that Python notices. Anything else is a defect of this project and keeps
    its traceback.
    """
    try:
        status = main(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        print("error: interrupted; a run can be resumed by the same command", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough (`| head`); what is still buffered must not be flushed into nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError as error:
        said = " ".join(str(error).split())
        print(
            f"error: out of memory{f' ({said})' if said else ''}; free some, or ask for less at once", file=sys.stderr
        )
        sys.exit(1)
    except (ValueError, OSError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    sys.exit(status or 0)
