"""Makes this folder importable, so that tests share ``toys``; keeps tests together that share processes; saves time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from coterie.experiment.session import Session

settings.register_profile("no deadline", deadline=None)  # a core may be busy otherwise for any time
settings.load_profile("no deadline")

TOGETHER = "deploy/test_real_sites.py"
"""Its tests wait for the same processes, so that one worker runs them all."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests go to workers one by one, but for those; the core target, which has none of them, stays as it is."""
    if config.getoption("dist") != "load" or "not full" in config.getoption("markexpr"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return TOGETHER if f"{TOGETHER}::" in nodeid else nodeid

    return OneByOne(config, log)


@pytest.fixture(scope="module", autouse=True)
def page_of_a_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs within a test's own process write no report.html, but where tests are about reports: it takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        if "reports" not in request.path.parts:
            patch.setattr(Session, "_report", lambda session: None)
        yield
