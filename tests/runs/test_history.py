"""The history: what goes in comes out, through files and through an interruption."""

import math
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.errors import CoterieError
from coterie.evaluation import summarise
from coterie.evaluation.tables import CLIENTS, FAILURES, HISTORY, TIMINGS, Tables
from coterie.runs import History, RunDirectory

NAMES = ["ann", "ben", "cleo"]


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", "x")


def add_round(history: History, system: tuple[str, str | None], seed: int, round: int) -> None:
    """Add everything that a round can leave, different in every round."""
    rng = np.random.default_rng((seed, round, len(system[0])))
    for split in ("validation", "test"):
        for metric in ("loss", "accuracy"):
            history.add_clients(*system, seed, round, split, NAMES, [4, 5, 6], metric, rng.random(3))
    entry = {"phase": "train", "direction": "up", "kind": "model", "bytes": int(rng.integers(1000))}
    history.add_ledger(*system, seed, round, [entry])
    history.add_timing(*system, seed, round, "train", rng.random())
    if round == 2:
        history.add_failure(*system, seed, round, "ben", 'the loss is NaN, "really"\nsince batch 3')


def full() -> History:
    history = History()
    for seed in (0, 1):
        for system in (("local", None), ("fedora", "released")):
            for number in range(4):
                add_round(history, system, seed, number)
    return history


def equal(left: Tables, right: Tables) -> None:
    for name in ("history", "clients", "timings", "failures"):
        pd.testing.assert_frame_equal(getattr(left, name), getattr(right, name), check_exact=True)


def test_clients_come_out_as_a_long_table() -> None:
    history = History()
    history.add_clients("local", None, 0, 10, "test", NAMES, [1, 2, 3], "accuracy", [0.1, 0.2, 0.3])
    frame = history.frames().clients
    assert list(frame.columns) == list(CLIENTS)
    expected = [
        ("local", "", 0, 10, "evaluate", "test", "ann", 1, "accuracy", 0.1),
        ("local", "", 0, 10, "evaluate", "test", "ben", 2, "accuracy", 0.2),
        ("local", "", 0, 10, "evaluate", "test", "cleo", 3, "accuracy", 0.3),
    ]
    assert list(frame.itertuples(index=False, name=None)) == expected


def test_an_evaluation_adds_its_means_to_the_history() -> None:
    history = History()
    history.add_clients("local", None, 0, 1, "test", NAMES, [10, 30, 0], "accuracy", [0.5, 1.0, 0.7])
    rows = list(history.frames().history.itertuples(index=False, name=None))
    assert rows == [
        ("local", "", 0, 1, "evaluate", "test", "accuracy", 0.75),
        ("local", "", 0, 1, "evaluate", "test", "accuracy:weighted", 0.875),
    ]


def test_other_phases_add_no_means() -> None:
    history = History()
    history.add_clients("local", None, 0, 1, "", NAMES, [1, 1, 1], "bytes_up:model", [8, 8, 8], phase="train")
    assert history.frames().history.empty


def test_values_are_copied_and_may_be_tensors() -> None:
    history = History()
    values = np.array([0.1, 0.2, 0.3])
    history.add_clients("local", None, 0, 1, "test", NAMES, torch.tensor([1, 2, 3]), "accuracy", values)
    values[:] = 0
    assert history.frames().clients["value"].tolist() == [0.1, 0.2, 0.3]


def test_lengths_must_agree() -> None:
    history = History()
    with pytest.raises(ValueError, match="3 clients"):
        history.add_clients("local", None, 0, 1, "test", NAMES, [1, 2, 3], "accuracy", [0.1, 0.2])
    with pytest.raises(ValueError, match="3 clients"):
        history.add_clients("local", None, 0, 1, "test", NAMES, [1, 2], "accuracy", [0.1, 0.2, 0.3])


def test_the_same_evaluation_twice_is_a_mistake() -> None:
    history = History()
    add_round(history, ("ditto", None), 0, 1)
    with pytest.raises(ValueError, match="unique"):
        add_round(history, ("ditto", ""), 0, 1)


