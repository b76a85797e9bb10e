"""Seeds in one stack: every table as if each seed had run alone, whatever the method keeps, sends or draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, Server, Site, available_algorithms, broadcast, make_algorithm, pick
from coterie.engines import Diverged, Member, Participation, RoundReport, Settings, Shared, Simulation
from coterie.engines.joined import JointData
from coterie.errors import CoterieError
from coterie.federation.data import ClientData, Normal
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from toys import BATCHES, MLP, NORMED

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


OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in available_algorithms() if name not in METHODS]


@pytest.mark.parametrize("name", [*METHODS, *OTHERS])
def test_seeds_in_one_stack_are_as_if_alone(name: str) -> None:
    algorithm = make_algorithm(name, **METHODS.get(name, {}))
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


SEEN: list[int] = []
"""How many rows a client method had."""


@dataclass(frozen=True)
class Everything(Algorithm):
    """Keeps and sends values of every kind, and reads them back within a call."""

    name = "everything"
    by_seed: bool = False

    def setup(self, server: Server) -> None:
        server.told = server.zeros(server.K)

    def start(self, site: Site) -> None:
        site.count, site.note = 0, "new"
        site.book = {"sums": [site.zeros(), site.zeros(2)], "said": ["nothing"] * site.k}

    def round(self, server: Server, cohort: Tensor) -> None:
        scale = torch.tensor(1.0 + (server.seed if self.by_seed else 0))
        pair = torch.tensor([server.seed, 2.0])
        up = server.ask(
            self.local_update, cohort, own=torch.arange(len(cohort)) + server.seed, scale=broadcast(scale),
            pair=broadcast(pair), bank=pick(torch.eye(server.K), cohort.unsqueeze(1).flip(0)),
        )  # fmt: skip
        server.told[up.clients] = up.told

    def local_update(self, site: Site, own: Tensor, scale: Tensor, pair: Tensor, bank: Tensor) -> dict[str, Any]:
        SEEN.append(site.k)
        site.count = site.count + 1
        site.theta = site.fit(site.theta, steps=1 + int(own.min() >= 0)).models
        site.mark, site.word = 7, "told"
        assert site.mark.tolist() == [7] * site.k
        assert site.word == ["told"] * site.k
        book = site.book
        site.book = {"sums": [book["sums"][0] + own, book["sums"][1] + pair], "said": [f"{n}" for n in site.names]}
        told = site.book["sums"][0] + scale * site.loss("validation", site.theta) + bank.argmax(-1).sum(1)
        return {"told": told, "theta": site.theta}

    def notes(self, server: Server) -> dict[str, float]:
        return {f"told {k}": float(value) for k, value in enumerate(server.told)}


@pytest.mark.parametrize(("by_seed", "rows"), [(False, 6), (True, 3)])
def test_state_and_payloads_of_every_kind(by_seed: bool, rows: int) -> None:
    """``by_seed``: a number that all clients of a seed receive alike is another for the other seed: not to be joined."""
    alone = {seed: simulation(Everything(by_seed), seed) for seed in SEEDS}
    expected = {seed: reports(sim) for seed, sim in alone.items()}
    joint = {seed: simulation(Everything(by_seed), seed) for seed in SEEDS}
    SEEN.clear()
    found, _ = together(joint)
    assert set(SEEN) == {rows}
    for seed in SEEDS:
        assert_equal(expected[seed], found[seed])
        assert alone[seed].bank.shapes == joint[seed].bank.shapes
        for name, column in alone[seed].bank.columns.items():
            other = joint[seed].bank.columns[name].rows
            if isinstance(column.rows, Tensor):
                assert isinstance(other, Tensor)
                torch.testing.assert_close(column.rows, other, rtol=0, atol=1e-8)
            elif isinstance(column.rows, list):
                assert column.rows == other


def test_more_seeds_that_come_and_go() -> None:
    """Seeds with fewer rounds end earlier; one that is resumed later is caught up with."""
    algorithm = make_algorithm("ditto")
    expected = {seed: reports(simulation(algorithm, seed)) for seed in range(3)}
    joint = {seed: simulation(algorithm, seed) for seed in range(3)}
    joint[1].initial_report()
    saved = [joint[1].advance() for _ in range(2)]
    found: dict[int, list[RoundReport]] = {}

    def of(seed: int) -> Any:
        def run(member: Member) -> bool:
            member.join(joint[seed])
            if seed == 1:
                found[seed] = [expected[seed][0], *saved, *(joint[seed].advance() for _ in range(2))]
            else:
                found[seed] = [joint[seed].initial_report(), *(joint[seed].advance() for _ in range(2 if seed else 4))]
            return True

        return run

    shared = Shared([of(seed) for seed in range(3)])
    shared.hold()
    assert shared.served["together"] > 0
    for seed, reported in found.items():
        assert_equal(expected[seed][: len(reported)], reported)
        assert len(reported) == (3 if seed == 2 else 5)


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_batch_statistics_are_each_seeds_own(buffers: str) -> None:
    algorithm = make_algorithm("fedavg")
    settings = {"model": NORMED, "buffers": buffers, "training": replace(BATCHES, drop_last=True)}
    expected = {seed: reports(simulation(algorithm, seed, **settings)) for seed in SEEDS}
    found, shared = together({seed: simulation(algorithm, seed, **settings) for seed in SEEDS})
    for seed in SEEDS:
        assert_equal(expected[seed], found[seed])
    assert shared.served["together"] > 0


def spoilt(sim: Simulation, clients: slice) -> Simulation:
    """The same with inputs that no model stays finite with."""
    data = sim.federation.train
    for first, last in zip(data.offsets[:-1][clients].tolist(), data.offsets[1:][clients].tolist(), strict=True):
        data.inputs[first:last] = float("inf")
    return sim


def test_a_client_that_fails_is_its_own_seeds() -> None:
    algorithm = make_algorithm("fedavg")
    expected = {seed: reports(spoilt(simulation(algorithm, seed), slice(0, seed))) for seed in SEEDS}
    found, shared = together({seed: spoilt(simulation(algorithm, seed), slice(0, seed)) for seed in SEEDS})
    for seed in SEEDS:
        assert_equal(expected[seed], found[seed])
    assert any(report.failures for report in found[1])
    assert not any(report.failures for report in found[0])
    assert shared.served["together"] > shared.served["alone"]


def outcomes(joint: Mapping[int, Simulation]) -> dict[int, Any]:
    """What each of some simulations that share a stack reports, or the error that ended it."""
    found: dict[int, Any] = {}

    def of(seed: int) -> Any:
        def run(member: Member) -> bool:
            member.join(joint[seed])
            try:
                found[seed] = reports(joint[seed])
            except CoterieError as error:
                found[seed] = error
            return True

        return run

    Shared([of(seed) for seed in joint]).hold()
    return found


def test_a_seed_that_diverges_leaves_the_others_alone() -> None:
    algorithm = make_algorithm("fedavg")
    expected = reports(simulation(algorithm, 0))
    joint = {seed: spoilt(simulation(algorithm, seed), slice(0, 4 * seed)) for seed in SEEDS}
    found = outcomes(joint)
    assert_equal(expected, found[0])
    assert isinstance(found[1], Diverged)


@dataclass(frozen=True)
class Picky(Algorithm):
    """Cannot work with seed 1 from round 2 on, which shows after it has changed its state."""

    name = "picky"

    def round(self, server: Server, cohort: Tensor) -> None:
        allowed = torch.full((len(cohort), 2), 2.0 if server.seed == 1 else 9.0)
        server.ask(self.local_update, cohort, allowed=allowed)

    def local_update(self, site: Site, allowed: Tensor) -> dict[str, Any]:
        site.theta = site.fit(site.theta).models
        if bool((allowed <= site.round).any()):
            raise CoterieError("not with these")
        return {}


def test_an_error_is_raised_where_it_belongs_and_nothing_is_trained_twice() -> None:
    expected = reports(simulation(Picky(), 0))
    joint = {seed: simulation(Picky(), seed) for seed in SEEDS}
    found = outcomes(joint)
    assert_equal(expected, found[0])
    assert str(found[1]) == "picky, round 2: not with these"


# --- data ----------------------------------------------------------------------------------------------------------
def test_equal_inputs_are_stored_once() -> None:
    inputs, targets = torch.randint(0, 255, (20, 3), dtype=torch.uint8), torch.arange(20)
    index = [torch.randperm(20) for _ in range(3)]
    parts = [
        ClientData(inputs, targets, torch.tensor([0, 4, 10]), index[0], 1 / 255),
        ClientData(inputs.clone(), targets.clone(), torch.tensor([0, 7, 12]), index[1], 1 / 255),
        ClientData(inputs + 1, targets, torch.tensor([2, 7, 12]), None, 1 / 255),
    ]
    joint = JointData(parts)
    assert joint.data.inputs.shape == (40, 3)
    assert JointData(parts[:2]).data.inputs is inputs
    chosen = joint.select([(2, torch.tensor([1])), (0, torch.tensor([0, 1])), (1, torch.tensor([0]))])
    for row, (part, client) in enumerate([(2, 1), (0, 0), (0, 1), (1, 0)]):
        for own, theirs in zip(chosen.client(row), parts[part].client(client), strict=True):
            assert torch.equal(own, theirs)


def test_inputs_that_are_normalised_in_other_ways_are_joined_as_they_are_used() -> None:
    inputs, targets = torch.randn(6, 2), torch.arange(6)
    normals = [None, Normal(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])), Normal(torch.ones(1), torch.ones(1))]
    parts = [ClientData(inputs, targets, torch.tensor([0, 2, 6]), normal=normal) for normal in normals]
    joint = JointData(parts)
    for place, part in enumerate(parts):
        own = joint.select([(place, torch.tensor([0, 1]))])
        assert torch.equal(own.client(1)[0], part.client(1)[0])
