"""Everything moves, everything matters, nothing is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from coterie.contract.state import storages
from coterie.errors import CoterieError
from coterie.models import Models
from coterie.testing.subject import BATCHES, Broken, Subject, models_of, played, predicted, run
from coterie.testing.toys import RAGGED, classified


def moves(subject: Subject) -> None:
    """Every model that is state has moved after a round (two, where the first is another), every number after three."""
    sim = subject.simulation(RAGGED, training=BATCHES)
    theta = sim.server.initial_models()
    held = _numbers(sim.server_state, "server.")
    before = {name: models.clone() for name, models in models_of(sim).items() if name.startswith("server.")}
    begun, first = _begun(subject), predicted(sim)
    run(sim, 1 if subject.claims.first_traffic is None else 2)
    for name, models in models_of(sim).items():
        start = before.get(name, begun.get(name, theta))
        start = start if len(start) else theta  # rows for clients met since then begin there
        if (
            name.partition(".")[2] in subject.claims.constant
            or not models.layout.parameters
            or name == "site.own buffers"
        ):
            continue
        for part, tensor in models.parameters():
            if not tensor.numel():
                continue
            _require_moved(sim.names, name, part, tensor, start)
    run(sim)
    if torch.equal(predicted(sim), first):
        hint = "override personal(site), and offer(server) for what it needs, to predict with the model that is trained"
        raise Broken("what clients predict with has moved after three rounds", "it is as it was", hint)
    numbers = {**_numbers(sim.server_state, "server.")}
    for name, value in held.items():
        still = value.shape == numbers[name].shape and torch.equal(
            value.nan_to_num(7e77), numbers[name].nan_to_num(7e77)
        )
        if still and name.partition(".")[2] not in subject.claims.constant:
            raise Broken(f"the state {name} has moved after three rounds", "it is as setup made it", _STILL)


_STILL = (
    "it is computed but never assigned, or it receives no gradient; what is constant by definition is named in "
    "claims.constant with its reason"
)


def _require_moved(names: tuple[str, ...], name: str, part: str, tensor: Tensor, start: Models) -> None:
    origin = start.tensors.get(part)
    if origin is None or origin.shape[1:] != tensor.shape[1:]:
        return
    if name.startswith("server."):
        origin = origin if origin.shape == tensor.shape else origin[:1].expand_as(tensor)
        if torch.equal(tensor, origin):
            raise Broken(f"the models {name} have moved after one round", f"{part} is as it was", _STILL)
        return
    for row, client in enumerate(names):
        if row < len(tensor) and torch.equal(tensor[row], origin[min(row, len(origin) - 1)]):
            raise Broken(f"the model {name} of {client} has moved after one round", f"{part} is as it was", _STILL)


def _begun(subject: Subject) -> dict[str, Models]:
    """The clients' models as ``start`` declares them."""
    sim = subject.simulation(RAGGED, training=BATCHES)
    everyone = torch.arange(sim.K)
    sim.sites.start(everyone, everyone, sim.round)
    sim.bank.commit(torch.ones(sim.K, dtype=torch.bool))
    return {name: models.clone() for name, models in models_of(sim).items()}


