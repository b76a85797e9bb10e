"""What the page says of the systems in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.reports.page.summary import verdict


def row(
    label: str, metric: str, mean: float, ptr: float | None = None, harmed: int = 0, of: int = 10
) -> dict[str, Any]:
    gain = None if metric != "accuracy" else 100 * (mean - 0.5)
    return {
        "label": label, "metric": metric, f"{metric}_mean": mean, "ptr": ptr, "gain_mean": gain, "harmed": harmed,
        "compared": of, "clients": of, "seeds": [0], "reference": label == "local",
    }  # fmt: skip


@pytest.mark.parametrize(("metric", "better"), [("accuracy", 0.6), ("mae", 0.4), ("r2", 0.6)])
def test_who_keeps_its_own_model_is_not_the_best(metric: str, better: float) -> None:
    rows = [row("local", metric, 0.5, 1.0), row("guard", metric, 0.5, 1.0), row("fedora", metric, better, 0.9, 1)]
    assert verdict(rows)[0].startswith("With fedora, 90 % of the clients end no worse off than alone")


def test_all_and_none_are_said_only_where_it_is_so() -> None:
    few = [row("local", "accuracy", 0.5, 1.0, of=3000), row("fedora", "accuracy", 0.6, 0.997, 9, 3000)]
    assert verdict(few)[0].startswith("With fedora, 99 % of")
    rows = [*few, row("ditto", "accuracy", 0.7, 1.0, of=3000)]
    first, second = verdict(rows)
    assert first.startswith("With ditto, 100 % of")
    assert second == "With fedora, less than 1 % are worse off."
