"""Further metrics in an engine: of mixtures, in chunks, of shared rows and of seeds in one stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from posts import remote
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score
from test_shared import together

from coterie.contract import Predictor
from coterie.engines import predict
from coterie.engines.predict import measure
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import module_of
from coterie.models.factory import build_model
from coterie.models.stack import Stack
from toys import run, simulation

NAMES = ("auroc", "auprc", "brier")
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


def federation(counts: tuple[int, ...] = (9, 14, 6), classes: int = 2) -> Federation:
    """Clients of several sizes; the last one's labels are all 1."""
    generator = torch.Generator().manual_seed(0)

    def split() -> ClientData:
        inputs = [torch.randn(n, 4, generator=generator) for n in counts]
        targets = [torch.arange(n) % classes for n in counts]
        targets[-1] = torch.ones_like(targets[-1])
        return ClientData.from_clients(inputs, targets)

    names = tuple(f"client-{i}" for i in range(len(counts)))
    return Federation(names, split(), split(), split(), "classification", classes)


@pytest.mark.parametrize("combine", ["probabilities", "outputs"])
def test_a_mixture_is_measured_by_what_it_predicts(combine: Any) -> None:
    sim = simulation(federation(), "local")
    data = sim.federation.test
    candidates = [sim.stack.initial(seed, 3, distinct=True) for seed in (1, 2)]
    tensors = {name: torch.stack([c.tensors[name] for c in candidates], dim=1) for name in candidates[0].tensors}
    weights = torch.tensor([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    found = measure(
        sim.stack, Predictor(type(candidates[0])(candidates[0].layout, tensors), weights, combine),
        data, "classification", NAMES,
    )  # fmt: skip
    for client in range(2):
        x, y = data.client(client)
        outputs = [module_of(sim.stack, c, client)(x.double()).detach() for c in candidates]
        if combine == "probabilities":
            outputs = [each.softmax(1) for each in outputs]
        mixed = sum(w * each for w, each in zip(weights[client], outputs, strict=True))
        p = (mixed if combine == "probabilities" else mixed.softmax(1))[:, 1].numpy()
        expected = [roc_auc_score(y, p), average_precision_score(y, p), brier_score_loss(y, p)]
        np.testing.assert_allclose([float(found[name][client]) for name in NAMES], expected, **CLOSE)
    assert found["auroc"].isnan().tolist() == [False, False, True]
    assert found["auprc"][2] == 1.0  # every example is positive


@pytest.mark.parametrize("algorithm", ["fedem", "federico", "fedrod", "fedavg"])
def test_chunks_and_a_shared_row_change_nothing(algorithm: str) -> None:
    whole, parts = (
        run(simulation(federation(), algorithm, rounds=1, metric="auroc", keep_best="best_val", chunk=chunk))[-1]
        for chunk in (None, 1)
    )
    assert set(whole.evaluations["test"]) >= {"loss", "accuracy", "auroc", "auprc", "f1", "brier", "calibration"}
    for metric, values in whole.evaluations["test"].items():
        np.testing.assert_allclose(values, parts.evaluations["test"][metric], equal_nan=True, **CLOSE)


def test_the_round_is_chosen_by_the_metric_and_reasons_are_told_once() -> None:
    sim = simulation(federation(), "fedavg", rounds=3, evaluate_every=1, metric="auroc", keep_best="best_val")
    reports = [sim.initial_report(), *run(sim)]
    means = [np.nanmean(report.evaluations["validation"]["auroc"]) for report in reports]
    assert sim.report_round == int(np.argmax(means))
    assert sim.chosen.score == max(means)
    told = reports[0].undefined["test"]
    assert told == {name: {"client-2": "only class 1 in its test data"} for name in ("auroc", "balanced_accuracy")}
    assert not any(report.undefined for report in reports[1:])


def test_more_classes_measure_nothing_more_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "_Seen", None)  # what keeps the outputs is not even made
    report = simulation(federation(classes=3), "local").initial_report()
    assert list(report.evaluations["test"]) == ["loss", "accuracy"]


def test_metrics_of_several_targets() -> None:
    counts, generator = (5, 8), torch.Generator().manual_seed(1)
    data = ClientData.from_clients(
        [torch.randn(n, 3, generator=generator) for n in counts],
        [torch.randn(n, 2, generator=generator) for n in counts],
    )
    several = Federation(("a", "b"), data, data, data, "regression", 2)
    sim = simulation(several, "local", metrics=("mae:0", "mae:1", "rmse", "r2:1"), metric="mae:1")
    found = sim.initial_report().evaluations["test"]
    assert list(found) == ["mse", "mae", "mae:0", "mae:1", "rmse", "r2:1"]
    np.testing.assert_allclose((found["mae:0"] + found["mae:1"]) / 2, found["mae"], rtol=1e-12)
    assert sim.chosen.score == -np.inf  # nothing is chosen under `last`
    with pytest.raises(CoterieError, match="mae:2 names no target"):
        simulation(several, "local", metrics=("mae:2",))


def test_clients_without_test_data_and_nobody_with_any() -> None:
    data = federation().test
    empty = ClientData(data.inputs[:0], data.targets[:0], torch.zeros(3, dtype=torch.int64))
    stack = Stack(lambda: build_model("mlp", (4,), 2, "classification", hidden=[3]), (4,))
    models = stack.initial(0, 2, distinct=True)
    assert measure(stack, Predictor(models), empty, "classification", NAMES)["auroc"].isnan().all()
    half = ClientData(data.inputs, data.targets, torch.tensor([0, 9, 9]))
    found = measure(stack, Predictor(models), half, "classification", NAMES)
    assert found["brier"].isnan().tolist() == [False, True]


def test_real_sites_tell_why_they_have_no_value(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "evaluate_every": 1, "keep_best": "best_val", "metric": "auroc"}
    here = simulation(federation(), "fedavg", **settings)
    expected = [here.initial_report(), *run(here)]
    there = remote(federation(), "fedavg", folder=tmp_path, **settings)
    assert not there.initial_report().undefined  # nobody has been asked yet
    first, last = there.advance(), there.advance()
    assert first.late is not None
    assert last.late is not None
    for found, report in zip((first.late, last.late, last), expected, strict=True):
        assert dict(found.undefined) == expected[0].undefined
        np.testing.assert_allclose(
            found.evaluations["test"]["auroc"], report.evaluations["test"]["auroc"], rtol=1e-9, equal_nan=True
        )
    assert there.report_round == here.report_round


def test_seeds_in_one_stack_are_measured_as_if_alone() -> None:
    settings: dict[str, Any] = {"rounds": 1, "metric": "auroc"}
    found, shared = together({seed: simulation(federation(), "ditto", seed=seed, **settings) for seed in (0, 1)})
    assert shared.served["together"]
    for seed in (0, 1):
        alone = run(simulation(federation(), "ditto", seed=seed, **settings))[-1]
        for metric, values in alone.evaluations["test"].items():
            np.testing.assert_allclose(found[seed][-1].evaluations["test"][metric], values, equal_nan=True, **CLOSE)
