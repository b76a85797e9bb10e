"""FedU, MOCHA, HeurFedAMP and SFL: rounds worked out by hand on quadratics, and the papers' identities.

Two targets a client make F_k(theta) = |theta - b_k|^2 / 2, so a step is theta <- theta - lr (theta - b_k).
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import pytest
import torch
from rounds_by_hand import B3, EVERYBODY, MEMBERS, THREE, admission, arrived, begun, played

from coterie.contract import make_algorithm
from coterie.errors import CoterieError
from coterie.relations import cosine_attention, cosines, task_covariance
from toys import (
    BATCHES,
    FULL_BATCH,
    MLP,
    NORMED,
    alike,
    classified,
    located,
    models_like,
    personal,
)

W1 = torch.tensor([[2.0, 0.0], [0.0, 4.0], [-1.0, 3.0]], dtype=torch.float64)  # after one step of rate 1/2


def close(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


# --- FedU --------------------------------------------------------------------------------------------------------

CONSTANT: dict[str, Any] = {"similarity": "constant", "a": 0.5}


def test_fedu_draws_neighbours_together() -> None:
    # eta R rho a = 0.5 * 1 * 0.4 * 0.5 = 0.1
    sim = begun("fedu", 2, rho=0.4, **CONSTANT)
    sim.advance()
    close(sim.server.w.flat(), [[1.8, 0.4], [0.2, 3.6]])
    sim.advance()
    close(sim.calls[-1].received["w"].flat(), [[1.8, 0.4], [0.2, 3.6]])
    # trained: (2.9, 0.2), (0.1, 5.8)
    close(personal(sim), [[2.9 - 0.28, 0.2 + 0.56], [0.1 + 0.28, 5.8 - 0.56]])


def test_fedu_goes_as_far_as_the_clients_did() -> None:
    """eta R with R the mean number of local steps: one, three and two batches, twice."""
    training = replace(FULL_BATCH, lr=0.1, batch_size=1, epochs=2)
    sim = played("fedu", federation=THREE, training=training, rho=0.3, **CONSTANT)
    step = 0.1 * (2 + 6 + 4) / 3 * 0.3 * 0.5
    w = sim.calls[-1].returned["w"].flat()
    close(sim.server.w.flat(), w - step * (3 * w - w.sum(0)))
    close(sim.algorithm.notes(sim.server)["reach"], 2 * step)


@pytest.mark.parametrize("options", [{"similarity": "constant", "a": 0.0}, {"rho": 0.0}])
def test_t04_fedu_without_relations_is_local(options: dict[str, Any]) -> None:
    ours = played("fedu", 3, EVERYBODY, model=MLP, training=BATCHES, **options)
    close(personal(ours), personal(played("local", 3, EVERYBODY, model=MLP, training=BATCHES)))


@pytest.mark.parametrize("rounds", [1, 3])
def test_t05_fedu_on_a_complete_graph_is_uniform_averaging(rounds: int) -> None:
    """eta R rho a K = 0.5 * 1 * 4/3 * 0.5 * 3 = 1."""
    ours = played("fedu", rounds, THREE, rho=4 / 3, **CONSTANT)
    theirs = played("fedavg", rounds, THREE, weights="uniform")
    close(personal(ours), personal(theirs))


def test_fedu_keeps_the_mean_of_all_models() -> None:
    sim = played("fedu", federation=THREE, rho=0.5)
    close(sim.server.w.flat().mean(0), W1.mean(0))
    assert (sim.server.w.flat() - W1).abs().max() > 0.01


def test_fedu_steps_from_one_snapshot() -> None:
    """In-place changes, client after client, would not be symmetric in the first and the last client."""
    mirrored = located([[4.0, 0.0], [0.0, 0.0], [-4.0, 0.0]])
    w = played("fedu", federation=mirrored, rho=0.6, **CONSTANT).server.w.flat()
    close(w, -w.flip(0))


def test_fedu_random_relations_are_symmetric_and_go_by_name() -> None:
    a = played("fedu", federation=EVERYBODY, model=MLP).server.a
    assert torch.equal(a, a.T)
    assert (a.diagonal() == 0).all()
    assert ((a == 0) | (a >= 0.25)).all()
    assert (a > 0).any()
    order = [3, 0, 5, 1, 4, 2]
    moved = played("fedu", federation=EVERYBODY.select(order), model=MLP).server.a
    assert torch.equal(moved, a[order][:, order])


def test_fedu_refuses_a_step_that_overshoots() -> None:
    """eta R rho times the degree is 0.5 * 1 * rho * 1 with a = 0.5 and two neighbours."""
    played("fedu", federation=THREE, rho=1.99, **CONSTANT)
    with pytest.raises(CoterieError, match="overshoots: lower rho"):
        played("fedu", federation=THREE, rho=2.0, **CONSTANT)


def test_fedu_counts_nobody_that_has_not_taken_part() -> None:
    sim = begun("fedu", 2, THREE, rho=0.4, absent={1: ("client-2",)}, **CONSTANT)
    sim.advance()
    close(sim.server.w.flat(), [[1.8, 0.4], [0.2, 3.6], [0.0, 0.0]])  # not towards the zeros of client 2
    sim.advance()
    close(sim.calls[-1].received["w"].flat()[2], [0.0, 0.0])  # first contact with theta^0


@pytest.mark.parametrize("stale", ["keep", "round"])
def test_fedu_absent_clients_keep_their_models(stale: str) -> None:
    sim = begun("fedu", 2, THREE, rho=0.4, absent={2: ("client-0",)}, stale=stale, **CONSTANT)
    sim.advance()
    before = sim.server.w.flat()
    sim.advance()
    trained = before + 0.5 * (torch.tensor(B3, dtype=torch.float64) - before)
    trained[0] = before[0]
    others = (1, 2, 0) if stale == "keep" else (1, 2)
    expected = trained.clone()
    for k in (1, 2):
        expected[k] = trained[k] - 0.1 * sum(trained[k] - trained[j] for j in others)
    close(sim.server.w.flat(), expected)
    close(personal(sim), expected)


@pytest.mark.parametrize("name", ["fedu", "mocha"])
def test_newcomers_receive_the_mean_of_those_who_took_part(name: str) -> None:
    sim = played(name, 1, MEMBERS, model=MLP, training=BATCHES, absent={1: ("client-3",)})
    close(arrived(sim), sim.server.w.flat()[:3].mean(0).expand(2, -1))
    if name == "fedu":
        close(arrived(sim, labelled=False), arrived(sim))
    else:
        assert admission(sim).admit(labelled=False, epochs=0) is None


# --- MOCHA -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absent", [None, {1: ("client-2",), 2: ("client-0", "client-5")}])
def test_t05_mocha_drawn_to_the_mean_is_fedu(absent: Any) -> None:
    """Omega = I - 11'/K with lambda_1 is a = 1/K with rho = 2 lambda_1."""
    settings: dict[str, Any] = {"federation": EVERYBODY, "model": MLP, "training": BATCHES, "absent": absent}
    ours = played("mocha", 3, lambda1=0.2, **settings)
    theirs = played("fedu", 3, similarity="constant", a=1 / 6, rho=0.4, **settings)
    close(personal(ours), personal(theirs))
    assert (personal(ours) - personal(played("local", 3, **settings))).abs().max() > 1e-3


