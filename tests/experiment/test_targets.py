"""Values to reach, in the metric in which a run is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.config import load_config
from coterie.errors import CoterieError
from coterie.experiment.setting import check_targets
from coterie.federation import Federation
from coterie.runs.table import caption


def test_errors_have_targets_in_their_own_unit(tmp_path: Path) -> None:
    inputs = np.arange(40.0).reshape(20, 2)
    federation = Federation.from_arrays(dict.fromkeys("ab", (inputs, inputs[:, 0])))
    quick: dict[str, Any] = {"algorithms": ["local"], "rounds": 1, "model": "linear", "page": False}
    result = coterie.run(
        federation, metric="rmse", targets=[123456789, 123456790], output=str(tmp_path / "run"), **quick
    )
    (row,) = result.rows
    assert row["rounds_to_target"] == {"123456789": 0.0, "123456790": 0.0}
    assert "Rounds to 123456789: local 0." in caption(result.rows)


def test_a_target_that_a_run_never_had_is_not_missed() -> None:
    common = {"metric": "accuracy", "report": "last", "seeds": [0]}
    rows = [
        {**common, "label": "local", "rounds_to_target": {"0.8": 12.0}},
        {**common, "label": "local (other)", "rounds_to_target": {"0.9": None}},
    ]
    for several in (rows, rows[::-1]):
        lines = caption(several)
        assert "Rounds to 0.8: local 12." in lines
        assert "Rounds to 0.9: not reached: local (other)." in lines


@pytest.mark.parametrize(
    ("task", "metric", "target", "message"),
    [
        ("classification", None, 70, "targets: 70 cannot be reached in accuracy: give numbers from 0 to 1"),
        ("classification", "brier", -0.1, "targets: -0.1 cannot be reached in brier: give numbers of at least 0"),
        ("regression", "r2", 1.5, "targets: 1.5 cannot be reached in r2: give numbers of at most 1"),
        ("regression", "mae:0", -5, "targets: -5 cannot be reached in mae:0: give numbers of at least 0"),
    ],
)
def test_targets_out_of_reach_are_refused(task: Any, metric: str | None, target: float, message: str) -> None:
    config = load_config({"federation": {"source": "digits", "partition": {"rule": "iid", "clients": 2}}})
    config = config.model_copy(update={"metric": metric, "targets": [target]})
    with pytest.raises(CoterieError, match=message):
        check_targets(config, task)
