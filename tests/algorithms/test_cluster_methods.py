"""IFCA, HypCluster, FeSEM, CFL and FedEM: rounds worked out by hand on quadratics, and the papers' identities.

As elsewhere, two targets a client make F_k(theta) = |theta - b_k|^2 / 2, so a step is theta <- theta - lr (theta - b_k).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.contract import Server, make_algorithm
from coterie.engines import Admission, Admitted, Participation, Settings, Trained
from coterie.errors import CoterieError
from coterie.federation import build_federation
from coterie.federation.data import ClientData
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.training import TrainingSettings
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
    models_like,
    names_of,
    personal,
    reordered,
    run,
    simulation,
    state,
    with_train_inputs,
)

OPPOSITE = [[4.0, 0.0], [-4.0, 0.0], [4.0, 2.0], [-4.0, 2.0]]
FOUR = located(OPPOSITE, [1, 3, 3, 1])
STARTS = [[1.0, 0.0], [-1.0, 0.0]]


def begun(
    name: str, rounds: int = 1, federation: Federation = FOUR, w: Any = None, *, lr: float = 0.5, epochs: int = 1,
    model: Any = LOCATION, settings: Mapping[str, Any] | None = None, **options: Any,
) -> Recording:  # fmt: skip
    """A simulation that has not run yet, on full batches, perhaps with the server's models ``w``."""
    training = replace(FULL_BATCH, lr=lr, epochs=epochs)
    sim = simulation(
        federation, make_algorithm(name, **options), model, engine=Recording, rounds=rounds,
        **{"training": training, **(settings or {})},
    )  # fmt: skip
    assert isinstance(sim, Recording)
    if w is not None:
        sim.server.w = models_like(sim, w)
    return sim


def played(*arguments: Any, **options: Any) -> Recording:
    sim = begun(*arguments, **options)
    run(sim)
    return sim


def close(actual: Any, expected: Any, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64), torch.as_tensor(expected, dtype=torch.float64),
        rtol=tolerance, atol=tolerance, equal_nan=True,
    )  # fmt: skip


def sent(sim: Recording, direction: str, phase: str = "train", kind: str = "model") -> list[int]:
    table = sim.ledger.per_client()
    return table[(table.phase == phase) & (table.direction == direction) & (table.kind == kind)]["bytes"].tolist()


def admit(sim: Recording, newcomers: Federation, labelled: bool = True, epochs: int = 0, model: Any = LOCATION) -> Any:
    """The newcomers' models at the end, ``(K, d)``, or None."""
    settings = Settings(training=replace(FULL_BATCH, lr=0.5), dtype="float64", threads=1)
    admitted = Admission(Trained.of(sim), newcomers, sim.algorithm, model, settings).admit(
        labelled=labelled, epochs=epochs
    )
    return admitted and admitted.models.flat()


# --- IFCA --------------------------------------------------------------------------------------------------------


def ifca(rounds: int = 1, federation: Federation = FOUR, w: Any = STARTS, **options: Any) -> Recording:
    return begun("ifca", rounds, federation, w, **{"redraws": 0, **options})


def test_ifca_averages_the_models_of_each_cluster() -> None:
    # from 1: (4, 0) -> 2.5 with n = 1, (4, 2) -> (2.5, 1) with n = 3; from -1: n = 3 and n = 1
    sim = ifca()
    run(sim)
    assert sim.server.choice.tolist() == [0, 1, 0, 1]
    close(sim.server.w.flat(), [[2.5, 0.75], [-2.5, 0.25]])
    close(personal(sim), [[2.5, 0.75], [-2.5, 0.25]] * 2)
    close(sim.algorithm.relations(sim.server)["clusters"], [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]] * 2)
    assert sim.algorithm.notes(sim.server) == {"clusters_in_use": 2.0}


def test_ifca_uniform_weights() -> None:
    sim = ifca(weights="uniform")
    run(sim)
    close(sim.server.w.flat(), [[2.5, 0.5], [-2.5, 0.5]])


@pytest.mark.parametrize(("weights", "w"), [("samples", [0.75, 0.25]), ("uniform", [0.5, 0.5])])
def test_ifca_gradients_are_averaged_over_all_who_answered(weights: str, w: list[float]) -> None:
    # gradient of w_0: (-3, 0) and (-3, -2); the sum over a cluster is divided by everybody's weight
    sim = ifca(averaging="gradient", weights=weights, epochs=7)
    run(sim)
    close(sim.server.w.flat(), [[1 + 0.25 * 3, w[0] / 2], [-1 - 0.25 * 3, w[1] / 2]])


@pytest.mark.parametrize(
    ("weights", "p"), [("samples", [0.0, 3 / 7, 3 / 7, 1 / 7]), ("uniform", [0.0, 1 / 3, 1 / 3, 1 / 3])]
)
def test_ifca_gradients_of_those_who_are_away_are_missing_in_the_weights_too(weights: str, p: list[float]) -> None:
    # gradient of w_0 at client 2: (-3, -2); of w_1 at clients 1 and 3: (3, 0) and (3, -2)
    sim = ifca(averaging="gradient", weights=weights, settings={"absent": {1: ("client-0",)}})
    run(sim)
    close(sim.server.w.flat(), [[1 + 1.5 * p[2], p[2]], [-1 - 1.5 * (p[1] + p[3]), p[3]]])


def test_ifca_gradient_averaging_with_one_cluster_is_fedavg_of_single_steps() -> None:
    federation = classified((7, 4, 9, 5))
    ours = played("ifca", 3, federation, clusters=1, averaging="gradient", model=MLP)
    theirs = played("fedavg", 3, federation, model=MLP)
    close(personal(ours), personal(theirs), 1e-12)


def test_t15_ifca_distinct_starts_separate_opposite_quadratics() -> None:
    """And with the right assignments the clusters are independent FedAvg runs."""
    sim = ifca(5)
    run(sim)
    assert sim.server.choice.tolist() == [0, 1, 0, 1]
    for cluster, members in enumerate(([0, 2], [1, 3])):
        alone = begun("fedavg", 5, FOUR.select(members), [STARTS[cluster]])
        run(alone)
        close(sim.server.w.flat()[cluster], alone.server.w.flat()[0], 1e-13)


