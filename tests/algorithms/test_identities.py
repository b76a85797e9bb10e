"""Identities that every method keeps, whatever it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from method_cases import CASES, Case, covered, every_case, registered

from coterie.contract import Site
from coterie.federation.data import ClientData
from coterie.models import Models
from coterie.training import TrainingSettings
from toys import (
    BATCHES,
    BLIND,
    FULL_BATCH,
    HALF,
    LINEAR,
    MLP,
    Recording,
    alike,
    classified,
    models_like,
    personal,
    plain,
    reordered,
    run,
    simulation,
    state,
)  # fmt: skip

RAGGED = classified((7, 4, 9, 5, 1, 3, 2, 6))
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9, weight_decay=1e-3)


def test_every_registered_method_has_a_case() -> None:
    assert covered() == registered()


@every_case
def test_every_option_has_a_case(case: Case) -> None:
    assert {*case.changes, *case.for_newcomers} == set(case.make().options())


# --- limits ------------------------------------------------------------------------------------------------------

LIMITS = [(case, *limit) for case in CASES for limit in case.limits]


@pytest.mark.parametrize(("case", "options", "other", "others"), LIMITS, ids=[f"{c.id}-{o}" for c, o, *_ in LIMITS])
@pytest.mark.parametrize("participation", [None, HALF])
def test_at_strength_zero_it_is_another_method(
    case: Case, options: Mapping[str, Any], other: str, others: Mapping[str, Any], participation: Any
) -> None:
    settings: dict[str, Any] = {"training": MOMENTUM, "rounds": 3}
    if participation is not None:
        settings["participation"] = participation
    ours = simulation(RAGGED, case.make(**options), **settings)
    theirs = simulation(RAGGED, other, options=others, **settings)
    run(ours)
    run(theirs)
    torch.testing.assert_close(personal(ours), personal(theirs), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ditto", {"lambda": 0.0}), ("ditto", {"lambda": 0.5}), ("pgfed", {"mu": 0.0}), ("pgfedmo", {"mu": 0.0})],
)
def test_the_global_path_is_fedavg(name: str, options: Mapping[str, Any]) -> None:
    ours = simulation(RAGGED, name, options=options, training=MOMENTUM, participation=HALF)
    theirs = simulation(RAGGED, "fedavg", training=MOMENTUM, participation=HALF)
    run(ours)
    run(theirs)
    torch.testing.assert_close(ours.server.w.flat(), theirs.server.w.flat(), rtol=0, atol=1e-12)


@every_case
def test_one_client_alone_is_plain_sgd(case: Case) -> None:
    if case.alone is None:
        pytest.fail(f"{case.id} does not say when one client equals LOCAL")
    federation = classified((9,))
    training = case.alone_training or MOMENTUM
    ours = simulation(federation, case.make(**case.alone), training=training)
    alone = simulation(federation, "local", training=training)
    run(ours)
    run(alone)
    torch.testing.assert_close(personal(ours), personal(alone), rtol=0, atol=1e-12)


@every_case
def test_one_client_alone_runs_with_its_defaults(case: Case) -> None:
    sim = simulation(classified((9,)), case.make(), training=MOMENTUM, keep_best="best_val")
    run(sim)
    assert sim.report_models().finite().all()


ANCHORED = [case for case in CASES if case.anchored is not None]


@pytest.mark.parametrize("case", ANCHORED, ids=[case.id for case in ANCHORED])
@pytest.mark.parametrize("lr", [0.5, 0.1])
def test_strength_times_learning_rate_of_one_lands_on_the_anchor(case: Case, lr: float) -> None:
    """With no gradient of the loss and no momentum, one step from anywhere."""
    assert case.anchored is not None
    options, anchor = case.anchored
    training = replace(FULL_BATCH, lr=lr)
    sim = simulation(RAGGED, case.make(**options(lr)), BLIND, engine=Recording, rounds=2, training=training)
    draw = torch.Generator().manual_seed(0)
    for name, value in list(sim._store.values.items()):
        if isinstance(value, Models):  # distinct models on both sides
            setattr(sim.server, name, models_like(sim, torch.randn(len(value), 3, generator=draw)))
    everyone = torch.arange(8)
    sim.bank.set("theta", everyone, models_like(sim, torch.randn(8, 3, generator=draw)), everyone, call=0)
    sim.bank.commit(torch.ones(8, dtype=torch.bool))
    sim.advance()
    call = sim.calls[-1]
    assert not torch.allclose(call.received[anchor].flat(), torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(state(sim).flat(), call.received[anchor].flat(), rtol=0, atol=1e-12)


# --- symmetry ----------------------------------------------------------------------------------------------------


@every_case
def test_identical_clients_have_identical_models(case: Case) -> None:
    """On full batches, whose order only rounds differently."""
    training = TrainingSettings(epochs=2, batch_size=1000, lr=0.1, momentum=0.5)
    sim = simulation(alike(5), case.make(**case.symmetric), rounds=4, training=training)
    run(sim)
    models = personal(sim)
    torch.testing.assert_close(models, models[:1].expand_as(models), rtol=0, atol=1e-10)


@every_case
@pytest.mark.parametrize("order", [[7, 6, 5, 4, 3, 2, 1, 0], [3, 0, 7, 1, 6, 2, 5, 4]])
def test_relabelling_the_clients_permutes_the_results(case: Case, order: list[int]) -> None:
    settings: dict[str, Any] = {
        "training": MOMENTUM,
        "rounds": 4,
        "absent": {1: ("client-2",), 2: ("client-5", "client-0")},
    }
    here = simulation(RAGGED, case.make(), **settings)
    there = simulation(reordered(RAGGED, order), case.make(), **settings)
    run(here)
    run(there)
    torch.testing.assert_close(personal(there), personal(here)[order], rtol=0, atol=1e-10)


# --- rows are independent ----------------------------------------------------------------------------------------


class _Shadow:
    """The state of some clients, apart from the run's."""

    def __init__(self, sim: Any, clients: torch.Tensor, call: int) -> None:
        self.sim, self.clients, self.call, self.values = sim, clients, call, {}  # type: ignore[var-annotated]

    def get(self, name: str) -> Any:
        return self.values[name] if name in self.values else self.sim.bank.get(name, self.clients, self.call)

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value


