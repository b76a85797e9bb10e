"""What the tests of partition rules share: divide, count, join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.federation.examples import Examples
from coterie.federation.partition import RULES, Division


def divide(examples: Examples, partition: dict[str, Any], seed: int = 0, **sizes: Any) -> Division:
    rule = RULES[partition["rule"]](**partition)
    resolved = rule.resolve({"train": None, "validation": None, "test": None, **sizes})
    return rule.divide(examples, resolved, np.random.Generator(np.random.PCG64(seed)))


def joined(*splits: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([rows for split in splits for rows in split])


def counts(examples: Examples, split: Sequence[np.ndarray]) -> np.ndarray:
    return np.stack([np.bincount(examples.labels[rows], minlength=examples.classes) for rows in split])


def owned(examples: Examples, division: Division) -> np.ndarray:
    """Examples by client and class, all splits together."""
    total: np.ndarray = sum(counts(examples, split) for split in (division.train, division.validation, division.test))
    return total


def assert_disjoint(division: Division) -> None:
    """No row goes to two clients or two splits."""
    everything = joined(division.train, division.validation, division.test)
    assert len(np.unique(everything)) == len(everything)


def assert_same(first: Division, second: Division) -> None:
    """The two divisions are equal, row by row."""
    assert dict(first.columns) == dict(second.columns)
    for split in ("train", "validation", "test"):
        for a, b in zip(getattr(first, split), getattr(second, split), strict=True):
            assert np.array_equal(a, b)
