"""HypCluster: stochastic expectation maximisation over a few hypotheses, started from random groups of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.ifca import ClusterModels
from coterie.contract import Claims, Limit, Server, Site, Traffic, option, register, unchanged
from coterie.models import Models
from coterie.relations import name_order, shuffled_groups
from coterie.training.keys import generator


@register
@dataclass(frozen=True)
class HypCluster(ClusterModels):
    """HypCluster (Mansour et al., 2020): min_{w_1..w_q} sum_k p_k min_c F_k(w_c) over q hypotheses.

    E: each client chooses c* = argmin_c F_k(w_c). M: each hypothesis takes a FedAvg round with those who chose it. The
    hypotheses begin as the FedAvg models of q random groups of clients after T_0 rounds, or as q random models.
    """

    name: ClassVar[str] = "hypcluster"
    title: ClassVar[str] = "HypCluster"
    paper: ClassVar[str] = "Mansour et al., 2020"
    cites: ClassVar[str] = "mansour2020three"
    deviations: ClassVar[tuple[str, ...]] = (
        "The hypotheses begin as FedAvg models of random groups of clients, a choice of ours.",
        "Hypotheses are not merged one after the other from many, the agglomerative start.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"clusters": 3, "warm_up": 1},
        limits=(
            Limit({"clusters": 1}, "fedavg"),
            Limit({"warm_up": 0}, "ifca", {"clusters": 3, "redraws": 0}),
            Limit({"clusters": 1, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
        ),
        objective={"w": unchanged},
        traffic=Traffic(lambda at: at.algorithm.clusters, 1, summaries=("meta",)),
        first_traffic=Traffic(1, 1),
        alone={"clusters": 1},
        changes={"warm_up": ({"warm_up": 1}, {"warm_up": 2})},
    )

    warm_up: int = option(
        5,
        "rounds T_0 of FedAvg within random groups before clients choose; 0: begin as different random models",
        least=0,
    )

    def setup(self, server: Server) -> None:
        """q times theta^0 and a random group for each client, or q different models."""
        super().setup(server)
        if self.warm_up > 0:
            server.w = server.initial_models(self.clusters)
            draw = generator(server.seed, 0, "random groups")
            server.group = shuffled_groups(name_order(server.names), self.clusters, draw)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Every client of the cohort trains the model of its random group, after T_0 rounds the one that it chooses."""
        if server.round > self.warm_up:
            super().round(server, cohort)
            return
        up = server.ask(self.train_group, cohort, w=server.w[server.group[cohort]])
        self.average(server, up.clients, up.w, server.group[up.clients])

    def train_group(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from the model of the client's group."""
        return {"w": site.fit(w).models}
