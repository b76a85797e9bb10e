"""A federation of which it is known who takes part and how many examples each has, but not the examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coterie.federation.data import ClientData
from coterie.federation.federation import Federation, Split, Task


def outline(
    names: Sequence[str],
    n: Mapping[Split, Sequence[int]],
    *,
    feature_shape: Sequence[int],
    task: Task,
    classes: int,
    source: Mapping[str, Any] | None = None,
) -> Federation:
    """K clients with ``n[split]: (K,)`` examples each, all of which are one example of zeros.

    It takes no more memory however many there are, since sites may say that they have any number.

    Raises
    ------
    CoterieError
        Names repeat, or there are more or fewer numbers than names.
    """
    inputs = torch.zeros(()).expand(1, *feature_shape)
    first = torch.zeros((), dtype=torch.int64)
    targets = torch.zeros(1, dtype=torch.int64) if task == "classification" else torch.zeros(1, classes)

    def split(name: Split) -> ClientData:
        offsets = torch.tensor([0, *n[name]], dtype=torch.int64).cumsum(0)
        return ClientData(inputs, targets, offsets, index=first.expand(int(offsets[-1])))

    return Federation(tuple(names), split("train"), split("validation"), split("test"), task, classes, source or {})
