"""Measuring what clients predict with, one model each or a mixture of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from coterie.contract import Predictor
from coterie.evaluation.further import further as further_of
from coterie.evaluation.tables import Task
from coterie.federation.data import ClientData
from coterie.models import Models, Stack
from coterie.training import absolute_error, cross_entropy, hits, in_units, means, squared_error
from coterie.training.losses import Objective, negative_log_probability

_WEIGHTS = "mixture weights"


class _MixtureStack(Stack):
    """Runs the candidates of each client and averages what they predict."""

    def __init__(self, stack: Stack, combine: str) -> None:
        self._inner, self._combine = stack, combine

    def entries(self, rows: int) -> int:
        """One candidate is computed after the other."""
        return self._inner.entries(rows)

    def forward(self, tensors: Mapping[str, Tensor], inputs: Tensor, **options: Any) -> Tensor:
        """The weighted mean of the candidates' predictions, ``(k, B, C)``."""
        weights = tensors[_WEIGHTS]
        total: Tensor | float = 0.0
        for candidate in range(weights.shape[1]):
            own = {name: tensor[:, candidate] for name, tensor in tensors.items() if name != _WEIGHTS}
            outputs = self._inner.forward(own, inputs)
            if self._combine == "probabilities":
                outputs = outputs.softmax(-1)
            share = weights[:, candidate].to(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1))
            # a candidate without weight has no say, even where it has diverged and predicts NaN
            total = total + torch.where(share == 0, 0.0, share * outputs)
        assert isinstance(total, Tensor)
        return total


def measure(
    stack: Stack, predictor: Predictor, data: ClientData, task: str, further: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Each client's loss and accuracy, or mean squared and absolute error: ``(k,)`` float64 by metric.

    Errors are in the unit that the targets came in.

    ``further`` names more metrics, which are computed from what is predicted for each example; a mixture's are those
    of the mixture. They are NaN where a client's data do not define them.
    """
    classification = task == "classification"
    models, stack, probabilities = as_stack(stack, predictor, classification)
    loss: Objective = cross_entropy if classification else squared_error
    if probabilities:
        loss = negative_log_probability
    statistics = {"loss": loss, "accuracy": hits}
    if not classification:
        unit = data.target_normal
        statistics = {"mse": in_units(loss, unit), "mae": in_units(absolute_error, unit)}
    if not further:
        return means(stack, models, data, statistics)
    seen = _Seen(data, probabilities=classification, already=loss is negative_log_probability)
    found = means(stack, models, data, statistics, seen.take)
    return found | seen.measured(further, task)


class _Seen:
    """What was predicted for each example of some clients, ``probabilities`` of classes or values of targets."""

    def __init__(self, data: ClientData, *, probabilities: bool, already: bool) -> None:
        self._data, self._classes, self._outputs = data, 0, torch.zeros(0, 0, dtype=torch.float64)
        self._softmax = probabilities and not already  # in double precision: single precision would make ties

    def take(self, places: Tensor, outputs: Tensor) -> None:
        """Keep the outputs ``(m, C)`` of the examples at ``places: (m,)``."""
        if not self._classes:
            self._classes = outputs.shape[-1]
            self._outputs = torch.full((self._data.total, self._classes), torch.nan, dtype=torch.float64)
        values = outputs.double()
        if self._data.target_normal is not None:
            values = self._data.target_normal.undone(values)
        self._outputs[places.cpu()] = (values.softmax(-1) if self._softmax else values).cpu()

    def measured(self, names: Sequence[str], task: str) -> dict[str, Tensor]:
        """Metrics by name, ``(k,)`` each."""
        data, k = self._data, self._data.k
        if not self._classes:
            return {name: torch.full((k,), torch.nan, dtype=torch.float64) for name in names}
        positions = torch.arange(data.total, device=data.offsets.device) + data.offsets[0]
        targets = data.targets[data.rows(positions)].cpu().numpy()
        values = further_of(
            names, cast(Task, task), self._classes, self._outputs.numpy(), targets, data.owners().cpu().numpy(), k,
            data.own_weights,
        )  # fmt: skip
        return {name: torch.from_numpy(value) for name, value in values.items()}


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
