"""Groups of clients with the same dominant classes: FedDWA's practical setting 1 (Liu et al., IJCAI 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import Division, Sizes, register_rule
from coterie.federation.partition.shares import ShareRule, deal, require_classes


@register_rule
class Dominant(ShareRule):
    """Groups of clients: most examples of a client are of its group's classes, the others of all (FedDWA)

    Client ``i`` is in group ``i * groups // K``; the column ``group`` says so. All clients are equally large.

    ``variant: paper`` (section 5) gives every group ``dominant_classes`` of the classes in random order. The
    sets are disjoint where there are enough classes and overlap as little as possible otherwise, as with
    CIFAR-10, whose ten classes are not enough for four groups of three. Of a client's examples the part
    ``dominant_share`` is evenly of these classes and the remainder evenly of all classes. The clients are as
    large as the scarcest class allows; what is left over is not used.

    ``variant: released`` (the authors' code) uses every example: a random ``dominant_share`` of them, sorted by
    label, is cut into one contiguous part a group, which the group's clients divide at random; the remainder
    goes to all clients at random. The groups' classes number then about C / ``groups``.
    """

    rule: Literal["dominant"] = "dominant"
    variant: Literal["paper", "released"] = "paper"
    groups: int = Field(4, ge=1, description="groups of clients")
    dominant_share: float = Field(0.8, ge=0, le=1, description="part of a client's data that is of its group's classes")
    dominant_classes: int | None = Field(
        None, ge=1, description="classes of a group; left out: 3, or a fifth of all classes where that is more"
    )

    @model_validator(mode="after")
    def _agree(self) -> Dominant:
        if self.groups > self.clients:
            raise ValueError(f"{self.clients} clients cannot form {self.groups} groups; ask for fewer groups")
        if self.variant == "released" and self.dominant_classes is not None:
            raise ValueError("dominant_classes belongs to the variant paper; the released one cuts the sorted data")
        return self

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Shares, then splits, with the group of every client."""
        division = super().divide(examples, sizes, generator)
        return replace(division, columns={"group": self._group_of_clients().tolist()})

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """Divide ``rows`` by the variant.

        Raises:
            CoterieError: too few classes, a class too small for its clients, or no classes at all.
        """
        require_classes(self.rule, examples)
        rows = generator.permutation(rows)
        if self.variant == "released":
            return self._cut_sorted(rows, examples.labels, generator)
        labels = examples.labels[rows]
        totals = np.bincount(labels, minlength=examples.classes)
        classes = generator.permutation(np.flatnonzero(totals))
        each = min(max(3, len(classes) // 5), len(classes)) if self.dominant_classes is None else self.dominant_classes
        if each > len(classes):
            raise CoterieError(
                f"dominant_classes is {each}, but {examples.name!r} has only {len(classes)} classes: ask for "
                f"{len(classes)} or fewer."
            )
        # a second order for the common part, which would else line up with the groups where it is small
        counts = self._largest_counts(totals, classes, generator.permutation(classes), each, examples.name)
        return deal(counts, rows, labels)

    def _group_of_clients(self) -> Rows:
        """Group of each client, ``(K,)``, in blocks of like size."""
        return np.arange(self.clients) * self.groups // self.clients

    def _largest_counts(self, totals: Rows, classes: Rows, common: Rows, each: int, name: str) -> Rows:
        """Examples by client and class ``(K, C)``, for the largest clients that ``totals`` ``(C,)`` allow.

        ``classes`` and ``common`` are the classes in two orders, for the groups' sets and for the common part.
        """
        starts = np.arange(self.groups) * len(classes) // self.groups
        # Evenly spaced starts: the sets are disjoint where they can be, else only neighbours share classes
        dominant = classes[(starts[:, None] + np.arange(each)) % len(classes)]
        clients = np.bincount(self._group_of_clients())
        wanted = np.zeros(len(totals))  # by each class, for one example a client
        wanted[classes] = (1 - self.dominant_share) * self.clients / len(classes)
        np.add.at(wanted, dominant, self.dominant_share * clients[:, None] / each)
        largest = int((totals[classes] / np.maximum(wanted[classes], 1e-12)).min())
        for size in range(largest, 0, -1):  # rounding may ask for an example or two too many
            counts = np.zeros((self.clients, len(totals)), dtype=np.int64)
            own = round(self.dominant_share * size)
            counts[:, common] = rota(self.clients, size - own, len(common))
            for group, of_group in enumerate(dominant):
                counts[np.ix_(self._group_of_clients() == group, of_group)] += rota(clients[group], own, each)
            if (counts.sum(0) <= totals).all():
                return counts
        scarce = classes[np.argmin(totals[classes] / np.maximum(wanted[classes], 1e-12))]
        raise CoterieError(
            f"Class {scarce} of {name!r} has {totals[scarce]:,} examples, too few for {self.clients:,} clients of "
            "equal size: ask for fewer clients, or for variant: released."
        )

    def _cut_sorted(self, rows: Rows, labels: Rows, generator: np.random.Generator) -> list[Rows]:
        """The released code's way; ``rows`` come shuffled."""
        sorted_, rest = np.split(rows, [round(self.dominant_share * len(rows))])
        sorted_ = sorted_[np.argsort(labels[sorted_], kind="stable")]
        clients = np.bincount(self._group_of_clients())
        parts = np.split(sorted_, np.cumsum(clients)[:-1] * len(sorted_) // self.clients)
        own = [share for part, k in zip(parts, clients, strict=True) for share in _at_random(part, k, generator)]
        return [np.concatenate(pair) for pair in zip(own, np.array_split(rest, self.clients), strict=True)]


def rota(clients: int, each: int, classes: int) -> Rows:
    """Deal ``each`` examples to every client, going round the classes.

    Returns:
        Examples by client and class, ``(clients, classes)``. Rows add up to ``each``; both the entries of a row
        and the sums of the columns differ by one at most.
    """
    bounds = np.arange(clients + 1)[:, None] * each  # client i takes the turns from bounds[i] to bounds[i + 1]
    turns_before: Rows = (bounds - np.arange(classes) + classes - 1) // classes
    return np.diff(turns_before, axis=0)


def _at_random(rows: Rows, parts: int, generator: np.random.Generator) -> list[Rows]:
    return np.array_split(generator.permutation(rows), parts)
