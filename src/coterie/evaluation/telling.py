"""What one client tells of two models, and what follows from what all clients tell; no example leaves a client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.evaluation.guard import Evidence, of_moments
from coterie.evaluation.moments import Moments, merged
from coterie.evaluation.paired_auroc import Scored, of_placements, placements

Floats = NDArray[np.float64]
Telling = Sequence[Moments]
"""Of the differences of losses, or of the placements of positive and of negative examples, see `auroc_evidence`."""


def told_of(alone: Mapping[str, Floats], personalised: Mapping[str, Floats], loss: str | None) -> Telling:
    """What a client tells of two models by their losses ``(n,)`` on the same examples; by AUROC where ``loss`` is None.

    A loss that is infinite or no number counts as the largest of the client's own that are.
    """
    if loss is None:
        positive = alone["target"] > 0
        nobody = np.zeros(len(positive), dtype=np.int64)
        scored = Scored(alone["score"], personalised["score"], positive, nobody)
        return placements(scored, np.arange(len(nobody)))
    losses = np.stack([alone[loss], personalised[loss]]).astype(np.float64)
    finite = np.isfinite(losses)
    losses = np.where(finite, losses, losses[finite].max(initial=0.0))
    return (Moments.of(losses[0] - losses[1]),)


def pooled(clients: Sequence[Sequence[Telling]], loss: str | None) -> Evidence:
    """The evidence ``(K,)`` of what each client tells, fold by fold; nothing for one that tells nothing."""
    if loss is None:
        return of_placements([[(part[0], part[1]) for part in parts] for parts in clients])
    whole = [merged([part[0] for part in parts]) for parts in clients]
    n, mean, squares = (np.array([getattr(part, name) for part in whole]) for name in ("n", "mean", "squares"))
    return of_moments(n.astype(np.int64), mean.astype(np.float64), squares.astype(np.float64))


def plain(told: Telling) -> list[list[float]]:
    """As it travels and is stored."""
    return [[part.n, part.mean, part.squares] for part in told]


def read(told: Any, loss: str | None, examples: int | None = None) -> Telling:
    """What `plain` made plain.

    Raises
    ------
    CoterieError
        It is none, or not of so many ``examples``.
    """
    try:
        parts = [Moments(int(n), float(mean), float(squares)) for n, mean, squares in told]
    except (TypeError, ValueError, OverflowError) as error:  # the last of an integer without end, or infinity as one
        raise CoterieError("it sent no evidence") from error
    sound = all(
        part.n >= 0 and math.isfinite(part.mean) and math.isfinite(part.squares) and part.squares >= 0 for part in parts
    )
    if len(parts) != (2 if loss is None else 1) or not sound:
        raise CoterieError("it sent no evidence")
    if examples is not None and sum(part.n for part in parts) != examples:
        raise CoterieError(f"it sent evidence of other examples than its {examples} for validation")
    return parts
