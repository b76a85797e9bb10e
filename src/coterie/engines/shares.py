"""Clients shared out among several `Sites`: who gets whom, what of a call each gets, and how replies become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.contract import Pick
from coterie.contract.payload import Broadcast, for_rows
from coterie.engines.answers import Averaged
from coterie.engines.bank import Rows, take
from coterie.engines.sites import Call, Reply
from coterie.federation.data import ClientData
from coterie.federation.federation import SPLITS, Federation
from coterie.models import Models
from coterie.models.rows import contiguous, stack_rows


def divided(n: Tensor, count: int) -> list[range]:
    """K clients with ``n: (K,)`` examples as ``count <= K`` runs of neighbours with about as many examples each."""
    K, ends = len(n), n.double().cumsum(0).numpy()
    cuts = [0]
    for part in range(1, count):
        nearest = int(np.abs(np.concatenate([[0.0], ends]) - ends[-1] * part / count).argmin())
        cuts.append(min(max(nearest, cuts[-1] + 1), K - (count - part)))  # nobody is left without a client
    return [range(first, last) for first, last in zip(cuts, [*cuts[1:], K], strict=True)]


def members(federation: Federation, clients: range) -> Federation:
    """The federation of some clients alone, with their examples and no others."""
    part = federation.select(clients)
    train, validation, test = (_compact(part.split(split)) for split in SPLITS)
    return replace(part, source={}, train=train, validation=validation, test=test)


def _compact(data: ClientData) -> ClientData:
    """The same split without examples that nobody owns."""
    rows = data.rows(torch.arange(int(data.offsets[0]), int(data.offsets[-1])))
    first, last = int(data.offsets[0]), int(data.offsets[-1])
    return replace(
        data,
        inputs=data.inputs[rows],
        targets=data.targets[rows],
        offsets=data.offsets - first,
        index=None,
        weights=None if data.weights is None else data.weights[first:last],
    )


# --- calls and replies -------------------------------------------------------------------------------------------


def called(call: Call, clients: range) -> tuple[Tensor, Call]:
    """Positions, among the asked clients, of those in ``clients``, and the call as it concerns them.

    Values for all alike stay out of it: `Broadcast` ones are sent once, not for each share.
    """
    here = (call.asked >= clients.start) & (call.asked < clients.stop)
    present = torch.zeros(len(call.asked), dtype=torch.bool)
    present[call.present] = True
    at = here.nonzero().flatten()
    return at, replace(
        call,
        asked=call.asked[at],
        present=present[at].nonzero().flatten(),
        payload=payload_for(call.payload, at, len(call.asked)),
        average=None if call.average is None else call.average[at],
    )


def common(payload: Mapping[str, Any]) -> dict[str, Broadcast]:
    """The values that everybody receives."""
    return {name: value for name, value in payload.items() if isinstance(value, Broadcast)}


def payload_for(payload: Mapping[str, Any], at: Tensor, asked: int) -> dict[str, Any]:
    """The other values, with the rows that clients at positions ``at: (a,)`` of the ``asked`` ones receive."""
    return {name: _share(value, at, asked) for name, value in payload.items() if not isinstance(value, Broadcast)}


def _share(value: Any, at: Tensor, asked: int) -> Any:
    if not isinstance(value, Pick):
        return for_rows(value, at, asked)
    for_rows(value, at[:1], asked)  # refuses what is no payload
    index = value.index[at]
    wanted, place = torch.unique(index, return_inverse=True)
    return replace(value, bank=value.bank[wanted], index=place)


def one_reply(call: Call, replies: Sequence[tuple[Tensor, Reply]]) -> Reply:
    """The replies of shares of ``call``, each with the positions of its clients among the asked ones, as one."""
    whole = Reply(call.present[:0], {})
    places: list[Tensor] = []
    given: list[Reply] = []
    for at, reply in replies:
        whole.received, whole.sent = whole.received or reply.received, whole.sent or reply.sent
        whole.failed += ((int(at[position]), reason) for position, reason in reply.failed)
        if len(reply.positions):
            places.append(at[reply.positions])
            given.append(reply)
    whole.failed.sort()
    if not given:
        return whole
    whole.positions, order = torch.cat(places).sort()
    whole.peers = {name: torch.cat([reply.peers[name] for reply in given])[order] for name in given[0].peers}
    whole.values = _one_value(given, order)
    return whole


def _one_value(given: Sequence[Reply], order: Tensor) -> Any:
    if isinstance(given[0].values, Averaged):
        total = given[0].values
        for reply in given[1:]:
            assert isinstance(reply.values, Averaged)
            total.merge(reply.values)
        return total
    values = {}
    for name in given[0].values:
        value = _joined([reply.values[name] for reply in given if isinstance(reply.values, Mapping)])
        assert isinstance(value, Models | Tensor)
        values[name] = value[contiguous(order)]
    return values


# --- the clients' state ------------------------------------------------------------------------------------------


def one_state(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``checkpoint.bank_state`` gives for all clients, from that of each share."""
    leaves = dict.fromkeys(leaf for state in states for leaf in state["bank"])
    return {
        "bank": {leaf: _one_column(states, leaf) for leaf in leaves},
        "shapes": {name: shape for state in states for name, shape in state["shapes"].items()},
        "started": torch.cat([state["started"] for state in states]),
    }


def _one_column(states: Sequence[Mapping[str, Any]], leaf: str) -> dict[str, Any]:
    columns = [
        state["bank"].get(leaf) or {"default": None, "rows": None, "own": torch.zeros_like(state["started"])}
        for state in states
    ]
    default = columns[0]["default"]
    if not all(_same(column["default"], default) for column in columns):
        default, columns = None, [_spelled_out(column) for column in columns]
    return {
        "default": default,
        "rows": _joined([column["rows"] for column in columns if column["rows"] is not None]),
        "own": torch.cat([column["own"] for column in columns]),
    }


def _same(one: Models | None, other: Models | None) -> bool:
    """Whether two rows, or two times nothing, are equal."""
    if one is None or other is None:
        return one is other
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )


def _spelled_out(column: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same state with its default as rows of those clients that have no own ones."""
    default, own = column["default"], column["own"]
    if default is None:
        return column
    rows = default.repeat(len(own)).clone()
    if column["rows"] is not None:
        rows[own.nonzero().flatten()] = column["rows"]
    return {"default": None, "rows": rows, "own": torch.ones_like(own)}


def _joined(parts: Sequence[Rows]) -> Rows | None:
    """Rows below one another; None of no parts."""
    models = [part for part in parts if isinstance(part, Models)]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if models:
        return stack_rows(models)
    if tensors:
        return torch.cat(tensors)
    return [text for part in parts if isinstance(part, list) for text in part] if parts else None


def state_for(state: Mapping[str, Any], clients: range) -> dict[str, Any]:
    """The part of a state of all clients that concerns some."""
    here = slice(clients.start, clients.stop)
    bank = {}
    for leaf, column in state["bank"].items():
        before, within = int(column["own"][: clients.start].sum()), int(column["own"][here].sum())
        rows = take(column["rows"], torch.arange(before, before + within)) if within else None
        bank[leaf] = {"default": column["default"], "rows": rows, "own": column["own"][here]}
    return {"bank": bank, "shapes": state["shapes"], "started": state["started"][here]}
