"""What each method promises, as data: a new method adds one entry and every identity is checked for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, available_algorithms, make_algorithm
from coterie.training import TrainingSettings
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
    first: tuple[int, int] | None = None  # in the first round, where that differs
    peers: int = 0  # models between clients, for each client and round
    scalars: tuple[str, ...] = ()  # kinds of traffic beside models
    alone_training: TrainingSettings | None = None
    learning: Options = field(default_factory=dict)  # options under which it learns within twenty rounds
    symmetric: Options = field(default_factory=dict)  # options under which identical clients stay identical
    alone: Options | None = None  # options under which a single client trains as LOCAL does
    changes: Mapping[str, tuple[Options, Options]] = field(default_factory=dict)
    for_newcomers: tuple[str, ...] = ()  # options that training does not depend on

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

PGFED_CHANGES: dict[str, tuple[Options, Options]] = {
    "mu": ({}, {"mu": 0.5}),
    "lr_alpha": ({"mu": 0.5}, {"mu": 0.5, "lr_alpha": 0.1}),
    "persistent": ({}, {"persistent": True}),
}
BY_GRADIENT = {"step": "gradient"}
FEDERICO_CHANGES: dict[str, tuple[Options, Options]] = {
    "variant": ({"variant": "decentralised"}, {"variant": "central"}),
    "neighbours": ({}, {"neighbours": 1}),
    "warm_up": ({}, {"warm_up": 1}),
    "epsilon": ({"neighbours": 1}, {"neighbours": 1, "epsilon": 1.0}),
    "beta": ({}, {"beta": 0.1}),
    "tracking": ({}, {"tracking": "accumulated"}),
    "loss_scale": ({}, {"loss_scale": "mean"}),
    "tau": ({"loss_scale": "tempered"}, {"loss_scale": "tempered", "tau": 5.0}),
    "evidence": ({}, {"evidence": "validation"}),
    "init": ({}, {"init": "zero"}),
    "init_models": ({}, {"init_models": "common"}),
    "step": ({}, BY_GRADIENT),
    "owner": (BY_GRADIENT, {**BY_GRADIENT, "owner": "sgd"}),
    "owner_lr": (BY_GRADIENT, {**BY_GRADIENT, "owner_lr": 0.1}),
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
        for_newcomers=("attach",),
    ),
    Case(
        "fedora",
        "released",
        terms={"theta": lambda a, call, i, to: lambda_k(call, i) / 2 * to("theta_hat")},
        limits=(({"lambda_rule": "constant", "lambda": 0.0}, "local", {}),),
        anchored=(lambda lr: {"lambda_rule": "constant", "lambda": 0.5 / lr, "factor": 2.0}, "theta_hat"),
        alone={"lambda_rule": "constant", "lambda": 0.0},
        changes=FEDORA_CHANGES,
        for_newcomers=("attach",),
    ),
]

CASES += [
    Case(
        "feddwa",
        terms={"w": none},
        limits=(({"topk": 1, "guidance": "full_gradient"}, "local", {}),),
        traffic=(1, 2),
        alone={},
        changes={
            "guidance": ({}, {"guidance": "full_gradient"}),
            "guidance_epochs": ({}, {"guidance_epochs": 5}),
            "topk": ({}, {"topk": 2}),
        },
    ),
    Case(
        "pgfed",
        terms={"theta": lambda a, call, i, to: to.along(flat(call.received["auxiliary"][i]))},  # type: ignore[attr-defined]
        first=(1, 2),
        traffic=(3, 2),
        scalars=("meta", "summary"),
        alone={"mu": 0.0},
        changes=PGFED_CHANGES,
    ),
    Case(
        "pgfedmo",
        terms={"theta": lambda a, call, i, to: to.along(flat(call.site.g[i]))},  # type: ignore[attr-defined]
        limits=(({"beta": 0.0}, "pgfed", {}),),
        first=(1, 2),
        traffic=(3, 2),
        scalars=("meta", "summary"),
        alone={"mu": 0.0},
        changes={**PGFED_CHANGES, "beta": ({}, {"beta": 0.8})},
    ),
    Case(
        "federico",
        "central",
        traffic=(8, 8),
        scalars=("summary",),
        alone={"init_models": "common", "owner_lr": 0.1},
        alone_training=TrainingSettings(epochs=1, batch_size=1000, lr=0.1),
        learning={"owner": "adam", "loss_scale": "mean"},
        symmetric={"init_models": "common"},
        changes=FEDERICO_CHANGES,
    ),
    Case(
        "federico",
        "decentralised",
        limits=(({"neighbours": 0, "init_models": "common"}, "local", {}),),
        traffic=(0, 0),
        peers=6,
        scalars=("summary",),
        alone={"init_models": "common"},
        symmetric={"init_models": "common", "neighbours": 10},
        changes=FEDERICO_CHANGES,
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
