"""Values on their way to another process: tensors travel as plain arrays, a row common to all models only once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.models import Models


class Parcel:
    """Pickled, it arrives as the value that it holds: tensors on the CPU, with storage of their own.

    Arrays stay apart from the rest, so that a carrier that knows buffers (pickle's protocol 5) need not copy them.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[bytes, list[NDArray[Any]]]]:
        stream, arrays = BytesIO(), list[NDArray[Any]]()
        _Packer(stream, arrays).dump(self.value)
        return _opened, (stream.getvalue(), arrays)


class _Packer(pickle.Pickler):
    def __init__(self, stream: BytesIO, arrays: list[NDArray[Any]]) -> None:
        super().__init__(stream, protocol=5)
        self._arrays = arrays

    def persistent_id(self, value: Any) -> tuple[int, int] | None:
        """Where a tensor's array is, and how many rows see it if it is one row only, else 0."""
        if not isinstance(value, Tensor):
            return None
        once = value.ndim > 0 and len(value) > 1 and value.stride(0) == 0
        tensor = value.detach()[:1] if once else value.detach()
        self._arrays.append(np.ascontiguousarray(tensor.cpu().numpy()).reshape(tensor.shape))
        return len(self._arrays) - 1, len(value) if once else 0

    def reducer_override(self, value: Any) -> Any:
        """Models are their layout and their tensors; who else holds these is a matter of this process."""
        return (Models, (value.layout, value.tensors)) if type(value) is Models else NotImplemented


class _Unpacker(pickle.Unpickler):
    def __init__(self, stream: BytesIO, arrays: list[NDArray[Any]]) -> None:
        super().__init__(stream)
        self._arrays = arrays

    def persistent_load(self, place: tuple[int, int]) -> Tensor:
        number, rows = place
        tensor = torch.from_numpy(self._arrays[number].copy())  # arrived arrays may lie in memory that others read
        return tensor.expand(rows, *tensor.shape[1:]) if rows else tensor


def _opened(content: bytes, arrays: list[NDArray[Any]]) -> Any:
    return _Unpacker(BytesIO(content), arrays).load()
