"""The messages before a private session, in JSON: versions, what the server publishes, and the question's size.

client: protocol and versions          server: its own, with the description and the tokenizer, or a refusal
client: prompt length, tokens wanted,  server: begin, or a refusal
        and whether keys and values are cached
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - to compute shapes of weights; loading it later takes seconds that a peer waits

from aero.architecture import Architecture
from aero.checkpoint import model_config
from aero.model import ModelConfig
from aero.two_party.program.end_to_end import PublicModel, check_ring
from aero.two_party.program.optimizations import cacheable
from aero.two_party.program.weights import weight_shapes
from aero.two_party.runtime.settings import Settings, TwoPartyError
from aero.two_party.serving.tunnel import plain

PROTOCOL = "aero-ask-2"
# These have no effect after training, so they are not published.
TRAINING_ONLY = {
    "init_std",
    "embedding_std",
    "temperature_init",
    "threshold_init",
    "residual_init_scaling",
    "slope_init",
}
MAX_THREADS = 64
BYTES_PER_WEIGHT = 16
"""What a client keeps for each weight of the server: two shares of 64 bits, all zeros."""
AGREED = ("field", "fraction_bits", "mul_lsb_error", "broadcast_denominator", "colocated", "threads")


@dataclass(frozen=True)
class Description(PublicModel):
    """All that a server publishes about its model.

    Only `program` depends on the weights' values: it names the layers before which the residual stream changes basis
    (`aero.two_party.program.weights.within_budget`), and leaves out optimizations that some weight is too large for
    (`aero.two_party.program.fixed_point.fitting`).

    architecture: as it is at inference. config: sizes and switches of `ModelConfig` that matter at inference.
    protocol: the `Settings` on which both must agree. tokenizer_sha256: of the published tokenizer.
    """

    protocol: Mapping[str, Any]
    tokenizer_sha256: str

    @classmethod
    def of(
        cls, architecture: Architecture, config: ModelConfig, program: str, settings: Settings, tokenizer_sha256: str
    ) -> Description:
        """ValueError for a model that the programs cannot run, or not with these settings."""
        check_ring(settings.field, settings.fraction_bits, program)
        weight_shapes(architecture, config, program)
        return cls(
            str(architecture.at_inference()),
            {name: value for name, value in asdict(config).items() if name not in TRAINING_ONLY},
            program,
            {name: getattr(settings, name) for name in AGREED},
            tokenizer_sha256,
        )

    @classmethod
    def received(cls, content: Any) -> Description:
        """From a peer's JSON. TwoPartyError unless it is complete, well-typed, supported and fits this machine."""
        try:
            description = cls(**content)
            if not isinstance(description.program, str) or not isinstance(description.tokenizer_sha256, str):
                raise ValueError("program and tokenizer_sha256 must be strings")
            if set(description.protocol) != set(AGREED):
                raise ValueError(f"settings {sorted(description.protocol)}")
            if set(description.config) != {field.name for field in fields(ModelConfig)} - TRAINING_ONLY:
                raise ValueError(f"sizes {sorted(description.config)}")
            for name, default in asdict(Settings()).items():
                if name in AGREED and type(description.protocol[name]) is not type(default):
                    raise ValueError(f"{name} is not of type {type(default).__name__}")
            if Settings(**description.protocol).threads > MAX_THREADS:
                raise ValueError(f"{description.protocol['threads']} threads, more than {MAX_THREADS}")
            check_ring(description.protocol["field"], description.protocol["fraction_bits"], description.program)
            shapes = weight_shapes(description.parsed, model_config(description.config), description.program)
            needed = BYTES_PER_WEIGHT * sum(math.prod(shape) for shape in shapes.values())
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if needed > memory:
                sizes = f"{needed / 2**30:.3g} GiB here, this machine has {memory / 2**30:.3g}"
                raise ValueError(f"placeholders for its weights alone take {sizes}")
        except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:
            raise TwoPartyError(
                f"the server published a model that cannot be run here ({plain(error)}); are both of one version?"
            ) from None
        return description

    @property
    def cacheable(self) -> bool:
        return cacheable(self.parsed, self.program)

    @property
    def sha256(self) -> str:
        """Hash of the whole description, by which a client can require a model it knows."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        c = self.config
        sizes = f"L={c['layers']}, H={c['heads']}, d={c['width']}, V={c['vocabulary']}, context {c['context']}"
        return f"{self.architecture} ({sizes}), program {self.program}"


@cache
def versions() -> dict[str, str]:
    """What must be equal on both sides: SPU, JAX, and the source code that makes the program."""
    package = Path(__file__).resolve().parents[1]
    code = hashlib.sha256()
    for path in (*sorted(package.rglob("*.py")), package.parent / "model.py", package.parent / "architecture.py"):
        code.update(path.name.encode() + b"\0" + path.read_bytes())
    return {"spu": version("spu"), "jax": version("jax"), "code": code.hexdigest()[:16]}


def version_mismatch(server: Any, client: Any) -> str | None:
    """One line on the first of the `versions` in which the parties differ; None if they agree."""
    for who, given in (("server", server), ("client", client)):
        if not isinstance(given, Mapping):
            return f"the {who} gives no versions; is it this program?"
    for name in versions():
        theirs, ours = plain(server.get(name)), plain(client.get(name))
        if theirs != ours:
            return f"the server has {name} {theirs}, the client {ours}; install the same version on both"
    return None


def check_lengths(config: ModelConfig, tokens: int, new_tokens: int) -> None:
    """TwoPartyError unless the prompt and all new tokens but the last fit the context."""
    if tokens < 1:
        raise TwoPartyError("the prompt is empty; a private question needs at least one token")
    if new_tokens < 1:
        raise TwoPartyError(f"--tokens {new_tokens} must be at least 1")
    if tokens > config.context:
        raise TwoPartyError(
            f"the prompt has {tokens} tokens, the model's context is {config.context}; "
            f"shorten it by {tokens - config.context}"
        )
    if tokens + new_tokens - 1 > config.context:
        raise TwoPartyError(
            f"a prompt of {tokens} tokens leaves room for {config.context - tokens + 1} new ones in the model's "
            f"context of {config.context}, not for {new_tokens}; ask for fewer or shorten the prompt"
        )
