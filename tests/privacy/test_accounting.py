"""What noised answers give away: against the closed form, another accountant, and a crash."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from scipy.optimize import brentq

from coterie.contract import make_algorithm
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.models.rows import Layout
from coterie.privacy import Accountant, Gate, Policy, Refused


def policy(noise: float = 2.0, **keys: Any) -> Policy:
    return Policy(clip=1.0, noise=noise, **keys)


def spent(folder: Path, answers: int, noise: float = 2.0, **keys: Any) -> Accountant:
    accountant = Accountant(folder, policy(noise, **keys))
    for _ in range(answers):
        accountant.spend()
    return accountant


def delta_of(epsilon: float, mu: float) -> float:
    """Balle & Wang, Theorem 8, for noise of 1 / mu times the distance."""
    first = torch.special.log_ndtr(torch.tensor(mu / 2 - epsilon / mu, dtype=torch.float64)).exp()
    second = (epsilon + torch.special.log_ndtr(torch.tensor(-mu / 2 - epsilon / mu, dtype=torch.float64))).exp()
    return float(first - second)


# --- epsilon ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("noise", "answers"), [(2.0, 1), (2.0, 9), (20.0, 1), (20.0, 25), (200.0, 7)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_epsilon_is_that_of_the_gaussian_mechanism(tmp_path: Path, noise: float, answers: int, delta: float) -> None:
    accountant = spent(tmp_path, answers, noise)
    mu = 2 * answers**0.5 / noise  # two answers are 2 clip apart
    expected = brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 0, 200, xtol=1e-12)
    assert accountant.epsilon(delta) == pytest.approx(expected, rel=1e-6)


def test_one_answer_at_multiplier_one_costs_what_is_published(tmp_path: Path) -> None:
    """Sensitivity 1, sigma 1, delta 1e-5: epsilon 4.377 (the optimal sigma of Balle & Wang)."""
    assert spent(tmp_path, 1).epsilon(1e-5) == pytest.approx(4.377178, abs=1e-6)


def test_another_accountant_says_the_same(tmp_path: Path) -> None:
    ours = spent(tmp_path, 12, noise=10.0).epsilon(1e-5)
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(10.0 / 2), 12)
    by_distribution = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    by_renyi = dp_accounting.rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    assert by_distribution == pytest.approx(ours, rel=1e-3)
    assert ours <= by_renyi < 1.2 * ours  # a bound, not an equality


def test_epsilon_grows_with_answers_and_shrinks_with_noise_and_delta(tmp_path: Path) -> None:
    accountant = Accountant(tmp_path, policy())
    assert accountant.epsilon() == 0
    ahead = [accountant.epsilon(more=more) for more in range(6)]
    assert ahead == sorted(set(ahead))
    spending = [accountant.spend() for _ in range(5)]
    assert spending == pytest.approx(ahead[1:], rel=1e-12)
    assert accountant.answers == 5
    assert accountant.epsilon(1e-7) > accountant.epsilon(1e-5) > accountant.epsilon(1e-3)
    (tmp_path / "louder").mkdir()
    assert spent(tmp_path / "louder", 5, noise=4.0).epsilon() < accountant.epsilon()


def test_answers_of_before_a_change_of_the_noise_count_by_the_noise_they_had(tmp_path: Path) -> None:
    spent(tmp_path, 3, noise=4.0)
    accountant = spent(tmp_path, 2, noise=8.0)
    assert accountant.answers == 5
    mu = 2 * (3 / 4.0**2 + 2 / 8.0**2) ** 0.5
    assert delta_of(accountant.epsilon(1e-5), mu) == pytest.approx(1e-5, rel=1e-6)


def test_the_budget(tmp_path: Path) -> None:
    limit = Accountant(tmp_path, policy(noise=10.0)).epsilon(more=3) + 1e-9
    accountant = spent(tmp_path, 3, noise=10.0, epsilon=limit)
    before = accountant.path.read_bytes()
    for _ in range(2):
        with pytest.raises(Refused, match=r"^policy\.epsilon does not allow another answer: the budget is spent$"):
            accountant.spend()
    assert accountant.path.read_bytes() == before
    assert accountant.epsilon() <= limit < accountant.epsilon(more=1)


def test_the_table_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
    answers = [int(n) for n in re.findall(r"\d+", re.search(r"^\| `noise` \| (1 answer.*) \|$", page, re.MULTILINE)[1])]  # type: ignore[index]
    rows = re.findall(r"^\| (\d+) \| ([\d. |]+) \|$", page, re.MULTILINE)
    assert len(rows) == len(answers) == 4
    for noise, cells in rows:
        accountant = Accountant(tmp_path, policy(float(noise)))
        assert cells.split(" | ") == [f"{accountant.epsilon(more=more):.2f}" for more in answers]


# --- the file --------------------------------------------------------------------------------------------------------
def test_the_count_outlives_the_process(tmp_path: Path) -> None:
    spent(tmp_path, 4)
    assert Accountant(tmp_path, policy()).answers == 4
    assert json.loads((tmp_path / "privacy.json").read_text()) == {"answers": [{"noise": 2.0, "count": 4}]}


def test_a_crash_in_the_middle_of_a_write_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accountant = spent(tmp_path, 2)

    def crash(*paths: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            accountant.spend()
    assert accountant.answers == 2
    (tmp_path / ".privacy.json.partial").write_text('{"answers": [{"noi')  # what a kill leaves
    assert Accountant(tmp_path, policy()).answers == 2
    accountant.spend()
    assert accountant.answers == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"answers": [{"noi',
        "[]",
        '{"answers": 3}',
        '{"answers": [{"noise": 0.0, "count": 1}]}',
        '{"answers": [{"noise": 2.0, "count": -1}]}',
        '{"answers": [{"noise": 2.0, "count": 1}, {"noise": 2.0, "count": 1}]}',
    ],
)
def test_an_account_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "privacy.json").write_text(text)
    accountant = Accountant(tmp_path, policy())
    for ask in (accountant.spend, accountant.epsilon):
        with pytest.raises(CoterieError, match="cannot be read, so nothing more may leave"):
            ask()
    assert (tmp_path / "privacy.json").read_text() == text


def _spend_many(folder: Path) -> None:
    spent(folder, 10)


def test_two_processes_at_once_are_both_counted(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_spend_many, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert Accountant(tmp_path, policy()).answers == 30


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CoterieError, match=r"needs policy\.noise"):
        Accountant(tmp_path, Policy(clip=1.0))
    with pytest.raises(CoterieError, match="must be a folder that the site can write to"):
        Accountant(tmp_path / "nowhere", policy()).spend()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setattr("coterie.privacy.accounting.find_spec", lambda name: None)
    with pytest.raises(CoterieError, match=r"pip install 'coterie\[privacy\]'$"):
        Accountant(tmp_path, policy())


# --- the gate --------------------------------------------------------------------------------------------------------
LAYOUT = Layout(("weight",), (), {"weight": torch.Size([4])}, frozenset(["weight"]))
FEDAVG = make_algorithm("fedavg")
INITIAL = Models(LAYOUT, {"weight": torch.zeros(1, 4)})
TRAINED = Models(LAYOUT, {"weight": torch.full((1, 4), 10.0)})


def test_the_gate_filters_and_counts(tmp_path: Path) -> None:
    gate = Gate(policy(noise=1e-3), tmp_path)
    gate.admit("fedavg", 10)
    answer, done = gate.release(FEDAVG, {"w": INITIAL}, {"w": TRAINED}, {}, INITIAL)
    assert answer["w"].tensors["weight"].tolist()[0] == pytest.approx([0.5] * 4, abs=0.01)  # type: ignore[union-attr]
    assert done.shares.tolist() == pytest.approx([0.05])
    assert gate.accountant is not None
    assert gate.accountant.answers == 1
    assert gate.release(make_algorithm("local"), {}, {}, {}, INITIAL)[0] == {}
    assert gate.accountant.answers == 1  # nothing was said


def test_the_gate_refuses_without_spending(tmp_path: Path) -> None:
    gate = Gate(policy(payloads=["theta"], smallest_examples=5, algorithms="fedavg"), tmp_path)
    with pytest.raises(Refused, match=r"^policy\.payloads"):
        gate.release(FEDAVG, {"w": INITIAL}, {"w": TRAINED}, {}, INITIAL)
    with pytest.raises(Refused, match=r"^policy\.algorithms"):
        gate.admit("fedora", 10)
    with pytest.raises(Refused, match=r"^policy\.smallest_examples"):
        gate.admit("fedavg", 4)
    assert gate.accountant is not None
    assert gate.accountant.answers == 0


def test_the_gate_keeps_back_what_would_exceed_the_budget(tmp_path: Path) -> None:
    gate = Gate(policy(epsilon=5.0), tmp_path)  # one answer costs 4.38
    gate.release(FEDAVG, {"w": INITIAL}, {"w": TRAINED}, {}, INITIAL)
    with pytest.raises(Refused, match=r"^policy\.epsilon"):
        gate.release(FEDAVG, {"w": INITIAL}, {"w": TRAINED}, {}, INITIAL)


def test_a_gate_without_noise_keeps_no_account(tmp_path: Path) -> None:
    gate = Gate(Policy(), tmp_path)
    assert gate.accountant is None
    assert gate.release(FEDAVG, {"w": INITIAL}, {"w": TRAINED}, {}, INITIAL)[0]["w"] is TRAINED
    assert list(tmp_path.iterdir()) == []
