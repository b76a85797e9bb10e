"""Clipping and noise in the simulator: on everything that clients send, the same whatever the chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
from coterie.contract import Algorithm, Server, Site, broadcast
from coterie.engines import checkpoint
from coterie.errors import CoterieError, CoterieWarning
from coterie.models import Models
from coterie.privacy import Policy, epsilon_of
from toys import classified, personal, run, saved, simulation, with_train_inputs

FEDERATION = classified((7, 4, 9, 5))


def theta(name: str, **settings: Any) -> torch.Tensor:
    sim = simulation(FEDERATION, name, **settings)
    run(sim)
    return personal(sim)


@pytest.mark.parametrize("name", ["fedavg", "fedora", "scaffold", "federico", "feddwa"])
def test_a_wide_bound_changes_nothing(name: str) -> None:
    torch.testing.assert_close(theta(name, privacy=Policy(clip=1e6)), theta(name), rtol=0, atol=1e-12)


def test_no_client_moves_the_average_by_more_than_the_bound() -> None:
    sim = simulation(FEDERATION, "fedavg", privacy=Policy(clip=0.01), rounds=1)
    before = sim.server.w.flat().clone()
    sim.advance()
    assert 0 < (sim.server.w.flat() - before).norm() <= 0.01 + 1e-12


@pytest.mark.parametrize("name", ["fedavg", "fedora"])
def test_noise_does_not_depend_on_chunks_and_is_new_in_every_round(name: str) -> None:
    privacy = Policy(clip=0.1, noise=0.5)
    torch.testing.assert_close(theta(name, privacy=privacy), theta(name, privacy=privacy, chunk=1), rtol=0, atol=1e-12)
    assert (theta(name, privacy=privacy) - theta(name, privacy=Policy(clip=0.1))).abs().max() > 1e-3
    sim = simulation(FEDERATION, "fedavg", privacy=Policy(clip=1e-6, noise=1e6), rounds=2)
    start = sim.server.w.flat().clone()
    sim.advance()
    first = sim.server.w.flat() - start
    sim.advance()
    second = sim.server.w.flat() - start - first
    assert first.std() == pytest.approx(0.5, rel=0.3)  # the mean of four, each of standard deviation 1
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.5


class Twice(Algorithm):
    """The server asks the same thing twice in a round."""

    name = "twice"

    def setup(self, server: Server) -> None:
        server.w = server.initial_model()

    def round(self, server: Server, cohort: torch.Tensor) -> None:
        answers = [server.ask(self.upload, cohort, w=broadcast(server.w)) for _ in range(2)]
        server.difference = answers[1].w - answers[0].w

    def upload(self, site: Site, w: Models) -> dict[str, Any]:
        return {"w": w}


@pytest.mark.parametrize("chunk", [None, 1])
def test_noise_is_new_in_every_answer(chunk: int | None) -> None:
    sim = simulation(FEDERATION, Twice(), privacy=Policy(clip=1.0, noise=1.0), rounds=1, chunk=chunk)
    sim.advance()
    assert (sim.server.difference.flat().std(dim=1) > 0.5).all()  # of the same noise nothing would be left
    assert sim.noised.tolist() == [2] * 4


def test_going_on_changes_neither_noise_nor_account(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    settings: dict[str, Any] = {"privacy": Policy(clip=0.1, noise=2.0), "rounds": 4, "evaluate_every": 4}
    whole = simulation(FEDERATION, "fedora", **settings)
    (*_, last) = run(whole)
    first = simulation(FEDERATION, "fedora", **settings)
    first.advance()
    first.advance()
    checkpoint.save(tmp_path / "run.pt", first)
    second = simulation(FEDERATION, "fedora", **settings)
    checkpoint.load(tmp_path / "run.pt", second)
    (*_, again) = run(second)
    assert torch.equal(saved(whole)["noised"], torch.tensor([5, 5, 5, 5]))  # a subspace, then a model in each round
    assert torch.equal(saved(second)["noised"], saved(whole)["noised"])
    assert last.notes["epsilon"] == again.notes["epsilon"] == epsilon_of(5, 2.0, 1e-5)
    torch.testing.assert_close(personal(second), personal(whole), rtol=0, atol=0)


class Stateless(Algorithm):
    """Clients send what they computed and keep nothing."""

    name = ""

    def setup(self, server: Server) -> None:
        server.w = server.initial_model()

    def compute(self, site: Site, w: Models) -> dict[str, Any]:
        return {"w": w * site.train.inputs.sum().to(w.dtype)}

    def round(self, server: Server, cohort: torch.Tensor) -> None:
        server.w = server.ask(self.compute, cohort, average=server.n[cohort], w=broadcast(server.w)).w


def test_a_client_that_is_not_finite_is_left_out_and_not_taken_for_one_that_changed_nothing() -> None:
    sick = with_train_inputs(FEDERATION, lambda x: x * torch.inf, [1])
    sim = simulation(sick, Stateless(), privacy=Policy(clip=1.0), chunk=1, rounds=1)
    report = sim.advance()
    assert [failure.client for failure in report.failures] == ["client-1"]
    assert "client-1" not in report.answered


def test_an_answer_that_takes_no_noise_ends_the_method() -> None:
    sim = simulation(FEDERATION, "ifca", privacy=Policy(clip=1.0, noise=1.0))
    with pytest.raises(CoterieError, match=r"ifca: privacy.noise cannot cover choice"):
        sim.advance()


def test_a_run_says_how_much_was_spent(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    tree: dict[str, Any] = {
        "federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 3}, "train": 20, "validation": 8, "test": 12},
        "model": {"name": "mlp", "hidden": [6]}, "algorithms": ["fedavg"], "rounds": 2, "evaluate_every": 1,
        "privacy": {"clip": 0.5, "noise": 10.0},
    }  # fmt: skip
    coterie.run(tree, output=tmp_path / "run")
    history = (tmp_path / "run" / "history.csv").read_text()
    told = [
        float(line.rsplit(",", 1)[1])
        for line in history.splitlines()
        if ",epsilon," in line and line.startswith("fedavg")
    ]
    assert told == pytest.approx([epsilon_of(1, 10.0, 1e-5), epsilon_of(2, 10.0, 1e-5)])


def test_sums_that_take_no_noise_are_told(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    rows = [f"{ward},{age},{'yes' if age > 20 else 'no'}" for ward in ("a", "b") for age in range(40)]
    (tmp_path / "wards.csv").write_text("\n".join(["ward,age,sick", *rows]))
    table: dict[str, Any] = {"source": "table", "path": str(tmp_path / "wards.csv"), "client": "ward", "target": "sick"}
    tree: dict[str, Any] = {
        "model": {"name": "mlp", "hidden": [2]}, "algorithms": ["fedavg"], "rounds": 1,
        "privacy": {"clip": 0.5, "noise": 10.0},
    }  # fmt: skip
    with pytest.warns(CoterieWarning, match="what they send for that takes no noise"):
        coterie.run({**tree, "federation": table}, output=tmp_path / "first")
    coterie.run({**tree, "federation": {**table, "preprocessing": "none"}}, output=tmp_path / "second")
