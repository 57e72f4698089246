"""How the command line tells of bad input: one line on standard error, exit status 1, no traceback."""

from __future__ import annotations

import argparse
import difflib
import errno
import json
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LONGEST_LINE = 1000
"""Characters of an error that are shown: what a damaged file holds could go on for megabytes."""


EXTRAS = {
    **dict.fromkeys(("spu", "jax", "jaxlib", "cryptography"), "two-party"),
    **dict.fromkeys(("datasets", "pyarrow"), "corpora"),
    **dict.fromkeys(("transformers", "accelerate"), "hf"),
    **dict.fromkeys(("matplotlib", "nbconvert", "pandas"), "report"),
    "dvc": "pipeline",
    "submitit": "cluster",
}
"""Packages that only a part of this project needs, and the extra of pyproject.toml that installs each."""


class UserError(ValueError):
    """Input a person can mend; its text names the cause and the remedy in one line."""


def tell_interrupts_while_loading() -> None:
    """Until `run_main` sees to it, Ctrl-C ends the process with one line: libraries take seconds to load."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted_while_loading)


def _interrupted_while_loading(*_: object) -> None:
    os.write(2, b"error: interrupted before it began\n")
    os._exit(130)


def run_main(main: Callable[[list[str]], int | None], arguments: list[str] | None = None) -> None:
    """Run `main(arguments)` and leave the process.

    `ValueError`, `OSError` and `KeyboardInterrupt` become one line on standard error and exit status 1 (130 for an
    interrupt), and so do a lack of memory that Python notices and a package of `EXTRAS` that is not installed. Anything
    else is a defect of this project and keeps its traceback.
    """
    if signal.getsignal(signal.SIGINT) is _interrupted_while_loading:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        status = main(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()  # later, Python only complains of what could not be written
    except KeyboardInterrupt:
        print("error: interrupted; a run can be resumed by the same command", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _drop_output()  # whoever read it has seen enough (`| head`)
        sys.exit(1)
    except MemoryError as error:
        said = " ".join(str(error).split())
        print(
            f"error: out of memory{f' ({said})' if said else ''}; free some, or ask for less at once", file=sys.stderr
        )
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


def _drop_output() -> None:
    """Standard output leads nowhere from here on, if what is still buffered for it cannot be written."""
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
"""What helps where the system refuses a file, by its number of the error."""


def _remedy(error: ValueError | OSError) -> str:
    if not isinstance(error, OSError) or (remedy := REMEDIES.get(error.errno or 0)) is None:
        return ""
    if error.errno == errno.ENOSPC and error.filename is None:
        return f": a file that was being written, or where standard output goes; {remedy}"
    return f"; {remedy}"


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


def check_file(path: Path, most: int | None = None) -> None:
    """UserError for what is no file, where a pipe would be waited for and a device read without end, and for one of
    more than `most` bytes. FileNotFoundError if there is nothing.
    """
    try:
        found = path.stat()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(f"{path} is a link that leads back to itself; name the file") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
        raise UserError(f"{path} is {kind}; name a file")
    if most is not None and found.st_size > most:
        raise UserError(f"{path} has {found.st_size:,} bytes, more than the {most:,} that are read; give a part of it")


def text_of(path: Path, most: int | None = None) -> str:
    """The text of a file, in UTF-8; errors as `check_file`."""
    check_file(path, most)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        if error.filename is not None:
            raise
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def seed_number(text: str) -> int:
    """What `--seed` takes, as argparse's `type`: a whole number from 0, below 2^63 as PyTorch takes them."""
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{cut(text, 40)!r} must be a whole number from 0 to {2**63 - 1}")
    return int(text)


def check_minutes(minutes: float | None) -> None:
    """UserError unless a time limit is None or a number of minutes above 0: NaN would end nothing."""
    if minutes is not None and not 0 < minutes < 1e9:
        raise UserError(f"--minutes {minutes:g}: more than 0, and a number")


def yaml_of(text: str) -> Any:
    """What a text in YAML says. ValueError for one that is nested too deeply, has too many parts, or names a key twice;
    PyYAML's own errors, of whatever type, for one that is not valid.

    By libyaml where PyYAML has it, in a fifth of the time. Its stack ends at some 10^4 levels, and the process with it,
    so that its events, which need no stack, are looked at first.
    """
    import yaml

    kind = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    check_events(yaml.parse(text, Loader=kind))
    loader = _checking(kind)(text)
    try:
        return bounded(loader.get_single_data())
    finally:
        loader.dispose()


def yaml_file(path: Path) -> dict[Any, Any]:
    """The mapping that a file in YAML holds. UserError, naming the file, for anything else; OSError as for any file."""
    try:
        values = yaml_of(text_of(path))
    except (OSError, UserError):
        raise
    except Exception as error:  # a date without a month, a tag of another type: YAML's readers raise anything
        raise UserError(f"{path} is not valid YAML: {type(error).__name__}: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping of parameters")
    return values


def json_file(path: Path) -> dict[str, Any]:
    """The mapping that a file in JSON holds. UserError, naming the file, for anything else; OSError as for any file."""
    try:
        values = json.loads(text_of(path))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({cut(str(error), 200)}); restore it or make it again") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping, not {got(values)}; restore it or make it again")
    return values


