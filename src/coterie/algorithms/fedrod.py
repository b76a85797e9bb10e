"""FedRoD: a common model trained with a balanced loss, and private heads that add what is theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.contract import Claims, GlobalModel, Limit, Predictor, Server, Site, option, register
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.relations import balanced_cross_entropy, balancing_offsets
from coterie.training import cross_entropy


@register
@dataclass(frozen=True)
class FedRoD(GlobalModel):
    """FedRoD (Chen & Chao, ICLR 2022): a generic model w = (f, h) for all, a private head q_k for each client.

    w minimises the balanced loss CE(h(z) + gamma log n_k,c) with z = f(x); q_k minimises CE(h(z) + q_k(z)), where
    neither h nor z receives a gradient. Clients predict with h + q_k.
    """

    name: ClassVar[str] = "fedrod"
    title: ClassVar[str] = "FedRoD"
    paper: ClassVar[str] = "Chen & Chao, ICLR 2022"
    cites: ClassVar[str] = "chen2022fedrod"
    evaluated: ClassVar[str] = "global model after aggregation, plus the client's own head"
    deviations: ClassVar[tuple[str, ...]] = (
        "Private heads are linear; the paper's second variant, whose heads a hypernetwork makes of the class counts, "
        "is left out.",
        "Private heads start at zero, so that a client begins with the generic prediction.",
        "Both gradients of a batch are taken at the generic model before its step.",
        "Classes are counted on the whole training set; some libraries count a shuffled loader that drops its last "
        "batch, where a class may be missed and the loss become infinite.",
        "Evaluation adds the private head to the latest generic model, and never uses the private head alone.",
    )
    claims: ClassVar[Claims] = Claims(
        limits=(
            Limit({"gamma": 0.0}, "fedavg", state="w"),
            Limit({"gamma": 0.0, "weights": "uniform"}, "fedavg", {"weights": "uniform"}, state="w"),
        ),
        changes={"gamma": ({}, {"gamma": 0.3})},
        exempt={
            "objective": "the generic model follows the balanced loss and not F_k, the private head only its own part",
            "alone": "the private head is trained beside the generic model and added to it",
        },
    )

    gamma: float = option(1.0, "power of the class counts in the balanced loss; 0 is cross-entropy", paper="1", least=0)

    def setup(self, server: Server) -> None:
        """The generic model, whose head must be a linear layer: only there is a sum of heads a sum of outputs."""
        super().setup(server)
        head = [tuple(tensor.shape[1:]) for _, tensor in server.w["head"].parameters()]
        if server.task != "classification" or len(head[0]) != 2 or head[1:] not in ([], [head[0][:1]]):
            raise CoterieError(
                f"algorithm {self.name} balances classes and adds a linear head to another, so it needs a "
                "classification task and a model whose head is one linear layer; set model.name to mlp, for example"
            )

    def start(self, site: Site) -> None:
        """q_k = 0."""
        site.q = site.theta["head"].zeros()

    def local_update(self, site: Site, w: Models) -> Mapping[str, Any]:
        """For each batch a step of w down the balanced loss, and one of q_k down the loss of h + q_k, h and z fixed."""
        offsets, q = balancing_offsets(site.class_counts(), self.gamma), site.q
        for step in site.steps():
            combined = w.with_part("head", w["head"] + q)
            own = site.gradient(combined, step, objective=cross_entropy)["head"]
            generic = site.gradient(w, step, objective=balanced_cross_entropy(offsets[step.rows]))
            w, q = step.update(w, generic), step.update(q, own, "private head")
        site.q = q
        return {"w": w}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """h + q_k on the features of the generic model."""
        w = offer["w"]
        return Predictor(w.with_part("head", w["head"] + site.q))

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """The generic model; with labels h + q_k from q_k = 0 on, under which nothing moves."""
        w = received["theta"]
        yield Predictor(w)
        for tuned in site.by_epoch(w, epochs, only="head"):
            yield Predictor(tuned)
