"""What methods have in common whose model has a shared part, averaged at the server, and a private part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from coterie.contract import GlobalModel, Predictor, Server, Site, broadcast, option
from coterie.models import Models


@dataclass(frozen=True)
class DividedModel(GlobalModel):
    """``server.phi`` is the shared part; each client keeps the private part, in its own model ``theta``.

    A client predicts with the latest shared part, even if it did not take part in the round. Newcomers with labels
    receive the shared part, which stays as it is, and train the private one from theta^0.
    """

    evaluated: ClassVar[str] = "latest shared part, joined to the client's own part"

    @property
    @abstractmethod
    def shared(self) -> str:
        """The part of the model that is averaged."""

    @property
    @abstractmethod
    def private(self) -> str:
        """The other part."""

    def setup(self, server: Server) -> None:
        """The shared part starts at theta^0."""
        server.phi = server.initial_model()[self.shared]

    def round(self, server: Server, cohort: Tensor) -> None:
        """phi <- sum_k p_k phi_k over the clients that answered."""
        up = server.ask(self.local_update, cohort, average=self.shares(server, cohort), phi=broadcast(server.phi))
        server.phi = up.phi

    def joined(self, site: Site, phi: Models) -> Models:
        """The received shared part with the client's own private part."""
        theta: Models = site.theta
        return theta.with_part(self.shared, phi)

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The latest shared part."""
        return {"phi": broadcast(server.phi)}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The latest shared part with the client's own private part."""
        return Predictor(self.joined(site, offer["phi"]))

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The shared part; without labels there is no private part to join it to."""
        return {"phi": broadcast(server.phi)} if labelled else None

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The private part is trained, the shared part stays as it came."""
        theta = self.joined(site, received["phi"])
        yield Predictor(theta)
        for tuned in site.by_epoch(theta, epochs, only=self.private):
            yield Predictor(tuned)


@dataclass(frozen=True)
class PrivateHead(DividedModel):
    """The body is shared and the head private; ``head_layers`` says where the one ends and the other begins."""

    evaluated: ClassVar[str] = "latest body, joined to the client's own head"

    head_layers: int | None = option(
        None, "layers of the head; unset: the model's own head; 0 is FedAvg, all of them LOCAL", paper="1", least=0
    )

    @property
    def shared(self) -> str:
        """The body."""
        return body_of(self.head_layers)

    @property
    def private(self) -> str:
        """The head."""
        return head_of(self.head_layers)


def head_of(layers: int | None) -> str:
    """The part of a model that is its last ``layers``; its own head where they are not set."""
    return "head" if layers is None else f"last {layers}"


def body_of(layers: int | None) -> str:
    """The part of a model before its last ``layers``; all but its own head where they are not set."""
    return "body" if layers is None else f"before last {layers}"
