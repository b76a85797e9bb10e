"""The section ``federation:`` of a configuration."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from coterie.errors import CoterieError
from coterie.federation.datasets import find_source
from coterie.federation.partition import RULES, Amount, Rule, Sizes

if TYPE_CHECKING:
    PartitionConfig = Rule
else:
    # A union of whatever rules are registered, told apart by their key ``rule``
    PartitionConfig = Annotated[reduce(or_, (RULES[name] for name in sorted(RULES))), Field(discriminator="rule")]


Statistic = float | list[float]


class FederationConfig(BaseModel):
    """Which data, and how they are divided among the clients.

    Sizes left out are filled in from the rule: 128 / 64 / ``rest`` for rotation, ``rest`` / 0.2 / 0.2 for
    the others.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = Field(description="name of the data source, see `coterie datasets`")
    partition: PartitionConfig = Field(description="how the examples are divided among the clients")
    train: int | float | Literal["rest"] | None = Field(
        None,
        description="training examples of a client: number (a limit unless the rule is rotation), fraction, or rest",
    )
    validation: int | float | None = Field(None, description="validation examples of a client: number or fraction")
    test: int | float | Literal["rest", "official"] | None = Field(
        None, description="test examples of a client: number, fraction, rest (rotation only) or official"
    )
    normalise: Literal["none", "standard"] | tuple[Statistic, Statistic] = Field(
        "none",
        description="inputs less a mean, divided by a standard deviation: none, standard (what papers use for the "
        "source) or [mean, std], each a number or one a channel",
    )
    resize: int | None = Field(None, ge=1, le=1024, description="side of the pictures in pixels, if they are to change")
    seed: int | None = Field(None, ge=0, description="seed of the division; left out: the seed of the run")

    @field_validator("source")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            find_source(name)
        except CoterieError as error:
            raise ValueError(str(error)) from error
        return name

    @field_validator("train", "validation", "test")
    @classmethod
    def _sensible(cls, value: Amount | None) -> Amount | None:
        if isinstance(value, float) and not 0 <= value < 1:
            raise ValueError(f"a fraction lies between 0 and 1; {value} does not (a number of examples is an integer)")
        if isinstance(value, int) and value < 0:
            raise ValueError(f"a number of examples is not negative, but {value} is")
        return value

    @field_validator("normalise")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        if isinstance(value, str):
            return value
        if not all(np.isfinite(part).all() for part in value):
            raise ValueError("mean and standard deviation must be finite numbers")
        if not np.all(np.asarray(value[1]) > 0):
            raise ValueError(f"the standard deviation, the second of the two, must be above 0, not {value[1]}")
        return value

    @model_validator(mode="after")
    def _fill_in(self) -> FederationConfig:
        sizes = self.sizes
        for key in ("train", "validation", "test"):
            object.__setattr__(self, key, getattr(sizes, key))
        return self

    @property
    def sizes(self) -> Sizes:
        """Sizes in force, the rule's defaults included."""
        return self.partition.resolve({key: getattr(self, key) for key in ("train", "validation", "test")})
