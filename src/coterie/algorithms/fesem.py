"""FeSEM: the server clusters the clients' models, and each client goes on from the centre of its cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Limit, Predictor, Server, Site, broadcast, option, register
from coterie.models import Models
from coterie.relations import (
    cluster_shares,
    cross_distances,
    membership,
    name_order,
    seed_centres,
    squared_distances,
)
from coterie.training.keys import generator

EQUAL = 1e-12
"""Models nearer to one another than this share of the longest way from theta^0, squared, are no two centres."""

LONGEST = 100
"""E- and M-steps after centres have been drawn, should they not come to rest before."""


@register
@dataclass(frozen=True)
class FeSEM(Algorithm):
    """FeSEM (Xie et al., 2020): min sum_k p_k min_c ||w_k - W_c||^2 beside the clients' losses.

    E: r_k = argmin_c ||w_k - W_c||. M: W_c = mean of the w_k with r_k = c. Then client k trains from W_{r_k}. The first
    centres are chosen by k-means++ among the models after one local round from theta^0.
    """

    name: ClassVar[str] = "fesem"
    title: ClassVar[str] = "FeSEM"
    paper: ClassVar[str] = "Xie et al., 2020"
    cites: ClassVar[str] = "xie2020multi"
    evaluated: ClassVar[str] = "own model after local training"
    deviations: ClassVar[tuple[str, ...]] = (
        "Distances run over all trainable parameters; the authors' code clusters one selected layer.",
        "The first centres are drawn by k-means++ after one local round from the common start; in the authors' code "
        "all centres begin equal and the first memberships are noise.",
        "After centres have been drawn, E- and M-steps go on until no client changes its cluster; the authors' code "
        "takes five.",
        "Clusters of a single client are trained; the authors' code leaves them out.",
        "Every client is measured with its own model; the authors' code reports the best cluster on all clients.",
        "An empty cluster keeps its centre; the authors' code begins k-means anew.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"clusters": 3, "mu": 0.3},
        limits=(
            Limit({"clusters": 1, "mu": 0.0, "members": "answered", "predict": "centre"}, "fedavg"),
            Limit({"clusters": 1, "mu": 0.0, "members": "answered"}, "fedavg", state="w"),
            Limit({"clusters": 100, "mu": 0.0}, "local"),
        ),
        objective={"w": lambda at: at.algorithm.mu / 2 * at.squared_distance("w")},
        alone={"mu": 0.0},
        changes={"recluster": ({"clusters": 5}, {"clusters": 5, "recluster": 9})},
    )

    clusters: int = option(4, "number C of centres", paper="2 to 10", least=1)
    mu: float = option(0.0, "strength of a pull towards the received centre; 0 is none", paper="optional", least=0)
    recluster: int = option(1, "rounds from one E-step to the next", paper="1", least=1)
    weights: Literal["samples", "uniform"] = option(
        "samples", "samples: members count by n_k; uniform: all count the same", paper="both"
    )
    members: Literal["all", "answered"] = option(
        "all", "whose models form a centre: the last of all its members, or only those of this round"
    )
    predict: Literal["own", "centre"] = option("own", "predict with the own model or with the centre", paper="centre")

    def setup(self, server: Server) -> None:
        """Centres W and all clients' models at theta^0; ``drawn`` centres are in use and nobody is in a cluster yet.

        Those who are ``waiting`` have a model that no E-step has seen.
        """
        server.w = server.initial_models(self.clusters)
        server.theta = server.initial_models()
        server.r = torch.full((server.K,), -1)
        server.waiting = torch.zeros(server.K, dtype=torch.bool)
        server.drawn = 0

    def round(self, server: Server, cohort: Tensor) -> None:
        """Clients train from their centre, then the server assigns models to centres and moves the centres."""
        up = server.ask(self.local_update, cohort, w=self.centres(server, cohort))
        server.theta[up.clients] = up.w
        known = server.r >= 0
        first, latecomers = not bool(known.any()), up.clients[~known[up.clients]]
        known[up.clients] = server.waiting[up.clients] = True
        everyone = known.nonzero().flatten()
        members = everyone if self.members == "all" else up.clients
        due = first or server.round % self.recluster == 0
        if not first:
            self.assign(server, server.waiting.nonzero().flatten() if due else latecomers)
            self.move_centres(server, members)
        if due and self.draw_centres(server, everyone):
            for _ in range(LONGEST):
                before = server.r[everyone].clone()
                self.assign(server, everyone)
                self.move_centres(server, members)
                if torch.equal(server.r[everyone], before):
                    break
        if due:
            server.waiting[:] = False

    def centres(self, server: Server, clients: Tensor) -> Models:
        """W_{r_k} of each of ``clients: (k,)``; theta^0 for one that is in none of several clusters yet."""
        found: Models = server.w[server.r[clients].clamp(min=0)]
        new = server.r[clients] < 0
        if self.clusters > 1 and bool(new.any()):
            found[new] = server.initial_models(int(new.sum()))
        return found

    def draw_centres(self, server: Server, clients: Tensor) -> bool:
        """k-means++: as many centres as are still to be had among the models that lie apart from those in use."""
        if server.drawn == self.clusters:
            return False
        order = name_order(server.names)
        among = order[torch.isin(order, clients)]
        here = server.theta[among].trained()
        nearest = cross_distances(here, server.w[: server.drawn].trained()).amin(dim=1) if server.drawn else None
        longest = float(cross_distances(here, server.initial_model().trained()).max())
        draws = generator(server.seed, server.round, "centres").random(self.clusters - server.drawn)
        chosen = among[seed_centres(squared_distances(here), draws, nearest, equal=EQUAL * longest)]
        server.w[torch.arange(server.drawn, server.drawn + len(chosen))] = server.theta[chosen]
        server.drawn = server.drawn + len(chosen)
        return len(chosen) > 0

    def assign(self, server: Server, clients: Tensor) -> None:
        """E: r_k = argmin_c ||w_k - W_c||^2 over the centres in use."""
        if len(clients):
            server.r[clients] = self.nearest(server, server.theta[clients])

    def nearest(self, server: Server, models: Models) -> Tensor:
        """The number of the centre nearest to each of ``models: (k,)``."""
        return cross_distances(models.trained(), server.w[: server.drawn].trained()).argmin(dim=1)

    def move_centres(self, server: Server, members: Tensor) -> None:
        """M: W_c = mean of the models of its members; an empty cluster keeps its centre."""
        counts = server.n[members].double()
        counts = counts if self.weights == "samples" else torch.ones_like(counts)
        shares = cluster_shares(server.r[members], counts, self.clusters)
        filled = shares.sum(dim=1) > 0
        server.w[filled] = server.theta[members].mixed(shares[filled])

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from the centre, perhaps pulled towards it."""
        site.theta = site.fit(w, anchor=w, strength=self.mu).models
        return {"w": site.theta}

    # --- prediction ----------------------------------------------------------------------------------------------
    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The centres, where they predict."""
        return {"w": self.centres(server, clients)} if self.predict == "centre" else {}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The client's own model, or the centre of its cluster."""
        return Predictor(offer.get("w", site.theta))

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """A local round from theta^0, then the nearest centre; unlabelled: none."""
        if not labelled or server.drawn == 0:
            return super().adapt(server, clients, labelled)
        up = server.ask(self.local_update, clients, w=broadcast(server.initial_model()))
        return {"theta": server.w[self.nearest(server, up.w)]}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The centre, which is then tuned as every client's is."""
        centre = received.get("theta", site.theta)
        yield Predictor(centre)
        for theta in site.by_epoch(centre, epochs, anchor=centre, strength=self.mu):
            yield Predictor(theta)

    # --- what is seen --------------------------------------------------------------------------------------------
    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """Clients of one cluster share its centre in equal parts; unknown before a client has been assigned."""
        return {"clusters": membership(server.r)}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How many clusters have a member."""
        return {"clusters_in_use": float(len(server.r[server.r >= 0].unique()))}
