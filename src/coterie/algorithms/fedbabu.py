"""FedBABU: a common body trained under a fixed random head; everything is tuned in the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.divided import body_of
from coterie.algorithms.fedavg import FineTuned
from coterie.contract import Claims, Limit, Predictor, Server, Site, Traffic, broadcast, option, register
from coterie.models import Models


@register
@dataclass(frozen=True)
class FedBABU(FineTuned):
    """FedBABU (Oh et al., ICLR 2022): min_phi sum_k p_k F_k(phi, h^0) with the head h^0 of theta^0, then fine-tuning.

    All clients know theta^0 and so h^0, which neither moves nor travels.
    """

    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"
    paper: ClassVar[str] = "Oh et al., ICLR 2022"
    cites: ClassVar[str] = "oh2022fedbabu"
    evaluated: ClassVar[str] = "global body under the fixed head, fine-tuned on the client's training data"
    deviations: ClassVar[tuple[str, ...]] = (
        "Fine-tuning is part of every evaluation and never fed back, and not done once after the last round.",
        "One epoch of fine-tuning at the rate of training by default; the paper and the libraries take between one and "
        "ten, at a rate of their own.",
        "The head is left out of the optimiser, so that neither momentum nor weight decay moves it.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"head_layers": 0}, "fedavg-ft"),
            Limit({"head_layers": 0, "epochs_ft": 0}, "fedavg"),
            Limit({"head_layers": 0, "epochs_ft": 2, "part": "head"}, "fedavg-ft", {"epochs_ft": 2, "part": "head"}),
        ),
        traffic=Traffic(lambda at: at.share("body"), lambda at: at.share("body")),
        alone={"head_layers": 0, "epochs_ft": 0},
        changes={
            "head_layers": ({}, {"head_layers": 0}),
            "epochs_ft": ({}, {"epochs_ft": 3}),
            "lr_ft": ({}, {"lr_ft": 0.02}),
            "part": ({}, {"part": "head"}),
        },
        exempt={"objective": "only the body follows the gradient, the head stays"},
    )

    epochs_ft: int = option(1, "epochs of fine-tuning at evaluation", paper="1 to 10")
    lr_ft: float | None = option(None, "learning rate of fine-tuning; unset: that of the round", paper="as in training")
    head_layers: int | None = option(None, "layers of the head; unset: the model's own head; 0 is FedAvg+FT", paper="1")

    def check(self) -> None:
        """A head has no negative number of layers."""
        super().check()
        self.require(self.head_layers is None or self.head_layers >= 0, "head_layers", "0 or more")

    @property
    def body(self) -> str:
        """The part of the model that is trained and averaged."""
        return body_of(self.head_layers)

    def round(self, server: Server, cohort: Tensor) -> None:
        """phi <- sum_k p_k phi_k in w = (phi, h^0)."""
        phi = broadcast(server.w[self.body])
        up = server.ask(self.local_update, cohort, average=self.shares(server, cohort), phi=phi)
        server.w = server.w.with_part(self.body, up.phi)

    def local_update(self, site: Site, phi: Models) -> Mapping[str, Any]:
        """E epochs of the body under h^0."""
        trained = site.fit(site.theta.with_part(self.body, phi), only=self.body).models
        return {"phi": trained[self.body]}

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The body."""
        return {"phi": broadcast(server.w[self.body])}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """theta_k <- finetune((phi, h^0), k)."""
        return super().personal(site, w=site.theta.with_part(self.body, offer["phi"]))
