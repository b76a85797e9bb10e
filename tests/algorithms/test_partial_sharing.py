"""LG-FedAvg, FedPer, FedRep and FedBABU: a shared part and a private part.

On quadratics a model is the sum of two layers, so that each part's step depends on where the other one is:
F_k(lower, upper) = |lower + upper - b_k|^2 / 2, and both gradients are lower + upper - b_k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.contract import make_algorithm
from coterie.engines import Admission, Participation, Settings, Trained, checkpoint
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.testing.identities.learning import digits
from coterie.training import TrainingSettings
from toys import (
    BATCHES,
    FULL_BATCH,
    HALF,
    NORMED,
    Recording,
    alike,
    classified,
    located,
    personal,
    reordered,
    run,
    same,
    saved,
    simulation,
    state,
)


class Shift(nn.Module):
    def __init__(self, d: int, start: float) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.full((d,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position


class Summed(nn.Module):
    """The sum of two layers' positions; the upper one is the head, and begins at 1."""

    head_name = "upper"

    def __init__(self, d: int) -> None:
        super().__init__()
        self.lower, self.upper = Shift(d, 0.0), Shift(d, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.upper(self.lower(0.0 * x.flatten(1).sum(1, keepdim=True)))


def summed(feature_shape: Sequence[int], classes: int) -> nn.Module:
    return Summed(classes)


SUMMED = ModelSpec("test_partial_sharing:summed")
DEEP = ModelSpec("mlp", {"hidden": [5, 4]})
B = [[4.0, 0.0], [0.0, 8.0], [-2.0, 6.0]]
N = [1, 3, 2]
THREE = located(B, N)
TWO = located(B[:2], N[:2])
FIVE = classified((7, 4, 9, 5, 6))
ABSENT = {1: [2], 2: [1], 3: [0, 2], 5: [1]}
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9, weight_decay=0.01)
METHODS = ["fedper", "fedrep", "lg-fedavg", "fedbabu"]


def played(
    name: str, rounds: int = 1, federation: Federation = TWO, *, model: ModelSpec = SUMMED, lr: float = 0.25,
    epochs: int = 1, momentum: float = 0.0, absent: Mapping[int, Sequence[int]] | None = None,
    settings: Mapping[str, Any] | None = None, **options: Any,
) -> Recording:  # fmt: skip
    training = replace(FULL_BATCH, lr=lr, epochs=epochs, momentum=momentum)
    away = {t: tuple(f"client-{i}" for i in who) for t, who in (absent or {}).items()}
    sim = simulation(
        federation, make_algorithm(name, **options), model, engine=Recording, rounds=rounds, absent=away,
        **{"training": training, **(settings or {})},
    )  # fmt: skip
    run(sim)
    assert isinstance(sim, Recording)
    return sim


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    expected = torch.as_tensor(np.asarray(expected), dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(actual), expected, rtol=0, atol=tolerance)


def trained(x: Any, moving: Sequence[str], b: Any, epochs: int, lr: float, momentum: float) -> None:
    """SGD on one client's parts ``moving`` of ``x = {lower, upper}``, in place, from fresh momentum."""
    velocity = {part: np.zeros_like(b) for part in moving}
    for _ in range(epochs):
        gradient = x["lower"] + x["upper"] - b
        for part in moving:
            velocity[part] = momentum * velocity[part] + gradient
            x[part] = x[part] - lr * velocity[part]


