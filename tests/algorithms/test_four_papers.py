"""FedDWA, PGFed, PGFedMo and FedeRiCo: rounds worked out by hand on quadratics, and the papers' identities.

As elsewhere, two targets a client make F_k(theta) = |theta - b_k|^2 / 2, so a step is theta <- theta - lr (theta - b_k).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.contract import make_algorithm
from coterie.engines import Admission, Participation, Settings, Trained
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import Models, stack_candidates
from coterie.training import TrainingSettings
from toys import (
    BATCHES,
    FULL_BATCH,
    LINEAR,
    LOCATION,
    MLP,
    NORMED,
    Recording,
    alike,
    classified,
    located,
    models_like,
    personal,
    run,
    simulation,
    state,
)

B = [[4.0, 0.0], [0.0, 8.0]]
TWO = located(B, [1, 3])
B3 = [[4.0, 0.0], [0.0, 8.0], [-2.0, 6.0]]
THREE = located(B3, [1, 3, 2])
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9)


def begun(
    name: str, rounds: int = 1, federation: Federation = TWO, variant: str | None = None, *, lr: float = 0.5,
    epochs: int = 1, momentum: float = 0.0, persistent: bool = False, absent: Any = None, model: Any = LOCATION, settings: Any = None, **options: Any,
) -> Recording:  # fmt: skip
    """A simulation that has not run yet, on full batches."""
    kept: Literal["fresh", "persistent"] = "persistent" if persistent else "fresh"
    training = replace(FULL_BATCH, lr=lr, epochs=epochs, momentum=momentum, optimizer_state=kept)
    sim = simulation(
        federation, make_algorithm(name, variant, **options), model, engine=Recording, rounds=rounds,
        absent=absent or {}, **{"training": training, **(settings or {})},
    )  # fmt: skip
    assert isinstance(sim, Recording)
    return sim


def played(*arguments: Any, **options: Any) -> Recording:
    sim = begun(*arguments, **options)
    run(sim)
    return sim


def close(actual: Any, expected: Any, rtol: float = 1e-11, atol: float = 1e-11) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=rtol,
        atol=atol,
    )


def bytes_of(sim: Recording, direction: str, phase: str = "train", kind: str = "model") -> list[int]:
    table = sim.ledger.per_client()
    return table[(table.phase == phase) & (table.direction == direction) & (table.kind == kind)]["bytes"].tolist()


# --- FedDWA ------------------------------------------------------------------------------------------------------
# after one step w = (2, 0), (0, 4)


def dwa_round(p: Sequence[Sequence[float]], sim: Recording, w: Any = ((2.0, 0.0), (0.0, 4.0))) -> None:
    """The weights, and the mixtures that are sent and predicted with."""
    weights = torch.tensor(p, dtype=torch.float64)
    close(sim.algorithm.relations(sim.server)["p"], weights)
    close(sim.server.w.flat(), weights @ torch.tensor(w, dtype=torch.float64))
    close(personal(sim), sim.server.w.flat())


@pytest.mark.parametrize("options", [{"guidance": "full_gradient"}, {"guidance": "epoch"}])
def test_feddwa_weighs_by_closeness_to_the_guidance_model(options: dict[str, Any]) -> None:
    # w* = (3, 0), (0, 6): d = [[1, 9 + 16], [4 + 36, 4]]; on a full batch one epoch is one gradient step
    dwa_round([[25 / 26, 1 / 26], [4 / 44, 40 / 44]], played("feddwa", **options))


def test_feddwa_looks_ahead_on_batches_of_its_own() -> None:
    """Mini-batches in another order than those of the training that it goes on from, and from a fresh momentum."""
    sim = begun("feddwa", 1, classified((7, 4, 9)), model=LINEAR, settings={"training": MOMENTUM})
    sim.advance()
    call = sim.calls[-1]
    orders = [torch.cat([step.inputs[0] for step in call.site.steps(batches=name)]) for name in ("train", "guidance")]
    assert not torch.equal(*orders)
    ahead = call.site.fit(call.returned["w"], batches="guidance").models
    close(call.returned["guidance"].flat(), ahead.flat())


def test_feddwa_guidance_of_several_epochs() -> None:
    # w* = (3.5, 0), (0, 7): d = [[2.25, 12.25 + 16], [4 + 49, 9]]
    p = [[28.25 / 30.5, 2.25 / 30.5], [9 / 62, 53 / 62]]
    dwa_round(p, played("feddwa", guidance_epochs=2))


def test_feddwa_guidance_lasts_as_long_as_training_by_default() -> None:
    # w = 3/4 b = (3, 0), (0, 6) and w* = 15/16 b = (3.75, 0), (0, 7.5)
    d = [[0.75**2, 3.75**2 + 36], [9 + 7.5**2, 1.5**2]]
    p = [[d[0][1] / sum(d[0]), d[0][0] / sum(d[0])], [d[1][1] / sum(d[1]), d[1][0] / sum(d[1])]]
    dwa_round(p, played("feddwa", epochs=2), [[3.0, 0.0], [0.0, 6.0]])


def test_feddwa_full_gradient_is_one_step_however_long_training_is() -> None:
    # w = (3, 0), (0, 6) and w* = (3.5, 0), (0, 7)
    d = [[0.25, 12.25 + 36], [9 + 49, 1.0]]
    p = [[d[0][1] / sum(d[0]), d[0][0] / sum(d[0])], [d[1][1] / sum(d[1]), d[1][0] / sum(d[1])]]
    dwa_round(p, played("feddwa", epochs=2, guidance="full_gradient"), [[3.0, 0.0], [0.0, 6.0]])


def test_feddwa_guidance_by_the_last_model() -> None:
    """The model after the training before, theta^0 at first: so the smallest step of all is the nearest."""
    # round 1: d = [[4, 16], [4, 16]]
    sim = begun("feddwa", 2, guidance="last_model")
    sim.advance()
    dwa_round([[0.8, 0.2], [0.8, 0.2]], sim)
    # both begin with (1.6, 0.8): w = (2.8, 0.4), (0.8, 4.4); the last models are (2, 0), (0, 4)
    sim.advance()
    d = [[0.64 + 0.16, 1.44 + 4.4**2], [2.8**2 + 3.6**2, 0.64 + 0.16]]
    p = [[d[0][1] / sum(d[0]), d[0][0] / sum(d[0])], [d[1][1] / sum(d[1]), d[1][0] / sum(d[1])]]
    dwa_round(p, sim, [[2.8, 0.4], [0.8, 4.4]])


def test_feddwa_trains_from_its_own_mixture() -> None:
    sim = played("feddwa", 2)
    mixtures = torch.tensor([[25 / 26 * 2, 4 / 26], [8 / 44, 160 / 44]], dtype=torch.float64)
    close(sim.calls[-1].received["w"].flat(), mixtures)
    w = mixtures + 0.5 * (torch.tensor(B) - mixtures)
    close(sim.calls[-1].returned["w"].flat(), w)
    close(state(sim).flat(), w)  # the look ahead is not kept
    ahead = w + 0.5 * (torch.tensor(B) - w)
    close(sim.calls[-1].returned["guidance"].flat(), ahead)
    inverse = 1 / (ahead[:, None] - w[None]).square().sum(2)
    dwa_round((inverse / inverse.sum(1, keepdim=True)).tolist(), sim, w.tolist())


def test_feddwa_keeps_the_models_of_absent_clients() -> None:
    sim = begun("feddwa", 2, THREE, absent={2: ("client-1",)})
    sim.advance()
    before, p = sim.server.w.flat()[1].clone(), sim.server.p[1].clone()
    sim.advance()
    close(sim.server.w.flat()[1], before, 0, 0)
    close(personal(sim)[1], before, 0, 0)
    after = sim.algorithm.relations(sim.server)["p"]
    close(after[1], p, 0, 0)
    assert (after[[0, 2], 1] == 0).all()  # nobody receives anything of a model that did not come
    assert (after[[0, 2]][:, [0, 2]] > 0).all()
    w = sim.calls[-1].returned["w"].flat()
    close(sim.server.w.flat()[[0, 2]], after[[0, 2]][:, [0, 2]] @ w)


def test_feddwa_first_receives_theta0_however_late() -> None:
    sim = begun("feddwa", 2, THREE, absent={1: ("client-1",)})
    sim.advance()
    close(sim.algorithm.relations(sim.server)["p"][1], [0.0, 1.0, 0.0])
    close(personal(sim)[1], [0.0, 0.0])
    sim.advance()
    close(sim.calls[-1].received["w"].flat()[1], [0.0, 0.0])


@pytest.mark.parametrize("guidance", ["epoch", "full_gradient"])
def test_feddwa_keeping_one_model_is_local_where_the_own_is_nearest(guidance: str) -> None:
    apart = located([[4.0, 0.0], [0.0, 8.0], [-6.0, -4.0]])
    sim, alone = played("feddwa", 3, apart, topk=1, guidance=guidance, lr=0.1), played("local", 3, apart, lr=0.1)
    close(sim.server.p, torch.eye(3))
    close(personal(sim), personal(alone), 0, 1e-12)


def test_feddwa_keeping_one_model_takes_the_nearest_even_if_it_is_not_the_own() -> None:
    # last_model: w* = 0 for all, and w = (2, 0), (0, 4), (-1, 3): client 0's is nearest to all
    sim = played("feddwa", 1, THREE, topk=1, guidance="last_model")
    dwa_round([[1.0, 0.0, 0.0]] * 3, sim, [[2.0, 0.0], [0.0, 4.0], [-1.0, 3.0]])


def test_feddwa_renormalises_the_models_it_keeps() -> None:
    # d = |w_j|^2 = 4, 16, 10
    sim = played("feddwa", 1, THREE, topk=2, guidance="last_model")
    dwa_round([[10 / 14, 0.0, 4 / 14]] * 3, sim, [[2.0, 0.0], [0.0, 4.0], [-1.0, 3.0]])


def test_feddwa_one_participant_keeps_its_own_model() -> None:
    settings = {"participation": Participation("uniform", clients=1)}
    sim, alone = (played(name, 6, THREE, settings=settings) for name in ("feddwa", "local"))
    close(sim.server.p, torch.eye(3), 0, 0)
    close(personal(sim), personal(alone), 0, 1e-12)


def test_feddwa_weights_sum_to_one_over_those_that_took_part() -> None:
    sim = begun(
        "feddwa", 6, classified((7, 4, 9, 5, 1, 3)), model=MLP,
        settings={"training": MOMENTUM, "participation": Participation("uniform", 0.5)}, topk=2,
    )  # fmt: skip
    while not sim.finished:
        cohort = [sim.names.index(name) for name in sim.advance().cohort]
        p = sim.algorithm.relations(sim.server)["p"]
        others = [i for i in range(6) if i not in cohort]
        close(p.sum(1), [1.0] * 6)
        assert (p >= 0).all()
        assert not p[cohort][:, others].any()
        assert ((p[cohort] > 0).sum(1) == 2).all()


def test_feddwa_equal_models_share_alike() -> None:
    """At a stationary point all distances are zero."""
    dwa_round([[0.25] * 4] * 4, played("feddwa", 1, located([[0.0, 0.0]] * 4)), [[0.0, 0.0]] * 4)


def test_feddwa_notes_how_much_of_its_own_a_client_keeps() -> None:
    sim = played("feddwa", guidance="full_gradient")
    assert sim.algorithm.notes(sim.server)["mean_self_weight"] == pytest.approx((25 / 26 + 40 / 44) / 2)


# --- PGFed -------------------------------------------------------------------------------------------------------


def test_pgfed_first_round_is_plain_and_prepares_the_second() -> None:
    # theta = b / 2, G = -b / 2, s = mu (|b|^2 / 8 + |b|^2 / 4) = 3/8 mu |b|^2
    sim = played("pgfed", mu=0.1)
    close(personal(sim), [[2.0, 0.0], [0.0, 4.0]])
    close(sim.server.w.flat(), [[0.5, 3.0]])  # p = (1/4, 3/4)
    close(sim.server.gradients.flat(), [[-2.0, 0.0], [0.0, -4.0]])
    close(sim.server.risks, [0.1 * 6.0, 0.1 * 24.0])
    assert sim.server.sources.tolist() == [0, 1]
    assert sim.server.alpha.isnan().all()


def test_pgfed_second_round_adds_the_auxiliary_gradient_and_moves_alpha() -> None:
    sim = played("pgfed", 2, mu=0.1, lr_alpha=0.01)
    call = sim.calls[-1]
    # alpha = 1/2: g = 0.05 (-2, -4); gbar = 0.1 / 2 (-2, -4); w = (0.5, 3)
    close(call.received["auxiliary"].flat(), [[-0.1, -0.2]] * 2)
    close(call.received["mean"].flat()[0], [-0.1, -0.2])
    # theta = w - (w - b + g) / 2
    close(personal(sim), [[0.5 + 1.75 + 0.05, 3.0 - 1.5 + 0.1], [0.5 - 0.25 + 0.05, 3.0 + 2.5 + 0.1]])
    # alpha - 0.01 (s_j + <gbar, w>), <gbar, w> = -0.65
    close(sim.server.alpha, [[0.5 - 0.01 * (0.6 - 0.65), 0.5 - 0.01 * (2.4 - 0.65)]] * 2)
    gradients = personal(sim) - torch.tensor(B, dtype=torch.float64)
    close(sim.server.gradients.flat(), gradients)
    risks = 0.1 * (gradients.square().sum(1) / 2 - (gradients * personal(sim)).sum(1))
    close(sim.server.risks, risks)
    close(sim.server.w.flat()[0], [0.25 * 2.3 + 0.75 * 0.3, 0.25 * 1.6 + 0.75 * 5.6])


def test_pgfed_alpha_is_clipped_at_zero_and_may_return() -> None:
    # slopes at w: -0.05 and 1.75, so that 0.5 - eta_2 slope is positive and negative
    sim = played("pgfed", 2, mu=0.1, lr_alpha=2.0)
    close(sim.server.alpha, [[0.6, 0.0]] * 2)
    assert sim.algorithm.notes(sim.server)["zero_alphas"] == 0.5
    # two epochs: clipped after each; once clipped, a negative slope moves it up from zero
    w, b, g = np.array([0.5, 3.0]), np.array(B), np.array([-0.1, -0.2])
    sim = begun("pgfed", 2, mu=0.1, lr_alpha=2.0)
    sim.advance()
    sim.server.risks = torch.tensor([0.66, -0.5], dtype=torch.float64)
    sim.server.alpha[:] = torch.tensor([[0.0, 0.5], [0.01, 0.25]], dtype=torch.float64)
    sim.advance()
    slope = np.array([0.66, -0.5]) + g @ w  # 0.01 and -1.15
    assert slope[0] > 0 > slope[1]
    close(sim.server.alpha, [[0.0, 0.5 - 2 * slope[1]], [0.0, 0.25 - 2 * slope[1]]])
    aux = 0.1 * np.array([[0.0, 0.5], [0.01, 0.25]]) @ np.array([[-2.0, 0.0], [0.0, -4.0]])
    close(personal(sim), w - 0.5 * (w - b + aux))  # within a round the auxiliary gradient stays as it came


def pgfed_by_hand(
    b: Any, n: Any, rounds: int, absent: dict[int, list[int]], *, mu: float, lr_alpha: float, beta: float, lr: float,
    epochs: int, momentum: float, persistent: bool,
) -> dict[str, Any]:  # fmt: skip
    """Algorithm 1 and 2 of the paper, one client after another, on quadratics and full batches."""
    b, n = np.array(b), np.array(n, dtype=float)
    K = len(b)
    theta, velocity, g = np.zeros_like(b), np.zeros_like(b), dict[int, Any]()
    w, alpha, G, s, sources = np.zeros(b.shape[1]), np.full((K, K), np.nan), {}, {}, []
    for t in range(1, rounds + 1):
        present = [i for i in range(K) if i not in absent.get(t, [])]
        for i in present:
            x, v = w.copy(), velocity[i].copy() if persistent else np.zeros_like(w)
            a = {j: 1.0 / K if np.isnan(alpha[i, j]) else alpha[i, j] for j in sources}
            extra = mu * sum((a[j] * G[j] for j in sources), np.zeros_like(w))
            mean = mu / K * sum((G[j] for j in sources), np.zeros_like(w))
            if sources and beta:
                extra = (1 - beta) * extra + beta * g[i] if i in g else extra
                g[i] = extra
            for _ in range(epochs):
                for j in sources:
                    a[j] = max(0.0, a[j] - lr_alpha * (s[j] + mean @ x))
                v = momentum * v + (x - b[i] + extra)
                x = x - lr * v
            theta[i], velocity[i] = x, v
            for j in sources:
                alpha[i, j] = a[j]
        G = {i: theta[i] - b[i] for i in present}
        s = {i: mu * (G[i] @ G[i] / 2 - G[i] @ theta[i]) for i in present}
        sources, share = present, n[present] / n[present].sum()
        w = share @ theta[present]
    return {"theta": theta, "w": w, "alpha": alpha, "G": G, "s": s, "g": g, "velocity": velocity}


ABSENT = {1: [2], 2: [1], 3: [0, 2], 5: [1]}


@pytest.mark.parametrize("absent", [{}, ABSENT], ids=["all", "absent"])
@pytest.mark.parametrize("lr_alpha", [0.02, 0.5])
@pytest.mark.parametrize(("momentum", "persistent"), [(0.0, False), (0.6, False), (0.6, True)])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_pgfed_round_by_round(
    beta: float, momentum: float, persistent: bool, lr_alpha: float, absent: dict[int, list[int]]
) -> None:
    options = {"mu": 0.3, "lr_alpha": lr_alpha, "persistent": persistent}
    optimiser = {"lr": 0.2, "epochs": 2, "momentum": momentum}
    mo = {"beta": beta} if beta else {}
    away = {t: tuple(f"client-{i}" for i in who) for t, who in absent.items()}
    sim = played("pgfedmo" if beta else "pgfed", 6, THREE, absent=away, **options, **optimiser, **mo)
    hand = pgfed_by_hand(B3, [1, 3, 2], 6, absent, beta=beta, **options, **optimiser)  # type: ignore[arg-type]
    close(state(sim).flat(), hand["theta"])
    close(personal(sim), hand["theta"])
    close(sim.server.w.flat()[0], hand["w"])
    assert sim.server.sources.tolist() == sorted(hand["G"])
    close(sim.server.gradients.flat(), np.array([hand["G"][j] for j in sorted(hand["G"])]))
    close(sim.server.risks, [hand["s"][j] for j in sorted(hand["G"])])
    assert np.isnan(hand["alpha"]).any() == (sim.server.alpha.isnan().any())
    torch.testing.assert_close(
        sim.algorithm.relations(sim.server)["alpha"],
        torch.tensor(hand["alpha"]),
        rtol=1e-11,
        atol=1e-11,
        equal_nan=True,
    )
    if beta:
        close(state(sim, "g").flat(), np.array([hand["g"][i] for i in range(3)]))
    if persistent:
        close(state(sim, "optimiser")["momentum"].flat(), hand["velocity"])


def test_pgfedmo_mixes_from_the_second_receipt_on() -> None:
    """g = g~ when one comes for the first time, (1 - beta) g~ + beta g afterwards; who is away keeps g."""
    sim = begun("pgfedmo", 4, mu=0.1, beta=0.25, lr_alpha=0.0, absent={2: ("client-1",), 4: ("client-0",)})
    sim.advance()
    close(state(sim, "g").flat(), [[0.0, 0.0]] * 2)
    assert state(sim, "received").tolist() == [False, False]
    sim.advance()
    first = sim.calls[-1].received["auxiliary"].flat()
    close(first, [[-0.1, -0.2]])
    close(state(sim, "g").flat(), [[-0.1, -0.2], [0.0, 0.0]])
    assert state(sim, "received").tolist() == [True, False]
    sim.advance()
    second = sim.calls[-1].received["auxiliary"].flat()
    kept = torch.stack([0.75 * second[0] + 0.25 * first[0], second[1]])
    close(state(sim, "g").flat(), kept)
    sim.advance()
    third = sim.calls[-1].received["auxiliary"].flat()
    close(state(sim, "g").flat(), torch.stack([kept[0], 0.75 * third[0] + 0.25 * kept[1]]))


def one_at_a_time() -> Recording:
    """One participant a round on a federation that is not quadratic, alpha learned from one batch."""
    sim = begun(
        "pgfed", 12, classified((7, 4, 9)), model=MLP, lr=0.3, mu=0.4, lr_alpha=0.05,
        settings={"participation": Participation("uniform", clients=1)},
    )  # fmt: skip
    run(sim)
    return sim


def test_pgfed_alpha_gradient_is_the_linearised_risk_with_one_participant() -> None:
    """d F_i / d alpha_ij = mu (f_j(theta_j) + <grad f_j(theta_j), theta_i - theta_j>), by finite differences of f_j."""
    sim = one_at_a_time()
    met = 0
    for before, after in zip(sim.calls[:-1], sim.calls[1:], strict=True):
        source, theta_j, w = before.site, before.returned["theta"], after.received["w"]
        direction, h = w - theta_j, 1e-5
        slope = (source.loss("train", theta_j + direction * h) - source.loss("train", theta_j - direction * h)) / (
            2 * h
        )
        linearised = source.loss("train", theta_j) + slope
        alpha, moved = after.received["alpha"], after.returned["alpha"]
        assert alpha.shape == (1, 1)
        close(moved, (alpha - 0.05 * 0.4 * linearised).clamp(min=0.0), 1e-8, 1e-8)
        close(sim.algorithm.relations(sim.server)["alpha"].isnan().all(), False)
        met += int(before.site.names != after.site.names)
    assert met > 2


def test_pgfed_gradient_of_theta_is_that_of_the_objective_with_one_participant() -> None:
    """theta = w - lr d/dtheta [f_i + mu alpha_ij (f_j(theta_j) + <grad f_j(theta_j), theta - theta_j>)] on a full batch."""
    sim = one_at_a_time()
    draw = torch.Generator().manual_seed(0)
    for before, after in zip(sim.calls[:-1], sim.calls[1:], strict=True):
        w, moved, h = after.received["w"], after.returned["theta"], 1e-5
        towards = Models(
            w.layout, {n: torch.randn(t.shape, generator=draw, dtype=torch.float64) for n, t in w.parameters()}
        )

        def objective(step: float, before: Any = before, after: Any = after, w: Any = w, v: Models = towards) -> Tensor:
            theta, theta_j = w + v * step, before.returned["theta"]
            risk = after.site.loss("train", theta)
            along, e = theta - theta_j, 1e-4
            f_j = [before.site.loss("train", theta_j + along * sign) for sign in (e, -e)]
            linear = before.site.loss("train", theta_j) + (f_j[0] - f_j[1]) / (2 * e)
            return risk + 0.4 * after.received["alpha"][:, 0] * linear

        slope = (objective(h) - objective(-h)) / (2 * h)
        close((w - moved).dot(towards) / 0.3, slope, 1e-5, 1e-6)


def test_pgfed_one_client_adds_its_own_former_gradient() -> None:
    # theta_1 = b / 2, G = -b / 2; alpha = 1 and lr_alpha = 0: theta_2 = b / 2 - (-b / 2 - mu b / 2) / 2
    close(personal(played("pgfed", 2, located([[4.0, 8.0]]), mu=0.2, lr_alpha=0.0)), [[2 + 1 + 0.2, 4 + 2 + 0.4]])


@pytest.mark.parametrize("name", ["pgfed", "pgfedmo"])
def test_pgfed_without_strength_trains_as_fedavg(name: str) -> None:
    federation = classified((7, 4, 9, 5))
    settings = {"training": MOMENTUM, "participation": Participation("uniform", 0.5)}
    ours = begun(name, 4, federation, model=MLP, settings=settings, mu=0.0)
    theirs = begun("fedavg", 4, federation, model=MLP, settings=settings)
    for _ in range(4):
        ours.advance()
        theirs.advance()
        close(ours.server.w.flat(), theirs.server.w.flat(), 0, 1e-12)
        close(ours.calls[-1].returned["theta"].flat(), theirs.calls[-1].returned["w"].flat(), 0, 1e-12)
    met = ours.server.alpha[~ours.server.alpha.isnan()]
    close(met, torch.full_like(met, 0.5))  # and alpha stays 1 / M


def test_pgfed_with_alpha_at_zero_is_fedavg() -> None:
    federation = classified((7, 4, 9, 5))
    settings = {"training": MOMENTUM}
    ours = begun("pgfed", 3, federation, model=MLP, settings=settings, mu=0.5, lr_alpha=0.0)
    ours.server.alpha[:] = 0.0
    run(ours)
    theirs = played("fedavg", 3, federation, model=MLP, settings=settings)
    close(ours.server.w.flat(), theirs.server.w.flat(), 0, 1e-12)
    assert not ours.server.alpha.any()


def test_pgfedmo_without_momentum_is_pgfed() -> None:
    settings = {"training": MOMENTUM, "participation": Participation("uniform", 0.5)}
    federation = classified((7, 4, 9, 5))
    ours, theirs = (
        played(name, 5, federation, model=MLP, settings=settings, mu=0.5, **options)
        for name, options in (("pgfedmo", {"beta": 0.0}), ("pgfed", {}))
    )
    close(personal(ours), personal(theirs), 0, 0)
    assert torch.equal(ours.server.alpha.nan_to_num(-1.0), theirs.server.alpha.nan_to_num(-1.0))


@pytest.mark.parametrize("name", ["pgfed", "pgfedmo"])
def test_pgfed_identical_clients_have_equal_alphas(name: str) -> None:
    sim = played(name, 4, alike(4), model=MLP, mu=0.5, lr_alpha=0.1, epochs=2)
    alpha = sim.server.alpha
    close(alpha, alpha[0, 0].expand(4, 4))
    assert not torch.isclose(alpha[0, 0], torch.tensor(0.25, dtype=torch.float64), atol=1e-3)
    close(personal(sim), personal(sim)[:1].expand(4, -1))


def test_pgfed_keeps_momentum_from_round_to_round() -> None:
    # lr = 1/2, momentum 1/2, mu = 0. round 1: v = -b, theta = b / 2; w = (0.5, 3)
    sim = played("pgfed", 2, mu=0.0, persistent=True, momentum=0.5)
    w, b = torch.tensor([0.5, 3.0], dtype=torch.float64), torch.tensor(B, dtype=torch.float64)
    v = -0.5 * b + (w - b)
    close(state(sim, "optimiser")["momentum"].flat(), v)
    close(personal(sim), w - 0.5 * v)
    close(personal(played("pgfed", 2, mu=0.0, momentum=0.5)), w - 0.5 * (w - b))


# --- FedeRiCo ----------------------------------------------------------------------------------------------------

PHI = [[1.0, 1.0], [-1.0, 3.0]]
PHI3 = [[1.0, 1.0], [-1.0, 3.0], [0.5, 4.0]]
CALM = {"loss_scale": "mean"}


def rico(
    rounds: int = 1, federation: Federation = TWO, variant: str = "decentralised", phi: Any = PHI, **options: Any
) -> Recording:
    """A simulation that begins with the models ``phi``, asks everybody and has losses of moderate size."""
    sim = begun("federico", rounds, federation, variant, **{"neighbours": 10, **CALM, **options})
    sim.server.phi = models_like(sim, phi)
    return sim


def losses_of(phi: Tensor, b: Any) -> Tensor:
    """f_i(phi_j), ``(K, K)``."""
    return (torch.tensor(b, dtype=torch.float64)[:, None] - phi[None]).square().sum(2) / 2


def rounds_of(sim: Recording, b: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Every round's losses of all models at its beginning, and the weights after it."""
    losses, weights = [], []
    while not sim.finished:
        losses.append(losses_of(sim.server.phi.flat(), b))
        sim.advance()
        weights.append(sim.algorithm.relations(sim.server)["w"].clone())
    return losses, weights


