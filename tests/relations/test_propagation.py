"""FEDORA's propagation: the graph, the closed form, its limits and its iteration."""

import math
from typing import Literal

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations import (
    normalised,
    propagate_iteratively,
    propagation_matrix,
    restrict,
    row_stochastic,
    similarity_graph,
    subspace_similarity,
    taking_rows,
)

SEEDS = st.integers(0, 2**31 - 1)
ALPHAS = st.sampled_from([0.0, 0.01, 0.5, 1.0, 1.7, 4.0, 10.0, 1e4, math.inf])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(clients: int, seed: int = 0) -> Tensor:
    draw = uniform(clients, clients, seed=seed) + 0.05
    return (draw + draw.T) / 2


def identity(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def assert_equal(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


# The graph


def test_paper_graph_is_the_similarity_itself() -> None:
    similarity = symmetric(4)
    assert torch.equal(similarity_graph(similarity), similarity)


def test_released_graph_by_hand() -> None:
    similarity = torch.tensor(
        [[1.0, 0.9, 0.8, 0.7], [0.9, 1.0, 0.6, 0.65], [0.8, 0.6, 1.0, 0.5], [0.7, 0.65, 0.5, 1.0]],
        dtype=torch.float64,
    )
    W = similarity_graph(similarity, kind="exp_cos", temperature=10.0, topk=2, self_loop=False)
    kept = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    assert_equal(W, torch.where(kept, (10 * similarity).exp(), torch.zeros_like(similarity)), 1e-9)


def test_ties_go_to_the_lower_index_even_across_rounding() -> None:
    similarity = torch.full((5, 5), 0.5, dtype=torch.float64)
    similarity[0, 4] += 1e-14
    W = similarity_graph(similarity, topk=2, self_loop=False)
    assert (W > 0).tolist() == [
        [False, True, True, False, False],
        [True, False, True, False, False],
        [True, True, False, False, False],
        [True, True, False, False, False],
        [True, True, False, False, False],
    ]


def test_the_own_client_is_a_candidate_when_the_loop_is_kept() -> None:
    W = similarity_graph(symmetric(5).fill_diagonal_(2.0), topk=2, self_loop=True)
    assert bool((W.diagonal() == 2).all())
    assert bool(((W > 0).sum(dim=1) == 2).all())


def test_more_neighbours_than_clients_keep_all() -> None:
    similarity = symmetric(3)
    assert torch.equal(similarity_graph(similarity, topk=7), similarity)


@pytest.mark.parametrize("kind", ["cos", "exp_cos"])
@pytest.mark.parametrize("topk", [None, 2])
def test_unknown_negative_and_unseen_relations_are_no_edge(kind: Literal["cos", "exp_cos"], topk: int | None) -> None:
    similarity = symmetric(5)
    similarity[1] = torch.nan
    similarity[:, 1] = torch.nan
    similarity[0, 2] = -0.5
    seen = torch.tensor([True, True, True, True, False])
    W = similarity_graph(similarity, kind=kind, topk=topk, seen=seen)
    assert bool(torch.isfinite(W).all())
    assert bool((W[1] == 0).all())
    assert bool((W[:, [1, 4]] == 0).all())
    assert float(W[0, 2]) == 0
    # The unseen client may look for neighbours among the seen, and finds as many as asked for.
    assert int((W[4] > 0).sum()) == (3 if topk is None else 2)
    assert row_stochastic(W)[1].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0]


def test_temperature_zero_makes_all_clients_equal() -> None:
    W = similarity_graph(symmetric(4), kind="exp_cos", temperature=0.0)
    assert torch.equal(W, torch.ones(4, 4, dtype=torch.float64))


def test_impossible_graph_options_are_refused() -> None:
    with pytest.raises(CoterieError, match="topk"):
        similarity_graph(symmetric(3), topk=0)
    with pytest.raises(CoterieError, match="overflows"):
        similarity_graph(symmetric(3), kind="exp_cos", temperature=1e4)
    with pytest.raises(CoterieError, match="temperature"):
        similarity_graph(symmetric(3), kind="exp_cos", temperature=-1.0)


def test_row_normalisation_by_hand() -> None:
    W = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert row_stochastic(W).tolist() == [[0.25, 0.75], [0.0, 1.0]]
    assert row_stochastic(W, fallback="uniform").tolist() == [[0.25, 0.75], [0.5, 0.5]]


def test_newcomers_have_rows_but_no_column() -> None:
    assert row_stochastic(torch.zeros(1, 4), fallback="uniform").tolist() == [[0.25] * 4]
    with pytest.raises(ValueError, match="1 x 4"):
        row_stochastic(torch.zeros(1, 4))


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_weights_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        row_stochastic(torch.tensor([[1.0, bad], [1.0, 1.0]]))


def test_restriction_drops_columns_and_renormalises_rows() -> None:
    W = torch.tensor([[2.0, 1.0, 1.0], [4.0, 2.0, 2.0], [0.0, 5.0, 0.0]])
    P = restrict(W, torch.tensor([True, False, True]))
    expected = [[2 / 3, 0, 1 / 3], [2 / 3, 0, 1 / 3], [0, 0, 1]]
    assert_equal(P, torch.tensor(expected, dtype=torch.float64), 1e-15)
    assert torch.equal(restrict(W, torch.ones(3, dtype=torch.bool)), row_stochastic(W))
    assert torch.equal(restrict(W, torch.zeros(3, dtype=torch.bool)), identity(3))


def test_models_of_unseen_clients_reach_nobody_else() -> None:
    seen = torch.tensor([True, False, True, True])
    for alpha in (0.5, 4.0, math.inf):
        A = propagation_matrix(restrict(symmetric(4), seen), alpha)
        assert bool((A[seen, 1] == 0).all())


# The closed form


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0, 30.0])
def test_closed_form_is_equation_six_as_printed(alpha: float) -> None:
    P = row_stochastic(uniform(6, 6))
    kappa = alpha / (1 + alpha)
    assert_equal(propagation_matrix(P, alpha), (1 - kappa) * torch.linalg.inv(identity(6) - kappa * P))


