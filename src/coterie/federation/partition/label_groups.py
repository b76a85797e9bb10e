"""Disjoint groups of labels, one group a client: FedeRiCo's split (Sui et al., 2022, experiments)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import Division, Sizes, register_rule
from coterie.federation.partition.shares import ShareRule, require_classes


@register_rule
class LabelGroups(ShareRule):
    """Labels are cut into disjoint groups; every client has the labels of one group (FedeRiCo)

    The labels in random order are cut into ``groups`` sets of like size. Every set gets a client and the other
    clients choose uniformly at random; they are then numbered by their group, which the column ``group``
    holds. All clients are equally large and draw without replacement from the examples of their group.

    Together the clients hold the part ``fraction`` of the examples, or what the most crowded group allows.
    FedeRiCo takes 0.1 of CIFAR-10's and 0.15 of CIFAR-100's official training set (``training_only``).
    """

    rule: Literal["label-groups"] = "label-groups"
    groups: int = Field(4, ge=1, description="groups of labels")
    fraction: float = Field(1.0, gt=0, le=1, description="largest part of the examples that is used")
    training_only: bool = Field(False, description="leave out the official test set")

    @model_validator(mode="after")
    def _agree(self) -> LabelGroups:
        if self.groups > self.clients:
            raise ValueError(f"{self.clients} clients cannot fill {self.groups} groups; ask for fewer groups")
        return self

    def pool(self, examples: Examples, sizes: Sizes) -> Rows:
        """The rows to divide."""
        rows = super().pool(examples, sizes)
        return examples.train_rows if self.training_only else rows

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Group labels and clients, draw every client's share and split it.

        Raises:
            CoterieError: fewer labels than groups, too few examples, or no classes.
        """
        require_classes(self.rule, examples)
        rows = self.pool(examples, sizes)
        group_of_label = cut_labels(examples, rows, self.groups, generator)
        # every group once, the other clients anywhere
        others = generator.integers(self.groups, size=self.clients - self.groups)
        group_of_client = np.sort(np.concatenate([np.arange(self.groups), others]))
        group_of_row = group_of_label[examples.labels[rows]]
        clients, available = np.bincount(group_of_client), np.bincount(group_of_row)
        size = int(min(round(self.fraction * len(rows)) // self.clients, *(available // clients)))
        if size == 0:
            raise CoterieError(
                f"{self.clients:,} clients in {self.groups} groups get no example each of the {len(rows):,} of "
                f"{examples.name!r}: ask for fewer clients or a larger partition.fraction."
            )
        shares = [
            share
            for group, k in enumerate(clients)
            for share in generator.permutation(rows[group_of_row == group])[: k * size].reshape(k, size)
        ]
        division = self.divided(examples, sizes, rows, shares, generator)
        return replace(division, columns={"group": group_of_client.tolist()})


def cut_labels(examples: Examples, rows: Rows, groups: int, generator: np.random.Generator) -> Rows:
    """Cut the labels that occur in ``rows`` at random into groups of like size.

    Returns:
        Group of each label, ``(C,)``; -1 for those that do not occur.

    Raises:
        CoterieError: fewer labels than groups.
    """
    labels = generator.permutation(np.unique(examples.labels[rows]))
    if groups > len(labels):
        raise CoterieError(
            f"groups is {groups}, but {examples.name!r} has only {len(labels)} classes: ask for {len(labels)} or fewer."
        )
    group_of_label = np.full(examples.classes, -1)
    for group, of_group in enumerate(np.array_split(labels, groups)):
        group_of_label[of_group] = group
    return group_of_label
