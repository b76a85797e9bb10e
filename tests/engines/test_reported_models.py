"""Evaluation: when, of which model, on which data, and which round's models are kept."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, Predictor, Server, Site, broadcast, pick
from coterie.engines import RoundReport, Simulation, snapshot
from coterie.engines.predict import measure
from coterie.evaluation import choose_round
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.training import means, objective_of
from toys import (
    BLIND,
    FULL_BATCH,
    HALF,
    KINDS,
    LINEAR,
    LOCATION,
    MLP,
    classified,
    located,
    models_like,
    run,
    saved,
    simulation,
)  # fmt: skip

FEDERATION = classified((7, 4, 9, 5, 6))
ALGORITHMS = pytest.mark.parametrize("name", KINDS)


def table(reports: list[RoundReport], names: tuple[str, ...]) -> pd.DataFrame:
    """The long table that a run directory holds."""
    rows = [
        ("x", "", 0, r.round, "evaluate", split, client, n, metric, value)
        for r in reports
        for split, metrics in r.evaluations.items()
        for metric, values in metrics.items()
        for client, n, value in zip(names, r.n[split], values, strict=True)
    ]
    columns = ["algorithm", "variant", "seed", "round", "phase", "split", "client", "n", "metric", "value"]
    return pd.DataFrame(rows, columns=columns)


# --- when and what -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (5, [5]), (9, [5])])
def test_evaluation_points(every: int, expected: list[int]) -> None:
    reports = run(simulation(FEDERATION, "local", rounds=5, evaluate_every=every))
    assert [report.round for report in reports if report.evaluations] == expected
    assert all(bool(report.n) == bool(report.evaluations) for report in reports)
    assert all(("evaluate" in report.seconds) == bool(report.evaluations) for report in reports)


# the others predict, before any round, with models that a hypernetwork makes or with several different ones
@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("pfedhn", "fedem", "ifca")])
def test_the_first_evaluation_is_of_the_initial_model(name: str) -> None:
    options: dict[str, Any] = {"epochs_ft": 0} if name.endswith("-ft") or name == "fedbabu" else {}
    if name == "federico":
        options = {"init_models": "common"}
    sim = simulation(FEDERATION, name, options=options)
    report = sim.initial_report()
    assert report.round == 0
    theta = sim.server.initial_models()
    for split in ("validation", "test"):
        data = sim.federation.split(split)  # type: ignore[arg-type]
        expected = means(sim.stack, theta, data, {"loss": objective_of("classification")})["loss"]
        np.testing.assert_allclose(report.evaluations[split]["loss"], expected, rtol=1e-12)
        assert report.n[split].tolist() == [6] * 5


@ALGORITHMS
def test_what_is_evaluated_is_what_is_reported(name: str) -> None:
    sim = simulation(FEDERATION, name, rounds=2)
    report = run(sim)[-1]
    predictor = sim.report_predictor()
    assert len(predictor.models) == 5
    loss = measure(sim.stack, predictor, sim.federation.test, "classification")["loss"]
    if predictor.single:
        alone = means(sim.stack, predictor.models, sim.federation.test, {"loss": objective_of("classification")})
        assert torch.equal(alone["loss"], loss)
    np.testing.assert_allclose(report.evaluations["test"]["loss"], loss, rtol=1e-12)


def test_regression_measures_errors() -> None:
    sim = simulation(located([[1.0, 5.0], [3.0, 4.0]]), "local", LOCATION)
    report = sim.initial_report()
    assert report.evaluations["test"]["mse"].tolist() == [13.0, 12.5]
    assert report.evaluations["test"]["mae"].tolist() == [3.0, 3.5]


def test_clients_without_validation_data() -> None:
    data = FEDERATION.validation
    some = replace(FEDERATION, validation=replace(data, offsets=torch.tensor([0, 6, 6, 18, 24, 30])))
    sim = simulation(some, "fedora", keep_best="best_val", evaluate_every=1)
    first = sim.initial_report()
    assert np.isnan(first.evaluations["validation"]["accuracy"]).tolist() == [False, True, False, False, False]
    assert first.n["validation"].tolist() == [6, 0, 12, 6, 6]
    reports = [first, *run(sim)]
    assert sim.report_round == choose_round(table(reports, sim.names))


def test_no_validation_data_at_all() -> None:
    none = replace(FEDERATION.validation, offsets=torch.zeros(6, dtype=torch.int64))
    sim = simulation(replace(FEDERATION, validation=none), "fedora", keep_best="last")
    assert set(sim.initial_report().evaluations) == {"test"}
    run(sim)


# --- which round -------------------------------------------------------------------------------------------------


class Scripted(Algorithm):
    """Each client's position follows a script: ``path[round][client]``."""

    name = "scripted"
    path: Any = ()

    def local_update(self, site: Site) -> dict[str, Any]:
        target = torch.tensor(self.path[site.round - 1], dtype=torch.float64)[site.clients]
        site.theta = site.theta * 0.0 + target
        return {}


