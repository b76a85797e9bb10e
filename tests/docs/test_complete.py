"""The reference pages name everything there is, and nothing else."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from coterie.config import (
    Config,
    MlflowConfig,
    NewcomersConfig,
    RangeConfig,
    RayConfig,
    TrackingConfig,
    TrainingConfig,
    TuneConfig,
    WandbConfig,
)
from coterie.contract import available_algorithms
from coterie.contract.options import explained
from coterie.federation import FederationConfig, available_rules, available_sources
from coterie.models import available_models
from coterie.presets import available_presets
from coterie.privacy import Policy
from coterie.yamltext import read_yaml

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


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_option_says_what_it_means(name: str) -> None:
    for field in fields(BUILT_IN[name]):
        meaning, _ = explained(field.metadata)
        assert meaning, f"{name}.{field.name}: declare it with option(default, meaning, paper=...)"
        assert not re.search(r"[$\\\n]", meaning), f"{name}.{field.name}: the meaning must be plain text of one line"


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_page_states_the_defaults_of_the_code(name: str) -> None:
    options = {field.name.rstrip("_"): field for field in fields(BUILT_IN[name])}
    variants = BUILT_IN[name].variants
    for row in option_rows(DOCS / "algorithms" / f"{name}.md"):
        field = options[row["option"].strip("`")]
        by_variant = {variant: values.get(field.name, field.default) for variant, values in variants.items()}
        if "here" in row:
            assert stated(row["here"]) == (defaults(by_variant) or {"": field.default}), f"{name}.{field.name}"
            continue
        for variant, default in by_variant.items():  # a column for each variant instead
            cell = row[f"`{variant}`"]
            # a dash where the option plays no part in the variant
            assert cell == "-" or stated(cell)[""] == default, f"{name}.{field.name}: {variant}"


def option_rows(page: Path) -> list[dict[str, str]]:
    """The table of options of a page; cells by heading."""
    text = page.read_text(encoding="utf-8") + "\n\n"
    table = re.search(r"<!-- options: .*?-->\n\n(.*?)\n\n", text, re.DOTALL)
    if table is None:
        return []
    heading, _, *rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table[1].splitlines()
    ]
    return [dict(zip(heading, row, strict=True)) for row in rows]


def defaults(by_variant: dict[str, Any]) -> dict[str, Any]:
    """The default, and those of other variants where they differ: ``ema, central accumulated``."""
    if not by_variant:
        return {}
    first, *others = by_variant.items()
    return {"": first[1]} | {variant: value for variant, value in others if value != first[1]}


def stated(cell: str) -> dict[str, Any]:
    """The values in code, by the word before them; an unset one is told in words, or as a formula."""
    found = re.findall(r"(\w*)\s*`([^`]+)`", cell)
    return {word: read_yaml(code, "the page") for word, code in found} or {"": None}


def entries(text: str) -> dict[str, str]:
    """BibTeX entries by key."""
    found = [(match[1], match[0]) for match in re.finditer(r"(?ms)^@\w+\{([^,]+),.*?^\}$", text)]
    assert len(dict(found)) == len(found), "a key is there twice"
    return dict(found)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_the_reference_on_the_page_is_what_is_cited(name: str) -> None:
    shipped = entries((ROOT / "src/coterie/algorithms/references.bib").read_text(encoding="utf-8"))
    cited = [key.strip() for key in BUILT_IN[name].cites.split(",") if key.strip()]
    assert cited or name == "local", f"{name} cites nothing"
    assert set(cited) <= set(shipped)
    page = (DOCS / "algorithms" / f"{name}.md").read_text(encoding="utf-8")
    on_page = entries("".join(re.findall(r"```bibtex\n(.*?)```", page, re.DOTALL)))
    assert on_page == {key: shipped[key] for key in on_page}
    if on_page:  # else the page names those of other methods
        assert list(on_page) == cited


def test_the_overviews_list_every_algorithm() -> None:
    assert set(BUILT_IN) <= named(ROOT / "README.md")
    overview = (DOCS / "algorithms" / "index.md").read_text(encoding="utf-8")
    assert {name for name in BUILT_IN if f"({name}.md)" not in overview} == set()


@pytest.mark.parametrize(
    "section",
    [
        Config,
        NewcomersConfig,
        TrainingConfig,
        TuneConfig,
        RangeConfig,
        RayConfig,
        TrackingConfig,
        MlflowConfig,
        WandbConfig,
        FederationConfig,
    ],
)
def test_every_configuration_key_is_described(section: type[BaseModel]) -> None:
    keys = set(section.model_fields)
    assert keys <= named(DOCS / "reference" / "configuration.md")


def test_every_key_of_a_policy_is_described() -> None:
    keys = set(
        re.findall(r"^\| `(\w+)` \| .* \| .* \|$", (DOCS / "privacy.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert keys == set(Policy.model_fields)


def test_the_overview_of_what_leaves_a_site_names_every_method() -> None:
    page = (DOCS / "privacy.md").read_text(encoding="utf-8")
    listed = {name.strip() for row in re.findall(r"^\| (\w.*?) \|", page, re.MULTILINE) for name in row.split(",")}
    assert {cls.title for cls in BUILT_IN.values()} <= listed


def test_every_source_rule_and_model_is_described() -> None:
    configuration = named(DOCS / "reference" / "configuration.md")
    assert {*available_rules(), *available_models()} <= configuration
    assert set(available_sources()) <= named(DOCS / "reference" / "datasets.md")


def test_every_preset_is_described_with_its_cost() -> None:
    page = (DOCS / "reference" / "presets.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w./-]+)` \| .+? \| (.+? \| .*?) ?\|$", page, re.MULTILINE))
    costs = {preset.name: f"{preset.costs['full']} | {preset.costs.get('fast', '')}" for preset in available_presets()}
    assert rows == costs


def test_every_identity_and_claim_is_described() -> None:
    from coterie.contract import Claims
    from coterie.testing import IDENTITIES

    page = named(DOCS / "reference" / "conformance.md")
    assert {*IDENTITIES, *(field.name for field in fields(Claims))} <= page
