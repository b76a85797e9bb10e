"""Sites in this process that get their messages as bytes would bring them, and can be away, late, ill or mad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from coterie.contract import Algorithm, make_algorithm
from coterie.engines import Settings
from coterie.engines.outpost import Order, Outpost
from coterie.engines.remote import RemoteEngine, Terms
from coterie.engines.sites import Sites, stack_for
from coterie.engines.wire import Packet
from coterie.federation.federation import Federation
from coterie.federation.outline import outline
from coterie.models import ModelSpec
from toys import BATCHES, MLP

Change = Callable[[int, str, Packet], Packet | str | None]
"""From the round, the client and its answer, what the server gets of it."""


class LocalPost:
    """Every message is taken to an `Outpost` that knows nothing of the one before but what its folder holds."""

    def __init__(self, outposts: Callable[[str], Outpost], names: tuple[str, ...]) -> None:
        self.outposts, self.names = outposts, names
        self.away: set[str] = set()
        self.change: Change = lambda round, name, packet: packet
        self.exchanges: list[dict[str, Packet]] = []
        self.round = 0

    def reachable(self) -> frozenset[str]:
        return frozenset(self.names) - self.away

    def wait(self, count: int, seconds: float) -> frozenset[str]:
        return self.reachable()

    def exchange(self, packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        self.exchanges.append(dict(packets))
        for name in reversed(packets):  # whoever was asked first answers last
            answer = self.change(packets[name].tree()["round"], name, self.outposts(name).answer(copied(packets[name])))
            if answer is not None:
                yield name, copied(answer) if isinstance(answer, Packet) else answer


def copied(packet: Packet) -> Packet:
    """As it arrives elsewhere: arrays that nobody may write to."""
    arrays = [array.copy() for array in packet.arrays]
    for array in arrays:
        array.flags.writeable = False
    return Packet(packet.text, arrays)


def known(federation: Federation) -> Federation:
    """What the server knows of a federation."""
    n = {split: federation.split(split).n.tolist() for split in ("train", "validation", "test")}
    return outline(
        federation.names, n, feature_shape=federation.feature_shape, task=federation.task, classes=federation.classes
    )


def remote(
    federation: Federation,
    algorithm: str | Algorithm,
    model: ModelSpec = MLP,
    *,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    terms: Terms = Terms(),  # noqa: B008
    gates: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RemoteEngine:
    """An engine whose sites have only their own client's data."""
    defaults: dict[str, Any] = {
        "rounds": 3, "evaluate_every": 1000, "training": BATCHES, "dtype": "float64", "threads": 1, "keep_best": "last",
    }  # fmt: skip
    how = Settings(**{**defaults, **settings})

    def method() -> Algorithm:
        return make_algorithm(algorithm, **dict(options or {})) if isinstance(algorithm, str) else algorithm

    def outpost(name: str) -> Outpost:
        own = federation.select([federation.names.index(name)])

        def build(order: Order) -> Sites:
            numbers = torch.tensor([order.number])
            return Sites(own, method(), stack_for(own, model, how), how, numbers=numbers, roster=order.roster)

        return Outpost(name, folder / name, build, (gates or {}).get(name))

    made = method()
    job = (made.name, str(getattr(made, "variant", "") or ""), how.seed)
    return RemoteEngine(
        known(federation), made, model, how, post=LocalPost(outpost, federation.names), terms=terms, run="r1", job=job,
        config={},
    )  # fmt: skip