_MERGE = "tag:yaml.org,2002:merge"


@dataclass
class _Part:
    """A list, mapping, scalar or alias of a YAML text, as far as it has been read.

    keys: of a mapping's own. parts: of a mapping, its own and merged. height: levels of collections in it. merges: the
    key that was read last is the one that merges (`<<`).
    """

    value: str | None = None
    merge_key: bool = False
    keys: set[str] | None = None
    parts: int = 0
    height: int = 0
    key_next: bool = True
    merges: bool = False
    anchor: str | None = None


def check_events(events: Iterable[Any], most: int = 100, merged: int = 10**5) -> None:
    """ValueError for PyYAML's events of a text that is nested more than `most` deep, with what its aliases stand for;
    gives a key twice, of which one would be lost; merges lists of mappings, which can double what it means with every
    line; or merges more than `merged` keys."""
    import yaml

    opened: list[_Part] = []
    anchors: dict[str, _Part] = {}
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            part = opened.pop()
            if part.anchor is not None:
                anchors[part.anchor] = part
        elif isinstance(event, yaml.AliasEvent):
            if any(part.anchor == event.anchor for part in opened):
                raise ValueError(f"line {event.start_mark.line + 1}: a part of it contains itself")
            part = anchors.get(event.anchor) or _Part()
        elif isinstance(event, yaml.ScalarEvent):
            plain = event.tag in (None, "!") and event.implicit[0]  # `! <<` is what it is without `!`
            part = _Part(event.value, event.tag == _MERGE or plain and event.value == "<<")
            if event.anchor is not None:
                anchors[event.anchor] = part
        elif isinstance(event, yaml.CollectionStartEvent):
            keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
            anchors.pop(event.anchor, None)
            opened.append(_Part(merge_key=event.tag == _MERGE, keys=keys, height=1, anchor=event.anchor))
            if opened[1:] and opened[-2].merges and keys is None:
                raise ValueError(f"line {event.start_mark.line + 1} merges a list of mappings; merge one")
            if len(opened) > most:
                raise ValueError(f"line {event.start_mark.line + 1} is nested more than {most} deep")
            continue
        else:
            continue
        if opened:
            merged -= _add(opened[-1], part, event.start_mark.line + 1)
            if merged < 0:
                raise ValueError(f"line {event.start_mark.line + 1} merges more keys than there is room for")
            if len(opened) - 1 + opened[-1].height > most:
                raise ValueError(f"line {event.start_mark.line + 1} is nested more than {most} deep")


def _add(holder: _Part, part: _Part, line: int) -> int:
    """Add a whole part to the list or mapping that it stands in; how many keys that merged."""
    holder.height = max(holder.height, part.height + 1)
    if holder.keys is None:
        return 0
    holder.key_next = not holder.key_next
    if not holder.key_next:  # `part` was the key
        if part.value is not None:
            if part.value in holder.keys:
                raise ValueError(f"line {line} has the key {cut(part.value, 100)!r} a second time")
            holder.keys.add(part.value)
        holder.merges, holder.parts = part.merge_key, holder.parts + 1
        return 0
    if not holder.merges:
        return 0
    if part.keys is None and part.height:
        raise ValueError(f"line {line} merges a list of mappings; merge one")
    holder.merges, holder.parts = False, holder.parts + part.parts
    return part.parts


_EXPONENT = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")
"""Numbers such as 1e-5, which are text to YAML 1.1, PyYAML's, and numbers to 1.2, DVC's."""
_DIGITS = 10_000
"""Characters of a whole number in YAML. PyYAML reads 1:30:00, to the base 60, in a time that grows as their square."""


@cache
def _checking(kind: type[Any]) -> type[Any]:
    """PyYAML's loader `kind` with a bound on the length of numbers, and no keys that are equal when they are read."""

    class Checking(kind):
        def flatten_mapping(self, node: Any) -> None:
            if not hasattr(node, "own_keys"):  # the first time: others that merge this one may do so before its turn
                node.own_keys = [key for key, _ in node.value if key.tag != _MERGE]
            super().flatten_mapping(node)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            found = super().construct_mapping(node, deep)
            seen = set()
            for key in node.own_keys:
                value = self.construct_object(key, deep=True)
                if value in seen:
                    raise ValueError(f"line {key.start_mark.line + 1} has the key {cut(str(value), 100)} a second time")
                seen.add(value)
            return found

        def construct_int(self, node: Any) -> int:
            if len(node.value) > _DIGITS:
                raise ValueError(f"line {node.start_mark.line + 1} has a number of {len(node.value)} characters")
            return self.construct_yaml_int(node)

    Checking.add_constructor("tag:yaml.org,2002:int", Checking.construct_int)
    Checking.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
    return Checking


def bounded(tree: Any, most: int = 10**6) -> Any:
    """`tree` of lists and mappings. ValueError if it has more than `most` parts, or contains itself: a few lines of
    YAML whose aliases stand for each other are millions of parts as soon as somebody writes them out."""
    sizes: dict[int, int | None] = {}

    def size(part: Any) -> int:
        if not isinstance(part, dict | list | tuple):  # tuples: of `!!pairs` and `!!omap`
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
