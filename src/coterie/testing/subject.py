"""The method under test, and how its toy runs are made and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, build_algorithm, make_algorithm
from coterie.engines import RoundReport, Settings, Simulation
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.testing.toys import MLP
from coterie.training import TrainingSettings

MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9, weight_decay=1e-3)
BATCHES = TrainingSettings(epochs=2, batch_size=3, lr=0.1)
FULL_BATCH = TrainingSettings(epochs=1, batch_size=1000, lr=0.1)


class Broken(Exception):
    """An identity does not hold.

    Parameters
    ----------
    expected, got : str
        What should be, and what is.
    hint : str
        Where to look.
    """

    def __init__(self, expected: str, got: str, hint: str = "") -> None:
        super().__init__(got)
        self.expected, self.got, self.hint = expected, got, hint


@dataclass(frozen=True)
class Subject:
    """One method, or one variant of it, with what it claims."""

    cls: type[Algorithm]
    variant: str | None = None
    base: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        name = self.cls.name or self.cls.__name__
        return f"{name} ({self.variant})" if self.variant else name

    @property
    def claims(self) -> Claims:
        """What it claims about itself."""
        return self.cls.claims_of(self.variant)

    def make(self, *options: Mapping[str, Any]) -> Algorithm:
        """The method with the options of its toy runs and then the given ones."""
        return self.bare(self.claims.toy, *options)

    def bare(self, *options: Mapping[str, Any]) -> Algorithm:
        """The method with its defaults and the given options."""
        stated: dict[str, Any] = {}
        for group in (self.base, *options):
            stated |= {option.rstrip("_"): value for option, value in group.items()}
        variant = stated.pop("variant", self.variant)
        return build_algorithm(self.cls, self.cls.name or self.cls.__name__, variant, stated)

    def training(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings of local training, without momentum where the method cannot have any."""
        return replace(settings, momentum=0.0, weight_decay=0.0) if self.cls.plain_sgd else settings

    def simulation(
        self,
        federation: Federation,
        *options: Mapping[str, Any],
        model: ModelSpec = MLP,
        engine: type[Simulation] = Simulation,
        **settings: Any,
    ) -> Simulation:
        """A toy run of the method, ready to start."""
        settings["training"] = self.training(settings.get("training", MOMENTUM))
        return simulation(federation, self.make(*options), model, engine, **settings)

    def other(self, federation: Federation, name: str, options: Mapping[str, Any], **settings: Any) -> Simulation:
        """The same toy run of another method."""
        settings["training"] = self.training(settings.get("training", MOMENTUM))
        return simulation(federation, make_algorithm(name, **options), MLP, Simulation, **settings)


def simulation(
    federation: Federation, algorithm: Algorithm, model: ModelSpec, engine: type[Simulation], **settings: Any
) -> Simulation:
    """A simulation in float64 on one thread, unless ``settings`` say otherwise."""
    defaults: dict[str, Any] = {
        "rounds": 3, "evaluate_every": 1000, "dtype": "float64", "threads": 1, "keep_best": "last",
    }  # fmt: skip
    return engine(federation, algorithm, model, Settings(**{**defaults, **settings}))


def run(sim: Simulation, rounds: int | None = None) -> list[RoundReport]:
    """All remaining rounds, or so many."""
    reports: list[RoundReport] = []
    while not sim.finished and (rounds is None or len(reports) < rounds):
        reports.append(sim.advance())
    return reports


def predicted(sim: Simulation) -> Tensor:
    """What every client predicts with in the reported round, models and weights of mixtures: ``(K, numbers)``."""
    predictor = sim.report_predictor()
    flat = predictor.models.flat()
    if predictor.weights is not None and predictor.weights.shape[1] > 1:
        flat = torch.cat([flat, predictor.weights.to(flat)], dim=1)
    return flat


def played(
    subject: Subject, federation: Federation, *options: Mapping[str, Any], **settings: Any
) -> tuple[Simulation, list[RoundReport]]:
    """A toy run from beginning to end."""
    sim = subject.simulation(federation, *options, **settings)
    return sim, run(sim)


def models_of(sim: Simulation) -> dict[str, Models]:
    """Every stack of models that the server or the clients hold as state, by name."""
    held = {f"server.{name}": value for name, value in _leaves(sim.server_state)}
    for leaf, column in sim.bank.columns.items():
        held[f"site.{leaf}"] = column.rows
    return {name: value for name, value in held.items() if isinstance(value, Models)}


def _leaves(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += (
            _leaves({f"{name}.{key}": v for key, v in value.items()}) if isinstance(value, dict) else [(name, value)]
        )
    return found


def furthest(ours: Tensor, theirs: Tensor, names: tuple[str, ...]) -> tuple[float, str]:
    """The largest difference between ``(K, numbers)`` tables and the client where it is; NaN counts as infinite."""
    off = (ours - theirs).abs().nan_to_num(torch.inf).max(dim=1).values
    row = int(off.argmax())
    return float(off[row]), names[row] if len(names) == len(off) else f"row {row}"


def require_equal(
    ours: Tensor, theirs: Tensor, names: tuple[str, ...], expected: str, hint: str, tolerance: float = 1e-10
) -> None:
    """Raise `Broken` where two tables ``(K, numbers)`` differ by more than the tolerance."""
    if ours.shape != theirs.shape:
        raise Broken(expected, f"tables of {tuple(ours.shape)} and {tuple(theirs.shape)} numbers", hint)
    off, who = furthest(ours, theirs, names)
    if off > tolerance:
        raise Broken(expected, f"they differ by up to {off:.3g}, most at {who}", hint)


Check = Callable[[Subject], None]
