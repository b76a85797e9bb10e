"""The presets hold what the papers and the design fix, in a full and a fast size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import presets
from coterie.config import Config, load_config, parse_config
from coterie.contract import available_algorithms
from coterie.errors import CoterieError
from coterie.experiment.plan import plan
from coterie.federation.datasets import SOURCES
from coterie.models import available_models
from coterie.presets import Preset, available_presets, find_preset, merged
from coterie.yamltext import read_yaml

PRESETS = available_presets()
NAMES = {preset.name for preset in PRESETS}
EVERY_SIZE = [f"{preset.name}:{size}" for preset in PRESETS for size in preset.costs]
LITTLE = ["rounds=1", "seeds=[0]", "save_models=false"]


def test_the_list_begins_with_the_quickstart() -> None:
    assert [preset.name for preset in PRESETS] == ["quickstart", *sorted(NAMES - {"quickstart"})]
    assert len(NAMES) == len(PRESETS)
    assert find_preset("quickstart").text.startswith("# ")


# --- two sizes ---------------------------------------------------------------------------------------------------

FILE = """\
# An experiment.
#
# Cost on 2 cores: full 3 h; fast about 2 min.
name: two-sizes
federation:
  source: digits
  partition: {rule: rotation, clients: 20, angles: null}
  train: 40
algorithms: [local, fedavg, fedora]  # this comment belongs to the full size
rounds: 100
---
federation:
  partition: {clients: 4}
  train: null
algorithms: [local, fedavg]
"""


@pytest.fixture
def two_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some/two-sizes.yaml").write_text(FILE)
    monkeypatch.setattr(presets, "files", lambda _: tmp_path)


@pytest.mark.usefixtures("two_sizes")
def test_the_first_document_is_the_full_size() -> None:
    for name in ("some/two-sizes", "some/two-sizes:full"):
        full = find_preset(name)
        assert (full.name, full.size, full.description) == ("some/two-sizes", "full", "An experiment.")
        assert full.costs == {"full": "3 h", "fast": "about 2 min"}
        assert full.text == FILE.partition("---\n")[0]
    assert available_presets() == [full]


@pytest.mark.usefixtures("two_sizes")
def test_the_second_document_changes_what_it_states() -> None:
    fast = find_preset("some/two-sizes:fast")
    assert fast.size == "fast"
    assert fast.text.startswith(
        "# An experiment.\n#\n# Cost on 2 cores: full 3 h; fast about 2 min.\nname: two-sizes-fast\n"
    )
    assert "this comment" not in fast.text
    tree = read_yaml(fast.text, "a file")
    partition = {"rule": "rotation", "clients": 4, "angles": None}
    assert tree == {
        "name": "two-sizes-fast",
        "federation": {"source": "digits", "partition": partition, "train": None},
        "algorithms": ["local", "fedavg"],
        "rounds": 100,
    }
    assert load_config("some/two-sizes:fast") == parse_config(tree)


@pytest.mark.parametrize(
    ("tree", "changes", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": [1, 2, 3]}, {"a": [4]}, {"a": [4]}),
        ({"a": {"b": 1}}, {"a": 5}, {"a": 5}),
        ({"model": "mlp"}, {"model": {"name": "cnn"}}, {"model": {"name": "cnn"}}),
        ({"a": 1}, {"b": {"c": 2}}, {"a": 1, "b": {"c": 2}}),
    ],
)
def test_mappings_are_merged_and_all_else_is_replaced(tree: Any, changes: Any, expected: Any) -> None:
    assert merged(tree, changes) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pgfed/cifar10:fats", "there is no size 'fats' of the preset pgfed/cifar10: did you mean pgfed/cifar10:fast?"),
        ("pgfed/cifar10:", "there is no size '' of the preset pgfed/cifar10: did you mean pgfed/cifar10:fast?"),
        ("quickstart:fast", "there is no size 'fast' of the preset quickstart: it has one only, quickstart."),
        ("pgfd/cifar10:fast", "there is no preset pgfd/cifar10:fast: did you mean pgfed/cifar10:fast?"),
        ("rotated-mnist:fast", "there is no preset rotated-mnist:fast: did you mean fedora/rotated-mnist:fast?"),
    ],
)
def test_an_unknown_size_or_name_is_named(name: str, message: str) -> None:
    with pytest.raises(CoterieError) as error:
        find_preset(name)
    assert str(error.value) == message


# --- every file --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_every_preset_says_what_it_is_and_costs(preset: Preset) -> None:
    assert preset.description.endswith((".", "?"))
    assert all(preset.costs.values()), "a line such as '# Cost on 2 cores: full 3 h; fast 2 min.' is missing"
    config = load_config(preset.name)
    assert config.name == preset.name.replace("/", "-")
    for line in preset.text.splitlines():
        assert len(line) <= 120


@pytest.mark.parametrize("name", EVERY_SIZE)
def test_every_size_is_an_experiment(name: str) -> None:
    """Keys, methods, their options and the model's name are right, whether or not the data are there."""
    config = load_config(name)
    assert config.name == name.removesuffix(":full").replace("/", "-").replace(":", "-")
    assert {system.algorithm for system in plan(config).systems} <= set(available_algorithms())
    assert config.model.name in available_models()


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if "fast" in preset.costs], ids=lambda p: p.name)
def test_the_fast_size_is_the_same_experiment(preset: Preset) -> None:
    full, fast = load_config(preset.name), load_config(f"{preset.name}:fast")
    assert fast.rounds <= full.rounds
    assert len(fast.seeds) == 1
    assert all(entry in full.algorithms for entry in fast.algorithms)
    assert fast.training == full.training
    assert fast.federation.partition.rule == full.federation.partition.rule


