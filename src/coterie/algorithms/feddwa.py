"""FedDWA: each client receives a mixture of all models, weighted by closeness to where its own is heading."""

from __future__ import annotations

from collections.abc import Mapping
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
from coterie.models import Models
from coterie.relations import cross_distances, inverse_distance_weights, mean_self_weight


@register
@dataclass(frozen=True)
class FedDWA(Algorithm):
    """FedDWA (Liu et al., IJCAI 2023): min_p sum_j p_ij^2 ||w_i* - w_j||^2 over the simplex, w_i <- sum_j p_ij w_j.

    w_i* is the guidance model: w_i after one more local epoch, or one full-gradient step, or (an ablation) the model
    that the client had after its previous training. p_ij = d_ij^-1 / sum_l d_il^-1, cut to the ``topk`` largest.
    """

    name: ClassVar[str] = "feddwa"
    title: ClassVar[str] = "FedDWA"
    paper: ClassVar[str] = "Liu et al., IJCAI 2023"
    cites: ClassVar[str] = "liu2023feddwa"
    evaluated: ClassVar[str] = "personal mixture after aggregation"
    deviations: ClassVar[tuple[str, ...]] = (
        "10⁻¹² times the row's median is added to every distance, so that models at distance zero share the weight.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(Limit({"topk": 1, "guidance": "full_gradient"}, "local"),),
        objective={"w": unchanged},
        traffic=Traffic(1, 2),
        changes={"guidance_epochs": ({}, {"guidance_epochs": 5})},
    )

    guidance: Literal["epoch", "full_gradient", "last_model"] = option(
        "epoch",
        "how a client looks ahead: more epochs, one step with its whole gradient, or its previous model (an ablation)",
        paper="one more epoch",
    )
    guidance_epochs: int | None = option(
        None, "epochs of guidance; unset: those of local training", paper="1, as many as local epochs", least=1
    )
    topk: int = option(5, "models in a mixture", paper="5", least=1)

    def setup(self, server: Server) -> None:
        """The personal models to send, theta^0 at first, and who has taken part."""
        server.w = server.initial_models()
        server.p = torch.eye(server.K, dtype=torch.float64)
        server.met = torch.zeros(server.K, dtype=torch.bool)

    def round(self, server: Server, cohort: Tensor) -> None:
        """d_ij = ||w_i* - w_j||^2 over those that answered; w_i <- sum_j p_ij w_j for them."""
        up = server.ask(self.local_update, cohort, w=server.w[cohort])
        heading, here = up.guidance.trained(), up.w.trained()
        p = inverse_distance_weights(cross_distances(heading, here), self.topk)
        server.w[up.clients], server.met[up.clients] = up.w.mixed(p), True
        rows = torch.zeros(len(up), server.K, dtype=torch.float64)
        rows[:, up.clients] = p
        server.p[up.clients] = rows

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """w_i: E epochs from the personal model; w_i*: a look ahead from there, which nobody's model keeps."""
        before = site.theta.clone() if self.guidance == "last_model" else w
        site.theta = site.fit(w).models
        if self.guidance == "epoch":
            ahead = site.fit(site.theta, epochs=self.guidance_epochs, batches="guidance", optimiser=None).models
        elif self.guidance == "full_gradient":
            ahead = site.theta - site.gradient(site.theta, "train") * site.lr
        else:
            ahead = before
        return {"guidance": ahead, "w": site.theta}  # the last model returned is the one whose local statistics stay

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The aggregated models."""
        return {"w": server.w[clients]}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The client's mixture."""
        return Predictor(offer["w"])

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """A round from the mean model, then a mixture of the members' models and the own; unlabelled: the mean."""
        met = server.w[server.met] if bool(server.met.any()) else server.initial_model()
        mean = broadcast(met.mixed(torch.full((1, len(met)), 1.0 / len(met), dtype=torch.float64)))
        if not labelled:
            return {"theta": mean}
        up = server.ask(self.local_update, clients, w=mean)
        heading, members = up.guidance.trained(), met.trained()
        ahead = up.guidance - up.w
        distances = torch.cat([cross_distances(heading, members), ahead.dot(ahead).unsqueeze(1)], dim=1)
        p = inverse_distance_weights(distances, self.topk)
        return {"theta": met.mixed_with_own(up.w, p)}

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """p_ij, the share of w_j in client i's model."""
        return {"p": server.p}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How much of its own model a client keeps: near 1 means nearly LOCAL."""
        return {"mean_self_weight": mean_self_weight(server.p, server.met)}
