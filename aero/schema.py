"""Sections of `params.yaml` as pydantic models: keys, types, ranges and which values go together."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from aero.architecture import parse
from aero.errors import known as _known

PAPER_CONTEXT = 128
"""The paper's context length T that a scale's own `model.context` stands for; `contexts` has the others."""
PRICED = ("aero/table4", "aero/table5", "aero/table6", "aero/table7", "aero/figure15")
"""Tables and figures with costs of private inference."""

LARGEST = 10**15  # larger counts would leave the range of floats and of NumPy's integers
Positive = Annotated[int, Field(gt=0, le=LARGEST)]
NotNegative = Annotated[int, Field(ge=0, le=LARGEST)]
CorpusKey = Annotated[str, Field(pattern="^[a-z0-9_]+$")]  # names a folder and a pipeline stage
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9-]*$", max_length=100)]  # part of commands in dvc.yaml
Decay = Annotated[float, Field(ge=0, lt=1)]


class Strict(BaseModel):
    """A section with exactly these keys and types: neither "12" nor true is a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, values: Any) -> Any:
        """YAML and JSON have no tuples, and a strict field takes no list for one."""
        return _tuples(values)


def _tuples(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _tuples(value) if isinstance(value, dict | list) else value for name, value in values.items()}
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


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
    log_temperature: bool = False
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
    qk_clip: float | None = Field(None, gt=0)  # largest size of an attention logit in training (`loop.clip_logits`)
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
            raise ValueError("optimizer=adam needs weight_decay=0; use adamw for decoupled weight decay")
        if self.warmup_steps is not None and self.warmup_steps > self.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} exceeds steps {self.steps}; warmup takes a fraction")
        return self

    def recipe(self) -> dict[str, Any]:
        """All fields as a result states them. What the first results did not know stands there only where it departs
        from their recipe, so that they stay comparable with later ones."""
        later = ("qk_clip", "warmup_steps", "optimizer", "schedule", "final_learning_rate", "log_attention")
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


def _changes(of: type[BaseModel], *without: str) -> Any:
    """Type of a mapping that changes fields of a section; what it holds is checked where it is used."""
    fields = [name for name in of.model_fields if name not in without]

    def known_names(values: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(values) - set(fields):
            raise ValueError(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(fields)}")
        return values

    return Annotated[dict[str, Any], AfterValidator(known_names)]


TrainChanges = _changes(TrainParameters)
RegularizerChanges = _changes(RegularizerParameters)


class FamilySizes(Strict):
    """What a model family changes in a scale's `model` and `train`; contexts are the scale's."""

    model: _changes(ModelParameters, "context") = {}
    train: TrainChanges = {}


class ContextParameters(Strict):
    """What a published context length is at a scale: the length it stands for and what it changes in `train`."""

    length: int = Field(ge=2)
    train: TrainChanges = {}


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

    def length(self, context: int) -> int:
        """What the paper's context length is at this scale: the model's own for T=128, one of `contexts` for others."""
        if context == PAPER_CONTEXT:
            return self.model.context
        return self.contexts[_known("context", str(context), self.contexts)].length


class FamilyParameters(Strict):
    """What the runs of a model family have in common at every scale; their own `context` and `corpus` go before it."""

    train: TrainChanges = {}
    regularizer: RegularizerChanges = {}
    context: Positive = PAPER_CONTEXT
    corpus: str | None = None


class RunParameters(Strict):
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
    regularizer: RegularizerChanges = {}
    overrides: TrainChanges = {}
    rows: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    reason: str = ""

    @field_validator("architecture")
    @classmethod
    def _known_notation(cls, text: str) -> str:
        parse(text)
        return text

    @model_validator(mode="after")
    def _has_a_purpose(self) -> RunParameters:
        if not (self.rows or self.figures or self.reason):
            raise ValueError("a run must name the rows or figures it stands for, or the reason it exists")
        return self

    def priced_places(self) -> tuple[str, ...]:
        """Rows of `PRICED` that this run stands for, such as "aero/table4/SM+ScFuFFN"."""
        return tuple(place for place in (*self.rows, *self.figures) if "/".join(place.split("/")[:2]) in PRICED)


class DeviceParameters(Strict):
    """A machine that costs are estimated for: its peak, and the share that trainings are assumed to reach."""

    peak_tflops: float = Field(gt=0)
    utilisation: float = Field(gt=0, le=1)


class Network(Strict):
    """A link between the two parties: bandwidth in Mbit/s for each direction, round-trip time in milliseconds."""

    bandwidth_mbit: float = Field(gt=0)
    rtt_ms: float = Field(ge=0)

    @property
    def bytes_per_second(self) -> float:
        return self.bandwidth_mbit * 1e6 / 8

    def latency_seconds(self, compute: float, wire_bytes: float, rounds: float) -> float:
        """compute + bytes / bandwidth + rounds x RTT, in seconds; computing and transfer are not overlapped.

        wire_bytes: as `aero.two_party.cost.network` counts them; each direction has the full bandwidth and waits for
        the other.
        """
        return compute + wire_bytes * 8 / (self.bandwidth_mbit * 1e6) + rounds * self.rtt_ms / 1e3


class TimeoutParameters(Strict):
    connect_s: float = Field(gt=0)
    receive_s: float = Field(gt=0)


class TwoPartyParameters(Strict):
    programs: tuple[Literal["as_written", "tuned"], ...]
    networks: dict[str, Network]
    timeouts: TimeoutParameters
    end_to_end_runs: tuple[str, ...]
    end_to_end_programs: tuple[Literal["as_written", "tuned"], ...]
    prompts: Positive

    def settings(self) -> dict[str, Any]:
        """Fields of `aero.two_party.runtime.settings.Settings`."""
        return {
            "connect_timeout_s": self.timeouts.connect_s,
            "receive_timeout_s": self.timeouts.receive_s,
        }


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