def test_t15_ifca_equal_starts_collapse_to_the_first_model() -> None:
    """The first round is one of FedAvg; only those whom its average leaves worse off can choose another one later."""
    for w in ([0.5, 0.5], [-30.0, 0.5]):
        sim = ifca(2, w=[w] * 3, clusters=3)
        sim.advance()
        assert sim.server.choice.tolist() == [0, 0, 0, 0]
        assert sim.server.w.flat()[1:].tolist() == [w] * 2
        alone = begun("fedavg", 1, w=[w])
        run(alone)
        close(sim.server.w.flat()[0], alone.server.w.flat()[0], 1e-13)
        sim.advance()
        assert sim.server.choice.tolist() == ([0] * 4 if w[0] == -30.0 else [1, 0, 1, 0])


def test_ifca_an_empty_cluster_keeps_its_model() -> None:
    sim = ifca(w=[[1.0, 0.0], [77.0, 0.1], [-1.0, 0.0]], clusters=3)
    run(sim)
    assert sim.server.w.flat()[1].tolist() == [77.0, 0.1]
    close(sim.server.w.flat()[2], [-2.5, 0.25])
    assert sim.algorithm.notes(sim.server) == {"clusters_in_use": 2.0}


def overflowing(sim: Recording, cluster: int, scale: float = 1e160) -> Recording:
    """The simulation with a model of ``cluster`` whose weights are finite and whose loss is NaN."""
    rows = torch.ones(len(sim.server.w), dtype=torch.float64)
    rows[cluster] = scale
    sim.server.w = sim.server.w * rows
    return sim


@pytest.mark.parametrize("name", ["ifca", "hypcluster"])
def test_nobody_chooses_a_model_that_has_diverged(name: str) -> None:
    federation, options = classified((7, 4, 9, 5)), {"ifca": {"redraws": 0}, "hypcluster": {"warm_up": 0}}[name]
    sim = overflowing(begun(name, 2, federation, clusters=3, model=MLP, **options), 1)
    assert bool(sim.server.w.finite().all())
    diverged = sim.server.w.flat()[1]
    reports = run(sim)
    assert not any(report.failures for report in reports)
    assert 1 not in sim.server.choice.tolist()
    assert torch.equal(sim.server.w.flat()[1], diverged)
    assert bool(personal(sim).isfinite().all())


