"""FedFomo and L2C, which weigh others' models by validation losses: rounds worked out by hand, and identities.

Two targets a client make F_k(theta) = |theta - b_k|^2 / 2, so a step is theta <- theta - lr (theta - b_k). The toy
clients' validation data are their training data.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, sqrt
from typing import Any

import pytest
import torch
from rounds_by_hand import B3, EVERYBODY, MEMBERS, THREE, TWO, admission, arrived, begun, played

from coterie.algorithms.l2c import L2C, moved
from coterie.contract import make_algorithm
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from toys import (  # fmt: skip
    BATCHES,
    LOCATION,
    MLP,
    NORMED,
    Recording,
    classified,
    located,
    personal,
    same,
    state,
)

BETWEEN = located([[4.0, 3.0], [3.0, 5.0], [2.0, 2.0]])  # both others are better for client 2 than its own model


def close(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64),
        torch.as_tensor(expected, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


def settings_of(rounds: int = 3) -> dict[str, Any]:
    return {"rounds": rounds, "federation": EVERYBODY, "model": MLP, "training": BATCHES}


# --- FedFomo -----------------------------------------------------------------------------------------------------


def test_fedfomo_takes_the_one_model_that_helps_and_keeps_its_own_otherwise() -> None:
    """After one step w = (2, 0), (0, 4), (-1, 3); client 2 gains 5 - 4 by w_1 and loses by w_0, the others lose."""
    sim = played("fedfomo", 2, THREE, neighbours=2)
    close(personal(sim), [[3.0, 0.0], [0.0, 6.0], [-1.0, 5.0]])  # client 2 trained exactly from w_1 = (0, 4)
    seen = sim.algorithm.relations(sim.server)
    close(seen["b"], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    P = [
        [0.0, -14 / sqrt(20), -15 / sqrt(18)],
        [-26 / sqrt(20), 0.0, -5 / sqrt(2)],
        [-21 / sqrt(18), 1 / sqrt(2), 0.0],
    ]
    close(seen["P"], P)


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_fedfomo_weighs_by_gain_over_distance(norm: str) -> None:
    # w = (2, 1.5), (1.5, 2.5), (1, 1): client 2 has losses 1/8, 1/4 and its own 1
    sim = played("fedfomo", 2, BETWEEN, neighbours=2, norm=norm)
    far = (sqrt(1.25), sqrt(2.5)) if norm == "l2" else (1.5, 2.0)
    a = [0.875 / far[0], 0.75 / far[1]]
    b = [a[0] / sum(a), a[1] / sum(a)]
    close(sim.server.b[2], [*b, 0.0])
    close(sim.server.P[2], [*a, 0.0])
    start = torch.tensor([2 * b[0] + 1.5 * b[1], 1.5 * b[0] + 2.5 * b[1]], dtype=torch.float64)
    close(personal(sim)[2], (start + 2.0) / 2)


def test_fedfomo_compares_with_the_model_before_training() -> None:
    """theta^0 = 0 has the loss 4, and the own trained model (1, 1), of loss 1, is one of three candidates."""
    sim = played("fedfomo", 2, BETWEEN, neighbours=2, baseline="before_training")
    a = [3.875 / 2.5, 3.75 / sqrt(8.5), 3.0 / sqrt(2)]
    b = torch.tensor(a, dtype=torch.float64) / sum(a)
    close(sim.server.b[2], b)
    close(sim.server.P[2], [a[0], a[1], 0.0])
    start = b @ torch.tensor([[2.0, 1.5], [1.5, 2.5], [1.0, 1.0]], dtype=torch.float64)
    close(personal(sim)[2], (start + 2.0) / 2)


def test_fedfomo_the_model_before_training_is_the_mixed_one() -> None:
    """From round 3 on it is no more theta^0, and not the client's own model of before the mixing either."""
    b = torch.tensor([[4.0, 3.0], [3.0, 5.0], [2.0, 2.0]], dtype=torch.float64)
    sim = begun("fedfomo", 4, BETWEEN, neighbours=2, baseline="before_training")
    before = theta = torch.zeros(3, 2, dtype=torch.float64)
    for number in range(4):
        start = theta.clone()
        for i in range(3) if number else ():
            losses = (theta - b[i]).square().sum(1) / 2
            a = ((before[i] - b[i]).square().sum() / 2 - losses) / (theta - before[i]).norm(dim=1)
            if bool((a > 0).any()):
                start[i] = a.clamp(min=0) / a.clamp(min=0).sum() @ theta
        before, theta = start, start + 0.5 * (b - start)
        sim.advance()
        close(personal(sim), theta)


