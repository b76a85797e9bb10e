"""LOCAL: every client trains alone; the reference of every personalised method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.contract import Algorithm, Claims, Site, Traffic, register, unchanged


@register
@dataclass(frozen=True)
class Local(Algorithm):
    """min F_k(theta_k) for each k: in each round a client continues from its own model. Nothing travels."""

    name: ClassVar[str] = "local"
    title: ClassVar[str] = "LOCAL"
    claims: ClassVar[Claims] = Claims(traffic=Traffic(0, 0), objective={"theta": unchanged})

    def local_update(self, site: Site) -> Mapping[str, Any]:
        """E epochs of mini-batches from the client's own model."""
        site.theta = site.fit(site.theta).models
        return {}
