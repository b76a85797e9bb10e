"""FedRoD: a generic model with a balanced loss, and private heads beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.contract import make_algorithm
from coterie.engines import Admission, Settings, Trained, checkpoint
from coterie.errors import CoterieError
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import ModelSpec
from coterie.training import TrainingSettings
from toys import (
    BATCHES,
    FULL_BATCH,
    HALF,
    LINEAR,
    MLP,
    NORMED,
    Recording,
    alike,
    classified,
    located,
    names_of,
    personal,
    reordered,
    run,
    same,
    saved,
    simulation,
    state,
)

FEDERATION = classified((7, 4, 9, 5))
MOMENTUM = TrainingSettings(epochs=2, batch_size=3, lr=0.05, momentum=0.9, weight_decay=0.01)


def convolved(feature_shape: Sequence[int], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Unflatten(1, (1, feature_shape[0])), nn.Conv1d(1, classes, feature_shape[0]), nn.Flatten()
    )


def activated(feature_shape: Sequence[int], classes: int) -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(feature_shape[0], classes), nn.PReLU())
    module.head_name = "2"  # type: ignore[assignment]
    return module


def played(rounds: int = 1, federation: Federation = FEDERATION, model: ModelSpec = MLP, **settings: Any) -> Recording:
    options = settings.pop("options", {})
    sim = simulation(
        federation, make_algorithm("fedrod", **options), model, engine=Recording, rounds=rounds,
        **{"training": MOMENTUM, **settings},
    )  # fmt: skip
    run(sim)
    assert isinstance(sim, Recording)
    return sim


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def by_hand(
    rounds: int, gamma: float, absent: Mapping[int, Sequence[int]], *, lr: float, momentum: float, epochs: int
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """One client after another on full batches, with torch's own SGD and detach: w and all q_k."""
    start = simulation(FEDERATION, "fedrod", MLP, rounds=1).server.initial_model()
    w = {name: tensor[0].clone() for name, tensor in start.parameters()}
    head = {name: torch.zeros_like(tensor) for name, tensor in w.items() if name.startswith("3.")}
    q = [{name: tensor.clone() for name, tensor in head.items()} for _ in range(4)]
    for t in range(1, rounds + 1):
        answers, sizes = [], []
        for i in [i for i in range(4) if i not in absent.get(t, [])]:
            inputs, targets = FEDERATION.train.client(i)
            counts = torch.bincount(targets, minlength=3)
            offset = torch.where(
                counts > 0, gamma * counts.double().log(), torch.tensor(-1e30 if gamma else 0.0, dtype=torch.float64)
            )
            own = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
            private = {name: tensor.clone().requires_grad_() for name, tensor in q[i].items()}
            one, two = (torch.optim.SGD(list(p.values()), lr=lr, momentum=momentum) for p in (own, private))
            for _ in range(epochs):
                z = torch.relu(functional.linear(inputs.double(), own["1.weight"], own["1.bias"]))
                generic = functional.linear(z, own["3.weight"], own["3.bias"])
                added = functional.linear(z.detach(), private["3.weight"], private["3.bias"])
                one.zero_grad(), two.zero_grad()
                functional.cross_entropy(generic + offset, targets).backward()
                functional.cross_entropy(generic.detach() + added, targets).backward()
                one.step(), two.step()
            q[i] = {name: tensor.detach() for name, tensor in private.items()}
            answers.append({name: tensor.detach() for name, tensor in own.items()})
            sizes.append(len(targets))
        share = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
        w = {name: torch.tensordot(share, torch.stack([a[name] for a in answers]), 1) for name in w}
    return w, q


