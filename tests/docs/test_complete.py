"""The reference pages name everything there is, and nothing else."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from pydantic import BaseModel

from coterie.config import Config, NewcomersConfig, TrainingConfig
from coterie.contract import available_algorithms
from coterie.federation import FederationConfig, available_rules, available_sources
from coterie.models import available_models
from coterie.presets import available_presets

from .blocks import ROOT

DOCS = ROOT / "docs"
BUILT_IN = {
    name: cls for name, cls in available_algorithms().items() if cls.__module__.startswith("coterie.algorithms")
}


def named(page: Path) -> set[str]:
    """Every word that a page sets in code."""
    return {
        word
        for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
        for word in [code, *re.findall(r"[\w./-]+", code)]
    }


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_each_algorithm_has_a_page_with_its_options(name: str) -> None:
    page = DOCS / "algorithms" / f"{name}.md"
    assert page.exists(), f"docs/algorithms/{name}.md is missing"
    options = {field.name.rstrip("_") for field in fields(BUILT_IN[name])} - {"variant"}
    assert options <= named(page), f"{page.name} does not mention {sorted(options - named(page))}"
    table = re.search(r"<!-- options: .*?-->\n\n(.*?)\n\n", page.read_text(encoding="utf-8") + "\n\n", re.DOTALL)
    listed = set(re.findall(r"^\| `(\w+)`", table[1], re.MULTILINE)) if table else set()
    assert listed == options, "the table of options is not the list of options"
    assert set(BUILT_IN[name].variants) <= named(page)


def test_the_overviews_list_every_algorithm() -> None:
    assert set(BUILT_IN) <= named(ROOT / "README.md")
    overview = (DOCS / "algorithms" / "index.md").read_text(encoding="utf-8")
    assert {name for name in BUILT_IN if f"({name}.md)" not in overview} == set()


@pytest.mark.parametrize("section", [Config, NewcomersConfig, TrainingConfig, FederationConfig])
def test_every_configuration_key_is_described(section: type[BaseModel]) -> None:
    keys = set(section.model_fields)
    assert keys <= named(DOCS / "reference" / "configuration.md")


def test_every_source_rule_and_model_is_described() -> None:
    configuration = named(DOCS / "reference" / "configuration.md")
    assert {*available_rules(), *available_models()} <= configuration
    assert set(available_sources()) <= named(DOCS / "reference" / "datasets.md")


def test_every_preset_is_described_with_its_cost() -> None:
    page = (DOCS / "reference" / "presets.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w./-]+)` \| .+? \| (.+? \| .*?) ?\|$", page, re.MULTILINE))
    costs = {preset.name: f"{preset.costs['full']} | {preset.costs.get('fast', '')}" for preset in available_presets()}
    assert rows == costs
