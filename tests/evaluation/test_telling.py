"""What clients tell of two models in a few numbers leads to the evidence that their examples would."""

import json
from typing import Any

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.evaluation import Evidence, evidence
from coterie.evaluation.moments import Moments, merged
from coterie.evaluation.paired_auroc import Scored, auroc_evidence
from coterie.evaluation.telling import Telling, plain, pooled, read, told_of

SIZES = ((7, 1, 0, 12), (5, 3, 0, 9))
"""Examples of four clients in two folds; one of them has none."""


def check(ours: Evidence, theirs: Evidence) -> None:
    np.testing.assert_array_equal(ours.n, theirs.n)
    np.testing.assert_allclose(ours.difference, theirs.difference, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(ours.variance, theirs.variance, rtol=1e-12)


def travelled(told: Telling, loss: str | None) -> Telling:
    return read(json.loads(json.dumps(plain(told))), loss, sum(part.n for part in told))


def test_by_losses() -> None:
    draw = np.random.default_rng(0)
    folds = [[{"squared": draw.normal(size=(2, n)) ** 2} for n in sizes] for sizes in SIZES]
    told = [
        [travelled(told_of(*({"squared": fold[client]["squared"][side]} for side in (0, 1)), "squared"), "squared")
         for fold in folds] for client in range(4)
    ]  # fmt: skip
    whole = np.concatenate([own["squared"] for fold in folds for own in fold], axis=1)
    owner = np.concatenate([np.repeat(np.arange(4), sizes) for sizes in SIZES])
    check(pooled(told, "squared"), evidence(whole[0], whole[1], owner, 4))
    assert np.isnan(pooled(told, "squared").variance[2])


def test_by_auroc() -> None:
    draw = np.random.default_rng(1)
    folds = []
    for sizes in SIZES:
        n = sum(sizes)
        scores = draw.integers(0, 9, (2, n)) / 9
        folds.append(Scored(scores[0], scores[1], draw.integers(0, 2, n) > 0, np.repeat(np.arange(4), sizes)))

    def told(fold: Scored, client: int) -> Telling:
        rows = fold.owner == client
        target = fold.positive[rows].astype(np.float64)
        alone, own = ({"score": scores[rows], "target": target} for scores in (fold.alone, fold.personalised))
        return travelled(told_of(alone, own, None), None)

    check(pooled([[told(fold, client) for fold in folds] for client in range(4)], None), auroc_evidence(folds, 4))


def test_who_tells_nothing_has_no_evidence() -> None:
    for loss in ("error", None):
        found = pooled([[], []], loss)
        assert found.n.tolist() == [0, 0]
        assert np.isnan(found.difference).all()
        assert np.isnan(found.variance).all()


def test_a_loss_that_is_no_number_is_the_largest_of_the_client() -> None:
    (told,) = told_of({"squared": np.array([1.0, 2.0])}, {"squared": np.array([np.nan, np.inf])}, "squared")
    assert told == Moments(2, -0.5, 0.5)


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = np.random.default_rng(2).normal(1e3, 1e-3, 30)
    ours, theirs = merged([Moments.of(values[:4]), Moments.of(values[:0]), Moments.of(values[4:])]), Moments.of(values)
    assert (ours.n, ours.mean) == (30, pytest.approx(theirs.mean, rel=1e-15))
    assert ours.squares == pytest.approx(theirs.squares, rel=1e-7)
    assert merged([]) == Moments(0, 0.0, 0.0)


@pytest.mark.parametrize(
    "told",
    [
        None,
        [["many", 0, 0]],
        [[float("inf"), 0.0, 0.0]],
        [[8, 10**400, 0.0]],
        [[8, float("inf"), 0.0]],
        [[8, 0.0, -1.0]],
        [[8, 0.0]],
        [[8, 0.0, 0.0], [0, 0.0, 0.0]],
    ],
)
def test_what_is_no_evidence_is_refused(told: Any) -> None:
    with pytest.raises(CoterieError, match="it sent no evidence"):
        read(told, "error", 8)


def test_evidence_of_other_examples_is_refused() -> None:
    with pytest.raises(CoterieError, match="evidence of other examples than its 8 for validation"):
        read([[9, 0.0, 0.0]], "error", 8)
