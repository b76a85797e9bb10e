"""The form that answers must have: the tensors of the model, finite, in their range, and alike at all sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.engines.sites import NOT_FINITE
from coterie.models import Models
from coterie.models.rows import finite_rows


class Kind(NamedTuple):
    """Of a value: its shape without the first axis, its type or the tensors of its models, and for whom it is."""

    shape: tuple[int, ...]
    of: torch.dtype | tuple[str, ...]
    for_others: bool

    def __str__(self) -> str:
        models = f"models {self.shape} of {', '.join(self.of)}" if isinstance(self.of, tuple) else ""
        return (models or f"a tensor {self.shape} of {self.of}") + (" for other clients" if self.for_others else "")


Form = tuple[tuple[str, Kind], ...]  # of every value its name and kind
Peers = Mapping[str, Tensor]  # of answers that go to other clients, their numbers (1, m)

IN_DOUBT = "as many sites answered in another form, so that nobody knows which of them is right"


class Forms:
    """Knows the form of the answers to each question.

    Each client has one vote, the form of its latest answer, and the server one, for models that are like those it has
    sent under the same name, or else whole: nobody's answer is the pattern because it was the first.

    Parameters
    ----------
    model : Models
        With the tensors of the run's model, in their types.
    whole_numbers : mapping
        As of `Algorithm.whole_numbers`.
    """

    def __init__(self, model: Models, whole_numbers: Mapping[str, int]) -> None:
        self.layout, self.dtype, self.whole_numbers = model.layout, model.dtype, whole_numbers
        self._types = {name: tensor.dtype for name, tensor in model.tensors.items()}
        self._votes: dict[tuple[str, Form], dict[int, Form]] = {}

    def problems(
        self, method: str, payload: Mapping[str, Any], answers: Mapping[int, tuple[Mapping[str, Any], Peers]]
    ) -> dict[int, str]:
        """Why answers to a client method, the values and for whom they are by client, cannot be used.

        The form with most votes is the right one, among answers to payloads of the same form: what a method tells of
        those that it was sent is as wide as they are many, which changes from round to round. Without one no answer is
        used. Of the ``payload`` any one client's will do.
        """
        sent = _form(payload, {})
        found = {client: self._problem(answer[0]) or _misdirected(*answer) for client, answer in answers.items()}
        problems = {client: reason for client, reason in found.items() if reason is not None}
        forms = {client: _form(*answer) for client, answer in answers.items() if client not in problems}
        votes = self._votes.setdefault((method, sent), {})
        votes.update(forms)
        right = self._elected(votes.values(), sent)
        for client, form in forms.items():
            reason = _difference(form, right) if right is not None else self._unexpected(form, sent) or IN_DOUBT
            if reason is not None:
                problems[client] = reason
        return problems

    def _elected(self, votes: Collection[Form], sent: Form) -> Form | None:
        """The form that has more votes than any other, if there is one."""
        counts = Counter[Form | None](votes)
        own: list[Form | None] = [form for form in set(votes) if self._unexpected(form, sent) is None]
        counts.update(own or [None])
        (most, count), *others = counts.most_common(2)
        return most if not others or others[0][1] < count else None

    def _unexpected(self, form: Form, sent: Form) -> str | None:
        """Which models are not what the server expects, if any; their buffers may be missing."""
        likes = {name: kind.of for name, kind in sent if isinstance(kind.of, tuple)}
        for name, kind in form:
            whole = likes.get(name, (*self.layout.parameters, *self.layout.buffers))
            own = kind.of if isinstance(kind.of, tuple) else whole
            if odd := sorted((set(own) ^ set(whole)) - (set(whole) & set(self.layout.buffers))):
                return f"its answer {name} holds models with{'' if odd[0] in own else 'out'} {odd[0]!r}, unexpectedly"
        return None

    def _problem(self, values: Mapping[str, Any]) -> str | None:
        for name, value in values.items():
            if not isinstance(value, Models | Tensor):
                return f"its answer {name} is no tensor"
            if (value.lead if isinstance(value, Models) else value.shape)[:1] != (1,):
                return f"its answer {name} is not of one client"
            if isinstance(value, Models):
                for part, tensor in value.tensors.items():
                    if tensor.dtype != (right := self._types.get(part, self.dtype)):
                        return f"its answer {name} has {part} as {tensor.dtype}, not {right}"
                finite = value.finite()
            else:
                finite = finite_rows(value) if value.is_floating_point() else torch.tensor([True])
            if not bool(finite.all()):
                return NOT_FINITE
            if (count := self.whole_numbers.get(name)) is not None and not _within(value, count):
                return f"its answer {name} is no whole number from 0 to {count - 1}"
        return None


def _within(value: Models | Tensor, count: int) -> bool:
    """Whether these are whole numbers ``0 .. count - 1``."""
    return isinstance(value, Tensor) and value.dtype == torch.int64 and bool(((value >= 0) & (value < count)).all())


def _misdirected(values: Mapping[str, Any], peers: Peers) -> str | None:
    """Why what is for other clients cannot be theirs: it has one row for each of them, and there are some."""
    for name, index in peers.items():
        value = values.get(name)
        lead = () if value is None else value.lead if isinstance(value, Models) else value.shape
        if tuple(lead[1:2]) != (index.shape[1],) or index.shape[1] == 0:
            return f"its answer {name} is not one for each of the {index.shape[1]} clients that it names"
    return None


def _form(values: Mapping[str, Any], peers: Peers) -> Form:
    kinds = {}
    for name, value in sorted(values.items()):
        models = isinstance(value, Models)
        shape = value.lead[1:] if models else value.shape[1:]
        kinds[name] = Kind(tuple(shape), tuple(sorted(value.tensors)) if models else value.dtype, name in peers)
    return tuple(kinds.items())


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
