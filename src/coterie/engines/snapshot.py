"""The personalised models of the best round so far, in memory or, where they are many, on disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from coterie.contract import Predictor
from coterie.models import Models

# larger snapshots go to disk: the report needs them once, and Theta itself needs the memory
IN_MEMORY = 128 * 2**20


@dataclass
class Snapshot:
    """Predictors of K clients, written chunk by chunk."""

    K: int
    predictor: Predictor | None = None
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _files: dict[str, tuple[Path, torch.dtype, tuple[int, ...]]] = field(default_factory=dict)

    def take(self, chunks: Iterator[tuple[Sequence[int], Predictor]]) -> None:
        """Replace the snapshot by the predictors of ``chunks``: client numbers and what they predict with."""
        self.predictor, self._files = None, {}
        row: Models | None = None  # the one row that all chunks so far predict with
        earlier: list[Sequence[int]] = []
        for clients, predictor in chunks:
            shared = predictor.single and predictor.models.common
            if self.predictor is None and shared and (row is None or _address(row) == _address(predictor.models)):
                row = predictor.models[:1]
                earlier.append(clients)
                continue
            if self.predictor is None:
                self.predictor = self._room(predictor)
                for others in earlier:
                    assert row is not None
                    self._put(others, Predictor(row.repeat(len(others))))
            self._put(clients, predictor)
        if self.predictor is None and row is not None:
            self.predictor = Predictor(row.clone().repeat(self.K))

    def load(self) -> Predictor:
        """The whole snapshot; rows on disk are mapped, not read."""
        if self.predictor is None:
            raise LookupError("no snapshot was taken yet")
        if not self._files:
            return self.predictor
        tensors = {}
        for name, (path, dtype, shape) in self._files.items():
            flat = np.memmap(path, mode="c", dtype=np.uint8)
            tensors[name] = torch.from_numpy(flat).view(dtype).view(shape)
        models = Models(self.predictor.models.layout, tensors)
        return Predictor(models, self.predictor.weights, self.predictor.combine)

    def _size(self, predictor: Predictor) -> int:
        tensors = predictor.models.tensors.values()
        return sum(t[:1].numel() * t.element_size() for t in tensors) * self.K

    def _room(self, predictor: Predictor) -> Predictor:
        weights = None
        if predictor.weights is not None:
            weights = torch.zeros(self.K, *predictor.weights.shape[1:], dtype=predictor.weights.dtype)
        if self._size(predictor) <= IN_MEMORY:
            empty = {
                n: torch.empty(self.K, *t.shape[1:], dtype=t.dtype, device=t.device)
                for n, t in predictor.models.tensors.items()
            }
            return Predictor(Models(predictor.models.layout, empty), weights, predictor.combine)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="coterie-snapshot-")
        for number, (name, tensor) in enumerate(predictor.models.tensors.items()):
            path = Path(self._folder.name) / f"{number}.bin"
            path.unlink(missing_ok=True)  # the last one may have been larger, and somebody may still read it
            path.touch()
            self._files[name] = (path, tensor.dtype, (self.K, *tensor.shape[1:]))
        return Predictor(predictor.models[:1].clone(), weights, predictor.combine)

    def _put(self, clients: Sequence[int], predictor: Predictor) -> None:
        assert self.predictor is not None
        if predictor.models.lead[1:] != self.predictor.models.lead[1:]:
            raise ValueError(f"predictors of {predictor.candidates} and {self.predictor.candidates} models")
        rows = torch.as_tensor(clients)
        if self.predictor.weights is not None and predictor.weights is not None:
            self.predictor.weights[rows] = predictor.weights.cpu()
        if not self._files:
            self.predictor.models[rows] = predictor.models
            return
        for name, tensor in predictor.models.tensors.items():
            path = self._files[name][0]
            raw = tensor.detach().cpu().contiguous().numpy()
            with path.open("r+b") as file:  # chunks are runs of neighbouring clients
                file.seek(int(clients[0]) * raw[0].nbytes)
                raw.tofile(file)


def _address(models: Models) -> list[int]:
    return [tensor.data_ptr() for tensor in models.tensors.values()]
