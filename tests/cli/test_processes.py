"""Runs side by side in processes of their own: the same files, stops, errors and resumption as one after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from cli_helpers import TINY, assert_same_run, coterie, error_of
from rich.console import Console

from coterie.config import Config, load_config
from coterie.engines import sites
from coterie.experiment import Experiment, processes, run

MANY = (
    TINY.replace("rounds: 4", "rounds: 72")  # one process may begin a second or two after the other
    .replace("evaluate_every: 2", "evaluate_every: 6")
    .replace("[local,", "[local, fedora,")
    .replace("threads: 1", "threads: 1\nparticipation: 0.5\ncheckpoint_every: 4\nshare: 1\nseeds: [0, 1]")
)
SIDE_BY_SIDE = MANY + "processes: 2\n"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the same experiment in one process."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "tiny.yaml").write_text(MANY)
    assert coterie("run", folder / "tiny.yaml", "--output", folder / "out").exit_code == 0
    return folder / "out"


def start(folder: Path, text: str = SIDE_BY_SIDE) -> subprocess.Popen[str]:
    """The experiment in two processes, its run directory ``folder/out``, once both train."""
    (folder / "tiny.yaml").write_text(text)
    words = [sys.executable, "-m", "coterie", "run", "tiny.yaml", "--output", "out"]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("out/checkpoints/*/*.pt"))) < 2:
        assert process.poll() is None, "the run was over before two checkpoints were seen"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return process


def children(process: subprocess.Popen[str]) -> list[int]:
    """The process numbers of its workers."""
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(word) for word in listing.stdout.split()]


def gone(number: int) -> bool:
    """Whether a process has ended (a zombie counts)."""
    listing = subprocess.run(["ps", "-o", "stat=", "-p", str(number)], capture_output=True, text=True)
    return listing.stdout.strip()[:1] in ("", "Z")


# long enough to be met by a signal while both processes train
LONGER = SIDE_BY_SIDE.replace("rounds: 72", "rounds: 400").replace("evaluate_every: 6", "evaluate_every: 50")


def test_the_files_are_those_of_one_process(alone: Path, tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=100, color_system=None)
    (tmp_path / "tiny.yaml").write_text(SIDE_BY_SIDE)
    run(tmp_path / "tiny.yaml", output=tmp_path / "out", console=console)
    assert_same_run(alone, tmp_path / "out")
    assert isinstance(console.file, StringIO)
    first, *lines = console.file.getvalue().splitlines()
    assert first.startswith("6 runs, 2 at a time, into ")
    done = [line.split()[1:2] + line.split("seed")[1].split()[:1] for line in lines]
    assert sorted(done) == [[name, seed] for name in ("ditto", "fedora", "local") for seed in "01"]


def test_a_signal_to_all_saves_both_runs(tmp_path: Path) -> None:
    with start(tmp_path, LONGER) as process:
        for worker in children(process):  # a terminal, or a scheduler, sends it to the whole group
            os.kill(worker, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.startswith("Stopped after saving; continue with: coterie resume out")
    assert len(list(tmp_path.glob("out/checkpoints/*/*.pt"))) == 2


def test_killed_and_resumed_is_as_if_never_killed(tmp_path: Path, alone: Path) -> None:
    with start(tmp_path) as process:
        workers = children(process)
        process.kill()
        process.communicate(timeout=60)
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while not all(gone(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived the process that started it"
        time.sleep(0.05)
    assert coterie("resume", tmp_path / "out").exit_code == 0
    assert_same_run(alone, tmp_path / "out")


def test_a_killed_worker_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    with start(tmp_path, LONGER) as process:
        os.kill(children(process)[0], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "ended unexpectedly (signal 9, often a lack of memory)" in errors
    assert "coterie resume" in errors
    assert "Traceback" not in errors
    assert len(list(tmp_path.glob("out/checkpoints/*/*.pt"))) == 2


def test_an_error_in_a_worker_is_one_sentence(tmp_path: Path) -> None:
    with start(tmp_path, LONGER) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    path = sorted(tmp_path.glob("out/checkpoints/*/*.pt"))[0]
    path.write_bytes(path.read_bytes()[:1000])
    message = error_of(coterie("resume", tmp_path / "out"))
    assert path.name in message
    assert "delete it" in message


def experiment(tmp_path: Path, *overrides: str) -> Experiment:
    (tmp_path / "tiny.yaml").write_text(MANY.replace("threads: 1\n", ""))
    config: Config = load_config(tmp_path / "tiny.yaml", list(overrides))
    return Experiment(config)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (1, 8)),  # a moment's work is not worth a process
        (["rounds=100000"], (6, 1)),
        (["rounds=100000", "seeds=[0]"], (3, 2)),
        (["rounds=100000", "threads=4"], (2, 4)),
        (["rounds=100000", "threads=16"], (1, 16)),
        (["processes=2"], (2, 4)),
        (["processes=20"], (6, 1)),
        (["rounds=100000", "processes=1"], (1, 8)),
        (["rounds=100000", "workers=4"], (4, 1)),
        (["rounds=100000", "workers=4", "processes=2"], (2, 2)),
        (["rounds=100000", "workers=1"], (1, 1)),
    ],
)
def test_how_many_run_side_by_side(
    overrides: list[str], expected: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MACHINE_THREADS", 8)
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 22 if name == "SC_PHYS_PAGES" else 4096)  # 16 GiB
    built = experiment(tmp_path, *overrides)
    assert processes.how_many(built, len(built.plan)) == expected


def test_the_executor_is_measured_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, in the process that was started: the others get what came out, which a measurement of theirs would not."""
    monkeypatch.setattr(sites, "fastest", lambda stack_with, *_: stack_with("loop"))
    few = ["rounds=2", "evaluate_every=2", "seeds=[0]", "algorithms=[local, fedavg]", "executor=fastest"]
    experiment(tmp_path, *few, "processes=2").run(output=tmp_path / "out")
    assert load_config(tmp_path / "out" / "config.yaml").executor == "loop"


