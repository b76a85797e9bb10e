"""APFL, pFedMe, Per-FedAvg and L2GD: rounds worked out by hand on quadratics, and the papers' identities.

Two targets a client make F_k(w) = |w - b_k|^2 / 2 + constant, so a step is w <- w - lr (w - b_k).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.contract import Site, make_algorithm
from coterie.engines import Admission, Participation, Settings, Simulation, Trained, TrainingSettings
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from coterie.training.keys import generator
from toys import (
    BATCHES,
    BLIND,
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
    models_like,
    names_of,
    personal,
    run,
    simulation,
    state,
)

B = [[4.0, 0.0], [0.0, 8.0]]
TWO = located(B, [1, 3])
RAGGED = classified((7, 4, 9, 5, 6, 3, 2, 6))
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9)
WHOLE = Participation()


def begun(
    name: str, rounds: int = 1, federation: Federation = TWO, model: Any = LOCATION, *, training: Any = None,
    lr: float = 0.5, epochs: int = 1, absent: Any = None, participation: Participation = WHOLE,
    variant: str | None = None, settings: Any = None, **options: Any,
) -> Recording:  # fmt: skip
    """A simulation that has not run yet."""
    sim = simulation(
        federation, make_algorithm(name, variant, **options), model, engine=Recording, rounds=rounds,
        absent=absent or {}, participation=participation,
        training=training or replace(FULL_BATCH, lr=lr, epochs=epochs), **(settings or {}),
    )  # fmt: skip
    assert isinstance(sim, Recording)
    return sim


def played(*arguments: Any, **options: Any) -> Recording:
    sim = begun(*arguments, **options)
    run(sim)
    return sim


def close(actual: Tensor, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def squares(sizes: tuple[int, ...] = (6, 9, 4), features: int = 3) -> Federation:
    """Least squares with a different Hessian at each client."""
    draw = torch.Generator().manual_seed(3)
    inputs = [torch.randn(n, features, generator=draw) for n in sizes]
    data = ClientData.from_clients(inputs, [torch.randn(len(x), 1, generator=draw) for x in inputs])
    return Federation(names_of(len(sizes)), data, data, data, "regression", 1)


def loss_of(federation: Federation, client: int, theta: Tensor) -> Tensor:
    """F_k of a linear model ``theta: (features + 1,)``, for autograd."""
    inputs, targets = federation.train.client(client)
    outputs = functional.linear(inputs.double(), theta[:-1].view(1, -1), theta[-1:])
    return (outputs - targets.double().reshape(outputs.shape)).square().mean()


def admitted(sim: Simulation, newcomers: Federation, epochs: int, labelled: bool = True, model: Any = LOCATION) -> Any:
    settings = Settings(training=replace(FULL_BATCH, lr=0.5), dtype="float64", threads=1)
    return Admission(Trained.of(sim), newcomers, sim.algorithm, model, settings).admit(labelled=labelled, epochs=epochs)


NEW = located([[2.0, 2.0]])

# --- APFL --------------------------------------------------------------------------------------------------------


def test_apfl_by_hand() -> None:
    """alpha = 1/2 fixed, rate 1/2: v <- v - (vbar - b)/4, at vbar of before the step."""
    sim = played("apfl", 2, alpha_update="fixed", weights="uniform")
    # round 1: w = v = 0: w_k = b/2, v = b/4, w = (1, 2)
    # round 2: v = b/4 = (1, 0), (0, 2); vbar = (1, 1), (1/2, 2); v <- v - (vbar - b)/4
    v = [[1.75, -0.25], [-0.125, 3.5]]
    close(state(sim, "v").flat(), v)
    close(sim.server.w.flat(), [[1.5, 3.0]])  # (1, 2), and from there half way to the mean (2, 4)
    close(personal(sim), (torch.tensor(v) + torch.tensor([1.5, 3.0])) / 2)


def test_apfl_the_second_step_of_a_round_mixes_with_the_local_model() -> None:
    """Not with the received one: w_k = b/2, v = b/4, vbar = 3/8 b, v <- b/4 + 5/32 b."""
    sim = played("apfl", epochs=2, alpha_update="fixed")
    close(state(sim, "v").flat(), torch.tensor(B) * (0.25 + 5 / 32))
    close(sim.calls[-1].returned["w"].flat(), torch.tensor(B) * 0.75)


@pytest.mark.parametrize("penalty", [0.0, 0.3])
@pytest.mark.parametrize("model", [LINEAR, MLP])
def test_apfl_alpha_moves_down_its_slope(model: Any, penalty: float) -> None:
    """T17: the slope of F(alpha v + (1 - alpha) w) + penalty alpha^2 / 2 by finite differences."""
    training = replace(FULL_BATCH, lr=0.2)
    sim = begun("apfl", 3, RAGGED, model, training=training, lr_alpha=0.4, alpha=0.3, penalty=penalty)
    sim.advance()
    sim.advance()
    v, w, alpha = state(sim, "v").clone(), sim.server.w.repeat(8), state(sim, "alpha").clone()
    sim.advance()
    site, e = sim.calls[-1].site, 1e-6

    def loss(a: Tensor) -> Tensor:
        return site.loss("train", v * a + w * (1.0 - a)) + penalty * a.square() / 2

    slope = (loss(alpha + e) - loss(alpha - e)) / (2 * e)
    assert slope.abs().min() > 1e-4
    close(state(sim, "alpha"), (alpha - 0.4 * slope).clamp(0, 1), atol=1e-9)


def test_apfl_the_private_model_steps_with_the_former_alpha() -> None:
    """Round 2 begins at v = b/4, w = (1, 2): vbar - b is (-3, 1), (1/2, -6), and v moves by a quarter of it."""
    sim = played("apfl", 2, weights="uniform", lr_alpha=0.1)
    close(state(sim, "v").flat(), [[1.75, -0.25], [-0.125, 3.5]])
    # <v - w, vbar - b>: (0, -2) with (-3, 1), and (-1, 0) with (1/2, -6)
    close(state(sim, "alpha"), [0.5 + 0.2, 0.5 + 0.05])


def test_apfl_every_step_mixes_by_the_alpha_of_the_step_before() -> None:
    """Three steps of a round, in which v, w_k and alpha all move: not by the alpha with which the round began."""
    sim = played("apfl", epochs=3, alpha_update="every_batch", lr_alpha=0.01)
    for client, b in enumerate(torch.tensor(B, dtype=torch.float64)):
        v, w, alpha = torch.zeros(2).double(), torch.zeros(2).double(), 0.5
        for _ in range(3):
            mixed = alpha * v + (1 - alpha) * w
            slope = float((v - w) @ (mixed - b))
            v, w = v - 0.5 * alpha * (mixed - b), w - 0.5 * (w - b)
            alpha = min(max(alpha - 0.01 * slope, 0.0), 1.0)
        assert 0.01 < alpha < 0.49
        close(state(sim, "v").flat()[client], v)
        close(state(sim, "alpha")[client], alpha)


def test_apfl_alpha_moves_when_it_should() -> None:
    """Once a round, with every batch, or never; the first batch of a round is the first of its first epoch."""
    runs = {
        update: played("apfl", 2, RAGGED, MLP, training=BATCHES, alpha_update=update, lr_alpha=0.3)
        for update in ("fixed", "first_batch", "every_batch")
    }
    alphas = {update: state(sim, "alpha") for update, sim in runs.items()}
    close(alphas["fixed"], [0.5] * 8)
    assert (alphas["first_batch"] != 0.5).all()
    assert (alphas["every_batch"] != alphas["first_batch"]).all()
    one = played("apfl", 2, RAGGED, MLP, alpha_update="every_batch", lr_alpha=0.3)  # one batch: no difference
    other = played("apfl", 2, RAGGED, MLP, alpha_update="first_batch", lr_alpha=0.3)
    assert torch.equal(state(one, "alpha"), state(other, "alpha"))


def test_apfl_alpha_stays_a_share() -> None:
    for rate in (1e3, 1e6):
        alpha = state(
            played("apfl", 3, RAGGED, MLP, training=BATCHES, alpha_update="every_batch", lr_alpha=rate), "alpha"
        )
        assert ((alpha >= 0) & (alpha <= 1)).all()


def test_apfl_with_all_of_its_own_is_local() -> None:
    """T04: alpha = 1, with momentum, on the same batches."""
    ours = played("apfl", 3, RAGGED, MLP, training=MOMENTUM, alpha=1.0, alpha_update="fixed", participation=HALF)
    theirs = played("local", 3, RAGGED, MLP, training=MOMENTUM, participation=HALF)
    assert torch.equal(personal(ours), personal(theirs))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_apfl_global_path_is_fedavg(alpha: float) -> None:
    """T03: for every alpha; with alpha = 0 the private model stays where it began and predictions are w's."""
    ours = played("apfl", 3, RAGGED, MLP, training=MOMENTUM, alpha=alpha, alpha_update="fixed")
    theirs = played("fedavg", 3, RAGGED, MLP, training=MOMENTUM)
    assert torch.equal(ours.server.w.flat(), theirs.server.w.flat())
    if alpha == 0.0:
        close(state(ours, "v").flat(), ours.server.initial_models().flat())
        close(personal(ours), theirs.server.w.flat().expand(8, -1))


