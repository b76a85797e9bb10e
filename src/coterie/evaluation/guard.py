"""Do no harm: whether a client keeps its personalised model or the one that it trained alone.

What is known of client k are its paired losses on validation examples: their mean difference ``d_k``, LOCAL's less the
personalised model's, and its variance ``v_k``. On few examples that is noise, so clients lend each other strength as
in an empirical Bayes estimate: true gains ``g_k`` are taken to be normal around a common mean ``mu`` with variance
``tau^2``, and ``d_k`` normal around ``g_k``. With ``B_k = v_k / (v_k + tau^2)`` the posterior of ``g_k`` is normal with

    mean  (1 - B_k) d_k + B_k mu        variance  (1 - B_k) v_k + B_k^2 var(mu).

The client keeps its personalised model where ``g_k > 0`` is believed with at least the wanted confidence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PRIOR_DEGREES = 4.0
"""How many examples' worth of all clients' common variance each client's own is mixed with."""

SMALLEST = 1e-12
"""Variances and differences below are zero but for rounding."""


@dataclass(frozen=True)
class Evidence:
    """What validation says of each client, arrays ``(K,)``; NaN where it has no validation examples.

    Attributes:
        n: validation examples.
        difference: mean of LOCAL's loss less the personalised model's; above 0 speaks for the latter.
        variance: of that mean.
    """

    n: NDArray[np.int64]
    difference: Floats
    variance: Floats


@dataclass(frozen=True)
class Judgement:
    """What each client decides, arrays ``(K,)``.

    Attributes:
        expected: posterior mean of its gain.
        confidence: posterior probability that its gain is above 0.
        keep: whether it keeps the personalised model; otherwise it takes the one it trained alone.
    """

    expected: Floats
    confidence: Floats
    keep: NDArray[np.bool_]


def evidence(alone: ArrayLike, personalised: ArrayLike, owner: ArrayLike, clients: int) -> Evidence:
    """Gather paired losses by client.

    The variance of a client with few examples is drawn to that of all clients together, so that three examples which
    happen to agree are no certainty. A loss that is infinite or no number counts as the largest of all that are.

    Args:
        alone, personalised: losses of both models on the same examples, ``(n,)``.
        owner: whose example each is, ``(n,)`` in 0 .. clients - 1.
        clients: number of clients K.
    """
    losses = np.stack([np.asarray(alone, dtype=np.float64), np.asarray(personalised, dtype=np.float64)])
    finite = np.isfinite(losses)
    losses = np.where(finite, losses, losses[finite].max(initial=0.0))
    delta = losses[0] - losses[1]
    who = np.asarray(owner, dtype=np.int64)
    n = np.bincount(who, minlength=clients)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(who, delta, minlength=clients) / n
        squares = np.bincount(who, (delta - mean[who]) ** 2, minlength=clients).astype(np.float64)
    return of_moments(n, mean, squares)


def of_moments(n: NDArray[np.int64], mean: Floats, squares: Floats) -> Evidence:
    """The same from each client's number of examples, mean difference and sum of squared deviations, ``(K,)`` each."""
    common = squares.sum() / max(1, int((n - 1)[n > 0].sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        variance = (squares + PRIOR_DEGREES * common) / (np.maximum(n - 1, 0) + PRIOR_DEGREES) / n
    return Evidence(n, np.where(n > 0, mean, np.nan), np.where(n > 0, variance, np.nan))


def judge(found: Evidence, confidence: float) -> Judgement:
    """Decide for each client; one without evidence goes by what is known of the others.

    Ties, such as two models that predict the same, go to LOCAL: a model of one's own needs nobody.

    Args:
        found: from `evidence`.
        confidence: wanted probability that the personalised model is the better one, in (0, 1).
    """
    from scipy.stats import norm

    known = np.isfinite(found.difference) & np.isfinite(found.variance)
    d, v = found.difference[known], np.maximum(found.variance[known], SMALLEST)
    if not known.any():
        nothing = np.full(len(known), np.nan)
        return Judgement(nothing, nothing, np.zeros(len(known), dtype=bool))
    spread = between(d, v)
    weight = 1.0 / (v + spread)
    mu, mu_variance = float((weight * d).sum() / weight.sum()), float(1.0 / weight.sum())
    expected = np.full(len(known), mu)
    variance = np.full(len(known), spread + mu_variance)
    pull = v / (v + spread)
    expected[known] = (1 - pull) * d + pull * mu
    variance[known] = (1 - pull) * v + pull**2 * mu_variance
    belief = norm.cdf(expected / np.sqrt(np.maximum(variance, SMALLEST)))
    return Judgement(expected, belief, (belief >= confidence) & (expected > SMALLEST))


def judge_newcomers(found: Evidence, members: Evidence, confidence: float) -> Judgement:
    """Decide for newcomers, each as one more client of the run whose ``members`` have this evidence; maybe nobody.

    A single newcomer has nobody beside it to learn from how much losses differ, so variances are drawn to those of the
    members, as theirs are to each other's: three examples that agree are no certainty. Without members, one example is
    no evidence.
    """
    known = np.isfinite(members.difference) & np.isfinite(members.variance)
    degrees = np.maximum(members.n[known] - 1, 0)
    variance = np.where(found.n > 1, found.variance, np.nan)
    if degrees.sum():
        common = float((degrees * members.n[known] * members.variance[known]).sum() / degrees.sum())
        n = np.maximum(found.n, 1)
        variance = ((n - 1) * np.nan_to_num(variance) * n + PRIOR_DEGREES * common) / (n - 1 + PRIOR_DEGREES) / n
    variance = np.where(np.isfinite(found.variance), variance, np.nan)
    pairs = (members.n, found.n), (members.difference, found.difference), (members.variance, variance)
    judged = judge(Evidence(*(np.concatenate(pair) for pair in pairs)), confidence)
    own = slice(len(members.n), None)
    return Judgement(judged.expected[own], judged.confidence[own], judged.keep[own])


def between(d: Floats, v: Floats) -> float:
    """The variance ``tau^2`` of true gains over clients, by Paule and Mandel's equation (1982).

    It is the value for which the weighted sum of squares of ``d: (K,)`` around their weighted mean is K - 1, given
    the variances ``v: (K,)`` of each; 0 where even without any it is less, and for one client.
    """
    from scipy.optimize import brentq

    def excess(spread: float) -> float:
        weight = 1.0 / (v + spread)
        mu = (weight * d).sum() / weight.sum()
        return float((weight * (d - mu) ** 2).sum() - (len(d) - 1))

    if len(d) < 2 or excess(0.0) <= 0:
        return 0.0
    high = float(((d - d.mean()) ** 2).sum()) + SMALLEST
    return float(brentq(excess, 0.0, high, xtol=SMALLEST))
