"""How well clients predict single examples: what tells whether one of two models is really better."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.contract import Predictor
from coterie.engines.predict import as_stack
from coterie.federation.data import ClientData
from coterie.models import Stack
from coterie.training import absolute_error, hits, in_units, squared_error
from coterie.training.measure import Statistic, per_example

AT_A_TIME = 128 * 2**20
"""Bytes of the models that are measured at a time."""


def _error(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1.0 - hits(outputs, targets)


def _brier_of_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    return _brier(outputs.softmax(-1), targets)


def _brier(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Squared distance to the truth: ``(k, B, C), (k, B) -> (k, B)``, from 0 to 2 (Brier 1950)."""
    truth = torch.nn.functional.one_hot(targets, probabilities.shape[-1])
    return (probabilities - truth).square().sum(-1)


def _score_of_logits(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.double().softmax(-1)[..., 1]  # single precision would make ties


def _score(probabilities: Tensor, targets: Tensor) -> Tensor:
    return probabilities[..., 1]


def _target(outputs: Tensor, targets: Tensor) -> Tensor:
    return targets


def _of_target(error: Statistic, target: int) -> Statistic:
    def of_one(outputs: Tensor, targets: Tensor) -> Tensor:
        one = slice(target, target + 1)
        return error(outputs[..., one], targets.reshape(outputs.shape)[..., one])

    return of_one


def example_losses(stack: Stack, predictor: Predictor, data: ClientData, task: str, classes: int) -> dict[str, Tensor]:
    """Losses of every example by name, ``(n,)`` float64 each, flat over the clients of ``data``.

    A class is right or wrong (``error``), and its probability near the truth or far from it (``brier``); a number is
    off by some ``absolute`` or ``squared`` difference, the mean over several, or ``absolute:0`` of a single one. Of two
    classes there are the probability of the second (``score``) and which it is (``target``) as well, since an AUROC is
    made of pairs of examples.

    The predictor may lie elsewhere, in files even: few enough clients' models for memory are taken at a time.
    """
    size = max(1, predictor.candidates * predictor.models.bytes_per_row()[0])
    at_a_time = max(1, AT_A_TIME // size)
    parts = []
    for first in range(0, max(1, data.k), at_a_time):
        own = data.select(list(range(first, min(first + at_a_time, data.k))))
        few = predictor.part(slice(first, first + at_a_time), stack.device)
        parts.append(_losses_of(stack, few, own, task, classes))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _losses_of(stack: Stack, predictor: Predictor, data: ClientData, task: str, classes: int) -> dict[str, Tensor]:
    classification = task == "classification"
    models, runs, probabilities = as_stack(stack, predictor, classification)
    statistics: dict[str, Statistic]
    if classification:
        statistics = {"error": _error, "brier": _brier if probabilities else _brier_of_logits}
        if classes == 2:
            statistics |= {"score": _score if probabilities else _score_of_logits, "target": _target}
    else:
        unit = data.target_normal
        errors: dict[str, Statistic] = {"absolute": absolute_error, "squared": squared_error}
        statistics = {name: in_units(error, unit) for name, error in errors.items()}
        if classes > 1:
            statistics |= {
                f"{name}:{target}": in_units(_of_target(error, target), unit)
                for name, error in errors.items()
                for target in range(classes)
            }
    return {name: per_example(runs, models, data, statistic) for name, statistic in statistics.items()}
