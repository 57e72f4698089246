"""The corpus `local`: a folder of text, JSON-lines or Parquet files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aero.data.base import Split, files_below, files_digest, files_of_split, sha256_of, split_by_name, split_point
from aero.errors import UserError

TEXT_ENDINGS = (".txt", ".py", ".md")
ROW_ENDINGS = (".parquet", ".jsonl")
_REPLACEMENT = "\ufffd".encode()
PIECE_BYTES = 8 * 2**20  # a longer text file is read in pieces, so that one file of any size fits into memory


class LocalFolder:
    """All text (.txt, .py, .md), JSON-lines and Parquet files below a folder, except hidden ones.

    A text file is one document (if longer than `PIECE_BYTES`: several, cut at line ends). Of the other files every row
    is a document, taken from `text_column`. The split is the owner's if file or folder names give one
    (`split_by_name`). Otherwise text files are held out by the hash of their path, rows by that of path and row number.
    Bytes that are not UTF-8 become U+FFFD and are counted; files with NUL bytes are skipped as binary. Symbolic links
    are not read.
    """

    name = "local"

    def __init__(self, folder: str | Path, text_column: str = "content", validation_fraction: float = 0.05) -> None:
        self.folder = Path(folder).expanduser()
        self.text_column = text_column
        self.validation_fraction = validation_fraction
        self._digests: dict[str, str] = {}
        self._split = ""
        self._binary: set[str] = set()
        self._replaced: Counter[str] = Counter()

    def files(self) -> list[str]:
        """Relative paths (forward slashes) of all files of the corpus, sorted. ValueError if missing or empty."""
        if not self.folder.is_dir():
            raise ValueError(f"corpus 'local': {self.folder} is not a folder; set corpus.path to one with text files")
        if not (found := files_below(self.folder, TEXT_ENDINGS + ROW_ENDINGS)):
            endings = f"{', '.join(TEXT_ENDINGS + ROW_ENDINGS)} (symbolic links are not read)"
            raise ValueError(f"corpus 'local' is empty: {self.folder} holds no file ending in {endings}")
        return found

    def documents(self, split: Split) -> Iterator[str]:
        keys = self.files()
        if named := split_by_name(keys):
            keys, self._split = named[split], named["description"]
            if not keys:
                raise ValueError(
                    f"corpus 'local': {self.folder} has no {split} files ({self._split}); rename or add files"
                )
        row_files = [key for key in keys if key.lower().endswith(ROW_ENDINGS)]
        text_files = [key for key in keys if not key.lower().endswith(ROW_ENDINGS)]
        if not named:
            fraction = self.validation_fraction
            self._split = f"by a hash, {fraction:.3g} held out; no name of the {len(keys)} files gives one"
            if len(keys) == 1 and text_files:
                raise ValueError(
                    f"corpus 'local': {self.folder} holds one text file, and validation is held out by file;"
                    " split it in two, or make the folders train/ and valid/ in it"
                )
            text_files = files_of_split(text_files, split, fraction)
        for key in text_files:
            # Before the first document: a limit on bytes may end the reading within the file.
            self._digests[key] = sha256_of(self.folder / key)
            yield from self._text(key)
        for key in row_files:
            self._digests[key] = sha256_of(self.folder / key)
            rows = self._parquet(key) if key.lower().endswith(".parquet") else self._json_lines(key)
            for number, text in enumerate(rows):
                held_out = split_point(f"{key}:{number}") < self.validation_fraction
                if text and (named or held_out == (split == "valid")):
                    yield text

    def manifest(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "text_column": self.text_column,
            "validation_fraction": self.validation_fraction,
            "split": self._split,
            "files_sha256": files_digest(self._digests),
            "skipped_binary": sorted(self._binary),
            "replaced_characters": dict(sorted(self._replaced.items())),
            "files": dict(sorted(self._digests.items())),
        }

    def _text(self, key: str) -> Iterator[str]:
        """The documents of a text file: pieces of whole lines."""
        first = True
        with open(self.folder / key, "rb") as file:
            while content := file.read(PIECE_BYTES) + file.readline():
                if first and b"\0" in content[:8192]:
                    del self._digests[key]
                    self._binary.add(key)
                    return
                text = content.decode("utf-8-sig" if first else "utf-8", "replace")
                if replaced := text.count("\ufffd") - content.count(_REPLACEMENT):
                    self._replaced[key] += replaced
                first = False
                if text:
                    yield text

    def _json_lines(self, key: str) -> Iterator[str]:
        with open(self.folder / key, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    text = row[self.text_column]
                except KeyError:
                    raise ValueError(self._no_column(f"{key} line {number}", row)) from None
                except (ValueError, TypeError, RecursionError) as error:
                    raise ValueError(
                        f"corpus 'local': {key} line {number} is not a JSON object ({error}); fix or remove the line"
                    ) from None
                yield self._checked(text, f"{key} line {number}")

    def _parquet(self, key: str) -> Iterator[str]:
        import pyarrow
        from pyarrow import parquet

        number = 0
        try:
            with parquet.ParquetFile(self.folder / key, pre_buffer=False, buffer_size=2**20) as file:
                if self.text_column not in (names := file.schema_arrow.names):
                    raise UserError(self._no_column(key, names))
                for batch in file.iter_batches(batch_size=64, columns=[self.text_column]):
                    for text in batch.column(0).to_pylist():
                        yield self._checked(text, f"{key} row {number}")
                        number += 1
        except UserError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise ValueError(
                f"corpus 'local': {key} is not a readable Parquet file ({str(error)[:300]}); fix or remove it"
            ) from None

    def _checked(self, text: object, where: str) -> str:
        if text is None:
            return ""
        if not isinstance(text, str):
            raise UserError(
                f"corpus 'local': {where}: column {self.text_column!r} holds {type(text).__name__}, not text;"
                " set corpus.text_column"
            )
        # A JSON escape can be half a surrogate pair, which cannot be encoded.
        return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text

    def _no_column(self, where: str, columns: Iterable[str]) -> str:
        known = ", ".join(map(repr, columns)) or "none"
        return (
            f"corpus 'local': {where} has no column {self.text_column!r}; set corpus.text_column to one of: "
            f"{known[:300]}"
        )
