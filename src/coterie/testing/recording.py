"""Simulations that watch what client methods receive, return and store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Site, ToPeers
from coterie.engines import Simulation
from coterie.engines.sites import Sites
from coterie.federation.data import ClientData
from coterie.models import Models


def plain(answer: Any) -> Any:
    """An answer without its address."""
    return answer.value if isinstance(answer, ToPeers) else answer


@dataclass
class Call:
    """One call of a client method, as it happened."""

    method: str
    site: Site
    received: dict[str, Any]
    returned: dict[str, Any]
    held: dict[str, Models] = field(default_factory=dict)  # the clients' models as they were before the call

    def find(self, name: str, client: int) -> Any:
        """The client's row of what it received or returned under this name, or else of its state."""
        for place in (self.received, self.returned):
            if name in place:
                return place[name][client]
        return getattr(self.site, name)[client]


class RecordingSites(Sites):
    """Keep every call of a client method."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.calls: list[Call] = []
        super().__init__(*arguments, **options)

    def _call(self, method: Callable[..., Any], site: Site, payload: Mapping[str, Any]) -> dict[str, Any]:
        received = {name: value.clone() for name, value in payload.items()}
        held = {name: value.clone() for name, value in self._models(site).items()}
        returned = super()._call(method, site, payload)
        answers = {name: plain(value).clone() for name, value in returned.items()}
        self.calls.append(Call(getattr(method, "__name__", "method"), site, received, answers, held))
        return returned

    def _models(self, site: Site) -> dict[str, Models]:
        """The models that the clients of a site hold."""
        held = {name: getattr(site, name, None) for name in self.bank.columns}
        return {name: value for name, value in held.items() if isinstance(value, Models)}


class Recording(Simulation):
    """Keeps every call of a client method."""

    side = RecordingSites

    @property
    def calls(self) -> list[Call]:
        """The calls so far."""
        assert isinstance(self.sites, RecordingSites)
        return self.sites.calls


class _Shadow:
    """The state of some clients, apart from the run's."""

    def __init__(self, sites: Sites, clients: Tensor, call: int) -> None:
        self.sites, self.rows, self.call = sites, sites.rows_of(clients), call
        self.values: dict[str, Any] = {}

    def get(self, name: str, default: Any = None) -> Any:
        return self.values[name] if name in self.values else self.sites.bank.get(name, self.rows, self.call, default)

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value


class Mixed(AssertionError):
    """A client's result depends on who else is at its site."""


class RowCheckSites(Sites):
    """Repeat every call for each client alone, and among others whose data are NaN; raise `Mixed` at a difference."""

    tolerance = 1e-10

    def _call(self, method: Callable[..., Any], site: Site, payload: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {name: value.clone() for name, value in payload.items()}
        repeats = []
        for row in range(site.k):
            alone = self._again(method, site, inputs, [row], None)
            among = self._again(method, site, inputs, list(range(site.k)), row)
            repeats.append((alone, among))
        returned = super()._call(method, site, payload)
        for row, ((by_itself, own), (in_company, others)) in enumerate(repeats):
            for name, answer in returned.items():
                self._compare(site, row, f"the answer {name}", plain(by_itself[name]), 0, plain(answer), "alone")
                self._compare(site, row, f"the answer {name}", plain(in_company[name]), row, plain(answer), "among NaN")
            for name in own.values:
                kept = getattr(site, name)
                self._compare(site, row, f"the state {name}", own.values[name], 0, kept, "alone")
                self._compare(site, row, f"the state {name}", others.values[name], row, kept, "among NaN")
        return returned

    def _again(
        self, method: Callable[..., Any], site: Site, payload: Mapping[str, Any], rows: list[int], kept: int | None
    ) -> tuple[dict[str, Any], _Shadow]:
        clients = site.clients[rows]
        store = _Shadow(self, clients, self.bank.new_call())
        train, validation = site.train.select(rows), site.validation.select(rows)
        if kept is not None:
            train, validation = poisoned(train, kept), poisoned(validation, kept)
        shadow = Site(
            clients=clients, names=[site.names[r] for r in rows], round=site.round, train=train, validation=validation,
            context=site.context, store=store,
        )  # fmt: skip
        return dict(method(shadow, **{name: value[rows] for name, value in payload.items()}) or {}), store

    def _compare(self, site: Site, row: int, what: str, ours: Any, our_row: int, theirs: Any, where: str) -> None:
        for a, b in zip(tensors_of(ours, our_row), tensors_of(theirs, row), strict=True):
            off = float((a.double() - b.double()).abs().nan_to_num(torch.inf).max()) if a.numel() else 0.0
            if off > self.tolerance:
                company = "alone" if where == "alone" else "among clients whose data are NaN"
                raise Mixed(f"{what} of {site.names[row]} {company} and in its stack differ by {off:.3g}")


class RowCheckSitesSingle(RowCheckSites):
    """The same in single precision."""

    tolerance = 1e-5


class RowCheck(Simulation):
    """Checks at every call that no client's result depends on the others."""

    side = RowCheckSites


class RowCheckSingle(Simulation):
    """The same in single precision."""

    side = RowCheckSitesSingle


def poisoned(data: ClientData, kept: int) -> ClientData:
    """A split in which all inputs but those of one client are NaN."""
    inputs = torch.full_like(data.inputs, torch.nan)
    rows = data.rows(torch.arange(int(data.offsets[kept]), int(data.offsets[kept + 1])))
    inputs[rows] = data.inputs[rows]
    return replace(data, inputs=inputs)


def tensors_of(value: Any, row: int) -> list[Tensor]:
    """The tensors of one client below a value."""
    if isinstance(value, Models):
        return [tensor[row] for tensor in value.tensors.values()]
    if isinstance(value, Tensor):
        return [value[row]] if value.ndim else [value]
    if isinstance(value, dict):
        return [t for entry in value.values() for t in tensors_of(entry, row)]
    if isinstance(value, list | tuple):
        return [t for entry in value for t in tensors_of(entry, row)]
    return []
