"""Clients shared out among several processes have the results of the simulation; Ray itself is not needed here."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_ray import FakeRay, RayError
from torch import Tensor

from coterie.contract import Algorithm, Server, Site, broadcast, make_algorithm, pick
from coterie.engines import Diverged, RoundReport, Settings, SitesLost, checkpoint
from coterie.engines import ray as ray_engine
from coterie.engines.parcel import Parcel
from coterie.engines.ray import RayEngine, Share
from coterie.engines.room import SHARE, memory
from coterie.engines.shares import divided, members, one_state, state_for
from coterie.engines.sites import stack_for
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec, Stack
from toys import (
    BATCHES,
    BLIND,
    HALF,
    KINDS,
    LINEAR,
    MLP,
    NORMED,
    classified,
    same,
    saved,
    simulation,
    with_train_inputs,
)

FEDERATION = classified((7, 4, 9, 5, 3, 6, 2))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_engine, "library", lambda: fake)
    monkeypatch.setattr(ray_engine, "_SPARE", [])
    return fake


def shared(
    federation: Federation,
    algorithm: str | Algorithm,
    model: ModelSpec = MLP,
    *,
    actors: int | None = 3,
    address: str | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RayEngine:
    defaults: dict[str, Any] = {
        "rounds": 3, "evaluate_every": 1000, "training": BATCHES, "dtype": "float64", "threads": 1, "keep_best": "last",
    }  # fmt: skip
    made = make_algorithm(algorithm, **dict(options or {})) if isinstance(algorithm, str) else algorithm
    return RayEngine(federation, made, model, Settings(**{**defaults, **settings}), address=address, actors=actors)


def played(engine: Any) -> list[RoundReport]:
    reports = [engine.initial_report()]
    while not engine.finished:
        reports.append(engine.advance())
    return reports


def near(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    """Equal trees of tensors, numbers and texts, tensors to within the tolerance."""
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance, equal_nan=True)
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys()
        for key in a:
            near(a[key], b[key], tolerance)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            near(x, y, tolerance)
    elif isinstance(a, float):
        assert abs(a - b) <= tolerance
    else:
        assert a == b


def state_of_clients(engine: Any) -> dict[str, Any]:
    """Every attribute of every client as if no row were the default's."""
    found = {}
    for leaf, column in engine.site_state()["bank"].items():
        rows = column["rows"]
        if isinstance(column["default"], Models):
            whole = column["default"].repeat(engine.K).clone()
            if rows is not None:
                whole[column["own"].nonzero().flatten()] = rows
            rows = whole
        found[leaf] = rows.tensors if isinstance(rows, Models) else (column["own"], rows)
    return found


def check_equal(ours: Any, theirs: Any, reports: list[RoundReport], expected: list[RoundReport]) -> None:
    """Two engines have told the same story and are in the same state."""
    for mine, other in zip(reports, expected, strict=True):
        assert (mine.round, mine.cohort, mine.answered) == (other.round, other.cohort, other.answered)
        assert mine.failures == other.failures
        assert mine.ledger == other.ledger
        near({s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in mine.evaluations.items()},
             {s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in other.evaluations.items()})  # fmt: skip
        near(mine.notes, other.notes)
    near(ours.report_models().flat(), theirs.report_models().flat())
    weights = [engine.report_predictor().weights for engine in (ours, theirs)]
    if weights[0] is not None:
        near(*weights)
    assert ours.report_round == theirs.report_round
    mine, other = saved(ours), saved(theirs)
    near(mine["server"], other["server"])
    for key in ("round", "started", "welcomed", "ledger", "shapes", "clients", "model", "options"):
        assert same(mine[key], other[key]), key
    near(state_of_clients(ours), state_of_clients(theirs))


def sick(clients: list[int]) -> Federation:
    return with_train_inputs(FEDERATION, lambda x: x * torch.inf, clients)


# --- the same results --------------------------------------------------------------------------------------------