def test_mocha_drawn_to_the_mean_by_hand() -> None:
    # 2 lambda_1 eta R = 0.4: w - 0.4 (w - mean)
    close(played("mocha", federation=THREE, lambda1=0.4).server.w.flat(), 0.6 * W1 + 0.4 * W1.mean(0))


@pytest.mark.parametrize("omega", ["mean", "learned"])
def test_t04_mocha_without_relations_is_local(omega: str) -> None:
    settings: dict[str, Any] = {"federation": EVERYBODY, "model": MLP, "training": BATCHES}
    ours = played("mocha", 3, lambda1=0.0, omega=omega, every=1, **settings)
    close(personal(ours), personal(played("local", 3, **settings)))


@pytest.mark.parametrize("omega", ["mean", "learned"])
def test_mocha_shrinks_all_models(omega: str) -> None:
    # 2 lambda_2 eta R = 0.2
    close(played("mocha", federation=THREE, lambda1=0.0, lambda2=0.2, omega=omega).server.w.flat(), 0.8 * W1)


def test_mocha_learned_relations_before_they_are_learned() -> None:
    """Sigma = I/K makes Omega = K I: every model shrinks by 1 / (1 + 2 lambda_1 eta R K)."""
    sim = played("mocha", federation=THREE, lambda1=0.1, omega="learned", every=5)
    close(sim.server.sigma, torch.eye(3, dtype=torch.float64) / 3)
    close(sim.server.w.flat(), W1 / 1.3)


