"""State as attributes: what is set on a server or a site is that side's state, and no two states share storage."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.models import Models


class Store(Protocol):
    """Where the attributes of a side live; an engine gives one."""

    def get(self, name: str) -> Any:
        """The value of an attribute; raises ``KeyError`` where it was never set."""

    def set(self, name: str, value: Any) -> None:
        """Keep a value."""


class ClientStore(Store, Protocol):
    """Where the attributes of a site's clients live, one row each."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an attribute; clients that have none get their rows of ``default``, where there is one."""


def owned(value: Any) -> Any:
    """A value that a state may keep: fresh storage is taken over, storage that another state owns is copied.

    Raises ``TypeError`` for what cannot be stored in a checkpoint.
    """
    if isinstance(value, Models):
        if value.owned or any(_is_view(tensor) for tensor in value.tensors.values()):
            value = value.clone()
        value.owned = True
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: owned(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(owned(entry) for entry in value)
    if isinstance(value, np.generic) and not isinstance(plain := value.item(), np.generic):
        return owned(plain)  # a checkpoint could be written, but not read
    if value is None or isinstance(value, bool | int | float | str) or hasattr(value, "state_dict"):
        return value
    raise TypeError(
        f"state is made of tensors, Models, numbers, strings, lists and dicts of these, or objects with state_dict, "
        f"not {type(value).__name__}"
    )


def _is_view(tensor: Tensor) -> bool:
    """Whether a tensor shows a part of larger storage (a row expanded over the client axis shows all of its own)."""
    stored = tensor[:1] if tensor.ndim and tensor.stride(0) == 0 else tensor
    return stored.numel() * stored.element_size() != stored.untyped_storage().nbytes()


def storages(value: Any) -> set[int]:
    """The addresses of all tensor storage below a value."""
    if isinstance(value, Models):
        return set().union(*(storages(tensor) for tensor in value.tensors.values()))
    if isinstance(value, Tensor):
        return {value.untyped_storage().data_ptr()} if value.numel() else set()
    if isinstance(value, dict):
        return set().union(*(storages(entry) for entry in value.values()))
    if isinstance(value, list | tuple):
        return set().union(*(storages(entry) for entry in value))
    return set()


def as_index(clients: Any, device: torch.device | str = "cpu") -> Tensor:
    """Client numbers as an int64 tensor ``(k,)``."""
    return torch.as_tensor(clients, dtype=torch.int64, device=device)
