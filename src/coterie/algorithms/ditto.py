"""Ditto: a personal model pulled towards the global one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.contract import Anchored, Claims, GlobalModel, Limit, Predictor, Site, option, register, unchanged
from coterie.models import Models


@register
@dataclass(frozen=True)
class Ditto(GlobalModel):
    """Ditto (Li et al., ICML 2021): min_v F_k(v) + (lambda/2) ||v - w^t||^2 beside FedAvg's w.

    The reference is the received w^t. Both passes of a round see the same mini-batches. (lambda of Ditto is twice
    FEDORA's lambda_k.)
    """

    name: ClassVar[str] = "ditto"
    title: ClassVar[str] = "Ditto"
    paper: ClassVar[str] = "Li et al., ICML 2021"
    cites: ClassVar[str] = "li2021ditto"
    evaluated: ClassVar[str] = "personal model after local training"
    deviations: ClassVar[tuple[str, ...]] = (
        "λ is one constant for the run; the authors' code may also choose it per client by validation loss.",
        "The personal model trains with the rate of the other one, as in the authors' code.",
        "Clients count by their examples; the authors' code draws cohorts by them, and takes a plain mean.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(Limit({"lambda": 0.0}, "local"), Limit({}, "fedavg", state="w")),
        objective={
            "w": unchanged,
            "theta": lambda at: at.algorithm.lambda_ / 2 * at.squared_distance("w"),
        },
        anchored=Anchored(lambda lr: {"lambda": 1 / lr}, "w"),
        alone={"lambda": 0.0},
    )

    lambda_: float = option(
        1.0,
        "strength λ of the pull to the global model; 0 is LOCAL",
        paper="0.1, 1 or 2, chosen by validation",
        least=0,
    )
    personal_epochs: int | None = option(
        None, "epochs of the personal model; unset: those of local training", paper="few local steps", least=0
    )

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """(a) w_k <- SGD from w^t, uploaded; (b) the own model theta_k with the pull lambda (theta_k - w^t)."""
        pull: dict[str, Any] = {"anchor": w, "strength": self.lambda_, "epochs": self.personal_epochs}
        site.theta = site.fit(site.theta, **pull, optimiser="personal").models
        return {"w": site.fit(w).models}

    def offer(self, server: Any, clients: Any) -> Mapping[str, Any]:
        """Nothing: the personal model is at the client."""
        return {}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The client's own model."""
        return Predictor(site.theta)

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """v from w, pulled towards w."""
        w = received["theta"]
        yield Predictor(w)
        for v in site.by_epoch(w, epochs, anchor=w, strength=self.lambda_):
            yield Predictor(v)
