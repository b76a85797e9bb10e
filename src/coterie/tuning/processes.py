"""Trials side by side, in processes of their own; this side hands them out and keeps the books."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from coterie.config import Config
from coterie.errors import CoterieError
from coterie.experiment.processes import Team, Worker, death
from coterie.tuning.attempts import Attempts, Watcher
from coterie.tuning.display import named
from coterie.tuning.trial import Trial


class Search(Watcher, Protocol):
    """Says which trials there are to do."""

    def next(self, at_work: Collection[Trial]) -> Trial | None:
        """A trial to begin beside those at work; None while there is none."""

    def over(self, trial: Trial) -> None:
        """A trial is finished, or was stopped."""


class Processes(Team):
    """Workers for the trials of one search.

    Parameters
    ----------
    attempts : Attempts
        What this process knows of the search.
    config : Config
        The experiment with its section ``tune``, from which each worker builds the same again.
    data_dir : Path, optional
        Where data files lie.
    count, threads : int
        Processes, and computing threads in each.
    """

    def __init__(self, attempts: Attempts, config: Config, data_dir: Path | None, count: int, threads: int) -> None:
        self._seeds = attempts.seeds
        self._settled: dict[str, Any] = {}
        super().__init__(count, threads, (attempts.modules, config, data_dir), "coterie.tuning.worker")

    def run(self, search: Search) -> None:
        """Hand out trials until none is left or one was stopped.

        Raises
        ------
        CoterieError
            What stopped a trial other than its setting; the others have stopped before.
        """
        at_work: dict[Worker, Trial] = {}
        idle, ending = list(self._workers), False
        error: BaseException | None = None
        while True:
            while idle and not ending and (trial := search.next(at_work.values())) is not None:
                worker = idle.pop(0)
                at_work[worker] = trial
                worker.send((trial.as_dict(), self._settled))
            if not at_work:
                break
            worker, message = self._inbox.get()
            if worker not in at_work:
                if worker in idle:  # it died with nothing to do
                    idle.remove(worker)
                continue
            trial = at_work[worker]
            kind: str
            content: Any
            kind, content = message or ("failed", death(worker, named(trial), "coterie tune --resume"))
            if kind == "call":
                try:
                    worker.send(self._call(search, trial, content) or ending)
                except CoterieError as problem:  # the disk is full
                    kind, content = "failed", problem
            if kind == "ended":
                del at_work[worker]
                idle.append(worker)
                ending = ending or not trial.finished(self._seeds)
                search.over(trial)
            elif kind == "failed":
                del at_work[worker]
                error, ending = error or content, True
                worker.process.kill()
        if error is not None:
            raise error

    def _call(self, search: Search, trial: Trial, content: tuple[str, Mapping[str, Any]]) -> bool:
        """What a worker says of its trial; whether it shall stop."""
        name, arguments = content
        if name == "keeps":
            trial.take(arguments["reached"])
            search.keeps(trial)
            return False
        if name == "settles":
            self._settled = dict(arguments["resolved"])
        return bool(getattr(search, name)(trial, **arguments))
