"""Every mistake in a configuration is one sentence that names the key and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.config import load_config, parse_config
from coterie.errors import CoterieError
from coterie.federation import available_rules

TREE: dict[str, Any] = {
    "federation": {
        "source": "digits",
        "partition": {"rule": "rotation", "clients": 4},
        "train": 10,
        "validation": 5,
    }
}


def message(*overrides: str, tree: Any = None) -> str:
    with pytest.raises(CoterieError) as caught:
        parse_config(TREE if tree is None else tree, overrides, where="mine.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("rouds=3", "unknown key rouds: did you mean rounds?"),
        ("training.epoch=3", "unknown key training.epoch: did you mean training.epochs?"),
        ("lr=0.1", "unknown key lr: did you mean training.lr?"),
        ("federation.trian=3", "unknown key federation.trian: did you mean federation.train?"),
        (
            "federation.partition.client=3",
            "unknown key federation.partition.client: did you mean federation.partition.clients?",
        ),
        (
            "algorithms=[local, {name: ditto, training: {epoch: 1}}]",
            "unknown key algorithms[1].training.epoch: did you mean algorithms[1].training.epochs?",
        ),
        ("participation={rule: uniform, fractoin: 0.5}", "did you mean participation.fraction?"),
        ("training.schedule={rule: step, milestone: [3]}", "did you mean training.schedule.milestones?"),
    ],
)
def test_an_unknown_key_names_the_nearest(override: str, hint: str) -> None:
    assert message(override).startswith(f"-s {override}: unknown key ")
    assert message(override).endswith(hint)


def test_a_key_like_no_other_lists_the_valid_ones() -> None:
    assert message("training.zzz=1").startswith(
        "-s training.zzz=1: unknown key training.zzz: the keys of training are epochs, batch_size, "
    )


def test_the_file_is_named_where_no_override_is_to_blame() -> None:
    assert message(tree={**TREE, "rouds": 3}) == "mine.yaml: unknown key rouds: did you mean rounds?"
    assert message("rounds=3", tree={**TREE, "rouds": 3}).startswith("mine.yaml: ")


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.lr=fast", "training.lr must be a number, not the text 'fast'."),
        ("training.lr=true", "training.lr must be a number, not true."),
        ("training.lr=0", "training.lr must be greater than 0, not 0."),
        ("training.lr=.nan", "training.lr must be a finite number, not nan."),
        ("training.momentum=1.0", "training.momentum must be less than 1, not 1.0."),
        ("rounds=1.5", "rounds must be a whole number, not 1.5."),
        ("rounds='12'", "rounds must be a whole number, not the text '12'."),
        ("rounds=0", "rounds must be at least 1, not 0."),
        ("rounds=", "rounds must be a whole number, not nothing."),
        ("seeds=[]", "seeds must not be empty."),
        ("seeds=[0, x]", "seeds[1] must be a whole number, not the text 'x'."),
        ("seeds=[1, 1]", "seeds: each seed may be listed once."),
        ("training=3", "training must be a mapping of keys to values, not 3."),
        ("save_models=sure", "save_models must be true or false, not the text 'sure'."),
        (
            "report=best",
            "report must be best_val, last or best_test, not the text 'best': did you mean best_val?",
        ),
        ("participation=1.5", "participation must be at most 1, not 1.5."),
        (
            "participation={rule: uniform}",
            "participation: the rule uniform needs either fraction or clients.",
        ),
        ("device=gpu", "device: 'gpu' is no device: use cpu, cuda, cuda:<number> or auto."),
        ("name=a/b", "name: 'a/b' would be part of a file name: use letters, digits, '.', '_' and '-'."),
        ("algorithms=[{variant: paper}]", "algorithms[0].name is missing."),
        ("federation.partition={clients: 4}", "federation.partition.rule is missing."),
        (
            "federation.partition={rule: natural, clients: 4}",
            "unknown key federation.partition.clients: the keys of federation.partition are rule, group, min_examples.",
        ),
        (
            "federation.partition.rule=rotaton",
            f"federation.partition.rule must be one of {', '.join(available_rules())}, "
            "not the text 'rotaton': did you mean rotation?",
        ),
    ],
)
def test_a_wrong_value_names_key_expectation_and_finding(override: str, sentence: str) -> None:
    assert message(override).endswith(sentence)
    assert message(override).startswith(f"-s {override}: ")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["training.nesterov=true"], "training.nesterov needs optimizer sgd and a momentum above 0."),
        (
            ["training.momentum=0.9", "algorithms=[local, {name: ditto, training: {optimizer: adam}}]"],
            "algorithms[1].training.momentum belongs to sgd; remove it or choose optimizer sgd.",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_named(overrides: list[str], sentence: str) -> None:
    assert message(*overrides) == f"mine.yaml: {sentence}"


def test_an_entry_may_mend_what_it_changes() -> None:
    entry = "algorithms=[{name: ditto, training: {nesterov: true, momentum: 0.5}}]"
    assert parse_config(TREE, [entry]).algorithms[0].training is not None


def test_a_misspelt_key_is_blamed_rather_than_the_one_it_leaves_missing() -> None:
    partition = {"rule": "rotation", "client": 4}
    assert "unknown key federation.partition.client" in message(
        tree={"federation": {"source": "digits", "partition": partition}}
    )


def test_what_must_be_there_is_named() -> None:
    assert message(tree={"rounds": 3}) == "mine.yaml: federation is missing."


@pytest.mark.parametrize("tree", [None, [], "text", 3])
def test_a_file_without_keys_is_refused(tree: Any) -> None:
    with pytest.raises(CoterieError, match=r"mine\.yaml must hold keys and values such as 'rounds: 100', not"):
        parse_config(tree, where="mine.yaml")


@pytest.mark.parametrize("source", ["quikstart", "rotated-mnst", "fedora/rotated-mnits"])
def test_an_unknown_preset_names_the_nearest(source: str) -> None:
    nearest = r"did you mean (quickstart|fedora/rotated-mnist|fedora/rotated-mnist or tuned/rotated-mnist)\?"
    with pytest.raises(CoterieError, match=rf"there is no preset .*{nearest}"):
        load_config(source)


def test_a_missing_file_is_not_taken_for_a_preset() -> None:
    with pytest.raises(CoterieError, match=r"there is no configuration file nowhere/mine\.yaml\."):
        load_config("nowhere/mine.yaml")
