"""Distances between the rows of two stacks, against differences in float64."""

import pytest
import torch
from torch import Tensor

from coterie.relations import cross_distances, distances, squared_distances


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(one: Tensor, other: Tensor) -> Tensor:
    return (one.double()[:, None] - other.double()[None]).square().sum(dim=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("K", "L"), [(5, 5), (3, 7), (6, 2), (1, 1)])
def test_they_are_those_of_the_definition(K: int, L: int, dtype: torch.dtype) -> None:
    one, other = normal(K, 31).to(dtype), normal(L, 31, seed=1).to(dtype)
    distance = cross_distances(one, other)
    assert distance.dtype == torch.float64
    torch.testing.assert_close(distance, by_definition(one, other), rtol=1e-12, atol=1e-12)


def test_of_one_stack_with_itself() -> None:
    theta = normal(6, 20)
    torch.testing.assert_close(cross_distances(theta, theta), squared_distances(theta), rtol=1e-12, atol=1e-12)
    assert bool((cross_distances(theta, theta).diagonal() == 0).all())


def test_the_first_stack_gives_the_rows() -> None:
    one, other = torch.tensor([[0.0], [1.0]]), torch.tensor([[3.0], [5.0], [1.0]])
    assert cross_distances(one, other).tolist() == [[9.0, 25.0, 1.0], [4.0, 16.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("origin", [0.0, 1e3, -1e6])
def test_equal_rows_are_exactly_at_distance_zero(origin: float, dtype: torch.dtype) -> None:
    rows = (origin + normal(3, 333)).to(dtype)
    one, other = rows[[0, 1, 2, 1]], rows[[1, 0, 1]]
    distance = cross_distances(one, other)
    equal = torch.tensor([[False, True, False], [True, False, True], [False] * 3, [True, False, True]])
    assert torch.equal(distance == 0, equal)
    assert torch.equal(cross_distances(rows[:1].repeat(4, 1), rows[:1].repeat(2, 1)), torch.zeros(4, 2).double())


def test_nearly_equal_rows_far_from_the_origin() -> None:
    """1e-6 apart around 1e3, in two groups: the Gram trick has no correct digit left."""
    centre = torch.cat([1e3 + normal(1, 80), -1e3 + normal(1, 80, seed=1)])
    one, other = centre + 1e-6 * normal(2, 80, seed=2), centre[[1, 0]] + 1e-6 * normal(2, 80, seed=3)
    distance = cross_distances(one, other)
    torch.testing.assert_close(distance, by_definition(one, other), rtol=1e-9, atol=0)
    assert 0 < float(distance[0, 1]) < 1e-8 < 1e6 < float(distance[0, 0])


def test_nearby_rows_are_measured_again_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    base = 100 * normal(4, 60)
    one, other = base + 1e-7 * normal(4, 60, seed=1), base[[2, 1, 0]]
    monkeypatch.setattr(distances, "CHUNK", 64)
    torch.testing.assert_close(cross_distances(one, other), by_definition(one, other), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("stack", "place"), [(0, 0), (0, 7), (1, 0)])
def test_a_row_far_off_makes_no_work_of_all_other_pairs(stack: int, place: int, one_by_one: list[int]) -> None:
    stacks = normal(30, 50), normal(40, 50, seed=1)
    stacks[stack][place] *= 1e4
    torch.testing.assert_close(cross_distances(*stacks), by_definition(*stacks), rtol=1e-9, atol=0)
    assert sum(one_by_one) <= 2 * (30 + 40)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_broken_row_spoils_its_own_distances_only(bad: float) -> None:
    one, other = normal(4, 9), normal(3, 9, seed=1)
    clean = cross_distances(one, other)
    for row in range(4):
        broken = one.clone()
        broken[row, 3] = bad
        distance, kept = cross_distances(broken, other), [r for r in range(4) if r != row]
        assert bool(distance[row].isnan().all())
        torch.testing.assert_close(distance[kept], clean[kept], rtol=1e-12, atol=1e-12)
    for column in range(3):
        broken = other.clone()
        broken[column, 0] = bad
        distance, kept = cross_distances(one, broken), [c for c in range(3) if c != column]
        assert bool(distance[:, column].isnan().all())
        torch.testing.assert_close(distance[:, kept], clean[:, kept], rtol=1e-12, atol=1e-12)


def test_blocks_add_up_to_the_whole() -> None:
    one, other = normal(5, 24), normal(4, 24, seed=1)
    cut = [[t[:, :6].reshape(-1, 2, 3), t[:, 6:6], t[:, 6], t[:, 7:]] for t in (one, other)]
    expected = by_definition(one, other)
    torch.testing.assert_close(cross_distances(*cut), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cross_distances(iter(cut[0]), iter(cut[1])), expected, rtol=1e-12, atol=1e-12)


def test_blocks_must_agree() -> None:
    for one, other in [
        (normal(2, 3), normal(2, 4)),
        ([normal(2, 3), normal(2, 1)], normal(2, 4)),
        ([normal(2, 3), normal(2, 1)], [normal(2, 1), normal(2, 3)]),
    ]:
        with pytest.raises(ValueError, match="same shapes"):
            cross_distances(one, other)
    with pytest.raises(ValueError, match=r"\[2, 3\]"):
        cross_distances([normal(2, 1), normal(3, 1)], [normal(2, 1), normal(2, 1)])
    with pytest.raises(ValueError, match="at least one"):
        cross_distances([], [])


def test_no_rows() -> None:
    assert cross_distances(normal(0, 4), normal(3, 4)).shape == (0, 3)
    assert cross_distances(normal(2, 4), normal(0, 4)).shape == (2, 0)
