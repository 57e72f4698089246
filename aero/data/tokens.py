"""Token files: the ids of a corpus on disk, memory-mapped, so that neither writing nor reading one needs its size in
memory.

A folder holds `train.bin` and `valid.bin` (uint16, little-endian), `train.offsets.npy` and `valid.offsets.npy`
(uint64), `tokenizer.json` and `manifest.json`. Every document is followed by one `<|endoftext|>`: document i is
`tokens[offsets[i] : offsets[i + 1] - 1]`, and offsets has one entry more than there are documents.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

FORMAT = "aero-tokens-1"
SPLITS: tuple[Literal["train"], Literal["valid"]] = ("train", "valid")
LARGEST_VOCABULARY = 65_536  # ids are of 16 bits
REMEDY = "make the token files again: python -m stages.tokenize_corpus, or dvc repro -f tokenize"

_READ_TOKENS = 2**22


@dataclass(frozen=True)
class TokenStream:
    """The ids of one split. tokens: (N,) uint16, memory-mapped; offsets: (documents + 1,) uint64 (see the module)."""

    tokens: np.ndarray
    offsets: np.ndarray

    @property
    def documents(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True)
class Tokens:
    """An opened folder of token files. vocabulary: number of ids, `<|endoftext|>` included."""

    folder: Path
    train: TokenStream
    valid: TokenStream
    vocabulary: int
    manifest: dict[str, Any]


def tokens_folder(corpus: str | None = None, root: Path | str = "runs") -> Path:
    """Where the pipeline keeps token files: runs/tokens for the default corpus, runs/tokens_<corpus> for another."""
    return Path(root) / ("tokens" if corpus is None else f"tokens_{corpus}")


def scale_root(scale: str | None, active: str) -> Path:
    """Where the token files of a scale lie: runs/ for the one params.yaml names, runs/scales/SCALE/ for another."""
    return Path("runs") if scale in (None, active) else Path("runs/scales") / scale


def open_tokens(folder: str | Path, verify: bool = False) -> Tokens:
    """The token files in `folder`, memory-mapped.

    Sizes and boundaries are always held against the manifest; `verify` also reads every byte, checks the SHA-256 of
    ids and boundaries, and that every document ends with `<|endoftext|>`. Raises ValueError naming the damaged file and
    what to do.
    """
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(f"token files {folder} are missing ({path} does not exist); {REMEDY}")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r} instead of {FORMAT!r}")
        vocabulary = _number(manifest, "vocabulary", LARGEST_VOCABULARY)
        for name in ("corpus_sha256", "tokenizer_sha256"):
            if not (isinstance(said := manifest[name], str) and re.fullmatch("[0-9a-f]{64}", said)):
                raise ValueError(f"{name} is {str(said)[:40]!r}, no SHA-256")
        streams = {split: _open_split(folder, split, manifest["splits"][split], verify) for split in SPLITS}
        if verify:
            for split in SPLITS:
                _verify_ids(folder, split, streams[split], manifest)
    except _Damaged as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise ValueError(f"token file {path} is damaged ({reason}); {REMEDY}") from None
    return Tokens(folder, streams["train"], streams["valid"], vocabulary, manifest)


class _Damaged(Exception):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"token file {path} is damaged: {reason}; {REMEDY}")


def _number(values: dict[str, Any], name: str, most: int = 2**60, least: int = 1) -> int:
    """A number from `least` to `most`. ValueError for anything else: JSON knows 1e999, true and "12" as well."""
    if type(number := values[name]) is not int or not least <= number <= most:
        raise ValueError(f"{name} is {str(number)[:40]!r}, not a whole number from {least} to {most}")
    return number


def _open_split(folder: Path, split: str, entry: dict[str, Any], verify: bool) -> TokenStream:
    path, offsets_path = folder / f"{split}.bin", folder / f"{split}.offsets.npy"
    for needed in (path, offsets_path):
        if not needed.is_file():
            raise _Damaged(needed, "it does not exist")
    count, documents = _number(entry, "tokens"), _number(entry, "documents")
    if path.stat().st_size != 2 * count:
        raise _Damaged(path, f"{path.stat().st_size} bytes instead of {2 * count}")
    try:
        offsets = np.load(offsets_path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy reads a damaged header as Python source, or the file as a zip archive
        raise _Damaged(offsets_path, f"{type(error).__name__}: {str(error)[:200]}") from None
    if not isinstance(offsets, np.ndarray):
        raise _Damaged(offsets_path, "it is an archive and no array")
    if offsets.dtype != np.uint64 or offsets.shape != (documents + 1,):
        raise _Damaged(offsets_path, f"{offsets.dtype} {offsets.shape} instead of uint64 ({documents + 1},)")
    if offsets[0] != 0 or offsets[-1] != count or np.any(offsets[1:] <= offsets[:-1]):
        raise _Damaged(offsets_path, f"the document boundaries do not rise from 0 to {count}")
    hashes = {path: "sha256", offsets_path: "offsets_sha256"} if verify else {}
    for hashed, name in hashes.items():
        if (name == "sha256" or name in entry) and sha256_of(hashed) != entry[name]:  # older ones have no other
            raise _Damaged(hashed, "its SHA-256 is not the one in manifest.json")
    return TokenStream(np.memmap(path, dtype="<u2", mode="r", shape=(count,)), offsets)


def _verify_ids(folder: Path, split: str, stream: TokenStream, manifest: dict[str, Any]) -> None:
    """_Damaged unless all ids are of the vocabulary and `<|endoftext|>` ends every document.

    Where the manifest has no hash of the boundaries it may also stand nowhere else: a boundary that was moved from one
    document's end to another such place is seen by that alone. Languini's vocabulary makes it of `<D>` in a text, too.
    """
    vocabulary = manifest["vocabulary"]
    end, ends = _number(manifest, "end_of_text", vocabulary - 1, least=0), 0
    for start in range(0, len(stream.tokens), _READ_TOKENS):
        part = stream.tokens[start : start + _READ_TOKENS]
        if (largest := int(part.max())) >= vocabulary:
            raise _Damaged(folder / f"{split}.bin", f"id {largest} of {vocabulary}")
        ends += int(np.count_nonzero(part == end))
    moved = "offsets_sha256" not in manifest["splits"][split] and ends != stream.documents
    for start in range(1, len(stream.offsets), _READ_TOKENS):
        last = stream.offsets[start : start + _READ_TOKENS] - np.uint64(1)
        moved = moved or bool(np.any(stream.tokens[last] != end))
    if moved:
        raise _Damaged(folder / f"{split}.offsets.npy", f"its documents do not end where id {end}, their end, stands")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
