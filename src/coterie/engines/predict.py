"""Measuring what clients predict with, one model each or a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Predictor
from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.training import absolute_error, cross_entropy, hits, means, squared_error
from coterie.training.losses import Objective, negative_log_probability

_WEIGHTS = "mixture weights"


class _MixtureStack(Stack):
    """Runs the candidates of each client and averages what they predict."""

    def __init__(self, stack: Stack, combine: str) -> None:
        self._inner, self._combine = stack, combine

    def forward(self, tensors: Mapping[str, Tensor], inputs: Tensor, **options: Any) -> Tensor:
        """The weighted mean of the candidates' predictions, ``(k, B, C)``."""
        weights = tensors[_WEIGHTS]
        total: Tensor | float = 0.0
        for candidate in range(weights.shape[1]):
            own = {name: tensor[:, candidate] for name, tensor in tensors.items() if name != _WEIGHTS}
            outputs = self._inner.forward(own, inputs)
            if self._combine == "probabilities":
                outputs = outputs.softmax(-1)
            shape = (-1, *[1] * (outputs.ndim - 1))
            total = total + weights[:, candidate].to(outputs.dtype).reshape(shape) * outputs
        assert isinstance(total, Tensor)
        return total


def measure(stack: Stack, predictor: Predictor, data: ClientData, task: str) -> dict[str, Tensor]:
    """Each client's loss and accuracy, or mean squared and absolute error: ``(k,)`` float64 by metric."""
    classification = task == "classification"
    models, stack, probabilities = as_stack(stack, predictor, classification)
    loss: Objective = cross_entropy if classification else squared_error
    if probabilities:
        loss = negative_log_probability
    statistics = {"loss": loss, "accuracy": hits} if classification else {"mse": loss, "mae": absolute_error}
    return means(stack, models, data, statistics)


def as_stack(stack: Stack, predictor: Predictor, classification: bool) -> tuple[Models, Stack, bool]:
    """The rows ``(k,)`` that a predictor stands for, what runs them, and whether that gives probabilities."""
    if predictor.single:
        return predictor.models, stack, False
    combine = predictor.combine if classification else "outputs"
    return _with_weights(predictor), _MixtureStack(stack, combine), combine == "probabilities"


def _with_weights(predictor: Predictor) -> Models:
    models = predictor.models
    weights = predictor.weights
    if weights is None:
        count = models.lead[1]
        weights = torch.full(tuple(models.lead), 1.0 / count, dtype=torch.float64, device=models.device)
    layout = replace(models.layout, shapes={**models.layout.shapes, _WEIGHTS: torch.Size(weights.shape[1:])})
    return Models(layout, {**models.tensors, _WEIGHTS: weights})
