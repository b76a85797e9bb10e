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
            "federation.source: Unknown source 'digit'. Did you mean 'digits'\\? All: coterie datasets",
        ),
        (
            {"source": "photographs"},
            "federation.source: Unknown source 'photographs'. Available: .*digits, .*mnist",
        ),
        ({"sorce": "digits"}, "Unknown key federation.sorce. Did you mean source\\?"),
        (
            {"x": 1},
            "Unknown key federation.x. Valid: source, partition, train, validation, test, normalise, resize, seed.",
        ),
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
    assert {"digits", "fashion-mnist", "mnist"} <= set(available_sources())
    assert {
        "cyclic", "dirichlet", "dirichlet-groups", "dominant", "iid", "label-groups", "natural", "pathological",
        "rotation", "shards",
    } <= set(available_rules())  # fmt: skip
    assert list(available_rules()) == sorted(available_rules())
    assert all(text and "\n" not in text for text in [*available_sources().values(), *available_rules().values()])


def test_names_are_registered_once() -> None:
    with pytest.raises(ValueError, match="'digits' is registered twice"):
        register_source("digits", "again")(lambda data_dir: pytest.fail("never loaded"))
    with pytest.raises(ValueError, match="'iid' is registered twice"):
        register_rule(RULES["iid"])


IID = {"source": "digits", "partition": {"rule": "iid", "clients": 3}}


@pytest.mark.parametrize("normalise", [[0.5, 0.25], [[0.5], [0.25]]])
def test_inputs_are_normalised_when_used(normalise: Any) -> None:
    plain, changed = (build_federation({**IID, **more}, seed=0) for more in ({}, {"normalise": normalise}))
    for split in SPLITS:
        x, y = plain.split(split).client(1)
        assert torch.equal(changed.split(split).client(1)[0], (x - 0.5) / 0.25)
        assert torch.equal(changed.split(split).client(1)[1], y)
    # the tensors themselves stay as they are, so that they can be shared
    assert torch.equal(changed.train.inputs, plain.train.inputs)
    assert torch.equal(changed.select([1]).train.client(0)[0], changed.train.client(1)[0])


def test_uint8_images_are_normalised_by_the_published_statistics(idx_folder: Path) -> None:
    section = {"source": "mnist", "partition": {"rule": "rotation", "clients": 2}, "train": 5, "validation": 5}
    plain = build_federation(section, seed=0, data_dir=idx_folder)
    standard = build_federation({**section, "normalise": "standard"}, seed=0, data_dir=idx_folder)
    assert standard.train.inputs.dtype == torch.uint8
    x = standard.train.client(1)[0]
    assert torch.allclose(x, (plain.train.client(1)[0] - 0.1307) / 0.3081, atol=1e-6)
    assert standard.source["normalise"] == "standard"


@pytest.mark.parametrize(
    ("normalise", "message"),
    [
        ("standard", "no mean and standard deviation are published for 'digits': give them as"),
        ([[0.1, 0.2], 1.0], "has 2 values, but inputs of 'digits' have 1 channels"),
        ([0.5, 0], "the standard deviation, the second of the two, must be above 0"),
        ([0.5], "federation.normalise"),
        ([float("nan"), 1.0], "federation.normalise: mean and standard deviation must be finite"),
        ("unit", "federation.normalise: .*'none' or 'standard'"),
    ],
)
def test_bad_normalisation(normalise: Any, message: str) -> None:
    with pytest.raises(CoterieError, match=message):
        build_federation({**IID, "normalise": normalise}, seed=0)


# --- resizing ----------------------------------------------------------------------------------------------------


def test_pictures_are_resized_before_they_are_divided() -> None:
    plain, large = (build_federation({**IID, **more}, seed=0) for more in ({}, {"resize": 28}))
    assert (plain.feature_shape, large.feature_shape) == ((1, 8, 8), (1, 28, 28))
    assert torch.equal(plain.train.targets, large.train.targets)
    small, wide = plain.train.client(0)[0], large.train.client(0)[0]
    expected = torch.nn.functional.interpolate(small, (28, 28), mode="bilinear", antialias=True)
    torch.testing.assert_close(wide, expected, rtol=0, atol=0.01)
    assert build_federation({**IID, "resize": 8}, seed=0).source["sha256"] == plain.source["sha256"]


def test_what_is_no_picture_is_not_resized() -> None:
    with pytest.raises(
        CoterieError, match=r"federation.resize changes pictures, but inputs of 'sine' have the shape \(1,\)"
    ):
        build_federation({"source": "sine", "partition": {"rule": "iid", "clients": 3}, "resize": 28}, seed=0)


@pytest.mark.parametrize("size", [0, -3, 5000, "large"])
def test_a_wrong_size_is_refused(size: Any) -> None:
    with pytest.raises(CoterieError, match=r"federation\.resize"):
        build_federation({**IID, "resize": size}, seed=0)
