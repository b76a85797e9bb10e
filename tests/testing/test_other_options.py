"""The identities that every method keeps are kept by its other options as well, not by its defaults alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coterie.testing.check import finding_of, subjects_of
from coterie.testing.subject import Subject

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("apfl", {"alpha_update": "every_batch", "penalty": 0.1}),
    ("cfl", {"weights": "samples"}),
    ("ditto", {"personal_epochs": 1, "weights": "uniform"}),
    ("fedamp", {"variant": "attention", "sigma_relative": False}),
    ("fedavgm", {"nesterov": True, "server_lr": 0.5}),
    ("feddwa", {"guidance": "last_model", "topk": 2}),
    ("feddwa", {"guidance": "full_gradient"}),
    ("feddyn", {"weights": "samples"}),
    ("fedem", {"damped": True}),
    ("federico", {"variant": "decentralised", "step": "gradient", "neighbours": 2}),
    ("federico", {"variant": "decentralised", "warm_up": 2, "loss_scale": "mean"}),
    ("federico", {"variant": "central", "owner": "adam"}),
    ("fedfomo", {"baseline": "before_training", "revert": True, "available": "latest", "affinity": "shares"}),
    ("fedora", {"variant": "paper", "similarity": "parameters"}),
    ("fedora", {"variant": "paper", "similarity": "gradients"}),
    ("fedora", {"variant": "released", "exact": True, "alpha": float("inf")}),
    ("fedper", {"head_layers": 2}),
    ("fedrep", {"head_epochs": 2, "body_epochs": 2}),
    ("fedu", {"similarity": "constant", "stale": "round"}),
    ("fesem", {"members": "answered", "recluster": 2, "predict": "centre"}),
    ("hypcluster", {"warm_up": 2, "weights": "uniform"}),
    ("ifca", {"averaging": "gradient"}),
    ("l2c", {"missing": "cached"}),
    ("lg-fedavg", {"warm_start": 2}),
    ("mocha", {"omega": "learned", "lambda2": 0.1}),
    ("pfedhn", {"layers": 0, "steps": 3}),
    ("pfedme", {"warm_start": True, "local_steps": 3, "mu": 0.01}),
    ("scaffold", {"control": "gradient", "weights": "samples"}),
    ("sfl", {"graph": "uniform", "stale": "round"}),
]
OF_ALL = [("feddyn", "weights"), ("fedem", "damped"), ("scaffold", "weights")]
"""Options by which clients count with n_k / n of all, whoever answers: the size of who is away is felt."""
IDENTITIES = ["relabelled", "rows", "resumed", "participation", "absent", "storage"]


def subject_of(name: str, options: dict[str, Any]) -> Subject:
    """The method whose toy runs have these options."""
    stated = dict(options)
    variant = stated.pop("variant", None)
    (subject,) = (each for each in subjects_of(name) if each.variant == variant)
    claims = replace(subject.claims, toy={**subject.claims.toy, **stated})
    return Subject(type(subject.cls.__name__, (subject.cls,), {"claims": claims}), variant)


CASES = [
    pytest.param(name, options, identity, id=f"{name}-{options}-{identity}")
    for name, options in OPTIONS
    for identity in IDENTITIES
    if not (identity == "absent" and any((name, option) in OF_ALL for option in options))
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "options", "identity"), CASES)
def test_identity(name: str, options: dict[str, Any], identity: str) -> None:
    finding = finding_of(subject_of(name, options), identity)
    assert finding.verdict == "holds", str(finding)
