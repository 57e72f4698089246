"""Read a corpus, train or load its tokenizer, write the token files: `python -m stages.tokenize_corpus [--corpus NAME]`

Without NAME the corpus is `corpus` of params.yaml and the output folder runs/tokens. With NAME they are `corpora.NAME`
and runs/tokens_NAME. If SCALE is not the scale of params.yaml, the output goes to runs/scales/SCALE/ instead.
"""

from __future__ import annotations

import argparse
import time

from aero import config as parameters
from aero.config import Parameters
from aero.data import open_corpus
from aero.data.base import AnyTokenizer, Corpus, reading_notes
from aero.data.tokenizer import load_tokenizer, train_tokenizer
from aero.data.tokens import scale_root, tokens_folder, write_tokens
from aero.errors import UserError, run_main


def chosen_corpus(chosen: Parameters, name: str | None = None) -> Corpus:
    """The default corpus of the parameters, or the further one called `name`."""
    return open_corpus(chosen.corpus_called(name), name_key(chosen, name))


def name_key(chosen: Parameters, name: str | None = None) -> str:
    """The parameter that names the corpus: a scale's own if it has one, else `corpus.name`."""
    if name is not None:
        return f"corpora.{name}.name"
    return f"scales.{chosen.scale}.corpus.name" if "name" in chosen.active.corpus else "corpus.name"


def chosen_tokenizer(chosen: Parameters, corpus: Corpus, name: str | None = None) -> AnyTokenizer:
    """The tokenizer file that the parameters name for this corpus, or one trained on its training split."""
    key, path, vocabulary = "tokenizer.path", chosen.tokenizer.path, chosen.active.tokens.vocabulary
    size = f"scales.{chosen.scale}.tokens.vocabulary"
    if name is not None:
        further = chosen.corpora[name]
        key, path = f"corpora.{name}.tokenizer_path", further.tokenizer_path
        if further.vocabulary is not None and further.vocabulary < vocabulary:
            size, vocabulary = f"corpora.{name}.vocabulary", further.vocabulary
    if path is None:
        return train_tokenizer(corpus.documents("train"), vocabulary, chosen.tokenizer.training_bytes)
    tokenizer = load_tokenizer(path)
    if tokenizer.vocabulary != vocabulary:
        raise UserError(
            f"{key}={path} has {tokenizer.vocabulary} entries, {size} is {vocabulary}; set it to {tokenizer.vocabulary}"
        )
    return tokenizer


PAPERS_TOKENIZERS = {
    "codeparrot": "hub:huggingface-course/code-search-net-tokenizer",
    "languini": "books_16384.vocab of languini-kitchen",
}


def unlike_the_papers(chosen: Parameters, name: str | None = None) -> list[str]:
    """Notes on how corpus and tokenizer differ from the papers' at the scale `paper`. A local tokenizer file is assumed
    to be the papers'."""
    if chosen.scale != "paper":
        return []
    corpus, notes = chosen.corpus_called(name).name, []
    if corpus not in PAPERS_TOKENIZERS:
        papers = "languini" if name is not None else "codeparrot"
        notes.append(f"note: scale paper, but {name_key(chosen, name)} is {corpus}, not the papers' {papers}")
    key, path = "tokenizer.path", chosen.tokenizer.path
    if name is not None:
        key, path = f"corpora.{name}.tokenizer_path", chosen.corpora[name].tokenizer_path
    if path is None:
        papers = f", the papers' is {PAPERS_TOKENIZERS[corpus]}" if corpus in PAPERS_TOKENIZERS else ""
        notes.append(f"note: scale paper, but {key} is null: a tokenizer is trained here{papers}")
    elif corpus == "codeparrot" and path.startswith("hub:") and path != PAPERS_TOKENIZERS[corpus]:
        notes.append(f"note: scale paper, but {key} is {path}, the papers' is {PAPERS_TOKENIZERS[corpus]}")
    if notes:
        notes.append("note: perplexities of these tokens do not compare with the published ones (docs/corpora.md)")
    return notes


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.tokenize_corpus", description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", help="a name under `corpora` in params.yaml (default: the section `corpus`)")
    parser.add_argument("--scale", help="scale (default: that of params.yaml)")
    asked = parser.parse_args(arguments)
    name, started, active = asked.corpus, time.monotonic(), parameters.load()
    chosen, root = active.at_scale(asked.scale), scale_root(asked.scale, active.scale)
    corpus = chosen_corpus(chosen, name)
    limits = chosen.active.tokens
    tokenizer = chosen_tokenizer(chosen, corpus, name)
    for line in unlike_the_papers(chosen, name):
        print(line, flush=True)
    manifest = write_tokens(
        corpus,
        tokenizer,
        tokens_folder(name, root),
        limits.train_bytes,
        limits.validation_bytes,
    )
    for split, entry in manifest["splits"].items():
        print(f"{split}: {entry['documents']:,} documents, {entry['bytes']:,} bytes, {entry['tokens']:,} tokens")
    for line in [*filter(None, [manifest["corpus"].get("description")]), *reading_notes(manifest["corpus"])]:
        print(line)
    seconds = time.monotonic() - started
    print(f"vocabulary {manifest['vocabulary']:,}, corpus {manifest['corpus_sha256'][:12]}, {seconds:.1f} s")


if __name__ == "__main__":
    run_main(main)
