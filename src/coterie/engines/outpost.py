"""A real site's side of an exchange: one message in, one message out, whatever happens, and the state in its folder.

The server names the version of the state that a message builds on, and the name of what it leaves. So nothing needs to
be acknowledged: what the server has never got it never names again, and to be told the same thing twice is harmless.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Algorithm, Predictor
from coterie.contract.payload import Value
from coterie.engines.folder import NoSuchState, SiteFolder, Unreadable
from coterie.engines.sites import Call, Reply, Sites
from coterie.engines.undefined import undefined
from coterie.engines.wire import Malformed, Packet, packed
from coterie.errors import CoterieError
from coterie.models import Models, Stack
from coterie.privacy import Gate, Refused

FORMAT = 1
"""Of the messages; a site refuses those of another one."""

logger = logging.getLogger("coterie.site")


@dataclass(frozen=True)
class Order:
    """What a message wants, without its tensors.

    Attributes
    ----------
    run, job : str, (str, str, int)
        The run's random name; algorithm, variant and seed.
    config : mapping
        The experiment's configuration.
    client, number, roster : str, int, int
        Whom it addresses, its number among the clients, and how many these are.
    exchange : str
        The name of the exchange, which the answer repeats; also that of the state it leaves.
    round : int
        The current round.
    base : str, optional
        The version of the state that it builds on; None for a client that has none yet.
    settled : str, optional
        The version that the client had before this round: where the round fails, or the server is started again, the
        next message builds on it.
    evaluate : mapping, optional
        ``round`` and ``offer``, where what the client predicts with shall be measured.
    call : mapping, optional
        ``method`` and ``payload``, where a client method shall run.
    best : int, optional
        The best round so far.
    last : bool
        Whether the run is over.
    schema : mapping, optional
        How the columns of a table become inputs, where the sites have agreed on that before the first round.
    """

    run: str
    job: tuple[str, str, int]
    config: Mapping[str, Any]
    client: str
    number: int
    roster: int
    exchange: str
    round: int
    base: str | None = None
    settled: str | None = None
    evaluate: Mapping[str, Any] | None = None
    call: Mapping[str, Any] | None = None
    best: int | None = None
    last: bool = False
    schema: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Order:
        """From a message; raises ``Malformed``."""
        if tree.get("format") != FORMAT:
            raise Malformed("a message is of another version of Coterie: install the same at the server and the sites")
        try:
            algorithm, variant, seed = tree["job"]
            order = cls(**{**{key: tree[key] for key in tree if key != "format"}, "job": (algorithm, variant, seed)})
        except (TypeError, ValueError, LookupError) as error:
            raise Malformed("a message lacks a part, or has one too many") from error
        texts = (order.run, order.client, order.exchange, algorithm, variant)
        numbers = (order.number, order.roster, order.round, seed)
        if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
            raise Malformed("a message has a part of another kind")
        if not 0 <= order.number < order.roster:
            raise Malformed("a message numbers its client beyond the roster")
        return order

    def content(self) -> dict[str, Any]:
        """For a message."""
        return {"format": FORMAT, **vars(self)}


class Outpost:
    """One client at its own place.

    Parameters
    ----------
    client : str
        Its name.
    root : Path
        Where it keeps its state.
    build : callable
        From an order, its data, method and model, ready to compute.
    gate : Gate, optional
        What may enter and leave; by default everything.
    keep : callable, optional
        Told, at the end of a run, the order, the reported round and what the client predicts with after it.
    """

    def __init__(
        self,
        client: str,
        root: Path,
        build: Callable[[Order], Sites],
        gate: Gate | None = None,
        keep: Callable[[Order, int, Predictor], None] | None = None,
    ) -> None:
        self.client, self.root, self.build, self.gate, self.keep = client, root, build, gate, keep

    def answer(self, packet: Packet) -> Packet:
        """What goes back: the answer, or in ``trouble`` a code and a short sentence that tells nothing of the data."""
        report: dict[str, Any] = {"client": self.client}
        try:
            order = Order.of(packet.tree())
            report["exchange"] = order.exchange
            if order.client != self.client:
                raise Refused("the message is for another client")
            self._work(packet, order, report)
            return packed(report)
        except Malformed as error:
            trouble = ("malformed", str(error))
        except NoSuchState as error:
            trouble = ("state", f"{error}: its state folder was lost or replaced")
        except Unreadable as error:
            trouble = ("unreadable", "it cannot read its state; its log says why, and once that is mended it goes on")
            logger.error("exchange %s: %s", report.get("exchange"), error)
        except Refused as error:
            trouble = ("refused", str(error))
        except CoterieError as error:
            trouble = ("setup", "its data, model or settings are not in order; coterie deploy check and its log tell")
            logger.error("exchange %s: %s", report.get("exchange"), error)
        except (Exception, SystemExit) as error:
            trouble = ("failed", f"{type(error).__name__} in the client's code; its log has the traceback")
            logger.exception("exchange %s", report.get("exchange"))
        logger.warning("exchange %s: %s: %s", report.get("exchange"), *trouble)
        kept = {key: value for key, value in report.items() if key in ("client", "exchange", "metrics")}
        return packed({**kept, "trouble": list(trouble)})

    def _work(self, packet: Packet, order: Order, report: dict[str, Any]) -> None:
        folder = SiteFolder(self.root, order.run, order.job)
        with folder.alone():
            sites = self.build(order)
            if self.gate is not None:
                self.gate.admit(sites.algorithm, int(sites.federation.train.n[0]))
            if order.base is not None:
                sites.load_state_dict(folder.state(order.base, sites.stack.layout))
            if order.best is not None:
                folder.choose(order.best)
            if order.evaluate is not None:
                report["metrics"] = self._evaluate(packet, order.evaluate, sites, folder)
                report["undefined"] = _told(sites) if report["metrics"] else {}
            if order.call is not None:
                self._call(packet, order, sites, folder, report)
            if order.last and self.keep is not None and (chosen := folder.nearest(order.best)) is not None:
                self.keep(order, chosen, folder.predictor(chosen, sites.stack.layout))
                report["kept"] = chosen

    def _evaluate(
        self, packet: Packet, wanted: Mapping[str, Any], sites: Sites, folder: SiteFolder
    ) -> dict[str, dict[str, float]]:
        offer = self._opened(packet, wanted["offer"], sites.stack)
        chunks = list(sites.predictors(offer, wanted["round"]))
        folder.remember(wanted["round"], chunks[0][1])
        if self.gate is not None and not self.gate.policy.sends_evaluation:
            return {}
        measured = sites.measure(chunks)
        return {split: {name: float(value) for name, value in metrics.items()} for split, metrics in measured.items()}

    def _call(self, packet: Packet, order: Order, sites: Sites, folder: SiteFolder, report: dict[str, Any]) -> None:
        assert order.call is not None
        method = _method(sites.algorithm, order.call.get("method"))
        payload = self._opened(packet, order.call.get("payload"), sites.stack)
        reply = sites.answer(Call(method, order.round, sites.numbers, torch.tensor([0]), payload))
        if reply.failed:
            raise Refused(reply.failed[0][1])
        initial = sites.bank.columns["theta"].default
        assert initial is not None
        values = self._released(sites, payload, reply, initial, order, folder)
        sites.commit(torch.ones(1, dtype=torch.bool))
        folder.keep(order.exchange, sites.state_dict(), named=(order.base, order.settled))
        report["answer"] = {"values": values, "peers": reply.peers}

    def _released(
        self,
        sites: Sites,
        payload: Mapping[str, Value],
        reply: Reply,
        initial: Models,
        order: Order,
        folder: SiteFolder,
    ) -> Mapping[str, Value]:
        """The answer as the site lets it go; to the same question always the same, noise and all."""
        assert isinstance(reply.values, Mapping)
        if self.gate is None:
            return reply.values
        if (before := folder.said(order.exchange, sites.stack.layout)) is not None:
            return before
        values, done = self.gate.release(sites.algorithm, payload, reply.values, reply.peers, initial)
        if done.std:
            folder.say(order.exchange, values)
        return values

    def _opened(self, packet: Packet, part: Any, stack: Stack) -> dict[str, Any]:
        """Payload by name, one row each."""
        values = packet.open(part, stack.layout)
        if not isinstance(values, dict) or not all(isinstance(value, Models | Tensor) for value in values.values()):
            raise Malformed("a message has a payload that is not made of named models and tensors")
        if not all(
            len(value if isinstance(value, Models) else value.shape) and len(value) == 1 for value in values.values()
        ):
            raise Malformed("a message has a payload that is not for one client")
        return values


def _told(sites: Sites) -> dict[str, dict[str, str]]:
    """By split and metric, why the site's own data do not define it."""
    found = undefined(sites.federation, sites.further)
    return {
        split: {metric: reason for metric, own in metrics.items() for reason in own.values()}
        for split, metrics in found.items()
    }


def _method(algorithm: Algorithm, name: Any) -> Callable[..., Any]:
    """The client method of that name; raises ``Malformed`` where the method has none."""
    found = getattr(algorithm, name, None) if isinstance(name, str) and not name.startswith("_") else None
    if not inspect.ismethod(found):
        raise Malformed(f"a message asks for something that {algorithm.name} does not do")
    return found