def asked_of(sim: Recording, method: str = "local_update") -> list[Tensor]:
    """B_i of every round."""
    return [call.received["index"] for call in sim.calls if call.method == method]


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"loss_scale": "mean"}, [1.0, 1.0, 1.0]),
        ({"loss_scale": "sum"}, [1.0, 3.0, 2.0]),
        ({"loss_scale": "tempered", "tau": 5.0}, [0.2, 0.6, 0.4]),
    ],
)
def test_federico_central_posterior_is_the_softmax_of_accumulated_losses(
    options: dict[str, Any], factor: list[float]
) -> None:
    """w^t ~ w^(t-1) exp(-loss), from w^0 = 1 / K."""
    sim = rico(4, THREE, "central", PHI3, **options)
    losses, weights = rounds_of(sim, B3)
    total, prior = torch.zeros(3, 3, dtype=torch.float64), torch.full((3, 3), 1 / 3, dtype=torch.float64)
    for loss, w in zip(losses, weights, strict=True):
        scaled = loss * torch.tensor(factor, dtype=torch.float64).unsqueeze(1)
        total = total + scaled
        close(w, (-total).softmax(1))
        prior = prior * (-scaled).exp()
        prior = prior / prior.sum(1, keepdim=True)
        close(w, prior, 1e-9, 1e-12)
    assert not torch.allclose(weights[0], weights[-1], atol=1e-3)


