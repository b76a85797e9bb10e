"""Arrays as JSON, small and exact."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(values: NDArray[Any]) -> dict[str, Any]:
    """An array as JSON: its kind (``f8``, ``f4``), shape and bytes in base64, row by row."""
    array = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    text = base64.b64encode(array.tobytes()).decode()
    return {"kind": array.dtype.str[1:], "shape": list(array.shape), "bytes": text}


def unpacked(value: dict[str, Any]) -> NDArray[Any]:
    """The array that `packed` packed."""
    array = np.frombuffer(base64.b64decode(value["bytes"]), dtype=f"<{value['kind']}")
    return array.reshape(value["shape"])


def evenly(values: NDArray[Any], most: int) -> NDArray[Any]:
    """At most ``most`` of ``values``, evenly spaced, with the first and the last."""
    if len(values) <= most:
        return values
    places = np.unique(np.linspace(0, len(values) - 1, max(2, most)).round().astype(int))
    return np.asarray(values[places])
