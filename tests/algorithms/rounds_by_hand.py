"""Rounds by hand: two or three clients on quadratics, full batches, every call recorded; and newcomers to toy runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from coterie.contract import make_algorithm
from coterie.engines import Admission, Settings, Trained
from coterie.federation.federation import Federation
from toys import BATCHES, FULL_BATCH, LOCATION, MLP, Recording, classified, located, run, simulation

B3 = [[4.0, 0.0], [0.0, 8.0], [-2.0, 6.0]]
TWO, THREE = located(B3[:2], [1, 3]), located(B3, [1, 3, 2])
EVERYBODY = classified((7, 4, 9, 5, 6, 8))
MEMBERS, NEWCOMERS = EVERYBODY.select([0, 1, 2, 3]), EVERYBODY.select([4, 5])


def begun(
    name: str, rounds: int = 1, federation: Federation = TWO, *, lr: float = 0.5, epochs: int = 1, absent: Any = None,
    model: Any = LOCATION, training: Any = None, variant: str | None = None, **options: Any,
) -> Recording:  # fmt: skip
    """A simulation that has not run yet, on full batches."""
    sim = simulation(
        federation, make_algorithm(name, variant, **options), model, engine=Recording, rounds=rounds,
        absent=absent or {}, training=training or replace(FULL_BATCH, lr=lr, epochs=epochs),
    )  # fmt: skip
    assert isinstance(sim, Recording)
    return sim


def played(*arguments: Any, **options: Any) -> Recording:
    sim = begun(*arguments, **options)
    run(sim)
    return sim


def admission(sim: Recording, newcomers: Federation = NEWCOMERS, model: Any = MLP, **settings: Any) -> Admission:
    made: dict[str, Any] = {"training": BATCHES, "dtype": "float64", "threads": 1, **settings}
    return Admission(Trained.of(sim), newcomers, sim.algorithm, model, Settings(**made))


def arrived(sim: Recording, newcomers: Federation = NEWCOMERS, *, labelled: bool = True, **settings: Any) -> Tensor:
    """What newcomers predict with on arrival, ``(k, d)``."""
    admitted = admission(sim, newcomers, **settings).admit(labelled=labelled, epochs=0)
    assert admitted is not None
    return admitted.models.flat()
