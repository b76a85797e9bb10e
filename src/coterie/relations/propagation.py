"""Propagation of models over a graph of clients: from similarities to the matrix that mixes models.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA).
"""

import math
from typing import Literal

import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from coterie.errors import CoterieError

TIE_DECIMALS = 10
"""Similarities equal to this many decimals tie: equal data may differ in the last bits of a product."""

LARGEST_EXPONENT = 650.0
"""exp overflows float64 above about 709; the margin is for sums of a row."""


def similarity_graph(
    similarity: Tensor,
    *,
    kind: Literal["cos", "exp_cos"] = "cos",
    temperature: float = 10.0,
    topk: int | None = None,
    self_loop: bool = True,
    seen: Tensor | None = None,
) -> Tensor:
    """Return the weights W of the graph of clients.

    Args:
        similarity: ``(K, K)`` similarities. NaN means unknown: no edge. So does a negative value.
        kind: "cos" takes the similarities themselves (the paper); "exp_cos" takes ``exp(temperature *
            similarity)`` (the released code), which sets close clients apart from the many that are almost
            equally similar.
        temperature: factor of the exponent, at least 0.
        topk: keep only this many largest weights per row; ties go to the lower index. With a self loop the
            client itself is one of the candidates. None keeps all.
        self_loop: keep the diagonal. The released code drops it.
        seen: ``(K,)`` bool; the columns of other clients are no candidates. None means all.

    Returns:
        ``(K, K)`` float64, non-negative; in general not symmetric if ``topk`` is given.

    Raises:
        CoterieError: an option is out of range, or ``exp`` would overflow.

    Source: FEDORA, Equation 5, and the authors' code (temperature 10, topk 2, no self loop).
    """
    if topk is not None and topk < 1:
        raise CoterieError(f"topk must be at least 1 (or none for all clients), got {topk}.")
    values = similarity.to(torch.float64)
    edge = torch.isfinite(values) & (values >= 0)
    if not self_loop:
        edge.fill_diagonal_(False)
    if seen is not None:
        edge = edge & seen.to(device=edge.device, dtype=torch.bool)[None, :]
    if topk is not None:
        edge &= _first(torch.where(edge, values.round(decimals=TIE_DECIMALS), -torch.inf), topk)
    weights = torch.where(edge, values, torch.zeros_like(values))
    if kind == "exp_cos":
        exponents = _exponents(weights, temperature)
        return torch.where(edge, exponents.exp(), torch.zeros_like(values))
    if kind != "cos":
        raise CoterieError(f"The kind of a similarity graph must be 'cos' or 'exp_cos', got {kind!r}.")
    return weights


def row_stochastic(W: Tensor, *, fallback: Literal["self", "uniform"] = "self") -> Tensor:
    """Return ``P = D^-1 W`` with ``D_kk = sum_l w_kl``.

    Args:
        W: ``(m, K)`` non-negative weights.
        fallback: what a client without any edge gets: only itself ("self", for square W), or every client
            alike ("uniform", for rows of newcomers, who are no column).

    Returns:
        ``(m, K)`` float64, rows sum to one.

    Raises:
        ValueError: a weight is negative or not finite, or the fallback does not fit the shape.
    """
    weights = W.to(torch.float64)
    if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()):
        raise ValueError("weights of a graph must be finite and not negative")
    rows, columns = weights.shape
    if fallback == "self" and rows != columns:
        raise ValueError(f"a row can fall back to itself in a square matrix only, got {rows} x {columns}")
    identity = torch.eye(rows, columns, dtype=torch.float64, device=W.device)
    alone = identity if fallback == "self" else torch.ones_like(weights)
    lonely = weights.sum(dim=1, keepdim=True) == 0
    weights = torch.where(lonely, alone, weights)
    return weights / weights.sum(dim=1, keepdim=True)


def restrict(W: Tensor, seen: Tensor) -> Tensor:
    """Return the row-stochastic matrix of a graph in which clients never seen pass nothing on.

    Args:
        W: ``(K, K)`` non-negative weights.
        seen: ``(K,)`` bool, clients that have uploaded a model at least once.

    Returns:
        ``(K, K)`` float64: columns of unseen clients are zero and rows sum to one. A row without any seen
        neighbour falls back to itself.
    """
    mask = seen.to(device=W.device, dtype=torch.bool)[None, :]
    return row_stochastic(torch.where(mask, W, torch.zeros_like(W)))