CASES = [*((kind, {}) for kind in KINDS), ("fedora", {"variant": "paper"}), ("federico", {"variant": "central"})]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o.get('variant', '')}" for n, o in CASES])
def test_shared_out_clients_have_the_results_of_the_simulation(
    name: str, options: dict[str, Any], ray: FakeRay
) -> None:
    """Half the clients a round, one away, one whose training gives NaN, and the best round's models kept."""
    settings: dict[str, Any] = {
        "rounds": 4, "participation": HALF, "absent": {2: ("client-0", "client-3")}, "evaluate_every": 1,
        "keep_best": "best_val", "options": options,
    }  # fmt: skip
    federation = sick([5])
    ours, theirs = shared(federation, name, **settings), simulation(federation, name, **settings)
    check_equal(ours, theirs, played(ours), played(theirs))


@pytest.mark.parametrize("name", ["local", "ditto", "fedem", "fedrod"])
def test_optimisers_go_on_in_the_actors(name: str, ray: FakeRay) -> None:
    settings: dict[str, Any] = {
        "rounds": 4, "participation": HALF, "absent": {2: ("client-0", "client-3")},
        "training": replace(BATCHES, optimizer="adam", lr=0.01, optimizer_state="persistent"),
    }  # fmt: skip
    federation = sick([5])
    ours, theirs = shared(federation, name, **settings), simulation(federation, name, **settings)
    check_equal(ours, theirs, played(ours), played(theirs))


@pytest.mark.parametrize("actors", [1, 7])
@pytest.mark.parametrize("name", ["fedavg", "fedora", "pgfed", "scaffold"])
def test_one_actor_for_all_or_one_for_each(name: str, actors: int, ray: FakeRay) -> None:
    settings: dict[str, Any] = {"evaluate_every": 1, "keep_best": "best_val"}
    ours, theirs = shared(FEDERATION, name, actors=actors, **settings), simulation(FEDERATION, name, **settings)
    assert ours.resolved["actors"] == actors == len(ray.started)
    check_equal(ours, theirs, played(ours), played(theirs))


@pytest.mark.parametrize("policy", ["average", "local", "server"])
def test_batch_statistics_live_where_the_policy_says(policy: str, ray: FakeRay) -> None:
    federation = classified((7, 4, 9, 5))
    settings: dict[str, Any] = {"buffers": policy, "evaluate_every": 1, "participation": HALF}
    ours, theirs = (
        shared(federation, "fedavg", NORMED, **settings),
        simulation(federation, "fedavg", NORMED, **settings),
    )
    check_equal(ours, theirs, played(ours), played(theirs))
    near(ours.report_models().tensors, theirs.report_models().tensors)


def test_clients_without_validation_data_have_no_result_there(ray: FakeRay) -> None:
    """The first actor has no client with validation data."""
    few = FEDERATION.validation.offsets.clone()
    few[:4] = 0
    federation = replace(FEDERATION, validation=replace(FEDERATION.validation, offsets=few))
    ours, theirs = shared(federation, "fedora", evaluate_every=1), simulation(federation, "fedora", evaluate_every=1)
    assert members(federation, ours._actors[0].clients).validation.total == 0
    check_equal(ours, theirs, played(ours), played(theirs))


class Turned(Algorithm):
    """Asks from the last client to the first; sends rows, a number for each, and rows picked from others."""

    name = ""

    def setup(self, server: Server) -> None:
        server.seen, server.bank = [], server.initial_models(distinct=True)

    def local(self, site: Site, own: Models, number: Tensor, picked: Models, table: Tensor) -> dict[str, Any]:
        site.words = [f"{name} {round(float(n))}" for name, n in zip(site.names, number, strict=True)]
        site.nested = {"count": number.clone(), "parts": [own]}
        return {
            "theta": own + picked.candidate(0) * 10.0 + picked.candidate(1) * 100.0,
            "number": number,
            "table": table,
        }

    def round(self, server: Server, cohort: Tensor) -> None:
        turned = cohort.flip(0)
        up = server.ask(
            self.local, turned, own=server.bank[turned], number=turned.double(),
            picked=pick(server.bank, torch.stack([turned, (turned + 3) % server.K], 1), peers=True),
            table=broadcast(torch.arange(3.0)),
        )  # fmt: skip
        assert up.clients.tolist() == [int(c) for c in turned if int(c) in up.clients.tolist()]
        assert torch.equal(up.number, up.clients.double())
        assert torch.equal(up.table, torch.arange(3.0).expand(len(up), 3))
        server.bank[up.clients] = up.theta


