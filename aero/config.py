"""`params.yaml`, read and checked once, as typed values; `Parameters.resolve` gives one training.

An unknown key, a wrong type or an impossible combination is one line that names key, value and what is allowed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, model_validator

from aero.architecture import Architecture, parse
from aero.errors import UserError, first_error, got, run_main, yaml_file
from aero.errors import known as _known
from aero.families import FAMILIES
from aero.schema import (
    CorpusKey,
    CorpusParameters,
    DeviceParameters,
    FamilyParameters,
    FamilySizes,
    FurtherCorpusParameters,
    ModelParameters,
    Name,
    NotNegative,
    RegularizerParameters,
    RunParameters,
    ScaleParameters,
    SensitivityParameters,
    SensitivityTheoryParameters,
    Strict,
    TokenizerParameters,
    TrainParameters,
    TwoPartyParameters,
)

if TYPE_CHECKING:  # `aero runs` reads the parameters without loading torch
    from aero.model import ModelConfig

PATH = Path("params.yaml")
DEFAULT_SET = Path("runs/default")
"""Folder of the trainings of `dvc repro`."""
MEASURED = "measured"
"""Device of a scale whose speed is taken from its committed results."""
TRAINING_VERSION = 1
"""Raise it when a change of the training code changes results: trainings of an earlier version are then done again."""


class Parameters(Strict):
    """The whole of params.yaml."""

    scale: str
    seeds: tuple[NotNegative, ...] = Field(min_length=1)
    more_seeds: tuple[NotNegative, ...]
    active_runs: tuple[str, ...] = Field(min_length=1)
    uncompared_runs: tuple[str, ...] = ()
    training_order: dict[str, tuple[str, ...]] = {}  # by table: names of several runs for `stages.train_many`
    corpus: CorpusParameters
    corpora: dict[CorpusKey, FurtherCorpusParameters] = {}
    tokenizer: TokenizerParameters
    regularizer: RegularizerParameters
    scales: dict[Name, ScaleParameters]
    devices: dict[str, DeviceParameters]
    families: dict[str, FamilyParameters]
    runs: dict[Name, RunParameters]
    sensitivity: SensitivityParameters
    two_party: TwoPartyParameters
    sensitivity_theory: SensitivityTheoryParameters
    parallel_context: dict[str, Any] = {}  # checked by aero.parallel_context.settings, which knows what it holds

    @model_validator(mode="after")
    def _names_exist(self) -> Parameters:
        _known("scale", self.scale, self.scales)
        ordered = sum(self.training_order.values(), ())
        for run in (*self.active_runs, *self.uncompared_runs, *self.two_party.end_to_end_runs, *ordered):
            _known("run", run, self.runs)
        seeds = (*self.seeds, *self.more_seeds)
        if twice := {seed for seed in seeds if seeds.count(seed) > 1}:
            raise ValueError(f"seed {min(twice)} occurs twice in seeds and more_seeds; list each seed once")
        for run in self.runs.values():
            _known("model family", run.model, FAMILIES)
        for scale, chosen in self.scales.items():
            for family in (*chosen.families, *self.families):
                _known("model family", family, FAMILIES)
            if chosen.device != MEASURED:
                _known(f"device of scales.{scale}", chosen.device, self.devices)
            at_scale = self.model_copy(update={"scale": scale})
            for name in self.runs:
                at_scale.resolve(name)
        return self

    @property
    def active(self) -> ScaleParameters:
        """The parameters of the active scale."""
        return self.scales[self.scale]

    def at_scale(self, scale: str | None) -> Parameters:
        """The same parameters with another scale active, unchanged for None; UserError if it is unknown."""
        return self if scale is None else self.model_copy(update={"scale": _known("scale", scale, self.scales)})

    def trainings(self, runs: Iterable[str] | None = None) -> list[tuple[str, int]]:
        """(run, seed) of `runs`, by default of everything that the pipeline can train: all runs with `seeds`, then the
        compared ones with `more_seeds`."""
        runs = list(self.runs if runs is None else runs)
        compared = [run for run in dict.fromkeys(runs) if run not in self.uncompared_runs]
        first = [(run, seed) for run in runs for seed in self.seeds]
        return first + [(run, seed) for run in compared for seed in self.more_seeds]

    def folder(self, run: str, seed: int, scale: str | None = None) -> Path:
        """Folder of a training: below runs/default if `dvc repro` trains it, below runs/scales/SCALE for another
        one or for a `scale` that the command line names."""
        default = scale is None and self.is_default(run, seed)
        return (DEFAULT_SET if default else Path("runs/scales") / self.scale) / run / f"seed_{seed}"

    def is_default(self, run: str, seed: int) -> bool:
        """Whether `dvc repro` trains it."""
        return run in self.active_runs and seed in self.seeds

    def run(self, name: str) -> RunParameters:
        """The run called `name`; UserError with the nearest known name if there is none."""
        return self.runs[_known("run", name, self.runs)]

    def device(self, name: str) -> DeviceParameters:
        return self.devices[_known("device", name, self.devices)]

    def corpus_called(self, name: str | None) -> CorpusParameters:
        """The corpus under `corpora.<name>`, or for None the active scale's; UserError if it is unknown."""
        if name is not None:
            return self.corpora[_known("corpus", name, self.corpora)]
        return checked(CorpusParameters, self.corpus.model_dump() | self.active.corpus, f"scales.{self.scale}.corpus")

    def resolve(self, name: str, seed: int | None = None) -> ResolvedRun:
        """The run called `name` at the active scale; seed: the first of `seeds` by default. UserError if it is unknown
        or its parts do not fit together.
        """
        run = self.run(name)
        family = self.families.get(run.model, FamilyParameters())
        context, corpus_name = run.context or family.context, run.corpus or family.corpus
        corpus = self.corpus_called(corpus_name)
        architecture = parse(run.architecture)
        sizes = self._sizes(name, run, context, architecture)
        train = self._train(name, run, family, context)
        regularizer = checked(
            RegularizerParameters,
            self.regularizer.model_dump() | family.regularizer | run.regularizer,
            f"regularizer of run {name}",
        )
        vocabulary = self.active.tokens.vocabulary
        if isinstance(corpus, FurtherCorpusParameters) and corpus.vocabulary is not None:
            vocabulary = min(vocabulary, corpus.vocabulary)
        return ResolvedRun(
            name=name,
            seed=self.seeds[0] if seed is None else seed,
            scale=self.scale,
            parameters=run,
            architecture=architecture,
            context=context,
            sizes=sizes,
            train=train,
            regularizer=regularizer,
            corpus_name=corpus_name,
            corpus=corpus,
            vocabulary=vocabulary,
            entropy_tokens=self.active.entropy.tokens,
        )

    def _sizes(self, name: str, run: RunParameters, context: int, architecture: Architecture) -> ModelParameters:
        """Sizes of a run: the scale's own, its family's changes, its context."""
        changes = self.active.families.get(run.model, FamilySizes()).model
        values = self.active.model.model_dump() | changes | {"context": self.active.length(context)}
        sizes = checked(ModelParameters, values, f"scales.{self.scale}.families.{run.model}.model")
        try:
            architecture.ffn_layers(sizes.layers)
        except ValueError as error:
            raise UserError(f"run {name}, {run.model} at scale {self.scale}: {error}") from None
        return sizes

    def _train(self, name: str, run: RunParameters, family: FamilyParameters, context: int) -> TrainParameters:
        """Training parameters of a run, in this order: the scale's own, with a batch that keeps the tokens a step at
        another context; the changes of context and family; the run's budget and batch; its overrides.
        """
        values, length = self.active.train.model_dump(), self.active.length(context)
        positions = values["batch_size"] * self.active.model.context
        if positions % length:
            raise UserError(
                f"run {name} at scale {self.scale}: a step of {positions} tokens is not a multiple of {length}; change "
                f"contexts.{context}.length or train.batch_size"
            )
        values["batch_size"] = positions // length
        if str(context) in self.active.contexts:
            values |= self.active.contexts[str(context)].train
        values |= family.train
        if run.model in self.active.families:
            values |= self.active.families[run.model].train
        if odd := [key for key in ("steps", "accumulation") if type(values[key]) is not int]:
            raise UserError(f"scales.{self.scale}, run {name}: {odd[0]} must be a whole number{got(values[odd[0]])}")
        values["steps"] = max(1, round(values["steps"] * run.budget / run.batch))
        values["accumulation"] *= run.batch
        place = f"runs.{name}.overrides" if run.overrides else f"scales.{self.scale}, run {name}"
        return checked(TrainParameters, values | run.overrides, place)

    def two_party_model(self) -> tuple[ModelConfig, int]:
        """Sizes and context at which operations are measured: GPT-2 small at T = 128, or the scale's own model."""
        from aero.model import ModelConfig

        if self.active.two_party == "own":
            sizes = self.active.model
            return ModelConfig(vocabulary=self.active.tokens.vocabulary, **sizes.model_dump()), sizes.context
        return ModelConfig(vocabulary=50257, context=128, **FAMILIES["gpt2"].sizes), 128


