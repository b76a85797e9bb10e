"""What every engine does: cohorts, first contacts, rounds, staged state, evaluation and the best round so far.

An engine is an implementation of ``ask``: subclasses say how a client method reaches the clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, Answers, Predictor, Server
from coterie.contract.state import as_index
from coterie.engines.ledger import Ledger
from coterie.engines.settings import Settings
from coterie.engines.snapshot import Snapshot
from coterie.errors import CoterieError
from coterie.evaluation import BestRound
from coterie.models import Models

Evaluations = dict[str, dict[str, NDArray[np.float64]]]


class NobodyAnswered(Exception):
    """Ends a round in which no client answered; every model stays as it was."""


class Diverged(CoterieError):
    """Every client of a round failed; earlier rounds are kept."""


@dataclass(frozen=True)
class Failure:
    """A client whose part of a round was dropped."""

    client: str
    round: int
    algorithm: str
    reason: str

    def __str__(self) -> str:
        return f"{self.algorithm}, round {self.round}, client {self.client}: {self.reason}"


@dataclass(frozen=True)
class RoundReport:
    """What happened in a round; evaluations are ``split -> metric -> (K,)`` and empty where none was due."""

    round: int
    evaluations: Evaluations = field(default_factory=dict)
    n: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    cohort: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)


class ServerStore:
    """The server's attributes."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, name: str) -> Any:
        """The value of an attribute."""
        return self.values[name]

    def set(self, name: str, value: Any) -> None:
        """Keep a value."""
        self.values[name] = value


