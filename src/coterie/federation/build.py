"""From the section ``federation:`` to a federation."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from coterie.errors import CoterieError
from coterie.federation.config import UNDIVIDED, FederationConfig, Statistic, section_for
from coterie.federation.data import ClientData, Normal
from coterie.federation.datasets import find_source
from coterie.federation.examples import Examples, Rows
from coterie.federation.federation import Federation, client_names
from coterie.federation.folds import Fold, folded
from coterie.federation.partition import RULES, Division, Rule, Sizes
from coterie.federation.partition.blocks import mixed_block
from coterie.federation.resize import resized
from coterie.federation.schema import Schema
from coterie.federation.table_options import TableOptions
from coterie.federation.weights import by_position, training_means

HeldOut = Callable[[Sequence[str]], Collection[int]]
"""Which of the clients with these names are newcomers."""


def build_federation(
    config: Mapping[str, Any] | FederationConfig,
    *,
    seed: int,
    data_dir: Path | None = None,
    like: Mapping[str, Any] | None = None,
    held_out: HeldOut | None = None,
) -> Federation:
    """Load the source, divide it and check the result.

    Args:
        config: the section ``federation:``, as a plain dictionary or already validated.
        seed: seed of the division, unless the section names its own. Equal seeds give equal federations, bit
            for bit.
        data_dir: where data files lie; left out, ``$COTERIE_DATA``, else a cache directory of the user.
        like: what ``schemas/seed<k>.json`` of a run holds; a table then becomes inputs as that one did. Other sources
            have no schema.
        held_out: which clients, by number, are no members but newcomers, once all names are known: nothing of their
            rows enters statistics that clients have in common.

    Raises:
        CoterieError: a wrong key or value, missing or damaged data, an impossible division.
    """
    section = config if isinstance(config, FederationConfig) else parse(config)
    used_seed = seed if section.seed is None else section.seed
    options, fitted = section.options, None
    if like is not None and isinstance(options, TableOptions):
        fitted = Schema.model_validate(like["schema"] if "schema" in like else next(iter(like["clients"].values())))
        options = options.following(fitted, "client" if "clients" in like else "federated")
    examples = resized(find_source(section.source).load(data_dir, used_seed, options), section.resize)
    sizes = section.sizes_for(examples.sides)
    source = {**section.model_dump(mode="json", exclude_none=True), "seed": used_seed}
    return divided(
        examples, section.partition, sizes, used_seed, source, section.normalise, fitted=fitted, fold=section.fold,
        held_out=held_out,
    )  # fmt: skip


def settled(section: FederationConfig, *, seed: int, data_dir: Path | None = None) -> FederationConfig:
    """The section with all sizes, also where only the data tell whether they have a split of their own.

    Raises:
        CoterieError: missing or damaged data.
    """
    if section.test is not None or section.source in UNDIVIDED:
        return section
    used_seed = seed if section.seed is None else section.seed
    examples = find_source(section.source).load(data_dir, used_seed, section.options)
    return section.model_copy(update={"test": section.sizes_for(examples.sides).test})


def divided(
    examples: Examples,
    rule: Rule,
    sizes: Sizes,
    seed: int,
    source: Mapping[str, Any],
    normalise: str | tuple[Statistic, Statistic] = "none",
    fitted: Schema | None = None,
    fold: Fold | None = None,
    held_out: HeldOut | None = None,
) -> Federation:
    """The examples as a rule divides them among clients.

    Args:
        examples: from a source.
        rule, sizes, seed: how; equal seeds give equal federations.
        source: what is recorded of where the data came from.
        normalise, fold: as in the section ``federation:``.
        fitted: how the columns of a table become inputs, where that is known.
        held_out: as of `build_federation`.

    Raises:
        CoterieError: an impossible division.
    """
    if examples.sides is not None and rule.rule != "natural":
        raise CoterieError(
            f"{examples.name!r} says itself which rows are for testing, which holds client by client: choose the rule "
            f"natural instead of {rule.rule}."
        )
    generator = np.random.Generator(np.random.PCG64(seed))
    division = rule.divide(examples, sizes, generator)
    if fold is not None:
        division = folded(division, examples, fold, seed)
    _require_whole_blocks(examples, division, rule.rule)
    names = tuple(division.names) or client_names(len(division.train))
    known: dict[str, Any] = {**source, "sha256": examples.digest, **examples.facts}
    if examples.files:
        known["files"] = dict(examples.files)
    preparation = None
    if examples.prepare is not None:
        prepared = examples.prepare(division, names, fitted, () if held_out is None else held_out(names))
        examples = replace(examples, inputs=prepared.inputs, target_normal=prepared.target_normal)
        preparation = prepared.preparation
        known |= prepared.facts
    if division.columns:
        known["clients"] = {key: list(column) for key, column in division.columns.items()}
    normal = _normal(normalise, examples)
    means = None if examples.weights is None else training_means(examples.weights, division.train, names)
    tied = _numbered(examples)

    def assembled(rows: Sequence[Rows]) -> ClientData:
        split = _assemble(examples, division, rows, normal, tied)
        if examples.weights is None or means is None:
            return split
        return replace(split, weights=by_position(examples.weights, rows, means))

    return Federation(
        names=names,
        train=assembled(division.train),
        validation=assembled(division.validation),
        test=assembled(division.test),
        task=examples.task,
        classes=examples.classes,
        source=known,
        preparation=preparation,
    ).validate()


def _require_whole_blocks(examples: Examples, division: Division, rule: str) -> None:
    """No block is both trained and tested on, whatever the rule does.

    Raises:
        CoterieError: names a block that is in two splits.
    """
    if examples.blocks is None:
        return
    mixed = mixed_block((division.train, division.validation, division.test), examples.blocks)
    if mixed is not None:
        raise CoterieError(
            f"The rule {rule} puts examples of the block {mixed!r} of {examples.name!r} into two of train, validation "
            "and test: choose another rule, such as natural, or no blocks."
        )


def parse(config: Mapping[str, Any]) -> FederationConfig:
    """Validate the section on its own.

    Raises:
        CoterieError: names the first wrong key and, for an unknown one, the nearest that exists.
    """
    try:
        return FederationConfig.model_validate(config)
    except ValidationError as error:
        # an unknown key first: it explains the one that is missing
        errors = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        model = section_for(config)
        first, key = errors[0], _key(errors[0]["loc"], model)
        if first["type"] == "extra_forbidden":
            owner = RULES[config["partition"]["rule"]] if first["loc"][0] == "partition" else model
            unknown = str(first["loc"][-1])
            near = _nearest(unknown, owner.model_fields)
            raise CoterieError(f"Unknown key {_key(first['loc'][:-1], model)}.{unknown}.{near}") from error
        if first["type"] == "union_tag_invalid":
            rule = first["ctx"]["tag"]
            raise CoterieError(f"{key}.rule: unknown rule {rule!r}.{_nearest(rule, RULES)}") from error
        # a key that takes several types has one error for each of them
        same = [e["msg"] for e in errors if _key(e["loc"], model) == key]
        reasons = [message.removeprefix("Value error, ").removesuffix(".") for message in same]
        got = f" (got {first['input']!r})" if not isinstance(first["input"], Mapping | BaseModel) else ""
        raise CoterieError(f"{key}: {'; or '.join(dict.fromkeys(reasons))}{got}.") from error


def _key(location: Sequence[int | str], model: type[FederationConfig]) -> str:
    """The key as users write it: without the names of rules and types that pydantic puts between."""
    known = {*model.model_fields, *(key for rule in RULES.values() for key in rule.model_fields)}
    return ".".join(["federation", *(str(part) for part in location if part in known or isinstance(part, int))])


def _nearest(word: str, valid: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, valid, n=1)
    return f" Did you mean {near[0]}?" if near else f" Valid: {', '.join(valid)}."


def _normal(wanted: str | tuple[Statistic, Statistic], examples: Examples) -> Normal | None:
    """What ``federation.normalise`` asks for, shaped for the inputs of this source."""
    if wanted == "none":
        return None
    if isinstance(wanted, str):
        if examples.statistics is None:
            raise CoterieError(
                f"federation.normalise: no mean and standard deviation are published for {examples.name!r}: give them "
                "as [mean, std], or choose none."
            )
        wanted = (list(examples.statistics[0]), list(examples.statistics[1]))
    shape = examples.inputs.shape[1:]
    mean, std = (torch.tensor(value, dtype=torch.float64).reshape(-1, *[1] * (len(shape) - 1)) for value in wanted)
    for value in (mean, std):
        if len(value) not in (1, shape[0]):
            raise CoterieError(
                f"federation.normalise has {len(value)} values, but inputs of {examples.name!r} have {shape[0]} "
                "channels: give one number, or one a channel."
            )
    return Normal(mean, std)


def _numbered(examples: Examples) -> dict[str, Tensor]:
    """Blocks and times of the examples, where they have such, as whole numbers ``(N,)``; see `ClientData`."""
    found = {}
    if examples.block_numbers is not None:
        found["blocks"] = torch.from_numpy(examples.block_numbers)
    if examples.times is not None:
        found["order"] = torch.from_numpy(np.unique(examples.times, return_inverse=True)[1])
    return found


def _assemble(
    examples: Examples,
    division: Division,
    rows: Sequence[Rows],
    normal: Normal | None,
    tied: Mapping[str, Tensor],
) -> ClientData:
    """One split: indices into the source or, where there is a transform, its results, computed once."""
    sizes = torch.tensor([0, *(len(of_client) for of_client in rows)], dtype=torch.int64)
    offsets = sizes.cumsum(0)
    index = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    if division.transform is None:
        return ClientData(
            examples.inputs, examples.targets, offsets, index, examples.scale, normal,
            target_normal=examples.target_normal, **tied,
        )  # fmt: skip
    inputs: Tensor = torch.empty((len(index), *examples.inputs.shape[1:]), dtype=examples.inputs.dtype)
    for i, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        inputs[start:stop] = division.transform(examples.inputs[index[start:stop]], i)
    tied = {what: of[index] for what, of in tied.items()}
    return ClientData(
        inputs, examples.targets[index], offsets, scale=examples.scale, normal=normal,
        target_normal=examples.target_normal, **tied,
    )  # fmt: skip
