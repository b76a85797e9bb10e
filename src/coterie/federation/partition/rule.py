"""What a partition rule is, and the list of rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from coterie.federation.examples import Examples, Rows

Amount = int | float | Literal["rest", "official"]


@dataclass(frozen=True)
class Sizes:
    """How much each client gets of each split.

    An integer is a number of examples and a float a fraction of the client's own share; ``rest`` is what the
    other splits leave over, and ``official`` (test only) the source's own test set. ``None``: an option of
    the rule says so.
    """

    train: Amount | None
    validation: Amount | None
    test: Amount


@dataclass(frozen=True)
class Division:
    """What a rule decides.

    Attributes:
        train, validation, test: for each client the rows of the source that it owns; no row occurs twice.
        transform: turns ``(n, *feature_shape)`` inputs into those of client ``i``, evaluated once; ``None``
            leaves them.
        names: names of the clients; left out, they are numbered.
        columns: facts about the clients, one value each (such as the angle), shown by ``coterie show``.
    """

    train: Sequence[Rows]
    validation: Sequence[Rows]
    test: Sequence[Rows]
    transform: Callable[[Tensor, int], Tensor] | None = None
    names: Sequence[str] = ()
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Rule(BaseModel):
    """A partition rule: its fields are its options in the configuration."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    default_sizes: ClassVar[Sizes]

    rule: str

    def resolve(self, given: Mapping[str, Any]) -> Sizes:
        """The sizes in force: those given in the configuration, completed by the rule's defaults.

        Raises:
            ValueError: a size that makes no sense for this rule.
        """
        default = self.default_sizes
        return Sizes(**{key: getattr(default, key) if given[key] is None else given[key] for key in given})

    def divide(self, examples: Examples, sizes: Sizes, generator: np.random.Generator) -> Division:
        """Divide the examples among the clients; all randomness comes from ``generator``.

        Raises:
            CoterieError: the partition is impossible; the message has the numbers and the remedy.
        """
        raise NotImplementedError


RULES: dict[str, type[Rule]] = {}


def register_rule(rule: type[Rule]) -> type[Rule]:
    """Enter the decorated rule under the default of its field ``rule``."""
    name = rule.model_fields["rule"].default
    if name in RULES:
        raise ValueError(f"partition rule {name!r} is registered twice")
    RULES[name] = rule
    return rule


def available_rules() -> dict[str, str]:
    """Name and one-line description of every partition rule."""
    return {name: (RULES[name].__doc__ or "").strip().splitlines()[0] for name in sorted(RULES)}
