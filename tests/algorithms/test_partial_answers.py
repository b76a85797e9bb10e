"""Who has not taken part, or answers only half of what it is asked, and the batch statistics of newcomers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from coterie.algorithms.fedora import Fedora
from coterie.algorithms.l2c import L2C
from coterie.algorithms.l2gd import L2GD
from coterie.contract import Algorithm, Site, make_algorithm
from coterie.contract.acquaintances import Acquaintances
from coterie.engines import Admission, Admitted, Settings, Simulation, Trained
from coterie.errors import CoterieError
from coterie.models import Models, ModelSpec, stack_rows
from coterie.relations import Neighbours, propagation_matrix, restrict
from toys import BATCHES, FULL_BATCH, HALF, LOCATION, MLP, NORMED, classified, located, run, simulation, state

EVERYBODY = classified((7, 4, 9, 5, 4, 6, 3))
MEMBERS, NEWCOMERS = EVERYBODY.select([0, 1, 2, 3]), EVERYBODY.select([4, 5, 6])
FOUR = located([[4.0, 0.0], [-40.0, 0.0], [4.0, 2.0], [-40.0, 2.0]])
MEAN = "2.running_mean"


def trained(algorithm: str | Algorithm, model: Any = MLP, members: Any = MEMBERS, **settings: Any) -> Simulation:
    sim = simulation(members, algorithm, model, **settings)
    run(sim)
    return sim


def admit(sim: Simulation, model: Any = MLP, newcomers: Any = NEWCOMERS, *, labelled: bool = True) -> Admitted:
    settings = Settings(training=BATCHES, dtype="float64", threads=1)
    found = Admission(Trained.of(sim), newcomers, sim.algorithm, model, settings).admit(labelled=labelled, epochs=2)
    assert found is not None
    return found


# --- newcomers ---------------------------------------------------------------------------------------------------


def test_a_mixture_with_an_own_model_is_one_with_one_more_row() -> None:
    sim = simulation(MEMBERS, "local", NORMED)
    draw = torch.Generator().manual_seed(0)

    def drawn(rows: int) -> Models:
        models = sim.server.initial_models(rows)
        models.materialise()
        for tensor in models.tensors.values():
            values = torch.rand(tensor.shape, generator=draw, dtype=torch.float64) * 9
            tensor.copy_(values.to(tensor.dtype))
        return models

    members, own = drawn(4), drawn(3)
    own.tensors["2.num_batches_tracked"].fill_(-1)
    weights = torch.rand(3, 5, generator=draw, dtype=torch.float64)
    weights[2, 4], weights[1, :4] = 0.0, 0.0
    weights /= weights.sum(1, keepdim=True)
    whole = torch.cat([weights[:, :4], torch.diag(weights[:, 4])], dim=1)
    expected, found = stack_rows([members, own]).mixed(whole), members.mixed_with_own(own, weights)
    assert MEAN in found.tensors
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], tensor, rtol=0, atol=1e-12)


def still(feature_shape: Sequence[int], classes: int) -> nn.Module:
    """A model whose batch statistics stay what they are at first, a variance of 1."""
    return nn.Sequential(nn.Linear(feature_shape[0], 4), nn.BatchNorm1d(4, momentum=0.0), nn.Linear(4, classes))


@pytest.mark.parametrize(("name", "options"), [("feddwa", {}), ("sfl", {}), ("fedora", {"attach": "literal"})])
def test_newcomers_arrive_with_whole_batch_statistics(name: str, options: Mapping[str, Any]) -> None:
    model = ModelSpec("test_partial_answers:still")
    came = admit(trained(make_algorithm(name, **options), model), model)
    torch.testing.assert_close(came.models.tensors["1.running_var"], torch.ones(3, 4, dtype=torch.float64))


def test_newcomers_of_l2c_learn_of_the_members_batch_statistics() -> None:
    sim = trained("l2c", NORMED)
    ways = sim.algorithm.adapt(sim.server, torch.arange(3), True)
    assert ways is not None
    assert torch.equal(ways["D"].value.tensors[MEAN], sim.server.w.tensors[MEAN])


@pytest.mark.parametrize(("name", "labelled"), [("feddwa", True), ("feddwa", False), ("fedamp", True)])
def test_members_that_never_took_part_are_no_models_for_newcomers(name: str, labelled: bool) -> None:
    sim = trained(name, absent=dict.fromkeys((1, 2, 3), ("client-3",)))
    assert sim.server.met.tolist() == [True, True, True, False]
    before = admit(sim, labelled=labelled).models.flat()
    w = sim.server.w.clone()
    w[torch.tensor([3])] = w[torch.tensor([3])] * 0.0 + 7.0
    sim.server.w = w
    assert torch.equal(admit(sim, labelled=labelled).models.flat(), before)


@pytest.mark.parametrize("name", ["feddwa", "fedamp"])
def test_newcomers_where_nobody_took_part(name: str) -> None:
    sim = simulation(MEMBERS, name)
    assert torch.isfinite(admit(sim).models.flat()).all()


@pytest.mark.parametrize("name", ["fedavg-ft", "fedprox-ft", "fedbabu"])
def test_newcomers_are_tuned_as_members_are(name: str) -> None:
    head = admit(trained(make_algorithm(name, part="head"))).models
    slow = admit(trained(make_algorithm(name, lr_ft=1e-12))).models
    untouched = admit(trained(name), labelled=False).models
    assert torch.equal(head["body"].flat(), untouched["body"].flat())
    assert not torch.equal(head["head"].flat(), untouched["head"].flat())
    torch.testing.assert_close(slow.flat(), untouched.flat(), rtol=0, atol=1e-9)


def test_more_newcomers_than_members_of_l2c() -> None:
    sim = trained(make_algorithm("l2c", self_weight=0.5), members=MEMBERS.select([0, 1]))
    assert np.isfinite(admit(sim).values["accuracy"]).all()


# --- who has not answered ----------------------------------------------------------------------------------------


def test_the_rows_that_a_matrix_knows_stand_among_all() -> None:
    met = Acquaintances(4)
    met.add(torch.tensor([2, 0]))
    met.add(torch.tensor([3]))
    found = met.among_all(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(4, 4))
    assert found.tolist() == [[4.0, 0.0, 3.0, 0.0], [0.0] * 4, [2.0, 0.0, 1.0, 0.0], [0.0] * 4]


@pytest.mark.parametrize("similarity", ["random", "parameters", "gradients"])
def test_relations_of_fedora_after_a_round_without_answers(similarity: str) -> None:
    algorithm, absent = make_algorithm("fedora", similarity=similarity), {2: MEMBERS.names, 3: MEMBERS.names}
    sim = simulation(MEMBERS, algorithm, rounds=3, participation=HALF, absent=absent)
    met = []
    while not sim.finished:
        sim.advance()
        met.append(len(sim.server.met))
        A = sim.algorithm.relations(sim.server)["propagation"]
        torch.testing.assert_close(A.sum(1), torch.ones(4, dtype=torch.float64))
    assert met[-1] > met[0]  # somebody was met in a round that nobody answered


def test_the_exact_propagation_is_about_those_who_were_seen() -> None:
    draw, seen = torch.Generator().manual_seed(3), torch.tensor([True, True, False, True, True])
    P = restrict(torch.rand(5, 5, generator=draw, dtype=torch.float64), seen)
    A = propagation_matrix(P, 2.0, exact=True, seen=seen)
    assert A[seen, 2].tolist() == [0.0] * 4
    among = (P[seen][:, seen] + P[seen][:, seen].T) / 2
    laplacian = torch.diag(among.sum(1)) - among
    identity = torch.eye(5, dtype=torch.float64)
    torch.testing.assert_close(A[seen][:, seen], torch.linalg.inv(identity[:4, :4] + 2.0 * laplacian))
    torch.testing.assert_close(A[2], (identity[2] + 2.0 * P[2] @ A) / 3.0)  # it takes from them: Equation 6
    sparse = Neighbours(csr_array(P.numpy()), 2.0, exact=True, seen=seen)
    torch.testing.assert_close(sparse.product(identity), A)
    with pytest.raises(CoterieError, match="closed_form or sparse where exact is set"):
        make_algorithm("fedora", exact=True, solver="iterative")


@dataclass(frozen=True)
class Forgetful(L2GD):
    """A client sends its model, and then fails to take the averaging step."""

    def averaging_steps(self, site: Site, steps: Any, mean: Models | None = None) -> Mapping[str, Any]:
        L2GD.averaging_steps(self, site, steps, mean)
        site.theta = site.theta * torch.where(site.n == 9, torch.nan, 1.0).double()
        return {}


def test_a_client_that_missed_the_averaging_step_of_l2gd_is_sent_the_mean_again() -> None:
    sim = simulation(MEMBERS, Forgetful(p=0.5, iterations=1), rounds=12)
    formed = 0
    while not sim.finished:
        sim.advance()
        if sim.server.transfers > formed:
            assert sim.server.moved.tolist() == [False, False, True, False]
        formed = sim.server.transfers
    assert formed > 1


@dataclass(frozen=True)
class Broken(L2GD):
    """A client's local steps end in NaN after an averaging step of the same round."""

    def local_steps(self, site: Site, steps: Any, first: Any) -> Mapping[str, Any]:
        L2GD.local_steps(self, site, steps, first)
        if int(first[0]):
            site.theta = site.theta * torch.where(site.n == 9, torch.nan, 1.0).double()
        return {}