@pytest.mark.parametrize("revert", [False, True])
def test_fedfomo_keeps_its_training_where_no_model_is_better(revert: bool) -> None:
    """At rate 2.5 w = 2.5 b, worse than theta^0: going back loses the training, and does the same again."""
    sim = played("fedfomo", 2, lr=2.5, neighbours=1, baseline="before_training", revert=revert)
    close(personal(sim), torch.tensor(B3[:2]) * (2.5 if revert else -1.25))


def test_fedfomo_affinity_in_shares() -> None:
    raw, shares = (played("fedfomo", 2, THREE, neighbours=2, affinity=a).server.P for a in ("raw", "shares"))
    close(shares, raw / raw.sum(dim=1, keepdim=True).abs())
    close(shares.sum(dim=1).abs(), [1.0] * 3)


def test_fedfomo_affinity_in_shares_of_all_candidates() -> None:
    """By hand: theta^0 = 0, at rate 1/2 w_i = b_i / 2; client i's own model is a candidate with the benefits."""
    b = torch.tensor(B3, dtype=torch.float64)
    w = b / 2
    sim = played("fedfomo", 2, THREE, neighbours=2, lr=0.5, baseline="before_training", affinity="shares")
    for i in range(3):
        a = (b[i].square().sum() - (w - b[i]).square().sum(dim=1)) / 2 / w.norm(dim=1)
        expected = a / a.sum().abs()
        expected[i] = 0.0
        close(sim.server.P[i], expected)


