"""What an algorithm is: a frozen set of hyper-parameters with server code and client code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, cast

from torch import Tensor

from coterie.contract.claims import Claims
from coterie.contract.options import mistakes, option
from coterie.contract.payload import broadcast
from coterie.contract.predictor import Predictor
from coterie.contract.server import Server
from coterie.contract.site import Site
from coterie.errors import CoterieError
from coterie.training import TrainingSettings


@dataclass(frozen=True)
class Algorithm:
    """One personalised federated learning method; override ``round`` or ``local_update`` and what else it needs.

    Server code touches ``server`` and answers only; client code touches ``site`` and its payload only.
    ``variants`` name sets of defaults for options: an option left at ``None`` takes its variant's value.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    cites: ClassVar[str] = ""  # its entry in references.bib
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    evaluated: ClassVar[str] = "own model after local training"
    deviations: ClassVar[tuple[str, ...]] = ()  # from the paper and from its authors' code, a sentence each
    differences: ClassVar[tuple[str, ...]] = ()  # Models among the answers that are changes or gradients, not models
    strengths: ClassVar[tuple[str, ...]] = ()  # clients' state of one number each, worth following over rounds
    plain_sgd: ClassVar[bool] = False  # whether momentum, weight decay, clipping and Adam make its server update wrong
    claims: ClassVar[Claims | Mapping[str, Claims]] = Claims()  # by variant, where variants differ

    def __post_init__(self) -> None:
        variant = getattr(self, "variant", None)
        if self.variants:
            if variant not in self.variants:
                raise CoterieError(
                    f"algorithm {self.name} has the variants {', '.join(self.variants)}, not {variant!r}"
                )
            for option, value in self.variants[str(variant)].items():
                if getattr(self, option) is None:
                    object.__setattr__(self, option, value)
        for option, rule in mistakes(self):
            self.require(False, option, rule)
        self.check()

    def check(self) -> None:
        """Refuse hyper-parameters that make no sense together, with ``CoterieError``.

        Bounds of a single one stand in its `option`, and a ``Literal`` type says which values it takes.
        """

    def require(self, condition: bool, option: str, rule: str) -> None:
        """Raise ``CoterieError`` naming the option unless ``condition`` holds."""
        if not condition:
            value = getattr(self, option)
            raise CoterieError(f"{self.name}.{option.rstrip('_')} must be {rule}, not {value!r}")

    def check_training(self, training: TrainingSettings) -> None:
        """Refuse settings of local training under which the method would be another, with ``CoterieError``."""
        changed = training.momentum or training.weight_decay or training.clip is not None
        if self.plain_sgd and (training.optimizer != "sgd" or changed):
            raise CoterieError(
                f"algorithm {self.name} needs plain SGD, because its server takes the way that clients have gone for a "
                "sum of gradients; give its entry a training of its own: "
                "{optimizer: sgd, momentum: 0, weight_decay: 0, clip: null}"
            )

    def options(self) -> dict[str, Any]:
        """Every hyper-parameter with its value; a trailing underscore (``lambda_``) is dropped."""
        return {f.name.rstrip("_"): getattr(self, f.name) for f in fields(self)}

    @classmethod
    def claims_of(cls, variant: str | None = None) -> Claims:
        """What the method, or one of its variants, claims about itself."""
        if isinstance(cls.claims, Claims) or not cls.variants:
            return cast(Claims, cls.claims)
        return cls.claims[variant or next(iter(cls.variants))]

    @property
    def compares_on_validation(self) -> bool:
        """Whether training, with these options, compares models on validation examples."""
        return self.claims_of(getattr(self, "variant", None)).validation

    def whole_numbers(self) -> Mapping[str, int]:
        """Of answers that are whole numbers the name, and the one that all are below; none is below 0.

        A site may send any: the engine leaves it out where they are not among these, before they number anything.
        """
        return {}

    # --- at the server -------------------------------------------------------------------------------------------
    def setup(self, server: Server) -> None:
        """Declare the server's state; asks nobody."""

    def welcome(self, server: Server, clients: Tensor) -> None:
        """Called when ``clients: (k,)`` are first in a cohort; may ask them."""

    def round(self, server: Server, cohort: Tensor) -> None:
        """One round with ``cohort: (m,)``: one or more asks, then the update."""
        server.ask(self.local_update, cohort)

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """What ``clients: (k,)`` need from the server to predict."""
        return {}

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """What newcomers ``clients: (k,)`` receive after training, for ``newcomer``; None where there is nothing.

        They are counted by themselves, from 0, and are no rows of the server's state; ``server.ask`` reaches them. By
        default they receive nothing: those with labels train alone, for the others there is no model.
        """
        return {} if labelled else None

    # --- what is seen --------------------------------------------------------------------------------------------
    def relations(self, server: Server) -> Mapping[str, Tensor]:
        """Who learns from whom, by name: ``(K, K)``, row i for what client i takes; NaN where it is not known."""
        return {}

    def notes(self, server: Server) -> Mapping[str, float]:
        """Numbers worth following from round to round, by name; they go into the history."""
        return {}

    # --- at the clients ------------------------------------------------------------------------------------------
    def start(self, site: Site) -> None:
        """Declare the clients' state at first contact; ``site.theta`` is theta^0 already."""

    def local_update(self, site: Site, *args: Any, **payload: Any) -> Mapping[str, Any]:
        """The client's part of a round; returns what it uploads."""
        raise CoterieError(f"{type(self).__name__} defines neither round nor local_update")

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """What each client predicts with, given what was offered; by default its own model."""
        return Predictor(site.theta)

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        """What newcomers predict with on arrival, then after each of ``epochs`` epochs on their own data.

        By default the model ``theta`` that they received, else theta^0, which one optimiser then tunes.
        """
        theta = received.get("theta", site.theta)
        yield Predictor(theta)
        for tuned in site.by_epoch(theta, epochs):
            yield Predictor(tuned)


@dataclass(frozen=True)
class GlobalModel(Algorithm):
    """Shared by methods that average one global model w: ``server.w``, one row, is what everyone predicts with."""

    weights: Literal["samples", "uniform"] = option(
        "samples", "samples: p_k proportional to n_k; uniform: all clients count the same"
    )
    evaluated: ClassVar[str] = "global model after aggregation"

    def setup(self, server: Server) -> None:
        """The global model starts at theta^0."""
        server.w = server.initial_model()

    def shares(self, server: Server, cohort: Tensor) -> Tensor:
        """The weight of each client of the cohort before normalisation, ``(m,)`` float64."""
        n = server.n[cohort].double()
        return n if self.weights == "samples" else n.new_ones(len(n))

    def round(self, server: Server, cohort: Tensor) -> None:
        """w <- sum_k p_k w_k over the clients that answered."""
        up = server.ask(self.local_update, cohort, average=self.shares(server, cohort), w=broadcast(server.w))
        server.w = up.w

    def offer(self, server: Server, clients: Tensor) -> Mapping[str, Any]:
        """The global model."""
        return {"w": broadcast(server.w)}

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        """The global model."""
        return {"theta": broadcast(server.w)}

    def personal(self, site: Site, **offer: Any) -> Predictor:
        """The global model as it is."""
        return Predictor(offer["w"])
