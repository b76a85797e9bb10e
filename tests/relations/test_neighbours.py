"""FEDORA's propagation over a sparse graph: the graph of the dense functions, and their propagation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations import (
    Neighbours,
    neighbour_graph,
    neighbours,
    propagation_matrix,
    row_stochastic,
    similarity_graph,
    solver_for,
    subspace_similarity,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bases(clients: int, dimension: int = 4, p: int = 1, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(clients, dimension, p, seed=seed)).Q


def dense_graph(U: Tensor, **graph: Any) -> Tensor:
    return row_stochastic(similarity_graph(subspace_similarity(U), **{"kind": "exp_cos", "self_loop": False, **graph}))


@given(
    st.integers(0, 2**31 - 1), st.integers(1, 12), st.integers(1, 4), st.booleans(), st.sampled_from(["cos", "exp_cos"])
)
@settings(deadline=None, max_examples=60)
def test_the_graph_by_blocks_is_the_graph(seed: int, clients: int, topk: int, loop: bool, kind: Any) -> None:
    U = bases(clients, seed=seed)
    seen = torch.rand(clients, generator=torch.Generator().manual_seed(seed)) > 0.3
    if clients > 2:
        U[1] = torch.nan
        U[0] = U[2]  # ties
    whole = dense_graph(U, kind=kind, topk=topk, self_loop=loop, seen=seen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "ENTRIES", 3 * clients)
        P = neighbour_graph(U, kind=kind, topk=topk, self_loop=loop, seen=seen)
    torch.testing.assert_close(torch.from_numpy(P.toarray()), whole, rtol=0, atol=1e-14)


def test_ties_go_to_the_lower_index() -> None:
    U = bases(1).expand(5, 4, 1)
    P = neighbour_graph(U, topk=2)
    chosen = [row.nonzero().flatten().tolist() for row in torch.from_numpy(P.toarray())]
    assert chosen == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 4.0, 1e4])
@pytest.mark.parametrize("loop", [False, True])
def test_it_is_the_closed_form(alpha: float, exact: bool, loop: bool) -> None:
    U, theta = bases(40), normal(40, 6)
    P = neighbour_graph(U, self_loop=loop)
    expected = propagation_matrix(torch.from_numpy(P.toarray()), alpha, exact=exact) @ theta
    found = Neighbours(P, alpha, exact=exact)
    torch.testing.assert_close(found.product(theta), expected, rtol=0, atol=1e-10)
    assert found.residual < 1e-11
    single = found.product(theta.float())
    torch.testing.assert_close(single, expected.float(), rtol=0, atol=1e-5)
    assert 1e-9 < found.residual < 1e-2 if alpha else found.residual == 0


def test_without_a_library_of_triangular_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    P, theta = neighbour_graph(bases(30)), normal(30, 6)
    expected = Neighbours(P, 4.0).product(theta)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr(neighbours, "SOLVED", 60)
    torch.testing.assert_close(Neighbours(P, 4.0).product(theta), expected, rtol=0, atol=1e-13)


def test_the_residual_is_that_of_the_worst_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    found, theta = Neighbours(neighbour_graph(bases(20)), 4.0), normal(20, 6)
    solve = neighbours._System.solve
    monkeypatch.setattr(neighbours._System, "solve", lambda self, right: solve(self, right) * (1 + 1e-3))
    theta[:, 3] *= 100
    found.product(theta)
    assert found.residual == pytest.approx(1e-3, rel=1e-9)
    found.product(torch.zeros(20, 2, dtype=torch.float64))
    assert found.residual == pytest.approx(1e-3, rel=1e-9)


def test_unseen_clients_pass_nothing_on_and_lonely_ones_keep_their_models() -> None:
    U, theta = bases(12), normal(12, 3)
    U[4] = torch.nan
    seen = torch.arange(12) > 2
    found = Neighbours(neighbour_graph(U, seen=seen), 4.0)
    result = found.product(theta)
    assert torch.equal(result[4], theta[4])
    expected = propagation_matrix(dense_graph(U, topk=2, seen=seen), 4.0) @ theta
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-12)
    changed = theta.clone()
    changed[:3] += 100.0
    torch.testing.assert_close(found.product(changed)[3:], result[3:], rtol=0, atol=1e-14)


@pytest.mark.parametrize("clients", [1, 3])
def test_nobody_known(clients: int) -> None:
    theta = normal(clients, 2)
    found = Neighbours(neighbour_graph(torch.full((clients, 4, 1), torch.nan)), 4.0)
    assert torch.equal(found.product(theta), theta)


def test_counts_take_the_largest_of_those_who_are_heard() -> None:
    """As where A is written out: over the models with weight."""
    P = neighbour_graph(bases(30), seen=torch.arange(30) % 4 > 0)
    A = propagation_matrix(torch.from_numpy(P.toarray()), 4.0)
    counts = torch.randint(0, 1000, (30, 2), generator=torch.Generator().manual_seed(0))
    expected = torch.where((A > 0).unsqueeze(-1), counts, -1).amax(1)
    assert torch.equal(Neighbours(P, 4.0).greatest(counts), expected)


def test_what_is_saved_is_all(tmp_path: Any) -> None:
    found, theta = Neighbours(neighbour_graph(bases(20)), 4.0, exact=True), normal(20, 5)
    before = found.product(theta)
    torch.save(found.state_dict(), tmp_path / "state.pt")
    again = Neighbours()
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.residual == found.residual > 0
    assert torch.equal(again.product(theta), before)


@pytest.mark.parametrize("alpha", [-1.0, math.nan, math.inf])
def test_alpha_must_be_finite(alpha: float) -> None:
    with pytest.raises(CoterieError, match="finite alpha"):
        Neighbours(neighbour_graph(bases(3)), alpha)


def test_the_solver_by_size() -> None:
    assert {solver_for(3000, topk, symmetric=s) for topk in (None, 0) for s in (True, False)} == {"closed_form"}
    assert {solver_for(1000, 2, symmetric=s) for s in (True, False)} == {"closed_form"}
    assert {solver_for(1001, 2, symmetric=s) for s in (True, False)} == {"sparse"}
    assert solver_for(3001, 0, symmetric=True) == "low_rank"
    assert solver_for(3001, None, symmetric=False) == "closed_form"
