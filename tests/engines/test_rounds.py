"""Who takes part in a round, whose part of it counts, and what happens when something fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, Server, Site
from coterie.engines import Diverged, Participation, Simulation
from coterie.errors import CoterieError
from toys import (
    BATCHES,
    FULL_BATCH,
    KINDS,
    LOCATION,
    Recording,
    classified,
    located,
    personal,
    run,
    same,
    saved,
    simulation,
    state,
    with_train_inputs,
)

FEDERATION = classified((7, 4, 9, 5, 6))
NAMES = FEDERATION.names
ALGORITHMS = pytest.mark.parametrize("name", KINDS)


def cohorts(participation: Participation, K: int, seed: int = 0, rounds: int = 60) -> list[list[int]]:
    return [participation.cohort(seed, r, K).tolist() for r in range(1, rounds + 1)]


# --- cohorts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "K", "m"), [(1.0, 7, 7), (0.5, 7, 3), (0.29, 100, 29), (0.01, 7, 1), (0.25, 25, 6)]
)
def test_uniform_takes_the_floor_but_at_least_one(fraction: float, K: int, m: int) -> None:
    for cohort in cohorts(Participation("uniform", fraction), K):
        assert len(cohort) == m
        assert cohort == sorted(set(cohort))
        assert set(cohort) <= set(range(K))


def test_uniform_with_a_number_of_clients() -> None:
    assert {len(c) for c in cohorts(Participation("uniform", clients=3), 10)} == {3}
    assert {len(c) for c in cohorts(Participation("uniform", clients=30), 10)} == {10}


def test_uniform_treats_clients_alike() -> None:
    counts = torch.zeros(10)
    for cohort in cohorts(Participation("uniform", 0.3), 10, rounds=2000):
        counts[cohort] += 1
    assert (counts - 600).abs().max() < 90  # four standard deviations


def test_bernoulli_draws_each_client_alone() -> None:
    drawn = cohorts(Participation("bernoulli", 0.3), 10, rounds=2000)
    sizes = torch.tensor([len(cohort) for cohort in drawn], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 3.0) < 0.15
    assert abs(float(sizes.var()) - 2.1) < 0.35
    assert 0 in sizes


def test_cohorts_depend_on_seed_and_round_only() -> None:
    half = Participation("uniform", 0.5)
    assert cohorts(half, 10) == cohorts(half, 10)
    assert cohorts(half, 10) != cohorts(half, 10, seed=1)
    assert len({tuple(c) for c in cohorts(half, 10)}) > 20
    named = {}
    for name in ("local", "fedora"):
        reports = run(simulation(FEDERATION, name, participation=half))
        named[name] = [report.cohort for report in reports]
    assert named["local"] == named["fedora"]
    assert [[NAMES.index(n) for n in names] for names in named["local"]] == cohorts(half, 5, rounds=3)


# --- participation -----------------------------------------------------------------------------------------------


@ALGORITHMS
@pytest.mark.parametrize(
    "participation", [Participation(), Participation("uniform", 0.5), Participation("uniform", clients=1), Participation("bernoulli", 0.2)]
)  # fmt: skip
def test_any_participation_runs(name: str, participation: Participation) -> None:
    sim = simulation(FEDERATION, name, rounds=6, participation=participation)
    for report in run(sim):
        assert report.answered == report.cohort
        assert report.failures == ()
    assert report.evaluations["test"]["loss"].shape == (5,)


@ALGORITHMS
def test_a_round_without_answers_changes_nothing(name: str) -> None:
    sim = simulation(FEDERATION, name, rounds=3, absent={1: NAMES, 3: NAMES}, training=FULL_BATCH)
    before, first = personal(sim), sim.advance()
    assert first.cohort == NAMES
    assert first.answered == ()
    torch.testing.assert_close(personal(sim), before, rtol=0, atol=1e-12)  # fine-tuning reads its batch in any order
    sim.advance()
    before, kept = personal(sim), saved(sim)
    sim.advance()
    after = saved(sim)
    torch.testing.assert_close(personal(sim), before, rtol=0, atol=1e-12)
    changing = {"round", "ledger"}
    assert same(
        {k: v for k, v in kept.items() if k not in changing}, {k: v for k, v in after.items() if k not in changing}
    )


@ALGORITHMS
def test_an_absent_client_keeps_its_state_and_stays_out_of_the_books(name: str) -> None:
    sim = simulation(FEDERATION, name, rounds=2, absent={2: ("client-1", "client-3")})
    sim.advance()
    before, books = state(sim).flat(), sim.ledger.state_dict()
    report = sim.advance()
    assert report.answered == ("client-0", "client-2", "client-4")
    assert report.failures == ()
    assert torch.equal(state(sim).flat()[[1, 3]], before[[1, 3]])
    for key, column in sim.ledger.state_dict().items():
        # others may still fetch the model that an absent client left behind
        if key.startswith("train") and "/peer/" not in key:
            grown = column - books.get(key, torch.zeros_like(column))
            assert grown[[1, 3]].tolist() == [0, 0]
            assert (grown[[0, 2, 4]] > 0).all()


@ALGORITHMS
def test_a_late_client_joins(name: str) -> None:
    late = ("client-2",)
    sim = simulation(FEDERATION, name, rounds=4, absent={1: late, 2: late})
    assert [len(report.answered) for report in run(sim)] == [4, 4, 5, 5]
    assert bool(sim.bank.started.all())
    assert bool(sim.welcomed.all())


# --- failures ----------------------------------------------------------------------------------------------------


def broken(clients: list[int]) -> Any:
    return with_train_inputs(FEDERATION, lambda x: x * torch.inf, clients)


# not L2GD: the first of a round's coins may ask for models before anybody trains, and so before anybody fails
FAIL_FIRST = pytest.mark.parametrize("name", [name for name in KINDS if name != "l2gd"])


@FAIL_FIRST
def test_a_failing_client_is_dropped_as_if_it_were_absent(name: str) -> None:
    rounds = 3
    sick = simulation(broken([1]), name, rounds=rounds)
    reports = run(sick)
    away = simulation(FEDERATION, name, rounds=rounds, absent=dict.fromkeys(range(1, rounds + 1), ("client-1",)))
    run(away)
    others = [0, 2, 3, 4]
    torch.testing.assert_close(personal(sick)[others], personal(away)[others], rtol=0, atol=1e-12)
    assert torch.equal(state(sick).flat()[1], state(away).flat()[1])
    for number, report in enumerate(reports, start=1):
        assert report.answered == ("client-0", "client-2", "client-3", "client-4")
        (failure,) = report.failures
        assert (failure.client, failure.round, failure.algorithm) == ("client-1", number, name)
        assert "NaN" in failure.reason
        assert str(failure).startswith(f"{name}, round {number}, client client-1: ")


@FAIL_FIRST
def test_when_every_client_fails_the_run_has_diverged(name: str) -> None:
    sim = simulation(FEDERATION, name, rounds=3)
    sim.advance()
    before = saved(sim)
    sim.sites.federation = broken([0, 1, 2, 3, 4])
    with pytest.raises(Diverged, match=rf"{name}, round 2, client client-0.*lower training\.lr"):
        sim.advance()
    assert same(saved(sim)["bank"], before["bank"])
    assert same(saved(sim)["server"], before["server"])
    assert same(personal(sim), personal(sim))  # and models can still be read


class Stopping(Algorithm):
    """Cannot go on after its clients have trained in round 2."""

    name = "stopping"

    def round(self, server: Server, cohort: Tensor) -> None:
        server.ask(self.local_update, cohort)
        if server.round == 2:
            raise CoterieError("the rate is too large")

    def local_update(self, site: Site) -> dict[str, Any]:
        site.theta, _ = site.fit(site.theta)
        return {}


@pytest.mark.parametrize("chunk", [2, 5])
def test_of_a_round_that_ends_in_an_error_nothing_is_kept(chunk: int) -> None:
    """Not even what clients have staged before: models that are reported then are those of the round before."""
    sim = simulation(FEDERATION, Stopping(), chunk=chunk)
    sim.advance()
    before, kept = saved(sim), personal(sim)
    with pytest.raises(CoterieError, match="too large"):
        sim.advance()
    assert torch.equal(personal(sim), kept)
    assert same(saved(sim)["bank"], before["bank"])


def test_absent_and_failing_together_are_a_divergence_too() -> None:
    sim = simulation(broken([0, 1]), "fedavg", absent={1: ("client-2", "client-3", "client-4")})
    with pytest.raises(Diverged):
        sim.advance()


def test_a_failing_newcomer_does_not_stop_the_others() -> None:
    """All newcomers of round 2 fail while they are welcomed; the round goes on with the others."""
    late = {1: ("client-1",)}
    sim = simulation(broken([1]), "fedora", rounds=2, absent=late)
    sim.advance()
    report = sim.advance()
    assert [failure.client for failure in report.failures] == ["client-1"]
    assert len(report.answered) == 4
    assert sim.welcomed.tolist() == [True, False, True, True, True]


def test_a_huge_step_of_one_client_drops_it() -> None:
    """Values that overflow are found whether they come back or only stay in the client's state."""

    class Secretive(Algorithm):
        name = "secretive"

        def local_update(self, site: Site) -> dict[str, Any]:
            site.theta = site.theta + torch.where(site.clients == 2, torch.inf, 1.0)
            return {"ok": site.clients}

    sim = simulation(FEDERATION, Secretive(), rounds=1)
    (report,) = run(sim)
    assert [failure.client for failure in report.failures] == ["client-2"]
    change = state(sim).flat() - sim.server.initial_model().flat()
    torch.testing.assert_close(change[:, 0], torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64))