@pytest.mark.parametrize(
    "name", [name for name in EVERY_SIZE if not SOURCES[load_config(name).federation.source].files]
)
def test_presets_without_data_files_run(name: str, tmp_path: Path) -> None:
    result = coterie.run(name, LITTLE, output=tmp_path / "run")
    assert not result.diverged


# --- what is published -------------------------------------------------------------------------------------------


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
    averaged, personal = ["local", "fedavg", "fedavg-ft", "fedprox", "fedprox-ft"], ["fedamp", "fedora", "fedora"]
    between = {
        "rotated": ["lg-fedavg", "fedper", "pfedhn", "apfl", "ditto", "ifca", "fesem", "fedfomo", "fedu"],
        "imbalanced": ["ditto"],
        "four": ["lg-fedavg", "ditto"],
    }[name.partition("-")[0]]
    assert [entry.name for entry in config.algorithms] == averaged + between + personal
    assert [entry.variant for entry in config.algorithms[-2:]] == ["released", "paper"]
    if name != "four-clients":
        assert (config.federation.train, config.federation.validation, config.federation.test) == (
            128,
            64,
            "rest",
        )


@pytest.mark.parametrize(
    ("paper", "rounds", "report", "training"),
    [
        ("fedora", 500, "best_val", (5, 64, "sgd", 0.005, 0.9)),
        ("feddwa", 100, "best_test", (1, 20, "sgd", 0.01, 0.0)),
        ("pgfed", 300, "best_test", (5, 10, "sgd", 0.005, 0.9)),
        ("federico", 150, "last", (1, 50, "adam", 0.01, 0.0)),
    ],
)
def test_the_full_size_is_the_published_setting(
    paper: str, rounds: int, report: str, training: tuple[Any, ...]
) -> None:
    for name in sorted(NAMES):
        # their rounds or training are not the paper's: traffic needs few, the others have settings of their own
        other = (
            name.endswith(("/communication", "/planted-groups", "/sine", "pgfed/newcomers")) or "office-home" in name
        )
        if not name.startswith(f"{paper}/") or other:
            continue
        config = load_config(name)
        stated = config.training
        assert (config.rounds, config.report) == (rounds, report), name
        assert (stated.epochs, stated.batch_size, stated.optimizer, stated.lr, stated.momentum) == training, name


@pytest.mark.parametrize(
    ("name", "partition", "participation"),
    [
        ("feddwa/pathological-cifar10", {"rule": "shards", "clients": 20}, None),
        ("feddwa/practical-1-cifar10", {"rule": "dominant", "clients": 20, "dominant_classes": 3}, None),
        ("feddwa/practical-1-cifar100", {"rule": "dominant", "clients": 20, "dominant_classes": 20}, None),
        ("feddwa/practical-2-cifar10", {"rule": "dirichlet", "clients": 100, "alpha": 0.07, "min_size": 20}, 0.2),
        ("pgfed/cifar10", {"rule": "dirichlet", "clients": 25, "alpha": 0.3, "min_size": 40}, 0.25),
        ("federico/cifar10", {"rule": "label-groups", "clients": 8, "fraction": 0.1, "training_only": True}, None),
        ("federico/cifar100", {"rule": "label-groups", "clients": 8, "fraction": 0.15, "training_only": True}, None),
        (
            "federico/office-home-dirichlet",
            {"rule": "dirichlet-groups", "clients": 10, "alpha": 0.4, "groups": 4},
            None,
        ),
    ],
)
def test_divisions_and_participation_are_published(
    name: str, partition: dict[str, Any], participation: float | None
) -> None:
    config = load_config(name)
    assert partition.items() <= config.federation.partition.model_dump().items()
    assert config.participation.fraction == participation


def published_training(config: Config) -> bool:
    training = config.training
    return (
        (config.rounds, config.evaluate_every, config.report) == (500, 10, "best_val")
        and (training.epochs, training.batch_size, training.optimizer) == (5, 64, "sgd")
        and (training.lr, training.momentum, training.weight_decay) == (0.005, 0.9, 5e-5)
    )
