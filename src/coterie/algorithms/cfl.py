"""CFL: FedAvg that splits its clients in two whenever their updates no longer agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Limit, Predictor, Server, Site, broadcast, option, register, unchanged
from coterie.models import Models, stack_rows
from coterie.relations import bipartition, cosines, descend, membership


@register
@dataclass(frozen=True)
class CFL(Algorithm):
    """Clustered Federated Learning (Sattler et al., TNNLS 2021): FedAvg within clusters that are found on the way.

    dW_k = w_k - w_c. A cluster c with ||mean dW|| < eps1 and max ||dW_k|| > eps2 has come to rest although its members
    have not; it is split into the two halves of complete linkage on -cos(dW_i, dW_j). Clusters are the leaves of a tree
    whose inner nodes keep the model from before the split.
    """

    name: ClassVar[str] = "cfl"
    title: ClassVar[str] = "CFL"
    paper: ClassVar[str] = "Sattler et al., TNNLS 2021"
    cites: ClassVar[str] = "sattler2021clustered"
    evaluated: ClassVar[str] = "cluster model after aggregation"
    deviations: ClassVar[tuple[str, ...]] = (
        "The halves of a split hold the numbers of clients; the authors' code and its copies take positions within the "
        "cluster for numbers, which goes wrong from the second split on.",
        "There is no test whether a split separates its halves by a margin; neither has the authors' code.",
        "Clients that do not answer are skipped; the paper and the authors' code need all of them.",
        "A client whose cluster was split while it was away finds its half by the cosine of its next update.",
        "The walk down the tree compares one update, from the model before the first split, with the mean direction of "
        "each half; the paper trains anew at each node and takes the nearest single update.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"eps1": 1e6, "eps2": 0.0, "patience": 0},
        limits=(
            Limit({"eps1": 0.0}, "fedavg", {"weights": "uniform"}),
            Limit({"eps1": 0.0, "weights": "samples"}, "fedavg"),
        ),
        objective={"w": unchanged},
        changes={
            "eps1": ({}, {"eps1": 0.0}),
            "eps2": ({}, {"eps2": 1e6}),
            "patience": ({}, {"patience": 2}),
        },
    )

    eps1: float = option(
        0.4, "a cluster may be split when its mean update is shorter; 0 is FedAvg", paper="0.4", least=0
    )
    eps2: float = option(1.6, "and when the update of some member is longer", paper="1.6", least=0)
    patience: int = option(20, "rounds before the first split", paper="20", least=0)
    weights: Literal["samples", "uniform"] = option(
        "uniform", "uniform: members count the same; samples: by n_k", paper="uniform"
    )

    def setup(self, server: Server) -> None:
        """A tree of one node for all: its model, its children, the mean direction of the updates that led to it."""
        server.w = server.initial_model()
        server.direction = server.initial_model().zeros()
        server.children = torch.full((1, 2), -1)
        server.node = torch.zeros(server.K, dtype=torch.int64)
        server.shortest, server.longest = 0.0, 0.0

    def round(self, server: Server, cohort: Tensor) -> None:
        """Each cluster averages its members' models, or splits and each half averages its own."""
        up = server.ask(self.local_update, cohort, w=server.w[server.node[cohort]])
        node = server.node[up.clients]
        change = up.w - server.w[node]
        behind = server.children[node, 0] >= 0  # their cluster was split while they were away
        server.node[up.clients] = self.walk(server, node, change)
        clusters = node[~behind].unique().tolist()
        if clusters:
            server.shortest, server.longest = float("inf"), 0.0
        for cluster in clusters:
            members = (node == cluster).nonzero().flatten()
            shares = self.shares(server, up.clients[members])
            if self.ripe(server, change[members], shares):
                self.split(server, cluster, up.clients[members], up.w[members], change[members])
            else:
                server.w[cluster] = up.w[members].mixed(shares)

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from the cluster's model."""
        return {"w": site.fit(w).models}

    def shares(self, server: Server, clients: Tensor) -> Tensor:
        """What each of ``clients: (a,)`` counts in their mean, ``(a,)`` float64."""
        counts = server.n[clients].double()
        counts = counts if self.weights == "samples" else torch.ones_like(counts)
        return counts / counts.sum()

    def ripe(self, server: Server, change: Models, shares: Tensor) -> bool:
        """||mean dW|| < eps1 and max ||dW_k|| > eps2 in a cluster of more than two, after the first rounds."""
        mean, longest = float(change.mixed(shares).norm()), float(change.norm().max())
        server.shortest, server.longest = min(server.shortest, mean), max(server.longest, longest)
        return len(change) > 2 and server.round > self.patience and mean < self.eps1 and longest > self.eps2

    def split(self, server: Server, cluster: int, clients: Tensor, w: Models, change: Models) -> None:
        """Two new leaves below ``cluster`` for the members that answered; the others stay behind at the inner node."""
        order = torch.tensor(sorted(range(len(clients)), key=lambda row: server.names[clients[row]]))
        second = bipartition(cosines(change[order].trained()))
        norm = change.norm()
        unit = change / torch.where(norm > 0, norm, 1.0)
        for child, half in enumerate((order[~second], order[second])):
            server.children[cluster, child] = len(server.w)
            server.children = torch.cat([server.children, torch.full((1, 2), -1)])
            server.node[clients[half]] = len(server.w)
            server.w = stack_rows([server.w, w[half].mixed(self.shares(server, clients[half]))])
            server.direction = stack_rows(
                [server.direction, unit[half].mixed(torch.full((1, len(half)), 1 / len(half)))]
            )

    def walk(self, server: Server, node: Tensor, change: Models) -> Tensor:
        """From ``node: (k,)`` down to the leaves whose directions are nearest to ``change: (k,)``."""
        both = stack_rows([change, server.direction])
        return descend(server.children, node, cosines(both.trained())[: len(change), len(change) :])

    # --- prediction ----------------------------------------------------------------------------------------------
    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The clusters' models."""
        return {"w": server.w[server.node[clients]]}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The cluster's model as it is."""
        return Predictor(offer["w"])

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The model before the first split; with labels one update from there leads to a cluster and its model."""
        root = server.w[0]
        if not labelled:
            return {"theta": broadcast(root)}
        up = server.ask(self.local_update, clients, w=broadcast(root))
        leaf = self.walk(server, torch.zeros(len(up), dtype=torch.int64), up.w - root)
        return {"theta": server.w[leaf]}

    # --- what is seen --------------------------------------------------------------------------------------------
    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """Clients of one cluster share its model in equal parts."""
        return {"clusters": membership(server.node)}

    def notes(self, server: Server) -> Mapping[str, float]:
        """Clusters, and what eps1 and eps2 are compared with: the shortest mean update, the longest single one."""
        clusters = float((server.children[:, 0] < 0).sum())
        return {"clusters": clusters, "shortest_mean_update": server.shortest, "longest_update": server.longest}
