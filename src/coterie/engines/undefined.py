"""Which metrics the clients' own data leave without a value, whatever is predicted, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from coterie.evaluation.catalogue import all_metrics
from coterie.evaluation.further import reasons
from coterie.federation import Federation

Undefined = Mapping[str, Mapping[str, Mapping[str, str]]]
"""By split, metric and client, a sentence without its full stop, such as "only class 0 in its test data"."""


def undefined(federation: Federation, further: Sequence[str]) -> Undefined:
    """What the validation and test data of a federation do not define; splits that nobody has are left out."""
    names = all_metrics(federation.task, federation.classes, further)
    found: dict[str, dict[str, dict[str, str]]] = {}
    for split in ("validation", "test"):
        data = federation.split(split)
        if data.total == 0:
            continue
        positions = torch.arange(data.total, device=data.offsets.device) + data.offsets[0]
        targets = data.targets[data.rows(positions)].cpu().numpy()
        owners = data.owners().cpu().numpy()
        by_number = reasons(
            names, federation.task, federation.classes, targets, owners, data.k, split, data.own_weights
        )
        found[split] = {
            metric: {federation.names[client]: reason for client, reason in own.items()}
            for metric, own in by_number.items()
        }
    return {split: metrics for split, metrics in found.items() if metrics}
