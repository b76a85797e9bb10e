"""Propagation over a dense symmetric graph of many clients, by the leading eigenvectors and with a bound.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA), Equation 6; the truncation and its bound are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from coterie.errors import CoterieError
from coterie.models.mixing import ENTRIES, Mixing, slices
from coterie.relations.propagation import similarity_graph
from coterie.relations.subspaces import subspace_similarity

RANK = 64
"""Eigenvectors that are kept."""

FEW = 1000
"""Up to so many clients all eigenvectors are computed, in float64; beyond, the leading ones by Lanczos' method."""

MANY = 4000
"""Beyond so many clients W is kept in float32 while its eigenvectors are sought: 400 MB for 10,000 clients."""


def _no_clients() -> Tensor:
    return torch.zeros(0, dtype=torch.int64)


def _no_weights() -> Tensor:
    return torch.zeros(0, 0, dtype=torch.float64)


@dataclass(eq=False)
class LowRank(Mixing):
    """``A = own I + left right'`` for the clients who are linked; the others keep their models or only take.

    Attributes:
        clients: number of clients K.
        alpha: strength of the propagation.
        linked: ``(m,)`` clients with a model to give and a neighbour who has one.
        left, right: ``(m, r)`` float64 factors.
        seen: ``(s,)`` clients with a model to give.
        takers: ``(u,)`` clients without, whose rows are the fixed point: ``(theta_u + alpha P_u th^) / (1 + alpha)``.
        towards: ``(u, s)`` their shares ``P_u``.
        bound: of the error, see :func:`low_rank_factors`.
    """

    clients: int = 0
    alpha: float = 0.0
    linked: Tensor = field(default_factory=_no_clients)
    left: Tensor = field(default_factory=_no_weights)
    right: Tensor = field(default_factory=_no_weights)
    seen: Tensor = field(default_factory=_no_clients)
    takers: Tensor = field(default_factory=_no_clients)
    towards: Tensor = field(default_factory=_no_weights)
    bound: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """``(K, K)``."""
        return self.clients, self.clients

    def product(self, columns: Tensor, out: Tensor | None = None) -> Tensor:
        """``A columns`` in O(K r m), for ``columns: (K, m)``."""
        result = torch.empty_like(columns) if out is None else out
        left, right, towards = (each.to(columns) for each in (self.left, self.right, self.towards))
        everyone = len(self.linked) == self.clients
        linked, seen, takers = (each.to(columns.device) for each in (self.linked, self.seen, self.takers))
        own = 1 / (1 + self.alpha)
        if everyone:
            return torch.addmm(columns, left, right.T @ columns, beta=own, out=result)
        for part in slices(columns):
            old, new = columns[:, part], result[:, part]
            new.copy_(old)
            given = old[linked]
            new[linked] = torch.addmm(given, left, right.T @ given, beta=own)
            if len(takers):
                new[takers] = (old[takers] + self.alpha * (towards @ new[seen])) * own
        return result

    def greatest(self, columns: Tensor) -> Tensor:
        """The largest over all linked clients, for those who are; a taker's over all who give."""
        result = columns.clone()
        if len(self.linked):
            result[self.linked] = columns[self.linked].amax(0)
        if len(self.takers):
            result[self.takers] = torch.maximum(columns[self.takers], columns[self.seen].amax(0))
        return result

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave."""
        for name, value in state.items():
            setattr(self, name, value.cpu() if isinstance(value, Tensor) else value)


def low_rank_propagation(
    bases: Tensor,
    alpha: float,
    *,
    seen: Tensor,
    kind: Literal["cos", "exp_cos"] = "cos",
    temperature: float = 10.0,
    self_loop: bool = True,
    rank: int = RANK,
) -> LowRank:
    """Return the propagation over the dense graph of subspaces, without any K x K matrix in float64.

    The weights are computed block by block and kept once, in float32 for more than ``MANY`` clients, until the
    eigenvectors are found: each of some hundred products with W costs less to read than to compute anew. A product
    ``|U U'| x`` has no exact low rank because of the absolute value.

    Args:
        bases: ``(K, d_in, p)`` subspaces; one with NaN is not known and has no edge.
        alpha: strength of the propagation, finite.
        seen: ``(K,)`` bool; the others have no model to give and only take.
        kind, temperature, self_loop: as for :func:`similarity_graph`.
        rank: number of eigenvectors r.

    Raises:
        CoterieError: ``alpha`` is negative or not finite, or ``rank`` is below 1.
    """
    _check(alpha, rank)
    K = len(bases)
    known = torch.isfinite(bases).flatten(1).all(dim=1)
    givers, takers = (known & seen).nonzero().flatten(), (known & ~seen).nonzero().flatten()
    W = dense_weights(bases[givers], kind=kind, temperature=temperature, self_loop=self_loop)
    linked = _others(W) > 0
    if not bool(linked.all()):
        W = W[linked][:, linked]
    left, right, bound = low_rank_factors(W, alpha, rank)
    towards = torch.zeros(len(takers), len(givers), dtype=W.dtype)
    for rows in _blocks(len(takers), len(givers)):
        similarity = subspace_similarity(bases[takers[rows]], bases[givers])
        towards[rows] = similarity_graph(similarity, kind=kind, temperature=temperature).to(W.dtype)
    total = towards.sum(dim=1)
    takers, towards = takers[total > 0], towards[total > 0] / total[total > 0, None]
    return LowRank(K, alpha, givers[linked], left, right, givers, takers, towards, bound)


def dense_weights(
    bases: Tensor,
    *,
    kind: Literal["cos", "exp_cos"] = "cos",
    temperature: float = 10.0,
    self_loop: bool = True,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Weights of all pairs of subspaces ``(K, d_in, p)``, computed by blocks.

    Returns:
        ``(K, K)`` exactly symmetric, in ``dtype`` (float64 up to ``MANY`` clients, float32 beyond).
    """
    K = len(bases)
    W = torch.empty(K, K, dtype=dtype or (torch.float64 if K <= MANY else torch.float32))
    for rows in _blocks(K, K):
        similarity = subspace_similarity(bases[rows], bases[rows.start :])
        weights = similarity_graph(similarity, kind=kind, temperature=temperature).to(W.dtype)
        W[rows, rows.start :] = weights
        W[rows.start :, rows] = weights.T
        corner = W[rows, rows].clone()
        W[rows, rows] = torch.triu(corner) + torch.triu(corner, diagonal=1).T
    return W if self_loop else W.fill_diagonal_(0.0)