@pytest.mark.parametrize("absent", [{}, {1: [2], 2: [1, 3]}], ids=["all", "absent"])
@pytest.mark.parametrize(("gamma", "momentum"), [(1.0, 0.0), (1.0, 0.8), (0.5, 0.8), (0.0, 0.0)])
def test_round_by_round(gamma: float, momentum: float, absent: Mapping[int, Sequence[int]]) -> None:
    """The generic model with the balanced loss, the head with that of the detached sum, by autograd of both."""
    training = replace(FULL_BATCH, epochs=3, lr=0.2, momentum=momentum)
    away = {t: tuple(f"client-{i}" for i in who) for t, who in absent.items()}
    sim = played(3, options={"gamma": gamma}, training=training, absent=away)
    w, q = by_hand(3, gamma, absent, lr=0.2, momentum=momentum, epochs=3)
    for name, tensor in w.items():
        close(sim.server.w.tensors[name][0], tensor)
    heads = state(sim, "q")
    for i in range(4):
        for name, tensor in q[i].items():
            close(heads.tensors[name][i], tensor)
    models = sim.report_models()
    close(models.tensors["1.weight"][0], w["1.weight"])
    close(models.tensors["3.weight"][1], w["3.weight"] + q[1]["3.weight"])


def test_the_private_head_changes_nothing_of_the_generic_model() -> None:
    """Who has no private head yet uploads the same as who has one."""
    first = played(2)
    again = simulation(FEDERATION, "fedrod", MLP, engine=Recording, rounds=2, training=MOMENTUM)
    again.advance()
    again.bank.columns["q"].rows = state(again, "q") * 3.0
    again.advance()
    assert isinstance(again, Recording)
    assert torch.equal(first.calls[-1].returned["w"].flat(), again.calls[-1].returned["w"].flat())
    assert not torch.equal(state(first, "q").flat(), state(again, "q").flat())


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize("model", [MLP, LINEAR, NORMED], ids=["mlp", "linear", "normed"])
def test_T18_gamma_0_leaves_the_generic_model_to_fedavg(model: ModelSpec, weights: str) -> None:
    settings = {"rounds": 4, "training": replace(MOMENTUM, batch_size=4), "participation": HALF}
    federation = classified((8, 4, 10, 6))
    rod = simulation(federation, "fedrod", model, options={"gamma": 0.0, "weights": weights}, **settings)
    average = simulation(federation, "fedavg", model, options={"weights": weights}, **settings)
    run(rod), run(average)
    close(rod.server.w.flat(), average.server.w.flat())
    for name in rod.server.w.layout.buffers:
        close(rod.server.w.tensors[name], average.server.w.tensors[name])


def by_class(counts: Sequence[Sequence[int]]) -> Federation:
    """Clients with so many examples of each class."""
    draw = torch.Generator().manual_seed(1)
    targets = [torch.cat([torch.full((n,), c) for c, n in enumerate(row)]) for row in counts]
    data = ClientData.from_clients([torch.randn(len(t), 4, generator=draw) for t in targets], targets)
    return Federation(names_of(len(counts)), data, data, data, "classification", len(counts[0]))


def test_T18_uniform_class_counts_are_fedavg() -> None:
    federation = by_class([[3, 3, 3], [2, 2, 2]])
    rod = simulation(federation, "fedrod", MLP, rounds=4, training=MOMENTUM)
    average = simulation(federation, "fedavg", MLP, rounds=4, training=MOMENTUM)
    run(rod), run(average)
    close(rod.server.w.flat(), average.server.w.flat(), 1e-10)


def test_T18_absent_classes_keep_everything_finite() -> None:
    """One client lacks a class, another all but one; batches without a class are the rule."""
    federation = by_class([[6, 1, 0], [0, 0, 5], [1, 9, 2]])
    sim = played(5, federation)
    assert bool(sim.report_models().finite().all())
    assert bool(state(sim, "q").finite().all())
    assert not sim.calls[-1].returned["w"].flat().isnan().any()


def test_T18_an_absent_class_is_not_pushed_away() -> None:
    """The balanced loss gives its outputs no gradient at all."""
    federation = by_class([[6, 1, 0]])
    sim = played(1, federation, training=replace(BATCHES, lr=0.1))
    assert torch.equal(sim.server.w.tensors["3.weight"][0, 2], sim.server.initial_model().tensors["3.weight"][0, 2])
    assert torch.equal(sim.server.w.tensors["3.bias"][0, 2], sim.server.initial_model().tensors["3.bias"][0, 2])


def test_T18_counts_are_of_all_examples_although_the_last_batch_is_dropped() -> None:
    """A rare class that no batch holds counts one example; that some batch of a later epoch holds it is fine."""
    sim = played(3, by_class([[6, 1, 0], [7, 0, 1]]), training=replace(MOMENTUM, drop_last=True, epochs=4))
    assert bool(sim.report_models().finite().all())


