"""CodeParrot without a network: what is not cached is reported; a cached data set gives the papers' selection."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    proxies = [name + "_proxy" for name in ("http", "https", "all")]
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_CACHE", *proxies, *map(str.upper, proxies)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return monkeypatch


def run(script, folder, monkeypatch):
    """Output of a script offline; the libraries of the hub read its variables once, when they are imported."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    finished = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


MISSING = """
from aero.data import open_corpus
from aero.data.tokenizer import load_tokenizer
from aero.schema import CorpusParameters

for read in (
    lambda: next(open_corpus(CorpusParameters(name="codeparrot"), "scales.paper.corpus.name").documents("train")),
    lambda: load_tokenizer("hub:a/b"),
):
    try:
        read()
    except ValueError as error:
        print(error)
"""


def test_what_the_hub_has_and_the_cache_has_not_is_reported(tmp_path, no_cache):
    corpus, tokenizer = run(MISSING, tmp_path, no_cache).splitlines()
    assert re.match(r"corpus 'codeparrot' cannot be loaded .*set scales\.paper\.corpus\.name=python_stdlib", corpus)
    assert re.match("tokenizer hub:a/b cannot be fetched.*tokenizer.path to null", tokenizer)


CACHED = """
import json, sys
from pathlib import Path
import datasets

cache = Path(datasets.config.HF_DATASETS_CACHE)
rows = Path("rows.jsonl")
contents = [f"file {i}" if i % 10 else "" for i in range(50)]
rows.write_text("".join(json.dumps({"repo_name": "r", "content": content}) + "\\n" for content in contents))
for name, split in (("train", "train"), ("valid", "validation")):
    # What `datasets` itself keeps of a data set: made from the rows by its JSON reader, then put under the hub's name.
    made = datasets.load_dataset("json", data_files={split: str(rows)}, cache_dir="made_" + name)
    folder = Path(made[split].cache_files[0]["filename"]).parent
    target = cache / f"huggingface-course___codeparrot-ds-{name}" / "default" / "0.0.0" / ("0123456789abcdef" * 2)
    target.mkdir(parents=True)
    for file in folder.iterdir():
        if file.is_file():
            (target / file.name.replace("json-", f"codeparrot-ds-{name}-")).write_bytes(file.read_bytes())

from aero.data.codeparrot import MOST_DOCUMENTS, CodeParrot
MOST_DOCUMENTS |= {"train": 20, "valid": 5}
corpus = CodeParrot()
texts = {split: list(corpus.documents(split)) for split in ("train", "valid")}
print(json.dumps(texts | {"manifest": corpus.manifest()}))
"""


def test_cached_data_set_is_shuffled_with_seed_0_and_cut_to_the_papers_count(tmp_path, no_cache):
    result = json.loads(run(CACHED, tmp_path, no_cache).splitlines()[-1])
    # `Dataset.shuffle(seed=0)` is numpy's permutation of the row numbers by the default generator
    import numpy as np

    order = np.random.default_rng(0).permutation(50)
    assert result["train"] == [f"file {i}" for i in order[:20] if i % 10]
    assert result["valid"] == [f"file {i}" for i in order[:5] if i % 10]
    assert result["manifest"]["splits"]["train"]["documents"] == 20
