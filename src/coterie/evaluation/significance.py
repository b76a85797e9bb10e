"""Whether systems differ by more than chance: paired tests, and average ranks with their critical difference.

A pair, or a block of more than two, is what several systems reach for the same client with the same seed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import friedmanchisquare, norm, rankdata, studentized_range

from coterie.evaluation.metrics import SAME

ALPHA = 0.05
"""A difference that chance alone would show less often than that is called significant."""

EXACT = 100
"""Up to so many pairs that differ, p is counted exactly; above, the normal approximation is as good."""


@dataclass(frozen=True)
class PairedTest:
    """One system against another over ``pairs`` pairs, of which it wins, ties and loses so many.

    ``difference`` is the mean difference, positive where the system is better; ``effect`` the matched-pairs rank-
    biserial correlation, from -1 (worse in every pair) to 1 (better in every pair); ``p`` the two-sided p-value of
    the Wilcoxon signed-rank test, and ``exact`` whether it was counted rather than approximated.
    """

    pairs: int
    wins: int
    ties: int
    losses: int
    difference: float
    effect: float
    p: float
    exact: bool


def paired_test(ours: ArrayLike, theirs: ArrayLike, *, larger_is_better: bool = True) -> PairedTest:
    """Compare two systems by the Wilcoxon signed-rank test with Pratt's treatment of ties.

    The absolute differences are ranked, equal ones with their mean rank, zeros too; then the zeros' ranks are
    dropped. Under the hypothesis each remaining rank is as likely to count for one system as for the other. Up to
    ``EXACT`` differences p is the share of all these assignments that are at least as uneven as the observed one,
    whatever the ties; above, it is the normal approximation with the variance of these very ranks.

    Args:
        ours: the values of the system, ``(n,)``, all finite.
        theirs: the values of the other one in the same pairs, ``(n,)``.
        larger_is_better: False for errors.

    Raises:
        ValueError: there is no pair, lengths differ, or a value is not finite.

    """
    values = np.array([ours, theirs], dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a test needs pairs, not {values.shape[1:]}")
    if not np.isfinite(values).all():
        raise ValueError("pairs must be finite on both sides")
    values = values if larger_is_better else -values
    differences = _but_for_rounding(values[0] - values[1], values)
    differences[np.abs(values[0] - values[1]) <= SAME * np.abs(values).max(axis=0)] = 0.0  # by its own pair's size, too
    ranks = rankdata(np.abs(differences))
    signs = np.sign(differences)
    kept = ranks[signs != 0]
    lead = float((signs * ranks).sum())  # the ranks won less the ranks lost
    exact = kept.size <= EXACT
    return PairedTest(
        pairs=signs.size,
        wins=int((signs > 0).sum()),
        ties=int((signs == 0).sum()),
        losses=int((signs < 0).sum()),
        difference=float((values[0] - values[1]).mean()),
        effect=lead / float(ranks.sum()),
        p=_counted(kept, lead) if exact else _approximated(kept, lead),
        exact=exact,
    )


def holm(p: ArrayLike) -> NDArray[np.float64]:
    """Return Holm's adjusted p-values of a family of tests ``p`` ``(m,)``, in their order.

    The i-th smallest, counted from 0, is multiplied by m - i; a larger p never becomes smaller than a smaller one.
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(values.size, 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if values.size else steps
    return adjusted


@dataclass(frozen=True)
class Ranks:
    """Average ranks of several systems over ``blocks`` blocks; all that a critical-difference diagram needs.

    ``average`` has the average rank by label, the best (lowest) first. Two systems differ significantly, at level
    ``alpha``, where their average ranks are more than ``critical_difference`` apart (Nemenyi); each of ``cliques`` is a
    largest group without such a pair, of two or more systems in the order of their ranks. ``statistic`` and ``p`` are
    those of the Friedman test, whose hypothesis is that all systems are equally good.
    """

    average: dict[str, float]
    blocks: int
    critical_difference: float
    cliques: tuple[tuple[str, ...], ...]
    statistic: float
    p: float
    alpha: float = ALPHA


def average_ranks(
    scores: ArrayLike, labels: Sequence[str], *, larger_is_better: bool = True, alpha: float = ALPHA
) -> Ranks:
    """Rank systems in each block, and compare their average ranks (Friedman, then Nemenyi; Demšar, JMLR 2006).

    Args:
        scores: ``(B, S)``, one row a block, one column a system, all finite; 2 blocks and 3 systems at least.
        labels: the S names.
        larger_is_better: False for errors.
        alpha: the level of the critical difference.

    Raises:
        ValueError: too few blocks or systems, or a value is not finite.

    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 3 or values.shape[1] != len(labels):
        raise ValueError(f"average ranks need 2 blocks and 3 named systems at least, not {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("every block needs a finite value of each system")
    values = _but_for_rounding(values, values)
    ranks = rankdata(-values if larger_is_better else values, axis=1)
    blocks, count = ranks.shape
    tied = bool((ranks == ranks[:, :1]).all())  # in every block: Friedman's statistic would be 0 / 0
    statistic, p = (0.0, 1.0) if tied else friedmanchisquare(*ranks.T)
    quantile = float(studentized_range.isf(alpha, count, np.inf)) / math.sqrt(2)
    distance = quantile * math.sqrt(count * (count + 1) / (6 * blocks))
    means = ranks.mean(axis=0)
    order = np.argsort(means, kind="stable")
    average = {labels[i]: float(means[i]) for i in order}
    return Ranks(average, blocks, distance, cliques(average, distance), float(statistic), float(p), alpha)


def cliques(average: dict[str, float], distance: float) -> tuple[tuple[str, ...], ...]:
    """Return the largest groups of two or more whose ranks are at most ``distance`` apart; ``average`` ascends."""
    labels, ranks = list(average), list(average.values())
    groups: list[tuple[str, ...]] = []
    reached = 0
    for first in range(len(labels)):
        end = first + sum(rank - ranks[first] <= distance for rank in ranks[first:])
        if end > max(reached, first + 1):  # else it is alone, or inside the group before
            groups.append(tuple(labels[first:end]))
            reached = end
    return tuple(groups)


def _but_for_rounding(numbers: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``numbers``, made of ``values``, so that 0.7 - 0.6 and 0.8 - 0.7 are equal; in another unit.

    The unit is the median, since beside the error of one client that diverged all differences would vanish.
    """
    sizes = np.abs(values)
    scale = float(np.median(sizes)) or float(sizes.max()) or 1.0
    return np.asarray(np.round(numbers / scale, -round(math.log10(SAME))))


def _counted(ranks: NDArray[np.float64], lead: float) -> float:
    """Return the share of all assignments of signs to ``ranks`` whose lead is at least as large, either way.

    Twice a rank is a whole number, so the distribution of the ranks won is built up rank by rank.
    """
    doubled = np.rint(2 * ranks).astype(np.int64)
    total = int(doubled.sum())
    chances = np.zeros(total + 1)
    chances[0] = 1.0
    for step in doubled:
        won = np.zeros_like(chances)
        won[step:] = chances[: total + 1 - step]
        chances = (chances + won) / 2
    leads = np.abs(2 * np.arange(total + 1) - total)
    return min(1.0, float(chances[leads >= abs(round(2 * lead))].sum()))


def _approximated(ranks: NDArray[np.float64], lead: float) -> float:
    """Return the two-sided p of a lead whose variance is the sum of the squared ranks."""
    return float(2 * norm.sf(abs(lead) / math.sqrt(float((ranks**2).sum()))))
