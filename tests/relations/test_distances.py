"""Distances and cosines against their definitions, and where the Gram trick fails."""

import numpy as np
import pytest
import scipy.spatial.distance
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.relations import cosines, distances, median_distance, squared_distances

SEEDS = st.integers(0, 2**31 - 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(theta: Tensor) -> Tensor:
    difference = theta[:, None].to(torch.float64) - theta[None, :].to(torch.float64)
    return difference.square().sum(dim=2)


def test_distances_are_those_of_the_definition() -> None:
    theta = normal(6, 11)
    expected = scipy.spatial.distance.cdist(theta.numpy(), theta.numpy(), "sqeuclidean")
    torch.testing.assert_close(squared_distances(theta), torch.as_tensor(expected), atol=1e-12, rtol=1e-12)


def test_cosines_are_those_of_the_definition() -> None:
    theta = normal(6, 11)
    expected = 1 - scipy.spatial.distance.cdist(theta.numpy(), theta.numpy(), "cosine")
    torch.testing.assert_close(cosines(theta), torch.as_tensor(expected), atol=1e-14, rtol=0)


def test_blocks_add_up_to_the_whole() -> None:
    theta = normal(5, 24)
    blocks = [theta[:, :6].reshape(5, 2, 3), theta[:, 6:6], theta[:, 6:7], theta[:, 7:]]
    torch.testing.assert_close(squared_distances(blocks), squared_distances(theta), atol=1e-12, rtol=0)
    torch.testing.assert_close(squared_distances(iter(blocks)), squared_distances(theta), atol=1e-12, rtol=0)
    torch.testing.assert_close(cosines(blocks), cosines(theta), atol=1e-14, rtol=0)


def test_vectors_of_scalars_are_models_of_one_parameter() -> None:
    assert squared_distances(torch.tensor([1.0, 4.0])).tolist() == [[0.0, 9.0], [9.0, 0.0]]


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    theta = torch.cat([normal(4, 50), normal(4, 50) + 1e-7 * normal(4, 50, seed=1)])
    distance, cosine = squared_distances(theta), cosines(theta)
    monkeypatch.setattr(distances, "CHUNK", 32)
    torch.testing.assert_close(squared_distances(theta), distance, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(cosines(theta), cosine, atol=1e-14, rtol=0)


def test_close_models_far_from_zero_keep_their_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models 1e-5 apart around 1e4: the Gram trick without centring has no correct digit left.

    How wrong it is depends on the order in which a machine adds: a distance of exactly 0, an error of 1, is the best.
    Centring alone must do, because measuring every pair again costs many times as much.
    """
    monkeypatch.setattr(distances, "CLOSE", -1.0)
    theta = 1e4 + 1e-5 * normal(8, 200)
    torch.testing.assert_close(squared_distances(theta), by_definition(theta), rtol=1e-9, atol=0)
    gram = theta @ theta.T
    naive = gram.diagonal()[:, None] + gram.diagonal()[None, :] - 2 * gram
    apart = ~torch.eye(len(theta), dtype=torch.bool)
    right = by_definition(theta)[apart]
    assert float(((naive[apart] - right).abs() / right).min()) >= 0.99


def test_two_distant_tight_groups_keep_their_inner_distances() -> None:
    """Centring alone cannot help here: the pair is close compared with its distance to the centre."""
    theta = torch.cat([1e3 + 1e-6 * normal(3, 100), -1e3 + 1e-6 * normal(3, 100, seed=1)])
    torch.testing.assert_close(squared_distances(theta), by_definition(theta), rtol=1e-9, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 1, 40])
def test_a_model_far_off_makes_no_work_of_all_other_pairs(
    place: int, dtype: torch.dtype, one_by_one: list[int]
) -> None:
    theta = normal(60, 50).to(dtype)
    theta[place] *= 1e4
    distance = squared_distances(theta)
    torch.testing.assert_close(distance, by_definition(theta), rtol=1e-9, atol=0)
    assert sum(one_by_one) <= 4 * 60
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(squared_distances(theta[order]), distance[order][:, order], rtol=1e-9, atol=0)


def test_tight_groups_are_measured_from_their_midst(one_by_one: list[int]) -> None:
    """Groups of 12, some of them equal models, with a group of groups that is tight compared with what is far off."""
    centres = torch.cat([1e6 * normal(3, 40), 1e6 + normal(5, 40, seed=1)]).repeat_interleave(12, dim=0)
    theta = centres + 1e-5 * normal(96, 40, seed=2)
    theta[13:20], theta[90:] = theta[12], theta[89]
    distance = squared_distances(theta)
    torch.testing.assert_close(distance, by_definition(theta), rtol=1e-9, atol=0)
    assert torch.equal(distance == 0, by_definition(theta) == 0)
    assert sum(one_by_one) <= 4 * 96


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_models_are_exactly_at_distance_zero(dtype: torch.dtype) -> None:
    theta = normal(1, 333).to(dtype)
    assert torch.equal(squared_distances(theta.repeat(7, 1)), torch.zeros(7, 7, dtype=torch.float64))
    groups = normal(2, 333).to(dtype)[[0, 1, 0, 1, 1]]
    distance = squared_distances(groups)
    assert bool((distance[0, [0, 2]] == 0).all())
    assert bool((distance[1, [1, 3, 4]] == 0).all())
    assert float(distance[0, 1]) > 0


def test_distances_are_accumulated_in_float64() -> None:
    theta = normal(4, 5000).to(torch.float32)
    torch.testing.assert_close(squared_distances(theta), by_definition(theta), rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_model_spoils_its_own_pairs_only(bad: float) -> None:
    theta = normal(5, 9)
    clean_distance, clean_cosine = squared_distances(theta), cosines(theta)
    theta[1, 3] = bad
    keep = [0, 2, 3, 4]
    distance, cosine = squared_distances(theta), cosines(theta)
    assert bool(distance[1, keep].isnan().all())
    assert bool(cosine[1].isnan().all())
    torch.testing.assert_close(distance[keep][:, keep], clean_distance[keep][:, keep], atol=1e-12, rtol=0)
    torch.testing.assert_close(cosine[keep][:, keep], clean_cosine[keep][:, keep], atol=1e-14, rtol=0)


def test_an_update_of_zero_has_no_direction() -> None:
    theta = normal(3, 4)
    theta[1] = 0
    cosine = cosines(theta)
    assert cosine[1].tolist() == [0.0, 0.0, 0.0]
    assert cosine[[0, 2], [0, 2]].tolist() == [1.0, 1.0]


def test_blocks_must_agree_in_their_rows() -> None:
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        squared_distances([normal(2, 1), normal(3, 1)])
    with pytest.raises(ValueError, match="at least one"):
        cosines([])


@given(SEEDS, st.permutations(range(5)), st.sampled_from([1e-6, 1.0, 1e6]))
@settings(deadline=None, max_examples=40)
def test_a_metric_that_follows_its_clients(seed: int, order: list[int], scale: float) -> None:
    theta = scale * normal(5, 8, seed=seed)
    distance = squared_distances(theta)
    assert torch.equal(distance, distance.T)
    assert bool((distance.diagonal() == 0).all())
    root = distance.sqrt()
    assert bool((root[:, None, :] <= (root[:, :, None] + root[None, :, :]) * (1 + 1e-9)).all())
    torch.testing.assert_close(squared_distances(theta[order]), distance[order][:, order], atol=0, rtol=1e-9)
    torch.testing.assert_close(squared_distances(theta + scale * normal(8, seed=seed + 1)), distance, atol=0, rtol=1e-9)
    torch.testing.assert_close(cosines(theta[order]), cosines(theta)[order][:, order], atol=1e-12, rtol=0)
    torch.testing.assert_close(cosines(3 * theta), cosines(theta), atol=1e-12, rtol=0)


def test_median_distance() -> None:
    distance = torch.zeros(4, 4, dtype=torch.float64)
    upper = torch.triu_indices(4, 4, offset=1)
    distance[upper[0], upper[1]] = torch.tensor([1.0, 4.0, 2.0, 8.0, 0.0, torch.nan], dtype=torch.float64)
    distance = distance + distance.T
    assert median_distance(distance) == float(np.median([1, 4, 2, 8]))
    assert median_distance(torch.zeros(3, 3)) == 1.0
    assert median_distance(torch.zeros(1, 1)) == 1.0


def test_nobody_has_no_distances() -> None:
    nobody = torch.zeros(0, 4)
    assert squared_distances(nobody).shape == cosines([nobody, nobody]).shape == (0, 0)
    assert median_distance(squared_distances(nobody)) == 1.0
