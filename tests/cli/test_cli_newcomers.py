"""Newcomers from the command line: held out by a configuration, or brought by another one after the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from cli_helpers import TINY, assert_same_run, coterie, error_of, rows_of
from safetensors.torch import load_file

import coterie as package
from coterie.contract import Server
from coterie.errors import CoterieError, CoterieWarning
from coterie.runs import NewcomersDirectory
from coterie.runs.record import Key, Record

WITH = TINY.replace("clients: 4", "clients: 6") + "newcomers: {clients: [client-01, client-04], epochs: 3}\n"
OTHERS = """\
federation: {source: digits, partition: {rule: rotation, clients: 3}, train: 12, validation: 6, test: 10, seed: 9}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that held two clients out."""
    folder = tmp_path_factory.mktemp("newcomers")
    (folder / "with.yaml").write_text(WITH.replace("[local,", "[local, fedavg, fedora,"))
    done = coterie("run", folder / "with.yaml", "--output", folder / "out")
    assert done.exit_code == 0, done.output
    assert "Newcomers: accuracy" in done.stdout
    return folder / "out"


def newcomers_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text())["rows"]
    return rows


def test_they_take_no_part_in_training(run: Path) -> None:
    names = set(pd.read_parquet(run / "clients.parquet")["client"])
    assert names == {"client-00", "client-02", "client-03", "client-05"}
    assert {path.stem for path in (run / "models/fedavg/seed0").iterdir()} == names
    assert len(rows_of(run)) == 4


def test_the_summary_says_how_they_fare(run: Path) -> None:
    rows = newcomers_of(run / "newcomers")
    assert [(row["algorithm"], row["labelled"]) for row in rows] == [
        ("local", True), ("fedavg", True), ("fedavg", False), ("fedora", True), ("fedora", False), ("ditto", True),
        ("ditto", False),
    ]  # fmt: skip
    for row in rows:
        assert row["newcomers"] == 2
        assert row["failed"] == 0
        assert len(row["curve"]) == 1 + row["epochs"] == (4 if row["labelled"] else 1)
        assert (row["gain_mean"] is not None) == row["labelled"]
    table = pd.read_csv(run / "newcomers/fedavg/seed0.csv")
    curve = table[(table["metric"] == "accuracy") & table["labelled"]].groupby("epoch")["value"].mean()
    assert rows[1]["curve"] == pytest.approx(list(curve))
    local = pd.read_csv(run / "newcomers/local/seed0.csv")
    last = {
        name: frame[(frame["metric"] == "accuracy") & frame["labelled"] & (frame["epoch"] == 3)].set_index("client")
        for name, frame in (("local", local), ("fedavg", table))
    }
    gain = 100 * (last["fedavg"]["value"] - last["local"]["value"])
    assert rows[1]["gain_mean"] == pytest.approx(gain.mean())
    assert rows[1]["ptr"] == pytest.approx((gain >= 0).mean())


def test_where_only_the_actors_have_a_gpu_they_train_on_the_cpu(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    config = yaml.safe_load((copy / "config.yaml").read_text()) | {"engine": "ray", "device": "cuda"}
    (copy / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.warns(CoterieWarning, match="train in this process, which has no cuda: they use the CPU"):
        package.adapt(copy, output=tmp_path / "out")
    assert newcomers_of(tmp_path / "out") == newcomers_of(run / "newcomers")


def test_their_models_are_kept(run: Path) -> None:
    for way in ("labelled", "unlabelled"):
        files = sorted((run / f"newcomers/{way}/models/fedavg/seed0").iterdir())
        assert [file.stem for file in files] == ["client-01", "client-04"]
        assert load_file(files[0]).keys() == load_file(run / "models/fedavg/seed0/client-00.safetensors").keys()


def test_adapt_repeats_what_the_run_did(run: Path, tmp_path: Path) -> None:
    """From the saved server: the same tables, number for number."""
    done = coterie("adapt", run, "--output", tmp_path / "again")
    assert done.exit_code == 0, done.output
    assert "Newcomers: accuracy" in done.stdout
    for part in ("local", "fedavg", "fedora-released", "ditto"):
        one, other = (pd.read_csv(folder / f"{part}/seed0.csv") for folder in (run / "newcomers", tmp_path / "again"))
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert newcomers_of(tmp_path / "again") == newcomers_of(run / "newcomers")


def test_adapt_with_other_settings(run: Path) -> None:
    done = coterie("adapt", run, "-s", "newcomers.epochs=1", "-s", "newcomers.labelled=true", "-a", "ditto", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(row["algorithm"], row["labelled"], row["epochs"]) for row in rows] == [
        ("local", True, 1), ("ditto", True, 1),
    ]  # fmt: skip
    found = sorted(path.name for path in run.glob("adapted-*"))
    assert found == ["adapted-1"]
    assert coterie("adapt", run, "-a", "local").exit_code == 0
    assert (run / "adapted-2/newcomers.yaml").exists()


def test_newcomers_of_another_configuration(run: Path, tmp_path: Path) -> None:
    (tmp_path / "others.yaml").write_text(OTHERS)
    done = coterie("adapt", run, tmp_path / "others.yaml", "--output", tmp_path / "all")
    assert done.exit_code == 0, done.output
    assert {row["newcomers"] for row in newcomers_of(tmp_path / "all")} == {3}
    done = coterie(
        "adapt", run, tmp_path / "others.yaml", "-s", "newcomers.clients=[client-02]", "-o", tmp_path / "one"
    )
    assert done.exit_code == 0, done.output
    assert {row["newcomers"] for row in newcomers_of(tmp_path / "one")} == {1}


def test_adapt_in_python(run: Path, tmp_path: Path) -> None:
    result = package.adapt(run, {"federation": {"source": "digits", "partition": {"rule": "iid", "clients": 2}}},
                           ["newcomers.labelled=false"], algorithms=["fedora"], output=tmp_path / "out")  # fmt: skip
    assert [row["algorithm"] for row in result.rows] == ["fedora"]
    assert any("local" in remark for remark in result.remarks)
    assert NewcomersDirectory(result.directory).read_summary() == result.rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-s", "training.lr=1"], "only newcomers, device"),
        (["-s", "newcomers.epochs=-1"], "newcomers.epochs must be at least 0"),
        (["-s", "newcomers.clients=[client-00]"], "the newcomers are those that the run held out"),
        (["-s", "newcomers=null"], "the newcomers are those that the run held out"),
        (["-s", "newcomers={epochs: 1}"], "the newcomers are those that the run held out"),
        (["-s", "newcomers={clients: 1}"], "the newcomers are those that the run held out"),
        (["-a", "fedprox"], "the run has no method fedprox"),
        (["nobody.yaml"], "there is no configuration file nobody.yaml"),
        (["-s", "newcomers.lr=1"], "unknown key newcomers.lr"),
    ],
)
def test_wrong_words_for_adapt(run: Path, words: list[str], message: str) -> None:
    assert message in error_of(coterie("adapt", run, *words))


def test_newcomers_with_other_inputs(run: Path, tmp_path: Path) -> None:
    (tmp_path / "sine.yaml").write_text("federation: {source: sine, partition: {rule: natural}}\n")
    done = coterie("adapt", run, tmp_path / "sine.yaml")
    assert "newcomers' task is regression" in error_of(done)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{clients: [client-09]}", "there is no client client-09: did you mean client-0"),
        ("{clients: 4}", "takes all 4 clients"),
        ("{clients: []}", "at least one"),
        ("{clients: [client-00, client-00]}", "list each newcomer once"),
        ("{clients: 0}", "newcomers.clients: give names"),
        ("{clients: 1.0}", "newcomers.clients: give names"),
        ("{clients: {a: 1}}", "newcomers.clients: give names"),
        ("{clients: [1]}", "newcomers.clients: give names"),
        ("{clients: 2, labelled: null}", "newcomers.labelled: give true, false or both"),
        ("{clients: 0.0}", "newcomers.clients: give names"),
        ("{clients: 2, labelled: perhaps}", "newcomers.labelled: give true, false or both"),
        ("{clients: 2, training: {schedule: cosine}}", "set lr only"),
        ("{clients: 2, training: {optimizer: adam, momentum: 0.5}}", "newcomers.training.momentum belongs to sgd"),
    ],
)
def test_wrong_sections(tmp_path: Path, section: str, message: str) -> None:
    (tmp_path / "wrong.yaml").write_text(f"{TINY}newcomers: {section}\n")
    assert message in error_of(coterie("run", tmp_path / "wrong.yaml", "--output", tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_number_or_a_fraction_is_drawn_by_the_seed(tmp_path: Path) -> None:
    drawn = []
    for wanted in ("2", "0.5", "2"):
        (tmp_path / "some.yaml").write_text(f"{TINY}newcomers: {{clients: {wanted}}}\n")
        experiment = package.Experiment(package.load_config(tmp_path / "some.yaml"))
        for seed in (0, 1, 2, 3):
            came = experiment.newcomers(seed)
            assert came is not None
            assert len(came.names) == 2
            assert {*came.names, *experiment.federation(seed).names} == {f"client-{i:02d}" for i in range(4)}
            drawn.append(came.names)
    assert drawn[:4] == drawn[4:8] == drawn[8:]
    assert len(set(drawn[:4])) > 1


def test_overwriting_a_run_takes_its_newcomers_along(tmp_path: Path) -> None:
    (tmp_path / "with.yaml").write_text(WITH)
    assert coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out").exit_code == 0
    assert coterie("adapt", tmp_path / "out").exit_code == 0
    (tmp_path / "tiny.yaml").write_text(TINY)
    assert coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "out", "--overwrite").exit_code == 0
    assert not list((tmp_path / "out").glob("adapted-*"))
    assert not (tmp_path / "out/newcomers").exists()


def test_a_run_that_prepares_for_newcomers_holds_nobody_out(tmp_path: Path) -> None:
    (tmp_path / "with.yaml").write_text(f"{TINY}newcomers: {{labelled: both}}\n".replace("[local,", "[local, fedora,"))
    done = coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out")
    assert done.exit_code == 0
    assert "Newcomers" not in done.stdout
    (tmp_path / "others.yaml").write_text(OTHERS)
    done = coterie("adapt", tmp_path / "out", tmp_path / "others.yaml", "-s", "newcomers.labelled=false", "--json")
    assert done.exit_code == 0, done.output
    assert {row["algorithm"] for row in json.loads(done.stdout)} == {"fedora", "ditto"}


@pytest.mark.parametrize("where", ["training", "newcomers.training"])
def test_newcomers_that_all_diverge_are_said_and_end_nothing(tmp_path: Path, where: str) -> None:
    (tmp_path / "with.yaml").write_text(WITH)
    done = coterie("run", tmp_path / "with.yaml", "-s", f"{where}.lr=1e20", "--output", tmp_path / "out")
    assert done.exit_code == (0 if where == "newcomers.training" else 2), done.output
    summary = json.loads((tmp_path / "out/newcomers/summary.json").read_text())
    assert all(row["labelled"] is False or row["failed"] == 2 for row in summary["rows"])
    if where == "newcomers.training":
        assert "local, seed 0: newcomer client-01 with labels" in " ".join(summary["remarks"])
        again = coterie("adapt", tmp_path / "out", "-s", "newcomers.training.lr=0.05", "--json")
        assert again.exit_code == 0
        assert all(row["failed"] == 0 for row in json.loads(again.stdout))


def test_labels_and_names_are_texts(tmp_path: Path) -> None:
    label = "x [/red] [bold]y[/]"
    (tmp_path / "with.yaml").write_text(WITH.replace("{name: ditto, ", f"{{name: ditto, label: '{label}', "))
    done = coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout.count(label) >= 3


def test_the_server_of_another_method(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.copy(run / "servers/ditto/seed0.pt", tmp_path / "run/servers/fedavg/seed0.pt")
    done = coterie("adapt", tmp_path / "run", "-a", "fedavg")
    assert done.exit_code == 0, done.output
    assert "its algorithm is 'ditto', not 'fedavg'" in done.stdout
    text = (tmp_path / "run/config.yaml").read_text()
    (tmp_path / "run/config.yaml").write_text(text.replace("lambda: 0.5", "lambda: 0.25"))
    assert "its options is {" in coterie("adapt", tmp_path / "run", "-a", "ditto").stdout


def test_a_method_that_diverged_has_nothing_for_newcomers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.algorithms.ditto import Ditto

    whole = Ditto.local_update

    def breaks(self: Ditto, site: Any, w: Any) -> Any:
        if site.round == 4:  # the last one
            raise CoterieError("no more")
        return whole(self, site, w)

    (tmp_path / "with.yaml").write_text(WITH)
    with monkeypatch.context() as patch:
        patch.setattr(Ditto, "local_update", breaks)
        assert coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out").exit_code == 2
    assert [row["algorithm"] for row in newcomers_of(tmp_path / "out/newcomers")] == ["local"]
    done = coterie("adapt", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "ditto, seed 0: there is no saved server" in " ".join(done.stdout.split())
    assert "there is no saved server" in error_of(coterie("adapt", run_without_servers(tmp_path / "out")))


def run_without_servers(run: Path) -> Path:
    shutil.rmtree(run / "servers")
    return run


def test_what_the_other_configuration_does_not_state_is_the_runs(run: Path, tmp_path: Path) -> None:
    (tmp_path / "others.yaml").write_text(OTHERS + "newcomers: {clients: 3}\n")
    done = coterie("adapt", run, tmp_path / "others.yaml", "-a", "fedavg", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert {(row["epochs"], row["newcomers"]) for row in newcomers_of(tmp_path / "out")} == {(3, 3), (0, 3)}


def test_a_lost_folder_of_newcomers_is_said(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/newcomers")
    done = coterie("resume", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "the newcomers of fedavg, seed 0, are missing" in " ".join(done.stdout.split())
    (tmp_path / "run/newcomers/local").mkdir()
    (tmp_path / "run/newcomers/local/seed0.csv").write_text("algorithm,seed\nlocal,x\n")
    assert "coterie adapt gives it again" in error_of(coterie("resume", tmp_path / "run"))


def test_members_never_asked(tmp_path: Path) -> None:
    text = WITH.replace("[local,", "[local, fedora,") + "participation: {rule: bernoulli, fraction: 1.0e-9}\n"
    (tmp_path / "with.yaml").write_text(text)
    done = coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "no member has uploaded a model yet" in " ".join(done.stdout.split())


def test_a_run_killed_while_newcomers_join_repeats_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.experiment import work

    def killed(*_: Any) -> None:
        raise MemoryError("killed")

    (tmp_path / "with.yaml").write_text(WITH)
    assert coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "whole").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(work, "take_in", killed)
        assert coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out").exit_code == 1
    assert (tmp_path / "out/checkpoints/local/seed0.pt").exists()
    assert coterie("resume", tmp_path / "out").exit_code == 0
    for name in ("local", "ditto"):
        one, other = (pd.read_csv(tmp_path / folder / f"newcomers/{name}/seed0.csv") for folder in ("whole", "out"))
        pd.testing.assert_frame_equal(one, other, check_exact=True)
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_a_run_stopped_between_its_tables_and_its_record_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the tables know the bytes of the whole run by client, and the checkpoint is one of the last round."""
    (tmp_path / "with.yaml").write_text(WITH)
    assert coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "whole").exit_code == 0

    finish = Record.finish

    def full(self: Record, key: Key) -> None:
        if key[0] != "local":  # LOCAL sends nothing
            raise CoterieError("the disk is full.")
        finish(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(Record, "finish", full)
        assert "the disk is full" in error_of(coterie("run", tmp_path / "with.yaml", "-o", tmp_path / "out", "-q"))
    done = coterie("resume", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_a_run_without_server(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(f"{TINY}save_server: false\n")
    assert coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "out").exit_code == 0
    assert "held nobody out" in error_of(coterie("adapt", tmp_path / "out"))
    assert "with save_server on: continue the run with coterie resume" in error_of(
        coterie("adapt", tmp_path / "out", tmp_path / "tiny.yaml")
    )


def test_a_method_that_fails_for_newcomers_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coterie.algorithms.ditto import Ditto

    def refuse(self: Ditto, server: Server, clients: Any, labelled: bool) -> Any:
        raise CoterieError("no room")

    monkeypatch.setattr(Ditto, "adapt", refuse)
    (tmp_path / "with.yaml").write_text(WITH)
    done = coterie("run", tmp_path / "with.yaml", "--output", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "newcomers with labels: no room" in done.stdout
    remarks = json.loads((tmp_path / "out/newcomers/summary.json").read_text())["remarks"]
    assert "ditto, seed 0: newcomers with labels: no room" in remarks
    assert [row["algorithm"] for row in newcomers_of(tmp_path / "out/newcomers")] == ["local"]
