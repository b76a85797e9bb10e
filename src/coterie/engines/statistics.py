"""Where the models' buffers (batch statistics) live: averaged with the models, at the clients, or at the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from coterie.contract import Site
from coterie.engines.bank import SiteBank
from coterie.models import Models

_OWN = "own buffers"  # no attribute of a site can have this name


class Statistics:
    """Applies the policy ``buffers`` of the settings to what clients receive and return.

    ``average``: buffers travel with the models. ``local``: a client puts its own ones, those of the last model that it
    returned, into every model that it receives. ``server``: the server's ones never change, and come with its models.
    Under the last two no buffer of a client leaves it; the server sees the initial ones.
    """

    def __init__(self, bank: SiteBank, theta: Models) -> None:
        layout = replace(theta.layout, parameters=())
        self._initial = Models(layout, {name: theta.tensors[name] for name in layout.buffers})
        self._active = bool(layout.buffers) and layout.policy != "average"
        self._local = self._active and layout.policy == "local"
        if self._local:
            bank.column(_OWN, default=self._initial)

    def arrive(self, site: Site, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the clients see of ``values``."""
        if not self._local:
            return dict(values)
        own = getattr(site, _OWN)
        return {name: _with(value, own) for name, value in values.items()}

    def leave(self, site: Site, values: Mapping[str, Any], peers: Mapping[str, Tensor]) -> dict[str, Any]:
        """What leaves the clients of ``values``; under ``local`` their buffers stay behind as state.

        Of what goes to ``peers``, ``(k, m)`` numbers by name, a client keeps those of the model that is its own.
        """
        if not self._active:
            return dict(values)
        for name, value in values.items():
            if not (self._local and isinstance(value, Models) and value.layout.buffers):
                continue
            own = value if len(value.lead) == 1 else _addressed_to(site.clients, value, peers.get(name))
            if own is not None:
                before = getattr(site, _OWN).tensors  # a part of a model has some of the buffers
                kept = {buffer: own.tensors.get(buffer, before[buffer]) for buffer in self._initial.layout.buffers}
                setattr(site, _OWN, Models(self._initial.layout, kept))
        return {name: _with(value, self._initial) for name, value in values.items()}


def _addressed_to(clients: Tensor, value: Models, peers: Tensor | None) -> Models | None:
    """Of candidates ``(k, m)`` the one that each of ``clients: (k,)`` addresses to itself, if all have one."""
    if peers is None:
        return None
    own = peers == clients.unsqueeze(1)
    if not bool(own.any(dim=1).all()):
        return None
    rows, slot = torch.arange(len(clients)), own.int().argmax(dim=1)
    return Models(value.layout, {name: tensor[rows, slot] for name, tensor in value.tensors.items()})


def _with(value: Any, buffers: Models) -> Any:
    """Models with other buffers, one row each or one row for all; anything else as it is."""
    if not isinstance(value, Models) or not value.layout.buffers:
        return value
    tensors = dict(value.tensors)
    for name in value.layout.buffers:
        tensor = buffers.tensors[name]
        row = tensor.unsqueeze(1) if len(value.lead) == 2 else tensor
        tensors[name] = row.expand(*value.lead, *value.layout.shapes[name])
    replaced = Models(value.layout, tensors)
    replaced.owned = value.owned
    return replaced
