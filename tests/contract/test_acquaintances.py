"""Rows for those of many clients that a server has met."""

from __future__ import annotations

import torch

from coterie.contract import Acquaintances


def met() -> Acquaintances:
    known = Acquaintances(6)
    assert known.add(torch.tensor([4, 1])).tolist() == [4, 1]
    assert known.add(torch.tensor([1, 5, 4])).tolist() == [5]
    return known


def test_each_has_one_row_in_the_order_of_coming() -> None:
    known = met()
    assert len(known) == 3
    assert known.clients.tolist() == [4, 1, 5]
    assert known.row(torch.tensor([5, 4, 1])).tolist() == [2, 0, 1]
    assert known.among(torch.arange(6)).tolist() == [1, 4, 5]
    assert known.by_name(["f", "e", "d", "c", "b", "a"]).tolist() == [2, 0, 1]


def test_values_are_noted_beside_those_known() -> None:
    known = Acquaintances(6)
    known.add(torch.tensor([4, 1]))
    first = known.noted(None, torch.tensor([1]), torch.tensor([[1.0, 2.0]]))
    torch.testing.assert_close(first, torch.tensor([[torch.nan, torch.nan], [1.0, 2.0]]), equal_nan=True)
    known.add(torch.tensor([5]))
    second = known.noted(first, torch.tensor([5, 4]), torch.tensor([[5.0, 5.0], [4.0, 4.0]]))
    assert second.tolist() == [[4.0, 4.0], [1.0, 2.0], [5.0, 5.0]]


def test_a_matrix_of_the_rows_finds_its_place_among_all() -> None:
    whole = met().among_all(torch.arange(1.0, 10.0).view(3, 3), torch.zeros(6, 6))
    assert whole[4, 1] == 2.0
    assert whole[5, 4] == 7.0
    assert whole.count_nonzero() == 9


def test_it_is_saved_and_restored() -> None:
    other = Acquaintances(6)
    other.add(torch.tensor([0]))
    other.load_state_dict(met().state_dict())
    assert other.clients.tolist() == [4, 1, 5]
    assert other.among(torch.arange(6)).tolist() == [1, 4, 5]
