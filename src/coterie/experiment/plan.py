"""What an experiment has to run: systems (a method with its options) times seeds, LOCAL first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from coterie.config import AlgorithmEntry, Config, TrainingConfig
from coterie.contract import Algorithm, make_algorithm
from coterie.errors import CoterieError
from coterie.runs.guard import GUARDED
from coterie.training import TrainingSettings

REFERENCE = "local"
"""The method that everyone's gain is measured against."""


@dataclass(frozen=True)
class System:
    """One method with its options, told apart from the others by (algorithm, variant)."""

    algorithm: str
    variant: str
    label: str
    method: Algorithm = field(repr=False)
    training: TrainingSettings = field(repr=False)
    asked_for: bool = True
    guarded: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Algorithm and variant, as they stand in every table."""
        return self.algorithm, self.variant

    def told(self) -> dict[str, Any]:
        """The options of the method and its training, by key; infinities as text, since JSON has no such numbers."""
        training = {f"training.{key}": value for key, value in asdict(self.training).items()}
        values = {**self.method.options(), **training}
        endless = [key for key, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        return {**values, **{key: str(values[key]) for key in endless}}


@dataclass(frozen=True)
class Job:
    """One system with one seed: the unit that runs, is saved and is resumed."""

    system: System
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """Algorithm, variant and seed."""
        return (*self.system.key, self.seed)


@dataclass(frozen=True)
class Plan:
    """All systems of an experiment in the order in which they run, and the seeds."""

    systems: tuple[System, ...]
    seeds: tuple[int, ...]
    reference: System

    def __iter__(self) -> Iterator[Job]:
        return (Job(system, seed) for seed in self.seeds for system in self.systems)

    def __len__(self) -> int:
        return len(self.systems) * len(self.seeds)


def guarded_variant(variant: str) -> str:
    """How the variant of a system is called under the guard."""
    return f"{variant}+{GUARDED}" if variant else GUARDED


def guarded(system: System) -> System:
    """The system as it is reported under the guard."""
    return replace(system, variant=guarded_variant(system.variant), label=f"{system.label} + {GUARDED}", guarded=False)


def shown(systems: Iterable[System]) -> list[System]:
    """The systems, each followed by what the guard makes of it."""
    return [each for system in systems for each in ((system, guarded(system)) if system.guarded else (system,))]


def plan(config: Config) -> Plan:
    """Build every method once, so that a wrong option shows before anything is trained.

    LOCAL comes first, and is added where it is not listed, because a gain is a comparison with it.

    Raises
    ------
    CoterieError
        Unknown method or option, two entries that are the same, or two systems with one label.
    """
    entries = list(config.algorithms)
    listed = any(entry.name == REFERENCE for entry in entries)
    if not listed:
        entries.append(AlgorithmEntry(name=REFERENCE))
    methods = [_build(entry, position, settings(config.training_of(entry))) for position, entry in enumerate(entries)]
    variants = _distinct(entries, methods)
    systems = [
        System(
            algorithm=method.name,
            variant=variant,
            label=entry.label or (f"{method.name} ({variant})" if variant else method.name),
            method=method,
            training=settings(config.training_of(entry)),
            asked_for=listed or entry is not entries[-1],
            guarded=method.name != REFERENCE and (config.guard is not None if entry.guard is None else entry.guard),
        )
        for entry, method, variant in zip(entries, methods, variants, strict=True)
    ]
    _check_labels(systems)
    systems.sort(key=lambda system: system.algorithm != REFERENCE)
    return Plan(tuple(systems), tuple(config.seeds), systems[0])


def settings(training: TrainingConfig) -> TrainingSettings:
    """The configuration's section ``training`` as the engine takes it."""
    values = training.model_dump()
    schedule = values.pop("schedule")
    stated = {key: value for key, value in schedule.items() if value is not None and key != "rule"}
    return TrainingSettings.from_dict({**values, "schedule": {"kind": schedule["rule"], **stated}})


def _build(entry: AlgorithmEntry, position: int, training: TrainingSettings) -> Algorithm:
    try:
        method = make_algorithm(entry.name, entry.variant, **entry.options)
        method.check_training(training)
        return method
    except CoterieError as error:
        raise CoterieError(f"algorithms[{position}]: {error}") from error


def _check_labels(systems: list[System]) -> None:
    """Refuse what would stand twice under one label in tables and figures."""
    called: dict[str, str] = {}
    for system in shown(systems):
        name = " ".join(system.key).strip()
        if (other := called.setdefault(system.label, name)) != name:
            raise CoterieError(
                f"algorithms: {other} and {name} would both be called {system.label!r}, and results are told apart by "
                "that: give one of them another label."
            )


def _distinct(entries: list[AlgorithmEntry], methods: list[Algorithm]) -> list[str]:
    """A variant for each entry; entries of one method and variant are told apart by what they state.

    ``ditto`` twice, with lam 0.1 and 1, has the variants ``lam=0.1`` and ``lam=1``.
    """
    plain = [(method.name, getattr(method, "variant", None) or "") for method in methods]
    repeated = {key for key, count in Counter(plain).items() if count > 1}
    variants = []
    for entry, (name, variant) in zip(entries, plain, strict=True):
        stated = _stated(entry) if (name, variant) in repeated else ""
        variants.append(",".join(text for text in (variant, stated) if text))
    names = [name for name, _ in plain]
    twice = [key for key, count in Counter(zip(names, variants, strict=True)).items() if count > 1]
    if twice:
        first, second, *_ = (i for i, key in enumerate(zip(names, variants, strict=True)) if key == twice[0])
        raise CoterieError(
            f"algorithms[{first}] and algorithms[{second}] are the same ({' '.join(twice[0]).strip()}): "
            "remove one or change an option."
        )
    return variants


def _stated(entry: AlgorithmEntry) -> str:
    stated: dict[str, Any] = dict(entry.options)
    if entry.training is not None:
        stated |= entry.training.model_dump(exclude_unset=True)
    return ",".join(f"{key}={value}" for key, value in stated.items())
