"""Models by name: the published sizes, and what is said about wrong options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from coterie.errors import CoterieError
from coterie.models import ModelSpec, available_models, build_model, factory

GRAY, COLOUR = (1, 28, 28), (3, 32, 32)


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters"),
    [
        ("mlp", GRAY, 10, {}, 118_282),  # FEDORA's cost table
        ("fedora-cnn", COLOUR, 10, {}, 121_182),
        ("cnn", COLOUR, 10, {}, 878_538),  # PGFed: CIFAR-10, CIFAR-100 and MNIST
        ("cnn", COLOUR, 100, {}, 924_708),
        ("cnn", GRAY, 10, {}, 582_026),
        ("feddwa-cnn", COLOUR, 10, {}, 1_204_874),
        ("feddwa-cnn", COLOUR, 100, {}, 1_251_044),
        ("feddwa-emnist-cnn", GRAY, 62, {}, 2_278_334),
        ("pgfed-cnn", COLOUR, 10, {}, 878_538),
        ("pgfed-cnn", COLOUR, 100, {}, 924_708),
        ("pgfed-cnn", GRAY, 10, {}, 582_026),
        ("federico-cnn", COLOUR, 10, {}, 319_242),
        ("federico-cnn", COLOUR, 10, {"padding": 0}, 303_882),
        ("mlp", (512,), 65, {"hidden": [1000, 200]}, 726_265),  # FedeRiCo's Office-Home
        ("resnet8", (3, 64, 64), 200, {}, 7_017_280),
        ("resnet8", (3, 64, 64), 200, {"widths": [16, 32, 64]}, 90_392),  # FedDWA's code
        ("resnet18", COLOUR, 10, {}, 11_173_962),
        ("resnet18", COLOUR, 100, {}, 11_220_132),
        ("resnet18", (3, 64, 64), 1000, {"stem": "imagenet"}, 11_689_512),
        ("linear", GRAY, 10, {}, 7_850),
        ("mlp", (1, 8, 8), 10, {"hidden": []}, 650),
        ("mlp", (5,), 2, {"hidden": [3], "dropout": 0.5}, 26),
        ("cnn1d", (9, 32), 6, {}, 9 * 32 * 5 + 32 + 32 * 64 * 5 + 64 + 64 * 8 * 64 + 64 + 64 * 6 + 6),
        ("cnn1d", (2, 4), 3, {"channels": [3], "kernel": 1, "hidden": 5, "dropout": 0.5}, 9 + 35 + 18),
        ("char-gru", (80,), 65, {}, 65 * 8 + 3 * 64 * (8 + 64 + 2) + 65 * 65),
        ("char-gru", (5,), 2, {"characters": 9, "embedding": 1, "hidden": 2, "layers": 2}, 9 + 30 + 36 + 6),
        ("cnn", (1, 8, 8), 3, {"channels": [4], "hidden": 5, "batch_norm": True}, 104 + 8 + 85 + 18),
    ],
)
def test_published_sizes(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], parameters: int
) -> None:
    module = build_model(name, shape, classes, **options)
    assert size(module) == parameters
    assert tuple(module(torch.zeros(2, *shape)).shape) == (2, classes)


@pytest.mark.parametrize("shape", [(5,), (7, 2), (4, 3, 2)])
def test_gru_reads_sequences_of_any_entries(shape: tuple[int, ...]) -> None:
    module = build_model("gru", shape, 4, hidden=6)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    assert tuple(module(x).shape) == (3, 4)
    assert not torch.equal(module(x), module(x.flip(1)))  # order counts


def test_every_model_is_listed_and_built_afresh() -> None:
    assert set(available_models()) == {
        "mlp", "linear", "cnn", "cnn1d", "fedora-cnn", "gru", "char-gru", "auto",
        "feddwa-cnn", "feddwa-emnist-cnn", "pgfed-cnn", "federico-cnn", "resnet8", "resnet18",
    }  # fmt: skip
    assert all(line and not line.startswith(" ") for line in available_models().values())
    assert ModelSpec() == ModelSpec("mlp", {})
    one, other = (build_model("linear", GRAY, 10) for _ in range(2))
    assert one is not other


def test_a_factory_without_a_docstring_is_listed_with_an_empty_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(factory._FACTORIES, "silent", lambda feature_shape, classes: nn.Identity())
    assert available_models()["silent"] == ""


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("mpl", GRAY, {}, r"model.name 'mpl' is unknown; did you mean 'mlp'\?"),
        ("fedora_cnn", GRAY, {}, r"did you mean 'fedora-cnn'\?"),
        ("transformer", GRAY, {}, "choose one of auto, char-gru, cnn, cnn1d, .*, resnet8 or module:factory"),
        ("mlp", GRAY, {"hiden": [3]}, r"model.hiden is not an option of model 'mlp'; did you mean 'hidden'\?"),
        ("mlp", GRAY, {"colour": 3}, "model.colour is not an option.*it takes hidden, dropout"),
        ("linear", GRAY, {"hidden": [3]}, "it takes none"),
        ("mlp", GRAY, {"classes": 3}, "model.classes is not an option"),
        ("mlp", GRAY, {"feature_shape": (3,)}, "model.feature_shape is not an option"),
        ("mlp", GRAY, {"hidden": "wide"}, r"model 'mlp' could not be built for inputs of shape \(1, 28, 28\)"),
        ("mlp", GRAY, {"hidden": [-3]}, "could not be built"),
        ("mlp", GRAY, {"dropout": 1.5}, "could not be built.*probability"),
        ("cnn", (1, 12, 15), {}, "images of 12 x 15 are too small for 2 convolutions"),
        ("cnn", (1, 8, 8), {}, "images of 8 x 8 are too small for 2 convolutions"),
        ("cnn", (1, 8, 4), {"channels": [3]}, "images of 8 x 4 are too small for 1 convolutions"),
        ("fedora-cnn", (1, 8, 8), {}, "images of 8 x 8 are too small for 2 convolutions"),
        ("fedora-cnn", (1, 15, 40), {}, "images of 15 x 40 are too small"),
        ("cnn", (64,), {}, "it takes images"),
        ("fedora-cnn", (8, 8), {}, "it takes images"),
        ("cnn1d", (64,), {}, "it takes signals"),
        ("cnn1d", (9, 3), {}, "signals of 3 steps are too short to be halved 2 times"),
        ("cnn1d", (9, 32), {"kernel": 4}, "kernel is an odd number of steps, not 4"),
        ("char-gru", (9, 32), {}, "it takes codes of characters"),
        ("auto", (9,), {"inputs": "text"}, "inputs is numbers or codes, not 'text'"),
        ("feddwa-cnn", (3, 8, 8), {}, "images of 8 x 8 are too small for 2 convolutions"),
        ("feddwa-cnn", COLOUR, {"dropout": 2.0}, "could not be built.*probability"),
        ("feddwa-emnist-cnn", (1, 12, 28), {}, "images of 12 x 28 are too small"),
        ("pgfed-cnn", COLOUR, {"hidden": 3}, "model.hidden is not an option of model 'pgfed-cnn'; it takes none"),
        ("federico-cnn", (3, 7, 32), {}, "images of 7 x 32 are too small for 3 convolutions"),
        ("federico-cnn", (3, 21, 21), {"padding": 0}, "images of 21 x 21 are too small"),
        ("federico-cnn", COLOUR, {"pading": 0}, r"did you mean 'padding'\?"),
        ("resnet8", (64,), {}, "it takes images"),
        ("resnet8", COLOUR, {"widths": []}, "widths needs a value for each stage"),
        ("resnet18", COLOUR, {"stem": "cifar10"}, "stem is one of cifar, pooled, imagenet, not 'cifar10'"),
        ("no_such_module:build", GRAY, {}, "cannot be imported.*importable module:factory"),
        ("coterie.models:nothing", GRAY, {}, "cannot be imported"),
        (":build", GRAY, {}, "cannot be imported"),
    ],
)
def test_mistakes_are_named(name: str, shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_model(name, shape, 10, **options)


def test_just_large_enough() -> None:
    assert tuple(build_model("fedora-cnn", (1, 16, 16), 2)(torch.zeros(2, 1, 16, 16)).shape) == (2, 2)
    assert tuple(build_model("feddwa-cnn", (1, 10, 10), 2)(torch.zeros(2, 1, 10, 10)).shape) == (2, 2)
    assert tuple(build_model("federico-cnn", (1, 8, 8), 2)(torch.zeros(2, 1, 8, 8)).shape) == (2, 2)
    assert tuple(build_model("federico-cnn", (1, 22, 22), 2, padding=0)(torch.zeros(2, 1, 22, 22)).shape) == (2, 2)
    assert tuple(build_model("resnet18", (1, 1, 1), 2)(torch.zeros(2, 1, 1, 1)).shape) == (2, 2)
    assert tuple(build_model("cnn", (1, 6, 7), 2, channels=[3])(torch.zeros(2, 1, 6, 7)).shape) == (2, 2)


OWN = """
from torch import nn

