"""A complete private forward pass: the client's tokens and the server's weights give logits to the client only."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from aero.architecture import Architecture, parse
from aero.errors import UserError
from aero.model import GPT, ModelConfig
from aero.two_party.cost.measure import set_up
from aero.two_party.lattice.share_steps import CHECK_UNIT
from aero.two_party.program.forward import forward, operations
from aero.two_party.program.inputs import prompt_array, prompt_type
from aero.two_party.program.operations import Operation, call
from aero.two_party.program.optimizations import AS_PUBLISHED, parse_program
from aero.two_party.program.weights import weight_arrays, weight_shapes, within_budget
from aero.two_party.runtime.parties import Party, run_parties
from aero.two_party.runtime.profile import check_pair
from aero.two_party.runtime.settings import CLIENT, SERVER, Settings

UNBOUNDED = (
    "an attention logit lies beyond what bounded_logits computes, so the answer is wrong; use a program without it"
)


@dataclass(frozen=True)
class Cost:
    """Bytes sent by each party, messages of both, wall-clock seconds.

    The server's share of the logits at the end of a pass, 8 bytes per vocabulary entry, is not counted: SPU counts only
    what its programs send.
    """

    bytes_client: int
    bytes_server: int
    messages: int
    seconds: float

    @property
    def bytes(self) -> int:
        """Bytes in both directions."""
        return self.bytes_client + self.bytes_server


@dataclass(frozen=True)
class Answer(Cost):
    """The client's result of a private forward pass, and its cost with weights already in place.

    logits: (V,) after the last token.
    """

    logits: np.ndarray


@dataclass(frozen=True)
class PublicModel:
    """What both parties know of a model: the architecture, the sizes as in `ModelConfig`, and the program."""

    architecture: str
    config: Mapping[str, Any]
    program: str

    @property
    def parsed(self) -> Architecture:
        return parse(self.architecture)

    @property
    def model_config(self) -> ModelConfig:
        return ModelConfig(**self.config)

    def operations(self, tokens: int) -> Counter[Operation]:
        """Operations of a whole pass with their counts."""
        return operations(self.parsed, self.model_config, self.program, tokens)

    def function(self, names: Sequence[str]) -> Callable[..., Array]:
        """The program as a function of the weights in the order of `names`, then the prompt."""
        architecture, config, program = self.parsed, self.model_config, self.program

        def whole_model(*arrays: Array) -> Array:
            weights = dict(zip(names, arrays[:-1], strict=True))
            return forward(call, architecture, config, program, weights, arrays[-1])[0]

        return whole_model


def put_weights(
    party: Party, model: PublicModel, weights: Mapping[str, np.ndarray] | None, later: Collection[str] = ()
) -> list[str]:
    """Place the server's folded weights (None at the client) except `later`; returns the names of all these inputs."""
    shapes = weight_shapes(model.parsed, model.model_config, model.program)
    owner = None if model.program == AS_PUBLISHED else SERVER
    for name in sorted(set(shapes) - set(later)):
        party.put(f"w.{name}", weights[name] if weights else None, shapes[name], owner=owner, from_rank=SERVER)
    return sorted(shapes)


def put_prompt(party: Party, model: PublicModel, tokens: int, ids: Sequence[int] | np.ndarray | None) -> None:
    """Place the client's `ids` (T,) (None at the server) as input "prompt"; `tokens` is T."""
    vocabulary, program = model.model_config.vocabulary, model.program
    values = None if ids is None else prompt_array(ids, vocabulary, program)
    shape, dtype = prompt_type(tokens, vocabulary, program)
    party.put("prompt", values, shape, dtype, owner=None if program == AS_PUBLISHED else CLIENT, from_rank=CLIENT)


def fails_check(program: str, logits: np.ndarray) -> bool:
    """Whether logits are wrong by the check of `bounded_logits`. The server must not learn it: it says something of the
    prompt. So the client goes on, and refuses the answer in the end."""
    return "bounded_logits" in parse_program(program)[0] and bool(np.abs(logits).max() > CHECK_UNIT / 2)


def forward_task(party: Party, given: dict[str, Any]) -> dict[str, Any]:
    """In a party process: place the weights, then answer every prompt.

    given: "model", "tokens" of a prompt and number of "prompts" (both parties), "weights" (server), "ids" (N, T)
    (client).
    """
    model: PublicModel = given["model"]
    set_up(party, model.operations(given["tokens"]))
    names = put_weights(party, model, given["weights"] if party.rank == SERVER else None)
    function, inputs = model.function(names), [*(f"w.{name}" for name in names), "prompt"]
    profiles, logits = [], []
    for index in range(given["prompts"]):
        put_prompt(party, model, given["tokens"], given["ids"][index] if party.rank == CLIENT else None)
        party.prepare(function, inputs, ["logits"])
        profiles.append(party.run(function, inputs, ["logits"]))
        logits.append(party.reveal("logits", to=CLIENT))
    return {"profiles": profiles, "logits": logits}


def ask(model: GPT, prompts: np.ndarray, program: str = "tuned", settings: Settings | None = None) -> list[Answer]:
    """Answer `prompts` (N, T), token ids, privately: two processes, the model in one, the prompts in the other.

    Does not check whether the model's values fit the fixed point: `aero.two_party.program.fixed_point.fitting` does.
    Raises TwoPartyError if a party fails, ValueError for prompts the model cannot take, UserError for answers whose
    check failed (`fails_check`).
    """
    program = within_budget(model, program)
    config, prompts = model.config, np.atleast_2d(np.asarray(prompts))
    if not prompts.size or prompts.shape[1] > config.context:
        raise ValueError(f"a prompt needs 1 to {config.context} tokens, got {prompts.shape[1]}; shorten it")
    if prompts.min() < 0 or prompts.max() >= config.vocabulary:
        raise ValueError(f"token ids must lie in 0 to {config.vocabulary - 1}; use the model's own tokenizer")
    public = PublicModel(str(model.architecture), dataclasses.asdict(config), program)
    common = {"model": public, "tokens": prompts.shape[1], "prompts": len(prompts)}
    own = common | {"ids": prompts}, common | {"weights": weight_arrays(model, program)}
    client, server = run_parties(forward_task, *own, settings or Settings())
    if any(value is not None for value in server["logits"]):
        raise AssertionError("the server learnt logits")
    if any(fails_check(program, logits) for logits in client["logits"]):
        raise UserError(UNBOUNDED)
    answers = []
    for ours, theirs, logits in zip(client["profiles"], server["profiles"], client["logits"], strict=True):
        check_pair(ours, theirs)
        messages, seconds = ours.messages_sent + theirs.messages_sent, max(ours.seconds, theirs.seconds)
        answers.append(Answer(ours.bytes_sent, theirs.bytes_sent, messages, seconds, logits))
    return answers
