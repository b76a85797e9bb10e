"""A guarded run of real processes, with TLS and keys, decides as the simulation does, and each site has what it keeps."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

pytest.importorskip("flwr")

from comparing import check_equal, check_models
from ward import Ward

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def test_a_guarded_run_of_real_processes_is_that_of_the_simulation(tmp_path: Path) -> None:
    changes = {
        "algorithms": ["local", "fedavg"], "guard": {"folds": 2, "confidence": 0.5}, "page": False, "rounds": 1,
        "training": {"epochs": 2, "batch_size": 10, "lr": 0.4},
    }  # fmt: skip
    ward = Ward(tmp_path)
    with ward.deployment:
        ward.open()
        ward.start("guarded", **changes)
        run = ward.end("guarded")
    expected = ward.simulate("guarded", ward.config("guarded", **changes))
    ours, theirs = (pd.read_csv(path / "guard.csv") for path in (run, expected))
    pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=0, atol=1e-8)
    check_equal(run, expected)
    check_models(ward.folder / "sites", expected)
