"""Real processes on this machine, with TLS and keys, have the results of the simulation, whatever happens to them.

All share one federation, and most of what they do is to wait, so that several runs go on at a time: first what leaves
the sites alone, then what ends some of their processes, then what ends the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest
from comparing import check_equal, check_models
from ward import SITES, Ward, wait_until

from coterie.config import parse_config
from coterie.deploy.simulated import FlowerSimulation
from coterie.deploy.writing import Plan, write_federation
from coterie.federation import build_federation

pytestmark = [pytest.mark.full, pytest.mark.timeout(900), pytest.mark.xdist_group("real-sites")]

EIGHT = ["local", "fedavg", "fedora", "feddwa", "pgfed", "federico", "fedper", "scaffold"]


# --- what happens to the federation ------------------------------------------------------------------------------


def eight(ward: Ward) -> None:
    ward.start("eight", algorithms=EIGHT)
    ward.end("eight")


def wrong(ward: Ward) -> None:
    faults = {"client-00-2": "raise", "client-01-3": "nan", "client-02-4": "shape"}
    ward.start("wrong", faults, rounds=5)
    ward.end("wrong")


def late(ward: Ward) -> None:
    ward.start("late", {"client-03-2": "hold", "before-3": "tell"}, rounds=4, sites={"deadline": 30.0})
    ward.seen("late", "before-3")  # the others were not waited for in vain
    ward.fault("late", "client-03-2").unlink()
    ward.end("late")


def stopped(ward: Ward) -> None:
    ward.start("stopped", {"after-2": "kill"}, rounds=3)
    ward.seen("stopped", "after-2")
    ward.again("stopped", "stopped-again")
    ward.end("stopped", "stopped-again")
    assert ward.deployment.wait_run("stopped", timeout=240) == "finished:failed"


def ended(ward: Ward) -> None:
    ward.start("ended", {"client-00-2": "exit", "before-3": "hold"}, rounds=3)
    ward.end("ended")


def lost(ward: Ward) -> None:
    ward.start("lost", {"client-01-2": "hold", "before-4": "hold"}, rounds=5)
    ward.seen("lost", "client-01-2")
    log = ward.deployment.log("client-01")
    before = log.read_text().count("SuperNode ID:")
    assert ward.deployment.kill_part("client-01", "flower-supernode") == 1
    ward.fault("lost", "client-01-2").unlink()
    ward.seen("lost", "before-4")
    wait_until(lambda: log.read_text().count("SuperNode ID:") > before, "client-01 comes back")
    time.sleep(6)  # the server looks from time to time
    ward.fault("lost", "before-4").unlink()
    ward.fault("ended", "before-3").unlink()
    ward.end("lost")


def outage(ward: Ward) -> None:
    ward.start("outage", {"client-02-2": "hold"}, rounds=3)
    ward.seen("outage", "client-02-2")
    ward.deployment.kill_superlink()
    time.sleep(1)
    ward.deployment.wait_for_server()
    ward.fault("outage", "client-02-2").unlink()
    ward.end("outage")


def simulated(ward: Ward) -> None:
    """The eight methods in Flower's simulation."""
    folder = ward.folder.parent / "in-flowers-simulation"
    config = parse_config({**ward.config("eight", algorithms=EIGHT), "sites": {"names": list(SITES)}})
    federation = build_federation(config.federation, seed=0)
    write_federation(folder, Plan(config, SITES, federation=federation))
    with FlowerSimulation(folder, environment={"OMP_NUM_THREADS": "1"}, grace=4) as deployment:
        deployment.start_server()
        status = deployment.run(ward.runs / "simulated", timeout=300)
        assert status == "finished:completed", deployment.tail("run", 30)


ORDER: list[list[Callable[[Ward], None]]] = [[eight, wrong, late, stopped], [ended, lost, simulated], [outage]]


