"""Newcomers to a trained federation: what they receive, that they learn as members do, and that nothing of them stays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.algorithms.fedora import Fedora
from coterie.contract import Algorithm, Predictor, Server, Site, available_algorithms, broadcast, make_algorithm
from coterie.engines import Admission, Admitted, Settings, Simulation, Trained
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from coterie.models import Models
from coterie.relations import attention, propagation_matrix, row_stochastic
from toys import BATCHES, FULL_BATCH, LINEAR, LOCATION, MLP, NORMED, classified, located, run, same, simulation

EVERYBODY = classified((7, 4, 9, 5, 6, 8, 3), validation=5)
MEMBERS, NEWCOMERS = EVERYBODY.select([0, 1, 2, 3]), EVERYBODY.select([4, 5, 6])
ALGORITHMS = pytest.mark.parametrize("name", available_algorithms())
SYSTEMS = pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in available_algorithms()), ("fedora", {"variant": "paper"}),
     ("fedora", {"variant": "paper", "attach": "literal"}),
     ("fedora", {"variant": "paper", "solver": "low_rank"}), ("fedora", {"solver": "sparse"}),
     ("federico", {"variant": "central"})],
)  # fmt: skip


def trained(algorithm: str | Algorithm, members: Federation = MEMBERS, model: Any = MLP, **settings: Any) -> Simulation:
    sim = simulation(members, algorithm, model, **{"unlabelled_newcomers": True, **settings})
    run(sim)
    return sim


def admission(
    sim: Simulation, newcomers: Federation = NEWCOMERS, model: Any = MLP, state: Trained | None = None, **settings: Any
) -> Admission:
    defaults: dict[str, Any] = {"training": BATCHES, "dtype": "float64", "threads": 1}
    return Admission(state or Trained.of(sim), newcomers, sim.algorithm, model, Settings(**{**defaults, **settings}))


def site_of(coming: Admission, count: int = 3) -> Site:
    return coming.sites.site(torch.arange(count), torch.arange(count), coming.round)


def admit(
    sim: Simulation, newcomers: Federation = NEWCOMERS, *, labelled: bool = True, epochs: int = 3, **settings: Any
) -> Admitted:
    admitted = admission(sim, newcomers, **settings).admit(labelled=labelled, epochs=epochs)
    assert admitted is not None
    return admitted


# --- every method ------------------------------------------------------------------------------------------------


@SYSTEMS
def test_newcomers_do_not_depend_on_who_comes_with_them(name: str, options: Mapping[str, Any]) -> None:
    sim = trained(make_algorithm(name, **options))
    together, chunked = admit(sim), admit(sim, chunk=1)
    for part in (0, 1, 2):
        alone = admit(sim, NEWCOMERS.select([part]))
        for metric, values in together.values.items():
            np.testing.assert_allclose(values[:, part], alone.values[metric][:, 0], rtol=0, atol=1e-10)
            np.testing.assert_allclose(values, chunked.values[metric], rtol=0, atol=1e-10)
        assert all(counts[part] == alone.traffic[what][0] for what, counts in together.traffic.items())


@SYSTEMS
@pytest.mark.parametrize("labelled", [True, False])
def test_nothing_of_them_stays(name: str, options: Mapping[str, Any], labelled: bool) -> None:
    sim = trained(make_algorithm(name, **options))
    before = {key: _copied(value) for key, value in sim.state_dict()["server"].items()}
    coming = admission(sim)
    first = coming.admit(labelled=labelled, epochs=2)
    assert same(sim.state_dict()["server"], before)
    again = coming.admit(labelled=labelled, epochs=2)
    assert (first is None) == (again is None)
    if first is not None and again is not None:
        assert same({k: v.tolist() for k, v in first.values.items()}, {k: v.tolist() for k, v in again.values.items()})


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return {key: _copied(entry) for key, entry in value.items()} if isinstance(value, dict) else value


@SYSTEMS
def test_without_labels_no_label_is_seen(name: str, options: Mapping[str, Any]) -> None:
    sim = trained(make_algorithm(name, **options))
    honest = admission(sim).admit(labelled=False, epochs=5)
    train, validation = (
        replace(data, targets=(data.targets + 1) % 3) for data in (NEWCOMERS.train, NEWCOMERS.validation)
    )
    other = admission(sim, replace(NEWCOMERS, train=train, validation=validation)).admit(labelled=False, epochs=5)
    if honest is None or other is None:
        assert honest is other
        return
    assert same(honest.models.tensors, other.models.tensors)
    assert all(values.shape == (1, 3) for values in honest.values.values())


# two others weigh the models that there are; a young hypernetwork hardly heeds the embedding that is trained
LEARNERS = [name for name in available_algorithms() if name not in ("federico", "fedem", "pfedhn")]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in LEARNERS),
        *(("fedora", {"variant": "paper", "attach": a}) for a in ("one_sided", "literal")),
    ],
)
def test_with_labels_they_learn(name: str, options: Mapping[str, Any]) -> None:
    if name == "pfedme":
        options = {"lambda": 1.0}  # its usual pull keeps them near the common model
    sim = trained(make_algorithm(name, **options), rounds=5)
    seen = replace(NEWCOMERS, test=NEWCOMERS.train)  # whether they fit what they train on, not how that carries over
    curve = admit(sim, seen, epochs=40, training=replace(BATCHES, lr=0.3)).values["loss"].mean(axis=1)
    assert len(curve) == 41
    assert curve[40] < curve[0] - 0.1


@SYSTEMS
def test_a_saved_server_is_as_good_as_the_run(name: str, options: Mapping[str, Any], tmp_path: Path) -> None:
    sim = trained(make_algorithm(name, **options))
    Trained.of(sim).save(tmp_path / "server.pt")
    loaded = admission(sim, state=Trained.load(tmp_path / "server.pt"))
    there = loaded.admit(labelled=True, epochs=2)
    here = admit(sim, epochs=2)
    assert there is not None
    assert same(here.models.tensors, there.models.tensors)
    assert loaded.server.names == MEMBERS.names
    assert loaded.server.round == 3


def test_local_newcomers_train_alone_as_members_did() -> None:
    """Full batches, no momentum: as many epochs give the same model whoever counts them."""
    sim = trained("local", EVERYBODY, rounds=6, training=FULL_BATCH)
    came = admit(trained("local", training=FULL_BATCH), epochs=6, training=FULL_BATCH)
    torch.testing.assert_close(
        came.models.flat(), sim.report_models()[torch.tensor([4, 5, 6])].flat(), rtol=0, atol=1e-12
    )


# --- momentum goes on from epoch to epoch ------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_epoch_by_epoch_is_one_training(momentum: float) -> None:
    """With full batches the order of the examples does not matter, so that three epochs are three steps."""
    training = replace(FULL_BATCH, momentum=momentum, weight_decay=0.01, lr=0.05)
    sim = trained("fedavg", training=training)
    came = admit(sim, epochs=3, training=training)
    site = site_of(admission(sim, training=replace(training, epochs=3)))
    whole = site.fit(sim.server.w.repeat(3), epochs=3).models
    torch.testing.assert_close(came.models.flat(), whole.flat(), rtol=0, atol=1e-12)


def test_the_schedule_of_the_rounds_is_over() -> None:
    from coterie.training import Schedule

    decayed = replace(FULL_BATCH, schedule=Schedule("cosine"))
    sim = trained("fedavg", training=FULL_BATCH)
    plain, scheduled = admit(sim, training=FULL_BATCH), admit(sim, training=decayed)
    assert same(plain.models.tensors, scheduled.models.tensors)


@pytest.mark.parametrize("name", ["apfl", "fedamp", "fedavg", "fesem", "l2c", "pfedme", "sfl"])
def test_newcomers_have_no_rounds_for_an_optimiser_to_go_on_from(name: str) -> None:
    """Their optimisers are fresh ones, also where those of the members were kept from round to round."""
    adam = replace(BATCHES, optimizer="adam", lr=0.01)
    sim = trained(name)
    fresh, kept = (
        admit(sim, training=replace(adam, optimizer_state=state)) for state in ("fresh", "persistent")
    )  # fmt: skip
    assert same(fresh.models.tensors, kept.models.tensors)


# --- single methods ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedavg-ft", "fedprox", "fedprox-ft", "ditto", "pgfed", "pgfedmo"])
def test_the_global_model_arrives(name: str) -> None:
    sim = trained(name)
    for labelled in (True, False):
        came = admit(sim, labelled=labelled, epochs=0)
        torch.testing.assert_close(came.models.flat(), sim.server.w.flat().expand(3, -1), rtol=0, atol=0)
        assert came.traffic["down:model"].tolist() == [sim.server.w.bytes_per_row()[0]] * 3


@pytest.mark.parametrize(
    ("name", "options", "pulls"),
    [
        ("ditto", {"lambda": 0.7}, {"w": 0.7}),
        ("fesem", {"clusters": 1, "mu": 0.6}, {"w": 0.6}),
        ("fedamp", {"lambda": 0.6, "alpha": 0.5}, {"u": 1.2}),
        ("heurfedamp", {"lambda": 0.6, "alpha": 0.5}, {"u": 1.2}),
        ("sfl", {"lambda1": 0.3, "lambda2": 0.1}, {"w": 0.6, "theta": 0.2}),
    ],
)
def test_newcomers_are_pulled_as_members_are(name: str, options: dict[str, Any], pulls: dict[str, float]) -> None:
    """Three steps from where they arrive, each with the strengths that a member's loss has, to what they received."""
    training = replace(FULL_BATCH, lr=0.25)
    members, newcomer = located([[4.0, 0.0], [0.0, 8.0], [-2.0, 6.0]]), located([[2.0, -6.0]])
    sim = trained(make_algorithm(name, **options), members, LOCATION, training=training)
    coming = admission(sim, newcomer, LOCATION, training=training)
    received = coming.algorithm.adapt(coming.server, torch.arange(1), True)
    assert received is not None
    anchors = {key: getattr(value, "value", value).flat()[0] for key, value in received.items()}
    anchors.setdefault("w", anchors.get("theta", torch.zeros(2)))
    theta = admit(sim, newcomer, epochs=0, model=LOCATION, training=training).models.flat()[0]
    for _ in range(3):
        slope = theta - torch.tensor([2.0, -6.0])
        theta = theta - 0.25 * (slope + sum(s * (theta - anchors[to]) for to, s in pulls.items()))
    came = admit(sim, newcomer, epochs=3, model=LOCATION, training=training)
    torch.testing.assert_close(came.models.flat()[0], theta, rtol=0, atol=1e-10)


