"""Complete private forward passes of small models in two real processes, against PyTorch."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from made_models import random_model, torch_logits

from aero.two_party.cost.measure import measure
from aero.two_party.program.end_to_end import PublicModel, ask
from aero.two_party.program.forward import operations
from aero.two_party.program.generation import Generator
from aero.two_party.program.weights import weight_arrays, within_budget
from aero.two_party.runtime.parties import run_parties
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

# Logit errors of fixed point with 18 fraction bits (as_written: also of SPU's exponential and GELU).
TOLERANCE = 0.02
TOKENS = 12
STOCK_OF_PRODUCTS = 1.2e6  # bytes


PYTHIA = {"position": "rotary", "rotary_fraction": 0.25, "parallel_residual": True, "tied": False, "gelu": "exact"}
LLAMA = {"position": "rotary", "rotary_fraction": 1.0, "rotary_base": 1e5, "kv_heads": 1, "qk_bias": False}
BIASES = {"qk_bias": True, "vo_bias": True, "ffn_bias": True}


# The fast ones and those of test_generation.py cover every kind of norm and attention, and of FFN but the leaky ReLU.
# A checkpoint answers in test_isolation.py.
FAST = (
    ("SM+LN+SNorm(QKVO+FFN)", "tuned+lattice_attention+lattice_rest+bounded_reciprocals", {}),
    ("SM+LN+G", "tuned-row_tiles+lattice_rest+gelu_by_squares", {"layers": 1}),
    ("SOTA(SM+ScFuFFN)", "as_written", {}),
    ("SM+ScFuFFN", "tuned+lattice_attention+bounded_logits", {}),
)
SLOW = (
    ("SM+LN+R", "tuned", PYTHIA),
    ("SM+RMS+SwiGLU", "tuned", LLAMA),
    ("SM+LeakyR(global)", "tuned+lattice_attention+narrow_comparisons+wide_maxima+bounded_reciprocals", {}),
    ("SM(t)+R", "tuned-split_exponential+lattice_rest+narrow_comparisons", {}),
    ("EReg(SM(t)+ScFuFFNi_1)", "tuned", {}),
    ("SM+RMS+SwiGLU", "as_written", LLAMA),
    ("SOTA(SM+ScFuFFNi_1)", "as_published", {}),
    ("SM+R", "as_written", {}),
    ("SM+ScFFN+WNorm(QK+FFN)", "tuned", BIASES),
    ("SM+LN+G", "as_written", PYTHIA),
    ("SM+LN+G", "as_published", {}),
    ("SOTA(SM+ScFFN)", "tuned+lattice_rest", {}),
)


def passes(party, given):
    """Logits after a whole pass, for each of `given`."""
    return [Generator(party, model, own, cached=False).step(ids, TOKENS).logits for model, ids, own in given]


@pytest.mark.parametrize("cases", [FAST, pytest.param(SLOW, marks=pytest.mark.slow)], ids=["fast", "slow"])
def test_private_logits_agree_with_torch(cases):
    """All in one session, because starting one takes longer than a pass."""
    prompt, models = np.random.default_rng(0).integers(0, 41, TOKENS), []
    given = {CLIENT: [], SERVER: []}
    for row, program, switches in cases:
        models.append(model := random_model(row, **{"layers": 2, "width": 32, "ffn_width": 64} | switches))
        program = within_budget(model, program)
        public = PublicModel(row, dataclasses.asdict(model.config), program)
        given[CLIENT].append((public, prompt.tolist(), None))
        given[SERVER].append((public, None, weight_arrays(model, program)))
    ours, theirs = run_parties(passes, given[CLIENT], given[SERVER], Settings())
    assert theirs == [None] * len(cases)
    for case, model, logits in zip(cases, models, ours, strict=True):
        np.testing.assert_allclose(logits, torch_logits(model, prompt), atol=TOLERANCE, rtol=0, err_msg=str(case))


@pytest.mark.slow
def test_bytes_of_a_pass_are_those_of_its_operations():
    model, program = random_model("SM+LN+G", layers=2, width=32, ffn_width=64), "tuned+narrow_comparisons"
    prompts = np.random.default_rng(0).integers(0, 41, (2, 12))
    answers = ask(model, prompts, program)
    plain = np.stack([torch_logits(model, prompt) for prompt in prompts])
    private = np.stack([answer.logits for answer in answers])
    np.testing.assert_allclose(private, plain, atol=TOLERANCE, rtol=0)
    # The second prompt is in the steady state. Small multiplications use a stock of 8,192 Beaver triples, which a pass
    # refills here and an operation alone mostly does not.
    used = within_budget(model, program)
    counts = operations(model.architecture, model.config, used, 12)
    alone = measure(counts, "made", 12, Settings(), runs=2)
    composed = sum(count * row.bytes for count, row in zip(counts.values(), alone, strict=True))
    measured = min(answer.bytes for answer in answers)
    assert composed == pytest.approx(measured, abs=0.03 * measured + STOCK_OF_PRODUCTS)


def test_bad_prompts_are_refused():
    model = random_model("SM+ScFuFFN", layers=1)
    prompt = np.array([3, 1, 4, 1, 5])
    with pytest.raises(ValueError, match="1 to 12 tokens, got 13"):
        ask(model, np.zeros(13, int))
    with pytest.raises(ValueError, match="must lie in 0 to 40"):
        ask(model, np.array([41]))
    with pytest.raises(ValueError, match="unknown program"):
        ask(model, prompt, "fast")
