"""What is wrong with the data of a later seed is told before the first is trained."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.config import Config, parse_config
from coterie.errors import CoterieError
from coterie.experiment import Experiment
from coterie.experiment import experiment as module
from coterie.federation import Federation
from coterie.federation.build import build_federation
from coterie.runs import RunDirectory

SECTION: dict[str, Any] = {"source": "synthetic", "clients": 4, "examples": 40, "partition": {"rule": "natural"}}


def config(**changes: Any) -> Config:
    return parse_config(
        {"federation": SECTION, "model": "linear", "algorithms": ["local"], "rounds": 1, "seeds": [0, 1, 2]} | changes
    )


def missing_later() -> Config:
    """A client is named that is a member with the first seed, and a newcomer with the second."""
    some = {"newcomers": {"clients": 2}}
    members = Experiment(config(**some))
    out = set(members.federation(0).names) - set(members.federation(1).names)
    assert out
    return config(**some, absent={1: sorted(out)})


def test_it_is_told_before_the_run_begins(tmp_path: Path) -> None:
    with pytest.raises(CoterieError, match="seed 1: absent, round 1: there is no client"):
        coterie.run(missing_later(), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_it_is_told_before_a_run_is_resumed(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "x")
    Experiment(missing_later()).write_config(directory)
    with pytest.raises(CoterieError, match="seed 1: absent, round 1: there is no client"):
        coterie.resume(directory.path)


@pytest.mark.parametrize(("changes", "seeds"), [({}, [0, 1, 2, 0]), ({"share": 3}, [0, 1, 2])])
def test_the_data_of_as_many_seeds_are_in_memory_as_are_trained_at_a_time(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], seeds: list[int]
) -> None:
    divided: list[int] = []
    built: list[weakref.ref[Federation]] = []

    def counted(section: Any, *, seed: int, **more: Any) -> Federation:
        gc.collect()
        assert sum(one() is not None for one in built) < changes.get("share", 1)
        divided.append(seed)
        built.append(weakref.ref(federation := build_federation(section, seed=seed, **more)))
        return federation

    monkeypatch.setattr(module, "build_federation", counted)
    experiment = Experiment(config(**changes))
    assert experiment.check() is experiment.federation(0)
    assert divided == seeds


def test_a_division_that_all_seeds_share_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[int] = []

    def counted(section: Any, *, seed: int, **more: Any) -> Federation:
        divided.append(seed)
        return build_federation(section, seed=seed, **more)

    monkeypatch.setattr(module, "build_federation", counted)
    Experiment(config(federation={**SECTION, "seed": 5})).check()
    assert divided == [5]
