"""FedAMP: each client is pulled towards an attention-weighted mixture of all clients' models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import (
    Algorithm,
    Anchored,
    Claims,
    Limit,
    Predictor,
    Server,
    Site,
    alias,
    broadcast,
    mixture,
    option,
    register,
)
from coterie.models import Models
from coterie.relations import (
    attention,
    cosine_attention,
    cosines,
    cross_distances,
    mean_self_weight,
    squared_distances,
    with_newcomer,
)

_ATTENTION: dict[str, Any] = {"variant": "attention"}
_HEURISTIC: dict[str, Any] = {"variant": "heuristic"}
_CLAIMS = Claims(
    toy={"lambda": 0.7, "alpha": 0.4},
    limits=(Limit({"lambda": 0.0}, "local"),),
    objective={"theta": lambda at: at.algorithm.lambda_ / (2 * at.algorithm.alpha) * at.squared_distance("u")},
    anchored=Anchored(lambda lr: {"lambda": 1 / lr, "alpha": 1.0}, "u"),
    alone={"lambda": 0.0},
    changes={
        "variant": (_ATTENTION, _HEURISTIC),
        "sigma_relative": (_ATTENTION, {**_ATTENTION, "sigma_relative": False}),
        "self_weight": (_HEURISTIC, {**_HEURISTIC, "self_weight": 0.6}),
    },
)


@register
@dataclass(frozen=True)
class FedAMP(Algorithm):
    """FedAMP (Huang et al., AAAI 2021): min sum_k F_k(w_k) + lambda sum_{i<j} A(||w_i - w_j||^2).

    A(x) = 1 - exp(-x/sigma); xi_ij = alpha A'(||w_i - w_j||^2), xi_ii = 1 - sum_j xi_ij, u_i = sum_j xi_ij w_j, with
    alpha cut to sigma / (m - 1) so that no self-weight is negative. ``sigma`` counts in units of the median squared
    distance unless ``sigma_relative`` is off. ``heuristic`` (HeurFedAMP, for deep models) fixes xi_ii and gives the
    others xi_ij = (1 - xi_ii) softmax_j(sigma cos(w_i, w_j)).
    """

    name: ClassVar[str] = "fedamp"
    title: ClassVar[str] = "FedAMP"
    paper: ClassVar[str] = "Huang et al., AAAI 2021"
    cites: ClassVar[str] = "huang2021personalized"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"attention": {"sigma": 1.0}, "heuristic": {"sigma": 10.0}}
    deviations: ClassVar[tuple[str, ...]] = (
        "α is capped at σ / (m - 1) for m clients in the mixture, so that no self-weight is negative. The pull stays "
        "λ / α, so that the coupling is weaker than the objective's while the cap is in force.",
        "σ counts in units of the median squared distance between models unless sigma_relative is off.",
        "Under partial participation the mixture runs over the clients that took part.",
        "α and λ stay the same for the whole run; the paper lets α fall.",
    )
    claims: ClassVar[Mapping[str, Claims]] = {"attention": _CLAIMS, "heuristic": _CLAIMS}

    variant: Literal["attention", "heuristic"] = option(
        "attention", "weights of the mixture: by distance, or with a fixed own weight and by angle", paper="both"
    )
    lambda_: float = option(0.1, "strength λ; 0 is LOCAL", paper="0.1 to 1 in later work", least=0)
    sigma: float | None = option(
        None, "attention: width σ; heuristic: factor σ of the cosines", paper="thousands; 1 in later work", above=0
    )
    alpha: float = option(1.0, "step α of the server; it divides the pull's strength", paper="large, decayed", above=0)
    sigma_relative: bool = option(True, "attention: measure σ in units of the median squared distance")
    self_weight: float = option(0.1, "heuristic: the own weight ξᵢᵢ", paper="0.1 in third-party code", least=0, most=1)

    def setup(self, server: Server) -> None:
        """All clients' models, theta^0 at first, and who has taken part."""
        server.w = server.initial_models()
        server.met = torch.zeros(server.K, dtype=torch.bool)
        server.xi = torch.eye(server.K, dtype=torch.float64)

    def round(self, server: Server, cohort: Tensor) -> None:
        """Mix the models of the cohort, send each client its u_i, keep what comes back."""
        xi = self.mixing(self.compare(server.w[cohort].trained()))
        server.xi[cohort] = 0.0
        server.xi[cohort.unsqueeze(1), cohort.unsqueeze(0)] = xi
        up = server.ask(self.local_update, cohort, u=mixture(xi, server.w[cohort]))
        server.w[up.clients], server.met[up.clients] = up.w, True

    def compare(self, models: list[Tensor]) -> Tensor:
        """Squared distances of all pairs of models, or their cosines, ``(m, m)``."""
        return squared_distances(models) if self.variant == "attention" else cosines(models)

    def mixing(self, compared: Tensor) -> Tensor:
        """xi from squared distances or cosines ``(m, m)``; rows sum to one."""
        sigma = float(self.sigma or 0.0)
        if self.variant == "attention":
            return attention(compared, sigma, self.alpha, relative=self.sigma_relative)
        return cosine_attention(compared, self.self_weight, sigma)

    def local_update(self, site: Site, u: Models) -> Mapping[str, Any]:
        """F_i(w) + (lambda / 2 alpha) ||w - u_i||^2 from the own w_i."""
        site.theta = site.fit(site.theta, anchor=u, strength=self.lambda_ / self.alpha).models
        return {"w": site.theta}

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """A first round as every client's, then u_i among the members' models and the own; unlabelled: none."""
        if not labelled:
            return None
        up = server.ask(self.local_update, clients, u=broadcast(server.initial_model()))
        met = server.w[server.met] if bool(server.met.any()) else server.initial_model()
        members, own = met.trained(), up.w.trained()
        if self.variant == "attention":
            among, towards, itself = self.compare(members), cross_distances(own, members), 0.0
        else:
            everyone = self.compare([torch.cat(pair) for pair in zip(members, own, strict=True)])
            among, towards, itself = everyone[: len(met), : len(met)], everyone[len(met) :, : len(met)], 1.0
        xi = torch.stack([self.mixing(with_newcomer(among, row, itself))[-1] for row in towards])
        return {"u": met.mixed_with_own(up.w, xi)}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The own model, which goes on as every client's does."""
        yield Predictor(site.theta)
        for theta in site.by_epoch(site.theta, epochs, anchor=received["u"], strength=self.lambda_ / self.alpha):
            yield Predictor(theta)

    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """xi_ij, the attention that client i paid to client j when it last took part."""
        return {"xi": server.xi}

    def notes(self, server: Server) -> Mapping[str, float]:
        """How much of its own model is in a client's u_i: near 1 means nearly LOCAL."""
        return {"mean_self_weight": mean_self_weight(server.xi, server.met)}


alias("heurfedamp", "fedamp", "heuristic")