def test_ifca_a_start_that_diverges_is_no_fault_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no finite loss under any start, as with bad data, fails all the same."""
    federation = with_train_inputs(classified((7, 4, 9, 5)), lambda inputs: inputs * torch.nan, [0])
    sim = begun("ifca", 1, federation, clusters=2, redraws=2, least_share=0.5, model=MLP)
    draw, scales = sim.server.initial_models, torch.tensor([1e160, 1.0] * 3, dtype=torch.float64)

    def drawn(server: Server, count: int, *, distinct: bool) -> Models:
        return draw(count, distinct=distinct) * scales[:count]

    monkeypatch.setattr(Server, "initial_models", drawn)
    (report,) = run(sim)
    assert [failure.client for failure in report.failures] == ["client-0"]
    choosing = [call.returned for call in sim.calls if call.method == "choose"]
    assert len(choosing) == 3
    for answer in choosing:
        assert answer["choice"][-3:].tolist() == [1] * 3
        assert bool(answer["loss"][-3:].isfinite().all())


def test_ifca_permuting_the_models_permutes_results_only() -> None:
    federation, starts = classified((7, 4, 9, 5, 6)), begun("ifca", clusters=3, model=MLP).server.w
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        sim = begun("ifca", 4, federation, clusters=3, redraws=0, model=MLP)
        sim.server.w = sim.server.initial_models(3, distinct=True)[torch.tensor(order)]
        run(sim)
        results.append((personal(sim), sim.server.w.flat(), torch.tensor(order)[sim.server.choice]))
    assert len(starts) == 3
    close(results[0][0], results[1][0], 1e-13)
    close(results[0][1][[2, 0, 1]], results[1][1], 1e-13)
    assert results[0][2].tolist() == results[1][2].tolist()
    assert len(set(results[0][2].tolist())) > 1


def test_ifca_chooses_on_training_data_anew_at_each_participation_and_at_evaluation() -> None:
    elsewhere = located([[-b[0], b[1]] for b in OPPOSITE])
    sim = ifca(2, replace(FOUR, validation=elsewhere.train))
    sim.advance()
    assert sim.server.choice.tolist() == [0, 1, 0, 1]
    sim.server.w = models_like(sim, STARTS[::-1])
    close(sim.report_models().flat(), [STARTS[0], STARTS[1]] * 2)
    sim.advance()
    assert sim.server.choice.tolist() == [1, 0, 1, 0]


def test_ifca_absent_clients_keep_their_choice_and_others_fill_the_mean() -> None:
    sim = ifca(2, settings={"absent": {1: ("client-0", "client-3"), 2: ("client-1", "client-3")}})
    sim.advance()
    assert sim.server.choice.tolist() == [-1, 1, 0, -1]
    close(sim.server.w.flat(), [[2.5, 1.0], [-2.5, 0.0]])  # one member each
    close(sim.algorithm.relations(sim.server)["clusters"][[0, 2]], [[float("nan")] * 4, [0, 0, 1, 0]])
    close(personal(sim), [[2.5, 1.0], [-2.5, 0.0]] * 2)  # who never took part chooses all the same
    sim.advance()
    assert sim.server.choice.tolist() == [0, 1, 0, -1]
    close(sim.server.w.flat(), [[3.25, 0.25 * 0.5 + 0.75 * 1.5], [-2.5, 0.0]])


def test_ifca_traffic() -> None:
    sim = ifca(w=[[1.0, 0.0], [-1.0, 0.0], [0.0, 9.0]], clusters=3)
    run(sim)
    assert sent(sim, "down") == [3 * 16] * 4
    assert sent(sim, "up") == [16] * 4
    assert sent(sim, "up", kind="meta") == [8] * 4


def smallest_share(federation: Federation, w: Any, clusters: int) -> float:
    sim = begun("ifca", 1, federation, clusters=clusters, redraws=0, model=MLP)
    sim.server.w = w
    run(sim)
    return float(torch.bincount(sim.server.choice, minlength=clusters).min()) / sim.K


@pytest.mark.parametrize("least", [0.0, 0.25, 0.375, 0.5])
def test_ifca_draws_the_starts_anew_until_no_cluster_is_too_small(least: float) -> None:
    federation = classified((7, 4, 9, 5, 6, 3, 8, 2))
    sim = begun("ifca", 2, federation, clusters=2, redraws=8, least_share=least, model=MLP)
    draws = sim.server.initial_models(18, distinct=True)
    shares = [smallest_share(federation, draws[2 * i : 2 * i + 2], 2) for i in range(9)]
    fair = [i for i, share in enumerate(shares) if share >= least]
    expected = fair[0] if fair else max(range(9), key=lambda i: shares[i])
    asked = (fair[0] if fair else 8) + 1
    sim._welcome(torch.arange(8))
    assert sim.server.redrawn == expected
    assert torch.equal(sim.server.w.flat(), draws[2 * expected : 2 * expected + 2].flat())
    assert [call.method for call in sim.calls] == ["choose"] * asked
    assert sent(sim, "down", "describe") == [2 * asked * draws.bytes_per_row()[0]] * 8
    run(sim)
    assert [call.method for call in sim.calls[asked:]] == ["local_update"] * 2
    assert sorted(shares)[0] < sorted(shares)[-1]


def test_ifca_only_the_first_cohort_decides_about_the_starts() -> None:
    sim = begun(
        "ifca", 6, classified((7, 4, 9, 5, 6, 3, 8, 2)), clusters=2, redraws=3, least_share=0.5, model=MLP,
        settings={"participation": Participation("uniform", 0.25)},
    )  # fmt: skip
    run(sim)
    asked = [call.site.round for call in sim.calls if call.method == "choose"]
    assert set(asked) == {1}
    assert len(asked) <= 4
    assert bool(sim.welcomed.sum() > 2)


def test_ifca_waits_with_the_starts_while_nobody_is_there() -> None:
    sim = begun(
        "ifca", 2, classified((7, 4, 9, 5)), clusters=2, model=MLP, settings={"absent": {1: names_of(4)}}
    )  # fmt: skip
    sim.advance()
    assert sim.server.redrawn == -1
    sim.advance()
    assert sim.server.redrawn >= 0


def test_ifca_newcomers_choose_and_tune() -> None:
    sim = ifca()
    run(sim)
    newcomers = located([[3.0, 1.0], [-8.0, 0.25]])
    close(admit(sim, newcomers), [[2.5, 0.75], [-2.5, 0.25]])
    close(admit(sim, newcomers, epochs=1), [[2.75, 0.875], [-5.25, 0.25]])


def test_ifca_newcomers_without_labels_receive_the_model_of_most_clients() -> None:
    sim = ifca(1, located([[4.0, 0.0], [-4.0, 0.0], [-4.0, 2.0]]))
    run(sim)
    close(admit(sim, located([[4.0, 0.0]]), labelled=False), [[-2.5, 0.5]])


@pytest.mark.parametrize("name", ["ifca", "hypcluster", "fesem", "cfl", "fedem"])
def test_batch_statistics_of_the_members_are_averaged(name: str) -> None:
    many = {"ifca": "clusters", "hypcluster": "clusters", "fesem": "clusters", "fedem": "components"}
    options: dict[str, Any] = {many[name]: 1} if name in many else {"weights": "samples"}
    federation = classified((7, 4, 9, 5))
    ours = played(name, 2, federation, model=NORMED, settings={"training": BATCHES}, **options)
    theirs = played("fedavg", 2, federation, model=NORMED, settings={"training": BATCHES})
    for buffer in theirs.stack.layout.buffers:
        one, other = ours.server.w.tensors[buffer], theirs.server.w.tensors[buffer]
        torch.testing.assert_close(one, other.to(one), rtol=1e-12, atol=1e-12)


# --- HypCluster --------------------------------------------------------------------------------------------------


def test_hypcluster_begins_with_fedavg_in_random_groups() -> None:
    sim = begun("hypcluster", 3, clusters=2, warm_up=2)
    group = sim.server.group
    assert sorted(group.tolist()) == [0, 0, 1, 1]
    sim.advance()
    sim.advance()
    for cluster in (0, 1):
        members = (group == cluster).nonzero().flatten().tolist()
        alone = played("fedavg", 2, FOUR.select(members))
        close(sim.server.w.flat()[cluster], alone.server.w.flat()[0], 1e-13)
    assert torch.equal(sim.server.choice, group)
    assert sent(sim, "down") == sent(sim, "up") == [2 * 16] * 4
    assert sent(sim, "up", kind="meta") == []
    w = sim.server.w.flat()
    sim.advance()
    b = torch.tensor(OPPOSITE, dtype=torch.float64)
    assert sim.server.choice.tolist() == (b.unsqueeze(1) - w).square().sum(2).argmin(1).tolist()
    assert sent(sim, "down") == [2 * 16 + 2 * 16] * 4
    assert sent(sim, "up") == [3 * 16] * 4


def test_hypcluster_groups_begin_with_the_common_model() -> None:
    w = begun("hypcluster", clusters=3, model=MLP).server.w
    assert w.common
    assert not begun("hypcluster", clusters=3, warm_up=0, model=MLP).server.w.common


def test_hypcluster_groups_follow_names() -> None:
    order = [2, 0, 3, 1]
    group = begun("hypcluster").server.group
    assert torch.equal(begun("hypcluster", federation=reordered(FOUR, order)).server.group, group[order])
    others = {tuple(begun("hypcluster", settings={"seed": seed}).server.group.tolist()) for seed in range(20)}
    assert len(others) == 6


def test_hypcluster_without_warm_up_is_ifca_with_given_starts() -> None:
    federation = classified((7, 4, 9, 5, 6))
    ours = played("hypcluster", 3, federation, clusters=3, warm_up=0, model=MLP)
    theirs = played("ifca", 3, federation, clusters=3, redraws=0, model=MLP)
    assert torch.equal(ours.server.w.flat(), theirs.server.w.flat())
    assert torch.equal(ours.server.choice, theirs.server.choice)


def test_hypcluster_an_absent_group_keeps_its_model() -> None:
    group = begun("hypcluster").server.group
    away = tuple(f"client-{i}" for i in (group == 1).nonzero().flatten().tolist())
    sim = begun("hypcluster", 1, settings={"absent": {1: away}})
    run(sim)
    assert sim.server.w.flat()[1].tolist() == [0.0, 0.0]
    assert float(sim.server.w.flat()[0].abs().sum()) > 0
    assert sim.server.choice.tolist() == torch.where(group == 1, -1, 0).tolist()


# --- FeSEM -------------------------------------------------------------------------------------------------------
# after the first round w = b / 2


def test_fesem_clusters_models_and_trains_from_the_centres() -> None:
    sim = begun("fesem", 2, located([[4.0, 0.0], [-40.0, 0.0], [4.0, 2.0], [-40.0, 2.0]], [1, 3, 3, 1]), clusters=2)
    sim.advance()
    first = int(sim.server.r[0])
    assert sim.server.r.tolist() == [first, 1 - first] * 2
    close(sim.server.w.flat()[[first, 1 - first]], [[2.0, 0.75], [-20.0, 0.25]])
    close(personal(sim), [[2.0, 0.0], [-20.0, 0.0], [2.0, 1.0], [-20.0, 1.0]])
    sim.advance()
    close(sim.calls[-1].received["w"].flat(), [[2.0, 0.75], [-20.0, 0.25]] * 2)
    close(personal(sim), [[3.0, 0.375], [-30.0, 0.125], [3.0, 1.375], [-30.0, 1.125]])
    close(sim.server.w.flat()[[first, 1 - first]], [[3.0, 1.125], [-30.0, 0.375]])
    close(sim.server.theta.flat(), personal(sim))
    close(sim.algorithm.relations(sim.server)["clusters"], [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]] * 2)


def test_fesem_uniform_weights_and_prediction_by_the_centre() -> None:
    federation = located([[4.0, 0.0], [-40.0, 0.0], [4.0, 2.0]], [1, 3, 3])
    sim = played("fesem", 1, federation, clusters=2, weights="uniform", predict="centre")
    close(personal(sim), [[2.0, 0.5], [-20.0, 0.0], [2.0, 0.5]])


def test_fesem_pulls_towards_the_received_centre() -> None:
    # w = 0: w^1 = b / 2, then w^2 = w^1 + (b - w^1) / 2 - w^1 / 4 = 5/8 b
    sim = played("fesem", 1, located([[8.0, 0.0], [0.0, 16.0]]), epochs=2, mu=0.5)
    close(personal(sim), [[5.0, 0.0], [0.0, 10.0]])


def test_fesem_first_centres_are_a_fixed_point_of_k_means(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(4)
    federation = located(torch.randn(20, 2, generator=draw).tolist())
    sim = begun("fesem", 1, federation, clusters=4, weights="uniform")
    sim.advance()
    theta, w, r = sim.server.theta.flat(), sim.server.w.flat(), sim.server.r
    assert torch.equal(torch.cdist(theta, w).argmin(1), r)
    close(w, torch.stack([theta[r == c].mean(0) for c in range(4)]), 1e-13)
    spread = []
    for steps in (1, 100):
        monkeypatch.setattr("coterie.algorithms.fesem.LONGEST", steps)
        hasty = begun("fesem", 1, federation, clusters=4, weights="uniform")
        hasty.advance()
        spread.append(float((hasty.server.theta.flat() - hasty.server.w.flat()[hasty.server.r]).square().sum()))
    assert spread[1] < spread[0]  # so that the steps after the first matter


@pytest.mark.parametrize("participation", [None, HALF])
def test_t03_fesem_with_one_cluster_is_fedavg(participation: Any) -> None:
    settings = {"training": BATCHES, **({"participation": participation} if participation else {})}
    federation = classified((7, 4, 9, 5, 6))
    ours = played("fesem", 4, federation, clusters=1, members="answered", model=MLP, settings=settings)
    theirs = played("fedavg", 4, federation, model=MLP, settings=settings)
    close(ours.server.w.flat(), theirs.server.w.flat(), 1e-13)


def test_t04_fesem_with_a_cluster_for_each_client_is_local() -> None:
    federation = classified((7, 4, 9, 5, 6))
    theirs = played("local", 4, federation, model=MLP)
    for clusters in (5, 9):
        ours = played("fesem", 4, federation, clusters=clusters, model=MLP)
        close(personal(ours), personal(theirs), 1e-13)
        assert len(set(ours.server.r.tolist())) == 5


def test_t02_fesem_identical_clients_share_one_cluster() -> None:
    sim = played("fesem", 3, alike(5), clusters=3, model=MLP)
    assert sim.algorithm.notes(sim.server) == {"clusters_in_use": 1.0}
    assert sim.server.drawn == 1


def test_fesem_absent_clients_keep_their_model_their_cluster_and_their_weight() -> None:
    federation = located([[4.0, 0.0], [-40.0, 0.0], [8.0, 0.0]])
    for members, centre in (("all", (3.5 + 4.0) / 2), ("answered", 3.5)):
        absent = {2: ("client-2",)}
        sim = begun("fesem", 2, federation, clusters=2, members=members, settings={"absent": absent})
        sim.advance()
        mine = int(sim.server.r[0])
        close(sim.server.w.flat()[mine], [3.0, 0.0])
        sim.advance()
        assert int(sim.server.r[2]) == mine
        close(sim.server.theta.flat()[[0, 2]], [[3.5, 0.0], [4.0, 0.0]])
        close(sim.server.w.flat()[mine], [centre, 0.0])


def test_fesem_a_latecomer_takes_a_round_from_the_start_first() -> None:
    federation = located([[4.0, 0.0], [-40.0, 0.0], [8.0, 0.0]])
    sim = begun("fesem", 3, federation, clusters=2, settings={"absent": {1: ("client-2",)}}, predict="centre")
    sim.advance()
    assert sim.server.r.tolist()[2] == -1
    close(personal(sim)[2], [0.0, 0.0])
    sim.advance()
    close(sim.calls[-1].received["w"].flat()[2], [0.0, 0.0])
    assert sim.server.r[2] == sim.server.r[0]
    close(personal(sim)[2], [3.5, 0.0])  # of 3 and 4
    sim.advance()
    close(sim.calls[-1].received["w"].flat()[2], [3.5, 0.0])


def test_fesem_a_latecomer_finds_its_cluster_though_no_e_step_is_due() -> None:
    federation = located([[4.0, 0.0], [-40.0, 0.0], [8.0, 0.0]])
    sim = begun("fesem", 3, federation, clusters=2, recluster=5, settings={"absent": {1: ("client-2",)}})
    sim.advance()
    sim.advance()
    assert int(sim.server.r[2]) == int(sim.server.r[0]) != int(sim.server.r[1])
    close(sim.server.w.flat()[int(sim.server.r[0])], [3.5, 0.0])  # of 3 and 4
    sim.advance()
    close(sim.calls[-1].received["w"].flat()[2], [3.5, 0.0])


def test_fesem_draws_further_centres_when_there_are_more_models() -> None:
    federation = located([[4.0, 0.0], [-40.0, 0.0], [0.0, 80.0]])
    sim = begun("fesem", 2, federation, clusters=3, settings={"absent": {1: ("client-1", "client-2")}})
    sim.advance()
    assert sim.server.drawn == 1
    sim.advance()
    assert sim.server.drawn == 3
    assert sorted(sim.server.r.tolist()) == [0, 1, 2]


def test_fesem_an_empty_cluster_keeps_its_centre() -> None:
    sim = begun("fesem", 2, located([[4.0, 0.0], [-4.0, 0.0]]), clusters=3)
    sim.advance()
    assert sim.server.drawn == 2
    sim.server.w = models_like(sim, [[0.0, 0.0], [77.0, 0.0], [0.0, 99.0]])
    sim.server.drawn, sim.server.r = 3, torch.zeros(2, dtype=torch.int64)
    sim.advance()
    assert sim.server.r.tolist() == [0, 0]
    close(sim.server.w.flat()[1:], [[77.0, 0.0], [0.0, 99.0]])


def test_fesem_reclusters_at_times_only() -> None:
    federation = located([[4.0, 0.0], [-40.0, 0.0], [4.0, 2.0]])
    sim = begun("fesem", 3, federation, clusters=2, recluster=3)
    sim.advance()
    sim.server.r = torch.tensor([1, 1, 0])  # wrong, but not looked at in round 2
    sim.advance()
    assert sim.server.r.tolist() == [1, 1, 0]
    w, theta = sim.server.w.flat(), sim.server.theta.flat()
    close(w, [theta[2].tolist(), theta[:2].mean(0).tolist()], 1e-13)
    sim.advance()
    nearest = torch.cdist(sim.server.theta.flat(), w).argmin(1)
    assert sim.server.r.tolist() == nearest.tolist() != [1, 1, 0]


def test_fesem_newcomers_find_the_nearest_centre_and_go_on_from_there() -> None:
    sim = played("fesem", 1, located([[4.0, 0.0], [-40.0, 0.0], [8.0, 0.0]]), clusters=2)
    newcomers = located([[6.0, 2.0], [-30.0, 1.0]])
    close(admit(sim, newcomers), [[3.0, 0.0], [-20.0, 0.0]])
    close(admit(sim, newcomers, epochs=1), [[4.5, 1.0], [-25.0, 0.5]])
    assert admit(sim, newcomers, labelled=False) is None


# --- CFL ---------------------------------------------------------------------------------------------------------

READY = {"eps1": 1e6, "eps2": 0.0, "patience": 0}


def leaves(sim: Recording) -> list[list[int]]:
    node = sim.server.node
    return sorted((node == leaf).nonzero().flatten().tolist() for leaf in node.unique())


def test_cfl_averages_uniformly_before_it_splits() -> None:
    sim = played("cfl", 1)
    close(personal(sim), [[0.0, 0.5]] * 4)
    close(personal(played("cfl", 1, weights="samples")), [[0.0, 0.5 * (0 + 0 + 6 + 2) / 8]] * 4)
    close(sim.algorithm.relations(sim.server)["clusters"], [[0.25] * 4] * 4)


def test_cfl_splits_two_groups_with_opposite_updates_exactly() -> None:
    # the mean update is (0, 1/2), single ones are 2 or sqrt(5) long
    sim = begun("cfl", 2, eps1=0.6, eps2=2.1, patience=0)
    sim.advance()
    assert leaves(sim) == [[0, 2], [1, 3]]
    close(personal(sim), [[2.0, 0.5], [-2.0, 0.5]] * 2)
    close(sim.algorithm.relations(sim.server)["clusters"], [[0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5]] * 2)
    close(sim.server.w.flat()[0], [0.0, 0.0])  # as it was before the split
    assert sim.algorithm.notes(sim.server)["clusters"] == 2
    sim.advance()
    close(personal(sim), [[3.0, 0.75], [-3.0, 0.75]] * 2)


def test_cfl_by_samples_they_count_in_the_mean_update_and_in_the_halves() -> None:
    """Updates (2, 0), (-2, 0), (2, 1), (-2, 1): with n = 1, 1, 1, 3 their mean is (-2/3, 2/3), else (0, 1/2)."""
    federation = located(OPPOSITE, [1, 1, 1, 3])
    ready: dict[str, Any] = {"eps2": 2.1, "patience": 0}
    assert leaves(played("cfl", 1, federation, eps1=0.9, **ready)) == [[0, 2], [1, 3]]
    assert leaves(played("cfl", 1, federation, eps1=0.9, weights="samples", **ready)) == [[0, 1, 2, 3]]
    sim = played("cfl", 1, federation, eps1=1.0, weights="samples", **ready)
    assert leaves(sim) == [[0, 2], [1, 3]]
    close(personal(sim), [[2.0, 0.5], [-2.0, 0.75]] * 2)


@pytest.mark.parametrize(
    "options",
    [{"eps1": 0.4999, "eps2": 2.1}, {"eps1": 0.6, "eps2": 2.24}, {"eps1": 0.6, "eps2": 2.1, "patience": 1}],
)
def test_cfl_does_not_split_unless_all_conditions_hold(options: dict[str, Any]) -> None:
    sim = played("cfl", 1, **{"patience": 0, **options})
    assert leaves(sim) == [[0, 1, 2, 3]]
    notes = sim.algorithm.notes(sim.server)
    close([notes["shortest_mean_update"], notes["longest_update"]], [0.5, 5**0.5])


def test_cfl_is_patient_for_twenty_rounds() -> None:
    sim = begun("cfl", 21, located([[4.0], [-4.0], [4.0]]), lr=0.01, eps1=1e6, eps2=0.0)
    for _ in range(20):
        sim.advance()
    assert leaves(sim) == [[0, 1, 2]]
    sim.advance()
    assert leaves(sim) == [[0, 2], [1]]


def test_cfl_two_clients_are_never_split() -> None:
    sim = played("cfl", 3, located([[4.0], [-4.0]]), **READY)
    assert leaves(sim) == [[0, 1]]


@pytest.mark.parametrize("participation", [None, HALF])
def test_t03_cfl_with_eps1_of_zero_is_fedavg(participation: Any) -> None:
    settings = {"training": BATCHES, **({"participation": participation} if participation else {})}
    federation = classified((7, 4, 9, 5, 6))
    for weights in ("uniform", "samples"):
        ours = played("cfl", 4, federation, **{**READY, "eps1": 0.0}, weights=weights, model=MLP, settings=settings)
        theirs = played("fedavg", 4, federation, weights=weights, model=MLP, settings=settings)
        close(personal(ours), personal(theirs), 1e-13)


def test_t14_cfl_the_second_split_uses_the_clients_own_numbers() -> None:
    """The groups of the second split lie anywhere but at the first positions."""
    b = [[-9.0, 0.0], [9.0, 5.0], [-9.0, 0.1], [9.0, -5.0], [9.0, 5.1], [-9.0, -0.1], [9.0, -5.1], [9.0, 4.9]]
    sim = begun("cfl", 2, located(b), eps1=3.1, eps2=1.0, patience=0)
    sim.advance()
    assert leaves(sim) == [[0, 2, 5], [1, 3, 4, 6, 7]]
    sim.advance()
    assert [1, 4, 7] in leaves(sim)
    assert [3, 6] in leaves(sim)
    close(personal(sim)[[1, 4, 7]], [[6.75, personal(sim)[1, 1]]] * 3)


@pytest.mark.parametrize("participation", [None, HALF])
def test_t14_cfl_clusters_partition_the_clients(participation: Any) -> None:
    settings = {"training": BATCHES, **({"participation": participation} if participation else {})}
    sim = begun("cfl", 6, classified((7, 4, 9, 5, 6, 3, 8, 2)), model=MLP, settings=settings, **READY)
    before: list[list[int]] = [list(range(8))]
    counts = []
    while not sim.finished:
        sim.advance()
        now = leaves(sim)
        assert sorted(itertools.chain(*now)) == list(range(8))
        if participation is None:  # each cluster lies within one of before, and who shares one shares a model
            assert all(any(set(part) <= set(whole) for whole in before) for part in now)
            models = personal(sim)
            assert all(bool((models[part] == models[part[0]]).all()) for part in now)
        assert len(sim.server.w) == len(sim.server.children) == len(sim.server.direction)
        before = now
        counts.append(len(now))
    assert counts[-1] > 2


def test_cfl_members_of_new_halves_average_their_own_updates() -> None:
    sim = begun("cfl", 3, classified((7, 4, 9, 5, 6, 3)), model=MLP, settings={"training": BATCHES}, **READY)
    for _ in range(3):
        sim.advance()
        answers = sim.calls[-1].returned["w"].flat()
        for part in leaves(sim):
            close(personal(sim)[part], answers[part].mean(0).expand(len(part), -1), 1e-13)


def test_cfl_who_was_away_finds_its_half_by_its_next_update() -> None:
    federation = located([[4.0, 0.0], [-4.0, 0.0], [4.0, 2.0], [-4.0, 2.0], [-4.0, 1.0]])
    absent = {1: ("client-4",)}
    sim = begun("cfl", 3, federation, eps1=0.6, eps2=2.1, patience=0, settings={"absent": absent})
    sim.advance()
    assert leaves(sim) == [[0, 2], [1, 3], [4]]
    close(personal(sim)[4], [0.0, 0.0])  # the model from before the split
    sim.advance()
    close(sim.calls[-1].received["w"].flat()[4], [0.0, 0.0])
    assert leaves(sim) == [[0, 2], [1, 3, 4]]
    close(personal(sim), [[3.0, 0.75], [-3.0, 0.75], [3.0, 0.75], [-3.0, 0.75], [-3.0, 0.75]])  # without its update
    sim.advance()
    close(personal(sim)[4], [-3.5, (0 + 2 + 1 + 3 * 0.75) / 6])


def test_cfl_who_comes_back_alone_moves_no_model() -> None:
    others = ("client-0", "client-1", "client-2", "client-3")
    absent = {1: ("client-4",), 2: others}
    federation = located([*OPPOSITE, [-4.0, 1.0]])
    sim = begun("cfl", 2, federation, eps1=0.6, eps2=2.1, patience=0, settings={"absent": absent})
    sim.advance()
    before, notes = sim.server.w.flat(), sim.algorithm.notes(sim.server)
    sim.advance()
    assert torch.equal(sim.server.w.flat(), before)
    assert leaves(sim) == [[0, 2], [1, 3, 4]]
    assert sim.algorithm.notes(sim.server) == notes


def test_cfl_eps1_of_zero_splits_not_even_updates_that_cancel_exactly() -> None:
    sim = played("cfl", 2, located([[4.0], [-4.0], [4.0], [-4.0]]), **{**READY, "eps1": 0.0})
    assert leaves(sim) == [[0, 1, 2, 3]]


def test_cfl_a_client_without_update_splits_off_somewhere() -> None:
    sim = played("cfl", 2, located([[4.0, 0.0], [-4.0, 0.0], [0.0, 0.0], [0.0, 0.0]]), **READY)
    assert sorted(itertools.chain(*leaves(sim))) == [0, 1, 2, 3]
    assert bool(sim.server.w.finite().all())
    assert bool(sim.server.direction.finite().all())


def test_cfl_splits_do_not_depend_on_numbers() -> None:
    federation, order = alike(6), [3, 0, 5, 1, 4, 2]  # all ties
    ours, theirs = (played("cfl", 3, f, model=MLP, **READY) for f in (federation, reordered(federation, order)))
    renumbered = [sorted(order[i] for i in part) for part in leaves(theirs)]
    assert sorted(renumbered) == leaves(ours)
    assert len(renumbered) > 2


def test_cfl_newcomers_walk_by_direction_however_far_single_members_went() -> None:
    """Updates along (1, 0), (5, 5), (0, -1), (-1, -1) / 2: each counts once in its half's mean direction."""
    sim = played("cfl", 1, located([[2.0, 0.0], [80.0, 80.0], [0.0, -2.0], [-1.0, -1.0]]), **READY)
    assert leaves(sim) == [[0, 1], [2, 3]]
    root = 0.5**0.5
    close(sim.server.direction.flat()[1:], [[(1 + root) / 2, root / 2], [-root / 2, -(1 + root) / 2]])


