"""Few classes a client: the pathological split (McMahan et al. 2017; FedDWA; FEDORA's CIFAR-10)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import register_rule
from coterie.federation.partition.shares import ShareRule, deal, require_classes


@register_rule
class Pathological(ShareRule):
    """Every client has examples of a few classes only

    ``assignment: balanced`` gives each client exactly ``classes_per_client`` classes, in a cycle over the
    classes in random order, so that every class has the same number of owners (plus or minus one), who share
    it evenly. ``assignment: shards`` sorts by label, cuts into ``classes_per_client * K`` shards of like
    size and gives each client that many at random. Shards end where a class ends, so a client never has more
    than ``classes_per_client`` classes.
    """

    rule: Literal["pathological"] = "pathological"
    classes_per_client: int = Field(2, ge=1, description="largest number of classes of a client")
    assignment: Literal["balanced", "shards"] = Field("balanced", description="how classes are given to clients")

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """Give classes to clients, then deal the examples.

        Raises:
            CoterieError: more classes a client than there are, too few clients to hold every class, or a
                class too small for its owners.
        """
        require_classes(self.rule, examples)
        rows = generator.permutation(rows)
        labels = examples.labels[rows]
        totals = np.bincount(labels, minlength=examples.classes)
        classes, each, k = int((totals > 0).sum()), self.classes_per_client, self.clients
        if each > classes:
            raise CoterieError(
                f"classes_per_client is {each}, but {examples.name!r} has only {classes} classes: ask for "
                f"{classes} or fewer."
            )
        if each * k < classes:
            raise CoterieError(
                f"{k} clients of {each} classes hold at most {each * k} of the {classes} classes of "
                f"{examples.name!r}: ask for more clients or more classes_per_client."
            )
        if each * k > len(rows):
            raise CoterieError(
                f"{k:,} clients of {each} classes need at least {each * k:,} examples, but "
                f"{examples.name!r} has {len(rows):,}: ask for fewer clients."
            )
        divide = balanced_counts if self.assignment == "balanced" else shard_counts
        counts = divide(totals, k, each, generator)
        if (counts.sum(1) == 0).any():
            raise CoterieError(
                f"A class of {examples.name!r} is too small for {k:,} clients of {each} classes: ask for fewer clients."
            )
        return deal(counts, rows, labels)


def balanced_counts(totals: Rows, clients: int, each: int, generator: np.random.Generator) -> Rows:
    """Give each client ``each`` different classes, in a cycle.

    Client ``i`` owns the classes ``each * i .. each * i + each - 1`` of a random order, which starts again
    at its end.

    Returns:
        Examples by client and class, ``(K, C)``; their columns add up to ``totals`` ``(C,)``.
    """
    order = generator.permutation(np.flatnonzero(totals))
    turns = np.arange(clients * each)
    client, owned = turns // each, order[turns % len(order)]
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    for c in order:
        owners = client[owned == c]
        counts[owners, c] = totals[c] // len(owners)
        counts[owners[: totals[c] % len(owners)], c] += 1
    return counts


def shard_counts(totals: Rows, clients: int, each: int, generator: np.random.Generator) -> Rows:
    """Give each client ``each`` random shards of ``each * K``; the same class may come twice.

    Returns:
        Examples by client and class, ``(K, C)``; their columns add up to ``totals`` ``(C,)``.
    """
    shards = (totals > 0).astype(np.int64)
    for _ in range(clients * each - int(shards.sum())):
        # the class whose shards are largest is cut once more
        shards[np.argmax(totals / np.maximum(shards, 1))] += 1
    classes = np.repeat(np.arange(len(totals)), shards)
    sizes = np.concatenate(
        [np.diff(np.arange(m + 1) * total // m) for total, m in zip(totals, shards, strict=True) if m]
    )
    owner = generator.permutation(len(classes)) // each
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    np.add.at(counts, (owner, classes), sizes)
    return counts
