"""What Flower's carrier does when a run is stopped; no process is started."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.engines.wire import packed
from coterie.errors import CoterieError, SitesLost

flower = pytest.importorskip("coterie.engines.flower", exc_type=CoterieError)


class Refused(Exception):
    """As httpx reports a status."""

    def __init__(self, code: int) -> None:
        self.response = SimpleNamespace(status_code=code)


class Grid:
    def __init__(self, code: int) -> None:
        self.code = code

    def get_node_ids(self) -> list[int]:
        raise Refused(self.code)


@pytest.mark.parametrize("code", [401, 403])
def test_a_run_that_was_stopped_ends_at_once(code: int) -> None:
    """And is not taken for a method that failed, after which the next one would begin."""
    post = flower.FlowerPost(Grid(code), ["a"], packed({}), lambda node, tree: "a")
    with pytest.raises(SitesLost, match="the run was stopped; it can be continued"):
        post.wait(1, 600.0)


def test_a_server_that_is_away_is_waited_for() -> None:
    assert flower.FlowerPost(Grid(503), ["a"], packed({}), lambda node, tree: "a").wait(1, 0.0) == frozenset()


def test_ctrl_c_is_an_error_that_flower_understands() -> None:
    def interrupted(grid: Any, run_config: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(CoterieError, match="the run was stopped"):
        flower.server_app(interrupted)(None, SimpleNamespace(run_config={}))


def test_flower_tells_our_sentences_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    flower.server_app(lambda grid, run_config: None)
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        for error in (CoterieError("choose another output"), ValueError("a fault")):
            logger.error("%s raised an exception", "ServerApp", exc_info=error)
    finally:
        logger.removeHandler(caplog.handler)
    ours, fault = caplog.records[0], caplog.records[-1]
    assert (ours.getMessage(), ours.exc_info) == ("choose another output", None)
    assert fault.exc_info is not None
