"""IFCA: a few models at the server, and every client trains the one that fits its data best."""

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
    unchanged,
)
from coterie.models import Models, stack_rows
from coterie.relations import cluster_shares, membership


@dataclass(frozen=True)
class ClusterModels(Algorithm):
    """Shared by methods whose clients choose among C models at the server by their loss: ``server.w``, C rows."""

    clusters: int = option(2, "number C of models at the server; 1 is FedAvg", least=1)
    weights: Literal["samples", "uniform"] = option(
        "samples", "samples: p_k proportional to n_k; uniform: all clients count the same"
    )
    evaluated: ClassVar[str] = "cluster model of lowest training loss after aggregation"

    def whole_numbers(self) -> Mapping[str, int]:
        """Clients answer with the number of a model."""
        return {"choice": self.clusters}

    def setup(self, server: Server) -> None:
        """C different models; nobody has chosen yet."""
        server.w = server.initial_models(self.clusters, distinct=True)
        server.choice = torch.full((server.K,), -1)

    def counts(self, server: Server, clients: Tensor) -> Tensor:
        """What each of ``clients: (a,)`` counts in a mean, ``(a,)`` float64."""
        n = server.n[clients].double()
        return n if self.weights == "samples" else torch.ones_like(n)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Every client of the cohort trains the model that it chooses."""
        up = server.ask(self.local_update, cohort, w=broadcast(server.w))
        self.average(server, up.clients, up.w, up.choice)

    def average(self, server: Server, clients: Tensor, w: Models, choice: Tensor) -> None:
        """w_c <- w_c + sum_k s_ck (w_k - w_c) with the shares s; a model that nobody chose stays as it is."""
        shares = self.shares(server, clients, choice)
        kept = torch.diag(1.0 - shares.sum(dim=1))
        server.w = stack_rows([server.w, w]).mixed(torch.cat([kept, shares], dim=1))
        server.choice[clients] = choice

    def shares(self, server: Server, clients: Tensor, choice: Tensor) -> Tensor:
        """s_ck: the share of client k in the mean of the cluster that it chose, ``(C, a)``."""
        return cluster_shares(choice, self.counts(server, clients), self.clusters)

    def choose(self, site: Site, w: Models) -> Mapping[str, Any]:
        """c* = argmin_c F_k(w_c) on the training data, the first of equals, and that loss, by which bad data show."""
        loss = site.loss("train", w.as_candidates())
        loss = torch.where(loss.isfinite(), loss, torch.inf)  # to torch NaN is the least of all numbers
        return {"choice": loss.argmin(dim=1), "loss": loss.amin(dim=1)}

    def chosen(self, site: Site, w: Models) -> tuple[Models, Tensor]:
        """w_c* and c* of each client."""
        choice = self.choose(site, w)["choice"]
        return w.as_candidates().chosen(choice.unsqueeze(1)).candidate(0), choice

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from w_c*."""
        own, choice = self.chosen(site, w)
        return {"w": site.fit(own).models, "choice": choice}

    # --- prediction ----------------------------------------------------------------------------------------------
    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """All models."""
        return {"w": broadcast(server.w)}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The model of lowest loss on the client's training data."""
        return Predictor(self.chosen(site, offer["w"])[0])

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """All models; without labels the one that most clients chose last."""
        if labelled:
            return {"w": broadcast(server.w)}
        largest = torch.bincount(server.choice[server.choice >= 0], minlength=self.clusters).argmax()
        return {"theta": broadcast(server.w[int(largest)])}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """w_c*, which is then tuned."""
        if "w" in received:
            received = {"theta": self.chosen(site, received["w"])[0]}
        return super().newcomer(site, epochs, **received)

    # --- what is seen --------------------------------------------------------------------------------------------
    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """Clients of one cluster share its model in equal parts; unknown before a client's first choice."""
        return {"clusters": membership(server.choice)}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How many of the C models were some client's last choice."""
        return {"clusters_in_use": float(len(server.choice[server.choice >= 0].unique()))}


@register
@dataclass(frozen=True)
class IFCA(ClusterModels):
    """IFCA (Ghosh et al., NeurIPS 2020): min_{w_1..w_C} sum_k min_c F_k(w_c).

    Client k trains w_c*, c* = argmin_c F_k(w_c). The server averages the models of each cluster, w_c <- mean of w_k
    with c*_k = c, or their gradients, w_c <- w_c - eta sum_{c*_k = c} p_k grad F_k(w_c) with p_k over all who answered.
    """

    name: ClassVar[str] = "ifca"
    title: ClassVar[str] = "IFCA"
    paper: ClassVar[str] = "Ghosh et al., NeurIPS 2020"
    cites: ClassVar[str] = "ghosh2020efficient"
    deviations: ClassVar[tuple[str, ...]] = (
        "Clients count by their number of examples unless weights is uniform, as in the paper and the authors' code.",
        "The start is drawn again at most redraws times, where the authors' code goes on until it is content.",
        "No layers are shared between clusters, which the paper tries for neural networks.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"clusters": 3},
        limits=(
            Limit({"clusters": 1}, "fedavg"),
            Limit({"clusters": 1, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
        ),
        objective={"w": unchanged},
        traffic=Traffic(lambda at: at.algorithm.clusters, 1, summaries=("meta",)),
        alone={"clusters": 1},
        changes={"least_share": ({"least_share": 0.0}, {"least_share": 0.33, "redraws": 3})},
    )

    averaging: Literal["model", "gradient"] = option(
        "model", "models after E epochs, or one full gradient at each client", paper="both; model in practice"
    )
    redraws: int = option(
        10, "how often at most the C starts are drawn anew because a cluster is too small", paper="without end", least=0
    )
    least_share: float = option(
        0.1,
        "share of the first cohort that each cluster must attract",
        paper="0.35 with C = 2, 0.1 with C = 4",
        least=0,
    )

    def check(self) -> None:
        """C clusters can have ``least_share`` each."""
        self.require(self.least_share * self.clusters <= 1, "least_share", "between 0 and 1 / clusters")

    def setup(self, server: Server) -> None:
        """C different models, not yet tried."""
        super().setup(server)
        server.redrawn = -1

    def welcome(self, server: Server, clients: Tensor) -> None:
        """Let the first cohort choose; while some cluster attracts too few, draw all C starts anew. Keep the best."""
        if server.redrawn >= 0 or self.clusters == 1 or self.redraws == 0:
            return
        fairest, redrawn = -1.0, 0
        for trial in range(self.redraws + 1):
            w = server.initial_models((trial + 1) * self.clusters, distinct=True)[trial * self.clusters :]
            choice = server.ask(self.choose, clients, w=broadcast(w)).choice
            smallest = float(torch.bincount(choice, minlength=self.clusters).min()) / len(choice)
            if smallest > fairest:
                server.w, redrawn, fairest = w, trial, smallest
            if smallest >= self.least_share:
                break
        server.redrawn = redrawn

    def shares(self, server: Server, clients: Tensor, choice: Tensor) -> Tensor:
        """Of its cluster's mean; of the mean over all clients where gradients are averaged."""
        shares = super().shares(server, clients, choice)
        if self.averaging == "model":
            return shares
        counts = self.counts(server, clients)
        return shares * (torch.bincount(choice, counts, self.clusters) / counts.sum()).unsqueeze(1)

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from w_c*, or one step along the full gradient."""
        if self.averaging == "model":
            return super().local_update(site, w)
        own, choice = self.chosen(site, w)
        return {"w": own - site.gradient(own, "train") * site.lr, "choice": choice}
