"""From a stored model to the module that answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import CoterieError
from coterie.models.factory import build_model
from coterie.production.choice import Chosen
from coterie.production.graph import Mixture, Served, Units, served
from coterie.production.preprocessing import Preprocessing, schema_of

NEEDED = ("model", "task", "classes", "inputs")


def check_facts(chosen: Chosen) -> None:
    """Refuse a file that does not say how its model is built; raises CoterieError."""
    if missing := [key for key in NEEDED if key not in chosen.facts]:
        raise CoterieError(
            f"The model of {chosen.client} does not say its {missing[0]}: it was saved by an earlier version of "
            "Coterie; run the experiment again."
        )


def heard(mixture: Mapping[str, Any]) -> list[int]:
    """The candidates of a mixture that have a say: one without weight may have diverged and predict NaN."""
    return [i for i, weight in enumerate(mixture["weights"]) if weight != 0]


def opened(chosen: Chosen, *, logits: bool) -> tuple[Preprocessing, Served]:
    """What a client's model takes and gives, and the model with its preprocessing.

    Raises
    ------
    CoterieError
        The architecture cannot be built, or is not the one that the tensors are of; or the table's schema is damaged.
    """
    preprocessing = Preprocessing.of(chosen, schema_of(chosen), logits=logits)
    module = build(chosen, preprocessing)
    declared = (getattr(part, "codes", None) for part in module.modules())
    return replace(preprocessing, codes=next((codes for codes in declared if isinstance(codes, int)), None)), module


def build(chosen: Chosen, preprocessing: Preprocessing) -> Served:
    """The client's model with its preprocessing.

    Raises
    ------
    CoterieError
        The architecture cannot be built, or is not the one that the tensors are of.
    """
    facts, tensors = chosen.facts, chosen.stored.tensors
    mixture = facts.get("mixture")
    model: nn.Module
    if mixture is None:
        model = _module(chosen, tensors)
    else:
        weights, said = mixture["weights"], heard(mixture)
        candidates = [
            _module(chosen, {name: _candidate(tensor, i, len(weights), chosen) for name, tensor in tensors.items()})
            for i in said
        ]
        averaged = mixture["combine"] == "probabilities" and facts["task"] == "classification"
        model = Mixture(candidates, [weights[i] for i in said], probabilities=averaged)
    dtype = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    return served(
        model,
        facts["inputs"],
        preprocessing.features,
        units=Units(preprocessing.target_mean, preprocessing.target_std) if preprocessing.target_std else None,
        task=facts["task"],
        logits=preprocessing.output == "logits",
        dtype=dtype,
    )


def _module(chosen: Chosen, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module of the experiment's own class that holds the tensors."""
    facts: Mapping[str, Any] = chosen.facts
    spec = facts["model"]
    with torch.random.fork_rng(devices=[]):  # its initial weights are replaced at once
        module = build_model(spec["name"], facts["inputs"]["shape"], facts["classes"], facts["task"], **spec["options"])
    floating = next((tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()), torch.float32)
    module = module.to(floating)
    own = module.state_dict()
    if not tensors.keys() <= own.keys() or any(own[name].shape != tensor.shape for name, tensor in tensors.items()):
        raise CoterieError(
            f"The stored model of {chosen.client} is no {spec['name']} with these options: its code has changed since "
            "the run, or the file is damaged."
        )
    module.load_state_dict({**own, **tensors})
    return module


def _candidate(tensor: Tensor, number: int, count: int, chosen: Chosen) -> Tensor:
    if tensor.ndim == 0 or len(tensor) != count:
        raise CoterieError(
            f"The stored model of {chosen.client} is damaged: it has not {count} candidates; run the experiment again."
        )
    return tensor[number]
