from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.errors import CoterieError
from coterie.federation import (
    Federation,
    FederationConfig,
    available_rules,
    available_sources,
    build_federation,
)
from coterie.federation.datasets import register_source
from coterie.federation.federation import SPLITS
from coterie.federation.partition import RULES, register_rule

SECTIONS: list[dict[str, Any]] = [
    {"partition": {"rule": "rotation", "clients": 5}},
    {"partition": {"rule": "rotation", "angles": [0, 90], "train_sizes": [5, 6]}, "validation": 7, "test": 8},
    {"partition": {"rule": "rotation", "clients": 4, "big_client": "middle"}, "test": 20},
    {"partition": {"rule": "iid", "clients": 5}},
    {"partition": {"rule": "dirichlet", "clients": 9, "alpha": 0.2}, "seed": 7},
    {"partition": {"rule": "pathological", "clients": 8, "classes_per_client": 3}, "train": 0.4, "test": 0.4},
    {"partition": {"rule": "shards", "clients": 6}},
    {"partition": {"rule": "dominant", "clients": 9}},
    {"partition": {"rule": "dominant", "clients": 6, "groups": 3, "variant": "released"}},
    {"partition": {"rule": "label-groups", "clients": 5, "groups": 3, "fraction": 0.5}},
    {"partition": {"rule": "dirichlet-groups", "clients": 6}},
    {"partition": {"rule": "cyclic", "clients": 10, "spread": [0.3, 0.9]}},
    {"partition": {"rule": "cyclic", "clients": 10, "train_per_class": "all", "test_limit": "all"}},
]


def equal(a: Federation, b: Federation) -> bool:
    return all(
        torch.equal(x, y)
        for split in SPLITS
        for i in range(a.k)
        for x, y in zip(a.split(split).client(i), b.split(split).client(i), strict=True)
    )


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_same_seed_same_federation(section: dict[str, Any]) -> None:
    first, second, other = (build_federation({"source": "digits", **section}, seed=s) for s in (1, 1, 2))
    assert equal(first, second)
    assert equal(first, other) == ("seed" in section)


def test_torch_and_numpy_seeds_do_not_matter() -> None:
    section = {"source": "digits", **SECTIONS[4]}
    torch.manual_seed(1)
    first = build_federation(section, seed=0)
    torch.manual_seed(2)
    assert equal(first, build_federation(section, seed=0))


@pytest.mark.parametrize("section", SECTIONS, ids=str)
def test_resolved_section_is_complete_and_stays_as_it_is(section: dict[str, Any]) -> None:
    config = FederationConfig.model_validate({"source": "digits", **section})
    dumped = config.model_dump(mode="json")
    again = FederationConfig.model_validate(dumped)
    assert again == config
    assert equal(build_federation(dumped, seed=0), build_federation({"source": "digits", **section}, seed=0))
    assert config.test is not None


def test_where_it_came_from_is_recorded() -> None:
    federation = build_federation({"source": "digits", **SECTIONS[0]}, seed=3)
    source = json.loads(json.dumps(federation.source))
    assert source["source"] == "digits"
    assert source["seed"] == 3
    assert source["train"] == 128
    assert source["partition"]["rule"] == "rotation"
    assert len(source["sha256"]) == 64
    assert source["clients"] == {"angle": [0, 72, 144, 216, 288]}


def test_a_validated_section_is_accepted() -> None:
    config = FederationConfig.model_validate({"source": "digits", **SECTIONS[3]})
    assert build_federation(config, seed=0).k == 5


def test_idx_source(idx_folder: Path) -> None:
    section = {"source": "mnist", "partition": {"rule": "iid", "clients": 4}, "test": "official"}
    federation = build_federation(section, seed=0, data_dir=idx_folder)
    assert federation.feature_shape == (1, 6, 4)
    assert federation.test.n.sum() == 20
    assert 0.5 < float(federation.train.client(0)[0].max()) <= 1


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"source": "digit"},
            "federation.source: Unknown source 'digit'. Did you mean 'digits'\\? Available: digits, fash",
        ),
        ({"sorce": "digits"}, "Unknown key federation.sorce. Did you mean source\\?"),
        ({"x": 1}, "Unknown key federation.x. Valid: source, partition, train, validation, test, seed."),
        (
            {"partition": {"rule": "dirichlet", "clients": 3, "alhpa": 1}},
            "federation.partition.alhpa. Did you mean alpha",
        ),
        (
            {"partition": {"rule": "dirichlet", "clients": 3, "alpha": 0}},
            "federation.partition.alpha: .*greater than 0",
        ),
        (
            {"partition": {"rule": "dirchlet", "clients": 3}},
            "partition.rule: unknown rule 'dirchlet'. Did you mean dirichlet",
        ),
        ({"partition": {"clients": 3}}, "federation.partition: .*'rule'"),
        ({"partition": {"rule": "iid"}}, "federation.partition.clients: Field required"),
        (
            {"partition": {"rule": "iid", "client": 3}},
            "Unknown key federation.partition.client. Did you mean clients",
        ),
        ({"partition": {"rule": "iid", "clients": "many"}}, "federation.partition.clients: .*valid integer"),
        ({"train": 1.5}, "federation.train: a fraction lies between 0 and 1; 1.5 does not"),
        ({"validation": -1}, "federation.validation: a number of examples is not negative"),
        (
            {"partition": {"rule": "iid", "clients": 3, "alpha": 1}},
            r"Unknown key federation\.partition\.alpha\. Valid: rule, clients\.",
        ),
        ({"test": "half"}, "^federation.test: .*integer.*; or .*'rest' or 'official' \\(got 'half'\\)"),
        (
            {"partition": {"rule": "rotation", "angles": [0, "x"]}},
            "^federation.partition.angles.1: .*number.* \\(got 'x'\\)",
        ),
        ({"seed": -1}, "federation.seed"),
    ],
)
def test_bad_sections(section: dict[str, Any], message: str) -> None:
    good = {"source": "digits", "partition": {"rule": "iid", "clients": 3}}
    with pytest.raises(CoterieError, match=message):
        build_federation({**good, **section}, seed=0)


def test_listings() -> None:
    assert list(available_sources()) == ["digits", "fashion-mnist", "mnist"]
    assert {
        "cyclic", "dirichlet", "dirichlet-groups", "dominant", "iid", "label-groups", "pathological", "rotation", "shards",
    } <= set(available_rules())  # fmt: skip
    assert list(available_rules()) == sorted(available_rules())
    assert all(text and "\n" not in text for text in [*available_sources().values(), *available_rules().values()])


def test_names_are_registered_once() -> None:
    with pytest.raises(ValueError, match="'digits' is registered twice"):
        register_source("digits", "again")(lambda data_dir: pytest.fail("never loaded"))
    with pytest.raises(ValueError, match="'iid' is registered twice"):
        register_rule(RULES["iid"])
