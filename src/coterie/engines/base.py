"""The server side of every engine: cohorts, first contacts, rounds, books, evaluation and the best round so far.

An engine is an implementation of ``ask``: subclasses say how a call reaches the clients, which `Sites` hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract import Algorithm, Answers, Pick, Predictor, Server
from coterie.contract.payload import for_rows, weigh
from coterie.contract.state import as_index
from coterie.engines.answers import Averaged
from coterie.engines.checkpoint import restore, state_of
from coterie.engines.examples import example_losses
from coterie.engines.ledger import Ledger
from coterie.engines.settings import Settings
from coterie.engines.sites import Call, Reply, Sizes, device_of, initial_seed, stack_for
from coterie.engines.snapshot import Snapshot
from coterie.engines.undefined import Undefined, undefined
from coterie.errors import CoterieError, SitesLost
from coterie.evaluation import BestRound, further_metrics, main_metric
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.privacy import epsilon_of

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
    """What happened in a round; evaluations are ``split -> metric -> (K,)`` and empty where none was due.

    Where they travel with the questions of the next round, ``due`` says that there will be some, and ``late`` of the
    next round's report has them. ``undefined`` says which clients' data do not define which metrics, as far as that is
    news.
    """

    round: int
    evaluations: Evaluations = field(default_factory=dict)
    n: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    cohort: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    strengths: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    due: bool = False
    late: RoundReport | None = None
    undefined: Undefined = field(default_factory=dict)


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

    def __init__(self, federation: Federation, algorithm: Algorithm, model: ModelSpec, settings: Settings) -> None:
        self.algorithm, self.settings, self.names = algorithm, settings, federation.names
        self.device = device_of(settings)
        self.federation = federation.to(self.device)
        self.stack = stack_for(self.federation, model, settings)
        self.initial_seed = initial_seed(settings)
        self.metric = main_metric(federation.task, settings.metric)
        self.further = further_metrics(settings.metrics, settings.metric, federation.task, federation.classes)
        self.chosen = BestRound(self.metric)
        self.round = 0
        self.ledger = Ledger(self.names)
        self.best = Snapshot(len(self.names))
        self.welcomed = torch.zeros(len(self.names), dtype=torch.bool)
        self.noised = torch.zeros(len(self.names), dtype=torch.int64)  # answers so far that held anything
        self.seconds: dict[str, float] = {}
        self._phase = "prepare"
        self._failures: list[Failure] = []
        self._failed = torch.zeros(len(self.names), dtype=torch.bool)
        self._answered = torch.zeros(len(self.names), dtype=torch.bool)
        self._calls: Counter[str] = Counter()  # of each client method, in this round
        self._store = ServerStore()
        self.clock: Callable[[], float] = perf_counter
        self._serve()

    def _serve(self) -> None:
        """The server as it is before the first round."""
        self.algorithm.check_training(self.settings.training)
        self._server = self._server_for(self.names, self.federation.train.n.cpu())
        self.algorithm.setup(self._server)

    def _server_for(self, names: tuple[str, ...], n: Tensor) -> Server:
        """A server without state for clients with ``n: (K,)`` training examples."""
        return Server(
            names=names, n=n, seed=self.settings.seed, task=self.federation.task, classes=self.federation.classes,
            store=self._store, ask=self._ask, unlabelled_newcomers=self.settings.unlabelled_newcomers,
            initial=lambda count, distinct: self.stack.initial(self.initial_seed, count, distinct=distinct),
        )  # fmt: skip

    # --- what an engine gives ------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def resolved(self) -> dict[str, Any]:
        """How this run is executed: what must be equal for bit-identical results."""

    @abstractmethod
    def _reach(self, call: Call) -> Reply:
        """Let the clients answer a call."""

    @abstractmethod
    def _commit(self, good: Tensor) -> None:
        """End a round at the clients: keep what those with ``good: (K,)`` bool have staged, drop the rest."""

    @abstractmethod
    def _predict(self, offer: Mapping[str, Any]) -> Iterator[tuple[Sequence[int], Predictor]]:
        """What every client predicts with, given the server's ``offer``: runs of neighbouring clients."""

    @abstractmethod
    def _measure(self, offer: Mapping[str, Any]) -> Evaluations:
        """How good that is."""

    @abstractmethod
    def site_state(self) -> dict[str, Any]:
        """The state of all clients, as ``checkpoint.bank_state`` gives it."""

    @abstractmethod
    def load_site_state(self, state: Mapping[str, Any]) -> None:
        """Give all clients their state back."""

    def finish(self) -> None:  # noqa: B027 -- most engines have nobody to tell
        """The last round is over: whoever keeps the clients may put their models away."""

    def close(self) -> None:  # noqa: B027 -- most engines hold nothing to give back
        """Give back what the engine holds beyond memory; it can do nothing afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- ask -----------------------------------------------------------------------------------------------------
    def _ask(
        self, method: Callable[..., Any], clients: Tensor, *, average: Tensor | None, payload: Mapping[str, Any]
    ) -> Answers:
        """Run a client method at clients and gather the answers; raises ``NobodyAnswered``."""
        asked = as_index(clients)
        away = self._absent() | self._failed
        present = (~away[asked]).nonzero().flatten()
        self._failed[asked[away[asked]]] = True
        name = getattr(method, "__name__", "")
        reply = self._reach(Call(method, self.round, asked, present, payload, average, self._calls[name]))
        self._calls[name] += 1
        for position, reason in reply.failed:
            self._fail(int(asked[position]), reason)
        for name, sizes in reply.received.items():
            self._book("down", asked[present], sizes, owners(payload[name], present))
        answered = asked[reply.positions]
        for name, sizes in reply.sent.items():
            self._book("up", answered, sizes, reply.peers.get(name))
        if len(answered) == 0:
            raise NobodyAnswered
        self._answered[answered] = True
        self.noised[answered] += int(bool(reply.sent))
        values = reply.values.values() if isinstance(reply.values, Averaged) else reply.values
        return Answers(answered, values, asked)

    def _book(self, direction: str, clients: Tensor, sizes: Sizes, peers: Tensor | None) -> None:
        """Book for each of ``clients: (k,)`` its share of a value; ``peers: (k, m)`` are the other ends, if peers."""
        if peers is None:
            self.ledger.book(self._phase, direction, clients, sizes)
        else:
            each = {kind: size // peers.shape[1] for kind, size in sizes.items()}
            self.ledger.book_peers(self._phase, peers, clients, each)

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
        """The evaluation of the initial models, before any round, and what preparing the data cost."""
        self.ledger.begin_round()
        if (preparation := self.federation.preparation) is not None:
            self.ledger.book_each("prepare", "up", "summary", preparation.bytes_up)
            self.ledger.book_each("prepare", "down", "summary", preparation.bytes_down)
        evaluations, seconds = self._timed_evaluation()
        return RoundReport(
            0, evaluations, self._sizes(), seconds={"evaluate": seconds}, ledger=self.ledger.this_round(),
            undefined=self._undefined() if evaluations else {},
        )  # fmt: skip

    def advance(self) -> RoundReport:
        """One round, with an evaluation where one is due; where it raises, no client keeps anything of it.

        Raises
        ------
        Diverged
            Every client failed.
        SitesLost
            Clients are gone, so that they cannot be told what to keep.
        CoterieError
            The method cannot work with its settings.
        """
        if self.finished:
            raise RuntimeError(f"all {self.settings.rounds} rounds are done")
        try:
            return self._advance()
        except SitesLost:
            raise
        except Exception:
            self._commit(torch.zeros(self.K, dtype=torch.bool))
            raise

    def _advance(self) -> RoundReport:
        self.round += 1
        self._server.round = self.round
        self.ledger.begin_round()
        self._failures, self._failed = [], torch.zeros(self.K, dtype=torch.bool)
        self._answered = torch.zeros(self.K, dtype=torch.bool)
        self._calls.clear()
        begin = self.clock()
        cohort = self._cohort()
        self._welcome(cohort)
        if len(cohort):
            self._phase = "train"
            try:
                self.algorithm.round(self._server, cohort)
            except NobodyAnswered:
                self._check_alive(cohort)
                self._failed[:] = True  # and so nobody keeps anything
        self._commit(~self._failed)
        seconds = {"train": self.clock() - begin}
        evaluations: Evaluations = {}
        due = self.round % self.settings.evaluate_every == 0 or self.finished
        if due:
            evaluations, seconds["evaluate"] = self._timed_evaluation()
        for phase, value in seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + value
        answered = self._answered & ~self._failed
        return RoundReport(
            self.round, evaluations, self._sizes() if evaluations else {},
            self._named(cohort), self._named(answered.nonzero().flatten()), tuple(self._failures),
            seconds, self.ledger.this_round(), self._notes() if due else {}, self._strengths() if due else {}, due,
            undefined=self._undefined() if evaluations else {},
        )  # fmt: skip

    def _notes(self) -> dict[str, float]:
        """What the method tells, and how much privacy the client has spent that was asked most."""
        notes = dict(self.algorithm.notes(self._server))
        if (privacy := self.settings.privacy) is not None and privacy.noise is not None:
            notes["epsilon"] = epsilon_of(int(self.noised.max()), privacy.noise, privacy.delta)
        return notes

    def _undefined(self) -> Undefined:
        """Which clients' data do not define which metrics; as the data do not change, they say it once."""
        return undefined(self.federation, self.further) if self.round == 0 else {}

    def _strengths(self) -> dict[str, NDArray[np.float64]]:
        """The method's numbers of each client, ``(K,)`` each, where the clients' state is at hand."""
        return {}

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
            self._commit(
                ~self._failed
            )  # what the server has learnt of the newcomers stays, so their part of it does too

    def _check_alive(self, cohort: Tensor) -> None:
        """Raise ``Diverged`` where failures, and not only absences, have left no client of the cohort."""
        if self._failures and bool(self._failed[cohort].all()):
            raise Diverged(f"every client failed: {self._failures[0]}; lower training.lr or the method's strength")

    def _timed_evaluation(self) -> tuple[Evaluations, float]:
        begin = self.clock()
        self._phase = "evaluate"
        evaluations = self._evaluate()
        self._keep_best(evaluations, self.round)
        return evaluations, self.clock() - begin

    def _evaluate(self) -> Evaluations:
        """Measure what every client predicts with now."""
        everyone = self._everyone()
        offer = self.algorithm.offer(self._server, everyone)
        for value in offer.values():
            one = for_rows(value, everyone[:1], self.K)
            self._book("down", everyone, weigh(one, 1), owners(value, everyone))
        return self._measure(offer)

    def _predictors(self) -> Iterator[tuple[Sequence[int], Predictor]]:
        """What every client predicts with now, chunk by chunk."""
        return self._predict(self.algorithm.offer(self._server, self._everyone()))

    def _keep_best(self, evaluations: Evaluations, round: int) -> None:
        split = {"best_val": "validation", "best_test": "test"}.get(self.settings.keep_best)
        if split is None or split not in evaluations:
            return
        if self.chosen.offer(round, evaluations[split][self.metric]) and self.settings.keep_models:
            self.best.take(self._predictors())

    def report_predictor(self) -> Predictor:
        """What the clients predict with in the reported round.

        Raises
        ------
        CoterieError
            It is not the last one, and the settings say that no models are kept.
        """
        if self.chosen.round is None:
            last = Snapshot(self.K)
            last.take(self._predictors())
            return last.load()
        if not self.settings.keep_models:
            raise CoterieError(f"the models of round {self.chosen.round} were not kept: set keep_models")
        return self.best.load()

    def report_models(self) -> Models:
        """The personalised models of the reported round, one row per client (mixtures keep ``(K, c)`` candidates)."""
        return self.report_predictor().models

    def report_losses(self, predictor: Predictor) -> dict[str, NDArray[np.float64]]:
        """What `report_predictor` loses on every validation example, ``(n,)`` each, flat over the clients."""
        data, task, classes = self.federation.validation, self.federation.task, self.federation.classes
        losses = example_losses(self.stack, predictor, data, task, classes)
        return {name: values.cpu().numpy() for name, values in losses.items()}

    @property
    def owed_round(self) -> int | None:
        """The round whose evaluation has not come in yet, where evaluations come later than their rounds."""
        return None

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

    def _cohort(self) -> Tensor:
        """The clients of the current round, ascending."""
        return self.settings.participation.cohort(self.settings.seed, self.round, self.K)

    def _absent(self) -> Tensor:
        """Clients that the settings keep away from this round, ``(K,)`` bool."""
        if not (away := set(self.settings.absent.get(self.round, ()))):
            return torch.zeros(self.K, dtype=torch.bool)
        return torch.tensor([name in away for name in self.names], dtype=torch.bool)

    def _everyone(self) -> Tensor:
        return as_index(range(self.K))

    def _sizes(self) -> dict[str, NDArray[np.int64]]:
        """Examples of each client in each evaluated split, ``(K,)``."""
        return {"validation": self.federation.validation.n.cpu().numpy(), "test": self.federation.test.n.cpu().numpy()}

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Everything that the next round depends on, as plain data."""
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; the run must have been built from the same configuration."""
        restore(self, state)


def owners(sent: Any, rows: Tensor) -> Tensor | None:
    """Whose rows the clients at positions ``rows: (r,)`` receive, ``(r, m)``; None unless they come from clients."""
    return sent.index[rows] if isinstance(sent, Pick) and sent.peers else None
