"""Clients' state on disk is the state in memory, bit for bit."""

from __future__ import annotations

import os
import tempfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import coterie
from coterie.contract import make_algorithm
from coterie.engines import Participation, checkpoint
from coterie.engines import room as rooms
from coterie.engines.bank import Column
from coterie.engines.room import OnDisk, Room
from coterie.errors import CoterieError, SitesLost
from coterie.models import Layout, Models
from toys import HALF, LINEAR, NORMED, classified, run, same, saved, simulation

FEDERATION = classified([6, 9, 4, 7, 5, 8, 6, 3])


def models(k: int) -> Models:
    shapes = {"w": torch.Size([2, 3]), "scale": torch.Size([]), "count": torch.Size([])}
    layout = Layout(("w", "scale"), ("count",), shapes, frozenset())
    values = torch.arange(k * 6.0).view(k, 2, 3)
    return Models(layout, {"w": values, "scale": torch.arange(k) / 7, "count": torch.arange(k) * 10**10})


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())


@pytest.mark.parametrize("rows", [[0], [3, 4, 5], [5, 4, 3], [7, 0, 1, 6], [2, 2], []])
def test_rows_come_back_as_they_were_written(rows: list[int]) -> None:
    index, values = torch.tensor(rows, dtype=torch.int64), models(8)
    store = OnDisk(values, 8)
    store[torch.tensor([6, 7, 0, 1])] = values[torch.tensor([6, 7, 0, 1])]
    store[slice(2, 6)] = values[2:6]
    assert equal(store[index], values[index])
    assert equal(store.gathered(index), values[index])
    assert equal(store[slice(1, 4)], values[1:4])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_any_kind_of_number(dtype: torch.dtype) -> None:
    values = torch.arange(12).view(4, 3).to(dtype)
    store = OnDisk(values, 4)
    store[torch.tensor([1, 3])] = values[torch.tensor([1, 3])]
    assert torch.equal(store[torch.tensor([3, 1])], values[torch.tensor([3, 1])])


def test_a_common_row_is_written_to_each() -> None:
    store = OnDisk(models(1), 5)
    store[torch.tensor([1, 4])] = models(1).repeat(2)
    assert equal(store[torch.tensor([4])], models(1))


def test_the_budget_decides_and_is_for_all_together() -> None:
    room = Room(budget=1000)
    assert isinstance(room.rows(torch.zeros(1, 10), 20), Tensor)  # 800 bytes
    assert isinstance(room.rows(torch.zeros(1, 10), 20), OnDisk)
    assert isinstance(room.rows(torch.zeros(1), 20), Tensor)  # 80 more
    assert room.rows(["a"], 3) == ["", "", ""]
    assert Room.of(0.5).budget == 500_000_000
    assert Room.of(None).budget == int(rooms.SHARE * rooms.memory())


@pytest.mark.parametrize("name", ["ditto", "fedper", "fedora", "scaffold", "feddyn", "apfl", "pgfedmo", "local"])
@pytest.mark.parametrize("model", [LINEAR, NORMED])
def test_a_run_is_the_same(name: str, model: Any) -> None:
    sims = [
        simulation(
            FEDERATION, make_algorithm(name), model, rounds=4, participation=HALF, client_memory=memory, seed=2
        )
        for memory in (None, 0.0)
    ]  # fmt: skip
    for sim in sims:
        run(sim)
    stored = [column.rows for column in sims[1].sites.bank.columns.values() if column.rows is not None]
    assert any(isinstance(rows, OnDisk) for rows in stored)
    assert same(saved(sims[0]), saved(sims[1]))
    assert equal(sims[0].report_models(), sims[1].report_models())


def test_the_budget_holds_where_all_clients_take_part() -> None:
    """What was on disk stays there, and what fits into memory is counted once, however many rounds it is changed in."""
    sims = [simulation(FEDERATION, "ditto", rounds=3, client_memory=memory) for memory in (None, 0.0, 1e-3)]
    for sim in sims:
        run(sim)
    nowhere, there, here = ([c.rows for c in sim.bank.columns.values() if c.rows is not None] for sim in sims)
    assert not any(isinstance(rows, OnDisk) for rows in [*nowhere, *here])
    assert all(isinstance(rows, OnDisk) for rows in there)
    size = sum(t.nbytes for rows in here if isinstance(rows, Models) for t in rows.tensors.values())
    assert 0 < sims[2].bank.room.taken == size < 1e6
    assert same(saved(sims[0]), saved(sims[1]))