class Coins:
    """Local, averaging, local."""

    def random(self, count: int) -> Any:
        return np.array([0.9, 0.1, 0.9])[:count]


def test_a_client_that_failed_later_in_the_round_holds_no_mean_of_l2gd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.algorithms.l2gd.generator", lambda *_: Coins())
    sim = trained(Broken(p=0.5, iterations=3), rounds=1)
    assert sim.server.transfers == 1
    assert bool(sim.server.moved[2])  # though it took the averaging step


@dataclass(frozen=True)
class Unpublished(Fedora):
    """A client describes its data, and then never has a finite model to upload."""

    def local_update(self, site: Site, theta_hat: Models) -> Mapping[str, Any]:
        found = Fedora.local_update(self, site, theta_hat)
        return {"theta": found["theta"] * torch.where(site.n == 9, torch.nan, 1.0).double()}


@pytest.mark.parametrize("variant", ["released", "paper"])
def test_a_client_of_fedora_that_has_uploaded_nothing_passes_nothing_on(variant: Any) -> None:
    """Though its subspace is known, theta^0 is not propagated in its name; it takes from the others."""
    sim = trained(Unpublished(variant=variant))
    assert sim.server.seen.tolist() == [True, True, False, True]
    A = sim.server.propagation
    assert A[[0, 1, 3], 2].tolist() == [0.0] * 3
    assert float(A[2, [0, 1, 3]].sum()) > 0.1


