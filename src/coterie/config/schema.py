"""The keys of an experiment, their types, defaults and limits.

Every key that may stand in a YAML file is a field here, so that a misspelt one is an error and not a silent
default. Values are strict: the YAML reader has already decided what is a number, so ``"12"`` is text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from coterie.config.explain import explain
from coterie.errors import CoterieError
from coterie.evaluation.catalogue import metric_of
from coterie.federation.config import FederationConfig
from coterie.models.precision import Precision

RECIPE = (
    "federation",
    "model",
    "training",
    "rounds",
    "participation",
    "evaluate_every",
    "report",
    "metric",
    "absent",
    "newcomers",
    "privacy",
    "dtype",
    "precision",
    "buffers",
)
"""The keys that every result of an experiment depends on, beside its method and its seed."""


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
        raise ValueError(f"{value!r} would be part of a file name: use letters, digits, '.', '_' and '-'")
    return value


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError(f"{value!r} is no device: use cpu, cuda, cuda:<number> or auto")
    return value


PositiveInt = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]


def _metric(value: str) -> str:
    try:
        metric_of(value)
    except CoterieError as error:
        raise ValueError(str(error).removesuffix(".")) from error
    return value


def _metrics(value: Any) -> Any:
    """``metrics: auroc`` is short for ``metrics: [auroc]``."""
    return value if value == "auto" else _listed(value)


def _rule(value: Any) -> Any:
    """``cosine`` is short for ``{rule: cosine}``."""
    return {"rule": value} if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    """``seeds: 0`` is short for ``seeds: [0]``."""
    return value if isinstance(value, list | tuple | None) else [value]


def _named(value: Any) -> Any:
    """``fedora`` is short for ``{name: fedora}``."""
    return {"name": value} if isinstance(value, str) else value


def _participation(value: Any) -> Any:
    """A number is the fraction of clients drawn each round; 1.0 is everybody."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"rule": "all"} if value == 1 else {"rule": "uniform", "fraction": value}
    return _rule(value)


class Section(BaseModel):
    """A group of keys: unknown ones are errors, values are strict, nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ModelConfig(BaseModel):
    """The model that every client trains; keys beside ``name`` are arguments of the model factory."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = "mlp"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for the model factory."""
        return dict(self.__pydantic_extra__ or {})


class ScheduleConfig(Section):
    """The learning rate over the rounds: ``constant``, ``cosine`` or ``{rule: step, milestones: [...]}``."""

    rule: Literal["constant", "cosine", "step", "exponential"] = "constant"
    milestones: list[Annotated[float, Field(gt=0)]] | None = None
    factor: Annotated[float, Field(gt=0, le=1e3)] | None = None

    @model_validator(mode="after")
    def _fits_the_rule(self) -> ScheduleConfig:
        if self.rule == "step" and not self.milestones:
            raise ValueError("the rule step needs milestones, the rounds after which lr is multiplied by factor")
        if self.rule == "exponential" and self.factor is None:
            raise ValueError("the rule exponential needs factor, by which lr is multiplied each round")
        if self.rule != "step" and self.milestones:
            raise ValueError(f"milestones belong to the rule step, not to {self.rule}")
        if self.rule in ("constant", "cosine") and self.factor is not None:
            raise ValueError(f"factor belongs to the rules step and exponential, not to {self.rule}")
        return self


class TrainingConfig(Section):
    """What a client does between two exchanges with the server."""

    epochs: PositiveInt = 5
    batch_size: PositiveInt = 32
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Annotated[float, Field(gt=0, le=1e30)] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    nesterov: bool = False
    schedule: Annotated[ScheduleConfig, BeforeValidator(_rule)] = ScheduleConfig()
    clip: Annotated[float, Field(gt=0)] | None = None
    drop_last: bool = False
    optimizer_state: Literal["fresh", "persistent"] = "fresh"

    def merged(self, other: TrainingConfig | None) -> TrainingConfig:
        """These settings, changed where ``other`` states something else."""
        if other is None:
            return self
        return self.model_copy(update={key: getattr(other, key) for key in other.model_fields_set})

    def check(self, key: str) -> None:
        """Raise ``ValueError`` for merged settings that contradict each other; they stand at ``key``."""
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError(f"{key}.nesterov needs optimizer sgd and a momentum above 0")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(f"{key}.momentum belongs to sgd; remove it or choose optimizer sgd")


class AlgorithmEntry(BaseModel):
    """One method of the experiment; keys that are not named here are the method's own options."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str
    variant: str | None = None
    label: str | None = None
    guard: bool | None = None
    training: TrainingConfig | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The method's own options."""
        return dict(self.__pydantic_extra__ or {})

    @field_serializer("training")
    def _only_what_is_stated(self, training: TrainingConfig | None) -> dict[str, Any] | None:
        return None if training is None else training.model_dump(exclude_unset=True)


