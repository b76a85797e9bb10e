"""The rows of summary.json, worked out by hand for two clients and two seeds."""

import json
from typing import Any

import pytest

from coterie.errors import CoterieError
from coterie.evaluation import summarise
from coterie.runs import History

NAMES = ["ann", "ben"]


def evaluate(
    history: History,
    system: tuple[str, str],
    seed: int,
    round: int,
    validation: list[float],
    test: list[float],
) -> None:
    """Add one evaluation of two clients with 30 and 10 test examples."""
    history.add_clients(*system, seed, round, "validation", NAMES, [5, 5], "accuracy", validation)
    history.add_clients(*system, seed, round, "test", NAMES, [30, 10], "accuracy", test)


@pytest.fixture
def history() -> History:
    """Return LOCAL and FEDORA with two seeds; both have their best validation at round 10 or 20."""
    history = History()
    local, fedora = ("local", ""), ("fedora", "released")
    evaluate(history, local, 0, 10, [0.6, 0.6], [0.5, 0.8])
    evaluate(history, local, 0, 20, [0.5, 0.5], [0.9, 0.9])
    evaluate(history, fedora, 0, 10, [0.2, 0.2], [0.4, 0.4])
    evaluate(history, fedora, 0, 20, [0.9, 0.9], [0.6, 0.8])
    evaluate(history, local, 1, 10, [0.6, 0.6], [0.4, 0.8])
    evaluate(history, fedora, 1, 10, [0.7, 0.7], [0.6, 0.6])
    return history


def row(history: History, algorithm: str, **options: Any) -> dict[str, Any]:
    """Return the summary row of an algorithm."""
    return next(r for r in summarise(history.frames(), **options) if r["algorithm"] == algorithm)


def test_accuracy_over_seeds(history: History) -> None:
    fedora = row(history, "fedora")
    assert fedora["seeds"] == [0, 1]
    assert fedora["chosen_rounds"] == [20, 10]
    assert fedora["rounds"] == 20
    assert fedora["accuracy_mean"] == pytest.approx((0.7 + 0.6) / 2)
    assert fedora["accuracy_std"] == pytest.approx(0.1 / 2**0.5)  # ddof = 1
    assert fedora["accuracy_weighted_mean"] == pytest.approx((26 / 40 + 24 / 40) / 2)
    assert fedora["worst"] == pytest.approx(0.6)
    assert fedora["worst_decile"] == pytest.approx(0.6)
    assert fedora["clients"] == 2
    assert (fedora["variant"], fedora["label"]) == ("released", "fedora (released)")


def test_transfer_is_by_client_and_seed_each_system_at_its_own_round(history: History) -> None:
    fedora = row(history, "fedora")
    # seed 0: 0.5 -> 0.6, 0.8 -> 0.8; seed 1: 0.4 -> 0.6, 0.8 -> 0.6
    assert fedora["r_acc"] == pytest.approx(((0.2 + 0) / 2 + (0.5 - 0.25) / 2) / 2)
    assert fedora["ptr"] == pytest.approx((1.0 + 0.5) / 2)
    assert fedora["ptr_std"] == pytest.approx(0.5 / 2**0.5)
    assert fedora["gain_mean"] == pytest.approx((5 + 0) / 2)
    assert fedora["gain_std"] == pytest.approx((5 + 20) / 2)  # over clients with ddof = 0, mean over seeds
    assert (fedora["harmed"], fedora["compared"], fedora["local_zero"]) == (1, 4, 0)


def test_local_against_itself(history: History) -> None:
    local = row(history, "local")
    assert local["reference"] is True
    assert (local["r_acc"], local["ptr"], local["gain_mean"], local["gain_std"]) == (0, 1, 0, 0)
    assert local["harmed"] == 0
    assert local["variant"] is None


def test_rows_come_in_order_of_appearance_and_are_plain_json(history: History) -> None:
    history.add("local", "", 0, 20, "", "nothing", float("nan"))
    rows = summarise(history.frames(), targets=[0.65], labels={("fedora", "released"): "ours"})
    assert [r["label"] for r in rows] == ["local", "ours"]
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows


@pytest.mark.parametrize(("report", "rounds"), [("best_val", [20]), ("last", [30]), ("best_test", [10])])
def test_protocols(report: Any, rounds: list[int]) -> None:
    history = History()
    evaluate(history, ("local", ""), 0, 10, [0.1, 0.1], [0.9, 0.9])
    evaluate(history, ("local", ""), 0, 20, [0.3, 0.3], [0.8, 0.8])
    evaluate(history, ("local", ""), 0, 30, [0.2, 0.2], [0.7, 0.7])
    local = row(history, "local", report=report)
    assert local["chosen_rounds"] == rounds
    assert local["report"] == report
    assert local["optimistic"] is (report == "best_test")
    assert local["accuracy_std"] == 0  # one seed


