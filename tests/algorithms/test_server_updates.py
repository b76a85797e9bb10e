"""One or two rounds of each method on quadratics, worked out by hand.

Two targets a client make F_k(theta) = |theta - b_k|^2 / 2 + constant, so a step is theta <- theta - lr (theta - b_k).
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import pytest
import torch

from coterie.contract import make_algorithm
from coterie.engines import Participation, Simulation
from coterie.federation.federation import Federation
from toys import FULL_BATCH, LOCATION, Recording, located, models_like, personal, run, simulation, state

B = [[4.0, 0.0], [0.0, 8.0]]
TWO = located(B, [1, 3])
HALF_STEP = replace(FULL_BATCH, lr=0.5)


def played(
    name: str, rounds: int = 1, federation: Federation = TWO, lr: float = 0.5, epochs: int = 1, **options: Any
) -> Simulation:
    variant = options.pop("variant", None)
    sim = simulation(
        federation, make_algorithm(name, variant, **options), LOCATION, engine=Recording, rounds=rounds,
        training=replace(FULL_BATCH, lr=lr, epochs=epochs),
    )  # fmt: skip
    run(sim)
    return sim


def close(actual: torch.Tensor, expected: Any) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_local() -> None:
    close(personal(played("local", 2)), [[3.0, 0.0], [0.0, 6.0]])


def test_fedavg_weighs_by_samples() -> None:
    # w_0 = (2, 0), w_1 = (0, 4), p = (1/4, 3/4)
    close(personal(played("fedavg")), [[0.5, 3.0]] * 2)


def test_fedavg_uniform() -> None:
    close(personal(played("fedavg", weights="uniform")), [[1.0, 2.0]] * 2)


def test_fedavg_renormalises_over_those_that_answered() -> None:
    sim = simulation(TWO, "fedavg", LOCATION, rounds=1, training=HALF_STEP, absent={1: ("client-0",)})
    run(sim)
    close(personal(sim), [[0.0, 4.0]] * 2)


def test_fedavg_on_full_batches_is_gradient_descent_on_the_pooled_loss() -> None:
    sim = played("fedavg", 3, located([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]], [1, 2, 5]), lr=0.3)
    pooled = torch.tensor([(1 + 6 + 25) / 8, (2 - 8 + 30) / 8], dtype=torch.float64)
    close(personal(sim)[0], pooled * (1 - 0.7**3))


def test_fedavg_ft_tunes_a_copy() -> None:
    sim = played("fedavg-ft")
    close(personal(sim), [[0.5 + 0.5 * 3.5, 1.5], [0.25, 3.0 + 2.5]])
    close(sim.server.w.flat(), [[0.5, 3.0]])


def test_fedprox_pulls_towards_the_received_model() -> None:
    # lr mu = 1/4: w^1 = b/2, then w^2 = w^1 + (b - w^1)/2 - w^1/4 = 5/8 b; averaged with (1/4, 3/4)
    close(personal(played("fedprox", epochs=2, mu=0.5)), [[0.625, 3.75]] * 2)


def test_fedprox_at_its_limit_forgets_each_former_step() -> None:
    # lr = 1/4, mu = 4: w^1 = b/4 and w^2 = w^0 + (b - w^1)/4 = 3/16 b
    close(personal(played("fedprox", lr=0.25, epochs=2, mu=4.0)), [[0.1875, 1.125]] * 2)


def test_fedprox_ft_tunes_without_the_term() -> None:
    sim = played("fedprox-ft", epochs=2, mu=0.5, epochs_ft=1)
    close(personal(sim), [[(0.625 + 4) / 2, 1.875], [0.3125, (3.75 + 8) / 2]])


def test_ditto_pulls_towards_the_model_it_received() -> None:
    # round 1: w = 0: theta = b/2; w = (1/2, 3). round 2, lr lambda = 1/2: theta <- theta + (b - theta)/2 - (theta - w)/2
    sim = played("ditto", 2, lambda_=1.0)
    close(personal(sim), [[2 + 1 - 0.75, 1.5], [0.25, 4 + 2 - 0.5]])
    close(sim.server.w.flat(), [[0.25 * 2.25 + 0.75 * 0.25, 0.25 * 1.5 + 0.75 * 5.5]])


def test_ditto_may_train_the_personal_model_longer() -> None:
    close(personal(played("ditto", personal_epochs=2, lambda_=0.0)), [[3.0, 0.0], [0.0, 6.0]])


def test_fedamp_mixes_by_distance() -> None:
    # after round 1: w = (2, 0), (0, 4), squared distance 20; xi = alpha exp(-20/sigma)/sigma
    options = {"sigma": 20.0, "alpha": 5.0, "lambda_": 5.0, "sigma_relative": False}
    sim = played("fedamp", 2, **options)
    xi = 5.0 / 20.0 * exp(-1.0)
    u = torch.tensor([[2 * (1 - xi), 4 * xi], [2 * xi, 4 * (1 - xi)]], dtype=torch.float64)
    close(sim.calls[-1].received["u"].flat(), u)
    w = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    close(personal(sim), w + 0.5 * (torch.tensor(B) - w) - 0.5 * (w - u))
    close(sim.server.w.flat(), personal(sim))


def test_fedamp_in_units_of_the_median_distance() -> None:
    sim = played("fedamp", 2, sigma=1.0, alpha=5.0, lambda_=5.0)
    xi = 5.0 / 20.0 * exp(-1.0)
    close(sim.calls[-1].received["u"].flat()[0], [2 * (1 - xi), 4 * xi])


@pytest.mark.parametrize("variant", ["attention", "heuristic"])
def test_fedamp_mixes_the_models_of_the_cohort_alone(variant: str) -> None:
    """Two of three: with a third one in the mixture, or in the cap of alpha, all weights would be others."""
    three = located([[4.0, 0.0], [0.0, 8.0], [-2.0, 6.0]])
    options = {"sigma": 20.0, "alpha": 50.0, "lambda_": 5.0, "sigma_relative": False, "self_weight": 0.7}
    sim = simulation(
        three, make_algorithm("fedamp", variant, **options), LOCATION, engine=Recording, rounds=16, training=HALF_STEP,
        participation=Participation("uniform", clients=2),
    )  # fmt: skip
    seen = set()
    while not sim.finished:
        before = sim.server.w.flat()
        sim.advance()
        call = sim.calls[-1]
        i, j = call.site.clients.tolist()
        distance = float((before[i] - before[j]).square().sum())
        other = min(50.0, 20.0) / 20.0 * exp(-distance / 20.0) if variant == "attention" else 0.3
        u = [(1 - other) * before[a] + other * before[b] for a, b in ((i, j), (j, i))]
        close(call.received["u"].flat(), torch.stack(u))
        close(sim.algorithm.relations(sim.server)["xi"][i][[i, j]], [1 - other, other])
        (away,) = {0, 1, 2} - {i, j}
        assert torch.equal(sim.server.w.flat()[away], before[away])
        seen.add(away)
    assert len(seen) == 3


def test_fedamp_never_gives_a_negative_own_weight() -> None:
    sim = played(
        "fedamp", 2, located([[1.0, 0.0], [1.0, 1e-6], [1.0, 2e-6]]), sigma=1.0, alpha=100.0, sigma_relative=False
    )
    mean = sim.server.w.flat().mean(0)  # the first round's models differ in proportion
    u = sim.calls[-1].received["u"].flat()
    assert u[:, 1].min() >= 0
    torch.testing.assert_close(u[:, 0], mean[:1].expand(3) / 1.5, rtol=1e-6, atol=0)


def two_directions(cosine: float) -> Federation:
    """Two clients whose data span lines with this cosine between them."""
    return located(B, [1, 3], inputs=[[1.0, 0.0], [cosine, sqrt(1 - cosine**2)]])


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_fedora_propagates_over_the_graph_of_similarities(alpha: float) -> None:
    # w = [[1, c], [c, 1]], P = w / (1 + c); A = (I + alpha (I - P))^-1 has off-diagonal q / (1 + 2 q), q = alpha c / (1 + c)
    sim = played("fedora", 2, two_directions(0.6), variant="paper", alpha=alpha, label_scale=0.0)
    q = alpha * 0.6 / 1.6
    a = q / (1 + 2 * q)
    theta_hat = [[2 * (1 - a), 4 * a], [2 * a, 4 * (1 - a)]]
    torch.testing.assert_close(
        sim.calls[-1].received["theta_hat"].flat(), torch.tensor(theta_hat, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )


def test_fedora_paper_weighs_the_pull_by_the_gain() -> None:
    """theta = (2, 0), (0, 4) and th^ given: lambda_k = max(eps, dL), and the gradient has the factor 2."""
    sim = simulation(
        TWO, make_algorithm("fedora", "paper", epsilon=0.125), LOCATION, rounds=2, training=replace(FULL_BATCH, lr=0.25)
    )
    sim.advance()  # theta = (1, 0), (0, 2)
    theta_hat = [[2.0, 0.0], [0.0, 1.0]]
    sim.server.theta_hat = models_like(sim, theta_hat)
    sim.advance()
    # losses |theta - b|^2 / 2: client 0: 4.5 -> 2, client 1: 18 -> 24.5, which is no gain
    close(state(sim, "lambda_k"), [2.0, 0.125])  # 2.5 is cut to 0.5 / lr
    close(personal(sim), [[1 + 0.75 - 0.25 * 2 * 2 * (1 - 2), 0.0], [0.0, 2 + 1.5 - 0.25 * 2 * 0.125 * (2 - 1)]])


def test_fedora_measures_the_gain_on_validation_data() -> None:
    elsewhere = replace(TWO, validation=located([[1.5, 0.0], [0.0, 1.0]], [1, 3]).validation)
    sim = simulation(
        elsewhere,
        make_algorithm("fedora", "paper", epsilon=0.0),
        LOCATION,
        rounds=2,
        training=replace(FULL_BATCH, lr=0.25),
    )
    sim.advance()  # theta = (1, 0), (0, 2)
    sim.server.theta_hat = models_like(sim, [[2.0, 0.0], [0.0, 1.0]])
    sim.advance()
    close(state(sim, "lambda_k"), [0.0, 0.5])  # 1/8 -> 1/8, and 1/2 -> 0


def test_fedora_released_takes_the_exponential_and_the_plain_pull() -> None:
    training = replace(FULL_BATCH, lr=0.25, momentum=0.5, weight_decay=0.1, epochs=2)
    sim = simulation(TWO, make_algorithm("fedora", "released"), LOCATION, rounds=2, training=training)
    sim.advance()
    theta = state(sim).flat()
    theta_hat = torch.tensor([[theta[0, 0] + 0.1, 0.0], [0.0, 0.5]], dtype=torch.float64)
    sim.server.theta_hat = models_like(sim, theta_hat)
    sim.advance()
    b = torch.tensor(B, dtype=torch.float64)
    gain = ((theta - b).square().sum(1) - (theta_hat - b).square().sum(1)) / 2
    strength = torch.stack([torch.exp(gain[0] / 2), torch.tensor(0.0, dtype=torch.float64)])
    close(state(sim, "lambda_k"), strength)
    momentum = torch.zeros_like(theta)
    for _ in range(2):  # outside momentum and weight decay, at the model before the step
        momentum = 0.5 * momentum + (theta - b) + 0.1 * theta
        theta = theta - 0.25 * momentum - 0.25 * strength.unsqueeze(1) * (theta - theta_hat)
    close(personal(sim), theta)


def test_fedora_counts_equal_losses_as_a_gain_of_zero() -> None:
    sim = played("fedora", 1, variant="released")
    close(state(sim, "lambda_k"), [1.0, 1.0])  # exp(0)


def test_fedora_keeps_the_last_upload_of_absent_clients() -> None:
    federation = located([[4.0, 0.0], [0.0, 8.0], [2.0, 2.0]], inputs=[[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    absent = {1: ("client-2",), 2: ("client-0",)}
    options = {"lambda_rule": "constant", "lambda": 0.0, "label_scale": 0.0}
    sim = simulation(
        federation, make_algorithm("fedora", "paper", **options), LOCATION, engine=Recording, rounds=2,
        training=HALF_STEP, absent=absent,
    )  # fmt: skip
    sim.advance()
    W = torch.tensor([[1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0]], dtype=torch.float64)

    def propagation(seen: list[float]) -> torch.Tensor:
        P = W * torch.tensor(seen, dtype=torch.float64)
        P = P / P.sum(1, keepdim=True)
        return 0.5 * torch.linalg.inv(torch.eye(3, dtype=torch.float64) - 0.5 * P)

    known = propagation([1.0, 1.0, 0.0])
    torch.testing.assert_close(sim.server.propagation, known[:2, :2], rtol=1e-6, atol=1e-7)
    among_all = torch.eye(3, dtype=torch.float64)  # who was not met keeps what it has
    among_all[:2, :2] = known[:2, :2]
    torch.testing.assert_close(
        torch.from_numpy(sim.relations()["propagation"]), among_all.float(), rtol=1e-6, atol=1e-7
    )
    former = torch.cat([sim.server.theta.flat(), torch.zeros(1, 2)])  # theta^0 of the client that was not met
    sim.advance()
    received = sim.calls[-1].received["theta_hat"].flat()  # the latecomer has a row at once
    torch.testing.assert_close(received, (known @ former)[1:], rtol=1e-6, atol=1e-6)
    close(sim.server.theta.flat(), [[2.0, 0.0], [0.0, 6.0], [1.0, 1.0]])
    torch.testing.assert_close(sim.server.propagation, propagation([1.0, 1.0, 1.0]), rtol=1e-6, atol=1e-7)
    close(sim.server.theta_hat.flat(), sim.server.propagation @ sim.server.theta.flat())


def test_fedora_a_latecomer_takes_from_its_nearest_only() -> None:
    """As the graph keeps ``topk``: client 2 is nearer to client 1 (0.96) than to client 0 (0.8)."""
    federation = located([[4.0, 0.0], [0.0, 8.0], [2.0, 2.0]], inputs=[[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]])
    options = {"kind": "cos", "topk": 1, "alpha": 3.0, "label_scale": 0.0}
    sim = simulation(
        federation, make_algorithm("fedora", "released", **options), LOCATION, engine=Recording, rounds=2,
        training=HALF_STEP, absent={1: ("client-2",)},
    )  # fmt: skip
    sim.advance()
    theta_hat = sim.server.theta_hat.flat()
    sim.advance()
    received = sim.calls[-1].received["theta_hat"].flat()[2]
    torch.testing.assert_close(received, 0.75 * theta_hat[1], rtol=1e-6, atol=1e-6)  # and 1/4 of its own theta^0 = 0


@pytest.mark.parametrize("name", ["fedamp", "fedora"])
def test_mixing_matrices_are_stochastic(name: str) -> None:
    """All clients at one point: whatever is mixed is that point again; and no weight is negative."""
    federation = located([[1.0, -2.0]] * 5, inputs=torch.eye(5) + 0.3)
    for variant in ("paper", "released") if name == "fedora" else (None,):
        sim = played(name, 3, federation, **({"variant": variant} if variant else {}))
        sent = sim.calls[-1].received["u" if name == "fedamp" else "theta_hat"].flat()
        close(sent, [[0.75, -1.5]] * 5)
        if name == "fedora":
            close(sim.server.propagation.sum(1), [1.0] * 5)
            assert (sim.server.propagation >= 0).all()
