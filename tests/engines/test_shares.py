"""Clients shared out among several processes have the results of the simulation; Ray itself is not needed here."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coterie.contract import Algorithm, Server, Site, broadcast, make_algorithm, pick
from coterie.engines import Diverged, RoundReport, Settings, Simulation, SitesLost, checkpoint
from coterie.engines import ray as ray_engine
from coterie.engines.parcel import Parcel
from coterie.engines.ray import RayEngine
from coterie.engines.shares import divided, members, one_state, state_for
from coterie.errors import CoterieError
from coterie.federation.federation import Federation
from coterie.models import Models, ModelSpec
from coterie.training import TrainingSettings
from fake_ray import FakeRay
from toys import (
    BATCHES,
    HALF,
    KINDS,
    LINEAR,
    MLP,
    NORMED,
    alike,
    classified,
    located,
    same,
    saved,
    simulation,
    with_train_inputs,
)

FEDERATION = classified((7, 4, 9, 5, 3, 6, 2))
Start = Callable[..., RayEngine]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay()
    monkeypatch.setattr(ray_engine, "library", lambda: fake)
    monkeypatch.setattr(ray_engine, "_SPARE", [])
    yield fake


def shared(
    federation: Federation,
    algorithm: str | Algorithm,
    model: ModelSpec = MLP,
    *,
    actors: int | None = 3,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RayEngine:
    defaults: dict[str, Any] = {
        "rounds": 3, "evaluate_every": 1000, "training": BATCHES, "dtype": "float64", "threads": 1, "keep_best": "last",
    }  # fmt: skip
    made = make_algorithm(algorithm, **dict(options or {})) if isinstance(algorithm, str) else algorithm
    return RayEngine(federation, made, model, Settings(**{**defaults, **settings}), actors=actors)


def played(engine: Any) -> list[RoundReport]:
    reports = [engine.initial_report()]
    while not engine.finished:
        reports.append(engine.advance())
    return reports


def near(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    """Equal trees of tensors, numbers and texts, tensors to within the tolerance."""
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance, equal_nan=True)
    elif isinstance(a, Mapping):
        assert a.keys() == b.keys()
        for key in a:
            near(a[key], b[key], tolerance)
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            near(x, y, tolerance)
    elif isinstance(a, float):
        assert abs(a - b) <= tolerance
    else:
        assert a == b


def state_of_clients(engine: Any) -> dict[str, Any]:
    """Every attribute of every client as if no row were the default's."""
    found = {}
    for leaf, column in engine.site_state()["bank"].items():
        rows = column["rows"]
        if isinstance(column["default"], Models):
            whole = column["default"].repeat(engine.K).clone()
            if rows is not None:
                whole[column["own"].nonzero().flatten()] = rows
            rows = whole
        found[leaf] = rows.tensors if isinstance(rows, Models) else (column["own"], rows)
    return found


def check_equal(ours: Any, theirs: Any, reports: list[RoundReport], expected: list[RoundReport]) -> None:
    """Two engines have told the same story and are in the same state."""
    for mine, other in zip(reports, expected, strict=True):
        assert (mine.round, mine.cohort, mine.answered) == (other.round, other.cohort, other.answered)
        assert mine.failures == other.failures
        assert mine.ledger == other.ledger
        near({s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in mine.evaluations.items()},
             {s: {m: torch.as_tensor(v) for m, v in x.items()} for s, x in other.evaluations.items()})  # fmt: skip
        near(mine.notes, other.notes)
    near(ours.report_models().flat(), theirs.report_models().flat())
    weights = [engine.report_predictor().weights for engine in (ours, theirs)]
    if weights[0] is not None:
        near(*weights)
    assert ours.report_round == theirs.report_round
    mine, other = saved(ours), saved(theirs)
    near(mine["server"], other["server"])
    for key in ("round", "started", "welcomed", "ledger", "shapes", "clients", "model", "options"):
        assert same(mine[key], other[key]), key
    near(state_of_clients(ours), state_of_clients(theirs))


def sick(clients: list[int]) -> Federation:
    return with_train_inputs(FEDERATION, lambda x: x * torch.inf, clients)


# --- the same results --------------------------------------------------------------------------------------------

CASES = [*((kind, {}) for kind in KINDS), ("fedora", {"variant": "paper"}), ("federico", {"variant": "central"})]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{n}-{o.get('variant', '')}" for n, o in CASES])
def test_shared_out_clients_have_the_results_of_the_simulation(
    name: str, options: dict[str, Any], ray: FakeRay
) -> None:
    """Half the clients a round, one away, one whose training gives NaN, and the best round's models kept."""
    settings: dict[str, Any] = {
        "rounds": 4, "participation": HALF, "absent": {2: ("client-0", "client-3")}, "evaluate_every": 1,
        "keep_best": "best_val", "options": options,
    }  # fmt: skip
    federation = sick([5])
    ours, theirs = shared(federation, name, **settings), simulation(federation, name, **settings)
    try:
        reports = played(ours)
    except Diverged:
        with pytest.raises(Diverged):
            played(theirs)
        return
    check_equal(ours, theirs, reports, played(theirs))
