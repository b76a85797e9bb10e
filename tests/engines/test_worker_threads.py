"""What one thread reads of the clients' state while another stages an attribute that nobody has yet."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coterie.engines import bank as banks
from coterie.engines.bank import SiteBank
from coterie.models import Stack, build_model

THETA = Stack(lambda: build_model("linear", (3,), 2), (3,)).initial(0)


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> SiteBank:
    """Two attributes are staged; each look at one of them stages a further one, as a worker may meanwhile."""
    found, clients, usual = SiteBank(4, THETA), torch.arange(2), (banks.finite_rows, banks.storages)
    found.set("a", clients, torch.ones(2), clients, 0)
    found.set("b", clients, torch.ones(2), clients, 0)

    def meanwhile(look: Any) -> Any:
        def looked(value: Any) -> Any:
            number = len(found._stages)
            found.set(f"new {number}", clients + 2, torch.ones(2), clients + 2, number)
            return look(value)

        return looked

    monkeypatch.setattr(banks, "finite_rows", meanwhile(usual[0]))
    monkeypatch.setattr(banks, "storages", meanwhile(usual[1]))
    return found


def test_whether_rows_are_finite(bank: SiteBank) -> None:
    assert bank.finite(torch.arange(2)).tolist() == [True, True]


def test_whether_a_value_is_a_state(bank: SiteBank) -> None:
    assert bank.same_storage(torch.ones(2), torch.arange(2)) is None
