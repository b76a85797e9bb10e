"""LG-FedAvg: private representations under a common head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from coterie.algorithms.divided import DividedModel, body_of, head_of
from coterie.contract import Claims, Limit, Predictor, Server, Site, Traffic, broadcast, option, register, unchanged
from coterie.models import Models


@register
@dataclass(frozen=True)
class LGFedAvg(DividedModel):
    """LG-FedAvg (Liang et al., 2020): min sum_k p_k F_k(psi_k, phi) over private bodies psi_k and a common head phi.

    Client k trains (psi_k, phi) jointly, keeps psi_k and uploads phi.
    """

    name: ClassVar[str] = "lg-fedavg"
    title: ClassVar[str] = "LG-FedAvg"
    paper: ClassVar[str] = "Liang et al., 2020"
    cites: ClassVar[str] = "liang2020lgfedavg"
    evaluated: ClassVar[str] = "own representation under the latest shared head"
    deviations: ClassVar[tuple[str, ...]] = (
        "The last layer is shared by default; the paper shares three of five layers on MNIST, and the authors' code "
        "for CIFAR-10 shares the two convolutions, which no setting here does.",
        "Clients are weighted by their examples; the authors' code averages uniformly, which weights: uniform does.",
        "Training begins from the initial model; the authors begin from a model of FedAvg, for which warm_start gives "
        "the rounds. A client then goes on from its own copy after its last such round.",
        "The reported round is chosen as for every method; the authors' code keeps each client's best model on the "
        "test data.",
        "The ensemble for newcomers without labels averages probabilities; the authors also let the models vote.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"shared_layers": 99}, "fedavg"),
            Limit({"shared_layers": 99, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
            Limit({"shared_layers": 0}, "local"),
        ),
        objective={"theta": unchanged},
        traffic=Traffic(lambda at: at.share("head"), lambda at: at.share("head")),
        changes={"shared_layers": ({}, {"shared_layers": 0}), "warm_start": ({}, {"warm_start": 2})},
    )

    shared_layers: int | None = option(
        None,
        "last layers that are shared; unset: the model's own head; 0 is LOCAL, all of them FedAvg",
        paper="2 or 3",
        least=0,
    )
    warm_start: int = option(0, "first rounds that are FedAvg's", paper="400 to 1800", least=0)

    @property
    def shared(self) -> str:
        """The upper layers."""
        return head_of(self.shared_layers)

    @property
    def private(self) -> str:
        """The lower layers."""
        return body_of(self.shared_layers)

    def setup(self, server: Server) -> None:
        """The shared head; the whole model of a warm start; the members' bodies, if newcomers will need them."""
        super().setup(server)
        if self.warm_start:
            server.w = server.initial_model()
        if server.unlabelled_newcomers:
            server.bodies = server.initial_models()[self.private]
            server.met = torch.zeros(server.K, dtype=torch.bool)

    def round(self, server: Server, cohort: Tensor) -> None:
        """phi <- sum_k p_k phi_k, or in a round of the warm start w <- sum_k p_k w_k."""
        shares, warm = self.shares(server, cohort), server.round <= self.warm_start
        if warm:
            up = server.ask(self.common_update, cohort, average=shares, w=broadcast(server.w))
        else:
            up = server.ask(self.local_update, cohort, average=shares, phi=broadcast(server.phi))
        if server.unlabelled_newcomers:  # asked before the server has moved: whoever fails is left as it was
            lent = server.ask(self.lend, up.clients)
            server.bodies[lent.clients], server.met[lent.clients] = lent.body, True
        if warm:
            server.w = up.w
        server.phi = up.w[self.shared] if warm else up.phi

    def common_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """FedAvg's round, whose model the client keeps to go on from."""
        site.theta = site.fit(w).models
        return {"w": site.theta}

    def local_update(self, site: Site, phi: Models) -> Mapping[str, Any]:
        """E epochs of (psi_k, phi) from the own body and the received head."""
        site.theta = site.fit(self.joined(site, phi)).models
        return {"phi": site.theta[self.shared]}

    def lend(self, site: Site) -> Mapping[str, Any]:
        """The own body, of which newcomers without labels make an ensemble."""
        return {"body": site.theta[self.private]}

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The shared head; without labels the models of all members that took part."""
        if labelled:
            return {"phi": broadcast(server.phi)}
        if not server.unlabelled_newcomers or not bool(server.met.any()):
            return None
        members = server.initial_models(int(server.met.sum())).with_part(self.shared, server.phi)
        members[self.private] = server.bodies[server.met]
        return {"members": broadcast(members)}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The body from theta^0 under the received head; without labels the mean of the members' predictions."""
        if "members" not in received:
            yield from super().newcomer(site, epochs, **received)
            return
        members = received["members"]
        single = len(members.lead) == 1  # a federation of one
        yield Predictor(members, combine="outputs" if site.task == "regression" and not single else "probabilities")