class GuardConfig(Section):
    """Do no harm: a client keeps its personalised model only where validation shows that it beats LOCAL's.

    Both are trained ``folds`` times more, so that every example that is not for testing validates once; the run's own
    validation examples count as well, and alone with 0. ``confidence`` is the probability of a gain from which on a
    client keeps its personalised model.
    """

    folds: Annotated[int, Field(ge=0, le=100)] = 5
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.7

    @field_validator("folds")
    @classmethod
    def _several(cls, value: int) -> int:
        if value == 1:
            raise ValueError("one fold would leave nothing to train on: give 0, or 2 or more")
        return value


class ParticipationConfig(Section):
    """Who is asked in a round: everybody, a fixed number drawn at random, or each one with a probability."""

    rule: Literal["all", "uniform", "bernoulli"] = "all"
    fraction: Fraction | None = None
    clients: PositiveInt | None = None

    @model_validator(mode="after")
    def _one_size(self) -> ParticipationConfig:
        given = [key for key in ("fraction", "clients") if getattr(self, key) is not None]
        if self.rule == "all" and given:
            raise ValueError(f"the rule all asks every client; remove {' and '.join(given)} or use the rule uniform")
        if self.rule == "uniform" and len(given) != 1:
            raise ValueError("the rule uniform needs either fraction or clients")
        if self.rule == "bernoulli" and given != ["fraction"]:
            raise ValueError("the rule bernoulli needs fraction, the probability of each client, and nothing else")
        return self


def _newcomers(value: Any) -> Any:
    """Names, how many, or which fraction."""
    names = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or names or (number and (0 < value < 1 or (value >= 1 and isinstance(value, int)))):
        return value
    raise ValueError(f"give names in a list, a number of 1 or more, or a fraction between 0 and 1, not {value!r}")


def _ways(value: Any) -> Any:
    if value is True or value is False or value == "both":
        return value
    raise ValueError(f"give true, false or both, not {value!r}")


class NewcomersConfig(Section):
    """Clients that are held out of the training and join afterwards.

    ``clients`` is their names, how many of them, or which fraction; who is drawn depends on the seed of the
    federation. ``labelled``: with labels of their own (``true``), without (``false``), or each way once (``both``).
    """

    clients: Annotated[list[str] | int | float | None, BeforeValidator(_newcomers)] = None
    labelled: Annotated[bool | Literal["both"], BeforeValidator(_ways)] = "both"
    epochs: Annotated[int, Field(ge=0)] = 20
    training: TrainingConfig | None = None

    @field_validator("clients")
    @classmethod
    def _somebody(cls, value: Any) -> Any:
        if isinstance(value, list) and (not value or len(set(value)) != len(value)):
            raise ValueError("list each newcomer once, and at least one")
        return value

    @field_validator("training")
    @classmethod
    def _no_schedule(cls, value: TrainingConfig | None) -> TrainingConfig | None:
        if value is not None and "schedule" in value.model_fields_set:
            raise ValueError("a schedule goes by the rounds, which newcomers have not: set lr only")
        return value

    @property
    def ways(self) -> tuple[bool, ...]:
        """Whether newcomers have labels: True, False, or both in turn."""
        return (True, False) if self.labelled == "both" else (self.labelled,)

    @field_serializer("training")
    def _only_what_is_stated(self, training: TrainingConfig | None) -> dict[str, Any] | None:
        return None if training is None else training.model_dump(exclude_unset=True)


def _rounds(value: Any) -> Any:
    """Rounds as numbers: JSON, in which a site is told the experiment, has only texts for keys."""
    if not isinstance(value, Mapping):
        return value
    return {int(key) if isinstance(key, str) and key.isdecimal() else key: names for key, names in value.items()}