def test_cfl_newcomers_walk_down_the_tree() -> None:
    sim = played("cfl", 1, eps1=0.6, eps2=2.1, patience=0)
    newcomers = located([[1.0, 0.0], [-20.0, 9.0]])
    close(admit(sim, newcomers), [[2.0, 0.5], [-2.0, 0.5]])
    close(admit(sim, newcomers, epochs=1), [[1.5, 0.25], [-11.0, 4.75]])
    close(admit(sim, newcomers, labelled=False), [[0.0, 0.0]] * 2)
    united = played("cfl", 1)
    close(admit(united, newcomers), [[0.0, 0.5]] * 2)
    close(admit(united, newcomers, labelled=False), [[0.0, 0.5]] * 2)


# --- FedEM -------------------------------------------------------------------------------------------------------


def scattered(targets: Sequence[Sequence[Sequence[float]]]) -> Federation:
    """Clients with one target an example: l(theta; s) = |theta - y_s|^2 / d."""
    data = ClientData.from_clients(
        [torch.ones(len(rows), 1) for rows in targets], [torch.tensor(rows) for rows in targets]
    )
    return Federation(names_of(len(targets)), data, data, data, "regression", len(targets[0][0]))


Y = [[[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]], [[-2.0, 0.0]]]
H = [[1.0, 0.0], [-1.0, 1.0]]


