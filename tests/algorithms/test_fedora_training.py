"""FEDORA's exact statements about training (Wu et al., KDD 2023)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.contract import make_algorithm
from toys import (
    FULL_BATCH,
    LOCATION,
    alike,
    classified,
    located,
    models_like,
    personal,
    reordered,
    run,
    simulation,
    state,
)

POINTS = [[4.0, 0.0], [0.0, 8.0], [-3.0, 1.0]]
AROUND = [[1.0, 0.0], [0.5, 0.75**0.5], [-0.5, 0.75**0.5]]  # every |cosine| is 1/2


def fedora(federation: Any, rounds: int, lr: float = 0.5, variant: str = "paper", **options: Any) -> Any:
    settings = {"training": replace(FULL_BATCH, lr=lr), "rounds": rounds, "evaluate_every": 1000}
    return simulation(federation, make_algorithm("fedora", variant, **options), LOCATION, **settings)


def test_orthogonal_data_leave_every_client_alone() -> None:
    """W = I: th^ is the own last upload, so lambda is epsilon."""
    federation = located(POINTS, inputs=torch.eye(3))
    alone = simulation(federation, "local", LOCATION, rounds=4, training=replace(FULL_BATCH, lr=0.2))
    run(alone)
    for epsilon, tolerance in ((0.0, 1e-12), (1e-8, 1e-7)):
        sim = fedora(federation, 4, lr=0.2, label_scale=0.0, epsilon=epsilon)
        run(sim)
        torch.testing.assert_close(sim.server.propagation, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-7)
        torch.testing.assert_close(personal(sim), personal(alone), rtol=0, atol=tolerance)


def test_only_the_nearest_client_which_is_oneself() -> None:
    options = {"topk": 1, "self_loop": True, "epsilon": 0.0}
    sims = [simulation(classified(), make_algorithm("fedora", "paper", **options)), simulation(classified(), "local")]
    for sim in sims:
        run(sim)
    torch.testing.assert_close(personal(sims[0]), personal(sims[1]), rtol=0, atol=1e-10)


def test_alpha_infinity_is_one_average() -> None:
    sim = fedora(located(POINTS, inputs=AROUND), 2, alpha=float("inf"), label_scale=0.0)
    run(sim)
    mean = sim.server.theta.flat().mean(0, keepdim=True).expand(3, -1)
    torch.testing.assert_close(sim.server.theta_hat.flat(), mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"variant": "released"}, {"solver": "iterative"}, {"exact": True}])
def test_rows_of_the_propagation_sum_to_one(options: dict[str, Any]) -> None:
    sim = fedora(located([*POINTS, [1.0, 1.0]], inputs=[*AROUND, [0.6, 0.8]]), 2, label_scale=0.1, **options)
    run(sim)
    A = sim.server.propagation
    torch.testing.assert_close(
        A.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-5 if options.get("solver") else 1e-12
    )
    assert (A >= 0).all()


def test_identical_clients_receive_the_same() -> None:
    sim = simulation(alike(4), make_algorithm("fedora", "paper"), rounds=3, training=FULL_BATCH)
    run(sim)
    torch.testing.assert_close(sim.server.similarity, torch.ones(4, 4, dtype=torch.float64), rtol=0, atol=1e-6)
    sent = sim.server.theta_hat.flat()
    torch.testing.assert_close(sent, sent[:1].expand_as(sent), rtol=0, atol=1e-12)


def test_a_client_that_gains_nothing_is_not_pulled() -> None:
    """Two clients whose models hurt each other stay with their own training."""
    opposite = located([[4.0, 0.0], [-4.0, 0.0]], inputs=[[1.0, 0.0], [1.0, 0.0]])
    sim = fedora(opposite, 5, label_scale=0.0, epsilon=0.0)
    alone = simulation(opposite, "local", LOCATION, rounds=5, training=replace(FULL_BATCH, lr=0.5))
    run(sim)
    run(alone)
    assert torch.equal(personal(sim), personal(alone))
    assert state(sim, "lambda_k").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("rule", "least"), [("gain", 0.125), ("exp", 0.0)])
def test_a_gain_that_is_no_number_is_none(rule: str, least: float) -> None:
    """Validation data of client 1 that are NaN: it goes on with the smallest lambda, and is no failure."""
    federation = located(POINTS, inputs=AROUND)
    inputs = federation.validation.inputs.clone()
    inputs[1] = torch.nan
    spoilt = replace(federation, validation=replace(federation.validation, inputs=inputs))
    options = {"lambda_rule": rule, "epsilon": 0.125, "label_scale": 0.0}
    sim = fedora(spoilt, 3, lr=0.2, **options)
    assert all(report.failures == () for report in run(sim))
    assert state(sim, "lambda_k")[1] == least


def test_a_client_without_validation_data_measures_its_training_data() -> None:
    federation = located(POINTS, inputs=AROUND)
    empty = replace(federation.validation, offsets=torch.zeros(4, dtype=torch.int64))
    with_data, without = (
        fedora(replace(federation, validation=v), 4, label_scale=0.0) for v in (federation.validation, empty)
    )
    run(with_data)
    run(without)
    assert torch.equal(personal(with_data), personal(without))


@pytest.mark.parametrize("strength", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_contraction_on_quadratics_at_the_proved_rate(strength: float, alpha: float) -> None:
    """F_k = |theta - b_k|^2 / 2 with exact solves: each round contracts by 2 lambda / (1 + 2 lambda) or better.

    With lr = 1 / (1 + 2 lambda) one gradient step solves the client's problem exactly.
    """
    federation = located(POINTS, inputs=AROUND)
    options = {"lambda_rule": "constant", "lambda": strength, "alpha": alpha, "label_scale": 0.0}
    sim = fedora(federation, 12, lr=1 / (1 + 2 * strength), **options)
    sim.advance()
    A, b = sim.server.propagation, torch.tensor(POINTS, dtype=torch.float64)
    torch.testing.assert_close(A, A.T, rtol=0, atol=1e-6)
    system = (1 + 2 * strength) * torch.eye(3, dtype=torch.float64) - 2 * strength * A
    optimum = torch.linalg.solve(system, b)
    start = torch.tensor([[9.0, -9.0], [0.0, 5.0], [-7.0, 3.0]], dtype=torch.float64)
    sim.server.theta = models_like(sim, start)
    sim.server.theta_hat = models_like(sim, A @ start)
    distances = [float((start - optimum).norm())]
    while not sim.finished:
        sim.advance()
        distances.append(float((state(sim).flat() - optimum).norm()))
    rate = 2 * strength / (1 + 2 * strength)
    for before, now in itertools.pairwise(distances):
        assert now <= rate * before * (1 + 1e-9) + 1e-12
    assert distances[-1] < distances[0] * rate**10


def test_random_similarity_depends_on_the_seed_only() -> None:
    federation = located(POINTS, inputs=AROUND)
    tables = []
    for seed in (0, 0, 1):
        sim = simulation(federation, make_algorithm("fedora", similarity="random"), LOCATION, rounds=1, seed=seed)
        run(sim)
        tables.append(sim.server.similarity)
        assert sim.ledger.per_client().query("phase == 'describe'").empty
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])


def test_random_similarity_goes_by_names() -> None:
    """Clients that are numbered otherwise have the same relations."""
    order = [2, 0, 1]
    tables = []
    for federation in (located(POINTS, inputs=AROUND), reordered(located(POINTS, inputs=AROUND), order)):
        sim = simulation(federation, make_algorithm("fedora", similarity="random"), LOCATION, rounds=1)
        run(sim)
        tables.append(sim.server.similarity)
    assert torch.equal(tables[1], tables[0][order][:, order])


@pytest.mark.parametrize("similarity", ["parameters", "gradients"])
def test_similarities_of_the_models_are_those_of_what_has_just_come(similarity: str) -> None:
    """exp(-|theta_k - theta_l|^2 / median) of the models after training; max(0, cos) of what training changed."""
    algorithm = make_algorithm("fedora", "paper", similarity=similarity, lambda_rule="constant")
    sim = simulation(classified((7, 4, 9, 5)), algorithm, rounds=3)
    before = sim.server.initial_models(4).flat()
    while not sim.finished:
        sim.advance()
        theta = sim.server.theta.flat()
        if similarity == "parameters":
            distances = torch.cdist(theta, theta).square()
            pairs = distances[torch.ones(4, 4).triu(1).bool()].sort().values
            expected = torch.exp(-distances / ((pairs[2] + pairs[3]) / 2))
        else:
            moved = theta - before
            expected = torch.nn.functional.cosine_similarity(moved[:, None], moved[None], dim=2).clamp(min=0)
        torch.testing.assert_close(sim.server.similarity, expected, rtol=0, atol=1e-9)
        before = theta.clone()
    assert (expected - torch.eye(4)).abs().max() > 0.05


def test_models_are_compared_with_the_last_ones_of_those_who_are_away() -> None:
    algorithm = make_algorithm("fedora", "paper", similarity="parameters", lambda_rule="constant")
    away = {1: ["client-3"], 2: ["client-0", "client-1"], 3: ["client-2"]}
    sim = simulation(classified((7, 4, 9, 5)), algorithm, rounds=3, absent=away)
    sim.advance()
    assert sim.server.similarity[3, :3].isnan().all()
    while not sim.finished:
        sim.advance()
        theta = sim.server.theta.flat()
        distances = torch.cdist(theta, theta).square()
        pairs = distances[torch.ones(4, 4).triu(1).bool()].sort().values
        expected = torch.exp(-distances / ((pairs[2] + pairs[3]) / 2))
        torch.testing.assert_close(sim.server.similarity, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("similarity", ["parameters", "gradients"])
def test_similarities_of_the_models_are_measured_each_round(similarity: str) -> None:
    sim = simulation(
        located(POINTS, inputs=AROUND), make_algorithm("fedora", "paper", similarity=similarity), LOCATION, rounds=3
    )  # fmt: skip
    seen = []
    while not sim.finished:
        sim.advance()
        seen.append(sim.server.similarity.clone())
    assert not torch.equal(seen[1], seen[2])
    assert torch.isfinite(seen[2]).all()