@pytest.mark.parametrize("senders", [[], [3], [0, 2, 5], list(range(7))])
def test_only_clients_that_pass_something_on_are_in_the_system(
    senders: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.zeros(7, 7, dtype=torch.float64)
    weights[:, senders] = torch.rand(7, len(senders), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    P = row_stochastic(weights)
    expected = torch.linalg.inv(torch.eye(7, dtype=torch.float64) + 1.7 * (torch.eye(7, dtype=torch.float64) - P))
    solve, sizes = torch.linalg.solve, []

    def noted(system: Tensor, right: Tensor) -> Tensor:
        sizes.append(len(system))
        return solve(system, right)

    monkeypatch.setattr(torch.linalg, "solve", noted)
    torch.testing.assert_close(propagation_matrix(P, 1.7), expected, rtol=0, atol=1e-13)
    assert sizes == [len(senders)]


def test_closed_form_is_the_limit_of_the_iteration() -> None:
    """300 steps at alpha = 1.7 leave an error below 1e-12."""
    P, theta = row_stochastic(uniform(7, 7)), normal(7, 5)
    kappa = 1.7 / 2.7
    current = theta
    for _ in range(300):
        current = kappa * P @ current + (1 - kappa) * theta
    assert_equal(propagation_matrix(P, 1.7) @ theta, current)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 4.0, math.inf])
def test_unrelated_clients_keep_their_models(alpha: float, exact: bool) -> None:
    assert torch.equal(propagation_matrix(row_stochastic(identity(5)), alpha, exact=exact), identity(5))


@pytest.mark.parametrize("exact", [False, True])
def test_alpha_zero_propagates_nothing(exact: bool) -> None:
    assert torch.equal(propagation_matrix(row_stochastic(uniform(5, 5)), 0.0, exact=exact), identity(5))


@pytest.mark.parametrize("alpha", [0.0, 1.0, math.inf])
def test_one_client_keeps_its_model(alpha: float) -> None:
    W = similarity_graph(torch.ones(1, 1), topk=2, self_loop=False)
    assert propagation_matrix(row_stochastic(W), alpha).tolist() == [[1.0]]


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0, 1e3, math.inf])
def test_weights_by_sample_size_mix_with_the_federated_average(alpha: float) -> None:
    """w_kk' = n_k' / n: A = (1 - kappa) I + kappa 1 q', the own model and FedAvg's."""
    q = normalised(torch.tensor([10, 20, 5, 65]))
    P = row_stochastic(q.expand(4, 4))
    kappa = 1.0 if math.isinf(alpha) else alpha / (1 + alpha)
    assert_equal(propagation_matrix(P, alpha), (1 - kappa) * identity(4) + kappa * q.expand(4, 4))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 8.0])