def expected_round(
    y: Sequence[Sequence[Sequence[float]]], h: Tensor, pi: Tensor, lr: float
) -> tuple[Tensor, Tensor, Tensor]:
    """One EM round with a full-batch step each: components ``(M, d)`` by n_k, ``pi``, the components of each client."""
    each, weights = [], []
    for k, rows in enumerate(y):
        targets = torch.tensor(rows, dtype=torch.float64)
        loss = (targets.unsqueeze(1) - h).square().sum(2) / 2
        q = pi[k] * torch.exp(-loss)
        q = q / q.sum(1, keepdim=True)
        weights.append(q.mean(0))
        each.append(torch.stack([h[m] - lr * (q[:, m, None] * (h[m] - targets)).mean(0) for m in range(len(h))]))
    n = torch.tensor([float(len(rows)) for rows in y], dtype=torch.float64)
    return torch.einsum("k,kmd->md", n / n.sum(), torch.stack(each)), torch.stack(weights), torch.stack(each)


def test_fedem_two_rounds_by_hand() -> None:
    sim = begun("fedem", 2, scattered(Y), H, components=2)
    h, pi = torch.tensor(H, dtype=torch.float64), torch.full((2, 2), 0.5, dtype=torch.float64)
    first = exp(-2.0 / 2)  # client-1 at (-2, 0): |(-2, 0) - (1, 0)|^2 / 2 = 4.5 and |(-2, 0) - (-1, 1)|^2 / 2 = 1
    for _ in range(2):
        sim.advance()
        h, pi, each = expected_round(Y, h, pi, 0.5)
        close(sim.server.w.flat(), h, 1e-13)
        close(state(sim, "pi"), pi, 1e-13)
        close(sim.calls[-1].returned["w"].flatten_candidates().flat().reshape(2, 2, 2), each, 1e-13)
        close(state(sim, "pi").sum(1), [1.0, 1.0], 1e-14)
        if sim.round == 1:
            close(state(sim, "pi")[1], [exp(-4.5) / (exp(-4.5) + first), first / (exp(-4.5) + first)], 1e-13)


