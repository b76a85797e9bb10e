"""All about one method, and what to cite."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cli_helpers import coterie, error_of, tiny

from coterie.contract import Algorithm, Traffic, available_algorithms
from coterie.experiment.catalogue import algorithm_cards
from coterie.experiment.traffic import CLASSES, CLIENTS, FEATURES, MODEL, measured_traffic
from coterie.models import Stack, build_model
from coterie.testing.identities.traffic import Circumstances

SYSTEMS = [
    (name, variant)
    for name, cls in available_algorithms().items()
    if cls.__module__.startswith("coterie.algorithms")
    for variant in list(cls.variants) or [None]
]


def circumstances(algorithm: Algorithm) -> Circumstances:
    build = partial(build_model, MODEL.name, (FEATURES,), CLASSES, "classification", **MODEL.options)
    return Circumstances(algorithm, CLIENTS, CLIENTS, Stack(build, (FEATURES,)).layout)


def claimed(traffic: Traffic, at: Circumstances) -> list[float]:
    amounts = (traffic.down, traffic.up, traffic.peers)
    return [float(amount(at) if callable(amount) else amount) for amount in amounts]


@pytest.mark.parametrize(("name", "variant"), SYSTEMS)
def test_measured_traffic_is_what_the_method_claims(name: str, variant: str | None) -> None:
    cls = available_algorithms()[name]
    claims = cls.claims_of(variant)
    rows = {row["when"]: [row["down"], row["up"], row["peers"]] for row in measured_traffic(cls, variant)}
    at = circumstances(cls() if variant is None else cls(variant=variant))  # type: ignore[call-arg]
    if "traffic" in claims.exempt:
        assert rows  # measured, and by definition not the same in every round
        return
    later = [amounts for when, amounts in rows.items() if when.startswith(("each", "from"))]
    assert later == [pytest.approx(claimed(claims.traffic, at))]
    if claims.first_traffic is not None:
        assert next(
            amounts for when, amounts in rows.items() if when.startswith(("round 1", "rounds 1 to"))
        ) == pytest.approx(claimed(claims.first_traffic, at))


def test_a_method_is_explained() -> None:
    text = coterie("algorithms", "pgfed").stdout
    words = (
        "ICCV 2023",
        "round 1",
        "from round 2",
        "paper's value",
        "strength μ",
        "evaluation mode",
        "coterie cite pgfed",
    )
    assert all(word in text for word in words)
    assert "docs/algorithms/pgfed.md" in text


def test_choices_and_variants_of_options() -> None:
    card = json.loads(coterie("algorithms", "fedora", "--json").stdout)
    options = {option["name"]: option for option in card["options"]}
    assert options["kind"]["choices"] == ["cos", "exp_cos"]
    assert options["kind"]["variants"] == {"released": "exp_cos", "paper": "cos"}
    assert options["prox_place"]["choices"] == ["gradient", "after_momentum", "after_step"]
    assert options["rank"]["choices"] == []
    assert options["epsilon"]["paper"] == "1e-8"
    assert set(card["traffic"]["rows"]) == {"released", "paper"}
    assert card["deviations"]
    assert card["cites"] == ["wu2023personalized"]


def test_every_method_has_an_idea_in_one_line() -> None:
    cards = algorithm_cards()
    ideas = {card["name"]: card["idea"] for card in cards}
    assert all(idea and "\n" not in idea for idea in ideas.values())
    assert ideas["ditto"] == "a personal model pulled towards the global one"
    assert ideas["fedavg-ft"] == "FedAvg, then per-client tuning of the global model at evaluation"
    assert all("traffic" not in card for card in cards)


@dataclass(frozen=True)
class Broken(Algorithm):
    """Fails whatever it is asked."""

    title: ClassVar[str] = "Broken"

    def round(self, server: Any, cohort: Any) -> None:
        raise ZeroDivisionError("nobody is there")


def test_a_method_that_cannot_be_measured_is_still_listed() -> None:
    result = coterie("algorithms", f"{__name__}:Broken")
    assert result.exit_code == 0
    assert "not measured: ZeroDivisionError: nobody is there" in result.stdout


def test_cite_prints_each_entry_once() -> None:
    result = coterie("cite", "fedprox-ft", "fedavg-ft", "pgfed", "pgfedmo")
    assert result.exit_code == 0
    keys = [line.split("{")[1].rstrip(",") for line in result.stdout.splitlines() if line.startswith("@")]
    assert keys == ["li2020federated", "wang2019federated", "luo2023pgfed"]
    entries = json.loads(coterie("cite", "ditto", "--json").stdout)
    assert list(entries) == ["li2021ditto"]
    assert entries["li2021ditto"] + "\n" == coterie("cite", "ditto").stdout


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_cite_says_what_has_no_paper() -> None:
    result = coterie("cite", "local", "ditto")
    assert result.stderr == "note: local has no paper to cite.\n"
    assert result.stdout.startswith("@inproceedings{li2021ditto,")


def test_cite_takes_a_method_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ditto").mkdir()
    (tmp_path / "heurfedamp").mkdir()
    monkeypatch.chdir(tmp_path)
    assert coterie("cite", "ditto").stdout.startswith("@inproceedings{li2021ditto,")
    assert coterie("cite", "heurfedamp").stdout == coterie("cite", "fedamp").stdout


class Leaves(Broken):
    """It ends the process."""

    def round(self, server: Any, cohort: Any) -> None:
        sys.exit(3)


def test_code_that_ends_the_process_is_a_finding_or_one_sentence(tmp_path: Path) -> None:
    result = coterie("check", f"{__name__}:Leaves", "--only", "seeded")
    assert result.exit_code == 1
    assert "it called sys.exit" in result.stdout
    words = ["-s", f"algorithms=[{__name__}:Leaves]", "--output", tmp_path / "run", "--quiet"]
    assert "called sys.exit" in error_of(coterie("run", tiny(tmp_path), *words))


def test_cite_suggests_the_nearest_name() -> None:
    assert error_of(coterie("cite", "dito")).endswith("did you mean 'ditto'?")


@pytest.mark.filterwarnings("default::coterie.errors.CoterieWarning")
def test_cite_the_methods_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert coterie("run", tiny(tmp_path), "-s", "rounds=1", "--output", run, "--quiet").exit_code == 0
    assert coterie("cite", run).stdout == coterie("cite", "ditto").stdout
    assert "is not a run directory" in error_of(coterie("cite", tmp_path))


def test_findings_for_programs_are_json_and_with_quiet_what_is_broken_only() -> None:
    words = ("check", "local", f"{__name__}:Broken", f"{__name__}:Broken", "--only", "alone", "--json")
    findings = json.loads(coterie(*words, "--debug").stdout)
    assert [(finding["method"], finding["verdict"]) for finding in findings] == [
        ("local", "holds"),
        ("Broken", "broken"),
    ]
    assert "ZeroDivisionError" in findings[1]["traceback"]
    result = coterie(*words, "--quiet")
    assert result.exit_code == 1
    assert [finding["verdict"] for finding in json.loads(result.stdout)] == ["broken"]


@pytest.mark.parametrize("words", [("ditto",), ("--all",), ("--only", "alone")])
def test_the_list_of_questions_is_of_no_method(words: tuple[str, ...]) -> None:
    said = error_of(coterie("check", "--list", *words))
    assert said == "--list prints what all methods are asked: leave out METHOD, --all and --only."