# --- several asks in one round -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twice(Algorithm):
    """Two asks a round; each adds to the client's state."""

    name = "twice"
    sick_in: int = 0  # the ask in which client 1 fails
    second_for: tuple[int, ...] = (0, 1, 2)

    def setup(self, server: Server) -> None:
        server.seen = []

    def start(self, site: Site) -> None:
        site.count = torch.zeros(site.k, dtype=torch.int64)
        site.memory = {"x": site.theta}

    def round(self, server: Server, cohort: Tensor) -> None:
        first = server.ask(self.first, cohort)
        kept = first.theta.flat().clone()
        second = server.ask(self.second, cohort[torch.isin(cohort, torch.tensor(self.second_for))])
        assert torch.equal(first.theta.flat(), kept)  # the second ask leaves the first one's answers alone
        server.seen = [*server.seen, [first.clients.tolist(), second.clients.tolist()]]
        server.last = second.theta

    def first(self, site: Site) -> dict[str, Any]:
        before = site.theta
        site.theta = before + self._value(site, 1)
        site.theta = site.theta + 0.0
        site.count = site.count + 1
        assert torch.equal((site.theta - before).flat()[:, 0].nan_to_num(0), self._value(site, 1).nan_to_num(0))
        return {"theta": site.theta}

    def second(self, site: Site) -> dict[str, Any]:
        before, count = site.theta, site.count
        site.theta = before + self._value(site, 2)
        site.count += 1
        site.memory = {"x": before, "more": [site.count]}
        assert torch.equal(site.count, count + 1)
        assert torch.equal((site.theta - before).flat()[:, 0].nan_to_num(0), self._value(site, 2).nan_to_num(0))
        return {"theta": site.theta}

    def _value(self, site: Site, ask: int) -> Tensor:
        return torch.where(
            (site.clients == 1) & (self.sick_in == ask) & (site.round == 2), torch.nan, 10.0**ask
        ).double()