def scripted(path: list[list[float]], keep_best: str, **settings: Any) -> tuple[Simulation, list[RoundReport]]:
    algorithm = Scripted()
    object.__setattr__(algorithm, "path", path)
    sim = simulation(
        located([[1.0], [1.0]]), algorithm, LOCATION, rounds=len(path), keep_best=keep_best, evaluate_every=1, **settings
    )  # fmt: skip
    return sim, [sim.initial_report(), *run(sim)]


def test_the_earliest_of_equal_rounds_is_kept() -> None:
    sim, reports = scripted([[0.0, 0.5], [0.5, 1.0], [1.0, 0.5], [0.5, 0.5]], "best_val")
    assert sim.report_round == 2
    assert sim.report_models().flat().flatten().tolist() == [0.5, 1.0]
    assert choose_round(table(reports, sim.names), "best_val", metric="mae") == 2


def test_rounding_is_no_improvement() -> None:
    sim, _ = scripted([[0.5, 0.5], [0.5, 0.5 + 1e-13], [0.5, 0.4]], "best_val")
    assert sim.report_round == 1


def test_the_initial_models_can_be_the_best() -> None:
    sim, _ = scripted([[-1.0, 0.0], [-2.0, 0.0]], "best_val")
    assert sim.report_round == 0
    assert sim.report_models().flat().flatten().tolist() == [0.0, 0.0]


@ALGORITHMS
def test_the_kept_round_is_the_one_that_the_protocol_chooses(name: str) -> None:
    settings: dict[str, Any] = {"rounds": 5, "participation": HALF, "evaluate_every": 1}
    last = simulation(FEDERATION, name, **settings)
    reports, models = [last.initial_report()], [last.report_models().flat()]
    while not last.finished:
        reports.append(last.advance())
        models.append(last.report_models().flat())
    for protocol in ("best_val", "best_test", "last"):
        sim = simulation(FEDERATION, name, keep_best=protocol, **settings)
        sim.initial_report()
        run(sim)
        chosen = choose_round(table(reports, sim.names), protocol)  # type: ignore[arg-type]
        assert sim.report_round == chosen
        assert torch.equal(sim.report_models().flat(), models[chosen])


@ALGORITHMS
def test_test_labels_influence_nothing(name: str) -> None:
    flipped = replace(FEDERATION.test, targets=(FEDERATION.test.targets + 1) % 3)
    sims = [
        simulation(federation, name, rounds=4, keep_best="best_val", evaluate_every=1)
        for federation in (FEDERATION, replace(FEDERATION, test=flipped))
    ]
    reports = [run(sim) for sim in sims]
    assert not np.array_equal(reports[0][-1].evaluations["test"]["loss"], reports[1][-1].evaluations["test"]["loss"])
    assert sims[0].report_round == sims[1].report_round
    assert torch.equal(sims[0].report_models().flat(), sims[1].report_models().flat())


# --- snapshots ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [2, 5])
@ALGORITHMS
def test_snapshots_on_disk_are_those_in_memory(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"rounds": 2, "keep_best": "best_val", "chunk": chunk, "evaluate_every": 1}
    here = simulation(FEDERATION, name, **settings)
    run(here)
    monkeypatch.setattr(snapshot, "IN_MEMORY", 0)
    there = simulation(FEDERATION, name, **settings)
    run(there)
    assert there.report_round == here.report_round
    assert torch.equal(there.report_models().flat(), here.report_models().flat())
    restored = simulation(FEDERATION, name, **settings)
    restored.load_state_dict(there.state_dict())
    assert torch.equal(restored.report_models().flat(), here.report_models().flat())