def test_ledger_entries_of_a_kind_are_added_up() -> None:
    history = History()
    entries = [
        {"phase": "train", "direction": "up", "kind": "model", "bytes": 8},
        {"phase": "train", "direction": "down", "kind": "model", "bytes": 3},
        {"phase": "train", "direction": "up", "kind": "model", "bytes": 4, "floats": 1},
        {"phase": "describe", "direction": "up", "kind": "model", "bytes": 1},
    ]
    history.add_ledger("fedavg", None, 0, 1, entries)
    frame = history.frames().history
    assert list(zip(frame["phase"], frame["metric"], frame["value"], strict=True)) == [
        ("train", "bytes_up:model", 12),
        ("train", "bytes_down:model", 3),
        ("describe", "bytes_up:model", 1),
    ]


def test_files_give_back_the_same_tables(run: RunDirectory) -> None:
    history = full()
    history.add("local", None, 0, 9, "test", "odd", math.nan)
    history.write(run)
    equal(History.read(run).frames(), history.frames())
    csv = pd.read_csv(run.history_csv, keep_default_na=False, na_values={"value": [""]})
    np.testing.assert_array_equal(csv["value"], history.frames().history["value"])
    assert list(csv.columns) == list(HISTORY)


def test_empty_tables_have_their_columns(run: RunDirectory) -> None:
    equal(History.read(run).frames(), History().frames())  # no file yet
    History().write(run)
    tables = History.read(run).frames()
    equal(tables, History().frames())
    assert list(tables.clients.columns) == list(CLIENTS)
    assert list(tables.timings.columns) == list(TIMINGS)
    assert list(tables.failures.columns) == list(FAILURES)


def test_odd_names_stay_what_they_are(run: RunDirectory) -> None:
    history = History()
    names = ["007", "NA", "Zoë, ward 3"]
    history.add_clients("local", None, 0, 1, "test", names, [1, 1, 1], "accuracy", [0.0, 0.5, 1.0])
    for name in names:
        history.add_failure("local", None, 0, 1, name, "1")
    history.write(run)
    tables = History.read(run).frames()
    assert tables.clients["client"].tolist() == names
    assert tables.failures["client"].tolist() == names
    assert tables.failures["reason"].tolist() == ["1", "1", "1"]


def test_cut_keeps_what_the_checkpoint_knows() -> None:
    history = full()
    history.cut("fedora", "released", 1, 1)
    for frame in (history.frames().clients, history.frames().history, history.frames().timings):
        rounds = frame.groupby(["algorithm", "seed"], observed=True)["round"].max()
        assert rounds.to_dict() == {("local", 0): 3, ("fedora", 0): 3, ("local", 1): 3, ("fedora", 1): 1}
    assert len(history.frames().failures) == 3
    history.cut("local", None, 0, -1)
    assert ("local", 0) not in set(
        zip(history.frames().clients["algorithm"], history.frames().clients["seed"], strict=True)
    )


def test_cut_drops_the_bytes_by_client() -> None:
    """They come in once more at the end of the run, whichever round its checkpoint is of."""
    history = full()
    for seed in (0, 1):
        history.add_clients("local", None, seed, 3, "", NAMES, [4, 5, 6], "bytes_up:model", [1, 2, 3], phase="train")
    history.cut("local", None, 0, 3)
    assert history.costs("local", None, 0)[0]  # those of single rounds stay
    clients = history.frames().clients
    assert set(clients.loc[clients["metric"] == "bytes_up:model", "seed"]) == {1}
    history.add_clients("local", None, 0, 3, "", NAMES, [4, 5, 6], "bytes_up:model", [1, 2, 3], phase="train")


def test_a_resumed_run_writes_the_same_bytes(run: RunDirectory, tmp_path: Path) -> None:
    whole = RunDirectory.create(tmp_path / "whole", "x")
    full().write(whole)
    first = History()
    for system in (("local", None), ("fedora", "released")):
        for number in range(4):
            add_round(first, system, 0, number)
    for number in range(4):
        add_round(first, ("local", None), 1, number)
    for number in range(3):  # the history is ahead: the checkpoint was written after round 1
        add_round(first, ("fedora", "released"), 1, number)
    first.write(run)
    resumed = History.read(run)
    resumed.cut("fedora", "released", 1, 1)
    for number in (2, 3):
        add_round(resumed, ("fedora", "released"), 1, number)
    resumed.write(run)
    for file in ("history.parquet", "history.csv", "clients.parquet", "timings.parquet", "failures.csv"):
        assert (run.path / file).read_bytes() == (whole.path / file).read_bytes(), file


