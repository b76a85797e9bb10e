"""Clients in clusters: who belongs together, and what a cluster's members count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import Tensor


def name_order(names: Sequence[str]) -> Tensor:
    """The clients' numbers in the order of their names, ``(K,)``: what is drawn or tied by it survives relabelling."""
    return torch.tensor(sorted(range(len(names)), key=names.__getitem__), dtype=torch.int64)


def membership(cluster: Tensor) -> Tensor:
    """Who shares a model with whom.

    Args:
        cluster: ``(K,)`` the cluster of each client; negative where it has none.

    Returns:
        ``(K, K)`` float64: one over the size of the cluster between its members, NaN in the row of a client without.
    """
    alike = (cluster.unsqueeze(1) == cluster.unsqueeze(0)).double()
    return torch.where(cluster.unsqueeze(1) < 0, torch.nan, alike / alike.sum(dim=1, keepdim=True))


def cluster_shares(cluster: Tensor, weights: Tensor, count: int) -> Tensor:
    """The share of each client in the mean of its cluster.

    Args:
        cluster: ``(m,)`` the cluster of each client, ``0 .. count - 1``.
        weights: ``(m,)`` what each client counts, float64 and positive.
        count: number of clusters.

    Returns:
        ``(count, m)`` float64; a row sums to one, or is zero where the cluster is empty.
    """
    rows = weights.new_zeros(count, len(cluster))
    rows[cluster, torch.arange(len(cluster))] = weights
    total = rows.sum(dim=1, keepdim=True)
    return rows / torch.where(total > 0, total, 1.0)


def shuffled_groups(order: Tensor, count: int, draw: np.random.Generator) -> Tensor:
    """Random groups whose sizes differ by one at most.

    Args:
        order: ``(K,)`` the clients in an order that their numbers do not matter for, as of :func:`name_order`.
        count: number of groups.
        draw: where the shuffle comes from.

    Returns:
        ``(K,)`` the group of each client, ``0 .. count - 1``.
    """
    group = torch.empty_like(order)
    group[order] = torch.from_numpy(draw.permutation(len(order)) % count)
    return group


def seed_centres(
    distances: Tensor, draws: NDArray[np.float64], nearest: Tensor | None = None, equal: float = 0.0
) -> Tensor:
    """k-means++: points that lie apart, each drawn with a probability that grows with its squared distance.

    Args:
        distances: ``(K, K)`` squared distances between points.
        draws: a uniform number in [0, 1) for each point to choose.
        nearest: ``(K,)`` squared distances to the nearest centre that there is already, if any.
        equal: squared distances up to this one are none.

    Returns:
        ``(c,)`` numbers of the chosen points, fewer than draws where there are no more points that differ.

    Source: Arthur and Vassilvitskii, "k-means++: The advantages of careful seeding", SODA 2007.
    """
    chosen: list[int] = []
    for draw in draws:
        chance = torch.ones(len(distances), dtype=torch.float64) if nearest is None else nearest.double()
        reach = torch.where(chance > equal, chance, 0.0).cumsum(0)
        if reach[-1] <= 0:
            break
        chosen.append(int(torch.searchsorted(reach, reach[-1] * float(draw), right=True)))
        nearest = distances[chosen[-1]] if nearest is None else torch.minimum(nearest, distances[chosen[-1]])
    return torch.tensor(chosen, dtype=torch.int64)


def bipartition(similarities: Tensor) -> Tensor:
    """Two groups by agglomerative clustering with complete linkage: the least similar members decide.

    Args:
        similarities: ``(m, m)`` symmetric, such as cosines; m >= 2.

    Returns:
        ``(m,)`` bool, true for those that are not with the first one. Ties depend on the order of the rows.

    Source: Sattler, Müller and Samek, "Clustered Federated Learning", TNNLS 2021, Algorithm 1.
    """
    apart = (1.0 - (similarities + similarities.T) / 2).double()
    apart.fill_diagonal_(0.0)
    tree = linkage(squareform(apart.numpy(), checks=False), method="complete")
    groups = torch.from_numpy(cut_tree(tree, 2).ravel().astype(np.int64))
    return groups != groups[0]


def descend(children: Tensor, node: Tensor, similarities: Tensor) -> Tensor:
    """The leaves of a binary tree that are reached by always going to the more similar child.

    Args:
        children: ``(N, 2)`` the two children of each node, -1 for a leaf.
        node: ``(k,)`` where each client begins.
        similarities: ``(k, N)`` of each client with each node.

    Returns:
        ``(k,)`` leaves; the first child wins a tie.
    """
    while bool((inner := children[node, 0] >= 0).any()):
        below = children[node].clamp(min=0)
        second = similarities.gather(1, below)[:, 1] > similarities.gather(1, below)[:, 0]
        node = torch.where(inner, below.gather(1, second.long().unsqueeze(1)).squeeze(1), node)
    return node
