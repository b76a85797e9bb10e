"""What a method claims about itself, in its own file; `coterie.testing.check_algorithm` puts it to the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

Options = Mapping[str, Any]


class Situation(Protocol):
    """A client in the middle of local training, about to take a step.

    Attributes:
        algorithm: the method with its hyper-parameters.
        theta: ``(r, d)`` points at which the objective is asked for.
    """

    algorithm: Any
    theta: Tensor

    def value(self, name: str) -> float:
        """A number that the client received or holds as state."""

    def squared_distance(self, name: str) -> Tensor:
        """``||theta - x||^2: (r,)`` for a model x that the client received or holds as state."""

    def along(self, name: str, *, before: bool = False) -> Tensor:
        """``<x, theta>: (r,)`` for a model x that the client received or holds as state, or held before this round."""


class Federated(Protocol):
    """What the size of a transfer may depend on; ``m`` clients have answered in the round."""

    algorithm: Any
    K: int
    m: int

    def share(self, part: str) -> float:
        """The share of a model's parameters that are in ``head``, ``body``, ``last 2``, ...: 1 is Sigma."""


Amount = float | Callable[[Any], float]


@dataclass(frozen=True)
class Traffic:
    """Models that one client receives (``down``) and sends (``up``) in a round, in units of Sigma.

    ``peers`` counts what it sends to other clients. An amount is a number, or a function of `Federated`. ``summaries``
    names what travels beside models: ``summary`` (matrices for each client), ``meta`` (numbers).
    """

    down: Amount = 1.0
    up: Amount = 1.0
    peers: Amount = 0.0
    summaries: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limit:
    """With these ``options`` the method is another one, ``method`` with the options ``of``.

    What clients predict with is compared, or the server's model of the name ``state``.
    """

    options: Options
    method: str
    of: Options = field(default_factory=dict)
    state: str | None = None


@dataclass(frozen=True)
class Anchored:
    """``options(lr)`` make strength times learning rate 1: one step then lands on the received model ``anchor``."""

    options: Callable[[float], Options]
    anchor: str


@dataclass(frozen=True)
class Claims:
    """Facts about one method, beside what every method must keep anyway.

    Attributes:
        toy: options under which all of the method happens within a few rounds on a handful of tiny clients.
        limits: options under which it is another method, such as LOCAL at strength 0.
        objective: what is added to the loss F_k of a client, by the name of the model that is trained (one of the
            answers, or the client's own ``theta``).
        anchored: options for a pull so strong that one step ends at the anchor.
        traffic, first_traffic: what moves in a round, and in the first one where that differs.
        alone: options under which a single client trains exactly as LOCAL does.
        one_step: whether a round is one gradient step on all of a client's data whatever the epochs, so that ``alone``
            is about full batches and one epoch.
        symmetric: options under which identical clients keep identical models.
        learns: options, and maybe a ``training.lr`` other than 0.1, with which twenty rounds on rotated digits suffice.
        changes: for an option two settings that differ in it and in what they lead to, where the checker's own choice
            (half, twice, another word) would change nothing.
        newcomers: options that only newcomers feel.
        validation: whether training uses the clients' validation data.
        constant: state that does not move although it is a model or a number, with the reason.
        unnormalised: relations whose rows are no shares of 1, with the reason.
        exempt: identities that do not apply by definition, by name, each with its reason.
    """

    toy: Options = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    objective: Mapping[str, Callable[[Any], Tensor | float]] = field(default_factory=dict)
    anchored: Anchored | None = None
    traffic: Traffic = Traffic()
    first_traffic: Traffic | None = None
    alone: Options = field(default_factory=dict)
    one_step: bool = False
    symmetric: Options = field(default_factory=dict)
    learns: Options = field(default_factory=dict)
    changes: Mapping[str, tuple[Options, Options]] = field(default_factory=dict)
    newcomers: tuple[str, ...] = ()
    validation: bool = False
    constant: Mapping[str, str] = field(default_factory=dict)
    unnormalised: Mapping[str, str] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)


def unchanged(_: Any) -> float:
    """The term of an objective that is the client's loss and nothing else."""
    return 0.0
