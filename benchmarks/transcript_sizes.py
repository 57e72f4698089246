"""Do the sizes of what crosses the link tell two prompts of one length apart?

    python -m benchmarks.transcript_sizes --sessions 20

Two prompts as unlike as can be are asked in turn, each in whole sessions of two party processes, through a relay that
counts what passes. SEAL compresses ciphertexts, so that equal sessions differ by some bytes; whether the prompts'
sessions differ by more is asked of a permutation test. Figures go to results/robustness/transcripts.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aero import checkpoint, provenance
from aero.architecture import parse
from aero.errors import run_main
from aero.model import GPT, ModelConfig
from aero.training.log import write_text
from aero.two_party.answer import Sampling
from aero.two_party.hello import Description
from aero.two_party.relay import Relay
from aero.two_party.serving import ask_here
from aero.two_party.settings import Settings

FILE = Path("results/robustness/transcripts.json")
VOCABULARY, TOKENS = 257, 8
MODEL = ModelConfig(vocabulary=VOCABULARY, context=TOKENS, layers=1, heads=2, width=16, ffn_width=64)
PROGRAMS = (("SM+ScFuFFN", "tuned"), ("SM+LN+G", "as_published"))
PROMPTS = {
    "random tokens": np.random.default_rng(1).integers(1, VOCABULARY, TOKENS - 1).tolist(),
    "one token again and again": [VOCABULARY - 1] * (TOKENS - 1),
}
COLUMNS = ("program", "prompt", "messages", "to_server_bytes", "to_client_bytes")
PERMUTATIONS = 100_000
LEVEL = 0.01
"""Below it, the probability of as large a difference of two prompts that are alike counts as telling them apart."""


def probability(one: Sequence[float], other: Sequence[float], permutations: int = PERMUTATIONS) -> float:
    """Of a difference of means at least as large, either way, if both are drawn alike: a permutation test."""
    values = np.array([*one, *other], dtype=np.float64)
    seen = abs(np.mean(one) - np.mean(other))
    order = np.random.default_rng(1).permuted(np.tile(values, (permutations, 1)), axis=1)
    means = order[:, : len(one)].mean(axis=1), order[:, len(one) :].mean(axis=1)
    # What was seen is one of the orders, so it is never 0.
    return float((np.sum(np.abs(means[0] - means[1]) >= seen * (1 - 1e-9)) + 1) / (permutations + 1))


def judged(samples: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The cases as the report shows them: name, count, passed, seen."""
    cases = []
    for program in dict.fromkeys(row[0] for row in samples):
        rows = [row for row in samples if row[0] == program]
        counts = [row[2] for row in rows]
        common = max(set(counts), key=counts.count)
        cases.append(
            {
                "name": f"{program}: one number of messages",
                "count": len(rows),
                "passed": counts.count(common),
                "seen": ", ".join(f"{count:,}" for count in sorted(set(counts))),
            }
        )
        for place, direction in ((3, "to the server"), (4, "to the client")):
            groups = [[row[place] for row in rows if row[1] == prompt] for prompt in PROMPTS]
            if not all(len(group) > 1 for group in groups):
                continue
            alike = probability(*groups)
            means, spread = [np.mean(group) for group in groups], max(np.std(group, ddof=1) for group in groups)
            cases.append(
                {
                    "name": f"{program}: the prompts are not told apart by the bytes {direction}",
                    "count": 1,
                    "passed": int(alike >= LEVEL),
                    "seen": f"means {means[0]:,.0f} and {means[1]:,.0f} bytes of {len(groups[0])} and "
                    f"{len(groups[1])} sessions, deviation of one prompt's {spread:,.0f}; a difference as large has "
                    f"probability {alike:.2f} where there is none",
                }
            )
    return cases


def made(architecture: str, path: Path) -> GPT:
    """A random model, saved at `path`."""
    torch.manual_seed(1)
    model = GPT(parse(architecture), MODEL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.25 * torch.randn_like(parameter))
    checkpoint.save(path, model)
    return model


def session(model: GPT, path: Path, program: str, prompt: Sequence[int]) -> tuple[int, int, int]:
    """(messages, bytes to the server, bytes to the client) of one question for one token."""
    settings, relay = Settings(receive_timeout_s=300), Relay()
    description = Description.of(model.architecture, model.config, program, settings, "0" * 64)
    answered = ask_here(path, description, prompt, 1, Sampling(VOCABULARY), settings, lambda *_: None, relay)
    return sum(cost.messages for cost in (answered.setup, *answered.costs)), *relay.forwarded


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transcript_sizes", description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=20, help="of each prompt with each program")
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    origin, clock = provenance.provenance(started=provenance.now()), time.monotonic()
    samples: list[list[Any]] = []
    with tempfile.TemporaryDirectory(prefix="aero-transcripts-") as name:
        models = {what: made(what, Path(name, what, "checkpoint.safetensors")) for what, _ in PROGRAMS}
        for index in range(chosen.sessions):
            for architecture, program in PROGRAMS:
                path = Path(name, architecture, "checkpoint.safetensors")
                for prompt, ids in PROMPTS.items():
                    found = session(models[architecture], path, program, ids)
                    samples.append([f"{architecture}, {program}", prompt, *found])
            result = {
                "cases": judged(samples),
                "asked": (index + 1) * len(PROGRAMS) * len(PROMPTS),
                "of": chosen.sessions * len(PROGRAMS) * len(PROMPTS),
                "failures": [],
                "columns": COLUMNS,
                "samples": samples,
                "provenance": origin | {"seconds": round(time.monotonic() - clock, 1)},
            }
            write_text(chosen.out, json.dumps(result) + "\n")
    cases = judged(samples)
    for case in cases:
        print(f"{case['passed']} of {case['count']}  {case['name']}: {case['seen']}")
    return int(any(case["passed"] != case["count"] for case in cases))


if __name__ == "__main__":
    run_main(main)