def test_ditto_is_pulled_towards_what_it_received() -> None:
    """Strength times rate 1: one step without a loss gradient lands on the anchor, so lambda moves the result."""
    sim = trained(make_algorithm("ditto", lambda_=0.0))
    free = admit(sim).models.flat()
    held = admit(trained(make_algorithm("ditto", lambda_=5.0))).models.flat()
    w = sim.server.w.flat()
    assert float((held - w).norm()) < 0.7 * float((free - w).norm())


def test_fedora_by_hand() -> None:
    """th^_new = sum_k w_k th^_k / sum w for inputs that point as the members' do."""
    inputs = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    members = located([[1.0], [2.0], [4.0]], inputs=inputs)
    newcomer = located([[9.0]], inputs=[[1.0, 0.0]])
    algorithm = make_algorithm("fedora", "paper", label_scale=0.0)
    sim = trained(algorithm, members, LINEAR, training=FULL_BATCH)
    cosines = torch.tensor([1.0, 0.0, 0.6], dtype=torch.float64)
    expected = (cosines / cosines.sum()) @ sim.server.theta_hat.flat()
    for labelled in (True, False):
        came = admit(sim, newcomer, labelled=labelled, epochs=0, model=LINEAR)
        torch.testing.assert_close(came.models.flat()[0], expected, rtol=0, atol=1e-7)
    extra = came.traffic["up:summary"].tolist()
    assert extra == [2 * 4]  # p d_x float32 numbers