def test_uniform_graph_without_loops_shrinks_towards_the_mean(alpha: float) -> None:
    clients, theta = 6, normal(6, 4)
    P = row_stochastic(1 - identity(clients))
    kappa = alpha / (1 + alpha)
    c = (1 - kappa) / (1 + kappa / (clients - 1))
    mean = theta.mean(dim=0, keepdim=True)
    for exact in (False, True):
        assert_equal(propagation_matrix(P, alpha, exact=exact) @ theta, mean + c * (theta - mean))


@pytest.mark.parametrize("alpha", [1.0, 4.0, math.inf])
@pytest.mark.parametrize("rank", [1, 2])
def test_identical_clients_receive_equal_models(alpha: float, rank: int) -> None:
    basis = torch.linalg.qr(normal(1, 6, rank)).Q.expand(4, 6, rank)
    P = row_stochastic(similarity_graph(subspace_similarity(basis)))
    assert_equal(P, torch.full((4, 4), 0.25, dtype=torch.float64))
    theta = normal(1, 3).expand(4, 3)
    assert_equal(propagation_matrix(P, alpha) @ theta, theta)


# Infinite alpha


def test_infinite_alpha_is_the_degree_weighted_average() -> None:
    """Symmetric irreducible W: theta_hat = sum_k (D_kk / sum D) theta_k for every client."""
    W = symmetric(6)
    degrees = W.sum(dim=1)
    A = propagation_matrix(row_stochastic(W), math.inf)
    assert_equal(A, (degrees / degrees.sum()).expand(6, 6))


def test_infinite_alpha_on_a_periodic_graph() -> None:
    """Two clients that only see each other: powers of P alternate, the limit of the closed form does not."""
    P = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert_equal(propagation_matrix(P, math.inf), torch.full((2, 2), 0.5, dtype=torch.float64))


def test_infinite_alpha_averages_within_each_component() -> None:
    component = torch.tensor([0, 0, 0, 1, 1, 2])
    W = torch.where(component[:, None] == component[None, :], symmetric(6), torch.zeros(6, 6).to(torch.float64))
    order = torch.tensor([4, 0, 5, 2, 3, 1])
    W = W[order][:, order]
    component = component[order]
    degrees = torch.where(component[:, None] == component[None, :], W.sum(dim=1)[None, :], torch.zeros_like(W))
    A = propagation_matrix(row_stochastic(W), math.inf)
    assert_equal(A, degrees / degrees.sum(dim=1, keepdim=True))


