"""Paired tests and average ranks against numbers worked out by hand, enumerated, or published."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import wilcoxon

from coterie.evaluation.significance import EXACT, average_ranks, cliques, holm, paired_test

# Per cent of six clients; the differences are +1, -2, +3, +3, 0, +5.
OURS = np.array([71, 72, 63, 65, 80, 90]) / 100
THEIRS = np.array([70, 74, 60, 62, 80, 85]) / 100
# Ranks of 0, 1, 2, 3, 3, 5: 1, 2, 3, 4.5, 4.5, 6, of which that of 0 is dropped; only the one of -2 is lost.
RANKS = [2.0, 3.0, 4.5, 4.5, 6.0]
WON, LOST = 2.0 + 4.5 + 4.5 + 6.0, 3.0


def enumerated(ranks: list[float], lead: float) -> float:
    """The share of all assignments of signs that are at least as uneven."""
    leads = [
        abs(sum(sign * rank for sign, rank in zip(signs, ranks, strict=True)))
        for signs in product((-1, 1), repeat=len(ranks))
    ]
    return sum(each >= abs(lead) - 1e-9 for each in leads) / len(leads)


def test_wilcoxon_by_hand() -> None:
    test = paired_test(OURS, THEIRS)
    assert (test.pairs, test.wins, test.ties, test.losses) == (6, 4, 1, 1)
    assert test.difference == pytest.approx((1 - 2 + 3 + 3 + 0 + 5) / 600)
    # All assignments that lose at most 3: nothing, the rank 2, or the rank 3; and as many that win so little.
    assert test.p == enumerated(RANKS, WON - LOST) == 6 / 32
    assert test.exact


def test_the_effect_by_hand() -> None:
    # Ranks won less ranks lost, of all 1 + ... + 6 = 21: the tie counts for nobody.
    assert paired_test(OURS, THEIRS).effect == pytest.approx((17 - 3) / 21)
    assert paired_test([3, 2, 1], [0, 0, 0]).effect == 1
    assert paired_test([1, 1, 1], [2, 3, 4]).effect == -1


def test_the_other_way_round_and_errors() -> None:
    test, other, errors = (
        paired_test(OURS, THEIRS), paired_test(THEIRS, OURS), paired_test(OURS, THEIRS, larger_is_better=False)
    )  # fmt: skip
    assert other == errors
    assert (other.wins, other.losses) == (test.losses, test.wins)
    assert (other.effect, other.difference) == (-test.effect, pytest.approx(-test.difference))
    assert other.p == test.p


def test_differences_that_are_equal_but_for_rounding_are_ties() -> None:
    assert len({0.8 - 0.7, 0.7 - 0.6, 0.6 - 0.5}) > 1
    test = paired_test([0.8, 0.6, 0.6], [0.7, 0.7, 0.5])  # ranks 2, 2, 2, of which one is lost
    assert test.effect == pytest.approx(2 / 6)
    assert test.p == 1.0  # 2 - 2 + 2 is as even as three signs of 2 can be
    assert paired_test([0.1 + 0.2], [0.3]).ties == 1


@pytest.mark.parametrize("seed", range(6))
def test_counting_agrees_with_enumeration_whatever_the_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.integers(0, 5, 11), rng.integers(0, 4, 11)
    differences = ours - theirs
    below = np.array([(np.abs(differences) < abs(each)).sum() for each in differences])
    upto = np.array([(np.abs(differences) <= abs(each)).sum() for each in differences])
    ranks = (below + 1 + upto) / 2
    lead = float((np.sign(differences) * ranks).sum())
    assert paired_test(ours, theirs).p == pytest.approx(enumerated(list(ranks[differences != 0]), lead), rel=1e-12)


def test_scipy_agrees_where_it_is_exact_and_where_it_approximates() -> None:
    rng = np.random.default_rng(3)
    few = rng.normal(0.3, 1, 20)
    assert paired_test(few, np.zeros(20)).p == pytest.approx(wilcoxon(few, method="exact").pvalue, rel=1e-9)
    many = np.round(rng.normal(0.1, 1, 4 * EXACT), 1)  # with zeros and many ties
    expected = wilcoxon(many, zero_method="pratt", correction=False, method="approx").pvalue
    test = paired_test(many, np.zeros(many.size))
    assert not test.exact
    assert test.p == pytest.approx(expected, rel=1e-9)


def test_counted_and_approximated_p_meet() -> None:
    values = np.random.default_rng(5).normal(0.15, 1, EXACT)
    both = [paired_test(np.append(values, extra), np.zeros(EXACT + len(extra))) for extra in ([], [0.001])]
    assert [test.exact for test in both] == [True, False]
    assert both[0].p == pytest.approx(both[1].p, rel=0.02)


def test_one_client_that_diverged_makes_no_ties_of_all_others() -> None:
    test = paired_test([1, 2, 3, 4, 1e14], [2, 3, 4, 5, 6], larger_is_better=False)
    assert (test.wins, test.ties, test.losses) == (4, 0, 1)
    ranks = average_ranks([[1, 2, 3]] * 3 + [[1e14, 2, 3]], "abc", larger_is_better=False)
    assert ranks.average == {"a": 1.5, "b": 1.75, "c": 2.75}
    large = paired_test([1.0, 2.0, 3e9 * (1 + 1e-15)], [1.5, 2.5, 3e9])
    assert (large.wins, large.ties, large.losses) == (0, 1, 2)


def test_nothing_but_ties_proves_nothing() -> None:
    test = paired_test([0.5, 0.5], [0.5, 0.5])
    assert (test.ties, test.effect, test.p) == (2, 0.0, 1.0)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0, math.nan], [1.0, 2.0]), ([1.0], [1.0, 2.0])])
def test_what_is_no_pair_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        paired_test(ours, theirs)


def test_holm_by_hand() -> None:
    # Ascending 0.01, 0.02, 0.03, 0.6 times 4, 3, 2, 1: 0.04, 0.06, 0.06 (0.06 again), 0.6.
    assert holm([0.03, 0.01, 0.6, 0.02]) == pytest.approx([0.06, 0.04, 0.6, 0.06])
    assert holm([0.02, 0.011]) == pytest.approx([0.022, 0.022])  # 0.02 times 1 may not fall below 0.011 times 2
    assert holm([0.5, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([]).size == 0


# Table 6 of Demšar (JMLR 7, 2006): the ranks of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets.
DEMSAR = [
    [4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1],
    [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2],
]  # fmt: skip
NAMES = ["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"]


def test_demsars_example() -> None:
    ranks = average_ranks(DEMSAR, NAMES, larger_is_better=False)
    assert {name: round(rank, 3) for name, rank in ranks.average.items()} == {
        "C4.5+m+cf": 1.964, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5": 3.143,
    }  # fmt: skip
    assert list(ranks.average) == ["C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"]
    assert ranks.blocks == 14
    # He gives 9.28 without the correction for ties, of which there are three of 2 and one of 4 in 14 (4^3 - 4).
    assert ranks.statistic * (1 - (3 * 6 + 60) / (14 * 60)) == pytest.approx(9.28, abs=0.005)
    assert ranks.p < 0.05
    # 2.569 sqrt(4 * 5 / (6 * 14)) = 1.25: the best and the worst, 1.18 apart, are not told apart at 0.05 ...
    assert ranks.critical_difference == pytest.approx(1.25, abs=0.005)
    assert ranks.cliques == (("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5"),)
    # ... but are at 0.10, where it is 1.12, as are C4.5 and C4.5+m (1.14 apart).
    looser = average_ranks(DEMSAR, NAMES, larger_is_better=False, alpha=0.1)
    assert looser.critical_difference == pytest.approx(1.12, abs=0.005)
    assert looser.cliques == (("C4.5+m+cf", "C4.5+m", "C4.5+cf"), ("C4.5+cf", "C4.5"))


@pytest.mark.parametrize(("systems", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (7, 2.949), (10, 3.164)])
def test_nemenyis_critical_values(systems: int, q: float) -> None:
    """Table 5(a) of Demšar, for two-tailed tests at 0.05."""
    blocks = np.tile(np.arange(systems), (6, 1))
    found = average_ranks(blocks, [str(i) for i in range(systems)]).critical_difference
    assert found / math.sqrt(systems * (systems + 1) / 36) == pytest.approx(q, abs=0.001)


def test_the_larger_value_has_the_lower_rank() -> None:
    ranks = average_ranks([[0.9, 0.8, 0.7], [0.9, 0.8, 0.7]], ["a", "b", "c"])
    assert ranks.average == {"a": 1.0, "b": 2.0, "c": 3.0}
    tied = average_ranks([[0.7 - 0.6, 0.8 - 0.7, 0.6 - 0.5]] * 2, ["a", "b", "c"])
    assert set(tied.average.values()) == {2.0}
    assert (tied.statistic, tied.p) == (0.0, 1.0)


def test_groups_overlap_and_hold_no_lone_system() -> None:
    ranks = {"a": 1.0, "b": 1.5, "c": 2.0, "d": 2.6, "e": 5.0}
    assert cliques(ranks, 1.0) == (("a", "b", "c"), ("c", "d"))
    assert cliques(ranks, 1.2) == (("a", "b", "c"), ("b", "c", "d"))
    assert cliques(ranks, 0.1) == ()
    assert cliques(ranks, 9.0) == (tuple(ranks),)


def test_too_little_to_rank() -> None:
    for scores, names in (([[1, 2, 3]], "abc"), ([[1, 2], [1, 2]], "ab"), ([[1, 2, 3]] * 2, "ab")):
        with pytest.raises(ValueError, match="2 blocks and 3 named systems"):
            average_ranks(scores, list(names))
    with pytest.raises(ValueError, match="finite"):
        average_ranks([[1, 2, math.nan]] * 2, list("abc"))
