"""SFL: a graph convolution over the clients' models, and its mean as the global model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import (
    Algorithm,
    Claims,
    Limit,
    Predictor,
    Server,
    Site,
    Traffic,
    broadcast,
    option,
    register,
)
from coterie.models import Models
from coterie.relations import (
    cross_distances,
    mean_self_weight,
    normalised,
    parameter_similarity,
    squared_distances,
    with_newcomer,
)

_PLAIN = {"lambda1": 0.0, "lambda2": 0.0}


@register
@dataclass(frozen=True)
class SFL(Algorithm):
    """SFL (Chen et al., IJCAI 2022): min sum_k F_k(v_k) + lambda_1 ||v_k - w||^2 + lambda_2 ||v_k - u_k||^2.

    Server, from the last v of all clients: U = a_s A^L V + (1 - a_s) V with the rows of A summing to 1; w = mean of U.
    Clients start from w.
    """

    name: ClassVar[str] = "sfl"
    title: ClassVar[str] = "SFL"
    paper: ClassVar[str] = "Chen et al., IJCAI 2022"
    cites: ClassVar[str] = "chen2022personalized"
    evaluated: ClassVar[str] = "graph-smoothed model after aggregation"
    deviations: ClassVar[tuple[str, ...]] = (
        "The penalties are squared distances and have a gradient; in the authors' program they are computed from "
        "detached copies, without a square, and so have no effect on training.",
        "The graph comes from distances of the models themselves, row by row exp(-||v_k - v_l||^2 / median), the own "
        "model included; the paper takes a given graph.",
        "The learned graph of SFL* is left out: the authors' program fits it to distances, so that the most distant "
        "clients get the largest weights.",
        "Batch statistics are averaged with the weights of the models.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"lambda1": 0.3, "lambda2": 0.5, "layers": 2, "smoothing": 0.8},
        limits=(
            Limit({**_PLAIN, "graph": "identity", "stale": "round"}, "fedavg", {"weights": "uniform"}, state="w"),
            Limit({**_PLAIN, "graph": "uniform", "stale": "round"}, "fedavg", {"weights": "uniform"}, state="w"),
        ),
        objective={
            "v": lambda at: (
                at.algorithm.lambda1 * at.squared_distance("w") + at.algorithm.lambda2 * at.squared_distance("u")
            )
        },
        traffic=Traffic(2, 1),
        alone=_PLAIN,
    )

    lambda1: float = option(0.3, "strength λ₁ of the pull to the global model", paper="0.3", least=0)
    lambda2: float = option(0.3, "strength λ₂ of the pull to the graph-smoothed model", paper="0.3", least=0)
    layers: int = option(3, "steps L along the graph", paper="3", least=1)
    smoothing: float = option(
        1.0, "share of the smoothed model in u; the rest is the client's own", paper="1", least=0, most=1
    )
    graph: Literal["models", "uniform", "identity"] = option(
        "models", "relations: closeness of models; all the same; none", paper="given"
    )
    stale: Literal["keep", "round"] = option(
        "keep", "whose models count: keep, the last of everyone who has taken part; round, those of this round",
        paper="keep",
    )  # fmt: skip

    def setup(self, server: Server) -> None:
        """v_k and u_k of all clients, and w; all theta^0 at first."""
        server.v, server.u, server.w = server.initial_models(), server.initial_models(), server.initial_model()
        server.met = torch.zeros(server.K, dtype=torch.bool)
        server.mixing = torch.eye(server.K, dtype=torch.float64)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Clients train from w; U and w from the last v of all who have taken part, or from the v of this round."""
        u = server.u[cohort]
        u[~server.met[cohort]] = server.w.repeat(int((~server.met[cohort]).sum()))  # nothing to return to yet
        up = server.ask(self.local_update, cohort, w=broadcast(server.w), u=u)
        server.v[up.clients], server.met[up.clients] = up.v, True
        inner = server.met.nonzero().squeeze(1) if self.stale == "keep" else up.clients
        V = server.v[inner]
        mixing = self.mixing(squared_distances(V.trained()))
        rows = server.zeros(len(inner), server.K)
        rows[:, inner] = mixing
        server.mixing[inner] = rows
        U = V.mixed(mixing)
        server.u[inner] = U
        server.w = U.mixed(torch.full((1, len(inner)), 1.0 / len(inner), dtype=torch.float64))

    def mixing(self, distances: Tensor) -> Tensor:
        """a_s A^L + (1 - a_s) I from squared distances ``(m, m)``; rows sum to one."""
        itself = torch.eye(len(distances), dtype=torch.float64)
        similar = {"identity": itself, "uniform": torch.ones_like(itself)}.get(self.graph)
        A = normalised(parameter_similarity(distances).nan_to_num(0.0) if similar is None else similar)
        smoothed: Tensor = torch.linalg.matrix_power(A, self.layers)
        return self.smoothing * smoothed + (1 - self.smoothing) * itself

    def local_update(self, site: Site, w: Models, u: Models) -> Mapping[str, Any]:
        """v_k: E epochs from w with both pulls."""
        return {"v": site.fit(w, **self.pull(w, u)).models}

    def pull(self, w: Models, u: Models) -> dict[str, Any]:
        """Both penalties as one: the gradient is 2 (lambda_1 + lambda_2) times the distance to their weighted mean."""
        total = self.lambda1 + self.lambda2
        share = self.lambda2 / total if total else 0.0
        return {"anchor": w * (1.0 - share) + u * share, "strength": 2 * total}

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The smoothed models."""
        return {"u": server.u[clients]}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """u_k."""
        return Predictor(offer["u"])

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """A round from w, then a place in the graph by distance to the members' models; unlabelled: w."""
        w = broadcast(server.w)
        if not labelled or not bool(server.met.any()):
            return {"theta": w}
        up = server.ask(self.local_update, clients, w=w, u=w)
        members = server.v[server.met]
        own, others = up.v.trained(), members.trained()
        among = squared_distances(others)
        joined = [with_newcomer(among, row, 0.0) for row in cross_distances(own, others)]
        rows = torch.stack([self.mixing(distances)[-1] for distances in joined])
        return {"theta": members.mixed_with_own(up.v, rows), "w": w}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """u, tuned with the pulls to w and u; or w as it is."""
        theta = received["theta"]
        yield Predictor(theta)
        for tuned in site.by_epoch(theta, epochs, **self.pull(received.get("w", theta), theta)):
            yield Predictor(tuned)

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """a_s A^L + (1 - a_s) I: the share of v_l in u_k."""
        return {"mixing": server.mixing}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How much of its own model a client keeps: near 1 means nearly LOCAL."""
        return {"mean_self_weight": mean_self_weight(server.mixing, server.met)}
