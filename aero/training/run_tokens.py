"""Which token files a run is trained and measured on."""

from __future__ import annotations

from pathlib import Path

from aero.config import Parameters
from aero.data.tokens import Tokens, open_tokens, tokens_folder
from aero.errors import UserError


def run_tokens(parameters: Parameters, run: str, root: Path, given: Path | None = None) -> Tokens:
    """The verified token files of the run's corpus below `root`, `parameters` being its scale's; or those `given`.

    UserError if they are of another corpus than the scale's, or of a larger vocabulary: the training would run, and
    its result be called what it is not. ValueError if they are missing or damaged.
    """
    if given is not None:
        return open_tokens(given, verify=True)
    name = parameters.corpus_name(run)
    folder = tokens_folder(name, root)
    option = "" if name is None else f" --corpus {name}"
    if root != Path("runs"):
        option += f" --scale {parameters.scale}"
    if not (folder / "manifest.json").is_file() and root != Path("runs"):
        raise UserError(
            f"token files {folder} of scale {parameters.scale} are missing; make them:"
            f" python -m stages.tokenize_corpus{option}"
        )
    tokens = open_tokens(folder, verify=True)
    corpus, expected = tokens.manifest["corpus"]["name"], parameters.corpus_called(name).name
    if corpus != expected:
        raise UserError(
            f"{folder} is of corpus {corpus}, scale {parameters.scale} wants {expected} for {run};"
            f" make it again: python -m stages.tokenize_corpus{option}"
        )
    if tokens.vocabulary > parameters.vocabulary(run):
        raise UserError(
            f"{folder} has {tokens.vocabulary} entries, scale {parameters.scale} wants at most"
            f" {parameters.vocabulary(run)} for {run}; make it again: python -m stages.tokenize_corpus{option}"
        )
    return tokens
