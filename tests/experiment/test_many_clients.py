"""What is done once and not once a client, and what is written no more often than it may take time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.contract import Predictor
from coterie.engines import Alone
from coterie.experiment import work
from coterie.experiment.handover import handed_over
from coterie.reports import open_run
from coterie.reports.page import content
from toys import MLP, classified, simulation
from written_runs import write_run


class Unsought(tuple[str, ...]):
    """Names that nobody may seek through."""

    def index(self, *_: Any) -> int:
        pytest.fail("all names are compared with one")


def test_clients_of_stored_models_are_looked_up() -> None:
    federation = classified((7, 4, 9))
    stack = simulation(federation, "local").stack
    predictor = Predictor(stack.initial(0, federation.k, distinct=True))
    named = replace(federation, names=Unsought(federation.names))
    facts = handed_over(named, MLP, predictor, federation.names[::-1])
    assert [fact["examples"]["train"] for fact in facts] == federation.train.n.tolist()[::-1]


def test_the_page_gathers_the_clients_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = []

    def counted(names: Any) -> set[str]:
        gathered.append(1)
        return set(names)

    run = write_run(tmp_path / "run", k=5)
    monkeypatch.setattr(content, "set", counted, raising=False)
    assert content._clients(run) == [f"client-{i:02d}" for i in range(5)]
    assert len(gathered) <= 1
    bare = replace(open_run(tmp_path / "run"), tables=replace(run.tables, clients=run.tables.clients.iloc[:0]))
    assert content._clients(bare) == [f"client-{i:02d}" for i in range(5)]


def test_tables_count_as_time_for_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds take 20 s, tables 50 s: after each, as many rounds as take ten times as long."""
    now, saved = [0.0], list[int]()

    class Engine:
        round = 0

        @property
        def finished(self) -> bool:
            return self.round == 60

        def advance(self) -> SimpleNamespace:
            self.round += 1
            now[0] += 20.0
            return SimpleNamespace(due=False, late=None)

    class Observer:
        def noted(self, job: Any, report: Any) -> bool:
            return False

        def saving(self, job: Any) -> None:
            saved.append(engine.round)
            now[0] += 50.0

    engine = Engine()
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(work.checkpoint, "save", lambda path, engine: None)
    experiment: Any = SimpleNamespace(config=SimpleNamespace(checkpoint_every=1000, save_relations="none"))
    directory: Any = SimpleNamespace(checkpoint=lambda *_: tmp_path / "seed0.pt")
    job, observer, trained = SimpleNamespace(key=("local", "", 0)), Observer(), engine
    whole = work._advance(experiment, job, trained, directory, observer, Alone(), begun=True)  # type: ignore[arg-type]
    assert whole
    assert saved == [2, 27, 52]
