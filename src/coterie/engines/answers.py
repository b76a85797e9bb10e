"""Gathering answers as they come in: stacked, or as a running weighted mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.contract.payload import Value, empty_like
from coterie.engines.bank import SiteBank, put, take
from coterie.models import Models


class Collected:
    """Answers stacked in the order of the asked clients.

    An answer that is the client's staged state is not copied: both are the same rows until the round is committed.
    """

    def __init__(self, bank: SiteBank, asked: int) -> None:
        self.count = 0
        self._bank, self._asked = bank, asked
        self._clients: list[Tensor] = []
        self._room: dict[str, Value] = {}
        self._alias: dict[str, str] = {}

    def add(self, returned: Mapping[str, Value], rows: Tensor, here: Tensor, good: Tensor) -> None:
        """Add the answers of clients ``here: (k,)``, at positions ``rows`` of the asked ones, where ``good``."""
        slots = torch.arange(self.count, self.count + int(good.sum()))
        for name, value in returned.items():
            leaf = self._bank.same_storage(value, here)
            if leaf is not None and self._alias.get(name, leaf) == leaf and name not in self._room:
                self._alias[name] = leaf
                continue
            if name not in self._room:
                self._room[name] = empty_like(value, self._asked)
                if name in self._alias:  # earlier chunks returned their state itself
                    earlier = torch.cat(self._clients)
                    put(self._room[name], torch.arange(self.count), self._bank.staged(self._alias.pop(name), earlier))
            if len(slots):
                put(self._room[name], slots, take(value, good.nonzero().flatten()))
        self._clients.append(here[good])
        self.count += len(slots)

    def values(self) -> dict[str, Value]:
        """The stacked answers, one row for each client that answered."""
        clients = torch.cat(self._clients)
        stacked: dict[str, Any] = {name: take(room, torch.arange(self.count)) for name, room in self._room.items()}
        for name, leaf in self._alias.items():
            stacked[name] = self._bank.answers(leaf, clients)
        return stacked


class Averaged:
    """The weighted mean of the answers in float64, renormalised over those that answered; one row."""

    def __init__(self, weights: Tensor) -> None:
        self.count = 0
        self._weights = weights.double().cpu()
        self._total = 0.0
        self._sums: dict[str, dict[str, Tensor]] = {}
        self._like: dict[str, Value] = {}

    def add(self, returned: Mapping[str, Value], rows: Tensor, here: Tensor, good: Tensor) -> None:
        """Add the answers of clients at positions ``rows: (k,)`` of the asked ones, where ``good``."""
        chosen = good.nonzero().flatten()
        if len(chosen) == 0:
            return
        weights = self._weights[rows][chosen]
        for name, value in returned.items():
            own = take(value, chosen) if len(chosen) < len(good) else value
            assert isinstance(own, Models | Tensor)
            self._like.setdefault(name, own[:1].clone())
            sums = self._sums.setdefault(name, {})
            for part, tensor in (own.tensors if isinstance(own, Models) else {"": own}).items():
                if tensor.is_floating_point():
                    if part not in sums:
                        sums[part] = torch.zeros(tensor.shape[1:], dtype=torch.float64, device=tensor.device)
                    matrix = tensor.reshape(len(tensor), -1).double()
                    sums[part].view(-1).addmv_(matrix.t(), weights.to(tensor.device))
                else:
                    largest = tensor.amax(0)
                    sums[part] = torch.maximum(sums[part], largest) if part in sums else largest
        self._total += float(weights.sum())
        self.count += len(chosen)

    def merge(self, other: Averaged) -> None:
        """Add the answers that another sum has taken."""
        for name, sums in other._sums.items():
            self._like.setdefault(name, other._like[name])
            own = self._sums.setdefault(name, {})
            for part, tensor in sums.items():
                if part not in own:
                    own[part] = tensor
                elif tensor.is_floating_point():
                    own[part] = own[part] + tensor
                else:
                    own[part] = torch.maximum(own[part], tensor)
        self._total += other._total
        self.count += other.count

    def values(self) -> dict[str, Value]:
        """One row for each value."""
        return {name: self._mean(like, self._sums[name]) for name, like in self._like.items()}

    def _mean(self, like: Value, sums: Mapping[str, Tensor]) -> Value:
        if isinstance(like, Models):
            keep = set(like.layout.buffers) if like.layout.policy != "average" else set()
            return Models(
                like.layout,
                {n: t if n in keep else self._divided(sums[n], t) for n, t in like.tensors.items()},
            )
        return self._divided(sums[""], like)

    def _divided(self, total: Tensor, like: Tensor) -> Tensor:
        mean = total / self._total if like.is_floating_point() else total
        return mean.to(like.dtype).unsqueeze(0)
