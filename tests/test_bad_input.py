"""Input that once ended in a traceback, a hang, a wrong value, or an error without its cause; one case each.

Found by `make fuzz` and by reading for it. What needs two processes is in tests/two_party/test_bad_peers.py.
"""

from __future__ import annotations

import copy
import importlib
import io
import json
import os
import shutil
import struct
import time
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
import yaml
from pyarrow import parquet

from aero import checkpoint, cli, published
from aero.architecture import Architecture, parse
from aero.config import load
from aero.data.local_folder import LocalFolder
from aero.data.tokenizer import load_tokenizer, tokenizer_of, train_tokenizer
from aero.data.tokens import open_tokens, write_tokens
from aero.errors import LONGEST_LINE, one_line, run_main, text_of
from aero.model import GPT, ModelConfig
from aero.parallel_context.settings import settings
from aero.two_party.lattice.ring import content_of
from aero.two_party.runtime.profile import parse as parse_profile

ROOT = Path(__file__).resolve().parents[1]
DEEP = "[" * 100_000
VALUES = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))


def refused(call, *named):
    """The error of `call` as a user sees it; it must name what is `named` and be short."""
    with pytest.raises((ValueError, OSError)) as caught:
        call()
    line = one_line(caught.value)
    for text in named:
        assert str(text) in line
    assert len(str(caught.value)) <= LONGEST_LINE
    return line


# Errors


def test_an_error_is_one_printable_line_of_bounded_length(capsys):
    def main(_):
        raise ValueError("the file \x1b[2J\x07\u202e" + "x" * 5000 + "\nends")

    with pytest.raises(SystemExit) as left:
        run_main(main, [])
    said = capsys.readouterr().err.rstrip("\n")
    assert left.value.code == 1 and said.startswith("error: the file \ufffd[2J\ufffd\ufffd") and said.isprintable()
    assert len(said) < LONGEST_LINE + 20


# Notation


@pytest.mark.parametrize(
    "text", ["SM+ScFuFFNi_\u0663", "SM+ScFuFFNi_" + "9" * 5000, "SM+" * 2000, "SM\ud800", "\udcff" * 150, "S\u2028M"]
)
def test_notation_in_other_digits_or_without_end_is_refused(text):
    if text == "S\u2028M":
        assert parse(text) == Architecture()  # a line separator is a blank
    else:
        refused(lambda: parse(text), "architecture")


# Parameters


def written(tmp_path, place, value):
    values = copy.deepcopy(VALUES)
    target = values
    *parents, last = place.split(".")
    for part in parents:
        target = target[part]
    target[last] = value
    path = tmp_path / "params.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # NaN and Infinity below are written for YAML
    path.write_text(path.read_text().replace("NaN", ".nan").replace("Infinity", ".inf"), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("scales.laptop.train.learning_rate", float("nan"), "scales.laptop.train.learning_rate"),
        ("scales.laptop.train.learning_rate", float("inf"), "scales.laptop.train.learning_rate"),
        ("regularizer.temperature_init", float("nan"), "regularizer.temperature_init"),
        ("scales.laptop.train.betas", [0.9, 1.0], "scales.laptop.train.betas"),
        ("scales.laptop.train.steps", 10**400, "scales.laptop.train.steps"),
        ("runs.sm.budget", 1e300, "runs.sm.budget"),
        ("runs.sm.batch", 10**400, "runs.sm.batch"),
        ("families.languini-gpt2.train", {"steps": "many"}, "steps must be a whole number (got 'many')"),
        ("families.languini-gpt2.train", {"accumulation": [1, 2]}, "accumulation must be a whole number"),
        ("scales.laptop.contexts.256.train", {"steps": None}, "steps must be a whole number (got None)"),
        ("runs", VALUES["runs"] | {"sm; touch owned": VALUES["runs"]["sm"]}, "runs.sm; touch owned"),
        ("seeds", [10**4000], "seeds"),
        ("scales.laptop.contexts.512.length", 10**4000, "no whole number of sequences"),
        ("scale", "x" * 5000, "scale"),
    ],
)
def test_parameters_out_of_range_name_their_key(tmp_path, place, value, named):
    refused(lambda: load(written(tmp_path, place, value)), named)


def test_a_section_that_is_checked_later_knows_no_nan_either(tmp_path):
    parameters = load(written(tmp_path, "parallel_context.required", float("nan")))
    refused(lambda: settings(parameters), "parallel_context.required")


