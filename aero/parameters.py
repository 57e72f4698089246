"""`params.yaml`, read and checked once, as typed values.

An unknown key, a wrong type or an impossible combination is one line that names the key, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from aero.architecture import Architecture, parse
from aero.errors import UserError, run_main
from aero.model import ModelConfig

PATH = Path("params.yaml")
Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CorpusParameters(_Strict):
    name: Literal["python_stdlib", "codeparrot", "local"]
    path: str | None = None
    text_column: str = "content"
    validation_fraction: float = Field(0.05, gt=0, lt=1)
    include_tests: bool = False
    packing: bool = False

    @model_validator(mode="after")
    def _local_needs_path(self) -> CorpusParameters:
        if self.name == "local" and not self.path:
            raise ValueError("corpus.path must name a folder when corpus.name is local")
        return self


class TokenizerParameters(_Strict):
    path: str | None = None
    training_bytes: Positive = 20_000_000


class RegularizerParameters(_Strict):
    reduction: Literal["head_mean", "position_sum"]
    gamma: float = Field(ge=0, le=1)
    lambda_: float = Field(ge=0)
    lambda_positions: Positive | None
    temperature_init: float
    threshold_init: float

    def weight(self, batch_size: int, context: int) -> float:
        """Lambda for micro-batches of `batch_size` x `context` positions (see the note in params.yaml)."""
        if self.reduction == "head_mean" or self.lambda_positions is None:
            return self.lambda_
        return self.lambda_ * self.lambda_positions / (batch_size * context)


class TokensParameters(_Strict):
    vocabulary: int = Field(ge=257, le=65536)
    train_bytes: Positive | None
    validation_bytes: Positive | None


class ModelParameters(_Strict):
    layers: Positive
    heads: Positive
    width: Positive
    ffn_width: Positive
    context: int = Field(ge=2)
    ln_f: bool = True
    init_std: float = Field(gt=0)
    embedding_std: float = Field(gt=0)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelParameters:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        return self


class TrainParameters(_Strict):
    steps: Positive
    batch_size: Positive
    accumulation: Positive = 1
    learning_rate: float = Field(gt=0)
    betas: tuple[float, float]
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    clip: float = Field(gt=0)
    warmup: float = Field(ge=0, lt=1)
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    threads: NotNegative = 0
    log_every: Positive
    evaluate_every: Positive
    evaluation_tokens: Positive
    final_evaluation_tokens: Positive
    checkpoint_every: Positive


class EntropyParameters(_Strict):
    tokens: Positive


class ScaleParameters(_Strict):
    tokens: TokensParameters
    model: ModelParameters
    train: TrainParameters
    entropy: EntropyParameters
    two_party: Literal["gpt2", "own"]
    end_to_end_runs: tuple[str, ...]


class RunParameters(_Strict):
    architecture: str
    rows: tuple[str, ...] = ()
    overrides: dict[str, Any] = {}

    @field_validator("architecture")
    @classmethod
    def _known_notation(cls, text: str) -> str:
        parse(text)
        return text

    @field_validator("overrides")
    @classmethod
    def _known_overrides(cls, overrides: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(overrides) - set(TrainParameters.model_fields):
            raise ValueError(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(TrainParameters.model_fields)}")
        return overrides


class NetworkParameters(_Strict):
    bandwidth_mbit: float = Field(gt=0)
    rtt_ms: float = Field(ge=0)


class TimeoutParameters(_Strict):
    connect_s: float = Field(gt=0)
    receive_s: float = Field(gt=0)


class TwoPartyParameters(_Strict):
    programs: tuple[Literal["as_published", "tuned"], ...]
    field: Literal["FM32", "FM64", "FM128"]
    fraction_bits: Positive
    mul_lsb_error: bool
    networks: dict[str, NetworkParameters]
    timeouts: TimeoutParameters
    end_to_end_runs: tuple[str, ...]
    prompts: Positive

    def settings(self) -> dict[str, Any]:
        """Fields of `aero.two_party.settings.Settings`."""
        return {
            "field": self.field,
            "fraction_bits": self.fraction_bits,
            "mul_lsb_error": self.mul_lsb_error,
            "connect_timeout_s": self.timeouts.connect_s,
            "receive_timeout_s": self.timeouts.receive_s,
        }

    def variant(self) -> str:
        """Protocol and fixed point in words, as result files name them."""
        return f"cheetah-{self.field}-{self.fraction_bits}-{'lsb_error' if self.mul_lsb_error else 'exact'}"


class Parameters(_Strict):
    """The whole of params.yaml."""

    scale: str
    seeds: tuple[NotNegative, ...] = Field(min_length=1)
    active_runs: tuple[str, ...] = Field(min_length=1)
    corpus: CorpusParameters
    tokenizer: TokenizerParameters
    regularizer: RegularizerParameters
    scales: dict[str, ScaleParameters]
    runs: dict[str, RunParameters]
    two_party: TwoPartyParameters

    @model_validator(mode="after")
    def _names_exist(self) -> Parameters:
        _known("scale", self.scale, self.scales)
        for run in (*self.active_runs, *self.two_party.end_to_end_runs):
            _known("run", run, self.runs)
        for scale, chosen in self.scales.items():
            if extra := set(chosen.end_to_end_runs) - set(self.two_party.end_to_end_runs):
                raise ValueError(
                    f"scales.{scale}.end_to_end_runs: {', '.join(sorted(extra))} must be in two_party.end_to_end_runs"
                )
        for name, run in self.runs.items():
            pruned = parse(run.architecture).pruned
            for scale, chosen in self.scales.items():
                if pruned > chosen.model.layers:
                    raise ValueError(f"runs.{name} prunes {pruned} FFNs, scales.{scale} has {chosen.model.layers}")
        return self

    @property
    def active(self) -> ScaleParameters:
        """The parameters of the active scale."""
        return self.scales[self.scale]

    def run(self, name: str) -> RunParameters:
        """The run called `name`; UserError with the nearest known name if there is none."""
        return self.runs[_known("run", name, self.runs)]

    def at_scale(self, scale: str) -> Parameters:
        """The same parameters with another scale active; UserError if it is unknown."""
        return self.model_copy(update={"scale": _known("scale", scale, self.scales)})

    def architecture(self, run: str) -> Architecture:
        return parse(self.run(run).architecture)

    def train(self, run: str) -> TrainParameters:
        """Training parameters of `run` at the active scale, its overrides applied."""
        values = self.active.train.model_dump() | self.run(run).overrides
        try:
            return TrainParameters(**values)
        except ValidationError as error:
            raise UserError(f"runs.{run}.overrides: {_first_error(error)}") from None

    def two_party_model(self) -> tuple[ModelConfig, int]:
        """Sizes and context at which operations are measured: GPT-2 small at T = 128, or the scale's own model."""
        if self.active.two_party == "own":
            return self.model_config_for(self.active.tokens.vocabulary), self.active.model.context
        return ModelConfig(vocabulary=50257, context=128, layers=12, heads=12, width=768, ffn_width=3072), 128

    def model_config_for(self, vocabulary: int) -> ModelConfig:
        """The decoder's sizes at the active scale with the CodeParrot recipe's switches."""
        return ModelConfig(
            vocabulary=vocabulary,
            **self.active.model.model_dump(),
            temperature_init=self.regularizer.temperature_init,
            threshold_init=self.regularizer.threshold_init,
        )


def load(path: Path | str = PATH) -> Parameters:
    """Read and check `path`. UserError, one line, for anything wrong with it."""
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} not found; run from the repository's root folder") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping of parameters")
    try:
        return Parameters.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{path}: {_first_error(error)}") from None


def _known(kind: str, name: str, names: dict[str, Any]) -> str:
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UserError(f"unknown {kind} {name!r}; {hint}known: {', '.join(names)}")


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) else f" (got {value!r})"
    more = f"; and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{place + ': ' if place else ''}{message}{shown}{more}"


def _main(arguments: list[str]) -> None:
    parameters = load(arguments[0] if arguments else PATH)
    print(f"ok: scale {parameters.scale}, {len(parameters.runs)} runs, seeds {list(parameters.seeds)}")


if __name__ == "__main__":
    run_main(_main, sys.argv[1:])
