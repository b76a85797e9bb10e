"""What is shown of a run is what its tables hold, whichever moment it is looked at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner
from watched import NAMES, ROUNDS, N, add_round, values, written

from coterie.cli import app
from coterie.errors import CoterieError
from coterie.reports.watching import Snapshot, Watcher, view
from coterie.reports.watching.snapshot import Curve, Failed, Line, Standing
from coterie.reports.watching.terminal import sparkline
from coterie.runs import About, History, Record, RunDirectory, held, locked

LOCAL, FEDORA = ("local", ""), ("fedora", "released")
HALF = {(*LOCAL, 0): 4, (*FEDORA, 0): 3}


def look(run: RunDirectory, age: float = 10.0) -> Snapshot:
    """How a run stands ``age`` seconds after its last write."""
    watcher = Watcher(run.path)
    return Watcher(run.path, clock=lambda: watcher.look().written + age).look()


def lines(seen: Snapshot, **size: int) -> list[str]:
    """The view, as it is printed."""
    console = Console(file=StringIO(), width=80, **size)  # type: ignore[arg-type]
    console.print(view(seen, height=size.get("height")))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def half(tmp_path: Path) -> RunDirectory:
    """LOCAL is over with seed 0, FEDORA in round 3 of 4, seed 1 has not begun."""
    return written(tmp_path / "run", HALF, finished=True)


def test_a_snapshot_holds_what_the_tables_hold(half: RunDirectory) -> None:
    seen = look(half)
    assert (seen.name, seen.rounds, seen.condition, seen.age) == ("digits", ROUNDS, "running", pytest.approx(10))
    local, fedora = seen.lines
    assert [run.state for run in local.runs] == ["finished", "waiting"]
    assert [run.state for run in fedora.runs] == ["running", "waiting"]
    assert (local.over, fedora.over, local.round, fedora.round) == (1, 0, 4, 3)
    own, alone = values("fedora", 0, 2), values("local", 0, 2)
    assert fedora.runs[0].evaluated == 2
    assert fedora.value == pytest.approx(own.mean())
    assert fedora.gain == pytest.approx(100 * (own - alone).mean()), "LOCAL in the same round, not in its last"
    assert local.value == pytest.approx(values("local", 0, 4).mean())
    assert local.gain is None
    assert fedora.curve.round == (0, 2)
    assert fedora.curve.mean == pytest.approx([values("fedora", 0, round).mean() for round in (0, 2)])
    assert seen.sentence == "4 runs: 1 running, 1 finished, 2 waiting."


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("accuracy", "gain over training alone (points)"),
        ("rmse", "error saved against training alone"),
        ("r2", "gain in R² over training alone"),
    ],
)
def test_gains_are_called_what_they_are_in_the_metric(half: RunDirectory, metric: str, title: str) -> None:
    assert replace(look(half), metric=metric).as_dict()["gain_title"] == title


def test_the_page_says_what_gains_are() -> None:
    script = (files("coterie.reports.watching") / "watch.js").read_text(encoding="utf-8")
    assert "${state.gain_title}" in script


def test_pace_and_time_left(half: RunDirectory) -> None:
    seen = look(half)
    local, fedora = seen.lines
    assert local.seconds_per_round == pytest.approx((2 + 3.5 + 4 + 5.5) / 4)
    assert fedora.seconds_per_round == pytest.approx((2 + 3.5 + 4) / 3)
    paces = local.seconds_per_round, fedora.seconds_per_round
    assert [run.seconds_left for run in local.runs] == [None, pytest.approx(4 * paces[0])]
    assert [run.seconds_left for run in fedora.runs] == [pytest.approx(paces[1]), pytest.approx(4 * paces[1])]
    assert seen.seconds_left == pytest.approx(4 * paces[0] + 5 * paces[1])


@pytest.mark.parametrize(("share", "at_a_time"), [(1, 2), (2, 1)])
def test_runs_side_by_side_share_the_time_but_for_those_of_one_stack(
    tmp_path: Path, share: int, at_a_time: int
) -> None:
    run = written(tmp_path / "run", {(*LOCAL, 0): 2, (*LOCAL, 1): 2})
    run.write_config(f"share: {share}\n")
    seen = look(run)
    every = sum(standing.seconds_left or 0 for line in seen.lines for standing in line.runs)
    assert seen.seconds_left == pytest.approx(every / at_a_time)


def test_a_finished_run_is_the_final_table(tmp_path: Path) -> None:
    run = written(tmp_path / "run", {(*name, seed): 4 for seed in (0, 1) for name in (LOCAL, FEDORA)}, finished=True)
    watcher = Watcher(run.path)
    seen = watcher.look()
    assert (seen.condition, seen.seconds_left) == ("finished", None)
    for line, row in zip(seen.lines, watcher.run.rows, strict=True):
        assert line.value == pytest.approx(row["accuracy_mean"])
        assert row["reference"] or line.gain == pytest.approx(row["gain_mean"])


def test_a_run_is_over_when_its_record_says_so(tmp_path: Path) -> None:
    run = written(tmp_path / "run", {(*LOCAL, 0): 4}, seeds=(0,))
    assert look(run).lines[0].state == "running", "its models are still being written"
    (run.checkpoints / "progress.json").write_text("{")
    assert look(run).lines[0].state == "finished", "nothing else is known"


def test_a_run_that_diverged_has_failed_and_says_why(tmp_path: Path) -> None:
    run = written(tmp_path / "run", HALF, finished=True)
    record = Record.of(run)
    record.diverged.append("FEDORA <b> seed 0, round 3: the loss is NaN: lower training.lr")
    record.finish((*FEDORA, 0))
    seen = look(run)
    assert seen.lines[1].runs[0].state == seen.lines[1].state == "failed"
    assert seen.lines[1].runs[0].reason == "the loss is NaN: lower training.lr"
    assert seen.lines[1].runs[0].seconds_left is None


def test_clients_that_fail_alike_stand_together(tmp_path: Path) -> None:
    run = written(tmp_path / "run", HALF)
    history = History.read(run)
    for round, client, reason in (
        (1, "south", "late"),
        (2, "north", "away"),
        (2, "south", "away"),
        (3, "south", "\x1b[2J"),
    ):
        history.add_failure(*FEDORA, 0, round, client, reason)
    history.write(run)
    seen = look(run)
    assert seen.failures == (
        Failed(("south",), "FEDORA <b>", 0, 3, 3, "\x1b[2J"),
        Failed(("north",), "FEDORA <b>", 0, 1, 2, "away"),
    )
    text = "\n".join(lines(seen))
    assert "north failed (FEDORA <b> seed 0, round 2): away" in text
    assert "\x1b" not in text, "a reason from elsewhere steers no terminal"


def test_silence_is_called_stale_unless_rounds_are_slow_or_somebody_is_at_work(half: RunDirectory) -> None:
    assert look(half, age=299).condition == "running"
    silent = look(half, age=301)
    assert silent.condition == "stale"
    assert silent.sentence == f"No writes for 5 min; if its process is gone, `coterie resume {half.path}` continues it."
    assert replace(silent, at_work=True).condition == "running"
    (fast, slow) = silent.lines
    slow = replace(slow, runs=(replace(slow.runs[0], seconds_per_round=150.0), *slow.runs[1:]))
    assert replace(silent, lines=(fast, slow)).condition == "running"


def test_a_deployed_run_is_continued_by_its_server(half: RunDirectory) -> None:
    half.write_config("sites: {names: [north, south]}\n")
    assert f"`bash server/run.sh {half.path}`" in look(half, age=301).sentence


def test_whether_somebody_is_at_work_is_seen_without_a_lock(half: RunDirectory) -> None:
    assert not held(half)
    with locked(half):
        place, locks = (half.checkpoints / ".lock").stat(), Path("/proc/locks")
        assert held(half) == (locks.exists() and f":{place.st_ino} " in locks.read_text())
    assert not held(half)
    with locked(half):
        pass


def test_before_anything_is_written_there_is_a_sentence(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "x")
    seen = look(run)
    assert (seen.condition, seen.lines) == ("waiting", ())
    assert "first checkpoint" in " ".join(lines(seen))


def truncated(run: RunDirectory) -> None:
    run.history.write_bytes(run.history.read_bytes()[:100])


def gone(run: RunDirectory) -> None:
    shutil.rmtree(run.path)


def half_a_text(run: RunDirectory) -> None:
    run.failures.write_text('algorithm,variant,seed,round,client,reason\nfedora,released,0,1,"nor')
    run.timings.unlink()


@pytest.mark.parametrize(
    ("harm", "note"), [(truncated, "damaged"), (gone, "no run directory"), (half_a_text, "damaged")]
)
def test_a_file_that_cannot_be_read_is_a_note_until_it_can(
    half: RunDirectory, harm: Callable[[RunDirectory], None], note: str
) -> None:
    kept = half.path.with_name("kept")
    shutil.copytree(half.path, kept)
    watcher = Watcher(half.path)
    before = watcher.look()
    harm(half)
    watcher._rest_until = 0.0
    seen = watcher.look()
    assert note in " ".join(seen.notes)
    assert seen.lines[1].value == before.lines[1].value
    assert note in " ".join(" ".join(lines(seen)).split())
    shutil.copytree(kept, half.path, dirs_exist_ok=True)
    watcher._rest_until = 0.0
    assert watcher.look().notes == ()


def test_what_is_new_is_seen_and_what_is_not_is_not_read_again(
    half: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(half.path)
    watcher._rest_until = 0.0
    run = watcher.run
    watcher.look()
    assert watcher.run is run
    history = History.read(half)
    add_round(history, *FEDORA, 0, 4)
    history.write(half)
    watcher._rest_until = np.inf
    assert watcher.look().lines[1].round == 3, "the machine is the run's"
    watcher._rest_until = 0.0
    assert watcher.look().lines[1].round == 4


def test_keep_prints_a_view_a_round_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path / "run", HALF, seeds=(0,), finished=True)
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 2:
            history = History.read(run)
            add_round(history, *FEDORA, 0, 4)
            history.write(run)
        if waits == 4:
            record = Record.of(run)
            record.finished.append((*FEDORA, 0))
            record.write()

    monkeypatch.setattr("coterie.reports.watching.terminal.time.sleep", wait)
    monkeypatch.setattr("coterie.reports.watching.watcher.READING_SHARE", 1.0)
    result = CliRunner().invoke(app, ["watch", str(run.path), "--keep"])
    assert result.exit_code == 0, result.output
    assert [line.split()[2:4] for line in result.output.splitlines() if line.startswith("FEDORA")] == [
        ["0/1", "3/4"],
        ["0/1", "4/4"],
        ["1/1", "4/4"],
    ]
    assert waits == 4


def test_only_a_run_directory_is_watched(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="not a run directory"):
        Watcher(tmp_path)


def test_clients_without_results_have_no_mean(tmp_path: Path) -> None:
    run = written(tmp_path / "run", {})
    history = History()
    history.add_timing(*LOCAL, 0, 0, "train", 1.0)
    history.add_clients(*LOCAL, 0, 0, "test", NAMES, N, "accuracy", [np.nan] * 3)
    history.write(run)
    line = look(run).lines[0]
    assert (line.value, line.gain, line.curve) == (None, None, Curve())


def test_a_sparkline_runs_from_the_first_round_to_the_last() -> None:
    curve = Curve((0, 10, 20, 40), (0.0, 0.5, 1.0, 0.25), (0.0,) * 4)
    assert sparkline(curve, 80, 0.0, 1.0, width=8) == "▅██▃····"
    assert sparkline(Curve(), 80, 0.0, 1.0, width=3) == "···"


def test_many_systems_fit_the_screen() -> None:
    runs = tuple(
        Standing(seed, "running" if seed == 0 else "waiting", 500, 500, 0.9, 1.0, 12.0, 1e5) for seed in range(3)
    )
    done = tuple(Standing(seed, "finished", 1000, 1000, 0.9, -10.0, 123.0) for seed in range(3))
    curve = Curve((0, 500), (0.1, 0.9), (0.0, 0.0))
    many = tuple(
        Line(f"a method with a very long name {i:02}", "m", str(i), runs if i == 38 else done, curve) for i in range(39)
    )
    failures = tuple(Failed(NAMES * 9, "a long label", 0, 3, i, "no answer within 60 s " * 9) for i in range(9))
    seen = Snapshot("every", Path("runs/every-1"), "accuracy", True, 1000, many, failures, (), 1e4, 0.0, 9.0, True, "x")
    shown = lines(seen, height=24)
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    text = "\n".join(shown)
    assert "38/39" not in text
    assert "0/3" in text, "the system that goes on is the last, and is shown"
    assert "systems more" in text
    assert sum("3/3" in line for line in lines(seen)) == 38, "without a screen, all"


def test_a_guard_trains_its_folds_before_the_run_is_over(tmp_path: Path) -> None:
    """Guarded systems are no runs that wait: a sentence tells of the folds, and then what was decided is shown."""
    labels = {LOCAL: "LOCAL", FEDORA: "FEDORA", ("fedora", "released+guard"): "FEDORA + guard"}
    ends = {(*LOCAL, 0): ROUNDS, (*FEDORA, 0): ROUNDS}
    run = written(tmp_path / "run", {(*LOCAL, 0): ROUNDS, (*FEDORA, 0): 3}, seeds=(0,), finished=True)
    about = replace(About.read(run), labels=labels)
    about.write(run)
    run.write_config("guard: {folds: 2}\n")
    assert look(run).sentence == "2 runs: 1 running, 1 finished. Then the guard trains 2 folds."
    shutil.rmtree(run.path)
    run = written(tmp_path / "run", ends, seeds=(0,), finished=True)
    about.write(run)
    run.write_config("guard: {folds: 2}\n")
    seen = look(run)
    assert (seen.condition, [line.label for line in seen.lines]) == ("running", ["LOCAL", "FEDORA"])
    assert seen.sentence == "2 runs: 2 finished. The guard trains fold 1 of 2."
    written(run.guard_fold(0), ends, seeds=(0,), finished=True)
    written(run.guard_fold(1), {(*LOCAL, 0): ROUNDS, (*FEDORA, 0): 3}, seeds=(0,), finished=True)
    sentence = "2 runs: 2 finished. The guard trains fold 2 of 2: 1 of 2 runs over, another in round 3 of 4."
    assert look(run).sentence == sentence
    assert sentence.partition(", another")[0] in " ".join(lines(look(run)))
    assert look(run).as_dict()["guard"] == sentence.partition(". ")[2]
    history = History.read(run)
    history.add_clients("fedora", "released+guard", 0, ROUNDS, "test", NAMES, N, "accuracy", np.full(3, 0.5))
    history.write(run)
    run.guard.write_text("algorithm\n")
    seen = look(run)
    assert (seen.condition, seen.sentence) == ("finished", "3 runs: 3 finished.")
    assert (seen.lines[2].label, seen.lines[2].value, seen.lines[2].seconds_per_round) == ("FEDORA + guard", 0.5, None)
