"""How a run goes, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.models.precision import Precision
from coterie.models.rows import Buffers
from coterie.models.stack import Executor
from coterie.privacy import Policy
from coterie.training import TrainingSettings
from coterie.training.keys import generator

Report = Literal["best_val", "last", "best_test"]


@dataclass(frozen=True)
class Participation:
    """Who takes part in a round: ``all``; ``uniform``, m of K without replacement; or each with a probability.

    m is ``clients``, or max(1, floor(fraction * K)).
    """

    rule: Literal["all", "uniform", "bernoulli"] = "all"
    fraction: float = 1.0
    clients: int | None = None

    def cohort(self, seed: int, round: int, K: int) -> Tensor:
        """The clients of a round in ascending order, ``(m,)`` int64; it depends on seed and round only."""
        draw = generator(seed, round, "cohort")
        if self.rule == "all":
            chosen = np.arange(K)
        elif self.rule == "bernoulli":
            chosen = np.flatnonzero(draw.random(K) < self.fraction)
        else:
            # a product such as 0.29 * 100 lies a hair below its whole number
            m = self.clients if self.clients is not None else max(1, int(self.fraction * K + 1e-9))
            chosen = np.sort(draw.choice(K, size=min(m, K), replace=False))
        return torch.from_numpy(chosen.astype(np.int64))


@dataclass(frozen=True)
class Settings:
    """Everything about a run that is neither the federation, the model nor the algorithm.

    ``client_memory`` is in GB: the clients' state beyond it lies in temporary files. ``keep_models`` keeps a copy of
    the models of the best round. ``privacy`` clips and noises what clients send. ``metrics`` are measured beside loss
    and accuracy (or mean squared and absolute error); ``metric``, by default the task's own, chooses the round.
    ``precision`` is that of the products behind gradients.
    """

    rounds: int = 100
    participation: Participation = field(default_factory=Participation)
    evaluate_every: int = 10
    training: TrainingSettings = field(default_factory=TrainingSettings)
    seed: int = 0
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "full"
    chunk: int | None = None
    executor: Executor | Literal["fastest"] = "auto"
    threads: int | None = None
    workers: int | None = None
    client_memory: float | None = None
    buffers: Buffers = "average"
    absent: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    keep_best: Report = "best_val"
    unlabelled_newcomers: bool = False
    keep_models: bool = True
    privacy: Policy | None = None
    metrics: tuple[str, ...] | Literal["auto"] = "auto"
    metric: str | None = None
