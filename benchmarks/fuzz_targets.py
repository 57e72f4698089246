"""What `make fuzz` gives damaged input to: every reader of a file or a message that may come from elsewhere.

A target reads one case, which is bytes: it returns if they are input after all (and checks what holds of all input),
and raises ValueError or OSError if not. `refusal` says whether such an error is one a user can act on.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml
from hypothesis import strategies as st

from benchmarks import fuzz_files, fuzz_links, fuzz_results
from benchmarks.fuzz_files import array_file
from benchmarks.fuzz_target import Target, put, refusal
from benchmarks.mutations import YAML_PIECES, Draw, as_json, damaged, damaged_tree, hostile_yaml

ROOT = Path(__file__).resolve().parents[1]


def notation(folder: Path) -> Target:
    """`aero.architecture.parse`: what it reads, `str` writes back."""
    from aero.architecture import parse

    runs = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["runs"].values()
    seeds = sorted({run["architecture"].encode() for run in runs})
    parts = (
        "SM SM(t) LN G R LeakyR LeakyR(global) ScFFN ScFuFFN ScFuFFNi_ 6 WNorm( SNorm( FFN QK QKVO+FFN ) + EReg( SOTA("
    )
    parts = [
        *parts.split(),
        "Core(",
        "relu",
        "softmax",
        " ",
        "\t",
        "\u0663",
        "\u2028",
        "0",
        "99999999999999999999",
        "(",
        "_",
    ]
    joined = st.lists(st.sampled_from(parts), max_size=12).map(lambda found: "".join(found).encode())
    texts = st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass"))

    def read(case: bytes) -> None:
        text = case.decode("utf-8", "surrogateescape")
        architecture = parse(text)
        assert parse(str(architecture)) == architecture, f"{text!r} reads as {architecture}, which reads as another"
        assert str(architecture).isascii(), f"{text!r} is written {str(architecture)!r}"

    pieces = [part.encode() for part in parts]
    return Target(st.one_of(damaged(seeds, pieces), joined, texts), seeds, read, ("architecture",))


def parameters(folder: Path) -> Target:
    """`aero.config.load` and the section of `parallel_context`: what passes gives every run its settings."""
    from aero.config import load
    from aero.parallel_context.settings import settings

    values = _few_parameters()
    plain = yaml.safe_dump(values, sort_keys=False).encode()
    merging = _with_a_merge(values)
    seeds = [plain, merging, as_json(values)]
    path = folder / "params.yaml"

    @st.composite
    def changed(draw: Draw) -> bytes:
        return as_json(damaged_tree(draw, values, ["laptop", "sm", [0.9, 0.95], "position_sum", 12]))

    def read(case: bytes) -> None:
        put(path, case)
        found = load(path)
        settings(found)
        for run in found.runs:
            found.train(run), found.model(run), found.run_regularizer(run), found.vocabulary(run)
            assert not set(run) - set("abcdefghijklmnopqrstuvwxyz0123456789-"), f"a run is called {run!r}"

    pieces = [
        b"\n",
        b"  ",
        b"- ",
        b"1:1:1",
        b"2001-99-99",
        b"0x",
        b"0b",
        b"<<: ",
        b"*a",
        b"!!int x",
        b"!!bool x",
        b"? ",
        b"|",
        *YAML_PIECES,
    ]
    cases = st.one_of(changed(), changed(), damaged(seeds, pieces), hostile_yaml([plain, merging]))
    return Target(cases, seeds, read, ("params.yaml",))


def _with_a_merge(values: dict[str, Any]) -> bytes:
    """The parameters with a comment and a network that is another one but for its round-trip time."""
    networks = values["two_party"]["networks"] | {"far": {"<<": "merged", "rtt_ms": 150}}
    text = yaml.safe_dump(values | {"two_party": values["two_party"] | {"networks": networks}}, sort_keys=False)
    return text.replace("    wan:\n", "    wan: &a  # of the papers\n").replace("'<<': merged", "<<: *a").encode()


def _few_parameters() -> dict[str, Any]:
    """params.yaml with one scale and two runs, so that a case takes milliseconds."""
    values = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    runs = ["sm", "languini-sm-ln-r-1b2"]
    values |= {
        "active_runs": runs[:1],
        "more_runs": runs[1:],
        "compared_runs": runs[:1],
        "training_order": {},
        "scale": "smoke",
    }
    values["runs"] = {run: values["runs"][run] for run in runs}
    values["scales"] = {"smoke": values["scales"]["smoke"] | {"end_to_end_runs": runs[:1]}}
    values["two_party"]["end_to_end_runs"] = runs[:1]
    values["parallel_context"]["scales"] = {"smoke": values["parallel_context"]["scales"]["smoke"]}
    return values


def token_files(folder: Path) -> Target:
    """A folder of token files of which one is damaged, and the tokenizer in it: what opens can be cut in batches."""
    import numpy as np

    from aero.data.batches import Batches, evaluation_batches
    from aero.data.encode import write_tokens
    from aero.data.tokenizer import tokenizer_of, train_tokenizer
    from aero.data.tokens import open_tokens

    texts = {"train": [f"def f_{i}(x):\n    return x + {i}\n" for i in range(20)], "valid": ["x = 1\n" * 9, "y" * 30]}

    class Given:
        name = "given"

        def documents(self, split: str) -> Iterator[str]:
            return iter(texts[split])

        def manifest(self) -> dict[str, Any]:
            return {"name": self.name}

    whole, damaged_folder = folder / "whole", folder / "damaged"
    write_tokens(Given(), train_tokenizer(texts["train"], 280), whole)
    names = sorted(path.name for path in whole.iterdir())
    content = {name: (whole / name).read_bytes() for name in names}
    seeds = [bytes([place]) + content[name] for place, name in enumerate(names)]
    manifest, tokenizer = (json.loads(content[name]) for name in ("manifest.json", "tokenizer.json"))
    shutil.copytree(whole, damaged_folder)
    last = [names[0]]

    @st.composite
    def changed(draw: Draw) -> bytes:
        name, tree = draw(st.sampled_from([("manifest.json", manifest), ("tokenizer.json", tokenizer)]))
        return bytes([names.index(name)]) + as_json(damaged_tree(draw, tree, [2, 20, 21, "uint64"]))

    @st.composite
    def array(draw: Draw) -> bytes:
        kinds = ["<u8", ">u8", "<i8", "<f8", "|O", "<U9", "|V8", "x", 8, [("a", "<u8")]]
        shapes = [(21,), (3,), (0,), (), (-1,), (2**62,), (2**70,), (21, 1), "x", (True,)]
        bodies = [np.arange(21).tobytes(), b"", b"\xff" * 168, b"\0" * 24]
        return bytes([names.index("train.offsets.npy")]) + array_file(draw, kinds, shapes, bodies)

    def read(case: bytes) -> None:
        if not case:
            return
        name = names[case[0] % len(names)]
        put(damaged_folder / last[0], content[last[0]])
        put(damaged_folder / name, case[1:])
        last[0] = name
        tokens = open_tokens(damaged_folder, verify=True)
        tokenizer_of(tokens).decode(tokens.train.tokens[:50])
        Batches(tokens.train, 2, 1, seed=1).batch(0)
        list(evaluation_batches(tokens.valid, 2, 1, 6))
        assert int(tokens.train.tokens.max()) < tokens.vocabulary <= 65_536

    pieces = [b"\x93NUMPY\x01\x00", b"'shape': (", b"<u8", b"|O", b'"tokens":', b'"documents":', b'"sha256":']
    remedies = ("token file", "tokenizer", "corpus", "held-out")
    return Target(st.one_of(changed(), array(), damaged(seeds, pieces)), seeds, read, remedies)


def checkpoints(folder: Path) -> Target:
    """A model's checkpoint, by the safetensors package and by our own reader, and the state a training resumes from.

    What is read of a checkpoint with the hash it was written with is what was written; a damaged state is no error,
    and nothing of it is left.
    """
    import torch
    from tqdm import tqdm

    from aero import checkpoint, plain_safetensors
    from aero.architecture import parse
    from aero.checkpoint import save as save_checkpoint
    from aero.model import GPT, ModelConfig
    from aero.training import state
    from aero.training.log import text_of
    from aero.training.loop import Outcome

    of_three = SimpleNamespace(steps=3, log_attention=False)
    torch.set_num_threads(1)
    path, state_path = folder / "a model.safetensors", folder / "state.safetensors"
    sizes = {"vocabulary": 11, "context": 4, "layers": 2, "heads": 2, "width": 4, "ffn_width": 8}
    seeds, written = [], {}
    for text in ("SM+LN+G", "EReg(SM(t)+ScFuFFNi_1)", "SM+WNorm(QK)"):
        torch.manual_seed(1)
        model = GPT(parse(text), ModelConfig(**sizes))
        save_checkpoint(path, model, run="a")
        seeds.append(path.read_bytes())
        digest = checkpoint.describe(path)[2].get("sha256")
        written[digest] = {name: value.clone() for name, value in model.state_dict().items()}
    package = checkpoint.safe_open, checkpoint.SafetensorError
    ours = plain_safetensors.safe_open, plain_safetensors.SafetensorError

    def small_outcome() -> tuple[Outcome, torch.optim.Optimizer, torch.amp.GradScaler]:
        torch.manual_seed(1)
        model = GPT(parse("SM+R"), ModelConfig(**sizes | {"layers": 1}))
        return Outcome(model), torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")

    outcome, optimizer, scaler = small_outcome()
    outcome.model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    optimizer.step()
    outcome.rows, outcome.steps_done = [{"step": 1, "train_loss": 2.0}], 1
    state.store(state_path, "hash", outcome, optimizer, scaler)
    states = [state_path.read_bytes()]

    @st.composite
    def header(draw: Draw) -> bytes:
        """A file whose header is changed at one of its levels, lengths set right."""
        content = draw(st.sampled_from([*seeds, *states]))
        size = struct.unpack("<Q", content[:8])[0]
        outer = json.loads(content[8 : 8 + size])
        about = json.loads(outer["__metadata__"]["aero"])
        level = draw(st.sampled_from(["outer", "about", "config", "text"]))
        leaves = ["SM", "SM+LN+R", "F16", "F64", "I64", "float32", [2, 2], 10**9, 7]
        if level == "outer":
            outer = damaged_tree(draw, outer, leaves)
        elif level == "config" and "config" in about:
            about["config"] = json.dumps(damaged_tree(draw, json.loads(about["config"]), leaves))
        elif level == "text":
            about[draw(st.sampled_from(sorted(about)))] = draw(st.sampled_from(["", "[]", "null", "[" * 5000, "1e999"]))
        else:
            about = damaged_tree(draw, about, leaves)
        if level != "outer":
            outer["__metadata__"]["aero"] = json.dumps(about)
        case = assembled(outer, content[8 + size :])
        if (
            draw(st.booleans()) and level != "outer" and isinstance(about, dict)
        ):  # who can write a file can write its hash
            put(path, case)
            with contextlib.suppress(checkpoint.SafetensorError, ValueError, TypeError, RecursionError):
                with checkpoint.safe_open(str(path), framework="pt") as file:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}
                outer["__metadata__"]["aero"] = json.dumps(about | {"sha256": checkpoint._digest(tensors, about)})
                case = assembled(outer, content[8 + size :])
        return case

    def assembled(outer: dict[str, Any], data: bytes) -> bytes:
        text = as_json(outer)
        return struct.pack("<Q", len(text)) + text + data

    @st.composite
    def without_a_tensor(draw: Draw) -> bytes:
        """A state with a tensor left out, made of another form, or called by another's name, under a hash that fits."""
        put(state_path, states[0])
        tensors, about = checkpoint.read_tensors(state_path, state.FORMAT)
        name = draw(st.sampled_from(sorted(tensors)))
        change = draw(st.sampled_from(["leave out", "cut", "double", "rename", "as it is"]))
        value = tensors.pop(name) if change in ("leave out", "rename") else tensors[name]
        if change == "rename":
            tensors[draw(st.sampled_from(sorted(tensors)))] = value
        elif change == "cut":
            tensors[name] = value.reshape(-1)[:1].clone()
        elif change == "double":
            tensors[name] = value.double()
        header = {name: value for name, value in about.items() if name != "sha256"}
        if draw(st.booleans()):
            key = draw(st.sampled_from(["rows", "steps_done", "seconds", "scaler", "float16_overflow"]))
            header[key] = draw(
                st.sampled_from(["-5", "{}", '{"a": 1}', '[{"a": 1}]', "[1]", "nan", "[[]]", "1e999", "null", "3", "2"])
            )
        checkpoint.write_tensors(state_path, tensors, header)
        return state_path.read_bytes()

    @st.composite
    def flipped(draw: Draw) -> bytes:
        """A file with one bit of a tensor changed."""
        content = draw(st.sampled_from([*seeds, *states]))
        start = 8 + struct.unpack("<Q", content[:8])[0]
        at = draw(st.integers(start, len(content) - 1))
        return content[:at] + bytes([content[at] ^ 1 << draw(st.integers(0, 7))]) + content[at + 1 :]

    def read(case: bytes) -> None:
        resumed, other_optimizer, scaler = small_outcome()
        fresh = {name: value.clone() for name, value in resumed.model.state_dict().items()}
        put(state_path, case)
        said: list[str] = []
        write, tqdm.write = tqdm.write, said.append
        try:
            state.restore(state_path, "hash", resumed, other_optimizer, scaler, of_three)
        finally:
            tqdm.write = write
        if said:  # it starts anew: nothing of the damaged state may be left
            assert resumed.steps_done == 0 and not resumed.rows and not other_optimizer.state
            assert all(torch.equal(value, fresh[name]) for name, value in resumed.model.state_dict().items())
            assert refusal(ValueError(said[0]), ("starting anew",)) is None, said[0]
        else:  # taken over: it can be gone on with
            assert 0 <= resumed.steps_done < of_three.steps
            text_of(resumed.rows, layers=1), json.dumps(resumed.float16_overflow, allow_nan=False)
            scaler.scale(resumed.model(torch.zeros(1, 4, dtype=torch.long)).sum()).backward()
            scaler.step(other_optimizer), scaler.update()
        put(path, case)
        found, errors = [], []
        for reader in (package, ours):
            checkpoint.safe_open, checkpoint.SafetensorError = reader
            try:
                checkpoint.describe(path)
                found.append(checkpoint.load(path))
            except ValueError as error:
                errors.append(error)
            finally:
                checkpoint.safe_open, checkpoint.SafetensorError = package
        if errors:
            raise errors[0]
        values = [model.state_dict() for model in found]
        assert _same(*values), "the two readers differ"
        with torch.no_grad():
            found[0](torch.zeros(1, min(2, found[0].config.context), dtype=torch.long))
        digest = checkpoint.describe(path)[2].get("sha256")
        if digest in written:
            assert _same(values[0], written[digest]), "a changed tensor was read"

    def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
        return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

    pieces = [b'"dtype":"F16"', b'"shape":[0]', b'"data_offsets":[0,8]', struct.pack("<Q", 2**40), b"__metadata__"]
    cases = st.one_of(header(), without_a_tensor(), flipped(), damaged([*seeds, *states], pieces))
    return Target(cases, seeds, read, ("a model.safetensors",))


