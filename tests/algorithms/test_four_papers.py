"""FedDWA, PGFed, PGFedMo and FedeRiCo: rounds worked out by hand on quadratics, and the papers' identities.

As elsewhere, two targets a client make F_k(theta) = |theta - b_k|^2 / 2, so a step is theta <- theta - lr (theta - b_k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.contract import make_algorithm
from coterie.engines import Participation
from coterie.federation.federation import Federation
from coterie.models import Models
from coterie.training import TrainingSettings
from toys import (
    FULL_BATCH,
    LOCATION,
    MLP,
    Recording,
    alike,
    classified,
    located,
    personal,
    run,
    simulation,
    state,
)  # fmt: skip

B = [[4.0, 0.0], [0.0, 8.0]]
TWO = located(B, [1, 3])
B3 = [[4.0, 0.0], [0.0, 8.0], [-2.0, 6.0]]
THREE = located(B3, [1, 3, 2])
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9)


def begun(
    name: str, rounds: int = 1, federation: Federation = TWO, variant: str | None = None, *, lr: float = 0.5,
    epochs: int = 1, momentum: float = 0.0, absent: Any = None, model: Any = LOCATION, settings: Any = None, **options: Any,
) -> Recording:  # fmt: skip
    """A simulation that has not run yet, on full batches."""
    training = replace(FULL_BATCH, lr=lr, epochs=epochs, momentum=momentum)
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
        close(state(sim, "momentum").flat(), hand["velocity"])


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
    close(state(sim, "momentum").flat(), v)
    close(personal(sim), w - 0.5 * v)
    close(personal(played("pgfed", 2, mu=0.0, momentum=0.5)), w - 0.5 * (w - b))
