"""Private next tokens with a cache of keys and values, beside whole passes, at the papers' size (GPT-2 small, T = 128).

    python -m benchmarks.generation SM+ScFuFFN SM+LN+R SM+LN+G
    python -m benchmarks.generation SM+ScFuFFN --scale smoke --out runs/generation.csv
    python -m benchmarks.generation --model FOLDER --prefix $'<|im_start|>user\n'
    python -m benchmarks.generation --model FOLDER --prefix $'<|im_start|>user\n' --proposed 3

One session for each row: a prompt of T - 2 tokens and two later tokens with the cache, then the whole pass over all T.
Of a Hugging Face folder: a prompt of 14 tokens after a public prefix. With --proposed, a later pass verifies that many
proposed tokens after the newest one, and no whole pass is made. Seconds mean something on an otherwise idle machine
only; the load is in the file. Weights of rows as in `full_passes`. Writes results/two_party/generation.csv, replacing
the lines of the same row, program and number of new tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from aero import records
from aero.architecture import parse
from aero.config import Parameters, load
from aero.data.tokenizer import FastTokenizer
from aero.errors import run_main
from aero.hf import convert
from aero.model import GPT
from aero.two_party.cost.cost_model import folder_of_costs, measured_operations
from aero.two_party.program.forward import operations
from aero.two_party.program.generation import slots_for
from aero.two_party.program.operations import without_public
from aero.two_party.program.weights import within_budget
from aero.two_party.runtime.settings import Settings
from benchmarks.full_passes import RECEIVE_TIMEOUT_S, SEED, random_model
from benchmarks.pretrained import private, sentences
from benchmarks.timing import replace_lines

PATH = Path("results/two_party/generation.csv")
LATER = 2
COLUMNS = (
    *("run", "program", "layers", "width", "vocabulary", "cached", "pass", "prompt_tokens", "rows", "past", "slots"),
    *("bytes", "rounds", "messages", "seconds", "wall_seconds", "logit_error", "top_token_equal", "load"),
    *("measured", "commit", "machine", "tokens_per_pass"),
)
PROMPT, NEW = 256, 64
"""Tokens of a text, and after it, that measure how many proposals are accepted."""


def accepted(folder: Path, tokenizer: FastTokenizer, prefix: list[int], proposed: int) -> float:
    """New tokens for each pass after the beginnings of this project's documents, when prompt lookup proposes what
    followed the newest tokens earlier in the text."""
    model, passes, made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), [], 0
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path("docs").glob("*.md"))]
    for text in texts:
        given = torch.tensor([prefix + tokenizer.encode(text)[:PROMPT]])
        setting = {"max_new_tokens": NEW, "do_sample": False, "prompt_lookup_num_tokens": proposed}
        made += model.generate(given, attention_mask=torch.ones_like(given), **setting).shape[1] - given.shape[1]
    return (made - len(texts)) / (len(passes) - len(texts))  # the pass over the prompt gives the first one


def measure(
    row: str, model: GPT, named: str, prefix: list[int], ids: list[int], parameters: Parameters, new: int = 1
) -> list[dict[str, Any]]:
    """One line a pass: `ids` after the public `prefix`. row: the model's name in the file. named: the program.
    new: tokens of each later pass."""
    config, context, program = model.config, len(ids), within_budget(model, named)
    settings = Settings(**parameters.two_party.settings() | {"receive_timeout_s": RECEIVE_TIMEOUT_S})
    texts = [(ids, True, [context - new * LATER, *[new] * LATER])]
    if new == 1:
        texts.append((ids, False, [context]))
    source, load_before = records.provenance(), os.getloadavg()[1]
    passes = iter(private(model, program, prefix, texts, settings))
    common = {"run": row, "program": named, "load": round(load_before, 2)}
    common |= {name: getattr(config, name) for name in ("layers", "width", "vocabulary")}
    common |= {name: source[name] for name in ("commit", "machine")}
    costs, lines = measured_operations(folder_of_costs(Path())), []
    for _, cached, counts in texts:
        for index, tokens in enumerate(counts):
            found, past = next(passes), sum(counts[:index])
            with torch.no_grad():
                plain = model(torch.tensor([prefix + ids[: past + tokens]]))[0, -1].numpy()
            slots = slots_for(len(prefix) + past, config.context) if past else len(prefix)
            made = operations(model.architecture, config, program, tokens, slots or None)
            rounds: int | str = ""
            # A pass right after a prefix has no empty slots, which `operations` assumes; others may not be measured.
            with contextlib.suppress(ValueError):
                needed = ((without_public(one), count) for one, count in made.items() if past or not prefix)
                rounds = round(sum(count * costs.rounds(one.name, one.shape) for one, count in needed)) or ""
            line = common | {"cached": int(cached), "pass": index, "prompt_tokens": counts[0], "rows": tokens}
            line |= {"past": past, "slots": slots, "rounds": rounds, "seconds": round(found["computing"], 2)}
            line |= {"bytes": found["bytes"], "messages": found["messages"], "wall_seconds": found["seconds"]}
            logits = found["logits"].reshape(-1, config.vocabulary)[-1]
            line |= {"logit_error": round(float(np.abs(logits - plain).max()), 6), "measured": records.now()}
            lines.append(line | {"top_token_equal": int(logits.argmax() == plain.argmax())})
    return lines


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generation", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", type=lambda text: str(parse(text)), help='such as "SM+ScFuFFN"')
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a Hugging Face folder instead of rows")
    parser.add_argument("--prefix", default="", help="the public prefix of --model")
    parser.add_argument("--proposed", type=int, default=0, metavar="TOKENS", help="of --model, to verify in a pass")
    parser.add_argument("--programs", nargs="+", default=["tuned"])
    parser.add_argument("--scale", default="laptop", help="laptop: GPT-2 small at T=128; smoke: a small model")
    parser.add_argument("--out", type=Path, default=PATH)
    given = parser.parse_args(arguments)
    if bool(given.rows) == bool(given.model) or ((given.prefix or given.proposed) and not given.model):
        parser.error("give rows, or --model FOLDER with its --prefix and --proposed")
    parameters = load().at_scale(given.scale)
    for row in [given.model.name] if given.model else given.rows:
        if given.model:
            model, tokenizer = convert.load(given.model), FastTokenizer((given.model / "tokenizer.json").read_text())
            prefix, ids = tokenizer.encode(given.prefix, special=False), sentences(tokenizer)[0]
        else:
            model, prefix = random_model(row, parameters), []
            ids = np.random.default_rng(SEED).integers(0, model.config.vocabulary, model.config.context).tolist()
        for program in given.programs:
            lines = measure(row, model, program, prefix, ids, parameters, given.proposed + 1)
            if given.proposed:
                lines[-1]["tokens_per_pass"] = round(accepted(given.model, tokenizer, prefix, given.proposed), 3)
            replace_lines(given.out, COLUMNS, lines, "run", "program", "rows")
            for line in lines:
                cost = f"{line['bytes'] / 1e6:.1f} MB, {line['seconds']:.1f} s, error {line['logit_error']:.4f}"
                print(f"{row} {program}: {line['rows']} rows after {line['past']}: {cost}")


if __name__ == "__main__":
    run_main(main)