def test_rows_of_another_shape_take_the_place_of_the_former() -> None:
    column = Column(2, room=Room(budget=100))
    for width in (10, 20, 30, 5):  # 80 bytes, then more than there is room for, then less
        column.replace(torch.full((2, width), float(width)))
        assert isinstance(column.rows, OnDisk) == (width in (20, 30))
        assert torch.equal(column.read(torch.tensor([1, 0])), torch.full((2, width), float(width)))
        assert column.room.taken == (0 if width in (20, 30) else 8 * width)


def test_a_run_resumes(tmp_path: Path) -> None:
    def ditto(memory: float | None) -> Any:
        return simulation(
            FEDERATION, make_algorithm("ditto"), LINEAR, rounds=4, participation=HALF, client_memory=memory
        )  # fmt: skip

    whole, first, second = ditto(None), ditto(0.0), ditto(0.0)
    run(whole)
    first.advance()
    first.advance()
    checkpoint.save(tmp_path / "run.pt", first)
    checkpoint.load(tmp_path / "run.pt", second)
    run(second)
    assert same(saved(whole), saved(second))


def test_large_checkpoints_are_read_where_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "IN_MEMORY", 0)
    test_a_run_resumes(tmp_path)


def test_a_full_disk_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*place: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    store = OnDisk(torch.zeros(1, 4), 3)
    with pytest.raises(CoterieError, match="TMPDIR"):
        store[torch.tensor([1])] = torch.ones(1, 4)


@pytest.mark.parametrize("where", ["truncate", "open", "gather"])
def test_so_is_a_disk_too_small_to_begin_with(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **more: Any) -> Any:
        raise OSError(24 if where == "open" else 28, "no more")

    store = OnDisk(torch.zeros(1, 4), 3)
    if where == "gather":  # writing to a mapped file on a full disk ends the process: its place is taken before
        monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    elif where == "open":
        monkeypatch.setattr(tempfile, "TemporaryFile", full)
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: SimpleNamespace(truncate=full))
    with pytest.raises(SitesLost, match="ulimit -n" if where == "open" else "TMPDIR"):
        store.gathered(torch.tensor([1])) if where == "gather" else OnDisk(torch.zeros(1, 4), 3)


def test_a_disk_that_fills_up_costs_no_round_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, pwrite = count(), os.pwrite

    def filling(*place: Any) -> int:
        if next(calls) >= 15:
            raise OSError(28, "No space left on device")
        return pwrite(*place)

    small = [
        "algorithms=[ditto]", "federation.partition.clients=4", "federation.test=20", "model.hidden=[]", "seeds=[0]",
        "rounds=4", "participation=0.5", "evaluate_every=1", "checkpoint_every=1", "client_memory=0",
    ]  # fmt: skip
    coterie.run("quickstart", small, output=tmp_path / "whole")
    monkeypatch.setattr(os, "pwrite", filling)
    with pytest.raises(SitesLost, match="coterie resume"):
        coterie.run("quickstart", small, output=tmp_path / "full")
    monkeypatch.setattr(os, "pwrite", pwrite)
    coterie.resume(tmp_path / "full")
    assert (tmp_path / "full/history.csv").read_text() == (tmp_path / "whole/history.csv").read_text()


def test_no_more_than_what_was_written_takes_disk() -> None:
    store = OnDisk(torch.zeros(1, 1024), 1_000_000)
    store[torch.tensor([5, 999_999])] = torch.ones(2, 1024)
    blocks = os.fstat(store._files[""].fileno()).st_blocks
    assert blocks * 512 < 2**20
    assert torch.equal(store[torch.tensor([999_999])], torch.ones(1, 1024))


def test_without_kept_models_the_run_is_the_same_and_asking_for_them_is_refused() -> None:
    sims = [
        simulation(
            FEDERATION, make_algorithm("ditto"), LINEAR, rounds=3, keep_models=keep, keep_best="best_val",
            participation=Participation(),
        )
        for keep in (True, False)
    ]  # fmt: skip
    for sim in sims:
        run(sim)
        saved(sim)
    assert sims[0].report_round == sims[1].report_round
    with pytest.raises(CoterieError, match="keep_models"):
        sims[1].report_models()
