"""Steps that draw related clients' models together: along a graph of clients, or by a covariance of their tasks.

A step is a matrix M (K x K) that turns the models W, one a row, into M W.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from coterie.errors import CoterieError
from coterie.relations.distances import _chunks, _matrices

FLOOR = 1e-7
"""Eigenvalues of the Gram matrix, in units of its trace, are not taken for smaller than this."""


def largest_degree(a: Tensor, known: Tensor) -> float:
    """The largest sum of relations ``a: (K, K)`` of one client with the others among those ``known: (K,)`` bool."""
    inner = a[known][:, known].to(torch.float64)
    return float((inner.sum(dim=1) - inner.diagonal()).max()) if len(inner) else 0.0


def laplacian_step(a: Tensor, scale: float, known: Tensor) -> Tensor:
    """``w_k <- w_k - scale sum_l a_kl (w_k - w_l)`` for all clients at once, as a matrix ``I - scale (D - a)``.

    Args:
        a: ``(K, K)`` symmetric, non-negative relations; the diagonal does not matter.
        scale: length of the step.
        known: ``(K,)`` bool, who has a model to give; the others are in no sum and keep what they have.

    Returns:
        ``(K, K)`` float64, symmetric, rows sum to one, so that the mean of all models stays where it is.

    Raises:
        CoterieError: ``scale`` times the largest degree is 1 or more, where the step may overshoot.

    Source: Dinh et al. (FedU), the server's update.
    """
    reach = scale * largest_degree(a, known)
    if not reach < 1:
        raise CoterieError(f"a step of {scale:.4g} along relations with sums up to {reach / scale:.4g} overshoots.")
    among = torch.where(known[:, None] & known[None, :], scale * a.to(torch.float64), 0.0).fill_diagonal_(0.0)
    return among + torch.diag(1.0 - among.sum(dim=1))


def gram(blocks: Tensor | Iterable[Tensor]) -> Tensor:
    """Inner products of all pairs of rows, ``(K, K)`` float64 on the CPU; blocks as for `squared_distances`."""
    matrices = _matrices(blocks)
    rows = matrices[0].shape[0]
    total = torch.zeros(rows, rows, dtype=torch.float64, device=matrices[0].device)
    for part in _chunks(matrices, rows):
        total += part @ part.T
    return ((total + total.T) / 2).cpu()


def task_covariance(products: Tensor) -> Tensor:
    """MOCHA's covariance of tasks, ``Sigma = (W'W)^(1/2) / tr (W'W)^(1/2)``.

    Args:
        products: ``(K, K)`` inner products W'W of the clients' models, positive semi-definite up to rounding.

    Returns:
        ``(K, K)`` float64, symmetric, positive definite, of trace 1; ``I / K`` for models that are all zero.

    Source: Smith et al., NeurIPS 2017 (MOCHA), the update of Omega; the unit of the floor is ours.
    """
    clients = len(products)
    exact = products.to(torch.float64)
    trace = float(exact.diagonal().sum())
    if not trace > 0:
        return torch.eye(clients, dtype=torch.float64) / clients
    values, vectors = torch.linalg.eigh((exact + exact.T) / (2 * trace))
    root = (vectors * values.clamp(min=FLOOR).sqrt()) @ vectors.T
    root = (root + root.T) / 2
    sigma: Tensor = root / root.diagonal().sum()
    return sigma


def covariance_step(sigma: Tensor, scale: float) -> Tensor:
    """``(I + scale Sigma^-1)^-1``, the step to the minimiser of ``|M - W|^2 / 2 + (scale / 2) tr(M' Sigma^-1 M)``.

    It is computed as ``Sigma (Sigma + scale I)^-1``, so that nothing is inverted that could be singular.

    Args:
        sigma: ``(K, K)`` symmetric, positive semi-definite.
        scale: length of the step, 0 or more.

    Returns:
        ``(K, K)`` float64, symmetric, eigenvalues in (0, 1]: no length overshoots.
    """
    values, vectors = torch.linalg.eigh(sigma.to(torch.float64))
    values = values.clamp(min=torch.finfo(torch.float64).tiny)
    step: Tensor = (vectors * (values / (values + scale))) @ vectors.T
    return (step + step.T) / 2
