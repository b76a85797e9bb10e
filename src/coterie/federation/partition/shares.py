"""Rules that first give each client a share of the examples and then split that share in three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.federation import client_names
from coterie.federation.partition.blocks import by_blocks, by_time
from coterie.federation.partition.rule import Amount, Division, Rule, Sizes


class SplitRule(Rule):
    """A rule whose clients each split a share of their own into train, validation and test.

    The split is random, class by class in like proportion. ``train``, where given, leaves some examples unused:
    as a number it is an upper limit, as a fraction a part of the share. Where the source says which examples belong
    together (blocks), each of these stays in one split; where it says when they were taken (order), the earliest are
    for training and the latest for the test.
    """

    default_sizes: ClassVar[Sizes] = Sizes(train="rest", validation=0.2, test=0.2)

    def resolve(self, given: Mapping[str, Any]) -> Sizes:
        """Sizes in force."""
        sizes = super().resolve(given)
        if sizes.test == "rest":
            raise ValueError(
                f"test: rest is for the rule rotation; under {self.rule} give a fraction, a number or official"
            )
        if sizes.train == 0 or sizes.test == 0:
            raise ValueError("train and test must be above 0: every client needs examples of both")
        fractions = [size for size in (sizes.train, sizes.validation, sizes.test) if isinstance(size, float)]
        if sum(fractions) > 1 + 1e-9:
            raise ValueError(f"train, validation and test are together more than the whole: {fractions}")
        return sizes

    def split(
        self, examples: Examples, shares: Sequence[Rows], names: Sequence[str], sizes: Sizes
    ) -> tuple[list[Rows], list[Rows], list[Rows]]:
        """Split shuffled shares, one a client, into the rows for train, validation and test.

        Raises:
            CoterieError: a client has too few examples or blocks.
        """
        classes, strata = _strata(examples)
        counts = np.array([split_counts(name, len(share), sizes) for name, share in zip(names, shares, strict=True)])
        blocks, times = examples.block_numbers, examples.times
        if times is None and blocks is None:
            return stratified(shares, strata, counts, classes)
        most = counts[:, 0].copy()
        counts[:, 0] = [len(share) for share in shares] - counts[:, 1] - counts[:, 2]
        if times is not None:
            train, validation, test = by_time(shares, names, counts, times, blocks)
        elif blocks is not None:
            train, validation, test = by_blocks(shares, names, strata, counts, classes, blocks)
        if sizes.train != "rest":  # of a limited number the latest, where there is an order
            train = [own[-limit:] for own, limit in zip(train, most.tolist(), strict=True)]
        return train, validation, test


class ShareRule(SplitRule):
    """A rule that decides only which client gets which examples.

    With ``test`` a fraction or a number, the official training and test sets are merged and divided, and
    every client's share is split. With ``test: official`` the training set is divided and the test set follows:
    of each class every client gets the part that it has of the training set.

    Shares are disjoint and, unless a rule says otherwise, complete: every example goes to exactly one client.
    """

    clients: int = Field(ge=1, description="number of clients K")

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """Divide ``rows`` among the clients; no row goes to two of them."""
        raise NotImplementedError

    def pool(self, examples: Examples, sizes: Sizes) -> Rows:
        """The rows to divide: all, or the official training set where the official test set follows.

        Raises:
            CoterieError: there is no official test set.
        """
        if sizes.test != "official":
            return examples.all_rows
        if examples.boundary is None:
            raise CoterieError(f"{examples.name!r} has no official test set: give test as a fraction such as 0.2.")
        return examples.train_rows

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Shares, then splits; see the class."""
        rows = self.pool(examples, sizes)
        if self.clients > len(rows):
            raise CoterieError(
                f"{self.clients:,} clients cannot share the {len(rows):,} examples of {examples.name!r}: "
                "ask for fewer clients."
            )
        return self.divided(examples, sizes, rows, self.share(examples, rows, generator), generator)

    def divided(
        self, examples: Examples, sizes: Sizes, rows: Rows, shares: list[Rows], generator: np.random.Generator
    ) -> Division:
        """Split every client's share of ``rows`` in three."""
        shares, names = [generator.permutation(share) for share in shares], client_names(self.clients)
        train, validation, test = self.split(examples, shares, names, sizes)
        if sizes.test == "official":
            classes, strata = _strata(examples)
            owned = np.stack([np.bincount(strata[share], minlength=classes) for share in shares])
            totals = np.bincount(strata[rows], minlength=classes)
            test = follow(owned, totals, generator.permutation(examples.test_rows), strata, names)
        return Division(train, validation, test)


