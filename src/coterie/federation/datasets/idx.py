"""The IDX file format of MNIST and its relatives, gzip-compressed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError

GZIP = b"\x1f\x8b"
UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read one IDX file of unsigned bytes with that many dimensions (3: images, 1: labels).

    The format: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each dimension as
        a big-endian
    32-bit integer, then the values. Whether the file is compressed is told by its content, not by its name.

    Raises:
        CoterieError: the file cannot be read, is damaged, is of another kind, or is too short or too long.
    """
    content = _content(path)
    magic, expected = content[:4], bytes([0, 0, UNSIGNED_BYTE, dimensions])
    if len(content) < 4 or magic != expected:
        raise CoterieError(
            f"{path} is no IDX file of {'images' if dimensions == 3 else 'labels'}: it starts with "
            f"{magic.hex() or 'nothing'} where {expected.hex()} is expected. Replace it by the published "
            "file."
        )
    header = 4 + 4 * dimensions
    shape = tuple(int(n) for n in np.frombuffer(content[4:header], dtype=">u4")) if len(content) >= header else ()
    wanted, found = header + math.prod(shape), len(content)
    if len(shape) < dimensions or found < wanted:
        raise CoterieError(
            f"{path} is truncated: {found:,} bytes where at least {wanted:,} are expected. Download or copy it again."
        )
    if found > wanted:
        raise CoterieError(
            f"{path} holds {found - wanted:,} bytes more than its header announces. Download or copy it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CoterieError(f"{path} cannot be read: {error.strerror}. Check that it is a readable file.") from error
    if not raw.startswith(GZIP):
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise CoterieError(f"{path} is truncated or damaged ({error}). Download or copy it again.") from error
