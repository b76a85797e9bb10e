"""pFedHN: the server's steps against torch's own modules, autograd and SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import make_algorithm
from coterie.engines import Admission, Participation, Settings, Simulation, Trained, checkpoint
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from coterie.models.hypernetwork import generated
from coterie.training import TrainingSettings
from toys import (
    BATCHES,
    BLIND,
    FULL_BATCH,
    HALF,
    HALF_FROZEN,
    LOCATION,
    MLP,
    NORMED,
    Recording,
    classified,
    located,
    names_of,
    personal,
    reordered,
    run,
    same,
    saved,
    simulation,
)

FEDERATION = classified((7, 4, 9, 5))
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9)
ABSENT = {1: [2], 2: [1, 3], 3: [0]}
PLAIN = {"server_lr": 1.0, "server_momentum": 0.0, "server_weight_decay": 0.0, "clip": 1e9}


def begun(
    rounds: int = 1, federation: Federation = FEDERATION, model: ModelSpec = MLP, *,
    absent: Mapping[int, Sequence[int]] | None = None, options: Mapping[str, Any] | None = None, **settings: Any,
) -> Recording:  # fmt: skip
    away = {t: tuple(f"client-{i}" for i in who) for t, who in (absent or {}).items()}
    sim = simulation(
        federation, make_algorithm("pfedhn", **{"hidden": 8, **(options or {})}), model, engine=Recording, rounds=rounds,
        absent=away, **{"training": MOMENTUM, **settings},
    )  # fmt: skip
    assert isinstance(sim, Recording)
    return sim


def played(*arguments: Any, **settings: Any) -> Recording:
    sim = begun(*arguments, **settings)
    run(sim)
    return sim


def close(actual: Tensor, expected: Any, tolerance: float = 1e-12) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def shapes(sim: Simulation) -> dict[str, torch.Size]:
    return {name: tensor.shape[1:] for name, tensor in sim.server.initial_model().parameters()}


# --- the server's step -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [50.0, 0.05])
@pytest.mark.parametrize("absent", [{}, ABSENT], ids=["all", "absent"])
@pytest.mark.parametrize("rate", [None, 0.3])
def test_T20_rounds_are_torchs_sgd_on_the_inner_product(
    rate: float | None, absent: Mapping[int, Sequence[int]], clip: float
) -> None:
    """sum_k <theta(phi, v_k), theta_k - theta'_k> over those that answered, clipped, momentum and weight decay."""
    options = {"clip": clip, "server_lr": 0.1, "server_weight_decay": 0.01, "embedding_lr": rate}
    sim = begun(4, absent=absent, options=options)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in sim.server.weights.items()}
    groups = [
        {"params": [tensor for name, tensor in leaves.items() if name != "v"]},
        {"params": [leaves["v"]], "lr": 0.1 if rate is None else rate},
    ]
    sgd = torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)
    norms = []
    for t in range(1, 5):
        before = torch.cat([leaf.detach().flatten() for leaf in leaves.values()])
        sim.advance()
        call = sim.calls[-1]
        present = torch.tensor([i for i in range(4) if i not in absent.get(t, [])])
        theta = generated(leaves, present, shapes(sim))
        for name, tensor in theta.items():
            close(call.received["theta"].tensors[name], tensor.detach())
        sgd.zero_grad()
        sum(((theta[n] * call.returned["change"].tensors[n]).sum() for n in theta), torch.zeros(())).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(leaves.values()), clip)))
        sgd.step()
        for name, leaf in leaves.items():
            close(sim.server.weights[name], leaf.detach())
        assert sim.server.norm == pytest.approx(norms[-1], rel=1e-9)
        assert sim.algorithm.notes(sim.server) == {"gradient_norm": sim.server.norm}
        assert not torch.equal(before, torch.cat([leaf.detach().flatten() for leaf in leaves.values()]))
    assert max(norms) < 50.0
    assert min(norms) > 0.05


def test_the_change_is_the_model_before_training_less_that_after() -> None:
    sim = played(model=LOCATION, federation=located([[4.0, 0.0], [0.0, 8.0]]), training=replace(FULL_BATCH, lr=0.5))
    theta = sim.calls[0].received["theta"].flat()
    close(sim.calls[0].returned["change"].flat(), 0.5 * (theta - torch.tensor([[4.0, 0.0], [0.0, 8.0]])))