def test_federico_sums_over_the_examples_that_judge() -> None:
    """With evidence of validation that is n_i of validation, and of training where a client has none of the other."""
    counts = [2, 5, 0]
    validation = ClientData.from_clients(
        [torch.ones(n, 1) for n in counts],
        [torch.tensor([mean]).repeat(n, 1) for n, mean in zip(counts, B3, strict=True)],
    )
    sim = rico(
        1, replace(THREE, validation=validation), "central", PHI3, evidence="validation", loss_scale="tempered", tau=4.0
    )
    [loss], [w] = rounds_of(sim, B3)
    close(w, (-loss * torch.tensor([[0.5], [1.25], [0.5]], dtype=torch.float64)).softmax(1))


def test_federico_central_m_step() -> None:
    # Phi_j <- Phi_j - eta sum_i (n_i / n) w_ij (phi_j - b_i) with the weights of this round's E step
    sim = rico(1, TWO, "central", owner_lr=0.2)
    sim.advance()
    phi, b = torch.tensor(PHI, dtype=torch.float64), torch.tensor(B, dtype=torch.float64)
    w = (-losses_of(phi, B)).softmax(1)
    share = torch.tensor([0.25, 0.75], dtype=torch.float64)
    gradient = torch.stack([sum(share[i] * w[i, j] * (phi[j] - b[i]) for i in range(2)) for j in range(2)])
    close(sim.server.phi.flat(), phi - 0.2 * gradient)


