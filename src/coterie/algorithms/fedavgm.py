"""FedAvgM: FedAvg whose server has momentum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.contract import Claims, GlobalModel, Limit, Server, Site, broadcast, option, register, unchanged
from coterie.models import Models


@register
@dataclass(frozen=True)
class FedAvgM(GlobalModel):
    """FedAvgM (Hsu et al., 2019): v <- beta v + Delta, w <- w - eta_s v with Delta = w - sum_k p_k w_k.

    With ``nesterov`` the step is eta_s (Delta + beta v), so that the first one is (1 + beta) Delta.
    """

    name: ClassVar[str] = "fedavgm"
    title: ClassVar[str] = "FedAvgM"
    paper: ClassVar[str] = "Hsu et al., 2019"
    cites: ClassVar[str] = "hsu2019measuring"
    deviations: ClassVar[tuple[str, ...]] = (
        "Statistics of batch normalisation are those of the averaged model; they have no momentum.",
        "The step is the paper's plain momentum; Nesterov's, with which it was mostly measured, is an option.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"beta": 0.0}, "fedavg"),
            Limit({"beta": 0.0, "nesterov": True, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
        ),
        objective={"w": unchanged},
        alone={"beta": 0.0},
        learns={"beta": 0.5},
    )

    beta: float = option(
        0.9, "momentum β of the server; 0 is FedAvg", paper="0 to 0.997, tuned; code of others 0.9", least=0, below=1
    )
    server_lr: float = option(1.0, "the server's learning rate η_s", paper="1", above=0)
    nesterov: bool = option(False, "whether the server's momentum is Nesterov's", paper="yes in its experiments")

    def setup(self, server: Server) -> None:
        """w at theta^0, v at 0."""
        super().setup(server)
        server.v = server.w.without_buffers().zeros()

    def round(self, server: Server, cohort: Tensor) -> None:
        """The average of the answers gives the pseudo-gradient Delta."""
        up = server.ask(self.local_update, cohort, average=self.shares(server, cohort), w=broadcast(server.w))
        delta = (server.w - up.w).without_buffers()
        server.v = server.v * self.beta + delta
        direction = delta + server.v * self.beta if self.nesterov else server.v
        server.w = (server.w - direction * self.server_lr).with_buffers(up.w, torch.ones(1, dtype=torch.bool))

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E epochs from the global model."""
        return {"w": site.fit(w).models}
