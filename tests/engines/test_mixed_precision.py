"""Runs in mixed precision: every method, every engine, stopped and gone on with, and as accurate as in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_ray import FakeRay
from posts import remote
from torch import Tensor

from coterie.contract import available_algorithms, make_algorithm
from coterie.engines import Settings, Simulation, TrainingSettings, checkpoint
from coterie.engines import ray as ray_engine
from coterie.engines.ray import RayEngine
from coterie.federation import build_federation
from coterie.models import Models, ModelSpec
from toys import MLP, classified, run, same, saved, simulation

FEDERATION = classified((7, 4, 9, 5))
VARIANTS = [(n, v) for n, cls in available_algorithms().items() for v in (cls.variants or [None])]
LOW: dict[str, Any] = {"dtype": "float32", "precision": "bf16"}


def floats(value: Any) -> list[Tensor]:
    """Every floating-point tensor somewhere in a state."""
    if isinstance(value, Models):
        value = value.tensors
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in inner for tensor in floats(item)]


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_every_method_trains_models_of_float32(name: str, variant: str | None) -> None:
    results = []
    for settings in (LOW, {"dtype": "float32"}):
        sim = simulation(FEDERATION, make_algorithm(name, variant), rounds=1, **settings)
        run(sim)
        results.append(sim.report_models().flat())
        assert {tensor.dtype for tensor in floats(sim.state_dict())} <= {torch.float32, torch.float64}
    low, full = results
    assert 0 < (low - full).norm() < 0.003 * full.norm()


@pytest.mark.parametrize("name", ["ditto", "fedavgm", "fedem", "fedora", "pfedhn", "scaffold"])
def test_going_on_from_a_checkpoint_changes_nothing(name: str, tmp_path: Path) -> None:
    whole = simulation(FEDERATION, name, **LOW)
    whole.advance()
    checkpoint.save(tmp_path / "one.pt", whole)
    run(whole)
    part = simulation(FEDERATION, name, **LOW)
    checkpoint.load(tmp_path / "one.pt", part)
    run(part)
    assert same(saved(part), saved(whole))


@pytest.mark.parametrize("name", ["fedora", "scaffold"])
def test_chunks_sites_and_actors_have_the_results_of_the_simulation(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay()
    monkeypatch.setattr(ray_engine, "library", lambda: fake)
    monkeypatch.setattr(ray_engine, "_SPARE", [])
    sim = simulation(FEDERATION, name, **LOW)
    sites = remote(FEDERATION, name, folder=tmp_path, **LOW)
    actors = RayEngine(FEDERATION, make_algorithm(name), MLP, sim.settings, actors=2)
    assert [engine.resolved["precision"] for engine in (sim, sites, actors)] == ["bf16"] * 3
    run(sim)
    expected = floats(saved(sim)["server"])
    assert expected
    for engine in (simulation(FEDERATION, name, chunk=1, **LOW), sites, actors):
        run(engine)
        for ours, theirs in zip(floats(saved(engine)["server"]), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def accuracy(name: str, precision: Any) -> float:
    section = {"source": "digits", "partition": {"rule": "dirichlet", "clients": 6, "alpha": 0.5}}
    training = TrainingSettings(epochs=2, batch_size=32, lr=0.1, momentum=0.9)
    settings = Settings(rounds=5, evaluate_every=5, training=training, precision=precision, threads=1, keep_best="last")
    federation, model = build_federation(section, seed=0, data_dir=None), ModelSpec("mlp", {"hidden": [32]})
    sim = Simulation(federation, make_algorithm(name), model, settings)
    return float(run(sim)[-1].evaluations["test"]["accuracy"].mean())


@pytest.mark.parametrize("name", ["fedavg", "fedora"])
def test_learns_digits_as_well_as_in_float32(name: str) -> None:
    low, full = accuracy(name, "bf16"), accuracy(name, "full")
    assert full > 0.85
    assert low > full - 0.015


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["fedora", "ditto", "pfedhn"])
def test_on_a_gpu_as_well(name: str) -> None:
    results = []
    for device, settings in (("cpu", {"dtype": "float32"}), ("cuda", LOW)):
        sim = simulation(FEDERATION, name, device=device, rounds=1, **settings)
        start = sim.initial_report() and sim.report_models().flat().cpu()
        run(sim)
        results.append(sim.report_models().flat().cpu() - start)
    full, low = results
    assert 0 < (low - full).norm() < 0.05 * full.norm()
