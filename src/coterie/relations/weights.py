"""Weights on the simplex: non-negative numbers that sum to one."""

import torch
from torch import Tensor

from coterie.errors import CoterieError


def normalised(n: Tensor) -> Tensor:
    """Weights proportional to ``n``, the usual ``p_k = n_k / sum_j n_j`` of federated averaging.

    Args:
        n: ``(..., k)`` non-negative sizes, of any number type.

    Returns:
        ``(..., k)`` float64; every slice along the last axis sums to one. An empty cohort gives empty
        weights.

    Raises:
        CoterieError: a size is negative or not finite, or all sizes of a slice are zero.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """
    sizes = n.to(torch.float64)
    if sizes.shape[-1] == 0:
        return sizes
    if not bool(torch.isfinite(sizes).all()) or bool((sizes < 0).any()):
        raise CoterieError("Aggregation weights must be finite and not negative; check the clients' sizes.")
    total = sizes.sum(dim=-1, keepdim=True)
    if bool((total == 0).any()):
        raise CoterieError("All aggregation weights are zero; at least one client needs training data.")
    return sizes / total


def inverse_distance_weights(sq_distances: Tensor, topk: int | None = None) -> Tensor:
    """The minimiser of ``sum_j p_j^2 d_ij`` over the simplex, ``p_ij = d_ij^-1 / sum_l d_il^-1``, cut to the largest.

    Distances of exactly zero share the whole weight: ``1e-12`` times the row's median is added to every distance.

    Args:
        sq_distances: ``(K, L)`` squared distances; one that is not finite gives no weight.
        topk: how many weights of a row are kept and renormalised; all by default. Ties go to the lower column.

    Returns:
        ``(K, L)`` float64, non-negative, rows sum to one.

    Source: Liu et al., IJCAI 2023 (FedDWA), the problem with the diagonal of its matrix only; the guard is ours.
    """
    distances = sq_distances.to(torch.float64)
    known = torch.isfinite(distances)
    positive = torch.where(known & (distances > 0), distances, torch.full_like(distances, torch.nan))
    tiny = 1e-12 * positive.nanmedian(dim=1, keepdim=True).values.nan_to_num(nan=1e12)
    tiny = tiny.clamp(min=torch.finfo(torch.float64).tiny)
    # The smallest distance of a row in units of each other one: at most 1, so that nothing overflows.
    shifted = torch.where(known, distances + tiny, torch.full_like(distances, torch.inf))
    inverse = shifted.amin(dim=1, keepdim=True) / shifted
    inverse = torch.where(known, inverse, torch.zeros_like(inverse))
    if topk is not None and topk < inverse.shape[1]:
        order = inverse.argsort(dim=1, descending=True, stable=True)
        inverse.scatter_(1, order[:, topk:], 0.0)
    return normalised(inverse)


def mean_self_weight(weights: Tensor, met: Tensor) -> float:
    """The mean weight that clients give their own model: near 1 a method is nearly LOCAL, as it is before anyone met.

    Args:
        weights: ``(K, K)``, row i what client i's model is made of.
        met: ``(K,)`` bool, whose rows are known; the others do not count.
    """
    return float(weights.diagonal()[met].mean()) if bool(met.any()) else 1.0
