"""Seeds in one stack: every table as if each seed had run alone, whatever the method keeps, sends or draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from toys import BATCHES, MLP, NORMED, classified

from coterie.contract import Algorithm, Server, Site, broadcast, make_algorithm
from coterie.engines import Diverged, Member, Participation, RoundReport, Settings, Shared, Simulation
from coterie.federation.data import ClientData, Normal
from coterie.federation.federation import Federation
from coterie.models import ModelSpec

COUNTS = (9, 14, 6, 11)
SEEDS = (0, 1)


def federation(seed: int, classes: int = 3) -> Federation:
    """Another federation for each seed, of clients of other sizes."""
    sizes = [count + (seed * 3 + place) % 4 for place, count in enumerate(COUNTS)]
    generator = torch.Generator().manual_seed(seed)

    def split(extra: int) -> ClientData:
        counts = [size + extra for size in sizes]
        inputs = torch.randn(sum(counts), 4, generator=generator)
        targets = torch.randint(0, classes, (sum(counts),), generator=generator)
        return ClientData(inputs, targets, torch.tensor([0, *counts]).cumsum(0))

    names = tuple(f"client {place}" for place in range(len(COUNTS)))
    return Federation(names, split(0), split(-3), split(2), "classification", classes)


def simulation(algorithm: Algorithm, seed: int, model: ModelSpec = MLP, **settings: Any) -> Simulation:
    values: dict[str, Any] = {
        "rounds": 4, "evaluate_every": 2, "training": BATCHES, "dtype": "float64", "threads": 1,
        "participation": Participation("uniform", clients=3), **settings,
    }  # fmt: skip
    return Simulation(federation(seed), algorithm, model, Settings(seed=seed, **values))


def reports(sim: Simulation) -> list[RoundReport]:
    found = [sim.initial_report()]
    while not sim.finished:
        found.append(sim.advance())
    return found


def together(simulations: dict[int, Simulation]) -> tuple[dict[int, list[RoundReport]], Shared]:
    """All rounds of simulations that share a stack, by seed."""
    found: dict[int, list[RoundReport]] = {}

    def of(seed: int) -> Any:
        def run(member: Member) -> bool:
            member.join(simulations[seed])
            found[seed] = reports(simulations[seed])
            return True

        return run

    shared = Shared([of(seed) for seed in simulations])
    assert shared.hold() == [True] * len(simulations)
    return found, shared


def assert_equal(one: list[RoundReport], other: list[RoundReport]) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert (first.round, first.cohort, first.answered) == (second.round, second.cohort, second.answered)
        assert [str(failure) for failure in first.failures] == [str(failure) for failure in second.failures]
        assert first.ledger == second.ledger
        assert first.notes.keys() == second.notes.keys()
        assert all(
            first.notes[name] == pytest.approx(second.notes[name], abs=1e-8, nan_ok=True) for name in first.notes
        )
        assert first.evaluations.keys() == second.evaluations.keys()
        for split, metrics in first.evaluations.items():
            for metric, values in metrics.items():
                np.testing.assert_allclose(values, second.evaluations[split][metric], rtol=0, atol=1e-8)


METHODS: dict[str, dict[str, Any]] = {
    "local": {}, "fedavg": {}, "fedavg-ft": {}, "ditto": {}, "scaffold": {}, "fedora": {}, "feddwa": {}, "pgfed": {},
    "federico": {}, "fedem": {}, "ifca": {}, "pfedhn": {}, "l2gd": {"p": 0.5}, "fedfomo": {}, "apfl": {}, "fedrep": {},
    "pfedme": {}, "cfl": {}, "l2c": {},
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_seeds_in_one_stack_are_as_if_alone(name: str) -> None:
    algorithm = make_algorithm(name, **METHODS[name])
    alone = {seed: simulation(algorithm, seed) for seed in SEEDS}
    expected = {seed: reports(sim) for seed, sim in alone.items()}
    joint = {seed: simulation(algorithm, seed) for seed in SEEDS}
    found, shared = together(joint)
    for seed in SEEDS:
        assert_equal(expected[seed], found[seed])
        ours, theirs = alone[seed].report_models(), joint[seed].report_models()
        for tensor, tensors in ours.tensors.items():
            torch.testing.assert_close(tensors, theirs.tensors[tensor], rtol=0, atol=1e-8)
        assert alone[seed].bank.columns.keys() == joint[seed].bank.columns.keys()
    assert shared.served["together"] > 0
    if name not in ("l2gd",):  # whose coins differ from seed to seed
        assert shared.served["together"] > 4 * shared.served["alone"]