def test_fedem_equal_components_stay_equal_with_uniform_weights() -> None:
    sim = begun("fedem", 4, classified((7, 4, 9)), components=3, model=MLP, settings={"training": BATCHES})
    sim.server.w = sim.server.initial_models(3)
    run(sim)
    w = sim.server.w.flat()
    close(w, w[:1].expand(3, -1), 1e-13)
    close(state(sim, "pi"), [[1 / 3] * 3] * 3, 1e-13)


def test_fedem_components_start_differently() -> None:
    sim = begun("fedem", 1, classified((7, 4)), components=3, model=MLP)
    w = sim.server.w.flat()
    assert min(float((w[i] - w[j]).abs().max()) for i, j in ((0, 1), (0, 2), (1, 2))) > 0.1
    assert torch.equal(w[:1], sim.server.initial_model().flat())


def test_t03_fedem_with_one_component_is_fedavg() -> None:
    settings = {"training": BATCHES, "participation": HALF}
    federation = classified((7, 4, 9, 5, 6))
    ours = played("fedem", 4, federation, components=1, model=MLP, settings=settings)
    close(personal(ours), personal(played("fedavg", 4, federation, model=MLP, settings=settings)), 1e-13)


def log_likelihood(y: Sequence[Sequence[Sequence[float]]], h: Tensor, pi: Tensor) -> float:
    total = 0.0
    for k, rows in enumerate(y):
        loss = (torch.tensor(rows, dtype=torch.float64).unsqueeze(1) - h).square().sum(2) / 2
        total += float((pi[k].log() - loss).logsumexp(1).sum())
    return total


