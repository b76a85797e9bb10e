"""The guard's rule against numbers worked out by hand, and its limits."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from coterie.evaluation import evidence, judge
from coterie.evaluation.guard import PRIOR_DEGREES, Evidence, between


def known(d: list[float], v: list[float]) -> Evidence:
    """Evidence with these differences and variances."""
    return Evidence(np.full(len(d), 9), np.array(d), np.array(v))


def test_evidence_by_hand() -> None:
    """Client 0 has differences 0.2 and 0.4, client 1 has -0.1, client 2 nothing."""
    found = evidence([0.5, 0.6, 0.2], [0.3, 0.2, 0.3], [0, 0, 1], 3)
    assert found.n.tolist() == [2, 1, 0]
    np.testing.assert_allclose(found.difference[:2], [0.3, -0.1], rtol=1e-12)
    common = 0.02  # squares 0.01 + 0.01 over (2 - 1) + (1 - 1) degrees
    expected = [(0.02 + PRIOR_DEGREES * common) / (1 + PRIOR_DEGREES) / 2, common]
    np.testing.assert_allclose(found.variance[:2], expected, rtol=1e-12)
    assert np.isnan(found.difference[2])
    assert np.isnan(found.variance[2])


def test_spread_solves_its_equation_and_is_zero_where_chance_explains_all() -> None:
    """Two clients at -1 and 1 with variance 0.5 each: the sum 2 / (0.5 + tau^2) is K - 1 = 1 at tau^2 = 1.5."""
    assert between(np.array([-1.0, 1.0]), np.array([0.5, 0.5])) == pytest.approx(1.5, rel=1e-9)
    assert between(np.array([-1.0, 1.0]), np.array([4.0, 4.0])) == 0.0
    assert between(np.array([3.0]), np.array([0.1])) == 0.0


def test_judgement_by_hand() -> None:
    """Differences 3 and 1, variances 0.5: tau^2 = 1.5, mu = 2 with variance 1, pull 0.25."""
    judged = judge(known([3.0, 1.0], [0.5, 0.5]), 0.5)
    np.testing.assert_allclose(judged.expected, [0.75 * 3 + 0.5, 0.75 + 0.5], rtol=1e-8)
    deviation = math.sqrt(0.75 * 0.5 + 0.0625 * 1.0)
    np.testing.assert_allclose(judged.confidence, norm.cdf(judged.expected / deviation), rtol=1e-8)
    assert judged.keep.all()


def test_confidence_decides() -> None:
    """A client that is believed to gain with 84 % (one deviation) keeps its model below that, not above."""
    found = known([1.0], [1.0])
    assert judge(found, 0.84).keep.tolist() == [True]
    assert judge(found, 0.85).keep.tolist() == [False]


def test_clients_lend_each_other_strength() -> None:
    """One client measures a small loss on few examples while all others gain: it is noise, so it keeps the model."""
    d, v = [0.1] * 9 + [-0.05], [0.001] * 9 + [0.04]
    assert judge(known(d, v), 0.5).keep.all()
    v[-1] = 1e-5  # but a loss that was measured well is one
    assert judge(known(d, v), 0.5).keep.tolist() == [True] * 9 + [False]


def test_ties_go_to_local_and_who_has_no_evidence_goes_by_the_others() -> None:
    """Equal models, and a client without validation examples among clients that gain, or lose."""
    same = evidence([0.2, 0.3, 0.4], [0.2, 0.3, 0.4], [0, 0, 1], 2)
    assert not judge(same, 0.5).keep.any()
    for sign in (1.0, -1.0):
        found = known([sign, sign, math.nan], [0.01, 0.01, math.nan])
        assert judge(found, 0.5).keep.tolist() == [sign > 0] * 3
    nobody = known([math.nan], [math.nan])
    assert not judge(nobody, 0.5).keep.any()


def test_an_infinite_loss_is_no_lack_of_evidence() -> None:
    """It counts as the largest one; otherwise a client would go by the others, whose models are good ones."""
    alone, own, owner = (
        np.array([1.0, 1, 1, 0.5, 1, 1]),
        np.array([0.5, 0.5, 0.6, np.inf, np.nan, np.inf]),
        [0] * 3 + [1] * 3,
    )
    found = evidence(alone, own, owner, 2)
    np.testing.assert_allclose(found.difference, [1 - 1.6 / 3, -0.5 / 3])
    assert judge(found, 0.7).keep.tolist() == [True, False]
    assert not judge(evidence([np.inf, np.nan], [np.nan, np.inf], [0, 0], 1), 0.7).keep.any()


def test_the_stated_confidence_is_honest() -> None:
    """Where true gains are normal, of the clients believed to gain with p in [0.6, 0.8] about seven in ten do."""
    generator = np.random.default_rng(0)
    believed, gained = [], []
    for _ in range(40):
        true = generator.normal(0.02, 0.05, size=100)
        v = generator.uniform(0.0005, 0.01, size=100)
        judged = judge(known((true + generator.normal(size=100) * np.sqrt(v)).tolist(), v.tolist()), 0.5)
        believed.append(judged.confidence)
        gained.append(true > 0)
    p, right = np.concatenate(believed), np.concatenate(gained)
    for low, high in ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.95)):
        among = (p >= low) & (p < high)
        assert right[among].mean() == pytest.approx(p[among].mean(), abs=0.05)