@dataclass(frozen=True)
class ResolvedRun:
    """One training at one scale, everything resolved. context: the paper's T, where sizes.context is the length at this
    scale. corpus_name: under `corpora`, None for the section `corpus`. vocabulary: entries at most.
    """

    name: str
    seed: int
    scale: str
    parameters: RunParameters
    architecture: Architecture
    context: int
    sizes: ModelParameters
    train: TrainParameters
    regularizer: RegularizerParameters
    corpus_name: str | None
    corpus: CorpusParameters
    vocabulary: int
    entropy_tokens: int

    @property
    def label(self) -> str:
        return f"{self.name} seed {self.seed}"

    @property
    def regularized(self) -> dict[str, Any]:
        """Fields of `aero.training.loop.Regularizer`, with the effective lambda."""
        chosen = self.regularizer
        weight = chosen.weight(self.train.batch_size, self.sizes.context)
        return {"reduction": chosen.reduction, "gamma": chosen.gamma, "lambda_": weight}

    def model_config(self, vocabulary: int | None = None) -> ModelConfig:
        """Configuration of the decoder; vocabulary: that of the token files, the most allowed by default."""
        from aero.model import ModelConfig

        switches = FAMILIES[self.parameters.model].switches
        if self.architecture.block == "he_hofmann":  # the block has its own form and learned positions
            own = ("position", "rotary_fraction", "parallel_residual")
            switches = {key: value for key, value in switches.items() if key not in own}
        return ModelConfig(
            vocabulary=self.vocabulary if vocabulary is None else vocabulary,
            **self.sizes.model_dump(),
            **switches,
            temperature_init=self.regularizer.temperature_init,
            log_temperature=self.regularizer.log_temperature,
            threshold_init=self.regularizer.threshold_init,
        )

    def configuration(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """What determines the training: architecture, sizes, recipe, regulariser, corpus, seed. manifest: that of the
        token files.
        """
        model = dataclasses.asdict(self.model_config(manifest["vocabulary"]))
        del model["kv_heads"], model["rotary_base"]  # only models from elsewhere have these switches
        if not model["log_temperature"]:
            del model["log_temperature"]  # so that earlier hashes stay
        return {
            "seed": self.seed,
            "run": self.name,
            "scale": self.scale,
            "architecture": str(self.architecture),
            "model": model,
            "train": self.train.recipe(),
            "regularizer": self.regularized if self.architecture.entropy_regularized else None,
            "corpus": manifest["corpus"]["name"],
            "corpus_sha256": manifest["corpus_sha256"],
            "tokenizer_sha256": manifest["tokenizer_sha256"],
            "packing": self.corpus.packing,
        }

    def hash(self, manifest: dict[str, Any]) -> str:
        """SHA-256 of the configuration and of TRAINING_VERSION."""
        values = self.configuration(manifest)
        if TRAINING_VERSION > 1:  # results of version 1 do not name it
            values["version"] = TRAINING_VERSION
        return hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()


def load(path: Path | str = PATH) -> Parameters:
    """Read and check `path`. UserError, one line, for anything wrong with it."""
    path = Path(path)
    try:
        values = yaml_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} not found; run from the repository's root folder") from None
    return checked(Parameters, values, path)


def checked(kind: type[Any], values: dict[str, Any], place: Path | str) -> Any:
    """`values` as a section of that kind; UserError, naming the place, for the first fault."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{place}: {first_error(error)}") from None


def check(arguments: list[str]) -> None:
    """`python -m aero.config [FILE]`: UserError if params.yaml is damaged."""
    parameters = load(arguments[0] if arguments else PATH)
    print(f"ok: scale {parameters.scale}, {len(parameters.runs)} runs, seeds {list(parameters.seeds)}")


if __name__ == "__main__":
    run_main(check, sys.argv[1:])