def low_rank_factors(W: Tensor, alpha: float, rank: int = RANK) -> tuple[Tensor, Tensor, float]:
    """Factors of the propagation over a symmetric graph, ``A ~ (1 - kappa) I + left right'``, and their error.

    With ``S = D^-1/2 W D^-1/2 = V diag(l) V'``, ``kappa = alpha / (1 + alpha)`` and ``g(l) = kappa l / (1 - kappa l)``,

        A = (1 - kappa) (I - kappa P)^-1 = (1 - kappa) [I + D^-1/2 V diag(g(l)) V' D^1/2].

    The r eigenvectors of largest ``|g|`` are kept. ``g`` grows with l, and ``|g(-l)| < g(l)``: of two eigenvalues of
    equal size the negative one counts less. ``D^1/2 1`` (l = 1) is known and always kept, so that rows sum to one;
    entries of A, which are not negative, may become negative within the bound.

    **Bound.** For the truncated ``A_r`` and any models ``Theta: (m, d)``, with ``|X|_D^2 = sum_k D_kk |x_k|^2``,

        |A_r Theta - A Theta|_D <= bound * min_c |Theta - 1 c'|_D,  bound = (1 - kappa) max |g(l)|,

    the maximum over what is left out, c any one model: the error beside how far the models are from their mean. Proof:
    ``D^1/2 (A - A_r) D^-1/2`` is ``(1 - kappa) V diag(g) V'`` over the eigenvectors left out, symmetric, so its
    spectral norm is its largest eigenvalue; both matrices leave ``1 c'`` as it is. ``Theta = D^-1/2 v`` with the first
    v left out reaches it.

    Beyond ``FEW`` clients only the next eigenvalue of largest size, ``rho``, is known of what is left out, and g(rho)
    bounds its part. Two terms are added for rounding: the computed vectors satisfy ``S V = V diag(l) + R`` with
    ``V' R = 0``, so they are exact for a matrix that lies ``|R|_2`` from S, which moves A by at most ``alpha |R|_2``,
    and the eigenvalues left out by at most ``|R|_2``; and ``alpha eps`` for W's own rounding. (That Lanczos' method,
    which starts from a fixed random vector, overlooks an eigenvalue has probability zero.)

    Args:
        W: ``(m, m)`` symmetric non-negative weights; every client has an edge.
        alpha: strength of the propagation, finite.
        rank: number of eigenvectors r; m or more is exact.

    Returns:
        ``left, right``: ``(m, r)`` float64, and the bound.

    Raises:
        CoterieError: W is not symmetric, ``alpha`` is negative or not finite, or ``rank`` is below 1.
    """
    _check(alpha, rank)
    if not is_symmetric(W):
        raise CoterieError(
            "The low-rank propagation needs symmetric weights; keep all neighbours (topk 0), or use the sparse one."
        )
    m = len(W)
    if not m:
        return _no_weights(), _no_weights(), 0.0
    kappa = alpha / (1 + alpha)
    degrees = W.sum(dim=1, dtype=torch.float64)
    perron = (degrees / degrees.sum()).sqrt()
    values, vectors, rest, residual = _spectrum(W, degrees.rsqrt(), perron, min(rank, m - 1))
    order = _gain(values, kappa).abs().argsort(descending=True, stable=True)
    kept, dropped = order[: rank - 1], order[rank - 1 :]
    gains = torch.cat([_gain(torch.ones(1, dtype=torch.float64), kappa), _gain(values[kept], kappa)])
    V = torch.cat([perron[:, None], vectors[:, kept]], dim=1)
    missing = [rest, *(values[dropped] + values[dropped].sign() * residual).tolist()]
    left_out = max(abs(kappa * value / (1 - kappa * value)) for value in (min(each, 1.0) for each in missing))
    rounding = alpha * (residual + torch.finfo(W.dtype).eps)
    left = degrees.rsqrt()[:, None] * V * ((1 - kappa) * gains)
    return left, degrees.sqrt()[:, None] * V, (1 - kappa) * left_out + rounding