def test_fedora_newcomers_take_from_their_nearest_only() -> None:
    """The released graph keeps two: exp(tau cos) of 1 and 0.6, and nothing of the member across."""
    members = located([[1.0], [2.0], [4.0]], inputs=[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    newcomer = located([[9.0]], inputs=[[1.0, 0.0]])
    algorithm = make_algorithm("fedora", "released", label_scale=0.0, temperature=1.0)
    sim = trained(algorithm, members, LINEAR, training=FULL_BATCH)
    weights = torch.tensor([1.0, -torch.inf, 0.6], dtype=torch.float64).exp()
    expected = (weights / weights.sum()) @ sim.server.theta_hat.flat()
    for labelled in (True, False):
        came = admit(sim, newcomer, labelled=labelled, epochs=0, model=LINEAR)
        torch.testing.assert_close(came.models.flat()[0], expected, rtol=0, atol=1e-7)


def test_fedora_literal_by_hand() -> None:
    """Eq. 6 with a row for the newcomer, whose own model has been trained alone from theta^0."""
    inputs = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
    members = located([[1.0], [2.0], [4.0]], inputs=inputs)
    newcomer = located([[9.0]], inputs=[[1.0, 0.0]])
    algorithm = make_algorithm("fedora", "paper", label_scale=0.0, attach="literal")
    sim = trained(algorithm, members, LINEAR, training=FULL_BATCH)
    units = torch.tensor([*inputs, [1.0, 0.0]], dtype=torch.float64)
    A = propagation_matrix(row_stochastic(units @ units.T), 1.0)
    coming = admission(sim, newcomer, LINEAR, training=FULL_BATCH)
    alone = site_of(coming, 1).fit(coming.stack.initial(coming.initial_seed, 1)).models
    came = coming.admit(labelled=True, epochs=0)
    assert came is not None
    expected = A[-1, :3] @ sim.server.theta.flat() + A[-1, 3] * alone.flat()[0]
    torch.testing.assert_close(came.models.flat()[0], expected, rtol=0, atol=1e-7)


def test_fedora_literal_in_two_dimensions() -> None:
    """A newcomer is as similar to itself as its members are to themselves: by p = 2, and not by 1."""
    algorithm = make_algorithm("fedora", "paper", rank=2, attach="literal")
    sim = trained(algorithm)
    coming = admission(sim)
    bases = torch.zeros(3, 7, 2, dtype=torch.float64)
    for row in range(3):
        inputs, targets = NEWCOMERS.train.client(row)
        joint = torch.cat([inputs, torch.nn.functional.one_hot(targets, 3)], dim=1).double().T
        bases[row] = torch.linalg.svd(joint, full_matrices=False).U[:, :2]
    alone = site_of(coming).fit(coming.stack.initial(coming.initial_seed, 3)).models.flat()
    came = coming.admit(labelled=True, epochs=0)
    assert came is not None
    for row in range(3):
        everyone = torch.cat([sim.server.basis.double(), bases[row : row + 1]])
        cross = [[float(torch.linalg.svdvals(one.T @ other).sum()) for other in everyone] for one in everyone]
        A = propagation_matrix(row_stochastic(torch.tensor(cross, dtype=torch.float64)), 1.0)
        expected = A[-1] @ torch.cat([sim.server.theta.flat(), alone[row : row + 1]])
        torch.testing.assert_close(came.models.flat()[row], expected, rtol=0, atol=1e-6)


def test_fedora_without_feature_bases_says_so() -> None:
    sim = trained("fedora", unlabelled_newcomers=False)
    with pytest.raises(CoterieError, match=r"newcomers.labelled false or both"):
        admission(sim).admit(labelled=False, epochs=0)
    assert admit(sim, labelled=True).values["accuracy"].shape == (4, 3)


def test_fedora_describes_the_inputs_alone_only_where_that_is_wanted() -> None:
    """The members' summaries: p (d_x + C) float32 numbers, and p d_x more."""
    for wanted, size in ((False, 4 * (4 + 3)), (True, 4 * (4 + 3) + 4 * 4)):
        sim = trained("fedora", unlabelled_newcomers=wanted)
        assert sim.ledger.bytes["describe", "up", "summary"].tolist() == [size] * 4


def test_fedora_newcomers_are_pulled_by_a_fresh_lambda() -> None:
    """A constant lambda: what one round of a member does from th^ with th^ as its anchor, epoch by epoch."""
    algorithm = make_algorithm("fedora", "paper", lambda_rule="constant", lambda_=1.5)
    sim = trained(algorithm, training=FULL_BATCH)
    came = admit(sim, epochs=4, training=FULL_BATCH)
    site = site_of(admission(sim, training=FULL_BATCH))
    start = admit(sim, epochs=0, training=FULL_BATCH).models
    by_hand = site.fit(start, epochs=4, anchor=start, strength=3.0).models
    torch.testing.assert_close(came.models.flat(), by_hand.flat(), rtol=0, atol=1e-12)


def test_fedora_newcomers_measure_their_gain_anew() -> None:
    """They begin at th^, where there is none: with the first lambda for good they would never be pulled back."""
    members = located([[4.0, 0.0], [0.0, 8.0]])
    sim = trained(make_algorithm("fedora", "paper", epsilon=0.0), members, LOCATION, training=FULL_BATCH)
    one = located([[9.0, 9.0]])
    newcomer = replace(one, validation=located([[0.0, 0.0]]).validation)  # whoever trains moves away from there
    settings: dict[str, Any] = {"model": LOCATION, "training": replace(FULL_BATCH, lr=0.2)}
    theta_hat = admit(sim, newcomer, epochs=0, **settings).models.flat()[0]
    theta, strengths = theta_hat, []
    for _ in range(3):
        gain = float(theta.square().sum() - theta_hat.square().sum()) / 2
        strengths.append(min(max(gain, 0.0), 0.5 / 0.2))
        theta = theta - 0.2 * ((theta - 9.0) + 2 * strengths[-1] * (theta - theta_hat))
    assert strengths[0] == 0.0 < strengths[1]
    came = admit(sim, newcomer, epochs=3, **settings)
    torch.testing.assert_close(came.models.flat()[0], theta, rtol=0, atol=1e-6)


def test_fedora_similarities_of_models_have_no_place_for_newcomers() -> None:
    sim = trained(make_algorithm("fedora", similarity="random"))
    assert admission(sim).admit(labelled=True, epochs=1) is None


@pytest.mark.parametrize("topk", [1, 3, 5])
def test_feddwa_mixes_the_members_and_itself_by_closeness_to_its_guidance(topk: int) -> None:
    sim = trained(make_algorithm("feddwa", topk=topk))
    mean = sim.server.w.mixed(torch.full((1, 4), 0.25))
    unlabelled = admit(sim, labelled=False)
    torch.testing.assert_close(unlabelled.models.flat(), mean.flat().expand(3, -1), rtol=0, atol=1e-12)
    came = admit(sim, epochs=0)
    site = site_of(admission(sim))
    answer = sim.algorithm.local_update(site, w=mean.repeat(3))
    for i in range(3):
        candidates = torch.cat([sim.server.w.flat(), answer["w"].flat()[i : i + 1]])
        inverse = 1.0 / (answer["guidance"].flat()[i] - candidates).square().sum(1)
        kept = torch.zeros(5).double().scatter(0, inverse.topk(topk).indices, 1.0) * inverse
        expected = (kept / kept.sum()) @ candidates
        torch.testing.assert_close(came.models.flat()[i], expected, rtol=0, atol=1e-9)


def test_fedamp_attends_to_the_members_and_itself() -> None:
    """One newcomer's row of the attention among five, from a first round alone; unlabelled: nothing."""
    sim = trained("fedamp")
    assert admission(sim).admit(labelled=False, epochs=0) is None
    algorithm, coming = sim.algorithm, admission(sim)
    received = algorithm.adapt(coming.server, torch.arange(3), True)
    assert received is not None
    for i in range(3):
        own = coming.bank.get("theta", torch.tensor([i]), call=0).flat()
        five = torch.cat([sim.server.w.flat(), own])
        xi = attention(torch.cdist(five, five).square(), 1.0, 1.0, relative=True)[-1]
        torch.testing.assert_close(received["u"].flat()[i], xi @ five, rtol=0, atol=1e-9)


# --- mishaps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poisonous(Algorithm):
    """Tells newcomers their size; the one with three examples answers with NaN, or its model becomes NaN."""

    name = "poisonous"
    late: bool = False

    def setup(self, server: Server) -> None:
        server.w = server.initial_model()

    def round(self, server: Server, cohort: Tensor) -> None:
        pass

    def adapt(self, server: Server, clients: Tensor, labelled: bool) -> Mapping[str, Any] | None:
        if self.late:
            return {"theta": broadcast(server.w)}
        up = server.ask(self.size, clients)
        return {"theta": server.w.repeat(len(up)) * (up.size / up.size)}

    def size(self, site: Site) -> Mapping[str, Any]:
        return {"size": torch.where(site.n == 3, torch.nan, site.n.double())}

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        theta = received["theta"]
        for _ in range(epochs + 1):
            yield Predictor(theta * torch.where(site.n == 3, torch.nan, 1.0).double() if self.late else theta)


@pytest.mark.parametrize("late", [False, True])
def test_a_newcomer_that_fails_takes_no_other_along(late: bool) -> None:
    came = admit(trained(Poisonous(late=late)), epochs=2)
    assert [failure.client for failure in came.failures] == ["client-6"]
    assert came.names == ("client-4", "client-5")
    assert len(came.models) == 2
    good, bad = came.values["accuracy"][:, :2], came.values["accuracy"][:, 2]
    assert np.isfinite(good).all()
    assert np.isnan(bad).all()


@dataclass(frozen=True)
class FailsAlone(Fedora):
    """The first newcomer describes its data, and its own training then ends in NaN."""

    def first_model(self, site: Site) -> Mapping[str, Any]:
        return {"theta": site.theta * torch.where(site.n == 3, torch.nan, 1.0).double()}


def test_a_newcomer_whose_training_alone_fails_takes_no_other_along() -> None:
    sim = trained(FailsAlone(**vars(make_algorithm("fedora", attach="literal"))))
    came, others = admit(sim, epochs=1), admit(sim, NEWCOMERS.select([0, 1]), epochs=1)
    assert [failure.client for failure in came.failures] == ["client-6"]
    np.testing.assert_array_equal(came.values["accuracy"][:, :2], others.values["accuracy"])
    torch.testing.assert_close(came.models.flat(), others.models.flat(), rtol=0, atol=0)


def test_all_newcomers_fail() -> None:
    with pytest.raises(CoterieError, match="every newcomer failed"):
        admit(trained(Poisonous()), NEWCOMERS.select([2]))


def test_newcomers_of_another_kind() -> None:
    sim = trained("fedavg")
    for other, message in (
        (classified((5, 4), features=6), "shape of the inputs"),
        (classified((5, 4), classes=5), "number of outputs"),
        (located([[1.0, 2.0, 3.0]]), "task"),
    ):
        with pytest.raises(CoterieError, match=message):
            admission(sim, other)
    with pytest.raises(CoterieError, match="the model is not the one that was trained"):
        admission(sim, model=LINEAR)


@dataclass(frozen=True)
class Forgetful(Algorithm):
    """Yields on arrival only."""

    name = "forgetful"

    def round(self, server: Server, cohort: Tensor) -> None:
        pass

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Predictor]:
        yield Predictor(site.theta)


def test_a_method_must_say_what_newcomers_predict_after_each_epoch() -> None:
    with pytest.raises(CoterieError, match="gave 1 predictors for 3 epochs"):
        admit(trained(Forgetful()))


@dataclass(frozen=True)
class Odd(Algorithm):
    """Yields something that is no predictor of all newcomers, NaN weights, or leaves."""

    name = "odd"
    what: str = ""

    def round(self, server: Server, cohort: Tensor) -> None:
        pass

    def newcomer(self, site: Site, epochs: int, **received: Any) -> Iterator[Any]:
        if self.what == "exit":
            raise SystemExit(3)
        weights = torch.tensor([[torch.nan], [1.0], [1.0]], dtype=torch.float64)
        one = Models(site.theta.layout, {n: t.unsqueeze(1) for n, t in site.theta.tensors.items()})
        odd = {"model": site.theta, "row": Predictor(site.theta[:1]), "weights": Predictor(one, weights)}[self.what]
        for _ in range(epochs + 1):
            yield odd


def test_what_a_method_yields_is_checked() -> None:
    for what, error, message in (
        ("model", TypeError, "a Predictor of 3 rows, not Models"),
        ("row", TypeError, "a Predictor of 3 rows, not 1 rows"),
        ("exit", CoterieError, "called sys.exit"),
    ):
        with pytest.raises(error, match=message):
            admit(trained(Odd(what=what)))
    came = admit(trained(Odd(what="weights")))
    assert [failure.client for failure in came.failures] == ["client-4"]
    assert np.isnan(came.values["accuracy"][:, 0]).all()


def test_predictions_that_are_not_finite_are_no_accuracy() -> None:
    huge = replace(NEWCOMERS.test, inputs=NEWCOMERS.test.inputs.clone())
    huge.inputs[huge.rows(torch.arange(int(huge.offsets[0]), int(huge.offsets[1])))] = torch.inf
    came = admit(trained("fedavg", model=MLP), replace(NEWCOMERS, test=huge), epochs=1)
    assert [failure.client for failure in came.failures] == ["client-4"]
    assert np.isnan(came.values["accuracy"][:, 0]).all()
    assert np.isfinite(came.values["accuracy"][:, 1:]).all()


def test_the_server_of_another_run_is_refused() -> None:
    sim = trained("fedavg")
    state = Trained.of(sim)
    for change, message in (
        ({"algorithm": "ditto"}, "its algorithm is 'ditto'"), ({"seed": 7}, "its seed is 7"),
        ({"options": {}}, "its options is {}"), ({"server": {}}, "is not whole"),
    ):  # fmt: skip
        with pytest.raises(CoterieError, match=message):
            admission(sim, state=replace(state, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"", b"not a server"])
def test_damaged_server_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "server.pt"
    with pytest.raises(CoterieError, match="there is no saved server"):
        Trained.load(path)
    path.write_bytes(content)
    with pytest.raises(CoterieError, match="damaged"):
        Trained.load(path)
    torch.save({"format": "server 99"}, path)
    with pytest.raises(CoterieError, match="unknown format"):
        Trained.load(path)


@pytest.mark.parametrize("buffers", ["average", "local", "server"])
def test_batch_statistics_of_newcomers(buffers: Any) -> None:
    sim = trained("fedavg", model=NORMED, buffers=buffers)
    came = admit(sim, epochs=2, model=NORMED, buffers=buffers)
    assert np.isfinite(came.values["loss"]).all()
    assert came.models.flat().shape[0] == 3
