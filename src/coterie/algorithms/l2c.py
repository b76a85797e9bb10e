"""L2C: each client learns with which weights to apply everybody's updates, by gradient on its validation loss."""

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
    pick,
    register,
)
from coterie.models import Models, stack_candidates, stack_rows
from coterie.relations import adam, mean_self_weight, softmax_slope

NEVER = -1e3
"""alpha of a weight of 0, whose slope is 0 as well; an infinite number would count as a failure."""


@register
@dataclass(frozen=True)
class L2C(Algorithm):
    """L2C (Li et al., CVPR 2022): min over alpha_i of L_val,i(w_i+), w_i+ = w_i - sum_j pi_ij D_j.

    pi_i = softmax(alpha_i), and D_j is what client j's local training took away from w_j. A round asks twice: for the
    updates, then with all of them for new weights. dL/dpi_ij = -<grad L_val,i(w_i+), D_j>. After T0 rounds only the own
    update and the ``topk`` others of largest weight are sent.
    """

    name: ClassVar[str] = "l2c"
    title: ClassVar[str] = "L2C"
    paper: ClassVar[str] = "Li et al., CVPR 2022"
    cites: ClassVar[str] = "li2022learning"
    differences: ClassVar[tuple[str, ...]] = ("D",)
    evaluated: ClassVar[str] = "own model after the weighted updates"
    deviations: ClassVar[tuple[str, ...]] = (
        "A step on alpha sees all of a client's validation data, in evaluation mode, not one batch of it; a client "
        "without validation data takes its training data.",
        "A server passes the updates on; the paper's clients send them to each other.",
        "Who is not there this round gets no weight and the others' weights are scaled up, or counts with its last "
        "update (missing: cached).",
        "The network that predicts weights from updates (meta-L2C) is left out.",
        "The paper does not state the learning rate of alpha; Adam with 0.01 is what re-implementations use.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"T0": 1, "topk": 2, "lr_alpha": 0.3},
        limits=(Limit({"self_weight": 1.0}, "local"),),
        first_traffic=Traffic(lambda at: at.m, 1, summaries=("summary",)),
        traffic=Traffic(lambda at: min(at.m, at.algorithm.topk + 1), 1, summaries=("summary",)),
        symmetric={"T0": 1000},
        changes={
            "self_weight": ({}, {"self_weight": 0.7}),
        },
        validation=True,
    )

    lr_alpha: float = option(0.01, "learning rate of α; 0 leaves all weights equal", paper="not stated", least=0)
    alpha_steps: int = option(5, "steps on α in each round", paper="one for each validation batch", least=1)
    T0: int = option(10, "rounds in which everyone hears of everyone", paper="chosen for each data set", least=0)
    topk: int = option(5, "clients whose updates a client receives after that, beside its own", paper="few", least=0)
    self_weight: float | None = option(
        None, "πᵢᵢ at first, between 0 and 1; by default the same for all", paper="1/K", above=0, most=1
    )
    missing: Literal["drop", "cached"] = option(
        "drop", "who is not there this round: gets no weight, or counts with its last update", paper="all take part"
    )

    # --- where the updates meet ----------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """pi as clients report it and as it was used; their models, which newcomers will need."""
        server.alpha = torch.full((server.K, server.K), 1.0 / server.K, dtype=torch.float64)
        server.pi = torch.eye(server.K, dtype=torch.float64)
        server.w = server.initial_models()
        server.known = torch.zeros(server.K, dtype=torch.bool)
        if self.missing == "cached":
            server.D = server.initial_models().zeros()

    def round(self, server: Server, cohort: Tensor) -> None:
        """(a) All train and upload D_j; (b) each receives the updates it may use, learns its weights, moves."""
        first = server.ask(self.train, cohort)
        bank, owners = first.D, first.clients
        if self.missing == "cached":
            before = server.known.clone()
            before[owners] = False
            bank, owners = stack_rows([server.D[before], bank]), torch.cat([before.nonzero().squeeze(1), owners])
            order = owners.argsort()
            bank, owners = bank[order], owners[order]
        place = self.choose(server, first.clients, owners)
        sent = broadcast(bank) if place.shape[1] == len(owners) else pick(bank, place)
        up = server.ask(self.collaborate, first.clients, D=sent, index=owners[place])
        moved = torch.isin(first.clients, up.clients)
        if self.missing == "cached":
            server.D[up.clients] = first.D[moved]
        server.known[up.clients], place = True, place[moved]
        server.alpha[up.clients] = up.pi
        used = up.pi.gather(1, owners[place])
        weights = server.zeros(len(up), len(owners)).scatter_(1, place, used / used.sum(dim=1, keepdim=True))
        server.pi[up.clients] = server.zeros(len(up), server.K).index_copy_(1, owners, weights)
        way = bank.mixed(weights)
        server.w[up.clients] = (server.w[up.clients] - way).with_buffers(way, torch.ones(len(up), dtype=torch.bool))

    def choose(self, server: Server, clients: Tensor, owners: Tensor) -> Tensor:
        """Places among ``owners: (a,)`` of the updates that each client receives, ``(m, c)``; ties go by name."""
        everyone = torch.arange(len(owners)).expand(len(clients), -1)
        if server.round <= self.T0 or self.topk + 1 >= len(owners):
            return everyone
        by_name = torch.tensor(sorted(range(len(owners)), key=lambda place: server.names[int(owners[place])]))
        weights = server.alpha[clients][:, owners]
        weights = torch.where(clients.unsqueeze(1) == owners, torch.inf, weights)[:, by_name]
        chosen = weights.argsort(dim=1, descending=True, stable=True)[:, : self.topk + 1]
        return by_name[chosen]

    # --- at the clients ------------------------------------------------------------------------------------------
    def start(self, site: Site) -> None:
        """alpha_i = log pi_i of the first round, and Adam's running means for each entry."""
        pi = site.zeros(site.K) + 1.0 / site.K
        if self.self_weight is not None and site.K > 1:
            pi = site.zeros(site.K) + (1.0 - self.self_weight) / (site.K - 1)
            own = site.clients.clamp(max=site.K - 1)  # newcomers are no row, and learn an alpha of their own
            pi.scatter_(1, own.unsqueeze(1).to(pi.device), self.self_weight)
        site.alpha, site.adam = pi.log().clamp(min=NEVER), site.zeros(site.K, 3)

    def train(self, site: Site) -> Mapping[str, Any]:
        """D_i = w_i before - w_i after E epochs; w_i itself waits."""
        trained = site.fit(site.theta).models
        return {"D": (site.theta - trained).with_buffers(trained, torch.ones(site.k, dtype=torch.bool))}

    def collaborate(self, site: Site, D: Models, index: Tensor) -> Mapping[str, Any]:
        """Steps on alpha_i by the validation loss of w_i+, then w_i <- w_i+; ``index: (k, c)`` says whose each D is."""
        D = stack_candidates([D]) if len(D.lead) == 1 else D
        alpha, moments = site.alpha.gather(1, index), site.adam[torch.arange(site.k).unsqueeze(1), index]
        for _ in range(self.alpha_steps):
            alpha, moments = adam(alpha, self.slope(site, site.theta, D, alpha), moments, self.lr_alpha)
        site.theta = moved(site.theta, D, alpha)
        site.alpha = site.alpha.scatter(1, index, alpha)
        site.adam = site.adam.scatter(1, index.unsqueeze(2).expand_as(moments), moments)
        return {"pi": site.alpha.softmax(dim=1)}

    def slope(self, site: Site, theta: Models, D: Models, alpha: Tensor) -> Tensor:
        """dL_val/dalpha_ij through w_i+ and the softmax, ``(k, c)``."""
        gradient = site.gradient(moved(theta, D, alpha), "validation")
        return softmax_slope(alpha.softmax(dim=1), -D.dots(gradient))

    # --- newcomers -----------------------------------------------------------------------------------------------
    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """D_j = theta^0 - w_j, the way that each member has come; unlabelled: none."""
        if not labelled or not bool(server.known.any()):
            return None
        w = server.w[server.known]
        way = server.initial_model() - w
        return {"D": broadcast(way.with_buffers(w, torch.ones(len(w), dtype=torch.bool)))}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """Learn alpha, equal for all at first, over the ways of all members and of the own training."""
        D = received["D"]
        D = stack_candidates([D]) if len(D.lead) == 1 else D
        ways = [D.candidate(j) for j in range(D.lead[1])]
        alpha, moments = site.zeros(len(ways) + 1), site.zeros(len(ways) + 1, 3)
        for trained in (site.theta, *site.by_epoch(site.theta, epochs)):
            own = (site.theta - trained).with_buffers(trained, torch.ones(site.k, dtype=torch.bool))
            everyone = stack_candidates([*ways, own])
            for _ in range(self.alpha_steps):
                alpha, moments = adam(alpha, self.slope(site, site.theta, everyone, alpha), moments, self.lr_alpha)
            yield Predictor(moved(site.theta, everyone, alpha))

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """pi_ij, the weight of client j's update for client i when it last took part."""
        return {"pi": server.pi}

    def notes(self, server: Server) -> Mapping[str, float]:
        """The weight of a client's own update: 1 means LOCAL."""
        return {"mean_self_weight": mean_self_weight(server.pi, server.known)}


def moved(theta: Models, D: Models, alpha: Tensor) -> Models:
    """w_i+ = w_i - sum_j pi_ij D_j with the batch statistics that the updates bring, ``(k,)``."""
    way = D.blended(alpha.softmax(dim=1))
    return (theta - way).with_buffers(way, torch.ones(len(theta), dtype=torch.bool))