def test_answers_come_in_the_order_in_which_clients_were_asked(ray: FakeRay) -> None:
    settings: dict[str, Any] = {"absent": {2: ("client-4",)}, "participation": HALF}
    ours, theirs = (
        shared(FEDERATION, Turned(), LINEAR, **settings),
        simulation(FEDERATION, Turned(), LINEAR, **settings),
    )
    check_equal(ours, theirs, played(ours), played(theirs))
    words = ours.site_state()["bank"]["words"]
    assert words["rows"] == [f"client-{i} {i}" for i in words["own"].nonzero().flatten().tolist()]


# --- checkpoints -------------------------------------------------------------------------------------------------

RESUMED: dict[str, Any] = {"rounds": 4, "evaluate_every": 1, "keep_best": "best_val", "participation": HALF}


@pytest.mark.parametrize("name", ["ditto", "fedavg", "fedora", "pgfed", "scaffold"])
@pytest.mark.parametrize("others", [2, 5])
def test_a_run_goes_on_from_its_checkpoint_whatever_the_number_of_actors(
    name: str, others: int, ray: FakeRay, tmp_path: Path
) -> None:
    """From actors to other actors, and from there to this process."""
    whole = simulation(FEDERATION, name, **RESUMED)
    expected = played(whole)
    first = shared(FEDERATION, name, **RESUMED)
    reports = [first.initial_report(), first.advance(), first.advance()]
    checkpoint.save(tmp_path / "run.pt", first)
    second = shared(FEDERATION, name, actors=others, **RESUMED)
    checkpoint.load(tmp_path / "run.pt", second)
    reports.append(second.advance())
    checkpoint.save(tmp_path / "run.pt", second)
    third = simulation(FEDERATION, name, **RESUMED)
    checkpoint.load(tmp_path / "run.pt", third)
    check_equal(third, whole, [*reports, third.advance()], expected)


def test_states_of_shares_with_other_defaults_are_spelled_out() -> None:
    sim = simulation(FEDERATION, "local", LINEAR)
    theta = sim.stack.initial(0)
    own = torch.tensor([False, True])
    one = {"bank": {"theta": {"default": theta, "rows": (theta * 3.0)[:1], "own": own}}, "shapes": {}, "started": own}
    two = {"bank": {"theta": {"default": theta * 2.0, "rows": None, "own": ~own | own}}, "shapes": {}, "started": own}
    two["bank"]["theta"]["own"] = torch.zeros(2, dtype=torch.bool)  # type: ignore[index]
    none = {"bank": {}, "shapes": {}, "started": own}
    joined = one_state([one, two, none])
    column = joined["bank"]["theta"]
    assert column["default"] is None
    assert column["own"].tolist() == [True] * 4 + [False] * 2
    expected = torch.cat([theta.flat(), theta.flat() * 3, theta.flat() * 2, theta.flat() * 2])
    near(column["rows"].flat(), expected)
    part = state_for(joined, range(1, 3))["bank"]["theta"]
    near(part["rows"].flat(), expected[1:3])
    assert state_for(joined, range(4, 6))["bank"]["theta"]["rows"] is None


def test_a_client_alone_whose_state_is_the_initial_one_goes_on() -> None:
    """Written as its own row, though no different from the default."""
    sim = simulation(classified((5,)), "local", BLIND)
    sim.advance()
    again = simulation(classified((5,)), "local", BLIND)
    again.load_state_dict(sim.state_dict())
    near(again.advance().ledger, sim.advance().ledger)
    near(again.report_models().flat(), sim.report_models().flat())


