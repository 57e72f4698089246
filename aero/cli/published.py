"""Preparing a model for private questions: its description, its tokenizer, and checks that they fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from aero import checkpoint
from aero.cli.entropy import tokenizer_of
from aero.data.tokenizer import END_OF_TEXT, FastTokenizer, tokenizer_from
from aero.errors import UserError, cut, text_of
from aero.two_party.program.fixed_point import coverage, fitting
from aero.two_party.program.weights import within_budget
from aero.two_party.serving.answer import weights_sha256
from aero.two_party.serving.handshake import Description
from aero.two_party.serving.session import Published


def publish(path: Path, tokenizer: str | None, program: str, prefix: str = "") -> tuple[Published, Any]:
    """What is published of a checkpoint or of a Hugging Face model's folder, and its tokenizer, loaded.

    tokenizer: a file, None for the folder's or the one beside the checkpoint's run. UserError if it is another model's.
    prefix: text before every prompt; END_OF_TEXT alone is the special token.
    """
    if path.is_dir():
        from aero.hf.convert import load

        loaded = _fast_tokenizer(path / "tokenizer.json" if tokenizer is None else Path(tokenizer))
    else:
        load, loaded = checkpoint.load, tokenizer_of(path, tokenizer)
    model = load(path)
    own = not isinstance(loaded, FastTokenizer)
    if own and loaded.vocabulary > model.config.vocabulary:  # a Hugging Face tokenizer may have more, see `check_ids`
        sizes = f"the tokenizer has {loaded.vocabulary} entries, the model {model.config.vocabulary}"
        raise UserError(f"{sizes}: it is that of another model; give the model's own as --tokenizer")
    ids = [loaded.end_of_text] if own and prefix == END_OF_TEXT else loaded.encode(prefix, special=False)
    program = within_budget(model, program)
    description = Description.of(model.architecture, model.config, program, loaded.sha256, ids)
    description = replace(description, program=fitting(model, program, ids))
    checked = coverage(model, ids)
    return Published(path, description, loaded.text, weights_sha256(model), checked, load), loaded


def _fast_tokenizer(file: Path) -> FastTokenizer:
    if not file.is_file():
        raise UserError(
            f"{file} does not exist; save the model's fast tokenizer there (AutoTokenizer, save_pretrained)"
        )
    return FastTokenizer(text_of(file))


def check_ids(ids: list[int], tokenizer: Any, description: Description) -> None:
    """UserError for a token of a prompt that the model has no embedding for, such as a [PAD] added to its tokenizer."""
    vocabulary = description.model_config.vocabulary
    if wrong := [i for i in ids if i >= vocabulary]:
        text = cut(repr(tokenizer.decode(wrong[:1])), 100)
        raise UserError(
            f"the prompt has the token {text} with id {wrong[0]}, but the model has only {vocabulary} tokens; leave it "
            "out of the prompt, or give the model's own as --tokenizer"
        )


def tokenizer_of_text(text: str) -> Any:
    """A tokenizer from its `text`. ValueError if it is damaged."""
    if '"format"' not in text[:20] and not text.startswith("<pad>"):  # how the texts of this project's own begin
        return FastTokenizer(text)
    try:
        return tokenizer_from(text)
    except ValueError as error:
        raise UserError(f"the server's tokenizer cannot be used ({error})") from None