def test_mocha_learns_relations_from_the_models() -> None:
    sim = played("mocha", federation=THREE, lambda1=0.1, omega="learned", every=1)
    sigma = sim.server.sigma
    close(sigma, task_covariance(W1 @ W1.T))
    close(sigma.diagonal().sum(), 1.0)
    assert torch.equal(sigma, sigma.T)
    assert torch.linalg.eigvalsh(sigma).min() > 0
    identity = torch.eye(3, dtype=torch.float64)
    close(sim.server.w.flat(), torch.linalg.inv(identity + 0.1 * torch.linalg.inv(sigma)) @ W1, 1e-8)


def test_mocha_learned_relations_of_a_part() -> None:
    """Who has not taken part is in no sum and keeps theta^0; the trace of all stays 1."""
    sim = begun("mocha", 1, THREE, lambda1=0.1, omega="learned", every=1, absent={1: ("client-2",)})
    sim.advance()
    sigma = sim.server.sigma
    close(sigma[:2, :2], task_covariance(W1[:2] @ W1[:2].T) * 2 / 3)
    close(sigma.diagonal().sum(), 1.0)
    close(sim.server.w.flat()[2], [0.0, 0.0])


@pytest.mark.parametrize("stale", ["keep", "round"])
def test_mocha_learned_relations_reach_the_last_models_of_who_is_away(stale: str) -> None:
    """W <- (I + 2 lambda_1 eta R Omega)^-1 W over all who have taken part, or over those of this round."""
    options: dict[str, Any] = {"lambda1": 0.1, "omega": "learned", "every": 1, "stale": stale}
    sim = begun("mocha", 2, THREE, absent={2: ("client-0",)}, **options)
    sim.advance()
    before = sim.server.w.flat()
    sim.advance()
    w = before + 0.5 * (torch.tensor(B3, dtype=torch.float64) - before)
    w[0] = before[0]
    sigma = task_covariance(w @ w.T)  # of all: client 0 has a model too
    close(sim.server.sigma, sigma)
    inner = torch.arange(3) if stale == "keep" else torch.tensor([1, 2])
    omega = torch.linalg.inv(sigma[inner][:, inner])
    moved = torch.linalg.inv(torch.eye(len(inner), dtype=torch.float64) + 0.1 * omega) @ w[inner]
    close(sim.server.w.flat(), torch.cat([before[:1], moved[-2:]]), 1e-8)


def test_mocha_learned_relations_keep_batch_statistics_apart() -> None:
    """The rows of the step sum to less than one, which would shrink running variances."""
    sim = played("mocha", federation=EVERYBODY, model=NORMED, training=BATCHES, lambda1=0.1, omega="learned", every=1)
    for name in sim.server.w.layout.buffers:
        assert torch.equal(sim.server.w.tensors[name], sim.calls[-1].returned["w"].tensors[name])


def test_mocha_refuses_steps_that_overshoot() -> None:
    # 2 lambda_1 eta R (K - 1) / K = lambda_1 2/3
    with pytest.raises(CoterieError, match="overshoots: lower lambda1"):
        played("mocha", federation=THREE, lambda1=1.5)
    with pytest.raises(CoterieError, match="overshoots: lower lambda2"):
        played("mocha", federation=THREE, lambda2=1.0, omega="learned")
    played("mocha", federation=THREE, lambda1=1e6, omega="learned")  # implicit: no step is too long


# --- HeurFedAMP --------------------------------------------------------------------------------------------------


def test_heurfedamp_is_a_variant_of_fedamp() -> None:
    assert make_algorithm("heurfedamp") == make_algorithm("fedamp", "heuristic")
    assert make_algorithm("fedamp") == make_algorithm("fedamp", "attention")
    assert make_algorithm("fedamp").options()["sigma"] == 1.0


def test_heurfedamp_weighs_by_angle() -> None:
    sim = played("heurfedamp", 2, THREE, sigma=2.0, self_weight=0.4, lambda_=0.5)
    cos = {(0, 1): 0.0, (0, 2): -1 / sqrt(10), (1, 2): 3 / sqrt(10)}
    xi = torch.eye(3, dtype=torch.float64) * 0.4
    for i in range(3):
        others = [j for j in range(3) if j != i]
        scores = {j: exp(2.0 * cos[min(i, j), max(i, j)]) for j in others}
        for j in others:
            xi[i, j] = 0.6 * scores[j] / sum(scores.values())
    u = xi @ W1
    close(sim.algorithm.relations(sim.server)["xi"], xi)
    close(sim.calls[-1].received["u"].flat(), u)
    close(personal(sim), W1 + 0.5 * (torch.tensor(B3) - W1) - 0.25 * (W1 - u))


