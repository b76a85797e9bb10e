"""Every method with a gate at its clients: a wide bound changes nothing, and noise reaches all that can take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.contract import Site, ToPeers, available_algorithms
from coterie.engines import Simulation
from coterie.engines.sites import Sites, initial_seed
from coterie.federation.federation import Federation
from coterie.models import Models
from coterie.privacy import Gate, Policy, Refused
from coterie.testing.check import subjects_of
from coterie.testing.subject import Subject, models_of, run
from coterie.testing.toys import classified
from coterie.training import TrainingSettings

SUBJECTS = [
    subject
    for cls in available_algorithms().values()
    if cls.__module__.startswith("coterie.algorithms.")
    for subject in subjects_of(cls)
]
WHOLE_NUMBERS = {"ifca": "choice", "hypcluster": "choice"}
GENTLE = TrainingSettings(epochs=1, batch_size=4, lr=0.01)


class GatedSites(Sites):
    """What client methods return passes a gate."""

    gate: Gate
    initial: Models

    def _call(self, method: Callable[..., Any], site: Site, payload: Mapping[str, Any]) -> dict[str, Any]:
        returned = super()._call(method, site, payload)
        peers = {name: value.index for name, value in returned.items() if isinstance(value, ToPeers)}
        values = {name: value.value if isinstance(value, ToPeers) else value for name, value in returned.items()}
        after, _ = self.gate.release(self.algorithm, payload, values, peers, self.initial)
        return {name: ToPeers(value, peers[name]) if name in peers else value for name, value in after.items()}


class Gated(Simulation):
    side = GatedSites


def gated(subject: Subject, federation: Federation, policy: Policy, folder: Path) -> Simulation:
    sim = subject.simulation(federation, engine=Gated, rounds=3, training=GENTLE)
    assert isinstance(sim.sites, GatedSites)
    sim.sites.gate, sim.sites.initial = Gate(policy, folder), sim.stack.initial(initial_seed(sim.settings))
    return sim


@pytest.fixture(scope="module")
def federation() -> Federation:
    return classified()


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_a_wide_bound_changes_nothing(subject: Subject, federation: Federation, tmp_path: Path) -> None:
    plain = subject.simulation(federation, rounds=3, training=GENTLE)
    wide = gated(subject, federation, Policy(clip=1e9), tmp_path)
    run(plain)
    run(wide)
    there = models_of(wide)
    for name, models in models_of(plain).items():
        for key, tensor in models.tensors.items():
            assert torch.allclose(tensor, there[name].tensors[key], rtol=1e-9, atol=1e-11), f"{name}, {key}"


@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_noise_reaches_what_leaves(subject: Subject, federation: Federation, tmp_path: Path) -> None:
    sim = gated(subject, federation, Policy(clip=1e-3, noise=1e-3), tmp_path)
    assert isinstance(sim.sites, GatedSites)
    if subject.cls.name in WHOLE_NUMBERS:
        with pytest.raises(Refused, match=f"policy.noise cannot cover {WHOLE_NUMBERS[subject.cls.name]} of"):
            run(sim)
        return
    run(sim)
    accountant = sim.sites.gate.accountant
    assert accountant is not None
    assert (accountant.answers > 0) == (subject.cls.name != "local")