class Engine(ABC):
    """Runs one algorithm on one federation with one seed, round by round."""

    def __init__(self, algorithm: Algorithm, settings: Settings, names: Sequence[str], task: str) -> None:
        self.algorithm, self.settings, self.names = algorithm, settings, tuple(names)
        self.metric = "accuracy" if task == "classification" else "mae"
        self.chosen = BestRound(self.metric)
        self.round = 0
        self.ledger = Ledger(self.names)
        self.best = Snapshot(len(self.names))
        self.welcomed = torch.zeros(len(self.names), dtype=torch.bool)
        self.seconds: dict[str, float] = {}
        self._phase = "prepare"
        self._failures: list[Failure] = []
        self._failed = torch.zeros(len(self.names), dtype=torch.bool)
        self._answered = torch.zeros(len(self.names), dtype=torch.bool)
        self._store = ServerStore()

    # --- what an engine gives ------------------------------------------------------------------------------------
    @abstractmethod
    def _ask(
        self, method: Callable[..., Any], clients: Tensor, *, average: Tensor | None, payload: Mapping[str, Any]
    ) -> Answers:
        """Run a client method at clients and gather the answers; raises ``NobodyAnswered``."""

    @abstractmethod
    def _evaluate(self) -> Evaluations:
        """Measure what every client predicts with now."""

    @abstractmethod
    def _predictors(self) -> Iterator[tuple[Sequence[int], Predictor]]:
        """What every client predicts with now, chunk by chunk."""

    @abstractmethod
    def _end_round(self) -> None:
        """Commit the staged state of the clients that answered everything."""

    # --- rounds --------------------------------------------------------------------------------------------------
    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.names)

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return self.round >= self.settings.rounds

    @property
    def server(self) -> Server:
        """The server with its state."""
        return self._server

    @property
    def server_state(self) -> dict[str, Any]:
        """The server's attributes by name."""
        return self._store.values

    _server: Server

    def initial_report(self) -> RoundReport:
        """The evaluation of the initial models, before any round."""
        self.ledger.begin_round()
        evaluations, seconds = self._timed_evaluation()
        return RoundReport(
            0, evaluations, self._sizes(), seconds={"evaluate": seconds}, ledger=self.ledger.this_round()
        )

    def advance(self) -> RoundReport:
        """One round, with an evaluation where one is due."""
        if self.finished:
            raise RuntimeError(f"all {self.settings.rounds} rounds are done")
        self.round += 1
        self._server.round = self.round
        self.ledger.begin_round()
        self._failures, self._failed = [], torch.zeros(self.K, dtype=torch.bool)
        self._answered = torch.zeros(self.K, dtype=torch.bool)
        begin = perf_counter()
        cohort = self.settings.participation.cohort(self.settings.seed, self.round, self.K)
        self._welcome(cohort)
        if len(cohort):
            self._phase = "train"
            try:
                self.algorithm.round(self._server, cohort)
            except NobodyAnswered:
                self._check_alive(cohort)
                self._failed[:] = True  # and so nobody keeps anything
        self._end_round()
        seconds = {"train": perf_counter() - begin}
        evaluations: Evaluations = {}
        if self.round % self.settings.evaluate_every == 0 or self.finished:
            evaluations, seconds["evaluate"] = self._timed_evaluation()
        for phase, value in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value
        answered = self._answered & ~self._failed
        return RoundReport(
            self.round, evaluations, self._sizes() if evaluations else {},
            self._named(cohort), self._named(answered.nonzero().flatten()), tuple(self._failures),
            seconds, self.ledger.this_round(), dict(self.algorithm.notes(self._server)) if evaluations else {},
        )  # fmt: skip

    def relations(self) -> dict[str, NDArray[np.float32]]:
        """Who learns from whom, by name: ``(K, K)``, row i for what client i takes."""
        return {
            name: matrix.cpu().numpy().astype(np.float32)
            for name, matrix in self.algorithm.relations(self._server).items()
        }

    def _welcome(self, cohort: Tensor) -> None:
        new = cohort[~self.welcomed[cohort]]
        if len(new):
            self._phase = "describe"
            try:
                self.algorithm.welcome(self._server, new)
            except NobodyAnswered:
                self._check_alive(cohort)
            self.welcomed[new[~self._failed[new]]] = True
            self._end_round()  # what the server has learnt of the newcomers stays, so their part of it does too

    def _check_alive(self, cohort: Tensor) -> None:
        """Raise ``Diverged`` where failures, and not only absences, have left no client of the cohort."""
        if self._failures and bool(self._failed[cohort].all()):
            self._end_round()
            raise Diverged(f"every client failed: {self._failures[0]}; lower training.lr or the method's strength")

    def _timed_evaluation(self) -> tuple[Evaluations, float]:
        begin = perf_counter()
        self._phase = "evaluate"
        evaluations = self._evaluate()
        self._keep_best(evaluations)
        return evaluations, perf_counter() - begin

    def _keep_best(self, evaluations: Evaluations) -> None:
        split = {"best_val": "validation", "best_test": "test"}.get(self.settings.keep_best)
        if split is None or split not in evaluations:
            return
        if self.chosen.offer(self.round, evaluations[split][self.metric]):
            self.best.take(self._predictors())

    def report_predictor(self) -> Predictor:
        """What the clients predict with in the reported round."""
        if self.chosen.round is None:
            last = Snapshot(self.K)
            last.take(self._predictors())
            return last.load()
        return self.best.load()

    def report_models(self) -> Models:
        """The personalised models of the reported round, one row per client (mixtures keep ``(K, c)`` candidates)."""
        return self.report_predictor().models

    @property
    def report_round(self) -> int:
        """The round whose models are reported."""
        return self.round if self.chosen.round is None else self.chosen.round

    # --- helpers -------------------------------------------------------------------------------------------------
    def _fail(self, client: int, reason: str) -> None:
        self._failed[client] = True
        self._failures.append(Failure(self.names[client], self.round, self.algorithm.name, reason))

    def _named(self, clients: Tensor) -> tuple[str, ...]:
        return tuple(self.names[int(client)] for client in clients)

    def _absent(self) -> Tensor:
        """Clients that the settings keep away from this round, ``(K,)`` bool."""
        away = set(self.settings.absent.get(self.round, ()))
        return torch.tensor([name in away for name in self.names], dtype=torch.bool)

    def _everyone(self) -> Tensor:
        return as_index(range(self.K))

    @abstractmethod
    def _sizes(self) -> dict[str, NDArray[np.int64]]:
        """Examples of each client in each evaluated split, ``(K,)``."""