def poisoned(data: ClientData, kept: int) -> ClientData:
    inputs = torch.full_like(data.inputs, torch.nan)
    rows = data.rows(torch.arange(int(data.offsets[kept]), int(data.offsets[kept + 1])))
    inputs[rows] = data.inputs[rows]
    return replace(data, inputs=inputs)


def tensors_of(value: Any, row: int) -> list[torch.Tensor]:
    if isinstance(value, Models):
        return [tensor[row] for tensor in value.tensors.values()]
    if isinstance(value, torch.Tensor):
        return [value[row]] if value.ndim else [value]
    if isinstance(value, dict):
        return [t for entry in value.values() for t in tensors_of(entry, row)]
    if isinstance(value, list | tuple):
        return [t for entry in value for t in tensors_of(entry, row)]
    return []


class RowCheck(Recording):
    """Repeats every call for each client alone, and among others whose data are NaN."""

    tolerance = 1e-10

    def _call(self, method: Any, site: Site, payload: Mapping[str, Any]) -> dict[str, Any]:
        inputs = {name: value.clone() for name, value in payload.items()}
        repeats = []
        for row in range(site.k):
            alone = self._again(method, site, inputs, [row], None)
            among = self._again(method, site, inputs, list(range(site.k)), row)
            repeats.append((alone, among))
        returned = super()._call(method, site, payload)
        for row, ((alone, own), (among, others)) in enumerate(repeats):
            for name, answer in returned.items():
                value = plain(answer)
                self._compare(tensors_of(plain(alone[name]), 0), tensors_of(value, row))
                self._compare(tensors_of(plain(among[name]), row), tensors_of(value, row))
            for name in own.values:
                kept = getattr(site, name)
                self._compare(tensors_of(own.values[name], 0), tensors_of(kept, row))
                self._compare(tensors_of(others.values[name], row), tensors_of(kept, row))
        return returned

    def _again(
        self, method: Any, site: Site, payload: Mapping[str, Any], rows: list[int], kept: int | None
    ) -> tuple[dict[str, Any], _Shadow]:
        clients = site.clients[rows]
        store = _Shadow(self, clients, self.bank.new_call())
        train, validation = site.train.select(rows), site.validation.select(rows)
        if kept is not None:
            train, validation = poisoned(train, kept), poisoned(validation, kept)
        shadow = Site(
            clients=clients, names=[site.names[r] for r in rows], round=site.round, train=train, validation=validation,
            context=site.context, store=store,
        )  # fmt: skip
        return dict(method(shadow, **{name: value[rows] for name, value in payload.items()}) or {}), store

    def _compare(self, ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=self.tolerance)


