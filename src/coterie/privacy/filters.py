"""Clipping and Gaussian noise on what a site sends: pure functions on answers, row by row.

After McMahan et al., Learning Differentially Private Recurrent Language Models (ICLR 2018): what is clipped is the
change that a site makes to the model that it received, not the model.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from coterie.contract.payload import Value
from coterie.models import Models
from coterie.models.rows import NOTHING
from coterie.privacy.policy import Policy, Refused

Values = Mapping[str, Value]
PIECE = 1 << 20  # numbers of noise that are made at a time


@dataclass(frozen=True)
class Done:
    """What was done to an answer. ``shares`` depends on the data without noise and stays at the site.

    Attributes
    ----------
    shares : Tensor (k,)
        By what each client's change was multiplied, 1 within the bound.
    std : float
        Standard deviation of the noise on each number.
    """

    shares: Tensor
    std: float


def norms(values: Values) -> Tensor:
    """L2 norm of each row over all floating-point tensors of all values together, ``(k,)`` float64."""
    squares = [
        tensor.double().reshape(len(tensor), prod(tensor.shape[1:])).square().sum(1).cpu()
        for tensor in _tensors(values)
        if tensor.is_floating_point()
    ]
    rows = len(next(iter(values.values()))) if values else 0
    return torch.stack(squares).sum(0).sqrt() if squares else torch.zeros(rows, dtype=torch.float64)


def shares_within(values: Values, bound: float) -> Tensor:
    """By what each row must be multiplied for a norm of at most ``bound``: ``min(1, bound / norm)``, ``(k,)`` float64.

    It is 0 for a row that is not finite: what that would reveal of the data, no noise could cover.
    """
    length = norms(values)
    return torch.where(length.isfinite(), (bound / length).clamp(max=1.0), 0.0)


def clipped(values: Values, bound: float) -> dict[str, Value]:
    """Each row cut to an L2 norm of at most ``bound``, all floating-point tensors of all values together.

    Tensors of other types stay as they are. A row that holds NaN or infinity becomes 0.
    """
    return _scaled(values, shares_within(values, bound))


def noised(values: Values, std: float, generator: torch.Generator | None = None) -> dict[str, Value]:
    """Independent Gaussian noise of standard deviation ``std`` on every number of every floating-point tensor.

    It is drawn in float64 from the operating system's cryptographic source. A torch generator is for tests only: those
    of the CPU are seeded with 32 bits, which an adversary can try out.
    """

    def noisy(tensor: Tensor) -> Tensor:
        shape = tensor.shape
        drawn = _normal(shape) if generator is None else torch.randn(shape, generator=generator, dtype=torch.float64)
        return (tensor.double() + std * drawn.to(tensor.device)).to(tensor.dtype)

    return _each(values, noisy)


def filter_answer(
    policy: Policy,
    received: Values,
    answer: Values,
    generator: torch.Generator | None = None,
    *,
    initial: Models,
    differences: Collection[str] = (),
    peers: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Value], Done]:
    """An answer as it may leave: its change clipped to ``policy.clip`` and noised, where the policy says so.

    The change of a model is what separates it from a model that the server knows: the received one of the same name,
    else the first received one that has its tensors, else the initial one. (Of several candidates for one model it is
    their mean.) Anything else, and models listed in ``differences``, are changes themselves. All changes of an answer
    share one norm, so two answers that the same site could give are at most ``2 * clip`` apart before the noise.

    Floating-point buffers that are averaged are clipped and noised with the models; a variance that the noise has made
    negative becomes 0. Whole-numbered buffers leave as they came where there is noise. Buffers that stay at the sites
    or the server leave as the initial ones. Frozen parameters, which no training moves, take no noise: they leave as
    the server knows them.

    Parameters
    ----------
    policy : Policy
        What the site allows.
    received, answer : mapping
        What the client method received from the server and what it returned, one row for each client.
    generator : torch.Generator, optional
        For tests only, see `noised`.
    initial : Models
        The common model that all clients begin with, one row.
    differences : collection of str
        Answers that are changes or gradients, see `Algorithm.differences`.
    peers : mapping, optional
        For answers that are meant for other clients, their numbers ``(k, m)`` by name.

    Returns
    -------
    answer : dict
        The same shapes and types.
    done : Done
        What was done.

    Raises
    ------
    Refused
        There is noise, and something can take none.
    """
    rows = len(next(iter(answer.values()))) if answer else 0
    if policy.clip is None:
        return dict(answer), Done(torch.ones(rows, dtype=torch.float64), 0.0)
    if policy.noise is not None:
        _refuse_what_takes_no_noise(received, answer, peers or {})
    bases = {
        name: _base(name, value, received, initial, name in differences)
        for name, value in answer.items()
        if isinstance(value, Models)
    }
    changes = {name: _change(value, bases.get(name), policy.noise is not None) for name, value in answer.items()}
    changes = {name: change for name, change in changes.items() if not isinstance(change, Models) or change.tensors}
    shares = shares_within(changes, policy.clip) if changes else torch.ones(rows, dtype=torch.float64)
    changes = _scaled(changes, shares)
    if policy.noise is not None:
        changes = noised(changes, policy.std, generator)
    filtered: dict[str, Value] = {}
    for name, value in answer.items():
        change = changes.get(name)
        if isinstance(value, Models):
            moved = change.tensors if isinstance(change, Models) else {}
            filtered[name] = _changed(value, moved, bases[name], policy.noise is not None)
        elif isinstance(value, Tensor) and isinstance(change, Tensor):
            filtered[name] = change.to(value.dtype)
    return filtered, Done(shares, policy.std)


# --- changes -----------------------------------------------------------------------------------------------------
def _base(name: str, value: Models, received: Values, initial: Models, difference: bool) -> dict[str, Tensor]:
    """What the server knows of each tensor of a model before it is sent, broadcastable to it."""
    models = {key: model for key, model in received.items() if isinstance(model, Models)}
    known = next((model for model in [models.get(name), *models.values()] if model and _holds(model, value)), initial)
    base = {}
    for key, tensor in value.tensors.items():
        parameter = key in value.layout.parameters
        source = known if parameter or value.layout.policy == "average" else initial
        if (parameter and difference) or key not in source.tensors:
            base[key] = torch.zeros_like(tensor)
        else:
            base[key] = _aligned(source.tensors[key], len(source.lead), value.lead).to(tensor.device)
    return base


def _holds(model: Models, value: Models) -> bool:
    """Whether a model has all tensors of another, in the same shapes."""
    shapes = model.layout.shapes
    return all(name == NOTHING or shapes.get(name) == value.layout.shapes[name] for name in value.tensors)


def _aligned(tensor: Tensor, axes: int, lead: torch.Size) -> Tensor:
    """``tensor`` with ``axes`` leading axes as one that goes with models of leading axes ``lead``."""
    if axes == len(lead) and (axes == 1 or tensor.shape[1] == lead[1]):
        return tensor
    if axes == 2:  # the mean of the candidates; whole numbers of the first
        tensor = tensor.double().mean(1) if tensor.is_floating_point() else tensor[:, 0]
    return tensor if len(lead) == 1 else tensor.unsqueeze(1)


def _travels(models: Models, name: str, noise: bool) -> bool:
    """Whether a tensor of a model says something about the client that sends it, in numbers that can be noised."""
    averaged = models.layout.policy == "average" and models.tensors[name].is_floating_point()
    return averaged if name in models.layout.buffers else not (noise and name in models.layout.frozen)


def _change(value: Value, base: Mapping[str, Tensor] | None, noise: bool) -> Value:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    assert base is not None
    tensors = {n: t.double() - base[n].double() for n, t in value.tensors.items() if _travels(value, n, noise)}
    parameters, buffers = (
        tuple(n for n in ns if n in tensors) for ns in (value.layout.parameters, value.layout.buffers)
    )
    return Models(replace(value.layout, parameters=parameters, buffers=buffers), tensors)


def _changed(value: Models, change: Mapping[str, Tensor], base: Mapping[str, Tensor], noise: bool) -> Models:
    tensors = {}
    for name, own in value.tensors.items():
        if name in change:
            tensor = base[name].double() + change[name]
            tensors[name] = (tensor.clamp(min=0.0) if noise and name.endswith("running_var") else tensor).to(own.dtype)
        elif noise or value.layout.policy != "average":
            tensors[name] = base[name].expand(own.shape).to(own.dtype)
        else:
            tensors[name] = own
    return Models(value.layout, tensors)


def _refuse_what_takes_no_noise(received: Values, answer: Values, peers: Mapping[str, Tensor]) -> None:
    for name, value in answer.items():
        if isinstance(value, Tensor) and not value.is_floating_point():
            raise Refused(f"policy.noise cannot cover {name}, which is no real number")
    for name, index in peers.items():
        sent = [value for value in received.values() if isinstance(value, Tensor) and value.shape == index.shape]
        if not any(torch.equal(value.cpu(), index.cpu()) for value in sent):
            raise Refused(f"policy.noise cannot cover whom {name} is meant for, unless the server has named them")


# --- tensors of values -------------------------------------------------------------------------------------------
def _tensors(values: Values) -> Iterator[Tensor]:
    for value in values.values():
        yield from value.tensors.values() if isinstance(value, Models) else [value]


def _each(values: Values, function: Callable[[Tensor], Tensor]) -> dict[str, Value]:
    """``function`` of every floating-point tensor; others as they are."""

    def of(tensor: Tensor) -> Tensor:
        return function(tensor) if tensor.is_floating_point() else tensor

    return {
        name: Models(value.layout, {n: of(t) for n, t in value.tensors.items()})
        if isinstance(value, Models)
        else of(value)
        for name, value in values.items()
    }


def _scaled(values: Values, shares: Tensor) -> dict[str, Value]:
    """Each row multiplied by its share ``(k,)``; at 0 whatever it held is gone."""

    def scaled(tensor: Tensor) -> Tensor:
        share = shares.to(tensor).reshape(-1, *[1] * (tensor.ndim - 1))
        return torch.where(share > 0, tensor * share, torch.zeros_like(tensor))

    return _each(values, scaled)


def _normal(shape: torch.Size) -> Tensor:
    """Standard normal numbers in float64 from the operating system's cryptographic source.

    52 random bits choose the middle of an interval of probability 2^-52, whose quantile is taken.
    """
    count = shape.numel()
    drawn = np.empty(count)
    for first in range(0, count, PIECE):
        piece = drawn[first : first + PIECE]
        bits = np.frombuffer(secrets.token_bytes(8 * len(piece)), dtype=np.uint64) >> np.uint64(12)
        piece[:] = ndtri((bits + 0.5) * 2.0**-52)
    return torch.from_numpy(drawn).reshape(shape)
