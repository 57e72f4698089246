"""How the command line tells of bad input: one line on standard error, exit status 1, no traceback."""

from __future__ import annotations

import difflib
import errno
import os
import stat
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

LONGEST_LINE = 1000
"""Characters of an error that are shown: what a damaged file holds could go on for megabytes."""


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
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(status or 0)


def one_line(error: BaseException) -> str:
    """What the error says, on one line of printable characters: it may quote a file or a peer that is not trusted."""
    line = " ".join(str(error).split()) or type(error).__name__
    line = "".join(c if c.isprintable() else "\ufffd" for c in line)
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} ..."


def known(kind: str, name: str, names: Collection[str]) -> str:
    """`name` if it is one of `names`; UserError with the nearest of them if not."""
    if name in names:
        return name
    near = difflib.get_close_matches(name[:100], names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"unknown {kind} {name[:100]!r}; {hint}known: {', '.join(names)}")


def text_of(path: Path) -> str:
    """The text of a file, in UTF-8. UserError for what is no file: a pipe would be waited for, a device read without
    end. FileNotFoundError if there is nothing.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path} is a link that leads back to itself; name the file") from None
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'a pipe, socket or device'}; name a file")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def yaml_of(text: str) -> Any:
    """What a text in YAML says. ValueError for one that is nested too deeply, has too many parts, or names a key twice;
    PyYAML's own errors, of whatever type, for one that is not valid.

    By libyaml where PyYAML has it, in a fifth of the time. Its stack ends at some 10^4 levels, and the process with it,
    so that its events, which need no stack, are looked at first.
    """
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    check_events(yaml.parse(text, Loader=kind))
    loader = kind(text)
    try:
        return bounded(loader.get_single_data())
    finally:
        loader.dispose()


def check_events(events: Iterable[Any], most: int = 100) -> None:
    """ValueError for PyYAML's events of a text that is nested more than `most` deep, gives a key twice, of which one
    would be lost, or merges lists of mappings, which can double what it means with every line."""
    import yaml

    mappings: list[set[str] | None] = []  # of each open collection the keys so far, None in a list
    keys_next: list[bool] = []
    merges = False
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            mappings.pop(), keys_next.pop()
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        line = event.start_mark.line + 1
        if mappings and (keys := mappings[-1]) is not None:
            if not keys_next[-1]:
                if merges and isinstance(event, yaml.SequenceStartEvent):
                    raise ValueError(f"line {line} merges a list of mappings; merge one")
            elif isinstance(event, yaml.ScalarEvent):
                if event.value in keys:
                    raise ValueError(f"line {line} has the key {cut(event.value, 100)!r} a second time")
                keys.add(event.value)
            merges = keys_next[-1] and isinstance(event, yaml.ScalarEvent) and event.value == "<<"
            keys_next[-1] = not keys_next[-1]
        if isinstance(event, yaml.CollectionStartEvent):
            mappings.append(set() if isinstance(event, yaml.MappingStartEvent) else None)
            keys_next.append(True)
            if len(mappings) > most:
                raise ValueError(f"line {line} is nested more than {most} deep")


def bounded(tree: Any, most: int = 10**6) -> Any:
    """`tree` of lists and mappings. ValueError if it has more than `most` parts, or contains itself: a few lines of
    YAML whose aliases stand for each other are millions of parts as soon as somebody writes them out."""
    sizes: dict[int, int | None] = {}

    def size(part: Any) -> int:
        if not isinstance(part, dict | list):
            return 1
        if id(part) not in sizes:
            sizes[id(part)] = None
            sizes[id(part)] = 1 + sum(map(size, part.values() if isinstance(part, dict) else part))
        if (found := sizes[id(part)]) is None:
            raise ValueError("a part of it contains itself")
        return found

    if (parts := size(tree)) > most:
        raise ValueError(f"it has {parts:.1e} parts" if parts < 1e300 else "it has no end of parts")
    return tree


def got(value: Any) -> str:
    """The value that was found, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return f" (got {text if len(text) <= 100 else text[:100] + '...'})"


def cut(text: str, most: int = 600) -> str:
    """The text, or its beginning and end where it is longer than `most`: a number may have thousands of digits."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"
