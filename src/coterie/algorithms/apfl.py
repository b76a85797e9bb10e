"""APFL: each client mixes a private model with the global one, in a proportion that it learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import Claims, GlobalModel, Limit, Predictor, Site, option, register, unchanged
from coterie.models import Models
from coterie.training import Step

_FIXED: dict[str, Any] = {"alpha_update": "fixed"}


@register
@dataclass(frozen=True)
class APFL(GlobalModel):
    """APFL (Deng et al., 2020): min_v F_k(alpha v + (1 - alpha) w) beside FedAvg's w, alpha in [0, 1] for each client.

    Each batch: w_k <- w_k - eta grad F_k(w_k); v <- v - eta alpha grad F_k(vbar) with vbar = alpha v + (1 - alpha) w_k
    of before the step; alpha <- clip(alpha - eta_a <v - w_k, grad F_k(vbar)>, 0, 1).
    """

    name: ClassVar[str] = "apfl"
    title: ClassVar[str] = "APFL"
    paper: ClassVar[str] = "Deng et al., 2020"
    cites: ClassVar[str] = "deng2020adaptive"
    strengths: ClassVar[tuple[str, ...]] = ("alpha",)
    evaluated: ClassVar[str] = "mixture of the private model and the global model after aggregation"
    deviations: ClassVar[tuple[str, ...]] = (
        "Parameters are mixed, as in the paper; the authors' code mixes the outputs of two networks.",
        "α moves on the first batch of a round, as in the authors' code; every_batch and fixed are options.",
        "The authors' code adds the penalty 0.02 α to the slope of α; here penalty is 0 unless it is set.",
        "v, w_k and α step together from one point; weight decay pulls v as it pulls any trained model.",
    )
    claims: ClassVar[Claims] = Claims(
        toy={"lr_alpha": 0.5},
        limits=(
            Limit({"alpha": 1.0, **_FIXED}, "local"),
            Limit({"alpha": 0.0, **_FIXED}, "fedavg"),
            Limit({}, "fedavg", state="w"),
        ),
        objective={"w": unchanged},
        alone={"alpha": 1.0, **_FIXED},
        changes={"penalty": ({}, {"penalty": 0.5})},
    )

    alpha: float = option(
        0.5, "share α of the private model at first; fixed at 1 is LOCAL, at 0 FedAvg", paper="0.5", least=0, most=1
    )
    alpha_update: Literal["fixed", "first_batch", "every_batch"] = option(
        "first_batch",
        "when α learns: never, on the first batch of a round, or on every batch",
        paper="first_batch (code)",
    )
    lr_alpha: float | None = option(
        None, "learning rate η_a of α; none: that of training", paper="that of training", least=0
    )
    penalty: float = option(0.0, "added times α to the slope of α, which draws it to 0", paper="code 0.02", least=0)

    def start(self, site: Site) -> None:
        """The private model v, theta^0 at first, and alpha."""
        site.v, site.alpha = site.theta, torch.full_like(site.zeros(), self.alpha)

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """Both models take every step; only w_k is uploaded."""
        v, alpha = site.v, site.alpha.clone()
        for step in site.steps():
            mixed, away = self.mixture(alpha, v, w), self.away(step, v, w)
            w = step.update(w, site.gradient(w, step))
            v = step.update(v, self.private_gradient(site, step, mixed, away, alpha), "private")
        site.v, site.alpha = v, alpha
        return {"w": w}

    def away(self, step: Step, v: Models, w: Models) -> Models | None:
        """v - w_k, ``(a,)``, in steps in which alpha moves."""
        moves = self.alpha_update == "every_batch" or (self.alpha_update == "first_batch" and step.number == 0)
        return (v - w)[step.rows] if moves else None

    def private_gradient(self, site: Site, step: Step, mixed: Models, away: Models | None, alpha: Tensor) -> Models:
        """alpha grad F_k(vbar), after which alpha moves in place along ``away``; ``mixed`` is vbar."""
        gradient, a = site.gradient(mixed, step), alpha[step.rows].clone()
        if away is not None:
            slope = away.dot(gradient) + self.penalty * a
            rate = site.lr if self.lr_alpha is None else self.lr_alpha
            alpha[step.rows] = (a - rate * slope).clamp(0.0, 1.0)
        return gradient * a

    @staticmethod
    def mixture(alpha: Tensor, v: Models, w: Models) -> Models:
        """vbar = alpha v + (1 - alpha) w, ``(k,)``, with the batch statistics of v, which were taken at vbar."""
        return v.towards(w, 1.0 - alpha)

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """vbar of the client's v and the current global model."""
        return Predictor(self.mixture(site.alpha, site.v, offer["w"]))

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """v starts at w, which stays as it is; v and alpha learn."""
        w = received["theta"]
        v, alpha, momentum = w, torch.full_like(site.zeros(), self.alpha), w.without_buffers().zeros()
        yield Predictor(w)
        for epoch in range(epochs):
            for step in site.steps(epochs=1, batches=f"train {epoch}", momentum=momentum):
                mixed, away = self.mixture(alpha, v, w), self.away(step, v, w)
                v = step.update(v, self.private_gradient(site, step, mixed, away, alpha))
            yield Predictor(self.mixture(alpha, v, w))