@dataclass(frozen=True)
class Unfinished(L2C):
    """A client sends its update, and then fails to learn its weights."""

    def collaborate(self, site: Site, D: Models, index: Any) -> Mapping[str, Any]:
        found = L2C.collaborate(self, site, D, index)
        return {"pi": found["pi"] * torch.where(site.n == 9, torch.nan, 1.0).double().unsqueeze(1)}


@pytest.mark.parametrize("missing", ["drop", "cached"])
def test_a_client_that_has_not_moved_is_no_member_of_l2c(missing: Any) -> None:
    sim = trained(Unfinished(missing=missing))
    assert sim.server.known.tolist() == [True, True, False, True]
    assert torch.equal(sim.server.w[torch.tensor([2])].flat(), sim.server.initial_model().flat())
    assert len(admit(sim).failures) == 0


def test_clients_of_fesem_that_were_away_in_an_e_step_are_in_the_next() -> None:
    absent = dict.fromkeys((2, 4), ("client-3",))
    sim = simulation(
        FOUR, make_algorithm("fesem", clusters=2, recluster=2), LOCATION, rounds=4, training=FULL_BATCH, absent=absent
    )

    def put(cluster: int) -> None:
        r = sim.server.r.clone()
        r[3] = cluster
        sim.server.r = r

    sim.advance()
    right, wrong = int(sim.server.r[3]), int(sim.server.r[0])
    put(wrong)
    sim.advance()
    assert int(sim.server.r[3]) == wrong  # its model is the one of the E-step before
    put(right)
    sim.advance()
    put(wrong)
    sim.advance()
    assert int(sim.server.r[3]) == right  # it answered in round 3, after the E-step of round 2


def test_absent_clients_of_fesem_keep_their_cluster() -> None:
    sim = simulation(
        FOUR, make_algorithm("fesem", clusters=2), LOCATION, rounds=2, training=FULL_BATCH, absent={2: ("client-3",)}
    )
    sim.advance()
    other = int(sim.server.r[0])
    r = sim.server.r.clone()
    r[3] = other
    sim.server.r = r
    sim.advance()
    assert sim.server.r.tolist()[0] == sim.server.r.tolist()[3] == other
    assert int(sim.server.r[1]) != other


@pytest.mark.parametrize("warm_start", [False, True])
def test_batch_statistics_of_pfedme_move_with_every_batch(warm_start: bool) -> None:
    sim = trained(make_algorithm("pfedme", warm_start=warm_start, local_steps=3), NORMED, rounds=2)
    assert state(sim).tensors["2.num_batches_tracked"].tolist() == [6] * 4
    moved = admit(sim, NORMED).models.tensors["2.num_batches_tracked"]
    assert (moved > 6).all()
