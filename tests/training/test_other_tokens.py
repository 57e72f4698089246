"""A training is measured on the tokens and asked by the tokenizer that it learned from, or not at all."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml
from small_project import one_line_error, stage

from aero import cli
from aero.checkpoint import describe
from aero.data.tokens import open_tokens
from aero.errors import UserError


@pytest.fixture
def trained(project):
    """A project whose one training is done, and whose token files are made again with another tokenizer."""
    folder = project(train={"steps": 2})
    assert stage(folder, "train", "sm").returncode == 0
    shutil.copytree(folder / "runs/tokens", folder / "own")
    values = yaml.safe_load((folder / "params.yaml").read_text())
    values["tokenizer"]["training_bytes"] = 50_000
    (folder / "params.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    assert stage(folder, "tokenize_corpus").returncode == 0
    return folder


def test_neither_other_tokens_nor_another_tokenizer_are_taken(trained, monkeypatch):
    own, other = (open_tokens(trained / name).manifest for name in ("own", "runs/tokens"))
    assert own["vocabulary"] == other["vocabulary"] and own["tokenizer_sha256"] != other["tokenizer_sha256"]
    run = next((trained / "runs/sm").glob("seed_*"))
    assert describe(run / "checkpoint.safetensors")[2]["tokenizer_sha256"] == own["tokenizer_sha256"]
    one_line_error(stage(trained, "entropy", "sm"), "holds other tokens than sm was trained on (tokenizer_sha256)")
    assert not (run / "entropy.json").exists()
    assert stage(trained, "entropy", "sm", "--tokens", "own").returncode == 0
    assert json.loads((run / "entropy.json").read_text())["run"] == "sm"
    monkeypatch.chdir(trained)
    text = trained / "text.py"
    text.write_text("def add(a, b):\n    return a + b\n" * 40)
    checkpoint = str(run / "checkpoint.safetensors")
    for command in (["entropy", checkpoint, "--text", str(text)], ["ask", "--checkpoint", checkpoint, "def"]):
        with pytest.raises(UserError, match=re.escape("was trained with another tokenizer than this one")):
            cli.main(command)
    cli.main(["entropy", checkpoint, "--text", str(text), "--tokenizer", "own/tokenizer.json"])


@pytest.mark.parametrize(
    ("name", "said"), [("corpus_sha256", 5), ("tokenizer_sha256", "ab" * 31), ("tokenizer_sha256", None)]
)
def test_tokens_that_do_not_say_what_they_are_of_are_damaged(project, name, said):
    """A training on them would end without its result, which must say it."""
    folder = project() / "runs/tokens"
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {name: said}))
    with pytest.raises(ValueError, match=f"{name} is .*, no SHA-256"):
        open_tokens(folder)
    del manifest[name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=f"KeyError: '{name}'"):
        open_tokens(folder)