def gaussians(seed: int, clients: int) -> list[list[list[float]]]:
    """Clients that draw from two Gaussians in proportions of their own."""
    draw = torch.Generator().manual_seed(seed)
    centres, made = torch.tensor([[2.0, 0.0], [-1.0, 1.0]]), []
    for k in range(clients):
        which = (torch.rand(6 + 3 * k, generator=draw) < (k + 1) / (clients + 1)).long()
        made.append((centres[which] + torch.randn(len(which), 2, generator=draw)).tolist())
    return made


@pytest.mark.parametrize(("clients", "epochs", "lr"), [(1, 400, 0.9), (3, 1, 0.9), (3, 1, 0.3)])
def test_t16_fedem_likelihood_does_not_decrease(clients: int, epochs: int, lr: float) -> None:
    """A Gaussian mixture: exact M-steps with one client, a step up the averaged surrogate with several."""
    y = gaussians(clients, clients)
    sim = begun("fedem", 12, scattered(y), [[0.5, 0.0], [0.0, 0.5]], components=2, lr=lr, epochs=epochs)
    pi, curve = torch.full((clients, 2), 0.5, dtype=torch.float64), []
    while not sim.finished:
        curve.append(log_likelihood(y, sim.server.w.flat(), pi))
        before = sim.server.w.flat(), pi
        sim.advance()
        pi = state(sim, "pi")
        if epochs > 1:  # the exact M-step: the means of all examples with their responsibilities
            targets = torch.tensor(y[0], dtype=torch.float64)
            q = before[1] * torch.exp(-(targets.unsqueeze(1) - before[0]).square().sum(2) / 2)
            q = q / q.sum(1, keepdim=True)
            close(sim.server.w.flat(), (q.T @ targets) / q.sum(0).unsqueeze(1), 1e-10)
    gains = np.diff(curve)
    assert (gains > -1e-12).all()
    assert gains[0] > 1e-3


