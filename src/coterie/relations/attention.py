"""How much of every other client's model a client receives, from distances or angles between the models.

Source: Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data" (FedAMP), AAAI 2021.
"""

import math

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations.distances import median_distance


def effective_alpha(alpha: float, sigma: float, clients: int) -> float:
    """FedAMP's step size, capped so that no client gives its own model a negative weight.

    ``xi_ij <= alpha / sigma``, so ``alpha <= sigma / (K - 1)`` keeps ``xi_ii = 1 - sum_j xi_ij``
    non-negative.

    Args:
        alpha: the step size asked for.
        sigma: kernel width, in the unit of squared distances.
        clients: number of clients K that share the mixture.

    Returns:
        ``min(alpha, sigma / (K - 1))``; ``alpha`` itself for a single client.
    """
    return min(alpha, sigma / (clients - 1)) if clients > 1 else alpha


def attention(sq_distances: Tensor, sigma: float, alpha: float, relative: bool = False) -> Tensor:
    """FedAMP's mixing weights ``xi_ij = alpha A'(d_ij)`` with ``A(x) = 1 - exp(-x / sigma)``.

    Args:
        sq_distances: ``(K, K)`` squared distances between the clients' models.
        sigma: kernel width; distances far beyond it exchange nothing.
        alpha: step size, capped by :func:`effective_alpha`.
        relative: measure ``sigma`` in units of the median squared distance, because the scale of squared
            distances grows with the size of the model.

    Returns:
        ``(K, K)`` float64, non-negative, rows sum to one; ``u_i = sum_j xi_ij w_j``. A distance that is not
        finite gives no weight.

    Raises:
        CoterieError: ``sigma`` is not positive, or ``alpha`` is negative or not finite.

    Source: FedAMP's attention-inducing function; the cap on ``alpha`` is ours.
    """
    if not sigma > 0:
        raise CoterieError(f"sigma must be greater than 0, got {sigma}.")
    if not 0 <= alpha < math.inf:
        raise CoterieError(f"alpha must be a finite number of at least 0, got {alpha}.")
    distances = sq_distances.to(torch.float64)
    clients = distances.shape[0]
    if clients < 2:
        return torch.ones_like(distances)
    width = sigma * median_distance(distances) if relative else sigma
    # The quotient is formed first: it stays at most 1 / (K - 1) for every width.
    share = effective_alpha(alpha, width, clients) / width
    xi = share * torch.exp(-distances / width)
    xi = torch.where(torch.isfinite(distances), xi, torch.zeros_like(xi))
    return _with_own_share(xi)


def cosine_attention(cos: Tensor, self_weight: float, sigma: float) -> Tensor:
    """HeurFedAMP's mixing weights: a fixed own share, the rest by a softmax over cosines.

    ``xi_ii = self_weight``, ``xi_ij = (1 - self_weight) exp(sigma cos_ij) / sum_{h != i} exp(sigma cos_ih)``.

    Args:
        cos: ``(K, K)`` cosines between the clients' models.
        self_weight: own share ``xi_ii`` in [0, 1].
        sigma: inverse temperature of the softmax.

    Returns:
        ``(K, K)`` float64, non-negative, rows sum to one. A client without any known cosine keeps its own
        model.

    Raises:
        CoterieError: ``self_weight`` lies outside [0, 1].

    Source: the heuristic for deep networks (HeurFedAMP) in the same paper.
    """
    if not 0 <= self_weight <= 1:
        raise CoterieError(f"self_weight must lie between 0 and 1, got {self_weight}.")
    scores = sigma * cos.to(torch.float64)
    scores = torch.where(torch.isfinite(scores), scores, torch.full_like(scores, -torch.inf))
    scores.fill_diagonal_(-torch.inf)
    # torch's softmax subtracts the maximum; a row of -inf alone (nobody else) comes out as NaN.
    xi = (1 - self_weight) * torch.softmax(scores, dim=1)
    return _with_own_share(torch.nan_to_num(xi, nan=0.0))


def _with_own_share(xi: Tensor) -> Tensor:
    """Set the diagonal to what the other entries leave of one; rounding may not push it below zero."""
    xi.fill_diagonal_(0.0)
    xi.diagonal().copy_((1 - xi.sum(dim=1)).clamp(min=0.0))
    return xi
