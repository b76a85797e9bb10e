"""Per-FedAvg: a common model from which one gradient step on a client's data leads far (MAML)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from coterie.contract import Claims, GlobalModel, Limit, Predictor, Server, Site, alias, broadcast, option, register
from coterie.models import Models
from coterie.training import Step


@register
@dataclass(frozen=True)
class PerFedAvg(GlobalModel):
    """Per-FedAvg (Fallah et al., NeurIPS 2020): min_w sum_k p_k F_k(w - alpha grad F_k(w)).

    Each local step on three independent batches: w~ = w - alpha grad F_k(w; D), g = grad F_k(w~; D') and
    w <- w - beta (g - alpha H g) with the Hessian H at (w; D''). ``fo`` leaves H out; ``hf`` takes H g as
    [grad F_k(w + delta g; D'') - grad F_k(w - delta g; D'')] / (2 delta). beta is the learning rate of training.
    """

    name: ClassVar[str] = "per-fedavg"
    title: ClassVar[str] = "Per-FedAvg"
    paper: ClassVar[str] = "Fallah et al., NeurIPS 2020"
    cites: ClassVar[str] = "fallah2020personalized"
    evaluated: ClassVar[str] = "global model after one gradient step on the client's training data"
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"fo": {"hessian": False}, "hf": {"hessian": True}}
    deviations: ClassVar[tuple[str, ...]] = (
        "An epoch has as many steps as one of FedAvg, and each step draws two (hf: three) batches; published programs "
        "divide one batch, so that their epochs are shorter and small clients do nothing.",
        "δ is given for a gradient of norm 1 and divided by the norm, so that single precision is enough.",
        "A client adapts by one step with the gradient of all its training data; a published program takes test data.",
        "Clients count by their examples; the paper counts them equally.",
    )
    claims: ClassVar[Mapping[str, Claims]] = {
        variant: Claims(
            toy={"alpha": 0.1},
            limits=(
                Limit({"alpha": 0.0}, "fedavg"),
                Limit({"alpha": 0.0, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
            ),
            alone={"alpha": 0.0},
            changes={
                "alpha": ({"alpha": 0.1}, {"alpha": 0.2}),
                "delta": ({"hessian": True}, {"hessian": True, "delta": 0.5}),
                "hessian": ({"hessian": False}, {"hessian": True}),
            },
        )
        for variant in ("fo", "hf")
    }

    variant: Literal["fo", "hf"] = option("fo", "first order, or Hessian-free second order")
    alpha: float | None = option(
        None, "rate α of the adaptation; none: that of training", paper="code of others 0.005", least=0
    )
    hessian: bool | None = option(None, "whether the step has its second-order term: in hf", paper="both")
    delta: float = option(
        0.001, "half the distance δ of the two points for H g, in units of 1 / ||g||", paper="not given", above=0
    )

    def rate(self, site: Site) -> float:
        """alpha."""
        return site.lr if self.alpha is None else self.alpha

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """Steps down the gradient of what the adapted model loses."""
        alpha = self.rate(site)
        streams = (site.steps(batches=name) for name in ("train", "adaptation", "hessian"))
        for outer, inner, second in zip(*streams, strict=True):
            adapted = inner.shift(w, site.gradient(w, inner) * -alpha)
            g = site.gradient(adapted, outer)
            if self.hessian:
                g = g - self.curvature(site, second, w, g) * alpha
            w = outer.update(w, g)
        return {"w": w}

    def curvature(self, site: Site, step: Step, w: Models, g: Models) -> Models:
        """H g by central differences along g."""
        delta = self.delta / g.norm().clamp(min=1e-12)
        ahead, behind = (site.gradient(step.shift(w, g * (sign * delta)), step, exact=True) for sign in (1.0, -1.0))
        return (ahead - behind) / (2.0 * delta)

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """One gradient step of rate alpha from w."""
        return Predictor(offer["w"] - site.gradient(offer["w"], "train") * self.rate(site))

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """w, which those with labels adapt."""
        return {"w" if labelled else "theta": broadcast(server.w)}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """One step from w, as every client takes it, and from there epochs at the rate of training."""
        if "theta" in received:
            yield Predictor(received["theta"])
            return
        adapted = self.personal(site, w=received["w"])
        yield adapted
        for theta in site.by_epoch(adapted.models, epochs):
            yield Predictor(theta)


alias("per-fedavg-hf", "per-fedavg", "hf")