@pytest.mark.parametrize("damped", [False, True])
def test_fedem_absent_clients_hold_the_last_components_where_averaging_is_damped(damped: bool) -> None:
    sim = begun(
        "fedem", 2, scattered(Y), H, components=2, damped=damped, settings={"absent": {1: ("client-1",)}}
    )  # fmt: skip
    sim.advance()
    h, pi = torch.tensor(H, dtype=torch.float64), torch.full((2, 2), 0.5, dtype=torch.float64)
    _, pi, each = expected_round(Y, h, pi, 0.5)
    close(sim.server.w.flat(), 0.75 * each[0] + 0.25 * h if damped else each[0], 1e-13)
    seen = sim.bank.get("pi", torch.tensor([0]), call=0)
    close(seen[0], pi[0], 1e-13)
    predictor = sim.report_predictor()
    assert predictor.weights is not None
    close(predictor.weights, [pi[0].tolist(), [0.5, 0.5]], 1e-13)  # who never took part has uniform weights


def test_fedem_predicts_with_the_mixture_of_probabilities() -> None:
    federation = classified((7, 4, 9))
    sim = played("fedem", 3, federation, components=2, model=LINEAR)
    report = sim._evaluate()["test"]
    pi, w = state(sim, "pi"), sim.server.w
    weight, bias = (w.tensors[name] for name in w.layout.parameters)
    for k in range(3):
        inputs, targets = federation.test.client(k)
        logits = torch.einsum("sf,mcf->msc", inputs.double(), weight) + bias.unsqueeze(1)
        p = torch.einsum("m,msc->sc", pi[k], logits.softmax(2))
        close(report["loss"][k], float(-p[torch.arange(len(p)), targets].log().mean()), 1e-12)
    assert sim.report_predictor().combine == "probabilities"
    assert begun("fedem", 1, scattered(Y), components=2).report_predictor().combine == "outputs"


def test_fedem_traffic() -> None:
    sim = played("fedem", 1, scattered(Y), H, components=2)
    assert sent(sim, "down") == sent(sim, "up") == [32, 32]
    assert sent(sim, "up", kind="summary") == []


def test_fedem_newcomers_weigh_the_components_by_one_e_step() -> None:
    settings = {"unlabelled_newcomers": True}
    sim = played("fedem", 2, scattered(Y), H, components=2, settings=settings)
    newcomer = [[[2.0, 1.0], [-1.0, 0.0]]]
    h = sim.server.w.flat()
    _, pi, _ = expected_round(newcomer, h, torch.full((1, 2), 0.5, dtype=torch.float64), 0.5)
    y = torch.tensor(newcomer[0], dtype=torch.float64)
    made = Settings(training=replace(FULL_BATCH, lr=0.5), dtype="float64", threads=1)
    for labelled, weights in ((True, pi[0]), (False, (3 * state(sim, "pi")[0] + state(sim, "pi")[1]) / 4)):
        admitted = Admission(Trained.of(sim), scattered(newcomer), sim.algorithm, LOCATION, made).admit(
            labelled=labelled, epochs=3
        )
        assert isinstance(admitted, Admitted)
        close(admitted.models.flatten_candidates().flat(), h)
        error = float((y - (weights.unsqueeze(1) * h).sum(0)).square().mean())
        close(admitted.values["mse"][:, 0], [error] * (4 if labelled else 1), 1e-12)
    assert sent(sim, "up", kind="summary") == [2 * 16] * 2


# --- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ifca", {"clusters": 0}), ("ifca", {"averaging": "median"}), ("ifca", {"redraws": -1}),
        ("ifca", {"clusters": 4, "least_share": 0.3}), ("ifca", {"weights": "many"}), ("hypcluster", {"warm_up": -1}),
        ("fesem", {"clusters": 0}), ("fesem", {"mu": -1.0}), ("fesem", {"recluster": 0}),
        ("fesem", {"members": "some"}), ("fesem", {"predict": "both"}), ("fesem", {"weights": "many"}),
        ("cfl", {"eps1": -1.0}), ("cfl", {"eps2": -1.0}), ("cfl", {"patience": -1}), ("cfl", {"weights": "many"}),
        ("fedem", {"components": 0}),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(CoterieError, match=f"{name}.{list(options)[-1]} must be"):
        make_algorithm(name, **options)


def test_fedem_learns_at_a_rate_that_makes_up_for_the_shares() -> None:
    """Each component has a share of the gradient: three components learn at three times the rate as one alone does."""
    rotated = {"rule": "rotation", "clients": 8, "degrees": 20}
    federation = build_federation(
        {"source": "digits", "partition": rotated, "train": 30, "validation": 20}, seed=0, data_dir=None
    )
    training = TrainingSettings(epochs=3, batch_size=16, lr=0.3, momentum=0.5)
    sim = simulation(
        federation, "fedem", ModelSpec("mlp", {"hidden": [32]}), rounds=20, evaluate_every=20, training=training
    )
    before = sim.initial_report().evaluations["test"]["accuracy"].mean()
    after = run(sim)[-1].evaluations["test"]["accuracy"].mean()
    assert after > before + 0.4
