"""Passes of one session after a cache of keys and values, in two real processes, against PyTorch."""

from __future__ import annotations

import dataclasses

import numpy as np
from made_models import random_model, torch_logits

from aero.two_party.program import generation
from aero.two_party.program.end_to_end import PublicModel
from aero.two_party.program.forward import prefix_past
from aero.two_party.program.generation import Generator
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

IDS = np.random.default_rng(2).integers(0, 41, 12).tolist()
COLUMNS = 5
TOLERANCE = 0.02
ROTARY = {"position": "rotary", "rotary_fraction": 0.5, "parallel_residual": True, "tied": False}
LLAMA = {"position": "rotary", "rotary_fraction": 1.0, "rotary_base": 1e5, "kv_heads": 1}
CASES = (  # layers, whether cached, prefix, and the tokens of each pass; the first cache grows after the third
    ("SM+ScFuFFN", "tuned", {"layers": 2}, True, 0, (3, 1, 1, 1)),
    ("SM+LN+G", "as_written", {"layers": 1}, True, 1, (3, 1)),
    ("SM(t)+R", "tuned+lattice_attention+lattice_rest", {"layers": 1} | ROTARY, True, 2, (3, 1)),
    ("SM+RMS+SwiGLU", "tuned", {"layers": 1} | LLAMA, False, 2, (3, 1)),
)


def passes(party, given):
    """Logits of every pass of every case."""
    generation.COLUMNS = COLUMNS
    found = []
    for model, cached, prefix, passes, *of_server in given:
        generator, first = Generator(party, model, of_server[0], cached, prefix, of_server[1]), prefix
        for tokens in passes:
            ids = IDS[first : first + tokens] if party.rank == CLIENT else None
            found.append(generator.step(ids, tokens).logits)
            first += tokens
    return found


def test_passes_after_a_cache_agree_with_torch():
    models = [random_model(row, **switches) for row, _, switches, *_ in CASES]
    given = {CLIENT: [], SERVER: []}
    for model, (row, program, _, cached, prefix, tokens) in zip(models, CASES, strict=True):
        program = within_budget(model, program)
        public = PublicModel(row, dataclasses.asdict(model.config), program)
        given[CLIENT].append((public, cached, prefix, tokens, None, None))
        own = weight_arrays(model, program), prefix_past(model, IDS[:prefix])
        given[SERVER].append((public, cached, prefix, tokens, *own))
    ours, theirs = run_parties(passes, given[CLIENT], given[SERVER], Settings(receive_timeout_s=300))
    assert theirs == [None] * len(ours)
    found = iter(ours)
    for model, (row, *_, prefix, tokens) in zip(models, CASES, strict=True):
        for length in prefix + np.cumsum(tokens):
            expected = torch_logits(model, np.array(IDS[:length]))
            np.testing.assert_allclose(next(found), expected, atol=TOLERANCE, rtol=0, err_msg=f"{row} {length}")
