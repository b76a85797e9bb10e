"""A search as a user starts, interrupts and reads it."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
from rich.console import Console

import coterie
from coterie.config import parse_config
from coterie.engines import Simulation
from coterie.errors import CoterieError, Interrupted
from coterie.experiment import experiment as experiment_module
from coterie.federation import ClientData, Federation
from coterie.tuning import Tuned, resume_tuning, tune
from coterie.tuning.attempts import Attempts
from coterie.tuning.display import Progressing
from coterie.tuning.preset import write_tuned
from coterie.tuning.trial import Trial
from coterie.tuning.tuner import _Tuner

TINY: dict[str, Any] = {
    "name": "tiny",
    "federation": {
        "source": "digits",
        "partition": {"rule": "rotation", "clients": 3},
        "train": 16,
        "validation": 12,
        "test": 8,
    },
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"epochs": 1, "batch_size": 4, "lr": 0.1},
    "algorithms": ["local", {"name": "ditto", "personal_epochs": 2}],
    "rounds": 4,
    "evaluate_every": 2,
    "threads": 1,
    "seeds": [0, 1],
}
SPACE = {"lambda": [0.0, 1.0], "training.lr": [0.02, 0.2]}


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def tuned(**more: Any) -> Tuned:
    return tune(TINY, **{"algorithms": ["ditto"], "space": SPACE, **more})


def settings(found: Tuned) -> list[tuple[Any, ...]]:
    """What was tried and what came of it, without the time it took."""
    return [tuple(value for key, value in row.items() if key != "seconds") for row in found.rows]


def stop_after(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C after so many rounds, counted over all trials."""
    advance, done = Simulation.advance, []

    def counted(self: Simulation) -> Any:
        done.append(1)
        if len(done) == rounds:
            signal.raise_signal(signal.SIGINT)
        return advance(self)

    monkeypatch.setattr(Simulation, "advance", counted)


def test_a_grid_tries_every_setting_and_finds_the_best() -> None:
    found = tuned()
    assert [(row["lambda"], row["training.lr"]) for row in found.rows] == [(0, 0.02), (0, 0.2), (1, 0.02), (1, 0.2)]
    best = max(found.rows, key=lambda row: row["validation_accuracy"])
    assert found.best == {"ditto": {"lambda": best["lambda"], "training.lr": best["training.lr"]}}
    assert found.metric == "validation_accuracy"
    assert found.directory == Path("runs/tune-tiny-1")
    table = pd.read_parquet(found.directory / "trials.parquet")
    text = pd.read_csv(found.directory / "trials.csv").fillna({"failed": ""})
    pd.testing.assert_frame_equal(table, text, check_dtype=False)
    assert len(table) == 4


def test_a_trial_is_the_run_with_that_setting() -> None:
    """The score is what an ordinary run has in its history: mean over clients at the best round, mean over seeds."""
    found = tuned(space={"lambda": [0.7]})
    result = coterie.run(TINY, ["algorithms=[{name: ditto, personal_epochs: 2, lambda: 0.7}]"])
    clients = pd.read_parquet(result.directory / "clients.parquet")
    rows = clients.query("algorithm == 'ditto' and split == 'validation' and metric == 'accuracy' and round > 0")
    by_round = rows.groupby(["seed", "round"])["value"].mean()
    assert found.rows[0]["validation_accuracy"] == pytest.approx(by_round.groupby("seed").max().mean(), abs=1e-12)
    assert found.rows[0]["std"] == pytest.approx(by_round.groupby("seed").max().std(), abs=1e-12)


def test_the_best_setting_is_an_experiment_to_run(tmp_path: Path) -> None:
    found = tuned(rounds=2)
    best = coterie.load_config(found.directory / "best.yaml")
    [entry] = best.algorithms
    assert entry.options == {"personal_epochs": 2, "lambda": found.best["ditto"]["lambda"]}
    assert best.training_of(entry).lr == found.best["ditto"]["training.lr"]
    assert best.rounds == 4, "the rounds of a trial are no part of the experiment"
    assert best.tune is None
    write_tuned(found, tmp_path / "presets/mine.yaml")
    text = (tmp_path / "presets/mine.yaml").read_text()
    assert text.startswith(
        "# tiny, tuned by validation accuracy alone.\n# ditto: best of 4 settings of lambda, training.lr"
    )
    assert coterie.load_config(tmp_path / "presets/mine.yaml") == best