def by_hand(
    name: str, rounds: int, absent: Mapping[int, Sequence[int]], *, epochs: int, lr: float, momentum: float,
    uniform: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The papers' pseudo code, one client after another: what clients predict with, and what is shared."""
    b, n = np.array(B), np.ones(3) if uniform else np.array(N, dtype=float)
    shared, private = ("upper", "lower") if name == "lg-fedavg" else ("lower", "upper")
    own = {part: np.full_like(b, float(part == "upper")) for part in ("lower", "upper")}
    phi = own[shared][0].copy()
    for t in range(1, rounds + 1):
        present = [i for i in range(3) if i not in absent.get(t, [])]
        answers = []
        for i in present:
            x = {shared: phi.copy(), private: own[private][i].copy()}
            if name == "fedrep":
                trained(x, [private], b[i], epochs - 1, lr, momentum)
                trained(x, [shared], b[i], 1, lr, momentum)
            else:
                moving = [shared] if name == "fedbabu" else [shared, private]
                trained(x, moving, b[i], epochs, lr, momentum)
            own[private][i] = x[private]
            answers.append(x[shared])
        phi = (n[present] / n[present].sum()) @ np.array(answers)
    parts = {shared: np.tile(phi, (3, 1)), private: own[private]}
    return {"predict": np.concatenate([parts["lower"], parts["upper"]], axis=1), "phi": phi}


# --- rounds worked out by hand -----------------------------------------------------------------------------------


def test_fedper_joins_the_new_body_to_the_own_heads() -> None:
    # b - upper = (3, -1), (-1, 7); a quarter of it for both parts; phi = (0.75, -0.25)/4 + 3 (-0.25, 1.75)/4
    sim = played("fedper")
    close(personal(sim), [[0.0, 1.25, 1.75, 0.75], [0.0, 1.25, 0.75, 2.75]])
    close(sim.server.phi.flat(), [[0.0, 1.25]])


def test_lg_fedavg_joins_the_new_head_to_the_own_bodies() -> None:
    sim = played("lg-fedavg")
    close(personal(sim), [[0.75, -0.25, 1.0, 2.25], [-0.25, 1.75, 1.0, 2.25]])
    close(sim.server.phi.flat(), [[1.0, 2.25]])


def test_fedrep_trains_the_head_first_and_the_body_under_it() -> None:
    # heads: 1 + (b - 1)/4; then bodies: a quarter of what 3/4 (b - 1) still lacks; phi = 3/16 (mean of b - 1)
    sim = played("fedrep", epochs=2)
    heads = [[1.75, 0.75], [0.75, 2.75]]
    close(sim.server.phi.flat(), [[3 / 16 * (3 - 3) / 4, 3 / 16 * (-1 + 21) / 4]])
    close(personal(sim), [[0.0, 0.9375, *heads[0]], [0.0, 0.9375, *heads[1]]])


def test_fedbabu_tunes_everything_and_feeds_nothing_back() -> None:
    # phi = (0, 1.25) under the head 1; then both parts take a quarter of b - phi - 1
    sim = played("fedbabu")
    close(sim.server.phi.flat(), [[0.0, 1.25]])
    close(personal(sim), [[0.75, 1.25 - 0.5625, 1.75, 1 - 0.5625], [-0.25, 2.6875, 0.75, 2.4375]])
    close(personal(played("fedbabu", part="head")), [[0.0, 1.25, 1.75, 1 - 0.5625], [0.0, 1.25, 0.75, 2.4375]])
    close(personal(played("fedbabu", epochs_ft=0)), [[0.0, 1.25, 1.0, 1.0]] * 2)
    close(personal(played("fedbabu", lr_ft=1.0, part="head")), [[0.0, 1.25, 4.0, -1.25], [0.0, 1.25, 0.0, 6.75]])


@pytest.mark.parametrize("absent", [{}, ABSENT], ids=["all", "absent"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_round_by_round(name: str, uniform: bool, momentum: float, absent: Mapping[int, Sequence[int]]) -> None:
    """Whoever is away keeps its part, who comes late begins with theta^0, and weights count who answered."""
    options: dict[str, Any] = {"weights": "uniform"} if uniform else {}
    if name == "fedbabu":
        options["epochs_ft"] = 0
    sim = played(name, 6, THREE, epochs=3, momentum=momentum, absent=absent, **options)
    hand = by_hand(name, 6, absent, epochs=3, lr=0.25, momentum=momentum, uniform=uniform)
    close(personal(sim), hand["predict"])
    close(sim.server.phi.flat()[0], hand["phi"])


def test_lg_fedavg_warm_start_goes_on_from_the_own_copy_of_fedavg() -> None:
    warm, average = played("lg-fedavg", 2, THREE, warm_start=2), played("fedavg", 2, THREE)
    close(warm.server.w.flat(), average.server.w.flat())
    close(warm.server.phi.flat(), average.server.w["head"].flat())
    bodies = warm.calls[-1].returned["w"]["body"].flat()
    close(personal(warm), torch.cat([bodies, average.server.w["head"].flat().expand(3, -1)], dim=1))
    after = played("lg-fedavg", 3, THREE, warm_start=2)
    call = after.calls[-1]
    assert call.method == "local_update"
    begun = torch.cat([bodies, call.received["phi"].flat()], dim=1)
    step = 0.25 * (torch.tensor(B, dtype=torch.float64) - begun[:, :2] - begun[:, 2:])
    close(state(after).flat(), begun + torch.cat([step, step], dim=1))


# --- limits ------------------------------------------------------------------------------------------------------


def equal(
    name: str, options: Mapping[str, Any], other: str, of: Mapping[str, Any] | None = None,
    federation: Federation = FIVE, participation: Participation = HALF, tolerance: float = 0.0,
) -> None:  # fmt: skip
    """What clients predict with is the same after five rounds, bit for bit unless a tolerance is given."""
    settings: dict[str, Any] = {"participation": participation, "rounds": 5, "training": MOMENTUM}
    first = simulation(federation, name, DEEP, options=options, **settings)
    second = simulation(federation, other, DEEP, options=of, **settings)
    run(first), run(second)
    close(personal(first), personal(second), tolerance)
    assert not torch.equal(personal(first)[:1], first.server.initial_model().flat())


UNIFORM = {"weights": "uniform"}


@pytest.mark.parametrize("weights", [{}, UNIFORM], ids=["samples", "uniform"])
@pytest.mark.parametrize(
    ("name", "options", "other", "of"),
    [
        ("fedper", {"head_layers": 0}, "fedavg", {}),
        ("fedrep", {"head_layers": 0, "body_epochs": None}, "fedavg", {}),
        ("lg-fedavg", {"shared_layers": 3}, "fedavg", {}),
        ("lg-fedavg", {"shared_layers": 9}, "fedavg", {}),
        ("fedbabu", {"head_layers": 0}, "fedavg-ft", {}),
        ("fedbabu", {"head_layers": 0, "epochs_ft": 0}, "fedavg", {}),
    ],
)
def test_T03_everything_shared_is_fedavg(
    name: str, options: dict[str, Any], other: str, of: dict[str, Any], weights: dict[str, Any]
) -> None:
    equal(name, {**options, **weights}, other, {**of, **weights})


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedper", {"head_layers": 3}),
        ("fedper", {"head_layers": 9}),
        ("fedrep", {"head_layers": 3, "body_epochs": 0}),
        ("lg-fedavg", {"shared_layers": 0}),
    ],
)
def test_T04_nothing_shared_is_local(name: str, options: dict[str, Any]) -> None:
    equal(name, options, "local")


def test_lg_fedavg_that_stays_warm_has_fedavgs_head() -> None:
    """Its clients predict with their own copies below the head."""
    settings = {"participation": HALF, "rounds": 5, "training": MOMENTUM}
    federation = FIVE
    warm = simulation(federation, "lg-fedavg", DEEP, options={"warm_start": 9}, **settings)
    average = simulation(federation, "fedavg", DEEP, **settings)
    run(warm), run(average)
    assert torch.equal(warm.server.w.flat(), average.server.w.flat())


@pytest.mark.parametrize("name", ["fedper", "lg-fedavg"])
def test_T01_one_client_alone_trains_as_local(name: str) -> None:
    equal(name, {}, "local", federation=classified((11,)), participation=Participation(), tolerance=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_T02_identical_clients_stay_identical(name: str) -> None:
    sim = simulation(alike(), name, DEEP, rounds=4, training=replace(FULL_BATCH, epochs=3))
    run(sim)
    models = personal(sim)
    close(models, models[:1].expand(len(models), -1), 1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_T22_the_order_of_clients_changes_nothing(name: str) -> None:
    federation, order = classified((7, 4, 9, 5)), [2, 0, 3, 1]
    first, second = (
        simulation(f, name, DEEP, rounds=4, training=MOMENTUM, absent={2: ("client-1",)})
        for f in (federation, reordered(federation, order))
    )
    run(first), run(second)
    close(personal(second), personal(first)[order], 1e-12)


# --- what is and what is not trained -----------------------------------------------------------------------------


def test_fedrep_without_head_epochs_keeps_the_initial_heads() -> None:
    sim = simulation(classified(), "fedrep", DEEP, options={"head_epochs": 0}, training=MOMENTUM)
    run(sim)
    heads = state(sim)["head"].flat()
    assert torch.equal(heads, sim.server.initial_model()["head"].flat().expand(4, -1))
    assert not torch.equal(sim.server.phi.flat(), sim.server.initial_model()["body"].flat())


def test_fedrep_shares_the_local_epochs_among_its_parts() -> None:
    """All epochs but the body's go to the head, and at least one."""
    federation = classified()

    def bodies_and_heads(epochs: int, **options: Any) -> Tensor:
        sim = simulation(
            federation, make_algorithm("fedrep", **options), DEEP, training=replace(MOMENTUM, epochs=epochs)
        )
        run(sim)
        return personal(sim)

    assert torch.equal(bodies_and_heads(5), bodies_and_heads(2, head_epochs=4))
    assert torch.equal(bodies_and_heads(1), bodies_and_heads(3, head_epochs=1))
    assert torch.equal(bodies_and_heads(5, body_epochs=3), bodies_and_heads(1, head_epochs=2, body_epochs=3))
    assert torch.equal(bodies_and_heads(2, body_epochs=None), bodies_and_heads(7, head_epochs=1, body_epochs=2))
    assert not torch.equal(bodies_and_heads(2), bodies_and_heads(3))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedbabu_moves_no_entry_of_the_head(optimizer: Any) -> None:
    """Not even by momentum and weight decay, in any round."""
    training = replace(MOMENTUM, optimizer=optimizer, weight_decay=0.1)
    sim = simulation(classified(), "fedbabu", DEEP, options={"epochs_ft": 0}, training=training, rounds=4)
    run(sim)
    models, initial = sim.report_models(), sim.server.initial_model()
    assert torch.equal(models["head"].flat(), initial["head"].flat().expand(4, -1))
    assert not torch.equal(models["body"].flat()[:1], initial["body"].flat())


@pytest.mark.parametrize("name", METHODS)
def test_a_body_trains_under_its_clients_own_head(name: str) -> None:
    """One round of each client alone gives the same part as among others whose data are different."""
    federation = classified((7, 4, 9, 5))
    together = simulation(federation, name, DEEP, engine=Recording, rounds=1, training=MOMENTUM)
    run(together)
    for i in range(4):
        alone = simulation(federation.select([i]), name, DEEP, engine=Recording, rounds=1, training=MOMENTUM)
        run(alone)
        close(together.calls[0].returned["phi"].flat()[i], alone.calls[0].returned["phi"].flat()[0], 1e-12)


@pytest.mark.parametrize("policy", ["average", "local", "server"])
@pytest.mark.parametrize("name", METHODS)
def test_batch_statistics_belong_to_the_body(name: str, policy: str) -> None:
    sim = simulation(
        classified((7, 5, 9, 6)), name, NORMED, rounds=3, training=replace(BATCHES, batch_size=4), buffers=policy
    )
    run(sim)
    models = sim.report_models()
    assert bool(models.finite().all())
    means = models.tensors["2.running_mean"]
    if name == "fedbabu":  # fine-tuning moves them too
        return
    own = policy == "local" or name == "lg-fedavg"  # whose body never leaves
    assert torch.equal(means[0], means[1]) is not own


# --- traffic, checkpoints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [
        ("fedper", {}, "body"), ("fedper", {"head_layers": 2}, "before last 2"), ("fedper", {"head_layers": 3}, ""),
        ("fedrep", {}, "body"), ("fedbabu", {}, "body"), ("fedbabu", {"head_layers": 0}, "all"),
        ("lg-fedavg", {}, "head"), ("lg-fedavg", {"shared_layers": 2}, "last 2"),
        ("lg-fedavg", {"warm_start": 1}, "all"),
    ],
)  # fmt: skip
def test_T23_only_the_shared_part_travels(name: str, options: dict[str, Any], share: str) -> None:
    sim = simulation(classified(), name, DEEP, options=options, rounds=1)
    run(sim)
    size = 8 * sim.server.initial_model()[share].d if share else 0
    for way in ("down", "up"):
        assert sim.ledger.bytes.get(("train", way, "model"), torch.zeros(4)).tolist() == [size] * 4
    assert {kind for _, _, kind in sim.ledger.bytes} <= {"model"}


def test_T23_bodies_are_collected_only_for_an_ensemble_of_newcomers() -> None:
    sim = simulation(classified(), "lg-fedavg", DEEP, rounds=1, unlabelled_newcomers=True)
    run(sim)
    assert sim.ledger.bytes[("train", "up", "model")].tolist() == [8 * sim.server.initial_model().d] * 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in METHODS),
        ("fedper", {"head_layers": 0}), ("fedper", {"head_layers": 9}), ("lg-fedavg", {"shared_layers": 0}),
        ("lg-fedavg", {"shared_layers": 9}), ("lg-fedavg", {"warm_start": 3}), ("fedbabu", {"head_layers": 0}),
    ],
)  # fmt: skip
def test_T27_a_run_goes_on_from_its_checkpoint(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    def fresh() -> Any:
        return simulation(
            classified(), name, DEEP, options=options, rounds=5, training=MOMENTUM, participation=HALF,
            unlabelled_newcomers=True,
        )  # fmt: skip

    whole, first, second = fresh(), fresh(), fresh()
    run(whole)
    first.advance(), first.advance()
    checkpoint.save(tmp_path / "two.pt", first)
    checkpoint.load(tmp_path / "two.pt", second)
    run(second)
    assert same(saved(whole), saved(second))
    assert torch.equal(personal(whole), personal(second))


# --- newcomers ---------------------------------------------------------------------------------------------------

EVERYBODY = classified((7, 4, 9, 5, 6, 8, 3), validation=5)
MEMBERS, NEWCOMERS = EVERYBODY.select([0, 1, 2, 3]), EVERYBODY.select([4, 5, 6])


def admitted(name: str, *, labelled: bool, epochs: int = 3, **settings: Any) -> tuple[Any, Any]:
    sim = simulation(MEMBERS, name, DEEP, **{"unlabelled_newcomers": True, **settings})
    run(sim)
    coming = Admission(
        Trained.of(sim), NEWCOMERS, sim.algorithm, DEEP, Settings(training=BATCHES, dtype="float64", threads=1)
    )
    return sim, coming.admit(labelled=labelled, epochs=epochs)


@pytest.mark.parametrize(("name", "shared"), [("fedper", "body"), ("fedrep", "body"), ("lg-fedavg", "head")])
def test_newcomers_train_the_private_part_only(name: str, shared: str) -> None:
    sim, came = admitted(name, labelled=True)
    assert torch.equal(came.models[shared].flat(), sim.server.phi.flat().expand(3, -1))
    private = "head" if shared == "body" else "body"
    assert not torch.equal(came.models[private].flat()[0], sim.server.initial_model()[private].flat()[0])
    _, waiting = admitted(name, labelled=True, epochs=0)
    assert torch.equal(waiting.models[private].flat(), sim.server.initial_model()[private].flat().expand(3, -1))
    assert came.traffic["down:model"].tolist() == [8 * sim.server.phi.d] * 3


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_without_labels_there_is_no_head(name: str) -> None:
    assert admitted(name, labelled=False)[1] is None


def test_fedbabu_newcomers_have_the_global_model_and_tune_all_of_it() -> None:
    sim, came = admitted("fedbabu", labelled=False)
    assert torch.equal(came.models["body"].flat(), sim.server.phi.flat().expand(3, -1))
    head = sim.server.initial_model()["head"].flat().expand(3, -1)
    assert torch.equal(came.models["head"].flat(), head)
    _, tuned = admitted("fedbabu", labelled=True)
    assert not torch.equal(tuned.models["head"].flat(), head)
    assert not torch.equal(tuned.models["body"].flat(), came.models["body"].flat())
    assert came.traffic["down:model"].tolist() == [8 * sim.server.phi.d] * 3


def test_lg_fedavg_newcomers_without_labels_ask_all_members_that_took_part() -> None:
    sim, came = admitted("lg-fedavg", labelled=False, absent=dict.fromkeys((1, 2, 3), ("client-1",)))
    took_part = [0, 2, 3]
    assert tuple(came.models.lead) == (3, 3)
    for slot, member in enumerate(took_part):
        expected = state(sim)[[member]].with_part("head", sim.server.phi).flat()
        close(came.models.candidate(slot).flat(), expected.expand(3, -1), 0)
    outputs = [
        sim.stack.forward(_one(came.models, slot), NEWCOMERS.test.client(0)[0].double().unsqueeze(0)).softmax(-1)
        for slot in range(3)
    ]
    targets = NEWCOMERS.test.client(0)[1]
    right = (torch.stack(outputs).mean(0)[0].argmax(-1) == targets).double().mean()
    assert came.values["accuracy"][0, 0] == pytest.approx(float(right))


def _one(models: Models, slot: int) -> dict[str, Tensor]:
    return {name: tensor[:1, slot] for name, tensor in models.tensors.items()}


def test_lg_fedavg_collects_no_bodies_unless_they_will_be_needed() -> None:
    sim, came = admitted("lg-fedavg", labelled=False, unlabelled_newcomers=False)
    assert came is None
    assert "bodies" not in sim._store.values


def test_fedbabu_learns_in_sixty_rounds() -> None:
    """Under a random head it is slower than the others, which learn as much in twenty."""
    training = TrainingSettings(epochs=3, batch_size=16, lr=0.1, momentum=0.5)
    sim = simulation(
        digits(), "fedbabu", ModelSpec("mlp", {"hidden": [32]}), rounds=60, evaluate_every=60, dtype="float32",
        training=training,
    )  # fmt: skip
    before, after = (
        float(report.evaluations["test"]["accuracy"].mean()) for report in (sim.initial_report(), run(sim)[-1])
    )
    assert after > before + 0.3


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedper", {"head_layers": -1}, "fedper.head_layers must be 0 or more"),
        ("fedrep", {"head_epochs": -1}, "fedrep.head_epochs must be 0 or more"),
        ("fedrep", {"body_epochs": -1}, "fedrep.body_epochs must be 0 or more"),
        ("fedrep", {"weights": "some"}, "fedrep.weights must be samples or uniform"),
        ("lg-fedavg", {"shared_layers": -1}, "lg-fedavg.shared_layers must be 0 or more"),
        ("lg-fedavg", {"warm_start": -1}, "lg-fedavg.warm_start must be 0 or more"),
        ("fedbabu", {"head_layers": -1}, "fedbabu.head_layers must be 0 or more"),
        ("fedbabu", {"epochs_ft": -1}, "fedbabu.epochs_ft must be 0 or more"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        make_algorithm(name, **options)