class RowCheckSingle(RowCheck):
    tolerance = 1e-5


@every_case
@pytest.mark.parametrize(("dtype", "engine"), [("float64", RowCheck), ("float32", RowCheckSingle)])
def test_rows_are_independent(case: Case, dtype: str, engine: type[RowCheck]) -> None:
    federation = classified((7, 4, 1, 5))
    sim = simulation(federation, case.make(), engine=engine, dtype=dtype, training=MOMENTUM, rounds=2)
    run(sim)
    assert sim.calls


@every_case
@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_change_nothing(case: Case, chunk: int) -> None:
    whole = simulation(RAGGED, case.make(), MLP, training=MOMENTUM, chunk=8)
    parts = simulation(RAGGED, case.make(), MLP, training=MOMENTUM, chunk=chunk)
    for a, b in zip(run(whole), run(parts), strict=True):
        assert a.ledger == b.ledger
        for split, metrics in a.evaluations.items():
            for metric, values in metrics.items():
                torch.testing.assert_close(
                    torch.tensor(b.evaluations[split][metric]), torch.tensor(values), rtol=0, atol=1e-10
                )
    torch.testing.assert_close(personal(parts), personal(whole), rtol=0, atol=1e-10)
    torch.testing.assert_close(state(parts).flat(), state(whole).flat(), rtol=0, atol=1e-10)


@every_case
@pytest.mark.parametrize(("executor", "threads"), [("vmap", 2), ("loop", 2), ("stacked", 2)])
def test_executors_and_threads_change_nothing(case: Case, executor: str, threads: int) -> None:
    settings: dict[str, Any] = {"training": MOMENTUM, "rounds": 2, "evaluate_every": 2}
    whole = simulation(RAGGED, case.make(), MLP, **settings)
    other = simulation(RAGGED, case.make(), MLP, executor=executor, threads=threads, chunk=3, **settings)
    run(whole)
    run(other)
    torch.testing.assert_close(personal(other), personal(whole), rtol=0, atol=1e-8)


# --- randomness --------------------------------------------------------------------------------------------------


@every_case
def test_the_seed_decides_everything(case: Case) -> None:
    runs = [simulation(RAGGED, case.make(), training=MOMENTUM, seed=seed, participation=HALF) for seed in (0, 0, 1)]
    reports = [run(sim) for sim in runs]
    first, again, other = (personal(sim) for sim in runs)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert [a.cohort for a in reports[0]] == [b.cohort for b in reports[1]]
    losses = [reported[-1].evaluations["test"]["loss"].tolist() for reported in reports]
    assert losses[0] == losses[1] != losses[2]


@every_case
def test_the_global_generators_are_left_alone(case: Case) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(simulation(RAGGED, case.make()))
    assert torch.equal(torch.rand(3), expected)


# --- everything moves, everything matters ------------------------------------------------------------------------