def test_heurfedamp_with_all_weight_on_itself_mixes_nothing() -> None:
    sim = played("heurfedamp", 2, THREE, self_weight=1.0)
    close(sim.calls[-1].received["u"].flat(), W1)


def test_heurfedamp_of_equal_angles_is_the_mean() -> None:
    across = located([[3.0, 0.0, 0.0], [0.0, 6.0, 0.0], [0.0, 0.0, -9.0]])
    sim = played("heurfedamp", 2, across, self_weight=1 / 3)
    close(sim.calls[-1].received["u"].flat(), sim.calls[0].returned["w"].flat().mean(0).expand(3, -1))


def test_t02_heurfedamp_leaves_identical_clients_identical() -> None:
    sim = played("heurfedamp", 3, alike(4), model=MLP, lambda_=1.0)
    close(personal(sim), personal(sim)[:1].expand(4, -1))


def test_heurfedamp_newcomers_attend_to_the_members_and_themselves() -> None:
    sim = played("heurfedamp", 3, MEMBERS, model=MLP, training=BATCHES)
    coming = admission(sim)
    received = sim.algorithm.adapt(coming.server, torch.arange(2), True)
    assert received is not None
    for i in range(2):
        five = torch.cat([sim.server.w.flat(), coming.bank.get("theta", torch.tensor([i]), call=0).flat()])
        close(received["u"].flat()[i], cosine_attention(cosines(five), 0.1, 10.0)[-1] @ five, 1e-9)


# --- SFL ---------------------------------------------------------------------------------------------------------

A = torch.tensor([[1.0, exp(-1)], [exp(-1), 1.0]], dtype=torch.float64) / (1 + exp(-1))  # the distance is the median


def test_sfl_smooths_along_the_graph() -> None:
    sim = begun("sfl", 2, lambda1=0.1, lambda2=0.2, layers=2, smoothing=0.8)
    sim.advance()
    mixing = 0.8 * A @ A + 0.2 * torch.eye(2, dtype=torch.float64)
    u = mixing @ W1[:2]
    close(sim.server.u.flat(), u)
    close(sim.algorithm.relations(sim.server)["mixing"], mixing)
    close(sim.server.w.flat(), u.mean(0, keepdim=True))
    close(personal(sim), u)
    sim.advance()
    w = u.mean(0)
    close(sim.calls[-1].received["u"].flat(), u)
    v = w + 0.5 * (torch.tensor(B3[:2]) - w) - 0.5 * 2 * 0.2 * (w - u)  # at w its own pull is none
    close(sim.calls[-1].returned["v"].flat(), v)


def test_sfl_the_global_model_is_the_mean_of_the_smoothed_ones() -> None:
    """Of three clients, whose rows sum to one and whose columns do not: the mean of U is not that of V."""
    sim = played("sfl", federation=THREE)
    distances = torch.cdist(W1, W1).square()
    similar = torch.exp(-distances / distances[[0, 0, 1], [1, 2, 2]].median())
    u = torch.linalg.matrix_power(similar / similar.sum(1, keepdim=True), 3) @ W1
    close(sim.server.u.flat(), u)
    close(sim.server.w.flat(), u.mean(0, keepdim=True))
    assert (u.mean(0) - W1.mean(0)).abs().max() > 0.05


def test_t21_sfl_pulls_have_a_gradient_with_the_factor_of_the_square() -> None:
    """A second step feels both: -lr (2 lambda_1 (v - w) + 2 lambda_2 (v - u))."""
    one, two = (played("sfl", 2, lr=0.25, epochs=E, lambda1=0.3, lambda2=0.5) for E in (1, 2))
    w, u = (two.calls[-1].received[name].flat() for name in ("w", "u"))
    v = w
    for _ in range(2):
        v = v - 0.25 * ((v - torch.tensor(B3[:2])) + 0.6 * (v - w) + 1.0 * (v - u))
    close(two.calls[-1].returned["v"].flat(), v)
    assert (v - one.calls[-1].returned["v"].flat()).abs().max() > 0.1