@pytest.mark.parametrize("limit", [0, 2**30])
def test_a_kept_snapshot_does_not_move_with_training(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", limit)
    sim, _ = scripted([[1.0, 1.0], [0.0, 0.0], [0.5, 0.5]], "best_val", chunk=1)
    assert sim.report_models().flat().flatten().tolist() == [1.0, 1.0]
    assert sim.bank.get("theta", torch.tensor([0, 1]), 0).flat().flatten().tolist() == [0.5, 0.5]


# --- candidates and mixtures -------------------------------------------------------------------------------------


def one_point(labels: list[int]) -> Federation:
    """Clients with one example each, and an architecture that ignores it."""
    data = ClientData.from_clients([torch.ones(1, 1)] * len(labels), [torch.tensor([label]) for label in labels])
    return Federation(tuple(f"client-{i}" for i in range(len(labels))), data, data, data, "classification", 2)


class Mixing(Algorithm):
    """Two models per client with weights (1/4, 3/4); logits (0, log 3) and (log 3, 0)."""

    name = "mixing"
    combine: Any = "probabilities"
    weights: Any = ((0.25, 0.75), (0.25, 0.75))

    def setup(self, server: Server) -> None:
        server.bank = server.initial_models(2, distinct=True)

    def round(self, server: Server, cohort: Tensor) -> None:
        index = torch.tensor([[0, 1]]).expand(len(cohort), 2)
        up = server.ask(self.measure, cohort, bank=pick(server.bank, index), shared=broadcast(server.bank))
        server.losses, server.hits = up.loss, up.accuracy

    def measure(self, site: Site, bank: Any, shared: Any) -> dict[str, Any]:
        loss = site.loss("train", bank)
        assert torch.equal(loss, site.loss("train", shared))
        assert torch.equal(loss[:, 1], site.loss("validation", bank)[:, 1])
        return {"loss": loss, "accuracy": site.accuracy("train", bank)}

    def offer(self, server: Server, clients: Tensor) -> dict[str, Any]:
        index = torch.tensor([[0, 1]]).expand(len(clients), 2)
        return {"bank": pick(server.bank, index)}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        weights = None if self.weights is None else torch.tensor(self.weights, dtype=torch.float64)[site.clients]
        return Predictor(offer["bank"], weights, self.combine)


def mixing(chunk: int, labels: list[int], **options: Any) -> Simulation:
    algorithm = Mixing()
    for option, value in options.items():
        object.__setattr__(algorithm, option, value)
    model = replace(LOCATION)
    sim = simulation(one_point(labels), algorithm, model, rounds=1, chunk=chunk, keep_best="best_val")
    sim.server.bank = models_like(sim, [[0.0, log(3)], [log(3), 0.0]])
    return sim


CHUNKS = pytest.mark.parametrize("chunk", [1, 2])


@CHUNKS
def test_mixtures_of_probabilities(chunk: int) -> None:
    sim = mixing(chunk, [0, 1])
    (report,) = run(sim)
    p0 = 0.25 * 0.25 + 0.75 * 0.75
    np.testing.assert_allclose(report.evaluations["test"]["loss"], [-log(p0), -log(1 - p0)], rtol=1e-12)
    assert report.evaluations["test"]["accuracy"].tolist() == [1.0, 0.0]
    np.testing.assert_allclose(sim.server.losses, [[-log(0.25), -log(0.75)], [-log(0.75), -log(0.25)]], rtol=1e-12)
    assert sim.server.hits.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    kept = sim.report_predictor()
    assert kept.models.lead == (2, 2)
    assert kept.weights is not None
    assert kept.weights.tolist() == [[0.25, 0.75]] * 2


@CHUNKS
def test_mixtures_of_outputs(chunk: int) -> None:
    (report,) = run(mixing(chunk, [0, 1], combine="outputs"))
    logits = (0.75 * log(3), 0.25 * log(3))
    total = log(exp(logits[0]) + exp(logits[1]))
    np.testing.assert_allclose(report.evaluations["test"]["loss"], [total - logits[0], total - logits[1]], rtol=1e-12)


@CHUNKS
def test_mixtures_without_weights_are_even(chunk: int) -> None:
    (report,) = run(mixing(chunk, [0, 1], weights=None))
    np.testing.assert_allclose(report.evaluations["test"]["loss"], [log(2), log(2)], rtol=1e-12)


@CHUNKS
def test_a_mixture_with_one_weight_is_that_model(chunk: int) -> None:
    (report,) = run(mixing(chunk, [0, 1], weights=((1.0, 0.0), (0.0, 1.0))))
    np.testing.assert_allclose(report.evaluations["test"]["loss"], [-log(0.25), -log(0.25)], rtol=1e-12)


@pytest.mark.parametrize("limit", [0, 2**30])
@CHUNKS
def test_mixtures_in_snapshots_and_checkpoints(chunk: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", limit)
    sim = mixing(chunk, [0, 1])
    run(sim)
    other = mixing(chunk, [0, 1])
    other.load_state_dict(sim.state_dict())
    for predictor in (sim.report_predictor(), other.report_predictor()):
        assert not predictor.single
        assert predictor.models.flatten_candidates().flat()[:2].tolist() == [[0.0, log(3)], [log(3), 0.0]]
        assert predictor.combine == "probabilities"


def test_mixtures_in_regression_average_outputs() -> None:
    class Half(Algorithm):
        name = "half"

        def setup(self, server: Server) -> None:
            server.bank = server.initial_models(2, distinct=True)

        def local_update(self, site: Site) -> dict[str, Any]:
            return {}

        def offer(self, server: Server, clients: Tensor) -> dict[str, Any]:
            return {"bank": broadcast(server.bank)}

        def personal(self, site: Site, **offer: Any) -> Predictor:
            return Predictor(offer["bank"])

    sim = simulation(located([[1.0, 5.0]]), Half(), LOCATION, rounds=1)
    sim.server.bank = models_like(sim, [[0.0, 4.0], [1.0, 6.0]])
    (report,) = run(sim)
    assert report.evaluations["test"]["mse"].tolist() == [0.125]
    assert report.evaluations["test"]["mae"].tolist() == [0.25]


def test_evaluation_changes_no_state() -> None:
    class Nosy(Algorithm):
        name = "nosy"

        def start(self, site: Site) -> None:
            site.looks = 0

        def local_update(self, site: Site) -> dict[str, Any]:
            return {}

        def personal(self, site: Site, **offer: Any) -> Predictor:
            site.looks = site.looks + 1
            site.theta = site.fit(site.theta).models
            return Predictor(site.theta)

    sim = simulation(FEDERATION, Nosy(), LINEAR, rounds=2, participation=HALF, training=FULL_BATCH)
    sim.initial_report()
    assert not sim.bank.started.any()
    before = saved(sim)["server"]
    run(sim)
    assert saved(sim)["server"] == before
    assert sim.bank.columns["looks"].rows is not None
    assert sim.bank.columns["looks"].rows[sim.bank.started].tolist() == [0] * int(sim.bank.started.sum())  # type: ignore[union-attr]
    assert "theta" not in [leaf for leaf, column in sim.bank.columns.items() if column.own.any() and leaf != "looks"]


def test_offers_for_evaluation_are_booked_apart() -> None:
    sim = simulation(FEDERATION, "fedavg", MLP, rounds=4, evaluate_every=2)
    run(sim)
    books = sim.ledger.per_client().set_index(["phase", "direction"])["bytes"]
    d = 4 * 5 + 5 + 5 * 3 + 3
    assert books["evaluate", "down"].tolist() == [2 * d * 8] * 5
    assert books["train", "down"].tolist() == [4 * d * 8] * 5


def test_a_single_example_is_measured_alone() -> None:
    assert run(simulation(one_point([0, 1]), "local", BLIND, rounds=1))[0].evaluations["test"]["accuracy"].tolist() == [
        1.0,
        0.0,
    ]