def _strata(examples: Examples) -> tuple[int, Rows]:
    """Number of classes, and the class of every row; a regression is split as if it had one class."""
    if examples.task == "classification":
        return examples.classes, examples.labels
    return 1, np.zeros(len(examples), dtype=np.int64)


def require_classes(rule: str, examples: Examples) -> None:
    """Refuse a regression, which has no classes to divide by.

    Raises:
        CoterieError: ``examples`` are a regression.
    """
    if examples.task != "classification":
        raise CoterieError(f"The rule {rule} needs classes, but {examples.name!r} is a regression: use iid.")


def split_counts(name: str, n: int, sizes: Sizes) -> tuple[int, int, int]:
    """How many of a client's ``n`` examples go to train, validation and test.

    Raises:
        CoterieError: nothing would be left to train on.
    """
    test = 0 if sizes.test == "official" else _part(sizes.test, n)
    validation = _part(sizes.validation, n)
    rest = n - test - validation
    train = rest if sizes.train == "rest" else min(rest, _part(sizes.train, n))
    if train < 1:
        raise CoterieError(
            f"Client {name!r} has {n} example{'s' * (n != 1)}, which is too few for {validation} to validate, {test} "
            "to test and at least 1 to train on: ask for a smaller validation or test; for fewer clients or a larger "
            "partition.min_size where they are drawn; or leave small clients out by "
            "partition: {rule: natural, min_examples: 5} where the data name them."
        )
    return train, validation, test


def _part(amount: Amount | None, n: int) -> int:
    """A number, or a fraction of ``n`` of at least one example (0.0 is none)."""
    if isinstance(amount, int):
        return amount
    if isinstance(amount, float):
        return max(1, round(amount * n)) if amount > 0 else 0
    raise TypeError(f"{amount!r} is no amount")


def allocate(total: int, weights: Rows, capacity: Rows) -> Rows:
    """Divide ``total`` in proportion to ``weights``, none above its ``capacity``.

    By largest remainders, ties to the first. All arrays are ``(C,)``; ``total`` is at most the sum of
    ``capacity``.
    """
    given: Rows = allocate_each(np.array([total]), weights[None], capacity[None])[0]
    return given


def allocate_each(totals: Rows, weights: Rows, capacity: Rows) -> Rows:
    """The same for K clients at once: ``totals`` is ``(K,)``, everything else ``(K, C)``."""
    quota = totals[:, None] * weights / np.maximum(1, weights.sum(1, keepdims=True))
    given: Rows = np.minimum(np.floor(quota).astype(np.int64), capacity)
    while len(short := np.flatnonzero(given.sum(1) < totals)):
        order = np.argsort(given[short] - quota[short], axis=1, kind="stable")
        spare = np.take_along_axis(given[short] < capacity[short], order, axis=1)
        left = totals[short] - given[short].sum(1)
        more = np.zeros_like(order)
        np.put_along_axis(more, order, spare & (spare.cumsum(1) <= left[:, None]), axis=1)
        given[short] += more
    return given


