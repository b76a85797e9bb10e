"""pFedMe: personal models that solve a proximal problem around a model which follows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.contract import Claims, GlobalModel, Limit, Predictor, Server, Site, broadcast, option, register
from coterie.errors import CoterieError
from coterie.models import Models


@register
@dataclass(frozen=True)
class PFedMe(GlobalModel):
    """pFedMe (T. Dinh et al., NeurIPS 2020): min_w sum_k p_k min_th [F_k(th) + (lambda/2) ||th - w||^2].

    Each batch: K inner steps th <- th - eta_p (grad F_k(th) + lambda (th - w_k)), then w_k <- w_k - eta lambda
    (w_k - th), down the gradient of the inner minimum. Server: w <- (1 - beta) w + beta sum_k p_k w_k.
    """

    name: ClassVar[str] = "pfedme"
    title: ClassVar[str] = "pFedMe"
    paper: ClassVar[str] = "T. Dinh et al., NeurIPS 2020"
    cites: ClassVar[str] = "dinh2020personalized"
    evaluated: ClassVar[str] = "personal model after local training"
    deviations: ClassVar[tuple[str, ...]] = (
        "The personal model th_k is evaluated; the authors' code evaluates w_k under this name.",
        "A round goes through E epochs, each batch an inner problem, unless local_steps counts the batches.",
        "Only those who are asked train; in the authors' code all clients do.",
        "Clients count by their examples unless weights is uniform, as it is in the paper.",
        "λ is 10 by default, which stays stable up to a learning rate of 0.1; ηλ must not exceed 1.",
        "Each inner problem starts at w_k and has no weight decay; warm_start and mu do as the authors' code does.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"lambda": 4.0},
        limits=(
            Limit({"lambda": 4.0, "inner_lr": 0.25, "inner_steps": 1}, "fedavg", state="w"),  # w - theta = eta_p grad
            Limit({"lambda": 0.5, "inner_lr": 2.0, "inner_steps": 1}, "fedavg", state="w"),
        ),
        exempt={"alone": "predictions are one inner problem away from w, which alone follows plain SGD"},
    )

    lambda_: float = option(10.0, "strength λ of the pull of θ towards w", paper="15, with η = 0.005", least=0)
    inner_steps: int = option(5, "gradient steps K on each batch's inner problem", paper="5", least=1)
    inner_lr: float = option(0.1, "rate η_p of an inner step", paper="0.1, 0.09 or 0.01", above=0)
    beta: float = option(1.0, "how far the server's w goes to the mean of the w_k", paper="1, compared with 2", least=0)
    local_steps: int | None = option(None, "batches R of a round; none: the epochs of training", paper="20", least=1)
    warm_start: bool = option(
        False, "whether an inner problem starts at the former θ of the round, not at w_k", paper="code: yes"
    )
    mu: float = option(0.0, "weight decay in the inner problem", paper="code 0.001", least=0)

    def check(self) -> None:
        """Inner steps are stable."""
        stable = self.inner_lr * (self.lambda_ + self.mu) < 2
        self.require(stable, "inner_lr", f"below 2 / (lambda + mu) = {2 / max(self.lambda_ + self.mu, 1e-12):.4g}")

    def round(self, server: Server, cohort: Tensor) -> None:
        """w <- (1 - beta) w + beta sum_k p_k w_k over the clients that answered."""
        up = server.ask(self.local_update, cohort, average=self.shares(server, cohort), w=broadcast(server.w))
        step = (up.w - server.w).without_buffers() * self.beta
        server.w = (server.w + step).with_buffers(up.w, torch.ones(1, dtype=torch.bool))

    def start(self, site: Site) -> None:
        """The personal model theta_k, and whether the client has one."""
        site.trained = torch.zeros_like(site.n, dtype=torch.bool)

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """R batches, each an inner problem whose solution w_k then approaches."""
        if site.lr * self.lambda_ > 1.0 + 1e-12:
            raise CoterieError(
                f"lambda {self.lambda_:g} times the learning rate {site.lr:.4g} exceeds 1, so that w would overshoot "
                "its personal model; lower lambda or training.lr"
            )
        theta, everyone = w.clone(), torch.ones_like(site.trained)
        for step in site.steps(steps=self.local_steps):
            if not self.warm_start:
                theta[step.rows] = w[step.rows]
            for _ in range(self.inner_steps):
                gradient = self.inner_gradient(site.gradient(theta, step), theta[step.rows], w[step.rows])
                theta = step.shift(theta, gradient * -self.inner_lr)
            w = step.update(w, (w - theta)[step.rows] * self.lambda_)
            theta = theta.with_buffers(w, everyone)
        site.theta, site.trained = theta, everyone
        return {"w": w}

    def inner_gradient(self, gradient: Models, theta: Models, w: Models) -> Models:
        """The gradient of F_k(th) + (lambda/2) ||th - w||^2 + (mu/2) ||th||^2, given that of F_k."""
        return (gradient + (theta - w) * self.lambda_ + theta * self.mu).with_frozen(gradient)

    def solved(self, site: Site, w: Models) -> Models:
        """An inner problem around w on all of a client's data, for who has not trained."""
        theta = w
        for _ in range(self.inner_steps):
            theta = theta - self.inner_gradient(site.gradient(theta, "train"), theta, w) * self.inner_lr
        return theta

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """theta_k; for a client that has never taken part, its inner problem around the current w."""
        new = ~site.trained
        if not bool(new.any()):
            return Predictor(site.theta)
        theta = site.theta.clone()
        theta[new] = self.solved(site, offer["w"])[new]
        return Predictor(theta)

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The inner problem around w, batch after batch."""
        w = theta = received["theta"]
        yield Predictor(theta)
        for epoch in range(epochs):
            for step in site.steps(epochs=1, batches=f"train {epoch}"):
                gradient = self.inner_gradient(site.gradient(theta, step), theta[step.rows], w[step.rows])
                theta = step.shift(theta, gradient * -self.inner_lr)
                step.settle(theta)
            yield Predictor(theta)