def is_symmetric(W: Tensor, tolerance: float = 1e-6) -> bool:
    """Whether ``W: (m, m)`` equals its transpose up to ``tolerance`` times its largest entry, block by block."""
    largest = max((float(W[rows].abs().max()) for rows in _blocks(len(W), len(W))), default=0.0)
    return all(float((W[rows] - W[:, rows].T).abs().max()) <= tolerance * largest for rows in _blocks(len(W), len(W)))


def _check(alpha: float, rank: int) -> None:
    if not 0 <= alpha < math.inf:
        raise CoterieError(f"The low-rank propagation needs a finite alpha of at least 0, got {alpha}.")
    if rank < 1:
        raise CoterieError(f"The rank of a propagation must be at least 1, got {rank}.")


def _gain(values: Tensor, kappa: float) -> Tensor:
    return kappa * values / (1 - kappa * values)


def _others(W: Tensor) -> Tensor:
    """How strongly each client is tied to others, ``(m,)``."""
    return W.sum(dim=1, dtype=torch.float64) - W.diagonal().double()


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices of the rows of a ``(rows, columns)`` matrix with at most ``ENTRIES`` entries."""
    height = max(1, ENTRIES // max(1, columns))
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


def _spectrum(W: Tensor, scale: Tensor, perron: Tensor, count: int) -> tuple[Tensor, Tensor, float, float]:
    """Eigenpairs of largest size of ``S - v v'``, with ``S = diag(scale) W diag(scale)`` and v its ``perron`` vector.

    Returns:
        Values ``(c,)`` and vectors ``(m, c)``, float64; the size that no other eigenvalue exceeds; and ``|R|_2``.
    """
    m = len(W)
    if m <= FEW or count >= m - 1:
        S = scale[:, None] * W.double() * scale
        values, vectors = torch.linalg.eigh(S + 2 * torch.outer(perron, perron))  # v is moved to 3, far from all others
        return values[:-1], vectors[:, :-1], 0.0, m * torch.finfo(torch.float64).eps
    narrow = scale.to(W.dtype)

    def times(x: NDArray[np.float64]) -> NDArray[np.float64]:
        vector = torch.from_numpy(np.ravel(x)).to(torch.float64)
        image = narrow * (W @ (narrow * vector.to(W.dtype)))
        result: NDArray[np.float64] = (image.double() - perron * torch.dot(perron, vector)).numpy()
        return result

    start = torch.randn(m, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    operator = LinearOperator((m, m), matvec=times, dtype=np.float64)
    accuracy = 10 * torch.finfo(W.dtype).eps
    _, found = eigsh(operator, k=count, which="LM", v0=start, tol=accuracy)
    # Once more in float64, orthogonal to the vector that is known: Rayleigh and Ritz' values, and what they miss.
    V = torch.linalg.qr(torch.cat([perron[:, None], torch.from_numpy(found)], dim=1)).Q[:, 1:]
    image = torch.cat([scale[rows, None] * (W[rows].double() @ (scale[:, None] * V)) for rows in _blocks(m, m)])
    inner = V.T @ image
    values, turn = torch.linalg.eigh((inner + inner.T) / 2)
    V = V @ turn
    residual = float(torch.linalg.matrix_norm(image @ turn - V * values, ord=2))
    return values, V, float(values.abs().min()) + residual, residual
