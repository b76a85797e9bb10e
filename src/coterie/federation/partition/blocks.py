"""Splits that keep together what belongs together, and splits in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError
from coterie.federation.examples import Rows, numbered

TRAIN, VALIDATION, TEST = range(3)


def by_blocks(
    shares: Sequence[Rows], names: Sequence[str], strata: Rows, counts: Rows, classes: int, blocks: NDArray[Any]
) -> tuple[list[Rows], list[Rows], list[Rows]]:
    """Split shuffled shares, one a client, so that all rows of a block come to one split, whoever owns them.

    The largest blocks are placed first, each where its classes are lacking most: the one choice at a time that
    leaves the least squared distance from ``counts``. Sizes are met as nearly as whole blocks allow.

    Args:
        shares: rows of the source.
        names: client names, for messages.
        strata: the class of every row of the source, ``(N,)``.
        counts: how many should go to train, validation and test, ``(K, 3)``.
        classes: number of classes C.
        blocks: the block of every row of the source, ``(N,)``.

    Raises:
        CoterieError: a client has too few blocks to train and test on.
    """
    rows = np.concatenate(shares)
    owner = np.repeat(np.arange(len(shares)), [len(share) for share in shares])
    block = numbered(blocks[rows])
    side = _place(block, owner * classes + strata[rows], counts, classes)
    _fill(side, block, owner, counts, names)
    return _gather(rows, owner, side[block], len(shares))


def by_time(
    shares: Sequence[Rows], names: Sequence[str], counts: Rows, times: NDArray[Any], blocks: NDArray[Any] | None
) -> tuple[list[Rows], list[Rows], list[Rows]]:
    """Split each client's share in the order of time: the earliest to train, then validation, the latest to test.

    A block counts as one event at its latest time; one of several clients is for all of them what it is for the one
    that has this time.

    Args:
        shares: shuffled rows of the source; rows of equal time keep their places.
        names: client names, for messages.
        counts: how many should go to train, validation and test, ``(K, 3)``; met exactly without blocks.
        times: the time of every row of the source, ``(N,)``: numbers or dates.
        blocks: the block of every row of the source, ``(N,)``, where there are such.

    Raises:
        CoterieError: a client has too few blocks to train and test on.
    """
    placed = []
    for share, wanted in zip(shares, counts, strict=True):
        rows = share[np.argsort(times[share], kind="stable")]
        block = np.arange(len(rows)) if blocks is None else numbered(blocks[rows])
        latest = np.zeros(block.max() + 1, dtype=np.int64)
        np.maximum.at(latest, block, np.arange(len(rows)))
        rank = np.argsort(np.argsort(latest, kind="stable"), kind="stable")
        together = np.argsort(rank[block], kind="stable")
        rows, event = rows[together], rank[block][together]
        size = np.bincount(event)
        middle = np.cumsum(size) - size / 2
        side = np.searchsorted(np.cumsum(wanted)[:2], middle)
        if wanted[TEST] and not (side == TEST).any():
            side[-1] = TEST
        if not (side == TRAIN).any():
            side[0] = TRAIN
        placed.append((rows, side[event]))
    rows, sides = (np.concatenate(parts) for parts in zip(*placed, strict=True))
    owner = np.repeat(np.arange(len(shares)), [len(share) for share in shares])
    block = np.arange(len(rows)) if blocks is None else numbered(blocks[rows])
    in_time = np.argsort(times[rows], kind="stable")
    side_of = np.zeros(block.max() + 1, dtype=np.int64)
    side_of[block[in_time]] = sides[in_time]  # of rows of one block the latest remains
    _require(side_of, block, owner, counts, names)
    return _gather(rows, owner, side_of[block], len(shares))


def mixed_block(splits: Sequence[Sequence[Rows]], blocks: Sequence[Any]) -> Any | None:
    """The first block with rows in more than one of ``splits``; None where each is in one."""
    rows = np.concatenate([np.concatenate(list(split)) for split in splits])
    side = np.repeat(np.arange(len(splits)), [sum(len(of) for of in split) for split in splits])
    named = np.asarray(blocks, dtype=object)[rows]
    block = numbered(named)
    first = np.full(block.max() + 1, len(splits))
    np.minimum.at(first, block, side)
    wrong = np.flatnonzero(side != first[block])
    return None if len(wrong) == 0 else named[wrong[0]]


def _place(block: Rows, cell: Rows, counts: Rows, classes: int) -> NDArray[np.int64]:
    """The split of every block; cells are the classes of the first client, then those of the second, ..."""
    pairs, sizes = np.unique(np.stack([block, cell]), axis=1, return_counts=True)
    begin = np.searchsorted(pairs[0], np.arange(block.max() + 2))
    total = np.bincount(cell, minlength=len(counts) * classes)
    whole = np.maximum(1, counts.sum(1))
    lacking = np.repeat(counts / whole[:, None], classes, axis=0) * total[:, None]
    possible = counts.sum(0) > 0
    side = np.zeros(block.max() + 1, dtype=np.int64)
    for one in np.argsort(-np.bincount(block), kind="stable").tolist():
        cells, n = pairs[1, begin[one] : begin[one + 1]], sizes[begin[one] : begin[one + 1]]
        gain = (lacking[cells] * (n / total[cells])[:, None]).sum(0)
        side[one] = np.argmax(np.where(possible, gain, -np.inf))
        lacking[cells, side[one]] -= n
    return side


def _fill(side: Rows, block: Rows, owner: Rows, counts: Rows, names: Sequence[str]) -> None:
    """Give a client its smallest spare block for a split that got none, the test first; in place."""
    sizes = np.bincount(block)
    ends = np.cumsum(np.bincount(owner, minlength=len(names)))
    for i, theirs in enumerate(np.split(block[np.argsort(owner, kind="stable")], ends[:-1])):
        own = np.unique(theirs)
        own = own[np.argsort(sizes[own], kind="stable")]
        for split in (TEST, TRAIN, VALIDATION):
            held = np.bincount(side[own], minlength=3)
            giver = held.argmax() if held.max() > 1 else VALIDATION  # which a client can do without
            if counts[i, split] and not held[split] and held[giver]:
                side[own[side[own] == giver][0]] = split
    _require(side, block, owner, counts, names)


def _require(side: Rows, block: Rows, owner: Rows, counts: Rows, names: Sequence[str]) -> None:
    """Every client trains and is tested on something.

    Raises:
        CoterieError: names the first client that cannot.
    """
    found = np.zeros((len(names), 3), dtype=np.int64)
    np.add.at(found, (owner, side[block]), 1)
    lacks = (found == 0) & (counts > 0)
    for i in np.flatnonzero(lacks[:, TRAIN] | lacks[:, TEST]).tolist():
        split = "train" if lacks[i, TRAIN] else "test"
        held = len(np.unique(block[owner == i]))
        raise CoterieError(
            f"Client {names[i]!r} gets no {split} examples, for its {len(block[owner == i])} examples are only {held} "
            f"{'block' if held == 1 else 'blocks'} that must stay together: leave the client out, or form smaller "
            "blocks."
        )


def _gather(rows: Rows, owner: Rows, side: Rows, clients: int) -> tuple[list[Rows], list[Rows], list[Rows]]:
    """The rows of each split by client, in the order in which they came."""
    cell = side * clients + owner
    bounds = np.cumsum(np.bincount(cell, minlength=3 * clients))[:-1]
    parts = np.split(rows[np.argsort(cell, kind="stable")], bounds)
    return parts[:clients], parts[clients : 2 * clients], parts[2 * clients :]