def test_what_is_no_file_is_not_read(tmp_path):
    """A pipe would be waited for, a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for path, said in (
        (tmp_path / "pipe", "pipe is a pipe, socket or device; name a file"),
        (Path("/dev/zero"), "/dev/zero is a pipe, socket or device"),
        (tmp_path, "is a folder; name a file"),
        (tmp_path / "loop", "loop is a link that leads back to itself"),
        (tmp_path / "latin", "latin is not UTF-8 text"),
    ):
        refused(lambda path=path: text_of(path), said)
        refused(lambda path=path: load(path), said)
        refused(lambda path=path: cli.main(["entropy", str(tmp_path), "--text", str(path)]), said)
    with pytest.raises(FileNotFoundError):
        text_of(tmp_path / "none")
    (tmp_path / "text").write_text("né", encoding="utf-8")
    (tmp_path / "link").symlink_to("text")
    assert text_of(tmp_path / "link") == "né"


@pytest.mark.parametrize(
    "text",
    ["scale: 2001-99-99", "scale: !!timestamp x", "scale: !!int x", "scale: !!bool x", "scale: 0b", "a: " + "9" * 5000]
    + ["a: &a [*a]\n" * 2, DEEP, "scale: \ud800", "scale: !!python/object/apply:os.system [id]", "\0"],
)
def test_yaml_that_cannot_be_read_names_the_file(tmp_path, text):
    path = tmp_path / "some params.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(lambda: load(path), path)


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


def test_aliases_that_stand_for_each_other_are_counted_and_not_written_out(tmp_path, monkeypatch):
    """2^60 parts in 60 lines: to quote one in an error would take all memory."""
    path = tmp_path / "params.yaml"
    changed = (ROOT / "params.yaml").read_text(encoding="utf-8").replace("steps: 12", "steps: *a59", 1)
    path.write_text(BOMB + changed, encoding="utf-8")
    refused(lambda: load(path), path, "parts")
    path.write_text("a: &a {b: *a}", encoding="utf-8")
    refused(lambda: load(path), path, "contains itself")
    read = paper(tmp_path, monkeypatch, lambda v: None)
    text = (tmp_path / "paper.yaml").read_text(encoding="utf-8")
    (tmp_path / "paper.yaml").write_text(BOMB + text.replace("cite: arXiv 2410.13060", "cite: *a59"), encoding="utf-8")
    refused(read, "paper.yaml", "parts")


def test_a_number_without_end_is_shown_as_such(tmp_path):
    path = tmp_path / "params.yaml"
    text = (ROOT / "params.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("width: 32,", f"width: 0x{'f' * 5000},", 1), encoding="utf-8")
    refused(lambda: load(path), "scales.smoke.model.width", "thousands of digits")


# Token files


class Given:
    name = "given"

    def documents(self, split):
        return iter(["def f(x):\n    return x\n" * 4] * 3)

    def manifest(self):
        return {"name": self.name}


@pytest.fixture(scope="module")
def whole_tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder with blanks") / "token files"
    write_tokens(Given(), train_tokenizer(Given().documents("train"), 270), folder)
    return folder


@pytest.fixture
def tokens(tmp_path, whole_tokens):
    shutil.copytree(whole_tokens, tmp_path / "tokens")
    return tmp_path / "tokens"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocabulary", float("inf")),
        ("vocabulary", True),
        ("vocabulary", "300"),
        ("vocabulary", -1),
        ("vocabulary", 2**31),
        ("format", []),
    ],
)
def test_a_manifest_with_another_kind_of_number_is_refused(tokens, name, value):
    path = tokens / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    refused(lambda: open_tokens(tokens), path)


@pytest.mark.parametrize("file", ["manifest.json", "tokenizer.json"])
def test_json_of_any_depth_is_refused(tokens, file):
    (tokens / file).write_text(DEEP)
    refused(lambda: tokenizer_of(open_tokens(tokens)), tokens / file)


def npy(text: bytes, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


@pytest.mark.parametrize(
    "content",
    [
        npy(b"{'descr': '<u8', 'fortran_order': False, 'shape': (4,) ("),
        npy(b"\n 0\n\t1"),
        npy(b"{'descr': '<u8', 'fortran_order': False, 'shape': (4611686018427387904,)}"),
        npy(b"(" * 9000),
        b"PK\x03\x04 no archive",
    ],
)
def test_an_array_whose_header_is_damaged_is_refused(tokens, content):
    (tokens / "train.offsets.npy").write_bytes(content)
    refused(lambda: open_tokens(tokens), "train.offsets.npy")


def test_an_archive_in_the_place_of_an_array_is_refused(tokens):
    np.savez(tokens / "train.offsets.npz", a=np.zeros(4, np.uint64))
    os.replace(tokens / "train.offsets.npz", tokens / "train.offsets.npy")
    refused(lambda: open_tokens(tokens), "train.offsets.npy")


def test_a_tokenizer_with_a_number_without_end_is_refused(tokens):
    path = tokens / "tokenizer.json"
    content = json.loads(path.read_text())
    content["special"] = {"<|endoftext|>": float("inf")}
    path.write_text(json.dumps(content))
    refused(lambda: load_tokenizer(path), path)


# Somebody's files


def test_a_row_of_any_depth_and_a_row_with_many_columns_are_refused(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / "a corpus" / split).mkdir(parents=True)
        (tmp_path / "a corpus" / split / "rows.jsonl").write_text(DEEP + "\n")
    corpus = LocalFolder(tmp_path / "a corpus")
    refused(lambda: list(corpus.documents("train")), "train/rows.jsonl line 1")
    many = json.dumps({f"column {i}": 1 for i in range(9000)})
    (tmp_path / "a corpus/train/rows.jsonl").write_text(many + "\n")
    refused(lambda: list(corpus.documents("train")), "has no column 'content'")


def test_a_link_out_of_the_folder_is_refused_also_within_a_folder_with_blanks(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret.txt").write_text("secret")
    folder = tmp_path / "a corpus"
    folder.mkdir()
    (folder / "text.txt").write_text("text")
    (folder / "a link.txt").symlink_to(tmp_path / "elsewhere/secret.txt")
    refused(lambda: list(LocalFolder(folder).documents("train")), "a link.txt", "leads out of")


def test_damaged_parquet_is_refused_by_its_name(tmp_path):
    """Of many kinds of error that pyarrow has for one, few name the file, and not all are its own."""
    sink = io.BytesIO()
    parquet.write_table(pyarrow.table({"content": ["def f(): pass\n", None, "é" * 80]}), sink, compression="NONE")
    whole, kinds = sink.getvalue(), set()
    path = tmp_path / "train" / "rows.parquet"
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "rows.parquet").write_bytes(whole)
    assert len(list(LocalFolder(tmp_path).documents("train"))) == 2
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            list(LocalFolder(tmp_path).documents("train"))
        except ValueError as error:
            line = one_line(error)
            assert "corpus 'local'" in line and "train/rows.parquet" in line and len(line) <= LONGEST_LINE, (at, line)
            kinds.add(line[:60])
    assert kinds
    path.write_bytes(whole[:-30])
    refused(lambda: list(LocalFolder(tmp_path).documents("train")), "train/rows.parquet is not a readable Parquet file")


def test_a_pipe_in_a_folder_is_refused_and_not_waited_for(tmp_path):
    (tmp_path / "text.txt").write_text("text")
    for name in ("a pipe.txt", "rows.jsonl", "rows.parquet"):
        os.mkfifo(tmp_path / name)
        refused(lambda: list(LocalFolder(tmp_path).documents("train")), name, "is a pipe")
        (tmp_path / name).unlink()


@pytest.mark.parametrize("stage", ["train", "train_many --out out", "end_to_end", "parallel_context_train"])
def test_a_stage_reads_no_ids_that_were_damaged(stage, tokens, tmp_path, monkeypatch):
    """One bit of one id, which no size and no boundary tells: refused by the name of the file, before any work."""
    name, *more = stage.split()
    path = tokens / "valid.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    module = importlib.import_module(f"stages.{name}")  # one of the four above
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    run = [] if name.startswith("parallel") else [load().active.end_to_end_runs[0]]
    if name == "end_to_end":
        model = GPT(parse("SM+R"), ModelConfig(vocabulary=300, context=8, layers=1, heads=1, width=4, ffn_width=8))
        monkeypatch.setattr(module.checkpoint, "load", lambda path: model)
    refused(lambda: module.main([*run, *more, "--tokens", str(tokens)]), "valid.bin", "SHA-256")


# Checkpoints

SIZES = {"vocabulary": 11, "context": 4, "layers": 2, "heads": 2, "width": 4, "ffn_width": 8}


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "a model.safetensors"
    checkpoint.save(path, GPT(parse("SM+LN+R"), ModelConfig(**SIZES)))
    return path


def rewritten(path, about=None, config=None, tensors=None, keep_hash=False):
    """The checkpoint with another header or other tensors, hashed anew unless `keep_hash`."""
    values, header = checkpoint.read_tensors(path, checkpoint.FORMAT)
    digest = header.pop("sha256")
    header |= about or {}
    if config:
        header["config"] = json.dumps(json.loads(header["config"]) | config)
    values |= tensors or {}
    if keep_hash:
        header["sha256"] = digest
        checkpoint.save_file(values, str(path), metadata={"aero": json.dumps(header)})
    else:
        checkpoint.write_tensors(path, values, header)
    return path


@pytest.mark.parametrize(
    "metadata", [{"aero": "[]"}, {"aero": "null"}, {"aero": DEEP}, {"aero": '{"format": 3}'}, {"aero": "{"}, None, {}]
)
def test_metadata_of_another_kind_are_refused(tmp_path, metadata):
    path = tmp_path / "model.safetensors"
    checkpoint.save_file({"x": torch.zeros(2)}, str(path), metadata=metadata)
    refused(lambda: checkpoint.load(path), path)
    refused(lambda: checkpoint.describe(path), path)


@pytest.mark.parametrize(
    "config",
    [
        {"layers": 10**9},
        {"layers": 2.0},
        {"layers": True},
        {"layers": "2"},
        {"width": 10**30},
        {"layer_norm_eps": float("nan")},
        {"layer_norm_eps": 10**4000},
        {"tied": "no"},
        {"position": ["learned"]},
        {"colour": "red"},
        {"heads": 0},
    ],
)
def test_sizes_of_a_checkpoint_are_typed_and_bounded(model_file, config):
    began = time.monotonic()
    refused(lambda: checkpoint.load(rewritten(model_file, config=config)), model_file)
    refused(lambda: checkpoint.describe(model_file), model_file)
    assert time.monotonic() - began < 5


def test_no_memory_is_taken_for_sizes_that_the_file_does_not_have(model_file):
    """A width of 2^20 would be 2^40 numbers a matrix."""
    refused(lambda: checkpoint.load(rewritten(model_file, config={"width": 2**20, "ffn_width": 2**20})), "tensor")
    refused(lambda: checkpoint.load(rewritten(model_file, config={"layers": 256})), "layers")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_weights_of_another_type_are_refused_and_not_converted(model_file, dtype):
    name = "blocks.0.attention.query.weight"
    values, _ = checkpoint.read_tensors(model_file, checkpoint.FORMAT)
    refused(lambda: checkpoint.load(rewritten(model_file, tensors={name: values[name].to(dtype)})), name, dtype)


def test_every_bit_of_a_checkpoint_counts(model_file):
    content = model_file.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    for place in range(start, len(content), 97):
        changed = bytearray(content)
        changed[place] ^= 1
        model_file.write_bytes(changed)
        refused(lambda: checkpoint.load(model_file), model_file, "SHA-256")
    model_file.write_bytes(content)
    refused(lambda: checkpoint.load(rewritten(model_file, about={"run": "another"}, keep_hash=True)), "SHA-256")


def test_a_checkpoint_without_a_hash_is_one_of_before_and_is_read(model_file):
    values, header = checkpoint.read_tensors(model_file, checkpoint.FORMAT)
    del header["sha256"]
    checkpoint.save_file(values, str(model_file), metadata={"aero": json.dumps(header)})
    assert torch.equal(checkpoint.load(model_file).state_dict()["ln_f.weight"], values["ln_f.weight"])


def test_weights_that_are_not_finite_are_read_as_they_are(model_file):
    """A diverged training's are so; what cannot compute with them says so itself (two_party: fixed point)."""
    rewritten(model_file, tensors={"ln_f.weight": torch.full((4,), float("nan"))})
    assert checkpoint.load(model_file).state_dict()["ln_f.weight"].isnan().all()


