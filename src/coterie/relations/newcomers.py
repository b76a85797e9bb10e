"""A newcomer as one more row and column of what relates the clients of a trained federation."""

import torch
from torch import Tensor


def with_newcomer(relations: Tensor, towards: Tensor, own: float) -> Tensor:
    """Append one client to a symmetric matrix of distances or similarities.

    Args:
        relations: ``(K, K)`` between the members.
        towards: ``(K,)`` between the newcomer and the members.
        own: the newcomer's entry with itself.

    Returns:
        ``(K + 1, K + 1)`` float64, the newcomer last.
    """
    K = relations.shape[0]
    joined = torch.full((K + 1, K + 1), own, dtype=torch.float64, device=relations.device)
    joined[:K, :K] = relations
    joined[:K, K] = joined[K, :K] = towards.to(relations.device, torch.float64)
    return joined
