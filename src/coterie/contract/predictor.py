"""What a client predicts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