def test_rounds_to_target_is_undefined_when_a_seed_misses_it(history: History) -> None:
    fedora = row(history, "fedora", targets=[0.4, 0.6, 0.65])
    assert fedora["rounds_to_target"] == {"0.4": 10.0, "0.6": 15.0, "0.65": None}


def test_bytes_and_seconds_of_a_whole_run_are_means_over_seeds(history: History) -> None:
    for seed, size in ((0, 100), (1, 300)):
        history.add_ledger(
            "fedora",
            "released",
            seed,
            1,
            [
                {"phase": "train", "direction": "up", "kind": "model", "bytes": size},
                {"phase": "train", "direction": "up", "kind": "buffer", "bytes": 10},
                {"phase": "describe", "direction": "up", "kind": "summary", "bytes": 4},
                {"phase": "train", "direction": "down", "kind": "model", "bytes": 2 * size},
                {"phase": "evaluate", "direction": "down", "kind": "model", "bytes": 50},
                {"phase": "newcomer", "direction": "down", "kind": "model", "bytes": 7},
                {"phase": "train", "direction": "peer", "kind": "model", "bytes": 6},
            ],
        )
        history.add_timing("fedora", "released", seed, 1, "train", 2.0 + seed)
        history.add_timing("fedora", "released", seed, 1, "evaluate", 1.0)
    fedora = row(history, "fedora")
    assert (fedora["bytes_up"], fedora["bytes_down"], fedora["bytes_peer"]) == (214, 400, 6)
    assert fedora["bytes_evaluate"] == 50
    assert fedora["seconds"] == pytest.approx(3.5)
    assert row(history, "local")["bytes_up"] == 0
    assert row(history, "local")["seconds"] is None


def test_without_local_nothing_is_compared(history: History) -> None:
    history.cut("local", "", 0, -1)
    history.cut("local", "", 1, -1)
    fedora = row(history, "fedora")
    for key in ("r_acc", "r_acc_std", "ptr", "ptr_std", "gain_mean", "gain_std", "harmed"):
        assert fedora[key] is None
    assert fedora["accuracy_mean"] == pytest.approx(0.65)


def test_seeds_that_local_lacks_are_not_compared(history: History) -> None:
    history.cut("local", "", 1, -1)
    fedora = row(history, "fedora")
    assert fedora["seeds"] == [0, 1]
    assert fedora["gain_mean"] == pytest.approx(5)
    assert (fedora["ptr"], fedora["ptr_std"]) == (1, 0)


def test_other_clients_than_local_has_are_an_error(history: History) -> None:
    history.add_clients("ditto", "", 0, 10, "validation", ["ann", "cleo"], [5, 5], "accuracy", [0.5, 0.5])
    history.add_clients("ditto", "", 0, 10, "test", ["ann", "cleo"], [5, 5], "accuracy", [0.5, 0.5])
    with pytest.raises(CoterieError, match="on one side only"):
        summarise(history.frames())


def test_a_client_that_joined_after_local_had_ended_has_no_gain() -> None:
    history = History()
    for system, n, values in (("local", [30, 0], [0.5, float("nan")]), ("fedora", [30, 10], [0.6, 0.8])):
        history.add_clients(system, "", 0, 10, "validation", NAMES, n, "accuracy", values)
        history.add_clients(system, "", 0, 10, "test", NAMES, n, "accuracy", values)
    fedora, local = row(history, "fedora"), row(history, "local")
    assert (fedora["compared"], fedora["gain_mean"]) == (1, pytest.approx(10))
    assert fedora["accuracy_mean"] == pytest.approx(0.7)
    assert (local["clients_without_result"], local["accuracy_mean"]) == (1, pytest.approx(0.5))


def test_failed_clients_are_named_once(history: History) -> None:
    for seed in (0, 1):
        history.add_failure("fedora", "released", seed, 12, "ben", "the loss is NaN")
    assert row(history, "fedora")["failed_clients"] == ["ben"]
    assert row(history, "local")["failed_clients"] == []