def test_infinite_alpha_with_clients_that_nobody_listens_to() -> None:
    """Client 0 listens to 1 (share 1/4) and 2 (share 3/4), who listen to themselves: gambler's ruin."""
    P = torch.tensor([[0.5, 0.125, 0.375], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    expected = torch.tensor([[0, 0.25, 0.75], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    assert_equal(propagation_matrix(P, math.inf), expected)


@given(SEEDS, st.integers(2, 7), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=80)
def test_infinite_alpha_is_the_limit_on_any_graph(seed: int, clients: int, topk: int, exact: bool) -> None:
    """Top-k graphs are not symmetric, often reducible and sometimes periodic."""
    P = row_stochastic(similarity_graph(symmetric(clients, seed), topk=topk, self_loop=False))
    limit = propagation_matrix(P, math.inf, exact=exact)
    assert_equal(propagation_matrix(P, 1e9, exact=exact), limit, 1e-5)
    if not exact:
        assert_equal(P @ limit, limit, 1e-10)
        assert_equal(limit @ P, limit, 1e-10)


# The exact minimiser


def printed_objective(P: Tensor, alpha: float, theta: Tensor, theta_hat: Tensor) -> Tensor:
    pairs = (theta_hat[:, None] - theta_hat[None, :]).square().sum(dim=2)
    return (theta - theta_hat).square().sum() + alpha / 2 * (P * pairs).sum()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_exact_minimises_the_printed_objective(alpha: float) -> None:
    P, theta = row_stochastic(uniform(5, 5)), normal(5, 3)
    minimiser = (propagation_matrix(P, alpha, exact=True) @ theta).requires_grad_()
    (gradient,) = torch.autograd.grad(printed_objective(P, alpha, theta, minimiser), minimiser)
    assert_equal(gradient, torch.zeros_like(gradient), 1e-11)
    closed_form = propagation_matrix(P, alpha) @ theta
    assert float(printed_objective(P, alpha, theta, closed_form)) > float(
        printed_objective(P, alpha, theta, minimiser.detach())
    )


def test_exact_is_the_formula_with_column_sums() -> None:
    P, alpha = row_stochastic(uniform(5, 5)), 1.3
    C = torch.diag(P.sum(dim=0))
    expected = torch.linalg.inv(identity(5) + alpha / 2 * (identity(5) + C - P - P.T))
    assert_equal(propagation_matrix(P, alpha, exact=True), expected)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0, math.inf])
def test_exact_equals_equation_six_for_circulant_weights(alpha: float) -> None:
    """A symmetric circulant W (clients on a circle) has equal degrees, so P is symmetric."""
    ring = torch.tensor([1.0, 0.7, 0.2, 0.1, 0.2, 0.7], dtype=torch.float64)
    P = row_stochastic(torch.stack([ring.roll(k) for k in range(6)]))
    assert_equal(P, P.T, 1e-15)
    assert_equal(propagation_matrix(P, alpha, exact=True), propagation_matrix(P, alpha))


# The iteration


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, 4.0, 50.0])
def test_iteration_reaches_the_closed_form(alpha: float) -> None:
    P, theta = row_stochastic(uniform(6, 6)), normal(6, 2, 3)
    expected = (propagation_matrix(P, alpha) @ theta.flatten(1)).reshape(6, 2, 3)
    assert_equal(propagate_iteratively(P, theta, alpha, 1e-14), expected, 1e-11)
    assert_equal(propagate_iteratively(P, theta, alpha), expected, 1e-4)


def test_iterated_matrix_mixes_like_the_iteration() -> None:
    P, theta = row_stochastic(uniform(6, 6)), normal(6, 4)
    A = propagate_iteratively(P, identity(6), 4.0, 1e-14)
    assert_equal(A @ theta, propagate_iteratively(P, theta, 4.0, 1e-14))


def test_the_first_step_starts_from_theta() -> None:
    """A tolerance that the first step meets: theta_hat = kappa P theta + (1 - kappa) theta."""
    P, theta = row_stochastic(uniform(4, 4)), 1 + 1e-3 * uniform(4, 2)
    assert_equal(propagate_iteratively(P, theta, 1.0, 0.5), 0.5 * P @ theta + 0.5 * theta, 1e-15)


def test_iteration_keeps_the_dtype_and_the_input() -> None:
    P, theta = row_stochastic(uniform(4, 4)), normal(4, 3).to(torch.float32)
    before = theta.clone()
    for alpha in (0.0, 1.0):
        result = propagate_iteratively(P, theta, alpha)
        assert result.dtype == torch.float32
        assert result.data_ptr() != theta.data_ptr()
    assert torch.equal(theta, before)


def test_zero_models_stay_zero() -> None:
    zero = torch.zeros(3, 2)
    assert torch.equal(propagate_iteratively(row_stochastic(uniform(3, 3)), zero, 1.0), zero)


@pytest.mark.parametrize("alpha", [-1.0, math.nan])
def test_a_negative_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(CoterieError, match="alpha"):
        propagation_matrix(identity(2), alpha)
    with pytest.raises(CoterieError, match="alpha"):
        propagate_iteratively(identity(2), identity(2), alpha)


def test_the_iteration_needs_a_finite_alpha_and_a_tolerance() -> None:
    for alpha in (math.inf, 1e30):
        with pytest.raises(CoterieError, match="finite alpha"):
            propagate_iteratively(identity(2), identity(2), alpha)
    for tolerance in (0.0, 1.0):
        with pytest.raises(CoterieError, match="tolerance"):
            propagate_iteratively(identity(2), identity(2), 1.0, tolerance)


# The rate of the whole method on quadratics


