"""Errors of the command line: one line on standard error, exit status 1, no traceback."""

from __future__ import annotations

import argparse
import difflib
import errno
import gc
import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

LONGEST_LINE = 1000
"""Characters of an error that are shown; it may quote a damaged file."""


EXTRAS = {
    **dict.fromkeys(("spu", "jax", "jaxlib", "cryptography"), "two-party"),
    **dict.fromkeys(("datasets", "pyarrow"), "corpora"),
    **dict.fromkeys(("transformers", "accelerate"), "hf"),
    **dict.fromkeys(("matplotlib", "nbclient", "pandas", "typst"), "report"),
    "dvc": "pipeline",
    "submitit": "cluster",
}
"""Optional packages, and the extra of pyproject.toml that installs each."""


class UserError(ValueError):
    """A mistake of the user; the message names cause and remedy in one line."""


def prepare_loading() -> None:
    """Until `run_main` starts, Ctrl-C ends the process with one line; loading libraries takes seconds.

    No garbage is collected meanwhile, which would take a quarter of the time.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted_while_loading)


def _interrupted_while_loading(*_: object) -> None:
    os.write(2, b"error: interrupted before it began\n")
    os._exit(130)


def run_main(main: Callable[[list[str]], int | None], arguments: list[str] | None = None) -> None:
    """Run `main(arguments)` and exit.

    ValueError, OSError, MemoryError, SIGINT, SIGTERM and a missing package of `EXTRAS` become one line on standard
    error and exit status 1 (130 for the two signals). Any other error is a defect and keeps its traceback.
    """
    gc.freeze()  # what was imported stays
    gc.enable()
    if signal.getsignal(signal.SIGINT) is _interrupted_while_loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = main(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("error: interrupted; a run can be resumed by the same command", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe (`| head`)
        sys.exit(1)
    except MemoryError as error:
        reason = " ".join(str(error).split())
        print(f"error: out of memory{f' ({reason})' if reason else ''}", file=sys.stderr)
        sys.exit(1)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        print(
            f"error: {missing} is not installed: pip install -e '.[{EXTRAS[missing]}]' in your clone", file=sys.stderr
        )
        sys.exit(1)
    except (ValueError, OSError) as error:
        print(f"error: {one_line(error)}{_remedy(error)}", file=sys.stderr)
        _drop_output()
        sys.exit(1)
    sys.exit(status or 0)


@contextmanager
def interruption_noted() -> Iterator[Callable[[], bool]]:
    """Inside, SIGINT and SIGTERM raise nothing: the function that this yields says whether one has come.

    For work that ends only where it can be saved. Ctrl-C in a terminal sends two, to a process and by its parent.
    Without effect on signals that others handle, and outside the main thread.
    """
    noted = threading.Event()
    here = threading.current_thread() is threading.main_thread()
    both = (signal.SIGINT, signal.SIGTERM)
    own = [one for one in both if here and signal.getsignal(one) is signal.default_int_handler]
    for one in own:
        signal.signal(one, lambda *_: noted.set())
    try:
        yield noted.is_set
    finally:
        for one in own:
            signal.signal(one, signal.default_int_handler)


def _drop_output() -> None:
    """Discard standard output if its buffer cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


REMEDIES = {
    errno.ENOENT: "check the path, or run what makes it (`dvc repro`: all that a stage needs)",
    errno.ENOTDIR: "a part of that path is a file; give another path",
    errno.EISDIR: "that is a folder; name a file",
    errno.EACCES: "give a path that you may read and write, or change its permissions",
    errno.EROFS: "give a path on a disk that can be written",
    errno.ENOSPC: "make room there",
    errno.EMFILE: "allow more open files (`ulimit -n`)",
}
"""Remedies for errors of the file system."""


def _remedy(error: ValueError | OSError) -> str:
    if not isinstance(error, OSError) or (remedy := REMEDIES.get(error.errno or 0)) is None:
        return ""
    if error.errno == errno.ENOSPC and error.filename is None:
        return f": a file that was being written, or where standard output goes; {remedy}"
    return f"; {remedy}"


