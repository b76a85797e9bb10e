"""Two models' AUROCs on the same examples: by hand, against scikit-learn, and honest variances."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from coterie.evaluation.guard import PRIOR_DEGREES
from coterie.evaluation.paired_auroc import Scored, auroc_evidence


def scored(alone: list[float], personalised: list[float], positive: list[int], owner: list[int]) -> Scored:
    """Scores as arrays."""
    return Scored(np.array(alone), np.array(personalised), np.array(positive, dtype=bool), np.array(owner))


def test_by_hand() -> None:
    """Two positive and two negative examples: the personalised model ranks all four pairs right, LOCAL three of them."""
    found = auroc_evidence([scored([0.9, 0.4, 0.5, 0.1], [0.9, 0.8, 0.5, 0.1], [1, 1, 0, 0], [0] * 4)], 1)
    assert found.difference.tolist() == [0.25]
    # placements differ by 0 and 0.5 at both kinds: squares 0.125 with one degree of freedom, nobody else to be drawn to
    spread = (0.125 + PRIOR_DEGREES * 0.125) / (1 + PRIOR_DEGREES)
    assert found.variance.tolist() == pytest.approx([spread / 2 + spread / 2])
    assert found.n.tolist() == [4]


def test_the_difference_is_that_of_scikit_learn_fold_by_fold() -> None:
    """Ties included; folds are weighted by m n / (m + n)."""
    draw = np.random.default_rng(0)
    folds, expected, weights = [], [], []
    for n in (20, 30):
        a, b, y = draw.integers(0, 9, n) / 9, draw.integers(0, 9, n) / 9, draw.integers(0, 2, n)
        folds.append(scored(a.tolist(), b.tolist(), y.tolist(), [1] * n))
        expected.append(roc_auc_score(y, b) - roc_auc_score(y, a))
        weights.append(y.sum() * (n - y.sum()) / n)
    found = auroc_evidence(folds, 2)
    assert found.difference[1] == pytest.approx(np.average(expected, weights=weights), abs=1e-12)
    assert np.isnan(found.difference[0])


def test_one_class_is_no_evidence() -> None:
    """Nothing can be ranked."""
    found = auroc_evidence([scored([0.1, 0.2], [0.3, 0.1], [1, 1], [0, 0])], 1)
    assert np.isnan(found.difference).all()
    assert np.isnan(found.variance).all()


def test_the_variance_is_that_of_repetitions() -> None:
    """Of 300 samples the differences deviate about as much as is told; DeLong's estimate is a little large."""
    draw = np.random.default_rng(1)
    differences, variances = [], []
    for _ in range(300):
        y = np.arange(200) < 80
        signal = draw.normal(size=200) + y
        fold = Scored(
            signal + draw.normal(size=200), signal + 0.5 * draw.normal(size=200), y, np.zeros(200, dtype=np.int64)
        )
        found = auroc_evidence([fold], 1)
        differences.append(found.difference[0])
        variances.append(found.variance[0])
    assert np.mean(variances) == pytest.approx(np.var(differences), rel=0.25)


class Unsought(np.ndarray):
    """Whose each example is, which nobody may seek through."""

    def __eq__(self, other: object) -> bool:  # type: ignore[override]
        pytest.fail("all examples are compared with one client")


def test_clients_are_sorted_once() -> None:
    """Each has the evidence that it would have alone, without K times n comparisons."""
    draw = np.random.default_rng(2)
    owner, y = draw.integers(0, 5, 60), draw.integers(0, 2, 60).astype(bool)
    a, b = draw.random(60), draw.random(60)
    together = auroc_evidence([Scored(a, b, y, owner.view(Unsought))], 6)
    for client in range(5):
        mine = owner == client
        own = auroc_evidence([Scored(a[mine], b[mine], y[mine], owner[mine] * 0)], 1)
        assert together.difference[client] == own.difference[0]
        assert together.n[client] == own.n[0]
    assert np.isnan(together.difference[5])