@given(SEEDS, st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0.1, 10))
@settings(deadline=None, max_examples=40)
def test_quadratics_contract_at_least_at_the_proved_rate(seed: int, mu: float, strength: float, alpha: float) -> None:
    """F_k = mu/2 |theta - b_k|^2, exact client solves, symmetric P: factor 2 lambda / (mu + 2 lambda)."""
    ring = uniform(5, seed=seed) + 0.01
    circulant = torch.stack([ring.roll(k) for k in range(5)])
    P = row_stochastic(circulant + circulant.T)
    A = propagation_matrix(P, alpha)
    b, theta = normal(5, 3, seed=seed), 10 * normal(5, 3, seed=seed + 1)
    rate = 2 * strength / (mu + 2 * strength)
    optimum = torch.linalg.solve(identity(5) - rate * A, (1 - rate) * b)
    for _ in range(5):
        error = float((theta - optimum).norm())
        theta = (1 - rate) * b + rate * (A @ theta)
        assert float((theta - optimum).norm()) <= rate * error * (1 + 1e-9) + 1e-11


# Properties


@given(SEEDS, st.integers(1, 7), ALPHAS, st.booleans(), st.sampled_from([None, 1, 2]), st.booleans())
@settings(deadline=None, max_examples=100)
def test_propagation_mixes_convexly(
    seed: int, clients: int, alpha: float, exact: bool, topk: int | None, loop: bool
) -> None:
    P = row_stochastic(similarity_graph(symmetric(clients, seed), topk=topk, self_loop=loop))
    A = propagation_matrix(P, alpha, exact=exact)
    ones = torch.ones(clients, dtype=torch.float64)
    assert float(P.min()) >= 0
    assert float(A.min()) >= 0
    assert_equal(P.sum(dim=1), ones)
    assert_equal(A.sum(dim=1), ones)
    if math.isfinite(alpha) and not exact:
        # Equation 6 as a fixed point, and the own weight of at least 1 - kappa.
        kappa = alpha / (1 + alpha)
        assert_equal(kappa * P @ A + (1 - kappa) * identity(clients), A, 1e-10)
        assert bool((A.diagonal() >= 1 - kappa - 1e-12).all())


@given(SEEDS, ALPHAS, st.booleans(), st.permutations(range(6)), st.sampled_from([None, 2]))
@settings(deadline=None, max_examples=80)
def test_propagation_follows_its_clients(
    seed: int, alpha: float, exact: bool, order: list[int], topk: int | None
) -> None:
    similarity = symmetric(6, seed)

    def propagation(s: Tensor) -> Tensor:
        P = row_stochastic(similarity_graph(s, kind="exp_cos", topk=topk, self_loop=False))
        return propagation_matrix(P, alpha, exact=exact)

    # A tie would be broken by the order of the clients.
    assume(len(set(similarity.flatten().tolist())) == 21)
    assert_equal(propagation(similarity[order][:, order]), propagation(similarity)[order][:, order], 1e-8)


@given(SEEDS, st.lists(st.booleans(), min_size=5, max_size=5))
@settings(deadline=None, max_examples=40)
def test_restriction_is_row_stochastic(seed: int, flags: list[bool]) -> None:
    seen = torch.tensor(flags)
    P = restrict(symmetric(5, seed), seen)
    assert float(P.min()) >= 0
    assert_equal(P.sum(dim=1), torch.ones(5, dtype=torch.float64))
    if any(flags):
        assert bool((P[:, ~seen] == 0).all())


@pytest.mark.parametrize("alpha", [0.0, 0.5, 4.0, math.inf])
def test_rows_of_those_who_only_take_are_those_of_the_whole_matrix(alpha: float) -> None:
    W = torch.rand(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    W[:, [1, 4]] = 0.0  # they pass nothing on
    W[4] = 0.0  # and this one takes nothing either
    A = propagation_matrix(row_stochastic(W), alpha)
    theta = torch.rand(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    theta_hat = A @ theta
    takers = torch.tensor([4, 1])
    known = theta_hat.clone()
    known[takers] = theta[takers]  # they have received nothing so far
    rows = taking_rows(W[takers], takers, alpha)
    torch.testing.assert_close(rows @ known, theta_hat[takers], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rows.sum(1), torch.ones(2, dtype=torch.float64))
