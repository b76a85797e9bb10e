"""FedRep: a common body under private heads, trained one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.divided import PrivateHead
from coterie.contract import Claims, Limit, Site, Traffic, option, register
from coterie.models import Models


@register
@dataclass(frozen=True)
class FedRep(PrivateHead):
    """FedRep (Collins et al., ICML 2021): min sum_k p_k F_k(phi, h_k) by turns, the head first.

    Client k trains h_k on the received body for E_h epochs, then the body under that head for E_b epochs.
    """

    name: ClassVar[str] = "fedrep"
    title: ClassVar[str] = "FedRep"
    paper: ClassVar[str] = "Collins et al., ICML 2021"
    cites: ClassVar[str] = "collins2021fedrep"
    deviations: ClassVar[tuple[str, ...]] = (
        "training.epochs are all epochs of a round, as in the authors' code, so that FedRep computes as much as the "
        "others; libraries that count the body's epochs only are met by setting head_epochs and body_epochs.",
        "The head is trained for at least one epoch where head_epochs is unset; the authors' code would train none "
        "with one local epoch.",
        "Each of the two trainings has an optimiser of its own, and both go through the same mini-batches.",
        "All clients need not take part in the last round, as they do in the authors' code; evaluation joins the "
        "latest body to the client's own head.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"head_layers": 0, "body_epochs": None}, "fedavg"),
            Limit({"head_layers": 99, "body_epochs": 0}, "local"),
        ),
        traffic=Traffic(lambda at: at.share("body"), lambda at: at.share("body")),
        alone={"head_layers": 0, "body_epochs": None},
        learns={"training.lr": 0.3},  # the body has one epoch of three
        changes={
            "head_layers": ({}, {"head_layers": 0}),
            "head_epochs": ({}, {"head_epochs": 3}),
            "body_epochs": ({}, {"body_epochs": 2}),
        },
        exempt={"objective": "head and body move by turns, so that no step follows the gradient of the whole model"},
    )

    head_epochs: int | None = option(
        None,
        "epochs of the head; unset: those that the body leaves of the local epochs, at least 1",
        paper="E - 1, or 10",
        least=0,
    )
    body_epochs: int | None = option(1, "epochs of the body; unset: all local epochs", paper="1 or 5", least=0)

    def local_update(self, site: Site, phi: Models) -> Mapping[str, Any]:
        """(a) h_k on the received phi, which stays; (b) phi under the new h_k, which stays."""
        body_epochs = site.epochs if self.body_epochs is None else self.body_epochs
        head_epochs = max(1, site.epochs - body_epochs) if self.head_epochs is None else self.head_epochs
        theta = site.fit(self.joined(site, phi), only=self.private, epochs=head_epochs, optimiser="head").models
        site.theta = site.fit(theta, only=self.shared, epochs=body_epochs, optimiser="body").models
        return {"phi": site.theta[self.shared]}
