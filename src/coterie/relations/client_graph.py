"""The graph of clients over which models are propagated: who listens to whom, and how the equations are solved.

Source: Wu, Bao, Ainsworth, He, "Personalized Federated Learning with Parameter Propagation", KDD 2023
(FEDORA), Equations 5 to 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from coterie.relations.low_rank import LowRank, low_rank_propagation
from coterie.relations.neighbours import Neighbours, neighbour_graph
from coterie.relations.newcomers import with_newcomer
from coterie.relations.propagation import (
    propagate_iteratively,
    propagation_matrix,
    row_stochastic,
    similarity_graph,
)
from coterie.relations.subspaces import subspace_similarity


@dataclass(frozen=True)
class ClientGraph:
    """How similarities become weights, and weights a propagation.

    In every method ``seen: (m,)`` bool are the clients with a model to give, and ``order: (m,)`` is the order by which
    ties between neighbours go, so that these do not depend on who came first.

    Attributes:
        kind, temperature, self_loop: of the graph, see :func:`similarity_graph`.
        topk: neighbours kept per client; 0 keeps all.
        alpha: strength of the propagation.
        exact: as for :func:`propagation_matrix`.
        eigenvectors: how many the solver ``low_rank`` keeps.
    """

    kind: Literal["cos", "exp_cos"]
    temperature: float
    topk: int
    self_loop: bool
    alpha: float
    exact: bool = False
    eigenvectors: int = 64

    def propagation(self, known: Tensor, *, solver: str, seen: Tensor, order: Tensor) -> Tensor | LowRank | Neighbours:
        """A of Equation 6, ``(m, m)``.

        Args:
            known: the similarities ``(m, m)``; for the solvers of :data:`FOR_MANY` the subspaces ``(m, d_in, p)``.
            solver: "closed_form", "iterative", "low_rank" or "sparse".
            seen: see above.
            order: see above.
        """
        if solver == "low_rank":  # all are neighbours: there are no ties
            return low_rank_propagation(
                known, self.alpha, seen=seen, rank=self.eigenvectors, self_loop=self.self_loop, **self._weight
            )
        back = order.argsort()
        if solver == "sparse":
            sparse = neighbour_graph(
                known[order], seen=seen[order], topk=self.topk or len(known), self_loop=self.self_loop, **self._weight
            )
            return Neighbours(sparse[back.numpy()][:, back.numpy()], self.alpha, exact=self.exact, seen=seen)
        P = row_stochastic(self._weights(known[order][:, order], seen[order], self.self_loop))[back][:, back]
        if solver == "iterative":
            return propagate_iteratively(P, torch.eye(len(P), dtype=P.dtype), self.alpha)
        return propagation_matrix(P, self.alpha, exact=self.exact, seen=seen)

    def towards(self, bases: Tensor, members: Tensor, *, seen: Tensor, order: Tensor) -> Tensor:
        """What those with ``bases: (r, d_in, p)`` take from each of the ``members: (m, d_in, p)``, ``(r, m)``."""
        W = self._weights(subspace_similarity(bases, members[order]), seen[order], self_loop=True)
        return W[:, order.argsort()]

    def joined(
        self, similarity: Tensor, bases: Tensor, members: Tensor, *, own: float, seen: Tensor, order: Tensor
    ) -> Tensor:
        """The row of A that each newcomer has as one more client beside the members, ``(r, m + 1)``, itself last.

        Args:
            similarity: ``(m, m)`` among the members.
            bases: ``(r, d_in, p)`` of the newcomers.
            members: ``(m, d_in, p)`` of the members.
            own: a newcomer's similarity with itself.
            seen: see above.
            order: see above.
        """
        among, seen = similarity[order][:, order], torch.cat([seen[order], torch.tensor([True])])
        rows = []
        for row in subspace_similarity(bases, members[order]):
            P = row_stochastic(self._weights(with_newcomer(among, row, own), seen, self.self_loop))
            rows.append(propagation_matrix(P, self.alpha, exact=self.exact, seen=seen)[-1])
        A = torch.stack(rows)
        return torch.cat([A[:, order.argsort()], A[:, -1:]], dim=1)

    def _weights(self, similarity: Tensor, seen: Tensor, self_loop: bool) -> Tensor:
        """The weights w_kk' that count, ``(r, m)``."""
        return similarity_graph(similarity, topk=self.topk or None, self_loop=self_loop, seen=seen, **self._weight)

    @property
    def _weight(self) -> dict[str, Any]:
        """What makes a weight of a similarity."""
        return {"kind": self.kind, "temperature": self.temperature}
