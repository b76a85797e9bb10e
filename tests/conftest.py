"""Makes this folder importable, so that tests share ``toys``; keeps tests together that share processes."""

from __future__ import annotations

from typing import Any

import pytest

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