def test_memory_limits_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MACHINE_THREADS", 8)
    monkeypatch.setattr(os, "sysconf", lambda name: 1 << 19 if name == "SC_PHYS_PAGES" else 4096)  # 2 GiB
    built = experiment(tmp_path, "rounds=100000")
    assert processes.how_many(built, 6)[0] == 1


def test_a_method_of_the_script_that_runs_stays_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = experiment(tmp_path, "processes=2")
    monkeypatch.setattr(type(built.plan.systems[-1].method), "__module__", "__main__")
    assert processes.how_many(built, 6)[0] == 1


SCRIPT = """\
import coterie
{imports}
result = coterie.run(
    {{
        "name": "script",
        "federation": {{"source": "digits", "partition": {{"rule": "rotation", "clients": 3}}, "train": 8, "test": 10}},
        "model": {{"name": "narrow", "width": 4}},
        "training": {{"epochs": 1, "batch_size": 4}},
        "algorithms": ["local", "fedavg"],
        "rounds": 2, "report": "last", "processes": 2,
    }},
    output="out",
)
print(sorted(row["algorithm"] for row in result.rows))
"""

FACTORY = """\
from torch import nn
from coterie.models.factory import model

@model("narrow")
def narrow(feature_shape, classes, width=2):
    "A narrow network."
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))
"""


@pytest.mark.parametrize("apart", [True, False])
def test_a_registered_model_is_found_in_every_process(apart: bool, tmp_path: Path) -> None:
    """Registered in a module that the script imports, or in the script itself, which has no guard against import."""
    (tmp_path / "nets.py").write_text(FACTORY)
    (tmp_path / "script.py").write_text(SCRIPT.format(imports="import nets" if apart else FACTORY))
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['fedavg', 'local']\n"


@pytest.mark.parametrize(("seconds", "number", "code"), [(0.0, signal.SIGTERM, 143), (0.7, signal.SIGINT, 130)])
def test_a_signal_while_workers_start_is_a_stop(number: int, code: int, seconds: float, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(LONGER)
    words = [sys.executable, "-m", "coterie", "run", "tiny.yaml", "--output", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while len(children(process)) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(seconds)
        for worker in children(process):
            os.kill(worker, number)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors == "Stopped after saving; continue with: coterie resume out\n"


@pytest.mark.parametrize("seconds", [0.3, 1.0, 2.0])
def test_ctrl_c_before_anything_has_begun_is_one_line(seconds: float, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(LONGER)
    code = (  # what a shell starts in the background, these tests too, ignores Ctrl-C unless it is told otherwise
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); print(flush=True)\n"
        "from coterie.__main__ import main; sys.argv = 'coterie run tiny.yaml --output out'.split(); main()"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # Python itself has begun
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Error" not in errors