def test_sfl_at_its_limit_forgets_the_start_for_u() -> None:
    """Strength times rate 1: a step from w ends at u, less the rate times the gradient at w."""
    sim = begun("sfl", 1, lambda1=0.0, lambda2=1.0)
    sim.server.u, sim.server.w = models_like(sim, B3[:2]), models_like(sim, [[9.0, 9.0]])
    sim.server.met = torch.ones(2, dtype=torch.bool)
    sim.advance()
    b = torch.tensor(B3[:2])  # u is b here
    close(sim.calls[-1].returned["v"].flat(), b - 0.5 * (9.0 - b))


PLAIN: dict[str, Any] = {"lambda1": 0.0, "lambda2": 0.0}


def test_sfl_with_equal_relations_is_uniform_averaging() -> None:
    ours = played("sfl", 3, THREE, graph="uniform", **PLAIN)
    close(personal(ours), personal(played("fedavg", 3, THREE, weights="uniform")))


def test_sfl_without_relations_trains_apart_from_a_common_start() -> None:
    """A = I: w follows uniform averaging, and each client predicts with its own last model."""
    ours, theirs = played("sfl", 3, THREE, graph="identity", **PLAIN), played("fedavg", 3, THREE, weights="uniform")
    close(ours.server.w.flat(), theirs.server.w.flat())
    close(personal(ours), theirs.calls[-1].returned["w"].flat())


def test_sfl_without_smoothing_keeps_the_own_models() -> None:
    sim = played("sfl", 2, THREE, smoothing=0.0)
    close(sim.server.u.flat(), sim.calls[-1].returned["v"].flat())


@pytest.mark.parametrize("stale", ["keep", "round"])
def test_sfl_absent_clients_contribute_their_last_model(stale: str) -> None:
    absent = {1: ("client-2",), 2: ("client-0",)}
    sim = begun("sfl", 2, THREE, graph="uniform", stale=stale, absent=absent, **PLAIN)
    sim.advance()
    close(sim.server.u.flat(), [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])  # nobody counts the zeros of client 2
    close(personal(sim)[2], [0.0, 0.0])  # which still owns theta^0
    sim.advance()
    close(sim.calls[-1].received["u"].flat(), [[1.0, 2.0], [1.0, 2.0]])  # and then begins with w, having no u
    v = torch.tensor([[2.0, 0.0], [0.5, 5.0], [-0.5, 4.0]], dtype=torch.float64)
    mean = v.mean(0) if stale == "keep" else v[1:].mean(0)
    close(sim.server.w.flat()[0], mean)
    close(
        sim.server.u.flat(), torch.stack([mean if stale == "keep" else torch.tensor([1.0, 2.0]).double(), mean, mean])
    )


def test_sfl_newcomers_take_a_place_in_the_graph() -> None:
    sim = played("sfl", 2, MEMBERS, model=MLP, training=BATCHES, layers=2, smoothing=0.9)
    close(arrived(sim, labelled=False), sim.server.w.flat().expand(2, -1))
    coming = admission(sim)
    received = sim.algorithm.adapt(coming.server, torch.arange(2), True)
    assert received is not None
    site = coming.sites.site(torch.arange(2), torch.arange(2), coming.round)
    w = sim.server.w.repeat(2)
    v = sim.algorithm.local_update(site, w, w)["v"].flat()  # type: ignore[attr-defined]
    for i in range(2):
        five = torch.cat([sim.server.v.flat(), v[i : i + 1]])
        d = torch.cdist(five, five).square()
        d5 = d[torch.ones(5, 5).triu(1).bool()].sort().values
        similar = torch.exp(-d / ((d5[4] + d5[5]) / 2)).fill_diagonal_(1.0)
        rows = similar / similar.sum(1, keepdim=True)
        close(received["theta"].flat()[i], (0.9 * rows @ rows @ five + 0.1 * five)[-1], 1e-8)


# --- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedu", "mocha", "sfl"])
def test_t01_a_single_client_trains_as_local_does(name: str) -> None:
    options = PLAIN if name == "sfl" else {}
    one = classified((9,))
    close(
        personal(played(name, 3, one, model=MLP, training=BATCHES, **options)),
        personal(played("local", 3, one, model=MLP, training=BATCHES)),
    )
