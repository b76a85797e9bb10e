"""What training takes, roughly: for the decisions of how to divide it among processes."""

from __future__ import annotations

import math
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coterie.models.factory import build_model

if TYPE_CHECKING:
    from coterie.experiment.experiment import Experiment

STEP_SECONDS, OPERATIONS_A_SECOND = 2e-4, 1e10
"""A core's time for one step's calls, and its speed."""


def work(experiment: Experiment, jobs: int, seeds: int = 1) -> float:
    """About how many seconds one core would train ``jobs`` jobs, each of ``seeds`` that share a stack."""
    config, federation = experiment.config, experiment.federation(experiment.config.seeds[0])
    settings, n = config.training, federation.train.n
    steps = settings.epochs * math.ceil(int(n.max()) / settings.batch_size)
    operations = example_operations(experiment) * settings.epochs * int(n.sum())
    return jobs * config.rounds * (steps * STEP_SECONDS + seeds * operations / OPERATIONS_A_SECOND)


def step_operations(experiment: Experiment) -> float:
    """About how many floating-point operations one training step of all clients takes."""
    federation = experiment.federation(experiment.config.seeds[0])
    batch = federation.train.n.clamp(max=experiment.config.training.batch_size)
    return example_operations(experiment) * int(batch.sum())


def example_operations(experiment: Experiment) -> float:
    """Floating-point operations of one example's way through a model and back: three times those of the way there.

    Counted on two examples, since a convolution uses each of its weights many times; at least two for each parameter
    on the way there, where operations are of a kind that is not counted.
    """
    shape, model = experiment.federation(experiment.config.seeds[0]).feature_shape, _model(experiment)
    counter = FlopCounterMode(display=False)
    # a model that fails says so where it is used, not here
    with suppress(Exception), torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        model(torch.zeros(2, *shape))
    return 3.0 * max(float(counter.get_total_flops()) / 2, 2.0 * _numbers(model))


def parameters(experiment: Experiment) -> int:
    """Numbers in one client's model."""
    return _numbers(_model(experiment))


def _numbers(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _model(experiment: Experiment) -> nn.Module:
    federation, model = experiment.federation(experiment.config.seeds[0]), experiment.model
    built = build_model(model.name, federation.feature_shape, federation.classes, federation.task, **model.options)
    return deepcopy(built).eval()  # a factory may hand out one module again and again