def stratified(
    shares: Sequence[Rows], strata: Rows, counts: Rows, classes: int
) -> tuple[list[Rows], list[Rows], list[Rows]]:
    """Split shuffled shares, one a client, into train, validation and test, every class in like proportion.

    A class stays in training as long as that is possible, so that no client is tested on what it never saw.

    Args:
        shares: rows of the source.
        strata: the class of every row of the source, ``(N,)``.
        counts: how many go to train, validation and test, ``(K, 3)``.
        classes: number of classes C.
    """
    rows = np.concatenate(shares)
    # cells are the classes of the first client, then those of the second, ...; a share keeps its order inside a cell
    cell = np.repeat(np.arange(len(shares)), [len(share) for share in shares]) * classes + strata[rows]
    rows = rows[np.argsort(cell, kind="stable")]
    left = np.bincount(cell, minlength=len(shares) * classes).reshape(-1, classes)
    begin = (np.cumsum(left) - left.ravel()).reshape(left.shape)
    parts = []
    for split, leave in ((2, 1), (1, 1), (0, 0)):
        size, spare = counts[:, split], np.maximum(left - leave, 0)
        capacity = np.where((size <= spare.sum(1))[:, None], spare, left)
        chosen = allocate_each(size, left, capacity)
        parts.append(np.split(rows[ranges(begin.ravel(), chosen.ravel())], np.cumsum(size)[:-1]))
        begin, left = begin + chosen, left - chosen
    return parts[2], parts[1], parts[0]


def ranges(begin: Rows, lengths: Rows) -> Rows:
    """The numbers ``begin[i] .. begin[i] + lengths[i] - 1`` for every ``i``, one range after the other."""
    before = np.cumsum(lengths) - lengths
    positions: Rows = np.arange(lengths.sum()) + np.repeat(begin - before, lengths)
    return positions


def deal(counts: Rows, rows: Rows, labels: Rows) -> list[Rows]:
    """Give client ``i`` the next ``counts[i, c]`` examples of class ``c``.

    ``rows`` come shuffled and ``labels`` are their classes. Each class has at least as many as ``counts``
    ``(K, C)`` asks for.
    """
    by_class = [rows[labels == c][:total] for c, total in enumerate(counts.sum(0).tolist())]
    owner = np.concatenate([np.repeat(np.arange(len(counts)), of_class) for of_class in counts.T])
    dealt = np.concatenate(by_class)[np.argsort(owner, kind="stable")]
    return np.split(dealt, np.cumsum(counts.sum(1))[:-1])


def follow(owned: Rows, totals: Rows, rows: Rows, strata: Rows, names: Sequence[str]) -> list[Rows]:
    """Divide the test rows so that each client has the part of each class that it owns of the training set.

    What nobody owns of the training set is left unused of the test set, too.

    Args:
        owned: training examples by client and class, ``(K, C)``.
        totals: training examples by class, owned or not, ``(C,)``.
        rows: shuffled test rows.
        strata: class of every row of the source.
        names: client names, for messages.

    Raises:
        CoterieError: a client cannot get a single test example.
    """
    available = np.bincount(strata[rows], minlength=owned.shape[1]) * owned.sum(0) // np.maximum(totals, 1)
    counts = np.zeros_like(owned)
    behind = np.zeros(len(owned))
    for c, n in enumerate(available):
        quota = n * owned[:, c] / max(1, owned[:, c].sum())
        counts[:, c] = np.floor(quota)
        behind += quota - counts[:, c]
        # What rounding leaves goes to the claimants who have lost most of it so far: sizes stay in proportion
        claims = np.flatnonzero(quota > counts[:, c])
        chosen = claims[np.argsort(-behind[claims], kind="stable")][: n - counts[:, c].sum()]
        counts[chosen, c] += 1
        behind[chosen] -= 1
    for i in np.flatnonzero(counts.sum(1) == 0).tolist():
        c = int(np.argmax(owned[i]))
        donors = np.where(counts.sum(1) > 1, counts[:, c], 0)
        if donors.max() < 1:
            raise CoterieError(
                f"Client {names[i]!r} gets no test example: the official test set is too small for "
                f"{len(names)} clients. Ask for fewer clients, or give test as a fraction such as 0.2."
            )
        counts[np.argmax(donors), c] -= 1
        counts[i, c] += 1
    return deal(counts, rows, strata[rows])