def test_the_summary_reads_the_files(run: RunDirectory) -> None:
    history = full()
    history.write(run)
    assert summarise(History.read(run).frames()) == summarise(history.frames())


def test_latest_gives_the_values_by_client() -> None:
    history = History()
    for number, value in ((0, 0.1), (10, 0.2), (20, 0.3)):
        history.add_clients("local", None, 0, number, "test", NAMES, [1] * 3, "accuracy", [value, value, 0.9])
    newest = history.latest("local", "", 0, "test", "accuracy")
    earlier = history.latest("local", None, 0, "test", "accuracy", round=19)
    assert newest is not None
    assert earlier is not None
    assert newest.to_dict() == {"ann": 0.3, "ben": 0.3, "cleo": 0.9}
    assert earlier["ann"] == 0.2
    assert history.latest("local", None, 1, "test", "accuracy") is None
    assert history.latest("local", None, 0, "validation", "accuracy") is None


@pytest.mark.parametrize("file", ["history.parquet", "clients.parquet", "timings.parquet", "failures.csv"])
def test_a_damaged_file_is_named(run: RunDirectory, file: str) -> None:
    full().write(run)
    whole = (run.path / file).read_bytes()
    (run.path / file).write_bytes(whole[: len(whole) // 2] if file.endswith("parquet") else b"a,b\n1\n2,3,4\n")
    with pytest.raises(CoterieError, match=f"{file} is damaged"):
        History.read(run)


def test_another_table_in_its_place_is_named(run: RunDirectory) -> None:
    pd.DataFrame({"a": [1]}).to_parquet(run.clients)
    with pytest.raises(CoterieError, match=r"clients\.parquet is damaged"):
        History.read(run)


def test_a_thousand_clients_cost_little(run: RunDirectory) -> None:
    """K = 1000, 50 evaluations, 3 splits, 2 metrics: 300,000 rows; the limits leave a busy machine room."""
    names = [f"client-{k:03d}" for k in range(1000)]
    values, n = np.random.default_rng(0).random(1000), np.full(1000, 20)
    start = time.process_time()
    history = History()
    for number in range(50):
        for split in ("train", "validation", "test"):
            for metric in ("loss", "accuracy"):
                history.add_clients("local", None, 0, number, split, names, n, metric, values)
    added = time.process_time()
    history.write(run)
    written = time.process_time()
    rows = summarise(history.frames())
    summarised = time.process_time()
    assert len(pd.read_parquet(run.clients)) == 300_000
    assert rows[0]["clients"] == 1000
    assert added - start < 1.0
    assert written - added < 3.0
    assert summarised - written < 2.0


def test_equal_sizes_are_kept_once(run: RunDirectory) -> None:
    """With 100,000 clients every array counts; other sizes of the same split are not taken for the first."""
    history = History()
    for round, sizes in enumerate(([4, 5, 6], [4, 5, 6], [7, 5, 6])):
        history.add_clients("local", None, 0, round, "test", NAMES, sizes, "loss", [0.1, 0.2, 0.3])
    history.write(run)
    for kept in (history, History.read(run)):
        first, second, third = (block.n for block in kept._blocks.values())
        assert first is second
        assert third.tolist() == [7, 5, 6]
    equal(history.frames(), History.read(run).frames())


def test_the_numbers_of_a_run_and_those_that_came_last() -> None:
    history = full()
    before = history.lengths
    add_round(history, ("fedora", "released"), 1, 4)
    add_round(history, ("local", None), 1, 4)
    tables = history.frames([("fedora", "released", 1)])
    wanted = [(row.round, row.phase, row.split, row.metric, row.value) for row in tables.history.itertuples()]
    wanted += [(row.round, row.phase, "", "seconds", row.seconds) for row in tables.timings.itertuples()]
    assert history.measured("fedora", "released", 1) == wanted
    assert history.measured("fedora", "released", 1, after=before) == [row for row in wanted if row[0] == 4]
    assert history.measured("local", None, 7) == []