def test_fedfomo_equal_models_change_nothing() -> None:
    sim = played("fedfomo", 2, located([[4.0, 0.0]] * 3), neighbours=2)
    close(personal(sim), [[3.0, 0.0]] * 3)
    close(sim.server.P, torch.zeros(3, 3))
    close(sim.server.b, torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("baseline", ["own", "before_training"])
def test_t04_fedfomo_without_neighbours_is_local(baseline: str) -> None:
    close(
        personal(played("fedfomo", neighbours=0, baseline=baseline, **settings_of())),
        personal(played("local", **settings_of())),
    )


@pytest.mark.parametrize("name", ["fedfomo", "l2c"])
def test_t01_a_single_client_trains_as_local_does(name: str) -> None:
    one = classified((9,))
    close(
        personal(played(name, 3, one, model=MLP, training=BATCHES)),
        personal(played("local", 3, one, model=MLP, training=BATCHES)),
    )


def test_fedfomo_asks_those_who_were_worth_most() -> None:
    sim = begun("fedfomo", 2, EVERYBODY, model=MLP, training=BATCHES, neighbours=2, epsilon=0.0)
    sim.advance()
    sim.server.P[0] = torch.tensor([9.0, 0.1, 0.5, -1.0, 0.3, -2.0])
    sim.server.P[4] = torch.tensor([-1.0, -2.0, -3.0, -0.5, 9.0, -4.0])
    sim.advance()
    index = sim.calls[-1].received["index"]
    assert index[0].tolist() == [2, 4]
    assert index[4].tolist() == [3, 0]


def test_fedfomo_explores_less_and_less() -> None:
    """With epsilon 1 - 1/3 (t - 1) the fourth round is greedy, the second is not."""
    sim = begun("fedfomo", 4, classified((3,) * 12), model=MLP, neighbours=1, epsilon=1.0, epsilon_decay=1 / 3)
    greedy = []
    for _ in range(4):
        sim.server.P[:] = torch.arange(12.0)
        sim.advance()
        greedy.append(sim.calls[-1].received["index"].flatten().tolist() if "index" in sim.calls[-1].received else [])
    best = [11] * 11 + [10]
    assert greedy[0] == []
    assert greedy[1] != best
    assert greedy[2] != best
    assert greedy[3] == best


@pytest.mark.parametrize("available", ["round", "latest"])
def test_fedfomo_sends_models_of_those_who_were_there(available: str) -> None:
    absent = {1: ("client-2",), 2: ("client-0",)}
    sim = begun("fedfomo", 3, THREE, neighbours=5, available=available, absent=absent)
    sim.advance()
    sim.advance()  # of clients 0 and 1; what client 1 could not get twice is its own model
    index = sim.calls[-1].received["index"]
    assert [set(row.tolist()) for row in index] == [{0, 1}, {0, 1}]
    assert state(sim, "theta").flat()[0].tolist() == [2.0, 0.0]  # who is absent keeps its model
    sim.advance()
    index = sim.calls[-1].received["index"]
    wanted = [{1, 2}, {2, 1}, {1, 2}] if available == "round" else [{1, 2}, {0, 2}, {0, 1}]
    assert [set(row.tolist()) for row in index] == wanted


def test_fedfomo_free_slots_count_for_nothing() -> None:
    """Client 1 receives its own model for want of others, which is no candidate."""
    sim = played("fedfomo", 2, THREE, neighbours=5, baseline="before_training", absent={1: ("client-2",)})
    assert sim.server.P.diagonal().tolist() == [0.0, 0.0, 0.0]
    close(sim.server.b.sum(1), [1.0, 1.0, 1.0])


def test_fedfomo_measures_on_validation_data() -> None:
    elsewhere = replace(TWO, validation=located([[0.0, 4.0], [0.0, 8.0]], [1, 3]).validation)
    sim = played("fedfomo", 2, elsewhere, neighbours=1)
    close(sim.calls[-1].received["index"], [[1], [0]])
    close(personal(sim)[0], [2.0, 2.0])  # from w_1 = (0, 4), perfect on validation, towards (4, 0)


def test_fedfomo_newcomers_mix_the_members_models() -> None:
    """From theta^0 = 0 of loss 4, the models after one step: as a first mixing with that baseline."""
    sim = played("fedfomo", 1, BETWEEN, neighbours=2)
    newcomer = located([[2.0, 2.0]])
    a = [3.875 / 2.5, 3.75 / sqrt(8.5), 3.0 / sqrt(2)]
    b = torch.tensor(a, dtype=torch.float64) / sum(a)
    w = torch.tensor([[2.0, 1.5], [1.5, 2.5], [1.0, 1.0]], dtype=torch.float64)
    close(arrived(sim, newcomer, model=LOCATION), (b @ w).unsqueeze(0))
    assert admission(sim, newcomer, LOCATION).admit(labelled=False, epochs=0) is None


def test_fedfomo_cannot_go_back_from_its_own_model() -> None:
    with pytest.raises(CoterieError, match=r"fedfomo.revert must be false"):
        make_algorithm("fedfomo", revert=True)


# --- L2C ---------------------------------------------------------------------------------------------------------


def test_l2c_learns_weights_and_applies_the_updates() -> None:
    """D = -(2, 0), -(0, 4): at equal weights w+ = (1, 2), and Adam's first step is lr_alpha against the slope's sign."""
    sim = played("l2c", lr_alpha=0.1, alpha_steps=1)
    # client 0: grad = (1 - 4, 2), dL/dpi = -<grad, D> = (-6, 8): alpha = (+0.1, -0.1); client 1 alike
    own = 1 / (1 + exp(-0.2))
    close(sim.server.pi, [[own, 1 - own], [1 - own, own]], 1e-7)
    close(personal(sim), [[2 * own, 4 * (1 - own)], [2 * (1 - own), 4 * own]], 1e-7)
    close(sim.server.w.flat(), personal(sim))


def trained_l2c(model: Any = MLP) -> tuple[L2C, Recording]:
    sim = played("l2c", 3, MEMBERS, model=model, training=BATCHES, lr_alpha=0.3, T0=100)
    assert isinstance(sim.algorithm, L2C)
    return sim.algorithm, sim


def test_t19_l2c_slope_of_alpha_by_finite_differences() -> None:
    algorithm, sim = trained_l2c()
    call = sim.calls[-1]
    site, D = call.site, call.received["D"]
    alpha = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = site.theta
    slope = algorithm.slope(site, theta, D, alpha)
    found = torch.zeros_like(alpha)
    for j in range(4):
        up, down = alpha.clone(), alpha.clone()
        up[:, j] += 1e-5
        down[:, j] -= 1e-5
        losses = [site.loss("validation", moved(theta, D, a)) for a in (up, down)]
        found[:, j] = (losses[0] - losses[1]) / 2e-5
    close(slope, found, 1e-8)
    assert slope.abs().min() > 1e-6
    assert slope.abs().max() > 1e-3


def test_l2c_each_step_on_alpha_takes_the_slope_where_the_last_one_led() -> None:
    """As torch's Adam on autograd's slope of the validation loss, which goes on from round to round."""
    sim = begun("l2c", 3, THREE, lr_alpha=0.3, alpha_steps=4)
    b, theta = torch.tensor(B3, dtype=torch.float64), torch.zeros(3, 2, dtype=torch.float64)
    alpha = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    optimisers = [torch.optim.Adam([own], lr=0.3) for own in alpha]
    for _ in range(3):
        D, moves = 0.5 * (theta - b), []
        for i in range(3):
            for _ in range(4):
                optimisers[i].zero_grad()
                ((theta[i] - alpha[i].softmax(0) @ D - b[i]).square().sum() / 2).backward()
                optimisers[i].step()
            moves.append(alpha[i].detach().softmax(0) @ D)
        theta = theta - torch.stack(moves)
        sim.advance()
        close(sim.server.pi, torch.stack([own.detach().softmax(0) for own in alpha]), 1e-9)
        close(personal(sim), theta, 1e-9)


def test_t04_l2c_with_all_weight_on_itself_is_local() -> None:
    ours = played("l2c", self_weight=1.0, lr_alpha=0.5, **settings_of())
    close(personal(ours), personal(played("local", **settings_of())))


def test_l2c_at_equal_weights_is_uniform_averaging() -> None:
    ours = played("l2c", lr_alpha=0.0, T0=100, **settings_of())
    close(personal(ours), personal(played("fedavg", weights="uniform", **settings_of())))


def test_l2c_begins_with_the_stated_own_weight() -> None:
    sim = played("l2c", federation=THREE, lr_alpha=0.0, self_weight=0.6)
    close(sim.server.pi, 0.2 + 0.4 * torch.eye(3, dtype=torch.float64))


def test_l2c_validation_data_decide() -> None:
    """Client 0 is measured where client 1 goes: its weights move there."""
    elsewhere = replace(TWO, validation=located([[0.0, 8.0], [0.0, 8.0]], [1, 3]).validation)
    pi = played("l2c", federation=elsewhere, lr_alpha=0.1).server.pi
    assert pi[0, 1] > 0.55
    assert pi[1, 1] > 0.55


def test_l2c_without_validation_data_takes_the_training_data() -> None:
    empty = ClientData(TWO.train.inputs, TWO.train.targets, torch.tensor([0, 0, 3]))
    some = replace(TWO, validation=replace(empty, inputs=empty.inputs[1:], targets=empty.targets[1:]))
    close(played("l2c", lr_alpha=0.1, federation=some).server.pi, played("l2c", lr_alpha=0.1).server.pi)


def test_l2c_keeps_the_heaviest_neighbours_after_a_while() -> None:
    sim = begun("l2c", 2, MEMBERS, model=MLP, training=BATCHES, T0=1, topk=2)
    sim.advance()
    assert sim.calls[-1].received["D"].lead == (4, 4)
    alpha = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.2, 0.3], [0.3, 0.4, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25]])
    sim.server.alpha = alpha.double()
    sim.advance()
    index = [set(row.tolist()) for row in sim.calls[-1].received["index"]]
    assert index == [{0, 2, 3}, {1, 0, 3}, {2, 0, 1}, {3, 0, 1}]  # ties go by name
    assert ((sim.server.pi > 0).sum(1) == 3).all()


