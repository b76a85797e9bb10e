"""Propagation among few and among many clients, these without a K x K matrix: which way, and what each needs.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA), Equation 6.
"""

from typing import Literal

import torch
from torch import Tensor

from coterie.relations.low_rank import LowRank, low_rank_propagation
from coterie.relations.neighbours import Neighbours, neighbour_graph
from coterie.relations.propagation import propagate_iteratively, propagation_matrix

MANY = 3000
"""Up to so many clients the closed form is the solver; a K x K matrix takes 72 MB there."""

MANY_OF_FEW_NEIGHBOURS = 1000
"""The same where clients keep few neighbours: equations that are mostly zeros are solved faster as such."""

FOR_MANY = ("low_rank", "sparse")
"""Solvers without a K x K matrix: of all neighbours by eigenvectors, of a few by a sparse decomposition."""


def solver_for(clients: int, topk: int | None, *, symmetric: bool) -> str:
    """The solver of so many clients: the closed form up to ``MANY``, or ``MANY_OF_FEW_NEIGHBOURS``.

    Args:
        clients: number of clients K.
        topk: neighbours kept per client; None or 0 keeps all.
        symmetric: whether the matrix to invert is that of symmetric weights, as ``low_rank`` needs.
    """
    if clients <= (MANY_OF_FEW_NEIGHBOURS if topk else MANY):
        return "closed_form"
    if topk:
        return "sparse"
    return "low_rank" if symmetric else "closed_form"


def no_propagation(solver: str) -> LowRank | Neighbours:
    """What a server holds before its graph is known, and a checkpoint's state is put into."""
    return LowRank() if solver == "low_rank" else Neighbours()


def propagation_among_few(solver: str, P: Tensor, alpha: float, *, exact: bool) -> Tensor:
    """The propagation as a matrix ``(K, K)``, for ``P: (K, K)``: by iteration where the solver says so."""
    if solver == "iterative":
        return propagate_iteratively(P, torch.eye(len(P), dtype=P.dtype), alpha)
    return propagation_matrix(P, alpha, exact=exact)


def propagation_among_many(
    solver: str,
    bases: Tensor,
    alpha: float,
    *,
    seen: Tensor,
    order: Tensor,
    kind: Literal["cos", "exp_cos"],
    temperature: float,
    topk: int | None,
    self_loop: bool,
    exact: bool,
    rank: int,
) -> LowRank | Neighbours:
    """The propagation over the graph of subspaces, ``(K, K)``.

    Args:
        solver: "low_rank" or "sparse".
        bases: ``(K, d_in, p)``.
        alpha: strength, finite.
        seen: ``(K,)`` bool, the clients with a model to give.
        order: ``(K,)`` the clients in the order by which ties go.
        kind, temperature, topk, self_loop: of the graph, see :func:`similarity_graph`.
        exact: as for :func:`propagation_matrix` (sparse).
        rank: eigenvectors kept (low_rank).
    """
    if solver == "low_rank":
        return low_rank_propagation(
            bases, alpha, seen=seen, kind=kind, temperature=temperature, self_loop=self_loop, rank=rank
        )  # fmt: skip
    P = neighbour_graph(
        bases[order], seen=seen[order], kind=kind, temperature=temperature, topk=topk or len(bases), self_loop=self_loop
    )  # fmt: skip
    back = order.argsort().numpy()
    return Neighbours(P[back][:, back], alpha, exact=exact)
