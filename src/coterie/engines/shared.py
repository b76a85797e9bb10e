"""Runs that share a stack: each has its own server, state and books, and their clients compute together.

Every run is a seat of a `Meeting`. Where all that are at one stage call the same client method, it is called once, for
a `JointSite`; whatever cannot be joined, and whatever fails, each run does by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Predictor, Site
from coterie.engines.company import Company
from coterie.engines.joined import JointData, JointSite, Unjoined, divided, joined, joint_payload, ranges, signature
from coterie.engines.meeting import Meeting, Seat, Stage, Wish
from coterie.engines.predict import measure
from coterie.engines.simulation import Simulation
from coterie.federation.data import ClientData
from coterie.models import Stack

PHASES = ("prepare", "describe", "train", "evaluate")
LAST = len(PHASES)
ALONE = object()
"""The reply that lets a run do by itself what it wished for."""

ATTEMPTS = 2
"""After so many failures in a row wishes of one kind are not joined any more."""


@dataclass(frozen=True, eq=False)
class Calling:
    """A client method to be called, by the run at ``place``."""

    place: int
    method: Callable[..., Any]
    site: Site
    received: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Measuring:
    """What the clients in ``rows: (k,)`` predict with, to be measured on a split."""

    place: int
    stack: Stack
    predictor: Predictor
    rows: Tensor
    split: str
    task: str
    further: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Agreeing:
    """Whether a run would stop and save after this round."""

    stop: bool
    save: bool


class Shared:
    """What the runs of a group share; ``serve`` is for their meeting."""

    def __init__(self, functions: Sequence[Callable[[Member], bool]]) -> None:
        def seated(place: int) -> Callable[[Seat[bool]], bool]:
            return lambda seat: functions[place](Member(self, seat, place))

        self.meeting = Meeting([seated(place) for place in range(len(functions))], self.serve)
        self.simulations: dict[int, Simulation] = {}
        self._data: dict[str, JointData] = {}
        self._failures: Counter[Hashable] = Counter()
        self.served = Counter[str]()

    def hold(self) -> list[bool | None]:
        """Let all runs come to their end; what each returned."""
        try:
            return self.meeting.hold()
        finally:
            self.simulations, self._data = {}, {}  # each of them knows us: none would go before all could

    def serve(self, wishes: list[Wish]) -> Sequence[Any]:
        """A reply to each of the wishes, all of one kind."""
        contents = [wish.content for wish in wishes]
        if isinstance(contents[0], Agreeing):
            stop = self.meeting.failed or any(content.stop for content in contents)
            return [(stop, any(content.save for content in contents))] * len(contents)
        kind = wishes[0].kind
        if len(contents) > 1 and self._failures[kind] < ATTEMPTS:
            torch.set_num_threads(self.simulations[contents[0].place].sites.threads)
            try:
                replies = self._call(contents) if isinstance(contents[0], Calling) else self._measure(contents)
            except Unjoined:  # this time; it cost nothing to find out
                pass
            except (Exception, SystemExit):  # whose fault it is shows when each run does it by itself
                self._failures[kind] += 1
            else:
                self._failures[kind] = 0
                self.served["together"] += len(contents)
                return replies
        self.served["alone"] += len(contents)
        return [ALONE] * len(contents)

    def _call(self, calls: Sequence[Calling]) -> list[Any]:
        chosen = [(call.place, call.site.clients) for call in calls]
        site = JointSite(
            [call.site for call in calls], self._select("train", chosen), self._select("validation", chosen)
        )
        received = [call.received for call in calls]
        payload = joint_payload(received)
        replies = divided(calls[0].method(site, **payload), site, payload, received)
        site.keep()
        return replies

    def _measure(self, wishes: Sequence[Measuring]) -> list[Any]:
        predictors = [wish.predictor for wish in wishes]
        joint = Predictor(
            joined([predictor.models for predictor in predictors]),
            joined([predictor.weights for predictor in predictors]),
            predictors[0].combine,
        )
        data = self._select(wishes[0].split, [(wish.place, wish.rows) for wish in wishes])
        values = measure(wishes[0].stack, joint, data, wishes[0].task, wishes[0].further)
        parts = ranges([len(wish.rows) for wish in wishes])
        return [{metric: value[rows] for metric, value in values.items()} for rows in parts]

    def _select(self, split: str, chosen: Sequence[tuple[int, Tensor]]) -> ClientData:
        places = sorted(self.simulations)
        if split not in self._data:
            self._data[split] = JointData([getattr(self.simulations[place].federation, split) for place in places])
        return self._data[split].select([(places.index(place), rows) for place, rows in chosen])


class Member:
    """One run of a group, the `Company` of its clients."""

    def __init__(self, shared: Shared, seat: Seat[bool], place: int) -> None:
        self._shared, self._seat, self._place = shared, seat, place
        self._simulation: Simulation | None = None
        self._last: tuple[Stage, int] = ((), 0)

    def join(self, simulation: Simulation) -> Company:
        """Let the clients of a simulation compute with those of the others; returns itself."""
        self._simulation = self._shared.simulations[self._place] = simulation
        simulation.accompany(self)
        return self

    def clock(self) -> float:
        """See `Company`."""
        return self._seat.clock()

    def agree(self, stop: bool, save: bool) -> tuple[bool, bool]:
        """See `Company`; all runs that have come as far do the same, so that they are resumed in step."""
        reply: tuple[bool, bool] = self._wish(LAST, "agree", Agreeing(stop, save))
        return reply

    def run(self, method: Callable[..., Any], site: Site, received: Mapping[str, Any]) -> Any:
        """See `Company`."""
        if self._seat.here:  # and not one of several threads of this run
            kind = (getattr(method, "__func__", method), site.K, signature(received))
            reply = self._wish(None, kind, Calling(self._place, method, site, received))
            if reply is not ALONE:
                return reply
        return method(site, **received)

    def measure(
        self,
        stack: Stack,
        predictor: Predictor,
        data: ClientData,
        rows: Tensor,
        split: str,
        task: str,
        further: tuple[str, ...] = (),
    ) -> dict[str, Tensor]:
        """See `Company`; a model that all clients share is measured on one long batch, which costs no more calls.

        Metrics are in the unit of the targets, which each run standardises by itself: each measures by itself then.
        """
        shared = predictor.single and predictor.models.common
        if self._seat.here and not shared and data.target_normal is None:
            kind = ("measure", split, predictor.combine, predictor.models.lead[1:], predictor.weights is None)
            reply = self._wish(None, kind, Measuring(self._place, stack, predictor, rows, split, task, further))
            if reply is not ALONE:
                values: dict[str, Tensor] = reply
                return values
        return measure(stack, predictor, data, task, further)

    def _wish(self, rank: int | None, kind: Hashable, content: Any) -> Any:
        assert self._simulation is not None
        stage = self._simulation.round, PHASES.index(self._simulation.phase) if rank is None else rank
        before, count = self._last
        self._last = stage, count + 1 if stage == before else 0
        return self._seat.wish((*stage, self._last[1]), kind, content)
