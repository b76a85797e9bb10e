"""Which round is reported: the protocols ``best_val`` (the default), ``last`` and ``best_test``."""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from coterie.errors import CoterieError
from coterie.evaluation.catalogue import may_be_undefined, metric_of
from coterie.evaluation.metrics import SAME

Report = Literal["best_val", "last", "best_test"]

NO_VALIDATION = (
    "`report: best_val` chooses the round by validation data, but no client has any; "
    "set `report: last` or give the clients validation examples."
)


def check_report(report: str, has_validation: bool) -> None:
    """Check before any training that a protocol can be followed.

    Raises:
        CoterieError: the protocol is unknown, or ``best_val`` is wanted where no client has validation data.

    """
    if report not in get_args(Report):
        raise CoterieError(f"Unknown `report: {report}`; use one of {', '.join(get_args(Report))}.")
    if report == "best_val" and not has_validation:
        raise CoterieError(NO_VALIDATION)


class BestRound:
    """The best round so far, told round by round, so that an engine can keep the models to be reported.

    The score of a round is the unweighted mean over clients (negated for an error). Means that differ by
    less than rounding count as equal, and the earlier round stays. A client whose value is not finite
    counts with its own worst one so far: leaving it out would make the rounds in which it failed look
    better than they are. A client that never had a value (no examples, or data that do not define the metric) does not
    count.

    ``round`` is the best round, None before the first finite value; ``score`` its score, larger is better.
    """

    def __init__(self, metric: str = "accuracy") -> None:
        self.round: int | None = None
        self.score = -math.inf
        self._sign = 1.0 if metric_of(metric).larger_is_better else -1.0
        self._worst: NDArray[np.float64] | None = None

    def offer(self, round: int, values: ArrayLike) -> bool:
        """Take the values ``(K,)`` of a round, clients in a fixed order; True when it is the new best."""
        scores = self._sign * np.asarray(values, dtype=np.float64)
        scores = np.where(np.isfinite(scores), scores, np.nan)
        self._worst = scores if self._worst is None else np.fmin(self._worst, scores)
        counted = np.where(np.isnan(scores), self._worst, scores)
        counted = counted[~np.isnan(counted)]
        if not counted.size:
            return False
        score = math.fsum(counted) / counted.size
        if self.round is not None and score <= self.score + SAME * max(1.0, abs(self.score)):
            return False
        self.round, self.score = int(round), score
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must keep."""
        return {
            "round": self.round,
            "score": self.score,
            "worst": None if self._worst is None else self._worst.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.round, self.score = state["round"], state["score"]
        self._worst = None if state["worst"] is None else np.array(state["worst"], dtype=np.float64)


def choose_round(clients: pd.DataFrame, report: Report = "best_val", *, metric: str = "accuracy") -> int:
    """Return the round that a protocol reports for one run (one system and seed).

    ``best_val`` takes the best unweighted mean over clients of the validation metric, ``best_test`` the
    same on test data (which is optimistic: it selects on what it reports), ``last`` the last round with
    test results. The earliest of equally good rounds wins. The rule is that of `BestRound`.

    Args:
        clients: the client table of one run (columns ``CLIENTS``).
        report: the protocol.
        metric: by which; of an error such as ``mae`` smaller is better.

    Raises:
        CoterieError: there are no results to choose from, or the metric is defined for no client.

    """
    split = "validation" if report == "best_val" else "test"
    rows = clients[
        (clients["phase"] == "evaluate")
        & (clients["split"] == split)
        & (clients["metric"] == metric)
        & (clients["n"] > 0)
    ]
    if rows.empty:
        raise CoterieError(
            NO_VALIDATION
            if report == "best_val"
            else f"No round can be reported: there is no {metric} on test data yet; evaluate at least once."
        )
    if report == "last":
        return int(rows["round"].max())
    by_round = rows.pivot(index="round", columns="client", values="value").sort_index()
    best = BestRound(metric)
    for number, values in zip(by_round.index, by_round.to_numpy(dtype=np.float64), strict=True):
        best.offer(int(number), values)
    if best.round is None and may_be_undefined(metric):
        raise CoterieError(
            f"{metric} is undefined for every client on {split} data, so no round can be chosen by it; choose another "
            "`metric`, or set `report: last`."
        )
    return int(by_round.index[0]) if best.round is None else best.round
