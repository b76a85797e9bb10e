"""Random numbers keyed by (seed, client name, round, purpose), never by the order of calls.

A key is a 64-bit number; draws are hashes of (key, counter), so they come out the same whatever the engine,
the chunk or the executor, and are computed for all clients at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(value: Keys) -> Keys:
    """The finaliser of splitmix64: well-mixed bits of every entry of ``value``, any shape."""
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


@cache
def word(text: str) -> int:
    """A text as a 64-bit number."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def client_keys(seed: int, names: Sequence[str], round: int, purpose: str) -> Keys:
    """One key per client: ``(k,)`` uint64."""
    clients = np.array([word(name) for name in names], dtype=np.uint64)
    return mix(clients ^ np.uint64(server_key(seed, round, purpose)))


def server_key(seed: int, round: int, purpose: str) -> int:
    """A key that belongs to no client, for cohorts and initial weights."""
    with np.errstate(over="ignore"):
        state = mix(np.array([seed % 2**64], dtype=np.uint64) + _GOLDEN)
        state = mix(state + np.array([round], dtype=np.uint64) * _GOLDEN)
        return int(mix(state ^ np.uint64(word(purpose)))[0])


def generator(seed: int, round: int, purpose: str) -> np.random.Generator:
    """A numpy generator for draws that belong to no client."""
    return np.random.Generator(np.random.Philox(server_key(seed, round, purpose)))


def shuffled(keys: Keys, counts: NDArray[np.int64], epoch: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """A random order of every client's own examples, flat: ``(sum of counts,)`` positions within each client.

    ``keys: (k,)``, ``counts: (k,)`` and one epoch or ``(k,)``; client i's part is a permutation of
    ``0 .. counts[i] - 1``.
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    with np.errstate(over="ignore"):
        epoch_keys = mix(keys + (np.asarray(epoch) + 1).astype(np.uint64) * _GOLDEN)
        draws = mix(epoch_keys[owner] ^ mix(within.astype(np.uint64) + np.uint64(1)))
    return within[np.lexsort((draws, owner))]
