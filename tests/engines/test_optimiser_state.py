"""``optimizer_state: persistent``: each client's optimiser goes on where its last training of that kind ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.contract import make_algorithm
from coterie.engines import Member, Participation, Settings, Shared, Simulation, TrainingSettings
from coterie.testing.recording import RowCheck
from toys import BATCHES, FULL_BATCH, HALF, KINDS, MLP, classified, personal, run, same, saved, simulation, state

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


def test_pgfed_keeps_its_momentum_either_way() -> None:
    momentum = replace(BATCHES, momentum=0.9)
    own = played("pgfed", momentum, options={"persistent": True}, participation=HALF)
    given = played("pgfed", persistent(momentum), participation=HALF)
    close(personal(given), personal(own))
    assert (personal(played("pgfed", momentum, participation=HALF)) - personal(own)).abs().max() > 1e-3


def test_copies_of_the_models_of_others_are_trained_anew() -> None:
    sim = played("federico", persistent(ADAM), options={"neighbours": 2})
    kept = {leaf for leaf in sim.bank.columns if leaf.startswith("optimiser")}
    assert kept == {f"optimiser train 1 /{what}" for what in ("mean", "square", "steps")}
    close(state(sim, "optimiser train 1 ")["steps"], torch.tensor([3, 3, 3, 3]))


def test_fine_tuning_at_an_evaluation_leaves_nothing_behind() -> None:
    sims = [played("fedavg-ft", persistent(ADAM), evaluate_every=every) for every in (1, 3)]
    close(personal(sims[0]), personal(sims[1]))
    assert not [leaf for leaf in sims[0].bank.columns if "fine-tuning" in leaf]


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