def test_apfl_predicts_with_the_current_global_model() -> None:
    """A client that was absent keeps v and alpha; one that was never seen owns theta^0 and mixes it too."""
    absent = {1: ("client-1",), 2: ("client-0", "client-1")}
    three = located([*B, [2.0, 2.0]])
    sim = begun("apfl", 2, three, alpha_update="fixed", absent=absent)
    sim.advance()
    v = sim.bank.get("v", torch.tensor([0]), call=0).flat()
    sim.advance()
    w = sim.server.w.flat()
    close(personal(sim)[:1], (v + w) / 2)
    close(personal(sim)[1:2], w / 2)


def test_apfl_statistics_are_those_of_the_mixture() -> None:
    """Of batch normalisation; nothing is NaN and the private model's differ from the global one's."""
    sim = played("apfl", 3, RAGGED, NORMED, training=MOMENTUM)
    v, w = state(sim, "v"), sim.server.w
    for name in w.layout.buffers:
        assert v.tensors[name].isfinite().all()
    assert not torch.allclose(v.tensors["2.running_mean"], w.tensors["2.running_mean"].expand(8, -1))


def test_apfl_newcomers() -> None:
    """v starts at w, which stays; alpha fixed at 1/2: v <- v - (vbar - b)/4."""
    sim = played("apfl", alpha_update="fixed", weights="uniform")  # w = (1, 2)
    came = admitted(sim, NEW, 2)
    close(admitted(sim, NEW, 0).models.flat(), [[1.0, 2.0]])
    # b = (2, 2): v = 5/4, vbar = 9/8, v = 5/4 + 7/32, vbar = 1 + (1/4 + 7/32)/2
    close(came.models.flat(), [[1.0 + (0.25 + 7 / 32) / 2, 2.0]])
    close(admitted(sim, NEW, 2, labelled=False).models.flat(), [[1.0, 2.0]])


