"""The same numbers on a GPU; these tests need one."""

from dataclasses import replace

import pytest
import torch

from coterie.contract import available_algorithms, make_algorithm
from coterie.engines import Admission, Settings, Simulation, Trained, TrainingSettings, checkpoint
from coterie.federation import build_federation
from coterie.models import ModelSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODELS = [
    ModelSpec("mlp", {"hidden": [16], "dropout": 0.2}),
    ModelSpec("cnn", {"channels": [4], "hidden": 8, "batch_norm": True}),
]


def run(algorithm: str, model: ModelSpec, device: str) -> Simulation:
    section = {"source": "digits", "partition": {"rule": "dirichlet", "clients": 6, "alpha": 0.5}}
    federation = build_federation(section, seed=0, data_dir=None)
    training = TrainingSettings(epochs=1, batch_size=32, lr=0.05, momentum=0.9, weight_decay=1e-4)
    settings = Settings(rounds=3, evaluate_every=1, training=training, device=device, dtype="float64")
    simulation = Simulation(federation, make_algorithm(algorithm), model, settings)
    simulation.initial_report()
    while not simulation.finished:
        simulation.advance()
    return simulation


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("algorithm", sorted(available_algorithms()))
def test_gpu_gives_the_models_of_the_cpu(algorithm: str, model: ModelSpec) -> None:
    on_cpu, on_gpu = run(algorithm, model, "cpu"), run(algorithm, model, "cuda")
    theirs = on_gpu.report_models().tensors
    for name, tensor in on_cpu.report_models().tensors.items():
        torch.testing.assert_close(theirs[name].cpu(), tensor, rtol=0, atol=1e-8)
    losses = on_gpu.report_losses(on_gpu.report_predictor())
    for name, values in on_cpu.report_losses(on_cpu.report_predictor()).items():
        torch.testing.assert_close(torch.from_numpy(losses[name]), torch.from_numpy(values), rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", sorted(available_algorithms()))
def test_newcomers_fare_alike(algorithm: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """From a server trained on the CPU, saved, and taken to the GPU."""
    on_cpu = run(algorithm, MODELS[0], "cpu")
    Trained.of(on_cpu).save(tmp_path / "server.pt")
    section = {"source": "digits", "partition": {"rule": "iid", "clients": 3}}
    newcomers = build_federation(section, seed=1, data_dir=None)
    values = []
    for device in ("cpu", "cuda"):
        settings = replace(on_cpu.settings, device=device)
        trained = Trained.load(tmp_path / "server.pt", device)
        admission = Admission(trained, newcomers, on_cpu.algorithm, MODELS[0], settings)
        admitted = admission.admit(labelled=True, epochs=2)
        assert admitted is not None
        values.append(torch.from_numpy(admitted.values["loss"]))
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("algorithm", ["ditto", "fedora", "pgfedmo", "federico"])
def test_checkpoints_cross_devices(algorithm: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    simulation = run(algorithm, MODELS[0], "cuda")
    checkpoint.save(tmp_path / "run.pt", simulation)
    other = run(algorithm, MODELS[0], "cpu")
    checkpoint.load(tmp_path / "run.pt", other)
    for name, tensor in simulation.report_models().tensors.items():
        torch.testing.assert_close(other.report_models().tensors[name], tensor.cpu(), rtol=0, atol=1e-8)
