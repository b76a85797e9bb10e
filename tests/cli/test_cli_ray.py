"""``coterie run --engine ray`` on a cluster that it starts itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from cli_helpers import TINY, coterie, error_of, tiny

from coterie.config import parse_config
from coterie.experiment import Experiment
from coterie.experiment.processes import how_many

LONGER = (
    TINY.replace("rounds: 4", "rounds: 12").replace("[local,", "[local, fedora,")
    + "dtype: float64\nparticipation: 0.5\ncheckpoint_every: 3\nray: {actors: 2}\n"
)


def assert_close(one: Path, other: Path) -> None:
    """Equal histories and clients' tables, numbers to 1e-10."""
    for table in ("history", "clients"):
        first, second = (pd.read_parquet(run / f"{table}.parquet") for run in (one, other))
        pd.testing.assert_frame_equal(first, second, check_exact=False, rtol=0, atol=1e-10)


def test_without_ray_the_command_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    message = error_of(coterie("run", tiny(tmp_path), "--engine", "ray", "--output", tmp_path / "out"))
    assert message == "engine: ray needs the package Ray: pip install 'coterie[ray]'."
    assert not (tmp_path / "out").exists()


def test_an_unknown_engine_and_odd_keys_are_named(tmp_path: Path) -> None:
    assert "engine" in error_of(coterie("run", tiny(tmp_path), "--engine", "rey"))
    assert "ray.actors" in error_of(coterie("run", tiny(tmp_path), "-s", "ray.actors=0"))


def test_runs_go_one_after_the_other_on_a_cluster() -> None:
    several = "processes: 4\nseeds: [0, 1, 2, 3]\n"
    found = {}
    for engine in ("simulation", "ray"):
        text = TINY.replace("threads: 1", several) + f"engine: {engine}\n"
        found[engine] = how_many(Experiment(parse_config(yaml.safe_load(text))), 8)[0]
    assert found == {"simulation": 4, "ray": 1}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_stopped_and_resumed_on_ray_is_the_simulation(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "tiny.yaml").write_text(LONGER)
    assert coterie("run", tmp_path / "tiny.yaml", "--output", tmp_path / "here").exit_code == 0
    words = [sys.executable, "-m", "coterie", "run", "tiny.yaml", "--output", "out", "--engine", "ray"]
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 300
            while not list(tmp_path.glob("out/checkpoints/fedora-released/*.pt")):
                assert process.poll() is None, "the run was over before its checkpoint was seen"
                assert time.monotonic() < deadline
                time.sleep(0.002)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 143, errors
    assert "Stopped after saving; continue with: coterie resume out" in errors
    settled = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert (settled["engine"], settled["ray"]) == ("ray", {"actors": 2})
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "resume", "out"], cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert_close(tmp_path / "here", tmp_path / "out")
