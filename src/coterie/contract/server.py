"""The server as an algorithm's code sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from coterie.contract.state import Store, owned
from coterie.models import Models


class Answers:
    """What the clients that answered returned, stacked: ``answers.clients: (a,)`` and one attribute per value."""

    def __init__(self, clients: Tensor, values: Mapping[str, Any], asked: Tensor) -> None:
        self.clients = clients
        self.values = dict(values)
        self.asked = asked

    def __len__(self) -> int:
        return len(self.clients)

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"the clients returned {', '.join(values) or 'nothing'}, not {name!r}")


class Asking(Protocol):
    """The one verb, given by an engine."""

    def __call__(
        self, method: Callable[..., Any], clients: Tensor, *, average: Tensor | None, payload: Mapping[str, Any]
    ) -> Answers:
        """Run a client method at the clients."""


class Server:
    """The server's own attributes are its state; ``ask`` is the only way to the clients.

    Attributes:
        names: the clients' names, in the order of their numbers.
        n: ``(K,)`` training examples of each client.
        round: the number of the current round, from 1 (0 before the first).
        seed: the run's seed.
        task: ``classification`` or ``regression``; ``classes`` outputs.
        unlabelled_newcomers: whether clients without labels may come after training, so that whatever they will need
            of the others must be collected.
    """

    _own = frozenset(
        {"names", "n", "round", "seed", "task", "classes", "unlabelled_newcomers", "_store", "_ask", "_initial"}
    )

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        n: Tensor,
        seed: int,
        task: str,
        classes: int,
        store: Store,
        ask: Asking,
        initial: Callable[[int, bool], Models],
        unlabelled_newcomers: bool = False,
    ) -> None:
        self.unlabelled_newcomers = unlabelled_newcomers
        self.names, self.n, self.seed, self.task, self.classes = names, n, seed, task, classes
        self.round = 0
        self._store, self._ask, self._initial = store, ask, initial

    @property
    def K(self) -> int:
        """Number of clients."""
        return len(self.names)

    def ask(
        self, method: Callable[..., Any], clients: Tensor, *, average: Tensor | None = None, **payload: Any
    ) -> Answers:
        """Run ``method`` at ``clients: (k,)`` and return the answers of those that answered.

        A payload value has one row for each asked client, or is marked by ``broadcast``, ``pick`` or ``mixture``.
        ``average: (k,)`` are weights of the asked clients: the answers come back as their weighted mean (one row),
        renormalised over those that answered, and never stand in memory all at once.

        When nobody answers, the round ends here and leaves every model as it was.
        """
        return self._ask(method, clients, average=average, payload=payload)

    def initial_model(self) -> Models:
        """The common initial model theta^0 as one row."""
        return self._initial(1, False)

    def initial_models(self, count: int | None = None, *, distinct: bool = False) -> Models:
        """``count`` (default K) rows of theta^0, or ``distinct`` draws where a method needs different starts."""
        return self._initial(self.K if count is None else count, distinct)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._own:
            object.__setattr__(self, name, value)
        else:
            self._store.set(name, owned(value))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._store.get(name)
        except KeyError:
            raise AttributeError(f"server.{name} was never set") from None

    def zeros(self, *shape: int) -> Tensor:
        """A float64 tensor of zeros, for summaries and relations."""
        return torch.zeros(*shape, dtype=torch.float64)
