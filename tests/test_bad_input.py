"""Input that once ended in a traceback, a hang, a wrong value, or an error without its cause; one case each."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from pathlib import Path

import pytest
import torch
import yaml
from given_documents import Documents
from safetensors.torch import save_file

from aero import checkpoint, cli
from aero.architecture import Architecture, parse
from aero.config import load
from aero.data.tokenizer import load_tokenizer, train_tokenizer
from aero.data.tokens import open_tokens, write_tokens
from aero.errors import LONGEST_LINE, one_line, run_main, text_of
from aero.model import GPT, ModelConfig

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


def test_an_error_is_one_printable_line_of_bounded_length(capsys):
    def main(_):
        raise ValueError("the file \x1b[2J\x07\u202e" + "x" * 5000 + "\nends")

    with pytest.raises(SystemExit) as left:
        run_main(main, [])
    said = capsys.readouterr().err.rstrip("\n")
    assert left.value.code == 1 and said.startswith("error: the file \ufffd[2J\ufffd\ufffd") and said.isprintable()
    assert len(said) < LONGEST_LINE + 20


@pytest.mark.parametrize(
    "text", ["SM+ScFuFFNi_\u0663", "SM+ScFuFFNi_" + "9" * 5000, "SM+" * 2000, "SM\ud800", "\udcff" * 150, "S\u2028M"]
)
def test_notation_in_other_digits_or_without_end_is_refused(text):
    if text == "S\u2028M":
        assert parse(text) == Architecture()  # a line separator is a blank
    else:
        refused(lambda: parse(text), "architecture")


def test_what_is_no_file_is_not_read(tmp_path):
    """A pipe would be waited for, a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    for path, said in (
        (tmp_path / "pipe", "pipe is a folder, pipe, socket or device; name a file"),
        (Path("/dev/zero"), "/dev/zero is a folder, pipe, socket or device"),
        (tmp_path, "is a folder, pipe, socket or device; name a file"),
        (tmp_path / "loop", "Too many levels of symbolic links"),
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
    "text", ["scale: 2001-99-99", "scale: \ud800", "scale: !!python/object/apply:os.system [id]", "a: 1\na: 2"]
)
def test_yaml_that_cannot_be_read_names_the_file(tmp_path, text):
    path = tmp_path / "some params.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(lambda: load(path), path)


TEXTS = ["def f(x):\n    return x\n" * 4] * 3


@pytest.fixture(scope="module")
def whole_tokens(tmp_path_factory):
    folder = tmp_path_factory.mktemp("a folder with blanks") / "token files"
    write_tokens(Documents(TEXTS, TEXTS), train_tokenizer(TEXTS, 270), folder)
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
    refused(lambda: (open_tokens(tokens), load_tokenizer(tokens / "tokenizer.json")), tokens / file)


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
        save_file(values, str(path), metadata={"aero": json.dumps(header)})
    else:
        checkpoint.write_tensors(path, values, header)
    return path


@pytest.mark.parametrize(
    "metadata", [{"aero": "[]"}, {"aero": "null"}, {"aero": DEEP}, {"aero": '{"format": 3}'}, {"aero": "{"}, None, {}]
)
def test_metadata_of_another_kind_are_refused(tmp_path, metadata):
    path = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(2)}, str(path), metadata=metadata)
    refused(lambda: checkpoint.load(path), path)
    refused(lambda: checkpoint.metadata(path), path)


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
