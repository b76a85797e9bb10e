"""The newcomers' summary: who failed is left out everywhere, and what is undefined is None."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from coterie.evaluation import summarise_newcomers
from coterie.evaluation.tables import NEWCOMERS


def table(values: dict[tuple[str, int, str], list[float]]) -> pd.DataFrame:
    """Accuracies by (algorithm, seed, client), one an epoch."""
    rows = [
        (algorithm, "", seed, True, epoch, client, 5, "accuracy", value)
        for (algorithm, seed, client), curve in values.items()
        for epoch, value in enumerate(curve)
    ]
    return pd.DataFrame(rows, columns=list(NEWCOMERS))


def test_a_newcomer_that_failed_is_left_out_of_the_whole_curve() -> None:
    frame = table({("fedavg", 0, "a"): [0.2, 0.4], ("fedavg", 0, "b"): [0.8, math.nan]})
    (row,) = summarise_newcomers(frame, task="classification")
    assert row["curve"] == [0.2, 0.4]
    assert (row["failed"], row["newcomers"]) == (1, 2)
    assert row["gain_mean"] is None


def test_seeds_in_which_all_failed_count_as_none() -> None:
    frame = table({("fedavg", 0, "a"): [0.2, 0.4], ("fedavg", 1, "a"): [0.8, math.nan]})
    (row,) = summarise_newcomers(frame, task="classification")
    assert row["curve"] == [0.2, 0.4]
    assert row["curve_std"] == [0.0, 0.0]
    frame = table({("fedavg", 0, "a"): [0.2, math.nan]})
    (row,) = summarise_newcomers(frame, task="classification")
    assert row["curve"] == row["curve_std"] == [None, None]


def test_gains_are_of_the_same_newcomers_after_the_same_epochs() -> None:
    frame = table(
        {
            ("local", 0, "a"): [0.1, 0.3], ("local", 0, "b"): [0.1, 0.5],
            ("fedavg", 0, "a"): [0.2, 0.4], ("fedavg", 0, "b"): [0.8, 0.2],
        }
    )  # fmt: skip
    local, fedavg = summarise_newcomers(frame, task="classification")
    assert local["gain_mean"] == 0.0
    assert fedavg["gain_mean"] == pytest.approx((10.0 - 30.0) / 2)
    assert fedavg["gain_std"] == pytest.approx(20.0)
    assert fedavg["ptr"] == 0.5