def test_apfl_newcomers_learn_alpha_too() -> None:
    """v moves from w, which stays, and alpha down the slope <v - w, grad F(vbar)>, clipped."""
    sim = played("apfl", alpha_update="every_batch", lr_alpha=0.2, weights="uniform")
    w, b = sim.server.w.flat()[0], torch.tensor([2.0, 2.0], dtype=torch.float64)
    v, alpha = w, 0.5
    for _ in range(3):
        mixed = alpha * v + (1 - alpha) * w
        slope = float((v - w) @ (mixed - b))
        v, alpha = v - 0.5 * alpha * (mixed - b), min(max(alpha - 0.2 * slope, 0.0), 1.0)
    assert alpha > 0.52
    close(admitted(sim, NEW, 3).models.flat()[0], alpha * v + (1 - alpha) * w)


# --- pFedMe ------------------------------------------------------------------------------------------------------


def test_pfedme_by_hand() -> None:
    """lambda = 1, two inner steps of rate 1/2 on each of two batches, outer rate 1/2."""
    sim = played("pfedme", epochs=2, inner_steps=2, inner_lr=0.5, weights="uniform", **{"lambda": 1.0})
    # w = 0: th = b/2, then th - (th - b)/2 - th/2 = b/2; w = 0 - (0 - b/2)/2 = b/4
    # w = b/4: from w: th = b/4 + 3/8 b = 5/8 b, then 5/8 + 3/16 - 3/16 = 5/8; w = b/4 + 3/16 b = 7/16 b
    close(state(sim).flat(), torch.tensor(B) * 5 / 8)
    close(sim.calls[-1].returned["w"].flat(), torch.tensor(B) * 7 / 16)
    close(sim.server.w.flat(), [[4 * 7 / 32, 8 * 7 / 32]])


def test_pfedme_predicts_with_the_personal_model_and_not_with_w() -> None:
    """The authors' code evaluates w_k under the name of th_k."""
    sim = played("pfedme", 2, RAGGED, MLP, training=BATCHES, **{"lambda": 4.0})
    close(personal(sim), state(sim).flat())
    assert (personal(sim) - sim.calls[-1].returned["w"].flat()).abs().max() > 1e-3


def test_pfedme_weight_decay_and_warm_start() -> None:
    options: dict[str, Any] = {"inner_steps": 1, "inner_lr": 0.5, "lambda": 1.0, "epochs": 2}
    # decay 1/2 from w = 0: th = b/2, w = b/4; th = 1/4 + 3/8 - 1/16 = 9/16
    close(state(played("pfedme", mu=0.5, **options)).flat(), torch.tensor(B) * 9 / 16)
    # with rate 1/4 the start counts: th = b/4, w = b/8; then th <- th/2 + b/4 + w/4 from th = b/4 or from w
    options["inner_lr"] = 0.25
    close(state(played("pfedme", warm_start=True, **options)).flat(), torch.tensor(B) * (1 / 8 + 1 / 4 + 1 / 32))
    close(state(played("pfedme", **options)).flat(), torch.tensor(B) * (1 / 16 + 1 / 4 + 1 / 32))


def test_pfedme_counts_batches_where_asked_to() -> None:
    options: dict[str, Any] = {"inner_steps": 1, "inner_lr": 0.5, "lambda": 1.0}
    assert torch.equal(
        played("pfedme", local_steps=3, **options).server.w.flat(),
        played("pfedme", epochs=3, **options).server.w.flat(),
    )


