"""The tokenizer of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aero import checkpoint
from aero.config import load
from aero.data.tokenizer import load_tokenizer
from aero.data.tokens import tokens_folder
from aero.errors import UserError


def tokenizer_of(path: Path, given: Path | str | None) -> Any:
    """The tokenizer in the file `given`, or the one beside the run of the checkpoint at `path`. UserError if there is
    none, or the checkpoint was trained with another."""
    header = checkpoint.metadata(path)
    tokenizer = load_tokenizer(_beside(path, header.get("run")) if given is None else given)
    if header.get("tokenizer_sha256", tokenizer.sha256) != tokenizer.sha256:  # earlier versions wrote none
        raise UserError(f"{path} was trained with another tokenizer than this one; give its own as --tokenizer")
    return tokenizer


def _beside(path: Path, run: str | None) -> Path:
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
