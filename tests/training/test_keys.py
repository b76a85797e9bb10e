"""Random numbers keyed by what they are for: fixed for ever, and random enough."""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import chisquare

from coterie.models import dropout
from coterie.training.keys import client_keys, generator, mix, server_key, shuffled, word


def test_golden_values() -> None:
    """These numbers decide every published result; they must never change."""
    assert word("client-07") == 3440710964880092824
    assert server_key(0, 1, "cohort") == 17059040507463791682
    assert server_key(2**64 + 5, 3, "x") == server_key(5, 3, "x")
    assert client_keys(0, ["client-0", "client-1"], 1, "batches:train").tolist() == [
        476504217060664170,
        15235680914521127902,
    ]
    assert generator(0, 1, "cohort").integers(1000, size=4).tolist() == [120, 221, 977, 916]
    keys = client_keys(7, ["a", "b"], 2, "batches:train")
    assert shuffled(keys, np.array([6, 4]), 0).tolist() == [4, 0, 3, 5, 2, 1, 2, 1, 0, 3]
    assert shuffled(keys, np.array([6, 4]), 1).tolist() == [4, 3, 1, 5, 0, 2, 3, 1, 2, 0]


def test_mix_is_splitmix64() -> None:
    """The first outputs of the published generator with seed 0."""
    golden = 0x9E3779B97F4A7C15
    states = np.array([golden * i % 2**64 for i in (1, 2, 3)], dtype=np.uint64)
    assert [hex(v) for v in mix(states).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]
    signed = dropout.mix(torch.from_numpy(states.astype(np.int64)))
    assert signed.numpy().astype(np.uint64).tolist() == mix(states).tolist()


def test_everything_in_a_key_matters() -> None:
    keys = {
        int(client_keys(seed, [name], round, purpose)[0])
        for seed in range(3) for name in ("a", "b", "ab") for round in range(3) for purpose in ("x", "y", "xy")
    }  # fmt: skip
    assert len(keys) == 81


def test_keys_of_clients_do_not_depend_on_company() -> None:
    whole = client_keys(0, ["a", "b", "c"], 1, "x")
    assert client_keys(0, ["c", "a"], 1, "x").tolist() == [whole[2], whole[0]]
    assert len(client_keys(0, [], 1, "x")) == 0


def test_shuffles_are_permutations_with_an_epoch_of_their_own() -> None:
    keys, counts = client_keys(0, list("abcd"), 1, "x"), np.array([5, 0, 1, 9])
    together = shuffled(keys, counts, np.array([0, 1, 2, 3]))
    bounds = np.cumsum(counts)[:-1]
    for client, part in enumerate(np.split(together, bounds)):
        assert sorted(part.tolist()) == list(range(counts[client]))
        alone = shuffled(keys[client : client + 1], counts[client : client + 1], client)
        assert part.tolist() == alone.tolist()


def test_shuffles_are_uniform() -> None:
    """Each value at each place equally often, and each of the 24 orders of four."""
    clients, n = 4800, 4
    keys = client_keys(0, [f"client-{i}" for i in range(clients)], 1, "batches:train")
    orders = shuffled(keys, np.full(clients, n), 0).reshape(clients, n)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > 1e-4
    for place in range(n):
        assert chisquare(np.bincount(orders[:, place], minlength=n)).pvalue > 1e-4
    later = shuffled(keys, np.full(clients, n), 1).reshape(clients, n)
    same = int((orders == later).all(1).sum())
    assert abs(same - clients / 24) < 5 * (clients / 24) ** 0.5


def test_dropout_draws_are_uniform_and_independent_of_neighbours() -> None:
    keys = torch.arange(64)
    draws = torch.stack([dropout.uniform(dropout.mix(key), 1000) for key in keys])
    assert draws.dtype == torch.float64
    assert float(draws.min()) >= 0
    assert float(draws.max()) <= 1
    assert chisquare(np.histogram(draws.numpy(), bins=50, range=(0, 1))[0]).pvalue > 1e-4
    assert abs(float(torch.corrcoef(draws).fill_diagonal_(0).abs().max())) < 5 / 1000**0.5
    assert abs(float(torch.corrcoef(draws[:, :64].T).fill_diagonal_(0).abs().max())) < 5 / 64**0.5
