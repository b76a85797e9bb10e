"""The best round's models: in memory or on disk, of any number of candidates."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.contract import Predictor
from coterie.engines import snapshot
from coterie.engines.snapshot import Snapshot
from coterie.errors import SitesLost
from coterie.models import Models, Stack, build_model

K = 4


def chunks(candidates: int, seed: int) -> tuple[Models, list[tuple[Sequence[int], Predictor]]]:
    stack = Stack(lambda: build_model("linear", (3,), 2), (3,))
    one = stack.initial(0)
    draw = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(K, candidates, *t.shape[1:], generator=draw) for name, t in one.tensors.items()}
    models = Models(one.layout, tensors)
    weights = torch.full((K, candidates), 1.0 / candidates, dtype=torch.float64)
    return models, [(range(a, a + 2), Predictor(models[a : a + 2], weights[a : a + 2])) for a in (0, 2)]


@pytest.mark.parametrize("limit", [0, 2**30], ids=["disk", "memory"])
def test_a_later_snapshot_may_have_fewer_candidates_or_more(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", limit)
    best = Snapshot(K)
    for seed, candidates in enumerate((5, 3, 6)):
        models, parts = chunks(candidates, seed)
        best.take(iter(parts))
        loaded = best.load()
        assert loaded.weights is not None
        assert loaded.weights.shape == (K, candidates)
        for name, tensor in loaded.models.tensors.items():
            assert torch.equal(tensor, models.tensors[name])


def test_what_was_loaded_from_disk_stays_when_a_later_round_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", 0)
    best = Snapshot(K)
    first, parts = chunks(3, 0)
    best.take(iter(parts))
    loaded = best.load()
    later: Iterator[tuple[Sequence[int], Predictor]] = iter(chunks(3, 1)[1])
    best.take(later)
    for name, tensor in loaded.models.tensors.items():
        assert torch.equal(tensor, first.tensors[name])


def test_a_kill_leaves_nothing_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(snapshot, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    best = Snapshot(K)
    best.take(iter(chunks(3, 0)[1]))
    assert not list(tmp_path.iterdir())
    assert best.load().models.lead == (K, 3)


def test_a_full_disk_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*place: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(SitesLost, match=rf"reported models does not fit in {tmp_path} \(No space.*TMPDIR"):
        Snapshot(K).take(iter(chunks(3, 0)[1]))
    assert not list(tmp_path.iterdir())


def test_chunks_of_mixtures_have_as_many_candidates() -> None:
    models, ((some, first), (others, second)) = chunks(3, 0)
    narrow = Predictor(second.models.chosen(torch.tensor([[2], [0]])), torch.ones(2, 1, dtype=torch.float64))
    with pytest.raises(ValueError, match="of 1 and 3 models"):
        Snapshot(K).take(iter([(some, first), (others, narrow)]))
    best, wide = Snapshot(K), narrow.widened(3)
    best.take(iter([(some, first), (others, wide)]))
    loaded = best.load()
    assert loaded.weights is not None
    assert loaded.weights[2:].tolist() == [[1.0, 0.0, 0.0]] * 2
    for name, tensor in models.tensors.items():
        assert torch.equal(loaded.models.tensors[name][2:, 0], torch.stack([tensor[2, 2], tensor[3, 0]]))
    assert first.widened(3) is first
