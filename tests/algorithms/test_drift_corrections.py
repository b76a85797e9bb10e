"""FedAvgM, SCAFFOLD and FedDyn: rounds worked out by hand on quadratics, and the papers' identities.

Two targets a client make F_k(w) = |w - b_k|^2 / 2 + constant, so a step is w <- w - lr (w - b_k).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import make_algorithm
from coterie.engines import Participation, Simulation, TrainingSettings
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from toys import (
    BATCHES,
    FULL_BATCH,
    HALF,
    LINEAR,
    LOCATION,
    MLP,
    NORMED,
    Recording,
    alike,
    classified,
    located,
    personal,
    run,
    simulation,
)

B = [[4.0, 0.0], [0.0, 8.0]]
TWO = located(B, [1, 3])
RAGGED = classified((7, 4, 9, 5, 6, 3, 2, 6))
BN = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9)
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9, weight_decay=1e-3)


def played(
    name: str, rounds: int = 1, federation: Federation = TWO, model: Any = LOCATION, *, training: Any = None,
    lr: float = 0.5, epochs: int = 1, absent: Any = None, participation: Any = None, **options: Any,
) -> Recording:  # fmt: skip
    sim = simulation(
        federation, make_algorithm(name, **options), model, engine=Recording, rounds=rounds, absent=absent or {},
        training=training or replace(FULL_BATCH, lr=lr, epochs=epochs),
        participation=participation or Participation(),
    )  # fmt: skip
    run(sim)
    assert isinstance(sim, Recording)
    return sim


def close(actual: Tensor, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def curved() -> Federation:
    """Least squares in one input: every client has a curvature and an optimum of its own."""
    return located([[1.0], [3.0], [-2.0]], [1, 3, 2], inputs=[[1.5], [-1.0], [0.4]])


def pooled_optimum(federation: Federation, weights: Tensor | None = None) -> Tensor:
    """The least-squares solution nearest to the seeded start, which runs converge to: here a minimum in (w, b)."""
    data = federation.train
    rows, targets = [], []
    p = torch.ones(len(federation.names), dtype=torch.float64) if weights is None else weights
    for client in range(len(federation.names)):
        inputs, target = data.client(client)
        scale = (p[client] / len(inputs)).sqrt()
        rows.append(torch.cat([inputs.double().flatten(1), torch.ones(len(inputs), 1, dtype=torch.float64)], 1) * scale)
        targets.append(target.double().reshape(-1, 1) * scale)
    return torch.linalg.lstsq(torch.cat(rows), torch.cat(targets)).solution.flatten()


def kept(sim: Simulation, name: str) -> Any:
    """What all clients keep under a name; 0 for who has never taken part."""
    theta = sim.server.initial_models().without_buffers().zeros()
    seen = sim.bank.started
    if bool(seen.any()):
        theta[seen] = sim.bank.get(name, torch.arange(sim.K)[seen], call=0)
    return theta


# --- FedAvgM -----------------------------------------------------------------------------------------------------


def test_fedavgm_plain() -> None:
    """w^0 = 0: one uniform step of rate 1/2 goes half way to (2, 4); then v^2 = beta v^1 + Delta^2."""
    sim = played("fedavgm", 2, beta=0.5, weights="uniform")
    # round 1: mean (1, 2), Delta = v = -(1, 2), w = (1, 2); round 2: Delta = -(1/2, 1), v = -(1, 2), w = (2, 4)
    close(sim.server.v.flat(), [[-1.0, -2.0]])
    close(sim.server.w.flat(), [[2.0, 4.0]])
    close(personal(sim), [[2.0, 4.0]] * 2)


def test_fedavgm_nesterov_begins_with_one_plus_beta() -> None:
    close(played("fedavgm", beta=0.5, nesterov=True, weights="uniform").server.w.flat(), [[1.5, 3.0]])
    close(played("fedavgm", beta=0.5, weights="uniform").server.w.flat(), [[1.0, 2.0]])
    # round 2: Delta = -(1/4, 1/2), v = -(3/4, 3/2), step Delta + beta v = -(5/8, 5/4)
    close(played("fedavgm", 2, beta=0.5, nesterov=True, weights="uniform").server.w.flat(), [[2.125, 4.25]])


def test_fedavgm_server_rate_and_samples() -> None:
    # mean with (1/4, 3/4) is (1/2, 3)
    close(played("fedavgm", server_lr=0.5).server.w.flat(), [[0.25, 1.5]])


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"weights": "uniform"}])
@pytest.mark.parametrize("participation", [Participation(), HALF])
def test_fedavgm_without_momentum_is_fedavg(options: dict[str, Any], participation: Participation) -> None:
    """T03."""
    weights = {"weights": options.get("weights", "samples")}
    ours = played("fedavgm", 3, RAGGED, NORMED, training=BN, beta=0.0, participation=participation, **options)
    theirs = played("fedavg", 3, RAGGED, NORMED, training=BN, participation=participation, **weights)
    close(ours.server.w.flat(), theirs.server.w.flat())
    for name in ours.server.w.layout.buffers:  # the average's, without momentum
        assert torch.equal(ours.server.w.tensors[name], theirs.server.w.tensors[name])


def test_fedavgm_statistics_are_those_of_the_average() -> None:
    ours = played("fedavgm", 1, RAGGED, NORMED, training=BN, beta=0.9, server_lr=0.3)
    theirs = played("fedavg", 1, RAGGED, NORMED, training=BN)
    for name in ours.server.w.layout.buffers:
        assert torch.equal(ours.server.w.tensors[name], theirs.server.w.tensors[name])
    assert not torch.allclose(ours.server.w.flat(), theirs.server.w.flat())


def test_fedavgm_a_round_of_nobody_keeps_the_momentum() -> None:
    sim = played("fedavgm", 2, beta=0.5, absent={2: ("client-0", "client-1")}, weights="uniform")
    close(sim.server.w.flat(), [[1.0, 2.0]])
    close(sim.server.v.flat(), [[-1.0, -2.0]])


# --- SCAFFOLD ----------------------------------------------------------------------------------------------------


def test_scaffold_by_hand() -> None:
    """Two full-batch steps of rate 1/2 a round."""
    sim = played("scaffold", 2, epochs=2)
    # round 1: no drift; y = 3/4 b, c_k = (w - y) / (2 / 2) = -3/4 b, w = (3/2, 3), c = -(3/2, 3)
    # round 2: y <- y - (y - b + c - c_k) / 2 = (y + b - c + c_k) / 2, where b - c + c_k = (5/2, 3), (3/2, 5)
    y = torch.tensor([[0.25 * 1.5 + 0.75 * 2.5, 3.0], [1.5, 0.25 * 3 + 0.75 * 5]], dtype=torch.float64)
    close(sim.calls[-1].returned["w"].flat(), y)
    w = y.mean(0)
    close(sim.server.w.flat(), w.unsqueeze(0))
    before, c = torch.tensor([[-3.0, 0.0], [0.0, -6.0]]), torch.tensor([-1.5, -3.0])
    c_k = before - c + (torch.tensor([1.5, 3.0]) - y) / (2 * 0.5)
    close(kept(sim, "c_k").flat(), c_k)
    close(sim.server.c.flat(), c_k.mean(0, keepdim=True))


def test_scaffold_server_rate_and_partial_participation() -> None:
    sim = played("scaffold", absent={1: ("client-0",)}, server_lr=0.5)
    close(sim.server.w.flat(), [[0.0, 2.0]])  # y = (0, 4)
    close(sim.server.c.flat(), [[0.0, -4.0]])  # (m/K) mean dc, dc = (0, -8)
    close(kept(sim, "c_k").flat(), [[0.0, 0.0], [0.0, -8.0]])  # never seen: 0


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("control", ["path", "gradient"])
@pytest.mark.parametrize("participation", [Participation(), HALF])
def test_scaffold_server_variate_is_the_mean_of_the_clients(
    weights: str, control: str, participation: Participation
) -> None:
    """T11: c = mean_k c_k after every round, whoever takes part."""
    sim = played(
        "scaffold", 4, RAGGED, MLP, training=BATCHES, participation=participation, weights=weights, control=control
    )
    c_k = kept(sim, "c_k").flat()
    n = RAGGED.train.n.double() if weights == "samples" else torch.ones(8, dtype=torch.float64)
    close(sim.server.c.flat()[0], (n / n.sum()) @ c_k)
    assert c_k.abs().max() > 1e-3


def test_scaffold_after_one_step_the_variate_is_the_gradient() -> None:
    """T11: J = 1."""
    sim = simulation(RAGGED, make_algorithm("scaffold"), MLP, engine=Recording, rounds=2, training=FULL_BATCH)
    sim.advance()
    w = sim.server.w.clone()
    sim.advance()
    gradient = sim.calls[-1].site.gradient(w.repeat(8), "train")
    close(kept(sim, "c_k").flat(), gradient.flat())


def test_scaffold_may_keep_the_gradient_at_the_received_model() -> None:
    """Option I: c_k+ is the full gradient at w, and not where the local steps have ended."""
    sim = simulation(RAGGED, make_algorithm("scaffold", control="gradient"), MLP, engine=Recording, rounds=2)
    run(sim)
    call = sim.calls[-1]
    for client in range(8):
        inputs, targets = RAGGED.train.client(client)
        own = {n: t[client].clone().requires_grad_() for n, t in call.received["w"].parameters()}
        outputs = torch.func.functional_call(sim.stack.module, own, (inputs.double(),))
        torch.nn.functional.cross_entropy(outputs, targets).backward()
        expected = torch.cat([t.grad.flatten() for t in own.values() if t.grad is not None])
        close(kept(sim, "c_k").flat()[client], expected)


def test_scaffold_counts_the_steps_really_taken() -> None:
    """Ragged clients: J differs, and c_k is the mean gradient of each client's own steps."""
    sim = played("scaffold", 1, RAGGED, LINEAR, training=BATCHES)
    call = sim.calls[-1]
    J = torch.tensor([-(-int(n) // 3) * 2 for n in RAGGED.train.n], dtype=torch.float64)
    assert len(set(J.tolist())) > 2
    gone = call.received["w"].flat() - call.returned["w"].flat()
    close(kept(sim, "c_k").flat(), gone / (J.unsqueeze(1) * 0.1))


def test_scaffold_first_round_is_uniform_fedavg() -> None:
    """All c are 0."""
    ours = played("scaffold", 1, RAGGED, MLP, training=BATCHES)
    theirs = played("fedavg", 1, RAGGED, MLP, training=BATCHES, weights="uniform")
    close(ours.server.w.flat(), theirs.server.w.flat())


def test_scaffold_of_identical_clients_is_fedavg() -> None:
    training = replace(FULL_BATCH, epochs=3)
    ours = played("scaffold", 4, alike(3), MLP, training=training)
    theirs = played("fedavg", 4, alike(3), MLP, training=training)
    close(ours.server.w.flat(), theirs.server.w.flat())


def test_scaffold_removes_the_drift() -> None:
    """Quadratics of different curvature: FedAvg with many steps stops elsewhere, SCAFFOLD at the common optimum."""
    federation = curved()
    optimum = pooled_optimum(federation)
    training = replace(FULL_BATCH, lr=0.1, epochs=4)
    fedavg = played("fedavg", 60, federation, LINEAR, training=training, weights="uniform").server.w.flat()[0]
    scaffold = played("scaffold", 60, federation, LINEAR, training=training).server.w.flat()[0]
    assert (fedavg - optimum).abs().max() > 1e-2
    close(scaffold, optimum, atol=1e-8)


@pytest.mark.parametrize("training", [MOMENTUM, replace(FULL_BATCH, clip=0.1), replace(FULL_BATCH, weight_decay=0.1)])
def test_scaffold_refuses_what_makes_its_way_no_sum_of_gradients(training: TrainingSettings) -> None:
    with pytest.raises(CoterieError, match="scaffold needs plain SGD"):
        played("scaffold", training=training)


def test_scaffold_sends_no_statistics_with_its_variates() -> None:
    sim = played("scaffold", 1, RAGGED, NORMED, training=replace(BN, momentum=0.0))
    table = sim.ledger.per_client()
    table = table[table.phase == "train"]
    layout = sim.stack.layout
    buffers = sum(sim.server.w.tensors[n].element_size() * layout.shapes[n].numel() for n in layout.buffers)
    assert buffers > 0
    for direction in ("down", "up"):
        rows = table[table.direction == direction]
        assert rows[rows.kind == "buffer"]["bytes"].tolist() == [buffers] * 8
        assert rows[rows.kind == "model"]["bytes"].tolist() == [2 * layout.d * 8] * 8


# --- FedDyn ------------------------------------------------------------------------------------------------------


def test_feddyn_by_hand() -> None:
    """alpha = 1, rate 1/2: the step has the gradient th - b - g + (th - w)."""
    sim = played("feddyn", 2, alpha=1.0)
    # round 1: th = b/2, g = -b/2, h = -(1, 2), w = (1, 2) + (1, 2)
    # round 2: th = w - (w - b - g)/2 = w/2 + b/4 = (2, 2), (1, 4); g <- g - (th - w); change = (-1/2, -1)
    close(sim.calls[-1].returned["w"].flat(), [[2.0, 2.0], [1.0, 4.0]])
    close(kept(sim, "g").flat(), [[-2.0, 2.0], [1.0, -4.0]])
    close(sim.server.h.flat(), [[-0.5, -1.0]])
    close(sim.server.w.flat(), [[2.0, 4.0]])
    close(personal(sim), [[2.0, 4.0]] * 2)


def test_feddyn_several_steps_feel_the_pull() -> None:
    # lr alpha = 1/4: th <- th - (th - b)/2 - th/4 from 0: b/2, then b/2 + b/4 - b/8 = 5/8 b
    sim = played("feddyn", epochs=2, alpha=0.5)
    close(sim.calls[-1].returned["w"].flat(), [[2.5, 0.0], [0.0, 5.0]])


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("participation", [Participation(), HALF])
def test_feddyn_h_is_the_mean_of_the_gradients(weights: str, participation: Participation) -> None:
    """T10: h = (1/K) sum_k g_k after every round; with weights: samples each counts K n_k / n times."""
    sim = simulation(
        RAGGED, make_algorithm("feddyn", weights=weights), MLP, engine=Recording, rounds=4, training=BATCHES,
        participation=participation,
    )  # fmt: skip
    for _ in range(4):
        sim.advance()
        n = RAGGED.train.n.double() if weights == "samples" else torch.ones(8, dtype=torch.float64)
        close(sim.server.h.flat()[0], (n / n.sum()) @ kept(sim, "g").flat())
    assert sim.server.h.flat().abs().max() > 1e-4


def test_feddyn_one_client_is_over_relaxed() -> None:
    """T10: w^1 = 2 th - w^0, which is not LOCAL."""
    sim = played("feddyn", 1, classified((9,)), MLP, training=MOMENTUM)
    call = sim.calls[-1]
    close(sim.server.w.flat(), 2 * call.returned["w"].flat() - call.received["w"].flat())


def test_feddyn_identical_clients_have_equal_gradients() -> None:
    sim = played("feddyn", 3, alike(4), MLP, training=replace(FULL_BATCH, epochs=3))
    g = kept(sim, "g").flat()
    close(g, g[:1].expand_as(g))
    assert g.abs().max() > 1e-3


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_feddyn_ends_at_the_common_optimum(weights: str) -> None:
    """With gradients g_k that are those of F_k there; FedAvg with as many local steps ends elsewhere."""
    federation = curved()
    n = federation.train.n.double()
    optimum = pooled_optimum(federation, n if weights == "samples" else None)
    training = replace(FULL_BATCH, lr=0.1, epochs=4)
    sim = played("feddyn", 60, federation, LINEAR, training=training, weights=weights, alpha=1.0)
    close(sim.server.w.flat()[0], optimum, atol=1e-6)
    fedavg = played("fedavg", 60, federation, LINEAR, training=training, weights=weights).server.w.flat()[0]
    assert (fedavg - optimum).abs().max() > 1e-2
    gradient = sim.calls[-1].site.gradient(sim.server.w.repeat(3), "train")
    close(kept(sim, "g").flat(), gradient.flat(), atol=1e-5)


def test_feddyn_who_is_absent_keeps_its_gradient() -> None:
    sim = played("feddyn", 1, absent={1: ("client-0",)}, alpha=1.0)
    close(kept(sim, "g").flat(), [[0.0, 0.0], [0.0, -4.0]])
    close(sim.server.h.flat(), [[0.0, -2.0]])  # one of two clients
    close(sim.server.w.flat(), [[0.0, 6.0]])  # mean over who answered, and h / alpha


def test_feddyn_client_strengths_go_by_size() -> None:
    """alpha_k = alpha n / (K n_k): 2 alpha and 2/3 alpha; only a number is sent."""
    sim = played("feddyn", 1, alpha=0.3, weights="samples")
    close(sim.calls[-1].received["alpha"], [0.6, 0.2])
    close(kept(sim, "g").flat(), [[-1.2, 0.0], [0.0, -0.8]])
    table = sim.ledger.per_client()
    assert table[(table.phase == "train") & (table.kind == "meta")]["bytes"].tolist() == [8, 8]


def test_feddyn_needs_a_positive_strength_that_does_not_overshoot() -> None:
    with pytest.raises(CoterieError, match="alpha must be above 0"):
        make_algorithm("feddyn", alpha=0.0)
    with pytest.raises(CoterieError, match="overshoots"):
        played("feddyn", alpha=2.5)


# --- all -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "down", "up"), [("fedavgm", 1, 1), ("scaffold", 2, 2), ("feddyn", 1, 1)])
def test_models_that_travel(name: str, down: int, up: int) -> None:
    """T23."""
    sim = played(name, 2, RAGGED, LINEAR, training=BATCHES, participation=HALF)
    table = sim.ledger.per_client()
    table = table[(table.phase == "train") & (table.kind == "model")]
    d = sim.stack.layout.d
    for direction, models in (("down", down), ("up", up)):
        assert table[table.direction == direction]["bytes"].sum() == 2 * 4 * models * d * 8


@pytest.mark.parametrize("name", ["fedavgm", "scaffold", "feddyn"])
def test_the_order_of_clients_changes_nothing(name: str) -> None:
    """T22."""
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    here = played(name, 3, RAGGED, MLP, training=BATCHES)
    there = played(name, 3, RAGGED.select(order), MLP, training=BATCHES)
    close(here.server.w.flat(), there.server.w.flat())


@pytest.mark.parametrize("name", ["fedavgm", "scaffold", "feddyn"])
def test_resumed_in_the_middle(name: str) -> None:
    """T27."""
    whole = played(name, 4, RAGGED, MLP, training=BATCHES, participation=HALF)
    half = simulation(RAGGED, name, MLP, rounds=4, training=BATCHES, participation=HALF)
    half.advance()
    half.advance()
    resumed = simulation(RAGGED, name, MLP, rounds=4, training=BATCHES, participation=HALF)
    resumed.load_state_dict(half.state_dict())
    run(resumed)
    assert torch.equal(resumed.server.w.flat(), whole.server.w.flat())