@pytest.mark.parametrize("missing", ["drop", "cached"])
def test_l2c_counts_who_is_missing_or_not(missing: str) -> None:
    sim = begun("l2c", 2, THREE, lr_alpha=0.0, missing=missing, absent={2: ("client-2",)})
    sim.advance()
    close(personal(sim), [[1 / 3, 7 / 3]] * 3)
    sim.advance()
    b = torch.tensor(B3, dtype=torch.float64)
    w = torch.tensor([1 / 3, 7 / 3], dtype=torch.float64)
    D = -(b - w) / 2
    D[2] = -b[2] / 2  # of the first round
    way = D[:2].mean(0) if missing == "drop" else D.mean(0)
    close(personal(sim), torch.stack([w - way, w - way, w]))
    close(sim.server.pi[0], [0.5, 0.5, 0.0] if missing == "drop" else [1 / 3] * 3)
    close(sim.server.pi[2], [1 / 3] * 3)  # as it was


def test_l2c_weights_of_the_missing_wait() -> None:
    """alpha and Adam's memory of who is not there stay; their weight comes back with them."""
    sim = begun("l2c", 2, THREE, lr_alpha=0.2, absent={2: ("client-2",)})
    sim.advance()
    alpha, adam = state(sim, "alpha").clone(), state(sim, "adam").clone()
    sim.advance()
    assert torch.equal(state(sim, "alpha")[:, 2], alpha[:, 2])
    assert torch.equal(state(sim, "adam")[:, 2], adam[:, 2])
    assert torch.equal(state(sim, "alpha")[2], alpha[2])
    assert (state(sim, "alpha")[:2, :2] != alpha[:2, :2]).all()
    assert state(sim, "adam")[0, :, 2].tolist() == [10.0, 10.0, 5.0]