@pytest.mark.parametrize(("given", "whole"), [(0.3, 300_000_000), (None, SHARE * memory())])
def test_actors_divide_the_memory_for_the_clients_state(ray: FakeRay, given: float | None, whole: float) -> None:
    shared(FEDERATION, "ditto", actors=3, client_memory=given)
    budgets = [handle._actor.sites.bank.room.budget for handle in ray.started]
    assert budgets == [pytest.approx(whole / 3, abs=1)] * 3


@pytest.mark.parametrize("executor", ["auto", "fastest", "loop"])
def test_the_executor_is_one_for_the_device_of_the_actors(
    executor: Any, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On pretended GPUs: where it is measured, the first actor does so for all."""
    measured = iter(["vmap", "loop", "loop"])

    def built(federation: Federation, model: ModelSpec, settings: Settings) -> Stack:
        assert settings.device == "cuda"
        found: Any = {"auto": "vmap", "fastest": next(measured, None)}.get(settings.executor, settings.executor)
        return stack_for(federation, model, replace(settings, device="cpu", executor=found))

    monkeypatch.setattr(ray_engine, "stack_for", built)
    monkeypatch.setattr(ray_engine, "device_of", lambda settings: torch.device("cpu"))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0, "GPU": 8.0})
    engine = shared(FEDERATION, "fedavg", device="cuda", executor=executor)
    expected = "loop" if executor == "loop" else "vmap"
    assert engine.resolved["executor"] == expected
    assert [handle._actor.sites.stack.executor for handle in ray.started] == [expected] * 3


# --- failures ----------------------------------------------------------------------------------------------------


def test_a_lost_actor_stops_the_run_with_what_to_do(ray: FakeRay) -> None:
    engine = shared(FEDERATION, "fedavg")
    engine.advance()
    ray.started[1].kill()
    with pytest.raises(SitesLost, match=r"2 clients \(client-2 to client-3\) is gone in round 2.*coterie resume"):
        engine.advance()
    engine.close()
    assert len(ray_engine._SPARE) == 2


def test_every_client_failing_is_a_divergence(ray: FakeRay) -> None:
    with pytest.raises(Diverged, match="client-0"):
        shared(sick(list(range(7))), "fedavg").advance()


class Faulty(Algorithm):
    """Its code raises what it is told."""

    name = ""

    def local_update(self, site: Site) -> dict[str, Any]:
        if 3 in site.clients:
            raise self.error
        return {}

    def round(self, server: Server, cohort: Tensor) -> None:
        server.ask(self.local_update, cohort)


class Odd(Faulty):
    error = ValueError("the code is wrong")


class Refusing(Faulty):
    error = CoterieError("the rate is too large")


class Leaving(Faulty):
    error = SystemExit(3)


class Wrong(Faulty):
    def round(self, server: Server, cohort: Tensor) -> None:
        server.ask(self.local_update, cohort, w=torch.zeros(2))


def test_an_error_of_the_methods_code_is_raised_here(ray: FakeRay) -> None:
    with pytest.raises(ValueError, match="the code is wrong") as odd:
        shared(FEDERATION, Odd()).advance()
    assert odd.value.__notes__ == ["where it was raised"]
    with pytest.raises(CoterieError, match="round 1: the rate is too large"):
        shared(FEDERATION, Refusing()).advance()
    with pytest.raises(CoterieError, match=r"its code called sys\.exit"):
        shared(FEDERATION, Leaving()).advance()


def test_a_payload_of_another_size_is_refused(ray: FakeRay) -> None:
    with pytest.raises(ValueError, match="one row for each of the 7 asked clients"):
        shared(FEDERATION, Wrong()).advance()


# --- the cluster -------------------------------------------------------------------------------------------------


def test_as_many_actors_as_there_are_cpus_and_clients_for(ray: FakeRay) -> None:
    ray.cpus = 4
    assert shared(FEDERATION, "local", actors=None).resolved["actors"] == 4
    assert shared(FEDERATION, "local", actors=None, threads=2).resolved["actors"] == 2
    assert shared(classified((3, 3)), "local", actors=None).resolved["actors"] == 2
    with pytest.raises(CoterieError, match=r"has 4 CPUs.* 3 actors with 2 threads each; lower ray\.actors"):
        shared(FEDERATION, "local", actors=3, threads=2)


def test_actors_of_a_closed_engine_serve_the_next_one(ray: FakeRay) -> None:
    with shared(FEDERATION, "fedavg") as first:
        first.advance()
    with shared(FEDERATION, "ditto", actors=2) as second:
        assert len(ray.started) == 3
        second.advance()
        assert [handle._actor is None for handle in ray.started] == [False, False, True]
    theirs = simulation(FEDERATION, "fedora")
    with shared(FEDERATION, "fedora", actors=3) as third:
        assert len(ray.started) == 4
        check_equal(third, theirs, played(third), played(theirs))


def test_actors_that_cannot_import_a_method_say_so(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: Share, *arguments: Any) -> None:
        raise RayError("System error:\n  No module named 'mine'\n")

    monkeypatch.setattr(Share, "build", build)
    with pytest.raises(CoterieError, match=r"cannot be set up \(No module named 'mine'\): every node needs") as error:
        shared(FEDERATION, "local")
    assert not isinstance(error.value, SitesLost)


def test_without_ray_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[ray\]'"):
        shared(FEDERATION, "local")


# --- what travels ------------------------------------------------------------------------------------------------


def test_neighbours_are_shared_out_by_their_examples() -> None:
    shares = divided(torch.tensor([10, 10, 10, 10, 40, 1, 1, 38]), 3)
    assert shares == [range(4), range(4, 5), range(5, 8)]
    assert divided(torch.tensor([100, 1, 1, 1]), 4) == [range(i, i + 1) for i in range(4)]
    assert divided(torch.tensor([1, 1, 100]), 2) == [range(2), range(2, 3)]
    assert divided(torch.tensor([5]), 1) == [range(1)]


def test_an_actor_gets_the_data_of_its_clients_only() -> None:
    rows = torch.randperm(len(FEDERATION.train.inputs), generator=torch.Generator().manual_seed(0))
    data = FEDERATION.train
    mixed = replace(
        data, inputs=data.inputs[rows], targets=data.targets[rows], index=rows.argsort(), offsets=data.offsets
    )
    part = members(replace(FEDERATION, train=mixed), range(2, 4))
    assert len(part.train.inputs) == len(part.train.targets) == 9 + 5
    for i in (0, 1):
        for ours, theirs in zip(part.train.client(i), FEDERATION.train.client(2 + i), strict=True):
            assert torch.equal(ours, theirs)


def test_a_parcel_holds_a_common_row_once_and_of_a_view_what_it_shows() -> None:
    sim = simulation(classified((4, 4), features=200), "local", LINEAR)
    whole = sim.stack.initial(0, 1000)
    size = sum(whole.bytes_per_row())
    assert whole.common
    sent = pickle.dumps(Parcel({"all": whole, "rows": sim.stack.initial(0, 50, distinct=True)[3:5]}))
    assert len(sent) < 3 * size + 3000
    back = pickle.loads(sent)
    assert back["all"].common
    assert torch.equal(back["all"].flat(), whole.flat())
    back["rows"].materialise()
    back["rows"].tensors[whole.layout.parameters[0]].zero_()  # its storage is its own, and may be written


def test_a_parcel_keeps_types_and_shapes() -> None:
    values = [
        torch.tensor(3.5), torch.zeros(0, 4), torch.tensor([True, False]), torch.arange(6).view(2, 3).t(),
        torch.ones(1, 1), torch.zeros(3, 0, 2), torch.tensor([1.5, float("nan")], dtype=torch.float64), ["a", None],
    ]  # fmt: skip
    assert same(pickle.loads(pickle.dumps(Parcel(values))), values)


def test_an_address_where_nobody_listens_is_refused_at_once(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(**_: Any) -> None:
        raise AssertionError("Ray itself would try for minutes")

    monkeypatch.setattr(ray, "is_initialized", lambda: False, raising=False)
    monkeypatch.setattr(ray, "init", started, raising=False)
    with pytest.raises(CoterieError, match=r"no Ray cluster at ray.address 127.0.0.1:1 \(ConnectionRefusedError"):
        shared(FEDERATION, "local", address="127.0.0.1:1")
