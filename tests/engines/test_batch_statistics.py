"""Where batch statistics live: averaged with the models, at the clients, or at the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.contract import Algorithm, Site, available_algorithms
from coterie.engines import Simulation, checkpoint
from coterie.errors import CoterieError
from toys import BATCHES, FULL_BATCH, HALF, KINDS, NORMED, Recording, classified, run, same, saved, simulation

FEDERATION = classified((7, 4, 9, 5))
MEAN, COUNT = "2.running_mean", "2.num_batches_tracked"
ALGORITHMS = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in KINDS else [pytest.mark.full]) for n in available_algorithms()]
)


def trained(name: str, policy: str, rounds: int = 2, **settings: Any) -> Recording:
    sim = simulation(
        FEDERATION, name, NORMED, engine=Recording, rounds=rounds, buffers=policy, training=FULL_BATCH, **settings
    )  # fmt: skip
    run(sim)
    return sim


def buffer_bytes(sim: Simulation) -> int:
    table = sim.ledger.per_client()
    return int(table[table.kind == "buffer"]["bytes"].sum()) if len(table) else 0


def test_averaged_statistics_travel_with_the_models() -> None:
    sim = trained("fedavg", "average", rounds=1)
    (call,) = sim.calls
    up = call.returned["w"].tensors
    weights = torch.tensor([7.0, 4.0, 9.0, 5.0], dtype=torch.float64) / 25
    torch.testing.assert_close(sim.server.w.tensors[MEAN][0], weights @ up[MEAN])
    assert sim.server.w.tensors[COUNT].tolist() == [1]
    table = sim.ledger.per_client().set_index(["phase", "direction", "kind"])["bytes"]
    per_model = 4 * 8 + 4 * 8 + 8  # mean and variance of four features, and the counter
    assert table["train", "down", "buffer"].tolist() == [per_model] * 4
    assert table["train", "up", "buffer"].tolist() == [per_model] * 4


def test_local_statistics_stay_with_their_clients() -> None:
    sim = trained("fedavg", "local", rounds=3)
    assert buffer_bytes(sim) == 0
    assert sim.server.w.tensors[COUNT].tolist() == [0]
    assert not sim.server.w.tensors[MEAN].any()
    for before, after in zip(sim.calls[:-1], sim.calls[1:], strict=True):
        assert torch.equal(after.received["w"].tensors[MEAN], before.returned["w"].tensors[MEAN])
    models = sim.report_models().tensors
    assert torch.equal(models[MEAN], sim.calls[-1].returned["w"].tensors[MEAN])
    assert models[COUNT].tolist() == [3] * 4
    weight = models["1.weight"]
    assert torch.equal(weight, weight[:1].expand_as(weight))  # the parameters are the global model's


def test_statistics_at_the_server_never_change() -> None:
    sim = trained("fedavg", "server", rounds=2)
    assert buffer_bytes(sim) == 0
    for call in sim.calls:
        assert not call.received["w"].tensors[MEAN].any()
        assert call.returned["w"].tensors[MEAN].any()
    assert not sim.server.w.tensors[MEAN].any()
    assert not sim.report_models().tensors[MEAN].any()


@ALGORITHMS
@pytest.mark.parametrize("policy", ["average", "local", "server"])
def test_every_method_under_every_policy(name: str, policy: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "buffers": policy, "training": FULL_BATCH, "evaluate_every": 2}
    whole = simulation(FEDERATION, name, NORMED, **settings)
    whole.advance()
    checkpoint.save(tmp_path / "c.pt", whole)
    whole.advance()
    part = simulation(FEDERATION, name, NORMED, **settings)
    checkpoint.load(tmp_path / "c.pt", part)
    run(part)
    assert same(saved(part), saved(whole))
    chunked = simulation(FEDERATION, name, NORMED, chunk=3, **settings)
    run(chunked)
    for name_of, tensor in whole.report_models().tensors.items():
        torch.testing.assert_close(chunked.report_models().tensors[name_of], tensor, rtol=0, atol=1e-10)
    stay = ("local", "lg-fedavg")  # of which no layer with statistics travels
    assert (buffer_bytes(whole) > 0) == (policy == "average" and name not in stay)


@ALGORITHMS
@pytest.mark.parametrize("policy", ["average", "local", "server"])
def test_every_method_under_every_policy_with_some_clients_absent(name: str, policy: str) -> None:
    reports = run(
        simulation(FEDERATION, name, NORMED, rounds=4, buffers=policy, training=FULL_BATCH, participation=HALF)
    )
    assert [len(report.answered) for report in reports] == [2] * 4


def test_state_of_other_tensors_is_refused_in_every_round() -> None:
    class Forgetful(Algorithm):
        name = "forgetful"

        def start(self, site: Site) -> None:
            site.g = site.theta.zeros()

        def local_update(self, site: Site) -> dict[str, Any]:
            site.g = site.gradient(site.theta, "train")
            return {"n": site.n}

    with pytest.raises(CoterieError, match=r"site\.g holds models of other tensors .*running_mean.*without_buffers"):
        run(simulation(FEDERATION, Forgetful(), NORMED))


def test_local_statistics_of_a_failed_client_roll_back() -> None:
    class Failing(Algorithm):
        name = "failing"

        def setup(self, server: Any) -> None:
            server.w = server.initial_models()

        def round(self, server: Any, cohort: Any) -> None:
            server.ask(self.train, cohort, w=server.w[cohort])

        def train(self, site: Site, w: Any) -> dict[str, Any]:
            bad = (site.clients == 1) & (site.round == 2)
            return {"w": site.fit(w).models, "bad": torch.where(bad, torch.nan, 0.0)}

    sim = simulation(FEDERATION, Failing(), NORMED, engine=Recording, rounds=3, buffers="local", training=FULL_BATCH)
    run(sim)
    arrived = [call.received["w"].tensors[COUNT].tolist() for call in sim.calls]
    assert arrived == [[0, 0, 0, 0], [1, 1, 1, 1], [2, 1, 2, 2]]


def test_batches_of_one_example_are_left_out() -> None:
    seven = classified((7, 6))
    sims = [simulation(seven, "local", NORMED, rounds=1, training=replace(BATCHES, batch_size=b)) for b in (3, 6)]
    for sim, steps in zip(sims, ([4, 4], [2, 2]), strict=True):  # 3 + 3 (+ 1) and 6 (+ 1), twice
        run(sim)
        assert sim.report_models().tensors[COUNT].tolist() == steps


def test_a_client_that_cannot_train_is_named() -> None:
    with pytest.raises(CoterieError, match="local, round 1: client client-1 has a single training example"):
        simulation(classified((7, 1)), "local", NORMED).advance()
    with pytest.raises(CoterieError, match=r"raise training\.batch_size"):
        simulation(FEDERATION, "local", NORMED, training=replace(BATCHES, batch_size=1)).advance()


def test_own_steps_move_statistics_too() -> None:
    class Own(Algorithm):
        name = "own"

        def local_update(self, site: Site) -> dict[str, Any]:
            theta = site.theta
            for step in site.steps():
                theta = step.update(theta, site.gradient(theta, step))
            site.theta = theta
            return {}

    sims = [
        simulation(FEDERATION, a, NORMED, rounds=2, training=FULL_BATCH, chunk=c)
        for a in (Own(), "local")
        for c in (1, 4)
    ]
    for sim in sims:
        run(sim)
    for name, tensor in sims[-1].report_models().tensors.items():
        for sim in sims[:-1]:
            torch.testing.assert_close(sim.report_models().tensors[name], tensor, rtol=0, atol=1e-12)
