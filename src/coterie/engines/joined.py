"""Clients of several runs in one stack: their sites as one, whose rows stand one run after the other.

Runs of one configuration that differ in their seed only have equal models, methods and payloads, and rows never mix.
So a client method called once with the rows of all of them gives each what it would have got alone, but for rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.contract import Predictor, Site, ToPeers
from coterie.contract.state import ClientStore
from coterie.engines.bank import as_rows
from coterie.federation.data import ClientData, Normal
from coterie.models import Models
from coterie.models.rows import stack_rows
from coterie.training.keys import Keys

PAYLOAD_BYTES = 64_000_000
"""What is sent to all clients of a run is stored once there, but a row each where runs are joined: at most so much."""


class Unjoined(Exception):
    """These calls cannot be made as one; each run makes its own."""


class JointSite(Site):
    """The clients of several sites of one round as one; what they change is kept apart until `keep`."""

    _own = Site._own | {"parts", "rows"}

    def __init__(self, parts: Sequence[Site], train: ClientData, validation: ClientData) -> None:
        self.parts = tuple(parts)
        self.rows = ranges([part.k for part in parts])
        super().__init__(
            clients=torch.cat([part.clients for part in parts]),
            names=[name for part in parts for name in part.names],
            round=parts[0].round,
            train=train,
            validation=validation,
            context=parts[0].context,
            store=JointStore([part._store for part in parts], self.rows),
        )

    def key(self, purpose: str) -> Keys:
        """One random key per client, by the seed of its own run."""
        return np.concatenate([part.key(purpose) for part in self.parts])

    def keep(self) -> None:
        """Let each run stage what its clients have changed."""
        assert isinstance(self._store, JointStore)
        self._store.keep()


class JointStore:
    """The state of the clients of several sites, as their joint site sees it."""

    def __init__(self, stores: Sequence[ClientStore], rows: Sequence[slice]) -> None:
        self._stores, self._rows = stores, rows
        self._changed: dict[str, Any] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or ``default`` where clients have none; else ``KeyError`` where no run has it."""
        if name in self._changed:
            return joined([self._changed[name]])
        found = []
        for store, rows in zip(self._stores, self._rows, strict=True):
            with suppress(KeyError):
                found.append(store.get(name, None if default is None else part_of(default, rows)))
        if not found:
            raise KeyError(name)
        if len(found) < len(self._stores):
            raise Unjoined(f"only some runs have {name}")
        return joined(found)

    def set(self, name: str, value: Any) -> None:
        """Note a value; numbers and texts become one for each client, as which a site always reads them."""
        self._changed[name] = _rows_of_state(value, self._rows[-1].stop, name)

    def keep(self) -> None:
        """Pass on what was noted."""
        for name, value in self._changed.items():
            for store, rows in zip(self._stores, self._rows, strict=True):
                store.set(name, part_of(value, rows))


def ranges(sizes: Sequence[int]) -> list[slice]:
    """Which rows of a joint stack belong to each of its parts."""
    return [slice(first, last) for first, last in pairwise(accumulate(sizes, initial=0))]


def joined(values: Sequence[Any]) -> Any:
    """Values of several sites as one of their joint site, in fresh storage: rows one run after the other.

    Raises
    ------
    Unjoined
        They are not of one kind.
    """
    first = values[0]
    if isinstance(first, Models):
        if any(value.tensors.keys() != first.tensors.keys() or value.lead[1:] != first.lead[1:] for value in values):
            raise Unjoined("models of other tensors, or with other candidates")
        return first.clone() if len(values) == 1 else stack_rows(values)
    if isinstance(first, Tensor):
        if any(value.shape[1:] != first.shape[1:] or value.dtype != first.dtype for value in values):
            raise Unjoined("tensors of other shapes")
        return torch.cat(list(values)) if first.ndim else first.clone()
    if isinstance(first, dict):
        if any(value.keys() != first.keys() for value in values):
            raise Unjoined("mappings with other keys")
        return {key: joined([value[key] for value in values]) for key in first}
    if _texts(first):
        return [text for value in values for text in value]
    if isinstance(first, list | tuple):
        if any(len(value) != len(first) for value in values):
            raise Unjoined("lists of other lengths")
        return type(first)(joined(list(entries)) for entries in zip(*values, strict=True))
    if any(value != first for value in values):
        raise Unjoined("other values")
    return first


