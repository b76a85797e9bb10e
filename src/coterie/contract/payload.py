"""What travels: values for each client, one value for all, or a few rows of a bank for each client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.models import Models
from coterie.models.rows import contiguous

Value = Models | Tensor


@dataclass(frozen=True)
class Broadcast:
    """One value that every asked client receives whole; several rows of models arrive as ``(k, c)`` candidates."""

    value: Value


@dataclass(frozen=True)
class Pick:
    """For each asked client its own m rows of a bank: ``index: (k, m)``.

    With ``peers`` the rows belong to clients, and each transfer goes from its owner to the asker.
    """

    bank: Value
    index: Tensor
    peers: bool = False


@dataclass(frozen=True)
class Mixture:
    """For each asked client its own mixture of a bank, ``weights: (k, m)`` times ``(m, d)``, formed as it is sent."""

    weights: Tensor
    bank: Models


@dataclass(frozen=True)
class ToPeers:
    """What each client returns for its own m peers: ``value: (k, m)`` candidates or ``(k, m, ...)``, ``index: (k, m)``.

    Row m goes from the client to peer ``index[i, m]``; what it keeps for itself costs nothing.
    """

    value: Value
    index: Tensor


def broadcast(value: Value) -> Broadcast:
    """Send ``value`` to all asked clients: a tensor, Models with one row, or c models as ``(k, c)`` candidates."""
    return Broadcast(value)


def pick(bank: Value, index: Tensor, *, peers: bool = False) -> Pick:
    """Send to client i the rows ``index[i]`` of ``bank``; the client sees ``(k, m)`` candidates."""
    return Pick(bank, index, peers)


def mixture(weights: Tensor, bank: Models) -> Mixture:
    """Send to client i the model ``weights[i] @ bank``; equal to sending rows of ``weights @ bank``, in less memory."""
    return Mixture(weights, bank)


def to_peers(value: Value, index: Tensor) -> ToPeers:
    """Return what is meant for the clients ``index: (k, m)``; each transfer counts as one between peers."""
    return ToPeers(value, index)


def for_rows(value: Any, rows: Tensor, asked: int) -> Value:
    """What the clients at positions ``rows: (r,)`` of the ``asked`` ones receive: leading axis r.

    Raises ``ValueError`` for a value that is neither per client nor marked as shared.
    """
    content = value.value if isinstance(value, Broadcast) else getattr(value, "bank", value)
    if not isinstance(content, Models | Tensor):
        raise ValueError(f"a payload is Models or a tensor, not {type(content).__name__}")
    if isinstance(value, Broadcast):
        return _shared(value.value, len(rows))
    per_client = value.index if isinstance(value, Pick) else value.weights if isinstance(value, Mixture) else value
    if isinstance(per_client, Tensor) and per_client.ndim == 0:
        raise ValueError("a number for all clients is sent as broadcast(value)")
    if len(per_client) != asked:
        raise ValueError(
            f"a payload has one row for each of the {asked} asked clients, not {len(per_client)}; use broadcast"
        )
    if isinstance(value, Pick):
        return _picked(value.bank, value.index[rows])
    if isinstance(value, Mixture):
        return value.bank.mixed(value.weights[rows])
    return per_client[contiguous(rows)]


def _shared(value: Value, count: int) -> Value:
    if isinstance(value, Models):
        if len(value) == 1:
            return value.repeat(count)
        candidates = Models(value.layout, {n: t.expand(count, *t.shape) for n, t in value.tensors.items()})
        candidates.owned = value.owned
        return candidates
    return value.expand(count, *value.shape)


def _picked(bank: Value, index: Tensor) -> Value:
    if isinstance(bank, Tensor):
        return bank[index]
    return Models(bank.layout, {name: tensor[index.to(tensor.device)] for name, tensor in bank.tensors.items()})


def weigh(value: Value, rows: int) -> Mapping[str, int]:
    """Bytes that one client's share of ``value`` (with leading axis ``rows``) takes, by kind."""
    if isinstance(value, Models):
        share = value.lead[1:].numel()
        model, buffers = value.bytes_per_row()
        if value.layout.policy != "average":
            buffers = 0
        return {"model": model * share, "buffer": buffers * share}
    size = value.element_size() * value.numel() // max(rows, 1)
    return {"meta" if value.ndim <= 1 else "summary": size}


def empty_like(value: Value, rows: int) -> Value:
    """Storage for ``rows`` rows shaped as the rows of ``value``."""
    if isinstance(value, Models):
        return Models(
            value.layout,
            {
                name: torch.empty(rows, *t.shape[1:], dtype=t.dtype, device=t.device)
                for name, t in value.tensors.items()
            },
        )
    return torch.empty(rows, *value.shape[1:], dtype=value.dtype, device=value.device)
