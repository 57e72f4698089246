"""CodeParrot: an unreachable hub is reported fast; a cached data set gives the papers' selection."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from aero.data.hub import hub_online
from aero.data.registry import open_corpus
from aero.data.tokenizer import load_tokenizer


@pytest.fixture
def no_cache(tmp_path, monkeypatch):
    proxies = [name + "_proxy" for name in ("http", "https", "all")]
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_CACHE", *proxies, *map(str.upper, proxies)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return monkeypatch


def assert_reported_in_time():
    started = time.monotonic()
    told = r"^corpus 'codeparrot' cannot be reached .*set scales\.paper\.corpus\.name=python_stdlib or local"
    with pytest.raises(ValueError, match=told):
        next(open_corpus("codeparrot", key="scales.paper.corpus.name").documents("train"))
    assert time.monotonic() - started < 5


def test_the_user_forbids_the_network(no_cache):
    no_cache.setenv("HF_HUB_OFFLINE", "1")
    assert_reported_in_time()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "not an address"])
def test_hub_cannot_be_found(no_cache, address):
    no_cache.setenv("HF_ENDPOINT", address)
    assert_reported_in_time()


def test_hub_that_accepts_and_never_answers(no_cache):
    with socket.create_server(("127.0.0.1", 0)) as server:
        no_cache.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert_reported_in_time()


@pytest.mark.parametrize(("status", "reachable"), [(404, True), (403, False), (503, False)])
def test_answers_of_hubs_and_proxies(no_cache, status, reachable):
    class Answer(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        no_cache.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        assert hub_online() is reachable


def test_tokenizer_of_the_hub_cannot_be_found(no_cache):
    no_cache.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match="tokenizer hub:a/b cannot be fetched.*tokenizer.path to null"):
        load_tokenizer("hub:a/b")


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

from aero.data.codeparrot import CodeParrot
corpus = CodeParrot(train_documents=20, valid_documents=5)
texts = {split: list(corpus.documents(split)) for split in ("train", "valid")}
print(json.dumps(texts | {"manifest": corpus.manifest()}))
"""


def test_cached_data_set_is_shuffled_with_seed_0_and_cut_to_the_papers_count(tmp_path, no_cache):
    no_cache.setenv("HF_HUB_OFFLINE", "1")
    no_cache.setenv("PYTHONPATH", ":".join(sys.path))
    run = subprocess.run([sys.executable, "-c", CACHED], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    # `Dataset.shuffle(seed=0)` is numpy's permutation of the row numbers by the default generator
    import numpy as np

    order = np.random.default_rng(0).permutation(50)
    assert result["train"] == [f"file {i}" for i in order[:20] if i % 10]
    assert result["valid"] == [f"file {i}" for i in order[:5] if i % 10]
    assert result["manifest"]["splits"]["train"]["documents"] == 20
