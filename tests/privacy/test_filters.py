"""Clipping and noise on answers: exact norms, untouched rows, the statistics of the noise."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from coterie.contract import Algorithm, available_algorithms
from coterie.engines.sites import initial_seed
from coterie.federation.federation import Federation
from coterie.models import Models
from coterie.models.rows import Layout
from coterie.privacy import Policy, Refused, clipped, filter_answer, noised, norms
from coterie.testing.check import subjects_of
from coterie.testing.recording import Recording
from coterie.testing.subject import Subject
from coterie.testing.toys import classified
from coterie.training import TrainingSettings

SHAPES = {
    "weight": torch.Size([3, 4]),
    "bias": torch.Size([3]),
    "running_mean": torch.Size([3]),
    "running_var": torch.Size([3]),
    "num_batches_tracked": torch.Size([]),
}
PLAIN = Layout(("weight", "bias"), (), {name: SHAPES[name] for name in ("weight", "bias")}, frozenset(["bias"]))
NORMED = Layout(("weight", "bias"), tuple(SHAPES)[2:], SHAPES, frozenset(["bias"]))
CLIP = Policy(clip=0.5)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def models(*lead: int, layout: Layout = PLAIN, scale: float = 1.0, seed: int = 0) -> Models:
    draw = source(seed)
    tensors = {}
    for name, shape in layout.shapes.items():
        tensor = scale * torch.randn(*lead, *shape, generator=draw)
        tensors[name] = (100 * tensor).long() if name == "num_batches_tracked" else tensor
    return Models(layout, tensors)


def filtered(policy: Policy, received: Any, answer: Any, seed: int = 0, **options: Any) -> dict[str, Any]:
    options.setdefault("initial", models(1, seed=99))
    return filter_answer(policy, received, answer, source(seed), **options)[0]


def same(a: Models, b: Models) -> bool:
    return all(torch.equal(tensor, b.tensors[name]) for name, tensor in a.tensors.items())


# --- clipping ------------------------------------------------------------------------------------------------------
def test_the_norm_is_that_of_all_tensors_together() -> None:
    theta, basis, loss = models(4), torch.randn(4, 5, 2, generator=source(1)), torch.randn(4, generator=source(2))
    by_hand = [
        math.sqrt(
            sum(float(x) ** 2 for t in theta.tensors.values() for x in t[row].flatten())
            + sum(float(x) ** 2 for x in basis[row].flatten())
            + float(loss[row]) ** 2
        )
        for row in range(4)
    ]
    values = {"theta": theta, "basis": basis, "loss": loss, "choice": torch.full((4,), 10**6)}
    assert norms(values).tolist() == pytest.approx(by_hand, rel=1e-12)


def test_rows_beyond_the_bound_end_on_it_and_the_others_do_not_change() -> None:
    theta = models(4) * torch.tensor([0.01, 1.0, 100.0, 0.02])
    values = {"theta": theta, "basis": torch.ones(4, 2) * torch.tensor([[0.01], [1.0], [1.0], [0.0]])}
    before, after = norms(values), norms(cut := clipped(values, 1.5))
    assert (before > 1.5).tolist() == [False, True, True, False]
    assert after[[1, 2]].tolist() == pytest.approx([1.5, 1.5], rel=1e-6)
    for row in (0, 3):
        assert torch.equal(cut["theta"][row].flat(), theta[row].flat())  # type: ignore[union-attr, index]
    # the direction stays: every tensor is multiplied by the same number
    share = 1.5 / before[2]
    assert torch.allclose(cut["theta"][2].flat(), theta[2].flat() * share)  # type: ignore[union-attr, index]
    assert torch.allclose(cut["basis"][2], values["basis"][2] * share)  # type: ignore[index]


def test_rows_do_not_feel_each_other() -> None:
    values = {"theta": models(5, scale=3.0), "basis": torch.randn(5, 3, generator=source(4))}
    together = clipped(values, 1.0)
    for row in range(5):
        alone = clipped({name: value[row : row + 1] for name, value in values.items()}, 1.0)
        assert torch.equal(alone["theta"].flat(), together["theta"][row].flat())  # type: ignore[union-attr, index]
        assert torch.equal(alone["basis"][0], together["basis"][row])  # type: ignore[index]
    values["basis"][0] = math.nan
    after = clipped(values, 1.0)
    assert torch.equal(after["basis"][1:], together["basis"][1:])  # type: ignore[index]
    assert float(norms(after)[0]) == 0  # whether it is finite is no news to anybody


def test_zero_and_infinite_rows() -> None:
    cut = clipped({"x": torch.tensor([[0.0, 0.0], [math.inf, 1.0], [3.0, 4.0]])}, 1.0)["x"]
    assert torch.allclose(cut, torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.6, 0.8]]))  # type: ignore[arg-type]


# --- what is a change ------------------------------------------------------------------------------------------------
def moved(w: Models, by: float, seed: int = 7) -> Models:
    """A model that is ``by`` away from ``w`` in every row."""
    way = models(*w.lead, layout=w.layout, seed=seed)
    return w + way * (by / way.norm())


def test_a_model_is_clipped_as_a_change_to_the_received_one() -> None:
    w = models(3, scale=10.0)
    answer = moved(w, 2.0)
    after = filtered(CLIP, {"w": w}, {"w": answer})["w"]
    assert (after - w).norm().tolist() == pytest.approx([0.5] * 3, rel=1e-5)
    assert torch.allclose((after - w).flat(), (answer - w).flat() / 4, atol=1e-5)
    near = moved(w, 0.4)
    assert torch.allclose(filtered(CLIP, {"w": w}, {"w": near})["w"].flat(), near.flat(), atol=1e-6)


@pytest.mark.parametrize(
    ("received", "answer", "base"),
    [
        (["theta", "w"], "w", "w"),  # its namesake
        (["theta_hat", "w"], "theta", "theta_hat"),  # else the first
        ([], "theta", "initial"),
    ],
)
def test_which_model_a_change_is_measured_from(received: list[str], answer: str, base: str) -> None:
    known = {name: models(2, seed=number, scale=5.0) for number, name in enumerate(received, start=1)}
    initial = models(1, seed=50)
    start = initial.repeat(2) if base == "initial" else known[base]
    after = filtered(CLIP, {"strength": torch.ones(2), **known}, {answer: moved(start, 0.3)}, initial=initial)[answer]
    assert (after - start).norm().tolist() == pytest.approx([0.3, 0.3], rel=1e-4)
    after = filtered(CLIP, {"strength": torch.ones(2), **known}, {answer: moved(start, 30.0)}, initial=initial)[answer]
    assert (after - start).norm().tolist() == pytest.approx([0.5, 0.5], rel=1e-4)


def test_a_part_is_measured_from_that_part() -> None:
    theta = models(2, scale=5.0)
    body = moved(theta["body"], 2.0)
    for received in ({"phi": theta["body"]}, {"theta": theta}):
        after = filtered(CLIP, received, {"phi": body})["phi"]
        assert after.layout == body.layout
        assert (after - theta["body"]).norm().tolist() == pytest.approx([0.5, 0.5], rel=1e-5)


def test_a_part_without_parameters_is_no_change() -> None:
    theta = models(2, layout=replace(PLAIN, head=frozenset(PLAIN.parameters)))
    for policy in (CLIP, Policy(clip=1.0, noise=1.0)):
        after, done = filter_answer(policy, {"phi": theta["body"]}, {"phi": theta["body"]}, initial=models(1))
        assert after["phi"].layout == theta["body"].layout  # type: ignore[union-attr]
        assert done.shares.tolist() == [1, 1]


def test_one_of_several_candidates_is_measured_from_their_mean() -> None:
    """Which one it came from is data; the nearest would leave a distance that no noise covers."""
    candidates = models(2, 3, scale=5.0)
    mean = Models(PLAIN, {name: tensor.mean(1) for name, tensor in candidates.tensors.items()})
    after = filtered(CLIP, {"w": candidates}, {"w": candidates.candidate(1)})["w"]
    assert (after - mean).norm().tolist() == pytest.approx([0.5, 0.5], rel=1e-4)
    each = filtered(CLIP, {"w": candidates}, {"w": candidates})["w"]
    assert torch.allclose(each.flatten_candidates().flat(), candidates.flatten_candidates().flat())


def test_gradients_and_tensors_are_changes_themselves() -> None:
    w, gradient, basis = models(2, scale=5.0), models(2, seed=3), torch.randn(2, 3, generator=source(4))
    after = filtered(CLIP, {"w": w}, {"dc": gradient, "basis": basis}, differences=("dc",))
    assert norms(after).tolist() == pytest.approx([0.5, 0.5], rel=1e-6)
    length = norms({"dc": gradient, "basis": basis})
    assert torch.allclose(after["basis"], basis * (0.5 / length).unsqueeze(1).float())


def test_all_parts_of_an_answer_share_one_bound() -> None:
    w = models(1, scale=5.0)
    answer = {"w": moved(w, 3.0), "basis": torch.tensor([[4.0, 0.0]])}
    after, done = filter_answer(CLIP, {"w": w}, answer, initial=w)
    assert done.shares.tolist() == pytest.approx([0.1], rel=1e-5)
    assert done.std == 0
    assert float((after["w"] - w).norm()) == pytest.approx(0.3, rel=1e-5)  # type: ignore[operator, union-attr]
    assert torch.allclose(after["basis"], torch.tensor([[0.4, 0.0]]))  # type: ignore[arg-type]


def test_without_clip_an_answer_is_as_it_was() -> None:
    answer = {"theta": models(2, layout=NORMED), "choice": torch.tensor([1, 2])}
    after, done = filter_answer(Policy(), {}, answer, initial=models(1, layout=NORMED))
    assert after["theta"] is answer["theta"]
    assert after["choice"] is answer["choice"]
    assert done.shares.tolist() == [1, 1]
    assert filter_answer(CLIP, {}, {}, initial=models(1))[0] == {}


# --- noise -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("generator", [source(3), None], ids=["seeded", "system"])
def test_the_noise_is_gaussian_of_the_stated_size(generator: torch.Generator | None) -> None:
    count, std = 400_000, 0.3
    noise = noised({"x": torch.zeros(2, count // 2)}, std, generator)["x"].flatten().double() / std  # type: ignore[union-attr]
    # standard errors: 1 / sqrt(n) of the mean, 1 / sqrt(2 n) of the deviation, sqrt(24 / n) of the kurtosis
    assert abs(float(noise.mean())) < 5 / math.sqrt(count)
    assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * count)
    assert abs(stats.kurtosis(noise.numpy())) < 5 * math.sqrt(24 / count)
    assert stats.kstest(noise[:20_000].numpy(), "norm").pvalue > 1e-6
    assert abs(float((noise[:-1] * noise[1:]).mean())) < 5 / math.sqrt(count)  # neighbours do not resemble each other


def test_the_noise_of_a_run_cannot_be_repeated() -> None:
    torch.manual_seed(0)
    first = noised({"x": torch.zeros(1, 8)}, 1.0)["x"]
    torch.manual_seed(0)
    second = noised({"x": torch.zeros(1, 8)}, 1.0)["x"]
    assert not torch.equal(first, second)  # type: ignore[arg-type]


def test_the_generators_of_torch_have_seeds_of_32_bits() -> None:
    """The reason for another source; where this fails, torch has mended it."""
    small, large = (torch.randn(4, generator=source(seed)) for seed in (5, 5 + 2**32))
    assert torch.equal(small, large)


def test_every_number_gets_its_own_noise_and_types_stay() -> None:
    values: dict[str, Any] = {"a": torch.zeros(3, 4), "b": torch.zeros(3, dtype=torch.float64), "w": models(3) * 0.0}
    after: dict[str, Any] = noised(values, 1.0)
    numbers = torch.cat([after["a"].flatten().double(), after["b"], after["w"].flat().flatten().double()])
    assert len(numbers.unique()) == len(numbers) == 12 + 3 + 3 * 15
    assert after["a"].dtype == torch.float32
    assert after["b"].dtype == torch.float64
    assert after["w"].layout == PLAIN


def test_a_noised_answer_is_the_clipped_one_and_noise() -> None:
    policy = Policy(clip=0.5, noise=2.0)
    w = models(1, scale=5.0)
    answer = {"w": moved(w, 3.0), "basis": torch.ones(1, 60)}
    without = filtered(CLIP, {"w": w}, answer)
    many = [filtered(policy, {"w": w}, answer, seed) for seed in range(200)]
    for pick in (lambda a: a["w"].flat(), lambda a: a["basis"]):
        noise = torch.cat([pick(each) - pick(without) for each in many]).double()
        assert abs(float(noise.mean())) < 5 / math.sqrt(noise.numel())  # std is 1: 2 times 0.5
        assert abs(float(noise.std()) - 1) < 5 / math.sqrt(2 * noise.numel())
    assert filter_answer(policy, {"w": w}, answer, initial=w)[1].std == 1.0


@pytest.mark.parametrize("frozen", [frozenset({"bias"}), frozenset({"weight", "bias"})])
def test_frozen_parameters_take_no_noise(frozen: frozenset[str]) -> None:
    """They leave as the server knows them, also those that a method has moved; without noise all are clipped."""
    w = models(3, layout=replace(PLAIN, frozen=frozen))
    answer = moved(w, 0.3)
    noisy = filtered(Policy(clip=0.5, noise=0.1), {"w": w}, {"w": answer})["w"]
    for name, tensor in noisy.parameters():
        assert torch.equal(tensor, w.tensors[name]) == (name in frozen)
    assert torch.allclose(filtered(CLIP, {"w": w}, {"w": answer})["w"].flat(), answer.flat(), atol=1e-6)


def test_a_row_that_is_not_finite_becomes_noise_around_what_the_server_knows() -> None:
    w = models(2, scale=5.0)
    broken = w.clone()
    broken.tensors["weight"][0] = math.nan
    after, done = filter_answer(Policy(clip=1e-3, noise=1.0), {"w": w}, {"w": broken}, initial=w[:1])
    assert done.shares.tolist() == [0, 1]
    assert bool(after["w"].finite().all())  # type: ignore[union-attr]
    assert float((after["w"] - w).norm()[0]) < 0.01  # type: ignore[operator, union-attr]


def test_whole_numbers_take_no_noise() -> None:
    policy = Policy(clip=1.0, noise=1.0)
    with pytest.raises(Refused, match=r"^policy\.noise cannot cover choice, which is no real number$"):
        filtered(policy, {}, {"choice": torch.tensor([1])})
    assert filtered(CLIP, {}, {"choice": torch.tensor([700])})["choice"].tolist() == [700]


def test_addresses_must_be_those_that_the_server_named() -> None:
    policy, index, answer = Policy(clip=1.0, noise=1.0), torch.tensor([[2, 5]]), {"change": models(1, 2)}
    options: dict[str, Any] = {"peers": {"change": index}, "differences": ("change",)}
    assert filtered(policy, {"index": index.clone()}, answer, **options)["change"].lead == (1, 2)
    for received in ({}, {"index": index.flip(1)}):
        with pytest.raises(Refused, match="cannot cover whom change is meant for"):
            filtered(policy, received, answer, **options)


# --- buffers ---------------------------------------------------------------------------------------------------------
def normed(policy: Any = "average", **options: Any) -> Models:
    layout = Layout(NORMED.parameters, NORMED.buffers, SHAPES, NORMED.head, policy)
    return models(2, layout=layout, **options)


def test_averaged_buffers_are_clipped_and_noised_with_the_model() -> None:
    w = normed(seed=1)
    answer = normed(seed=2)
    after = filtered(CLIP, {"w": w}, {"w": answer}, initial=w[:1])["w"]
    change = torch.cat([(after.tensors[n] - w.tensors[n]).flatten(1) for n in list(SHAPES)[:4]], dim=1)
    assert change.norm(dim=1).tolist() == pytest.approx([0.5, 0.5], rel=1e-5)
    assert torch.equal(after.tensors["num_batches_tracked"], answer.tensors["num_batches_tracked"])
    noisy = filtered(Policy(clip=0.5, noise=4.0), {"w": w}, {"w": answer}, initial=w[:1])["w"]
    assert not torch.isclose(noisy.tensors["running_mean"], after.tensors["running_mean"]).any()
    assert bool((noisy.tensors["running_var"] >= 0).all())
    assert bool((noisy.tensors["running_var"] == 0).any())  # the noise had made it negative
    assert torch.equal(noisy.tensors["num_batches_tracked"], w.tensors["num_batches_tracked"])


def test_buffers_of_a_difference_are_statistics_and_not_differences() -> None:
    w, answer = normed(seed=1, scale=10.0), normed(seed=2, scale=0.01)
    answer = answer.with_buffers(w, torch.tensor([True, True]))
    after = filtered(CLIP, {"w": w}, {"change": answer}, initial=w[:1], differences=("change",))["change"]
    for name, tensor in after.tensors.items():
        assert torch.allclose(tensor, answer.tensors[name]), name


@pytest.mark.parametrize("policy", ["local", "server"])
def test_other_buffers_leave_as_the_initial_ones(policy: str) -> None:
    initial, answer = normed(policy, seed=1)[:1], normed(policy, seed=2)
    for rules in (CLIP, Policy(clip=0.5, noise=1.0)):
        after = filtered(rules, {"w": normed(policy, seed=3)}, {"w": answer}, initial=initial)["w"]
        for name in NORMED.buffers:
            expected = initial.tensors[name].expand_as(answer.tensors[name])
            assert torch.equal(after.tensors[name], expected), name


# --- every method ----------------------------------------------------------------------------------------------------
SUBJECTS = [
    subject
    for cls in available_algorithms().values()
    if cls.__module__.startswith("coterie.algorithms.")
    for subject in subjects_of(cls)
]
TINY_STEPS = TrainingSettings(epochs=1, batch_size=4, lr=1e-6)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return classified()


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_methods_say_which_answers_are_differences(subject: Subject, federation: Federation) -> None:
    """With tiny steps a model stays near one that was received, or the initial one; a difference is far from them."""
    sim = subject.simulation(federation, engine=Recording, rounds=2, training=TINY_STEPS)
    while not sim.finished:
        sim.advance()
    assert isinstance(sim, Recording)
    initial = sim.stack.initial(initial_seed(sim.settings))
    for call in sim.calls:
        known = [value for value in call.received.values() if isinstance(value, Models)] or [initial]
        for name, value in call.returned.items():
            if isinstance(value, Models):
                bases = [model for model in known if set(value.tensors) <= set(model.tensors)]
                distances = [[_distance(one, model) for model in bases] for one in _candidates(value)]
                difference = name in subject.cls.differences
                for to_bases in distances:
                    assert (min(to_bases) > 0.1) if difference else (min(to_bases) < 1e-3), f"{call.method}: {name}"


@pytest.mark.parametrize("cls", sorted({subject.cls for subject in SUBJECTS}, key=lambda cls: cls.name))
def test_no_difference_is_declared_that_no_client_method_returns(cls: type[Algorithm]) -> None:
    source = "".join(
        inspect.getsource(each) for each in cls.__mro__ if each.__module__.startswith("coterie.algorithms")
    )
    assert [name for name in cls.differences if f'"{name}": ' not in source] == []


def _candidates(value: Models) -> list[Models]:
    return [value] if len(value.lead) == 1 else [value.candidate(number) for number in range(value.lead[1])]


def _distance(value: Models, model: Models) -> float:
    """The largest distance of a row to its row of ``model``, or to the nearest of its candidates, in its own norm."""
    ways = []
    for other in _candidates(model):
        squares = [(t.double() - other.tensors[name].double()).square() for name, t in value.parameters()]
        ways.append(torch.stack([square.flatten(1).sum(1) for square in squares]).sum(0).sqrt())
    return float((torch.stack(ways).amin(0) / value.norm()).max())