def twice(chunk: int = 3, rounds: int = 2, **options: Any) -> Simulation:
    absent = options.pop("absent", {})
    return simulation(
        located([[0.0], [0.0], [0.0]]), Twice(**options), LOCATION, rounds=rounds, chunk=chunk, absent=absent
    )


CHUNKS = pytest.mark.parametrize("chunk", [1, 2, 3])


@CHUNKS
def test_two_asks_add_up(chunk: int) -> None:
    sim = twice(chunk)
    run(sim)
    assert state(sim).flat().flatten().tolist() == [220.0, 220.0, 220.0]
    assert state(sim, "count").tolist() == [4, 4, 4]
    assert state(sim, "memory")["x"].flat().flatten().tolist() == [120.0, 120.0, 120.0]
    assert state(sim, "memory")["more"][0].tolist() == [4, 4, 4]
    assert sim.server.last.flat().flatten().tolist() == [220.0, 220.0, 220.0]


@CHUNKS
@pytest.mark.parametrize("ask", [1, 2])
def test_a_client_that_fails_in_either_ask_is_rolled_back(chunk: int, ask: int) -> None:
    sim = twice(chunk, sick_in=ask)
    reports = run(sim)
    assert reports[1].answered == ("client-0", "client-2")
    assert [f.client for f in reports[1].failures] == ["client-1"]
    assert state(sim).flat().flatten().tolist() == [220.0, 110.0, 220.0]
    assert state(sim, "count").tolist() == [4, 2, 4]
    assert sim.server.seen == [[[0, 1, 2], [0, 1, 2]], [[0, 2] if ask == 1 else [0, 1, 2], [0, 2]]]


