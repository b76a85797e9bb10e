"""Summaries of clients' rows, combined without the rows."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.federation.frames import Cells
from coterie.federation.preparing import Numbers, Values, combined, features_of, summary_of


def column(values: list[object]) -> Cells:
    missing = np.array([value is None for value in values], dtype=bool)
    if any(isinstance(value, str) for value in values):
        return Cells(np.array([value or "" for value in values], dtype=object), missing, np.zeros_like(missing))
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return Cells(numbers, missing, np.zeros_like(missing))


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_parts_combine_to_the_mean_and_deviation_of_the_whole(offset: float) -> None:
    values = np.random.default_rng(0).normal(size=300) + offset
    parts = np.split(values, [1, 4, 4, 200])  # of one value, and of none
    whole = combined([summary_of({"x": column(list(part))}, {"x": "number"}) for part in parts])["x"]
    assert isinstance(whole, Numbers)
    assert whole.count == 300
    assert whole.mean == pytest.approx(values.mean(), rel=1e-14)
    assert whole.std == pytest.approx(np.std(values - offset), rel=1e-6)


def test_a_summary_holds_sums_values_and_gaps_only() -> None:
    columns = {"x": column([1.0, None, 4.0]), "ward": column(["b", "a", None])}
    summary = summary_of(columns, {"x": "number", "ward": "category"})
    assert summary == {"x": Numbers(2, 5.0, 4.5, 1), "ward": Values(("a", "b"), 1)}
    other = {"x": Numbers(0, 0.0, 0.0, 2), "ward": Values(("c",), 0)}
    assert combined([summary, other]) == {"x": Numbers(2, 5.0, 4.5, 3), "ward": Values(("a", "b", "c"), 1)}


def test_a_number_that_is_always_the_same_is_not_blown_up() -> None:
    alone = [summary_of({"x": column([value] * 3)}, {"x": "number"}) for value in (0.1, 0.1)]
    assert features_of(combined(alone), "error")[0].std == 1.0


@pytest.mark.parametrize(("missing", "marked", "imputed"), [("mark", True, False), ("mean", False, True)])
def test_what_becomes_of_gaps(missing: str, marked: bool, imputed: bool) -> None:
    gaps, full = features_of({"x": Numbers(2, 5.0, 4.5, 1), "y": Numbers(2, 5.0, 4.5, 0)}, missing)  # type: ignore[arg-type]
    assert (gaps.missing, gaps.impute) == (marked, imputed)
    assert (full.missing, full.impute) == (False, True)  # a gap may yet come up in the test data
