"""Small federations and models whose answers are known, shared by the tests of engines and algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.contract import Algorithm, make_algorithm
from coterie.engines import Participation, RoundReport, Settings, Simulation, TrainingSettings
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.testing.recording import Call, Recording, plain
from coterie.testing.toys import (
    BLIND,
    LINEAR,
    LOCATION,
    MLP,
    Blind,
    Location,
    alike,
    classified,
    names_of,
)

__all__ = [
    "BATCHES", "BLIND", "FULL_BATCH", "HALF", "HALF_FROZEN", "KINDS", "LINEAR", "LOCATION", "MLP", "NORMED", "Blind", "Call",
    "Location", "Recording", "alike", "classified", "everyone", "located", "models_like", "names_of", "personal", "plain",
    "reordered", "run", "same", "saved", "simulation", "state", "with_train_inputs",
]  # fmt: skip

# --- models ------------------------------------------------------------------------------------------------------


def normed(feature_shape: Sequence[int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(feature_shape[0], 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, classes)
    )


def half_frozen(feature_shape: Sequence[int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(feature_shape[0], 4).requires_grad_(False), nn.ReLU(), nn.Linear(4, classes))


NORMED = ModelSpec("toys:normed")
HALF_FROZEN = ModelSpec("toys:half_frozen")

# --- federations -------------------------------------------------------------------------------------------------


def located(means: Sequence[Sequence[float]], counts: Sequence[int] | None = None, inputs: Any = None) -> Federation:
    """Quadratics: client k's targets are all ``means[k]``; ``inputs[k]`` is its one input, repeated."""
    counts = counts or [1] * len(means)
    rows = torch.ones(len(means), 1) if inputs is None else torch.as_tensor(inputs, dtype=torch.float32)
    data = ClientData.from_clients(
        [row.repeat(n, 1) for row, n in zip(rows, counts, strict=True)],
        [torch.tensor([list(mean)] * n) for mean, n in zip(means, counts, strict=True)],
    )
    return Federation(names_of(len(means)), data, data, data, "regression", len(means[0]))


def reordered(federation: Federation, order: Sequence[int]) -> Federation:
    """The same clients, names and data, in another order."""
    return federation.select(order)


def with_train_inputs(federation: Federation, change: Callable[[Tensor], Tensor], clients: Sequence[int]) -> Federation:
    """The federation with the training inputs of some clients changed, past all validation."""
    data = federation.train
    inputs = data.inputs.clone()
    for client in clients:
        rows = data.rows(torch.arange(int(data.offsets[client]), int(data.offsets[client + 1])))
        inputs[rows] = change(inputs[rows])
    return replace(federation, train=replace(data, inputs=inputs))


# --- methods -----------------------------------------------------------------------------------------------------

KINDS = (
    "apfl", "cfl", "ditto", "fedavg", "fedavg-ft", "feddwa", "fedem", "federico", "fedfomo", "fedora", "fedper", "ifca",
    "l2gd", "local", "pfedhn", "pgfed", "pgfedmo", "scaffold",
)  # fmt: skip
"""One method of each kind, for tests of engines; the conformance suite has all of them."""

# --- runs --------------------------------------------------------------------------------------------------------

FULL_BATCH = TrainingSettings(epochs=1, batch_size=1000, lr=0.1)
BATCHES = TrainingSettings(epochs=2, batch_size=3, lr=0.1)
HALF = Participation("uniform", 0.5)


def simulation(
    federation: Federation,
    algorithm: str | Algorithm,
    model: ModelSpec = MLP,
    *,
    options: Mapping[str, Any] | None = None,
    engine: type[Simulation] = Simulation,
    **settings: Any,
) -> Simulation:
    """A simulation in float64 on one thread, unless ``settings`` say otherwise."""
    defaults: dict[str, Any] = {
        "rounds": 3, "evaluate_every": 1000, "training": BATCHES, "dtype": "float64", "threads": 1, "keep_best": "last",
    }  # fmt: skip
    made = make_algorithm(algorithm, **dict(options or {})) if isinstance(algorithm, str) else algorithm
    return engine(federation, made, model, Settings(**{**defaults, **settings}))


def run(sim: Simulation) -> list[RoundReport]:
    """All remaining rounds."""
    reports = []
    while not sim.finished:
        reports.append(sim.advance())
    return reports


def everyone(sim: Simulation) -> Tensor:
    return torch.arange(sim.K)


def state(sim: Simulation, name: str = "theta") -> Any:
    """The committed state of all clients."""
    return sim.bank.get(name, everyone(sim), call=0)


def personal(sim: Simulation) -> Tensor:
    """What every client predicts with now, ``(K, d)``."""
    return sim.report_models().flat() if sim.settings.keep_best == "last" else state(sim).flat()


def models_like(sim: Simulation, rows: Any) -> Models:
    """Models of a one-tensor architecture from a table ``(r, d)``."""
    (name,) = sim.stack.layout.parameters
    return Models(sim.stack.layout, {name: torch.as_tensor(rows, dtype=torch.float64).clone()})


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a.nan_to_num(7e77), b.nan_to_num(7e77))
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def saved(sim: Simulation) -> dict[str, Any]:
    """The whole state, less what time measured."""
    return {key: value for key, value in sim.state_dict().items() if key != "seconds"}
