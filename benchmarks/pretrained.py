"""Private inference of a pretrained Hugging Face model after a public prefix: value ranges, agreement with PyTorch.

    python -m benchmarks.pretrained FOLDER --prefix $'<|im_start|>user\n' --ranges
    python -m benchmarks.pretrained FOLDER --prefix $'<|im_start|>user\n' --private 10

Prompts are the beginnings of sentences of this repository's documentation, which no pretrained model has seen. One
private pass gives the next token after the first 12, 13, ... 16 tokens of a sentence: five prompts. Writes
results/two_party/pretrained_ranges.csv: for each layer and operation, the largest value over the check's prompts of 128
tokens and what it must stay below; and pretrained.csv: one line for each prompt, added after each pass. Seconds mean
something on an idle machine only.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

from aero import records
from aero.data.tokenizer import FastTokenizer
from aero.errors import run_main
from aero.hf import convert
from aero.model import GPT
from aero.two_party.cost.measure import set_up
from aero.two_party.program.end_to_end import PublicModel
from aero.two_party.program.fixed_point import LIMITS, probes, watched
from aero.two_party.program.forward import forward, prefix_past
from aero.two_party.program.generation import Generator
from aero.two_party.program.inputs import at_positions, one_hot_rows
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import Profile, check_pair
from aero.two_party.runtime.settings import Settings
from benchmarks.timing import replace_lines, write_lines

FOLDER = Path("results/two_party")
TOKENS, PROBES = 16, 7
LENGTHS = range(12, TOKENS + 1)
"""Tokens of the prompts that one private pass answers; bytes and seconds are those of the pass."""
RANGES = ("model", "prefix", "layer", "operation", "limit", "value", "holds", "share", "commit")
COLUMNS = (
    *("model", "prefix", "program", "prompt", "tokens", "token", "top_token_equal", "max_error"),
    *("rms_error", "bytes", "messages", "seconds", "load", "measured", "commit", "machine"),
)


def sentences(tokenizer: FastTokenizer) -> list[list[int]]:
    """Ids of the first TOKENS tokens of every sentence that has more, in the order of files."""
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md")))
    plain = (" ".join(part.split()) for part in re.split(r"\n\n|(?<=[.:])\s", text) if re.match(r"[A-Z][a-z ]", part))
    return [ids[:TOKENS] for ids in map(tokenizer.encode, plain) if len(ids) > TOKENS]


def ranges(model: GPT, program: str, prefix: list[int]) -> list[dict[str, Any]]:
    """For each layer and operation, the largest value relative to its limit."""
    largest: dict[tuple[int, str], tuple[float, str, float]] = {}
    weights, past = weight_arrays(model, program), prefix_past(model, prefix)
    reached: list[int] = []  # layers of the pass, from 0 for the embedding

    def run(kind: str, *arrays: Any, **constants: float) -> Any:
        if kind == "embedding_lookup":
            return arrays[0] @ arrays[1]
        result, found = watched(kind, arrays, constants)
        for name, value in found.items():
            one = (value / LIMITS[name], name, value)
            largest[reached[-1], kind] = max(one, largest.get((reached[-1], kind), one))
        return result

    for ids in itertools.islice(probes(model, prefix), PROBES):
        reached.append(0)
        placed, rows = at_positions(weights, len(prefix), len(ids)), one_hot_rows(ids, model.config.vocabulary)
        rows = jax.numpy.asarray(rows)
        forward(run, model.architecture, model.config, program, placed, rows, past, reached.append)
    return [
        {"layer": layer, "operation": kind, "limit": name, "value": f"{value:.4g}", "holds": f"{LIMITS[name]:.4g}"}
        | {"share": f"{share:.3g}"}
        for (layer, kind), (share, name, value) in sorted(largest.items())
    ]


def passes_task(party: Party, given: dict[str, Any]) -> list[tuple[Profile, Any, float]]:
    """In a party process: warm up, then the passes of every text: profile, logits (client), seconds."""
    model, found = given["model"], []
    set_up(party, model.operations(max(sum(counts) for *_, counts in given["texts"])))
    for ids, cached, counts in given["texts"]:
        generator, first = Generator(party, model, given.get("weights"), cached, given["prefix"], given.get("past")), 0
        for tokens in counts:
            start, first = time.monotonic(), first + tokens
            every = 1 < tokens and (given["every_row"] or tokens < first)  # a later pass verifies proposed tokens
            step = generator.step(None if ids is None else ids[first - tokens : first], tokens, every=every)
            found.append((step.profile, step.logits, time.monotonic() - start - step.prepared_s))
            party.control(f"{'cached' if cached else 'whole'} pass to token {first}: {found[-1][-1]:.1f} s")
    return found


def private(
    model: GPT,
    program: str,
    prefix: list[int],
    texts: Sequence[tuple[list[int], bool, list[int]]],
    settings: Settings,
    every_row: bool = False,
) -> list[dict[str, Any]]:
    """Every pass in one session: logits, bytes, messages, wall-clock seconds, and SPU's own seconds.

    texts: of each the ids, whether keys and values are cached, and how many tokens each of its passes adds. every_row:
    logits (tokens, V) after every token of the first pass, too.
    """
    public = PublicModel(str(model.architecture), asdict(model.config), program)
    common = {"model": public, "prefix": len(prefix), "texts": [(None, *passes) for _, *passes in texts]}
    common["every_row"] = every_row
    own = {"weights": weight_arrays(model, program), "past": prefix_past(model, prefix)}
    inputs = common | {"texts": texts}, common | own
    client, server = run_parties(passes_task, *inputs, settings, on_control=lambda said: print(said, flush=True))
    found = []
    for (ours, logits, seconds), (theirs, *_) in zip(client, server, strict=True):
        check_pair(ours, theirs)
        one = {"logits": logits, "bytes": ours.bytes, "messages": ours.messages_sent + theirs.messages_sent}
        found.append(one | {"seconds": round(seconds, 2), "computing": max(ours.seconds, theirs.seconds)})
    return found


@torch.no_grad()
def compared(model: GPT, prefix: list[int], ids: list[int], tokenizer: FastTokenizer, logits: Any) -> dict[str, Any]:
    """One prompt, and how far `logits` are from PyTorch's."""
    expected = model(torch.tensor([prefix + ids]))[0, -1].numpy()
    off = logits - expected
    line = {"prompt": tokenizer.decode(ids), "tokens": len(ids), "token": tokenizer.decode([int(expected.argmax())])}
    line |= {"top_token_equal": int(logits.argmax() == expected.argmax()), "max_error": f"{np.abs(off).max():.4f}"}
    return line | {"rms_error": f"{np.sqrt((off**2).mean()):.4f}"}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrained", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--program", default="tuned")
    parser.add_argument("--ranges", action="store_true")
    parser.add_argument("--private", type=int, default=0, metavar="PASSES")
    given = parser.parse_args(arguments)
    settings = Settings(receive_timeout_s=3600.0)
    model, tokenizer = convert.load(given.folder), FastTokenizer((given.folder / "tokenizer.json").read_text())
    prefix, program = tokenizer.encode(given.prefix, special=False), within_budget(model, given.program)
    source = records.provenance()
    common = {"model": given.folder.name, "prefix": given.prefix, "commit": source["commit"]}
    if given.ranges:
        lines = [line | common for line in ranges(model, program, prefix)]
        write_lines(FOLDER / "pretrained_ranges.csv", RANGES, lines)
    common |= {"program": program, "machine": source["machine"]}
    every = sentences(tokenizer)
    for ids in every[:: len(every) // given.private][: given.private] if given.private else ():
        (one,) = private(model, program, prefix, [(ids, True, [TOKENS])], settings, every_row=True)
        made = common | one | {"measured": records.now(), "load": round(os.getloadavg()[1], 1)}
        lines = [made | compared(model, prefix, ids[:n], tokenizer, one["logits"][n - 1]) for n in LENGTHS]
        replace_lines(FOLDER / "pretrained.csv", COLUMNS, lines, "program", "prompt")
        print(f"{sum(line['top_token_equal'] for line in lines)} of {len(lines)} top tokens equal", flush=True)


if __name__ == "__main__":
    run_main(main)
