"""What a client predicts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.models import Models


@dataclass(frozen=True)
class Predictor:
    """One model per client, or a weighted mixture of several.

    ``models: (k,)`` rows, or ``(k, c)`` candidates with ``weights: (k, c)``; the mixture averages ``probabilities``
    (classification) or ``outputs`` (regression, and heads whose logits add up).
    """

    models: Models
    weights: Tensor | None = None
    combine: Literal["probabilities", "outputs"] = "probabilities"

    @property
    def single(self) -> bool:
        """Whether each client predicts with one model."""
        return len(self.models.lead) == 1

    @property
    def candidates(self) -> int:
        """How many models each client predicts with."""
        return 1 if self.single else int(self.models.lead[1])

    def part(self, rows: slice, device: torch.device | str) -> Predictor:
        """Those of some clients, on a device."""
        weights = None if self.weights is None else self.weights[rows].to(device)
        return Predictor(self.models[rows].to(device), weights, self.combine)

    def widened(self, candidates: int) -> Predictor:
        """The same mixtures with so many candidates, of which those that are too many have no weight."""
        if self.single or self.weights is None or self.candidates >= candidates:
            return self
        index = torch.arange(candidates).where(torch.arange(candidates) < self.candidates, 0)
        lacking = self.weights.new_zeros(len(self.weights), candidates - self.candidates)
        models = self.models.chosen(index.expand(len(self.weights), -1))
        return Predictor(models, torch.cat([self.weights, lacking], dim=1), self.combine)
