"""Real processes on this machine, with TLS and keys, have the results of the simulation, whatever happens to them.

All share one federation. Three runs go on in it at a time: ``eight`` has all the methods and is left alone; client and
server code of ``unruly`` misbehave; ``broken`` then loses processes of the sites and of the server. Flower takes long to
notice that, so that its simulation of ``eight`` goes on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

pytest.importorskip("flwr")

from comparing import check_equal, check_models
from ward import CLOSING, SITES, Ward, wait_until

from coterie.config import parse_config
from coterie.deploy.simulated import FlowerSimulation
from coterie.deploy.writing import Plan, write_federation
from coterie.engines.flower import NOTICE_SECONDS
from coterie.federation import build_federation

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

EIGHT = ["local", "fedavg", "fedora", "feddwa", "pgfed", "federico", "fedper", "scaffold"]


# --- what happens to the federation ------------------------------------------------------------------------------


def eight(ward: Ward) -> None:
    ward.start("eight", algorithms=EIGHT)
    ward.end("eight")


def unruly(ward: Ward) -> None:
    faults = {
        "client-01-1": "nan", "client-00-2": "raise", "client-02-3": "hold", "before-4": "tell", "after-4": "kill",
    }  # fmt: skip
    ward.start("unruly", faults, rounds=4, sites={"deadline": 60.0})
    ward.seen("unruly", "before-4")  # so that client-02 was not waited for
    ward.fault("unruly", "client-02-3").unlink()
    ward.seen("unruly", "after-4")
    ward.again("unruly", "unruly-again")
    ward.end("unruly", "unruly-again")
    assert ward.deployment.wait_run("unruly", timeout=240) == "finished:failed"


def prepared(ward: Ward) -> None:
    faults = {
        "before-2": "hold", "client-00-2": "exit", "client-01-2": "hold", "before-3": "hold", "client-02-3": "hold",
    }  # fmt: skip
    ward.start("broken", faults, rounds=4)
    ward.seen("broken", "before-2")


def broken(ward: Ward) -> None:
    ward.fault("broken", "before-2").unlink()
    ward.seen("broken", "client-01-2")
    log = ward.deployment.log("client-01")
    before = log.read_text().count("SuperNode ID:")
    assert ward.deployment.kill_part("client-01", "flower-supernode") == 1
    ward.fault("broken", "client-01-2").unlink()
    ward.seen("broken", "before-3")
    wait_until(lambda: log.read_text().count("SuperNode ID:") > before, "client-01 comes back")
    time.sleep(NOTICE_SECONDS + 1)
    ward.fault("broken", "before-3").unlink()
    ward.seen("broken", "client-02-3")
    ward.deployment.kill_superlink()
    time.sleep(1)
    ward.deployment.wait_for_server()
    ward.fault("broken", "client-02-3").unlink()
    ward.end("broken")


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


ORDER: list[list[Callable[[Ward], None]]] = [[eight, unruly, prepared], [broken, simulated]]


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
    ward = Ward(tmp_path_factory.mktemp("real"))
    with ward.deployment:
        ward.open()
        yield Story(ward)
        CLOSING.set()


# --- what comes of it --------------------------------------------------------------------------------------------


def test_deployed_equals_simulation(story: Story) -> None:
    ward = story.of(eight)
    expected = ward.simulate("eight", ward.config("eight", algorithms=EIGHT))
    check_equal(ward.runs / "eight", expected)
    for method in EIGHT[1:]:  # every run has the first, and a site keeps the model of the last one
        check_models(ward.folder / "sites", expected, method)


def test_client_code_that_fails_is_left_out_of_the_round(story: Story) -> None:
    ward = story.of(unruly)
    assert ward.reasons("unruly", "client-00") == {2: "RuntimeError in the client's code; its log has the traceback"}
    ((round, reason),) = ward.reasons("unruly", "client-01").items()
    assert round == 1
    assert "NaN or infinite" in reason
    ward.check("unruly", rounds=4)


def test_what_an_exception_says_stays_at_the_site(story: Story) -> None:
    ward = story.of(unruly)
    assert "secret client-00-2" in (ward.folder / "sites" / "client-00" / "site.log").read_text()
    logs = [ward.deployment.log(name) for name in ("unruly", "unruly-again", "server")]
    for path in [*(ward.runs / "unruly").rglob("*.*"), *(ward.folder / "server").glob("*.db*"), *logs]:
        assert b"secret" not in path.read_bytes(), path


def test_a_straggler_is_not_waited_for_and_takes_part_again(story: Story) -> None:
    ward = story.of(unruly)
    assert ward.reasons("unruly", "client-02") == {3: "it did not answer within 60 s (sites.deadline)"}


def test_a_run_whose_server_was_killed_is_continued(story: Story) -> None:
    """No client is missing in its last round, which was played twice."""
    ward = story.of(unruly)
    assert "going on with the run" in ward.deployment.log("unruly-again").read_text()
    assert 4 not in set(ward.failures("unruly")["round"])
    ward.check("unruly", rounds=4)


def test_client_code_that_ends_its_process_is_left_out_of_the_round(story: Story) -> None:
    ward = story.of(broken)
    assert ward.reasons("broken", "client-00") == {2: "its client app ended without an answer"}


def test_a_site_that_was_killed_comes_back_with_its_state(story: Story) -> None:
    ward = story.of(broken)
    assert ward.reasons("broken", "client-01") == {2: "it left before it had answered"}
    ward.check("broken", rounds=4)


def test_a_run_outlives_its_superlink(story: Story) -> None:
    """Nobody is missing in the round in which it was killed."""
    ward = story.of(broken)
    assert set(ward.failures("broken")["round"]) == {2}
    ward.check("broken", rounds=4)


def test_flowers_simulation_equals_simulation(story: Story) -> None:
    ward = story.of(simulated)
    expected = ward.simulate("eight-again", ward.config("eight", algorithms=EIGHT))
    check_equal(ward.runs / "simulated", expected)
    check_models(ward.folder.parent / "in-flowers-simulation" / "sites", expected)
