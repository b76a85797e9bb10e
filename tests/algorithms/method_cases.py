"""What each method promises, as data: a new method adds one entry and every identity is checked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, available_algorithms, make_algorithm
from toys import Call

Options = Mapping[str, Any]
Distance = Callable[[str], Tensor]  # squared distance to something received, by name
Term = Callable[[Algorithm, Call, int, Distance], Tensor | float]


def none(*_: Any) -> float:
    return 0.0


@dataclass(frozen=True, eq=False)
class Case:
    """Facts about one method (or one variant).

    ``limits``: options under which it is another method, with that method's options. ``terms``: what is added to the
    loss of client i for the model under this name (an answer, or ``theta`` for the client's own). ``anchored``: options with
    strength x learning rate = 1 for a given rate, and the received name of the anchor. ``traffic``: models per client
    and round, down and up. ``changes``: for every option two settings that differ in it and in what they lead to.
    """

    name: str
    variant: str | None = None
    limits: tuple[tuple[Options, str, Options], ...] = ()
    terms: Mapping[str, Term] = field(default_factory=dict)
    anchored: tuple[Callable[[float], Options], str] | None = None
    traffic: tuple[int, int] = (1, 1)
    alone: Options | None = None  # options under which a single client trains as LOCAL does
    changes: Mapping[str, tuple[Options, Options]] = field(default_factory=dict)

    def make(self, **options: Any) -> Algorithm:
        return make_algorithm(self.name, self.variant, **options)

    @property
    def id(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name


WEIGHTS = {"weights": ({}, {"weights": "uniform"})}
TUNING = {
    "epochs_ft": ({}, {"epochs_ft": 3}),
    "lr_ft": ({}, {"lr_ft": 0.02}),
    "part": ({}, {"part": "head"}),
}


def lambda_k(call: Call, client: int) -> float:
    return float(call.site.lambda_k[client])


FEDORA_CHANGES: dict[str, tuple[Options, Options]] = {
    "variant": ({"variant": "released"}, {"variant": "paper"}),
    "similarity": ({}, {"similarity": "random"}),
    "kind": ({"kind": "cos"}, {"kind": "exp_cos"}),
    "temperature": ({"kind": "exp_cos", "topk": 0}, {"kind": "exp_cos", "topk": 0, "temperature": 1.0}),
    "topk": ({"topk": 2}, {"topk": 3}),
    "self_loop": ({"self_loop": False}, {"self_loop": True}),
    "rank": ({}, {"rank": 2}),
    "label_scale": ({}, {"label_scale": 30.0}),
    "alpha": ({}, {"alpha": 0.3}),
    "solver": ({}, {"solver": "iterative"}),
    "exact": ({"topk": 2}, {"topk": 2, "exact": True}),
    "lambda_rule": ({"lambda_rule": "gain"}, {"lambda_rule": "exp"}),
    "lambda": ({"lambda_rule": "constant"}, {"lambda_rule": "constant", "lambda": 0.3}),
    "epsilon": ({"lambda_rule": "gain"}, {"lambda_rule": "gain", "epsilon": 0.1}),
    "factor": ({}, {"factor": 0.7}),
    "prox_place": ({"prox_place": "gradient"}, {"prox_place": "after_step"}),
}

CASES = [
    Case("local", traffic=(0, 0), terms={"theta": none}, limits=(({}, "local", {}),), alone={}),
    Case("fedavg", terms={"w": none}, alone={}, changes=WEIGHTS),
    Case(
        "fedavg-ft",
        terms={"w": none},
        limits=(
            ({"epochs_ft": 0}, "fedavg", {}),
            ({"epochs_ft": 0, "weights": "uniform"}, "fedavg", {"weights": "uniform"}),
        ),
        alone={"epochs_ft": 0},
        changes={**WEIGHTS, **TUNING},
    ),
    Case(
        "fedprox",
        terms={"w": lambda a, call, i, to: a.mu / 2 * to("w")},  # type: ignore[attr-defined]
        limits=(({"mu": 0.0}, "fedavg", {}),),
        alone={"mu": 0.0},
        changes={**WEIGHTS, "mu": ({}, {"mu": 0.3}), "prox_place": ({}, {"prox_place": "after_momentum"})},
    ),
    Case(
        "fedprox-ft",
        terms={"w": lambda a, call, i, to: a.mu / 2 * to("w")},  # type: ignore[attr-defined]
        limits=(({"mu": 0.0}, "fedavg-ft", {}), ({"epochs_ft": 0}, "fedprox", {})),
        alone={"mu": 0.0, "epochs_ft": 0},
        changes={**WEIGHTS, **TUNING, "mu": ({}, {"mu": 0.3}), "prox_place": ({}, {"prox_place": "after_momentum"})},
    ),
    Case(
        "ditto",
        terms={"w": none, "theta": lambda a, call, i, to: a.lambda_ / 2 * to("w")},  # type: ignore[attr-defined]
        limits=(({"lambda": 0.0}, "local", {}),),
        anchored=(lambda lr: {"lambda": 1 / lr}, "w"),
        alone={"lambda": 0.0},
        changes={
            **WEIGHTS,
            "lambda": ({}, {"lambda": 0.3}),
            "personal_epochs": ({"personal_epochs": 1}, {"personal_epochs": 2}),
        },
    ),
    Case(
        "fedamp",
        terms={"theta": lambda a, call, i, to: a.lambda_ / (2 * a.alpha) * to("u")},  # type: ignore[attr-defined]
        limits=(({"lambda": 0.0}, "local", {}), ({"sigma": 1e-9, "sigma_relative": False, "lambda": 0.0}, "local", {})),
        anchored=(lambda lr: {"lambda": 1 / lr}, "u"),
        alone={"lambda": 0.0},
        changes={
            "lambda": ({}, {"lambda": 0.3}),
            "sigma": ({}, {"sigma": 0.3}),
            "alpha": ({}, {"alpha": 0.3}),
            "sigma_relative": ({}, {"sigma_relative": False}),
        },
    ),
    Case(
        "fedora",
        "paper",
        terms={"theta": lambda a, call, i, to: lambda_k(call, i) * to("theta_hat")},
        limits=(
            ({"lambda_rule": "constant", "lambda": 0.0}, "local", {}),
            ({"alpha": 0.0, "epsilon": 0.0}, "local", {}),
        ),
        anchored=(lambda lr: {"lambda_rule": "constant", "lambda": 0.5 / lr}, "theta_hat"),
        alone={"epsilon": 0.0},
        changes=FEDORA_CHANGES,
    ),
    Case(
        "fedora",
        "released",
        terms={"theta": lambda a, call, i, to: lambda_k(call, i) / 2 * to("theta_hat")},
        limits=(({"lambda_rule": "constant", "lambda": 0.0}, "local", {}),),
        anchored=(lambda lr: {"lambda_rule": "constant", "lambda": 0.5 / lr, "factor": 2.0}, "theta_hat"),
        alone={"lambda_rule": "constant", "lambda": 0.0},
        changes=FEDORA_CHANGES,
    ),
]

every_case = pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])


def covered() -> set[tuple[str, str | None]]:
    return {(case.name, case.variant) for case in CASES}


def registered() -> set[tuple[str, str | None]]:
    return {(n, v) for n, cls in available_algorithms().items() for v in (cls.variants or [None])}


def flat(values: Any) -> Tensor:
    """The parameters of one row as a vector."""
    return torch.cat([tensor.reshape(-1) for _, tensor in values.parameters()])