def test_federico_central_weighs_those_that_answered() -> None:
    sim = rico(1, THREE, "central", PHI3, owner_lr=0.2, absent={1: ("client-0",)})
    sim.advance()
    phi, b = torch.tensor(PHI3, dtype=torch.float64), torch.tensor(B3, dtype=torch.float64)
    w = (-losses_of(phi, B3)).softmax(1)
    share = {1: 3 / 5, 2: 2 / 5}
    gradient = torch.stack([sum(p * w[i, j] * (phi[j] - b[i]) for i, p in share.items()) for j in range(3)])
    close(sim.server.phi.flat(), phi - 0.2 * gradient)
    close(sim.server.w[0], [1 / 3] * 3)


def test_federico_with_beta_one_uses_the_latest_losses_only() -> None:
    losses, weights = rounds_of(rico(4, THREE, phi=PHI3, beta=1.0), B3)
    for loss, w in zip(losses, weights, strict=True):
        close(w, (-loss).softmax(1))


@pytest.mark.parametrize("init", ["first_observation", "zero"])
def test_federico_tracks_losses_by_a_moving_average(init: str) -> None:
    """beta multiplies the new loss; the average begins at the first loss, or at zero."""
    losses, weights = rounds_of(rico(4, THREE, phi=PHI3, beta=0.3, init=init), B3)
    tracked = losses[0] if init == "first_observation" else torch.zeros(3, 3, dtype=torch.float64)
    for loss, w in zip(losses, weights, strict=True):
        tracked = 0.7 * tracked + 0.3 * loss
        close(w, (-tracked).softmax(1))


