"""Schedules, settings as plain values, and losses per example."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.training import (
    Schedule,
    TrainingSettings,
    absolute_error,
    cross_entropy,
    hits,
    objective_of,
    squared_error,
)
from coterie.training.losses import negative_log_probability


def test_schedules() -> None:
    assert [Schedule()(r, 4) for r in (1, 4)] == [1.0, 1.0]
    cosine = Schedule("cosine")
    assert [round(cosine(r, 4), 6) for r in (0, 1, 2, 3, 4)] == [1.0, 1.0, 0.853553, 0.5, 0.146447]
    steps = Schedule("step", milestones=(2, 3), factor=0.5)
    assert [steps(r, 5) for r in (0, 1, 2, 3, 4, 5)] == [1.0, 1.0, 1.0, 0.5, 0.25, 0.25]
    halves = Schedule("step", milestones=(0.5, 0.75), factor=0.1)
    assert [halves(r, 8) for r in (4, 5, 6, 7)] == pytest.approx([1.0, 0.1, 0.1, 0.01])
    decay = Schedule("exponential", factor=0.9)
    assert [decay(r, 5) for r in (0, 1, 2, 3)] == pytest.approx([1.0, 1.0, 0.9, 0.81])


def test_settings_from_plain_values() -> None:
    assert TrainingSettings.from_dict({}) == TrainingSettings()
    made = TrainingSettings.from_dict(
        {"lr": 0.5, "betas": [0.8, 0.9], "schedule": {"kind": "step", "milestones": [3, 0.5], "factor": 0.2}}
    )
    assert made == TrainingSettings(lr=0.5, betas=(0.8, 0.9), schedule=Schedule("step", (3, 0.5), 0.2))
    assert TrainingSettings.from_dict({"schedule": "cosine"}).schedule == Schedule("cosine")


def test_losses_per_example() -> None:
    draw = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 4, 3, generator=draw)
    targets = torch.randint(3, (2, 4), generator=draw)
    real = torch.randn(2, 4, 3, generator=draw)
    loss, error, absolute, right = (
        cross_entropy(outputs, targets), squared_error(outputs, real), absolute_error(outputs, real),
        hits(outputs, targets),
    )  # fmt: skip
    mixed = negative_log_probability(outputs.softmax(-1), targets)
    for row in range(2):
        for example in range(4):
            one, target = outputs[row, example], targets[row, example]
            assert float(loss[row, example]) == pytest.approx(float(nn.functional.cross_entropy(one, target)), abs=1e-6)
            assert float(mixed[row, example]) == pytest.approx(float(loss[row, example]), abs=1e-6)
            assert float(right[row, example]) == float(one.argmax() == target)
            difference = one - real[row, example]
            assert float(error[row, example]) == pytest.approx(float(difference.square().mean()), abs=1e-6)
            assert float(absolute[row, example]) == pytest.approx(float(difference.abs().mean()), abs=1e-6)
    single = torch.randn(2, 4, 1, generator=draw)
    flat = torch.randn(2, 4, generator=draw)
    torch.testing.assert_close(squared_error(single, flat), (single.squeeze(-1) - flat).square())


def test_impossible_predictions_stay_finite() -> None:
    certain = torch.tensor([[[1.0, 0.0]]])
    assert torch.isfinite(negative_log_probability(certain, torch.tensor([[1]]))).all()


def test_the_loss_of_a_task() -> None:
    assert objective_of("classification") is cross_entropy
    assert objective_of("regression") is squared_error
