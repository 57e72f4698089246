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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - to compute shapes of weights; loading it later takes seconds that a peer waits

from aero.architecture import Architecture
from aero.checkpoint import model_config
from aero.model import ModelConfig
from aero.two_party.program.end_to_end import PublicModel
from aero.two_party.program.optimizations import cacheable
from aero.two_party.program.weights import weight_shapes
from aero.two_party.runtime.settings import FIELD, FRACTION_BITS, TwoPartyError
from aero.two_party.serving.tunnel import plain

PROTOCOL = "aero-ask-2"
# These have no effect after training, so they are not published.
TRAINING_ONLY = {"init_std", "embedding_std", "residual_init_scaling"}
TRAINING_ONLY |= {"temperature_init", "log_temperature", "threshold_init", "slope_init"}
BYTES_PER_WEIGHT = 16
"""What a client keeps for each weight of the server: two shares of 64 bits, all zeros."""
SPU_SETTINGS = {"field": FIELD, "fraction_bits": FRACTION_BITS, "mul_lsb_error": False, "broadcast_denominator": True}
SPU_SETTINGS |= {"colocated": True, "threads": 1}


@dataclass(frozen=True)
class Description(PublicModel):
    """All that a server publishes about its model.

    Only `program` depends on the weights' values (`aero.two_party.program.weights.within_budget`,
    `aero.two_party.program.fixed_point.fitting`).

    architecture: as it is at inference. config: sizes and switches of `ModelConfig` that matter at inference.
    protocol: SPU_SETTINGS. tokenizer_sha256: of the published tokenizer. prefix: ids of
    public tokens that the server puts before every prompt.
    """

    protocol: Mapping[str, Any]
    tokenizer_sha256: str
    prefix: list[int]

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        config: ModelConfig,
        program: str,
        tokenizer_sha256: str,
        prefix: Sequence[int] = (),
    ) -> Description:
        """ValueError for a model that the programs cannot run, or not with this prefix."""
        _checked_shapes(architecture, config, program, prefix)
        return cls(
            str(architecture.at_inference()),
            {name: value for name, value in asdict(config).items() if name not in TRAINING_ONLY},
            program,
            dict(SPU_SETTINGS),
            tokenizer_sha256,
            list(prefix),
        )

    @classmethod
    def received(cls, content: Any) -> Description:
        """From a peer's JSON. TwoPartyError unless it is complete, well-typed, supported and fits this machine."""
        try:
            description = cls(**content)
            if not isinstance(description.program, str) or not isinstance(description.tokenizer_sha256, str):
                raise ValueError("program and tokenizer_sha256 must be strings")
            if _canonical(description.protocol) != _canonical(SPU_SETTINGS):
                raise ValueError(f"settings {description.protocol}")
            if set(description.config) != {field.name for field in fields(ModelConfig)} - TRAINING_ONLY:
                raise ValueError(f"sizes {sorted(description.config)}")
            config = model_config(description.config)
            if not isinstance(description.prefix, list) or any(type(one) is not int for one in description.prefix):
                raise ValueError("prefix must be a list of token ids")
            shapes = _checked_shapes(description.parsed, config, description.program, description.prefix)
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
        return hashlib.sha256(_canonical(asdict(self)).encode()).hexdigest()

    def __str__(self) -> str:
        c = self.config
        sizes = f"L={c['layers']}, H={c['heads']}, d={c['width']}, V={c['vocabulary']}, context {c['context']}"
        return f"{self.architecture} ({sizes}), program {self.program}"


def _canonical(content: Any) -> str:
    """JSON text; equal for equal values of equal types."""
    return json.dumps(content, sort_keys=True)


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


def _checked_shapes(
    architecture: Architecture, config: ModelConfig, program: str, prefix: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights. ValueError for a model that the program cannot run, or not with this public prefix."""
    if prefix and not cacheable(architecture, program):
        raise ValueError(f"a public prefix needs a cache of keys and values, which {architecture} by {program} has not")
    if len(prefix) >= config.context:
        raise ValueError(f"a public prefix of {len(prefix)} tokens leaves no room in a context of {config.context}")
    if prefix and not 0 <= min(prefix) <= max(prefix) < config.vocabulary:
        raise ValueError(f"token ids of the public prefix must lie in 0 to {config.vocabulary - 1}")
    return weight_shapes(architecture, config, program)


def check_lengths(description: Description, tokens: int, new_tokens: int) -> None:
    """TwoPartyError unless prefix, prompt and all new tokens but the last fit the context."""
    whole, prefix = description.model_config.context, len(description.prefix)
    context = whole - prefix
    named = f"context of {whole}" if not prefix else f"context of {whole} after a public prefix of {prefix}"
    if tokens < 1:
        raise TwoPartyError("the prompt is empty; a private question needs at least one token")
    if new_tokens < 1:
        raise TwoPartyError(f"--tokens {new_tokens} must be at least 1")
    if tokens > context:
        raise TwoPartyError(
            f"the prompt has {tokens} tokens, too many for the model's {named}; shorten it by {tokens - context}"
        )
    if tokens + new_tokens - 1 > context:
        raise TwoPartyError(
            f"a prompt of {tokens} tokens leaves room for {context - tokens + 1} new ones in the model's {named}, "
            f"not for {new_tokens}; ask for fewer or shorten the prompt"
        )
