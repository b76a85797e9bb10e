"""One setting of one method, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ENDLESS = {".inf": math.inf, "-.inf": -math.inf, ".nan": math.nan}
"""Numbers that JSON does not know, by the text that YAML has for them."""


@dataclass
class Trial:
    """One setting of one method.

    Attributes
    ----------
    method : str
        Name or label of the method.
    values : dict
        The setting.
    scores : dict
        By seed, the mean over clients of the validation metric at the best round, larger is better (an error is
        negative).
    rounds : dict
        By seed, that round.
    seconds : float
        Time spent.
    reason : str
        Why it failed; empty where it did not.
    """

    method: str
    values: dict[str, Any]
    scores: dict[int, float] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    reason: str = ""

    def finished(self, seeds: list[int]) -> bool:
        """Whether nothing is left to do."""
        return bool(self.reason) or all(seed in self.scores for seed in seeds)

    @property
    def score(self) -> float | None:
        """Mean over the seeds; None where the trial failed."""
        return None if self.reason or not self.scores else float(np.mean(list(self.scores.values())))

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for one seed, or where the trial failed."""
        return None if self.reason or len(self.scores) < 2 else float(np.std(list(self.scores.values()), ddof=1))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a file, which JSON can hold."""
        return {
            "method": self.method,
            "values": written(self.values),
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "rounds": {str(seed): round for seed, round in self.rounds.items()},
            "seconds": self.seconds,
            "reason": self.reason,
        }

    def take(self, content: Mapping[str, Any]) -> None:
        """Come to what `as_dict` described."""
        reached = Trial.of(content)
        self.scores, self.rounds = reached.scores, reached.rounds
        self.seconds, self.reason = reached.seconds, reached.reason

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Trial:
        """The trial that `as_dict` described."""
        values: Mapping[str, Any] = content["values"]
        return cls(
            str(content["method"]),
            {key: ENDLESS.get(value, value) if isinstance(value, str) else value for key, value in values.items()},
            {int(seed): float(score) for seed, score in content["scores"].items()},
            {int(seed): int(round) for seed, round in content["rounds"].items()},
            float(content["seconds"]),
            str(content["reason"]),
        )


def written(values: Mapping[str, Any]) -> dict[str, Any]:
    """A setting, with infinities as text, which JSON can hold."""
    return {key: _written(value) for key, value in values.items()}


def _written(value: Any) -> Any:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
