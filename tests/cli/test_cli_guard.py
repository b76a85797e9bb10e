"""The guard as a user meets it: what each client keeps, what is reported, an interruption, and what is refused."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import TINY, coterie, error_of, rows_of

from coterie.experiment import guarding
from coterie.experiment.plan import Job
from coterie.experiment.session import Session
from coterie.experiment.work import Closing

GUARDED = TINY + "guard: {folds: 2}\n"
KEY = ["seed", "client"]


def written(folder: Path, text: str) -> Path:
    """An experiment as a file."""
    path = folder / "guarded.yaml"
    path.write_text(text)
    return path


def values(run: Path, variant: str, algorithm: str = "ditto") -> "pd.Series[float]":
    """Test accuracies by client in the round that is reported."""
    table = pd.read_parquet(run / "clients.parquet")
    table = table[(table["algorithm"] == algorithm) & (table["variant"] == variant) & (table["phase"] == "evaluate")]
    validation = table[(table["split"] == "validation") & (table["metric"] == "accuracy")]
    best = validation.groupby("round")["value"].mean().idxmax()
    chosen = table[(table["split"] == "test") & (table["metric"] == "accuracy") & (table["round"] == best)]
    return chosen.set_index("client")["value"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A guarded run."""
    folder = tmp_path_factory.mktemp("guard")
    result = coterie("run", written(folder, GUARDED), "--output", folder / "run", "-q")
    assert result.exit_code == 0, result.output
    assert "Clients keep the model that they trained alone: ditto + guard" in result.output
    return folder / "run"


def test_each_client_has_the_result_of_the_model_that_it_keeps(run: Path) -> None:
    """Results under the guard are those of LOCAL or of the method, as guard.csv says."""
    decided = pd.read_csv(run / "guard.csv").set_index("client")
    own, alone, kept = values(run, ""), values(run, "", "local"), values(run, "guard")
    expected = own.where(decided["keeps"].loc[own.index] == "personalised", alone.loc[own.index])
    pd.testing.assert_series_equal(kept, expected, check_names=False)
    assert (decided["n"] == 18 + 6).all()  # every example validates in a fold, and six in the run itself


def test_the_models_are_those_that_are_kept(run: Path) -> None:
    """Byte for byte, so that exports and predictions are those of the model that a client keeps."""
    for client, keeps in pd.read_csv(run / "guard.csv").set_index("client")["keeps"].items():
        kept = run / "models" / "ditto-guard" / "seed0" / f"{client}.safetensors"
        source = "ditto" if keeps == "personalised" else "local"
        assert kept.read_bytes() == (run / "models" / source / "seed0" / kept.name).read_bytes()


def test_the_rule_sees_the_losses_of_the_folds(run: Path) -> None:
    """The differences of guard.csv are the mean differences of the losses that the folds kept."""
    delta, owner = [], []
    for place in ("guard/fold0", "guard/fold1", "."):
        losses = run / place / "losses"
        with np.load(losses / "local" / "seed0.npz") as alone, np.load(losses / "ditto" / "seed0.npz") as own:
            name = f"loss:{guarding.LOSS['accuracy']}"
            delta.append(alone[name] - own[name])
            owner.append(np.repeat(alone["clients"], alone["n"]))
    means = pd.Series(np.concatenate(delta)).groupby(np.concatenate(owner)).mean()
    decided = pd.read_csv(run / "guard.csv").set_index("client")
    np.testing.assert_allclose(decided["difference"], means.loc[decided.index], rtol=1e-9)


def test_the_cost_is_that_of_all_that_was_trained(run: Path) -> None:
    """Two folds and the run itself: three times the bytes of the method, which alone sends any."""
    rows = {(row["algorithm"], row["variant"]): row for row in rows_of(run)}
    assert rows["ditto", "guard"]["bytes_up"] == 3 * rows["ditto", None]["bytes_up"]
    assert list(rows) == [("local", None), ("ditto", None), ("ditto", "guard")]


def test_resuming_a_finished_run_changes_nothing(run: Path) -> None:
    """The folds are there, so nothing is trained, and the tables stay."""
    before = (run / "summary.json").read_text(), (run / "guard.csv").read_text()
    assert coterie("resume", run, "-q").exit_code == 0
    assert ((run / "summary.json").read_text(), (run / "guard.csv").read_text()) == before


