"""``optimizer_state: persistent``: each client's optimiser goes on where its last training of that kind ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from coterie.algorithms.local import Local
from coterie.contract import Server, Site, make_algorithm
from coterie.engines import Member, Participation, Settings, Shared, Simulation, TrainingSettings
from coterie.errors import CoterieError
from coterie.testing.recording import RowCheck
from coterie.training import Memory
from coterie.training.optimiser import Optimiser
from toys import (
    BATCHES,
    FULL_BATCH,
    HALF,
    KINDS,
    LOCATION,
    MLP,
    classified,
    located,
    models_like,
    personal,
    run,
    same,
    saved,
    simulation,
    state,
)  # fmt: skip

ADAM = replace(FULL_BATCH, optimizer="adam", lr=0.03)
KEPT = {
    "adam": ADAM,
    "momentum": replace(FULL_BATCH, momentum=0.9, weight_decay=0.01),
    "nesterov": replace(FULL_BATCH, momentum=0.5, nesterov=True, clip=0.2),
}
FEDERATION = classified((7, 4, 9, 5))


def persistent(training: TrainingSettings, **changes: Any) -> TrainingSettings:
    return replace(training, optimizer_state="persistent", **changes)


def played(name: str, training: TrainingSettings, federation: Any = FEDERATION, **given: Any) -> Simulation:
    sim = simulation(federation, name, training=training, **given)
    run(sim)
    return sim


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", ["loop", "stacked", "vmap"])
@pytest.mark.parametrize("kept", KEPT)
def test_three_rounds_alone_are_one_long_training(kept: str, executor: str) -> None:
    alike: dict[str, Any] = {"executor": executor, "chunk": 3}
    rounds = played("local", persistent(KEPT[kept], epochs=2), rounds=3, **alike)
    close(personal(rounds), personal(played("local", replace(KEPT[kept], epochs=6), rounds=1, **alike)))
    fresh = personal(played("local", replace(KEPT[kept], epochs=2), rounds=3, **alike))
    assert (personal(rounds) - fresh).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "options"), [("fedavg", {}), ("fedrod", {}), ("pgfed", {"mu": 0.0}), ("fedem", {"components": 1})]
)
def test_so_they_are_for_a_federation_of_one(name: str, options: dict[str, Any]) -> None:
    one = classified((9,))
    rounds = played(name, persistent(ADAM), one, rounds=4, options=options)
    long = played(name, replace(ADAM, epochs=4), one, rounds=1, options=options)
    close(personal(rounds), personal(long))
    fresh = played(name, ADAM, one, rounds=4, options=options)
    assert (personal(fresh) - personal(long)).abs().max() > 1e-3


def test_a_client_that_is_away_goes_on_later() -> None:
    away = {1: (FEDERATION.names[0],), 2: (FEDERATION.names[0], FEDERATION.names[2])}
    sim = played("local", persistent(ADAM), rounds=4, absent=away)
    for client, rounds in enumerate((2, 4, 3, 4)):
        close(personal(sim)[client], personal(played("local", persistent(ADAM), rounds=rounds))[client])


def test_each_training_of_a_round_has_its_own() -> None:
    """With lambda 0 the personal model of Ditto is LOCAL's and the shared one FedAvg's."""
    ditto = played("ditto", persistent(ADAM), options={"lambda": 0.0})
    close(personal(ditto), personal(played("local", persistent(ADAM))))
    close(ditto.server.w.flat(), played("fedavg", persistent(ADAM)).server.w.flat())


def test_copies_of_the_models_of_others_are_trained_anew() -> None:
    sim = played("federico", persistent(ADAM), options={"neighbours": 2})
    kept = {leaf for leaf in sim.bank.columns if leaf.startswith("optimiser")}
    assert kept == {f"optimiser/{what}" for what in ("mean", "square", "steps")}
    close(state(sim, "optimiser")["steps"], torch.tensor([3, 3, 3, 3]))


def test_fine_tuning_at_an_evaluation_leaves_nothing_behind() -> None:
    sims = [played("fedavg-ft", persistent(ADAM), evaluate_every=every) for every in (1, 3)]
    close(personal(sims[0]), personal(sims[1]))
    close(state(sims[0], "optimiser")["steps"], torch.tensor([3, 3, 3, 3]))


@pytest.mark.parametrize("name", sorted({*KINDS} - {"scaffold"}))  # which takes plain SGD only
def test_resumed_runs_are_the_same(name: str) -> None:
    training = persistent(BATCHES, optimizer="adam", lr=0.01)
    given: dict[str, Any] = {"rounds": 4, "training": training, "participation": HALF}
    whole, stopped, resumed = (simulation(FEDERATION, name, **given) for _ in range(3))
    run(whole)
    stopped.advance()
    stopped.advance()
    resumed.load_state_dict(stopped.state_dict())
    run(resumed)
    assert same(saved(resumed), saved(whole))
    assert any(leaf.startswith("optimiser") for leaf in whole.bank.columns)


@pytest.mark.parametrize("name", ["local", "ditto", "fedem", "fedrod", "apfl", "federico", "l2gd", "per-fedavg"])
def test_rows_stay_apart(name: str) -> None:
    training = persistent(BATCHES, optimizer="adam", lr=0.01)
    run(simulation(FEDERATION, name, engine=RowCheck, training=training, participation=HALF))


@pytest.mark.parametrize("given", [{"chunk": 1}, {"chunk": 3}, {"executor": "loop"}, {"client_memory": 1e-9}])
def test_the_division_into_chunks_changes_nothing(given: dict[str, Any]) -> None:
    training = persistent(BATCHES, optimizer="adam", lr=0.01)
    whole = played("ditto", training, participation=HALF, rounds=5, executor="stacked")
    close(
        personal(played("ditto", training, participation=HALF, rounds=5, **{"executor": "stacked", **given})),
        personal(whole),
    )


@pytest.mark.parametrize("name", ["local", "fedrod", "fedem"])
def test_seeds_in_one_stack_are_as_if_alone(name: str) -> None:
    training = persistent(BATCHES, optimizer="adam", lr=0.01)

    def sim(seed: int) -> Simulation:
        settings = Settings(
            rounds=4, seed=seed, training=training, dtype="float64", threads=1, keep_best="last",
            participation=Participation("uniform", clients=3),
        )  # fmt: skip
        return Simulation(FEDERATION, make_algorithm(name), MLP, settings)

    joint = [sim(seed) for seed in (0, 1)]

    def of(member_of: Simulation) -> Any:
        def rounds(member: Member) -> bool:
            member.join(member_of)
            run(member_of)
            return True

        return rounds

    shared = Shared([of(each) for each in joint])
    assert shared.hold() == [True, True]
    assert shared.served["together"] > 0
    for seed, each in enumerate(joint):
        alone = sim(seed)
        run(alone)
        close(personal(each), personal(alone))


@pytest.mark.parametrize("kept", ["adam", "momentum"])
def test_rows_with_other_numbers_of_steps_are_each_as_in_torch(kept: str) -> None:
    """Two trainings in which clients take 1, 4 and 2 steps, then 3, 1 and 0, beside one optimiser each that lives on."""
    settings, generator = KEPT[kept], torch.Generator().manual_seed(0)
    sim = simulation(located([[0.0, 0.0]] * 3), "local", LOCATION)
    theta = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    (name,) = sim.stack.layout.parameters
    memory = Memory.blank(settings, models_like(sim, theta))
    plain = [torch.nn.Parameter(row.clone()) for row in theta]
    given: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    torchs = [
        torch.optim.Adam([row], **given)
        if kept == "adam"
        else torch.optim.SGD([row], momentum=settings.momentum, **given)
        for row in plain
    ]
    for counts in ([1, 4, 2], [3, 1, 0]):
        order = torch.tensor(counts).argsort(descending=True)
        optimiser, rows = Optimiser(settings, settings.lr), theta[order]
        optimiser.begin(memory, order)
        for step in range(max(counts)):
            gradients = torch.randn(sum(count > step for count in counts), 2, generator=generator, dtype=torch.float64)
            for client, gradient in zip(order.tolist(), gradients, strict=False):
                plain[client].grad = gradient.clone()
                torchs[client].step()
            optimiser.update({name: rows}, {name: gradients})
        optimiser.remember(memory, order)
        theta[order] = rows
    close(theta, torch.stack([row.detach() for row in plain]))
    if kept == "adam":
        assert memory.steps is not None
        close(memory.steps, torch.tensor([4, 5, 2]))


@pytest.mark.parametrize("kept", ["adam", "momentum"])
def test_rows_that_have_diverged_begin_anew(kept: str) -> None:
    settings = KEPT[kept]
    sim = simulation(located([[0.0, 0.0]] * 3), "local", LOCATION)
    (name,) = sim.stack.layout.parameters
    memory = Memory.blank(settings, models_like(sim, torch.zeros(3, 2, dtype=torch.float64)))
    optimiser, order = Optimiser(settings, settings.lr), torch.tensor([2, 0, 1])
    optimiser.begin(memory, order)
    gradients = torch.tensor([[1.0, 2.0], [0.5, torch.nan], [3.0, 4.0]], dtype=torch.float64)
    optimiser.update({name: torch.zeros(3, 2, dtype=torch.float64)}, {name: gradients})
    optimiser.remember(memory, order)
    for models in memory.state.values():
        assert models.finite().all()
        assert (models.flat() != 0).any(dim=1).tolist() == [False, True, True]
    assert memory.steps is not None
    assert memory.steps.tolist() == [0, 1, 1]


@dataclass(frozen=True)
class Fails(Local):
    """LOCAL, whose first client fails in round 2."""

    def local_update(self, site: Site) -> Mapping[str, Any]:
        answer = super().local_update(site)
        if site.round == 2:
            site.theta = site.theta * torch.where(site.clients == 0, torch.nan, 1.0)
        return answer


def test_a_client_that_fails_keeps_what_it_had() -> None:
    sim = simulation(FEDERATION, Fails(), training=persistent(ADAM), rounds=3)
    run(sim)
    close(state(sim, "optimiser")["steps"], torch.tensor([2, 3, 3, 3]))
    close(personal(sim)[0], personal(played("local", persistent(ADAM), rounds=2))[0])
    close(personal(sim)[1:], personal(played("local", persistent(ADAM), rounds=3))[1:])


@dataclass(frozen=True)
class Twice(Local):
    """Trains two models and does not tell their optimisers apart."""

    def local_update(self, site: Site) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, only="head").models
        site.theta = site.fit(site.theta, only="body").models
        return {}


@dataclass(frozen=True)
class TwoAsks(Local):
    """The same in two calls."""

    def round(self, server: Server, cohort: torch.Tensor) -> None:
        server.ask(self.head, cohort)
        server.ask(self.body, cohort)

    def head(self, site: Site) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, only="head").models
        return {}

    def body(self, site: Site) -> Mapping[str, Any]:
        site.theta = site.fit(site.theta, only="body").models
        return {}


@pytest.mark.parametrize("method", [Twice, TwoAsks])
def test_two_trainings_cannot_share_one(method: type[Local]) -> None:
    run(simulation(FEDERATION, method(), training=ADAM))
    with pytest.raises(CoterieError, match="share one optimiser; tell them apart by fit"):
        run(simulation(FEDERATION, method(), training=persistent(ADAM)))


@dataclass(frozen=True)
class Leaves(Local):
    """Ends its loop after one step."""

    def local_update(self, site: Site) -> Mapping[str, Any]:
        theta = site.theta
        for step in site.steps():
            theta = step.update(theta, site.gradient(theta, step))
            break
        site.theta = theta
        return {}


def test_a_loop_that_is_left_keeps_the_steps_that_it_took() -> None:
    sim = simulation(FEDERATION, Leaves(), training=persistent(ADAM, epochs=5), rounds=3)
    run(sim)
    close(state(sim, "optimiser")["steps"], torch.tensor([3, 3, 3, 3]))
    close(personal(sim), personal(played("local", persistent(ADAM), rounds=3)))
