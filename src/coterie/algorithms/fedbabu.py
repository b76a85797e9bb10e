"""FedBABU: a common body trained under a fixed random head; everything is tuned in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.algorithms.divided import PrivateHead
from coterie.algorithms.fedavg import FineTuned
from coterie.contract import Claims, Limit, Predictor, Server, Site, Traffic, broadcast, option, register
from coterie.models import Models


@register
@dataclass(frozen=True)
class FedBABU(PrivateHead, FineTuned):
    """FedBABU (Oh et al., ICLR 2022): min_phi sum_k p_k F_k(phi, h^0) with the head h^0 of theta^0, then fine-tuning.

    All clients know theta^0 and so h^0, which neither moves nor travels; they keep no state.
    """

    name: ClassVar[str] = "fedbabu"
    title: ClassVar[str] = "FedBABU"
    paper: ClassVar[str] = "Oh et al., ICLR 2022"
    cites: ClassVar[str] = "oh2022fedbabu"
    evaluated: ClassVar[str] = "latest body under the fixed head, fine-tuned on the client's training data"
    deviations: ClassVar[tuple[str, ...]] = (
        "Fine-tuning is part of every evaluation and never fed back, and not done once after the last round.",
        "One epoch of fine-tuning at the rate of training by default; the libraries take between one and ten, some at "
        "a rate of their own.",
        "The head is left out of the optimiser, so that neither momentum nor weight decay moves it.",
        "Clients are weighted by their examples; weights: uniform takes the plain mean.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"head_layers": 0}, "fedavg-ft"),
            Limit({"head_layers": 0, "epochs_ft": 0}, "fedavg"),
            Limit({"head_layers": 0, "epochs_ft": 2, "part": "head"}, "fedavg-ft", {"epochs_ft": 2, "part": "head"}),
        ),
        traffic=Traffic(lambda at: at.share("body"), lambda at: at.share("body")),
        alone={"head_layers": 0, "epochs_ft": 0},
        exempt={
            "objective": "only the body follows the gradient, the head stays",
        },
        learns={"epochs_ft": 5, "training.lr": 0.2},  # under a head of small random weights the body is slow
    )

    head_layers: int | None = option(
        None, "layers of the fixed head; unset: the model's own head; 0 is FedAvg+FT", paper="1", least=0
    )
    epochs_ft: int = option(1, "epochs of fine-tuning; 0 leaves the global model", paper="1 to 10", least=0)

    def local_update(self, site: Site, phi: Models) -> Mapping[str, Any]:
        """E epochs of the body under h^0."""
        return {"phi": site.fit(self.joined(site, phi), only=self.shared).models[self.shared]}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """theta_k <- finetune((phi, h^0), k)."""
        return FineTuned.personal(self, site, w=self.joined(site, offer["phi"]))

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The body, with labels or without: the head is known."""
        return {"phi": broadcast(server.phi)}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """(phi, h^0), which those with labels tune as members do."""
        yield from FineTuned.newcomer(self, site, epochs, theta=self.joined(site, received["phi"]))
