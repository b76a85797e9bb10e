"""What it took to agree on how a table becomes inputs: bytes of each client, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coterie.federation.data import Normal


@dataclass(frozen=True, eq=False)
class Preparation:
    """What clients sent and received before the first round.

    Attributes:
        bytes_up: size of the summary that each client sent of its training rows, ``(K,)`` int64.
        bytes_down: size of the schema that it received, ``(K,)`` int64.
    """

    bytes_up: NDArray[np.int64]
    bytes_down: NDArray[np.int64]

    def select(self, clients: Sequence[int]) -> Preparation:
        """The same for these clients, in this order."""
        chosen = np.asarray(clients, dtype=np.int64)
        return Preparation(self.bytes_up[chosen], self.bytes_down[chosen])


@dataclass(frozen=True, eq=False)
class Prepared:
    """Raw rows that have become inputs.

    Attributes:
        inputs: ``(N, d)`` float32, for every row of the source.
        facts: the schema by which they did, for ``Federation.source``: ``schema``, or ``schemas`` by client.
        preparation: what crossed the wire for it; ``None`` where nothing did.
        target_normal: how targets are standardised; ``None`` where they are used as they are.
    """

    inputs: Tensor
    facts: Mapping[str, Any] = field(default_factory=dict)
    preparation: Preparation | None = None
    target_normal: Normal | None = None