class Story:
    """Lets everything happen in the background; `of` waits for one part of it."""

    def __init__(self, ward: Ward) -> None:
        self.ward = ward
        self.parts: dict[str, Future[None]] = {part.__name__: Future() for parts in ORDER for part in parts}
        self.pool = ThreadPoolExecutor(8)
        self.pool.submit(self._play)

    def of(self, part: Callable[[Ward], None]) -> Ward:
        self.parts[part.__name__].result()
        return self.ward

    def _play(self) -> None:
        for parts in ORDER:
            wait([self.pool.submit(self._part, part) for part in parts])

    def _part(self, part: Callable[[Ward], None]) -> None:
        try:
            part(self.ward)
            self.parts[part.__name__].set_result(None)
        except BaseException as error:
            self.parts[part.__name__].set_exception(error)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    pytest.importorskip("flwr")
    ward = Ward(tmp_path_factory.mktemp("real"))
    with ward.deployment:
        ward.open()
        yield Story(ward)


# --- what comes of it --------------------------------------------------------------------------------------------


def test_deployed_equals_simulation(story: Story) -> None:
    ward = story.of(eight)
    expected = ward.simulate("eight", ward.config("eight", algorithms=EIGHT))
    check_equal(ward.runs / "eight", expected)
    check_models(ward.folder / "sites", expected)


def test_client_code_that_raises_or_sends_nonsense_is_left_out_of_the_round(story: Story) -> None:
    ward = story.of(wrong)
    assert ward.missed("wrong") == {2: {"client-00"}, 3: {"client-01"}, 4: {"client-02"}}
    reasons = dict(zip(ward.failures("wrong")["round"], ward.failures("wrong")["reason"], strict=True))
    assert reasons[2] == "RuntimeError in the client's code; its log has the traceback"
    assert "NaN or infinite" in reasons[3]
    assert "its answer dc is models (1,)" in reasons[4]
    assert "secret client-00-2" in (ward.folder / "sites" / "client-00" / "site.log").read_text()
    everything = [path.read_text(errors="replace") for path in (ward.runs / "wrong").rglob("*.csv")]
    assert not any("secret" in text for text in [*everything, ward.deployment.log("wrong").read_text()])
    ward.check("wrong", rounds=5)


def test_a_straggler_is_not_waited_for_and_takes_part_again(story: Story) -> None:
    ward = story.of(late)
    assert ward.missed("late") == {2: {"client-03"}}
    assert list(ward.failures("late")["reason"]) == ["it did not answer within 30 s"]
    ward.check("late", rounds=4)


def test_a_run_whose_server_was_killed_is_continued(story: Story) -> None:
    ward = story.of(stopped)
    assert "going on with the run" in ward.deployment.log("stopped-again").read_text()
    expected = ward.simulate("stopped", ward.config("stopped", rounds=3))
    check_equal(ward.runs / "stopped", expected)


def test_client_code_that_ends_its_process_is_left_out_of_the_round(story: Story) -> None:
    ward = story.of(ended)
    table = ward.failures("ended")
    assert set(table.loc[table["client"] == "client-00", "round"]) == {2}
    assert list(table.loc[table["client"] == "client-00", "reason"]) == ["its client app ended without an answer"]
    ward.check("ended", rounds=3)


def test_a_site_that_was_killed_comes_back_with_its_state(story: Story) -> None:
    ward = story.of(lost)
    missed = ward.missed("lost")
    assert missed[2] == {"client-01"}
    assert 5 not in missed
    ward.check("lost", rounds=5)


def test_a_run_outlives_its_superlink(story: Story) -> None:
    ward = story.of(outage)
    expected = ward.simulate("outage", ward.config("outage", rounds=3))
    check_equal(ward.runs / "outage", expected)


def test_flowers_simulation_equals_simulation(story: Story) -> None:
    ward = story.of(simulated)
    expected = ward.simulate("eight-again", ward.config("eight", algorithms=EIGHT))
    check_equal(ward.runs / "simulated", expected)
    check_models(ward.folder.parent / "in-flowers-simulation" / "sites", expected)
