"""FedFomo: each client downloads a few models and moves towards those that lower its validation loss."""

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
    unchanged,
)
from coterie.models import Models, stack_candidates
from coterie.relations import benefits, epsilon_greedy, mean_self_weight, positive_shares
from coterie.training.keys import generator

_EXPLORING: dict[str, Any] = {"neighbours": 3, "epsilon": 1.0, "baseline": "before_training"}


@register
@dataclass(frozen=True)
class FedFomo(Algorithm):
    """FedFomo (Zhang et al., ICLR 2021): w_i <- w_i + sum_n b_n (w_n - w_i), b_n proportional to max(a_n, 0).

    a_n = (L_i(w_i) - L_i(w_n)) / ||w_n - w_i|| on the client's validation data. The server adds a_n up in P_in and
    sends each client M models, epsilon-greedy by P_i; training follows the mixing.
    """

    name: ClassVar[str] = "fedfomo"
    title: ClassVar[str] = "FedFomo"
    paper: ClassVar[str] = "Zhang et al., ICLR 2021"
    cites: ClassVar[str] = "zhang2021personalized"
    deviations: ClassVar[tuple[str, ...]] = (
        "A client compares with its own trained model, as third-party libraries do; the authors' program compares "
        "with the model before that training, among whose candidates the trained one is (baseline: before_training).",
        "Where no model is better, the client keeps its own; the authors' program goes back to the model before local "
        "training and so loses it (revert).",
        "Distances are Euclidean as in the paper; the authors' program sums absolute differences (norm: l1).",
        "A model that equals the baseline up to rounding has no benefit, where the authors' program divides noise by "
        "noise.",
        "Means of subsets of clients and the mean of all, further candidates in the authors' program, are not offered.",
        "P grows by the benefits as they are; the authors' program divides them by the size of their sum (affinity: "
        "shares).",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"neighbours": 2},
        limits=(Limit({"neighbours": 0}, "local"),),
        objective={"w": unchanged},
        first_traffic=Traffic(0, 1),
        traffic=Traffic(lambda at: min(at.algorithm.neighbours, at.K - 1), 1, summaries=("summary",)),
        symmetric={"neighbours": 10},
        unnormalised={"P": "sums of benefits, of either sign"},
        changes={
            "norm": ({"neighbours": 4}, {"neighbours": 4, "norm": "l1"}),
            "epsilon": ({"neighbours": 1}, {"neighbours": 1, "epsilon": 1.0, "epsilon_decay": 0.0}),
            "epsilon_decay": (
                {"neighbours": 1, "epsilon": 1.0},
                {"neighbours": 1, "epsilon": 1.0, "epsilon_decay": 1.0},
            ),
            "revert": ({"baseline": "before_training"}, {"baseline": "before_training", "revert": True}),
            "affinity": (_EXPLORING, {**_EXPLORING, "affinity": "shares"}),
        },
        validation=True,
    )

    neighbours: int = option(
        5, "models M that each client receives; 0 is LOCAL", paper="5 or 10, the own included", least=0
    )
    epsilon: float = option(
        0.3, "probability that a slot takes a random client, in the first round", paper="0.3", least=0, most=1
    )
    epsilon_decay: float = option(0.05, "what that probability loses each round", paper="0.05", least=0)
    norm: Literal["l2", "l1"] = option("l2", "distance of two models: Euclidean, or sum of differences", paper="l2")
    baseline: Literal["own", "before_training"] = option(
        "own",
        "what models are compared with: the own one, or the one before the last training",
        paper="before_training",
    )
    revert: bool = option(False, "go back to the model before training where no model is better", paper="true")
    available: Literal["round", "latest"] = option(
        "round", "models that can be had: those of the last round, or the latest of all clients", paper="round"
    )
    affinity: Literal["raw", "shares"] = option(
        "raw", "what P grows by: benefits, or benefits over the size of their sum", paper="raw"
    )

    def check(self) -> None:
        """What ``revert`` goes back to."""
        own = self.revert and self.baseline == "own"
        self.require(not own, "revert", "false where the baseline is the own model, from which there is no way back")

    # --- at the server -------------------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """Uploaded models, by whom, and who can be had next; P_in, what each was worth to whom; the last shares b."""
        server.w = server.initial_models()
        server.met = torch.zeros(server.K, dtype=torch.bool)
        server.ready = torch.zeros(server.K, dtype=torch.bool)
        server.P = server.zeros(server.K, server.K)
        server.b = torch.eye(server.K, dtype=torch.float64)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Send each client M models by P; add up what they were worth; keep what comes back."""
        index = self.choose(server, cohort)
        if index.shape[1] == 0:
            up = server.ask(self.first_update, cohort)
        else:
            up = server.ask(self.local_update, cohort, models=pick(server.w, index), index=index)
            asked = index[torch.isin(cohort, up.clients)]
            server.P[up.clients] = server.P[up.clients].scatter_add(1, asked, up.a)
            b = server.zeros(len(up), server.K).scatter_add_(1, asked, up.b)
            server.b[up.clients] = b.scatter_add_(1, up.clients.unsqueeze(1), 1.0 - b.sum(dim=1, keepdim=True))
        server.w[up.clients], server.met[up.clients] = up.w, True
        if self.available == "round":
            server.ready = torch.zeros_like(server.ready)
        server.ready[up.clients] = True

    def choose(self, server: Server, cohort: Tensor) -> Tensor:
        """M clients whose models can be had, epsilon-greedy by P_i; ``(m, c)``, free slots hold the own number."""
        by_name = sorted(range(server.K), key=server.names.__getitem__)
        epsilon = max(0.0, self.epsilon - self.epsilon_decay * (server.round - 1))
        rows, ready = [], server.ready.tolist()
        for i in cohort.tolist():
            known = [j for j in by_name if ready[j] or j == i]
            draw = generator(server.seed, server.round, f"models:{server.names[i]}")
            worth = server.P[i, known].numpy()
            rows.append([known[j] for j in epsilon_greedy(worth, known.index(i), self.neighbours, epsilon, draw)])
        width = max(map(len, rows), default=0)
        filled = [row + [i] * (width - len(row)) for i, row in zip(cohort.tolist(), rows, strict=True)]
        return torch.tensor(filled, dtype=torch.int64).reshape(len(cohort), width)

    # --- at the clients ------------------------------------------------------------------------------------------
    def start(self, site: Site) -> None:
        """The model before the last local training."""
        if self.baseline == "before_training":
            site.before = site.theta.clone()

    def first_update(self, site: Site) -> Mapping[str, Any]:
        """Nothing to mix: plain training."""
        return {"w": self.train(site, site.theta)}

    def local_update(self, site: Site, models: Models, index: Tensor) -> Mapping[str, Any]:
        """a_n, b_n from validation losses; w <- w + sum_n b_n (w_n - w); then E epochs of training."""
        base = site.theta if self.baseline == "own" else site.before
        received = index != site.clients.to(index.device).unsqueeze(1)
        a = torch.where(received, self.benefits(site, base, models), 0.0)
        if self.baseline == "own":
            mixed, b, total = *mixed_in(site.theta, models, a), a.sum(dim=1, keepdim=True)
        else:  # the trained model is a candidate, and what remains where none is better
            own = self.benefits(site, base, stack_candidates([site.theta]))
            candidates = stack_candidates([*(models.candidate(n) for n in range(index.shape[1])), site.theta])
            mixed, b = mixed_in(base if self.revert else site.theta, candidates, torch.cat([a, own], dim=1))
            total = a.sum(dim=1, keepdim=True) + own
        gained = a / total.abs().clamp(min=1e-9) if self.affinity == "shares" else a
        return {"a": gained, "b": b[:, : index.shape[1]], "w": self.train(site, mixed)}

    def train(self, site: Site, start: Models) -> Models:
        """E epochs on the training data."""
        if self.baseline == "before_training":
            site.before = start
        trained = site.fit(start).models
        site.theta = trained
        return trained

    def benefits(self, site: Site, base: Models, models: Models) -> Tensor:
        """a_n = (L(w) - L(w_n)) / ||w_n - w|| of the candidates ``models: (k, c)``, ``(k, c)``."""
        differences = (models.candidate(n) - base for n in range(models.lead[1]))
        far = torch.stack([absolute(d) if self.norm == "l1" else d.norm() for d in differences], dim=1)
        size = absolute(base) if self.norm == "l1" else base.norm()
        return benefits(site.loss("validation", base), site.loss("validation", models), far, size)

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The models of all who have taken part, once; unlabelled: none."""
        return {"models": broadcast(server.w[server.met])} if labelled and bool(server.met.any()) else None

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """Mix all members' models into theta^0 by their benefits, then train."""
        models = received["models"]
        if len(models.lead) == 1:
            models = stack_candidates([models])
        mixed, _ = mixed_in(site.theta, models, self.benefits(site, site.theta, models))
        yield Predictor(mixed)
        for tuned in site.by_epoch(mixed, epochs):
            yield Predictor(tuned)

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """b_in, the share of each model in client i's when it last mixed, and P_in, what models were worth to it."""
        return {"b": server.b, "P": server.P}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How much of its own model a client keeps: near 1 means nearly LOCAL."""
        return {"mean_self_weight": mean_self_weight(server.b, server.met)}


def absolute(models: Models) -> Tensor:
    """The sum of absolute values of each model's parameters, ``(k,)`` float64."""
    return torch.stack([t.abs().flatten(1).sum(dim=1, dtype=torch.float64) for _, t in models.parameters()]).sum(dim=0)


def mixed_in(own: Models, models: Models, a: Tensor) -> tuple[Models, Tensor]:
    """w + sum_n b_n (w_n - w) for the candidates ``models: (k, c)`` with benefits ``a: (k, c)``, and b.

    b sums to 1, so that nothing of w is left, or is 0 throughout where no benefit is positive.
    """
    b = positive_shares(a)
    none = b.sum(dim=1) == 0
    mixed = models.blended(b)
    mixed[none] = own[none]
    return mixed, b
