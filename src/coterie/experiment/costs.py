"""What training takes, roughly: for the decisions of how to divide it among processes."""

from __future__ import annotations

import math
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
    shape = experiment.federation(experiment.config.seeds[0]).feature_shape
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        _model(experiment).eval()(torch.zeros(2, *shape))
    counted = float(counter.get_total_flops()) / 2
    return 3.0 * max(counted, 2.0 * parameters(experiment))


def parameters(experiment: Experiment) -> int:
    """Numbers in one client's model."""
    return sum(parameter.numel() for parameter in _model(experiment).parameters())


def _model(experiment: Experiment) -> nn.Module:
    federation, model = experiment.federation(experiment.config.seeds[0]), experiment.model
    return build_model(model.name, federation.feature_shape, federation.classes, federation.task, **model.options)
