"""PGFed and PGFedMo: every client's objective contains the others' risks, linearised at their models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Limit, Server, Site, Traffic, broadcast, mixture, option, register
from coterie.models import Models
from coterie.relations import normalised


@register
@dataclass(frozen=True)
class PGFed(Algorithm):
    """PGFed (Luo et al., ICCV 2023): F_i = f_i(theta_i) + mu sum_j alpha_ij f_j(theta_i), to first order in theta_i.

    f_j(theta_i) ~ f_j(theta_j) + <grad f_j(theta_j), theta_i - theta_j>, so that one gradient g~_i = mu sum_j alpha_ij
    grad f_j carries all others, and s_j = mu (f_j - <grad f_j, theta_j>) is what alpha's gradient needs of client j.
    f is the mean loss. Under ``optimizer_state: persistent`` SGD's momentum goes on from round to round, as in
    the authors' program.
    """

    name: ClassVar[str] = "pgfed"
    title: ClassVar[str] = "PGFed"
    paper: ClassVar[str] = "Luo et al., ICCV 2023"
    cites: ClassVar[str] = "luo2023pgfed"
    differences: ClassVar[tuple[str, ...]] = ("gradient",)
    deviations: ClassVar[tuple[str, ...]] = (
        "The full gradient is taken in evaluation mode; the authors' program averages batches in training mode.",
        "SGD's momentum starts anew each round; optimizer_state: persistent keeps it, as the authors' program does.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"mu": 0.5},
        limits=(Limit({"mu": 0.0}, "fedavg", state="w"),),
        objective={"theta": lambda at: at.along("auxiliary")},
        first_traffic=Traffic(1, 2, summaries=("meta",)),
        traffic=Traffic(3, 2, summaries=("meta", "summary")),
        alone={"mu": 0.0},
        unnormalised={"alpha": "each alpha_ij is learned by itself; only their sign is bound"},
    )

    mu: float = option(0.05, "strength μ of the others' risks", paper="0.1, 0.05, 0.01, 0.005 or 0.001", least=0)
    lr_alpha: float = option(
        0.01, "step η₂ of α; with 1 one epoch can clip most of α to zero", paper="code 1, its example 0.01", least=0
    )

    @property
    def beta(self) -> float:
        """Momentum of the auxiliary gradient: none."""
        return 0.0

    def setup(self, server: Server) -> None:
        """theta_glob; gradients G_j and scalars s_j of the last round's clients; alpha, unset (NaN) at first."""
        server.w = server.initial_model()
        server.sources = torch.zeros(0, dtype=torch.int64)
        server.alpha = torch.full((server.K, server.K), float("nan"), dtype=torch.float64)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Send theta_glob with what the last round's clients S_{t-1} tell; w <- sum p_i theta_i over the answers."""
        if len(server.sources) == 0:
            up = server.ask(self.first_update, cohort, w=broadcast(server.w))
        else:
            up = self.exchange(server, cohort)
        server.w = up.theta.mixed(normalised(server.n[up.clients]))
        server.sources, server.gradients, server.risks = up.clients, up.gradient, up.risk

    def exchange(self, server: Server, cohort: Tensor) -> Any:
        """g~_i = mu sum_j alpha_ij G_j, gbar = (mu / M) sum_j G_j, s_j and alpha_ij, all for j in S_{t-1}."""
        sources, M = server.sources, len(cohort)
        alpha = server.alpha[cohort][:, sources].nan_to_num(nan=1.0 / M)
        mean = server.gradients.mixed(torch.full((1, len(sources)), self.mu / M, dtype=torch.float64))
        up = server.ask(
            self.local_update, cohort, w=broadcast(server.w), auxiliary=mixture(self.mu * alpha, server.gradients),
            mean=broadcast(mean), s=broadcast(server.risks), alpha=alpha,
        )  # fmt: skip
        server.alpha[up.clients.unsqueeze(1), sources.unsqueeze(0)] = up.alpha
        return up

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """theta_glob."""
        return {"theta": broadcast(server.w)}

    # --- at the clients ------------------------------------------------------------------------------------------
    def start(self, site: Site) -> None:
        """The auxiliary gradient g_i (PGFedMo), which nobody has received yet."""
        site.received = torch.zeros_like(site.n, dtype=torch.bool)
        if self.beta:
            site.g = site.theta.without_buffers().zeros()

    def first_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """Round 1: plain training from theta_glob."""
        return self.train(site, w)

    def local_update(
        self, site: Site, w: Models, auxiliary: Models, mean: Models, s: Tensor, alpha: Tensor
    ) -> Mapping[str, Any]:
        """Each batch: alpha_ij <- max(0, alpha_ij - eta_2 (s_j + <gbar, theta_i>)); a step with grad f_i + g_i."""
        g = auxiliary
        if self.beta:
            keep = site.received.double() * self.beta
            g = auxiliary * (1.0 - keep) + site.g * keep
            site.g, site.received = g, torch.ones_like(site.received)
        return self.train(site, w, g, mean, s, alpha.clone())

    def train(
        self,
        site: Site,
        theta: Models,
        g: Models | None = None,
        mean: Models | None = None,
        s: Tensor | None = None,
        alpha: Tensor | None = None,
    ) -> Mapping[str, Any]:
        """E epochs from theta_glob; then G_i, the full gradient at the final theta_i, and s_i."""
        for step in site.steps():
            gradient = site.gradient(theta, step)
            if g is not None and mean is not None and s is not None and alpha is not None:
                slope = s[step.rows] + mean[step.rows].dot(theta[step.rows]).unsqueeze(1)
                alpha[step.rows] = (alpha[step.rows] - self.lr_alpha * slope.to(alpha)).clamp(min=0.0)
                gradient = gradient + g[step.rows]
            theta = step.update(theta, gradient)
        site.theta = theta
        full = site.gradient(site.theta, "train")
        risk = self.mu * (site.loss("train", site.theta) - full.dot(site.theta))
        answer = {"gradient": full, "risk": risk, "theta": site.theta}  # a client keeps the last model's statistics
        return answer if alpha is None else {**answer, "alpha": alpha}

    # --- what is seen --------------------------------------------------------------------------------------------
    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """alpha_ij, the weight of client j's risk for client i; NaN where they have not met."""
        return {"alpha": server.alpha}

    def notes(self, server: Server) -> Mapping[str, float]:
        """The share of weights that clipping has set to zero."""
        met = ~server.alpha.isnan()
        return {"zero_alphas": float((server.alpha[met] == 0).double().mean())} if bool(met.any()) else {}


@register
@dataclass(frozen=True)
class PGFedMo(PGFed):
    """PGFed with momentum: g_i <- (1 - beta) g~_i + beta g_i, kept while a client is absent."""

    name: ClassVar[str] = "pgfedmo"
    title: ClassVar[str] = "PGFedMo"
    deviations: ClassVar[tuple[str, ...]] = (
        *PGFed.deviations,
        "The authors' published example command sets β = 0.5 but runs without momentum; here β is in force.",
    )
    claims: ClassVar[Claims] = replace(
        PGFed.claims,
        limits=(*PGFed.claims.limits, Limit({"beta": 0.0}, "pgfed", {"mu": 0.5})),
        objective={"theta": lambda at: at.along("g")},
    )

    beta: float = option(
        0.5, "share β of the former auxiliary gradient; 0 is PGFed", paper="0.2, 0.5 or 0.8", least=0, below=1
    )
