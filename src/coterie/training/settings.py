"""What a client does locally, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import cos, pi
from typing import Any, Literal

ProxPlace = Literal["gradient", "after_momentum", "after_step"]


@dataclass(frozen=True)
class Schedule:
    """The learning rate over rounds: a factor on ``lr``.

    ``constant``; ``cosine`` to zero over all rounds; ``step``: times ``factor`` at each of ``milestones``
    (rounds, from 1, or fractions of all rounds below 1); ``exponential``: times ``factor`` each round.
    """

    kind: Literal["constant", "cosine", "step", "exponential"] = "constant"
    milestones: tuple[float, ...] = ()
    factor: float = 0.1

    def __call__(self, round: int, rounds: int) -> float:
        """The factor in round ``round`` of ``rounds``."""
        past = max(round - 1, 0)  # round 0 is the evaluation before the first
        if self.kind == "cosine":
            return 0.5 * (1.0 + cos(pi * min(past, rounds) / max(rounds, 1)))
        if self.kind == "exponential":
            return float(self.factor**past)
        if self.kind == "step":
            marks = [mark * rounds if mark < 1 else mark for mark in self.milestones]
            return float(self.factor ** sum(round > mark for mark in marks))
        return 1.0


@dataclass(frozen=True)
class TrainingSettings:
    """Local training: epochs of mini-batches with an optimiser.

    Its state starts afresh each round, or goes on where the client's last training ended (``persistent``).
    """

    epochs: int = 5
    batch_size: int = 64
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    drop_last: bool = False
    optimizer_state: Literal["fresh", "persistent"] = "fresh"
    schedule: Schedule = field(default_factory=Schedule)

    @property
    def running_means(self) -> tuple[str, ...]:
        """What the optimiser keeps of each parameter: SGD's momentum, or Adam's mean and square of gradients."""
        if self.optimizer == "adam":
            return ("mean", "square")
        return ("momentum",) if self.momentum else ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingSettings:
        """From plain values; ``schedule`` may be a name or a mapping."""
        values = dict(values)
        schedule = values.get("schedule")
        if isinstance(schedule, str):
            values["schedule"] = Schedule(schedule)  # type: ignore[arg-type]
        elif isinstance(schedule, Mapping):
            given = dict(schedule)
            given["milestones"] = tuple(given.get("milestones", ()))
            values["schedule"] = Schedule(**given)
        if "betas" in values:
            values["betas"] = tuple(values["betas"])
        return cls(**values)
