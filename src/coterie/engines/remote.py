"""The engine of real sites: each client at its own place, reached by messages that may be late or never come back.

The server lives here; a client's data, state and personal model never leave its site, but for what the method's answers
carry. An exchange is dear, so that the evaluation of a round travels with the first question of the next one.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.contract import Algorithm, Predictor
from coterie.contract.payload import Broadcast, for_rows, weigh
from coterie.engines.answers import Averaged
from coterie.engines.base import Diverged, Engine, Evaluations, Failure, RoundReport
from coterie.engines.folder import version_name
from coterie.engines.forms import Forms
from coterie.engines.outpost import Order
from coterie.engines.settings import Settings
from coterie.engines.shares import one_reply
from coterie.engines.sites import NOT_FINITE, Call, Reply
from coterie.engines.undefined import Undefined
from coterie.engines.wire import Malformed, Packet, packed, plain, trouble_of
from coterie.errors import CoterieError, SitesLost
from coterie.evaluation import all_metrics, metric_of
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec

LOST_ROUNDS = 3
"""So many rounds in a row without a quorum end the sitting; it can be resumed."""

logger = logging.getLogger("coterie.server")


class Post(Protocol):
    """Carries messages to the sites and back."""

    def reachable(self) -> frozenset[str]:
        """The clients that are there now."""

    def wait(self, count: int, seconds: float) -> frozenset[str]:
        """The clients that are there, as soon as they are so many, or when the time is over."""

    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        """Send to each client its message; client by client the answer, or why there is none, as they come in.

        Clients that have not answered when the time is over are left out. ``title`` is for whoever watches.
        """


WITHHELD = "its policy lets no result leave (policy.evaluation)"
AWAY = "it was not connected"
TOO_FEW = "too few other sites answered; the round does not count"


@dataclass(frozen=True)
class Terms:
    """What the server expects of the sites.

    Attributes
    ----------
    deadline : float
        Seconds within which an answer must come.
    quorum : int
        Clients that must answer for a round to count, where all are asked.
    patience : float
        Seconds for which the server waits for so many clients to be there.
    """

    deadline: float = 600.0
    quorum: int = 1
    patience: float = 1800.0

    def needed(self, cohort: int, clients: int) -> int:
        """How many of a cohort must answer: as large a share as the quorum is of all ``clients``, at least one.

        It is rounded down: a client that the quorum can do without is not needed because few others are asked.
        """
        return max(min(1, cohort), self.quorum * cohort // clients)


@dataclass
class Mail:
    """What came back of an exchange, by client: answers (values, peers), why there is none, and who was heard of."""

    answers: dict[int, tuple[dict[str, Any], dict[str, Tensor]]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    heard: set[int] = field(default_factory=set)


class RemoteEngine(Engine):
    """One algorithm, one federation, one seed at real sites.

    Parameters
    ----------
    federation : Federation
        The clients with as many examples as they have, but without these.
    algorithm, model, settings
        As for `Simulation`; ``settings.keep_models`` has no meaning, since the models stay at the sites.
    post : Post
        Reaches the sites.
    terms : Terms
        Deadlines and quorum.
    run, job, config : str, (str, str, int), mapping
        What every site is told: the run's random name; algorithm, variant and seed; the configuration.
    known : callable, optional
        Gives the federation anew, with the examples of sites that have joined meanwhile.
    """

    def __init__(
        self,
        federation: Federation,
        algorithm: Algorithm,
        model: ModelSpec,
        settings: Settings,
        *,
        post: Post,
        terms: Terms,
        run: str,
        job: tuple[str, str, int],
        config: Mapping[str, Any],
        known: Callable[[], Federation] | None = None,
    ) -> None:
        super().__init__(federation, algorithm, model, replace(settings, device="cpu", keep_models=False))
        self.post, self.terms, self._known = post, terms, known
        self._order = Order(run, job, config, "", 0, self.K, "", 0, schema=federation.source.get("schema"))
        self._token, self._number = secrets.token_hex(4), 0
        self._forms = Forms(self.stack.initial(self.initial_seed), algorithm.whole_numbers())
        self._metrics = all_metrics(federation.task, federation.classes, self.further)
        self._bases: list[str | None] = [None] * self.K
        self._settled = list(self._bases)  # before this round, as in the checkpoint that the server would go on from
        self._staged: dict[int, str] = {}
        self._owed: dict[int, dict[str, Any]] = {}  # by client: an evaluation that travels with the next question
        self._owed_round: int | None = None
        self._measured: dict[int, Mapping[str, Mapping[str, float]]] = {}
        self._late: RoundReport | None = None
        self._reasons: dict[str, dict[str, dict[str, str]]] = {}  # as `Undefined`, told by the sites
        self._lost = 0
        self._told: set[int] = set()  # who knows that the run is over
        self._kept_there: dict[int, int] = {}  # of which round sites keep the model
        self._away = torch.zeros(self.K, dtype=torch.bool)  # who was not there at some time of the round

    @property
    def resolved(self) -> dict[str, Any]:
        """How this run is executed; how a site does so is its own affair."""
        return {"engine": "flower", "dtype": self.settings.dtype, "precision": self.settings.precision}

    # --- rounds --------------------------------------------------------------------------------------------------
    def advance(self) -> RoundReport:
        """One round; ``late`` of its report has the evaluation of the round before.

        Sites that are not connected count among the failures: nobody has planned that, and the run shall tell.

        Raises
        ------
        SitesLost
            The quorum was not there for as long as the terms allow.
        Diverged
            The models have fallen apart at all sites, or, for several rounds, at all that were there.
        """
        self._wait()
        if self._known is not None:
            self.federation = self._known()
            self._server.n = self.federation.train.n
        self._settled = list(self._bases)
        self._late, self._away = None, torch.zeros(self.K, dtype=torch.bool)
        report = super().advance()
        report = replace(report, failures=report.failures + self._missed(report))
        self._harvest()
        if report.cohort:  # to ask nobody tells nothing of the sites
            self._lost = self._lost + 1 if self._too_few() else 0
        if self._lost >= LOST_ROUNDS:
            told = [failure for failure in report.failures if failure.reason != AWAY]
            if told and all(failure.reason == NOT_FINITE for failure in told):  # to go on would lead here again
                raise Diverged(
                    f"in {self._lost} rounds in a row every client that was there failed: {told[0]}; lower training.lr "
                    "or the method's strength"
                )
            reasons = "; ".join(
                f"{failure.client}: {failure.reason}" for failure in report.failures if failure.reason != TOO_FEW
            )
            raise SitesLost(
                f"in {self._lost} rounds in a row too few sites have answered for sites.quorum, which is "
                f"{self.terms.quorum} of {self.K} ({reasons}): mend that there, then go on from the last checkpoint"
            )
        return replace(report, late=self._late)

    def _too_few(self, failed: Collection[int] = ()) -> bool:
        """Whether those of the cohort who have not failed in this round, as these now have, are no quorum."""
        left = ~self._failed
        left[list(failed)] = False
        cohort = self._cohort()
        return int(left[cohort].sum()) < self.terms.needed(len(cohort), self.K)

    def _missed(self, report: RoundReport) -> tuple[Failure, ...]:
        """Those of the cohort that could not be asked."""
        known = {failure.client for failure in report.failures}
        missed = self._named((self._away & self._failed).nonzero().flatten())
        return tuple(
            Failure(name, self.round, self.algorithm.name, AWAY)
            for name in missed
            if name in report.cohort and name not in known
        )

    def _wait(self) -> None:
        here = self.post.wait(self.terms.quorum, self.terms.patience)
        if len(here) < self.terms.quorum:
            away = ", ".join(name for name in self.names if name not in here)
            raise SitesLost(
                f"only {len(here)} of {self.K} sites are there, and {self.terms.quorum} are needed (missing: {away}): "
                "start them, then go on from the last checkpoint"
            )

    def _absent(self) -> Tensor:
        here = self.post.reachable()
        gone = torch.tensor([name not in here for name in self.names], dtype=torch.bool)
        self._away |= gone
        return super()._absent() | gone

    def _check_alive(self, cohort: Tensor) -> None:
        """Sites that are away, or silent, may come back; only models that fell apart at all of them end the run."""
        fell_apart = bool(self._failures) and all(failure.reason == NOT_FINITE for failure in self._failures)
        if fell_apart and bool(self._failed[cohort].all()) and not bool(self._away[cohort].any()):
            raise Diverged(f"every client failed: {self._failures[0]}; lower training.lr or the method's strength")

    # --- exchanges -----------------------------------------------------------------------------------------------
    def _reach(self, call: Call) -> Reply:
        name = getattr(call.method, "__name__", "")
        orders: dict[int, dict[str, Any]] = {}
        received: dict[str, Mapping[str, int]] = {}
        payload: dict[str, Any] = {}
        for position in call.present.tolist():
            row = torch.tensor([position])
            payload = {key: for_rows(value, row, len(call.asked)) for key, value in call.payload.items()}
            received = received or {key: weigh(value, 1) for key, value in payload.items()}
            orders[int(call.asked[position])] = {"call": {"method": name, "payload": payload}}
        mail = self._exchange(orders)
        answers, places = mail.answers, {int(client): position for position, client in enumerate(call.asked)}
        problems = self._forms.problems(name, payload, answers)
        failed = mail.failed | problems
        good = sorted((places[client], client) for client in answers.keys() - problems.keys())
        if self._phase == "train" and self._too_few(failed.keys() & places.keys()):
            logger.warning("round %d: only %d of the %d sites that were asked have answered, too few for sites.quorum",
                           self.round, len(good), len(call.asked))  # fmt: skip
            failed |= {client: TOO_FEW for _, client in good}
            good = []
        replies = [(torch.tensor([place]), self._reply(call, place, *answers[client])) for place, client in good]
        whole = one_reply(call, replies)
        whole.received = received
        whole.failed = sorted((places[client], reason) for client, reason in failed.items() if client in places)
        for _, client in good:
            self._staged[client] = self._name
        return whole

    def _reply(self, call: Call, place: int, values: Mapping[str, Any], peers: Mapping[str, Tensor]) -> Reply:
        """One client's answer as the reply of a share of the call."""
        first = torch.tensor([0])
        reply = Reply(first, values, sent={name: weigh(value, 1) for name, value in values.items()}, peers=dict(peers))
        if call.average is not None:
            mean = Averaged(call.average[place : place + 1])
            mean.add(values, first, call.asked[place : place + 1], torch.tensor([True]))
            reply.values = mean
        return reply

    @property
    def _name(self) -> str:
        """The name of the current exchange."""
        return version_name(self.round, self._token, self._number)

    def _exchange(self, orders: Mapping[int, Mapping[str, Any]]) -> Mail:
        """Send the orders, by client, and with them what is owed; who is not asked anything gets that alone."""
        self._number += 1
        here = self.post.reachable()
        evaluations = {client: owed for client, owed in self._owed.items() if self.names[client] in here}
        self._owed = {client: owed for client, owed in self._owed.items() if client not in evaluations}
        packets = {}
        for client in sorted({*orders, *evaluations}):
            order = replace(
                self._order, client=self.names[client], number=client, exchange=self._name, round=self.round,
                base=self._staged.get(client, self._bases[client]), settled=self._settled[client],
                evaluate=evaluations.get(client), best=self.chosen.round, **orders.get(client, {}),
            )  # fmt: skip
            packets[self.names[client]] = packed(order.content())
        self._book_schema(sorted({*orders, *evaluations}))
        mail = Mail()
        wanted = {key for order in orders.values() for key in order}
        what = "" if "call" in wanted else ", the end" if "last" in wanted else ", evaluation"
        title = f"{self.algorithm.name}, round {self.round} of {self.settings.rounds}{what}"
        for name, packet in self.post.exchange(packets, self.terms.deadline, title):
            client = self.names.index(name)
            try:
                if isinstance(packet, str):
                    raise CoterieError(packet)
                self._read(client, packet, mail, asked="call" in orders.get(client, {}))
            except CoterieError as error:
                mail.failed[client] = str(error)
        for client in orders:
            if client not in mail.heard and client not in mail.failed:
                mail.failed[client] = f"it did not answer within {self.terms.deadline:g} s (sites.deadline)"
        for client, reason in mail.failed.items() if what else ():  # those of a round are in its report
            logger.warning("%s: nothing from %s: %s", title, self.names[client], reason)
        return mail

    def _book_schema(self, clients: Sequence[int]) -> None:
        """The schema travels with every question, like the configuration, and counts once: late sites get it late."""
        if (preparation := self.federation.preparation) is not None:
            due = np.zeros(self.K, dtype=np.int64)
            booked = self.ledger.bytes.get(("prepare", "down", "summary"), due)
            due[clients] = (preparation.bytes_down - booked)[clients]
            self.ledger.book_each("prepare", "down", "summary", due)

    def _read(self, client: int, packet: Packet, mail: Mail, *, asked: bool) -> None:
        """Take in what a site has sent; raises ``CoterieError`` where that is not an answer to this exchange."""
        tree = packet.tree()
        if tree.get("exchange") not in (self._name, None) or tree.get("client") != self.names[client]:
            raise Malformed("it answered another question")
        if isinstance(metrics := tree.get("metrics"), dict):
            self._measured[client] = _numbers(metrics, self._metrics)
            self._learn(self.names[client], tree.get("undefined"))
        if (trouble := trouble_of(tree)) is not None:
            code, reason = trouble
            if code == "state":  # it begins again, as a client that is met for the first time
                self._bases[client] = None
                self.welcomed[client] = False
            raise CoterieError(reason)
        if asked:
            answer = packet.open(tree.get("answer"), self.stack.layout)
            if not isinstance(answer, dict) or not isinstance(answer.get("values"), dict):
                raise Malformed("it sent no answer")
            mail.answers[client] = answer["values"], self._peers(answer)
        if isinstance(kept := tree.get("kept"), int):
            self._kept_there[client] = kept
        mail.heard.add(client)

    def _learn(self, name: str, told: Any) -> None:
        """What a site's data do not define, in its words."""
        for split in ("validation", "test"):
            metrics = told.get(split) if isinstance(told, dict) else None
            for metric, reason in metrics.items() if isinstance(metrics, dict) else ():
                if metric in self._metrics:
                    self._reasons.setdefault(split, {}).setdefault(metric, {})[name] = plain(reason, 200)

    def _undefined(self) -> Undefined:
        return self._reasons

    def _peers(self, answer: Mapping[str, Any]) -> dict[str, Tensor]:
        """For answers that go to other clients, their numbers ``(1, m)``."""
        peers = answer.get("peers") or {}
        for name, index in peers.items() if isinstance(peers, dict) else [("peers", peers)]:
            right = isinstance(index, Tensor) and index.dtype == torch.int64 and index.ndim == 2 and len(index) == 1
            if not right or bool(((index < 0) | (index >= self.K)).any()):
                raise Malformed(f"it sent {name} to clients that are none")
        return dict(peers)

    def _commit(self, good: Tensor) -> None:
        for client, version in self._staged.items():
            if good[client]:
                self._bases[client] = version
        self._staged = {}

    # --- evaluation ----------------------------------------------------------------------------------------------
    def _measure(self, offer: Mapping[str, Any]) -> Evaluations:
        """Nothing yet: the clients measure when they are asked next, or at once where no round comes any more."""
        self._harvest()
        self._owe(offer)
        if not self.finished:
            return {}
        known = self.settings.keep_best == "last"  # else this very evaluation says which round was the best
        here = self.post.reachable()
        orders = {client: {"last": True} for client in self._owed if self.names[client] in here}
        mail = self._exchange(orders if known else {})
        self._told = mail.heard if known else set()
        return self._gathered()

    def _owe(self, offer: Mapping[str, Any]) -> None:
        self._measured, self._owed_round = {}, self.round
        everybody = {
            name: _kept(for_rows(value, torch.tensor([0]), self.K))
            for name, value in offer.items()
            if isinstance(value, Broadcast)
        }
        for client in range(self.K):
            row = torch.tensor([client])
            own = {name: _kept(for_rows(value, row, self.K)) for name, value in offer.items() if name not in everybody}
            self._owed[client] = {"round": self.round, "offer": everybody | own}

    def _harvest(self) -> None:
        """The evaluation of an earlier round is over, once the questions that it travels with are."""
        if self._owed_round is None or self._owed_round == self.round:
            return
        here = self.post.reachable()
        if any(self.names[client] in here for client in self._owed):  # they were not asked anything
            self._exchange({})
        round, evaluations = self._owed_round, self._gathered()
        self._keep_best(evaluations, round)
        self._late = RoundReport(
            round, evaluations, self._sizes() if evaluations else {}, undefined=self._undefined() if evaluations else {}
        )

    def _gathered(self) -> Evaluations:
        """What the sites have measured, NaN for those that have not answered; nothing is owed any more."""
        self._owed, self._owed_round = {}, None
        whole: Evaluations = {}
        for client, splits in self._measured.items():
            for split in ("validation", "test"):
                for metric, value in splits.get(split, {}).items():
                    table = whole.setdefault(split, {}).setdefault(metric, np.full(self.K, np.nan))
                    table[client] = value
        withheld = {self.names[client]: WITHHELD for client, splits in self._measured.items() if not splits}
        for split, tables in whole.items() if withheld else ():
            for metric in tables:
                self._reasons.setdefault(split, {}).setdefault(metric, {}).update(withheld)
        return {split: metrics for split, metrics in whole.items() if self.metric in metrics}

    def finish(self) -> None:
        """Tell the sites that the run is over, and which round was the best."""
        here = self.post.reachable()
        left = [client for client, name in enumerate(self.names) if name in here and client not in self._told]
        told = self._told | (self._exchange({client: {"last": True} for client in left}).heard if left else set())
        untold = [name for client, name in enumerate(self.names) if client not in told]
        if untold:
            logger.warning(
                "%s: round %d is reported, which could not be told to %s: models/ there has no model of this run",
                self.algorithm.name, self.report_round, ", ".join(untold),
            )  # fmt: skip
        for client, round in self._kept_there.items():
            if round != self.report_round:
                logger.warning(
                    "%s: round %d is reported, in which %s was away: it keeps its model of round %d",
                    self.algorithm.name, self.report_round, self.names[client], round,
                )  # fmt: skip

    def _predict(self, offer: Mapping[str, Any]) -> Iterator[tuple[Sequence[int], Predictor]]:
        raise CoterieError("the personalised models stay at their sites; each finds its own in its state folder")

    # --- checkpoints ---------------------------------------------------------------------------------------------
    def site_state(self) -> dict[str, Any]:
        """Nothing: the sites keep their state themselves."""
        return {"bank": {}, "shapes": {}, "started": torch.zeros(self.K, dtype=torch.bool)}

    def load_site_state(self, state: Mapping[str, Any]) -> None:
        """See `site_state`."""

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next round depends on, with the names of the sites' states."""
        return {**super().state_dict(), "bases": list(self._bases), "owed": self._owed_round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; what was owed then is owed again."""
        super().load_state_dict(state)
        self._bases = list(state["bases"])
        if state["owed"] is not None:
            self._owe(self.algorithm.offer(self._server, self._everyone()))

    @property
    def owed_round(self) -> int | None:
        """The round whose evaluation has not come in yet."""
        return self._owed_round


def _numbers(metrics: Mapping[str, Any], known: Collection[str]) -> dict[str, dict[str, float]]:
    """What a site has measured, by split and metric; raises ``Malformed``."""
    return {
        split: {
            metric: _number(split, metric, value, known)
            for metric, value in (found.items() if isinstance(found, dict) else ())
            if isinstance(value, int | float)
        }
        for split, found in metrics.items()
    }


def _number(split: str, metric: str, value: float, known: Collection[str]) -> float:
    """A result, once it is one that was asked for and can be."""
    if metric not in known:
        raise Malformed(f"it sent a result {plain(metric, 40)!r}, for which nobody has asked")
    try:
        number = float(value)
    except OverflowError as error:
        raise Malformed("it sent a result that is too large") from error
    if not metric_of(metric).can_be(number):
        raise Malformed(
            f"it sent {number:g} as its {plain(split, 40)} {metric}, which is a number {metric_of(metric).limits}"
        )
    return number


def _kept(value: Any) -> Any:
    """A row that the server may change meanwhile; what is one row for many stays one."""
    return value.clone() if isinstance(value, Models | Tensor) else value