def test_federico_decentralised_may_accumulate() -> None:
    losses, weights = rounds_of(rico(3, THREE, phi=PHI3, tracking="accumulated"), B3)
    total = torch.zeros(3, 3, dtype=torch.float64)
    for loss, w in zip(losses, weights, strict=True):
        total = total + loss
        close(w, (-total).softmax(1))


@pytest.mark.parametrize("tracking", ["ema", "accumulated"])
@pytest.mark.parametrize("init", ["first_observation", "zero"])
def test_federico_losses_that_are_not_renewed_keep_counting(init: str, tracking: str) -> None:
    """L^_ij moves on with the last l_ij of every model that is known, asked for or not."""
    beta = 0.3
    sim = rico(6, THREE, phi=PHI3, neighbours=1, epsilon=0.5, beta=beta, init=init, tracking=tracking)
    losses, weights = rounds_of(sim, B3)
    asked = asked_of(sim)
    last = np.zeros((3, 3))
    tracked, known = np.zeros((3, 3)), np.full((3, 3), init == "zero")
    stale = 0
    for loss, w, index in zip(losses, weights, asked, strict=True):
        for i in range(3):
            members = index[i].tolist()
            assert members[0] == i
            for j in range(3):
                if j in members:
                    last[i, j] = loss[i, j]
                elif known[i, j]:
                    stale += 1
                else:
                    continue
                if tracking == "accumulated":
                    tracked[i, j] += last[i, j]
                elif known[i, j]:
                    tracked[i, j] = (1 - beta) * tracked[i, j] + beta * last[i, j]
                else:
                    tracked[i, j] = last[i, j]
                known[i, j] = True
        expected = torch.where(torch.tensor(known), -torch.tensor(tracked), -torch.inf).softmax(1)
        close(w, expected)
        close(w.sum(1), [1.0] * 3)
    assert stale > 3
    close(state(sim, "tracked"), tracked)
    close(state(sim, "last"), last)


def test_federico_gives_no_weight_to_models_it_has_never_seen_unless_they_begin_at_zero() -> None:
    for init in ("first_observation", "zero"):
        sim = rico(1, THREE, phi=PHI3, neighbours=1, init=init)
        sim.advance()
        (index,) = asked_of(sim)
        unseen = torch.ones(3, 3, dtype=torch.bool).scatter(1, index, False)
        if init == "zero":  # a loss of zero looks perfect
            assert (sim.server.w[unseen] > sim.server.w.amax(1) - 1e-12).all()
        else:
            assert not sim.server.w[unseen].any()


def test_federico_weights_do_not_see_a_constant_in_the_losses() -> None:
    """Another target in data that no model can explain adds the same to all of a client's losses."""
    plain = rico(3, THREE, phi=PHI3, step="gradient", owner="sgd")
    shifted = rico(3, THREE, phi=PHI3, step="gradient", owner="sgd")
    original = shifted.algorithm.scaled  # type: ignore[attr-defined]
    constants = torch.tensor([[1000.0], [-50.0], [0.25]], dtype=torch.float64)
    object.__setattr__(shifted.algorithm, "scaled", lambda site, loss: original(site, loss) + constants[site.clients])
    run(plain)
    run(shifted)
    close(shifted.server.w, plain.server.w, 1e-9, 1e-11)
    close(shifted.server.phi.flat(), plain.server.phi.flat(), 1e-9, 1e-11)


def test_federico_large_losses_do_not_overflow() -> None:
    far = located([[4e4, 0.0], [0.0, 8e4]], [1, 3])
    sim = rico(2, far, phi=[[0.0, 0.0], [1.0, 1.0]], loss_scale="sum")
    run(sim)
    close(sim.server.w.sum(1), [1.0, 1.0])
    assert sim.server.phi.finite().all()


@pytest.mark.parametrize("scale", [1e160, -1e75])  # its loss overflows, or is finite and its training overflows
@pytest.mark.parametrize(
    ("variant", "options"),
    [
        ("decentralised", {}), ("decentralised", {"init": "zero"}), ("decentralised", {"tracking": "accumulated"}),
        ("decentralised", {"step": "gradient"}), ("decentralised", {"neighbours": 1, "epsilon": 1.0}), ("central", {}),
    ],
)  # fmt: skip
def test_federico_a_model_that_has_diverged_harms_nobody(variant: str, options: dict[str, Any], scale: float) -> None:
    """It has no weight, nobody fails because of it, and the others are trained."""
    federation = located([*B3, [1.0, 1.0]], [1, 3, 2, 2])
    options = {"neighbours": 10, **CALM, **options}
    sim = begun("federico", 3, federation, variant, lr=0.1, epochs=2, model=MLP, **options)
    sim.server.phi = sim.server.phi * torch.tensor([1.0, scale, 1.0, 1.0], dtype=torch.float64)
    before = sim.server.phi.flat()
    reports = run(sim)
    assert not any(report.failures for report in reports)
    assert sim.server.w[:, 1].tolist() == [0.0] * 4
    assert (sim.server.phi.flat() != before).any(dim=1).tolist() == [True, False, True, True]
    assert bool(np.isfinite(reports[-1].evaluations["test"]["mse"]).all())