def profiles(folder: Path) -> Target:
    """The lines that SPU logs."""
    from aero.two_party.runtime.profile import parse

    seeds = [path.read_bytes() for path in sorted((ROOT / "tests/two_party").glob("spu_0.9.5_*.txt"))]
    pieces = [
        b"executed 1 times, ",
        b"duration 1e-3s",
        b"send bytes 7 recv bytes 7",
        b"[api.cc:1] ",
        b"executed " * 4000,
    ]
    pieces += [b"Link details: ", b"HLO profiling: total time 0.1", b"\xd9\xa4", b"\x1c", b"\x85", b"executed 1e9"]

    def read(case: bytes) -> None:
        found = parse(case.decode(errors="replace"))
        assert 0 <= found.bytes < 4e18 and found.seconds >= 0

    return Target(damaged(seeds, pieces), seeds, read, ("SPU", "operations", "execution"))


def corpora(folder: Path) -> Target:
    """A folder of somebody's files: what is read of it has ids, and they give the text back."""
    import pyarrow
    from pyarrow import parquet

    from aero.data.local_folder import LocalFolder
    from aero.data.tokenizer import build

    place = folder / "some corpus"
    tokenizer = build({bytes([byte]): byte for byte in range(256)}, 256)
    rows = [
        b'{"content": "def f(): pass"}\n{"content": null}\n{"content": "\\ud83d\\ude00"}\n',
        b'{"content": "\\ud83d"}\n',
    ]
    seeds = [b"t" + "é text\n  of\ttwo lines <|endoftext|>\n".encode(), *(b"j" + row for row in rows)]
    for more in ({}, {"compression": "NONE", "use_dictionary": False}):
        sink = io.BytesIO()
        parquet.write_table(
            pyarrow.table({"content": ["def f(): pass\n", None, "é" * 80], "n": [1, 2, 3]}), sink, **more
        )
        seeds.append(b"p" + sink.getvalue())
    names = {b"t": "a file.txt", b"j": "rows.jsonl", b"p": "rows.parquet"}

    for split in ("train", "valid"):
        (place / split).mkdir(parents=True)

    def read(case: bytes) -> None:
        name = names.get(case[:1], names[b"t"])
        for split in ("train", "valid"):
            for other in {*names.values()} - {name}:
                (place / split / other).unlink(missing_ok=True)
            put(place / split / name, case[1:])
        for split in ("train", "valid"):
            corpus = LocalFolder(place)
            texts = list(corpus.documents(split))
            for text in texts:
                assert tokenizer.decode(tokenizer.encode(text)) == text
            as_json(corpus.manifest())

    pieces = [b"\xef\xbb\xbf", b"\\u0000", b"\\ud800", b'"content":', b"<|endoftext|>", b" " * 60_000]
    return Target(damaged(seeds, pieces), seeds, read, ("corpus 'local'",))


TARGETS: dict[str, Callable[[Path], Target]] = {
    "notation": notation,
    "parameters": parameters,
    "token files": token_files,
    "checkpoints": checkpoints,
    "profile logs": profiles,
    "local corpora": corpora,
    "Languini's books": fuzz_files.languini,
    "files of trainings": fuzz_files.trainings,
    "results": fuzz_results.trained,
    "measured costs": fuzz_results.measured_costs,
    "link, server": fuzz_links.link_server,
    "link, client": fuzz_links.link_client,
    "link, shares": fuzz_links.shares,
}
"""Targets by name; each takes an empty folder of its own."""
