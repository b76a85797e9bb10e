"""Seeds that share a stack: the same tables, stops, errors and resumption as seeds by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cli_helpers import TINY, assert_same_run, coterie, error_of
from rich.console import Console

from coterie.config import load_config
from coterie.engines import RoundReport, Shared
from coterie.engines.meeting import Wish
from coterie.errors import Interrupted
from coterie.experiment import Experiment, resume, run, sharing
from coterie.experiment.plan import Job
from coterie.experiment.session import Session
from coterie.yamltext import read_yaml

SEEDS = TINY.replace("rounds: 4", "rounds: 12").replace(
    "threads: 1", "threads: 1\nparticipation: 0.5\ncheckpoint_every: 4\nseeds: [0, 1, 2]\nprocesses: 1"
)


def written(folder: Path, text: str = SEEDS) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of three seeds in one stack."""
    folder = tmp_path_factory.mktemp("whole")
    assert coterie("run", written(folder), "--output", folder / "out").exit_code == 0
    return folder / "out"


def share_of(directory: Path) -> int:
    return int(read_yaml((directory / "config.yaml").read_text(), "config.yaml")["share"])


def no_seat_is_left() -> None:
    deadline = time.monotonic() + 10
    while any(thread.name == "coterie-seat" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a run was left behind"
        time.sleep(0.01)


def test_tables_do_not_show_it(tmp_path: Path) -> None:
    for share in (1, 2):
        path = written(tmp_path, SEEDS.replace("rounds: 12", "rounds: 4") + f"dtype: float64\nshare: {share}\n")
        assert coterie("run", path, "--output", tmp_path / f"{share}").exit_code == 0
        assert share_of(tmp_path / f"{share}") == share
    for table in ("history", "clients"):
        alone, shared = (pd.read_parquet(tmp_path / share / f"{table}.parquet") for share in "12")
        pd.testing.assert_frame_equal(alone.drop(columns="value"), shared.drop(columns="value"))
        np.testing.assert_allclose(alone["value"], shared["value"], rtol=0, atol=1e-8)


def test_what_was_chosen_is_kept(whole: Path) -> None:
    assert share_of(whole) == 3


def test_it_is_said(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=100, color_system=None)
    run(written(tmp_path), ["rounds=2"], output=tmp_path / "out", console=console)
    assert isinstance(console.file, StringIO)
    first, *lines = console.file.getvalue().splitlines()
    assert first.startswith("6 runs, 3 at a time (3 seeds in one stack), into ")
    done = [line.split()[1:2] + line.split("seed")[1].split()[:1] for line in lines]
    assert done == [[name, seed] for name in ("local", "ditto") for seed in "012"]


@pytest.mark.parametrize("notes", [1, 8, 30])
def test_stopped_seeds_stop_in_step_and_are_resumed_as_if_nothing_had_happened(
    notes: int, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, count = Session.noted, [0]

    def counting(self: Session, job: Job, report: RoundReport) -> bool:
        count[0] += 1
        if count[0] == notes:
            self.stop.number = signal.SIGINT
        return noted(self, job, report)

    with monkeypatch.context() as patch:
        patch.setattr(Session, "noted", counting)
        with pytest.raises(Interrupted):
            run(written(tmp_path), output=tmp_path / "out")
    saved = sorted(tmp_path.glob("out/checkpoints/*/*.pt"))
    assert len(saved) == 3
    rounds = {torch.load(path, weights_only=True)["round"] for path in saved}
    assert rounds == {(notes - 1) // 3 % 13}
    resume(tmp_path / "out")
    assert_same_run(whole, tmp_path / "out")
    no_seat_is_left()


def test_a_damaged_checkpoint_of_one_seed_lets_the_others_save(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Session.noted
    monkeypatch.setattr(
        Session, "noted", lambda self, job, report: noted(self, job, report) or (job.seed == 1 and report.round == 2)
    )
    with pytest.raises(Interrupted):
        run(written(tmp_path), output=tmp_path / "out")
    monkeypatch.undo()
    first, second, third = sorted(tmp_path.glob("out/checkpoints/*/*.pt"))
    second.write_bytes(second.read_bytes()[:1000])
    message = error_of(coterie("resume", tmp_path / "out"))
    assert str(second) in message
    assert {torch.load(path, weights_only=True)["round"] for path in (first, third)} == {2}
    no_seat_is_left()


def test_a_second_interruption_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve, count = Shared.serve, [0]

    def interrupted(self: Shared, wishes: list[Wish]) -> Sequence[Any]:
        count[0] += 1
        if count[0] == 12:
            raise KeyboardInterrupt
        return serve(self, wishes)

    monkeypatch.setattr(Shared, "serve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(written(tmp_path), output=tmp_path / "out")
    no_seat_is_left()


def test_a_seed_that_diverges_ends_alone(tmp_path: Path) -> None:
    """One learning rate is too high for all; the run goes on with the other method."""
    text = SEEDS.replace("[local,", "[{name: fedavg, training: {lr: 1.0e+30}}, local,")
    result = run(written(tmp_path, text), output=tmp_path / "out")
    assert [entry.split(",")[0] for entry in result.diverged] == [f"fedavg seed {seed}" for seed in range(3)]
    assert {row["algorithm"] for row in result.rows} >= {"local", "ditto"}


@pytest.mark.full
def test_groups_go_to_processes(tmp_path: Path, whole: Path) -> None:
    path = written(tmp_path, SEEDS.replace("processes: 1", "processes: 2"))
    console = Console(file=StringIO(), width=100, color_system=None)
    run(path, output=tmp_path / "out", console=console)
    assert_same_run(whole, tmp_path / "out")
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().startswith("6 runs, 6 at a time (3 seeds in one stack), into ")


@pytest.mark.full
def test_killed_and_resumed_is_as_if_never_killed(tmp_path: Path, whole: Path) -> None:
    written(tmp_path)
    words = [sys.executable, "-m", "coterie", "run", "tiny.yaml", "--output", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("out/checkpoints/ditto/*.pt")):
            assert process.poll() is None, "the run was over before its first checkpoint was seen"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    assert coterie("resume", tmp_path / "out").exit_code == 0
    assert_same_run(whole, tmp_path / "out")


# --- the rule --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 3),
        (["seeds=[5]"], 1),
        (["seeds=[1, 2, 3, 4, 5, 6]"], 6),
        (["model.hidden=[4000]"], 1),
        (["share=2"], 2),
        (["executor=loop"], 1),
        (["model.hidden=[4000]", "share=3"], 3),
    ],
)
def test_how_many_seeds_share_a_stack(overrides: list[str], expected: int, tmp_path: Path) -> None:
    experiment = Experiment(load_config(written(tmp_path), overrides))
    assert sharing.chosen_share(experiment) == expected


def test_methods_that_are_not_our_own_share_only_if_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(load_config(written(tmp_path)))
    monkeypatch.setattr(type(experiment.plan.systems[-1].method), "__module__", "somebody.elses")
    assert sharing.chosen_share(experiment) == 1


def test_groups_are_blocks_of_seeds_whatever_is_left(tmp_path: Path) -> None:
    experiment = Experiment(load_config(written(tmp_path), ["share=2"]))
    jobs = list(experiment.plan)
    groups = sharing.grouped(experiment, [job for job in jobs if job.key != ("local", "", 0)])
    assert [[(job.system.algorithm, job.seed) for job in group] for group in groups] == [
        [("local", 1)], [("ditto", 0), ("ditto", 1)], [("local", 2)], [("ditto", 2)],
    ]  # fmt: skip