def test_a_fold_that_a_kill_left_half_made_is_trained(run: Path, tmp_path: Path) -> None:
    """Also one that is not even a run directory yet; the result is that of a run that nothing stopped."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copy / "guard" / "fold1")
    (copy / "guard" / "fold1" / "checkpoints").mkdir(parents=True)
    (copy / "guard.csv").unlink()
    result = coterie("resume", copy, "-q")
    assert result.exit_code == 0, result.output
    assert (copy / "guard.csv").read_text() == (run / "guard.csv").read_text()


@pytest.mark.parametrize(("jobs", "code"), [(2, 143), (4, 143), (6, 0)])
def test_a_stop_in_the_last_round_is_one_before_the_next_fold(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, code: int
) -> None:
    """Two jobs are the run, two more each fold; after the last one nothing is left to stop."""
    over: list[Job] = []
    usual = Session.finished

    def finished(session: Session, job: Job, closing: Closing) -> None:
        over.append(job)
        if len(over) == jobs:
            signal.raise_signal(signal.SIGTERM)
        usual(session, job, closing)

    monkeypatch.setattr(Session, "finished", finished)
    assert coterie("run", written(tmp_path, GUARDED), "--output", tmp_path / "run", "-q").exit_code == code
    monkeypatch.undo()
    assert len(over) == jobs
    assert coterie("resume", tmp_path / "run", "-q").exit_code == 0
    assert (tmp_path / "run" / "guard.csv").read_text() == (run / "guard.csv").read_text()


@pytest.mark.parametrize("file", ["losses/ditto/seed0.npz", "clients.parquet", "checkpoints/progress.json"])
def test_of_a_damaged_fold_it_is_said_how_to_train_it_again(run: Path, tmp_path: Path, file: str) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "guard" / "fold0" / file).write_bytes(b"?")
    fold = copy / "guard" / "fold0"
    assert error_of(coterie("resume", copy, "-q")) == (
        f"the guard cannot read the fold {fold}: delete this folder, then `coterie resume {copy}` trains it again."
    )


@pytest.mark.parametrize("folds", [3, 0])
def test_folds_of_another_division_are_not_mixed(run: Path, tmp_path: Path, folds: int) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace("folds: 2", f"folds: {folds}"))
    result = coterie("resume", copy, "-q")
    if folds:
        fold = copy / "guard" / "fold0"
        assert error_of(result) == (
            f"the guard's fold {fold} is one of another division, as guard.folds was another then: set it back, or delete "
            f"{copy / 'guard'}, and all folds are trained again."
        )
    else:
        assert result.exit_code == 0, result.output
        assert (pd.read_csv(copy / "guard.csv")["n"] == 6).all()


def test_folds_see_the_data_of_the_run(run: Path, tmp_path: Path) -> None:
    """Stopped between two folds, the next one compares the data with those of the run."""
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copy / "guard" / "fold1")
    record = copy / "checkpoints" / "progress.json"
    content = json.loads(record.read_text())
    content["sources"]["0"]["digest"] = "of other data"
    record.write_text(json.dumps(content))
    assert "the data for seed 0 are not those this run began with" in error_of(coterie("resume", copy, "-q"))
    assert not (copy / "guard" / "fold1").exists()


def test_the_estimate_tells_what_the_folds_cost(tmp_path: Path) -> None:
    result = coterie("run", written(tmp_path, GUARDED), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "guard, 2 folds" in result.output


def test_validation_examples_alone_and_one_method_alone(tmp_path: Path) -> None:
    """Without folds the run's own validation examples are judged by; only ditto asks for it."""
    text = TINY.replace("{name: ditto, lambda: 0.5}", "fedavg, {name: ditto, lambda: 0.5, guard: true}")
    path = written(tmp_path, text + "guard: {folds: 0}\n")
    result = coterie("run", path, "-s", "algorithms.fedavg.guard=false", "-o", tmp_path / "run", "-q")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / "run" / "guard").exists()
    decided = pd.read_csv(tmp_path / "run" / "guard.csv")
    assert set(decided["algorithm"]) == {"ditto"}
    assert (decided["n"] == 6).all()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("guard: {folds: 1}\n", "one fold would leave nothing to train on"),
        ("guard: {confidence: 0.2}\n", "guard.confidence"),
        ("guard: true\nprivacy: {clip: 1.0, noise: 1.0}\n", "spends privacy.noise again: set guard.folds: 0"),
        ("guard: {folds: 0}\nreport: last\n", "guard.folds: 0 judges by validation examples, but no client has any"),
    ],
)
def test_what_it_cannot_be_had_with(tmp_path: Path, more: str, sentence: str) -> None:
    """One sentence each, before anything is trained."""
    text = TINY.replace("validation: 6", "validation: 0") if "report" in more else TINY
    path = written(tmp_path, text + more)
    assert sentence in error_of(coterie("run", path, "-o", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_page_says_how_often_local_was_kept(run: Path) -> None:
    """In one sentence, and no run is called unfinished."""
    decided = pd.read_csv(run / "guard.csv")
    alone = int((decided["keeps"] == "local").sum())
    assert coterie("report", run).exit_code == 0
    text = (run / "report.html").read_text()
    assert f"Clients keep the model that they trained alone: ditto + guard {alone} of 4 times." in text
    assert "of 4 rounds." not in text


def test_the_card_of_an_export_says_which_model_is_kept(run: Path, tmp_path: Path) -> None:
    """Of the guarded method as of LOCAL, with the results that the summary counts."""
    alone, kept = values(run, "", "local"), values(run, "guard")
    for client, keeps in pd.read_csv(run / "guard.csv").set_index("client")["keeps"].items():
        where = ("--client", client, "-a", "ditto-guard", "--format", "state_dict", "-o", tmp_path / str(client))
        assert coterie("export", run, *where).exit_code == 0
        card = (tmp_path / str(client) / "README.md").read_text()
        words = {"local": "the model that it trained alone", "personalised": "its personalised model"}[keeps]
        assert f"| method | ditto + guard: this client keeps {words} |" in card
        assert f"| accuracy | {kept[client]:.4g} | {alone[client]:.4g} |" in card