@CHUNKS
def test_a_client_that_fails_at_first_contact_starts_again_later(chunk: int) -> None:
    sim = twice(chunk, rounds=3, sick_in=2, absent={1: ("client-1",)})
    sim.advance()
    sim.advance()  # client-1 is started, answers once, fails in the second ask
    assert sim.bank.started.tolist() == [True, False, True]
    sim.advance()
    assert state(sim, "count").tolist() == [6, 2, 6]
    assert state(sim).flat().flatten().tolist() == [330.0, 110.0, 330.0]


@CHUNKS
def test_a_second_ask_for_some_keeps_what_the_others_did(chunk: int) -> None:
    sim = twice(chunk, second_for=(2, 0), sick_in=1)
    run(sim)
    assert state(sim).flat().flatten().tolist() == [220.0, 10.0, 220.0]
    assert state(sim, "count").tolist() == [4, 1, 4]


@CHUNKS
def test_a_second_ask_that_nobody_answers_undoes_the_first(chunk: int) -> None:
    sim = twice(chunk, second_for=(1,), absent={2: ("client-1",)})
    sim.advance()
    report = sim.advance()
    assert report.answered == ()
    assert state(sim).flat().flatten().tolist() == [10.0, 110.0, 10.0]
    assert state(sim, "count").tolist() == [1, 2, 1]


class Groups(Algorithm):
    """Asks two groups one after the other; a client of the first group fails."""

    name = "groups"

    def round(self, server: Server, cohort: Tensor) -> None:
        server.ask(self.move, cohort[:2])
        server.ask(self.move, cohort[2:])

    def move(self, site: Site) -> dict[str, Any]:
        site.theta = site.theta + torch.where(site.clients == 1, torch.nan, 1.0).double()
        return {}


@CHUNKS
def test_groups_are_committed_together(chunk: int) -> None:
    sim = simulation(located([[0.0]] * 4), Groups(), LOCATION, rounds=1, chunk=chunk)
    (report,) = run(sim)
    assert report.answered == ("client-0", "client-2", "client-3")
    assert state(sim).flat().flatten().tolist() == [1.0, 0.0, 1.0, 1.0]


class Welcoming(Algorithm):
    """What the clients learn while they are welcomed stays, even if training then fails."""

    name = "welcoming"

    def start(self, site: Site) -> None:
        site.greeted = 0

    def welcome(self, server: Server, clients: Tensor) -> None:
        server.ask(self.greet, clients)

    def greet(self, site: Site) -> dict[str, Any]:
        site.greeted = site.greeted + 1
        return {}

    def local_update(self, site: Site) -> dict[str, Any]:
        return {"x": torch.where((site.clients == 1) & (site.round == 1), torch.nan, site.greeted.double())}


@CHUNKS
def test_a_welcome_happens_once(chunk: int) -> None:
    sim = simulation(located([[0.0]] * 3), Welcoming(), LOCATION, rounds=3, chunk=chunk, absent={1: ("client-2",)})
    run(sim)
    assert state(sim, "greeted").tolist() == [1, 1, 1]


# --- small clients, schedules ------------------------------------------------------------------------------------


def test_every_example_counts_once_an_epoch_whatever_the_batch_size() -> None:
    """n = 1, B - 1, B and B + 1 examples: with a gradient that is constant, steps can be counted in the result."""
    sizes = [1, 2, 3, 4]
    sim = simulation(located([[8.0]] * 4, sizes), "local", LOCATION, rounds=1, training=BATCHES)
    run(sim)
    steps = torch.tensor([2, 2, 2, 4])  # two epochs of ceil(n / 3) batches
    expected = 8.0 * (1 - 0.8 ** steps.double())  # one step: theta <- theta - 0.1 * 2 (theta - 8)
    torch.testing.assert_close(personal(sim).flatten(), expected)


def test_the_schedule_reaches_the_clients() -> None:
    from dataclasses import replace

    from coterie.engines import Schedule

    halved = replace(FULL_BATCH, schedule=Schedule("exponential", factor=0.5))
    sim = simulation(located([[1.0]]), "local", LOCATION, rounds=2, training=halved)
    run(sim)
    assert personal(sim).item() == pytest.approx(1 - (1 - 0.2) * (1 - 0.1))


def test_batches_change_from_round_to_round_but_not_from_method_to_method() -> None:
    def first_batches(name: str) -> list[Tensor]:
        sim = simulation(FEDERATION, name, engine=Recording, rounds=2)
        run(sim)
        calls = [call for call in sim.calls if call.method == "local_update"]
        return [next(call.site.steps()).inputs for call in calls]

    local, again = first_batches("local"), first_batches("fedora")
    assert not torch.equal(local[0], local[1])
    assert all(torch.equal(a, b) for a, b in zip(local, again, strict=True))
