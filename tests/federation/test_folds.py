"""Cross-fitting: every example that is not for testing validates in exactly one fold."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from coterie.errors import CoterieError
from coterie.federation import Federation, build_federation

SECTION: dict[str, Any] = {"source": "digits", "partition": {"rule": "dirichlet", "clients": 5, "alpha": 0.5}}


def folds(count: int, section: dict[str, Any] = SECTION, seed: int = 3) -> list[Federation]:
    """The federation in all its folds."""
    return [build_federation({**section, "fold": {"index": i, "of": count}}, seed=seed) for i in range(count)]


def rows_of(federation: Federation, split: str, client: int) -> list[int]:
    """Rows of the source that a client has in a split."""
    data = federation.split(split)  # type: ignore[arg-type]
    start, stop = int(data.offsets[client]), int(data.offsets[client + 1])
    assert data.index is not None
    return sorted(data.index[start:stop].tolist())


def test_every_example_validates_once_and_tests_stay() -> None:
    """Training and validation examples of each fold are those of the plain division, dealt anew."""
    plain = build_federation(SECTION, seed=3)
    for client in range(plain.k):
        pool = sorted(rows_of(plain, "train", client) + rows_of(plain, "validation", client))
        validated: list[int] = []
        for federation in folds(4):
            train, validation = rows_of(federation, "train", client), rows_of(federation, "validation", client)
            assert sorted(train + validation) == pool
            assert rows_of(federation, "test", client) == rows_of(plain, "test", client)
            assert abs(len(validation) - len(pool) / 4) < 1
            validated += validation
        assert sorted(validated) == pool


def test_classes_are_dealt_evenly() -> None:
    """No part has two more of a class than another."""
    counts = np.stack([federation.class_counts("validation").numpy() for federation in folds(4)])
    assert (counts.max(0) - counts.min(0)).max() <= 1


def test_a_fold_that_does_not_exist_is_refused() -> None:
    """Of three folds the last is number 2."""
    with pytest.raises(CoterieError, match="of 3 folds the last has the index 2"):
        build_federation({**SECTION, "fold": {"index": 3, "of": 3}}, seed=0)


def test_seeds_give_other_folds_and_equal_seeds_equal_ones() -> None:
    """The deal depends on the seed of the division alone."""
    once, again, other = (Counter(rows_of(folds(3, seed=seed)[0], "validation", 0)) for seed in (1, 1, 2))
    assert once == again != other
