"""What training takes: by hand for a dense and for a convolutional model."""

from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from coterie.config import load_config
from coterie.experiment import Experiment, costs
from coterie.experiment.costs import example_operations, parameters, step_operations, work

SMALL = {
    "federation": {
        "source": "digits",
        "partition": {"rule": "rotation", "clients": 4},
        "train": 20,
        "validation": 10,
        "test": 20,
    },
    "training": {"epochs": 1, "batch_size": 10, "lr": 0.1},
    "algorithms": ["fedavg"],
    "rounds": 40,
    "seeds": [0],
}
MLP = {"name": "mlp", "hidden": [8]}
CNN = {"name": "cnn", "channels": [16], "hidden": 64}
GRU = {"name": "gru", "hidden": 8}


def small(folder: Path, model: dict[str, object]) -> Experiment:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "model": model}))
    return Experiment(load_config(path))


def test_a_dense_model_uses_each_weight_once(tmp_path: Path) -> None:
    experiment = small(tmp_path, MLP)
    assert parameters(experiment) == 64 * 8 + 8 + 8 * 10 + 10
    assert example_operations(experiment) == 3 * 2 * parameters(experiment)
    assert step_operations(experiment) == 4 * 10 * example_operations(experiment)


def test_a_convolution_uses_its_weights_at_every_place(tmp_path: Path) -> None:
    experiment = small(tmp_path, CNN)
    convolution = 16 * 5 * 5 * (4 * 4)  # 8 x 8 pixels without padding, halved after it
    dense = 16 * 2 * 2 * 64 + 64 * 10
    assert example_operations(experiment) == 3 * 2 * (convolution + dense) > 2 * 6 * parameters(experiment)


def test_operations_that_are_not_counted_are_at_least_two_a_parameter(tmp_path: Path) -> None:
    experiment = small(tmp_path, GRU)
    assert example_operations(experiment) >= 6 * parameters(experiment)


def test_work_grows_with_jobs_and_with_the_seeds_that_share_a_stack(tmp_path: Path) -> None:
    dense, convolutional = small(tmp_path, MLP), small(tmp_path, CNN)
    assert work(dense, 6) == pytest.approx(6 * work(dense, 1))
    assert work(dense, 1, seeds=3) < 3 * work(dense, 1)
    assert work(convolutional, 1) > work(dense, 1)


class Refuses(nn.Module):
    """Fails on the zeros with which operations are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """No."""
        if not x.any():
            raise RuntimeError("zeros")
        return self.layer(x.flatten(1))


def test_a_model_that_cannot_be_counted_counts_by_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = small(tmp_path, MLP)
    monkeypatch.setattr(costs, "build_model", lambda *arguments, **options: Refuses())
    assert example_operations(experiment) == 6 * (64 * 10 + 10)


def test_counting_draws_no_random_numbers_and_leaves_a_shared_module_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).train()
    experiment = small(tmp_path, MLP)
    monkeypatch.setattr(costs, "build_model", lambda *arguments, **options: shared)
    before = torch.get_rng_state()
    example_operations(experiment)
    assert shared.training
    assert torch.equal(torch.get_rng_state(), before)
