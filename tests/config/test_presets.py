"""The presets hold what the papers and the design fix."""

from __future__ import annotations

import pytest

from coterie.config import Config, load_config
from coterie.presets import available_presets, find_preset


def test_the_list_begins_with_the_quickstart() -> None:
    assert [preset.name for preset in available_presets()] == [
        "quickstart",
        "federico/sine",
        "fedora/four-clients",
        "fedora/imbalanced-fashion-mnist",
        "fedora/imbalanced-mnist",
        "fedora/rotated-fashion-mnist",
        "fedora/rotated-mnist",
    ]
    assert find_preset("quickstart").text.startswith("# ")


def test_quickstart_is_as_fixed() -> None:
    config = load_config("quickstart")
    assert config.federation.source == "digits"
    assert config.federation.partition.model_dump()["clients"] == 20
    assert (config.federation.train, config.federation.validation, config.federation.test) == (40, 20, "rest")
    assert config.model.options == {"hidden": [128, 128]}
    assert (config.rounds, config.training.epochs, config.training.batch_size) == (100, 5, 16)
    assert (config.training.lr, config.training.momentum, config.training.optimizer) == (0.02, 0.9, "sgd")
    assert [entry.name for entry in config.algorithms] == ["local", "fedavg", "ditto", "fedora"]
    assert config.algorithms[2].options == {"lambda": 0.1}
    assert config.seeds == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "source", "clients", "big"),
    [
        ("rotated-mnist", "mnist", 36, None),
        ("rotated-fashion-mnist", "fashion-mnist", 72, None),
        ("imbalanced-mnist", "mnist", 36, 18),
        ("imbalanced-fashion-mnist", "fashion-mnist", 72, 36),
        ("four-clients", "mnist", 4, None),
    ],
)
def test_fedora_presets_have_the_published_settings(name: str, source: str, clients: int, big: int | None) -> None:
    config = load_config(f"fedora/{name}")
    partition = config.federation.partition.model_dump()
    assert (config.federation.source, partition["clients"], partition["big_client"]) == (source, clients, big)
    assert published_training(config)
    assert [(entry.name, entry.variant) for entry in config.algorithms] == [
        ("local", None),
        ("fedavg", None),
        ("fedora", "released"),
        ("fedora", "paper"),
    ]
    if name != "four-clients":
        assert (config.federation.train, config.federation.validation, config.federation.test) == (
            128,
            64,
            "rest",
        )


def published_training(config: Config) -> bool:
    training = config.training
    return (
        (config.rounds, config.evaluate_every, config.report) == (500, 10, "best_val")
        and (training.epochs, training.batch_size, training.optimizer) == (5, 64, "sgd")
        and (training.lr, training.momentum, training.weight_decay) == (0.005, 0.9, 5e-5)
    )
