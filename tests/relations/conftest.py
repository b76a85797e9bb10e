"""What tests of distances share."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from coterie.relations import distances


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs each call from now on measures from their differences."""
    counts, measure = list[int](), distances._pair_distances

    def counted(*arguments: Any) -> Tensor:
        measured = measure(*arguments)
        counts.append(len(measured))
        return measured

    monkeypatch.setattr(distances, "_pair_distances", counted)
    return counts
