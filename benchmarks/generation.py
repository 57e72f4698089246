"""Private next tokens with a cache of keys and values, beside whole passes, at the papers' size (GPT-2 small, T = 128).

    python -m benchmarks.generation SM+ScFuFFN SM+LN+R SM+LN+G
    python -m benchmarks.generation SM+ScFuFFN --scale smoke --out runs/generation.csv
    python -m benchmarks.generation --model FOLDER --prefix $'<|im_start|>user\n'

One session for each row: a prompt of T - 2 tokens and two later tokens with the cache, then the whole pass over all T.
Of a Hugging Face folder: a prompt of 14 tokens after a public prefix. Seconds mean something on an otherwise idle
machine only; the load is in the file. Weights of rows as in `full_passes`. Writes results/two_party/generation.csv,
replacing the lines of the same row and program.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero import records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.data.tokenizer import FastTokenizer
from aero.errors import run_main
from aero.hf import convert
from aero.model import GPT
from aero.records import read_csv
from aero.two_party.cost.cost_model import folder_of_costs, measured_operations
from aero.two_party.cost.measure import set_up
from aero.two_party.program.end_to_end import PublicModel
from aero.two_party.program.forward import operations, prefix_past
from aero.two_party.program.generation import Generator, slots_for
from aero.two_party.program.operations import without_public
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import check_pair
from aero.two_party.runtime.settings import CLIENT, Settings
from benchmarks.full_passes import RECEIVE_TIMEOUT_S, SEED, random_model
from benchmarks.pretrained import sentences
from benchmarks.timing import write_lines

PATH = Path("results/two_party/generation.csv")
LATER = 2
COLUMNS = (
    *("run", "program", "layers", "width", "vocabulary", "cached", "pass", "prompt_tokens", "rows", "past", "slots"),
    *("bytes", "rounds", "messages", "seconds", "wall_seconds", "logit_error", "top_token_equal", "load"),
    *("measured", "commit", "machine"),
)


def generation_task(party: Party, given: dict[str, Any]) -> list[dict[str, Any]]:
    """In a party process: warm up, then the passes of `given["passes"]`, token counts by whether they are cached."""
    model, client = given["model"], party.rank == CLIENT
    set_up(party, model.program)
    found = []
    for cached, counts in given["passes"].items():
        weights = None if client else given["weights"]
        generator, first = Generator(party, model, weights, cached, given["prefix"], given.get("past")), 0
        for tokens in counts:
            start = time.monotonic()
            step = generator.step(given["ids"][first : first + tokens] if client else None, tokens)
            wall = time.monotonic() - start - step.prepared_s
            first += tokens
            found.append({"profile": step.profile, "logits": step.logits, "wall": wall})
            party.control(f"{'cached' if cached else 'whole'} pass to token {first}: {wall:.1f} s")
    return found


def measure(
    row: str, model: GPT, named: str, prefix: list[int], ids: list[int], parameters: Parameters
) -> list[dict[str, Any]]:
    """One line a pass: `ids` after the public `prefix`. row: the model's name in the file. named: the program."""
    config, context, program = model.config, len(ids), within_budget(model, named)
    passes = {True: [context - LATER, *[1] * LATER], False: [context]}
    public = PublicModel(str(model.architecture), dataclasses.asdict(config), program)
    common = {"model": public, "passes": passes, "prefix": len(prefix)}
    settings = Settings(**parameters.two_party.settings() | {"receive_timeout_s": RECEIVE_TIMEOUT_S})
    load_before = os.getloadavg()[1]
    own = {"weights": weight_arrays(model, program), "past": prefix_past(model, prefix)}
    inputs = common | {"ids": ids}, common | own
    client, server = run_parties(generation_task, *inputs, settings, on_control=lambda said: print(said, flush=True))
    costs = measured_operations(parameters.two_party.variant(), folder_of_costs(Path()))
    source, lines, step = records.provenance(), [], iter(zip(client, server, strict=True))
    for cached, counts in passes.items():
        for index, tokens in enumerate(counts):
            (ours, theirs), past = next(step), sum(counts[:index])
            profile, other = ours["profile"], theirs["profile"]
            check_pair(profile, other)
            with torch.no_grad():
                plain = model(torch.tensor([prefix + ids[: past + tokens]]))[0, -1].numpy()
            slots = slots_for(len(prefix) + past, config.context) if past else len(prefix)
            made = operations(model.architecture, config, program, tokens, slots or None)
            rounds: int | str = ""
            # A pass right after a prefix has no empty slots, which `operations` assumes; others may not be measured.
            with contextlib.suppress(ValueError):
                needed = ((without_public(one), count) for one, count in made.items() if past or not prefix)
                rounds = round(sum(count * costs.rounds(one.name, one.shape) for one, count in needed)) or ""
            line = {"run": row, "program": named, "cached": int(cached), "pass": index, "prompt_tokens": counts[0]}
            line |= {"layers": config.layers, "width": config.width, "vocabulary": config.vocabulary, "rows": tokens}
            line |= {"past": past, "slots": slots, "bytes": profile.bytes, "rounds": rounds}
            line |= {"messages": profile.messages_sent + other.messages_sent, "load": round(load_before, 2)}
            line |= {"seconds": round(max(profile.seconds, other.seconds), 2), "wall_seconds": round(ours["wall"], 2)}
            line |= {"logit_error": round(float(np.abs(ours["logits"] - plain).max()), 6)}
            line |= {"top_token_equal": int(ours["logits"].argmax() == plain.argmax())}
            lines.append(line | {name: source[name] for name in ("commit", "machine")} | {"measured": records.now()})
    return lines


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=lambda text: str(parse(text)), help='such as "SM+ScFuFFN"')
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a Hugging Face folder instead of rows")
    parser.add_argument("--prefix", default="", help="the public prefix of --model")
    parser.add_argument("--programs", nargs="+", default=["tuned"])
    parser.add_argument("--scale", default="laptop", help="laptop: GPT-2 small at T=128; smoke: a small model")
    parser.add_argument("--out", type=Path, default=PATH)
    given = parser.parse_args(arguments)
    if bool(given.rows) == bool(given.model) or (given.prefix and not given.model):
        parser.error("give rows, or --model FOLDER with its --prefix")
    parameters = load().at_scale(given.scale)
    for row in [given.model.name] if given.model else given.rows:
        if given.model:
            model, tokenizer = convert.load(given.model), FastTokenizer((given.model / "tokenizer.json").read_text())
            prefix, ids = tokenizer.encode(given.prefix, special=False), sentences(tokenizer)[0]
        else:
            model, prefix = random_model(row, parameters), []
            ids = np.random.default_rng(SEED).integers(0, model.config.vocabulary, model.config.context).tolist()
        for program in given.programs:
            lines = measure(row, model, program, prefix, ids, parameters)
            kept = [old for old in read_csv(given.out) if (old["run"], old["program"]) != (row, program)]
            write_lines(given.out, COLUMNS, [*kept, *lines])
            whole = lines[-1]
            for line in lines:
                print(
                    f"{row} {program}: {line['rows']} rows after {line['past']}: {line['bytes'] / 1e6:.1f} MB "
                    f"({line['bytes'] / whole['bytes']:.3f} of a whole pass), {line['seconds']:.1f} s "
                    f"({line['seconds'] / whole['seconds']:.3f}), error {line['logit_error']:.4f}"
                )


if __name__ == "__main__":
    run_main(main)