def test_T02_identical_clients_stay_identical() -> None:
    sim = played(4, alike(), training=replace(FULL_BATCH, epochs=3))
    close(personal(sim), personal(sim)[:1].expand(4, -1))


def test_T22_the_order_of_clients_changes_nothing() -> None:
    order = [2, 0, 3, 1]
    first, second = (played(3, f, absent={2: ("client-1",)}) for f in (FEDERATION, reordered(FEDERATION, order)))
    close(personal(second), personal(first)[order])
    close(state(second, "q").flat(), state(first, "q").flat()[order])


@pytest.mark.parametrize("i", range(4))
def test_a_client_trains_alone_as_among_others(i: int) -> None:
    """In batches that are not all of one size, where rows drop out one after the other."""
    together, alone = played(1), played(1, FEDERATION.select([i]))
    close(together.calls[0].returned["w"].flat()[i], alone.calls[0].returned["w"].flat()[0])
    close(state(together, "q").flat()[i], state(alone, "q").flat()[0])


def test_T23_the_generic_model_travels_and_the_head_does_not() -> None:
    sim = played(1)
    size = 8 * sim.server.w.d
    for way in ("down", "up"):
        assert sim.ledger.bytes[("train", way, "model")].tolist() == [size] * 4
    assert {kind for _, _, kind in sim.ledger.bytes} == {"model"}


def test_T27_a_run_goes_on_from_its_checkpoint(tmp_path: Any) -> None:
    settings: dict[str, Any] = {"rounds": 4, "training": MOMENTUM, "participation": HALF}
    whole, first, second = (simulation(FEDERATION, "fedrod", MLP, **settings) for _ in range(3))
    run(whole)
    first.advance(), first.advance()
    checkpoint.save(tmp_path / "two.pt", first)
    checkpoint.load(tmp_path / "two.pt", second)
    run(second)
    assert same(saved(whole), saved(second))


def test_an_absent_client_predicts_with_the_latest_generic_model_and_its_own_head() -> None:
    sim = played(2, absent={2: ("client-1",)})
    before = played(1)
    assert torch.equal(state(sim, "q").flat()[1], state(before, "q").flat()[1])
    models, w = sim.report_models(), sim.server.w
    close(models["head"].flat()[1], (w["head"] + state(sim, "q")[[1]]).flat()[0], 0)
    close(models["body"].flat()[1], w["body"].flat()[0], 0)
    late = played(2, absent={1: ("client-1",), 2: ("client-1",)})
    close(personal(late)[1], late.server.w.flat()[0], 0)  # never met: the head is zero


# --- newcomers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labelled", [True, False])
def test_newcomers_have_the_generic_model_and_with_labels_a_head(labelled: bool) -> None:
    everybody = classified((7, 4, 9, 5, 6, 8), validation=5)
    sim = simulation(everybody.select([0, 1, 2, 3]), "fedrod", MLP, training=MOMENTUM)
    run(sim)
    coming = Admission(
        Trained.of(sim), everybody.select([4, 5]), sim.algorithm, MLP,
        Settings(training=BATCHES, dtype="float64", threads=1),
    )  # fmt: skip
    came = coming.admit(labelled=labelled, epochs=3)
    assert came is not None
    assert torch.equal(came.models["body"].flat(), sim.server.w["body"].flat().expand(2, -1))
    assert torch.equal(came.models["head"].flat(), sim.server.w["head"].flat().expand(2, -1)) is not labelled


# --- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["convolved", "activated"])
def test_a_head_that_is_not_linear_is_refused(model: str) -> None:
    with pytest.raises(CoterieError, match="a model whose head is one linear layer"):
        simulation(FEDERATION, "fedrod", ModelSpec(f"test_fedrod:{model}"))


def test_regression_is_refused() -> None:
    with pytest.raises(CoterieError, match="needs a classification task"):
        simulation(located([[1.0, 2.0]]), "fedrod", LINEAR)


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(CoterieError, match=r"fedrod\.gamma must be 0 or more"):
        make_algorithm("fedrod", gamma=-1.0)