def altered(federation: Federation) -> Federation:
    """Other test data: inputs and labels permuted among the examples."""
    test = federation.test
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(test.targets)))
    other = test.targets[order]
    assert not torch.equal(other, test.targets)
    return replace(federation, test=ClientData(test.inputs * 0, other, test.offsets, test.index))


def test_test_data_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = settings(tuned())
    build = experiment_module.build_federation

    def separate(*words: Any, **more: Any) -> Federation:
        """With test data of their own, so that only they change."""
        built = build(*words, **more)
        rows = built.test.rows(torch.arange(int(built.test.offsets[-1])))
        own = ClientData(built.test.inputs[rows], built.test.targets[rows], built.test.offsets, None, built.test.scale)
        return altered(replace(built, test=own))

    monkeypatch.setattr(experiment_module, "build_federation", separate)
    assert settings(tuned()) == expected


def test_test_data_are_not_even_given_to_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    begin = Simulation.__init__

    def noting(self: Simulation, federation: Federation, *words: Any) -> None:
        seen.append(federation.test.total)
        begin(self, federation, *words)

    monkeypatch.setattr(Simulation, "__init__", noting)
    tuned(space={"lambda": [1.0]})
    assert seen == [0, 0]


def test_data_are_divided_once_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    build, built = experiment_module.build_federation, []

    def counted(*words: Any, **more: Any) -> Federation:
        built.append(more["seed"])
        return build(*words, **more)

    monkeypatch.setattr(experiment_module, "build_federation", counted)
    tuned()
    assert built == [0, 1]