def propagation_matrix(P: Tensor, alpha: float, *, exact: bool = False, seen: Tensor | None = None) -> Tensor:
    """Return the matrix A with ``Theta_hat = A Theta``: the propagation in closed form.

    ``A = (1 - kappa) (I - kappa P)^-1`` with ``kappa = alpha / (1 + alpha)``, computed in the equivalent form
    ``(I + alpha (I - P))^-1``, which stays accurate for large ``alpha``. For ``alpha = inf`` it is the limit:
    within a group of clients that reach each other, all receive the stationary average (``D_kk / sum D`` for
    symmetric W); clients outside such groups receive the mixture of the groups they lead to.

    Args:
        P: ``(K, K)`` row-stochastic matrix of the graph.
        alpha: strength of the propagation, 0 (none) to ``math.inf``.
        exact: minimise the server's objective as printed, ``A = (I + alpha/2 (I + C - P - P'))^-1`` with C
            the column sums of P. Equal to the default for symmetric P.
        seen: ``(K,)`` bool, whom ``exact`` is about; the others' columns of P are zero, and they take from these
            without pulling at them. None means all.

    Returns:
        ``(K, K)`` float64, non-negative, rows sum to one.

    Raises:
        CoterieError: ``alpha`` is negative or NaN.

    Source: FEDORA, Equation 6; ``exact`` is the minimiser of Equation 3 for a P that is not symmetric.
    """
    if not alpha >= 0:
        raise CoterieError(f"alpha must be at least 0, got {alpha}.")
    rates = P.to(torch.float64).clone()
    if exact:
        both = torch.ones(len(rates), 1, dtype=torch.bool) if seen is None else seen.reshape(-1, 1)
        rates = torch.where((both & both.T).to(rates.device), (rates + rates.T) / 2, rates)
    rates.fill_diagonal_(0.0)
    if math.isinf(alpha):
        return _limit(rates)
    given = (rates > 0).any(dim=0).nonzero().flatten()  # only these pass something on: the others need no equations
    system = alpha * _laplacian(rates[given][:, given])
    system.diagonal().add_(1.0)
    among = torch.linalg.solve(system, torch.eye(len(given), dtype=torch.float64, device=rates.device))
    if len(given) == len(rates):
        return _cleaned(among)
    A = alpha * (rates[:, given] @ among)
    A = torch.zeros_like(rates).index_copy_(1, given, A)
    A.diagonal().add_(1.0)
    A /= 1.0 + alpha * rates.sum(dim=1, keepdim=True)
    A[given] = torch.zeros_like(A[given]).index_copy_(1, given, among)
    return _cleaned(A)


def taking_rows(W: Tensor, own: Tensor, alpha: float) -> Tensor:
    """Return the rows that the propagation has for clients who take from others and pass nothing on.

    ``th^_k = kappa P_k Theta_hat + (1 - kappa) theta_k``: what the others receive does not depend on them, so that no
    equations have to be solved.

    Args:
        W: ``(r, K)`` their weights, zero for whoever passes nothing on.
        own: ``(r,)`` their numbers among the K, whose ``th^`` is still their ``theta``.
        alpha: strength of the propagation, 0 to ``math.inf``.

    Returns:
        ``(r, K)`` float64, to be multiplied with ``Theta_hat``; rows sum to one. Without a neighbour a client keeps
        its model.

    Source: FEDORA, the fixed point of Equation 6.
    """
    kappa = 1.0 if math.isinf(alpha) else alpha / (1.0 + alpha)
    weights = W.to(torch.float64)
    keep = torch.zeros_like(weights)
    keep[torch.arange(len(own)), own] = 1.0
    total = weights.sum(dim=1, keepdim=True)
    P = torch.where(total > 0, weights / total, keep)
    return kappa * P + (1.0 - kappa) * keep