def build(feature_shape, classes, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(feature_shape[0], width), nn.Linear(width, classes))

def open_ended(feature_shape, classes, **options):
    return nn.Linear(feature_shape[0], classes, **options)

def for_task(feature_shape, classes, task):
    return nn.Linear(feature_shape[0], classes if task == "classification" else 2 * classes)

def not_a_module(feature_shape, classes):
    return "a module"

def other_signature(width):
    return nn.Linear(width, width)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)


@pytest.mark.usefixtures("own")
def test_a_users_own_model() -> None:
    assert size(build_model("my_models:build", (5,), 2)) == 18 + 8
    assert size(build_model("my_models:build", (5,), 2, width=1)) == 6 + 4
    assert size(build_model("my_models:open_ended", (5,), 2, bias=False)) == 10
    assert size(build_model("my_models:for_task", (5,), 2)) == 12
    assert size(build_model("my_models:for_task", (5,), 2, "regression")) == 24


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("build", {"widht": 3}, r"model.widht is not an option of model 'my_models:build'; did you mean 'width'\?"),
        ("open_ended", {"classes": 3}, "model.classes is not an option"),
        ("for_task", {"task": "regression"}, "model.task is not an option"),
        ("not_a_module", {}, "returned str, not a torch.nn.Module"),
        ("other_signature", {}, "could not be built.*feature_shape"),
        ("missing", {}, "cannot be imported"),
    ],
)
def test_mistakes_in_a_users_own_model(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_model(f"my_models:{name}", (5,), 2, **options)
