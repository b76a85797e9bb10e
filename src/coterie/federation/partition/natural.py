"""The clients that the data themselves name: hospitals, people, fields, years."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from coterie.errors import CoterieError, CoterieWarning
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import Division, Sizes, register_rule
from coterie.federation.partition.shares import SplitRule

NAMED = 5  # dropped groups that the warning lists


@register_rule
class Natural(SplitRule):
    """One client for each natural group of the source, such as a hospital, a person or a year

    Clients bear the names of their groups, in alphabetical order, so ``clients`` is not given. A group with fewer
    than ``min_examples`` is left out, with a warning. Where the source has an official test set, it is merged with
    the training set before each group is split.
    """

    rule: Literal["natural"] = "natural"
    group: str | None = Field(None, description="kind of group, where the source has several")
    min_examples: int = Field(10, ge=1, description="groups with fewer examples are left out")

    def resolve(self, given: Mapping[str, Any]) -> Sizes:
        """Sizes in force; an official test set does not follow the groups."""
        if given["test"] == "official":
            raise ValueError("under natural every client is tested on its own group: give test as a fraction")
        return super().resolve(given)

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Gather the groups and split each; see the class.

        Raises:
            CoterieError: the source has no groups, none of that kind or several kinds to choose from, or every group
                is too small.
        """
        # texts are compared once a group, not once an example
        member, names = pd.factorize(np.asarray(self._column(examples), dtype=object), sort=True)
        counts = np.bincount(member)
        # row numbers of one group are together after a stable sort
        rows = np.split(np.argsort(member, kind="stable"), np.cumsum(counts)[:-1])
        kept = counts >= self.min_examples
        if not kept.any():
            raise CoterieError(
                f"No group of {examples.name!r} has {self.min_examples} examples (partition.min_examples); the largest "
                f"has {counts.max()}: ask for fewer."
            )
        if not kept.all():
            self._warn(examples.name, [str(name) for name in names[~kept]])
        chosen = [str(name) for name in names[kept]]
        shares = [generator.permutation(rows[g]) for g in np.flatnonzero(kept)]
        if examples.sides is not None and sizes.test == "official":
            train, validation, test = self._official(examples, shares, chosen, sizes)
        elif sizes.test == "official":
            raise CoterieError(f"{examples.name!r} has no official test set: give test as a fraction such as 0.2.")
        else:  # an official split is merged, and drawn anew
            train, validation, test = self.split(examples, shares, chosen, sizes)
        return Division(train, validation, test, names=chosen)

    def _official(
        self, examples: Examples, shares: Sequence[Rows], names: Sequence[str], sizes: Sizes
    ) -> tuple[list[Rows], list[Rows], list[Rows]]:
        """Split as the rows themselves say."""
        assert examples.sides is not None
        if sizes.train != "rest":
            raise CoterieError(
                f"{examples.name!r} says itself which rows are for training, so train: {sizes.train} has no effect: "
                "leave it out."
            )
        # the default is in force where nothing was said, and stands in every stored configuration
        if examples.sides.names_validation and sizes.validation != self.default_sizes.validation:
            raise CoterieError(
                f"{examples.name!r} says itself which rows are for validation, so validation: {sizes.validation} has "
                "no effect: leave it out."
            )
        parts = []
        for name, share in zip(names, shares, strict=True):

            def carve(rows: Rows, name: str = name) -> tuple[Rows, Rows]:
                train, validation, _ = self.split(examples, [rows], [name], replace(sizes, test=0))
                return train[0], validation[0]

            parts.append(examples.sides.split(share, name, carve))
        train, validation, test = zip(*parts, strict=True)
        return list(train), list(validation), list(test)

    def _column(self, examples: Examples) -> Sequence[str]:
        """The name of its group for every example, ``(N,)``."""
        kinds = list(examples.groups)
        if not kinds:
            raise CoterieError(
                f"The rule natural needs a source with natural groups, and {examples.name!r} has none: choose another "
                "rule, such as dirichlet."
            )
        if self.group is None and len(kinds) > 1:
            raise CoterieError(
                f"{examples.name!r} has several kinds of groups: choose one by partition.group, {' or '.join(kinds)}."
            )
        kind = kinds[0] if self.group is None else self.group
        if kind not in kinds:
            near = difflib.get_close_matches(kind, kinds, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its groups are {', '.join(kinds)}."
            raise CoterieError(f"partition.group is {kind!r}, but {examples.name!r} has no such groups: {hint}")
        return examples.groups[kind]

    def _warn(self, source: str, dropped: list[str]) -> None:
        few = ", ".join(dropped[:NAMED]) + (f" and {len(dropped) - NAMED} more" if len(dropped) > NAMED else "")
        warnings.warn(
            f"{source}: groups with fewer than {self.min_examples} examples are left out ({few}); "
            "partition.min_examples sets the limit.",
            CoterieWarning,
            stacklevel=2,
        )
