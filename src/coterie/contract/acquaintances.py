"""The clients that a server has met: of many thousands, those that have a row in what it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Acquaintances:
    """Which of K clients a server has met, each with a row, in the order of their coming.

    A server that keeps one row for each of them, instead of K, needs memory for those who ever took part.

    Attributes:
        clients: ``(m,)`` the clients of the rows.
    """

    def __init__(self, K: int) -> None:
        self.clients = torch.arange(0)
        self._row = torch.full((K,), -1)

    def __len__(self) -> int:
        return len(self.clients)

    def add(self, clients: Tensor) -> Tensor:
        """Rows for those of ``clients: (k,)`` who are new; who they are, ``(n,)``."""
        new = clients[self._row[clients] < 0]
        self._row[new] = torch.arange(len(self), len(self) + len(new))
        self.clients = torch.cat([self.clients, new])
        return new

    def among(self, clients: Tensor) -> Tensor:
        """Those of ``clients: (k,)`` who have a row."""
        return clients[self._row[clients] >= 0]

    def row(self, clients: Tensor) -> Tensor:
        """The rows of ``clients: (k,)``, all of whom have one."""
        return self._row[clients]

    def by_name(self, names: Sequence[str]) -> Tensor:
        """The rows in the order of their clients' names, ``(m,)``; ``names`` are those of all K."""
        own = [names[client] for client in self.clients.tolist()]
        return torch.tensor(sorted(range(len(own)), key=own.__getitem__), dtype=torch.int64)

    def noted(self, known: Tensor | None, clients: Tensor, values: Tensor) -> Tensor:
        """What is ``known: (l, ...)`` of the first l rows with the ``values: (k, ...)`` of ``clients``, ``(m, ...)``.

        NaN where nothing is known.
        """
        whole = torch.full((len(self), *values.shape[1:]), float("nan"), dtype=values.dtype)
        if known is not None:
            whole[: len(known)] = known
        whole[self.row(clients)] = values
        return whole

    def among_all(self, matrix: Tensor, others: Tensor) -> Tensor:
        """A ``matrix: (l, l)`` of the first l rows within ``others: (K, K)``, which is changed."""
        own = self.clients[: len(matrix)]
        others[own.unsqueeze(1), own.unsqueeze(0)] = matrix
        return others

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"clients": self.clients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        self.clients = torch.arange(0)
        self._row[:] = -1
        self.add(state["clients"].cpu())
