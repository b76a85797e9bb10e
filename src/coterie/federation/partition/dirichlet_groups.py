"""Groups of labels spread by Dirichlet draws: the split of FedEM (Marfoq et al., 2021) and FedeRiCo's table 4."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.dirichlet import dirichlet_shares, fill_up
from coterie.federation.partition.label_groups import cut_labels
from coterie.federation.partition.rule import Sizes, register_rule
from coterie.federation.partition.shares import ShareRule, deal, require_classes


@register_rule
class DirichletGroups(ShareRule):
    """Labels are cut into groups, each of which is spread over all clients by a Dirichlet draw (FedEM, FedeRiCo)

    The labels in random order are cut into ``groups`` sets of like size. For each set the clients' shares are
    drawn from ``Dir(alpha, ..., alpha)`` and the numbers of examples are multinomial with these shares. Clients
    that come out below ``min_size`` are filled up from the largest ones, as under the rule ``dirichlet``.
    """

    rule: Literal["dirichlet-groups"] = "dirichlet-groups"
    groups: int = Field(4, ge=1, description="groups of labels")
    alpha: float = Field(0.4, gt=0, allow_inf_nan=False, description="concentration; the smaller the more uneven")
    min_size: int = Field(10, ge=1, description="every client gets at least so many examples")
    fraction: float = Field(1.0, gt=0, le=1, description="part of the examples that is used, drawn at random")
    training_only: bool = Field(False, description="leave out the official test set")

    def pool(self, examples: Examples, sizes: Sizes) -> Rows:
        """The rows to divide."""
        rows = super().pool(examples, sizes)
        return examples.train_rows if self.training_only else rows

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """Group the labels, draw, repair if need be, and deal.

        Raises:
            CoterieError: fewer labels than groups, too few examples for ``min_size`` each, or no classes.
        """
        require_classes(self.rule, examples)
        rows = generator.permutation(rows)[: round(self.fraction * len(rows))]
        if self.clients * self.min_size > len(rows):
            raise CoterieError(
                f"{self.clients:,} clients of at least {self.min_size} examples (partition.min_size) need "
                f"{self.clients * self.min_size:,}, but {len(rows):,} of {examples.name!r} are used: ask for fewer "
                "clients, a smaller min_size or a larger fraction."
            )
        group_of_row = cut_labels(examples, rows, self.groups, generator)[examples.labels[rows]]
        everybody = np.ones(self.clients, dtype=bool)
        counts = [
            generator.multinomial(total, dirichlet_shares(self.alpha, everybody, generator))
            for total in np.bincount(group_of_row)
        ]
        return deal(fill_up(np.stack(counts, axis=1), self.min_size), rows, group_of_row)
