"""Relations compare whole models: all trainable parameters, where published programs take one layer.

The rounds worked out by hand elsewhere are of models with a single tensor, which cannot tell.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from scipy.linalg import sqrtm
from torch import Tensor

from coterie.contract import make_algorithm
from toys import MLP, Recording, classified, simulation

FEDERATION = classified((7, 4, 9, 5, 6))


def played(name: str, rounds: int, **options: Any) -> Recording:
    sim = simulation(FEDERATION, make_algorithm(name, **options), MLP, engine=Recording, rounds=rounds)
    while not sim.finished:
        sim.advance()
    assert isinstance(sim, Recording)
    return sim


def close(actual: Tensor, expected: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def squares(one: Tensor, other: Tensor) -> Tensor:
    return (one[:, None] - other[None]).square().sum(2)


def median(distances: Tensor) -> float:
    return float(np.median(distances[torch.ones_like(distances).triu(1).bool()].numpy()))


def cosine(models: Tensor) -> Tensor:
    unit = models / models.norm(dim=1, keepdim=True)
    return unit @ unit.T


def former(name: str, **options: Any) -> tuple[Recording, Tensor]:
    """A run of two rounds, and what its clients had returned in the first one."""
    sim = played(name, 2, **options)
    return sim, sim.calls[0].returned["w"].flat()


def test_fedamp() -> None:
    sim, w = former("fedamp")
    d = squares(w, w)
    xi = torch.exp(-d / median(d)) / 4  # alpha is cut to sigma / (K - 1)
    xi.fill_diagonal_(0.0)
    close(sim.server.xi, xi + torch.diag(1 - xi.sum(1)))


def test_heurfedamp() -> None:
    sim, w = former("heurfedamp")
    scores = (10 * cosine(w)).fill_diagonal_(-torch.inf)
    close(sim.server.xi, 0.9 * scores.softmax(1) + 0.1 * torch.eye(5, dtype=torch.float64))


def test_feddwa() -> None:
    sim = played("feddwa", 1)
    answer = sim.calls[-1].returned
    near = 1 / squares(answer["guidance"].flat(), answer["w"].flat())
    close(sim.server.p, near / near.sum(1, keepdim=True))


def test_sfl() -> None:
    sim = played("sfl", 1)
    d = squares(sim.server.v.flat(), sim.server.v.flat())
    similar = torch.exp(-d / median(d))
    close(sim.server.mixing, torch.linalg.matrix_power(similar / similar.sum(1, keepdim=True), 3))


def test_mocha() -> None:
    sim = played("mocha", 1, omega="learned", every=1)
    w = sim.calls[-1].returned["w"].flat().numpy()
    root = sqrtm(w @ w.T).real
    close(sim.server.sigma, root / np.trace(root), 1e-8)


def test_fedfomo() -> None:
    """By sums of absolute differences: gains over them are what P has been told of the other models."""
    sim = played("fedfomo", 2, norm="l1", neighbours=4)
    w = sim.calls[0].returned["w"].flat()
    site = sim.calls[-1].site
    models = sim.calls[0].returned["w"]
    loss = torch.stack([site.loss("validation", models[j].repeat(5)) for j in range(5)], dim=1)
    gain = (loss.diagonal()[:, None] - loss) / (w[:, None] - w[None]).abs().sum(2).fill_diagonal_(1.0)
    close(sim.server.P, gain)


def halves(similar: Tensor) -> set[tuple[int, ...]]:
    """Complete linkage by its definition."""
    groups = [(i,) for i in range(len(similar))]
    while len(groups) > 2:
        pairs = itertools.combinations(groups, 2)
        one, other = max(pairs, key=lambda pair: min(float(similar[a, b]) for a in pair[0] for b in pair[1]))
        groups = [group for group in groups if group not in (one, other)] + [tuple(sorted(one + other))]
    return set(groups)


def test_cfl() -> None:
    told = 0
    for seed in range(4):
        federation = classified((7, 4, 9, 5, 6), seed=seed)
        options: dict[str, Any] = {"eps1": 1e6, "eps2": 0.0, "patience": 0}
        sim = simulation(federation, make_algorithm("cfl", **options), MLP, engine=Recording, rounds=1)
        sim.advance()
        assert isinstance(sim, Recording)
        change = sim.calls[-1].returned["w"] - sim.server.initial_models(5)
        node = sim.server.node
        found = {tuple((node == leaf).nonzero().flatten().tolist()) for leaf in node.unique()}
        assert found == halves(cosine(change.flat()))
        *_, (_, last) = change.parameters()
        told += found != halves(cosine(last.flatten(1)))
    assert told  # one layer alone would have parted them otherwise
