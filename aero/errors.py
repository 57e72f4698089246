"""Errors of the command line: one line on standard error, exit status 1, no traceback."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST_LINE = 1000
"""Characters of an error that are shown; it may quote a damaged file."""

EXTRAS = {
    **dict.fromkeys(("spu", "jax", "jaxlib", "cryptography"), "two-party"),
    **dict.fromkeys(("datasets", "pyarrow"), "corpora"),
    **dict.fromkeys(("transformers", "accelerate"), "hf"),
    **dict.fromkeys(("matplotlib", "nbconvert", "pandas", "typst"), "report"),
    "dvc": "pipeline",
}
"""Optional packages, and the extra of pyproject.toml that installs each."""


class UserError(ValueError):
    """A mistake of the user; the message names cause and remedy in one line."""


def run_main(main: Callable[[list[str]], int | None], arguments: list[str] | None = None) -> None:
    """Run `main(arguments)` and exit.

    ValueError, OSError, MemoryError, SIGINT, SIGTERM and a missing package of `EXTRAS` become one line on standard
    error and exit status 1 (130 for the two signals). Any other error is a defect and keeps its traceback.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = 1
    try:
        status = main(sys.argv[1:] if arguments is None else arguments) or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
        print("error: interrupted; a run can be resumed by the same command", file=sys.stderr)
    except BrokenPipeError:
        _drop_output()  # the reader has closed the pipe (`| head`)
    except MemoryError as error:
        print(f"error: out of memory: {one_line(error)}", file=sys.stderr)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        remedy = f"pip install -e '.[{EXTRAS[missing]}]' in your clone"
        print(f"error: {missing} is not installed: {remedy}", file=sys.stderr)
    except (ValueError, OSError) as error:
        remedy = "; check the path, or run what makes it (`dvc repro`: all that a stage needs)"
        print(f"error: {one_line(error)}{remedy if isinstance(error, FileNotFoundError) else ''}", file=sys.stderr)
        _drop_output()
    sys.exit(status)


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
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is a folder, pipe, socket or device; name a file")
    if most is not None and found.st_size > most:
        raise UserError(f"{path} has {found.st_size:,} bytes, more than the {most:,} allowed")


def text_of(path: Path, most: int | None = None) -> str:
    """The text of a file, in UTF-8, without a byte-order mark; errors as `check_file`."""
    check_file(path, most)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def seed_number(text: str) -> int:
    """The value of `--seed` (argparse's `type`): a whole number below 2^63."""
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{cut(text, 40)!r} must be a whole number from 0 to {2**63 - 1}")
    return int(text)


def check_minutes(minutes: float | None) -> None:
    """UserError unless a time limit is None or a positive number of minutes."""
    if minutes is not None and not 0 < minutes < 1e9:
        raise UserError(f"--minutes {minutes:g}: must be a number above 0")


class _Loader(yaml.CSafeLoader):
    """Refuses a key that occurs twice, of which PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"line {node.start_mark.line + 1}: the key {cut(twice[0], 100)!r} occurs twice")
        return super().construct_mapping(node, deep)


# 1e-5 is a number, as in YAML 1.2, which DVC reads.
_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def yaml_of(text: str) -> Any:
    """The values of a YAML text. ValueError if a mapping has a key twice; PyYAML's own errors if it is not valid."""
    return yaml.load(text, Loader=_Loader)


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


def first_error(error: ValidationError) -> str:
    """The first fault that pydantic found: its place, what is wrong and the value."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])[:200]
    message = cut(first["msg"].removeprefix("Value error, "))
    shown = got(first["input"]) if isinstance(first["input"], str | int | float | None) else ""
    more = f"; and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{place + ': ' if place else ''}{message}{shown}{more}"


def got(value: Any) -> str:
    """The value that was found, shortened."""
    return f" (got {cut(repr(value), 100)})"


def cut(text: str, most: int = 600) -> str:
    """The text, or its beginning and end if it is longer than `most`."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"
