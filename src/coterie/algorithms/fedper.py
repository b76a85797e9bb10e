"""FedPer: a common body under private heads, trained together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.algorithms.divided import PrivateHead
from coterie.contract import Claims, Limit, Site, Traffic, register, unchanged
from coterie.models import Models


@register
@dataclass(frozen=True)
class FedPer(PrivateHead):
    """FedPer (Arivazhagan et al., 2019): min sum_k p_k F_k(phi, h_k) over a common body phi and private heads h_k.

    Client k trains (phi, h_k) jointly, keeps h_k and uploads phi.
    """

    name: ClassVar[str] = "fedper"
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al., 2019"
    cites: ClassVar[str] = "arivazhagan2019fedper"
    deviations: ClassVar[tuple[str, ...]] = (
        "The head is the model's last linear layer unless head_layers says otherwise; the paper also tries heads of "
        "several layers.",
        "Evaluation joins the latest body to the client's head, also for clients that were absent; a head trained with "
        "an older body may lose accuracy by that.",
        "Newcomers train their head only; the paper says nothing of them.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"head_layers": 0}, "fedavg"),
            Limit({"head_layers": 0, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
            Limit({"head_layers": 99}, "local"),
        ),
        objective={"theta": unchanged},
        traffic=Traffic(lambda at: at.share("body"), lambda at: at.share("body")),
        changes={"head_layers": ({}, {"head_layers": 0})},
    )

    def local_update(self, site: Site, phi: Models) -> Mapping[str, Any]:
        """E epochs of (phi, h_k) from the received body and the own head."""
        site.theta = site.fit(self.joined(site, phi)).models
        return {"phi": site.theta[self.shared]}
