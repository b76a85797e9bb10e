"""Several runs as one comparison: who is pooled, who is told apart, who is tested against whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hand_made import made

import coterie
from coterie import CoterieError, compare
from coterie.evaluation.significance import average_ranks, holm, paired_test
from coterie.reports import open_run
from coterie.reports.sheets import comma_separated, results_sheet, sheets

LOCAL = {0: [0.5, 0.6, 0.7, 0.8], 1: [0.55, 0.6, 0.65, 0.7]}
FEDAVG = {0: [0.6, 0.5, 0.7, 0.6], 1: [0.5, 0.7, 0.6, 0.5]}
FEDORA = {0: [0.7, 0.8, 0.75, 0.9], 1: [0.75, 0.7, 0.65, 0.8]}
ALL = {"local": LOCAL, "fedavg": FEDAVG, "fedora:released": FEDORA}


def seed(results: dict[str, dict[int, list[float]]], *seeds: int) -> dict[str, dict[int, list[float]]]:
    """Only these seeds."""
    return {
        name: {each: values for each, values in by_seed.items() if each in seeds} for name, by_seed in results.items()
    }


def test_one_run_is_what_its_own_table_says(tmp_path: Path) -> None:
    run = made(tmp_path / "a", ALL, seeds=[0, 1])
    found = compare([run])
    for row, own in zip(found.rows, open_run(run).rows, strict=True):
        assert {key: row[key] for key in own} == own
    assert found.labels == ["local", "fedavg", "fedora (released)"]
    assert found.reference == "fedora (released)"
    assert found.notes == ()


def test_other_seeds_of_one_experiment_are_pooled(tmp_path: Path) -> None:
    whole = compare([made(tmp_path / "both", ALL, seeds=[0, 1])])
    parts = compare([made(tmp_path / f"seed{i}", seed(ALL, i), seeds=[i], name=f"part{i}", threads=1) for i in (0, 1)])
    assert [row | {"runs": None} for row in parts.rows] == [row | {"runs": None} for row in whole.rows]
    assert parts.rows[0]["runs"] == ["seed0", "seed1"]
    assert parts.tests == whole.tests
    assert parts.ranks == whole.ranks


def test_tests_are_over_clients_and_seeds(tmp_path: Path) -> None:
    found = compare([made(tmp_path / "a", ALL, seeds=[0, 1])])
    ours = {name: np.array(by_seed[0] + by_seed[1]) for name, by_seed in ALL.items()}
    by_hand = [paired_test(ours[name], ours["fedora:released"]) for name in ("local", "fedavg")]
    assert [each.test for each in found.tests] == by_hand
    assert (by_hand[0].pairs, by_hand[0].wins, by_hand[0].ties, by_hand[0].losses) == (8, 0, 1, 7)
    assert [each.p_holm for each in found.tests] == pytest.approx(list(holm([test.p for test in by_hand])))
    blocks = np.stack(list(ours.values()), axis=1)
    assert found.ranks == average_ranks(blocks, found.labels)
    assert found.pairwise["local", "fedavg"] == paired_test(ours["local"], ours["fedavg"])


def test_a_seed_that_two_runs_have_counts_once(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a", ALL, seeds=[0, 1]), made(tmp_path / "b", seed(ALL, 1), seeds=[1])
    found = compare([first, second])
    assert found.rows == compare([first]).rows
    assert found.notes == ()
    other = made(tmp_path / "c", seed(ALL | {"fedavg": {1: [0.1] * 4}}, 1), seeds=[1])
    found = compare([first, other])
    assert found.rows == compare([first]).rows
    assert [note for note in found.notes if "different results" in note] == [
        f"fedavg, seed 1: {first} and {other} hold different results; the former is shown."
    ]


def test_an_option_of_one_method_is_told_at_that_method(tmp_path: Path) -> None:
    runs = [
        made(
            tmp_path / f"x{value}",
            {"local": LOCAL, "ditto": {0: [value] * 4, 1: [value] * 4}},
            seeds=[0, 1],
            algorithms=["local", {"name": "ditto", "lambda": value}],
        )
        for value in (0.5, 0.75)
    ]
    found = compare(runs)
    assert found.labels == ["local", "ditto (lambda=0.5)", "ditto (lambda=0.75)"]
    assert [row["accuracy_mean"] for row in found.rows[1:]] == [0.5, 0.75]
    assert found.reference == "ditto (lambda=0.75)"
    assert "chosen for its mean accuracy" in found.notes[0]


def test_the_reference_is_fedora_in_its_better_variant_even_where_another_is_above(tmp_path: Path) -> None:
    systems = {
        "local": {0: LOCAL[0]},
        "fedavg": {0: [0.9] * 4},
        "fedora:released": {0: [0.8] * 4},
        "fedora:paper": {0: [0.7] * 4},
    }
    found = compare([made(tmp_path / "a", systems, seeds=[0])])
    assert found.reference == "fedora (released)"
    assert "was chosen for its mean accuracy among the systems of fedora," in found.notes[0]


def test_training_of_an_entry_replaces_that_of_the_run(tmp_path: Path) -> None:
    first = made(tmp_path / "a", seed(ALL, 0), training={"lr": 0.1})
    entry = [{"name": name, "training": {"lr": 0.1}} for name in ("local", "fedavg")]
    second = made(
        tmp_path / "b", seed(ALL, 1), seeds=[1], training={"lr": 0.9},
        algorithms=[*entry, {"name": "fedora", "variant": "released"}],
    )  # fmt: skip
    assert compare([first, second]).labels == [
        "local",
        "fedavg",
        "fedora (released, lr=0.1)",
        "fedora (released, lr=0.9)",
    ]


def test_runs_that_differ_in_much_are_told_apart_by_name(tmp_path: Path) -> None:
    changes = {"rounds": 3, "training": {"lr": 0.5, "epochs": 2, "batch_size": 7}}
    runs = [made(tmp_path / "one", ALL, seeds=[0, 1]), made(tmp_path / "two", ALL, seeds=[0, 1], **changes)]
    assert "fedavg (one)" in compare(runs).labels
    assert "fedora (released, two)" in compare(runs).labels
    again = made(tmp_path / "deeper" / "one", ALL, seeds=[0, 1], **changes)
    assert f"fedavg ({again})" in compare([runs[0], again]).labels


def test_labels_that_stand_for_different_methods(tmp_path: Path) -> None:
    first = made(tmp_path / "a", ALL, seeds=[0, 1], labels={"fedavg": "ours"})
    second = made(tmp_path / "b", {"local": LOCAL, "ditto": FEDAVG}, seeds=[0, 1], labels={"ditto": "ours"})
    assert compare([first, second]).labels == ["local", "ours (fedavg in a)", "fedora (released)", "ours (ditto in b)"]


def alphas(folder: Path) -> list[Path]:
    """Two federations, in the second of which FedAvg has not run."""
    federations = [
        {"source": "digits", "partition": {"rule": "dirichlet", "clients": 4, "alpha": a}} for a in (1.0, 0.1)
    ]
    second = {"local": FEDAVG, "fedora:released": FEDORA}
    return [
        made(folder / "even", ALL, seeds=[0, 1], federation=federations[0]),
        made(folder / "uneven", second, seeds=[0, 1], federation=federations[1]),
    ]


def test_clients_of_different_federations_are_no_pairs(tmp_path: Path) -> None:
    found = compare(alphas(tmp_path))
    assert found.labels == [
        "local (alpha=1)",
        "fedavg",
        "fedora (released, alpha=1)",
        "local (alpha=0.1)",
        "fedora (released, alpha=0.1)",
    ]
    assert found.reference == "fedora (released, alpha=0.1)"
    tested = {each.label: each.test for each in found.tests}
    assert tested["local (alpha=0.1)"] is not None
    assert tested["fedavg"] is None
    assert (
        "Not compared with fedora (released, alpha=0.1), since their federations differ: local (alpha=1), fedavg, "
        "fedora (released, alpha=1); --by puts each federation into a column of its own."
    ) in found.notes
    assert found.ranks is None
    assert "two blocks (one client and seed each) with results of all systems, and there are 0." in found.notes[-1]


def test_by_a_key_makes_columns(tmp_path: Path) -> None:
    found = compare(alphas(tmp_path), by=["federation.partition.alpha"])
    sheet = results_sheet(found)
    assert sheet.headers == ("System", "alpha=0.1", "alpha=1")
    texts = {row[0].text: [cell.text for cell in row[1:]] for row in sheet.rows}
    assert texts["fedavg"] == ["–", "0.587±0.018"]
    assert texts["local"] == ["0.587±0.018", "0.637±0.018"]
    assert [cell.mark for cell in sheet.rows[2][1:]] == ["best", "best"]
    assert sheet.rows[0][2].mark == "second"
    tested = {each.label: each.test for each in found.tests}
    assert tested["local"] is not None
    assert tested["local"].pairs == 16  # four clients, two seeds, two federations
    assert tested["fedavg"] is not None
    assert tested["fedavg"].pairs == 8
    assert found.ranks is not None
    assert found.ranks.blocks == 8
    assert [row["by"] for row in found.rows][::3] == [
        {"federation.partition.alpha": 1.0},
        {"federation.partition.alpha": 0.1},
    ]


def test_other_settings_may_go_along_with_the_key(tmp_path: Path) -> None:
    """As for data sets, each with a model of its own: they do not tell rows apart, since no column has two."""
    runs = [
        made(tmp_path / f"lr{lr}", ALL, seeds=[0, 1], training={"lr": lr, "epochs": epochs})
        for lr, epochs in ((0.1, 1), (0.01, 2))
    ]
    found = compare(runs, by=["training.lr"])
    assert found.labels == ["local", "fedavg", "fedora (released)"]
    assert results_sheet(found).headers == ("System", "lr=0.01", "lr=0.1")
    assert sheets(compare(runs, by=["training.lr", "training.lr"])) == sheets(found)
    both = compare(runs, by=["training.lr", "training.epochs"])
    assert results_sheet(both).headers == ("System", "lr=0.01\nepochs=2", "lr=0.1\nepochs=1")


def test_columns_with_other_numbers_of_seeds_say_so(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / "two", ALL, seeds=[0, 1], rounds=2),
        made(tmp_path / "one", {"local": {0: LOCAL[0]}}, seeds=[0], rounds=3),
    ]
    notes = results_sheet(compare(runs, by=["rounds"])).notes
    assert notes[-1] == (
        "Seeds: 2 for local at rounds=2, fedavg at rounds=2, fedora (released) at rounds=2; 1 for local at rounds=3."
    )


def test_by_an_option_of_a_method(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / f"x{i}", {"local": LOCAL, "ditto": FEDAVG}, seeds=[0, 1], algorithms=["local", {"name": "ditto", "lambda": value}])
        for i, value in enumerate((0.5, 2.0))
    ]  # fmt: skip
    found = compare(runs, by=["algorithms.ditto.lambda"])
    assert results_sheet(found).headers == ("System", "lambda=0.5", "lambda=2")
    assert found.labels == ["local", "ditto"]


@pytest.mark.parametrize(
    ("metric", "local", "pairs"),
    [
        ("accuracy", [0.5, 0.6, 0.7, 0.8], 8), ("gain", [0.0] * 4, 8), ("r_acc", [0.0] * 4, 8), ("ptr", [1.0] * 4, 8),
        ("worst", [0.5], 2), ("worst_decile", [0.5], 2),
    ],
)  # fmt: skip
def test_metrics(tmp_path: Path, metric: str, local: list[float], pairs: int) -> None:
    found = compare([made(tmp_path / "a", ALL, seeds=[0, 1])], metric=metric)
    assert list(found.values["local"].xs(0, level="seed")) == pytest.approx(local)
    assert all(each.test is not None and each.test.pairs == pairs for each in found.tests)
    fedavg = dict(zip(found.values["fedavg"].index.get_level_values("client"), found.values["fedavg"], strict=False))
    expected = {"gain": 100 * (0.5 - 0.55), "r_acc": (0.5 - 0.55) / 0.55, "ptr": 0.0, "accuracy": 0.5}
    if metric in expected:
        assert fedavg["client-0"] == pytest.approx(expected[metric])


def test_the_reference(tmp_path: Path) -> None:
    run = made(tmp_path / "a", ALL, seeds=[0, 1])
    assert compare([run], reference="local").reference == "local"
    assert compare([run], reference="fedora").reference == "fedora (released)"
    with pytest.raises(CoterieError, match="--reference fedavgg is none of the systems: give one of fedavg, "):
        compare([run], reference="fedavgg")
    two = made(tmp_path / "b", ALL | {"fedora:paper": FEDAVG}, seeds=[0, 1])
    with pytest.raises(CoterieError, match=r"stands for several systems: give one of fedora \(paper\), fedora \(rel"):
        compare([two], reference="fedora")


def test_the_protocol_can_be_chosen(tmp_path: Path) -> None:
    run = made(tmp_path / "a", ALL, seeds=[0, 1], report="best_val")
    tables = pd.read_parquet(run / "clients.parquet")
    better = (tables["split"] == "validation") & (tables["round"] == 1)
    tables.loc[better, "value"] += 0.1
    tables.to_parquet(run / "clients.parquet")
    assert compare([run]).rows[0]["chosen_rounds"] == [1, 1]
    last = compare([run, made(tmp_path / "b", seed(ALL, 0), report="last", seeds=[0])], report="last")
    assert last.labels == ["local", "fedavg", "fedora (released)"]
    assert last.rows[0]["chosen_rounds"] == [2, 2]
    assert last.rows[0]["report"] == "last"


def guarded(folder: Path, seeds: tuple[int, ...], **changes: Any) -> Path:
    results = {name: dict.fromkeys(seeds, (0.5, 0.6)) for name in ("local", "fedavg", "fedavg:guard")}
    return made(folder, results, algorithms=["local", "fedavg"], seeds=list(seeds), **changes)


def test_a_guard_is_for_one_protocol(tmp_path: Path) -> None:
    run = guarded(tmp_path / "a", (0,), guard={}, report="best_val")
    found = compare([run], report="last")
    assert found.labels == ["local", "fedavg"]
    assert f"{run}: fedavg (guard) is left out, since the guard decides for the round of report: best_val alone." in (
        found.notes
    )
    assert compare([run], report="best_val").labels == ["local", "fedavg", "fedavg (guard)"]


def test_guards_that_decide_otherwise_are_not_pooled(tmp_path: Path) -> None:
    runs = [guarded(tmp_path / "a", (0,), guard={}), guarded(tmp_path / "b", (1,), guard={"confidence": 0.7})]
    assert compare(runs).labels == ["local", "fedavg", "fedavg (guard)"]
    runs.append(guarded(tmp_path / "c", (2,), guard={"confidence": 0.95, "folds": 0}))
    assert compare(runs).labels == [
        "local", "fedavg", "fedavg (guard, folds=5, confidence=0.7)", "fedavg (guard, folds=0, confidence=0.95)",
    ]  # fmt: skip


def test_another_local_is_said(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / name, {"local": {i: [low] * 4}, "fedavg": {i: [0.8] * 4}}, seeds=[i], algorithms=[entry, "fedavg"])
        for i, (name, low, entry) in enumerate((("a", 0.7, "local"), ("b", 0.4, {"name": "local", "training": {"lr": 5.0}})))
    ]  # fmt: skip
    found = compare(runs)
    assert len(found.labels) == 3
    assert [note for note in found.notes if note.startswith("LOCAL itself was trained with other settings")] == [
        "LOCAL itself was trained with other settings in some of the runs (training.lr): what is relative to it, such as "
        "R-Acc, PTR and gains, is over the LOCAL of the run that a result is from, and on no one scale."
    ]
    assert not any("LOCAL itself" in note for note in compare(runs[:1]).notes)


def test_different_protocols_are_said(tmp_path: Path) -> None:
    runs = [
        made(tmp_path / f"a{i}", seed(ALL, i), seeds=[i], report=report)
        for i, report in enumerate(("last", "best_val"))
    ]
    assert "Runs report by last and best_val; choose one for all with --report." in compare(runs).notes


# --- runs that are not whole -----------------------------------------------------------------------------------------
def test_an_unfinished_run_gives_what_it_has(tmp_path: Path) -> None:
    part = {"local": LOCAL, "fedavg": {0: FEDAVG[0]}, "fedora:released": FEDORA}
    run = made(tmp_path / "a", part, seeds=[0, 1], rounds=9)
    found = compare([run])
    assert [len(row["seeds"]) for row in found.rows] == [2, 1, 2]
    assert found.notes[0].startswith(f"{run}: local, seed 0: 2 of 9 rounds.")
    assert found.notes[0].endswith("And 3 more such.")
    assert "Seeds: 2 for local, fedora (released); 1 for fedavg." in results_sheet(found).notes
    tested = {each.label: each.test for each in found.tests}
    assert tested["fedavg"] is not None
    assert tested["fedavg"].pairs == 4
    assert found.ranks is not None
    assert found.ranks.blocks == 4


def test_a_run_without_about_and_config(tmp_path: Path) -> None:
    first, second = (made(tmp_path / name, ALL, seeds=[0, 1]) for name in ("a", "b"))
    (first / "about.json").unlink()
    (first / "config.yaml").write_text("[1, 2")
    found = compare([first, second])
    assert "fedavg (a)" in found.labels
    assert "fedavg (b)" in found.labels
    assert any("compared with no other run's" in note for note in found.notes)
    assert any("about.json" in note for note in found.notes)
    assert found.rows[0]["accuracy_mean"] == found.rows[3]["accuracy_mean"]


def test_damaged_and_empty_directories_are_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "a", ALL, seeds=[0, 1])
    with pytest.raises(CoterieError, match="There is no run directory"):
        compare([run, tmp_path / "absent"])
    with pytest.raises(CoterieError, match="is not a run directory"):
        compare([tmp_path])
    damaged = made(tmp_path / "b", ALL, seeds=[0, 1])
    (damaged / "clients.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(CoterieError, match=r"b has no results to compare. clients.parquet is damaged"):
        compare([run, damaged])
    (damaged / "clients.parquet").unlink()
    with pytest.raises(CoterieError, match=r"b has no results to compare. clients.parquet is missing"):
        compare([damaged])
    (damaged / "tune.yaml").write_text("name: x\n")
    with pytest.raises(CoterieError, match=r"b is the directory of a search, .* `coterie run .*b/best.yaml`"):
        compare([damaged])


def test_other_damage_is_said(tmp_path: Path) -> None:
    run = made(tmp_path / "a", ALL, seeds=[0, 1])
    (run / "history.parquet").write_bytes(b"")
    found = compare([run])
    assert "history.parquet is damaged" in found.notes[0]
    assert found.rows[0]["accuracy_mean"] == pytest.approx(0.6375)


def test_a_key_that_no_run_has(tmp_path: Path) -> None:
    run = made(tmp_path / "a", ALL, seeds=[0, 1])
    with pytest.raises(
        CoterieError, match=r"--by federation.alpha: no run .*; did you mean federation.partition.alpha\?"
    ):
        compare([run], by=["federation.alpha"])
    with pytest.raises(CoterieError, match="--metric f1: these runs are compared by accuracy, r_acc, ptr, gain"):
        compare([run], metric="f1")
    with pytest.raises(CoterieError, match="at least one run"):
        compare([])


def test_a_real_run_and_a_regression(finished: Path, tmp_path: Path) -> None:
    """Errors are compared the other way round, and not together with accuracies."""
    sine = {
        "federation": {"source": "sine", "partition": {"rule": "natural"}},
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"epochs": 1},
        "algorithms": ["local", "fedavg"],
        "rounds": 1,
    }
    runs = [finished, coterie.run(sine, output=tmp_path / "sine").directory]
    found = [compare([run]) for run in runs]
    assert [each.measure.name for each in found] == ["accuracy", "mae"]
    for each in found:
        assert each.rows[1]["bytes_up"] > 0
        assert json.loads(json.dumps(each.as_dict(pairs=True), allow_nan=False))["tests"][0]["pairs"] == len(
            each.values
        )
    errors = found[1].values["local"] - found[1].values["fedavg"]
    against = found[1].pairwise["local", "fedavg"]
    assert (against.wins, against.losses) == (int((errors < 0).sum()), int((errors > 0).sum()))
    assert against.difference == pytest.approx(-errors.mean())
    assert "mae_mean" in comma_separated(found[1]).splitlines()[0].split(",")
    assert [sheet.headers[1] for sheet in sheets(found[1])] == ["MAE", "Pairs"]
    with pytest.raises(CoterieError, match="Runs of one task can be compared, not"):
        compare(runs)
