"""Files in published formats, written independently of the readers under test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def idx_bytes(values: np.ndarray) -> bytes:
    """The IDX format of unsigned bytes."""
    header = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    return header + values.astype(np.uint8).tobytes()


def python2_batch(images: np.ndarray, labels: list[int], key: str = "labels") -> bytes:
    """A batch of CIFAR as published: written opcode by opcode as Python 2 and its numpy did.

    ``images`` is ``(n, 3072)`` uint8.
    """

    def text(value: str | bytes) -> bytes:  # BINSTRING
        raw = value.encode() if isinstance(value, str) else value
        return b"T" + len(raw).to_bytes(4, "little") + raw

    def number(value: int) -> bytes:  # BININT
        return b"J" + value.to_bytes(4, "little", signed=True)

    dtype = b"cnumpy\ndtype\n" + b"(" + text("u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = b"(" + number(images.shape[0]) + number(images.shape[1]) + b"t"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"(cnumpy\nndarray\n(" + number(0) + b"t" + text("b") + b"tR"
    array += b"(" + number(1) + shape + dtype + b"\x89" + text(images.tobytes()) + b"tb"
    numbers = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + text("data") + array + text(key) + numbers + text("batch_label") + text("one of") + b"u."


def write_picture(path: Path, pixels: np.ndarray) -> None:
    """A picture ``(height, width[, 3])`` in the format that the name says."""
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)
