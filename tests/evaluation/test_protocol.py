"""Which round is reported."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import pytest

from coterie.errors import CoterieError
from coterie.evaluation import BestRound, check_report, choose_round
from coterie.evaluation.tables import CLIENTS

NAN = math.nan


def table(
    validation: Mapping[int, Sequence[float]],
    test: Mapping[int, Sequence[float]] | None = None,
    metric: str = "accuracy",
    n: int = 10,
) -> pd.DataFrame:
    """Return the client table of one run from values by round."""
    rows = [
        ("local", "", 0, number, "evaluate", split, f"client-{k}", n, metric, value)
        for split, by_round in (("validation", validation), ("test", test or validation))
        for number, values in by_round.items()
        for k, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=list(CLIENTS))


def test_best_val_goes_by_the_unweighted_mean_over_validation_data() -> None:
    run = table({10: [0.5, 0.5], 20: [0.9, 0.3], 30: [0.4, 0.7]}, {10: [1, 1], 20: [0, 0], 30: [0.5, 0.5]})
    assert choose_round(run, "best_val") == 20
    assert choose_round(run, "best_test") == 10
    assert choose_round(run, "last") == 30


def test_the_earliest_of_equal_rounds_wins_whatever_the_order_of_rows() -> None:
    run = table({30: [0.6, 0.6], 20: [0.5, 0.7], 10: [0.4, 0.4]})
    assert choose_round(run) == 20


def test_rounding_does_not_break_a_tie() -> None:
    first, second = (
        [0.1, 0.2, 0.3],
        [0.3, 0.15, 0.15],
    )  # both 0.2, but summed naively 0.6000000000000001 and 0.6
    assert choose_round(table({1: second, 2: first})) == 1
    assert choose_round(table({1: first, 2: second})) == 1


def test_an_error_is_best_where_it_is_smallest() -> None:
    run = table({1: [2.0, 2.0], 2: [1.0, 1.0], 3: [1.5, 0.5]}, metric="mae")
    assert choose_round(run, metric="mae") == 2


def test_a_client_that_fails_counts_with_its_own_worst_value() -> None:
    # Without client-0 round 2 would look best (0.6); with its 0.2 the mean is 0.4, below round 1.
    assert choose_round(table({1: [0.3, 0.5], 2: [NAN, 0.6], 3: [0.2, 0.2]})) == 2
    assert choose_round(table({0: [0.1, 0.1], 1: [0.3, 0.5], 2: [NAN, 0.6]})) == 1
    assert choose_round(table({1: [2.0, 2.0], 2: [math.inf, 1.9]}, metric="mae"), metric="mae") == 2


def test_a_run_without_a_finite_value_reports_its_first_round() -> None:
    assert choose_round(table({5: [NAN], 6: [NAN]})) == 5


def test_best_val_without_validation_data_names_the_way_out() -> None:
    run = table({1: [0.5]})
    for empty in (run[run["split"] == "test"], run.assign(n=run["n"].where(run["split"] == "test", 0))):
        with pytest.raises(CoterieError, match="report: last"):
            choose_round(empty, "best_val")
        assert choose_round(empty, "last") == 1


def test_a_run_without_test_results_says_so() -> None:
    run = table({1: [0.5]})
    with pytest.raises(CoterieError, match="no accuracy on test data"):
        choose_round(run[run["split"] == "validation"], "last")


def test_check_report() -> None:
    check_report("best_val", True)
    check_report("last", False)
    with pytest.raises(CoterieError, match="report: last"):
        check_report("best_val", False)
    with pytest.raises(CoterieError, match="use one of best_val, last, best_test"):
        check_report("best", True)


def test_best_round_says_when_to_keep_the_models() -> None:
    best = BestRound()
    assert [best.offer(r, values) for r, values in enumerate([[NAN], [0.2], [0.2], [0.5], [0.4]])] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert (best.round, best.score) == (3, 0.5)


def test_best_round_continues_from_its_state() -> None:
    values = [[0.4, 0.4], [NAN, 0.5], [0.3, 0.6], [NAN, 0.6], [0.5, 0.5]]
    whole = BestRound()
    for number, scores in enumerate(values):
        whole.offer(number, scores)
    half = BestRound()
    for number, scores in enumerate(values[:3]):
        half.offer(number, scores)
    resumed = BestRound()
    resumed.load_state_dict(half.state_dict())
    for number, scores in enumerate(values[3:], start=3):
        resumed.offer(number, scores)
    assert resumed.state_dict() == whole.state_dict()
    assert whole.round == 4


def test_clients_without_examples_never_count() -> None:
    best = BestRound("mae")
    assert best.offer(1, [NAN, 2.0])
    assert best.score == -2.0
    assert best.offer(2, [NAN, 1.0])
