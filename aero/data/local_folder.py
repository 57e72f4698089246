"""A corpus from a folder of one's own: text files, JSON lines, Parquet."""

from __future__ import annotations

import codecs
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aero.data.corpora import Split, files_digest, files_of_split, split_point

TEXT_ENDINGS = (".txt", ".py", ".md")
ROW_ENDINGS = (".parquet", ".jsonl")
_REPLACEMENT = "\ufffd".encode()
PIECE_BYTES = 8 * 2**20  # a longer text file is read in pieces, so that one file of any size fits into memory


class LocalFolder:
    """All text (.txt, .py, .md), JSON-lines and Parquet files below a folder.

    A text file is one document (longer than `PIECE_BYTES`: several, cut at line ends); of the others every row is one,
    taken from `text_column`. Validation: text files are held out by the hash of their path, rows by that of path and
    row number; a folder that holds exactly the folders `train` and `valid` is taken as split that way by its owner.
    Bytes that are not UTF-8 become U+FFFD and are counted; files with NUL bytes are binary and skipped.
    Hidden files are left out. A symbolic link that leads out of the folder is refused.
    """

    name = "local"

    def __init__(self, folder: str | Path, text_column: str = "content", validation_fraction: float = 0.05) -> None:
        self.folder = Path(folder).expanduser()
        self.text_column = text_column
        self.validation_fraction = validation_fraction
        self._digests: dict[str, str] = {}
        self._binary: set[str] = set()
        self._replaced: dict[str, int] = {}
        self._empty: set[str] = set()

    def files(self) -> list[str]:
        """Relative paths (forward slashes) of all files of the corpus, sorted. ValueError if missing or empty."""
        if not self.folder.is_dir():
            raise ValueError(f"corpus 'local': {self.folder} is not a folder; set corpus.path to one with text files")
        root = self.folder.resolve()
        found = []
        for parent, folders, names in os.walk(self.folder, onerror=_raise):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in [*folders, *names]:
                path = Path(parent, name)
                if path.is_symlink() and not path.resolve().is_relative_to(root):
                    raise ValueError(f"corpus 'local': {path} is a link that leads out of {self.folder}; copy the file")
            found += [
                Path(parent, name).relative_to(self.folder).as_posix()
                for name in names
                if name.lower().endswith(TEXT_ENDINGS + ROW_ENDINGS)
                and not name.startswith(".")
                and not Path(parent, name).is_symlink()  # a link within the folder would give its file twice
            ]
        for key in found:
            if not (self.folder / key).is_file():  # reading a pipe waits for whoever writes to it
                raise ValueError(f"corpus 'local': {self.folder / key} is a pipe, socket or device; remove it")
        if not found:
            endings = ", ".join(TEXT_ENDINGS + ROW_ENDINGS)
            raise ValueError(f"corpus 'local' is empty: {self.folder} holds no file ending in {endings}")
        return sorted(found)

    def documents(self, split: Split) -> Iterator[str]:
        keys = self.files()
        given = {key.split("/", 1)[0] for key in keys} == {"train", "valid"}
        if given:
            keys = [key for key in keys if key.startswith(f"{split}/")]
        row_files = [key for key in keys if key.lower().endswith(ROW_ENDINGS)]
        text_files = [key for key in keys if not key.lower().endswith(ROW_ENDINGS)]
        if not given:
            if len(text_files) == 1 and not row_files:
                raise ValueError(
                    f"corpus 'local': {self.folder} holds one text file, and validation is held out by file;"
                    " split it in two, or make the folders train/ and valid/ in it"
                )
            text_files = files_of_split(text_files, split, self.validation_fraction)
        for key in text_files:
            yield from self._text(key)
        for key in row_files:
            rows = self._parquet(key) if key.lower().endswith(".parquet") else self._json_lines(key)
            for number, text in enumerate(rows):
                held_out = split_point(f"{key}:{number}") < self.validation_fraction
                if text and (given or held_out == (split == "valid")):
                    yield text

    def manifest(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "text_column": self.text_column,
            "validation_fraction": self.validation_fraction,
            "files_sha256": files_digest(self._digests),
            "empty_files": len(self._empty),
            "skipped_binary": sorted(self._binary),
            "replaced_characters": dict(sorted(self._replaced.items())),
            "files": dict(sorted(self._digests.items())),
        }

    def _text(self, key: str) -> Iterator[str]:
        digest = hashlib.sha256()
        decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        replaced = size = 0
        rest = ""
        with open(self.folder / key, "rb") as file:
            while block := file.read(PIECE_BYTES):
                if not size and b"\0" in block[:8192]:
                    self._binary.add(key)
                    return
                size += len(block)
                digest.update(block)
                text = decoder.decode(block)
                replaced += text.count("\ufffd") - block.count(_REPLACEMENT)
                text = rest + text
                if len(block) < PIECE_BYTES:  # the last one, as a rule the only one
                    rest = text
                    continue
                end = text.rfind("\n") + 1 or len(text)
                rest = text[end:]
                if text[:end]:
                    yield text[:end]
        tail = decoder.decode(b"", final=True)
        replaced += tail.count("\ufffd")
        if rest + tail:
            yield rest + tail
        self._digests[key] = digest.hexdigest()
        if replaced > 0:
            self._replaced[key] = replaced
        if not size:
            self._empty.add(key)

    def _json_lines(self, key: str) -> Iterator[str]:
        digest = hashlib.sha256()
        with open(self.folder / key, "rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    text = row[self.text_column]
                except KeyError:
                    columns = ", ".join(map(repr, row)) or "none"
                    raise ValueError(self._no_column(f"{key} line {number}", columns)) from None
                except (ValueError, TypeError, RecursionError) as error:
                    raise ValueError(
                        f"corpus 'local': {key} line {number} is not a JSON object ({error}); mend or remove the line"
                    ) from None
                yield self._checked(text, f"{key} line {number}")
        self._digests[key] = digest.hexdigest()

    def _parquet(self, key: str) -> Iterator[str]:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise ValueError(
                f"corpus 'local': {key} needs pyarrow ({error}); install it: pip install -e '.[corpora]' in your clone"
            ) from None
        path = self.folder / key

        def lists() -> Iterator[list[Any]]:
            """The names of the columns, then the entries of ours, some at a time."""
            with parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
                yield file.schema_arrow.names
                for batch in file.iter_batches(batch_size=64, columns=[self.text_column]):
                    yield batch.column(0).to_pylist()

        def following() -> list[Any] | None:
            # What is damaged in a file ends in errors of many kinds, few of which name the file.
            try:
                return next(read, None)
            except (pyarrow.ArrowException, OSError, ValueError) as error:
                raise ValueError(
                    f"corpus 'local': {key} is not a readable Parquet file ({str(error)[:300]}); mend or remove it"
                ) from None

        read = lists()
        names, number = following() or [], 0
        if self.text_column not in names:
            raise ValueError(self._no_column(key, ", ".join(map(repr, names)) or "none"))
        while (texts := following()) is not None:
            for text in texts:
                yield self._checked(text, f"{key} row {number}")
                number += 1
        with open(path, "rb") as file:
            self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()

    def _checked(self, text: object, where: str) -> str:
        if text is None:
            return ""
        if not isinstance(text, str):
            raise ValueError(
                f"corpus 'local': {where}: column {self.text_column!r} holds {type(text).__name__}, not text;"
                " set corpus.text_column"
            )
        # A JSON escape can hold half a surrogate pair, which is no text and has no UTF-8.
        return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text

    def _no_column(self, where: str, columns: str) -> str:
        return (
            f"corpus 'local': {where} has no column {self.text_column!r}; set corpus.text_column to one of: "
            f"{columns[:300]}"
        )


def _raise(error: OSError) -> None:
    raise error
