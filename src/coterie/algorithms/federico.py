"""FedeRiCo: expectation maximisation over the clients' models, peer to peer or with all models at the server."""

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
    to_peers,
)
from coterie.models import Models, stack_candidates
from coterie.relations import epsilon_greedy, heaviest, mean_self_weight, owner_shares, posterior, track_losses
from coterie.training import adam_rows
from coterie.training.keys import generator

NEGLIGIBLE = 1e-3
"""A model of less total weight is left as it is; a prediction leaves models out that have less than this share of
the largest weight."""

_BY_GRADIENT: dict[str, Any] = {"step": "gradient"}
_CHANGES: dict[str, Any] = {
    "loss_scale": ({}, {"loss_scale": "mean"}),
    "epsilon": ({"neighbours": 1}, {"neighbours": 1, "epsilon": 1.0}),
    "tau": ({"loss_scale": "tempered"}, {"loss_scale": "tempered", "tau": 5.0}),
    "owner": (_BY_GRADIENT, {**_BY_GRADIENT, "owner": "sgd"}),
    "owner_lr": (_BY_GRADIENT, {**_BY_GRADIENT, "owner_lr": 0.1}),
}


@register
@dataclass(frozen=True)
class FedeRiCo(Algorithm):
    """FedeRiCo ("Find Your Friends"): client i's data are explained by a mixture of all clients' models phi_j.

    max (1/n) sum_i log sum_j Pi_ij p(D_i | phi_j). The posterior w_i says with whom client i collaborates, and phi_j is
    trained by those who use it. ``decentralised`` is Algorithm 1: M neighbours a round, tracked losses L^ =
    (1 - beta) L^ + beta l, w_i = softmax(-L^_i). ``central`` evaluates all models each round and accumulates.
    """

    name: ClassVar[str] = "federico"
    title: ClassVar[str] = "FedeRiCo"
    paper: ClassVar[str] = "Find Your Friends: Personalized Federated Learning with the Right Collaborators"
    cites: ClassVar[str] = "findyourfriends"
    differences: ClassVar[tuple[str, ...]] = ("change", "gradient")
    evaluated: ClassVar[str] = "mixture of the models with the client's weights"
    deviations: ClassVar[tuple[str, ...]] = (
        "A client's own model is always among those it chooses, which the printed algorithm leaves open.",
        "Models that a client has not evaluated have no weight (init: first_observation); as printed they look "
        "perfect. Accumulated losses begin there, too, so that a model first seen late has fewer of them.",
        "warm_up, which lets every client train alone first, is not in the paper; it is 0 by default.",
        "evidence: validation, which judges models on data that none was trained on, is not in the paper; it is off.",
        "Losses in gradients are means, and a model whose weights sum to less than 0.001 is left alone.",
        "Under step: gradient batch-norm statistics stay as they began, since gradients are taken in evaluation mode.",
    )
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "decentralised": {"tracking": "ema", "step": "epochs", "owner": "adam"},
        "central": {"tracking": "accumulated", "step": "gradient", "owner": "sgd"},
    }
    claims: ClassVar[Mapping[str, Claims]] = {
        "decentralised": Claims(
            limits=(Limit({"neighbours": 0, "init_models": "common"}, "local"),),
            traffic=Traffic(0, 0, peers=lambda at: 2 * at.algorithm.neighbours, summaries=("summary",)),
            alone={"init_models": "common"},
            symmetric={"init_models": "common", "neighbours": 10},
            changes=_CHANGES,
        ),
        "central": Claims(
            traffic=Traffic(lambda at: at.K, lambda at: at.K, summaries=("summary",)),
            alone={"init_models": "common", "owner_lr": 0.1},
            one_step=True,
            symmetric={"init_models": "common"},
            learns={"owner": "adam", "loss_scale": "mean"},
            changes=_CHANGES,
        ),
    }

    variant: Literal["decentralised", "central"] = option(
        "decentralised",
        "peer to peer, or all models at a server; sets the defaults of tracking, step and owner",
        paper="both",
    )
    neighbours: int = option(3, "models M fetched a round, besides the own one", paper="3", least=0)
    warm_up: int = option(0, "first rounds that a client spends with its own model alone", paper="0", least=0)
    epsilon: float = option(0.3, "probability ε of a random neighbour", paper="0.3", least=0, most=1)
    beta: float = option(0.6, "weight β of the new loss: small is smooth", paper="0.6", above=0, most=1)
    tracking: Literal["ema", "accumulated"] | None = option(
        None, "how losses of former rounds count", paper="ema; accumulated"
    )
    loss_scale: Literal["sum", "mean", "tempered"] = option(
        "sum",
        "the loss in the posterior: sum over examples, their mean, or tempered: the sum divided by tau",
        paper="sum",
    )
    tau: float = option(1.0, "temperature τ under loss_scale: tempered", above=0)
    evidence: Literal["train", "validation"] = option(
        "train", "the data by whose loss models are judged", paper="train"
    )
    init: Literal["first_observation", "zero"] = option(
        "first_observation",
        "first_observation: only models that were evaluated have weight; zero: a model never seen counts as perfect",
        paper="zero",
    )
    init_models: Literal["independent", "common"] = option(
        "independent", "independent draws, or one common start", paper="random"
    )
    step: Literal["epochs", "gradient"] | None = option(
        None, "what a client returns: the difference after its local epochs, or one gradient", paper="both"
    )
    owner: Literal["sgd", "adam"] | None = option(
        None, "under step: gradient, whose step the owner of a model takes", paper="Adam"
    )
    owner_lr: float = option(0.01, "learning rate of the owner's step", paper="0.01", above=0)

    def check(self) -> None:
        """What a variant allows."""
        self.require(self.variant != "central" or self.step == "gradient", "step", "gradient in the central variant")
        alone = self.variant == "decentralised" and self.init == "first_observation"  # else w_ii is small all the while
        self.require(not self.warm_up or alone, "warm_up", "0 unless decentralised with init first_observation")

    @property
    def compares_on_validation(self) -> bool:
        """By training losses unless ``evidence`` says otherwise."""
        return self.evidence == "validation"

    # --- where the models meet -----------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """phi_j of every client, w_ij = 1/K; the owners' Adam."""
        server.phi = server.initial_models(distinct=self.init_models == "independent")[self.by_name(server).argsort()]
        server.w = torch.full((server.K, server.K), 1.0 / server.K, dtype=torch.float64)
        server.met = torch.zeros(server.K, dtype=torch.bool)
        server.steps = torch.zeros(server.K, dtype=torch.int64)
        if self.step == "gradient" and self.owner == "adam":
            server.mean, server.square = server.phi.zeros(), server.phi.zeros()

    def round(self, server: Server, cohort: Tensor) -> None:
        """One round of Algorithm 1, or one E and one M step over all models."""
        if self.variant == "central":
            self.central_round(server, cohort)
            return
        asked = self.choose(server, cohort)
        up = server.ask(self.local_update, cohort, phi=pick(server.phi, asked, peers=True), index=asked)
        server.w[up.clients], server.met[up.clients] = up.w, True
        owners, used = asked[torch.isin(cohort, up.clients)].flatten(), up.used.flatten()
        mass, share = owner_shares(owners, used, server.K)
        self.owner_step(server, up.change.flatten_candidates().mixed(share), mass)

    def choose(self, server: Server, cohort: Tensor) -> Tensor:
        """B_i = {i} and, after the warm-up, M neighbours, epsilon-greedy by w_i, ``(m, M + 1)``."""
        order = self.by_name(server)
        M = min(self.neighbours, server.K - 1) if server.round > self.warm_up else 0
        rank, weights, rows = order.argsort(), server.w[:, order].numpy(), []
        for i in cohort.tolist():
            draw = generator(server.seed, server.round, f"neighbours:{server.names[i]}")
            rows.append([i, *order[epsilon_greedy(weights[i], int(rank[i]), M, self.epsilon, draw)].tolist()])
        return torch.tensor(rows, dtype=torch.int64).reshape(len(cohort), M + 1)

    def by_name(self, server: Server) -> Tensor:
        """The clients in the order of their names, by which random draws go, ``(K,)``."""
        return torch.tensor(sorted(range(server.K), key=server.names.__getitem__))

    def owner_step(self, server: Server, change: Models, mass: Tensor) -> None:
        """phi_b <- phi_b - sum_i w_ib (phi_b - copy_i) / max(1, sum_i w_ib), or an optimiser's step with sum_i g_b<-i.

        ``change: (K,)`` are the means of what arrived by weight, ``mass: (K,)`` the sums of the weights.
        """
        active = mass >= NEGLIGIBLE
        if self.step == "epochs":
            moved = server.phi - change * torch.where(active, mass.clamp(max=1.0), 0.0)
            server.phi = moved.with_buffers(change, active)
        elif self.owner == "sgd":
            server.phi = server.phi - change * torch.where(active, self.owner_lr * mass, 0.0)
        else:
            server.steps = server.steps + active.long()
            server.phi, server.mean, server.square = adam_rows(
                server.phi, change * mass, server.mean, server.square, server.steps, active, self.owner_lr
            )

    def central_round(self, server: Server, cohort: Tensor) -> None:
        """Phi <- Phi - eta sum_i (n_i / n) grad_i, where grad_i holds w_ij grad f_i(phi_j) for every j."""
        phi = broadcast(server.phi)
        up = server.ask(self.central_update, cohort, average=server.n[cohort].double(), phi=phi)
        weights = server.ask(self.report, up.clients)
        server.w[weights.clients], server.met[weights.clients] = weights.w, True
        one = torch.ones(server.K, dtype=torch.float64)
        # Adam takes whole steps however small the gradient; an exact step is small itself
        used = one if self.owner == "sgd" else torch.where(weights.w.sum(dim=0) >= NEGLIGIBLE, one, 0.0)
        self.owner_step(server, up.gradient.flatten_candidates(), used)

    # --- at the clients ------------------------------------------------------------------------------------------
    def start(self, site: Site) -> None:
        """Tracked losses L^_ij and last losses l_ij; under ``zero`` every model counts as observed, with loss 0."""
        site.tracked, site.last = site.zeros(site.K), site.zeros(site.K)
        site.observed = torch.full_like(site.last, self.init == "zero", dtype=torch.bool)

    def local_update(self, site: Site, phi: Models, index: Tensor) -> Mapping[str, Any]:
        """l_ib and w_i from the models of B_i; back to each owner what its model shall change, with the weight w_ib."""
        losses = self.scaled(site, site.loss(self.evidence, phi))
        w = self.observe(site, losses, index)
        used = w.gather(1, index)
        told = self.told(used, losses)
        changes = [self.change(site, phi.candidate(b), told[:, b], own=b == 0) for b in range(index.shape[1])]
        return {"change": to_peers(stack_candidates(changes), index), "used": used, "w": w}

    def told(self, w: Tensor, losses: Tensor) -> Tensor:
        """The weights ``(k, c)`` by which models are excused: none of a client without any loss, which itself fails."""
        return w.where(losses.isfinite().any(dim=1, keepdim=True), 1.0)

    def change(self, site: Site, model: Models, used: Tensor, own: bool = False) -> Models:
        """What the client's data would change: phi_b - copy after E epochs (with the copy's buffers), or a gradient.

        ``used: (k,)`` are the weights w_ib: a copy without any whose training diverges gives no change.
        """
        if self.step == "gradient":
            change = site.gradient(model, "train")
        else:
            trained = site.fit(model, optimiser="" if own else None).models
            change = (model - trained).with_buffers(trained, torch.ones(site.k, dtype=torch.bool))
        return change.kept((used > 0) | change.finite())

    def central_update(self, site: Site, phi: Models) -> Mapping[str, Any]:
        """w_ij ~ Pi_ij exp(-sum_s l(phi_j)) with Pi = w of the round before; then w_ij grad f_i(phi_j) for every j."""
        if len(phi.lead) == 1:  # a federation of one
            phi = stack_candidates([phi])
        losses = self.scaled(site, site.loss(self.evidence, phi))
        w = self.observe(site, losses)
        told = self.told(w, losses)
        gradients = [self.change(site, phi.candidate(j), told[:, j]) * w[:, j] for j in range(site.K)]
        return {"gradient": stack_candidates(gradients)}

    def report(self, site: Site) -> Mapping[str, Any]:
        """The client's weights."""
        return {"w": posterior(site.tracked, site.observed, site.clients)}

    def scaled(self, site: Site, mean_loss: Tensor) -> Tensor:
        """-log p(D_i | phi_b) as the sum over examples, its mean, or the sum over tau, ``(k, c)``."""
        if self.loss_scale == "mean":
            return mean_loss
        n = site.split(self.evidence).n
        n = torch.where(n > 0, n, site.n).to(mean_loss).unsqueeze(1)  # without validation data the loss is of training
        return n * mean_loss / (self.tau if self.loss_scale == "tempered" else 1.0)

    def observe(self, site: Site, losses: Tensor, index: Tensor | None = None) -> Tensor:
        """Note the losses ``(k, c)`` of the models ``index`` (of all), bring L^ up to date, return w_i., ``(k, K)``."""
        site.tracked, site.last, site.observed = track_losses(
            site.tracked, site.last, site.observed, losses, index, self.beta if self.tracking == "ema" else None
        )
        return posterior(site.tracked, site.observed, site.clients)

    # --- prediction ----------------------------------------------------------------------------------------------
    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The models that a client gives weight to; its own alone before it has taken part."""
        own = torch.eye(server.K, dtype=torch.float64)[clients]
        weights, index = heaviest(torch.where(server.met[clients].unsqueeze(1), server.w[clients], own), NEGLIGIBLE)
        index = torch.where(weights > 0, index, clients.unsqueeze(1))  # a slot too many holds its own model, unused
        return {"phi": pick(server.phi, index, peers=self.variant == "decentralised"), "weights": weights}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """sum_j w_ij h_phi_j(x): probabilities are averaged, or outputs in regression."""
        combine: Literal["probabilities", "outputs"] = "outputs" if site.task == "regression" else "probabilities"
        return Predictor(offer["phi"], offer["weights"], combine)

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """All models, once; without labels with the same weight for each."""
        everyone = torch.arange(server.K).expand(len(clients), -1)
        phi = pick(server.phi, everyone, peers=self.variant == "decentralised")
        weights = torch.full((len(clients), server.K), 1.0 / server.K, dtype=torch.float64)
        return {"phi": phi} if labelled else {"phi": phi, "weights": weights}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """w = softmax(-l) of the newcomer's losses; no model is trained."""
        phi = received["phi"]
        if "weights" not in received:
            losses = self.scaled(site, site.loss(self.evidence, phi))
            weights, index = heaviest(posterior(losses, losses.isfinite()), NEGLIGIBLE)
            received = {"phi": phi.chosen(index), "weights": weights}
        predictor = self.personal(site, **received)
        for _ in range(epochs + 1):
            yield predictor

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """w_ij, the weight of client j's model for client i."""
        return {"w": server.w}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How much weight a client gives its own model, and the entropy of its weights in nats."""
        w = server.w[server.met]
        if not len(w):
            return {}
        own = mean_self_weight(server.w, server.met)
        return {"mean_self_weight": own, "mean_entropy": float(torch.special.entr(w).sum(dim=1).mean())}
