"""Classes in turn: FEDORA's CIFAR-10 (Wu et al., KDD 2023; its released loader, after AvivSham/pFedHN)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, Strict, model_validator

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import Division, Sizes, register_rule
from coterie.federation.partition.shares import ShareRule, allocate, deal, require_classes

Positive = Annotated[int, Field(ge=1)]


@register_rule
class Cyclic(ShareRule):
    """Client i has the classes 2i and 2i + 1, round and round; few training examples of each (FEDORA's CIFAR-10)

    The owners of a class divide it by shares from ``U(spread)``, normalised; classes without an owner are not
    used. Of its share a client then keeps ``train_per_class`` training examples of each class and, in the
    proportions of its share, ``test_limit`` test examples; validation data are not limited.

    With ``test: official`` and the default ``validation: 0.2`` this is FEDORA's division of CIFAR-10 for 10
    clients: 10,000 of the training images are for validation, 20 a client for training. The released loader
    has no limit on test images; the published accuracies are multiples of 1/1280, hence 128 for each.
    """

    rule: Literal["cyclic"] = "cyclic"
    classes_per_client: Positive = Field(2, description="classes of a client")
    spread: Annotated[tuple[float, float], Strict(False)] = Field(  # a list
        (0.4, 0.6), description="limits of the uniform draw of an owner's share"
    )
    train_per_class: Positive | Literal["all"] = Field(10, description="training examples of each class of a client")
    test_limit: Positive | Literal["all"] = Field(128, description="largest number of test examples of a client")

    @model_validator(mode="after")
    def _agree(self) -> Cyclic:
        low, high = self.spread
        if not 0 < low <= high < float("inf"):
            raise ValueError(f"spread is a lower and an upper limit above 0; [{low}, {high}] is not")
        return self

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Shares, then splits, then the limits."""
        division = super().divide(examples, sizes, generator)
        labels, classes = examples.labels, examples.classes
        train, test = division.train, division.test
        if self.train_per_class != "all":
            train = [first_of_each(rows, labels, np.full(classes, self.train_per_class)) for rows in train]
        if self.test_limit != "all":
            counts = [np.bincount(labels[rows], minlength=classes) for rows in test]
            kept = [allocate(min(self.test_limit, int(of.sum())), of, of) for of in counts]
            test = [first_of_each(rows, labels, of) for rows, of in zip(test, kept, strict=True)]
        return replace(division, train=train, test=test)

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """Divide every class among its owners.

        Raises:
            CoterieError: more classes a client than there are, or no classes.
        """
        require_classes(self.rule, examples)
        if self.classes_per_client > examples.classes:
            raise CoterieError(
                f"classes_per_client is {self.classes_per_client}, but {examples.name!r} has only "
                f"{examples.classes} classes: ask for {examples.classes} or fewer."
            )
        rows = generator.permutation(rows)
        labels = examples.labels[rows]
        counts = np.zeros((self.clients, examples.classes), dtype=np.int64)
        turns = np.arange(self.clients * self.classes_per_client)
        for c, total in enumerate(np.bincount(labels, minlength=examples.classes)):
            owners = turns[turns % examples.classes == c] // self.classes_per_client
            shares = generator.uniform(*self.spread, len(owners))
            bounds = np.rint(np.cumsum(shares) / max(shares.sum(), 1e-300) * total).astype(np.int64)
            counts[owners, c] = np.diff(bounds, prepend=0)
        return deal(counts, rows, labels)


def first_of_each(rows: Rows, labels: Rows, limits: Rows) -> Rows:
    """The first ``limits[c]`` of ``rows`` of every class c; ``labels`` are those of the whole source."""
    return np.concatenate([rows[labels[rows] == c][:limit] for c, limit in enumerate(limits)])