def independent(rounds: int, federation: Federation, model: ModelSpec = LOCATION, **settings: Any) -> Recording:
    """A linear hypernetwork with one-hot embeddings that stay, no biases and rate 1; it begins with theta^0."""
    options = {**PLAIN, "layers": 0, "embedding": len(federation.names), "embedding_lr": 0.0}
    sim = begun(rounds, federation, model, options=options, **settings)
    weights = {name: tensor for name, tensor in sim.server.weights.items() if not name.endswith(".bias")}
    weights = {**weights, "v": torch.eye(len(federation.names), dtype=torch.float64)}
    for name, tensor in sim.server.initial_model().parameters():
        weights[f"to.{name}.weight"] = tensor.reshape(-1, 1).repeat(1, len(federation.names))
    sim.server.weights = weights
    sim.server.momentum = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    return sim


@pytest.mark.parametrize("participation", [Participation(), HALF], ids=["all", "half"])
def test_T04_a_linear_hypernetwork_with_one_hot_embeddings_is_local(participation: Participation) -> None:
    """theta_k - (theta_k - theta'_k) = theta'_k, for each client by itself."""
    settings: dict[str, Any] = {"participation": participation, "training": MOMENTUM}
    sim = independent(5, FEDERATION, MLP, **settings)
    alone = simulation(FEDERATION, "local", MLP, rounds=5, **settings)
    run(sim), run(alone)
    close(personal(sim), personal(alone), 1e-10)


def test_without_a_change_the_weights_only_decay() -> None:
    """The model does not learn anything, so phi and v keep their directions."""
    sim = begun(3, model=BLIND, options={"server_lr": 0.1, "server_weight_decay": 0.5, "server_momentum": 0.0})
    before = {name: tensor.clone() for name, tensor in sim.server.weights.items()}
    run(sim)
    for name, tensor in sim.server.weights.items():
        close(tensor, before[name] * (1 - 0.1 * 0.5) ** 3)
    still = begun(3, model=BLIND, options={"server_weight_decay": 0.0})
    run(still)
    for name, tensor in still.server.weights.items():
        assert torch.equal(tensor, before[name])
    assert still.server.norm == 0.0


def test_the_gradient_is_scaled_to_its_limit() -> None:
    free = played(options={**PLAIN})
    bound = played(options={**PLAIN, "clip": 0.01})
    start = begun(options={**PLAIN}).server.weights
    free_step, bound_step = (
        torch.cat([(sim.server.weights[name] - start[name]).flatten() for name in start]) for sim in (free, bound)
    )
    assert float(bound_step.norm()) == pytest.approx(0.01 / (1 + 1e-6 / free.server.norm), rel=1e-9)
    close(bound_step / bound_step.norm(), free_step / free_step.norm(), 1e-10)
    assert float(free_step.norm()) == pytest.approx(free.server.norm, rel=1e-9)


# --- clients -----------------------------------------------------------------------------------------------------


def test_every_client_is_made_before_its_first_contact() -> None:
    """By its own embedding, which moves nothing of the others; who is away follows phi."""
    sim = begun(2, absent={1: [1], 2: [1]})
    before = personal(sim)
    assert all(not torch.equal(before[i], before[j]) for i in range(4) for j in range(i))
    run(sim)
    theta = generated(sim.server.weights, torch.arange(4), shapes(sim))
    close(personal(sim), torch.cat([tensor.flatten(1) for tensor in theta.values()], dim=1), 0)


def test_embeddings_belong_to_names() -> None:
    sim, other = begun(), begun(federation=reordered(FEDERATION, [2, 0, 3, 1]))
    assert torch.equal(other.server.weights["v"], sim.server.weights["v"][[2, 0, 3, 1]])
    assert sim.server.weights["v"].shape == (4, 2)  # 1 + K/4
    assert begun(options={"embedding": 5}).server.weights["v"].shape == (4, 5)


