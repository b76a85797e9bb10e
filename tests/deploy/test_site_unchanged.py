"""A site trains no run on data that are others than those that it began it with; no Flower is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from test_serving import SITES, Couriers, deployed

from coterie.deploy.unchanged import Changed, check_unchanged
from coterie.engines.wire import Packet
from coterie.errors import CoterieError
from coterie.federation import Federation

REASON = (
    "its data, or their order, have changed since it began this run: put them back as they were, or start a new run "
    "under another name"
)
CHANGES: dict[str, Any] = {"federation": {"source": "sites"}, "algorithms": ["local", "fedavg"], "rounds": 2}


def write(path: Path, seed: int, order: Any = slice(None)) -> None:
    """An archive of 40 examples in this order."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(40, 3))
    np.savez(path, x=x[order], y=(x[:, 0] + draw.normal(size=40) > 0).astype(np.int64)[order])


def placed(folder: Path) -> Path:
    """A folder of sites, each with an archive."""
    for number, name in enumerate(SITES):
        (folder / name).mkdir(parents=True)
        write(folder / name / "own.npz", number)
        data = {"npz": "own.npz", "targets": "y"}
        (folder / name / "site.yaml").write_text(yaml.safe_dump({"client": name, "data": data}))
    return folder


def before_each(couriers: Couriers, do: Callable[[str], None]) -> None:
    """Call ``do`` with the title of an exchange before it."""
    exchange = couriers.exchange

    def doing(packets: Mapping[str, Packet], seconds: float, title: str) -> Iterator[tuple[str, Packet | str]]:
        do(title)
        return exchange(packets, seconds, title)

    couriers.exchange = doing  # type: ignore[method-assign]


def test_a_site_whose_rows_come_in_another_order_is_left_out_until_they_are_put_back(tmp_path: Path) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **CHANGES)

    def export(title: str) -> None:
        nightly = "local, round 2" in title
        write(folder / "client-01" / "own.npz", 1, np.arange(40)[::-1] if nightly else slice(None))

    before_each(couriers, export)
    experiment.run_or_resume(tmp_path / "run", None)
    failures = pd.read_csv(tmp_path / "run" / "failures.csv")
    assert set(failures["client"]) == {"client-01"}
    assert set(failures["algorithm"]) == {"local"}
    assert set(failures["reason"]) == {REASON}
    (kept,) = (folder / "client-01" / "state").glob("run-*/*.sha256")
    assert kept.name == "data-seed0.sha256"


def test_the_guard_is_told_why_there_is_no_evidence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = placed(tmp_path / "sites")
    experiment, couriers = deployed(folder, **CHANGES, guard={"folds": 0})

    def export(title: str) -> None:
        if title == "guard, evidence":
            write(folder / "client-01" / "own.npz", 1, np.arange(40)[::-1])

    before_each(couriers, export)
    experiment.run_or_resume(tmp_path / "run", None)
    said = [record.message for record in caplog.records if record.name == "coterie.server"]
    assert f"the guard has no evidence of client-01: {REASON}" in said
    assert f"client-01 does not keep what the guard decided: {REASON}" in said


def federation(values: list[float]) -> Federation:
    """One client with these inputs for training."""
    x = np.array(values)[:, None]
    parts = {"train": (x, np.arange(len(x)) % 2), "validation": (x[:2], [0, 1]), "test": (x[:2], [0, 1])}
    return Federation.from_arrays({"a": parts})


def test_each_run_and_seed_has_its_own_fingerprint(tmp_path: Path) -> None:
    first, other = federation([0.0, 1.0, 2.0, 3.0]), federation([2.0, 1.0, 0.0, 3.0])
    for run, seed, data in (("r", 0, first), ("r", 1, other), ("q", 0, other)):
        check_unchanged(tmp_path / "state", run, seed, data)
        check_unchanged(tmp_path / "state", run, seed, data)
    with pytest.raises(Changed, match="have changed since it began this run"):
        check_unchanged(tmp_path / "state", "r", 0, other)


def test_a_fingerprint_that_cannot_be_kept_stops_the_site(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(CoterieError, match=r"data-seed0.sha256 cannot be read or written"):
        check_unchanged(tmp_path / "state", "r", 0, federation([0.0, 1.0, 2.0, 3.0]))
