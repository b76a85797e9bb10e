"""Files, presets, mappings and overrides give one and the same tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.config import Config, load_config, parse_config
from coterie.errors import CoterieError
from coterie.presets import available_presets
from coterie.yamltext import read_yaml, write_yaml

TREE: dict[str, Any] = {"federation": {"source": "digits", "partition": {"rule": "rotation", "clients": 4}}}


def test_two_lines_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "my first.yaml"
    path.write_text("federation: {source: digits, partition: {rule: rotation, clients: 4}}\nalgorithms: fedora\n")
    config = load_config(path)
    assert config.name == "my-first"
    assert [entry.name for entry in config.algorithms] == ["fedora"]
    assert config.seeds == [0]
    assert config.participation.rule == "all"


@pytest.mark.parametrize("preset", available_presets(), ids=lambda preset: preset.name)
def test_presets_are_valid_and_survive_writing(preset: Any) -> None:
    config = load_config(preset.name)
    assert parse_config(read_yaml(write_yaml(config.as_dict()), "config.yaml")) == config


def test_every_kind_of_key_survives_writing() -> None:
    config = parse_config(
        TREE,
        [
            "algorithms=[local, {name: ditto, lambda: 0.1, label: gentle, training: {lr: 0.1, clip: 1.0}}]",
            "training={schedule: {rule: step, milestones: [3, 0.5], factor: 0.5}}",
            "participation={rule: bernoulli, fraction: 0.5}",
            "absent={3: [client-1]}",
            "targets=0.7",
            "chunk=2",
            "output=somewhere",
        ],
    )
    again = parse_config(read_yaml(write_yaml(config.as_dict()), "config.yaml"))
    assert again == config
    assert again.training_of(again.algorithms[1]).lr == 0.1
    assert again.training_of(again.algorithms[1]).schedule == config.training.schedule
    assert again.absent == {3: ["client-1"]}
    assert parse_config(json.loads(json.dumps(config.as_dict()))) == config


def test_a_stated_null_survives_writing() -> None:
    """It is a value of its own: all local epochs, no clipping."""
    config = parse_config(
        TREE,
        [
            "algorithms=[{name: fedrep, body_epochs: null}, {name: fedavg, training: {clip: null}}]",
            "training={clip: 10.0}",
            "model={name: mlp, hidden: null}",
            "newcomers={clients: 1, training: {clip: null}}",
        ],
    )
    again = parse_config(read_yaml(write_yaml(config.as_dict()), "config.yaml"))
    assert again == config
    assert again.algorithms[0].options == {"body_epochs": None}
    assert again.training_of(again.algorithms[1]).clip is None
    assert again.model.options == {"hidden": None}
    assert again.newcomers is not None
    assert again.training.merged(again.newcomers.training).clip is None
    assert "metric" not in config.as_dict()  # what nobody stated is left out


def test_an_entry_changes_only_the_training_keys_that_it_states() -> None:
    config = parse_config(TREE, ["training={lr: 0.5, epochs: 2}", "algorithms=[{name: ditto, training: {lr: 0.1}}]"])
    merged = config.training_of(config.algorithms[0])
    assert (merged.lr, merged.epochs) == (0.1, 2)
    assert config.training.lr == 0.5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1.0", {"rule": "all"}),
        ("1", {"rule": "all"}),
        ("0.5", {"rule": "uniform", "fraction": 0.5}),
        ("all", {"rule": "all"}),
        ("{rule: uniform, clients: 3}", {"rule": "uniform", "clients": 3}),
        ("{rule: bernoulli, fraction: 0.2}", {"rule": "bernoulli", "fraction": 0.2}),
    ],
)
def test_short_forms_of_participation(value: str, expected: dict[str, Any]) -> None:
    config = parse_config(TREE, [f"participation={value}"])
    assert config.participation.model_dump(exclude_none=True) == expected


@pytest.mark.parametrize("value", ["5e-5", "5.0e-5", "0.00005", "+5E-05", ".5e-4"])
def test_numbers_are_numbers_however_they_are_written(value: str) -> None:
    assert parse_config(TREE, [f"training.weight_decay={value}"]).training.weight_decay == pytest.approx(5e-5)


@pytest.mark.parametrize("text", ["5e", "e5", "1.e", "v1e5"])
def test_words_that_resemble_numbers_stay_words(text: str) -> None:
    assert read_yaml(text, "here") == text


class TestOverrides:
    def load(self, *overrides: str) -> Config:
        return load_config("quickstart", overrides)

    def test_apply_in_order_and_leave_the_rest(self) -> None:
        config = self.load("training.lr=0.5", "training.lr=0.25", "rounds=3")
        assert (config.training.lr, config.training.momentum, config.rounds) == (0.25, 0.9, 3)

    def test_make_a_section_that_is_not_there(self) -> None:
        config = parse_config(
            TREE,
            ["training.lr=0.5", "model.hidden=[8]", "participation.clients=2", "participation.rule=uniform"],
        )
        assert config.training.lr == 0.5
        assert config.model.options == {"hidden": [8]}
        assert config.participation.clients == 2

    def test_call_an_algorithm_by_name_or_position(self) -> None:
        config = self.load("algorithms.fedora.alpha=2", "algorithms.2.lambda=1", "algorithms.1=fedprox")
        assert config.algorithms[3].options == {"alpha": 2}
        assert config.algorithms[2].options == {"lambda": 1}
        assert config.algorithms[1].name == "fedprox"

    def test_replace_a_list(self) -> None:
        assert [e.name for e in self.load("algorithms=[local, fedora]").algorithms] == ["local", "fedora"]

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("rounds", "-s rounds: give key=value, for example -s training.lr=0.01."),
            ("=3", "-s =3: give key=value"),
            ("a..b=3", "-s a..b=3: give key=value"),
            (
                "algorithms.fedors.alpha=2",
                "there is no entry fedors; the list holds local, fedavg, ditto, fedora.",
            ),
            ("algorithms.9.alpha=2", "there is no entry 9"),
            ("rounds.x=2", "-s rounds.x=2: rounds is 100 and has no keys below it."),
            ("seeds=[0", "-s seeds=[0, line 1, column 3: not valid YAML"),
        ],
    )
    def test_that_cannot_be_applied_are_refused(self, text: str, sentence: str) -> None:
        with pytest.raises(CoterieError) as caught:
            self.load(text)
        assert sentence in str(caught.value)

    def test_ask_which_of_two_entries_is_meant(self) -> None:
        with pytest.raises(CoterieError, match="fedora is listed 2 times; use its position"):
            self.load("algorithms=[fedora, {name: fedora, variant: paper}]", "algorithms.fedora.alpha=2")

    def test_leave_the_callers_tree_alone(self) -> None:
        tree = {**TREE, "training": {"lr": 0.1}}
        parse_config(tree, ["training.lr=0.5"])
        assert tree["training"] == {"lr": 0.1}


class TestFiles:
    def refuse(self, path: Path) -> str:
        with pytest.raises(CoterieError) as caught:
            load_config(path)
        return str(caught.value)

    def test_broken_yaml_names_file_line_and_column(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("rounds: 3\ntraining: {lr: 0.1\nseeds: [0]\n")
        assert self.refuse(path).startswith(f"{path}, line 3, column ")

    def test_a_key_given_twice_is_a_mistake(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("rounds: 3\nseeds: [0]\nrounds: 4\n")
        assert self.refuse(path) == f"{path}, line 3, column 1: not valid YAML: the key 'rounds' is given twice."

    def test_an_empty_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("")
        assert "must hold keys and values" in self.refuse(path)

    def test_a_file_that_is_no_text_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_bytes(b"\xff\xfe\x00\x01")
        assert "cannot be read as text" in self.refuse(path)

    def test_tags_that_run_code_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "mine.yaml"
        path.write_text("rounds: !!python/object/apply:os.getcwd []\n")
        assert "not valid YAML" in self.refuse(path)

    def test_a_run_directory_is_not_a_configuration(self, tmp_path: Path) -> None:
        with pytest.raises(CoterieError, match="coterie resume"):
            load_config(str(tmp_path))
