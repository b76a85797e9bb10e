"""FedDyn: a dynamic regulariser makes the clients' optima agree with the common one."""

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
class FedDyn(GlobalModel):
    """FedDyn (Acar et al., ICLR 2021): client k minimises F_k(th) - <g_k, th> + (alpha/2) ||th - w^t||^2 from w^t.

    Then g_k <- g_k - alpha (th_k - w^t), which tends to grad F_k(th_k). The server keeps h = (1/K) sum_k g_k by
    h <- h - (alpha/K) sum_S (th_k - w^t), and sets w <- mean_S(th_k) - h / alpha.
    """

    name: ClassVar[str] = "feddyn"
    title: ClassVar[str] = "FedDyn"
    paper: ClassVar[str] = "Acar et al., ICLR 2021"
    cites: ClassVar[str] = "acar2021federated"
    deviations: ClassVar[tuple[str, ...]] = (
        "The local problem is solved approximately, by E epochs from w^t.",
        "w is evaluated; the authors' code also evaluates the mean of the clients' models.",
        "The authors' code clips gradients to the norm 10 and decays weights; both are settings of training here.",
    )
    claims: ClassVar[Claims] = Claims(
        objective={"w": lambda at: at.algorithm.alpha / 2 * at.squared_distance("w") - at.along("g", before=True)},
        traffic=Traffic(1, 1, summaries=("meta",)),
        exempt={"alone": "a single client's w is 2 th - w^0 after the first round: over-relaxed by definition"},
    )

    weights: Literal["samples", "uniform"] = option(
        "uniform", "uniform: min mean_k F_k; samples: min Σ p_k F_k, by α_k = α n / (K n_k)", paper="code: samples"
    )
    alpha: float = option(0.1, "strength α of the regulariser, above 0", paper="0.001 to 0.1; code 0.01", above=0)

    def setup(self, server: Server) -> None:
        """w at theta^0, h at 0."""
        super().setup(server)
        server.h = server.w.without_buffers().zeros()

    def round(self, server: Server, cohort: Tensor) -> None:
        """Averages are uniform under both ``weights``, which decide on alpha_k alone."""
        w = server.w
        # a client's gradient counts n_k K / n times if its g_k is kept in units of alpha_k
        share = server.n[cohort].double() * server.K / float(server.n.sum())
        own = {"alpha": self.alpha / share} if self.weights == "samples" else {}
        up = server.ask(self.local_update, cohort, average=torch.ones(len(cohort)), w=broadcast(w), **own)
        change = (up.w - w).without_buffers()
        server.h = server.h - change * (self.alpha * len(up.clients) / server.K)
        server.w = up.w - server.h / self.alpha

    def start(self, site: Site) -> None:
        """The client's linear term g_k at 0."""
        site.g = site.theta.without_buffers().zeros()

    def local_update(self, site: Site, w: Models, alpha: Tensor | None = None) -> Mapping[str, Any]:
        """Both terms together are a pull of strength alpha towards w^t + g_k / alpha, up to a constant."""
        strength = torch.full_like(site.zeros(), self.alpha) if alpha is None else alpha.double()
        theta = site.fit(w, anchor=w + site.g / strength, strength=strength).models
        site.g = site.g - (theta - w).without_buffers() * strength
        return {"w": theta}
