"""A schedule gives each round a rate: whatever a method takes from the learning rate, it takes from that of the round."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.contract import available_algorithms
from coterie.testing.check import subjects_of
from coterie.testing.subject import MOMENTUM, Subject, predicted, run
from coterie.testing.toys import RAGGED
from coterie.training import Schedule

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "apfl": [{}, {"lr_alpha": None, "alpha_update": "every_batch"}],
    "feddwa": [{}, {"guidance": "full_gradient"}],
    "fedora": [{}, {"lambda_rule": "constant", "lambda": 1e6}],  # cut to what the rate allows
    "ifca": [{}, {"averaging": "gradient"}],
    "per-fedavg": [{}, {"alpha": None}],
}
"""Ways in which a method may depend on the rate, beside its defaults."""
CASES = [
    (subject, options)
    for cls in available_algorithms().values()
    for subject in subjects_of(cls)
    for options in OPTIONS.get(cls.name, [{}])
]


@pytest.mark.parametrize(("subject", "options"), CASES, ids=[f"{s.name}-{o}" for s, o in CASES])
def test_a_round_of_a_schedule_is_one_at_its_rate(subject: Subject, options: dict[str, Any]) -> None:
    """Round 3 at half the rate of the first two, bit for bit: by a schedule, and in a run that has half the rate."""
    begun = subject.simulation(RAGGED, options, rounds=2)
    run(begun)
    ends = []
    for training in (
        replace(MOMENTUM, schedule=Schedule("step", milestones=(2,), factor=0.5)),
        replace(MOMENTUM, lr=MOMENTUM.lr / 2),
        MOMENTUM,
    ):
        sim = subject.simulation(RAGGED, options, rounds=3, training=training)
        sim.load_state_dict(deepcopy(begun.state_dict()))
        sim.advance()
        ends.append(predicted(sim))
    assert torch.equal(ends[0], ends[1])
    unfelt = subject.name == "federico (central)"  # its owners step at a rate of their own
    assert torch.equal(ends[0], ends[2]) is unfelt
