"""`params.yaml`, read and checked once, as typed values.

An unknown key, a wrong type or an impossible combination is one line that names the key, the value and what is allowed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from aero.architecture import Architecture, parse
from aero.errors import UserError, cut, got, run_main, yaml_file
from aero.errors import known as _known
from aero.families import FAMILIES
from aero.sections import (
    CHECKED,
    BaseModel,
    CorpusKey,
    Decay,
    Field,
    Name,
    NotNegative,
    Positive,
    Strict,
    ValidationError,
    field_validator,
    model_validator,
)

if TYPE_CHECKING:  # `aero runs` reads the parameters without waiting for torch
    from aero.model import ModelConfig

PATH = Path("params.yaml")
PAPER_CONTEXT = 128
"""The context length T that a scale's own `model.context` stands for; `contexts` has the others."""
MEASURED = "measured"
"""Device of a scale whose speed is taken from the results that are kept for it."""


class CorpusParameters(Strict):
    name: Literal["python_stdlib", "installed_python", "stdlib_docstrings", "codeparrot", "languini", "local"]
    path: str | None = None
    text_column: str = "content"
    validation_fraction: float = Field(0.05, gt=0, lt=1)
    include_tests: bool = False
    packages: tuple[str, ...] = ()
    files_sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    packing: bool = False
    test_split: Literal["iid", "discworld", "java", "langlearn", "statistics", "woodworking"] = "iid"

    @model_validator(mode="after")
    def _local_needs_path(self) -> CorpusParameters:
        if self.name == "local" and not self.path:
            raise ValueError("corpus.path must name a folder when corpus.name is local")
        return self


class FurtherCorpusParameters(CorpusParameters):
    """A corpus beside the default one, with its own tokenizer. vocabulary: at most; null or a smaller scale's: that."""

    tokenizer_path: str | None = None
    vocabulary: int | None = Field(None, ge=257, le=65536)


class TokenizerParameters(Strict):
    path: str | None = None
    training_bytes: Positive = 20_000_000


class RegularizerParameters(Strict):
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


class TokensParameters(Strict):
    vocabulary: int = Field(ge=257, le=65536)
    train_bytes: Positive | None
    validation_bytes: Positive | None


class ModelParameters(Strict):
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


class TrainParameters(Strict):
    steps: Positive
    batch_size: Positive
    accumulation: Positive = 1
    learning_rate: float = Field(gt=0, le=1e30)  # far beyond any that trains, and a float32 still
    betas: tuple[Decay, Decay]
    epsilon: float = Field(gt=0)
    weight_decay: float = Field(ge=0)
    clip: float | None = Field(gt=0)  # largest norm of the gradient; null: not clipped
    warmup: float = Field(ge=0, lt=1)  # fraction of the steps, unless warmup_steps is given
    warmup_steps: Positive | None = None
    optimizer: Literal["adamw", "adam"] = "adamw"
    schedule: Literal["linear", "cosine"] = "linear"
    final_learning_rate: float | None = Field(None, gt=0)
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    threads: NotNegative = 0
    log_every: Positive
    log_attention: bool = False  # norms of the attention matrices and variances of their logits, too
    evaluate_every: Positive
    evaluation_tokens: Positive
    final_evaluation_tokens: Positive
    checkpoint_every: Positive

    @model_validator(mode="after")
    def _fields_fit(self) -> TrainParameters:
        if (self.schedule == "cosine") != (self.final_learning_rate is not None):
            raise ValueError("final_learning_rate and schedule=cosine go together: give both or neither")
        if self.final_learning_rate is not None and self.final_learning_rate > self.learning_rate:
            raise ValueError(f"final_learning_rate {self.final_learning_rate} exceeds learning_rate")
        if self.optimizer == "adam" and self.weight_decay:
            raise ValueError("optimizer=adam needs weight_decay=0: decay apart from the gradient is adamw's")
        if self.warmup_steps is not None and self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} exceeds steps {self.steps}; warmup takes a fraction")
        return self

    def recipe(self) -> dict[str, Any]:
        """All fields as a result states them. What the first results did not know stands there only where it departs
        from their recipe, so that they stay comparable with later ones."""
        later = ("warmup_steps", "optimizer", "schedule", "final_learning_rate", "log_attention")
        defaults = {name: type(self).model_fields[name].default for name in later}
        values = self.model_dump()
        return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


