"""Subspaces of the clients' data: textbook definitions, invariances, bad input."""

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations import joint_matrix, principal_subspace, subspace_similarity

SEEDS = st.integers(0, 2**31 - 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(size: int, seed: int = 0) -> Tensor:
    return bases(1, size, size, seed)[0]


def bases(clients: int, rows: int, rank: int, seed: int = 0) -> Tensor:
    basis: Tensor = torch.linalg.qr(normal(clients, rows, rank, seed=seed)).Q
    return basis


def projector(basis: Tensor) -> Tensor:
    return basis @ basis.T


# The joint matrix


def test_joint_matrix_stacks_features_over_scaled_one_hot_labels() -> None:
    inputs = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    z = joint_matrix(inputs, torch.tensor([2, 0]), 3, label_scale=0.5)
    expected = torch.tensor([[1.0, 3.0], [2.0, 4.0], [0.0, 0.5], [0.0, 0.0], [0.5, 0.0]])
    torch.testing.assert_close(z, expected, rtol=0, atol=0)


def test_joint_matrix_of_a_regression_ends_with_the_targets() -> None:
    inputs = torch.tensor([[1.0], [2.0]])
    one = joint_matrix(inputs, torch.tensor([5.0, 7.0]), 1, task="regression")
    torch.testing.assert_close(one, torch.tensor([[1.0, 2.0], [5.0, 7.0]]), rtol=0, atol=0)
    two = joint_matrix(inputs, torch.tensor([[5.0, 6.0], [7.0, 8.0]]), 2, 2.0, "regression")
    torch.testing.assert_close(two, torch.tensor([[1.0, 2.0], [10.0, 14.0], [12.0, 16.0]]), rtol=0, atol=0)


def test_joint_matrix_without_targets_holds_the_features_only() -> None:
    inputs = normal(4, 1, 2, 3)
    assert torch.equal(joint_matrix(inputs, None, 10), inputs.reshape(4, 6).T)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_outside_the_classes_is_refused(label: int) -> None:
    with pytest.raises(CoterieError, match=r"0\.\.2"):
        joint_matrix(normal(2, 2), torch.tensor([0, label]), 3)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(CoterieError, match="ranking"):
        joint_matrix(normal(2, 2), torch.tensor([0, 1]), 2, task="ranking")


# The principal subspace


@pytest.mark.parametrize(("rows", "columns"), [(7, 30), (30, 7), (12, 12)])
@pytest.mark.parametrize("rank", [1, 3])
def test_basis_is_that_of_the_singular_value_decomposition(rows: int, columns: int, rank: int) -> None:
    z = normal(rows, columns, seed=rows)
    expected = torch.as_tensor(np.linalg.svd(z.numpy())[0][:, :rank])
    basis = principal_subspace(z, rank)
    torch.testing.assert_close((basis.T @ expected).abs(), torch.eye(rank, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(basis.T @ basis, torch.eye(rank, dtype=torch.float64), atol=1e-10, rtol=0)


@pytest.mark.parametrize(("rows", "columns"), [(8, 20), (20, 8)])
def test_small_singular_values_keep_their_accuracy(rows: int, columns: int) -> None:
    """Singular values from 1 to 1e-9: their squares drown in the rounding of a Gram matrix."""
    left, right = orthogonal(rows, seed=1)[:, :4], orthogonal(columns, seed=2)[:, :4]
    z = left @ torch.diag(torch.tensor([1.0, 1e-3, 1e-6, 1e-9], dtype=torch.float64)) @ right.T
    basis = principal_subspace(z, 4)
    torch.testing.assert_close((basis.T @ left).abs(), torch.eye(4, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(basis.T @ basis, torch.eye(4, dtype=torch.float64), atol=1e-10, rtol=0)


def test_many_clients_of_different_size_give_the_same_as_one_by_one() -> None:
    data = [normal(9, n, seed=n) for n in (2, 9, 40)]
    together = principal_subspace(data, 2)
    assert together.shape == (3, 9, 2)
    for basis, z in zip(together, data, strict=True):
        assert torch.equal(basis, principal_subspace(z, 2))
    stacked = torch.stack([data[1], data[1]])
    assert torch.equal(principal_subspace(stacked, 2)[1], together[1])


def test_float32_data_are_computed_in_float64_and_returned_in_float32() -> None:
    z = normal(20, 15).to(torch.float32)
    basis = principal_subspace(z, 2)
    assert basis.dtype == torch.float32
    assert torch.equal(basis, principal_subspace(z.to(torch.float64), 2).to(torch.float32))


def test_signs_are_fixed() -> None:
    z = normal(10, 14)
    basis = principal_subspace(z, 3)
    torch.testing.assert_close(principal_subspace(-z, 3), basis, atol=1e-12, rtol=0)
    peaks = basis.gather(0, basis.abs().argmax(dim=0, keepdim=True))
    assert bool((peaks > 0).all())


@given(SEEDS, st.integers(2, 8), st.integers(2, 8))
@settings(deadline=None, max_examples=40)
def test_order_and_rotation_of_the_examples_do_not_matter(seed: int, rows: int, columns: int) -> None:
    spectrum = torch.arange(min(rows, columns), 0, -1, dtype=torch.float64)
    left, right = (
        orthogonal(rows, seed)[:, : len(spectrum)],
        orthogonal(columns, seed + 1)[:, : len(spectrum)],
    )
    z = left @ torch.diag(spectrum) @ right.T
    turned = z @ orthogonal(columns, seed + 2)
    shuffled = z[:, torch.randperm(columns, generator=torch.Generator().manual_seed(seed))]
    expected = projector(left[:, :2])
    for data in (z, turned, shuffled):
        torch.testing.assert_close(projector(principal_subspace(data, 2)), expected, atol=1e-9, rtol=0)


@given(SEEDS)
@settings(deadline=None, max_examples=20)
def test_rotating_the_features_rotates_the_basis(seed: int) -> None:
    z = orthogonal(6, seed)[:, :4] @ torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    turn = orthogonal(6, seed + 1)
    turned = projector(principal_subspace(turn @ z, 2))
    torch.testing.assert_close(turned, turn @ projector(principal_subspace(z, 2)) @ turn.T, atol=1e-10, rtol=0)


def test_data_that_are_not_finite_spoil_their_own_client_only() -> None:
    data = normal(3, 6, 5)
    clean = principal_subspace(data, 2)
    for bad in (torch.nan, torch.inf):
        spoilt = data.clone()
        spoilt[1, 0, 0] = bad
        basis = principal_subspace(spoilt, 2)
        assert bool(basis[1].isnan().all())
        assert torch.equal(basis[[0, 2]], clean[[0, 2]])


def test_a_rank_beyond_the_data_is_refused_and_names_the_client() -> None:
    with pytest.raises(CoterieError, match="at least 1"):
        principal_subspace(normal(5, 5), 0)
    with pytest.raises(CoterieError, match="2 of 2 is 5 x 2"):
        principal_subspace([normal(5, 5), normal(5, 2)], 3)
    with pytest.raises(CoterieError, match="rank below 2"):
        principal_subspace(torch.ones(5, 4), 2)
    with pytest.raises(CoterieError, match="rank below 1"):
        principal_subspace(torch.zeros(5, 4), 1)


# The similarity of subspaces


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_similarity_is_the_sum_of_the_cosines_of_the_principal_angles(rank: int) -> None:
    u = bases(5, 9, rank)
    similarity = subspace_similarity(u)
    for k in range(5):
        for other in range(5):
            angles = scipy.linalg.subspace_angles(u[k].numpy(), u[other].numpy())
            assert float(similarity[k, other]) == pytest.approx(float(np.cos(angles).sum()), abs=1e-10)


def test_rank_one_is_the_absolute_cosine() -> None:
    u = torch.tensor([[[1.0], [0.0]], [[0.0], [1.0]], [[-0.6], [0.8]]], dtype=torch.float64)
    expected = torch.tensor([[1.0, 0.0, 0.6], [0.0, 1.0, 0.8], [0.6, 0.8, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(subspace_similarity(u), expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("rank", [1, 3])
def test_identical_clients_are_similar_by_p(rank: int) -> None:
    u = bases(1, 8, rank).expand(4, 8, rank)
    expected = torch.full((4, 4), float(rank), dtype=torch.float64)
    torch.testing.assert_close(subspace_similarity(u), expected, atol=1e-12, rtol=0)


@given(SEEDS, st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_signs_and_rotations_leave_the_similarity_unchanged(seed: int, rank: int) -> None:
    u = bases(4, 7, rank, seed)
    similarity = subspace_similarity(u)
    signs = normal(4, 1, rank, seed=seed).sign()
    turn_space = orthogonal(7, seed + 1)
    turn_basis = torch.stack([orthogonal(rank, seed + k) for k in range(4)])
    for changed in (u * signs, turn_space @ u, u @ turn_basis):
        torch.testing.assert_close(subspace_similarity(changed), similarity, atol=1e-10, rtol=0)


@given(SEEDS, st.integers(1, 3), st.permutations(range(5)))
@settings(deadline=None, max_examples=40)
def test_similarity_is_symmetric_bounded_and_equivariant(seed: int, rank: int, order: list[int]) -> None:
    u = bases(5, 6, rank, seed)
    similarity = subspace_similarity(u)
    assert torch.equal(similarity, similarity.T)
    assert 0 <= float(similarity.min()) <= float(similarity.max()) <= rank
    torch.testing.assert_close(similarity.diagonal(), torch.full((5,), float(rank), dtype=torch.float64))
    torch.testing.assert_close(subspace_similarity(u[order]), similarity[order][:, order], atol=1e-12, rtol=0)


@pytest.mark.parametrize("rank", [1, 2])
def test_newcomers_are_compared_with_the_others(rank: int) -> None:
    u = bases(5, 6, rank)
    torch.testing.assert_close(subspace_similarity(u[:2], u[2:]), subspace_similarity(u)[:2, 2:], atol=1e-12, rtol=0)


@pytest.mark.parametrize("rank", [1, 2])
def test_an_unknown_basis_gives_unknown_relations_of_that_client_only(rank: int) -> None:
    u = bases(4, 6, rank)
    clean = subspace_similarity(u)
    u[2] = torch.nan
    similarity = subspace_similarity(u)
    keep = [0, 1, 3]
    assert bool(similarity[2].isnan().all())
    assert bool(similarity[:, 2].isnan().all())
    torch.testing.assert_close(similarity[keep][:, keep], clean[keep][:, keep], atol=1e-14, rtol=0)