def test_T22_the_order_of_clients_changes_nothing() -> None:
    order = [2, 0, 3, 1]
    first, second = (
        simulation(f, "pfedhn", MLP, rounds=3, training=MOMENTUM, absent={2: ("client-1",)})
        for f in (FEDERATION, reordered(FEDERATION, order))
    )
    run(first), run(second)
    close(personal(second), personal(first)[order], 1e-10)


def test_local_training_lasts_so_many_batches() -> None:
    assert torch.equal(
        personal(played(options={"steps": 1})),
        personal(played(options={"steps": 1}, training=replace(MOMENTUM, epochs=7))),
    )
    assert not torch.equal(personal(played(options={"steps": 1})), personal(played(options={"steps": 2})))
    # client-1 has 4 examples: an epoch is two batches of 3
    one, two = played(options={"steps": 4}), played()
    close(one.calls[0].returned["change"].flat()[1], two.calls[0].returned["change"].flat()[1], 0)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_change_nothing(chunk: int) -> None:
    close(personal(played(3, chunk=chunk)), personal(played(3)), 1e-12)


@pytest.mark.parametrize("policy", ["average", "local", "server"])
def test_batch_statistics_are_not_generated(policy: str) -> None:
    federation = classified((8, 5, 9, 6))
    sim = played(3, federation, NORMED, training=replace(BATCHES, batch_size=4), buffers=policy)
    means = sim.report_models().tensors["2.running_mean"]
    moved = sim.server.like.tensors["2.running_mean"]
    if policy == "average":
        n = torch.tensor([8.0, 5.0, 9.0, 6.0], dtype=torch.float64)
        last = sim.calls[-1].returned["change"].tensors["2.running_mean"]
        close(moved[0], (n / n.sum()) @ last)
        assert torch.equal(means, moved.expand(4, -1))
    else:
        assert torch.equal(moved, torch.zeros_like(moved))
        assert torch.equal(means[0], means[1]) is (policy == "server")
    assert bool(means.abs().max() > 0) is (policy != "server")


# --- traffic, checkpoints ----------------------------------------------------------------------------------------


def test_T23_a_model_down_and_a_change_up() -> None:
    sim = played(1)
    size = 8 * sim.server.like.d
    for way in ("down", "up"):
        assert sim.ledger.bytes[("train", way, "model")].tolist() == [size] * 4
    assert {kind for _, _, kind in sim.ledger.bytes} == {"model"}


def test_T27_a_run_goes_on_from_its_checkpoint(tmp_path: Any) -> None:
    whole, first, second = (begun(4, participation=HALF) for _ in range(3))
    run(whole)
    first.advance(), first.advance()
    checkpoint.save(tmp_path / "two.pt", first)
    checkpoint.load(tmp_path / "two.pt", second)
    run(second)
    assert same(saved(whole), saved(second))
    assert any(bool(tensor.any()) for tensor in whole.server.momentum.values())


# --- newcomers ---------------------------------------------------------------------------------------------------

EVERYBODY = classified((7, 4, 9, 5, 6, 8), validation=5)


def admission(sim: Simulation, **settings: Any) -> Admission:
    return Admission(
        Trained.of(sim), EVERYBODY.select([4, 5]), sim.algorithm, MLP,
        Settings(**{"training": BATCHES, "dtype": "float64", "threads": 1, **settings}),
    )  # fmt: skip


