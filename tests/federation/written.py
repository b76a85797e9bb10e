"""Files in published formats, written independently of the readers under test."""

from __future__ import annotations

import numpy as np


def idx_bytes(values: np.ndarray) -> bytes:
    """The IDX format of unsigned bytes."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return header + values.astype(np.uint8).tobytes()
