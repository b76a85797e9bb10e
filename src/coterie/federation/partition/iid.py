"""Independent and identically distributed clients."""

from __future__ import annotations

from typing import Literal

import numpy as np

from coterie.federation.examples import Examples, Rows
from coterie.federation.partition.rule import register_rule
from coterie.federation.partition.shares import ShareRule


@register_rule
class Iid(ShareRule):
    """Equal random shares: every client's data have the same distribution"""

    rule: Literal["iid"] = "iid"

    def share(self, examples: Examples, rows: Rows, generator: np.random.Generator) -> list[Rows]:
        """One permutation cut into K pieces whose sizes differ by at most one."""
        return np.array_split(generator.permutation(rows), self.clients)
