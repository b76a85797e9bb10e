"""Every registered method keeps every identity: what `check_algorithm` asks, of all of them, one test for each question."""

from __future__ import annotations

import pytest

from coterie.contract import available_algorithms
from coterie.testing import IDENTITIES
from coterie.testing.check import CLAIMED, finding_of, subjects_of
from coterie.testing.subject import Subject

SUBJECTS = [subject for cls in available_algorithms().values() for subject in subjects_of(cls)]


# what the engines see to whatever a method does, and so what seldom breaks
SELDOM = {"chunks", "executors", "storage", "without validation", "sizes", "participation", "absent", "evaluated"}


@pytest.mark.parametrize(
    "identity", [pytest.param(name, marks=[pytest.mark.full] if name in SELDOM else []) for name in IDENTITIES]
)
@pytest.mark.parametrize("subject", SUBJECTS, ids=[subject.name for subject in SUBJECTS])
def test_identity(subject: Subject, identity: str) -> None:
    finding = finding_of(subject, identity)
    assert finding.verdict != "broken", str(finding)


ANCHORED = {"ditto", "fedamp (attention)", "fedamp (heuristic)", "fedora (paper)", "fedora (released)"}
UNCLAIMED = {
    "anchored": {subject.name for subject in SUBJECTS} - ANCHORED,
    "limits": {"fedavg", "feddyn", "federico (central)", "l2gd", "local", "pfedhn", "scaffold"},
    "objective": {
        "federico (central)", "federico (decentralised)", "l2c", "l2gd", "per-fedavg (fo)", "per-fedavg (hf)", "pfedme",
    },
}  # fmt: skip
"""Of these what the identity asks stands worked out by hand, in tests/algorithms."""


@pytest.mark.parametrize("identity", CLAIMED)
def test_no_claim_gets_lost(identity: str) -> None:
    """What is not claimed is not asked, and no other test fails then: whoever takes a claim away says so here."""
    claims = {subject.name: subject.claims for subject in SUBJECTS}
    silent = {
        name for name, own in claims.items() if not getattr(own, CLAIMED[identity]) and identity not in own.exempt
    }
    assert silent == UNCLAIMED[identity]


@pytest.mark.parametrize("cls", available_algorithms().values(), ids=list(available_algorithms()))
def test_exemptions_are_few_and_explained(cls: type) -> None:
    for subject in subjects_of(cls):
        assert len(subject.claims.exempt) <= 3
        assert all(len(reason) > 20 for reason in subject.claims.exempt.values())