class PrivacyConfig(Section):
    """What becomes of all that a client sends in rounds: its change is clipped, and noise added where ``noise`` is set.

    At real sites that is each site's own affair, see its ``policy``.
    """

    clip: Annotated[float, Field(gt=0, le=1e30)]
    noise: Annotated[float, Field(gt=0, le=1e6)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5


class RayConfig(Section):
    """The cluster of ``engine: ray``.

    ``address`` is ``auto`` for the cluster that this machine belongs to, or ``host:port``; without it one is started
    here. ``actors`` share the clients; by default there are as many as the cluster has CPUs for.
    """

    address: Annotated[str, Field(min_length=1)] | None = None
    actors: Annotated[int, Field(ge=1, le=65536)] | None = None


class SitesConfig(Section):
    """Real sites, for `coterie deploy`; `coterie run` takes no notice of it.

    ``names`` are the clients. A round counts if ``quorum`` of them have answered within ``deadline`` seconds: by
    default four in five, but two where there are two. Of a smaller cohort as large a share must answer, rounded down.
    The server waits ``patience`` seconds for so many to be there.
    The first round begins once ``start`` of them have come, by default all; the others may join later.
    """

    names: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
    deadline: Annotated[float, Field(gt=0, le=1e7)] = 600.0
    quorum: PositiveInt | None = None
    patience: Annotated[float, Field(ge=0, le=1e7)] = 1800.0
    start: PositiveInt | None = None

    @field_validator("names")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) != len(value):
            raise ValueError("list each site once")
        return value

    @model_validator(mode="after")
    def _quorum_can_be_met(self) -> SitesConfig:
        for key in ("quorum", "start"):
            count = getattr(self, key)
            if count is not None and count > len(self.names):
                raise ValueError(f"{key} is {count}, but there are {len(self.names)} sites")
        return self

    @property
    def needed(self) -> int:
        """The quorum in force."""
        return self.quorum or max(min(2, len(self.names)), 4 * len(self.names) // 5)


def _switched(value: Any) -> Any:
    """``true`` is short for a section with all defaults, ``false`` for none."""
    return ({} if value else None) if isinstance(value, bool) else value


Text = Annotated[str, Field(min_length=1)]


class MlflowConfig(Section):
    """MLflow: a server or database at ``uri``, by default a database in the run directory.

    ``experiment`` is what MLflow files the runs under, by default the name of the experiment.
    """

    uri: Text | None = None
    experiment: Text | None = None


class WandbConfig(Section):
    """Weights & Biases: ``project`` is by default the name of the experiment, ``entity`` the user's own."""

    project: Text | None = None
    entity: Text | None = None
    mode: Literal["offline", "online"] = "offline"


class TrackingConfig(Section):
    """Trackers that receive every number of the history as it comes; nothing leaves the machine unless told to."""

    tensorboard: bool = False
    mlflow: Annotated[MlflowConfig | None, BeforeValidator(_switched)] = None
    wandb: Annotated[WandbConfig | None, BeforeValidator(_switched)] = None


RANGE = re.compile(r"\s*(?P<low>\S+?)\s*\.\.\s*(?P<high>[^\s:]+)\s*(?P<log>:\s*log)?\s*")


class RangeConfig(Section):
    """Numbers from ``low`` to ``high``, whole ones where both are; ``log`` makes every power of ten as likely.

    ``0.01..10:log`` is short for ``{low: 0.01, high: 10, log: true}``.
    """

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _in_order(self) -> RangeConfig:
        if self.low >= self.high:
            raise ValueError(f"a range goes upwards, but {self.low:g} is not below {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"a range with log begins above 0, not at {self.low:g}")
        return self

    @property
    def whole(self) -> bool:
        """Whether the numbers are whole."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def _dimension(value: Any) -> Any:
    """A list stays one; text such as ``1..5`` or ``0.01..10:log`` is a range; anything else is a single value."""
    if isinstance(value, str) and ".." in value:
        found = RANGE.fullmatch(value)
        try:
            ends = [] if found is None else [_number(found["low"]), _number(found["high"])]
        except ValueError:
            ends = []
        if found is None or not ends:
            raise ValueError(f"{value!r} is no range: write 1..5 or 0.01..10:log")
        value = {"low": ends[0], "high": ends[1], "log": found["log"] is not None}
    if isinstance(value, Mapping):
        try:
            return RangeConfig.model_validate(value)
        except ValidationError as error:  # said here, since the union with a list would ask for a list
            raise ValueError(explain(error, value, RangeConfig)[1]) from error
    if isinstance(value, list | tuple) and not value:
        raise ValueError("list at least one value")
    return value if isinstance(value, list | tuple | RangeConfig) else [value]


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


class TuneConfig(Section):
    """What `coterie tune` searches, and how; `coterie run` takes no notice of it.

    ``space`` has options of methods (``lambda``, or ``ditto.lambda`` for one method alone) and keys of ``training``
    (``training.lr``), each with listed values or a range. ``search`` is ``grid`` where all values are listed, else
    ``random``, unless stated.
    """

    algorithms: Annotated[list[str], BeforeValidator(_listed), Field(min_length=1)] | None = None
    space: Annotated[
        dict[str, Annotated[list[Any] | RangeConfig, BeforeValidator(_dimension)]], Field(min_length=1)
    ] = {}
    search: Literal["grid", "random", "optuna"] | None = None
    trials: PositiveInt | None = None
    rounds: PositiveInt | None = None
    seeds: (
        Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], BeforeValidator(_listed), Field(min_length=1)] | None
    ) = None
    seed: Annotated[int, Field(ge=0)] = 0


class Config(Section):
    """One experiment: a federation, a model, a training recipe and the methods to compare."""

    name: Annotated[str, AfterValidator(_file_name)] = "experiment"
    federation: SerializeAsAny[FederationConfig]  # a source with options has a subclass
    model: Annotated[ModelConfig, BeforeValidator(_named)] = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    algorithms: Annotated[
        list[Annotated[AlgorithmEntry, BeforeValidator(_named)]],
        BeforeValidator(_listed),
        Field(min_length=1),
    ] = [AlgorithmEntry(name="local"), AlgorithmEntry(name="fedavg"), AlgorithmEntry(name="fedora")]
    rounds: PositiveInt = 100
    participation: Annotated[ParticipationConfig, BeforeValidator(_participation)] = ParticipationConfig()
    evaluate_every: PositiveInt = 5
    report: Literal["best_val", "last", "best_test"] = "best_val"
    metric: Annotated[str, AfterValidator(_metric)] | None = None
    metrics: Annotated[Literal["auto"] | list[Annotated[str, AfterValidator(_metric)]], BeforeValidator(_metrics)] = (
        "auto"
    )
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], BeforeValidator(_listed), Field(min_length=1)] = [0]
    targets: Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], BeforeValidator(_listed)] = []
    absent: Annotated[dict[PositiveInt, list[str]], BeforeValidator(_rounds)] = {}
    newcomers: NewcomersConfig | None = None
    guard: Annotated[GuardConfig | None, BeforeValidator(_switched)] = None
    tune: TuneConfig | None = None
    tracking: TrackingConfig | None = None
    checkpoint_every: PositiveInt = 50
    save_models: bool = True
    save_samples: bool = True
    save_losses: bool = False
    page: bool = True
    save_server: bool = True
    save_relations: Literal["evaluated", "every_round", "last", "none"] = "evaluated"
    output: Annotated[str, Field(min_length=1)] | None = None
    device: Annotated[str, AfterValidator(_device)] = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "full"
    engine: Literal["simulation", "ray", "flower"] = "simulation"
    privacy: PrivacyConfig | None = None
    ray: RayConfig | None = None
    sites: SitesConfig | None = None
    executor: Literal["auto", "fastest", "stacked", "vmap", "loop"] = "auto"
    chunk: PositiveInt | None = None
    workers: Annotated[int, Field(ge=1, le=1024)] | None = None
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    processes: Annotated[int, Field(ge=1, le=1024)] | None = None
    client_memory: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    share: PositiveInt | None = None
    buffers: Literal["average", "local", "server"] = "average"

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) != len(seeds):
            raise ValueError("each seed may be listed once")
        return seeds

    @model_validator(mode="after")
    def _precision_fits(self) -> Config:
        if self.precision != "full" and self.dtype != "float32":
            raise ValueError(
                f"precision: {self.precision} is for models of float32, not {self.dtype}: remove one of the two keys"
            )
        return self

    @model_validator(mode="after")
    def _training_makes_sense(self) -> Config:
        self.training.check("training")
        for position, entry in enumerate(self.algorithms):
            self.training_of(entry).check(f"algorithms[{position}].training")
            if self.newcomers is not None:
                self.training_of(entry).merged(self.newcomers.training).check("newcomers.training")
        return self

    def training_of(self, entry: AlgorithmEntry) -> TrainingConfig:
        """The training settings of one method: the common ones and what its entry changes."""
        return self.training.merged(entry.training)

    def as_dict(self) -> dict[str, Any]:
        """The resolved configuration as plain data, what ``config.yaml`` holds; unset keys are left out."""
        tree: dict[str, Any] = self.model_dump(exclude={"algorithms"})
        algorithms = [_plain_entry(entry.model_dump(exclude_unset=True)) for entry in self.algorithms]
        tree = {key: algorithms if key == "algorithms" else tree[key] for key in type(self).model_fields}
        return dict(_plain(tree))


def _plain_entry(entry: dict[str, Any]) -> dict[str, Any] | str:
    return str(entry["name"]) if set(entry) == {"name"} else entry


_STATED = ("algorithms.", "model.", "newcomers.training.")
"""Sections of which only stated keys are written: ``null`` among them is a value, mostly not the default."""


def _plain(value: Any, above: str = "") -> Any:
    """Plain mappings and lists; keys without a value are left out, unless that was stated."""
    if isinstance(value, Mapping):
        stated = above.startswith(_STATED)
        return {key: _plain(inner, f"{above}{key}.") for key, inner in value.items() if stated or inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner, above) for inner in value]
    return value
