"""The personalised models of the best round so far, in memory or, where they are many, on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.contract import Predictor
from coterie.engines.room import mapped
from coterie.models import Models

# larger snapshots go to disk: the report needs them once, and Theta itself needs the memory
IN_MEMORY = 128 * 2**20


@dataclass
class Snapshot:
    """Predictors of K clients, written chunk by chunk."""

    K: int
    predictor: Predictor | None = None

    def take(self, chunks: Iterator[tuple[Sequence[int], Predictor]]) -> None:
        """Replace the snapshot by the predictors of ``chunks``: client numbers and what they predict with.

        Raises
        ------
        SitesLost
            The disk has no room for it.
        """
        self.predictor = None  # whoever holds the last one keeps it
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
        return self.predictor

    def _room(self, predictor: Predictor) -> Predictor:
        """Room for K rows such as those of ``predictor``."""
        tensors = predictor.models.tensors
        small = sum(tensor[:1].numel() * tensor.element_size() for tensor in tensors.values()) * self.K <= IN_MEMORY

        def room(tensor: Tensor) -> Tensor:
            shape = (self.K, *tensor.shape[1:])
            if small:
                return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
            return mapped(shape, tensor.dtype, "a copy of the reported models")

        weights = None
        if predictor.weights is not None:
            weights = torch.zeros(self.K, *predictor.weights.shape[1:], dtype=predictor.weights.dtype)
        models = Models(predictor.models.layout, {name: room(tensor) for name, tensor in tensors.items()})
        return Predictor(models, weights, predictor.combine)

    def _put(self, clients: Sequence[int], predictor: Predictor) -> None:
        assert self.predictor is not None
        if predictor.models.lead[1:] != self.predictor.models.lead[1:]:
            raise ValueError(f"predictors of {predictor.candidates} and {self.predictor.candidates} models")
        rows, device = torch.as_tensor(clients), self.predictor.models.device
        if self.predictor.weights is not None and predictor.weights is not None:
            self.predictor.weights[rows] = predictor.weights.cpu()
        self.predictor.models[rows] = predictor.models.to(device)


def _address(models: Models) -> list[int]:
    return [tensor.data_ptr() for tensor in models.tensors.values()]