# Published numbers


def paper(tmp_path, monkeypatch, change):
    values = yaml.safe_load((ROOT / "aero/published/aero.yaml").read_text(encoding="utf-8"))
    values["tables"] = {"4": values["tables"]["4"], "9": values["tables"]["9"]}
    change(values)
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    monkeypatch.setattr(published, "_FOLDER", tmp_path)
    return lambda: published.load.__wrapped__("paper")


# Profile logs


def test_a_line_without_end_takes_no_time_and_is_not_repeated():
    """`executed … times` was looked for from every `executed` to the end of its line."""
    began = time.monotonic()
    parse_error = refused(lambda: parse_profile("executed " * 200_000), "SPU")
    line = "[2026-11-21 10:00:00.000] [info] [api.cc:1] Link details: " + "x" * 100_000
    refused(lambda: parse_profile(line), "SPU log line 1")
    assert time.monotonic() - began < 5 and len(parse_error) < LONGEST_LINE


# Shares


class Share:
    def __init__(self, *chunks):
        self.share_chunks = chunks


@pytest.mark.parametrize(
    "chunk", [b"\x80" * 1_000_000, b"\x18\x07", b"\x08\x04\x1a\x04ab", b"\x0d", b"\x08\x02\x1a\x01a"]
)
def test_a_chunk_of_a_share_that_is_damaged_is_refused_at_once(chunk):
    began = time.monotonic()
    refused(lambda: content_of(Share(chunk)), "share")
    assert time.monotonic() - began < 1
