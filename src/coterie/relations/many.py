"""Which solver so many clients need: beyond some thousands, one without a K x K matrix.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA), Equation 6.
"""

from coterie.relations.low_rank import LowRank
from coterie.relations.neighbours import Neighbours

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
