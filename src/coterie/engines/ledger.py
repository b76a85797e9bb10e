"""What crossed the wire, in bytes per client, direction, phase and kind. Measured from what ``ask`` carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

Key = tuple[str, str, str]  # phase, direction, kind


class Ledger:
    """Bytes by (phase, direction, kind): each an array ``(K,)`` over all rounds, and the totals of this round."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.bytes: dict[Key, NDArray[np.int64]] = {}
        self._round: dict[Key, int] = {}

    def book(self, phase: str, direction: str, clients: Tensor, sizes: Mapping[str, int]) -> None:
        """Book ``sizes`` (bytes by kind) for each of ``clients: (k,)``."""
        for kind, size in sizes.items():
            if size:
                key = (phase, direction, kind)
                column = self.bytes.setdefault(key, np.zeros(len(self.names), dtype=np.int64))
                np.add.at(column, clients.cpu().numpy(), size)
                self._round[key] = self._round.get(key, 0) + size * len(clients)

    def book_each(self, phase: str, direction: str, kind: str, sizes: NDArray[np.int64]) -> None:
        """Book ``sizes: (K,)`` bytes, one for each client."""
        if sizes.any():
            key = (phase, direction, kind)
            self.bytes[key] = self.bytes.get(key, 0) + sizes
            self._round[key] = self._round.get(key, 0) + int(sizes.sum())

    def book_peers(self, phase: str, owners: Tensor, askers: Tensor, sizes: Mapping[str, int]) -> None:
        """Book one transfer owner -> asker for each pair that differs: ``owners: (k, m)``, ``askers: (k,)``.

        ``sizes`` are the bytes of one transfer by kind.
        """
        real = owners != askers.unsqueeze(1)
        senders, receivers = owners[real], askers.unsqueeze(1).expand_as(owners)[real]
        for kind, size in sizes.items():
            if not size:
                continue
            key = (phase, "peer", kind)
            column = self.bytes.setdefault(key, np.zeros(len(self.names), dtype=np.int64))
            for ends in (senders, receivers):  # sent plus received, so that half the sum is the system's total
                np.add.at(column, ends.cpu().numpy(), size)
            self._round[key] = self._round.get(key, 0) + size * int(real.sum())

    def begin_round(self) -> None:
        """Forget the totals of the last round."""
        self._round = {}

    def this_round(self) -> list[dict[str, Any]]:
        """The totals of this round over all clients."""
        return [
            {"phase": phase, "direction": direction, "kind": kind, "bytes": size}
            for (phase, direction, kind), size in sorted(self._round.items())
        ]

    def per_client(self) -> pd.DataFrame:
        """All bytes so far: phase, direction, kind, client, bytes."""
        parts = [
            pd.DataFrame({"phase": p, "direction": d, "kind": k, "client": self.names, "bytes": column})
            for (p, d, k), column in sorted(self.bytes.items())
        ]
        columns = ["phase", "direction", "kind", "client", "bytes"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {"/".join(key): torch.from_numpy(column.copy()) for key, column in self.bytes.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """From a checkpoint."""
        self.bytes = {}
        for key, column in state.items():
            phase, direction, kind = key.split("/")
            self.bytes[phase, direction, kind] = column.numpy().copy()
