"""The tokenizer of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aero.config import load
from aero.data.tokens import tokens_folder
from aero.errors import UserError


def check_tokenizer(sha256: str, header: Mapping[str, str], path: Path) -> None:
    """UserError if the checkpoint's header names another tokenizer. Checkpoints of earlier versions name none."""
    if header.get("tokenizer_sha256", sha256) != sha256:
        raise UserError(f"{path} was trained with another tokenizer than this one; give its own as --tokenizer")


def tokenizer_beside(path: Path, run: str | None) -> Path:
    """The tokenizer of the corpus that `run` was trained on, in the folder of runs that contains the checkpoint."""
    corpus = None
    if run is not None and Path("params.yaml").is_file() and run in (parameters := load()).runs:
        corpus = parameters.resolve(run).corpus_name
    for folder in [*path.resolve().parents][2:4]:  # scales/SCALE, or runs with default, above RUN/seed_1/checkpoint
        if (tokenizer := tokens_folder(corpus, folder) / "tokenizer.json").is_file():
            return tokenizer
    raise UserError(
        f"no tokenizer was found for {path} ({tokens_folder(corpus, 'runs')}); give its file as --tokenizer"
    )
