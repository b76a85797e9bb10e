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
