"""Reading pickles that hold plain data, without letting them run anything."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

# The rebuilding function of arrays by its address, which numpy has moved; pickles name it by the old or the new one.
_REBUILD = np.zeros(1).__reduce__()[0]


class _Latin1:
    """Bytes as Python 3 writes them for the readers of Python 2; other encodings are not needed, so not admitted.

    Not a function, since a pickle may set attributes of what it names, and a function has some.
    """

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
        return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy._core.multiarray", "_reconstruct"): _REBUILD,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _Latin1(),
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return ADMITTED[module, name]


def unpickle(content: bytes) -> Any:
    """Dictionaries, lists, text, bytes, numbers and numpy arrays out of a pickle, of Python 2 or 3.

    Text of Python 2 comes as latin-1. A pickle may name any function to be called as it is read; here a name outside
    ``ADMITTED`` is refused before it is looked up.

    Raises:
        ValueError: it is damaged, or asks for anything else.
    """
    try:
        return _Plain(io.BytesIO(content), encoding="latin1").load()
    # whatever damaged opcodes run into: the reader itself raises a dozen types
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
