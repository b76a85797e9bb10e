"""FedAvg and FedAvg+FT: one global model by averaging, and its fine-tuned copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from coterie.contract import Claims, GlobalModel, Limit, Predictor, Site, option, register, unchanged
from coterie.models import Models


@register
@dataclass(frozen=True)
class FedAvg(GlobalModel):
    """FedAvg (McMahan et al., AISTATS 2017): min sum_k p_k F_k(w) with p_k = n_k / n.

    w_k <- SGD(w) at the clients; w <- sum_k p_k w_k at the server, p renormalised over those that answered.
    """

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017"
    cites: ClassVar[str] = "mcmahan2017communication"
    deviations: ClassVar[tuple[str, ...]] = ("Weights are normalised over the clients that answered.",)
    claims: ClassVar[Claims] = Claims(objective={"w": unchanged})

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from the global model."""
        return {"w": site.fit(w).models}


@dataclass(frozen=True)
class FineTuned(GlobalModel):
    """Adds fine-tuning at evaluation: the tuned copies are used to predict and never fed back."""

    epochs_ft: int = option(1, "epochs of fine-tuning; 0 leaves the global model", paper="1 where stated", least=0)
    lr_ft: float | None = option(None, "learning rate of fine-tuning", paper="as in training", above=0)
    part: Literal["all", "head"] = option("all", "all parameters or the head only", paper="all")
    evaluated: ClassVar[str] = "global model, fine-tuned on the client's training data"

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """theta_k <- finetune(w, k)."""
        if self.epochs_ft == 0:
            return Predictor(offer["w"])
        tuned = site.fit(
            offer["w"], epochs=self.epochs_ft, batches="fine-tuning", only=self.part, lr=self.lr_ft, optimiser=None
        )
        return Predictor(tuned.models)

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The global model, which those with labels tune as members do."""
        w = received["theta"]
        yield Predictor(w)
        for tuned in site.by_epoch(w, epochs, only=self.part, lr=self.lr_ft):
            yield Predictor(tuned)


@register
@dataclass(frozen=True)
class FedAvgFT(FineTuned, FedAvg):
    """FedAvg, then per-client tuning of the global model at evaluation."""

    name: ClassVar[str] = "fedavg-ft"
    title: ClassVar[str] = "FedAvg+FT"
    cites: ClassVar[str] = "wang2019federated"
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"epochs_ft": 0}, "fedavg"),
            Limit({"epochs_ft": 0, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
        ),
        objective={"w": unchanged},
        alone={"epochs_ft": 0},
    )