@pytest.mark.parametrize("search", ["grid", "random"])
@pytest.mark.parametrize("rounds", [1, 6, 13])
def test_an_interrupted_search_goes_on_where_it_was(search: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuned(search=search, output="whole", trials=4)
    with monkeypatch.context() as patched:
        stop_after(rounds, patched)
        with pytest.raises(Interrupted) as stopped:
            tuned(search=search, output="stopped", trials=4)
    assert stopped.value.command == ("tune", "--resume")
    kept = json.loads(Path("stopped/trials.json").read_text())["trials"]
    scores = [score for trial in kept for score in trial["scores"].values()]
    assert len(scores) == rounds // 4, "what is finished is kept, seed by seed"
    assert settings(resume_tuning("stopped")) == settings(whole)
    assert settings(resume_tuning("stopped")) == settings(whole), "a finished search gives its result again"


def test_seeds_of_a_trial_may_share_a_stack() -> None:
    alone, shared = tuned(), tune(TINY | {"share": 2}, algorithms=["ditto"], space=SPACE)
    assert len(settings(alone)) == len(settings(shared)) == 4
    for one, other in zip(alone.rows, shared.rows, strict=True):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds"}:
            assert one[key] == (pytest.approx(other[key], abs=1e-6) if isinstance(one[key], float) else other[key])


@pytest.mark.parametrize("search", ["grid", pytest.param("optuna", marks=pytest.mark.full)])
def test_trials_side_by_side_come_to_the_same(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: dict[str, Any] = {"space": {"training.lr": [0.02, 0.2]}, "search": search, "trials": 2}
    wanted["algorithms"] = ["ditto", "fedprox"]
    alone = tune(TINY, **wanted, output="alone")
    advances, done = _Tuner.advances, []

    def counted(self: _Tuner, *arguments: Any, **more: Any) -> bool:
        done.append(1)
        if len(done) == 11:
            signal.raise_signal(signal.SIGINT)
        return advances(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(_Tuner, "advances", counted)
        with pytest.raises(Interrupted):
            tune(TINY | {"processes": 2}, **wanted, output="together")
    kept = json.loads(Path("together/trials.json").read_text())["trials"]
    assert 0 < sum(len(trial["scores"]) for trial in kept) < 8
    assert settings(resume_tuning("together")) == settings(alone)


@pytest.mark.full
def test_what_stops_a_process_is_told_and_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    advances, done = _Tuner.advances, []

    def counted(self: _Tuner, *arguments: Any, **more: Any) -> bool:
        done.append(1)
        if len(done) == 11:
            next(child for child in psutil.Process().children() if "coterie.tuning.worker" in child.cmdline()).kill()
        return advances(self, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(_Tuner, "advances", counted)
        with pytest.raises(
            CoterieError, match=r"process of ditto lambda=.* ended unexpectedly .*coterie tune --resume"
        ):
            tune(TINY | {"processes": 2}, algorithms=["ditto"], space=SPACE, output="together")
    assert settings(resume_tuning("together")) == settings(tuned(output="alone"))


def test_the_same_command_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuned(output="whole")
    with monkeypatch.context() as patched:
        stop_after(6, patched)
        with pytest.raises(Interrupted):
            tuned()
    other = tuned(space={"lambda": [0.5]})
    assert other.directory == Path("runs/tune-tiny-2"), "another search is another directory"
    again = tuned()
    assert again.directory == Path("runs/tune-tiny-1")
    assert settings(again) == settings(whole)
    assert tuned().directory == Path("runs/tune-tiny-3"), "a finished search is not touched"


def test_a_killed_search_loses_no_finished_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuned(output="whole", search="random")
    advance, done = Simulation.advance, []

    def killed(self: Simulation) -> Any:
        done.append(1)
        if len(done) == 14:  # in the second seed of the second trial
            raise KeyboardInterrupt
        return advance(self)

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "advance", killed)
        with pytest.raises(KeyboardInterrupt):
            tuned(output="stopped", search="random")
    kept = json.loads(Path("stopped/trials.json").read_text())["trials"]
    assert [len(trial["scores"]) for trial in kept] == [2, 1]
    assert settings(resume_tuning("stopped")) == settings(whole)


@pytest.mark.parametrize("search", ["grid", "random"])
def test_an_infinity_may_be_tried(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal, whose JSON has no such number, gives it back."""
    more = {"algorithms": ["fedora"], "space": {"alpha": [float("inf"), 0.5]}, "search": search, "trials": 2}
    whole = tuned(output="whole", **more)
    assert {row["alpha"] for row in whole.rows} == {0.5, float("inf")}
    journal = (whole.directory / "trials.json").read_text(encoding="utf-8")
    tried = [trial["values"]["alpha"] for trial in json.loads(journal, parse_constant=pytest.fail)["trials"]]
    assert set(tried) == {0.5, ".inf"}
    with monkeypatch.context() as patched:
        stop_after(10, patched)
        with pytest.raises(Interrupted):
            tuned(output="stopped", **more)
    assert settings(resume_tuning("stopped")) == settings(whole)


def test_values_are_tried_beside_those_of_the_other_keys() -> None:
    """Nesterov needs a momentum, which every setting of this grid has."""
    space = {"training.momentum": [0.5, 0.9], "training.nesterov": [False, True]}
    found = tuned(space=space, rounds=1, seeds=[0])
    assert len(found.rows) == 4
    assert not found.failed
    with pytest.raises(CoterieError, match=r"training.nesterov needs optimizer sgd and a momentum above 0"):
        tuned(space=space | {"training.momentum": [0.0, 0.9]}, rounds=1, seeds=[0])


def test_the_best_setting_is_whole_or_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search whose best.yaml could not be written goes on to write it."""
    more = {"space": {"lambda": [1.0]}, "rounds": 1, "seeds": [0], "output": "search"}

    def full(source: Any, target: Any) -> None:
        if Path(target).name == "best.yaml":
            raise OSError(28, "No space left on device")
        replaced(source, target)

    replaced = os.replace
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(CoterieError, match=r"best\.yaml.*No space left on device"):
            tuned(**more)
    assert not Path("search/best.yaml").exists()
    assert tuned(**more).directory == Path("search")
    assert Path("search/best.yaml").is_file()


def test_a_stated_null_holds_for_every_trial() -> None:
    entry = {"name": "fedrep", "body_epochs": None, "training": {"clip": None}}
    config = parse_config({**TINY, "training": {"clip": 10.0}, "algorithms": [entry]})
    trial = Attempts(config, None).setting("fedrep", {"training.lr": 0.02})
    assert trial.algorithms[0].options == {"body_epochs": None}
    training = trial.training_of(trial.algorithms[0])
    assert (training.clip, training.lr) == (None, 0.02)
    bare = parse_config({**TINY, "algorithms": [{"name": "ditto", "training": None}]})
    assert Attempts(bare, None).entry("ditto", {"training.lr": 0.02})["training"] == {"lr": 0.02}


def test_the_table_shows_the_best_of_each_method() -> None:
    space = {"training.lr": [0.01 * (i + 1) for i in range(22)]}
    found = tuned(algorithms=["local", "ditto"], space=space, rounds=1, seeds=[0])
    console = Console(width=200, record=True, quiet=False, file=io.StringIO())
    console.print(found.table())
    lines = console.export_text().splitlines()
    assert sum(line.startswith("local") for line in lines) == 20
    assert sum(line.startswith("ditto") for line in lines) == 20


def test_a_failing_trial_is_a_row() -> None:
    found = tuned(space={"training.lr": [1e25, 0.1]}, algorithms=["local", "ditto"], rounds=2)
    reasons = [(row["method"], bool(row["failed"]), row["validation_accuracy"] is None) for row in found.rows]
    assert reasons == [("local", True, True), ("local", False, False), ("ditto", True, True), ("ditto", False, False)]
    assert found.best["ditto"] == {"training.lr": 0.1}
    assert found.failed == ()


def test_a_method_that_always_fails_is_named() -> None:
    found = tuned(space={"training.lr": [1e25]}, algorithms=["local"], rounds=2)
    assert found.best == {}
    assert len(found.failed) == 1
    assert found.failed[0].startswith("local: seed 0: ")
    assert not (found.directory / "best.yaml").exists()
    with pytest.raises(CoterieError, match="no trial succeeded"):
        write_tuned(found, Path("mine.yaml"))


def test_each_method_searches_its_own_options_with_one_budget() -> None:
    space = {
        "lambda": "0.01..10:log",
        "fedprox.training.lr": [0.1],
        "training.lr": [0.05, 0.1, 0.2],
        "epochs_ft": "1..2",
    }
    methods = ["ditto", "fedprox", "fedavg-ft"]
    found = tuned(algorithms=methods, space=space, trials=2, rounds=1, seeds=[3])
    assert [row["method"] for row in found.rows] == ["ditto", "ditto", "fedprox", "fedavg-ft", "fedavg-ft"]
    for row in found.rows:
        assert (row["lambda"] is None) == (row["method"] != "ditto")
        assert row["method"] != "fedprox" or row["training.lr"] == 0.1
        assert row["method"] != "fedavg-ft" or row["epochs_ft"] in (1, 2)
        assert row["rounds"] == "1"


def test_random_draws_are_new_and_end_with_the_space() -> None:
    found = tuned(search="random", trials=30, rounds=1, seeds=[0])
    tried = {(row["lambda"], row["training.lr"]) for row in found.rows}
    assert len(found.rows) == len(tried) == 4


def test_regression_is_searched_by_the_smallest_error() -> None:
    tree = {
        **TINY,
        "federation": {"source": "sine", "partition": {"rule": "natural"}, "validation": 5, "test": 5},
        "algorithms": ["local"],
    }
    found = tune(tree, space={"training.lr": [1e-6, 0.05]}, rounds=2, seeds=[0])
    errors = {row["training.lr"]: row["validation_mae"] for row in found.rows}
    assert min(errors.values()) > 0
    assert found.best["local"]["training.lr"] == min(errors, key=errors.__getitem__)
    assert found.ranked()[0]["validation_mae"] == min(errors.values())


def test_the_section_of_a_file_says_it_all() -> None:
    section = {
        "algorithms": "ditto",
        "space": {"lambda": [0.1, 1], "training.lr": "0.01..0.1:log"},
        "trials": 3,
        "rounds": 1,
    }
    found = tune({**TINY, "tune": section}, seeds=[0])
    assert len(found.rows) == 3
    assert {row["lambda"] for row in found.rows} <= {0.1, 1}
    assert all(0.01 <= row["training.lr"] <= 0.1 for row in found.rows)
    assert coterie.load_config({**TINY, "tune": section}).tune is not None


def test_a_run_takes_no_notice_of_the_section() -> None:
    result = coterie.run({**TINY, "tune": {"space": {"lambda": [0.1]}}, "rounds": 1, "seeds": [0]}, output="run")
    assert {row["algorithm"] for row in result.rows} == {"local", "ditto"}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lamda": [1.0]}, "ditto has no option lamda, and training neither: did you mean lambda?"),
        ({"training.lrr": [1.0]}, "did you mean training.lr?"),
        ({"lr": [0.1]}, "lr is a key of training: did you mean training.lr?"),
        ({"lambda": [-1.0]}, "tune.space of ditto, lambda: -1.0: .*must be 0 or more"),
        ({"lambda": ["much"]}, "takes float, not 'much'"),
        ({"training.lr": [0]}, "lr must be greater than 0, not 0"),
        ({"lambda": []}, "list at least one value"),
        ({"lambda": "1..0.1"}, "a range goes upwards, but 1 is not below 0.1"),
        ({"lambda": "0..1:log"}, "a range with log begins above 0"),
        ({"lambda": "0.1.."}, "is no range: write 1..5 or 0.01..10:log"),
        ({"lambda": {"low": 0.1, "hihg": 1}}, "did you mean"),
        ({}, "tune.space is missing"),
        ({"mu": [1.0]}, "ditto has no option mu"),
    ],
)
def test_a_wrong_space_is_refused_before_anything_runs(space: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        tuned(space=space)
    assert not Path("runs").exists()


def test_a_grid_needs_listed_values_and_enough_trials() -> None:
    with pytest.raises(CoterieError, match=r"tune\.space\.lambda is a range, which has no grid"):
        tuned(space={"lambda": "0.1..1"}, search="grid")
    with pytest.raises(CoterieError, match=r"the grid of ditto has 4 points, but tune\.trials is 3"):
        tuned(trials=3)
    with pytest.raises(CoterieError, match=r"search must be grid, random or optuna, .*did you mean random\?"):
        tuned(search="randm")


def test_without_validation_data_there_is_no_search() -> None:
    tree = {**TINY, "federation": {**TINY["federation"], "validation": 0}}
    with pytest.raises(CoterieError, match="no client has validation data, and a search must choose by nothing else"):
        tune(tree, algorithms=["ditto"], space=SPACE)
    assert not Path("runs").exists()


def test_names_of_methods_are_checked() -> None:
    with pytest.raises(CoterieError, match="did you mean 'ditto'"):
        tuned(algorithms=["dito"])
    with pytest.raises(CoterieError, match="the configuration lists ditto 2 times: give each entry a label"):
        tune({**TINY, "algorithms": ["ditto", {"name": "ditto", "lambda": 2.0}]}, algorithms=["ditto"], space=SPACE)


def test_a_label_chooses_among_entries_of_one_method() -> None:
    entries = [{"name": "ditto", "label": "long", "personal_epochs": 3}, {"name": "ditto", "label": "short"}]
    found = tune({**TINY, "algorithms": entries}, algorithms=["long"], space={"lambda": [1.0]}, rounds=1, seeds=[0])
    assert found.config.algorithms[0].options == {"personal_epochs": 3, "lambda": 1.0}


def test_without_optuna_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def missing(name: str, *words: Any, **more: Any) -> Any:
        if name == "optuna":
            raise ImportError("No module named 'optuna'")
        return usual(name, *words, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CoterieError, match=r"needs the package optuna: install it with pip install 'coterie\[tune\]'"):
        tuned(search="optuna")
    assert not Path("runs").exists()


def test_optuna_proposes_within_the_space_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="the extra tune is not installed")
    space = {"lambda": "0.01..10:log", "personal_epochs": "1..3", "training.lr": [0.05, 1e25]}
    more = {"space": space, "search": "optuna", "trials": 14, "rounds": 1, "seeds": [0]}
    whole = tuned(output="whole", **more)
    assert len(whole.rows) == 14
    for row in whole.rows:
        assert 0.01 <= row["lambda"] <= 10
        assert row["personal_epochs"] in (1, 2, 3)
        assert (row["training.lr"] == 1e25) == bool(row["failed"])
    with monkeypatch.context() as patched:
        stop_after(12, patched)
        with pytest.raises(Interrupted):
            tuned(output="stopped", **more)
    assert settings(resume_tuning("stopped")) == settings(whole)


def test_damaged_or_foreign_directories_are_named(tmp_path: Path) -> None:
    found = tuned(space={"lambda": [1.0]}, rounds=1, seeds=[0])
    (found.directory / "trials.json").write_text("{")
    with pytest.raises(CoterieError, match=r"trials\.json is damaged"):
        resume_tuning(found.directory)
    run = coterie.run(TINY, ["rounds=1", "seeds=[0]"])
    with pytest.raises(CoterieError, match="is not the directory of a search"):
        resume_tuning(run.directory)


@pytest.mark.parametrize(
    ("metric", "score", "shown"), [("r2", -0.3, "-0.3000"), ("r2", 0.3, "0.3000"), ("rmse", -2, "2.0000")]
)
def test_a_result_is_shown_with_its_sign(metric: str, score: float, shown: str) -> None:
    """Below 0, R2 is worse than the mean; an error is kept negative, so that larger is better, and is shown as it is."""
    console = Console(width=200, record=True, file=io.StringIO())
    Progressing(1, metric, console).done(Trial("local", {}, scores={0: score}, rounds={0: 1}))
    assert f"validation {metric} {shown}" in console.export_text()


def test_scores_of_other_data_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search of a table whose labels were changed begins anew; the earlier one goes on with its own data only."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(120, 3)), columns=["a", "b", "c"])
    table = table.assign(ill=np.where(table.a + table.b > 0, "yes", "no"), ward=["east", "west"] * 60)
    shuffled = table.assign(ill=draw.permutation(table.ill))
    data = tmp_path / "table.csv"
    section = {"source": "table", "path": str(data), "target": "ill", "client": "ward"}
    experiment = TINY | {"federation": section}

    def searched(**more: Any) -> Tuned:
        return tune(experiment, algorithms=["local"], space={"training.lr": [0.01, 0.1]}, **more)

    table.to_csv(data, index=False)
    whole = searched(output="whole")
    with monkeypatch.context() as patched:
        stop_after(9, patched)  # both seeds of the first trial are over
        with pytest.raises(Interrupted):
            searched()
    kept = Path("runs/tune-tiny-1/trials.json").read_text()
    assert set(json.loads(kept)["data"]) == {"0", "1"}

    shuffled.to_csv(data, index=False)
    message = r"The data for seed 0 are not those that the search in runs/tune-tiny-1 began with.* put the data back"
    with pytest.raises(CoterieError, match=message):
        resume_tuning("runs/tune-tiny-1")
    with pytest.raises(CoterieError, match=message):
        searched(output="runs/tune-tiny-1")
    other = searched()
    assert other.directory == Path("runs/tune-tiny-2")
    assert settings(other) != settings(whole)
    assert Path("runs/tune-tiny-1/trials.json").read_text() == kept, "it is left alone"

    table.to_csv(data, index=False)
    again = searched()
    assert again.directory == Path("runs/tune-tiny-1")
    assert settings(again) == settings(whole)


def test_data_that_change_during_a_search_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a search divide the data by themselves, maybe hours after it began."""
    with monkeypatch.context() as patched:
        stop_after(9, patched)
        with pytest.raises(Interrupted):
            tuned(output="stopped")
    digest = Attempts.digest
    monkeypatch.setattr(Attempts, "digest", lambda self, seed: digest(self, seed) if seed == 0 else "another")
    with pytest.raises(CoterieError, match="The data for seed 1 are not those that the search in stopped began with"):
        resume_tuning("stopped")


def test_a_search_of_an_earlier_version_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It kept no checksums of data."""
    whole = tuned(output="whole")
    with monkeypatch.context() as patched:
        stop_after(9, patched)
        with pytest.raises(Interrupted):
            tuned(output="stopped")
    journal = Path("stopped/trials.json")
    journal.write_text(json.dumps({"trials": json.loads(journal.read_text())["trials"]}))
    assert settings(resume_tuning("stopped")) == settings(whole)