def propagate_iteratively(P: Tensor, theta: Tensor, alpha: float, tolerance: float = 1e-6) -> Tensor:
    """Propagate by iteration of ``Theta_hat <- kappa P Theta_hat + (1 - kappa) Theta`` from ``Theta``.

    The change shrinks by at least ``kappa`` per step in the largest entry, which bounds the number of steps.

    Args:
        P: ``(K, K)`` row-stochastic matrix of the graph.
        theta: ``(K, ...)`` floating point models; computed in their dtype.
        alpha: strength of the propagation, finite; ``kappa = alpha / (1 + alpha)``.
        tolerance: stop when the largest change falls below this share of the largest entry of ``theta``.

    Returns:
        ``(K, ...)`` propagated models in the dtype of ``theta``.

    Raises:
        CoterieError: ``alpha`` is negative or infinite, or ``tolerance`` is not between 0 and 1.

    Source: FEDORA, Equation 7.
    """
    kappa = alpha / (1 + alpha) if alpha >= 0 else math.nan
    if not kappa < 1:
        raise CoterieError(f"The iterative propagation needs a finite alpha of at least 0, got {alpha}.")
    if not 0 < tolerance < 1:
        raise CoterieError(f"tolerance must lie between 0 and 1, got {tolerance}.")
    start = theta.detach().reshape(theta.shape[0], theta[:1].numel())
    if kappa == 0 or start.numel() == 0:
        return theta.detach().clone()
    transition = P.to(dtype=theta.dtype, device=theta.device)
    enough = tolerance * float(start.abs().max())
    steps = 1 + math.ceil(math.log(tolerance / 2) / math.log(kappa))
    current = start
    for _ in range(steps):
        following = kappa * (transition @ current) + (1 - kappa) * start
        change = float((following - current).abs().max())
        current = following
        if change <= enough:
            break
    return current.reshape(theta.shape)


def _first(ranking: Tensor, count: int) -> Tensor:
    """Which entries of each row of ``ranking: (m, K)`` are its largest ``count``, bool; ties go to the lower index."""
    least = ranking.topk(min(count, ranking.shape[1]), dim=1).values[:, -1:]
    above, level = ranking > least, ranking == least
    missing = count - above.sum(dim=1, keepdim=True)
    return above | (level & (level.cumsum(dim=1) <= missing))


def _exponents(similarity: Tensor, temperature: float) -> Tensor:
    """Return ``temperature * similarity`` after checking that its exponential stays finite."""
    if not 0 <= temperature < math.inf:
        raise CoterieError(f"temperature must be a finite number of at least 0, got {temperature}.")
    exponents = temperature * similarity
    if exponents.numel() and float(exponents.max()) > LARGEST_EXPONENT:
        raise CoterieError(
            f"temperature {temperature} times a similarity of {float(similarity.max()):.3g} overflows the "
            "exponential; lower the temperature."
        )
    return exponents


def _laplacian(rates: Tensor) -> Tensor:
    """Laplacian of off-diagonal rates; its diagonal is their sum, more accurate than ``1 - P_kk``."""
    return torch.diag(rates.sum(dim=1)) - rates


def _cleaned(A: Tensor) -> Tensor:
    """Remove rounding: no entry below zero, rows that sum to one."""
    positive = A.clamp(min=0.0)
    return positive / positive.sum(dim=1, keepdim=True)


def _limit(rates: Tensor) -> Tensor:
    """Limit of ``(I + alpha L)^-1`` for alpha to infinity, L the Laplacian of ``rates`` (K, K).

    A closed class is a group of clients that reach each other and nobody else; its rows become its stationary
    distribution. The other, transient clients mix the closed classes by their probabilities of ending there.
    """
    clients = rates.shape[0]
    count, labels = connected_components(rates.cpu().numpy() > 0, directed=True, connection="strong")
    label = torch.as_tensor(labels, dtype=torch.int64, device=rates.device)
    leaves = ((rates > 0) & (label[:, None] != label[None, :])).any(dim=1)
    A = torch.zeros(clients, clients, dtype=torch.float64, device=rates.device)
    transient = torch.zeros(clients, dtype=torch.bool, device=rates.device)
    for group in range(count):
        members = torch.nonzero(label == group).flatten()
        if bool(leaves[members].any()):
            transient[members] = True
        else:
            A[members[:, None], members[None, :]] = _stationary(rates[members][:, members])
    settled = ~transient
    if bool(transient.any()):
        laplacian = _laplacian(rates)
        absorbed = torch.linalg.solve(laplacian[transient][:, transient], rates[transient][:, settled] @ A[settled])
        A[transient] = absorbed
    return _cleaned(A)


def _stationary(rates: Tensor) -> Tensor:
    """Stationary distribution (m,) of one irreducible class: ``pi L = 0``, ``sum pi = 1``."""
    system = _laplacian(rates).T.clone()
    system[-1] = 1.0
    right = torch.zeros(rates.shape[0], dtype=torch.float64, device=rates.device)
    right[-1] = 1.0
    stationary: Tensor = torch.linalg.solve(system, right)
    return stationary
