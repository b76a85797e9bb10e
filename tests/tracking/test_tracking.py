"""Names, order and failures, with trackers that write down what they are given."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from coterie.runs import Measured
from coterie.tracking import Outcome, Subject, Tracking, flattened, metric_name

SUBJECT = Subject("a1", "fedora-released/seed0", "fedora, seed 0", "out", {})


@dataclass
class Notebook:
    """A tracker that keeps all in memory, or fails in a round, or waits for ``gate``."""

    fails: int = -1
    gate: threading.Event | None = None
    name: str = "the notebook"
    lines: list[object] = field(default_factory=list)

    def begin(self, subject: Subject) -> Notebook:
        self.lines.append(subject.name)
        return self

    def log(self, round: int, values: Mapping[str, float]) -> None:
        if self.gate is not None:
            assert self.gate.wait(30)
        if round == self.fails:
            raise ConnectionError("the server\nis away")
        self.lines.append((round, dict(values)))

    def end(self, outcome: Outcome) -> None:
        self.lines.append(outcome)


def rows(round: int) -> list[Measured]:
    return [
        Measured(round, "evaluate", "test", "accuracy:weighted", 0.5),
        Measured(round, "train", "", "bytes_up:model", 8.0),
        Measured(round, "train", "", "seconds", 1.5),
    ]


VALUES = {"test/accuracy_weighted": 0.5, "train/bytes_up_model": 8.0, "seconds/train": 1.5}


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (("evaluate", "test", "accuracy"), "test/accuracy"),
        (("evaluate", "validation", "loss:weighted"), "validation/loss_weighted"),
        (("evaluate", "", "bytes_down:model"), "evaluate/bytes_down_model"),
        (("describe", "", "bytes_up:summary"), "describe/bytes_up_summary"),
        (("train", "", "mean_entropy"), "train/mean_entropy"),
        (("train", "", "../Größe (%)"), "train/_Gr_e_"),
        (("evaluate", "", "seconds"), "seconds/evaluate"),
    ],
)
def test_a_name_has_split_or_phase_and_characters_that_all_trackers_take(of: tuple[str, str, str], name: str) -> None:
    assert metric_name(*of) == name


def test_settings_become_one_level() -> None:
    tree = {
        "model": {"name": "mlp", "hidden": [8, 4]},
        "absent": {3: ["a", "b"]},
        "chunk": None,
        "save": True,
        "lr": 0.1,
    }
    flat = {"model.name": "mlp", "model.hidden": "8, 4", "absent.3": "a, b", "save": True, "lr": 0.1}
    assert flattened(tree) == flat
    long = flattened({"angles": list(range(1000))})["angles"]
    assert isinstance(long, str)
    assert len(long) == 500
    assert long.endswith("...")


def test_what_came_before_comes_first_and_ends_are_told_once() -> None:
    book = Notebook()
    with Tracking([book], pytest.fail) as tracking:
        tracking.begin("job", SUBJECT, [*rows(0), *rows(1)])
        tracking.note("job", rows(2))
        tracking.end("job", "failed")
        tracking.end("job", "finished")
    assert book.lines == ["fedora, seed 0", (0, VALUES), (1, VALUES), (2, VALUES), "failed"]


def test_a_run_that_was_left_in_its_middle_is_stopped() -> None:
    book = Notebook()
    with suppress(KeyboardInterrupt), Tracking([book], pytest.fail) as tracking:
        tracking.begin("job", SUBJECT)
        tracking.note("job", rows(0))
        raise KeyboardInterrupt
    assert book.lines == ["fedora, seed 0", (0, VALUES), "stopped"]


def test_a_tracker_that_fails_is_told_of_once_and_the_others_go_on() -> None:
    bad, good = Notebook(fails=1), Notebook()
    warnings: list[str] = []
    with Tracking([bad, good], warnings.append) as tracking:
        tracking.begin("job", SUBJECT)
        for round in range(4):
            tracking.note("job", rows(round))
        tracking.end("job", "finished")
    assert warnings == [
        "the notebook gets nothing more of this run, which goes on: ConnectionError: the server is away"
    ]
    assert bad.lines == ["fedora, seed 0", (0, VALUES)]
    assert good.lines == ["fedora, seed 0", *((round, VALUES) for round in range(4)), "finished"]


def test_training_does_not_wait_for_a_slow_tracker() -> None:
    gate = threading.Event()
    book = Notebook(gate=gate)
    with Tracking([book], pytest.fail) as tracking:
        tracking.begin("job", SUBJECT)
        for round in range(3):
            tracking.note("job", rows(round))  # would never come back if it waited
        assert len(book.lines) <= 1
        gate.set()
    assert book.lines == ["fedora, seed 0", *((round, VALUES) for round in range(3)), "stopped"]
