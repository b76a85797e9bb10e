"""FedEM: every client is a mixture of a few components that all clients train together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from coterie.contract import Algorithm, Claims, Limit, Predictor, Server, Site, Traffic, broadcast, option, register
from coterie.models import Models, stack_candidates, stack_rows
from coterie.relations import responsibilities


@register
@dataclass(frozen=True)
class FedEM(Algorithm):
    """FedEM (Marfoq et al., NeurIPS 2021): max sum_k sum_s log sum_m pi_km exp(-l(h_m(x_s), y_s)).

    E: q_sm ~ pi_km exp(-l(h_m(x_s), y_s)); pi_km = mean_s q_sm. M: each component h_m by SGD on (1/B) sum_s q_sm l_sm,
    averaged over the clients with n_k. Client k predicts with sum_m pi_km p_m(y|x).
    """

    name: ClassVar[str] = "fedem"
    title: ClassVar[str] = "FedEM"
    paper: ClassVar[str] = "Marfoq et al., NeurIPS 2021"
    cites: ClassVar[str] = "marfoq2021federated"
    evaluated: ClassVar[str] = "mixture of the averaged components with the client's weights"
    deviations: ClassVar[tuple[str, ...]] = (
        "Optimisers start afresh each round; optimizer_state: persistent keeps them, as the authors' code does.",
        "The components are averaged over the clients that answer; the authors' code averages over all, of whom the "
        "absent ones hold the last components, which is damped.",
        "All components of a client see the same batches.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(Limit({"components": 1}, "fedavg"),),
        traffic=Traffic(lambda at: at.algorithm.components, lambda at: at.algorithm.components),
        alone={"components": 1},
        exempt={
            "objective": "the loss of each example is weighted by its responsibility; nothing is added to F_k",
        },
        learns={"training.lr": 0.3},  # the gradient is divided among the components
    )

    components: int = option(3, "number M of components; 1 is FedAvg", paper="3", least=1)
    damped: bool = option(
        False,
        "absent clients count as if they had returned the components as they were",
        paper="on, in the authors' code",
    )

    def setup(self, server: Server) -> None:
        """M different components, and the mean weights of the clients where newcomers without labels may come."""
        server.w = server.initial_models(self.components, distinct=True)
        if server.unlabelled_newcomers:
            server.pi = torch.full((self.components,), 1.0 / self.components, dtype=torch.float64)

    def start(self, site: Site) -> None:
        """pi_k uniform."""
        site.pi = site.zeros(self.components) + 1.0 / self.components

    def round(self, server: Server, cohort: Tensor) -> None:
        """h_m <- sum_k p_k h_mk, over those that answered or, damped, over all."""
        method = self.update_and_tell if server.unlabelled_newcomers else self.local_update
        n = server.n.double()
        up = server.ask(method, cohort, average=n[cohort], w=broadcast(server.w))
        share = float(n[up.clients].sum() / n.sum()) if self.damped else 1.0
        eye = torch.eye(self.components, dtype=torch.float64)
        both = stack_rows([up.w.flatten_candidates(), server.w])
        server.w = both.mixed(torch.cat([share * eye, (1 - share) * eye], dim=1))
        if server.unlabelled_newcomers:
            server.pi = up.pi[0]

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """E-step, then E epochs for each component with its responsibilities."""
        w = w.as_candidates()
        q = self.expect(site, w)
        trained = [
            site.fit(w.candidate(m), weights=q[:, m], optimiser=f"component {m}").models for m in range(self.components)
        ]
        return {"w": stack_candidates(trained)}

    def update_and_tell(self, site: Site, w: Models) -> Mapping[str, Any]:
        """The same, and pi_k for the mean over the clients."""
        return {**self.local_update(site, w), "pi": site.pi}

    def expect(self, site: Site, w: Models) -> Tensor:
        """q_sm of every example, ``(n, M)`` flat over the clients, from their pi_k; then pi_k = mean_s q_sm."""
        q = responsibilities(site.pi[site.train.owners()], site.example_losses("train", w))
        site.pi = site.per_client(q)
        return q

    # --- prediction ----------------------------------------------------------------------------------------------
    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """All components."""
        return {"w": broadcast(server.w)}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """sum_m pi_km p_m(y|x): probabilities are averaged, or outputs in regression."""
        return self.mixture(site, offer["w"], site.pi)

    def mixture(self, site: Site, w: Models, pi: Tensor) -> Predictor:
        """The components with weights ``pi: (k, M)``; a single component is a model like any other."""
        if self.components == 1:
            return Predictor(w)
        combine: Literal["probabilities", "outputs"] = "outputs" if site.task == "regression" else "probabilities"
        return Predictor(w, pi, combine)

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """All components; without labels the mean weights of the clients too, uniform where nobody has told them."""
        received: dict[str, Any] = {"w": broadcast(server.w)}
        if labelled:
            return received
        uniform = torch.full((self.components,), 1.0 / self.components, dtype=torch.float64)
        return {**received, "pi": broadcast(server.pi if server.unlabelled_newcomers else uniform)}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """pi by one E-step from uniform weights; no component is trained."""
        if "pi" not in received:
            self.expect(site, received["w"].as_candidates())
        predictor = self.mixture(site, received["w"], received.get("pi", site.pi))
        for _ in range(epochs + 1):
            yield predictor