@every_case
def test_every_model_moves(case: Case) -> None:
    sim = simulation(RAGGED, case.make(), rounds=1, training=BATCHES)
    before = {name: value.clone() for name, value in sim._store.values.items() if isinstance(value, Models)}
    theta = sim.server.initial_models().clone()
    run(sim)
    for name, value in before.items():
        for part, tensor in sim._store.values[name].parameters():
            assert (tensor != value.tensors[part]).any(), f"server.{name}.{part} did not move"
    moved = [leaf for leaf, column in sim.bank.columns.items() if isinstance(column.rows, Models)]
    for leaf in moved:
        for part, tensor in sim.bank.columns[leaf].rows.parameters():  # type: ignore[union-attr]
            for row in range(8):
                assert (tensor[row] != theta.tensors[part][row]).any(), (
                    f"site.{leaf}.{part} of client {row} did not move"
                )
    assert before or moved


CHANGES = [(case, option) for case in {case.name: case for case in CASES}.values() for option in case.changes]


@pytest.mark.parametrize(("case", "option"), CHANGES, ids=[f"{case.id}-{option}" for case, option in CHANGES])
def test_every_option_matters(case: Case, option: str) -> None:
    make = dict(case.changes[option][0]), dict(case.changes[option][1])
    results = []
    for options in make:
        algorithm = case.make(**options) if "variant" not in options else replace_variant(case, options)
        sim = simulation(classified((7, 4, 9, 5, 6)), algorithm, rounds=4, training=replace(BATCHES, momentum=0.9))
        run(sim)
        results.append(personal(sim))
    one, other = results
    assert one.shape != other.shape or (one - other).abs().max() > 1e-9


def replace_variant(case: Case, options: Mapping[str, Any]) -> Any:
    return Case(case.name, options["variant"]).make()


# --- traffic -----------------------------------------------------------------------------------------------------


@every_case
def test_bytes_are_those_of_the_definition(case: Case) -> None:
    rounds, d = 3, 4 * 3 + 3
    sim = simulation(RAGGED, case.make(), LINEAR, rounds=rounds, dtype="float32")
    reports = run(sim)
    table = sim.ledger.per_client()
    training = table[table.phase == "train"]
    assert set(training.kind) <= {"model", *case.scalars}
    training = training[training.kind == "model"]
    by_round = [case.traffic if case.first is None or number else case.first for number in range(rounds)]
    for direction, models in zip(("down", "up"), zip(*by_round, strict=True), strict=True):
        expected = [sum(models) * d * 4] * 8 if any(models) else []
        assert training[training.direction == direction]["bytes"].tolist() == expected
    peers = training[training.direction == "peer"]["bytes"]
    assert peers.sum() / 2 == 8 * rounds * case.peers * d * 4  # each transfer stands in the sender's and receiver's row
    for number, report in enumerate(reports):
        rows = [row for row in report.ledger if row["phase"] == "train" and row["kind"] == "model"]
        assert sum(row["bytes"] for row in rows) == 8 * (sum(by_round[number]) + case.peers) * d * 4
    described = table[table.phase == "describe"]
    if case.name == "fedora":  # p (d_in + C) floats, once
        assert described[["direction", "kind", "bytes"]].drop_duplicates().values.tolist() == [["up", "summary", 7 * 4]]
        assert len(described) == 8
        assert [any(row["phase"] == "describe" for row in report.ledger) for report in reports] == [True, False, False]
    else:
        assert described.empty


@every_case
def test_only_those_who_take_part_communicate(case: Case) -> None:
    sim = simulation(RAGGED, case.make(), rounds=5, participation=HALF)
    reports = run(sim)
    part = dict.fromkeys(sim.names, 0)
    for report in reports:
        for name in report.cohort:
            part[name] += 1
    table = sim.ledger.per_client()
    up = table[(table.phase == "train") & (table.direction == "up") & (table.kind == "model")]
    d = 4 * 5 + 5 + 5 * 3 + 3
    if case.traffic[1]:
        assert dict(zip(up.client, up.bytes, strict=True)) == {
            name: n * case.traffic[1] * d * 8 for name, n in part.items()
        }
    else:
        assert up.empty
