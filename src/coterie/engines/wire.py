"""What travels between processes that need not trust one another: text and plain arrays, never pickled objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.errors import CoterieError
from coterie.models import Layout, Models
from coterie.models.rows import NOTHING

_TENSOR, _MODELS = "__tensor__", "__models__"
DEEPEST = 64
"""Levels of lists and dictionaries in a message: what handles it later may have no more than Python's own limit."""

_KINDS = "biuf"  # numpy's letters for truth values, integers and floating-point numbers


class Malformed(CoterieError):
    """A message that is not one of ours, or not whole."""


@dataclass(frozen=True)
class Packet:
    """A message: JSON text in which arrays are named by their number, and the arrays."""

    text: str
    arrays: Sequence[NDArray[Any]] = ()

    @property
    def bytes(self) -> int:
        """Size without what a carrier adds."""
        return len(self.text) + sum(array.nbytes for array in self.arrays)

    def tree(self) -> dict[str, Any]:
        """The message with its arrays still to be opened; raises ``Malformed``."""
        try:
            tree = json.loads(self.text)
            json.dumps(tree, ensure_ascii=False).encode()  # half a character, which no file could hold, fails here
        except (ValueError, RecursionError) as error:  # the latter where it is nested beyond all measure
            raise Malformed("a message is no JSON text") from error
        if not isinstance(tree, dict):
            raise Malformed("a message is not made of named parts")
        if _deeper(tree, DEEPEST):
            raise Malformed("a message is nested too deeply")
        return tree

    def open(self, part: Any, layout: Layout) -> Any:
        """A part of the tree with its tensors, each of its own storage; Models are those of ``layout``, or a part.

        Raises
        ------
        Malformed
            An array is missing or of a kind that does not travel, or models have tensors that ``layout`` has not.
        """
        if isinstance(part, list):
            return [self.open(entry, layout) for entry in part]
        if not isinstance(part, dict):
            return part
        if _TENSOR in part:
            return self._tensor(part)
        if _MODELS in part:
            return self._models(part[_MODELS], layout)
        return {key: self.open(entry, layout) for key, entry in part.items()}

    def _tensor(self, part: Mapping[str, Any]) -> Tensor:
        number, rows = part.get(_TENSOR), part.get("rows")
        if type(number) is not int or not 0 <= number < len(self.arrays):
            raise Malformed("a message lacks an array that it names")
        array = self.arrays[number]
        if array.dtype.kind not in _KINDS:
            raise Malformed(f"a message holds an array of {array.dtype}, which is no number")
        try:
            tensor = torch.from_numpy(np.array(array))  # a copy: what arrives may be read-only, or named twice
        except (TypeError, ValueError) as error:  # the latter where its bytes stand in another order
            raise Malformed(f"a message holds an array of {array.dtype}, which torch does not know") from error
        if rows is None:
            return tensor
        if type(rows) is not int or not 0 < rows <= 2**24 or tensor.ndim == 0 or len(tensor) != 1:
            raise Malformed("a message repeats something that is no row")
        return tensor.expand(rows, *tensor.shape[1:])

    def _models(self, parts: Any, layout: Layout) -> Models:
        if not isinstance(parts, dict) or not parts:
            raise Malformed("a message holds models without tensors")
        names = set(parts)
        if unknown := names - {*layout.parameters, *layout.buffers, NOTHING}:
            raise Malformed(f"a message holds models with a tensor {sorted(unknown)[0]!r}, which this model has not")
        kept = replace(
            layout,
            parameters=tuple(name for name in (*layout.parameters, NOTHING) if name in names),
            buffers=tuple(name for name in layout.buffers if name in names),
            shapes={**layout.shapes, NOTHING: torch.Size([0])},
        )
        tensors = {name: self._tensor(part) for name, part in parts.items() if isinstance(part, dict)}
        leads = set()
        for name, shape in ((name, kept.shapes[name]) for name in tensors):
            found = tensors[name].shape
            if found[len(found) - len(shape) :] != shape or not 1 <= len(found) - len(shape) <= 2:
                raise Malformed(f"a message holds models whose tensor {name!r} has the shape {tuple(found)}")
            leads.add(found[: len(found) - len(shape)])
        if len(tensors) < len(parts) or len(leads) > 1:
            raise Malformed("a message holds models whose tensors do not belong together")
        return Models(kept, tensors)


def _deeper(part: Any, levels: int) -> bool:
    """Whether lists and dictionaries lie within one another on more levels than that."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return bool(inner) and (levels == 0 or any(_deeper(entry, levels - 1) for entry in inner))


def trouble_of(tree: Mapping[str, Any]) -> tuple[str, str] | None:
    """Why a site cannot do what it was asked, as its message says: a code and a sentence; None where it can."""
    if (trouble := tree.get("trouble")) is None:
        return None
    code, reason = [*trouble, ""][:2] if isinstance(trouble, list) and trouble else ("failed", "")
    code = plain(code, 60)
    return code, plain(reason, 300) or f"it failed ({code})"


def plain(words: Any, most: int) -> str:
    """Words of another process in one line of at most so many characters, all of which can be printed."""
    text = " ".join(str(words)[:most].split())
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def packed(content: Mapping[str, Any]) -> Packet:
    """A message of named parts: texts, numbers, lists, dictionaries, tensors and Models.

    A tensor that stands in it twice travels once, and so does a row that all rows of a tensor are.

    Raises
    ------
    TypeError
        Something else is in it.
    """
    packer = _Packer()
    return Packet(json.dumps(packer.pack(content)), packer.arrays)


class _Packer:
    def __init__(self) -> None:
        self.arrays: list[NDArray[Any]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def pack(self, value: Any) -> Any:
        """The value as JSON knows it."""
        if isinstance(value, Models):
            return {_MODELS: {name: self._tensor(tensor) for name, tensor in value.tensors.items()}}
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            return {str(key): self.pack(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.pack(entry) for entry in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"{type(value).__name__} does not travel; only texts, numbers, tensors and Models do")

    def _tensor(self, value: Tensor) -> dict[str, int]:
        once = value.ndim > 0 and len(value) > 1 and value.stride(0) == 0
        tensor = value.detach()[:1] if once else value.detach()
        place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, str(tensor.device))
        if place not in self._places or tensor.numel() == 0:
            self._places[place] = len(self.arrays)
            self.arrays.append(np.ascontiguousarray(tensor.cpu().numpy()).reshape(tensor.shape))
        number = self._places[place]
        return {_TENSOR: number, "rows": len(value)} if once else {_TENSOR: number}
