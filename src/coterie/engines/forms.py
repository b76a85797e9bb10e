"""The form that answers must have: the tensors of the model, finite, and alike at all sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from coterie.engines.sites import NOT_FINITE
from coterie.models import Layout, Models
from coterie.models.rows import finite_rows

Form = tuple[tuple[str, str], ...]  # of every value its name, and its kind, type and shape without the first axis
Peers = Mapping[str, Tensor]  # of answers that go to other clients, their numbers (1, m)


class Forms:
    """Knows the form of the answers to each question from those that came in.

    Parameters
    ----------
    layout : Layout
        Of the model.
    dtype : torch.dtype
        Its floating-point type.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype) -> None:
        self.layout, self.dtype = layout, dtype
        self._known: dict[tuple[str, Form], Form] = {}

    def problems(
        self, method: str, payload: Mapping[str, Any], answers: Mapping[int, tuple[Mapping[str, Any], Peers]]
    ) -> dict[int, str]:
        """Why answers to a client method, the values and for whom they are by client, cannot be used.

        The form that most of them have is the right one, and stays so for payloads of the same form: what a method
        tells of those that it was sent is as wide as they are many, which changes from round to round. Of the
        ``payload`` any one client's will do.
        """
        question = (method, _form(payload, {}))
        found = {client: self._problem(answer[0]) or _misdirected(*answer) for client, answer in answers.items()}
        problems = {client: reason for client, reason in found.items() if reason is not None}
        forms = {client: _form(*answer) for client, answer in answers.items() if client not in problems}
        if forms and question not in self._known:
            self._known[question] = Counter(forms.values()).most_common(1)[0][0]
        for client, form in forms.items():
            if (reason := _difference(form, self._known[question])) is not None:
                problems[client] = reason
        return problems

    def _problem(self, values: Mapping[str, Any]) -> str | None:
        for name, value in values.items():
            if not isinstance(value, Models | Tensor):
                return f"its answer {name} is no tensor"
            if (value.lead if isinstance(value, Models) else value.shape)[:1] != (1,):
                return f"its answer {name} is not of one client"
            if isinstance(value, Models):
                for part, tensor in value.parameters():
                    if tensor.dtype != self.dtype:
                        return f"its answer {name} has {part} as {tensor.dtype}, not {self.dtype}"
                finite = value.finite()
            else:
                finite = finite_rows(value) if value.is_floating_point() else torch.tensor([True])
            if not bool(finite.all()):
                return NOT_FINITE
        return None


def _misdirected(values: Mapping[str, Any], peers: Peers) -> str | None:
    """Why what is for other clients cannot be theirs: it has one row for each of them, and there are some."""
    for name, index in peers.items():
        value = values.get(name)
        lead = () if value is None else value.lead if isinstance(value, Models) else value.shape
        if tuple(lead[1:2]) != (index.shape[1],) or index.shape[1] == 0:
            return f"its answer {name} is not one for each of the {index.shape[1]} clients that it names"
    return None


def _form(values: Mapping[str, Any], peers: Peers) -> Form:
    form = []
    for name, value in sorted(values.items()):
        whose = " for other clients" if name in peers else ""
        if isinstance(value, Models):
            form.append((name, f"models {tuple(value.lead[1:])} of {', '.join(sorted(value.tensors))}{whose}"))
        else:
            form.append((name, f"a tensor {tuple(value.shape[1:])} of {value.dtype}{whose}"))
    return tuple(form)


def _difference(form: Form, right: Form) -> str | None:
    """In what an answer differs from those of the other sites."""
    if form == right:
        return None
    own, other = dict(form), dict(right)
    if missing := [name for name in other if name not in own]:
        return f"its answer lacks {missing[0]}"
    if extra := [name for name in own if name not in other]:
        return f"its answer has {extra[0]}, which the others' have not"
    name = next(name for name in own if own[name] != other[name])
    return f"its answer {name} is {own[name]}, and that of the others {other[name]}"