def test_pfedme_solves_the_inner_problem() -> None:
    """T12: on a quadratic th tends to (A + lambda I)^-1 (b + lambda w)."""
    federation = squares()
    options: dict[str, Any] = {"lambda": 2.0, "inner_lr": 0.1, "inner_steps": 400}
    sim = played("pfedme", 1, federation, LINEAR, lr=0.3, **options)
    w = sim.server.initial_model().flat()[0]
    for client in range(3):
        hessian = torch.autograd.functional.hessian(lambda theta, k=client: loss_of(federation, k, theta), w)
        at_zero = torch.zeros_like(w).requires_grad_()
        (minus_b,) = torch.autograd.grad(loss_of(federation, client, at_zero), at_zero)
        exact = torch.linalg.solve(hessian + 2.0 * torch.eye(4, dtype=torch.float64), 2.0 * w - minus_b)
        close(state(sim).flat()[client], exact)
        # w_k goes down the gradient lambda (w - th) of the Moreau envelope
        close(sim.calls[-1].returned["w"].flat()[client], w - 0.3 * 2.0 * (w - exact))


def test_pfedme_one_client_descends_the_moreau_envelope() -> None:
    """K = 1, beta = 1: the envelope of a convex loss falls in every round."""
    federation = squares((7,))
    sim = begun("pfedme", 6, federation, LINEAR, lr=0.3, **{"lambda": 2.0, "inner_lr": 0.1, "inner_steps": 200})
    values = []
    while not sim.finished:
        w = sim.server.w.flat()[0]
        sim.advance()
        theta = state(sim).flat()[0]
        values.append(float(loss_of(federation, 0, theta) + (theta - w).square().sum()))
    assert all(later < earlier for earlier, later in pairwise(values))


def test_pfedme_server_without_beta_stands_still() -> None:
    sim = played("pfedme", 3, RAGGED, MLP, training=BATCHES, beta=0.0)
    assert torch.equal(sim.server.w.flat(), sim.server.initial_model().flat())
    one, two = (played("pfedme", 1, RAGGED, MLP, training=BATCHES, beta=beta).server.w.flat() for beta in (1.0, 2.0))
    theta = sim.server.initial_model().flat()
    close(two - theta, 2 * (one - theta))


def test_pfedme_without_pull_leaves_w() -> None:
    sim = played("pfedme", 2, RAGGED, MLP, training=BATCHES, **{"lambda": 0.0})
    assert torch.equal(sim.calls[-1].returned["w"].flat(), sim.calls[-1].received["w"].flat())


def test_pfedme_clients_that_finish_early_keep_their_solution() -> None:
    """Ragged clients: each alone comes to what it comes to among others."""
    options: dict[str, Any] = {"training": BATCHES, "lambda": 4.0}
    together = played("pfedme", 1, RAGGED, MLP, **options)
    for client in range(8):
        alone = played("pfedme", 1, RAGGED.select([client]), MLP, **options)
        close(state(together).flat()[client], state(alone).flat()[0])


def test_pfedme_a_client_never_seen_solves_around_the_current_w() -> None:
    sim = played("pfedme", 1, inner_steps=1, inner_lr=0.5, absent={1: ("client-0",)}, **{"lambda": 1.0})
    # w = b_1/4 = (0, 2); client 0: one step of rate 1/2 from there
    close(personal(sim), [[2.0, 1.0], [0.0, 4.0]])
    close(sim.server.w.flat(), [[0.0, 2.0]])


def test_pfedme_a_client_never_seen_takes_all_of_its_inner_steps() -> None:
    """Each from where the last one has led."""
    options: dict[str, Any] = {"inner_steps": 3, "inner_lr": 0.25, "lambda": 1.0, "mu": 0.5}
    sim = played("pfedme", 1, absent={1: ("client-0",)}, **options)
    w, b = sim.server.w.flat()[0], torch.tensor(B[0], dtype=torch.float64)
    theta = w
    for _ in range(3):
        theta = theta - 0.25 * ((theta - b) + (theta - w) + 0.5 * theta)
    close(personal(sim)[0], theta)


def test_pfedme_newcomers_solve_around_w() -> None:
    sim = played("pfedme", inner_steps=1, inner_lr=0.5, weights="uniform", **{"lambda": 1.0})  # w = (1/2, 1)
    close(sim.server.w.flat(), [[0.5, 1.0]])
    # b = (2, 2): th = w + (b - w)/2 = (1.25, 1.5), then (1.25 + 0.375 - 0.375, 1.5 + 0.25 - 0.25)
    close(admitted(sim, NEW, 1).models.flat(), [[1.25, 1.5]])
    close(admitted(sim, NEW, 2).models.flat(), [[1.25, 1.5]])
    close(admitted(sim, NEW, 0).models.flat(), [[0.5, 1.0]])
    close(admitted(sim, NEW, 2, labelled=False).models.flat(), [[0.5, 1.0]])