def test_a_client_without_a_result_is_counted_and_left_out() -> None:
    history = History()
    evaluate(history, ("local", ""), 0, 1, [0.5, 0.5], [0.5, 0.5])
    evaluate(history, ("fedavg", ""), 0, 1, [0.5, 0.5], [0.6, float("nan")])
    fedavg = row(history, "fedavg")
    assert fedavg["clients_without_result"] == 1
    assert fedavg["accuracy_mean"] == 0.6
    assert (fedavg["ptr"], fedavg["compared"]) == (1, 1)


def test_a_local_model_that_gets_nothing_right_is_counted() -> None:
    history = History()
    evaluate(history, ("local", ""), 0, 1, [0.5, 0.5], [0.0, 0.5])
    evaluate(history, ("fedavg", ""), 0, 1, [0.5, 0.5], [0.5, 0.75])
    fedavg = row(history, "fedavg")
    assert fedavg["r_acc"] == pytest.approx(0.5)
    assert fedavg["local_zero"] == 1
    assert fedavg["gain_mean"] == pytest.approx(37.5)


def test_regression_reports_errors() -> None:
    history = History()
    for system, errors in ((("local", ""), [2.0, 1.0]), (("fedora", "paper"), [1.0, 1.5])):
        for split in ("validation", "test"):
            history.add_clients(*system, 0, 1, split, NAMES, [30, 10], "mae", errors)
    fedora = row(history, "fedora", task="regression", targets=[1.25, 1.0])
    assert fedora["mae_mean"] == pytest.approx(1.25)
    assert fedora["mae_weighted_mean"] == pytest.approx(45 / 40)
    assert fedora["r_mae"] == pytest.approx((0.5 - 0.5) / 2)
    assert fedora["ptr"] == 0.5
    assert fedora["worst"] == 1.5
    assert fedora["harmed"] == 1
    assert fedora["accuracy_mean"] is fedora["r_acc"] is fedora["gain_mean"] is None
    assert fedora["rounds_to_target"] == {"1.25": 1.0, "1": None}


def test_runs_without_results_have_no_row(history: History) -> None:
    history.add("pfedme", "", 0, 1, "", "bytes_up:model", 8, phase="train")
    assert [r["algorithm"] for r in summarise(history.frames())] == ["local", "fedora"]
    assert summarise(History().frames()) == []


def test_best_val_without_validation_names_the_way_out() -> None:
    history = History()
    history.add_clients("local", "", 0, 1, "test", NAMES, [5, 5], "accuracy", [0.5, 0.5])
    with pytest.raises(CoterieError, match="report: last"):
        summarise(history.frames())
    assert summarise(history.frames(), report="last")[0]["accuracy_mean"] == 0.5


def test_another_metric_and_the_seeds_in_which_a_client_has_none() -> None:
    history = History()
    for seed, (ann, ben) in enumerate([(0.2, 0.1), (0.4, float("nan"))]):
        for system, factor in (("local", 1.0), ("fedavg", 0.5)):
            for split in ("validation", "test"):
                history.add_clients(system, "", seed, 1, split, NAMES, [30, 10], "accuracy", [0.5, 0.5])
                values = [factor * ann, factor * ben]
                history.add_clients(system, "", seed, 1, split, NAMES, [30, 10], "brier", values)
    history.add_undefined("fedavg", "", 1, "test", "brier", "ben", "no test data")
    fedavg = row(history, "fedavg", metric="brier")
    assert fedavg["brier_mean"] == pytest.approx((0.15 / 2 + 0.2) / 2)
    assert fedavg["accuracy_mean"] == fedavg["accuracy_weighted_mean"] == 0.5
    assert (fedavg["r_brier"], fedavg["ptr"]) == (pytest.approx(0.5), 1.0)
    assert fedavg["gain_mean"] is None
    assert fedavg["r_acc"] is None
    assert fedavg["worst"] == pytest.approx((0.1 + 0.2) / 2)
    assert fedavg["undefined"] == {"brier": {"ben": "no test data with seed 1"}}
    assert row(history, "local", metric="brier")["undefined"]["brier"] == {
        "ben": "no result in round 1, as it was away or failed with seed 1"
    }


def test_no_round_can_be_chosen_by_what_nobody_has() -> None:
    history = History()
    for split in ("validation", "test"):
        history.add_clients("local", "", 0, 1, split, NAMES, [3, 3], "auroc", [float("nan")] * 2)
    assert history.frames().history.empty  # nor is there a mean
    with pytest.raises(CoterieError, match="auroc is undefined for every client on validation data, so no round"):
        summarise(history.frames(), metric="auroc")
    (found,) = summarise(history.frames(), metric="auroc", report="last")
    assert found["auroc_mean"] is None
    assert json.loads(json.dumps(found, allow_nan=False)) == found
