"""A client's posterior over models: with whom it collaborates, by how well each model explains its data."""

from __future__ import annotations

import torch
from torch import Tensor


def posterior(tracked: Tensor, observed: Tensor, own: Tensor | None = None) -> Tensor:
    """``w_i. = softmax(-L^_i.)`` over the models that were evaluated.

    Args:
        tracked: ``(k, K)`` tracked losses L^, minus log-likelihoods up to a constant of each row.
        observed: ``(k, K)`` whether the client has evaluated the model, and its last loss was finite.
        own: ``(k,)`` the model that has all the weight where there is no such model; without it the row is NaN.

    Returns:
        ``(k, K)``, rows sum to one; models not evaluated have no weight.

    Source: "Find Your Friends: Personalized Federated Learning with the Right Collaborators" (FedeRiCo), Algorithm 1.
    """
    if own is not None:
        itself = own.unsqueeze(1) == torch.arange(observed.shape[1], device=own.device)
        observed = observed | (itself.to(observed.device) & ~observed.any(dim=1, keepdim=True))
    return torch.where(observed, -tracked, -torch.inf).softmax(dim=1)


def responsibilities(pi: Tensor, losses: Tensor) -> Tensor:
    """``q_sm ~ pi_sm exp(-l_sm)``: which component of a mixture each example comes from.

    Args:
        pi: ``(n, M)`` each example's prior weights of the components; below 1e-12 they count as 1e-12.
        losses: ``(n, M)`` the loss of each example under each component, minus its log-likelihood.

    Returns:
        ``(n, M)`` in the type of ``losses``, rows sum to one.

    Source: Marfoq et al., "Federated Multi-Task Learning under a Mixture of Distributions" (FedEM), Eq. (10).
    """
    return (pi.clamp(min=1e-12).log() - losses).softmax(dim=1)


def heaviest(w: Tensor, negligible: float) -> tuple[Tensor, Tensor]:
    """The weights of each row that are not negligible beside its largest, heaviest first, and whose they are.

    Args:
        w: ``(k, K)`` weights, not negative.
        negligible: a share of the row's largest weight; weights below it are left out.

    Returns:
        ``weights: (k, m)`` that sum to one, and ``index: (k, m)``; a row with fewer than m weights ends with zeros.
    """
    kept = torch.where(w >= negligible * w.amax(dim=1, keepdim=True), w, 0.0)
    weights, index = kept.topk(max(1, int((kept > 0).sum(dim=1).max())), dim=1)
    return weights / weights.sum(dim=1, keepdim=True), index


def track_losses(
    tracked: Tensor, last: Tensor, observed: Tensor, losses: Tensor, index: Tensor | None, beta: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Note the losses of a round; models not evaluated in it count with their last loss.

    A loss that is not finite says that the model is of no use now. It is no evaluation, so that no sum ever holds it;
    the model counts as not observed until it has a finite loss again, which is taken as a first one is.

    Args:
        tracked: ``(k, K)`` tracked losses L^ of the rounds before.
        last: ``(k, K)`` the loss at each model's last evaluation.
        observed: ``(k, K)`` whether there was one.
        losses: ``(k, c)`` this round's losses.
        index: ``(k, c)`` the models that they are of; None stands for all K in their order.
        beta: weight of the last loss in ``L^ <- (1 - beta) L^ + beta l``, where a model's first loss is taken whole;
            None accumulates, ``L^ <- L^ + l``.

    Returns:
        ``tracked``, ``last`` and ``observed`` after the round, fresh tensors.

    Source: FedeRiCo, Algorithm 1 (moving average) and its E-step unrolled (accumulated).
    """
    if index is None:
        index = torch.arange(last.shape[1], device=last.device).expand(losses.shape)
    finite = losses.isfinite()
    last = last.scatter(1, index, torch.where(finite, losses, last.gather(1, index)))
    seen = observed.scatter(1, index, finite)
    if beta is None:
        return tracked + last, last, seen  # both are 0 where there was no loss yet
    moved = (1.0 - beta) * tracked + beta * last
    return torch.where(seen & ~observed, last, moved), last, seen


def owner_shares(owners: Tensor, weights: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """What each owner takes from the contributions to its model.

    Args:
        owners: ``(s,)`` whose model each contribution is for.
        weights: ``(s,)`` float64 its weight w_ib, not negative.
        K: number of owners.

    Returns:
        ``mass: (K,)``, the sum of the weights of each owner's contributions, and ``share: (K, s)``, these weights
        divided by it. An owner without contributions, or with none of any weight, has a row of zeros.
    """
    mass = torch.zeros(K, dtype=torch.float64).index_add_(0, owners, weights)
    share = torch.zeros(K, len(owners), dtype=torch.float64)
    share[owners, torch.arange(len(owners))] = weights / mass[owners].clamp(min=torch.finfo(weights.dtype).tiny)
    return mass, share
