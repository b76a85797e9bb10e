"""SCAFFOLD: control variates take the clients' drift out of local training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import Claims, GlobalModel, Server, Site, Traffic, broadcast, option, register
from coterie.models import Models


@register
@dataclass(frozen=True)
class Scaffold(GlobalModel):
    """SCAFFOLD (Karimireddy et al., ICML 2020): y <- y - eta (grad F_k(y) + c - c_k) for J local steps from w.

    Then c_k+ = c_k - c + (w - y) / (J eta), which is the mean gradient on the way. The server takes w <- w + eta_g
    mean_S(y - w) and c <- c + (m/K) mean_S(c_k+ - c_k), so that c = mean_k c_k after every round.
    """

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"
    cites: ClassVar[str] = "karimireddy2020scaffold"
    differences: ClassVar[tuple[str, ...]] = ("dc",)
    plain_sgd: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "Local work is counted in epochs; J is the number of steps that a client has really taken.",
        "With weights: samples, which the paper does not have, c is the mean of the c_k with the weights n_k / n.",
    )
    claims: ClassVar[Claims] = Claims(
        objective={"w": lambda at: at.along("c") - at.along("c_k", before=True)},
        traffic=Traffic(2, 2),
        learns={"training.lr": 0.3},  # plain SGD is slow
    )

    weights: Literal["samples", "uniform"] = option(
        "uniform", "uniform: all clients count the same; samples: by n_k", paper="uniform"
    )
    server_lr: float = option(1.0, "the server's learning rate η_g", paper="1", above=0)
    control: Literal["path", "gradient"] = option(
        "path",
        "a client's new variate: the mean gradient on its path (option II), or the full gradient at w (option I)",
        paper="option II in its experiments",
    )

    def setup(self, server: Server) -> None:
        """w at theta^0, the server's control variate c at 0."""
        super().setup(server)
        server.c = server.w.without_buffers().zeros()

    def round(self, server: Server, cohort: Tensor) -> None:
        """The clients that answered move w by their mean, and c by their share of all clients."""
        everyone = self.shares(server, torch.arange(server.K))
        up = server.ask(
            self.local_update, cohort, average=everyone[cohort], w=broadcast(server.w), c=broadcast(server.c)
        )
        share = float(everyone[up.clients].sum() / everyone.sum())
        step = (up.w - server.w).without_buffers() * self.server_lr
        server.w = (server.w + step).with_buffers(up.w, torch.ones(1, dtype=torch.bool))
        server.c = server.c + up.dc * share

    def start(self, site: Site) -> None:
        """The client's control variate c_k at 0."""
        site.c_k = site.theta.without_buffers().zeros()

    def local_update(self, site: Site, w: Models, c: Models) -> Mapping[str, Any]:
        """J steps with the drift c - c_k added to the gradient; then c_k+."""
        drift, y, J = c - site.c_k, w, torch.zeros_like(site.n)
        for step in site.steps():
            y = step.update(y, site.gradient(y, step) + drift[step.rows])
            J[step.rows] += 1  # at least one: every client has a batch
        gone = (w - y).without_buffers()
        new = gone / (J.double() * site.lr) - drift if self.control == "path" else site.gradient(w, "train")
        dc = new - site.c_k
        site.c_k = new
        return {"dc": dc, "w": y}