def one_line(error: BaseException) -> str:
    """The message on one line of printable characters; it may quote an untrusted file or peer."""
    line = " ".join(str(error).split()) or type(error).__name__
    line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


def known(kind: str, name: str, names: Collection[str]) -> str:
    """`name` if it is one of `names`; UserError with the nearest of them if not."""
    if name in names:
        return name
    near = difflib.get_close_matches(name[:100], names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    shown, more = list(names)[:12], len(names) - 12
    raise UserError(f"unknown {kind} {name[:100]!r}; {hint}known: {', '.join(shown)}{f' and {more} more' * (more > 0)}")


def check_file(path: Path, most: int | None = None) -> None:
    """UserError if `path` is not a regular file or has more than `most` bytes. FileNotFoundError if it is missing."""
    try:
        found = path.stat()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path} is a link to itself; name the file") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
        raise UserError(f"{path} is {kind}; name a file")
    if most is not None and found.st_size > most:
        raise UserError(f"{path} has {found.st_size:,} bytes, more than the {most:,} allowed")


def text_of(path: Path, most: int | None = None) -> str:
    """The text of a file, in UTF-8, without a byte-order mark; errors as `check_file`."""
    check_file(path, most)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def seed_number(text: str) -> int:
    """The value of `--seed` (argparse's `type`): a whole number below 2^63."""
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{cut(text, 40)!r} must be a whole number from 0 to {2**63 - 1}")
    return int(text)


def check_minutes(minutes: float | None) -> None:
    """UserError unless a time limit is None or a positive number of minutes."""
    if minutes is not None and not 0 < minutes < 1e9:
        raise UserError(f"--minutes {minutes:g}: must be a number above 0")


def yaml_of(text: str) -> Any:
    """The values of a YAML text. ValueError if a mapping has a key twice; PyYAML's own errors if it is not valid.

    Numbers such as 1e-5 are numbers, as in YAML 1.2, which DVC reads. ValueError for what PyYAML, which reads YAML 1.1,
    takes for another value than DVC: 010 (8), 1_000, 1:30 (90), 1:30.5, yes.
    """
    import yaml

    return yaml.load(text, Loader=_loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@cache
def _loader(kind: type[Any]) -> type[Any]:
    class Loader(kind):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                value = key.value if isinstance(key.value, str) else None
                if key.tag != "tag:yaml.org,2002:merge" and value is not None:
                    if value in seen:
                        raise ValueError(
                            f"line {key.start_mark.line + 1} has the key {cut(value, 100)!r} a second time"
                        )
                    seen.add(value)
            return super().construct_mapping(node, deep)

        def construct_scalar(self, node: Any) -> Any:
            value = node.value
            other = {
                "tag:yaml.org,2002:int": r"[-+]?(0[0-9_]+|[0-9_]*_[0-9_]*)|.*:.*",
                "tag:yaml.org,2002:float": ".*:.*",
                "tag:yaml.org,2002:bool": "(?i)yes|no|on|off",
            }
            if isinstance(value, str) and re.fullmatch(other.get(node.tag, "(?!)"), value):
                line = node.start_mark.line + 1
                raise ValueError(f"line {line} has {value}, which DVC reads in another way; write a plain value")
            return super().construct_scalar(node)

    exponent = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return Loader


def yaml_file(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file. UserError, naming the file, for anything else; OSError if it cannot be opened."""
    text = text_of(path)
    try:
        values = yaml_of(text)
    except Exception as error:  # PyYAML raises errors of many types
        raise UserError(f"{path} is not valid YAML: {type(error).__name__}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping of parameters")
    return values


def json_file(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. UserError, naming the file, for anything else; OSError if it cannot be opened."""
    text = text_of(path)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({cut(str(error), 200)}); restore it or make it again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping, not {got(values)}; restore it or make it again")
    return values


def got(value: Any) -> str:
    """The value that was found, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return f" (got {text if len(text) <= 100 else text[:100] + '...'})"


def cut(text: str, most: int = 600) -> str:
    """The text, or its beginning and end if it is longer than `most`."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"
