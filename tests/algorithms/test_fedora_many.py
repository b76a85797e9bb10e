"""FEDORA without a K x K matrix: the same method, whatever solves its propagation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.contract import make_algorithm
from coterie.engines import Participation, checkpoint
from coterie.errors import CoterieError
from coterie.relations import LowRank, Neighbours, many
from coterie.testing import check_algorithm
from toys import HALF, LINEAR, NORMED, classified, located, run, same, saved, simulation

K = 8
FEDERATION = classified([6, 9, 4, 7, 5, 8, 6, 3])
SOLVERS = [("paper", "low_rank"), ("released", "sparse")]


def fedora(variant: str, solver: str, rounds: int = 4, **settings: Any) -> Any:
    model = settings.pop("model", LINEAR)
    options = settings.pop("options", {})
    algorithm = make_algorithm("fedora", variant, solver=solver, **options)
    return simulation(settings.pop("federation", FEDERATION), algorithm, model, rounds=rounds, **settings)


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
@pytest.mark.parametrize("model", [LINEAR, NORMED])
@pytest.mark.parametrize("participation", [Participation(), HALF])
def test_the_models_are_those_of_the_closed_form(variant: str, solver: str, model: Any, participation: Any) -> None:
    sims = [
        fedora(variant, each, model=model, participation=participation, seed=3) for each in ("closed_form", solver)
    ]  # fmt: skip
    for sim in sims:
        run(sim)
    exact, other = (sim.server.theta_hat.tensors for sim in sims)
    for name, tensor in exact.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
def test_a_resumed_run_is_the_uninterrupted_one(variant: str, solver: str, tmp_path: Path) -> None:
    options = {"eigenvectors": 2} if solver == "low_rank" else {}
    whole, first, second = (fedora(variant, solver, options=options, participation=HALF) for _ in range(3))
    run(whole)
    first.advance()
    first.advance()
    checkpoint.save(tmp_path / "run.pt", first)
    checkpoint.load(tmp_path / "run.pt", second)
    run(second)
    assert isinstance(second.server.propagation, LowRank if solver == "low_rank" else Neighbours)
    assert same(saved(whole), saved(second))


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
def test_beyond_the_threshold_no_matrix_of_all_pairs_is_kept(
    variant: str, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "MANY", K - 1)
    monkeypatch.setattr(many, "MANY_OF_FEW_NEIGHBOURS", K - 1)
    sim = fedora(variant, "auto")
    assert sim.algorithm.how(K) == solver
    assert sim.relations() == {}
    run(sim)
    assert isinstance(sim.server.propagation, LowRank if solver == "low_rank" else Neighbours)
    assert sim.relations() == {}
    assert sim.server.similarity is None
    (note,) = sim.algorithm.notes(sim.server).items()
    assert note[0] == {"low_rank": "propagation_bound", "sparse": "propagation_residual"}[solver]
    assert 0 <= note[1] < 1e-12


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
def test_up_to_the_threshold_auto_is_the_closed_form_bit_for_bit(variant: str, solver: str) -> None:
    sims = [fedora(variant, each) for each in ("auto", "closed_form")]
    for sim in sims:
        run(sim)
    assert torch.equal(sims[0].server.propagation, sims[1].server.propagation)
    assert torch.equal(sims[0].server.theta_hat.flat(), sims[1].server.theta_hat.flat())
    assert sims[0].algorithm.notes(sims[0].server) == {}
    assert sims[0].relations().keys() == {"similarity", "propagation"}


@pytest.mark.parametrize(
    "options",
    [{"similarity": "parameters"}, {"alpha": float("inf")}, {"attach": "literal"}, {"topk": 0, "exact": True}],
    ids=str,
)
def test_what_has_no_solver_for_many_keeps_the_closed_form(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "MANY", 2)
    monkeypatch.setattr(many, "MANY_OF_FEW_NEIGHBOURS", 2)
    assert make_algorithm("fedora", **options).how(K) == "closed_form"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"solver": "lu"}, "low_rank or sparse"),
        ({"solver": "low_rank"}, "topk 0"),
        ({"solver": "low_rank", "topk": 0, "exact": True}, "without exact"),
        ({"solver": "low_rank", "topk": 0, "alpha": float("inf")}, "alpha is inf"),
        ({"solver": "sparse", "alpha": float("inf")}, "alpha is inf"),
        ({"solver": "sparse", "topk": 0}, "topk of 1 or more"),
        ({"solver": "sparse", "similarity": "random"}, "not that of data"),
        ({"solver": "sparse", "attach": "literal"}, "literal"),
        ({"eigenvectors": 0}, "1 or more"),
    ],
)
def test_what_a_solver_cannot_do_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CoterieError, match=words):
        make_algorithm("fedora", **options)


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
def test_it_keeps_the_identities_of_every_method(variant: str, solver: str) -> None:
    algorithm = make_algorithm("fedora", variant, solver=solver)
    check_algorithm(algorithm, only=["relabelled", "rows", "resumed", "participation", "absent", "seeded"])


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
def test_one_client(variant: str, solver: str) -> None:
    sim = fedora(variant, solver, federation=located([[4.0, 0.0]], inputs=[[1.0, 0.0]]))
    run(sim)
    assert torch.equal(sim.server.theta_hat.flat(), sim.server.theta.flat())


@pytest.mark.parametrize(("variant", "solver"), SOLVERS)
def test_the_solver_follows_the_number_of_clients_met(
    variant: str, solver: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(many, "MANY", 5)
    monkeypatch.setattr(many, "MANY_OF_FEW_NEIGHBOURS", 5)
    exact, auto, resumed = (
        fedora(variant, each, rounds=5, participation=HALF, seed=1) for each in ("closed_form", "auto", "auto")
    )
    run(exact)
    kinds = []
    while not auto.finished:
        auto.advance()
        checkpoint.save(tmp_path / f"{auto.round}.pt", auto)
        kinds.append(type(auto.server.propagation))
        assert (auto.server.similarity is None) == (len(auto.server.met) > 5)
    assert kinds[0] is torch.Tensor
    assert kinds[-1] is (LowRank if solver == "low_rank" else Neighbours)
    for name, tensor in exact.server.theta_hat.tensors.items():
        torch.testing.assert_close(auto.server.theta_hat.tensors[name], tensor, rtol=1e-8, atol=1e-8)
    checkpoint.load(tmp_path / "1.pt", resumed)  # from a matrix to what stands for one
    run(resumed)
    assert same(saved(auto), saved(resumed))


def test_only_clients_that_were_met_have_rows() -> None:
    sim = fedora("paper", "auto", rounds=2, participation=HALF, seed=1)
    sim.advance()
    met = sim.server.met.clients
    assert len(met) == 4
    assert len(sim.server.theta) == len(sim.server.theta_hat) == len(sim.server.basis) == 4
    assert sim.server.similarity.shape == sim.server.propagation.shape == (4, 4)
    shown = torch.from_numpy(sim.relations()["similarity"])
    assert shown.shape == (K, K)
    strangers = torch.ones(K, dtype=torch.bool)
    strangers[met] = False
    assert shown[strangers].isnan().all()
    assert shown[:, strangers].isnan().all()
    assert not shown[~strangers][:, ~strangers].isnan().any()
