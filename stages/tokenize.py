"""Read the corpus, learn or load the tokenizer, write the token files. `python -m stages.tokenize`"""

from __future__ import annotations

import time
from pathlib import Path

from aero import parameters
from aero.data.corpora import Corpus, open_corpus
from aero.data.encode import write_tokens
from aero.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from aero.errors import UserError, run_main
from aero.parameters import Parameters

OUTPUT = Path("runs/tokens")


def chosen_corpus(chosen: Parameters) -> Corpus:
    """The corpus named in the parameters."""
    settings = chosen.corpus
    return open_corpus(
        settings.name, settings.path, settings.text_column, settings.validation_fraction, settings.include_tests
    )


def chosen_tokenizer(chosen: Parameters, corpus: Corpus) -> Tokenizer:
    """The tokenizer given by `tokenizer.path`, or one trained on the training split."""
    vocabulary, path = chosen.active.tokens.vocabulary, chosen.tokenizer.path
    if path is None:
        return train_tokenizer(corpus.documents("train"), vocabulary, chosen.tokenizer.training_bytes)
    tokenizer = load_tokenizer(path)
    if tokenizer.vocabulary != vocabulary:
        raise UserError(
            f"tokenizer.path={path} has {tokenizer.vocabulary} entries, scales.{chosen.scale}.tokens.vocabulary is"
            f" {vocabulary}; set it to {tokenizer.vocabulary}"
        )
    return tokenizer


def main(arguments: list[str]) -> None:
    if arguments:
        raise UserError(f"stages.tokenize takes no argument, got {arguments[0]!r}; its settings are in params.yaml")
    started = time.monotonic()
    chosen = parameters.load()
    corpus = chosen_corpus(chosen)
    limits = chosen.active.tokens
    manifest = write_tokens(
        corpus, chosen_tokenizer(chosen, corpus), OUTPUT, limits.train_bytes, limits.validation_bytes
    )
    for split, entry in manifest["splits"].items():
        print(f"{split}: {entry['documents']:,} documents, {entry['bytes']:,} bytes, {entry['tokens']:,} tokens")
    seconds = time.monotonic() - started
    print(f"vocabulary {manifest['vocabulary']:,}, corpus {manifest['corpus_sha256'][:12]}, {seconds:.1f} s")


if __name__ == "__main__":
    run_main(main)