def test_pfedme_refuses_unstable_rates() -> None:
    with pytest.raises(CoterieError, match="inner_lr must be below 2"):
        make_algorithm("pfedme", inner_lr=0.1, **{"lambda": 20.0})
    with pytest.raises(CoterieError, match="w would overshoot"):
        played("pfedme", lr=0.5, **{"lambda": 3.0})
    make_algorithm("pfedme", inner_lr=0.1, **{"lambda": 15.0})  # the paper's


# --- Per-FedAvg --------------------------------------------------------------------------------------------------


def meta_gradient(federation: Federation, client: int, w: Tensor, alpha: float, second_order: bool) -> Tensor:
    """The gradient of F_k(w - alpha grad F_k(w)) by autograd, or without its second-order term."""
    at = w.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(federation, client, at), at, create_graph=second_order)
    adapted = at - alpha * gradient if second_order else (w - alpha * gradient).requires_grad_()
    (meta,) = torch.autograd.grad(loss_of(federation, client, adapted), at if second_order else adapted)
    return meta


@pytest.mark.parametrize("delta", [1e-3, 0.5, 7.0])
def test_per_fedavg_hf_is_exact_on_quadratics(delta: float) -> None:
    """T13: for any delta, since a quadratic has no third derivative; FO differs."""
    federation = squares()
    sims = {
        variant: played("per-fedavg", 1, federation, LINEAR, lr=0.1, variant=variant, alpha=0.2, delta=delta)
        for variant in ("fo", "hf")
    }
    w = sims["fo"].server.initial_model().flat()[0]
    for client in range(3):
        first, exact = (meta_gradient(federation, client, w, 0.2, order) for order in (False, True))
        close(sims["hf"].calls[-1].returned["w"].flat()[client], w - 0.1 * exact, atol=1e-9)
        close(sims["fo"].calls[-1].returned["w"].flat()[client], w - 0.1 * first)
        assert (first - exact).abs().max() > 1e-2


def test_per_fedavg_in_single_precision() -> None:
    """delta counts in units of 1 / ||g||: even a small gradient leaves differences that single precision resolves."""
    federation = squares()
    w = played("per-fedavg", 1, federation, LINEAR, lr=0.1).server.initial_model().flat()[0]
    sim = played(
        "per-fedavg", 1, federation, LINEAR, lr=0.1, variant="hf", alpha=0.2, delta=1e-2, settings={"dtype": "float32"}
    )
    for client in range(3):
        exact = w - 0.1 * meta_gradient(federation, client, w, 0.2, True)
        torch.testing.assert_close(sim.calls[-1].returned["w"].flat()[client].double(), exact, rtol=0, atol=1e-4)


def test_per_fedavg_by_hand() -> None:
    """H = I: FO has w - lr (w~ - b), HF (1 - alpha) times that step; prediction is one step of rate alpha."""
    first = played("per-fedavg", alpha=0.25, weights="uniform")  # w~ = b/4, step (3/4)/2 b
    close(first.calls[-1].returned["w"].flat(), torch.tensor(B) * 3 / 8)
    close(first.server.w.flat(), [[0.75, 1.5]])
    close(personal(first), [[0.75 + 3.25 / 4, 1.5 * 0.75], [0.75 * 0.75, 1.5 + 6.5 / 4]])
    second = played("per-fedavg", variant="hf", alpha=0.25)
    close(second.calls[-1].returned["w"].flat(), torch.tensor(B) * 9 / 32)


@pytest.mark.parametrize("variant", ["fo", "hf"])
@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_per_fedavg_without_adaptation_is_fedavg(variant: str, weights: str) -> None:
    """T03: alpha = 0, on the same batches."""
    ours = played("per-fedavg", 3, RAGGED, MLP, training=MOMENTUM, variant=variant, alpha=0.0, weights=weights)
    theirs = played("fedavg", 3, RAGGED, MLP, training=MOMENTUM, weights=weights)
    assert torch.equal(ours.server.w.flat(), theirs.server.w.flat())
    assert torch.equal(personal(ours), personal(theirs))


def test_per_fedavg_first_order_is_enough_where_there_is_no_curvature() -> None:
    """With a zero gradient too, nothing is divided by its norm."""
    one, two = (played("per-fedavg", 2, model=BLIND, variant=variant, alpha=0.3) for variant in ("fo", "hf"))
    assert torch.equal(one.server.w.flat(), two.server.w.flat())
    assert two.server.w.finite().all()