def part_of(value: Any, rows: slice) -> Any:
    """The part of a joint value that belongs to one run: its ``rows``, or all of what counts for every client."""
    if isinstance(value, Models):
        return value[rows]
    if isinstance(value, Tensor):
        return value[rows] if value.ndim else value
    if isinstance(value, ToPeers):
        return ToPeers(part_of(value.value, rows), value.index[rows])
    if isinstance(value, Predictor):
        return Predictor(value.models[rows], None if value.weights is None else value.weights[rows], value.combine)
    if isinstance(value, dict):
        return {key: part_of(entry, rows) for key, entry in value.items()}
    if _texts(value):
        return value[rows]
    if isinstance(value, list | tuple):
        return type(value)(part_of(entry, rows) for entry in value)
    return value


def _rows_of_state(value: Any, k: int, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _rows_of_state(entry, k, f"{name}/{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple) and not _texts(value):
        return [_rows_of_state(entry, k, f"{name}/{place}") for place, entry in enumerate(value)]
    return as_rows(value, k, name)


def _texts(value: Any) -> bool:
    """Whether a list holds one text for each client."""
    return isinstance(value, list) and bool(value) and all(isinstance(entry, str) for entry in value)


# --- payloads and answers ----------------------------------------------------------------------------------------
def joint_payload(received: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the clients of several runs have received, by name, as one joint site receives it.

    Raises
    ------
    Unjoined
        It would take too much memory; or a number is the same for all clients of each run, but not of all runs: a
        method may take such a number as a whole.
    """
    payload = {name: joined([values[name] for values in received]) for name in received[0] if _fits(received, name)}
    for name, value in payload.items():
        if isinstance(value, Tensor) and value.ndim == 1 and len(value):
            alike = all(bool((values[name] == values[name][:1]).all()) for values in received)
            if alike and not bool((value == value[0]).all()):
                raise Unjoined(f"{name} differs between the runs")
    return payload


def _fits(received: Sequence[Mapping[str, Any]], name: str) -> bool:
    size = 0
    for values in received:
        value = values[name]
        tensors = value.tensors.values() if isinstance(value, Models) else [value]
        size += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size > PAYLOAD_BYTES:
        raise Unjoined(f"{name} takes {size} bytes where every client has its own")
    return True


def signature(received: Mapping[str, Any]) -> tuple[Any, ...]:
    """What payloads must have in common to be joined: names, kinds and shapes of a row."""
    return tuple(
        (name, value.lead[1:], tuple(value.tensors))
        if isinstance(value, Models)
        else (name, value.shape[1:], value.dtype)
        for name, value in sorted(received.items())
    )


def divided(
    answer: Any, site: JointSite, payload: Mapping[str, Any], received: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """What each run gets of an ``answer`` of their joint site: a mapping of values, a `Predictor` or None.

    Raises
    ------
    Unjoined
        It has not one row for each client.
    """
    entries = {"": answer} if isinstance(answer, Predictor) else dict(answer or {})
    shares: list[dict[str, Any]] = [{} for _ in site.parts]
    for name, entry in entries.items():
        if any(len(rows) != site.k for rows in _rows(entry)):
            raise Unjoined(f"{name} has not one row for each client")
        as_received = _same(entry, payload)
        for share, rows, own in zip(shares, site.rows, received, strict=True):
            part = part_of(entry, rows)
            if as_received is not None:  # so that a model that all have in common stays stored once
                part = Predictor(own[as_received], part.weights, part.combine) if name == "" else own[as_received]
            share[name] = part
    return [share[""] for share in shares] if isinstance(answer, Predictor) else list(shares)


def _rows(entry: Any) -> Iterator[Models | Tensor]:
    if isinstance(entry, Predictor):
        yield entry.models
        if entry.weights is not None:
            yield entry.weights
    elif isinstance(entry, ToPeers):
        yield from (entry.value, entry.index)
    elif isinstance(entry, Models) or (isinstance(entry, Tensor) and entry.ndim):
        yield entry
    else:
        raise Unjoined(f"{type(entry).__name__} has no rows")


def _same(entry: Any, payload: Mapping[str, Any]) -> str | None:
    """The payload whose models an answer, or a predictor, gives back as they are."""
    models = entry.models if isinstance(entry, Predictor) else entry
    for name, value in payload.items():
        if models is value and isinstance(value, Models):
            return name
    return None


# --- data --------------------------------------------------------------------------------------------------------
class JointData:
    """One split of several federations as one, whose clients stand one federation after the other.

    Inputs that are equal are stored once; others are copied, once.
    """

    def __init__(self, parts: Sequence[ClientData]) -> None:
        self.data = join_data(parts)
        self._first = [rows.start for rows in ranges([part.k for part in parts])]

    def select(self, chosen: Sequence[tuple[int, Tensor]]) -> ClientData:
        """The data of some clients: of each chosen federation, by its place, the clients in ``rows: (k,)``."""
        return self.data.select([self._first[place] + row for place, rows in chosen for row in rows.tolist()])


def join_data(parts: Sequence[ClientData]) -> ClientData:
    """Splits of several federations as one split of all their clients."""
    parts = parts if _alike(parts) else [_ready(part) for part in parts]
    inputs, targets, first = [parts[0].inputs], [parts[0].targets], [0]
    for part in parts[1:]:
        known = next((i for i, (x, y) in enumerate(zip(inputs, targets, strict=True)) if _equal(part, x, y)), None)
        if known is None:
            inputs.append(part.inputs)
            targets.append(part.targets)
            known = len(inputs) - 1
        first.append(sum(len(x) for x in inputs[:known]))
    positions = [torch.arange(int(p.offsets[0]), int(p.offsets[-1]), device=p.offsets.device) for p in parts]
    index = torch.cat([part.rows(at) + begin for part, at, begin in zip(parts, positions, first, strict=True)])
    counts = torch.cat([part.n for part in parts])
    return ClientData(
        inputs[0] if len(inputs) == 1 else torch.cat(inputs),
        targets[0] if len(targets) == 1 else torch.cat(targets),
        torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        index,
        parts[0].scale,
        parts[0].normal,
        _weights(parts, positions),
        parts[0].target_normal,
    )


def _weights(parts: Sequence[ClientData], positions: Sequence[Tensor]) -> Tensor | None:
    """The weights of all examples by position; those of a part without any are 1."""
    if all(part.weights is None for part in parts):
        return None
    ones = [torch.ones(len(at), dtype=torch.float64, device=at.device) for at in positions]
    return torch.cat(
        [one if p.weights is None else p.weights[at] for p, at, one in zip(parts, positions, ones, strict=True)]
    )


def _equal(part: ClientData, inputs: Tensor, targets: Tensor) -> bool:
    return all(
        own is other or (own.shape == other.shape and own.dtype == other.dtype and torch.equal(own, other))
        for own, other in ((part.inputs, inputs), (part.targets, targets))
    )


def _alike(parts: Sequence[ClientData]) -> bool:
    """Whether inputs and targets become numbers in the same way."""
    first = parts[0]
    return all(
        part.scale == first.scale
        and part.inputs.dtype == first.inputs.dtype
        and _same_normal(part.normal, first.normal)
        and _same_normal(part.target_normal, first.target_normal)
        for part in parts
    )


def _same_normal(one: Normal | None, other: Normal | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.mean, other.mean) and torch.equal(one.std, other.std)


def _ready(part: ClientData) -> ClientData:
    """The same examples, with inputs and targets as they are used."""
    everything = torch.arange(len(part.inputs), device=part.inputs.device)
    whole = replace(part, offsets=part.offsets[:1] * 0, index=None, weights=None)
    inputs, targets = whole.batch(everything)
    return ClientData(inputs, targets, part.offsets, part.index, weights=part.weights)
