"""Parameters that no training moves: no method moves them either, nor lets them tell clients apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rounds_by_hand import EVERYBODY, begun

from coterie.relations import cosine_attention, cosines
from toys import BATCHES, HALF_FROZEN, run

FROZEN = ("0.weight", "0.bias")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mocha", {}),
        ("mocha", {"lambda2": 0.1}),
        ("mocha", {"omega": "learned", "every": 1, "lambda1": 0.5, "lambda2": 0.1}),
        ("pfedme", {"mu": 0.5}),
        ("pfedme", {"mu": 0.5, "warm_start": True}),
        ("fedu", {}),
        ("l2gd", {}),
        ("sfl", {}),
        ("fedamp", {}),
    ],
)
def test_frozen_parameters_stay(name: str, options: dict[str, Any]) -> None:
    sim = begun(name, 3, EVERYBODY, model=HALF_FROZEN, training=BATCHES, absent={1: ["client-1"]}, **options)
    first = sim.server.initial_model()
    run(sim)
    models = sim.report_models()
    for part in FROZEN:
        torch.testing.assert_close(
            models.tensors[part], first.tensors[part].expand_as(models.tensors[part]), rtol=1e-12, atol=1e-12
        )
    assert not torch.equal(models.tensors["2.weight"][0], first.tensors["2.weight"][0])


def test_the_angle_between_models_is_that_of_what_is_trained() -> None:
    sim = begun("heurfedamp", 2, EVERYBODY, model=HALF_FROZEN, training=BATCHES)
    sim.advance()
    models = sim.server.w
    expected = cosine_attention(cosines([models.tensors["2.weight"], models.tensors["2.bias"]]), 0.1, 10.0)
    sim.advance()
    torch.testing.assert_close(sim.algorithm.relations(sim.server)["xi"], expected, rtol=1e-12, atol=1e-12)


def test_mochas_covariance_is_that_of_what_is_trained() -> None:
    sim = begun("mocha", 1, EVERYBODY, model=HALF_FROZEN, training=BATCHES, omega="learned", every=1, lambda1=0.0)
    run(sim)
    rows = torch.cat([sim.server.w.tensors[name].flatten(1) for name in ("2.weight", "2.bias")], dim=1)
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    root = vectors @ torch.diag(values.clamp(min=0.0).sqrt()) @ vectors.T
    torch.testing.assert_close(sim.server.sigma, root / root.trace(), rtol=1e-4, atol=1e-4)