class Root(nn.Module):
    """Its square is its position and a constant, so that squared errors about 0 are linear: slopes and no Hessian."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        return 0.0 * x.flatten(1).sum(1, keepdim=True) + (self.position + 9.0).sqrt()


def root(feature_shape: Any, classes: int) -> nn.Module:
    return Root(classes)


def test_per_fedavg_second_order_adds_nothing_to_a_linear_loss() -> None:
    """FO = HF where the Hessian is 0 and the gradient is not."""
    federation = located([[0.0, 0.0], [0.0, 0.0]], [1, 3])
    model = ModelSpec("test_mixed_and_meta:root")
    one, two = (played("per-fedavg", 3, federation, model, variant=variant, alpha=0.3) for variant in ("fo", "hf"))
    close(one.server.w.flat(), [[-0.75, -0.75]])  # three steps of rate 1/2 along (1/2, 1/2)
    close(two.server.w.flat(), one.server.w.flat(), atol=1e-8)


def test_per_fedavg_draws_independent_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """w~, g and H g see three streams of batches, of which g's is that of FedAvg."""
    drawn: list[str] = []
    steps = Site.steps

    def noted(site: Site, **options: Any) -> Any:
        drawn.append(options.get("batches", "train"))
        return steps(site, **options)

    monkeypatch.setattr(Site, "steps", noted)
    sim = played("per-fedavg", 1, RAGGED, MLP, training=BATCHES, variant="hf")
    assert drawn[0] == "train"
    inputs = [next(iter(steps(sim.calls[-1].site, batches=name))).inputs for name in drawn]
    assert len(inputs) == 3
    assert not any(torch.equal(inputs[i], inputs[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_per_fedavg_takes_each_gradient_on_a_batch_of_its_own(variant: str) -> None:
    """w~ on D, g on D', H g on D'' with H at w and not at w~: by autograd of a loss whose Hessian is not constant."""
    federation, alpha, lr = classified((9,)), 0.5, 0.1
    training = replace(BATCHES, epochs=2, lr=lr)
    sim = played("per-fedavg", 1, federation, LINEAR, training=training, variant=variant, alpha=alpha)
    site, w = sim.calls[-1].site, sim.server.initial_model().flat()[0]

    def loss(theta: Tensor, step: Any) -> Tensor:
        outputs = functional.linear(step.inputs[0].double(), theta[:12].view(3, 4), theta[12:])
        return functional.cross_entropy(outputs, step.targets[0])

    def gradient(theta: Tensor, step: Any) -> Tensor:
        at = theta.clone().requires_grad_()
        return torch.autograd.grad(loss(at, step), at)[0]

    streams = (site.steps(batches=name) for name in ("adaptation", "train", "hessian"))
    for inner, outer, second in zip(*streams, strict=True):
        g = gradient(w - alpha * gradient(w, inner), outer)
        if variant == "hf":
            g = g - alpha * torch.autograd.functional.hessian(lambda theta, on=second: loss(theta, on), w) @ g
        w = w - lr * g
    close(sim.calls[-1].returned["w"].flat()[0], w, atol=1e-7)


def test_per_fedavg_small_clients_learn_as_well() -> None:
    """Published programs split one batch, and a client with fewer examples than two batches does nothing."""
    sim = played("per-fedavg", 1, classified((1, 2, 9)), MLP, training=BATCHES)
    moved = (sim.calls[-1].returned["w"].flat() - sim.server.initial_model().flat()).abs().max(dim=1).values
    assert (moved > 1e-4).all()


def test_per_fedavg_has_an_alias() -> None:
    assert make_algorithm("per-fedavg-hf").options() == make_algorithm("per-fedavg", "hf").options()


def test_per_fedavg_newcomers_adapt_by_one_step() -> None:
    sim = played("per-fedavg", alpha=0.25, weights="uniform")  # w = (3/4, 3/2)
    close(admitted(sim, NEW, 0).models.flat(), [[0.75 + 1.25 / 4, 1.5 + 0.5 / 4]])
    one = torch.tensor([[0.75 + 1.25 / 4, 1.5 + 0.5 / 4]])
    close(admitted(sim, NEW, 1).models.flat(), (one + 2.0) / 2)  # an epoch at the rate of training, 1/2
    close(admitted(sim, NEW, 0, labelled=False).models.flat(), [[0.75, 1.5]])


# --- L2GD --------------------------------------------------------------------------------------------------------


def coins_of(rounds: int, iterations: int, p: float, seed: int = 0) -> list[list[bool]]:
    return [
        (generator(seed, number, "coins of l2gd").random(iterations) < p).tolist() for number in range(1, rounds + 1)
    ]


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_l2gd_by_hand(p: float) -> None:
    """Iteration by iteration with the paper's step sizes: alpha / (K (1 - p)) and s = alpha lambda / (K p)."""
    K, lr, strength = 3, 0.2, 0.7 * p
    b = torch.tensor([*B, [-2.0, 6.0]], dtype=torch.float64)
    sim = played("l2gd", 5, located(b.tolist(), [1, 3, 2]), lr=lr, p=p, iterations=8, **{"lambda": strength})
    alpha = lr * K * (1 - p)
    x = torch.zeros(3, 2, dtype=torch.float64)
    for coin in [coin for coins in coins_of(5, 8, p) for coin in coins]:
        if coin:
            s = alpha * strength / (K * p)
            x = (1 - s) * x + s * x.mean(0)  # the mean of the current models: averaging steps leave it as it is
        else:
            x = x - alpha / (K * (1 - p)) * (x - b)
    close(personal(sim), x)


def test_l2gd_without_penalty_is_local_with_random_skips() -> None:
    """T04: lambda = 0; x_k has taken as many steps as coins say."""
    sim = played("l2gd", 4, lr=0.1, p=0.4, iterations=10, **{"lambda": 0.0})
    steps = sum(not coin for coins in coins_of(4, 10, 0.4) for coin in coins)
    assert 10 < steps < 35
    close(personal(sim), torch.tensor(B, dtype=torch.float64) * (1 - 0.9**steps))
    local = played("local", steps, lr=0.1)
    close(personal(sim), personal(local))


def test_l2gd_that_goes_all_the_way_is_fedavg() -> None:
    """s = 1: every averaging step gives all clients the uniform mean."""
    p, lr = 0.5, 0.25
    sim = begun("l2gd", 6, lr=lr, p=p, iterations=5, **{"lambda": p / (lr * (1 - p))})
    coins, w = coins_of(6, 5, p), torch.zeros(2, 2, dtype=torch.float64)
    b = torch.tensor(B, dtype=torch.float64)
    for row in coins:
        sim.advance()
        for averaging, group in groupby(row):
            n = len(list(group))
            w = w.mean(0, keepdim=True).expand(2, 2) if averaging else b + (w - b) * (1 - lr) ** n
        close(personal(sim), w)


def test_l2gd_averaging_steps_keep_the_mean() -> None:
    sim = begun("l2gd", 1, RAGGED, MLP, training=BATCHES, p=0.5)
    run(sim)
    site = sim.calls[-1].site
    x = site.theta.clone()
    mean = x.mixed(torch.full((1, 8), 1 / 8, dtype=torch.float64))
    sim.algorithm.averaging_steps(site, torch.full((8,), 3), mean.repeat(8))  # type: ignore[attr-defined]
    close(site.theta.flat().mean(0), mean.flat()[0])
    assert (site.theta.flat() - x.flat()).abs().max() > 1e-4


def test_l2gd_models_travel_when_an_averaging_step_follows_a_local_one() -> None:
    """T23: counted from the coins; p (1 - p) times an iteration on average."""
    p, iterations, rounds = 0.3, 25, 12
    sim = played("l2gd", rounds, lr=0.05, p=p, iterations=iterations)
    coins = [coin for row in coins_of(rounds, iterations, p) for coin in row]
    transfers = sum(now and not before for before, now in zip([True, *coins], coins, strict=False))
    table = sim.ledger.per_client()
    table = table[(table.phase == "train") & (table.kind == "model")]
    for direction in ("down", "up"):
        assert table[table.direction == direction]["bytes"].tolist() == [transfers * 2 * 8] * 2
    assert sim.server.transfers == transfers
    assert sim.algorithm.notes(sim.server) == {"transfers": float(transfers)}
    expected, deviation = p * (1 - p) * len(coins), (len(coins) * p * (1 - p)) ** 0.5
    assert abs(transfers - expected) < 3 * deviation


@pytest.mark.parametrize("p", [0.1, 0.4])
def test_l2gd_expected_traffic(p: float) -> None:
    """T23: over many coins of a run p (1 - p) transfers for each, however the rounds cut them."""
    coins = 0
    for rounds, iterations in ((20, 50), (50, 10)):
        sim = played("l2gd", rounds, lr=0.01, p=p, iterations=iterations)
        coins = rounds * iterations
        deviation = (coins * p * (1 - p)) ** 0.5
        assert abs(sim.server.transfers - coins * p * (1 - p)) < 4 * deviation
        table = sim.ledger.per_client()
        sent = table[(table.phase == "train") & (table.kind == "model") & (table.direction == "up")]["bytes"]
        assert sent.tolist() == [sim.server.transfers * 2 * 8] * 2


def test_l2gd_with_half_of_the_clients() -> None:
    """The mean is that of the clients that take part, and the others keep their models."""
    three = located([*B, [-2.0, 6.0]])
    absent = {1: ("client-2",), 2: ("client-0",), 3: ("client-1",)}
    sim = begun("l2gd", 3, three, lr=0.2, p=0.5, iterations=6, absent=absent, **{"lambda": 1.0})
    b = torch.tensor([*B, [-2.0, 6.0]], dtype=torch.float64)
    x = torch.zeros(3, 2, dtype=torch.float64)
    for row, here in zip(coins_of(3, 6, 0.5), ([0, 1], [1, 2], [0, 2]), strict=True):
        sim.advance()
        for coin in row:
            x[here] = 0.8 * x[here] + 0.2 * x[here].mean(0) if coin else x[here] - 0.2 * (x[here] - b[here])
        close(state(sim).flat() if sim.round > 1 else personal(sim), x)


def test_l2gd_who_missed_the_last_mean_has_it_formed_anew() -> None:
    """Round 1 of clients 0 and 1 ends with their mean; round 2 of 1 and 2 begins with an averaging step."""
    wanted = [[False, True], [True, False]]
    seed = next(seed for seed in range(1000) if coins_of(2, 2, 0.5, seed) == wanted)
    sim = begun(
        "l2gd", 2, located([*B, [-2.0, 6.0]]), lr=0.2, p=0.5, iterations=2, settings={"seed": seed},
        absent={1: ("client-2",), 2: ("client-0",)}, **{"lambda": 1.0},
    )  # fmt: skip
    run(sim)
    b = torch.tensor([*B, [-2.0, 6.0]], dtype=torch.float64)
    x = torch.zeros(3, 2, dtype=torch.float64)
    x[:2] = 0.2 * b[:2]
    x[:2] = 0.8 * x[:2] + 0.2 * x[:2].mean(0)
    x[1:] = 0.8 * x[1:] + 0.2 * x[1:].mean(0)
    x[1:] = x[1:] - 0.2 * (x[1:] - b[1:])
    close(personal(sim), x)


def test_l2gd_refuses_to_overshoot() -> None:
    with pytest.raises(CoterieError, match=r"would go 4\.5 times the way to the mean"):
        played("l2gd", lr=0.5, p=0.1, **{"lambda": 1.0})
    for p in (0.0, 1.0):
        with pytest.raises(CoterieError, match="p must be above 0 and below 1"):
            make_algorithm("l2gd", p=p)


def test_l2gd_local_steps_of_a_round_see_different_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a round that are parted by averaging steps do not begin with the same batch."""
    drawn: list[str] = []
    fit = Site.fit

    def noted(site: Site, *arguments: Any, **options: Any) -> Any:
        drawn.append(options["batches"])
        return fit(site, *arguments, **options)

    monkeypatch.setattr(Site, "fit", noted)
    played("l2gd", 1, RAGGED, MLP, training=BATCHES, p=0.5, iterations=20)
    assert len(set(drawn)) == len(drawn) > 2


def test_l2gd_newcomers_start_at_the_mean_and_are_pulled_to_it() -> None:
    sim = begun("l2gd", 1, p=0.2, **{"lambda": 0.5})
    sim.server.w = models_like(sim, [[1.0, 2.0]])
    # b = (2, 2): x <- x - (x - b)/2 - (x - mean)/4
    close(admitted(sim, NEW, 0).models.flat(), [[1.0, 2.0]])
    close(admitted(sim, NEW, 2).models.flat(), [[1.5 + 0.25 - 0.125, 2.0]])
    close(admitted(sim, NEW, 0, labelled=False).models.flat(), [[1.0, 2.0]])


# --- all ---------------------------------------------------------------------------------------------------------

ALL: list[tuple[str, dict[str, Any]]] = [
    ("apfl", {}), ("pfedme", {}), ("per-fedavg", {}), ("per-fedavg", {"variant": "hf"}), ("l2gd", {"p": 0.4}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), [entry for entry in ALL if entry[0] != "l2gd"])
def test_models_that_travel(name: str, options: dict[str, Any]) -> None:
    """T23: one down, one up, and nothing else."""
    sim = played(name, 2, RAGGED, LINEAR, training=BATCHES, participation=HALF, **options)
    table = sim.ledger.per_client()
    table = table[table.phase == "train"]
    assert set(table.kind) == {"model"}
    for direction in ("down", "up"):
        assert table[table.direction == direction]["bytes"].sum() == 2 * 4 * sim.stack.layout.d * 8


@pytest.mark.parametrize(("name", "options"), ALL)
def test_identical_clients_stay_identical(name: str, options: dict[str, Any]) -> None:
    """T02: on full batches."""
    models = personal(played(name, 3, alike(4), MLP, lr=0.1, **options))
    close(models, models[:1].expand_as(models))


@pytest.mark.parametrize(("name", "options"), ALL)
def test_the_order_of_clients_changes_nothing(name: str, options: dict[str, Any]) -> None:
    """T22."""
    order = [3, 0, 7, 1, 6, 2, 5, 4]
    here = played(name, 3, RAGGED, MLP, training=BATCHES, **options)
    there = played(name, 3, RAGGED.select(order), MLP, training=BATCHES, **options)
    close(personal(here)[order], personal(there))


@pytest.mark.parametrize(("name", "options"), ALL)
def test_resumed_in_the_middle(name: str, options: dict[str, Any]) -> None:
    """T27."""
    settings: dict[str, Any] = {"training": BATCHES, "participation": HALF, **options}
    whole = played(name, 4, RAGGED, MLP, **settings)
    half, resumed = begun(name, 4, RAGGED, MLP, **settings), begun(name, 4, RAGGED, MLP, **settings)
    half.advance()
    half.advance()
    resumed.load_state_dict(half.state_dict())
    run(resumed)
    assert torch.equal(personal(resumed), personal(whole))
