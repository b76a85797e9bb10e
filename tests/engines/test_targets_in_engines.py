"""Standardised targets in every engine: training sees them standardised, whoever reads a metric does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_remote
import torch
from fake_ray import FakeRay
from posts import remote
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from test_shared import together
from test_shares import near, played, ray, shared

from coterie.engines import examples
from coterie.engines.examples import example_losses
from coterie.federation.data import ClientData, Normal
from coterie.federation.federation import SPLITS, Federation
from coterie.models import module_of
from toys import classified, names_of, run, saved, simulation

__all__ = ["ray"]  # the fixture

SIZES = (7, 4, 9, 5)
METRICS = ("r2", "rmse:0", "mae:1")
SETTINGS: dict[str, Any] = {"rounds": 2, "evaluate_every": 1, "keep_best": "best_val", "metrics": METRICS}
UNIT = Normal(torch.tensor([4e6, -2.0], dtype=torch.float64), torch.tensor([1e6, 0.25], dtype=torch.float64))


def federation(seed: int = 0, unit: Normal = UNIT) -> Federation:
    """Clients whose two targets are of a size far apart."""
    draw = torch.Generator().manual_seed(seed)

    def split() -> ClientData:
        inputs = torch.randn(sum(SIZES), 4, generator=draw)
        targets = inputs[:, :2] * 0.8 + torch.randn(sum(SIZES), 2, generator=draw) * 0.3
        offsets = torch.tensor([0, *SIZES]).cumsum(0)
        return ClientData(inputs, unit.undone(targets.double()).float(), offsets, target_normal=unit)

    return Federation(names_of(len(SIZES)), split(), split(), split(), "regression", 2)


def standardised_beforehand(given: Federation) -> Federation:
    """The same with targets that are standardised once and for all."""
    found = {}
    for split in SPLITS:
        data = given.split(split)
        _, targets = data.batch(torch.arange(data.total))
        found[split] = replace(data, targets=targets, target_normal=None)
    return replace(given, **found)


@pytest.mark.parametrize("name", ["fedora", "fedem"])
def test_training_is_that_on_standardised_targets_and_errors_are_in_the_unit_of_the_data(name: str) -> None:
    ours, theirs = (simulation(f, name, **SETTINGS) for f in (federation(), standardised_beforehand(federation())))
    found, expected = played(ours), played(theirs)
    std = UNIT.std.numpy()
    for mine, other in zip(found, expected, strict=True):
        for split, metrics in mine.evaluations.items():
            for metric, scale in (("rmse:0", std[0]), ("mae:1", std[1]), ("r2", 1.0)):
                np.testing.assert_allclose(metrics[metric], other.evaluations[split][metric] * scale, rtol=1e-5)
    near(saved(ours)["server"], saved(theirs)["server"], 0.0)


def test_metrics_and_losses_of_single_examples_are_those_of_predicted_values() -> None:
    given = federation()
    sim = simulation(given, "local", **{**SETTINGS, "keep_best": "last"})
    values = played(sim)[-1].evaluations["test"]
    losses = example_losses(sim.stack, sim.report_predictor(), given.test, "regression", 2)
    for row in range(sim.K):
        own = slice(int(given.test.offsets[row]), int(given.test.offsets[row + 1]))
        truth = given.test.targets[own].double().numpy()
        with torch.no_grad():
            y = UNIT.undone(module_of(sim.stack, sim.report_models(), row).eval()(given.test.inputs[own].double()))
        expected = {
            "mse": mean_squared_error(truth, y),
            "mae": mean_absolute_error(truth, y),
            "mae:1": mean_absolute_error(truth[:, 1], y[:, 1]),
            "rmse:0": mean_squared_error(truth[:, 0], y[:, 0]) ** 0.5,
            "r2": r2_score(truth, y),
        }
        for metric, value in expected.items():
            np.testing.assert_allclose(values[metric][row], value, rtol=1e-6, err_msg=metric)
        np.testing.assert_allclose(losses["squared"][own].mean(), expected["mse"], rtol=1e-6)
        np.testing.assert_allclose(losses["absolute"][own].mean(), expected["mae"], rtol=1e-6)
        np.testing.assert_allclose(losses["absolute:1"][own].mean(), expected["mae:1"], rtol=1e-6)
        np.testing.assert_allclose(losses["squared:0"][own].mean(), expected["rmse:0"] ** 2, rtol=1e-6)


@pytest.mark.parametrize("name", ["fedavg", pytest.param("fedem", marks=pytest.mark.full)])
def test_all_engines_agree(name: str, ray: FakeRay, tmp_path: Path) -> None:
    given = federation()
    plain = simulation(given, name, **SETTINGS)
    expected = played(plain)
    for other in (simulation(given, name, executor="loop", **SETTINGS), shared(given, name, **SETTINGS)):
        close(played(other), expected)
        near(other.report_models().flat(), plain.report_models().flat())
    sites = remote(given, name, folder=tmp_path, **SETTINGS)
    close(test_remote.played(sites), expected)
    wide = Normal(UNIT.mean * 2, UNIT.std * 3)  # each run of a stack has statistics of its own
    alone = {0: simulation(given, name, **SETTINGS), 1: simulation(federation(1, wide), name, seed=1, **SETTINGS)}
    joint = {0: simulation(given, name, **SETTINGS), 1: simulation(federation(1, wide), name, seed=1, **SETTINGS)}
    apart = {seed: played(sim) for seed, sim in alone.items()}
    found, stack = together(joint)
    assert stack.served["together"] > 0
    for seed in (0, 1):
        close(found[seed], apart[seed])


def close(reports: Any, expected: Any) -> None:
    """Equal metrics, each relative to its own size."""
    for mine, other in zip(reports, expected, strict=True):
        assert mine.evaluations.keys() == other.evaluations.keys()
        for split, metrics in other.evaluations.items():
            for metric, values in metrics.items():
                np.testing.assert_allclose(mine.evaluations[split][metric], values, rtol=1e-7, err_msg=metric)


@pytest.mark.parametrize("name", ["local", "fedem", "fedavg"])
def test_losses_do_not_depend_on_how_many_clients_are_measured_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = simulation(classified((7, 4, 9, 5)), name)
    run(sim)
    whole = sim.report_losses(sim.report_predictor())
    monkeypatch.setattr(examples, "AT_A_TIME", 1)
    for loss, values in sim.report_losses(sim.report_predictor()).items():
        np.testing.assert_allclose(values, whole[loss], rtol=0, atol=1e-12)
