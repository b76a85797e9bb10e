"""FedProx and FedProx+FT: FedAvg with a proximal term at the clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coterie.algorithms.fedavg import FineTuned
from coterie.contract import Claims, GlobalModel, Limit, Site, option, register
from coterie.models import Models
from coterie.training import ProxPlace


@register
@dataclass(frozen=True)
class FedProx(GlobalModel):
    """FedProx (Li et al., MLSys 2020): client k minimises F_k(w) + (mu/2) ||w - w^t||^2 from the received w^t."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., MLSys 2020"
    cites: ClassVar[str] = "li2020federated"
    deviations: ClassVar[tuple[str, ...]] = (
        "Random numbers of epochs for slow clients, which the paper also allows, are not simulated.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(Limit({"mu": 0.0}, "fedavg"),),
        objective={"w": lambda at: at.algorithm.mu / 2 * at.squared_distance("w")},
        alone={"mu": 0.0},
    )

    mu: float = option(
        1.0, "strength μ of the pull to the received model; 0 is FedAvg", paper="0.001 to 1, tuned", least=0
    )
    prox_place: ProxPlace = option(
        "gradient",
        "where the pull acts: in the gradient, after momentum or after the step, which are the same here",
        paper="gradient",
    )

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """Gradient of the client's loss plus mu (w - w^t)."""
        return {"w": site.fit(w, anchor=w, strength=self.mu, prox_place=self.prox_place).models}


@register
@dataclass(frozen=True)
class FedProxFT(FineTuned, FedProx):
    """FedProx, then per-client tuning without the proximal term."""

    name: ClassVar[str] = "fedprox-ft"
    title: ClassVar[str] = "FedProx+FT"
    cites: ClassVar[str] = "li2020federated, wang2019federated"
    claims: ClassVar[Claims] = replace(
        FedProx.claims,
        limits=(Limit({"mu": 0.0}, "fedavg-ft"), Limit({"epochs_ft": 0}, "fedprox")),
        alone={"mu": 0.0, "epochs_ft": 0},
    )
