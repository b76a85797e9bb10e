"""A Ray cluster of two nodes, with actors in processes of their own, gives the results of the simulation."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_shares import FEDERATION, check_equal, near, played, shared, sick
from torch import nn

from coterie.contract import Algorithm, Server, Site, broadcast
from coterie.engines import SitesLost, checkpoint
from coterie.engines.ray import RayEngine
from coterie.errors import CoterieError
from coterie.models import ModelSpec
from coterie.models.factory import model
from toys import HALF, simulation

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

METHODS = [
    ("fedavg", {}), ("fedavg-ft", {}), ("ditto", {}), ("fedora", {"variant": "released"}), ("fedora", {"variant": "paper"}),
    ("scaffold", {}), ("feddwa", {}), ("pgfed", {}), ("federico", {}),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of two nodes on this machine, with two CPUs each."""
    import ray
    from ray.cluster_utils import Cluster

    here = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    nodes = Cluster(initialize_head=True, head_node_args={**here, "include_dashboard": False})
    try:
        nodes.add_node(**here)
        nodes.wait_for_nodes(120)
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(("name", "options"), METHODS, ids=[f"{n}-{o.get('variant', '')}" for n, o in METHODS])
def test_two_nodes_have_the_results_of_the_simulation(
    name: str, options: dict[str, Any], cluster: str, tmp_path: Path
) -> None:
    """Half the clients a round, two away, one whose training gives NaN; resumed in the middle."""
    settings: dict[str, Any] = {
        "rounds": 4, "participation": HALF, "absent": {2: ("client-0", "client-3")}, "evaluate_every": 1,
        "keep_best": "best_val", "options": options,
    }  # fmt: skip
    federation = sick([5])
    theirs = simulation(federation, name, **settings)
    expected = played(theirs)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with shared(federation, name, actors=3, address=cluster, **settings) as first:
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
        reports = [first.initial_report(), first.advance(), first.advance()]
        checkpoint.save(tmp_path / "run.pt", first)
    with shared(federation, name, actors=2 if name == "federico" else 3, address=cluster, **settings) as second:
        checkpoint.load(tmp_path / "run.pt", second)
        reports += [second.advance(), second.advance()]
        check_equal(second, theirs, reports, expected)


def test_actors_lie_on_both_nodes_and_train_on_one_thread_each(cluster: str) -> None:
    class Where(Algorithm):  # a class that no other process could import
        name = ""

        def where(self, site: Site) -> dict[str, Any]:
            import ray

            node = int(ray.get_runtime_context().get_node_id()[:8], 16)
            facts = torch.tensor([node, os.getpid(), torch.get_num_threads()])
            return {"facts": facts.expand(site.k, 3)}

        def round(self, server: Server, cohort: torch.Tensor) -> None:
            server.facts = server.ask(self.where, cohort).facts

    with shared(FEDERATION, Where(), actors=4, address=cluster) as engine:
        engine.advance()
        nodes, processes, threads = engine.server.facts.T
        assert len(nodes.unique()) == 2
        assert len(processes.unique()) == 4
        assert os.getpid() not in processes.tolist()
        assert threads.tolist() == [1] * 7


def test_a_model_that_only_this_process_has_registered(cluster: str) -> None:
    @model("of this process")
    def wide(feature_shape: Any, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(feature_shape[0], 6), nn.Tanh(), nn.Linear(6, classes))

    spec = ModelSpec("of this process")
    theirs = simulation(FEDERATION, "fedavg", spec)
    with shared(FEDERATION, "fedavg", spec, address=cluster) as ours:
        check_equal(ours, theirs, played(ours), played(theirs))


class Dying(Algorithm):
    """FedAvg whose last client's process ends in round 3."""

    name = ""
    deadly = True

    def setup(self, server: Server) -> None:
        server.w = server.initial_model()

    def local_update(self, site: Site, w: Any) -> dict[str, Any]:
        if self.deadly and site.round == 3 and 6 in site.clients:
            os._exit(1)
        site.theta = site.fit(w).models
        return {"theta": site.theta}

    def round(self, server: Server, cohort: torch.Tensor) -> None:
        up = server.ask(self.local_update, cohort, average=server.n[cohort], w=broadcast(server.w))
        server.w = up.theta


class Living(Dying):
    deadly = False


def test_an_actor_that_dies_stops_the_run_which_goes_on_from_its_checkpoint(cluster: str, tmp_path: Path) -> None:
    whole = simulation(FEDERATION, Living(), rounds=4)
    expected = played(whole)
    with shared(FEDERATION, Dying(), rounds=4, address=cluster) as engine:
        reports = [engine.initial_report(), engine.advance(), engine.advance()]
        checkpoint.save(tmp_path / "run.pt", engine)
        with pytest.raises(SitesLost, match=r"clients \(client-\d to client-6\) is gone in round 3.*coterie resume"):
            engine.advance()
    with shared(FEDERATION, Living(), rounds=4, address=cluster) as again:
        checkpoint.load(tmp_path / "run.pt", again)
        reports += [again.advance(), again.advance()]
        near(again.report_models().flat(), whole.report_models().flat())
        assert [report.ledger for report in reports] == [report.ledger for report in expected]


def test_more_actors_than_the_cluster_has_room_for(cluster: str) -> None:
    with pytest.raises(CoterieError, match=r"the cluster has 4 CPUs, which is not enough for 5 actors"):
        shared(FEDERATION, "local", actors=5, address=cluster)


def test_an_error_of_the_methods_code_says_where_it_was_raised(cluster: str) -> None:
    class Odd(Algorithm):
        name = ""

        def odd(self, site: Site) -> dict[str, Any]:
            raise ValueError("the code is wrong")

        def round(self, server: Server, cohort: torch.Tensor) -> None:
            server.ask(self.odd, cohort)

    with shared(FEDERATION, Odd(), address=cluster) as engine:
        assert isinstance(engine, RayEngine)
        with pytest.raises(ValueError, match="the code is wrong") as error:
            engine.advance()
        assert "in odd" in error.value.__notes__[0]
