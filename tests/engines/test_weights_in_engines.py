"""Weights of examples in every engine: ones are none, and all engines take them alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_remote
import test_shares
import torch
from fake_ray import FakeRay
from posts import remote
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score
from test_shared import together
from test_shares import near, ray, shared

from coterie.contract import available_algorithms
from coterie.engines import RoundReport
from coterie.federation.federation import SPLITS, Federation
from coterie.models import module_of
from toys import classified, simulation

__all__ = ["ray"]  # the fixture

METHODS = ("fedavg", "fedem", "scaffold", "fedfomo")
OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in available_algorithms() if name not in METHODS]


def weighed(federation: Federation, weight: float | None = None) -> Federation:
    """The federation with random weights of mean 1 over a client's training examples, or all the same."""
    draw, found = torch.Generator().manual_seed(3), {}
    for split in SPLITS:
        data = federation.split(split)
        weights = torch.rand(data.total, generator=draw, dtype=torch.float64) + 0.1
        weights *= (data.n.double() / replace(data, weights=weights).sizes)[data.owners()]
        found[split] = replace(data, weights=weights if weight is None else torch.full_like(weights, weight))
    return replace(federation, **found)


FEDERATION = classified((7, 4, 9, 5), classes=2)
WEIGHED = weighed(FEDERATION)
SETTINGS: dict[str, Any] = {"rounds": 2, "evaluate_every": 1, "keep_best": "best_val", "metrics": ("auroc",)}


def told(reports: list[RoundReport]) -> Any:
    return [{s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in r.evaluations.items()} for r in reports]


@pytest.mark.parametrize("name", [*METHODS, *OTHERS])
def test_weights_of_one_are_none_and_others_are_felt(name: str) -> None:
    settings: dict[str, Any] = {"rounds": 1, "evaluate_every": 1, "keep_best": "last"}
    plain, ones, own = (simulation(of, name, **settings) for of in (FEDERATION, weighed(FEDERATION, 1.0), WEIGHED))
    near(told(test_shares.played(plain)), told(test_shares.played(ones)), 0.0)
    assert torch.equal(plain.report_models().flat(), ones.report_models().flat())
    test_shares.played(own)
    assert not torch.equal(plain.report_models().flat(), own.report_models().flat())


def test_metrics_are_those_of_weighted_examples() -> None:
    sim = simulation(WEIGHED, "local", **SETTINGS)
    reports = test_shares.played(sim)
    for row in range(sim.K):
        inputs, y = WEIGHED.test.client(row)
        own = WEIGHED.test.select([row]).own_weights
        module = module_of(sim.stack, sim.report_models(), row).eval()
        with torch.no_grad():
            p = module(inputs.double()).softmax(1).numpy()
        values = reports[sim.report_round].evaluations["test"]
        expected = {
            "accuracy": accuracy_score(y, p.argmax(1), sample_weight=own),
            "loss": log_loss(y, p, sample_weight=own, labels=[0, 1]),
            "auroc": roc_auc_score(y, p[:, 1], sample_weight=own),
        }
        for metric, value in expected.items():
            np.testing.assert_allclose(values[metric][row], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["fedem", pytest.param("scaffold", marks=pytest.mark.full)])
def test_all_engines_agree(name: str, ray: FakeRay, tmp_path: Path) -> None:
    plain = simulation(WEIGHED, name, **SETTINGS)
    expected = test_shares.played(plain)
    for executor in ("loop", "vmap"):
        other = simulation(WEIGHED, name, executor=executor, **SETTINGS)
        near(told(test_shares.played(other)), told(expected))
        near(other.report_models().flat(), plain.report_models().flat())
    actors = shared(WEIGHED, name, **SETTINGS)
    test_shares.check_equal(actors, plain, test_shares.played(actors), expected)
    sites = remote(WEIGHED, name, folder=tmp_path, **SETTINGS)
    test_remote.check_equal(sites, plain, test_remote.played(sites), expected)
    joint = {seed: simulation(WEIGHED, name, seed=seed, **SETTINGS) for seed in (0, 1)}
    found, stack = together(joint)
    assert stack.served["together"] > 0
    near(told(found[0]), told(expected), 1e-8)
