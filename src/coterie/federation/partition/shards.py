"""Shards of the sorted data: FedDWA's pathological setting (Liu et al., IJCAI 2023, section 5)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from coterie.errors import CoterieError
from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import register_rule
from coterie.federation.partition.shares import ShareRule, require_classes


@register_rule
class Shards(ShareRule):
    """Sorted by label and cut into equal shards, a few random ones for each client (FedDWA)

    As in FedDWA's released code there are ``shards_per_client * K`` shards. Unlike those of the rule
    ``pathological`` they are of one size, so that one may reach from a class into the next ones: the number of
    classes is not limited by the number of shards, but all clients are equally large.

    FedDWA cuts the test set like the training set and gives every client the shards of the same places. Under
    ``test: official`` a client gets of each class the same part of both sets, which is the same where the
    classes are balanced alike, and keeps to the training classes where they are not.
    """

    rule: Literal["shards"] = "shards"
    shards_per_client: int = Field(2, ge=1, description="shards that a client gets")

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """Sort, cut and deal.

        Raises:
            CoterieError: more shards than examples, or no classes.
        """
        require_classes(self.rule, examples)
        shards = self.shards_per_client * self.clients
        if shards > len(rows):
            raise CoterieError(
                f"{self.clients:,} clients of {self.shards_per_client} shards need at least {shards:,} examples, but "
                f"{examples.name!r} has {len(rows):,}: ask for fewer clients or fewer shards_per_client."
            )
        rows = generator.permutation(rows)
        pieces = np.array_split(rows[np.argsort(examples.labels[rows], kind="stable")], shards)
        owned = generator.permutation(shards).reshape(self.clients, self.shards_per_client)
        return [np.concatenate([pieces[shard] for shard in own]) for own in owned]