@pytest.mark.parametrize("clip", [50.0, 0.05])
def test_newcomers_learn_an_embedding_and_nothing_else(clip: float) -> None:
    """Epoch by epoch: the change of an epoch's training, pulled back to v alone."""
    sim = played(federation=EVERYBODY.select([0, 1, 2, 3]), options={"clip": clip, "embedding_lr": 0.5})
    came = admission(sim).admit(labelled=True, epochs=3)
    assert came is not None
    frozen = {name: tensor.clone() for name, tensor in sim.server.weights.items()}
    v = frozen["v"].mean(0).repeat(2, 1).requires_grad_()
    local = [v.detach().clone()]
    sgd = torch.optim.SGD([v], lr=0.5, momentum=0.9, weight_decay=0.001)
    one = admission(sim)
    one._labelled = True
    site = one.sites.site(torch.arange(2), torch.arange(2), one.round)
    for epoch in range(3):
        theta = generated({**frozen, "v": v}, torch.arange(2), shapes(sim))
        model = sim.server.initial_models(2).clone()
        model.materialise()
        for name, tensor in theta.items():
            model.tensors[name] = tensor.detach()
        trained = site.fit(model, epochs=1, batches=f"train {epoch}").models
        sgd.zero_grad()
        sum(((theta[n] * (model - trained).tensors[n]).sum() for n in theta), torch.zeros(())).backward()
        assert v.grad is not None
        v.grad.mul_((clip / (v.grad.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0))
        sgd.step()
        local.append(v.detach().clone())
    expected = generated({**frozen, "v": local[-1]}, torch.arange(2), shapes(sim))
    close(came.models.flat(), torch.cat([tensor.flatten(1) for tensor in expected.values()], dim=1))
    assert not torch.equal(local[-1][0], local[-1][1])


def test_newcomers_of_different_sizes_learn_as_if_each_came_alone() -> None:
    sim = played(federation=EVERYBODY.select([0, 1, 2, 3]))
    together = admission(sim).admit(labelled=True, epochs=3)
    assert together is not None
    for i in range(2):
        alone = Admission(
            Trained.of(sim), EVERYBODY.select([4 + i]), sim.algorithm, MLP,
            Settings(training=BATCHES, dtype="float64", threads=1),
        ).admit(labelled=True, epochs=3)  # fmt: skip
        assert alone is not None
        close(together.models.flat()[i], alone.models.flat()[0])
    assert not torch.equal(together.models.flat()[0], together.models.flat()[1])


def test_newcomers_learn_once_the_hypernetwork_has() -> None:
    """Members with two opposite rules: where a newcomer belongs is a matter of its embedding."""
    rules = classified((30, 30), validation=0, seed=3)
    members = Federation(
        names_of(6), *(data.select([0, 1] * 3) for data in (rules.train, rules.train, rules.train)), "classification", 3
    )
    sim = played(150, members, options={"server_lr": 0.02, "layers": 1}, training=replace(FULL_BATCH, epochs=5, lr=0.2))
    arrival, *_, last = _curve(sim, members.select([0, 1]))
    assert arrival > 1.0
    assert last < 0.1


def _curve(sim: Simulation, newcomers: Federation) -> list[float]:
    coming = Admission(
        Trained.of(sim), newcomers, sim.algorithm, MLP,
        Settings(training=replace(FULL_BATCH, lr=0.5), dtype="float64", threads=1),
    )  # fmt: skip
    came = coming.admit(labelled=True, epochs=40)
    assert came is not None
    return [float(value) for value in came.values["loss"].mean(axis=1)]


def test_newcomers_receive_the_hypernetwork_once() -> None:
    sim = played(federation=EVERYBODY.select([0, 1, 2, 3]))
    came = admission(sim).admit(labelled=True, epochs=3)
    assert came is not None
    phi = sum(tensor.numel() for name, tensor in sim.server.weights.items() if name != "v")
    embedding = sim.server.weights["v"].shape[1]
    received = sum(counts for what, counts in came.traffic.items() if what.startswith("down"))
    assert list(received) == [8 * (sim.server.like.d + phi + embedding)] * 2
    assert not [what for what in came.traffic if what.startswith("up")]


def test_without_labels_nothing_is_made() -> None:
    sim = played(federation=EVERYBODY.select([0, 1, 2, 3]))
    assert admission(sim).admit(labelled=False, epochs=3) is None


def test_frozen_layers_are_refused() -> None:
    with pytest.raises(CoterieError, match=r"pfedhn makes all weights.*so that 0\.bias of a frozen layer cannot stay"):
        run(begun(model=HALF_FROZEN))


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("embedding", 0), ("hidden", 0), ("layers", -1), ("steps", 0), ("server_lr", -1.0), ("embedding_lr", -1.0),
        ("server_weight_decay", -1.0), ("server_momentum", 1.0), ("server_momentum", -0.1), ("clip", 0.0),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(CoterieError, match=rf"pfedhn\.{option} must be"):
        make_algorithm("pfedhn", **{option: value})
