"""FedeRiCo's weights: a posterior over models, and how owners share out what they receive."""

import pytest
import torch

from coterie.relations import owner_shares, posterior, responsibilities, track_losses


def matrix(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_posterior_is_over_the_models_that_were_evaluated() -> None:
    tracked = matrix([0.0, torch.log(torch.tensor(3.0)).item(), -5.0], [1e4, 1e4, 1e4])
    observed = torch.tensor([[True, True, False], [True, True, True]])
    torch.testing.assert_close(posterior(tracked, observed), matrix([0.75, 0.25, 0.0], [1 / 3] * 3))


@pytest.mark.parametrize(("beta", "expected"), [(0.25, [7.0, 2.0, 8.0, 0.0]), (None, [12.0, 4.0, 8.0, 0.0])])
def test_losses_are_tracked_by_a_moving_average_or_accumulated(beta: float | None, expected: list[float]) -> None:
    before = matrix([8.0, 2.0, 0.0, 0.0]), matrix([6.0, 2.0, 0.0, 0.0])
    observed = torch.tensor([[True, True, False, False]])
    # model 0 is evaluated again, model 2 for the first time; model 1 counts with its last loss and 3 is unknown
    after, last, seen = track_losses(*before, observed, matrix([4.0, 8.0]), torch.tensor([[0, 2]]), beta)
    torch.testing.assert_close(after, matrix(expected))
    torch.testing.assert_close(last, matrix([4.0, 2.0, 8.0, 0.0]))
    assert seen.tolist() == [[True, True, True, False]]
    assert before[0].tolist() == [[8.0, 2.0, 0.0, 0.0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("beta", [0.25, None])
def test_a_loss_that_is_not_finite_leaves_nothing_behind(beta: float | None, bad: float) -> None:
    """Of three models one is finite throughout, one becomes of no use for a round, and one is of none at first."""
    tracked, last, seen = matrix([4.0, 6.0, 0.0]), matrix([4.0, 6.0, 0.0]), torch.tensor([[True, True, False]])
    tracked, last, seen = track_losses(tracked, last, seen, matrix([10.0, bad, bad]), torch.tensor([[0, 1, 2]]), beta)
    assert seen.tolist() == [[True, False, False]]
    assert posterior(tracked, seen).tolist() == [[1.0, 0.0, 0.0]]
    tracked, last, seen = track_losses(tracked, last, seen, matrix([4.0, 3.0]), torch.tensor([[0, 2]]), beta)
    assert seen.tolist() == [[True, False, True]]
    tracked, last, seen = track_losses(tracked, last, seen, matrix([4.0, 3.0, 3.0]), None, beta)
    assert bool(seen.all())
    # the accumulated one counts with its last loss, 6, for the two rounds in which it had none
    expected = [((4 * 0.75 + 2.5) * 0.75 + 1) * 0.75 + 1, 3.0, 3.0] if beta else [22.0, 21.0, 6.0]
    torch.testing.assert_close(tracked, matrix(expected))


def test_a_client_for_which_no_model_is_finite_keeps_itself() -> None:
    tracked, nothing = matrix([4.0, 6.0, 0.0], [4.0, 6.0, 0.0]), torch.zeros(2, 3, dtype=torch.bool)
    assert posterior(tracked, nothing, torch.tensor([2, 0])).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    known = torch.tensor([[True, True, False], [False, True, False]])
    assert torch.equal(posterior(tracked, known, torch.tensor([2, 0])), posterior(tracked, known))


def test_owners_share_by_weight() -> None:
    mass, share = owner_shares(torch.tensor([0, 2, 0, 1]), torch.tensor([0.5, 0.25, 1.5, 0.0]).double(), 4)
    torch.testing.assert_close(mass, torch.tensor([2.0, 0.0, 0.25, 0.0]).double())
    torch.testing.assert_close(share, matrix([0.25, 0, 0.75, 0], [0] * 4, [0, 1.0, 0, 0], [0] * 4))


def test_responsibilities_are_prior_times_likelihood() -> None:
    pi, likelihood = matrix([0.5, 0.25, 0.25], [1 / 3] * 3), matrix([0.1, 0.2, 0.4], [0.3, 0.3, 0.3])
    q = responsibilities(pi, -likelihood.log())
    torch.testing.assert_close(q, matrix([0.05 / 0.2, 0.05 / 0.2, 0.1 / 0.2], [1 / 3] * 3))
    torch.testing.assert_close(responsibilities(pi, -likelihood.log() + 1e6), q, rtol=0, atol=1e-9)


def test_a_component_without_prior_can_come_back() -> None:
    q = responsibilities(matrix([0.0, 1.0]), matrix([0.0, 40.0]))
    odds = 1e-12 / torch.exp(torch.tensor(-40.0, dtype=torch.float64))
    torch.testing.assert_close(q, matrix([odds / (1 + odds), 1 / (1 + odds)]))
    assert responsibilities(matrix([0.0, 1.0]), matrix([5000.0, 9000.0])).tolist() == [[1.0, 0.0]]