class EntropyParameters(Strict):
    tokens: Positive


class SensitivitySizes(Strict):
    """Steps of SGD and number of seeds of the learning-rate sweep; normals: instead of `sensitivity_theory.normals`."""

    steps: Positive
    seeds: Positive
    normals: Positive | None = None


class SensitivityParameters(Strict):
    """What `variance_sensitivity` leaves open of its small experiment; fields as in `aero.sensitivity.setting`."""

    hidden: Literal["x3+y", "x2+y", "embedded"]
    residual: bool
    readout: Literal["slot", "linear"]
    init: Literal["normal_0.1", "linear", "xavier"]
    batch: Positive
    data: Literal["fresh", "set"]
    reduction: Literal["mean", "sum"]
    window: Positive  # a shorter training's losses are all averaged
    initial: Literal["measured", "zero"]
    threads: NotNegative = 0

    def experiment(self) -> dict[str, Any]:
        """Fields of `Setting` without its steps, which are the scale's; the others say how its losses are read."""
        return self.model_dump(exclude={"window", "initial", "threads"})


def _only_fields_of(changed: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """`values` if all are named after fields of `changed`; what they hold is checked where it is used."""
    if unknown := set(values) - set(changed.model_fields):
        raise ValueError(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(changed.model_fields)}")
    return values


class _TrainChanges(Strict):
    train: dict[str, Any] = {}

    @field_validator("train")
    @classmethod
    def _known_train(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _only_fields_of(TrainParameters, values)


class FamilySizes(_TrainChanges):
    """What a model family changes in a scale's `model` and `train`."""

    model: dict[str, Any] = {}

    @field_validator("model")
    @classmethod
    def _known_sizes(cls, values: dict[str, Any]) -> dict[str, Any]:
        if "context" in values:
            raise ValueError("a family has no context of its own; see contexts")
        return _only_fields_of(ModelParameters, values)


class ContextParameters(_TrainChanges):
    """What a published context length is at a scale: the length it stands for and what it changes in `train`."""

    length: int = Field(ge=2)


class ScaleParameters(Strict):
    device: str
    corpus: dict[str, Any] = {}  # what it changes in the section `corpus`
    tokens: TokensParameters
    model: ModelParameters
    train: TrainParameters
    families: dict[str, FamilySizes]
    contexts: dict[str, ContextParameters]
    entropy: EntropyParameters
    sensitivity: SensitivitySizes
    two_party: Literal["gpt2", "own"]
    end_to_end_runs: tuple[str, ...]
    end_to_end_programs: tuple[Literal["as_written", "tuned"], ...] = Field(min_length=1)

    def length(self, context: int) -> int:
        """What the paper's context length is at this scale: the model's own for T=128, one of `contexts` for others."""
        if context == PAPER_CONTEXT:
            return self.model.context
        return self.contexts[_known("context", str(context), self.contexts)].length


class _RegularizerChanges(Strict):
    regularizer: dict[str, Any] = {}

    @field_validator("regularizer")
    @classmethod
    def _known_regularizer(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _only_fields_of(RegularizerParameters, values)


class FamilyParameters(_TrainChanges, _RegularizerChanges):
    """What the runs of a model family have in common at every scale; their own `context` and `corpus` go before it."""

    context: Positive = PAPER_CONTEXT
    corpus: str | None = None


class RunParameters(_RegularizerChanges):
    """One training.

    model, context: family and context length T of the paper, the family's own if None; the scale says what sizes that
    means. corpus: a name under `corpora`, None for the family's. regularizer, overrides: what it changes in the section
    `regularizer` and in `train`.
    budget: tokens, as a multiple of the scale's; batch: sequences a step, likewise.
    rows: table rows it stands for, `paper/tableN/row` or, where a row has several trainings, `paper/tableN/row/which`.
    figures: figures drawn from it. reason: why it exists if no paper prints it.
    """

    architecture: str
    model: str = "gpt2"
    context: Positive | None = None
    corpus: str | None = None
    budget: float = Field(1.0, gt=0, le=1e6)
    batch: Positive = 1
    overrides: dict[str, Any] = {}
    rows: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    reason: str = ""

    @field_validator("architecture")
    @classmethod
    def _known_notation(cls, text: str) -> str:
        parse(text)
        return text

    @field_validator("overrides")
    @classmethod
    def _known_overrides(cls, values: dict[str, Any]) -> dict[str, Any]:
        return _only_fields_of(TrainParameters, values)

    @model_validator(mode="after")
    def _has_a_purpose(self) -> RunParameters:
        if not (self.rows or self.figures or self.reason):
            raise ValueError("a run must name the rows or figures it stands for, or the reason it exists")
        return self


class DeviceParameters(Strict):
    """A machine that costs are estimated for: its peak, the share that trainings are assumed to reach, its rent."""

    peak_tflops: float = Field(gt=0)
    utilisation: float = Field(gt=0, le=1)
    usd_per_hour: float | None = Field(default=None, ge=0)


class NetworkParameters(Strict):
    bandwidth_mbit: float = Field(gt=0)
    rtt_ms: float = Field(ge=0)


class TimeoutParameters(Strict):
    connect_s: float = Field(gt=0)
    receive_s: float = Field(gt=0)


TUNED_FRACTION_BITS = (16, 20)
"""Those of `aero.two_party.lattice.matmul.FRACTION_BITS`, which needs more than this module is to load."""


class TwoPartyParameters(Strict):
    programs: tuple[Literal["as_written", "tuned"], ...]
    field: Literal["FM64", "FM128"]  # SPU cannot divide in FM32
    fraction_bits: Positive
    mul_lsb_error: bool
    networks: dict[str, NetworkParameters]
    timeouts: TimeoutParameters
    end_to_end_runs: tuple[str, ...]
    prompts: Positive

    def settings(self) -> dict[str, Any]:
        """Fields of `aero.two_party.runtime.settings.Settings`."""
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


class SoftmaxGrid(Strict):
    positions: tuple[Positive, ...] = Field(min_length=1)
    sigmas: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)


class ReluGrid(Strict):
    positions: tuple[Positive, ...] = Field(min_length=1)
    dimensions: tuple[Positive, ...] = Field(min_length=1)


class ControlledExperiment(Strict):
    positions: Positive
    dimensions: Positive
    matrices: int = Field(ge=2)
    sigmas: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    cores: tuple[str, ...] = Field(min_length=1)


class DirichletRows(Strict):
    positions: Positive
    alphas: tuple[Annotated[float, Field(gt=0)], ...] = Field(min_length=1)
    rows: int = Field(ge=2)


class SensitivityTheoryParameters(Strict):
    """Grids and draws of the checks of `variance_sensitivity`'s theory."""

    seed: NotNegative
    normals: Positive
    softmax: SoftmaxGrid
    relu: ReluGrid
    controlled: ControlledExperiment
    dirichlet: DirichletRows


class Parameters(Strict):
    """The whole of params.yaml."""

    scale: str
    seeds: tuple[NotNegative, ...] = Field(min_length=1)
    more_seeds: tuple[NotNegative, ...]
    active_runs: tuple[str, ...] = Field(min_length=1)
    more_runs: tuple[str, ...]
    compared_runs: tuple[str, ...]
    training_order: dict[str, tuple[str, ...]] = {}  # by table: what `stages.train_many --out` trains first
    corpus: CorpusParameters
    corpora: dict[CorpusKey, FurtherCorpusParameters] = {}
    tokenizer: TokenizerParameters
    regularizer: RegularizerParameters
    scales: dict[Name, ScaleParameters]
    devices: dict[str, DeviceParameters]
    core_usd_per_hour: float = Field(gt=0)
    families: dict[str, FamilyParameters]
    runs: dict[Name, RunParameters]
    sensitivity: SensitivityParameters
    two_party: TwoPartyParameters
    sensitivity_theory: SensitivityTheoryParameters
    parallel_context: dict[str, Any] = {}  # checked by aero.parallel_context.settings, which knows what it holds

    @model_validator(mode="after")
    def _names_exist(self) -> Parameters:
        _known("scale", self.scale, self.scales)
        if self.two_party.field != "FM64" and "tuned" in self.two_party.programs:
            raise ValueError("two_party.field must be FM64 for the program tuned, which computes on shares of 64 bits")
        least, most = TUNED_FRACTION_BITS
        if "tuned" in self.two_party.programs and not least <= self.two_party.fraction_bits <= most:
            got = self.two_party.fraction_bits
            raise ValueError(f"two_party.fraction_bits must be {least} to {most} for the program tuned, not {got}")
        ordered = sum(self.training_order.values(), ())
        for run in (*self.active_runs, *self.more_runs, *self.two_party.end_to_end_runs, *self.compared_runs, *ordered):
            _known("run", run, self.runs)
        for run in self.runs:
            if (listed := (*self.active_runs, *self.more_runs).count(run)) != 1:
                raise ValueError(f"run {run} must stand once in active_runs or more_runs, not {listed} times")
        seeds = (*self.seeds, *self.more_seeds)
        if twice := {seed for seed in seeds if seeds.count(seed) > 1}:
            raise ValueError(f"seed {min(twice)} is in seeds and more_seeds twice: a run would be trained so")
        for scale, chosen in self.scales.items():
            if extra := set(chosen.end_to_end_runs) - set(self.two_party.end_to_end_runs):
                raise ValueError(
                    f"scales.{scale}.end_to_end_runs: {', '.join(sorted(extra))} must be in two_party.end_to_end_runs"
                )
        for name, run in self.runs.items():
            _known("model family", run.model, FAMILIES)
            if (corpus := self.corpus_name(name)) is not None:
                _known("corpus", corpus, self.corpora)
        for scale, chosen in self.scales.items():
            for family in (*chosen.families, *self.families):
                _known("model family", family, FAMILIES)
            if chosen.device != MEASURED:
                _known(f"device of scales.{scale}", chosen.device, self.devices)
            at_scale = self.model_copy(update={"scale": scale})
            for name in self.runs:
                at_scale.model(name), at_scale.train(name), at_scale.run_regularizer(name), at_scale.packing(name)
        return self

    @property
    def active(self) -> ScaleParameters:
        """The parameters of the active scale."""
        return self.scales[self.scale]

    def trainings(self) -> tuple[tuple[str, int], ...]:
        """(run, seed) of everything plain `dvc repro` trains."""
        return tuple((run, seed) for run in self.runs for seed in self.seeds) + tuple(
            (run, seed) for run in self.compared_runs for seed in self.more_seeds
        )

    def run(self, name: str) -> RunParameters:
        """The run called `name`; UserError with the nearest known name if there is none."""
        return self.runs[_known("run", name, self.runs)]

    def corpus_called(self, name: str | None) -> CorpusParameters:
        """The corpus under `corpora.<name>`, or for None the active scale's; UserError if it is unknown."""
        if name is not None:
            return self.corpora[_known("corpus", name, self.corpora)]
        return _checked(CorpusParameters, self.corpus.model_dump() | self.active.corpus, f"scales.{self.scale}.corpus")

    def at_scale(self, scale: str) -> Parameters:
        """The same parameters with another scale active; UserError if it is unknown."""
        return self.model_copy(update={"scale": _known("scale", scale, self.scales)})

    def vocabulary(self, run: str) -> int:
        """Entries of the tokenizer of the run's corpus at the active scale."""
        entries = self.active.tokens.vocabulary
        corpus = self.corpora.get(self.corpus_name(run) or "")
        return entries if corpus is None or corpus.vocabulary is None else min(entries, corpus.vocabulary)

    def device(self, name: str) -> DeviceParameters:
        return self.devices[_known("device", name, self.devices)]

    def packing(self, run: str) -> bool:
        """Whether the run's corpus is cut without regard to documents."""
        return self.corpus_called(self.corpus_name(run)).packing

    def architecture(self, run: str) -> Architecture:
        return parse(self.run(run).architecture)

    def family(self, run: str) -> FamilyParameters:
        """What `run` has in common with all runs of its model family."""
        return self.families.get(self.run(run).model, FamilyParameters())

    def context(self, run: str) -> int:
        """The paper's context length T of `run`."""
        return self.run(run).context or self.family(run).context

    def corpus_name(self, run: str) -> str | None:
        """The name under `corpora` of what `run` is trained on, None for the section `corpus`."""
        return self.run(run).corpus or self.family(run).corpus

    def model(self, run: str) -> ModelParameters:
        """Sizes of `run` at the active scale: the scale's own, its family's changes, its context."""
        chosen = self.run(run)
        sizes = self.active.families.get(chosen.model, FamilySizes())
        values = self.active.model.model_dump() | sizes.model | {"context": self.active.length(self.context(run))}
        found = _checked(ModelParameters, values, f"scales.{self.scale}.families.{chosen.model}.model")
        try:
            parse(chosen.architecture).ffn_layers(found.layers)
        except ValueError as error:
            raise UserError(f"run {run}, {chosen.model} at scale {self.scale}: {error}") from None
        return found

    def train(self, run: str) -> TrainParameters:
        """Training parameters of `run` at the active scale.

        The scale's own; a batch that keeps the tokens a step at another context; what the context and the family
        change; the run's budget; its overrides.
        """
        chosen, values = self.run(run), self.active.train.model_dump()
        context = self.active.length(self.context(run))
        positions = values["batch_size"] * self.active.model.context
        if positions % context:
            raise UserError(
                f"run {run} at scale {self.scale}: a step of {positions} tokens is no whole number of sequences of"
                f" {context}; change contexts.{self.context(run)}.length or train.batch_size"
            )
        values["batch_size"] = positions // context
        if str(self.context(run)) in self.active.contexts:
            values |= self.active.contexts[str(self.context(run))].train
        values |= self.family(run).train
        if chosen.model in self.active.families:
            values |= self.active.families[chosen.model].train
        if odd := [name for name in ("steps", "accumulation") if type(values[name]) is not int]:
            raise UserError(f"scales.{self.scale}, run {run}: {odd[0]} must be a whole number{got(values[odd[0]])}")
        values["steps"] = max(1, round(values["steps"] * chosen.budget / chosen.batch))
        values["accumulation"] *= chosen.batch
        place = f"runs.{run}.overrides" if chosen.overrides else f"scales.{self.scale}, run {run}"
        return _checked(TrainParameters, values | chosen.overrides, place)

    def run_regularizer(self, run: str) -> RegularizerParameters:
        """The entropy regulariser of `run`: the section `regularizer` with the run's changes."""
        values = self.regularizer.model_dump() | self.family(run).regularizer | self.run(run).regularizer
        return _checked(RegularizerParameters, values, f"regularizer of run {run}")

    def model_config_for(self, run: str, vocabulary: int) -> ModelConfig:
        """The decoder of `run` at the active scale: its sizes, and the switches of its family."""
        from aero.model import ModelConfig

        regularizer, switches = self.run_regularizer(run), FAMILIES[self.run(run).model].switches
        if self.architecture(run).block == "he_hofmann":  # it has its own form and learned positions
            switches = {
                k: v for k, v in switches.items() if k not in ("position", "rotary_fraction", "parallel_residual")
            }
        return ModelConfig(
            vocabulary=vocabulary,
            **self.model(run).model_dump(),
            **switches,
            temperature_init=regularizer.temperature_init,
            threshold_init=regularizer.threshold_init,
        )

    def two_party_model(self) -> tuple[ModelConfig, int]:
        """Sizes and context at which operations are measured: GPT-2 small at T = 128, or the scale's own model."""
        from aero.model import ModelConfig

        if self.active.two_party == "own":
            sizes = self.active.model
            return ModelConfig(vocabulary=self.active.tokens.vocabulary, **sizes.model_dump()), sizes.context
        return ModelConfig(vocabulary=50257, context=128, layers=12, heads=12, width=768, ffn_width=3072), 128


def load(path: Path | str = PATH) -> Parameters:
    """Read and check `path`. UserError, one line, for anything wrong with it."""
    path = Path(path)
    if not CHECKED:
        print(f"note: pydantic is not installed, so {path} is not fully checked", file=sys.stderr)
    try:
        values = yaml_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} not found; run from the repository's root folder") from None
    return _checked(Parameters, values, path)


def _checked(kind: type[Any], values: dict[str, Any], place: Path | str) -> Any:
    """`values` as a section of that kind; UserError, naming the place, for the first fault."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{place}: {_first_error(error)}") from None


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])[:200]
    message = cut(first["msg"].removeprefix("Value error, "))
    value = first.get("input")
    shown = "" if isinstance(value, dict | list | BaseModel) else got(value)
    more = f"; and {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{place + ': ' if place else ''}{message}{shown}{more}"


def _main(arguments: list[str]) -> None:
    parameters = load(arguments[0] if arguments else PATH)
    print(f"ok: scale {parameters.scale}, {len(parameters.runs)} runs, seeds {list(parameters.seeds)}")


if __name__ == "__main__":
    run_main(_main, sys.argv[1:])
