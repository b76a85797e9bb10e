"""MOCHA for any model: the penalty of multi-task learning, with fixed or learned relations between the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.algorithms.fedu import CoupledModels, refuse_overshooting
from coterie.contract import Claims, Limit, Server, Traffic, option, register, unchanged
from coterie.models import Models
from coterie.relations import covariance_step, gram, laplacian_step, largest_degree, task_covariance


@register
@dataclass(frozen=True)
class Mocha(CoupledModels):
    """MOCHA (Smith et al., NeurIPS 2017): min sum_k F_k(w_k) + lambda_1 tr(W Omega W') + lambda_2 ||W||^2.

    ``mean``: Omega = I - 11'/K, which is FedU with a_kl = 1/K and rho = 2 lambda_1. ``learned``: Omega = Sigma^-1 with
    Sigma = (W'W)^(1/2) / tr (W'W)^(1/2), I/K at first; the server's step is implicit, W <- W (I + 2 lambda_1 eta R
    Omega)^-1, because Omega's eigenvalues have no bound that an explicit step could keep.
    """

    name: ClassVar[str] = "mocha"
    title: ClassVar[str] = "MOCHA"
    paper: ClassVar[str] = "Smith et al., NeurIPS 2017"
    cites: ClassVar[str] = "smith2017federated"
    deviations: ClassVar[tuple[str, ...]] = (
        "The paper solves convex linear models in the dual, one coordinate at a time; here any model takes stochastic "
        "gradient steps, and the server one step on the penalty.",
        "With learned relations that step is implicit: an explicit one overshoots as soon as two tasks are alike.",
        "The Gram matrix is divided by its trace before its eigenvalues are cut at 1e-7, so that the cut does not "
        "depend on the size of the model.",
        "Widely copied code under this name takes a matrix of ones for the identity and penalises the mean model "
        "instead of differences between models; that is not followed.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"lambda1": 0.1, "every": 1},
        limits=(
            Limit({"lambda1": 0.0}, "local"),
            Limit({"lambda1": 0.0, "omega": "learned"}, "local"),
        ),
        objective={"w": unchanged},
        traffic=Traffic(1, 1, summaries=("meta",)),
        alone={"omega": "mean"},
        unnormalised={"sigma": "a covariance, of trace 1"},
        changes={"every": ({"omega": "learned"}, {"omega": "learned", "every": 2})},
    )

    lambda1: float = option(0.01, "strength λ₁ of the relations; 0 is LOCAL", paper="chosen by validation", least=0)
    lambda2: float = option(0.0, "strength λ₂ of the pull of all models to zero", paper="chosen by validation", least=0)
    omega: Literal["mean", "learned"] = option(
        "mean", "mean: models are drawn to their mean; learned: by the covariance of the models", paper="both"
    )
    every: int = option(
        5, "rounds between two updates of learned relations", paper="at the end of each outer iteration", least=1
    )

    def setup(self, server: Server) -> None:
        """The models, and Sigma = I/K where it is learned."""
        super().setup(server)
        if self.omega == "learned":
            server.sigma = torch.eye(server.K, dtype=torch.float64) / server.K

    def coupled(self, server: Server, clients: Tensor, way: float, known: Tensor) -> Models:
        """One step on lambda_1 tr(W Omega W') of the models that are ``known``, then one on lambda_2 ||W||^2."""
        shrink = 2 * self.lambda2 * way
        everyone = torch.ones_like(clients, dtype=torch.bool)
        if self.omega == "mean":
            a = server.zeros(server.K, server.K) + 1.0 / server.K
            refuse_overshooting(self, shrink + 2 * self.lambda1 * way * largest_degree(a, known), "lambda1")
            mixed: Models = server.w.mixed(laplacian_step(a, 2 * self.lambda1 * way, known)[clients])
        else:
            refuse_overshooting(self, shrink, "lambda2")
            self.relate(server)
            inner = known.nonzero().squeeze(1)
            step = torch.eye(server.K, dtype=torch.float64)
            step[inner.unsqueeze(1), inner] = covariance_step(server.sigma[inner][:, inner], 2 * self.lambda1 * way)
            # the step's rows do not sum to one, so batch statistics stay each client's own
            mixed = server.w.mixed(step[clients]).with_buffers(server.w[clients], everyone)
        return (mixed * (1.0 - shrink)).with_frozen(server.w[clients])

    def relate(self, server: Server) -> None:
        """Sigma from the models of all who have taken part, every few rounds."""
        if server.round % self.every == 0:
            met = server.met.nonzero().squeeze(1)
            sigma = task_covariance(gram(server.w[met].trained()))
            server.sigma = torch.eye(server.K, dtype=torch.float64) / server.K
            server.sigma[met.unsqueeze(1), met] = sigma * (len(met) / server.K)  # the trace of all is 1

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The mean of the members' models; unlabelled: none."""
        return super().adapt(server, clients, labelled) if labelled else None

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """Sigma, the covariance of the tasks; I/K until it has been learned."""
        return {"sigma": server.sigma} if self.omega == "learned" else {}
