"""A site's policy: what it refuses, in which words, and which keys it knows."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from coterie.config.explain import explain
from coterie.contract import Algorithm, make_algorithm, registry
from coterie.models import Models
from coterie.models.rows import Layout
from coterie.privacy import Policy, Refused

FEDORA, FEDAVG = make_algorithm("fedora"), make_algorithm("fedavg")
NOBODY: dict[str, torch.Tensor] = {}


@dataclass(frozen=True)
class Mine(Algorithm):
    name: ClassVar[str] = "mine"


@dataclass(frozen=True)
class Impostor(Algorithm):
    name: ClassVar[str] = "fedora"


def models(rows: int = 1, size: int = 10) -> Models:
    layout = Layout(("weight",), (), {"weight": torch.Size([size])}, frozenset(["weight"]))
    return Models(layout, {"weight": torch.zeros(rows, size)})


def sentence(**keys: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Policy(**keys)
    return explain(caught.value, keys, Policy)[1]


# --- keys ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"clipp": 1.0}, "unknown key clipp: did you mean clip?"),
        ({"clip": 0.0}, "clip must be greater than 0, not 0.0"),
        ({"clip": "1"}, "clip must be a number, not the text '1'"),
        ({"clip": float("inf")}, "clip must be a finite number, not inf"),
        ({"clip": 1.0, "noise": -1.0}, "noise must be greater than 0, not -1.0"),
        ({"delta": 1.0}, "delta must be less than 1, not 1.0"),
        ({"delta": 0.0}, "delta must be greater than 0, not 0.0"),
        ({"smallest_examples": 0}, "smallest_examples must be at least 1, not 0"),
        ({"summaries": 1}, "summaries must be true or false, not 1"),
        ({"algorithms": []}, "algorithms must not be empty"),
        ({"algorithms": ["fedoar"]}, "algorithms: algorithm 'fedoar' is unknown; did you mean 'fedora'?"),
        ({"noise": 1.0}, "noise needs clip, since the noise is measured by the largest change that may be sent"),
        (
            {"clip": 1.0, "epsilon": 3.0},
            "epsilon needs noise: without it every answer spends an infinite epsilon",
        ),
    ],
)
def test_wrong_keys(keys: dict[str, Any], said: str) -> None:
    assert sentence(**keys) == said


def test_a_policy_does_not_change() -> None:
    with pytest.raises(ValidationError):
        Policy().clip = 1.0  # type: ignore[misc]


def test_figures_of_evaluation_stay_where_answers_are_noised_unless_the_site_says_otherwise() -> None:
    assert Policy().sends_evaluation
    assert not Policy(evaluation=False).sends_evaluation
    assert not Policy(clip=1.0, noise=1.0).sends_evaluation
    assert Policy(clip=1.0, noise=1.0, evaluation=True).sends_evaluation


# --- methods -------------------------------------------------------------------------------------------------------
def test_by_default_every_method_of_the_package_and_no_other() -> None:
    policy = Policy()
    policy.check_algorithm("fedora")
    policy.check_algorithm("heurfedamp")
    policy.check_algorithm(FEDORA)
    for other in (Mine(), Impostor(), f"{__name__}:Mine"):
        with pytest.raises(Refused, match=r"^policy\.algorithms does not allow .*:(Mine|Impostor)$"):
            policy.check_algorithm(other)


def test_a_list_allows_what_is_on_it_only() -> None:
    policy = Policy(algorithms=["fedavg", "fedamp"])
    for name in ("fedavg", "fedamp", "heurfedamp", FEDAVG):
        policy.check_algorithm(name)
    for refused in ("fedora", FEDORA):
        with pytest.raises(Refused) as caught:
            policy.check_algorithm(refused)
        assert str(caught.value) == "policy.algorithms does not allow fedora"


def test_a_registered_method_of_another_package_is_allowed_by_name_or_place_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(registry._REGISTERED, "mine", Mine)
    for listed in ("mine", f"{__name__}:Mine"):
        for asked in ("mine", Mine()):
            Policy(algorithms=["built-in", listed]).check_algorithm(asked)
            with pytest.raises(Refused, match=r"^policy\.algorithms does not allow mine$"):
                Policy(algorithms=["built-in", "fedora"]).check_algorithm(asked)


def test_a_class_elsewhere_is_allowed_by_its_place() -> None:
    policy = Policy(algorithms=f"{__name__}:Mine")
    policy.check_algorithm(Mine())
    policy.check_algorithm(f"{__name__}:Mine")
    for other in (Impostor(), FEDORA, "fedora"):
        with pytest.raises(Refused):
            policy.check_algorithm(other)
    with pytest.raises(Refused):
        Policy(algorithms="fedora").check_algorithm(Impostor())


def test_a_refused_module_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for policy in (Policy(), Policy(algorithms="fedora"), Policy(algorithms=["built-in", "harmful:Other"])):
        with pytest.raises(Refused):
            policy.check_algorithm("harmful:Method")
    assert "harmful" not in sys.modules


# --- answers -------------------------------------------------------------------------------------------------------
BASIS, LOSS = torch.zeros(1, 10, 2), torch.zeros(1)
COUNTS = torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("keys", "answer", "said"),
    [
        ({"payloads": ["theta"]}, {"basis": BASIS}, "policy.payloads does not allow fedora to send basis"),
        ({"payloads": []}, {"theta": models()}, "policy.payloads does not allow fedora to send theta"),
        ({"summaries": False}, {"basis": BASIS}, "policy.summaries does not allow fedora to send basis"),
        ({"numbers": False}, {"loss": LOSS}, "policy.numbers does not allow fedora to send loss"),
        (
            {"clip": 1.0, "noise": 1.0},
            {"choice": COUNTS},
            "policy.noise cannot cover choice of fedora, which is no real number",
        ),
        (
            {"largest_megabytes": 0.00019},
            {"theta": models(size=48), "loss": LOSS},  # 4 (48 + 1) = 196 bytes
            "policy.largest_megabytes does not allow an answer of fedora of this size",
        ),
    ],
)
def test_refused_answers(keys: dict[str, Any], answer: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as caught:
        Policy(**keys).check_answer(answer, NOBODY, FEDORA)
    assert str(caught.value) == said


def test_allowed_answers() -> None:
    answer = {"theta": models(size=48), "loss": LOSS}
    Policy(payloads=["theta", "loss"], summaries=False).check_answer(answer, NOBODY, FEDORA)
    Policy(numbers=False).check_answer({"basis": BASIS, "theta": models()}, NOBODY, FEDORA)
    Policy(clip=1.0).check_answer({"choice": COUNTS}, NOBODY, FEDORA)
    Policy(largest_megabytes=0.000196).check_answer(answer, NOBODY, FEDORA)
    Policy(summaries=False, numbers=False, payloads=[]).check_answer({}, NOBODY, make_algorithm("local"))


def test_the_size_is_that_of_one_client_and_counts_addresses() -> None:
    policy = Policy(largest_megabytes=0.0002)
    policy.check_answer({"theta": models(rows=50, size=50)}, NOBODY, FEDAVG)
    with pytest.raises(Refused):
        policy.check_answer({"theta": models(size=50)}, {"theta": torch.zeros(1, 1, dtype=torch.int64)}, FEDAVG)


def test_too_few_examples_are_told_without_the_number() -> None:
    policy = Policy(smallest_examples=30)
    policy.check_examples(30)
    with pytest.raises(Refused) as caught:
        policy.check_examples(29)
    assert str(caught.value).startswith("policy.smallest_examples does not allow")
    assert not any(character.isdigit() for character in str(caught.value))