def _numbers(values: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """The floating-point tensors among attributes."""
    return {
        prefix + name: value.clone()
        for name, value in values.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel()
    }


def options(subject: Subject) -> None:
    """Every hyper-parameter changes the result of a toy run."""
    known: dict[str, Tensor] = {}
    types, deaf = _types(subject.cls), list[Broken]()
    for field in fields(subject.cls):
        name = field.name.rstrip("_")
        if name in subject.claims.newcomers or name == "variant":
            continue
        try:
            _require_felt(subject, field, types[field.name], known)
        except Broken as broken:
            if not (
                _felt(subject, field, types[field.name], _ABSENT)
                or _felt_in_another_variant(subject, field, types[field.name])
            ):
                deaf.append(broken)
    if deaf:
        expected, got = ("; ".join(getattr(each, part) for each in deaf) for part in ("expected", "got"))
        raise Broken(expected, got, deaf[0].hint)


_ABSENT = {1: ("client-2",), 2: ("client-1", "client-4"), 3: ("client-0",), 4: ("client-3", "client-1")}
"""What becomes of those who are not there, or who come late, is felt where somebody is absent only."""


def _felt(subject: Subject, field: Field[Any], kind: Any, absent: Mapping[int, tuple[str, ...]]) -> bool:
    try:
        _require_felt(subject, field, kind, {}, absent)
    except Broken:
        return False
    return True


def _felt_in_another_variant(subject: Subject, field: Field[Any], kind: Any) -> bool:
    """An option of which some variants make nothing is felt in another."""
    for variant in subject.cls.variants:
        if variant != subject.variant and _felt(replace(subject, variant=variant), field, kind, {}):
            return True
    return False


def _types(cls: type[Any]) -> dict[str, Any]:
    """The type of each field, resolved where that can be done."""
    try:
        return get_type_hints(cls)
    except NameError:  # names that only its own function knows
        return {field.name: str(field.type) for field in fields(cls)}


def _require_felt(
    subject: Subject,
    field: Field[Any],
    kind: Any,
    known: dict[str, Tensor],
    absent: Mapping[int, tuple[str, ...]] | None = None,
) -> None:
    name = field.name.rstrip("_")
    claimed = subject.claims.changes.get(name)
    if claimed is not None:
        first, second = claimed
        if not _differ(_result(subject, first, known, absent), _result(subject, second, known, absent)):
            raise _deaf(name, f"{dict(first)} and {dict(second)}")
        return
    value = getattr(subject.make(), field.name)
    here, tried, felt = _result(subject, {}, known, absent), [], []
    for alternative in _alternatives(kind, value):
        try:
            there = _result(subject, {name: alternative}, known, absent)
        except CoterieError:
            continue
        tried.append(alternative)
        felt.append(_differ(here, there))
        if felt[-1] and not isinstance(value, str):
            return
    if not tried:
        raise Broken(
            f"the option {name} changes the result of a toy run",
            f"no other value than {value!r} could be run",
            "give two settings that differ in it in claims.changes",
        )
    if not all(felt):
        deaf = [each for each, change in zip(tried, felt, strict=True) if not change]
        raise _deaf(name, f"{value!r} and {deaf[0]!r}")


def _deaf(name: str, settings: str) -> Broken:
    return Broken(
        f"the option {name} changes the result of a toy run",
        f"{settings} give the same models",
        "the term that it scales has no gradient (computed from detached tensors?) or is never added, or the option "
        "is read nowhere; where it acts in other settings only, give two of them in claims.changes",
    )


def _words(kind: Any) -> list[str]:
    """The words that an option of a type such as ``Literal["a", "b"] | None`` may be."""
    if isinstance(kind, str):
        return re.findall(r"['\"](\w+)['\"]", kind)
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for part in get_args(kind) for word in _words(part)]


def _alternatives(kind: Any, value: Any) -> Iterator[Any]:
    words = _words(kind)
    if isinstance(value, bool):
        yield not value
    elif words:
        yield from (word for word in words if word != value)
    elif value in ("samples", "uniform"):
        yield "uniform" if value == "samples" else "samples"
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value + 1, 0)
    elif isinstance(value, float):
        yield from (value / 2, value * 2, value / 10) if value else (0.5, 0.1, 1.0)
    elif value is None:
        yield from (1, 2, 3) if "int" in str(kind) else (0.02, 0.5, 2.0)


def _result(
    subject: Subject,
    stated: Mapping[str, Any],
    known: dict[str, Tensor],
    absent: Mapping[int, tuple[str, ...]] | None = None,
) -> Tensor:
    key = repr(sorted(stated.items()))
    if key not in known:
        training = replace(BATCHES, momentum=0.9)
        federation = classified((7, 4, 9, 5, 6))
        sim, _ = played(subject, federation, stated, rounds=4, training=training, absent=absent or {})
        known[key] = predicted(sim)
    return known[key]


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or float((one - other).abs().max()) > 1e-9


def storage(subject: Subject) -> None:
    """No two states share storage after a round, so that changing one in place changes no other."""
    sim, _ = played(subject, RAGGED, rounds=2)
    held: dict[int, str] = {}
    columns = {f"site.{leaf}": column.rows for leaf, column in sim.bank.columns.items()}
    for name, value in {**{f"server.{k}": v for k, v in sim.server_state.items()}, **columns}.items():
        for address in storages(value):
            if address in held:
                hint = "a state was written past server.x = ... and site.x = ..., which copy what another state holds"
                raise Broken("no two states share storage", f"{held[address]} and {name} do", hint)
            held[address] = name