def test_federico_a_model_that_is_mended_comes_back() -> None:
    """With its new loss whole, whatever the old one was."""
    sim = rico(2, THREE, phi=[PHI3[0], [1e200, 0.0], PHI3[2]], neighbours=2)
    sim.advance()
    assert sim.server.w[:, 1].tolist() == [0.0] * 3
    first = losses_of(torch.tensor(PHI3, dtype=torch.float64), B3)
    sim.server.phi = models_like(sim, PHI3)
    sim.advance()
    close(sim.server.w, (-first).softmax(1))


def test_federico_newcomers_and_owners_predict_without_diverged_models() -> None:
    sim = rico(1, THREE, phi=PHI3)
    sim.advance()
    sim.server.phi = models_like(sim, [PHI3[0], [1e200, torch.nan], PHI3[2]])
    sim.server.w = torch.tensor([[0.6, 0.0, 0.4], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    offer = sim.algorithm.offer(sim.server, torch.arange(3))
    assert offer["phi"].index[1].tolist() == [0, 1]  # a slot too many, which holds its own model
    means = sim.server.w[:, [0, 2]] @ torch.tensor([PHI3[0], PHI3[2]], dtype=torch.float64)
    error = means - torch.tensor(B3, dtype=torch.float64)
    close(sim.sites.evaluate(offer, 1)["test"]["mse"], error.square().mean(1))
    settings = Settings(training=FULL_BATCH, dtype="float64", threads=1)
    newcomers = Admission(Trained.of(sim), located([[0.5, 2.0]]), sim.algorithm, LOCATION, settings)
    admitted = newcomers.admit(labelled=True, epochs=0)
    assert admitted is not None
    assert admitted.predictor.weights is not None
    losses = losses_of(torch.tensor([PHI3[0], PHI3[2]], dtype=torch.float64), [[0.5, 2.0]])
    close(admitted.predictor.weights.sort().values, (-losses).softmax(1).sort().values)


def test_federico_equal_losses_share_the_weight() -> None:
    sim = rico(1, THREE, phi=[PHI[0]] * 3)
    sim.advance()
    close(sim.server.w, [[1 / 3] * 3] * 3)


@pytest.mark.parametrize("model", [MLP, NORMED])
@pytest.mark.parametrize("training", [MOMENTUM, replace(MOMENTUM, optimizer="adam", lr=0.01)], ids=["sgd", "adam"])
def test_federico_without_neighbours_is_local(training: TrainingSettings, model: Any) -> None:
    settings = {"training": training}
    federation = classified((7, 4, 9, 5))
    sim = played("federico", 3, federation, model=model, settings=settings, neighbours=0, init_models="common")
    alone = played("local", 3, federation, model=model, settings=settings)
    close(sim.server.w, torch.eye(4), 0, 0)
    close(personal(sim), personal(alone), 0, 1e-12)
    assert all(len(set(index[:, 0].tolist())) == 4 and index.shape[1] == 1 for index in asked_of(sim))
    ours, theirs = sim.report_models(), alone.report_models()
    for name in ours.layout.buffers:
        close(ours.tensors[name].flatten(), theirs.tensors[name].flatten(), 0, 1e-12)
    assert bytes_of(sim, "peer") in ([], [0] * 4)


def test_federico_is_local_until_it_has_warmed_up() -> None:
    federation, settings = classified((7, 4, 9, 5)), {"training": BATCHES}
    begin = {"model": LINEAR, "settings": settings, "init_models": "common"}
    ours = begun("federico", 3, federation, warm_up=2, neighbours=2, **begin)
    theirs = begun("federico", 2, federation, neighbours=0, **begin)
    for _ in range(2):
        ours.advance(), theirs.advance()
    close(ours.server.phi.flat(), theirs.server.phi.flat(), 0, 0)
    close(ours.server.w, torch.eye(4, dtype=torch.float64), 0, 0)
    ours.advance()
    assert [index.shape[1] for index in asked_of(ours)] == [1, 1, 3]
    assert (ours.server.w > 0).sum(1).tolist() == [3] * 4


@pytest.mark.parametrize("options", [{"variant": "central"}, {"init": "zero"}])
def test_federico_refuses_a_warm_up_that_would_not_be_alone(options: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match="warm_up"):
        begun("federico", 1, TWO, **{"variant": "decentralised", "warm_up": 1, **options})


def test_federico_one_hot_weights_give_local_updates() -> None:
    """Far apart, the sum of squares leaves each client with its own model."""
    far = located([[40.0, 0.0], [0.0, 80.0], [-90.0, -10.0]], [2, 3, 2])
    start = [[30.0, 0.0], [0.0, 60.0], [-60.0, 0.0]]
    sim = rico(3, far, phi=start, loss_scale="sum", lr=0.1)
    run(sim)
    close(sim.server.w, torch.eye(3))
    b = torch.tensor([[40.0, 0.0], [0.0, 80.0], [-90.0, -10.0]], dtype=torch.float64)
    close(personal(sim), b + 0.9**3 * (torch.tensor(start, dtype=torch.float64) - b))


def used_weights(sim: Recording) -> Tensor:
    """w_ib of the models that were asked for in the last round, ``(K, K)``, zero elsewhere."""
    call = [call for call in sim.calls if call.method == "local_update"][-1]
    table = torch.zeros(sim.K, sim.K, dtype=torch.float64)
    for client, index, used in zip(
        call.site.clients.tolist(), call.received["index"], call.returned["used"], strict=True
    ):
        table[client, index] = used
    return table


@pytest.mark.parametrize("lr", [0.5, 0.125])
def test_federico_owners_step_with_copies(lr: float) -> None:
    # two epochs: copy_ib = phi_b + q (b_i - phi_b), q = 1 - (1 - lr)^2
    sim = rico(1, THREE, phi=PHI3, lr=lr, epochs=2)
    sim.advance()
    phi, b = torch.tensor(PHI3, dtype=torch.float64), torch.tensor(B3, dtype=torch.float64)
    w, q = (-losses_of(phi, B3)).softmax(1), 1 - (1 - lr) ** 2
    close(used_weights(sim), w)
    moved = phi.clone()
    for owner in range(3):
        total = sum(w[i, owner] * (phi[owner] - (phi[owner] + q * (b[i] - phi[owner]))) for i in range(3))
        moved[owner] = phi[owner] - total / max(1.0, float(w[:, owner].sum()))
    assert float(w.sum(0).max()) > 1 > float(w.sum(0).min()) > 0.01  # both cases of max(1, .)
    close(sim.server.phi.flat(), moved)


def gradient_sums(phi: Tensor, w: Tensor, b: Any) -> Tensor:
    """sum_i w_ib grad f_i(phi_b) of every owner b."""
    targets = torch.tensor(b, dtype=torch.float64)
    return torch.stack([sum(w[i, o] * (phi[o] - targets[i]) for i in range(len(b))) for o in range(len(b))])


def test_federico_owners_step_with_gradients() -> None:
    sim = rico(2, THREE, phi=PHI3, step="gradient", owner="sgd", owner_lr=0.2)
    phi = torch.tensor(PHI3, dtype=torch.float64)
    while not sim.finished:
        sim.advance()
        phi = phi - 0.2 * gradient_sums(phi, used_weights(sim), B3)
        close(sim.server.phi.flat(), phi)


def test_federico_owners_adam_is_kept_and_skips_models_of_no_weight() -> None:
    """Each owner's Adam is that of torch, which does nothing in a round without weight."""
    start = [[3.9, 0.1], [0.0, 8.0], [40.0, 40.0]]  # client 2's model is of use to nobody, itself included
    sim = rico(6, THREE, phi=start, neighbours=10, step="gradient", owner="adam", owner_lr=0.05)
    own = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in start]
    optimisers = [torch.optim.Adam([parameter], lr=0.05) for parameter in own]
    masses = []
    while not sim.finished:
        before = sim.server.phi.flat()
        sim.advance()
        w = used_weights(sim)
        for owner, gradient in enumerate(gradient_sums(before, w, B3)):
            if float(w[:, owner].sum()) >= 1e-3:
                own[owner].grad = gradient
                optimisers[owner].step()
        close(sim.server.phi.flat(), torch.stack([parameter.detach() for parameter in own]))
        masses.append(w.sum(0))
    assert all(float(mass[2]) < 1e-3 <= float(mass[:2].min()) for mass in masses)
    close(sim.server.phi.flat()[2], start[2], 0, 0)
    assert sim.server.steps.tolist() == [6, 6, 0]


def test_federico_central_adam_leaves_models_of_no_weight_alone() -> None:
    """Adam's steps are of one length, however small the gradient that a weight of nearly 0 leaves."""
    start = [[3.9, 0.1], [0.0, 8.0], [5.0, 5.0]]
    sim = rico(3, THREE, phi=start, variant="central", owner="adam", owner_lr=0.05)
    run(sim)
    assert 0.0 < float(sim.server.w[:, 2].sum()) < 1e-3
    close(sim.server.phi.flat()[2], start[2], 0, 0)
    assert sim.server.steps.tolist() == [3, 3, 0]


@pytest.mark.parametrize("step", ["epochs", "gradient"])
@pytest.mark.parametrize(("mass", "moves"), [(0.9e-3, False), (1.1e-3, True)])
def test_federico_a_model_of_hardly_any_weight_stays(mass: float, moves: bool, step: str) -> None:
    sim = rico(step=step, owner="sgd")
    change = models_like(sim, [[1.0, 2.0], [1.0, 2.0]])
    sim.algorithm.owner_step(sim.server, change, torch.tensor([mass, 1.0], dtype=torch.float64))  # type: ignore[attr-defined]
    rate = 1.0 if step == "epochs" else 0.01
    moved = torch.tensor(PHI, dtype=torch.float64) - sim.server.phi.flat()
    close(moved, [[rate * mass * moves, 2 * rate * mass * moves], [rate, 2 * rate]])


def test_federico_models_of_absent_clients_are_asked_for_and_trained() -> None:
    sim = rico(1, THREE, phi=PHI3, absent={1: ("client-2",)})
    sim.advance()
    phi, b = torch.tensor(PHI3, dtype=torch.float64), torch.tensor(B3, dtype=torch.float64)
    w = (-losses_of(phi, B3)).softmax(1)
    moved = phi.clone()
    for owner in range(3):
        mass = float(w[:2, owner].sum())
        moved[owner] -= sum(w[i, owner] * 0.5 * (phi[owner] - b[i]) for i in range(2)) / max(1.0, mass)
    close(sim.server.phi.flat(), moved)
    assert sim.server.met.tolist() == [True, True, False]
    offer = sim.algorithm.offer(sim.server, torch.tensor([2]))
    close(offer["weights"], [[1.0]])  # who has not taken part predicts with its own model
    assert offer["phi"].index.tolist() == [[2]]


def test_federico_identical_clients_have_symmetric_weights() -> None:
    sim = played("federico", 3, alike(4), model=MLP, init_models="common", neighbours=10, epochs=2)
    close(sim.server.w, [[0.25] * 4] * 4)
    close(sim.server.phi.flat(), sim.server.phi.flat()[:1].expand(4, -1))


def test_federico_one_client_is_local() -> None:
    for variant, options in (("decentralised", {}), ("central", {"owner_lr": 0.5})):
        sim = played("federico", 3, located([[4.0, 8.0]]), variant, **options)
        close(sim.server.w, [[1.0]])
        close(personal(sim), [[3.5, 7.0]])


@pytest.mark.parametrize("variant", ["decentralised", "central"])
def test_federico_newcomers_weigh_all_models_by_their_losses(variant: str) -> None:
    """w = softmax(-l), the least loss the largest weight; without labels all alike."""
    sim = rico(1, THREE, variant, PHI3, loss_scale="tempered", tau=10.0)
    sim.advance()
    phi, b = sim.server.phi.flat(), [[1.5, 0.5], [-1.0, 4.0]]
    settings = Settings(training=FULL_BATCH, dtype="float64", threads=1)
    coming = Admission(Trained.of(sim), located(b), sim.algorithm, LOCATION, settings)
    posterior = (-losses_of(phi, b) / 10).softmax(1)
    assert float(posterior.min()) > 1e-3
    assert float(posterior.max(1).values.min()) > 0.4
    for labelled, w in ((True, posterior), (False, torch.full((2, 3), 1 / 3, dtype=torch.float64))):
        came = coming.admit(labelled=labelled, epochs=0)
        assert came is not None
        assert came.predictor.weights is not None
        mixed = (came.predictor.weights.unsqueeze(2) * came.models.flatten_candidates().flat().view(2, 3, 2)).sum(1)
        close(mixed, w @ phi)
        close(came.values["mse"][0], (w @ phi - torch.tensor(b)).square().mean(1))


def test_federico_asks_itself_and_others_once_each() -> None:
    sim = played("federico", 8, classified((7, 4, 9, 5, 6)), model=LINEAR, neighbours=2, settings={"training": BATCHES})
    for index in asked_of(sim):
        assert index[:, 0].tolist() == [0, 1, 2, 3, 4]
        assert index.shape == (5, 3)
        assert all(len(set(row)) == 3 for row in index.tolist())


def test_federico_without_exploring_asks_whom_it_trusts() -> None:
    """In the first round ties are broken at random; then the best known others come first."""
    sim = rico(4, located([*B3, [3.0, 1.0]]), phi=[*PHI3, [2.0, 2.0]], neighbours=2, epsilon=0.0)
    before = sim.server.w.clone()
    while not sim.finished:
        sim.advance()
        index = asked_of(sim)[-1]
        for i in range(4):
            others = [j for j in range(4) if j != i]
            asked = index[i, 1:].tolist()
            assert sorted(before[i, asked].tolist()) == sorted(before[i, others].tolist())[-2:]
        before = sim.server.w.clone()


# --- FedeRiCo: traffic, prediction, batch statistics -------------------------------------------------------------


def test_federico_books_each_transfer_once_at_both_ends() -> None:
    """A model to the asker and a change back to its owner; what a client asks of itself is free."""
    rounds, d = 5, 2 * 8
    sim = rico(rounds, located([*B3, [3.0, 1.0]]), phi=[*PHI3, [2.0, 2.0]], neighbours=1, epsilon=1.0)
    expected = np.zeros(4, dtype=np.int64)
    for number in range(rounds):
        sim.advance()
        for i, (own, other) in enumerate(asked_of(sim)[number].tolist()):
            assert own == i != other
            expected[[i, other]] += 2 * d
    assert bytes_of(sim, "peer") == expected.tolist()
    assert len(set(expected.tolist())) > 1  # owners that were asked more often carry more
    assert expected.sum() == rounds * 4 * 2 * 2 * d
    assert bytes_of(sim, "down") == bytes_of(sim, "up") == []


@pytest.mark.parametrize(("variant", "way"), [("decentralised", "peer"), ("central", "down")])
def test_federico_models_for_predictions_come_from_where_they_are(variant: str, way: str) -> None:
    sim = rico(2, THREE, phi=[[1.0, 1.0]] * 3, variant=variant)
    run(sim)
    sim.report_models()
    table = sim.ledger.per_client()
    assert set(table[(table.phase == "evaluate") & (table.kind == "model")].direction) == {way}


def weighted_offer(sim: Recording) -> tuple[Tensor, Tensor]:
    """The weights with which clients predict, ``(K, K)``, by hand: those below 1e-3 of the largest are left out."""
    w = sim.server.w
    kept = torch.where(w >= 1e-3 * w.amax(1, keepdim=True), w, 0.0)
    return kept / kept.sum(1, keepdim=True), sim.server.phi.flat()


def test_federico_predicts_the_mean_of_outputs_in_regression() -> None:
    sim = rico(2, THREE, phi=PHI3)
    sim.advance()
    evaluations = sim.advance().evaluations["test"]
    w, phi = weighted_offer(sim)
    assert int((w > 1e-3).sum()) > 4  # real mixtures among them
    error = w @ phi - torch.tensor(B3, dtype=torch.float64)
    close(evaluations["mse"], error.square().mean(1))
    close(evaluations["mae"], error.abs().mean(1))


def test_federico_predicts_the_mean_of_probabilities_in_classification() -> None:
    federation = classified((7, 4, 9, 5), validation=20)
    sim = begun("federico", 3, federation, model=LINEAR, neighbours=10, lr=0.5, **CALM)
    evaluations = run(sim)[-1].evaluations["test"]
    w, _ = weighted_offer(sim)
    assert float(w.max()) < 0.9
    for client in range(4):
        x, y = federation.test.client(client)
        outputs = [
            sim.stack.forward({n: t[j : j + 1] for n, t in sim.server.phi.tensors.items()}, x[None])[0]
            for j in range(4)
        ]
        mean = sum(w[client, j] * outputs[j].softmax(-1) for j in range(4))
        close(evaluations["accuracy"][client], (mean.argmax(-1) == y).double().mean())
        close(evaluations["loss"][client], -mean.gather(1, y[:, None]).log().mean(), 1e-9, 1e-9)


def test_federico_leaves_negligible_models_out_of_the_prediction() -> None:
    sim = rico(1, THREE, phi=PHI3)
    sim.advance()
    sim.server.w = torch.tensor([[0.6, 0.4, 1e-9], [1.0, 0.0, 0.0], [5e-4, 0.0, 0.9995]], dtype=torch.float64)
    offer = sim.algorithm.offer(sim.server, torch.arange(3))
    table = torch.zeros(3, 3, dtype=torch.float64).scatter_add_(1, offer["phi"].index, offer["weights"])
    close(table, [[0.6, 0.4, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert offer["phi"].index.shape == (3, 2)


def test_federico_batch_statistics_of_an_owners_model_move() -> None:
    """They are the mean of those of the copies, by weight, and of the same type."""
    federation = classified((7, 4, 9))
    sim = begun("federico", 1, federation, model=NORMED, neighbours=10, lr=0.1, **CALM)
    before = sim.server.phi.clone()
    sim.advance()
    call, w = sim.calls[-1], used_weights(sim)
    index, moved = call.received["index"], 0
    for name in before.layout.buffers:
        old, new = before.tensors[name], sim.server.phi.tensors[name]
        assert new.dtype == old.dtype
        assert not torch.equal(new, old)
        if not new.is_floating_point():
            assert new.tolist() == [1] * 3
            continue
        copies = call.returned["change"].tensors[name]
        for owner in range(3):
            slots = [(i, index[i].tolist().index(owner)) for i in range(3)]
            mean = sum(w[i, owner] * copies[i, slot] for i, slot in slots) / w[:, owner].sum()
            close(new[owner], mean)
            moved += 1
    assert moved == 6


def test_federico_copies_hold_what_fit_returns() -> None:
    """phi_b - copy in the parameters, and the copy's batch statistics."""
    sim = begun("federico", 1, classified((7, 4, 9)), model=NORMED, neighbours=1, lr=0.1, epochs=2, **CALM)
    sim.advance()
    call = sim.calls[-1]
    phi = call.received["phi"]
    copies = [call.site.fit(phi.candidate(slot)).models for slot in range(2)]
    for name, change in call.returned["change"].tensors.items():
        fitted = stack_candidates(copies).tensors[name]
        close(change, fitted if name in phi.layout.buffers else phi.tensors[name] - fitted)


@pytest.mark.parametrize(
    ("name", "options", "answer"),
    [
        ("feddwa", {}, "w"),
        ("feddwa", {"guidance": "last_model"}, "w"),
        ("feddwa", {"guidance": "full_gradient"}, "w"),
        ("pgfed", {}, "theta"),
        ("pgfedmo", {}, "theta"),
    ],
)
def test_local_batch_statistics_are_those_of_the_trained_model(name: str, options: Any, answer: str) -> None:
    """Neither those of a look ahead nor a gradient's, where ``buffers`` are local."""
    sim = begun(name, 3, classified((7, 4, 9)), model=NORMED, lr=0.1, settings={"buffers": "local"}, **options)
    run(sim)
    for before, after in itertools.pairwise(sim.calls):
        for buffer in before.returned[answer].layout.buffers:
            close(after.received["w"].tensors[buffer], before.returned[answer].tensors[buffer], 0, 0)
    counts = sim.calls[-1].returned[answer].tensors["2.num_batches_tracked"]
    assert counts.tolist() == [3] * 3


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_federico_without_neighbours_is_local_with_batch_statistics_too(buffers: str) -> None:
    federation, settings = classified((7, 4, 9)), {"buffers": buffers}
    ours = begun("federico", 3, federation, model=NORMED, neighbours=0, lr=0.1, settings=settings, init_models="common")
    alone = begun("local", 3, federation, model=NORMED, lr=0.1, settings=settings)
    run(ours)
    run(alone)
    mine, theirs = ours.report_models(), alone.report_models()
    for name, tensor in theirs.parameters():
        close(mine.tensors[name][:, 0], tensor, 0, 1e-12)
    if buffers == "local":
        kept = ours.bank.get("own buffers", torch.arange(3), call=0)
        for name in theirs.layout.buffers:
            close(kept.tensors[name], theirs.tensors[name], 0, 1e-12)


@pytest.mark.parametrize("name", ["pgfed", "pgfedmo", "federico"])
def test_gradients_carry_no_batch_statistics(name: str) -> None:
    options = {"step": "gradient"} if name == "federico" else {}
    sim = begun(name, 2, classified((7, 4, 9)), model=NORMED, lr=0.1, **options)
    run(sim)
    gradient = sim.calls[-1].returned["change" if name == "federico" else "gradient"]
    assert not gradient.layout.buffers
