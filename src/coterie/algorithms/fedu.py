"""FedU: after local training the server draws neighbours' models together along a graph of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Limit, Predictor, Server, Site, Traffic, option, register, unchanged
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.relations import laplacian_step, largest_degree, name_order, random_similarity


@dataclass(frozen=True)
class CoupledModels(Algorithm):
    """Shared by methods whose server, not its clients, takes the step of the penalty that couples all models.

    Client k trains w_k for R steps of rate eta on F_k alone; one step of length eta R on the penalty follows at the
    server, for all clients from the same snapshot. R is the mean over those that answered.
    """

    stale: Literal["keep", "round"] = option(
        "keep", "whose models count: keep, the last of everyone who has taken part; round, those of this round",
        paper="round",
    )  # fmt: skip
    evaluated: ClassVar[str] = "own model after the server's step"

    def setup(self, server: Server) -> None:
        """All clients' models, theta^0 at first; who has taken part."""
        server.w = server.initial_models()
        server.met = torch.zeros(server.K, dtype=torch.bool)

    def round(self, server: Server, cohort: Tensor) -> None:
        """R local steps at the clients; then one of the server for those that answered, from one snapshot."""
        up = server.ask(self.local_update, cohort, w=server.w[cohort])
        server.w[up.clients], server.met[up.clients] = up.w, True
        known = server.met.clone()
        if self.stale == "round":
            known = torch.zeros_like(known).index_fill_(0, up.clients, True)
        server.w[up.clients] = self.coupled(server, up.clients, float(up.way.mean()), known)

    def coupled(self, server: Server, clients: Tensor, way: float, known: Tensor) -> Models:
        """The models of ``clients: (m,)`` after a step of length ``way`` = eta R; ``known: (K,)`` are in the sums."""
        raise NotImplementedError

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """R steps of rate eta from w_k; eta R tells the server how far its own step goes."""
        w, steps = site.fit(w)
        return {"w": w, "way": site.lr * steps.double()}

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The models after the server's step."""
        return {"w": server.w[clients]}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The client's model after the server's step."""
        return Predictor(offer["w"])

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The mean of the models of all who have taken part: nothing tells a newcomer's relations yet."""
        known = server.met.double() if bool(server.met.any()) else torch.ones(server.K, dtype=torch.float64)
        return {"theta": server.w.mixed((known / known.sum()).expand(len(clients), -1))}


@register
@dataclass(frozen=True)
class FedU(CoupledModels):
    """FedU (Dinh et al., IEEE TNNLS 2024): min_W sum_k F_k(w_k) + (rho/2) sum over pairs a_kl ||w_k - w_l||^2.

    Server, from the models w_k,R after R local steps: w_k <- w_k,R - eta R rho sum_l a_kl (w_k,R - w_l,R).
    """

    name: ClassVar[str] = "fedu"
    title: ClassVar[str] = "FedU"
    paper: ClassVar[str] = "Dinh et al., IEEE TNNLS 2024"
    cites: ClassVar[str] = "dinh2024new"
    deviations: ClassVar[tuple[str, ...]] = (
        "The authors' program changes the models one client after the other, so that its result depends on their "
        "order; here all steps start from the same snapshot.",
        "In the authors' program, as published, the loop that fills the sum is commented out, which makes it LOCAL; "
        "and its factor has a half more than the paper's.",
        "R is the mean number of local steps of those that answered; in the paper all clients take the same number.",
        "Clients that did not take part count with their last models unless stale is round.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"rho": 0.3},
        limits=(Limit({"similarity": "constant", "a": 0.0}, "local"), Limit({"rho": 0.0}, "local")),
        objective={"w": unchanged},
        traffic=Traffic(1, 1, summaries=("meta",)),
        constant={"a": "the graph is drawn once"},
        unnormalised={"a": "relations of pairs; the learning rate and rho make steps of them"},
        changes={"a": ({"similarity": "constant"}, {"similarity": "constant", "a": 0.2})},
    )

    rho: float = option(0.01, "strength ρ of the pull between neighbours; 0 is LOCAL", paper="0.01", least=0)
    similarity: Literal["random", "constant"] = option(
        "random", "relations aₖₗ: random, symmetric, small ones cut to 0; constant, the same for all pairs",
        paper="both",
    )  # fmt: skip
    a: float = option(0.5, "the relation of every pair where all are the same", paper="0.5", least=0)

    def setup(self, server: Server) -> None:
        """The models, and the graph: symmetric relations a_kl >= 0; random ones are drawn in the order of names."""
        super().setup(server)
        server.a = torch.full((server.K, server.K), self.a, dtype=torch.float64)
        if self.similarity == "random":
            rank = name_order(server.names).argsort()
            server.a = random_similarity(server.K, torch.Generator().manual_seed(server.seed))[rank][:, rank]
        server.a.fill_diagonal_(0.0)
        server.reach = 0.0

    def coupled(self, server: Server, clients: Tensor, way: float, known: Tensor) -> Models:
        """w_k - eta R rho sum_l a_kl (w_k - w_l)."""
        server.reach = way * self.rho * largest_degree(server.a, known)
        refuse_overshooting(self, server.reach, "rho")
        w: Models = server.w
        return w.mixed(laplacian_step(server.a, way * self.rho, known)[clients])

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """a_kl, the relation of each pair."""
        return {"a": server.a}

    def notes(self, server: Server) -> Mapping[str, float]:
        """eta R rho times the largest degree: near 0 means nearly LOCAL, 1 is where steps begin to overshoot."""
        return {"reach": server.reach}


def refuse_overshooting(algorithm: Algorithm, reach: float, option: str) -> None:
    """Refuse a server's step of ``reach`` = learning rate x local steps x strength x largest degree from 1 on."""
    if not reach < 1:
        raise CoterieError(
            f"{algorithm.name}: learning rate times local steps times strength times the largest sum of a client's "
            f"relations is {reach:.4g}; from 1 on the server's step overshoots: lower {option}, training.lr or "
            "training.epochs"
        )
