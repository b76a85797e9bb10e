"""The clients' persistent state: one row per client and attribute, staged until a round has gone well.

What a client changes in a round is kept apart and becomes its state when the client has answered every ask of the
round; otherwise it is forgotten. Where all clients changed an attribute that memory has room for, committing costs
nothing: the staged rows become the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from coterie.contract.payload import empty_like
from coterie.contract.state import storages
from coterie.engines.room import OnDisk, Room
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.models.rows import contiguous, finite_rows

Rows = Models | Tensor | list[str]
Stored = Rows | OnDisk
ANSWERED = -1  # the writer of rows that have become answers
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


@dataclass
class Column:
    """One attribute of K clients: rows that were written, and a default row for the others."""

    K: int
    default: Models | None = None
    rows: Stored | None = None
    room: Room = field(default_factory=Room)
    own: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def __post_init__(self) -> None:
        if len(self.own) == 0:
            self.own = torch.zeros(self.K, dtype=torch.bool)

    def read(self, clients: Tensor) -> Rows:
        """The rows of ``clients: (k,)``; raises ``KeyError`` where one was never written and there is no default."""
        own = self.own[clients]
        if bool(own.all()) and self.rows is not None:
            return take(self.rows, clients)
        if self.default is None:
            raise KeyError
        if not bool(own.any()):
            return self.default.repeat(len(clients))
        values = self.default.repeat(len(clients)).clone()
        written = take(self.rows, clients[own]) if self.rows is not None else None
        assert isinstance(written, Models)
        values[own.nonzero().flatten()] = written
        return values

    @property
    def example(self) -> Rows | None:
        """Rows that show what the attribute holds, if it holds anything."""
        if isinstance(self.rows, OnDisk):
            return self.rows.like
        return self.default if self.rows is None else self.rows

    def write(self, clients: Tensor, values: Rows) -> None:
        """Overwrite the rows of ``clients: (k,)``."""
        if isinstance(values, Models) and values.common and self._is_default(values) and not self.own[clients].any():
            return
        if self.rows is None:
            self.rows = self.room.rows(values, self.K)
        put(self.rows, clients, values)
        self.own[clients] = True

    def replace(self, rows: Rows) -> None:
        """Overwrite the rows of all clients by ``rows``, which are kept as they are where memory has room for them."""
        if self.room.exchange(self.rows, rows):
            self.rows = rows
        else:
            assert not isinstance(rows, list)
            if not (isinstance(self.rows, OnDisk) and self.rows.fits(rows)):
                self.rows = OnDisk(rows, self.K)
            self.rows[:] = rows
        self.own = torch.ones(self.K, dtype=torch.bool)

    def _is_default(self, values: Models) -> bool:
        """Whether a common row is the default; the first one ever becomes it."""
        if self.default is None and self.rows is None and len(values) > 1:
            self.default = Models(values.layout, {n: t[:1].clone() for n, t in values.tensors.items()})
            return True
        if self.default is None:
            return False
        return all(torch.equal(t[:1], self.default.tensors[n]) for n, t in values.tensors.items())


@dataclass
class Stage:
    """The staged rows of one attribute, for the clients of a round.

    Of each row: the number of the call that wrote it last (0: none), and whether somebody may hold it as it is.
    """

    clients: Tensor
    rows: Rows
    written: Tensor
    writer: Tensor
    held: Tensor
    slot: dict[int, int]

    @classmethod
    def room(cls, clients: Tensor, like: Rows) -> Stage:
        """Room for rows of ``clients`` shaped as ``like``."""
        no, none = torch.zeros(len(clients), dtype=torch.bool), torch.zeros(len(clients), dtype=torch.int64)
        slot = {int(client): position for position, client in enumerate(clients)}
        return cls(clients, _storage(like, len(clients)), no, none, no.clone(), slot)

    def copied(self, more: Tensor) -> Stage:
        """A copy with room for ``more: (m,)`` clients as well; nobody holds its rows."""
        new = [int(c) for c in more if int(c) not in self.slot]
        copy = Stage.room(torch.cat([self.clients, torch.tensor(new, dtype=torch.int64)]), self.rows)
        put(copy.rows, torch.arange(len(self.clients)), self.rows)
        copy.written[: len(self.clients)] = self.written
        return copy

    def slots(self, clients: Tensor) -> Tensor:
        """Where the rows of ``clients: (k,)`` lie, ``(k,)``; -1 for those without."""
        return torch.tensor([self.slot.get(int(c), -1) for c in clients], dtype=torch.int64)

    def holds(self, slots: Tensor) -> Tensor:
        """Which of ``slots: (k,)`` have been written, ``(k,)`` bool."""
        return (slots >= 0) & self.written[slots.clamp(min=0)]


class SiteBank:
    """The state of all clients."""

    def __init__(self, K: int, theta: Models, room: Room | None = None) -> None:
        self.K = K
        self.room = room or Room()
        self.columns: dict[str, Column] = {}
        self.column("theta", default=theta)
        self.shapes: dict[str, Any] = {}  # attribute -> nesting of dicts and lists, leaves are column names
        self.started = torch.zeros(K, dtype=torch.bool)
        self.starting = torch.zeros(K, dtype=torch.bool)  # started in this round, if it goes well
        self._stages: dict[str, Stage] = {}
        self._calls = count(1)
        self._lock = RLock()  # worker threads stage rows of different clients

    def column(self, leaf: str, default: Models | None = None) -> Column:
        """A new attribute, with a row for those who have none of their own."""
        self.columns[leaf] = Column(self.K, default, room=self.room)
        return self.columns[leaf]

    # --- a site's view -------------------------------------------------------------------------------------------
    def new_call(self) -> int:
        """A number for one call of a client method."""
        return next(self._calls)

    def get(self, name: str, clients: Tensor, call: int, default: Any = None) -> Any:
        """The value of an attribute for ``clients: (k,)`` in a call, staged rows first.

        Clients without one get their rows of ``default``, where it is given; else ``KeyError``.
        """
        with self._lock:
            if default is not None:
                blank = dict(_leaves(default, name))
                return _rebuild(_shape(default, name), lambda leaf: self._given(leaf, clients, call, blank[leaf]))
            if name in self.shapes:
                return _rebuild(self.shapes[name], lambda leaf: self._given(leaf, clients, call))
            return self._given(name, clients, call)

    def set(self, name: str, clients: Tensor, value: Any, capacity: Tensor, call: int) -> None:
        """Stage a value for ``clients: (k,)``; ``capacity`` are all clients of the ask, for which room is made."""
        with self._lock:
            self.shapes.pop(name, None)
            if isinstance(value, dict) or _nested(value):
                self.shapes[name] = _shape(value, name)
            for leaf, part in _leaves(value, name):
                rows = as_rows(part, len(clients), name)
                self._check_tensors(leaf, rows)
                self._stage(leaf, clients, rows, capacity, call)

    def _check_tensors(self, leaf: str, rows: Rows) -> None:
        """Refuse models with other tensors than the attribute has so far: rows of both kinds make no stack."""
        stage, column = self._stages.get(leaf), self.columns.get(leaf)
        held = stage.rows if stage is not None else None if column is None else column.example
        if isinstance(rows, Models) and isinstance(held, Models) and rows.tensors.keys() != held.tensors.keys():
            other = ", ".join(sorted(rows.tensors.keys() ^ held.tensors.keys()))
            raise CoterieError(
                f"site.{leaf} holds models of other tensors than it is now given ({other}): keep the same part always, "
                "and declare a gradient or a momentum by theta.without_buffers().zeros()"
            )

    def _given(self, leaf: str, clients: Tensor, call: int, default: Models | Tensor | None = None) -> Rows:
        """Rows that no later write changes: copies, except of models that nobody has staged before this call."""
        rows = self._read(leaf, clients) if default is None else self._read_or(default, leaf, clients)
        if not isinstance(rows, Models):
            return list(rows) if isinstance(rows, list) else rows.clone()
        rows.owned = True
        if (stage := self._stages.get(leaf)) is not None:
            slots = stage.slots(clients)
            slots = slots[slots >= 0]
            if bool((stage.written[slots] & (stage.writer[slots] != call)).any()):
                return rows.clone()
            stage.held[slots] = True
        return rows

    def _read(self, leaf: str, clients: Tensor) -> Rows:
        stage = self._stages.get(leaf)
        if stage is not None:
            slots = stage.slots(clients)
            staged = stage.holds(slots)
            if bool(staged.all()):
                return take(stage.rows, slots)
            if bool(staged.any()):  # some of these clients are new and have just been started
                return self._joined(take(stage.rows, slots[staged]), staged, leaf, clients)
        if leaf not in self.columns:
            raise KeyError(leaf)
        return self.columns[leaf].read(clients)

    def _read_or(self, default: Models | Tensor, leaf: str, clients: Tensor) -> Rows:
        """The rows of ``clients``, of the ``default: (k,)`` for those that have none of their own."""
        self._check_tensors(leaf, default)
        has, stage = torch.zeros(len(clients), dtype=torch.bool), self._stages.get(leaf)
        if leaf in self.columns:
            has |= self.columns[leaf].own[clients]
        if stage is not None:
            has |= stage.holds(stage.slots(clients))
        if bool(has.all()):
            return self._read(leaf, clients)
        rows = default.clone()
        if bool(has.any()):
            put(rows, has.nonzero().flatten(), self._read(leaf, clients[has]))
        return rows

    def _joined(self, fresh: Rows, staged: Tensor, leaf: str, clients: Tensor) -> Rows:
        rows = _storage(fresh, len(clients))
        put(rows, staged.nonzero().flatten(), fresh)
        put(rows, (~staged).nonzero().flatten(), self.columns[leaf].read(clients[~staged]))
        return rows

    def _stage(self, leaf: str, clients: Tensor, values: Rows, capacity: Tensor, call: int) -> None:
        stage = self._stages.get(leaf)
        if stage is None:
            stage = self._stages[leaf] = Stage.room(capacity, values)
        slots = stage.slots(clients)
        held = stage.held[slots] & ((stage.writer[slots] == call) | (stage.writer[slots] == ANSWERED))
        if bool((slots < 0).any()) or bool(held.any()):
            stage = self._stages[leaf] = stage.copied(capacity)
            slots = stage.slots(clients)
        put(stage.rows, slots, values)
        stage.written[slots], stage.writer[slots], stage.held[slots] = True, call, False

    # --- an engine's view ----------------------------------------------------------------------------------------
    def staged(self, leaf: str, clients: Tensor) -> Rows:
        """The staged rows of ``clients``, all of which set the attribute in this round."""
        stage = self._stages[leaf]
        return take(stage.rows, stage.slots(clients))

    def known(self, leaf: str) -> tuple[Tensor, Tensor]:
        """Clients ``(c,)`` with a committed value of their own of an attribute that is a tensor, and the values."""
        column = self.columns.get(leaf)
        own = torch.zeros(0, dtype=torch.int64) if column is None else column.own.nonzero().flatten()
        rows = torch.zeros(0) if column is None or not len(own) else column.read(own)
        if not isinstance(rows, Tensor):
            raise TypeError(f"{leaf} is {type(rows).__name__}, not a tensor")
        return own, rows

    def answers(self, leaf: str, clients: Tensor) -> Rows:
        """The staged rows of ``clients`` as answers, which later asks of the round leave as they are."""
        with self._lock:  # or a stage that another thread makes room in would be copied without this
            stage = self._stages[leaf]
            stage.writer[stage.slots(clients)], stage.held[stage.slots(clients)] = ANSWERED, True
        rows = self.staged(leaf, clients)
        if isinstance(rows, Models):
            rows.owned = True
        return rows

    def same_storage(self, value: Rows, clients: Tensor) -> str | None:
        """The attribute whose staged rows of ``clients`` are this very value, if there is one."""
        for leaf, stage in self._staged_now():
            if all(int(c) in stage.slot for c in clients):
                own = self.staged(leaf, clients)
                if (
                    type(own) is type(value)
                    and storages(own) == storages(value) != set()
                    and _starts(own) == _starts(value)
                ):
                    return leaf
        return None

    def finite(self, clients: Tensor) -> Tensor:
        """Which of ``clients: (k,)`` staged finite values only, ``(k,)`` bool."""
        good = torch.ones(len(clients), dtype=torch.bool)
        for _, stage in self._staged_now():
            slots = stage.slots(clients)
            here = stage.holds(slots)
            if isinstance(stage.rows, list) or not bool(here.any()):
                continue
            rows = take(stage.rows, slots[here])
            if isinstance(rows, Models):
                good[here] &= rows.finite().cpu()
            elif isinstance(rows, Tensor) and rows.is_floating_point():
                good[here] &= finite_rows(rows).cpu()
        return good

    def _staged_now(self) -> list[tuple[str, Stage]]:
        """What is staged at this moment; another thread may be about to stage an attribute that nobody has yet."""
        with self._lock:
            return list(self._stages.items())

    def commit(self, answered: Tensor) -> None:
        """Make the staged rows of clients with ``answered: (K,)`` bool their state, and forget the others."""
        for leaf, stage in self._stages.items():
            self._commit_stage(leaf, stage, answered)
        self.started |= self.starting & answered
        self.discard()

    def discard(self) -> None:
        """Forget everything staged."""
        self._stages = {}
        self.starting[:] = False

    def _commit_stage(self, leaf: str, stage: Stage, answered: Tensor) -> None:
        column = self.columns.get(leaf) or self.column(leaf)
        good = stage.written & answered[stage.clients]
        identity = len(stage.clients) == self.K and bool((stage.clients == torch.arange(self.K)).all())
        if identity and bool(good.all()) and not (isinstance(stage.rows, Models) and stage.rows.common and self.K > 1):
            column.replace(stage.rows)
            return
        slots = good.nonzero().flatten()
        if len(slots):
            column.write(stage.clients[slots], take(stage.rows, slots))


def take(rows: Stored, index: Tensor) -> Rows:
    """Rows by number, seen and not copied where they lie together."""
    if isinstance(rows, list):
        return [rows[int(i)] for i in index]
    return rows[contiguous(index)]


def put(rows: Stored, index: Tensor, values: Rows) -> None:
    """Overwrite rows by number."""
    if isinstance(rows, list):
        for position, i in enumerate(index):
            rows[int(i)] = str(values[position])
        return
    rows[contiguous(index)] = values  # type: ignore[assignment]


def _starts(rows: Rows) -> list[tuple[int, torch.Size]]:
    tensors = rows.tensors.values() if isinstance(rows, Models) else [rows] if isinstance(rows, Tensor) else []
    return [(tensor.data_ptr(), tensor.shape) for tensor in tensors]


def _storage(values: Rows, count: int) -> Rows:
    if isinstance(values, list):
        return [""] * count
    if isinstance(values, Models) and values.common and len(values) > 1:
        return values.clone().repeat(count)
    return empty_like(values, count)


def as_rows(value: Any, k: int, name: str) -> Rows:
    """A value with one row for each of k clients (texts in a list); a number or a text counts for all of them."""
    if isinstance(value, Models | list) or (isinstance(value, Tensor) and value.ndim > 0):
        if len(value) != k:
            raise ValueError(f"site.{name} needs one row for each of the {k} clients, not {len(value)}")
        return value
    if isinstance(value, Tensor):
        return value.expand(k).clone()
    if isinstance(value, str):
        return [value] * k
    if type(value) in _NUMBERS:
        return torch.full((k,), value, dtype=_NUMBERS[type(value)])
    raise TypeError(f"site.{name} cannot hold {type(value).__name__}")


def _nested(value: Any) -> bool:
    """Whether a list holds several values, and not one text for each client."""
    texts = isinstance(value, list) and bool(value) and all(isinstance(entry, str) for entry in value)
    return isinstance(value, list | tuple) and not texts


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{name}/{key}")
    elif _nested(value):
        for position, entry in enumerate(value):
            yield from _leaves(entry, f"{name}/{position}")
    else:
        yield name, value


def _shape(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _shape(entry, f"{name}/{key}") for key, entry in value.items()}
    if _nested(value):
        return [_shape(entry, f"{name}/{position}") for position, entry in enumerate(value)]
    return name


def _rebuild(shape: Any, read: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _rebuild(entry, read) for key, entry in shape.items()}
    if isinstance(shape, list):
        return [_rebuild(entry, read) for entry in shape]
    return read(shape)