def test_l2c_first_contact_starts_from_the_common_model() -> None:
    sim = begun("l2c", 2, THREE, lr_alpha=0.0, absent={1: ("client-2",)})
    sim.advance()
    close(personal(sim)[2], [0.0, 0.0])
    sim.advance()
    w = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    D = (w - torch.tensor(B3)) / 2
    close(personal(sim), w - D.mean(0))  # the update form: each from where it is


def test_l2c_server_knows_the_models_with_their_statistics() -> None:
    _, sim = trained_l2c(NORMED)
    theta = state(sim)
    for name, tensor in sim.server.w.tensors.items():
        close(tensor.double(), theta.tensors[name].double())
    trained = played("local", 1, MEMBERS, model=NORMED, training=BATCHES)
    assert not same(dict(theta.tensors), dict(state(trained).tensors))


def test_l2c_newcomers_learn_weights_of_the_members_models_and_their_own() -> None:
    equal = played("l2c", 3, MEMBERS, model=MLP, training=BATCHES, lr_alpha=0.0)
    coming = admission(equal)
    start = coming.stack.initial(coming.initial_seed, 1).flat()[0]
    close(arrived(equal), ((equal.server.w.flat().sum(0) + start) / 5).expand(2, -1))
    _, sim = trained_l2c()
    assert (arrived(sim) - (sim.server.w.flat().sum(0) + start) / 5).abs().max() > 1e-3
    assert admission(sim).admit(labelled=False, epochs=0) is None
